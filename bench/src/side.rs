//! The stores that are compared, behind one interface.
//!
//! All guarantee the same when a put returns: it survives a killed process, and with `sync` a power
//! cut. None compresses. All get the same memory for block cache and write buffers together (LMDB
//! has no cache of its own: it uses the page cache).

mod append;
#[cfg(any(feature = "rocksdb", feature = "leveldb"))]
mod c_api;
#[cfg(any(feature = "rocksdb", feature = "leveldb"))]
mod c_engine;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
mod resp;
#[cfg(feature = "rocksdb")]
mod rocks_transactions;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stitch;
mod versions;

use crate::report::Scale;
use anyhow::{Error, Result, bail};
pub(crate) use resp::Load;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stitch_kv::TreeOptions;
pub(crate) use versions::make_versions;

/// Our own store, which every comparison is with.
pub(crate) const OURS: &str = "stitch";
/// Ours on a raw device, without a file system below.
pub(crate) const OURS_RAW: &str = "stitch-raw";
/// Nothing but writes and flushes of a raw device.
pub(crate) const RAW_APPEND: &str = "raw-append";
/// Every side there is. What is not built in says so when asked for.
pub(crate) const NAMES: [&str; 12] = [
    OURS,
    "rocksdb",
    "leveldb",
    LMDB,
    "fjall",
    ROCKSDB_LOCKING,
    ROCKSDB_OPTIMISTIC,
    SQLITE,
    OURS_RESP,
    REDIS,
    OURS_RAW,
    RAW_APPEND,
];
/// `stitchfs serve` on a store of ours.
pub(crate) const OURS_RESP: &str = "stitch-resp";
/// Redis.
pub(crate) const REDIS: &str = "redis";
/// LMDB, whose writers wait for each other.
const LMDB: &str = "lmdb";
/// RocksDB's transactions that lock.
const ROCKSDB_LOCKING: &str = "rocksdb-locking";
/// RocksDB's transactions that are checked at the commit.
const ROCKSDB_OPTIMISTIC: &str = "rocksdb-optimistic";
/// SQLite, of which only transactions are measured.
const SQLITE: &str = "sqlite";

/// Whether a side runs nothing but transactions.
pub(crate) fn is_of_transactions(name: &str) -> bool {
    [ROCKSDB_LOCKING, ROCKSDB_OPTIMISTIC, SQLITE].contains(&name)
}

/// Whether a side of others runs transactions.
pub(crate) fn has_transactions(name: &str) -> bool {
    is_of_transactions(name) || name == LMDB
}

/// Whether a side is a server that clients connect to.
pub(crate) fn is_server(name: &str) -> bool {
    [OURS_RESP, REDIS].contains(&name)
}

/// Whether a side's store is a device.
pub(crate) fn is_raw(name: &str) -> bool {
    [OURS_RAW, RAW_APPEND].contains(&name)
}

/// One change of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write<'a> {
    /// Sets a key.
    Put(&'a [u8], &'a [u8]),
    /// Removes a key.
    Delete(&'a [u8]),
}

/// An upsert: changes a row, if there is one, without reading it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold<'a> {
    /// Of the row.
    pub(crate) key: &'a [u8],
    /// Number of the function, one of the file system's.
    pub(crate) function: u32,
    /// What it is given.
    pub(crate) delta: &'a [u8],
}

/// What a transaction can do.
pub(crate) trait Steps {
    /// Shows the value of a key that may be put afterwards; returns whether there is one.
    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Sets a key.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
}

/// Called with each entry of a scan; returns whether to continue.
pub(crate) type Rows<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

/// An open store.
pub(crate) trait Side: Send + Sync {
    /// Applies all changes or none, and makes them durable if `sync`.
    fn write(&self, writes: &[Write<'_>], sync: bool) -> Result<()>;

    /// Applies all changes and upserts or none.
    fn write_and_fold(&self, _writes: &[Write<'_>], _folds: &[Fold<'_>]) -> Result<()> {
        bail!("this side has no upserts of the file system")
    }

    /// Runs a transaction and commits it. Returns false if another one was in the way: nothing is
    /// applied then.
    fn transact(&self, body: &mut dyn FnMut(&mut dyn Steps) -> Result<()>) -> Result<bool> {
        let _ = body;
        bail!("this side has no transactions")
    }

    /// Has clients of a server send commands. Returns what they have measured, by names.
    fn load(&self, _load: &Load) -> Result<BTreeMap<String, f64>> {
        bail!("this side is no server")
    }

    /// Makes a branch: a store that begins with what this one holds, and goes its own way.
    fn branch(&self) -> Result<Arc<dyn Side>> {
        bail!("this side has no branches")
    }

    /// Makes everything so far durable.
    fn sync(&self) -> Result<()>;

    /// Shows the value of a key; whether there is one.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Shows the values of several keys, by one call where the side has one: for each that is there
    /// its place in `keys`. Returns their number.
    fn get_many(&self, keys: &[&[u8]], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let mut found = 0;
        for (at, key) in keys.iter().enumerate() {
            found += usize::from(self.get(key, &mut |value| see(at, value))?);
        }
        Ok(found)
    }

    /// Walks the rows from `start` on, in order.
    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()>;

    /// Walks the rows of `[start, end)`, in order, for a caller that will read them all.
    fn scan_whole(&self, start: &[u8], end: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        self.scan(start, &mut |key, value| key < end && rows(key, value))
    }

    /// Removes all of `[start, end)` in one operation; false where there is no such operation.
    fn delete_range(&self, _start: &[u8], _end: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// Moves what lies among holes together; false where there is no such operation.
    fn defrag(&self) -> Result<bool> {
        Ok(false)
    }

    /// Holds this moment open for reading.
    fn snapshot(&self) -> Result<Box<dyn View + '_>>;

    /// Space in use, in bytes.
    fn space_bytes(&self) -> Result<u64>;

    /// What share of the space for user data is in use, from 0 to 1.
    fn fullness(&self) -> Result<f64> {
        bail!("this side has no space of its own")
    }

    /// Does the background work that there is.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// What the engine counted since it was opened.
    fn counters(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    /// Whether this error says that the store is full.
    fn is_full(&self, _error: &Error) -> bool {
        false
    }

    /// Writes out what a clean end writes out. The store is dropped after this.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A moment of a store, held open.
pub(crate) trait View {
    /// Walks the rows that there were, from `start` on, in order.
    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()>;
}

/// How to open a side.
#[derive(Clone, Debug)]
pub(crate) struct OpenOptions {
    /// A folder of its own, or the device that is its store.
    pub(crate) dir: PathBuf,
    /// Nothing is there yet.
    pub(crate) is_fresh: bool,
    /// Memory, mainly.
    pub(crate) scale: Scale,
    /// Room that the store may take, for those that must know it.
    pub(crate) volume_bytes: u64,
    /// What only ours can be told.
    pub(crate) ours: Ours,
    /// A server replies to a command when it is on the medium; otherwise it syncs each second.
    pub(crate) is_synced: bool,
    /// Values are 1 KiB or larger: sides that keep large values apart may do so.
    #[cfg_attr(not(feature = "fjall"), expect(dead_code, reason = "only fjall asks"))]
    pub(crate) has_large_values: bool,
}

/// How our store is tuned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ours {
    /// The tree.
    pub(crate) tree: TreeOptions,
    /// Tables of level 0 that may wait, where that is not the default.
    pub(crate) level0_tables_max: Option<usize>,
    /// How many times larger each level is than the one above, where that is not the default.
    pub(crate) fanout: Option<u64>,
}

/// Opens or makes a side's store.
pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Arc<dyn Side>> {
    match name {
        OURS | OURS_RAW => Ok(Arc::new(stitch::Stitch::open(options)?)),
        OURS_RESP | REDIS => Ok(Arc::new(resp::RespServer::open(name, options)?)),
        RAW_APPEND => Ok(Arc::new(append::RawAppend::open(options)?)),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Ok(Arc::new(c_engine::CEngine::rocksdb(options)?)),
        #[cfg(feature = "rocksdb")]
        ROCKSDB_LOCKING | ROCKSDB_OPTIMISTIC => {
            let is_optimistic = name == ROCKSDB_OPTIMISTIC;
            let side = rocks_transactions::RocksTransactions::open(options, is_optimistic)?;
            Ok(Arc::new(side))
        }
        #[cfg(feature = "sqlite")]
        SQLITE => Ok(Arc::new(sqlite::Sqlite::open(options)?)),
        #[cfg(feature = "leveldb")]
        "leveldb" => Ok(Arc::new(c_engine::CEngine::leveldb(options)?)),
        #[cfg(feature = "lmdb")]
        LMDB => Ok(Arc::new(lmdb::Lmdb::open(options)?)),
        #[cfg(feature = "fjall")]
        "fjall" => Ok(Arc::new(fjall::Fjall::open(options)?)),
        other => bail!("side `{other}` is not built in"),
    }
}

/// Why a side cannot be run; `None` if it can.
pub(crate) fn why_not(name: &str) -> Option<String> {
    let built = match name {
        OURS | OURS_RAW | RAW_APPEND => true,
        OURS_RESP | REDIS => return resp::why_not(name),
        "rocksdb" | ROCKSDB_LOCKING | ROCKSDB_OPTIMISTIC => cfg!(feature = "rocksdb"),
        SQLITE => cfg!(feature = "sqlite"),
        "leveldb" => cfg!(feature = "leveldb"),
        LMDB => cfg!(feature = "lmdb"),
        "fjall" => cfg!(feature = "fjall"),
        _ => return Some(format!("there is no such side; there are {NAMES:?}")),
    };
    let feature = name.split('-').next().unwrap_or(name);
    (!built).then(|| format!("not built in: add `--features {feature}` (see docs/bench/kv.md)"))
}

/// The names of the sides that are built in and need no device of their own.
pub(crate) fn built() -> Vec<String> {
    let built = NAMES.iter().filter(|name| why_not(name).is_none());
    let built = built.filter(|name| !is_raw(name));
    built.map(|name| (*name).to_owned()).collect()
}

/// Space that a folder takes, for sides that are nothing but files.
#[cfg(feature = "peers")]
fn folder_bytes(dir: &Path) -> Result<u64> {
    crate::process::allocated_bytes(dir)
}

/// Where a side's store lies.
fn store_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &Path) -> OpenOptions {
        OpenOptions {
            dir: dir.to_owned(),
            is_fresh: !dir.join("store.stitch").exists(),
            scale: Scale::tiny(),
            volume_bytes: 32 << 20,
            ours: Ours::default(),
            is_synced: false,
            has_large_values: false,
        }
    }

    /// Whether a side's rows can be written and read one by one.
    fn has_rows(name: &str) -> bool {
        !is_of_transactions(name) && !is_server(name)
    }

    /// Every side that is built in keeps the contract that the workloads count on.
    #[test]
    fn sides_keep_the_contract() {
        for name in built().into_iter().filter(|name| has_rows(name)) {
            let dir = tempfile::tempdir().unwrap();
            let side = open(&name, &options(dir.path())).unwrap();
            let put = [Write::Put(b"a", b"1"), Write::Put(b"b", b"2")];
            side.write(&put, false).unwrap();
            side.write(&[Write::Put(b"c", b"3")], true).unwrap();
            {
                let view = side.snapshot().unwrap();
                side.write(&[Write::Delete(b"a")], false).unwrap();
                let range = side.delete_range(b"b", b"c").unwrap();
                assert_eq!(range, rows(&*side, b"").len() == 1, "{name}");
                let mut seen = 0;
                view.scan(b"", &mut |_, _| {
                    seen += 1;
                    true
                })
                .unwrap();
                assert_eq!(seen, 3, "{name}");
            }
            assert!(!side.get(b"a", &mut |_| ()).unwrap(), "{name}");
            side.sync().unwrap();
            side.close().unwrap();
            drop(side);
            let side = open(&name, &options(dir.path())).unwrap();
            let mut value: Vec<u8> = Vec::new();
            assert!(side.get(b"c", &mut |v| value.extend(v)).unwrap(), "{name}");
            assert_eq!(value, b"3", "{name}");
            assert_eq!(rows(&*side, b"bb"), [b"c".to_vec()], "{name}");
            let mut whole = Vec::new();
            side.write(&[Write::Put(b"d", b"4")], false).unwrap();
            side.scan_whole(b"c", b"d", &mut |key, _| {
                whole.push(key.to_vec());
                true
            })
            .unwrap();
            assert_eq!(whole, [b"c".to_vec()], "{name}");
            assert!(side.space_bytes().unwrap() > 0, "{name}");
        }
    }

    fn rows(side: &dyn Side, start: &[u8]) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        side.scan(start, &mut |key, _| {
            keys.push(key.to_vec());
            true
        })
        .unwrap();
        keys
    }

    /// Every side with transactions applies them whole, and shows them their own writes.
    #[test]
    fn transactions_are_whole() {
        let has = |name: &String| name == OURS || has_transactions(name);
        for name in built().into_iter().filter(has) {
            let dir = tempfile::tempdir().unwrap();
            let side = open(&name, &options(dir.path())).unwrap();
            side.write(&[Write::Put(b"a", b"1")], true).unwrap();
            let is_first = side.transact(&mut |steps| {
                let mut value = Vec::new();
                assert!(steps.get(b"a", &mut |found| value.extend(found))?, "{name}");
                value.push(b'+');
                steps.put(b"a", &value)?;
                steps.put(b"b", b"2")?;
                assert!(steps.get(b"b", &mut |_| ())?, "{name}");
                Ok(())
            });
            assert!(is_first.unwrap(), "{name}");
            let failed = side.transact(&mut |steps| {
                steps.put(b"c", b"3")?;
                bail!("it is given up")
            });
            assert!(failed.is_err(), "{name}");
            side.sync().unwrap();
            side.close().unwrap();
            drop(side);
            let side = open(&name, &options(dir.path())).unwrap();
            let mut value: Vec<u8> = Vec::new();
            assert!(side.get(b"a", &mut |found| value.extend(found)).unwrap());
            assert_eq!(value, b"1+", "{name}");
            assert!(side.get(b"b", &mut |_| ()).unwrap(), "{name}");
            assert!(!side.get(b"c", &mut |_| ()).unwrap(), "{name}");
        }
    }

    #[test]
    fn a_scan_stops_when_told() {
        for name in built().into_iter().filter(|name| has_rows(name)) {
            let dir = tempfile::tempdir().unwrap();
            let side = open(&name, &options(dir.path())).unwrap();
            let put = [Write::Put(b"a", b"1"), Write::Put(b"b", b"2")];
            side.write(&put, false).unwrap();
            let mut seen = 0;
            side.scan(b"", &mut |_, _| {
                seen += 1;
                false
            })
            .unwrap();
            assert_eq!(seen, 1, "{name}");
        }
    }

    #[test]
    fn what_is_not_there_is_explained() {
        assert!(why_not("stitch").is_none());
        assert!(why_not("abacus").unwrap().contains("no such side"));
    }
}
