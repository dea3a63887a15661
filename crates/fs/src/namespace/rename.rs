//! Moving names.
//!
//! 1. Lock: both directories and the replaced directory, then all inodes; before them the tree, if
//!    a directory moves into another one.
//! 2. Check by the rules of POSIX: nothing moves into itself, directories replace empty directories
//!    only, files replace files only, and two names of one inode stay as they are.
//! 3. One batch: the target's name is taken from what it named, rows move, both directories change.
//!
//! A directory's entries are keyed by its number, so moving it moves one row.

use super::changes::NameChanges;
use super::make::LINKS_MAX;
use super::{Dentry, Early, Namespace, check_name};
use crate::change::Change;
use crate::inode::{Inode, Inodes, Location};
use crate::lock::{Held, Locks};
use crate::{Caller, DirName, FsError, FsResult, RenameMode};
use stitch_base::Ino;
use stitch_base::sync::MutexGuard;

/// One end of a rename.
struct End<'a> {
    at: DirName<'a>,
    dir: Inode,
    dentry: Dentry,
    inode: Inode,
}

/// The names of a rename: their locks, and what they stand for. (Locks are let go in this order.)
struct LockedNames<'a> {
    _held: Held<'a>,
    _tree: Option<MutexGuard<'a, ()>>,
    old: Early,
    new: Option<Early>,
}

impl<'fs> LockedNames<'fs> {
    /// Locks what a rename needs of names, and reads the rows of both.
    fn lock(
        names: Namespace<'_>,
        locks: &'fs Locks,
        source: DirName<'_>,
        target: DirName<'_>,
        mode: RenameMode,
    ) -> FsResult<Self> {
        let dirs = [source.parent, target.parent];
        let mut held = locks.dirs_write(&dirs);
        let mut tree = None;
        loop {
            let old = names.early(source)?;
            let new = names.find_early(target)?;
            let enters = |early: &Early| early.is_dir() && source.parent != target.parent;
            let comes_back = mode == RenameMode::Exchange && new.as_ref().is_some_and(enters);
            if tree.is_none() && (enters(&old) || comes_back) {
                tree = locks.try_tree();
                if tree.is_none() {
                    drop(held);
                    tree = Some(locks.tree());
                    held = locks.dirs_write(&dirs);
                    continue;
                }
            }
            let replaced = new.as_ref().filter(|new| new.is_dir()).map(Early::ino);
            if let Some(replaced) = replaced
                && !locks.try_add_dir(&mut held, replaced)
            {
                drop(held);
                held = locks.dirs_write(&[source.parent, target.parent, replaced]);
                continue;
            }
            debug_assert!(
                tree.is_some() || !(enters(&old) || comes_back),
                "a directory moves into another one with the tree locked"
            );
            return Ok(Self {
                _held: held,
                _tree: tree,
                old,
                new,
            });
        }
    }
}

impl NameChanges<'_> {
    /// Moves a name.
    pub(super) fn rename(
        &self,
        caller: &Caller<'_>,
        source: DirName<'_>,
        target: DirName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        self.names.residents.inodes.get_dir(source.parent)?;
        self.names.residents.inodes.get_dir(target.parent)?;
        check_name(source.name)?;
        check_name(target.name)?;
        let names = LockedNames::lock(self.names, self.locks(), source, target, mode)?;
        let old = names.old;
        let Some(new) = names.new else {
            if mode == RenameMode::Exchange {
                return Err(FsError::NotFound);
            }
            let _inodes = self
                .locks()
                .inodes_write(&[source.parent, target.parent, old.ino()]);
            let dir = self.dir_to_change(caller, target.parent)?;
            let source = self.end(caller, source, old)?;
            return self.move_name(caller, &source, target, &dir, None, mode);
        };
        if mode == RenameMode::NoReplace {
            return Err(FsError::Exists);
        }
        if old.ino() == new.ino() {
            return Ok(());
        }
        let held = [source.parent, target.parent, old.ino(), new.ino()];
        let _inodes = self.locks().inodes_write(&held);
        let source = self.end(caller, source, old)?;
        let target = self.end(caller, target, new)?;
        debug_assert_ne!(
            source.inode.head.ino, target.inode.head.ino,
            "two inodes are locked"
        );
        if mode == RenameMode::Exchange {
            return self.exchange(&source, &target);
        }
        self.check_replaces(&source, &target)?;
        let replaced = Some((&target.inode, target.dentry.tail()));
        self.move_name(caller, &source, target.at, &target.dir, replaced, mode)
    }

    fn end<'a>(&self, caller: &Caller<'_>, at: DirName<'a>, early: Early) -> FsResult<End<'a>> {
        let dir = self.dir_to_change(caller, at.parent)?;
        debug_assert_eq!(dir.head.ino, at.parent, "the directory of the name");
        let (inode, dentry) = self.names.inode_of(at, early)?;
        self.permissions.check_may_remove(caller, &dir, &inode)?;
        debug_assert_eq!(inode.head.ino, dentry.ino, "the inode of the name");
        Ok(End {
            at,
            dir,
            dentry,
            inode,
        })
    }

    fn check_replaces(&self, source: &End<'_>, target: &End<'_>) -> FsResult<()> {
        debug_assert_ne!(
            source.inode.head.ino, target.inode.head.ino,
            "two names of one inode stay"
        );
        match (source.inode.is_dir(), target.inode.is_dir()) {
            (false, false) => Ok(()),
            (false, true) => Err(FsError::IsDir),
            (true, false) => Err(FsError::NotDir),
            // A clone has its entries elsewhere: it is removed by its own means.
            (true, true) if self.has_clone(target.inode.head.ino) => Err(FsError::NotEmpty),
            (true, true) => {
                check_not_inside(&self.names.residents.inodes, target.at.parent, source)?;
                self.names.refuse_graft(target.inode.head.ino)?;
                self.names.check_empty(target.inode.head.ino)
            }
        }
    }

    fn move_name(
        &self,
        caller: &Caller<'_>,
        source: &End<'_>,
        target: DirName<'_>,
        target_dir: &Inode,
        replaced: Option<(&Inode, bytes::Bytes)>,
        mode: RenameMode,
    ) -> FsResult<()> {
        let is_dir = source.inode.is_dir();
        let is_across = source.at.parent != target.parent;
        debug_assert_eq!(
            target_dir.head.ino, target.parent,
            "the directory of the target"
        );
        if is_dir {
            check_not_inside(&self.names.residents.inodes, target.parent, source)?;
            let grows = is_across && replaced.is_none();
            if grows && target_dir.head.nlink >= LINKS_MAX {
                return Err(FsError::TooManyLinks);
            }
        }
        let now = self.changes.now();
        let mut change = match replaced {
            Some(_) if mode == RenameMode::Replace => self.changes.begin_giving_back(),
            _ => self.changes.begin(),
        };
        debug_assert!(
            mode != RenameMode::NoReplace || replaced.is_none(),
            "nothing is replaced"
        );
        let mut old_links = -i64::from(is_dir);
        let mut new_links = i64::from(is_dir);
        let replaces_dir = replaced.as_ref().is_some_and(|(inode, _)| inode.is_dir());
        debug_assert!(is_dir || !replaces_dir, "a file replaces no directory");
        if let Some((inode, tail)) = replaced {
            new_links -= i64::from(inode.is_dir());
            change.drop_name(inode, now, tail)?;
        }
        self.put_name(&mut change, source, target, now)?;
        if mode == RenameMode::Whiteout {
            self.put_whiteout(&mut change, caller, &source.dir, source.at)?;
        } else {
            change.delete_entry(source.at);
        }
        debug_assert_eq!(
            old_links + new_links,
            -i64::from(replaces_dir),
            "directories are counted once"
        );
        if !is_across {
            old_links += new_links;
            new_links = 0;
        }
        change.touch_dir(&source.dir, old_links, now)?;
        if is_across {
            change.touch_dir(target_dir, new_links, now)?;
        }
        self.commit(change)
    }

    /// Puts the source's inode under the target's name.
    fn put_name<'a>(
        &self,
        change: &mut Change<'a>,
        source: &End<'_>,
        target: DirName<'a>,
        now: i64,
    ) -> FsResult<()> {
        let inode = &source.inode;
        debug_assert!(
            !matches!(inode.location, Location::Memory(_)),
            "what has a name has a row"
        );
        if inode.is_dir() && source.at.parent != target.parent {
            change.touch_above(target.parent)?;
        }
        let mut head = inode.head;
        head.ctime = now;
        if inode.location == Location::Own {
            change.put_link(target, head.ino, head.kind);
            return change.attrs(inode, &head);
        }
        change.move_to_name(inode, &head, &source.dentry.tail(), target);
        Ok(())
    }

    fn exchange(&self, source: &End<'_>, target: &End<'_>) -> FsResult<()> {
        debug_assert_ne!(
            source.inode.head.ino, target.inode.head.ino,
            "two names of one inode stay"
        );
        for (end, other) in [(source, target), (target, source)] {
            if end.inode.is_dir() {
                check_not_inside(&self.names.residents.inodes, other.at.parent, end)?;
            }
        }
        let now = self.changes.now();
        debug_assert!(
            source.at.parent != target.at.parent || source.at.name != target.at.name,
            "two names"
        );
        let mut change = self.changes.begin();
        self.put_name(&mut change, source, target.at, now)?;
        self.put_name(&mut change, target, source.at, now)?;
        if source.at.parent == target.at.parent {
            change.touch_dir(&source.dir, 0, now)?;
        } else {
            let gain = i64::from(target.inode.is_dir()) - i64::from(source.inode.is_dir());
            debug_assert!((-1..=1).contains(&gain), "one name goes each way");
            change.touch_dir(&source.dir, gain, now)?;
            change.touch_dir(&target.dir, -gain, now)?;
        }
        self.commit(change)
    }
}

/// Refuses a directory that is the one it would go to, or above it. Within its directory it is
/// neither; if it comes from another one, the tree is locked.
fn check_not_inside(inodes: &Inodes, dir: Ino, source: &End<'_>) -> FsResult<()> {
    debug_assert!(source.inode.is_dir(), "a file has nothing in it");
    if dir == source.at.parent {
        return Ok(());
    }
    let top = source.inode.head.ino;
    let mut at = dir;
    while at != Ino::ROOT {
        if at == top {
            return Err(FsError::Invalid("a directory cannot move into itself"));
        }
        let inode = inodes.get(at)?;
        at = inode.parent().ok_or(FsError::NotFound)?;
    }
    if top == Ino::ROOT {
        return Err(FsError::Invalid("the root cannot move"));
    }
    Ok(())
}
