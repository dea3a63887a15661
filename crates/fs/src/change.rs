//! One operation's changes: a batch for the trees, and what the inode table learns once it is
//! committed.
//!
//! An inode's attributes change by an upsert that says what is different; after [`CHAIN_MAX`] of them
//! the row is put whole, so that no reader folds long chains. A row with nothing behind its head is put whole
//! sooner ([`BARE_CHAIN_MAX`]): all of it is known, and it is so short that a put takes 60 bytes more. So is that of
//! every directory, which changes with every name in it and is read on the way to all of them. An
//! inode that is in memory alone changes there, without a batch.

use crate::FsResult;
use crate::contents::Contents;
use crate::data::Extent;
use crate::external::Leaving;
use crate::inode::{CHAIN_UNKNOWN, Inode, Location};
use crate::locator::{Locator, RowKey};
use crate::names;
use crate::rows::RowBatch;
use crate::system::FileSystem;
use bytes::Bytes;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_db::SpaceClass;
use stitch_format::fs_chunk::ChunkDelta;
use stitch_format::fs_inode::{AttrDelta, FileKind, InodeHead, encode_link, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_format::fs_sys::{AllocatedRow, ExternalRow, UPSERT_ADD, UPSERT_ATTR, UPSERT_CHUNK};

/// Upserts on one row before it is put whole.
const CHAIN_MAX: u8 = 64;
/// The same for a row with nothing behind its head. Less than is assumed of a row that was just read, so that
/// the chain of one that is looked up, changed and forgotten again and again does not grow either.
const BARE_CHAIN_MAX: u8 = 8;
/// Bytes of messages that most operations stay within, so that their batch does not move while it grows.
const CHANGE_BYTES: usize = 384;
/// Inodes that most operations change.
const UPDATE_COUNT: usize = 2;
/// Chunks up to which contents are deleted one by one: cheaper to read after than a range.
const POINT_DELETES_MAX: u64 = 16;

pub(crate) struct Change<'fs> {
    fs: &'fs FileSystem,
    pub(crate) batch: RowBatch<'fs>,
    updates: Vec<Inode>,
    space: SpaceClass,
    scratch: Vec<u8>,
    inodes_added: i64,
    /// Extents that files have afterwards, as far as they are kept in memory.
    pub(crate) extents_left: Vec<(Ino, Option<Vec<Extent>>)>,
    /// Chunks that unwritten extents of all files have more afterwards.
    pub(crate) unwritten_added: i64,
    /// Back rows are written with the rows that they lead to.
    keeps_back_rows: bool,
    leaving: Vec<Leaving>,
    /// Bytes of plain files that were settled and are not any more.
    pub(crate) bytes_uncounted: u64,
    /// Directory and hash of a name that goes.
    gone_name: Option<(Ino, u64)>,
    /// A directory that loses its name.
    pub(crate) gone_dir: Option<Ino>,
    /// A file that is known loses its last name, and gives its space back when it is forgotten.
    leaves_orphan: bool,
}

impl<'fs> Change<'fs> {
    /// Changes that need space. The directories whose names change are locked: what is kept of
    /// names does not change until the commit.
    pub(crate) fn new(fs: &'fs FileSystem) -> Self {
        let mut batch = fs.store.batch();
        batch.reserve(CHANGE_BYTES);
        Self {
            fs,
            batch,
            updates: Vec::with_capacity(UPDATE_COUNT),
            space: SpaceClass::Normal,
            scratch: Vec::new(),
            inodes_added: 0,
            unwritten_added: 0,
            extents_left: Vec::new(),
            keeps_back_rows: fs.back_rows.are_kept(),
            leaving: Vec::new(),
            bytes_uncounted: 0,
            gone_name: None,
            gone_dir: None,
            leaves_orphan: false,
        }
    }

    /// Changes that give space back, and so may use what is kept for that.
    pub(crate) fn giving_back(fs: &'fs FileSystem) -> Self {
        let mut change = Self::new(fs);
        change.space = SpaceClass::Reserve;
        change
    }

    /// All chunks that are written were allocated: they may use the room that is set aside.
    pub(crate) const fn fill_allocated(&mut self) {
        self.space = SpaceClass::Allocated;
    }

    /// Keys of rows.
    pub(crate) const fn keys(&self) -> Locator {
        self.fs.store.keys
    }

    /// Changes attributes, not what is in the row behind them.
    pub(crate) fn attrs(&mut self, inode: &Inode, new: &InodeHead) -> FsResult<()> {
        let delta = AttrDelta::between(&inode.head, new);
        if delta.is_empty() {
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
        self.updates.push(after);
        Ok(())
    }

    /// A directory in which names have changed, with so many directories more in it.
    pub(crate) fn touch_dir(&mut self, dir: &Inode, links: i64, now: i64) -> FsResult<()> {
        debug_assert!(dir.is_dir(), "names are in directories");
        let mut new = dir.head;
        let links = i64::from(new.nlink) + links;
        new.nlink = u32::try_from(links.max(0)).unwrap_or(u32::MAX);
        new.mtime = now;
        new.ctime = now;
        self.attrs(dir, &new)
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
        self.updates.push(after);
    }

    /// Puts the whole row of an inode at another place, where it is from then on.
    pub(crate) fn move_row(
        &mut self,
        inode: &Inode,
        new: &InodeHead,
        tail: &[u8],
        location: Location,
    ) {
        if inode.is_dir() {
            self.fs.residents.drop_step(inode);
        }
        let after = Inode {
            head: *new,
            location,
            chain: 0,
            is_temp: inode.is_temp && new.nlink == 0,
        };
        let is_entry = matches!(after.location, Location::Entry { .. });
        if let Some(key) = self.keys().inode(&after) {
            if is_entry {
                self.fs.residents.names.add(&key);
                self.put_back_row(new.ino, &key);
            }
            self.put_row(&key, new, tail);
        }
        if !is_entry && matches!(inode.location, Location::Entry { .. }) {
            self.delete_back_row(new.ino);
        }
        self.updates.push(after);
    }

    /// Makes an orphan in memory one in the trees, since more is to be kept of it than fits a row.
    pub(crate) fn put_orphan(&mut self, inode: &Inode, tail: &[u8]) -> Inode {
        debug_assert_eq!(inode.head.nlink, 0, "an orphan has no name");
        let key = self.keys().orphan(inode.head.ino);
        self.batch.put(&key, &[]);
        self.move_row(inode, &inode.head, tail, Location::Own);
        let mut after = inode.clone();
        after.location = Location::Own;
        after.chain = 0;
        after
    }

    fn put_row(&mut self, key: &RowKey, head: &InodeHead, tail: &[u8]) {
        self.scratch.clear();
        self.scratch.extend_from_slice(&head.encode());
        self.scratch.extend_from_slice(tail);
        self.batch.put(key, &self.scratch);
    }

    /// Puts the row of an inode that nobody knows yet.
    pub(crate) fn put_entry(&mut self, parent: Ino, name: &[u8], head: &InodeHead, tail: &[u8]) {
        let key = self.keys().dentry(parent, name);
        self.fs.residents.names.add(&key);
        self.put_row(&key, head, tail);
        self.put_back_row(head.ino, &key);
    }

    /// Puts the back row of an inode whose row gets this key.
    fn put_back_row(&mut self, ino: Ino, key: &RowKey) {
        if self.keeps_back_rows {
            let place = Locator::place_of(key).expect("it is the key of a name");
            let key = self.keys().back(ino);
            self.batch.put(&key, &place.encode());
        }
    }

    /// Deletes the back row of an inode whose row stands under a name no more.
    fn delete_back_row(&mut self, ino: Ino) {
        if self.keeps_back_rows {
            let key = self.keys().back(ino);
            self.batch.delete(&key);
        }
    }

    /// Puts a name of an inode that has its own row.
    pub(crate) fn put_link(&mut self, parent: Ino, name: &[u8], ino: Ino, kind: FileKind) {
        let key = self.keys().dentry(parent, name);
        self.fs.residents.names.add(&key);
        self.batch.put(&key, &encode_link(ino, kind));
    }

    /// Deletes the row of a name.
    pub(crate) fn delete_entry(&mut self, parent: Ino, name: &[u8]) {
        let key = self.keys().dentry(parent, name);
        debug_assert!(self.gone_name.is_none(), "an operation deletes one name");
        self.gone_name = Some(names::parts(&key));
        self.batch.delete(&key);
    }

    /// Takes one name from an inode. The row of that name is somebody else's to delete or replace.
    /// `tail` is what is in that row behind the head.
    pub(crate) fn drop_name(&mut self, inode: &Inode, now: i64, tail: Bytes) -> FsResult<()> {
        debug_assert!(inode.head.nlink > 0, "it has a name");
        let mut new = inode.head;
        new.ctime = now;
        if !inode.is_dir() && inode.head.nlink > 1 {
            new.nlink -= 1;
            return self.attrs(inode, &new);
        }
        new.nlink = 0;
        if inode.is_dir() {
            self.gone_dir = Some(new.ino);
            self.fs.residents.drop_step(inode);
        }
        self.count_inodes(-1);
        if self.fs.residents.inodes.find(new.ino).is_none() {
            return self.purge(&inode.head, inode.location == Location::Own);
        }
        let is_all_here = matches!(Contents::of_inode(&new), None | Some(Contents::Inline));
        self.leaves_orphan |= !inode.is_dir();
        if inode.location == Location::Own {
            let key = self.keys().orphan(new.ino);
            self.batch.put(&key, &[]);
            self.attrs(inode, &new)
        } else if is_all_here && !new.has(row_flag::XATTRS) && self.fs.keep_in_memory() {
            let location = Location::Memory(Arc::new(tail.clone()));
            self.move_row(inode, &new, &tail, location);
            Ok(())
        } else {
            let mut orphan = inode.clone();
            orphan.head = new;
            self.put_orphan(&orphan, &tail);
            Ok(())
        }
    }

    /// Deletes all rows of an inode but those of its names. After an error nothing was added.
    pub(crate) fn purge(&mut self, head: &InodeHead, has_own_row: bool) -> FsResult<()> {
        let ino = head.ino;
        if head.has(row_flag::ALLOCATED) {
            self.fs
                .delete_extents(self, ino, &FileSystem::chunks_from(0))?;
        }
        match Contents::of_inode(head) {
            None | Some(Contents::Inline) => {}
            Some(Contents::Chunked) => {
                self.delete_chunks(ino, 0, head.size.div_ceil(CHUNK_BYTES));
            }
            Some(Contents::External) => self.delete_external(ino)?,
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

    /// Says which plain file has the contents of an inode.
    pub(crate) fn put_external(&mut self, ino: Ino, row: &ExternalRow) {
        let key = self.keys().external(ino);
        self.batch.put(&key, &row.encode());
    }

    /// Takes the plain file from an inode. It is removed some time after the commit.
    pub(crate) fn delete_external(&mut self, ino: Ino) -> FsResult<()> {
        self.leaving.extend(self.fs.leaving(ino)?);
        let key = self.keys().external(ino);
        self.batch.delete(&key);
        Ok(())
    }

    /// Puts the row of an allocated extent.
    pub(crate) fn put_extent(&mut self, ino: Ino, end: u64, row: &AllocatedRow) {
        let key = self.keys().extent(ino, end);
        self.batch.put(&key, &row.encode());
    }

    /// Deletes the row of an allocated extent.
    pub(crate) fn delete_extent(&mut self, ino: Ino, end: u64) {
        let key = self.keys().extent(ino, end);
        self.batch.delete(&key);
    }

    /// Deletes the chunks `[start, end)` of an inode.
    pub(crate) fn delete_chunks(&mut self, ino: Ino, start: u64, end: u64) {
        let keys = self.keys();
        if end.saturating_sub(start) <= POINT_DELETES_MAX {
            for number in start..end {
                self.batch.delete(&keys.chunk(ino, number));
            }
        } else {
            self.batch.delete_range(&keys.chunks(ino, &(start..end)));
        }
    }

    /// Changes inside one chunk.
    pub(crate) fn chunk(&mut self, ino: Ino, number: u64, delta: ChunkDelta<'_>) {
        self.scratch.clear();
        delta.encode(&mut self.scratch);
        let key = self.keys().chunk(ino, number);
        self.batch.upsert(&key, UPSERT_CHUNK, &self.scratch);
    }

    /// Puts one chunk.
    pub(crate) fn put_chunk(&mut self, ino: Ino, number: u64, bytes: &[u8]) {
        debug_assert!(!bytes.is_empty(), "an empty chunk is absent");
        let key = self.keys().chunk(ino, number);
        self.batch.put(&key, bytes);
    }

    /// Puts a partial chunk, which is about to be put again.
    pub(crate) fn put_partial_chunk(&mut self, ino: Ino, number: u64, bytes: &[u8]) {
        debug_assert!(!bytes.is_empty(), "an empty chunk is absent");
        let key = self.keys().chunk(ino, number);
        self.batch.put_partial(&key, bytes);
    }

    /// Puts one chunk without copying it.
    pub(crate) fn put_borrowed_chunk(&mut self, ino: Ino, number: u64, bytes: &'fs [u8]) {
        debug_assert!(!bytes.is_empty(), "an empty chunk is absent");
        let key = self.keys().chunk(ino, number);
        self.batch.put_borrowed(&key, bytes);
    }

    /// Inodes that got a first name, or lost the last.
    pub(crate) const fn count_inodes(&mut self, by: i64) {
        self.inodes_added += by;
    }

    /// Adds to a number of the sys tree.
    fn add_to(&mut self, key: &RowKey, by: i64) {
        if by != 0 {
            self.batch.upsert(key, UPSERT_ADD, &by.to_le_bytes());
        }
    }

    /// Commits, with the places that rows move to in the ledger before.
    fn commit_rows(&self) -> FsResult<()> {
        for inode in &self.updates {
            self.fs.residents.inodes.intend(inode);
        }
        for leaving in &self.leaving {
            self.fs.externals.leave(leaving);
        }
        let committed = self.fs.commit_where_room(&self.batch, self.space);
        if committed.is_err() {
            for inode in &self.updates {
                self.fs.residents.inodes.stay(inode.head.ino);
            }
            for leaving in &self.leaving {
                self.fs.externals.stay(leaving);
            }
        }
        committed
    }

    /// Commits, with room set aside before for chunks that are allocated, and released after for
    /// others.
    fn commit_aside(&self) -> FsResult<()> {
        let chunks = self.unwritten_added.unsigned_abs();
        let is_added = self.unwritten_added > 0;
        if is_added {
            self.fs.set_more_aside(chunks)?;
        }
        let committed = self.commit_rows();
        if chunks > 0 && is_added == committed.is_err() {
            self.fs.set_less_aside(chunks);
        }
        committed
    }

    /// Commits all, and then tells the inode table.
    pub(crate) fn commit(mut self) -> FsResult<()> {
        let keys = self.keys();
        self.add_to(&keys.inode_count(), self.inodes_added);
        self.add_to(&keys.unwritten(), self.unwritten_added);
        if !self.batch.is_empty()
            && let Err(error) = self.commit_aside()
        {
            for inode in &self.updates {
                self.fs.fit_again(inode.head.ino);
            }
            return Err(error);
        }
        if let Some(gone) = self.gone_name {
            self.fs.residents.names.remove(gone);
        }
        if let Some(dir) = self.gone_dir {
            self.fs.residents.names.give_up(dir);
        }
        for (ino, extents) in self.extents_left {
            self.fs.extents.set(ino, extents);
        }
        if self.leaves_orphan {
            self.fs.room.await_forget();
        }
        self.fs.residents.count_inodes(self.inodes_added);
        self.fs.externals.uncount(self.bytes_uncounted);
        for leaving in &self.leaving {
            self.fs.externals.retire(leaving);
        }
        for inode in self.updates {
            let (ino, size) = (inode.head.ino, inode.head.size);
            let is_external = Contents::are_external(&inode.head);
            self.fs.residents.inodes.update(inode);
            if is_external && let Some(plain) = self.fs.externals.note_size(ino, size) {
                self.fs.fit(&plain);
            }
        }
        Ok(())
    }
}

/// Upserts on the row of an inode before it is put whole.
const fn chain_max(inode: &Inode) -> u8 {
    const {
        assert!(
            BARE_CHAIN_MAX <= CHAIN_UNKNOWN,
            "one whose chain is unknown is put whole"
        )
    };
    if inode.has_tail() {
        CHAIN_MAX
    } else {
        BARE_CHAIN_MAX
    }
}

impl Location {
    /// The place under a name.
    pub(crate) fn entry(parent: Ino, name: &[u8]) -> Self {
        Self::Entry {
            parent,
            name: Arc::from(name),
        }
    }
}
