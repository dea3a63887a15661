//! One operation's changes: a batch of rows for the trees, and the events that memory learns once
//! it is committed.
//!
//! Attributes of an inode change by an upsert of what is different. After [`CHAIN_MAX`] of them the
//! row is put whole, so that no reader folds long chains. A row with nothing behind its head is put
//! whole sooner ([`BARE_CHAIN_MAX`]): all of it is known, and it is so short that a put takes 60
//! bytes more. That is so for every directory, whose row changes with every name in it and is read
//! by every path through it. An inode that is in memory alone changes there, without a row.

mod absorbed;
mod contents;
mod names;
mod shared;

use crate::contents::Contents;
use crate::data::chunks_from;
use crate::events::{Event, Notices};
use crate::inode::{CHAIN_UNKNOWN, Inode, Location};
use crate::locator::{Locator, RowKey};
use crate::room::{RoomMaker, unless_full};
use crate::rows::RowBatch;
use crate::system::FileSystem;
use crate::xattr::CAPABILITY;
use crate::{FsError, FsResult};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_db::SpaceClass;
use stitch_format::fs_inode::{AttrDelta, InodeHead, row_flag};
use stitch_format::fs_key::{CHUNK_BYTES, INO_MAX};
use stitch_format::fs_sys::{FsHeader, UPSERT_ADD, UPSERT_ATTR};

/// Upserts on one row before it is put whole.
const CHAIN_MAX: u8 = 64;
/// The same for a row with nothing behind its head. Less than is assumed of a row that was just
/// read: so the chain of a row that is looked up, changed and forgotten again and again does not
/// grow.
const BARE_CHAIN_MAX: u8 = 8;
/// Bytes of messages of most operations, so that their batch does not move while it grows.
const CHANGE_BYTES: usize = 384;
/// Events of most operations.
const EVENT_COUNT: usize = 4;

/// Begins changes of a file system. A part of it that owns its fields has this, and so reaches no
/// field of another part.
#[derive(Clone, Copy)]
pub(crate) struct Changes<'fs> {
    fs: &'fs FileSystem,
}

impl<'fs> Changes<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self { fs }
    }

    /// Begins a change that needs space.
    pub(crate) fn begin(self) -> Change<'fs> {
        Change::new(self.fs)
    }

    /// Begins a change that gives space back.
    pub(crate) fn begin_giving_back(self) -> Change<'fs> {
        Change::giving_back(self.fs)
    }

    /// Takes a number that no inode ever had. May commit a change of the counter.
    pub(crate) fn new_ino(self) -> FsResult<Ino> {
        self.fs.new_ino()
    }

    /// Refuses what puts inodes with numbers above these, if too few are left.
    pub(crate) fn check_numbers_leave_room(self) -> FsResult<()> {
        self.fs.check_numbers_leave_room()
    }

    /// Changes the header, before the first row that earlier programs do not know.
    pub(crate) fn mark_header(self, mark: impl FnOnce(&mut FsHeader)) -> FsResult<()> {
        self.fs.mark_header(mark)
    }

    /// Removes plain files of forgotten files at once, since the host is full. Reports whether
    /// there were any. The caller may have an inode locked.
    pub(crate) fn make_room_beside(self) -> FsResult<bool> {
        RoomMaker::of(self.fs).make_beside()
    }

    /// Commits rows that nothing in memory is about, as a [`Change`] commits its own.
    pub(crate) fn commit_rows(self, batch: &RowBatch<'_>, space: SpaceClass) -> FsResult<()> {
        self.fs.commit_where_room(batch, space)
    }

    /// Returns the time of a change, in nanoseconds since 1970.
    pub(crate) fn now(self) -> i64 {
        self.fs.now()
    }
}

pub(crate) struct Change<'fs> {
    fs: &'fs FileSystem,
    pub(crate) batch: RowBatch<'fs>,
    /// What memory learns after the commit.
    pub(crate) events: Vec<Event<'fs>>,
    space: SpaceClass,
    scratch: Vec<u8>,
    inodes_added: i64,
    /// Chunks that unwritten extents of all files have more afterwards.
    pub(crate) unwritten_added: i64,
    /// Back rows are written with the rows that they lead to.
    keeps_back_rows: bool,
}

impl<'fs> Change<'fs> {
    /// Changes that need space. The directories whose names change are locked: whether back rows
    /// are kept does not change until the commit.
    pub(crate) fn new(fs: &'fs FileSystem) -> Self {
        let mut batch = fs.store.batch();
        batch.reserve(CHANGE_BYTES);
        Self {
            fs,
            batch,
            events: Vec::with_capacity(EVENT_COUNT),
            space: SpaceClass::Normal,
            scratch: Vec::new(),
            inodes_added: 0,
            unwritten_added: 0,
            keeps_back_rows: fs.back_rows.are_kept(),
        }
    }

    /// Changes that give space back, and so may use the reserve.
    pub(crate) fn giving_back(fs: &'fs FileSystem) -> Self {
        let mut change = Self::new(fs);
        change.space = SpaceClass::Reserve;
        change
    }

    /// Lets the change use the room that is set aside: all chunks that it writes were allocated.
    pub(crate) const fn fill_allocated(&mut self) {
        // What mainline has set aside stays mainline's.
        if self.fs.branch.is_none() {
            self.space = SpaceClass::Allocated;
        }
    }

    /// Keys of rows.
    pub(crate) const fn keys(&self) -> Locator {
        self.fs.store.keys
    }

    /// Changes attributes, not what is in the row behind them.
    pub(crate) fn attrs(&mut self, inode: &Inode, new: &InodeHead) -> FsResult<()> {
        let delta = AttrDelta::between(&inode.head, new);
        if delta.is_empty() {
            self.touch(inode);
            return Ok(());
        }
        let mut after = inode.clone();
        after.head = *new;
        after.is_temp &= new.nlink == 0;
        if let Some(key) = self.keys().inode(inode) {
            if inode.chain >= chain_max(inode) {
                let tail = self.fs.store.tail(inode)?;
                self.put_row(&key, new, &tail);
                after.chain = 0;
            } else {
                self.scratch.clear();
                delta.encode(&mut self.scratch);
                self.batch.upsert(&key, UPSERT_ATTR, &self.scratch);
                after.chain += 1;
            }
        }
        self.events.push(Event::Changed(after));
        Ok(())
    }

    /// Takes file capabilities from an inode, as every write and change of owner does.
    pub(crate) fn drop_capabilities(&mut self, new: &mut InodeHead) {
        if new.has(row_flag::CAPS) {
            let key = self.keys().xattr(new.ino, CAPABILITY);
            self.batch.delete(&key);
            new.flags &= !row_flag::CAPS;
        }
    }

    /// Stages that names of a directory have changed, with `links` directories more in it.
    pub(crate) fn touch_dir(&mut self, dir: &Inode, links: i64, now: i64) -> FsResult<()> {
        debug_assert!(dir.is_dir(), "names are in directories");
        let mut new = dir.head;
        let links = i64::from(new.nlink) + links;
        new.nlink = u32::try_from(links.max(0)).unwrap_or(u32::MAX);
        new.mtime = now;
        new.ctime = now;
        self.attrs(dir, &new)
    }

    /// Writes to the row of an inode and changes nothing in it, while there are transactions: a
    /// commit compares what was written, and a clock may stand still.
    fn touch(&mut self, inode: &Inode) {
        if self.fs.branch.is_none() && !self.fs.transactions.may_be_open() {
            return;
        }
        if let Some(key) = self.keys().inode(inode) {
            let nothing = AttrDelta {
                ino: inode.head.ino,
                ..AttrDelta::default()
            };
            debug_assert!(nothing.is_empty(), "it changes nothing");
            self.scratch.clear();
            nothing.encode(&mut self.scratch);
            self.batch.upsert(&key, UPSERT_ATTR, &self.scratch);
        }
    }

    /// In a transaction, writes to the rows of a directory and of those above it, and changes
    /// nothing in them. So the commit of one that moved a directory there learns whether mainline
    /// has moved one of them. The tree is locked.
    pub(crate) fn touch_above(&mut self, dir: Ino) -> FsResult<()> {
        if self.fs.branch.is_none() {
            return Ok(());
        }
        let mut at = dir;
        while at != Ino::ROOT {
            let inode = self.fs.residents.inodes.get(at)?;
            debug_assert!(inode.is_dir(), "directories are in directories");
            self.touch(&inode);
            at = inode.parent().ok_or(FsError::NotFound)?;
        }
        Ok(())
    }

    /// Puts the whole row of an inode where it is.
    pub(crate) fn row(&mut self, inode: &Inode, new: &InodeHead, tail: &[u8]) {
        let mut after = inode.clone();
        after.head = *new;
        after.chain = 0;
        match self.keys().inode(inode) {
            Some(key) => self.put_row(&key, new, tail),
            None => after.location = Location::Memory(Arc::new(Bytes::copy_from_slice(tail))),
        }
        self.events.push(Event::Changed(after));
    }

    fn put_row(&mut self, key: &RowKey, head: &InodeHead, tail: &[u8]) {
        debug_assert!(
            (1..=INO_MAX).contains(&head.ino.0),
            "a reader takes no other number"
        );
        self.scratch.clear();
        self.scratch.extend_from_slice(&head.encode());
        self.scratch.extend_from_slice(tail);
        self.batch.put(key, &self.scratch);
    }

    /// Deletes all rows of an inode but those of its names. After an error nothing was added.
    pub(crate) fn purge(&mut self, head: &InodeHead, has_own_row: bool) -> FsResult<()> {
        let ino = head.ino;
        let shared = match Contents::of_inode(head) {
            Some(Contents::Shared) => Some(self.fs.store.shared_row(ino)?),
            _ => None,
        };
        if head.has(row_flag::ALLOCATED) {
            let extents = self.fs.extent_rows();
            extents.delete(self, ino, &chunks_from(0))?;
        }
        match Contents::of_inode(head) {
            None | Some(Contents::Inline) => {}
            Some(Contents::Chunked | Contents::Shared) => {
                let own = shared.as_ref().map_or(ino, |row| row.own);
                self.delete_chunks(own, 0, head.size.div_ceil(CHUNK_BYTES));
            }
            Some(Contents::External) => self.delete_external(ino)?,
        }
        if let Some(row) = shared {
            self.delete_shared(ino);
            if let Some(contents) = row.contents {
                self.leave_contents(contents, ino);
            }
        }
        if has_own_row {
            let key = self.keys().own(ino);
            self.batch.delete(&key);
        } else {
            self.delete_back_row(ino);
        }
        if head.has(row_flag::XATTRS) {
            let all = self.keys().xattrs(ino);
            self.batch.delete_range(&all);
        }
        Ok(())
    }

    /// Counts inodes that got a first name, or lost the last.
    pub(crate) const fn count_inodes(&mut self, by: i64) {
        self.inodes_added += by;
    }

    /// Adds to a number of the sys tree.
    fn add_to(&mut self, key: &RowKey, by: i64) {
        if by != 0 {
            self.batch.upsert(key, UPSERT_ADD, &by.to_le_bytes());
        }
    }

    /// Commits the rows, with memory prepared for them.
    fn commit_rows(&self) -> FsResult<()> {
        self.fs.announce(&self.events);
        self.fs.commit_where_room(&self.batch, self.space)
    }

    /// Commits the rows, with room set aside before for chunks that are allocated, and released
    /// after for others.
    fn commit_aside(&self) -> FsResult<()> {
        let chunks = self.unwritten_added.unsigned_abs();
        // Of those in a transaction its commit does.
        if chunks == 0 || self.fs.branch.is_some() {
            return self.commit_rows();
        }
        let is_added = self.unwritten_added > 0;
        if is_added {
            self.set_more_aside(chunks)?;
        }
        let committed = self.commit_rows();
        if is_added == committed.is_err() {
            self.fs.aside.set_less(self.fs.engine().as_ref(), chunks);
        }
        committed
    }

    /// Sets room aside for more chunks; once more, if forgotten files could be removed.
    fn set_more_aside(&self, chunks: u64) -> FsResult<()> {
        let engine = self.fs.engine().as_ref();
        match self.fs.aside.set_more(engine, chunks) {
            // Their removal takes the lock of what is set aside.
            Err(FsError::NoSpace) => {
                unless_full(self.fs.reclaim())?;
                self.fs.aside.set_more(engine, chunks)
            }
            done => done,
        }
    }

    /// Commits all rows as one, then applies the events.
    ///
    /// # Errors
    /// Those of the engine: nothing is committed and nothing in memory is changed. Those of
    /// [`FileSystem::apply`].
    pub(crate) fn commit(mut self) -> FsResult<()> {
        let keys = self.keys();
        self.add_to(&keys.inode_count(), self.inodes_added);
        self.add_to(&keys.unwritten(), self.unwritten_added);
        if !self.batch.is_empty()
            && let Err(error) = self.commit_aside()
        {
            self.fs.retract(&self.events);
            return Err(error);
        }
        self.fs.residents.count_inodes(self.inodes_added);
        self.fs.apply(self.events)
    }

    /// Commits a change that the kernel did not ask for, as [`Self::commit`] does. Adds what the
    /// kernel has to drop to `notices`, also after an error: the rows may be on the medium.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub(crate) fn commit_unasked(self, notices: &mut Notices) -> FsResult<()> {
        notices.extend(self.fs.notices_of(&self.events));
        self.commit()
    }
}

/// Upserts on the row of an inode before it is put whole.
const fn chain_max(inode: &Inode) -> u8 {
    const {
        assert!(
            BARE_CHAIN_MAX <= CHAIN_UNKNOWN,
            "a row of an unknown chain is put whole"
        )
    };
    if inode.has_tail() {
        CHAIN_MAX
    } else {
        BARE_CHAIN_MAX
    }
}
