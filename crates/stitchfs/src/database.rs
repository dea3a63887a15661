//! The embedded database: trees of records in a store.

mod batch;
mod branch;
mod named;
mod rows;
mod snapshot;
mod transaction;
mod tree;

pub use batch::Batch;
pub use branch::{Branch, BranchedTree};
pub use named::NamedSnapshot;
pub use rows::Rows;
pub use snapshot::Snapshot;
pub use transaction::{Conflict, Transaction};
pub use tree::Tree;

use crate::engine::{self, Instance, Opened, Resized};
use crate::make::{self, MakeOptions};
use crate::owner::Owner;
use crate::store::{Store, StoreOptions};
use crate::{CommitOptions, Counters, Limits, Seqno, SpaceUsage};
use crate::{EngineKind, StoreError, TreeInfo, TreeOptions, Violation};
use std::path::Path;
use stitch_base::sync::Arc;
use stitch_db::Transactions;
use stitch_device::{Device, MemDevice};
use stitch_format::db_names::{BRANCH_PREFIX, SPILL_PREFIX};
use stitch_format::fs_transaction::SCHEMA_PREFIX;
use stitch_kv::KvError;
use stitch_volume::TrimRange;
use stitch_vt::{Defragged, Watch};

/// Trees whose names begin so are those of the file system in a store.
pub(crate) const FILE_SYSTEM: &str = "fs/";
/// Trees whose names begin so are those of its clones.
const CLONES: &str = "fs~";
/// Names that begin so are those of trees that the program makes itself.
const KEPT_PREFIXES: [&str; 5] = [
    FILE_SYSTEM,
    CLONES,
    SCHEMA_PREFIX,
    BRANCH_PREFIX,
    SPILL_PREFIX,
];

/// An ordered, transactional key-value store: any number of [`Tree`]s that are changed together by
/// [`Batch`]es. A handle: cheap to clone, to be shared by threads.
///
/// It lives in a file of fixed size, a directory with such a file, or a block device; with the
/// engine [`EngineKind::RocksDb`], in a directory of its own. One process has it open at a time.
///
/// ```
/// use stitchfs::{Batch, Database, MakeOptions, StoreOptions, TreeOptions};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("shop.stitch");
/// let size = MakeOptions { len_bytes: Some(64 << 20), ..MakeOptions::default() };
/// let db = Database::open_or_create(&path, &size, &StoreOptions::default())?;
/// let stock = db.tree_or_create("stock", &TreeOptions::default())?;
/// let orders = db.tree_or_create("orders", &TreeOptions::default())?;
///
/// // Both or neither, whatever happens.
/// let mut batch = Batch::new();
/// batch.put(&stock, b"apples", b"11");
/// batch.put(&orders, b"2026-11-21/1", b"one apple");
/// db.commit(&batch)?;
///
/// assert_eq!(stock.get(b"apples")?.as_deref(), Some(&b"11"[..]));
/// db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Database {
    /// The first instance, which knows the others.
    pub(crate) first: Instance,
    pub(crate) instance: Instance,
    /// Where its transactions begin. Its clones share their locks.
    transactions: Transactions,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.trees().into_iter().map(|tree| tree.name).collect();
        f.debug_struct("Database")
            .field("trees", &names)
            .finish_non_exhaustive()
    }
}

impl Database {
    /// Makes an empty store at `path` and opens it. `make.len_bytes` is the size of a new file, all
    /// of which is allocated at once; a block device is used whole. With [`EngineKind::RocksDb`],
    /// `path` is a directory, which is made if it is missing, and there is no size.
    ///
    /// # Errors
    /// [`StoreError::Occupied`] where there is something already and `make.force` is not set;
    /// [`StoreError::Size`], [`StoreError::Host`]; see [`StoreError`]. Nothing is left behind where
    /// there was nothing.
    ///
    /// # Durability
    /// The store is durable when this returns.
    ///
    /// # Cost
    /// The logs, 1/32 of the size or so, are written once.
    pub fn create(
        path: impl AsRef<Path>,
        make: &MakeOptions,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        if make.engine == EngineKind::RocksDb {
            engine::make_in_directory(path, make, &mut |_| Ok(()))?;
            return Self::open(path, options);
        }
        make::on_device(path, make, options.io, &mut |device| {
            make::format_device(device.as_ref(), make, &mut |_, _| {})?;
            Self::on_device(Arc::clone(device), options)
        })
    }

    /// Opens the store at `path`: a file, a directory with a store in it, or a block device.
    ///
    /// # Errors
    /// [`StoreError::Device`] if it is missing, not to be read, or open in another process
    /// ([`StoreError::is_busy`]); [`StoreError::Volume`] and [`StoreError::Vt`] if it is no store,
    /// needs a newer program, or is damaged.
    ///
    /// # Cost
    /// Reads the list of tables and the log's live part, and no table.
    pub fn open(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Self, StoreError> {
        let opened = engine::open(path.as_ref(), options, options.memory_bytes)?;
        Self::of(opened, options)
    }

    /// Opens the store at `path`; where there is nothing, makes one first.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::create`].
    pub fn open_or_create(
        path: impl AsRef<Path>,
        make: &MakeOptions,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        if crate::store_path(path).exists() {
            return Self::open(path, options);
        }
        Self::create(path, make, options)
    }

    /// A store in memory that is gone with its last handle: for tests of programs.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if it is smaller than 16 MiB.
    ///
    /// ```
    /// use stitchfs::{Database, StoreOptions, TreeOptions};
    /// let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// let tree = db.create_tree("words", &TreeOptions::default())?;
    /// tree.put(b"key", b"value")?;
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    pub fn in_memory(len_bytes: u64, options: &StoreOptions) -> Result<Self, StoreError> {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(len_bytes));
        make::format_device(device.as_ref(), &MakeOptions::default(), &mut |_, _| {})?;
        Self::on_device(device, options)
    }

    fn on_device(device: Arc<dyn Device>, options: &StoreOptions) -> Result<Self, StoreError> {
        let opened = engine::open_device(device, options, options.memory_bytes)?;
        Self::of(opened, options)
    }

    fn of(opened: Opened, options: &StoreOptions) -> Result<Self, StoreError> {
        let first = opened.first;
        let instance = first.find(options.instance.as_deref())?;
        Ok(Self::of_instance(first, instance))
    }

    /// The records of an instance of a store.
    pub(crate) fn of_instance(first: Instance, instance: Instance) -> Self {
        let transactions = Transactions::new(Arc::clone(&instance.engine));
        Self {
            first,
            instance,
            transactions,
        }
    }

    /// The trees of records, by number. Those of a file system in the store and those of branches
    /// are not among them.
    #[must_use]
    pub fn trees(&self) -> Vec<TreeInfo> {
        let mut trees = self.instance.engine.trees();
        trees.retain(|tree| !stitch_fs::is_file_system_tree(&tree.name) && tree.branch.is_none());
        trees
    }

    /// The tree of this name; `None` if there is none.
    #[must_use]
    pub fn tree(&self, name: &str) -> Option<Tree> {
        let found = self.trees().into_iter().find(|tree| tree.name == name)?;
        Some(Tree::new(self.instance.clone(), found.id))
    }

    /// Makes an empty tree. Trees are few: tables, indexes, queues; not one for each user.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists) if there is one of this name,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name that begins with `fs/`, `fs~`,
    /// `txn~`, `branch~` or `spill~`, which are kept for file systems, branches and transactions;
    /// those of [`Self::commit`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<Tree, StoreError> {
        if let Some(kept) = KEPT_PREFIXES.iter().find(|kept| name.starts_with(**kept)) {
            let what = format!("{name:?}: names that begin with {kept:?} are kept");
            return Err(KvError::Invalid(what).into());
        }
        let id = self.instance.engine.create_tree(name, options)?;
        Ok(Tree::new(self.instance.clone(), id))
    }

    /// The tree of this name, made with these options if there is none. The options of one that is
    /// there stay as they are.
    ///
    /// # Errors
    /// As [`Self::create_tree`].
    pub fn tree_or_create(&self, name: &str, options: &TreeOptions) -> Result<Tree, StoreError> {
        match self.tree(name) {
            Some(tree) => Ok(tree),
            None => self.create_tree(name, options),
        }
    }

    /// Removes a tree and all that is in it, at a cost that does not depend on its size. Snapshots
    /// lose sight of it too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if it is gone already,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a tree of another store or instance.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn drop_tree(&self, tree: &Tree) -> Result<(), StoreError> {
        let handle = || format!("tree {}", tree.id());
        Owner::new(tree.instance()).check(handle, &self.instance)?;
        Ok(self.instance.engine.drop_tree(tree.id())?)
    }

    /// Removes several trees in one step. A store that an older version filled with trees of long
    /// names may have no room to remove them one by one.
    ///
    /// # Errors
    /// As [`Self::drop_tree`]: all are still there then.
    ///
    /// # Durability
    /// On the medium when this returns. A crash leaves all of them or none.
    pub fn drop_trees(&self, trees: &[Tree]) -> Result<(), StoreError> {
        for tree in trees {
            let handle = || format!("tree {}", tree.id());
            Owner::new(tree.instance()).check(handle, &self.instance)?;
        }
        let trees: Vec<_> = trees.iter().map(Tree::id).collect();
        Ok(self.instance.engine.drop_trees(&trees)?)
    }

    /// Applies a batch, whole or not at all, after every batch that was committed before.
    ///
    /// A batch of nothing but deletes may use the space that is kept back for them, so that a full
    /// store can be emptied.
    ///
    /// # Errors
    /// Nothing is applied if the kind is [`NotFound`](crate::ErrorKind::NotFound) (a tree that is
    /// gone), [`Invalid`](crate::ErrorKind::Invalid) (over [`Self::limits`], an upsert function
    /// that was not registered, or a tree of another store or instance),
    /// [`NoSpace`](crate::ErrorKind::NoSpace) (delete something, then go on) or
    /// [`ReadOnly`](crate::ErrorKind::ReadOnly). After [`Io`](crate::ErrorKind::Io) or
    /// [`Poisoned`](crate::ErrorKind::Poisoned) it may be there or not after the next open; nothing
    /// more is taken until then.
    ///
    /// # Durability
    /// By [`StoreOptions::durability`]. By default it survives that this process is killed, and a
    /// power cut after the next [`Self::sync`], or after [`StoreOptions::sync_interval`].
    ///
    /// # Cost
    /// One append to the log; no read. A run of 64 KiB and more of values, in the order of their
    /// keys, goes to its place at once, and the log holds where that is.
    pub fn commit(&self, batch: &Batch) -> Result<Seqno, StoreError> {
        let options = CommitOptions {
            sync: false,
            space: batch.space(),
        };
        self.commit_with(batch, options)
    }

    /// As [`Self::commit`], and returns when the batch and all before it are on the medium. Threads
    /// that do so at the same time share syncs.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_sync(&self, batch: &Batch) -> Result<Seqno, StoreError> {
        let options = CommitOptions {
            sync: true,
            space: batch.space(),
        };
        self.commit_with(batch, options)
    }

    /// As [`Self::commit`], with everything chosen by the caller.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_with(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, StoreError> {
        Ok(self
            .instance
            .engine
            .commit(batch.messages_for(&self.instance)?, options)?)
    }

    /// Makes every commit that returned before durable, those of other threads too.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io),
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned): what was not durable may be lost; open
    /// the store anew.
    pub fn sync(&self) -> Result<(), StoreError> {
        Ok(self.instance.engine.sync()?)
    }

    /// This moment of all trees, held open until the last clone of it is dropped. O(1). What it
    /// sees and the present does not takes space meanwhile.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.instance)
    }

    /// What a key, a value and a batch may be.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.instance.engine.limits()
    }

    /// Space of the store, in bytes: that of its file system too, if it has one, and of all
    /// instances.
    #[must_use]
    pub fn space(&self) -> SpaceUsage {
        self.instance.engine.space()
    }

    /// What was done since the store was opened: bytes put, written, stitched, merged, read.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.instance.engine.counters()
    }

    /// Reads everything and checks every rule: checksums, order, filters, space. `progress` is told
    /// bytes done and bytes to do. An empty answer means that all is well.
    ///
    /// # Errors
    /// Only where the check itself cannot go on.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, StoreError> {
        Ok(self.instance.engine.check(progress)?)
    }

    /// Waits until background work has nothing left to do: memory is written out, tables are in
    /// shape, and space of what was deleted is free. For tests, benchmarks and tools.
    ///
    /// # Errors
    /// The first failure of that work.
    pub fn quiesce(&self) -> Result<(), StoreError> {
        Ok(self.instance.engine.quiesce()?)
    }

    /// Evacuates zones with holes, so that the holes become free zones. Reads and writes go on.
    /// `watch` is told bytes done and bytes to do, and ends it by answering false. The background
    /// does so by itself while much is in holes.
    ///
    /// # Errors
    /// See [`StoreError`]. What was moved stays moved.
    pub fn defrag(&self, watch: &mut Watch<'_>) -> Result<Defragged, StoreError> {
        self.first.defrag(watch)
    }

    /// Tells the device of all that is free. Answers the bytes. The space of a file goes back to
    /// its host: later writes fail if the host has none by then. See [`StoreOptions::discard`],
    /// too.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn trim(&self, watch: &mut Watch<'_>) -> Result<u64, StoreError> {
        self.first.trim(&TrimRange::ALL, watch)
    }

    /// Makes the store longer: `bytes`, or as long as its device is by now. A file gets all of its
    /// space at once. Reads and writes go on.
    ///
    /// # Errors
    /// [`StoreError::Size`] if that is not longer, or more than there is; see [`StoreError`].
    /// Nothing has changed then.
    ///
    /// # Durability
    /// Durable when this returns; a crash leaves the old length or the new one.
    pub fn grow(&self, bytes: Option<u64>) -> Result<Resized, StoreError> {
        self.first.grow(&self.first.path(), bytes)
    }

    /// Makes the store `bytes` long: moves what is behind that, and gives the rest of a file back
    /// to its host. Reads and writes go on, but a scan that is held open for 30 s makes it fail. If
    /// `watch` ends it, nothing has changed.
    ///
    /// # Errors
    /// [`StoreError::Size`] if that is not shorter, or too short for what is in it; see
    /// [`StoreError`]. Nothing has changed then.
    ///
    /// # Durability
    /// Durable when this returns; a crash leaves the old length or the new one.
    ///
    /// ```
    /// use stitchfs::{Database, StoreOptions};
    /// let db = Database::in_memory(64 << 20, &StoreOptions::default())?;
    /// let done = db.shrink(32 << 20, &mut |_done, _total| true)?;
    /// assert_eq!((done.before, done.after), (64 << 20, 32 << 20));
    /// db.grow(Some(128 << 20))?;
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    pub fn shrink(&self, bytes: u64, watch: &mut Watch<'_>) -> Result<Resized, StoreError> {
        self.first.shrink(&self.first.path(), bytes, watch)
    }

    /// Writes everything out and ends background work, in all instances of the store: nothing more
    /// is taken afterwards. Dropping the last handle without it is as safe; the next open has more
    /// to do.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn close(&self) -> Result<(), StoreError> {
        Ok(self.first.engine.close()?)
    }
}

impl Store {
    /// The records in the same store as the file system: see [`Database`]. Commits of records and
    /// operations on files are in one order; after a crash the store is as it was after one of
    /// them, so what is older than something that is there is there too.
    #[must_use]
    pub fn database(&self) -> Database {
        Database::of_instance(self.first.clone(), self.instance.clone())
    }
}
