//! The file system as a whole: made, opened, synced, closed.

use crate::aside::Aside;
use crate::atomic::AtomicWrites;
use crate::back::BackRows;
use crate::change::Change;
use crate::contents::Contents;
use crate::data::ExtentMaps;
use crate::detach::Detached;
use crate::events::Untold;
use crate::external::Externals;
use crate::history::HistoryState;
use crate::inode::Hold;
use crate::locator::{Locator, SysRow};
use crate::numbers::Numbers;
use crate::policy::PolicyState;
use crate::prefetch::{Prefetch, Prefetcher};
use crate::residents::Residents;
use crate::rollback::Rollbacks;
use crate::room::Room;
use crate::room::unless_full;
use crate::rows::RowBatch;
use crate::schema::{FIRST_INO, SCHEMA, Store};
use crate::shared::LeftContents;
use crate::transaction::{Branch, BranchRules, OpenTransactions, ReadSet};
use crate::usage::SnapshotSizes;
use crate::views::{Standing, ViewSet};
use crate::{Attr, FsError, FsOptions, FsResult};
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{ErrorKind, Ino, random};
use stitch_db::SpaceClass;
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_format::fs_key::INO_MAX;
use stitch_format::fs_sys::FsHeader;
use stitch_kv::Engine;

/// Unlinked small files that may be in memory alone, each at most 4 KiB.
const MEMORY_ORPHANS_MAX: usize = 2048;
/// Known inodes for each of them: so they take half as much memory as those, at most.
const KNOWN_PER_ORPHAN: usize = 32;
/// Orphans reclaimed in one batch.
const RECLAIM_BATCH: usize = 64;

/// A file system on an engine. Shared by threads.
///
/// An inode number is good from the lookup (or creation) that gave it until as many lookups were
/// forgotten as were counted; anything else is [`FsError::Stale`]. The root is always good.
pub struct FileSystem {
    engine: Arc<dyn Engine>,
    pub(crate) options: FsOptions,
    pub(crate) store: Store,
    pub(crate) residents: Residents,
    pub(crate) prefetch: Prefetch,
    /// As it is stored.
    pub(crate) header: Mutex<FsHeader>,
    pub(crate) numbers: Arc<Numbers>,
    /// Rules of a transaction's file system; `None` in any other.
    pub(crate) branch: Option<BranchRules>,
    /// What a serializable transaction has read; `None` in any other file system.
    pub(crate) reads: Option<Arc<ReadSet>>,
    pub(crate) transactions: OpenTransactions,
    pub(crate) detached: Detached,
    pub(crate) untold: Untold,
    pub(crate) atomic_writes: AtomicWrites,
    pub(crate) externals: Externals,
    /// Some file was immutable or append-only.
    pub(crate) fixed: AtomicBool,
    pub(crate) room: Room,
    pub(crate) back_rows: BackRows,
    pub(crate) aside: Aside,
    pub(crate) extents: ExtentMaps,
    pub(crate) left_contents: LeftContents,
    pub(crate) snapshot_sizes: SnapshotSizes,
    pub(crate) rollbacks: Rollbacks,
    pub(crate) policies: PolicyState,
    pub(crate) history: HistoryState,
    pub(crate) standing: Standing,
    /// It is a view that was removed.
    pub(crate) is_removed: AtomicBool,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem")
            .field("options", &self.options)
            .field("inodes", &self.residents.inodes.count())
            .finish_non_exhaustive()
    }
}

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
            ino: Ino::ROOT,
            kind: FileKind::Directory,
            perm: 0o755,
            flags: 0,
            uid: owner.0,
            gid: owner.1,
            nlink: 2,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            rdev: 0,
            iflags: 0,
            chunks: 0,
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
            fs.finish_rollbacks_in_clones()?;
        }
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
        let externals = Externals::new(options.external.clone());
        let back_rows = BackRows::open(&store)?;
        let residents = Residents::new(store.keys, root, inode_count, &options);
        let (numbers, branch, reads) = match branch {
            Some(of) => (of.numbers, Some(of.rules), of.reads),
            None => (Arc::new(Numbers::new(&store, next)), None, None),
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
            rollbacks: Rollbacks::default(),
            policies: PolicyState::default(),
            history: HistoryState::default(),
            standing,
            is_removed: AtomicBool::new(false),
        };
        if !fs.options.read_only && fs.branch.is_none() {
            fs.aside.set_at_open(fs.engine().as_ref(), &fs.store)?;
        }
        fs.plain_files().sweep()?;
        fs.take_over();
        // It may bring files back that were unlinked.
        let finished = fs.finish_rollback()?;
        fs.untold.keep(finished);
        if !fs.options.read_only {
            fs.reclaim_after_crash()?;
            fs.shared_contents().queue_unused()?;
            unless_full(fs.shared_contents().reclaim())?;
        }
        Ok(fs)
    }

    /// The engine below.
    #[must_use]
    pub const fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Reports whether nothing can be changed.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Reports whether it is the file system that has the records of clones, policies and
    /// transactions: no clone and no transaction.
    pub(crate) const fn is_mainline(&self) -> bool {
        self.branch.is_none() && self.standing.number == 0
    }

    /// Number of inodes that are known: looked up and not forgotten.
    #[must_use]
    pub fn known_inodes(&self) -> usize {
        self.residents.inodes.count()
    }

    /// Gives back the space of forgotten files, then makes everything durable that was
    /// acknowledged.
    ///
    /// # Errors
    /// [`FsError::Storage`]: what was not durable may be lost; reopen.
    pub fn sync(&self) -> FsResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        // A file that cannot be reclaimed now is reclaimed later; acknowledged changes are durable
        // in any case.
        let reclaimed = self.reclaim();
        let externals = self.external_contents();
        let settled = externals.sync_all();
        if !self.syncs() {
            settled?;
            return unless_full(reclaimed);
        }
        self.engine.sync()?;
        externals.trim_all();
        externals.remove_retired()?;
        settled?;
        match reclaimed {
            // Nothing is lost: the space comes back later.
            Ok(_) | Err(FsError::NoSpace) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes an inode durable, and with it everything acknowledged before but the contents of other
    /// external files.
    ///
    /// # Errors
    /// As [`Self::sync`].
    ///
    /// # Cost
    /// One sync of the log, shared with other callers; none if everything is durable already.
    pub fn sync_inode(&self, ino: Ino) -> FsResult<()> {
        let inode = self.residents.inodes.get(ino)?;
        if Contents::are_external(&inode.head) && !self.options.read_only {
            self.external_contents().sync(ino)?;
        }
        // Also for an unlinked file of which nothing is stored: what was acknowledged before is.
        if !self.options.read_only && self.syncs() {
            self.engine.sync()?;
        }
        Ok(())
    }

    /// Reclaims what is left to reclaim and makes everything durable. The engine stays open.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn close(&self) -> FsResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        if self.branch.is_none() {
            let give_back = |batch: &RowBatch<'_>| self.store.commit(batch, SpaceClass::Reserve);
            self.numbers.give_back(give_back)?;
            self.transactions().write_reads()?;
        }
        self.sync()
    }

    /// Counts an open handle, which keeps an inode as a lookup does.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn open_handle(&self, ino: Ino) -> FsResult<()> {
        self.residents.inodes.hold(ino, Hold::Handle)
    }

    /// Takes back an open handle.
    pub fn close_handle(&self, ino: Ino) {
        self.let_go(ino, Hold::Handle);
    }

    /// Takes back `count` lookups of an inode. With the last one, and without open handles, the
    /// number is good no more, and a file without names is queued for [`Self::reclaim`].
    pub fn forget(&self, ino: Ino, count: u64) {
        self.let_go(ino, Hold::Lookups(count));
    }

    pub(crate) fn let_go(&self, ino: Ino, hold: Hold) {
        let Some(inode) = self.residents.let_go(ino, hold) else {
            return;
        };
        self.atomic_writes.remove(inode.head.ino);
        if Contents::are_external(&inode.head) {
            self.externals.forget(inode.head.ino);
        }
    }

    /// Gives back the space of forgotten files without names, and of shared contents that no file
    /// uses any more; `forget` leaves that to this. To be called now and then, and when idle.
    /// Returns the number of inodes reclaimed.
    ///
    /// # Errors
    /// [`FsError::Storage`]; what was not reclaimed is still queued.
    pub fn reclaim(&self) -> FsResult<usize> {
        let _one_at_a_time = self.room.reclaiming.lock();
        let mut done = self.drop_removed_clones()?;
        if self.is_removed.load(Ordering::Acquire) {
            return Ok(done);
        }
        done += self.reclaim_forgotten()?;
        let contents = self.shared_contents().reclaim()?;
        self.room.note_given_back(contents);
        Ok(done)
    }

    fn reclaim_forgotten(&self) -> FsResult<usize> {
        let mut done = 0;
        loop {
            let heads = self.residents.take_forgotten(RECLAIM_BATCH);
            if heads.is_empty() {
                return Ok(done);
            }
            match self.purge_all(&heads) {
                Ok(count) => {
                    self.room.note_given_back(count);
                    done += count;
                }
                Err(error) => {
                    self.residents.queue_forgotten(heads);
                    return Err(error);
                }
            }
        }
    }

    /// Drops the trees of clones that were removed. Returns how many.
    fn drop_removed_clones(&self) -> FsResult<usize> {
        let dropped = self.standing.views.drop_removed(self.engine().as_ref())?;
        self.room.note_given_back(dropped);
        Ok(dropped)
    }

    fn purge_all(&self, heads: &[InodeHead]) -> FsResult<usize> {
        let mut change = Change::giving_back(self);
        let mut count = 0;
        for head in heads {
            if self.owns(head.ino) && self.may_purge(head)? && self.is_bare(head)? {
                change.purge(head, true)?;
                change.batch.delete(&self.store.keys.orphan(head.ino));
                count += 1;
            }
        }
        change.commit()?;
        Ok(count)
    }

    fn reclaim_after_crash(&self) -> FsResult<()> {
        let mut orphans = Vec::new();
        let mut scan = self.store.scan(&self.store.keys.orphans())?;
        while let Some((key, _)) = scan.next()? {
            if let Some(SysRow::Orphan(ino)) = Locator::sys_row(key) {
                orphans.push(ino);
            }
        }
        drop(scan);
        let mut found = 0;
        for inos in orphans.chunks(RECLAIM_BATCH) {
            let mut change = Change::giving_back(self);
            let mut heads = Vec::new();
            for &ino in inos {
                match self.purge_orphan(ino, &mut change) {
                    Ok(head) => heads.extend(head),
                    Err(error) if error.kind() == ErrorKind::Corrupt => tracing::warn!(
                        %ino,
                        %error,
                        "a removed file keeps its space: its rows cannot be read; a check finds it"
                    ),
                    Err(error) => return Err(error),
                }
            }
            match change.commit() {
                Ok(()) => found += heads.len(),
                // There may be some later; a full file system opens, so that something can be
                // deleted.
                Err(FsError::NoSpace) => self.residents.queue_forgotten(heads),
                Err(error) => return Err(error),
            }
        }
        if found > 0 {
            tracing::info!(
                found,
                "removed files that were unlinked and open at the end"
            );
        }
        Ok(())
    }

    /// Stages the purge of an inode without names, unless it is in use. Returns it if it is purged.
    ///
    /// # Errors
    /// What cannot be read of it: then nothing was added.
    fn purge_orphan(&self, ino: Ino, change: &mut Change<'_>) -> FsResult<Option<InodeHead>> {
        if !self.owns(ino) {
            return Ok(None);
        }
        let row = self.store.own_row(ino)?.map(|(head, _)| head);
        let nameless = row.filter(|head| head.nlink == 0);
        if let Some(head) = &nameless {
            // What is known still goes when it is forgotten.
            if !self.is_bare(head)? || self.residents.inodes.find(ino).is_some() {
                return Ok(None);
            }
            change.purge(head, true)?;
        }
        change.batch.delete(&self.store.keys.orphan(ino));
        Ok(nameless)
    }

    /// A number that no inode ever had.
    pub(crate) fn new_ino(&self) -> FsResult<Ino> {
        self.numbers
            .take(|batch| self.commit_where_room(batch, SpaceClass::Normal))
    }

    /// Returns the number that the next inode gets, or a smaller one.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.next()
    }

    /// Changes the header, before the first row that earlier programs do not know.
    pub(crate) fn mark_header(&self, mark: impl FnOnce(&mut FsHeader)) -> FsResult<()> {
        let mut marked = self.header.lock();
        let mut header = *marked;
        mark(&mut header);
        if header == *marked {
            return Ok(());
        }
        let mut change = Change::new(self);
        change
            .batch
            .put(&self.store.keys.header(), &header.encode());
        change.commit()?;
        *marked = header;
        Ok(())
    }

    /// Reports whether an inode may have had this number.
    pub(crate) fn is_used_number(&self, ino: Ino) -> bool {
        (FIRST_INO..self.numbers.next()).contains(&ino.0)
    }

    /// Reports whether one more unlinked file may be kept in memory alone.
    pub(crate) fn keep_in_memory(&self) -> bool {
        let count_max = MEMORY_ORPHANS_MAX.min(self.options.inodes_max / KNOWN_PER_ORPHAN);
        self.residents.inodes.count_in_memory() < count_max
    }

    pub(crate) const fn prefetcher(&self) -> Prefetcher<'_> {
        Prefetcher::new(&self.prefetch, &self.store, &self.residents.inodes)
    }

    /// Nanoseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        self.options.clock.now().0
    }

    pub(crate) const fn check_writable(&self) -> FsResult<()> {
        if self.options.read_only {
            return Err(FsError::ReadOnly);
        }
        Ok(())
    }

    /// Attributes, with the size that an atomic write gives a file.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn get_attr(&self, ino: Ino) -> FsResult<Attr> {
        if let Some(reads) = &self.reads {
            // All others were noted when they were looked up.
            if ino == Ino::ROOT {
                reads.note_own_inode(ino)?;
            }
        }
        let mut attr = Attr::of(&self.residents.inodes.head(ino)?);
        attr.size = self.staged_size(ino).unwrap_or(attr.size);
        Ok(attr)
    }
}

fn random_seed() -> FsResult<u64> {
    let random = random::bytes16().map_err(|error| FsError::Corrupt(error.to_string()))?;
    let seed = random.first_chunk().expect("sixteen bytes");
    Ok(u64::from_le_bytes(*seed))
}
