//! LMDB, through `heed`.
//!
//! Commits are not synced (`MDB_NOSYNC`), but written: a killed process loses nothing. It has no
//! memory of its own; what it caches is the page cache's, which only a control group limits.

#![expect(unsafe_code, reason = "opening an environment is unsafe")]

use super::{OpenOptions, Rows, Side, Steps, View, Write, folder_bytes, store_path};
use anyhow::Result;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};
use std::fs;
use std::ops::Bound;
use std::path::PathBuf;

/// An open environment with one database.
pub(crate) struct Lmdb {
    env: Env<WithoutTls>,
    rows: Database<Bytes, Bytes>,
    dir: PathBuf,
}

impl Lmdb {
    pub(crate) fn open(options: &OpenOptions) -> Result<Self> {
        let dir = store_path(&options.dir, "lmdb");
        fs::create_dir_all(&dir)?;
        // A thread may hold a snapshot and read beside it.
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(usize::try_from(options.volume_bytes * 4)?);
        // SAFETY: no other process changes the files; without sync at each commit a power cut may
        // damage them, and then the run is over anyway.
        let env = unsafe {
            open.flags(EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD);
            open.open(&dir)?
        };
        let mut txn = env.write_txn()?;
        let rows = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Self { env, rows, dir })
    }

    fn scan_in(
        &self,
        txn: &RoTxn<'_, WithoutTls>,
        start: &[u8],
        rows: &mut Rows<'_>,
    ) -> Result<()> {
        // An empty key is no key here.
        let from = if start.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Included(start)
        };
        let range = (from, Bound::Unbounded);
        for row in self.rows.range(txn, &range)? {
            let (key, value) = row?;
            if !rows(key, value) {
                break;
            }
        }
        Ok(())
    }
}

impl Side for Lmdb {
    fn write(&self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for write in writes {
            match write {
                Write::Put(key, value) => self.rows.put(&mut txn, key, value)?,
                Write::Delete(key) => {
                    self.rows.delete(&mut txn, key)?;
                }
            }
        }
        txn.commit()?;
        if sync { self.sync() } else { Ok(()) }
    }

    /// Writers wait for each other, so none is ever in the way of another.
    fn transact(&self, body: &mut dyn FnMut(&mut dyn Steps) -> Result<()>) -> Result<bool> {
        let mut txn = self.env.write_txn()?;
        let rows = self.rows;
        body(&mut LmdbSteps {
            rows,
            txn: &mut txn,
        })?;
        txn.commit()?;
        Ok(true)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let txn = self.env.read_txn()?;
        let found = self.rows.get(&txn, key)?;
        if let Some(value) = found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        self.scan_in(&self.env.read_txn()?, start, rows)
    }

    fn snapshot(&self) -> Result<Box<dyn View + '_>> {
        let txn = self.env.clone().static_read_txn()?;
        Ok(Box::new(LmdbView { side: self, txn }))
    }

    fn space_bytes(&self) -> Result<u64> {
        folder_bytes(&self.dir)
    }
}

/// A transaction that writes.
struct LmdbSteps<'a, 'env> {
    rows: Database<Bytes, Bytes>,
    txn: &'a mut RwTxn<'env>,
}

impl Steps for LmdbSteps<'_, '_> {
    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.rows.get(self.txn, key)?;
        if let Some(value) = found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.rows.put(self.txn, key, value)?)
    }
}

struct LmdbView<'a> {
    side: &'a Lmdb,
    txn: RoTxn<'static, WithoutTls>,
}

impl View for LmdbView<'_> {
    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        self.side.scan_in(&self.txn, start, rows)
    }
}
