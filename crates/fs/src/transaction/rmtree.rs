//! Removal of a tree in a transaction: entry by entry.
//!
//! A commit compares each entry that is gone with mainline's, so each is removed by itself. What is
//! made in the tree meanwhile goes as well. The kernel asked for the removal of the tree alone: of
//! its files it has old numbers of links.

use crate::system::FileSystem;
use crate::{Caller, DirName, FsError, FsResult};
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;

/// A directory that is to be emptied, and its name.
struct Level {
    parent: Ino,
    name: Box<[u8]>,
    ino: Ino,
}

impl FileSystem {
    /// Removes a directory and all that is in it, as [`Self::remove_tree`] does in mainline.
    pub(crate) fn remove_by_entries(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        expected: Option<Ino>,
    ) -> FsResult<()> {
        debug_assert!(self.branch.is_some(), "mainline removes it in one step");
        let top = self.lookup(at)?;
        let removed = self.check_top(caller, at, top.ino, expected);
        let removed = removed.and_then(|()| self.empty_levels(at, top.ino));
        let removed = removed.and_then(|()| self.remove_dir(caller, at));
        self.forget(top.ino, 1);
        removed
    }

    /// Refuses a tree whose name the caller may not take, before anything in it goes.
    fn check_top(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        top: Ino,
        expected: Option<Ino>,
    ) -> FsResult<()> {
        if matches!(at.name, b"." | b"..") {
            return Err(FsError::Invalid("no name of a directory in another"));
        }
        let dir = self.name_changes().dir_to_change(caller, at.parent)?;
        let inode = self.residents.inodes.get(top)?;
        if inode.head.kind != FileKind::Directory {
            return Err(FsError::NotDir);
        }
        if expected.is_some_and(|expected| expected != top) {
            return Err(FsError::NotFound);
        }
        self.permissions().check_may_remove(caller, &dir, &inode)?;
        self.check_tree(top)
    }

    fn empty_levels(&self, at: DirName<'_>, top: Ino) -> FsResult<()> {
        let mut levels = vec![Level {
            parent: at.parent,
            name: Box::from(at.name),
            ino: top,
        }];
        let emptied = self.empty_below(&mut levels);
        for level in levels.iter().skip(1) {
            self.forget(level.ino, 1);
        }
        emptied
    }

    /// Empties the last directory, those below it first, until only the first is left.
    fn empty_below(&self, levels: &mut Vec<Level>) -> FsResult<()> {
        while let Some(level) = levels.last() {
            let dir = level.ino;
            if let Some(below) = self.unlink_some(dir)? {
                levels.push(below);
                continue;
            }
            if !self.some_names(dir)?.is_empty() {
                continue;
            }
            if levels.len() == 1 {
                return Ok(());
            }
            let at = DirName::new(level.parent, &level.name);
            let names = self.unasked_name_changes();
            match self.remove_dir_by(names, &Caller::ROOT, at) {
                // Somebody has put a name into it, or taken it.
                Err(FsError::NotEmpty) => continue,
                Err(FsError::NotFound) => {}
                removed => removed?,
            }
            self.forget(dir, 1);
            levels.pop();
        }
        Ok(())
    }

    /// Removes some entries. Returns the first one that is a directory.
    fn unlink_some(&self, dir: Ino) -> FsResult<Option<Level>> {
        for name in self.some_names(dir)? {
            let at = DirName::new(dir, &name);
            let removed = self.unasked_name_changes().unlink(&Caller::ROOT, at);
            match removed {
                Err(FsError::IsDir) => match self.lookup(at) {
                    Ok(below) => {
                        return Ok(Some(Level {
                            parent: dir,
                            name,
                            ino: below.ino,
                        }));
                    }
                    Err(FsError::NotFound) => {}
                    Err(error) => return Err(error),
                },
                Err(FsError::NotFound) => {}
                removed => removed?,
            }
        }
        Ok(None)
    }
}
