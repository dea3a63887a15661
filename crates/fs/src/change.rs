//! One operation's changes: a batch of rows for the trees, and the events that memory learns once
//! it is committed.
//!
//! Attributes of an inode change by an upsert of what is different. After [`CHAIN_MAX`] of them the
//! row is put whole, so that no reader folds long chains. A row with nothing behind its head is put
//! whole sooner ([`BARE_CHAIN_MAX`]): all of it is known, and it is so short that a put takes 60
//! bytes more. That is so for every directory, whose row changes with every name in it and is read
//! by every path through it. An inode that is in memory alone changes there, without a row.

mod absorbed;
mod begin;
mod contents;
mod names;
mod scope;
mod shared;
mod told;

pub(crate) use begin::Changes;

use self::scope::ChangeScope;

use crate::contents::Contents;
use crate::data::{ExtentRows, chunks_from};
use crate::events::{Event, Notices};
use crate::inode::{CHAIN_UNKNOWN, Inode, Location};
use crate::locator::{Locator, RowKey, Tree};
use crate::rows::RowBatch;
use crate::xattr::CAPABILITY;
use crate::{FsError, FsResult};
use bytes::Bytes;
use std::cell::RefCell;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_db::SpaceClass;
use stitch_format::fs_inode::{self, AttrDelta, InodeHead, MetaRow, row_flag};
use stitch_format::fs_key::{CHUNK_BYTES, INO_MAX};
use stitch_format::fs_sys::{UPSERT_ADD, UPSERT_ATTR};

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
const _: () = assert!(
    BARE_CHAIN_MAX <= CHAIN_MAX,
    "a row with a tail takes more messages"
);
const _: () = assert!(CHAIN_MAX < u8::MAX, "a chain is counted in a byte");

/// A change that is staged. It is dropped, or committed as a whole.
///
/// Invariant: what is staged of rows has its events beside it, and nothing in memory changes before
/// the commit but the path cache, which may lose directories at any time.
pub(crate) struct Change<'fs> {
    scope: ChangeScope<'fs>,
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
    /// Begins a change. The directories whose names change are locked: whether back rows are kept
    /// does not change until the commit.
    fn new(scope: ChangeScope<'fs>, space: SpaceClass) -> Self {
        let mut batch = scope.store.batch();
        batch.reserve(CHANGE_BYTES);
        debug_assert!(batch.is_empty(), "nothing is staged yet");
        Self {
            batch,
            events: Vec::with_capacity(EVENT_COUNT),
            space,
            scratch: Vec::new(),
            inodes_added: 0,
            unwritten_added: 0,
            keeps_back_rows: scope.back_rows.are_kept(),
            scope,
        }
    }

    /// Lets the change use the room that is set aside: all chunks that it writes were allocated.
    pub(crate) const fn fill_allocated(&mut self) {
        // What mainline has set aside stays mainline's.
        if !self.scope.is_transaction() {
            self.space = SpaceClass::Allocated;
        }
    }

    /// Keys of rows.
    pub(crate) const fn keys(&self) -> Locator {
        self.scope.store.keys
    }

    /// Changes attributes, not what is in the row behind them.
    pub(crate) fn attrs(&mut self, inode: &Inode, new: &InodeHead) -> FsResult<()> {
        debug_assert_eq!(inode.head.ino, new.ino, "an inode keeps its number");
        let delta = AttrDelta::between(&inode.head, new);
        debug_assert_eq!(inode.head.btime, new.btime, "a time of birth never changes");
        debug_assert_eq!(inode.head.kind, new.kind, "a type never changes");
        if delta.is_empty() {
            self.touch(inode);
            return Ok(());
        }
        let mut after = inode.clone();
        after.head = *new;
        after.is_temp &= new.nlink == 0;
        if let Some(key) = self.keys().inode(inode) {
            if inode.chain >= chain_max(inode) {
                let tail = self.scope.store.tail(inode)?;
                self.put_row(&key, new, &tail);
                after.chain = 0;
            } else {
                self.scratch.clear();
                delta.encode(&mut self.scratch);
                debug_assert!(
                    folds_to(&inode.head, &self.scratch, new),
                    "a reader folds the message to the new head"
                );
                self.batch.upsert(&key, UPSERT_ATTR, &self.scratch);
                after.chain += 1;
                debug_assert!(after.chain <= CHAIN_MAX, "the row is put whole in time");
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
        debug_assert!(links.abs() <= 1, "one directory at a time");
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
        if !self.scope.may_be_compared() {
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
            debug_assert!(!self.scratch.is_empty(), "the message names the inode");
            self.batch.upsert(&key, UPSERT_ATTR, &self.scratch);
        }
    }

    /// In a transaction, writes to the rows of a directory and of those above it, and changes
    /// nothing in them. So the commit of one that moved a directory there learns whether mainline
    /// has moved one of them. The tree is locked.
    pub(crate) fn touch_above(&mut self, dir: Ino) -> FsResult<()> {
        if !self.scope.is_transaction() {
            return Ok(());
        }
        let mut at = dir;
        while at != Ino::ROOT {
            let inode = self.scope.residents().inodes.get(at)?;
            debug_assert!(inode.is_dir(), "directories are in directories");
            self.touch(&inode);
            at = inode.parent().ok_or(FsError::NotFound)?;
        }
        Ok(())
    }

    /// Puts the whole row of an inode where it is.
    pub(crate) fn row(&mut self, inode: &Inode, new: &InodeHead, tail: &[u8]) {
        debug_assert_eq!(inode.head.ino, new.ino, "an inode keeps its number");
        debug_assert_eq!(inode.head.kind, new.kind, "a type never changes");
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
        debug_assert_eq!(key.tree(), Tree::Meta, "where rows of inodes are");
        self.batch.put(key, &self.scratch);
    }

    /// Deletes all rows of an inode but those of its names. After an error nothing was added.
    pub(crate) fn purge(&mut self, head: &InodeHead, has_own_row: bool) -> FsResult<()> {
        let ino = head.ino;
        debug_assert_ne!(ino, Ino::ROOT, "the root is never purged");
        let shared = match Contents::of_inode(head) {
            Some(Contents::Shared) => Some(self.scope.store.shared_row(ino)?),
            _ => None,
        };
        if head.has(row_flag::ALLOCATED) {
            let extents = ExtentRows::new(self.scope.store, self.scope.memory.extents);
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
        debug_assert!(by == 1 || by == -1, "one inode at a time");
        self.inodes_added += by;
    }

    /// Adds to a number of the sys tree.
    fn add_to(&mut self, key: &RowKey, by: i64) {
        debug_assert!(key.tree() == Tree::Sys, "numbers are in the sys tree");
        if by != 0 {
            self.batch.upsert(key, UPSERT_ADD, &by.to_le_bytes());
        }
    }

    /// Commits the rows, with room set aside before for chunks that are allocated, and released
    /// after for others.
    fn commit_rows(&self) -> FsResult<()> {
        debug_assert!(!self.batch.is_empty(), "rows are committed");
        let chunks = self.unwritten_added.unsigned_abs();
        let is_added = self.unwritten_added > 0;
        debug_assert!(
            !is_added || self.space != SpaceClass::Allocated,
            "what is set aside is for chunks that were allocated before"
        );
        if is_added {
            self.scope.make_and_set_aside(chunks)?;
        }
        let committed = self.scope.commit(&self.batch, &self.events, self.space);
        if is_added == committed.is_err() {
            self.scope.set_less_aside(chunks);
        }
        committed
    }

    /// Commits all rows as one, then applies the events.
    ///
    /// # Errors
    /// Those of the engine: nothing is committed and nothing in memory is changed. Those of
    /// [`EventSink::apply`](crate::events::EventSink::apply).
    pub(crate) fn commit(self) -> FsResult<()> {
        debug_assert!(self.tells_rows(), "memory follows the rows");
        self.commit_staged()
    }

    fn commit_staged(mut self) -> FsResult<()> {
        let keys = self.keys();
        self.add_to(&keys.inode_count(), self.inodes_added);
        self.add_to(&keys.unwritten(), self.unwritten_added);
        debug_assert!(
            self.inodes_added == 0 || !self.batch.is_empty(),
            "the count is a row"
        );
        if !self.batch.is_empty()
            && let Err(error) = self.commit_rows()
        {
            self.scope.memory.retract(&self.events);
            return Err(error);
        }
        self.scope.residents().count_inodes(self.inodes_added);
        self.scope.memory.apply(self.events)
    }

    /// Commits a change that the kernel did not ask for, as [`Self::commit`] does. Adds what the
    /// kernel has to drop to `notices`, also after an error: the rows may be on the medium.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub(crate) fn commit_unasked(self, notices: &mut Notices) -> FsResult<()> {
        notices.extend(self.scope.memory.notices_of(&self.events));
        self.commit_staged()
    }
}

/// Reports whether a message makes `new` of `old`, as a reader of the row folds it.
fn folds_to(old: &InodeHead, message: &[u8], new: &InodeHead) -> bool {
    thread_local! {
        // Operations are tested to allocate little, with assertions too.
        static ROW: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    ROW.with_borrow_mut(|row| {
        row.clear();
        let is_left = fs_inode::fold(Some(&old.encode()), message, row);
        is_left && matches!(MetaRow::decode(row), Ok(MetaRow::Inode(head, _)) if head == *new)
    })
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
