//! The inode table: every inode from its first lookup until the last one is forgotten.
//!
//! The kernel looks a name up before it does anything with an inode, so this table knows where the
//! row of every inode in use is, and what is in it. It is written through: a change goes into the
//! trees first, then here. So attributes are never read twice, and a write knows the size without
//! reading.
//!
//! Invariants:
//! - an entry has lookups, handles or pins; the root has one lookup that is never forgotten;
//! - who looked them up is asked to forget entries beyond the bound (`unused`);
//! - a directory pins its parent, so that the way up to the root is always known;
//! - what an entry says is what the trees say, unless the inode is in memory alone;
//! - where there is a ledger, it says what the table says, for the next process.
//!
//! Differs: `TableFS` caches rows by key and reads them again after a while.

mod holds;
mod kept;
mod operations;
mod pages;
mod unused;

pub(crate) use holds::Holds;
pub use pages::CachedPages;
pub use unused::INODE_BYTES;

use crate::contents::Contents;
use crate::ledger::{Entry, LEDGER_LOGS, Record, Register, moves};
use crate::lock::stripe;
use crate::spread::Spreading;
use crate::{DirName, FsError, FsResult};
use bytes::Bytes;
use std::collections::HashMap;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_format::fs_inode::{FileKind, InodeHead};

const SHARDS: usize = LEDGER_LOGS;
const _: () = assert!(SHARDS.is_power_of_two(), "stripes are spread evenly");
/// Upserts assumed on a row that was just read.
pub(crate) const CHAIN_UNKNOWN: u8 = 32;

/// Where the row of an inode is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Under the only name that it has.
    Entry {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Arc<[u8]>,
    },
    /// Under its number: the root, inodes with several names, orphans.
    Own,
    /// Nowhere: it has no name, and these small contents go with the process. (Boxed: few are so,
    /// and all would be larger.)
    Memory(Arc<Bytes>),
}

impl Location {
    /// The place under a name.
    pub(crate) fn entry(parent: Ino, name: &[u8]) -> Self {
        debug_assert!(!name.is_empty(), "a name has a byte");
        Self::Entry {
            parent,
            name: Arc::from(name),
        }
    }

    /// Reports whether it is under this name.
    fn is(&self, at: DirName<'_>) -> bool {
        match self {
            Self::Entry { parent, name } => *parent == at.parent && **name == *at.name,
            Self::Own | Self::Memory(_) => false,
        }
    }
}

/// An inode as it is at the moment; guarded by the inode's lock.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) head: InodeHead,
    pub(crate) location: Location,
    /// Upserts on its row since the row was last put.
    pub(crate) chain: u8,
    /// Made without a name, so that it may be given one.
    pub(crate) is_temp: bool,
}

impl Inode {
    pub(crate) const fn is_dir(&self) -> bool {
        matches!(self.head.kind, FileKind::Directory)
    }

    /// Reports whether something is, or may be, behind the head in its row.
    pub(crate) const fn has_tail(&self) -> bool {
        match self.head.kind {
            FileKind::Symlink => true,
            _ => {
                matches!(Contents::of_inode(&self.head), Some(Contents::Inline))
                    && self.head.size > 0
            }
        }
    }

    /// Returns the only name of an inode, and its directory; `None` for the root and for what has
    /// no name or several.
    pub(crate) fn name(&self) -> Option<(Ino, Arc<[u8]>)> {
        match &self.location {
            Location::Entry { parent, name } => Some((*parent, Arc::clone(name))),
            Location::Own | Location::Memory(_) => None,
        }
    }

    /// The directory that a directory is in; the root is in itself.
    pub(crate) const fn parent(&self) -> Option<Ino> {
        match self.location {
            Location::Entry { parent, .. } => Some(parent),
            Location::Own if matches!(self.head.ino, Ino::ROOT) => Some(Ino::ROOT),
            Location::Own | Location::Memory(_) => None,
        }
    }
}

#[derive(Debug)]
struct Node {
    inode: Inode,
    lookups: u64,
    handles: u32,
    pins: u32,
    /// When it was last asked for.
    seen: Tick,
    /// When it was last changed; 0 if it was not since it is here.
    changed: Tick,
    /// A chunk of a file with holes that is there and was counted, for writes of less than a chunk
    /// one after the other.
    counted_chunk: u64,
    /// Pages of its contents that readers may hold.
    pages: CachedPages,
    /// As it will be if the commit that is under way succeeds, where its row moves and there is a
    /// ledger.
    intent: Option<Box<Inode>>,
}

/// No file has a chunk of this number.
const NO_CHUNK: u64 = u64::MAX;
const _: () = assert!(
    NO_CHUNK > crate::data::chunk_count(crate::data::FILE_BYTES_MAX),
    "no file has such a chunk"
);

/// A moment: how often inodes were asked for or changed before.
pub(crate) type Tick = u64;

impl Node {
    /// An entry with one lookup, asked for now.
    fn new(inode: Inode, seen: Tick) -> Box<Self> {
        Box::new(Self {
            inode,
            lookups: 1,
            handles: 0,
            pins: 0,
            seen,
            changed: 0,
            counted_chunk: NO_CHUNK,
            pages: CachedPages::NONE,
            intent: None,
        })
    }

    fn entry(&self) -> Entry<'_> {
        Entry {
            inode: &self.inode,
            lookups: self.lookups,
            intent: self.intent.as_deref(),
        }
    }

    const fn is_free(&self) -> bool {
        self.lookups == 0 && self.handles == 0 && self.pins == 0
    }

    /// Checks what the table promises of an entry.
    fn check(&self) {
        debug_assert!(
            self.pages.some || !self.pages.end,
            "the page with the end is a page"
        );
        let intent = self.intent.as_ref();
        debug_assert!(
            intent.is_none_or(|new| new.head.ino == self.inode.head.ino),
            "a row moves with its inode"
        );
        let is_root = self.inode.head.ino == Ino::ROOT;
        debug_assert!(!is_root || self.lookups > 0, "the root is never forgotten");
        let is_in_memory = matches!(self.inode.location, Location::Memory(_));
        debug_assert!(
            !is_in_memory || self.inode.head.nlink == 0,
            "what has a name has a row"
        );
        debug_assert!(
            !self.inode.is_temp || self.inode.head.nlink == 0,
            "a temporary file has no name"
        );
    }
}

/// What keeps an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    Lookups(u64),
    Handle,
    Pin,
}

/// Boxed: a table that grows moves pointers only.
type NodeShard = HashMap<Ino, Box<Node>, Spreading>;

#[derive(Debug)]
pub(crate) struct Inodes {
    shards: [Mutex<NodeShard>; SHARDS],
    register: Option<Register>,
    clock: AtomicU64,
    /// The last change of an inode that was let go, or was not known: rows read before that may be
    /// old.
    change_forgotten: AtomicU64,
    /// Inodes known, and inodes ever let go.
    count: AtomicUsize,
    gone: AtomicU64,
    /// Inodes that are in memory alone.
    in_memory: AtomicUsize,
    /// More are asked to be forgotten.
    count_max: usize,
    /// Where the search for unused inodes goes on.
    next_shard: AtomicUsize,
}

impl Inodes {
    /// A table that knows the root, and is to know `count_max` inodes at most.
    pub(crate) fn new(root: InodeHead, count_max: usize, register: Option<Register>) -> Self {
        debug_assert_eq!(root.ino, Ino::ROOT, "the table begins with the root");
        let inodes = Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            register,
            clock: AtomicU64::new(1),
            change_forgotten: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            gone: AtomicU64::new(0),
            in_memory: AtomicUsize::new(0),
            count_max: count_max.max(SHARDS),
            next_shard: AtomicUsize::new(0),
        };
        let root = Inode {
            head: root,
            location: Location::Own,
            chain: 0,
            is_temp: false,
        };
        let node = Node::new(root, 0);
        inodes.count_in(&node.inode);
        inodes.shard(Ino::ROOT).lock().insert(Ino::ROOT, node);
        debug_assert_eq!(inodes.count(), 1, "it knows the root alone");
        inodes
    }

    fn tick(&self) -> Tick {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn count_in(&self, inode: &Inode) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.count_move(None, Some(&inode.location));
    }

    fn count_out(&self, inode: &Inode) {
        debug_assert_ne!(inode.head.ino, Ino::ROOT, "the root stays known");
        let count = self.count.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(count > 1, "the root stays known");
        self.gone.fetch_add(1, Ordering::Relaxed);
        self.count_move(Some(&inode.location), None);
    }

    fn index(ino: Ino) -> usize {
        stripe(ino) % SHARDS
    }

    fn shard(&self, ino: Ino) -> &Mutex<NodeShard> {
        &self.shards[Self::index(ino)]
    }

    /// Number of inodes known.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Number of inodes that are in memory alone.
    pub(crate) fn count_in_memory(&self) -> usize {
        self.in_memory.load(Ordering::Relaxed)
    }

    fn count_move(&self, old: Option<&Location>, new: Option<&Location>) {
        let is_in_memory =
            |location: Option<&Location>| matches!(location, Some(Location::Memory(_)));
        match (is_in_memory(old), is_in_memory(new)) {
            (false, true) => {
                self.in_memory.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => {
                let before = self.in_memory.fetch_sub(1, Ordering::Relaxed);
                debug_assert!(before > 0, "it was counted");
            }
            (false, false) | (true, true) => {}
        };
    }

    /// Returns an inode that is known, as recently seen.
    pub(crate) fn get(&self, ino: Ino) -> FsResult<Inode> {
        let mut shard = self.shard(ino).lock();
        let node = shard.get_mut(&ino).ok_or(FsError::Stale(ino))?;
        node.seen = self.moment();
        debug_assert!(node.changed <= node.seen, "it changed before now");
        debug_assert_eq!(node.inode.head.ino, ino, "the inode of the number");
        Ok(node.inode.clone())
    }

    /// An inode, if it is known.
    pub(crate) fn find(&self, ino: Ino) -> Option<Inode> {
        let shard = self.shard(ino).lock();
        debug_assert!(
            shard
                .get(&ino)
                .is_none_or(|node| node.inode.head.ino == ino),
            "the inode of the number"
        );
        shard.get(&ino).map(|node| node.inode.clone())
    }

    /// An inode, if it is known and this is the only name that it has. The directory of the name is
    /// locked.
    pub(crate) fn find_at(&self, ino: Ino, at: DirName<'_>) -> Option<Inode> {
        let shard = self.shard(ino).lock();
        let node = shard.get(&ino)?;
        debug_assert_eq!(node.inode.head.ino, ino, "the inode of the number");
        let is_it = node.inode.location.is(at);
        is_it.then(|| node.inode.clone())
    }

    /// Head of an inode that is known.
    pub(crate) fn head(&self, ino: Ino) -> FsResult<InodeHead> {
        let shard = self.shard(ino).lock();
        let node = shard.get(&ino).ok_or(FsError::Stale(ino))?;
        debug_assert_eq!(node.inode.head.ino, ino, "the inode of the number");
        Ok(node.inode.head)
    }

    /// Now; see [`Self::learn`].
    pub(crate) fn moment(&self) -> Tick {
        self.clock.load(Ordering::Acquire)
    }

    /// Reports whether an inode is unchanged since `moment`: what was read of its row after that is
    /// what the row says. The inode is locked.
    pub(crate) fn is_as_of(&self, ino: Ino, moment: Tick) -> bool {
        debug_assert!(moment <= self.moment(), "a row was read before now");
        let shard = self.shard(ino).lock();
        let changed = shard.get(&ino).map(|node| node.changed);
        changed.unwrap_or_else(|| self.change_forgotten.load(Ordering::Acquire)) <= moment
    }

    /// Counts a lookup of an inode that is known.
    pub(crate) fn look_up(&self, ino: Ino) -> Option<InodeHead> {
        self.look_up_if(ino, |_| true)
    }

    /// Counts a lookup of an inode that is known, if this is the only name that it has. The
    /// directory of the name is locked.
    pub(crate) fn look_up_at(&self, ino: Ino, at: DirName<'_>) -> Option<InodeHead> {
        self.look_up_if(ino, |location| location.is(at))
    }

    fn look_up_if(&self, ino: Ino, is_it: impl FnOnce(&Location) -> bool) -> Option<InodeHead> {
        let mut shard = self.shard(ino).lock();
        let node = shard.get_mut(&ino)?;
        if !is_it(&node.inode.location) {
            return None;
        }
        node.lookups += 1;
        let before = node.seen;
        node.seen = self.tick();
        debug_assert!(node.seen > before, "it is more recent now");
        node.check();
        let head = node.inode.head;
        self.write_count(ino, &shard);
        Some(head)
    }

    /// A directory that names are looked up in: as recent as what is found there.
    pub(crate) fn get_dir(&self, ino: Ino) -> FsResult<Inode> {
        let mut shard = self.shard(ino).lock();
        let node = shard.get_mut(&ino).ok_or(FsError::Stale(ino))?;
        debug_assert_eq!(node.inode.head.ino, ino, "the inode of the number");
        if !node.inode.is_dir() {
            return Err(FsError::NotDir);
        }
        node.seen = self.tick();
        node.check();
        Ok(node.inode.clone())
    }

    /// Counts a lookup of an inode whose row was read after `moment`. `None` if the row may be old
    /// by now: read it again.
    pub(crate) fn learn(
        &self,
        head: &InodeHead,
        location: Location,
        moment: Tick,
    ) -> FsResult<Option<InodeHead>> {
        debug_assert!(moment <= self.moment(), "a row was read before now");
        if let Some(known) = self.look_up(head.ino) {
            return Ok(Some(known));
        }
        let inode = Inode {
            head: *head,
            location,
            chain: CHAIN_UNKNOWN,
            is_temp: false,
        };
        debug_assert!(
            !matches!(inode.location, Location::Memory(_)),
            "its row was read"
        );
        let parent = if inode.is_dir() { inode.parent() } else { None };
        if let Some(parent) = parent {
            self.hold(parent, Hold::Pin)?;
        }
        let learned = self.insert_at(inode, moment);
        debug_assert!(
            learned.is_none_or(|(found, _)| found.ino == head.ino),
            "the inode that was read"
        );
        if let Some(parent) = parent
            && !matches!(learned, Some((_, true)))
        {
            self.release(parent, Hold::Pin);
        }
        Ok(learned.map(|(head, _)| head))
    }

    /// Inserts an inode, unless its row may be old. Returns the head, and whether it is new.
    fn insert_at(&self, inode: Inode, moment: Tick) -> Option<(InodeHead, bool)> {
        debug_assert!(moment <= self.moment(), "a row was read before now");
        let mut shard = self.shard(inode.head.ino).lock();
        if let Some(node) = shard.get_mut(&inode.head.ino) {
            node.lookups += 1;
            node.seen = self.tick();
            let head = node.inode.head;
            node.check();
            self.write_count(head.ino, &shard);
            return Some((head, false));
        }
        if self.change_forgotten.load(Ordering::Acquire) > moment {
            return None;
        }
        let head = inode.head;
        self.count_in(&inode);
        shard.insert(head.ino, Node::new(inode, self.tick()));
        self.write_at(head.ino, &shard);
        Some((head, true))
    }

    /// Adds an inode that was just made, with one lookup.
    pub(crate) fn add(&self, inode: Inode) -> FsResult<()> {
        debug_assert_ne!(
            inode.head.ino,
            Ino::ROOT,
            "the root is known from the start"
        );
        debug_assert!(
            inode.head.nlink > 0 || inode.is_temp,
            "a new inode has a name, or is temporary"
        );
        if inode.is_dir()
            && let Some(parent) = inode.parent()
        {
            self.hold(parent, Hold::Pin)?;
        }
        self.count_in(&inode);
        let ino = inode.head.ino;
        let mut node = Node::new(inode, self.tick());
        node.changed = node.seen;
        node.check();
        let mut shard = self.shard(ino).lock();
        let before = shard.insert(ino, node);
        debug_assert!(before.is_none(), "numbers are never reused");
        self.write_at(ino, &shard);
        Ok(())
    }

    /// A chunk that is there and was counted, if one is known. The inode is locked.
    pub(crate) fn counted_chunk(&self, ino: Ino) -> Option<u64> {
        let shard = self.shard(ino).lock();
        let number = shard.get(&ino).map(|node| node.counted_chunk);
        number.filter(|&number| number != NO_CHUNK)
    }

    /// Notes a chunk that is there and was counted; `None` before chunks may go. The inode is
    /// locked.
    pub(crate) fn note_counted(&self, ino: Ino, number: Option<u64>) {
        debug_assert_ne!(number, Some(NO_CHUNK), "no file has such a chunk");
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.get_mut(&ino) {
            debug_assert!(
                number.is_none() || node.inode.head.kind == FileKind::Regular,
                "files alone have chunks"
            );
            node.counted_chunk = number.unwrap_or(NO_CHUNK);
        }
    }

    /// Keeps an inode that is known.
    pub(crate) fn hold(&self, ino: Ino, hold: Hold) -> FsResult<()> {
        let mut shard = self.shard(ino).lock();
        let node = shard.get_mut(&ino).ok_or(FsError::Stale(ino))?;
        match hold {
            Hold::Lookups(count) => {
                node.lookups += count;
                self.write_count(ino, &shard);
            }
            Hold::Handle => node.handles += 1,
            Hold::Pin => node.pins += 1,
        }
        debug_assert!(
            shard.get(&ino).is_some_and(|node| !node.is_free()),
            "what is held stays known"
        );
        Ok(())
    }

    /// Lets go of an inode. Returns the inode if it is not known any more.
    pub(crate) fn release(&self, ino: Ino, hold: Hold) -> Option<Inode> {
        let removed = self.release_one(ino, hold)?;
        debug_assert_eq!(removed.head.ino, ino, "the inode of the number");
        let mut up = if removed.is_dir() {
            removed.parent()
        } else {
            None
        };
        while let Some(parent) = up {
            debug_assert_ne!(parent, ino, "no directory is in itself");
            let gone = self.release_one(parent, Hold::Pin);
            debug_assert!(
                gone.as_ref().is_none_or(Inode::is_dir),
                "directories alone are pinned by those in them"
            );
            up = gone.and_then(|inode| inode.parent());
        }
        Some(removed)
    }

    fn release_one(&self, ino: Ino, hold: Hold) -> Option<Inode> {
        let mut shard = self.shard(ino).lock();
        let node = shard.get_mut(&ino)?;
        match hold {
            Hold::Lookups(count) => {
                let floor = u64::from(ino == Ino::ROOT);
                node.lookups = node.lookups.saturating_sub(count).max(floor);
            }
            Hold::Handle => node.handles = node.handles.saturating_sub(1),
            Hold::Pin => {
                debug_assert!(node.pins > 0, "a pin is taken back once");
                node.pins = node.pins.saturating_sub(1);
            }
        }
        if !node.is_free() {
            if matches!(hold, Hold::Lookups(_)) {
                self.write_count(ino, &shard);
            }
            return None;
        }
        let node = shard.remove(&ino)?;
        debug_assert!(node.is_free(), "nothing holds it any more");
        debug_assert_ne!(ino, Ino::ROOT, "the root is never forgotten");
        debug_assert_eq!(node.inode.head.ino, ino, "the inode of the number");
        self.write(&Record::Gone { ino }, ino, &shard);
        self.change_forgotten
            .fetch_max(node.changed, Ordering::AcqRel);
        self.count_out(&node.inode);
        Some(node.inode)
    }

    /// Takes in an inode as it was committed.
    pub(crate) fn update(&self, new: Inode) {
        let ino = new.head.ino;
        let is_dir = new.is_dir();
        debug_assert!(
            ino != Ino::ROOT || new.location == Location::Own,
            "the root has no name"
        );
        let new_parent = new.parent();
        let old_parent = {
            let mut shard = self.shard(ino).lock();
            let Some(node) = shard.get_mut(&ino) else {
                // A row that was read before may be old now.
                self.change_forgotten
                    .fetch_max(self.tick(), Ordering::AcqRel);
                return;
            };
            node.changed = self.tick();
            debug_assert!(
                node.changed > node.seen,
                "it changes after it was asked for"
            );
            self.count_move(Some(&node.inode.location), Some(&new.location));
            node.intent = None;
            let has_moved = moves(&node.inode.location, &new.location);
            let has_moved = has_moved || node.inode.is_temp != new.is_temp;
            debug_assert_eq!(node.inode.head.kind, new.head.kind, "a type never changes");
            let old = std::mem::replace(&mut node.inode, new).parent();
            node.check();
            if has_moved {
                self.write_at(ino, &shard);
            }
            old
        };
        if is_dir && old_parent != new_parent {
            if let Some(parent) = new_parent {
                let held = self.hold(parent, Hold::Pin);
                debug_assert!(held.is_ok(), "a directory moves into a known one");
            }
            if let Some(parent) = old_parent {
                self.release(parent, Hold::Pin);
            }
        }
    }
}
