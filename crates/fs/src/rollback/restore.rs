//! Puts the rows of a plan: contents, then names, then what is to go.
//!
//! Invariants:
//! - a name is put before another name of the same inode is deleted: after a crash each inode of
//!   the snapshot is found below the directory, or it has no name;
//! - a name that is put over another inode's drops that one in the same batch, or makes it an
//!   orphan until its own name is put ([`overwritten`]);
//! - a clone that is made again is recorded in the batch that puts its name ([`clones`]);
//! - a directory is known before a known directory moves into it.

mod clones;
mod overwritten;
mod removed;
mod shared;

use self::overwritten::Overwritten;
use super::plan::{RollbackPlan, Target};
use super::present::Present;
use super::sides::RollbackSides;
use super::tree::{DirTree, SeenInode};
use crate::change::Change;
use crate::contents::Contents;
use crate::data::chunks_from;
use crate::events::Event;
use crate::inode::{CHAIN_UNKNOWN, Hold, Inode, Location};
use crate::locator::{Locator, RowKey, RowRange};
use crate::recent::{Scans, WrittenBetween};
use crate::schema::Store;
use crate::views::RestoredClones;
use crate::{DirName, FsError, FsResult, Notices};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, MetaRow, row_flag};
use stitch_format::fs_sys::RollbackRow;

pub(super) struct Restore<'a> {
    fs: Present<'a>,
    past: &'a Store,
    was: &'a DirTree,
    now: &'a DirTree,
    written: &'a WrittenBetween<'a>,
    plan: &'a RollbackPlan,
    row: &'a RollbackRow,
    change: Change<'a>,
    batch_bytes: usize,
    /// The row of the rollback is in the store.
    is_marked: bool,
    /// Inodes that lose names, as they are after the names that were dropped, and whether they were
    /// known.
    leaving: HashMap<Ino, (Inode, bool)>,
    /// Directories that go with one that they are in, and their places.
    inner: HashMap<Ino, DirName<'a>>,
    /// Those of them that directories were taken out of, as they are in the batch.
    thinned: HashMap<Ino, Inode>,
    /// Files whose own row was put.
    placed: HashSet<Ino>,
    /// Files that have a row of shared contents until their head is put.
    unshared: HashSet<Ino>,
    overwritten: Overwritten,
    /// Clones that the batch removes.
    removed: Vec<u64>,
    /// Clones that are made again; `None` if the snapshot shows none.
    clones: Option<RestoredClones<'a>>,
    /// Directories that are kept known until the end, by a handle or a lookup.
    kept: Vec<(Ino, Hold)>,
    /// What caches above have to drop, of the batches that were committed.
    notices: Notices,
}

impl<'a> Restore<'a> {
    pub(super) fn new(
        fs: Present<'a>,
        sides: RollbackSides<'a>,
        (plan, clones): (&'a RollbackPlan, Option<RestoredClones<'a>>),
        row: &'a RollbackRow,
    ) -> Self {
        debug_assert_eq!(row.dir, sides.past.1.top, "the directory of the snapshot");
        debug_assert!(fs.batch_bytes > 0, "a batch takes something");
        Self {
            fs,
            past: sides.past.0,
            was: sides.past.1,
            now: sides.present.1,
            written: sides.written,
            plan,
            row,
            change: fs.changes.begin(),
            batch_bytes: usize::try_from(fs.batch_bytes).unwrap_or(usize::MAX),
            is_marked: fs.header.lock().rolls_back,
            leaving: HashMap::new(),
            inner: HashMap::new(),
            thinned: HashMap::new(),
            removed: Vec::new(),
            clones,
            overwritten: Overwritten::default(),
            placed: HashSet::new(),
            unshared: HashSet::new(),
            kept: Vec::new(),
            notices: Notices::default(),
        }
    }

    /// Restores all. All locks are held.
    pub(super) fn run(mut self) -> FsResult<Notices> {
        let restored = self.restore();
        debug_assert!(
            restored.is_err() || self.change.batch.is_empty(),
            "all of it is committed"
        );
        debug_assert!(
            restored.is_err() || self.removed.is_empty(),
            "their removal is noted"
        );
        self.queue_forgotten();
        for (ino, hold) in std::mem::take(&mut self.kept) {
            self.fs.holds.let_go(ino, hold);
        }
        self.end_clones(restored.is_ok());
        if let Err(error) = restored {
            // Some batches may have been committed.
            self.fs.untold.keep(self.notices);
            return Err(error);
        }
        Ok(self.notices)
    }

    fn restore(&mut self) -> FsResult<()> {
        let was = self.was;
        for (ino, _) in was.inodes() {
            self.restore_contents(ino)?;
        }
        for &dir in &was.dirs {
            for (name, &ino) in was.names(dir) {
                self.restore_name(dir, name, ino)?;
            }
        }
        self.restore_top();
        self.drop_names()?;
        debug_assert!(self.unshared.is_empty(), "every head is put");
        self.finish()
    }

    /// One that was forgotten while it lost its last name was not queued then.
    fn queue_forgotten(&self) {
        let orphans = self.leaving.values().filter(|(inode, was_known)| {
            let head = &inode.head;
            *was_known && head.nlink == 0 && self.fs.residents.inodes.find(head.ino).is_none()
        });
        let heads = orphans.map(|(inode, _)| inode.head);
        self.fs.residents.queue_forgotten(heads.collect());
    }
}

/// Contents and attributes.
impl Restore<'_> {
    fn restore_contents(&mut self, ino: Ino) -> FsResult<()> {
        let target = *self.plan.of(ino);
        if target.is_same {
            return Ok(());
        }
        debug_assert!(target.head.ino.0 > 0, "an inode has a number");
        let replaced = Event::ContentsReplaced(vec![target.head.ino]);
        self.change.events.push(replaced);
        if target.head.ino != ino {
            self.announce(&target);
        }
        let is_file = target.head.kind == FileKind::Regular;
        if is_file {
            // First, so that a rollback that is finished later finds the number, and in the batch
            // that announces the inode, which tells that it shares.
            self.place_chunks(ino, &target)?;
        }
        let present = self.now.get(ino).map(|seen| seen.head).or(target.orphan);
        if present.is_some_and(|head| head.has(row_flag::ALLOCATED)) {
            let all = chunks_from(0);
            self.fs.extents.delete(&mut self.change, ino, &all)?;
        }
        let (past, own) = (self.past.keys, self.fs.store.keys);
        let to = target.head.ino;
        self.restore_rows(&[past.xattrs(ino)], &own.xattrs(to), to)?;
        match is_file {
            true => self.restore_chunks(ino, target.chunks),
            false => Ok(()),
        }
    }

    /// What the snapshot has of one of its inodes.
    fn seen(&self, ino: Ino) -> SeenInode {
        *self.was.get(ino).expect("an inode of the snapshot")
    }

    /// Puts the rows of ranges of the past that are different, and deletes all others.
    fn restore_rows(&mut self, past: &[RowRange], present: &RowRange, to: Ino) -> FsResult<()> {
        let keys = self.fs.store.keys;
        let is_data = present.tree() == crate::locator::Tree::Data;
        debug_assert!(past.iter().all(|rows| rows.tree() == present.tree()));
        debug_assert!(to.0 > 0, "0 is no number of an inode or of contents");
        let (fs, was) = (self.fs, self.past);
        let mut old = Scans::new(was, past);
        let mut new = fs.store.scan(present)?;
        let owned =
            |row: Option<(&[u8], &[u8])>| row.map(|(key, value)| (key.to_vec(), value.to_vec()));
        let (mut put, mut there) = (old.next()?, owned(new.next()?));
        loop {
            // Behind the number of the inode.
            let order = match (&put, &there) {
                (None, None) => return Ok(()),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.get(8..).cmp(&b.get(8..)),
            };
            if order.is_gt() {
                let (key, _) = there.as_ref().expect("it is behind");
                self.change
                    .batch
                    .delete(&moved_key(keys, key, is_data, to)?);
            } else {
                let (key, value) = put.as_ref().expect("it is first");
                let is_there = order.is_eq() && there.as_ref().is_some_and(|(_, is)| is == value);
                if !is_there {
                    self.change
                        .batch
                        .put(&moved_key(keys, key, is_data, to)?, value);
                }
            }
            if order.is_le() {
                put = old.next()?;
            }
            if order.is_ge() {
                there = owned(new.next()?);
            }
            self.commit_if_full()?;
        }
    }

    /// The attributes of the directory itself, whose name stays.
    fn restore_top(&mut self) {
        let target = self.plan.of(self.was.top);
        debug_assert_eq!(target.head.ino, self.was.top, "it keeps its number");
        debug_assert!(!target.is_revived, "its name stays");
        let known = self.fs.residents.inodes.find(self.was.top);
        if let Some(top) = known.filter(|_| !target.is_same) {
            self.change.row(&top, &target.head, &[]);
        }
    }
}

/// Names.
impl<'a> Restore<'a> {
    fn restore_name(&mut self, dir: Ino, name: &'a [u8], ino: Ino) -> FsResult<()> {
        let target = *self.plan.of(ino);
        let (parent, number) = (self.plan.number(dir), target.head.ino);
        debug_assert!(!name.is_empty(), "a name in a directory");
        debug_assert!(self.was.has(ino), "an inode of the snapshot");
        debug_assert!(self.was.has(dir), "a directory of the snapshot");
        let at = DirName::new(parent, name);
        let old = match parent == dir {
            true => self.now.names(dir).get(name).copied(),
            false => None,
        };
        self.keep_known(&target, at)?;
        if old == Some(number) && (target.is_same || self.is_link_already(&target)) {
            return self.place_own(dir, ino, &target, at);
        }
        if let Some(old) = old.filter(|old| *old != number) {
            // A directory may have something in it that is restored elsewhere.
            let is_dir = self.now.get(old).is_some_and(SeenInode::is_dir);
            match self.was.has(old) || is_dir {
                true => self.keep_overwritten(old, at)?,
                false => self.drop_inode(old, at)?,
            }
        }
        let is_same_inode = old == Some(number);
        if !is_same_inode {
            self.note_entries(parent);
        }
        if !target.is_own {
            self.put_entry((dir, ino), &target, at, is_same_inode)?;
            return self.commit_if_full();
        }
        self.place_own(dir, ino, &target, at)?;
        if is_same_inode {
            self.change.put_link_again(at, number, target.head.kind);
        } else {
            self.change.put_link(at, number, target.head.kind);
        }
        self.commit_if_full()
    }

    /// Reports whether the name is a link already, and stays one.
    fn is_link_already(&self, target: &Target) -> bool {
        let present = self.now.get(target.head.ino);
        target.is_own && present.is_some_and(|seen| seen.is_own)
    }

    /// Puts the row of an inode under its number, once.
    fn place_own(&mut self, dir: Ino, ino: Ino, target: &Target, at: DirName<'a>) -> FsResult<()> {
        debug_assert!(self.was.has(ino), "an inode of the snapshot");
        if !target.is_own || target.is_same || !self.placed.insert(ino) {
            return Ok(());
        }
        let tail = self.tail_to_put(dir, at.name, ino, target)?;
        self.change.delete_back_row(target.head.ino);
        self.place_head(target);
        self.revive(target);
        self.change
            .row(&self.inode(target, at), &target.head, &tail);
        Ok(())
    }

    /// Puts the row of an inode, which was `ino` in `dir`, under its only name.
    fn put_entry(
        &mut self,
        (dir, ino): (Ino, Ino),
        target: &Target,
        at: DirName<'a>,
        is_same_inode: bool,
    ) -> FsResult<()> {
        let number = target.head.ino;
        debug_assert!(!target.is_own, "its row is under a name");
        debug_assert!(self.was.has(ino), "an inode of the snapshot");
        let tail = self.tail_to_put(dir, at.name, ino, target)?;
        if self.has_own_row(target) {
            let key = self.fs.store.keys.own(number);
            self.change.batch.delete(&key);
        }
        self.place_head(target);
        self.revive(target);
        let known = self.fs.residents.inodes.find(number);
        if let Some(known) = known.filter(Inode::is_dir) {
            self.fs.residents.drop_step(&known);
        }
        if is_same_inode {
            self.change.put_entry_again(at, &target.head, &tail);
        } else {
            self.change.put_entry(at, &target.head, &tail);
            self.put_clone(ino, (number, at));
        }
        let inode = self.inode(target, at);
        self.change.events.push(Event::Changed(inode));
        Ok(())
    }

    fn inode(&self, target: &Target, at: DirName<'_>) -> Inode {
        debug_assert!(
            target.head.kind == FileKind::Directory || target.head.nlink > 0,
            "names lead to it"
        );
        Inode {
            head: target.head,
            location: match target.is_own {
                true => Location::Own,
                false => Location::entry(at.parent, at.name),
            },
            chain: 0,
            is_temp: false,
        }
    }

    /// What will be behind the head of an inode. Contents that were there become a chunk, if the
    /// inode's chunks are under another number.
    fn tail_to_put(&mut self, dir: Ino, name: &[u8], ino: Ino, target: &Target) -> FsResult<Bytes> {
        let tail = self.tail(dir, name, ino)?;
        if Contents::of_inode(&target.head) != Some(Contents::Shared) || target.is_same {
            return Ok(tail);
        }
        if !tail.is_empty() {
            self.change.put_chunk(target.chunks, 0, &tail);
        }
        Ok(Bytes::new())
    }

    /// What was behind the head of an inode.
    fn tail(&self, dir: Ino, name: &[u8], ino: Ino) -> FsResult<Bytes> {
        let keys = self.past.keys;
        let is_own = self.seen(ino).is_own;
        let key = match is_own {
            true => keys.own(ino),
            false => keys.dentry(dir, name),
        };
        let gone = || FsError::Corrupt(format!("inode {ino} of a snapshot has no row"));
        let row = self.past.get(&key)?.ok_or_else(gone)?;
        match MetaRow::decode(&row)? {
            MetaRow::Inode(_, tail) => Ok(row.slice_ref(tail)),
            MetaRow::Link { .. } => Err(gone()),
        }
    }

    /// Keeps a directory known, or makes it so, that known directories are put into.
    fn keep_known(&mut self, target: &Target, at: DirName<'a>) -> FsResult<()> {
        let number = target.head.ino;
        let is_above = target.head.kind == FileKind::Directory && self.plan.is_above_known(number);
        if !is_above {
            return Ok(());
        }
        if self.fs.residents.inodes.hold(number, Hold::Handle).is_ok() {
            self.kept.push((number, Hold::Handle));
            return Ok(());
        }
        let inode = self.inode(target, at);
        self.change.events.push(Event::Made(inode));
        // It has names, other than one that is made.
        self.note_entries(number);
        self.kept.push((number, Hold::Lookups(1)));
        Ok(())
    }

    fn note_entries(&mut self, dir: Ino) {
        self.change.events.push(Event::EntriesReplaced(dir));
    }
}

/// Batches.
impl<'a> Restore<'a> {
    fn commit_if_full(&mut self) -> FsResult<()> {
        if self.change.batch.len_bytes() < self.batch_bytes {
            return Ok(());
        }
        let mut header = *self.fs.header.lock();
        if !self.is_marked {
            header.rolls_back = true;
            let keys = self.fs.store.keys;
            self.change.batch.put(&keys.header(), &header.encode());
            self.change.batch.put(&keys.rollback(), &self.row.encode());
        }
        self.commit()?;
        self.is_marked = true;
        debug_assert!(
            header.rolls_back,
            "the next open finishes what is interrupted"
        );
        *self.fs.header.lock() = header;
        debug_assert!(self.change.batch.len_bytes() < self.batch_bytes);
        Ok(())
    }

    fn commit(&mut self) -> FsResult<()> {
        let next = self.fs.changes.begin();
        let change = std::mem::replace(&mut self.change, next);
        change.commit_unasked(&mut self.notices)?;
        let views = &self.fs.standing.views;
        views.note_removed(&std::mem::take(&mut self.removed));
        if let Some(clones) = &mut self.clones {
            clones.note_committed();
        }
        debug_assert!(self.change.batch.is_empty(), "the next batch begins");
        Ok(())
    }

    fn finish(&mut self) -> FsResult<()> {
        let mut header = *self.fs.header.lock();
        if self.is_marked {
            header.rolls_back = false;
            let keys = self.fs.store.keys;
            self.change.batch.put(&keys.header(), &header.encode());
            self.change.batch.delete(&keys.rollback());
        }
        debug_assert!(!header.rolls_back, "all of it is done");
        self.commit()?;
        *self.fs.header.lock() = header;
        Ok(())
    }
}

/// An inode as it was read, with its row at a name if it has none of its own.
fn inode_at(seen: &SeenInode, at: DirName<'_>) -> Inode {
    debug_assert!(seen.names > 0, "a name led to it");
    Inode {
        head: seen.head,
        location: match seen.is_own {
            true => Location::Own,
            false => Location::entry(at.parent, at.name),
        },
        chain: CHAIN_UNKNOWN,
        is_temp: false,
    }
}

/// The key of the same row of another inode.
fn moved_key(keys: Locator, key: &[u8], is_data: bool, ino: Ino) -> FsResult<RowKey> {
    let moved = if is_data {
        Locator::chunk_of(key).map(|number| keys.chunk(ino, number))
    } else {
        Locator::xattr_of(key).map(|name| keys.xattr(ino, name))
    };
    debug_assert!(
        moved
            .as_ref()
            .is_none_or(|moved| Locator::ino_of(moved) == Some(ino)),
        "it is the other inode's"
    );
    moved.ok_or_else(|| FsError::Corrupt(format!("a key {}", key.escape_ascii())))
}
