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
//! 4. Of a clone that one side alone shows, all paths in it. The directories that lead to other
//!    clones are always listed.
//!
//! What is not listed has the same names, attributes and contents at both moments.
//!
//! Of two views an inode with a number of after they parted is another one on each side, whatever
//! its number. All of these are listed, and their names.
//! [`super::Comparer::twin_views`] tells which they are.

use super::contents::written_inodes;
use super::inner::{InnerClones, Pairing, ShownClone};
use super::names::{Name, NameSet};
use super::rows::ROWS_MAX;
use super::side::Side;
use super::views::ViewsAt;
use super::{Asked, Comparer, Comparison};
use crate::unchanged::is_same_inode;
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use stitch_base::Ino;

/// Paths below a directory on two sides, each in order: a directory is before what is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TouchedPaths {
    /// On the first side: the earlier moment, or the other view.
    pub old: BTreeSet<Vec<u8>>,
    /// On the second side.
    pub new: BTreeSet<Vec<u8>>,
}

impl Comparer<'_> {
    pub(super) fn touched_paths(&self, asked: &Asked) -> FsResult<TouchedPaths> {
        let mut paths = TouchedPaths::default();
        // A copy tells the clones of one view apart by their numbers.
        let asked = &Asked {
            pairing: Pairing::ByNumber,
            ..*asked
        };
        self.compare_sides(asked, &mut |comparison, inner, moments| {
            comparison.add_touched(inner, &mut paths)?;
            for clone in &inner.old {
                add_all(clone, &moments.old, &comparison.old, &mut paths.old)?;
            }
            for clone in &inner.new {
                add_all(clone, &moments.new, &comparison.new, &mut paths.new)?;
            }
            Ok(true)
        })?;
        debug_assert!(
            !paths.old.contains(&b""[..]),
            "the directory itself is not listed"
        );
        debug_assert!(
            !paths.new.contains(&b""[..]),
            "the directory itself is not listed"
        );
        Ok(paths)
    }
}

/// Adds all paths in a clone.
fn add_all(
    clone: &ShownClone,
    views: &ViewsAt<'_>,
    side: &Side<'_>,
    paths: &mut BTreeSet<Vec<u8>>,
) -> FsResult<()> {
    debug_assert!(clone.view > 0, "mainline is no clone");
    let may_list = |head: &_| side.may_list(head);
    if !(clone.reached.is_listed && may_list(&views.root_head(clone.view)?)) {
        return Err(FsError::Perm);
    }
    let (dir, base) = ((clone.view, clone.root), &clone.reached.path);
    views.walk(dir, base, &may_list, &mut |path| {
        paths.insert(path);
        ControlFlow::Continue(())
    })
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
        debug_assert!(!name.name.is_empty(), "a name is not empty");
        self.dirs.push(name.dir);
        self.old.insert(name.clone());
    }

    fn add_new(&mut self, name: &Name) {
        debug_assert!(!name.name.is_empty(), "a name is not empty");
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
        debug_assert!(
            self.dirs.len() >= self.old.len().max(self.new.len()),
            "each name is in a directory"
        );
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
    /// Adds the paths of one view.
    fn add_touched(&self, inner: &InnerClones, paths: &mut TouchedPaths) -> FsResult<()> {
        let (old, new) = (&self.old, &self.new);
        let mut touched = Touched::default();
        let mut inodes = self.inodes_touched()?;
        inodes.extend(&inner.grafts);
        for name in &self.names()? {
            let (before, after) = (old.target(name)?, new.target(name)?);
            let inos = (
                before.as_ref().map(|target| target.ino),
                after.as_ref().map(|target| target.ino),
            );
            if self.is_same_name(name, inos, inner) {
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
        touched.add_dirs(self.reach.dir, old, new)?;
        debug_assert!(touched.dirs.is_empty(), "all were followed");
        for (side, names, paths) in [
            (old, &touched.old, &mut paths.old),
            (new, &touched.new, &mut paths.new),
        ] {
            for name in names {
                paths.insert(side.path_of(name)?);
            }
        }
        Ok(())
    }

    /// The inodes of both moments that are other ones, but for times of access. The directory
    /// itself is not among them.
    fn inodes_touched(&self) -> FsResult<BTreeSet<Ino>> {
        let mut inodes = written_inodes(&self.relation, &self.old, &self.new)?;
        for ino in self.new.rows.inodes() {
            let (before, after) = (self.old.rows.inode(ino), self.new.rows.inode(ino));
            let is_same = before.zip(after).is_some_and(|(before, after)| {
                is_same_inode(&before.head, &after.head) && before.tail == after.tail
            });
            if !is_same || !self.relation.has_ino(ino) {
                inodes.insert(ino);
            }
        }
        inodes.remove(&self.reach.dir);
        debug_assert!(
            inodes.len() <= 2 * ROWS_MAX,
            "no more than are held in memory"
        );
        Ok(inodes)
    }
}
