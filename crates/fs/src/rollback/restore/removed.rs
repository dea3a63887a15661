//! Removal of what the snapshot has not.
//!
//! ```text
//! snapshot   d/a: inode 1          present   d/new/a: inode 1
//!
//! names      d/a: inode 1, d/new/a: inode 1
//! take_out   d/a: inode 1, d/new is empty
//! thin       d/a: inode 1
//! ```
//!
//! A directory that goes is emptied some time later, with all that is in it. So before that, all
//! that is restored elsewhere is taken out of it, whatever batch is the last one. If its name is
//! that of another inode in the snapshot, it is aside until then.

use super::{Restore, SeenInode, inode_at};
use crate::inode::CHAIN_UNKNOWN;
use crate::{DirName, FsResult};
use stitch_base::Ino;

impl<'a> Restore<'a> {
    /// Deletes the names that the snapshot has not. Those in directories that go are first: such a
    /// directory takes all that is in it along, which must be nothing that was restored elsewhere.
    pub(super) fn drop_names(&mut self) -> FsResult<()> {
        let (was, now) = (self.was, self.now);
        let (staying, going): (Vec<Ino>, Vec<Ino>) =
            now.dirs.iter().copied().partition(|dir| was.has(*dir));
        going.into_iter().try_for_each(|dir| self.take_out(dir))?;
        self.drop_aside()?;
        staying.into_iter().try_for_each(|dir| self.thin(dir))
    }

    /// Removes the directories that were put aside, and that the snapshot has not.
    fn drop_aside(&mut self) -> FsResult<()> {
        for ino in self.overwritten.take_aside() {
            debug_assert!(!self.was.has(ino), "those of the snapshot have their name");
            let aside = DirName::new(self.was.top, self.plan.name_aside(ino));
            self.note_entries(aside.parent);
            self.change.delete_entry(aside);
            self.drop_inode(ino, aside)?;
            self.commit_if_full()?;
        }
        Ok(())
    }

    /// Takes what is restored out of a directory that goes.
    fn take_out(&mut self, dir: Ino) -> FsResult<()> {
        debug_assert!(!self.was.has(dir), "the snapshot has not the directory");
        let now = self.now;
        for (name, &ino) in now.names(dir) {
            let at = DirName::new(dir, name);
            let is_dir = now.get(ino).is_some_and(SeenInode::is_dir);
            if !self.was.has(ino) {
                // It goes with the directory that it is in.
                self.inner.extend(is_dir.then_some((ino, at)));
                continue;
            }
            self.note_entries(at.parent);
            self.change.delete_entry(at);
            if is_dir {
                self.thin_out(dir)?;
            }
            self.commit_if_full()?;
        }
        Ok(())
    }

    /// Removes the names that the snapshot has not from a directory that stays.
    fn thin(&mut self, dir: Ino) -> FsResult<()> {
        let (was, now) = (self.was, self.now);
        debug_assert!(was.has(dir), "the snapshot has the directory");
        for (name, &ino) in now.names(dir) {
            let at = DirName::new(dir, name);
            if was.names(dir).contains_key(name) {
                continue;
            }
            self.note_entries(at.parent);
            self.change.delete_entry(at);
            if !was.has(ino) {
                self.drop_inode(ino, at)?;
            }
            self.commit_if_full()?;
        }
        Ok(())
    }

    /// Notes that a directory which goes has one directory less in it, which is restored elsewhere.
    fn thin_out(&mut self, dir: Ino) -> FsResult<()> {
        debug_assert!(!self.was.has(dir), "the snapshot has it not");
        let Some(&at) = self.inner.get(&dir) else {
            // It is detached itself: nothing counts its links then.
            return Ok(());
        };
        let seen = self.now.get(dir).expect("a name leads to it");
        let inodes = &self.fs.residents.inodes;
        let found = || inodes.find(dir).unwrap_or_else(|| inode_at(seen, at));
        let inode = self.thinned.entry(dir).or_insert_with(found);
        let mut new = inode.head;
        debug_assert!(new.nlink > 2, "a directory is in it");
        new.nlink = new.nlink.saturating_sub(1);
        self.change.attrs(inode, &new)?;
        (inode.head, inode.chain) = (new, CHAIN_UNKNOWN);
        Ok(())
    }

    /// Takes a name from an inode that the snapshot has not.
    pub(super) fn drop_inode(&mut self, ino: Ino, at: DirName<'a>) -> FsResult<()> {
        debug_assert!(!self.was.has(ino), "what the snapshot has stays");
        let seen = self.now.get(ino).expect("a name leads to it");
        let fs = self.fs;
        let (inode, _) = self.leaving.entry(ino).or_insert_with(|| {
            let known = fs.residents.inodes.find(ino);
            let was_known = known.is_some();
            (known.unwrap_or_else(|| inode_at(seen, at)), was_known)
        });
        let now = fs.changes.now();
        if inode.is_dir() {
            self.change.detach(inode, now);
            self.removed
                .extend(fs.standing.stage_clone_removed(&mut self.change, ino));
        } else {
            let tail = fs.store.tail(inode)?;
            self.change.drop_name(inode, now, tail)?;
            inode.head.nlink = inode.head.nlink.saturating_sub(1);
        }
        Ok(())
    }
}
