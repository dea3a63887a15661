//! Makes a file system in an engine, and opens it.
//!
//! 1. *Check* the header, the root and the counters.
//! 2. *Set aside* room for chunks that are allocated and not written.
//! 3. *Sweep* plain files that no file needs, and take over the inodes of a killed process.
//! 4. *Finish* a rollback that was interrupted: it may bring files back that were unlinked.
//! 5. *Reclaim* what unlinked files a crash left, and shared contents without users.
//! 6. Of mainline alone: drop trees of clones without a record, finish rollbacks in clones, and end
//!    transactions of the process that is gone.

use super::FileSystem;
use crate::aside::Aside;
use crate::atomic::AtomicWrites;
use crate::back::BackRows;
use crate::data::ExtentMaps;
use crate::detach::Detached;
use crate::events::Untold;
use crate::external::Externals;
use crate::external::PlainFiles;
use crate::history::HistoryState;
use crate::numbers::Numbers;
use crate::policy::PolicyState;
use crate::prefetch::Prefetch;
use crate::reclaim::Reclaimer;
use crate::residents::Residents;
use crate::rollback::{CloneRollbacks, Rollback, RollbackState};
use crate::room::{Room, unless_full};
use crate::schema::{FIRST_INO, SCHEMA, Store};
use crate::shared::LeftContents;
use crate::shared::SharedContents;
use crate::takeover::Takeover;
use crate::transaction::{Branch, Grafts, OpenTransactions};
use crate::usage::SnapshotSizes;
use crate::views::{Standing, ViewSet, release_replaced};
use crate::{FsError, FsOptions, FsResult};
use stitch_base::sync::atomic::AtomicBool;
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{Ino, random};
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_format::fs_key::INO_MAX;
use stitch_format::fs_sys::FsHeader;
use stitch_kv::Engine;

impl FileSystem {
    /// Makes an empty file system in an engine: its trees, and a root directory with mode 0755 that
    /// belongs to `owner` (user, group).
    ///
    /// # Errors
    /// [`FsError::Exists`] if the engine holds one already.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn format(
        engine: &Arc<dyn Engine>,
        options: &FsOptions,
        owner: (u32, u32),
    ) -> FsResult<()> {
        let now = options.clock.now().0;
        let header = FsHeader::new(options.name_seed.map_or_else(random_seed, Ok)?, now);
        let root = InodeHead {
            perm: 0o755,
            uid: owner.0,
            gid: owner.1,
            nlink: 2,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..InodeHead::new(Ino::ROOT, FileKind::Directory)
        };
        Store::create(engine, &header, &root)
    }

    /// Opens the file system in an engine and removes what unlinked files a crash left behind, and
    /// plain files beside the store that no file needs.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the engine holds none; [`FsError::Format`] if it is damaged or
    /// newer; [`FsError::NoFolder`] if it has external files and the options have no place of them.
    pub fn open(engine: Arc<dyn Engine>, options: FsOptions) -> FsResult<Self> {
        let store = Store::open(&engine, SCHEMA)?;
        let views = ViewSet::read(&store)?;
        let is_writable = !options.read_only;
        let standing = Standing {
            number: 0,
            views: Arc::new(views),
            room: Arc::default(),
        };
        let fs = Self::of_store(engine, options, store, standing, Aside::default(), None)?;
        if is_writable && fs.store.header.has_views {
            // A full file system opens, so that something can be deleted.
            let engine = fs.engine().as_ref();
            unless_full(fs.standing.views.drop_unrecorded(engine))?;
            unless_full(fs.standing.views.drop_removed(engine))?;
            release_replaced(engine)?;
            CloneRollbacks::of(&fs).finish(&fs)?;
        }
        debug_assert!(fs.is_mainline(), "clones and transactions are opened by it");
        fs.transactions().end_at_open()?;
        Ok(fs)
    }

    /// Opens the file system as it is in a snapshot of the engine, with the records of its clones.
    pub(crate) fn open_past(engine: Arc<dyn Engine>, options: FsOptions) -> FsResult<Self> {
        debug_assert!(options.read_only, "the past does not change");
        let store = Store::open(&engine, SCHEMA)?;
        let standing = Standing {
            number: 0,
            views: Arc::new(ViewSet::read_past(&store)?),
            room: Arc::default(),
        };
        Self::of_store(engine, options, store, standing, Aside::default(), None)
    }

    /// Opens the file system whose trees are in a schema.
    pub(crate) fn open_with(
        engine: Arc<dyn Engine>,
        options: FsOptions,
        schema: &str,
        standing: Standing,
        aside: Aside,
    ) -> FsResult<Self> {
        let store = Store::open(&engine, schema)?;
        Self::of_store(engine, options, store, standing, aside, None)
    }

    /// Opens the file system in these trees.
    pub(crate) fn of_store(
        engine: Arc<dyn Engine>,
        options: FsOptions,
        store: Store,
        standing: Standing,
        aside: Aside,
        branch: Option<Branch>,
    ) -> FsResult<Self> {
        let Some((root, _)) = store.own_row(Ino::ROOT)? else {
            return Err(FsError::Corrupt("there is no root directory".to_owned()));
        };
        if root.kind != FileKind::Directory || root.ino != Ino::ROOT {
            return Err(FsError::Corrupt("the root is no directory".to_owned()));
        }
        let next = store.number(&store.keys.next_ino())?;
        if !(FIRST_INO..=INO_MAX).contains(&next) {
            return Err(FsError::Corrupt(format!("the next inode number is {next}")));
        }
        let inode_count = store.number(&store.keys.inode_count())?;
        let is_fixed = store.number(&store.keys.fixed())? != 0;
        debug_assert!(
            branch.is_none() || standing.number == 0,
            "a transaction is one of mainline"
        );
        let externals = Externals::new(options.external.clone());
        let back_rows = BackRows::open(&store)?;
        let residents = Residents::new(store.keys, root, inode_count, &options);
        let (numbers, branch, reads, grafts) = match branch {
            Some(of) => (of.numbers, Some(of.rules), of.reads, of.grafts),
            None => {
                let numbers = Arc::new(Numbers::new(&store, next));
                (numbers, None, None, Grafts::default())
            }
        };
        let fs = Self {
            engine,
            residents,
            untold: Untold::new(options.ledger.is_some()),
            options,
            header: Mutex::new(store.header),
            store,
            prefetch: Prefetch::default(),
            numbers,
            branch,
            reads,
            grafts,
            transactions: OpenTransactions::default(),
            detached: Detached::default(),
            atomic_writes: AtomicWrites::default(),
            externals,
            fixed: AtomicBool::new(is_fixed),
            room: Room::of(&standing.room),
            back_rows,
            aside,
            extents: ExtentMaps::default(),
            left_contents: LeftContents::default(),
            snapshot_sizes: SnapshotSizes::default(),
            rollbacks: RollbackState::default(),
            policies: PolicyState::default(),
            history: HistoryState::default(),
            standing,
            is_removed: AtomicBool::new(false),
        };
        debug_assert_eq!(fs.residents.inodes.count(), 1, "it knows the root alone");
        recover(&fs)?;
        Ok(fs)
    }
}

/// Does steps 2 to 5 of an open.
fn recover(fs: &FileSystem) -> FsResult<()> {
    if !fs.options.read_only && fs.branch.is_none() {
        fs.aside.set_at_open(fs.engine().as_ref(), &fs.store)?;
    }
    PlainFiles::of(fs).sweep()?;
    Takeover::of(fs).run();
    // It may bring files back that were unlinked.
    let finished = Rollback::of(fs).finish()?;
    fs.untold.keep(finished);
    debug_assert!(!fs.header.lock().rolls_back, "no rollback is under way");
    if !fs.options.read_only {
        Reclaimer::of(fs).reclaim_after_crash()?;
        SharedContents::of(fs).look_at_all();
        unless_full(SharedContents::of(fs).reclaim())?;
    }
    Ok(())
}

fn random_seed() -> FsResult<u64> {
    let random = random::bytes16().map_err(|error| FsError::Corrupt(error.to_string()))?;
    let seed = random.first_chunk().expect("sixteen bytes");
    Ok(u64::from_le_bytes(*seed))
}
