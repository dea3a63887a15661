//! fjall, with large values kept apart ("blobs") where the workload has large values.

use super::{OpenOptions, Rows, Side, View, Write, folder_bytes, store_path};
use anyhow::Result;
use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
    Readable as _, Snapshot,
};
use std::ops::Bound;
use std::path::PathBuf;

/// Bits of a filter per key; ours have at most as many.
const FILTER_BITS: f32 = 10.0;

/// An open database with one keyspace.
pub(crate) struct Fjall {
    db: Database,
    rows: Keyspace,
    dir: PathBuf,
}

impl Fjall {
    pub(crate) fn open(options: &OpenOptions) -> Result<Self> {
        let dir = store_path(&options.dir, "fjall");
        let db = Database::builder(&dir)
            .cache_size(options.scale.cache_bytes())
            .journal_compression(CompressionType::None)
            .open()?;
        let rows = db.keyspace("bench", || keyspace_options(options))?;
        Ok(Self { db, rows, dir })
    }
}

fn keyspace_options(options: &OpenOptions) -> KeyspaceCreateOptions {
    let filter = BloomConstructionPolicy::BitsPerKey(FILTER_BITS);
    let blobs = KvSeparationOptions::default().compression(CompressionType::None);
    KeyspaceCreateOptions::default()
        .max_memtable_size(options.scale.write_buffer_bytes())
        .data_block_compression_policy(CompressionPolicy::disabled())
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(filter)))
        .with_kv_separation(options.has_large_values.then_some(blobs))
}

/// Every key from this one on.
fn from(start: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Included(start), Bound::Unbounded)
}

fn show(iter: fjall::Iter, rows: &mut Rows<'_>) -> Result<()> {
    for row in iter {
        let (key, value) = row.into_inner()?;
        if !rows(&key, &value) {
            break;
        }
    }
    Ok(())
}

impl Side for Fjall {
    fn write(&self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        match writes {
            [Write::Put(key, value)] => self.rows.insert(*key, *value)?,
            [Write::Delete(key)] => self.rows.remove(*key)?,
            many => {
                let mut batch = self.db.batch();
                for write in many {
                    match write {
                        Write::Put(key, value) => batch.insert(&self.rows, *key, *value),
                        Write::Delete(key) => batch.remove(&self.rows, *key),
                    }
                }
                batch.commit()?;
            }
        }
        if sync { self.sync() } else { Ok(()) }
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncData)?)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.rows.get(key)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        show(self.rows.range::<&[u8], _>(from(start)), rows)
    }

    fn snapshot(&self) -> Result<Box<dyn View + '_>> {
        Ok(Box::new(FjallView {
            side: self,
            snapshot: self.db.snapshot(),
        }))
    }

    fn space_bytes(&self) -> Result<u64> {
        folder_bytes(&self.dir)
    }
}

struct FjallView<'a> {
    side: &'a Fjall,
    snapshot: Snapshot,
}

impl View for FjallView<'_> {
    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        show(
            self.snapshot
                .range::<&[u8], _>(&self.side.rows, from(start)),
            rows,
        )
    }
}
