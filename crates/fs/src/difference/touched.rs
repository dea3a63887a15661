//! The paths that a copy of the earlier moment needs to become one of the later.
//!
//! A list of differences is for people: it leaves out a directory whose times alone are other ones,
//! and names one side of each change. A copy needs both sides as a walk would have them:
//!
//! ```text
//!   mv a/x b/x         old:  a  a/x  b        new:  a  b  b/x
//!   chmod on a/y       old:  a  a/y           new:  a  a/y
//! ```
//!
//! 1. Each name that leads to another inode, or to none, at the other moment.
//! 2. All names of each inode with another row, other attributes or other contents.
//! 3. The directories above these, at both moments.
//!
//! What is not listed has the same names, attributes and contents at both moments.

use super::Comparison;
use super::names::{Name, NameSet};
use super::rows::written_inodes;
use super::side::Side;
use crate::FsResult;
use crate::system::FileSystem;
use crate::unchanged::is_same_inode;
use std::collections::BTreeSet;
use stitch_base::{Ino, PinId};

/// Paths below a directory at two moments, each in order: a directory is before what is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TouchedPaths {
    /// At the earlier moment.
    pub old: BTreeSet<Vec<u8>>,
    /// At the later moment.
    pub new: BTreeSet<Vec<u8>>,
}

impl FileSystem {
    /// Returns the paths below a directory that lead to something else at the later of two moments,
    /// and the directories above them. All names of an inode that is another one are listed. The
    /// moments, `owner`, errors and costs are those of [`Self::differences`].
    ///
    /// # Errors
    /// Those of [`Self::differences`].
    ///
    /// # Cost
    /// That of [`Self::differences`], and one read for each directory above a change.
    pub fn touched_paths(
        &self,
        dir: Ino,
        from: PinId,
        to: Option<PinId>,
        owner: Option<u32>,
    ) -> FsResult<TouchedPaths> {
        self.between_moments(dir, (from, to), owner, |found| found.touched())
    }
}

/// Names of both moments, as they are found.
#[derive(Default)]
struct Touched {
    old: NameSet,
    new: NameSet,
    /// Directories that lead to the names.
    dirs: Vec<Ino>,
}

impl Touched {
    fn add_old(&mut self, name: &Name) {
        self.dirs.push(name.dir);
        self.old.insert(name.clone());
    }

    fn add_new(&mut self, name: &Name) {
        self.dirs.push(name.dir);
        self.new.insert(name.clone());
    }

    /// Adds all names of an inode at both moments.
    fn add_inode(&mut self, ino: Ino, old: &Side<'_>, new: &Side<'_>) -> FsResult<()> {
        if let Some(row) = old.row(ino)? {
            for name in &old.names_of(ino, &row)? {
                self.add_old(name);
            }
        }
        if let Some(row) = new.row(ino)? {
            for name in &new.names_of(ino, &row)? {
                self.add_new(name);
            }
        }
        Ok(())
    }

    /// Adds the directories above all names, at both moments.
    fn add_dirs(&mut self, dir: Ino, old: &Side<'_>, new: &Side<'_>) -> FsResult<()> {
        let mut seen = BTreeSet::from([dir]);
        while let Some(above) = self.dirs.pop() {
            if !seen.insert(above) {
                continue;
            }
            if let Some(name) = old.dir_name(above)? {
                self.add_old(&name);
            }
            if let Some(name) = new.dir_name(above)? {
                self.add_new(&name);
            }
        }
        debug_assert!(self.dirs.is_empty(), "all were followed");
        Ok(())
    }
}

impl Comparison<'_> {
    pub(super) fn touched(&self) -> FsResult<TouchedPaths> {
        let (old, new) = (&self.old, &self.new);
        let mut touched = Touched::default();
        let mut inodes = self.inodes_touched()?;
        for name in &self.names()? {
            let (before, after) = (old.target(name)?, new.target(name)?);
            if before.map(|target| target.ino) == after.map(|target| target.ino) {
                continue;
            }
            if let Some(target) = before {
                touched.add_old(name);
                inodes.extend(target.is_link.then_some(target.ino));
            }
            if let Some(target) = after {
                touched.add_new(name);
                inodes.extend(target.is_link.then_some(target.ino));
            }
        }
        for ino in inodes {
            touched.add_inode(ino, old, new)?;
        }
        touched.add_dirs(self.dir, old, new)?;
        let paths = |side: &Side<'_>, names: &NameSet| {
            let paths = names.iter().map(|name| side.path_of(name));
            paths.collect::<FsResult<BTreeSet<Vec<u8>>>>()
        };
        Ok(TouchedPaths {
            old: paths(old, &touched.old)?,
            new: paths(new, &touched.new)?,
        })
    }

    /// The inodes of both moments that are other ones, but for times of access. The directory
    /// itself is not among them.
    fn inodes_touched(&self) -> FsResult<BTreeSet<Ino>> {
        let mut inodes = written_inodes(self.fs, &self.old, &self.new)?;
        for ino in self.new.rows.inodes() {
            let (before, after) = (self.old.rows.inode(ino), self.new.rows.inode(ino));
            let is_same = before.zip(after).is_some_and(|(before, after)| {
                is_same_inode(&before.head, &after.head) && before.tail == after.tail
            });
            if !is_same {
                inodes.insert(ino);
            }
        }
        inodes.remove(&self.dir);
        Ok(inodes)
    }
}
