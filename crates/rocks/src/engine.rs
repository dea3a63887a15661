//! The engine.
//!
//! Invariants:
//! - a commit holds `catalog` for reading, so a tree that it writes to is not dropped meanwhile;
//!   a commit with guards holds it for writing, so that no other comes between check and commit;
//! - after a write or sync that failed nothing more is written: what reached the medium is unknown.
//!
//! Locks: `catalog`; those of RocksDB below it.

use crate::c_api;
use crate::catalog::{Catalog, Tree};
use crate::database::{Database, Moment, Opening, ReadOptions, storage};
use crate::guards;
use crate::point::{GROUP_MAX, get, get_group};
use crate::scan::RocksScan;
use crate::syncer::Syncer;
use crate::write::WriteBatch;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stitch_base::sync::RwLock;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::{ErrorKind, Seqno, TreeId};
use stitch_kv::{
    Batch, Capabilities, ChangedKey, CommitOptions, Counters, Direction, Engine, Guard, Guards,
    KeyRange, KvError, Limits, Scan, Snapshot, SpaceClass, SpaceUsage, TreeInfo, TreeOptions,
    UpsertRegistry, Violation, check_free, check_tree_name, counters,
};

const LIMITS: Limits = Limits {
    key_bytes_max: 4 << 10,
    value_bytes_max: 1 << 20,
    batch_bytes_max: 8 << 20,
};
/// What commits leave free on the host, so that the log and the tables of what is committed fit.
const RESERVE_BYTES: u64 = 64 << 20;
/// What batches that give space back leave free.
const RESERVE_BYTES_MIN: u64 = 16 << 20;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct RocksOptions {
    /// Memory for memtables and the block cache together, in bytes.
    pub memory_bytes: u64,
    /// The upsert functions that the store may meet.
    pub upserts: UpsertRegistry,
    /// How often the log is synced by the clock; zero: only when asked to.
    pub sync_interval: Duration,
    /// Every commit is on the medium when it returns.
    pub sync_commits: bool,
    /// For reading only. RocksDB takes no lock then: nothing may write meanwhile.
    pub read_only: bool,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            upserts: UpsertRegistry::default(),
            sync_interval: Duration::from_secs(5),
            sync_commits: false,
            read_only: false,
        }
    }
}

/// Loads RocksDB's library, unless this process has done so. Opening or making a store does it too;
/// call this before something is changed for a store that could not be opened.
///
/// # Errors
/// [`KvError::Storage`] of kind `Unsupported` if the library cannot be loaded. It names the package
/// to install.
pub fn load_library() -> Result<(), KvError> {
    c_api::load()
}

/// What was done since the store was opened.
#[derive(Debug, Default)]
struct Counts {
    commits: AtomicU64,
    put_messages: AtomicU64,
    put_bytes: AtomicU64,
    gets: AtomicU64,
    scans: AtomicU64,
}

/// An open RocksDB store.
#[derive(Debug)]
pub struct RocksEngine {
    catalog: RwLock<Catalog>,
    syncer: Syncer,
    database: Arc<Database>,
    path: PathBuf,
    upserts: UpsertRegistry,
    read_only: bool,
    sync_commits: bool,
    /// Left to commits of [`SpaceClass::Allocated`]; changed with `catalog` held for writing.
    aside_bytes: AtomicU64,
    is_closed: AtomicBool,
    is_poisoned: AtomicBool,
    counts: Counts,
}

impl RocksEngine {
    /// Makes a store in a directory, which is made if missing, and opens it.
    ///
    /// # Errors
    /// [`KvError::Invalid`] if the directory holds a database, [`KvError::Storage`]; see
    /// [`load_library`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn create(path: &Path, options: &RocksOptions) -> Result<Self, KvError> {
        if path.join("CURRENT").exists() {
            let what = format!("{} holds a RocksDB database", path.display());
            return Err(KvError::Invalid(what));
        }
        if options.read_only {
            return Err(KvError::ReadOnly);
        }
        Self::start(path, options, true)
    }

    /// Opens a store.
    ///
    /// # Errors
    /// [`KvError::Storage`] of kind `Busy` if it is open elsewhere, `Corrupt` if it is no store of
    /// ours or damaged, `Unsupported` if a newer program made it, `Io` else; see [`load_library`].
    pub fn open(path: &Path, options: &RocksOptions) -> Result<Self, KvError> {
        if !path.join("CURRENT").exists() {
            let what = format!("{} holds no RocksDB database", path.display());
            return Err(storage(ErrorKind::NotFound, what));
        }
        Self::start(path, options, false)
    }

    fn start(path: &Path, options: &RocksOptions, creates: bool) -> Result<Self, KvError> {
        let opening = Opening {
            memory_bytes: options.memory_bytes,
            is_read_only: options.read_only,
            creates,
            upserts: options.upserts.clone(),
        };
        let (database, catalog) = Catalog::open(path, &opening)?;
        let interval = match options.read_only {
            true => Duration::ZERO,
            false => options.sync_interval,
        };
        let syncer = Syncer::start(&database, interval);
        Ok(Self {
            catalog: RwLock::new(catalog),
            syncer,
            database,
            path: path.to_owned(),
            upserts: options.upserts.clone(),
            read_only: options.read_only,
            sync_commits: options.sync_commits,
            aside_bytes: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            is_poisoned: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// Reports whether the store was closed: it takes no more writes.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn tree(&self, tree: TreeId) -> Result<Tree, KvError> {
        let catalog = self.catalog.read();
        catalog
            .trees
            .get(&tree)
            .cloned()
            .ok_or(KvError::NoTree(tree))
    }

    /// Refuses what writes where nothing may be written.
    fn admit_write(&self) -> Result<(), KvError> {
        if self.read_only {
            return Err(KvError::ReadOnly);
        }
        if self.is_closed() {
            return Err(KvError::Closed);
        }
        if self.is_poisoned.load(Ordering::Acquire) || self.syncer.has_failed() {
            return Err(KvError::Poisoned);
        }
        Ok(())
    }

    /// After a failed write nothing more is accepted.
    fn poison(&self, error: KvError) -> KvError {
        self.is_poisoned.store(true, Ordering::Release);
        error
    }

    /// Refuses a batch that the host may not have room for.
    fn admit_space(&self, batch: &Batch, space: SpaceClass) -> Result<(), KvError> {
        let kept = match space {
            SpaceClass::Normal | SpaceClass::Uncommitted => self.kept_bytes(),
            SpaceClass::Reserve => RESERVE_BYTES_MIN,
            SpaceClass::Allocated => RESERVE_BYTES,
        };
        let free_bytes = host_space(&self.path)?.1.saturating_sub(kept);
        // The log, and a table: each once, before anything is given back.
        check_free(2 * batch.len_bytes() as u64, free_bytes)
    }

    /// Checks a batch and makes it one of RocksDB's; also its messages and their bytes.
    fn build(&self, catalog: &Catalog, batch: &Batch) -> Result<(WriteBatch, u64, u64), KvError> {
        LIMITS.check_batch(batch)?;
        let mut built = WriteBatch::new();
        let (mut count, mut bytes) = (0, 0);
        for (id, message) in batch.messages() {
            let tree = catalog.trees.get(&id).ok_or(KvError::NoTree(id))?;
            LIMITS.check_message(message, &self.upserts)?;
            built.add(&tree.family, message);
            count += 1;
            bytes += (message.key().len() + message.operand().len()) as u64;
        }
        Ok((built, count, bytes))
    }

    /// Commits a batch while the caller holds the catalog.
    fn commit_in(
        &self,
        catalog: &Catalog,
        batch: &Batch,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let (built, count, bytes) = self.build(catalog, batch)?;
        self.admit_space(batch, options.space)?;
        let is_synced = options.sync || self.sync_commits;
        built
            .write(&self.database, is_synced)
            .map_err(|error| self.poison(error))?;
        if !is_synced {
            self.syncer.note_commit();
        }
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        self.counts.put_messages.fetch_add(count, Ordering::Relaxed);
        self.counts.put_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Seqno(self.database.latest_seqno()))
    }

    fn changed(
        &self,
        catalog: &Catalog,
        guard: &Guard<'_>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let moment = self.moment(Some(guard.since));
        let moment = moment.expect("a guard has a moment");
        guards::changed(catalog, guard, &moment, count_max)
    }

    /// Bytes of the host that new data leaves free.
    fn kept_bytes(&self) -> u64 {
        RESERVE_BYTES.saturating_add(self.aside_bytes.load(Ordering::Relaxed))
    }

    fn moment(&self, at: Option<&Snapshot>) -> Option<Arc<Moment>> {
        let snapshot = at?;
        let moment = Arc::clone(snapshot.hold()).downcast::<Moment>().ok();
        let is_own = |moment: &Arc<Moment>| Arc::ptr_eq(&moment.database, &self.database);
        let moment = moment.filter(is_own);
        assert!(
            moment.is_some(),
            "a snapshot is read in the store that it is of"
        );
        moment
    }
}

/// Returns all bytes of the host's file system, and those that are free for us.
fn host_space(path: &Path) -> Result<(u64, u64), KvError> {
    let space = rustix::fs::statvfs(path);
    let space = space.map_err(|error| {
        let what = format!("{}: {error}", path.display());
        storage(ErrorKind::Io, what)
    })?;
    let unit = space.f_frsize;
    Ok((space.f_blocks * unit, space.f_bavail * unit))
}

impl Engine for RocksEngine {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            guards: true,
            ..Capabilities::default()
        }
    }

    fn trees(&self) -> Vec<TreeInfo> {
        let catalog = self.catalog.read();
        catalog
            .trees
            .values()
            .map(|tree| tree.info.clone())
            .collect()
    }

    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError> {
        self.admit_write()?;
        check_tree_name(name)?;
        self.catalog.write().create(&self.database, name, options)
    }

    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError> {
        self.admit_write()?;
        self.catalog.write().remove(&self.database, tree)
    }

    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError> {
        self.admit_write()?;
        self.catalog.write().alter(&self.database, tree, options)
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        self.admit_write()?;
        let catalog = self.catalog.read();
        self.commit_in(&catalog, batch, options)
    }

    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        if guards.is_empty() {
            return self.commit(batch, options);
        }
        self.admit_write()?;
        LIMITS.check_guards(guards)?;
        let catalog = self.catalog.write();
        guards.check(|guard| Ok(self.changed(&catalog, guard, 1)?.pop()))?;
        self.commit_in(&catalog, batch, options)
    }

    fn changed_keys(&self, guards: &Guards, count_max: usize) -> Result<Vec<ChangedKey>, KvError> {
        let catalog = self.catalog.write();
        guards.changed_keys(count_max, |guard| self.changed(&catalog, guard, count_max))
    }

    fn upserts(&self) -> &UpsertRegistry {
        &self.upserts
    }

    fn sync(&self) -> Result<(), KvError> {
        if self.read_only {
            return Ok(());
        }
        if self.is_poisoned.load(Ordering::Acquire) {
            return Err(KvError::Poisoned);
        }
        self.database.sync_wal().map_err(|error| self.poison(error))
    }

    fn snapshot(&self) -> Snapshot {
        let moment = Moment::now(&self.database);
        Snapshot::new(Seqno(self.database.latest_seqno()), Arc::new(moment))
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        self.counts.gets.fetch_add(1, Ordering::Relaxed);
        let tree = self.tree(tree)?;
        let moment = self.moment(at);
        get(&tree.family, &ReadOptions::new(moment.as_deref()), key)
    }

    fn get_many(
        &self,
        tree: TreeId,
        keys: &[&[u8]],
        at: Option<&Snapshot>,
    ) -> Result<Vec<Option<Bytes>>, KvError> {
        self.counts
            .gets
            .fetch_add(keys.len() as u64, Ordering::Relaxed);
        let tree = self.tree(tree)?;
        // One group is of one moment by itself.
        let now =
            (at.is_none() && keys.len() > GROUP_MAX).then(|| Arc::new(Moment::now(&self.database)));
        let moment = self.moment(at).or(now);
        let options = ReadOptions::new(moment.as_deref());
        let mut values = Vec::with_capacity(keys.len());
        for group in keys.chunks(GROUP_MAX) {
            get_group(&tree.family, &options, group, &mut values)?;
        }
        debug_assert_eq!(values.len(), keys.len(), "one value for each key");
        Ok(values)
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.counts.scans.fetch_add(1, Ordering::Relaxed);
        let tree = self.tree(tree)?;
        let moment = self.moment(at);
        let options = ReadOptions::new(moment.as_deref());
        let scan = RocksScan::new(tree.family, range, direction, (options, moment));
        Ok(Box::new(scan))
    }

    fn counters(&self) -> Counters {
        let mut out = Counters::default();
        let counts = [
            (counters::COMMITS, &self.counts.commits),
            (counters::PUT_MESSAGES, &self.counts.put_messages),
            (counters::PUT_BYTES, &self.counts.put_bytes),
            (counters::GETS, &self.counts.gets),
            (counters::SCANS, &self.counts.scans),
        ];
        for (name, count) in counts {
            out.push(name, count.load(Ordering::Relaxed));
        }
        out
    }

    fn space(&self) -> SpaceUsage {
        let (total_bytes, free) = host_space(&self.path).unwrap_or_default();
        SpaceUsage {
            total_bytes,
            free_bytes: free.saturating_sub(self.kept_bytes()),
        }
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        let _catalog = self.catalog.write();
        let needed_bytes = bytes.saturating_sub(self.aside_bytes.load(Ordering::Relaxed));
        check_free(needed_bytes, self.space().free_bytes)?;
        self.aside_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError> {
        let trees: Vec<Tree> = self.catalog.read().trees.values().cloned().collect();
        let mut found = Vec::new();
        for (index, tree) in (1..).zip(&trees) {
            let reading = (ReadOptions::for_check(), None);
            let all = KeyRange::all();
            let family = Arc::clone(&tree.family);
            let mut scan = RocksScan::new(family, all, Direction::Forward, reading);
            let read = std::iter::from_fn(|| scan.next().map(|entry| entry.map(drop)).transpose());
            if let Some(Err(error)) = read.into_iter().find(Result::is_err) {
                found.push(Violation {
                    rule: "tree-unreadable",
                    detail: format!("tree {:?}: {error}", tree.info.name),
                    lost: None,
                });
            }
            progress(index, trees.len() as u64);
        }
        Ok(found)
    }

    fn quiesce(&self) -> Result<(), KvError> {
        if self.read_only || self.is_closed() {
            return Ok(());
        }
        let trees: Vec<Tree> = self.catalog.read().trees.values().cloned().collect();
        for tree in &trees {
            self.database.flush(&tree.family)?;
            self.database.compact(&tree.family);
        }
        Ok(())
    }

    fn close(&self) -> Result<(), KvError> {
        if self.is_closed.swap(true, Ordering::AcqRel) || self.read_only {
            return Ok(());
        }
        // No commit is under way while the catalog is held for writing.
        let catalog = self.catalog.write();
        self.syncer.end();
        let synced = self.sync();
        for tree in catalog.trees.values().filter(|_| synced.is_ok()) {
            self.database.flush(&tree.family)?;
        }
        self.database.end_background();
        synced
    }
}
