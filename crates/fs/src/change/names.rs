//! Rows of names, and the places of inode rows.

use super::Change;
use crate::contents::Contents;
use crate::events::Event;
use crate::inode::{Inode, Location};
use crate::locator::{Locator, RowKey};
use crate::{DirName, FsResult};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{FileKind, InodeHead, encode_link, row_flag};

/// The hash in the key of a name.
fn hash_of(key: &RowKey) -> u64 {
    let hash = Locator::place_of(key).expect("the key of a name").hash;
    debug_assert!(hash > 0, "0 is the row of the directory itself");
    hash
}

impl<'fs> Change<'fs> {
    /// Puts the whole row of an inode under a name, which is its only one from then on.
    pub(crate) fn move_to_name(
        &mut self,
        inode: &Inode,
        new: &InodeHead,
        tail: &[u8],
        at: DirName<'fs>,
    ) {
        debug_assert!(new.nlink > 0, "it has a name");
        self.evict_step(inode);
        self.put_entry(at, new, tail);
        self.place(inode, new, Location::entry(at.parent, at.name));
    }

    /// Puts the whole row of an inode under its number, where it is from then on.
    pub(crate) fn move_to_number(&mut self, inode: &Inode, new: &InodeHead, tail: &[u8]) {
        debug_assert_ne!(new.ino, Ino::ROOT, "the root has no name to leave");
        self.evict_step(inode);
        let key = self.keys().own(new.ino);
        self.put_row(&key, new, tail);
        self.leave_name(inode);
        self.place(inode, new, Location::Own);
    }

    /// Keeps an inode that loses its last name, and all that is in its row, in memory alone.
    fn move_to_memory(&mut self, inode: &Inode, new: &InodeHead, tail: Bytes) {
        debug_assert_eq!(new.nlink, 0, "it has no name");
        debug_assert!(self.scope.owns(new.ino), "no other file system has its row");
        self.evict_step(inode);
        self.leave_name(inode);
        self.place(inode, new, Location::Memory(Arc::new(tail)));
    }

    /// The path cache holds no directory whose name changes.
    fn evict_step(&self, inode: &Inode) {
        if inode.is_dir() {
            self.scope.residents().drop_step(inode);
        }
    }

    /// Deletes the back row of an inode whose row stands under a name.
    fn leave_name(&mut self, inode: &Inode) {
        if matches!(inode.location, Location::Entry { .. }) {
            self.delete_back_row(inode.head.ino);
        }
    }

    /// Notes the new place of a row that was put whole.
    fn place(&mut self, inode: &Inode, new: &InodeHead, location: Location) {
        debug_assert_eq!(inode.head.ino, new.ino, "an inode keeps its number");
        self.events.push(Event::Changed(Inode {
            head: *new,
            location,
            chain: 0,
            is_temp: inode.is_temp && new.nlink == 0,
        }));
    }

    /// Puts an orphan under its number and into the list of orphans: more is to be kept of it than
    /// memory keeps.
    pub(crate) fn put_orphan(&mut self, inode: &Inode, tail: &[u8]) -> Inode {
        debug_assert_eq!(inode.head.nlink, 0, "an orphan has no name");
        let key = self.keys().orphan(inode.head.ino);
        self.batch.put(&key, &[]);
        self.move_to_number(inode, &inode.head, tail);
        let mut after = inode.clone();
        after.location = Location::Own;
        after.chain = 0;
        after
    }

    /// Puts the row of an inode under a name, which led to another inode or to none.
    pub(crate) fn put_entry(&mut self, at: DirName<'fs>, head: &InodeHead, tail: &[u8]) {
        let key = self.put_entry_again(at, head, tail);
        self.linked(at, &key, head.ino, true);
    }

    /// Puts the row of an inode under a name that leads to it already. Returns the key.
    pub(crate) fn put_entry_again(
        &mut self,
        at: DirName<'_>,
        head: &InodeHead,
        tail: &[u8],
    ) -> RowKey {
        let key = self.keys().dentry(at.parent, at.name);
        self.put_row(&key, head, tail);
        self.put_back_row(head.ino, &key);
        debug_assert_eq!(
            Locator::ino_of(&key),
            Some(at.parent),
            "a name of this directory"
        );
        key
    }

    /// Notes that a name leads to another inode than before.
    fn linked(&mut self, at: DirName<'fs>, key: &RowKey, ino: Ino, is_only_name: bool) {
        debug_assert!(ino.0 > 0, "a number of an inode");
        let hash = hash_of(key);
        self.events.push(Event::Linked {
            at,
            hash,
            ino,
            is_only_name,
        });
    }

    /// Puts the back row of an inode whose row gets this key.
    fn put_back_row(&mut self, ino: Ino, key: &RowKey) {
        if self.keeps_back_rows {
            let place = Locator::place_of(key).expect("the key of a name");
            debug_assert!(place.hash > 0, "a back row leads to a name");
            let key = self.keys().back(ino);
            self.batch.put(&key, &place.encode());
        }
    }

    /// Deletes the back row of an inode whose row does not stand under a name any more.
    pub(crate) fn delete_back_row(&mut self, ino: Ino) {
        debug_assert!(ino.0 > 0, "a number of an inode");
        if self.keeps_back_rows {
            let key = self.keys().back(ino);
            self.batch.delete(&key);
        }
    }

    /// Puts a name of an inode whose row is under its number. The name led to another inode or to
    /// none.
    pub(crate) fn put_link(&mut self, at: DirName<'fs>, ino: Ino, kind: FileKind) {
        debug_assert!(kind != FileKind::Directory, "a directory has one name");
        let key = self.put_link_again(at, ino, kind);
        self.linked(at, &key, ino, false);
    }

    /// Puts a name that leads to the inode already, whose row is under its number from now on.
    /// Returns the key.
    pub(crate) fn put_link_again(&mut self, at: DirName<'_>, ino: Ino, kind: FileKind) -> RowKey {
        debug_assert!(kind != FileKind::Directory, "a directory has one name");
        let key = self.keys().dentry(at.parent, at.name);
        self.batch.put(&key, &encode_link(ino, kind));
        key
    }

    /// Deletes the row of a name.
    pub(crate) fn delete_entry(&mut self, at: DirName<'fs>) {
        let key = self.keys().dentry(at.parent, at.name);
        let hash = hash_of(&key);
        self.batch.delete(&key);
        self.events.push(Event::Unlinked { at, hash });
    }

    /// Takes one name from an inode. The caller deletes or replaces the row of the name. `tail` is
    /// what is behind the head in that row.
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
            self.events.push(Event::DirRemoved(new.ino));
            self.evict_step(inode);
        }
        self.count_inodes(-1);
        let may_purge = self.scope.owns(new.ino);
        if may_purge && self.scope.residents().inodes.find(new.ino).is_none() {
            return self.purge(&inode.head, inode.location == Location::Own);
        }
        let is_all_here = matches!(Contents::of_inode(&new), None | Some(Contents::Inline));
        if !inode.is_dir() {
            self.events.push(Event::Orphaned);
        }
        if inode.location == Location::Own {
            let key = self.keys().orphan(new.ino);
            self.batch.put(&key, &[]);
            self.attrs(inode, &new)
        } else if may_purge
            && is_all_here
            && !new.has(row_flag::XATTRS)
            && self.scope.may_keep_in_memory()
        {
            self.move_to_memory(inode, &new, tail);
            Ok(())
        } else {
            let mut orphan = inode.clone();
            orphan.head = new;
            self.put_orphan(&orphan, &tail);
            Ok(())
        }
    }
}
