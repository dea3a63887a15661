//! One view on both sides: which names and inodes are others.
//!
//! 1. *Names*: those whose rows were written, and those in directories that are below the directory
//!    on one side alone.
//! 2. *Inodes*: those whose rows were written, by their heads; then contents where these are the
//!    same, and extended attributes.

use super::contents::{written_contents, written_xattrs};
use super::inner::InnerClones;
use super::moment::Moment;
use super::names::{Name, NameSet};
use super::rows::{ROWS_MAX, WrittenRows};
use super::side::{Anchor, Reached, Side};
use super::spans::Relation;
use crate::transaction::{PathChange, is_changed};
use crate::unchanged::is_same_inode;
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;

/// A directory of two views, or of one at two moments, and where both are found.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub(super) dir: Ino,
    /// Numbers of both views.
    pub(super) views: (u64, u64),
    pub(super) old: Reached,
    pub(super) new: Reached,
    /// Its name is in another directory, or another one.
    pub(super) has_moved: bool,
}

/// A directory on both sides.
pub(super) struct Comparison<'f> {
    pub(super) reach: Reach,
    pub(super) relation: Relation,
    pub(super) old: Side<'f>,
    pub(super) new: Side<'f>,
}

impl<'f> Comparison<'f> {
    /// Reads what was written.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] for too many rows; [`FsError::Stale`] if one side does not have the
    /// directory; those of a read.
    pub(super) fn read(
        reach: Reach,
        relation: Relation,
        anchor: Anchor<'f>,
        (old, new): (Moment<'f>, Moment<'f>),
        owner: Option<u32>,
    ) -> FsResult<Self> {
        debug_assert!(
            !relation.spans.is_empty(),
            "sides are related by a span at least"
        );
        let (old_rows, new_rows) = WrittenRows::of_spans(&relation.spans, (&old, &new))?;
        let (anchor, of) = (Rc::new(anchor), (reach.dir, owner));
        Ok(Self {
            old: Side::new((old, old_rows), &anchor, of, &reach.old)?,
            new: Side::new((new, new_rows), &anchor, of, &reach.new)?,
            reach,
            relation,
        })
    }

    /// Returns what is different in the view, in no order. Of the directories at which clones lie
    /// the names are compared; the clones are views.
    pub(super) fn changes(&self, inner: &InnerClones) -> FsResult<Vec<PathChange>> {
        let mut changes = self.names_changed(&self.names()?, inner)?;
        let written = self.written()?;
        let inodes = self.new.rows.inodes().chain(written.iter().copied());
        for ino in inodes.collect::<BTreeSet<Ino>>() {
            if ino != self.reach.dir
                && !inner.grafts.contains(&ino)
                && let Some(path) = self.modified(ino, written.contains(&ino), inner)?
            {
                debug_assert!(!path.is_empty(), "a path below the directory");
                changes.push(PathChange::Modified(path));
            }
        }
        let heads = (self.old.dir_head()?, self.new.dir_head()?);
        let is_written = written.contains(&self.reach.dir);
        if is_written || is_changed(&heads.0, &heads.1, self.reach.has_moved) {
            changes.push(PathChange::Modified(self.reach.new.path.clone()));
        }
        Ok(changes)
    }

    /// Reports whether the directory and all below it is the same, but for times of access. What is
    /// in clones that lie there is not looked at.
    pub(super) fn is_same(&self) -> FsResult<bool> {
        debug_assert!(self.relation.is_one_view(), "of two moments");
        if !is_same_inode(&self.old.dir_head()?, &self.new.dir_head()?) {
            return Ok(false);
        }
        for name in &self.names()? {
            if self.old.ino_of(name)? != self.new.ino_of(name)? {
                return Ok(false);
            }
        }
        for ino in self.new.rows.inodes().filter(|ino| *ino != self.reach.dir) {
            let (Some(old), Some(new)) = (self.old.row(ino)?, self.new.row(ino)?) else {
                continue;
            };
            let is_same = is_same_inode(&old.head, &new.head) && old.tail == new.tail;
            if !is_same && !self.new.names_of(ino, &new)?.is_empty() {
                return Ok(false);
            }
        }
        self.has_same_contents()
    }

    /// Returns the inodes with other contents that their heads do not tell of, or with other
    /// extended attributes.
    fn written(&self) -> FsResult<BTreeSet<Ino>> {
        let mut written = written_xattrs(&self.relation, &self.old, &self.new)?;
        written.extend(written_contents(&self.relation, &self.old, &self.new)?);
        Ok(written)
    }

    /// Reports whether no inode of the directory has other contents or extended attributes that its
    /// head does not tell of.
    fn has_same_contents(&self) -> FsResult<bool> {
        debug_assert!(self.relation.is_one_view(), "of two moments");
        for ino in self.written()? {
            if ino == self.reach.dir {
                return Ok(false);
            }
            if let Some(row) = self.new.row(ino)?
                && !self.new.names_of(ino, &row)?.is_empty()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The names that may be different: those whose rows were written, and those in directories
    /// that are below the directory at one of the moments alone.
    pub(super) fn names(&self) -> FsResult<NameSet> {
        let mut names = NameSet::new();
        names.extend(self.old.rows.names().chain(self.new.rows.names()).cloned());
        let dirs = self.old.rows.dirs().chain(self.new.rows.dirs());
        for dir in dirs.collect::<BTreeSet<Ino>>() {
            match (self.old.has_dir(dir)?, self.new.has_dir(dir)?) {
                (true, false) => self.old.moment.names_below(dir, &mut names)?,
                (false, true) => self.new.moment.names_below(dir, &mut names)?,
                _ => {}
            }
            if names.len() > 2 * ROWS_MAX {
                return Err(FsError::Unsupported);
            }
        }
        debug_assert!(
            names.len() <= 2 * ROWS_MAX,
            "no more than are held in memory"
        );
        Ok(names)
    }

    /// Reports whether a name leads to the same inode, or to none, on both sides. A clone without a
    /// counterpart is the same as nothing.
    pub(super) fn is_same_name(
        &self,
        name: &Name,
        (old, new): (Option<Ino>, Option<Ino>),
        inner: &InnerClones,
    ) -> bool {
        let is_same = |ino| self.relation.has_ino(name.dir) && self.is_one_inode(ino, inner);
        old == new && old.is_none_or(is_same)
    }

    /// Reports whether a number is of the same inode on both sides, or of a pair of clones.
    fn is_one_inode(&self, ino: Ino, inner: &InnerClones) -> bool {
        self.relation.has_ino(ino) && !inner.is_alone(ino)
    }

    /// Names that came and went. Of an inode with both, the first ones are a rename.
    fn names_changed(&self, names: &NameSet, inner: &InnerClones) -> FsResult<Vec<PathChange>> {
        let mut gone: BTreeMap<Ino, Vec<&Name>> = BTreeMap::new();
        let mut come: Vec<(Ino, &Name)> = Vec::new();
        for name in names {
            let (old, new) = (self.old.ino_of(name)?, self.new.ino_of(name)?);
            if self.is_same_name(name, (old, new), inner) {
                continue;
            }
            debug_assert!(
                old.is_some() || new.is_some(),
                "a name that nothing ever had is no change"
            );
            if let Some(ino) = old {
                gone.entry(ino).or_default().push(name);
            }
            come.extend(new.map(|ino| (ino, name)));
        }
        let mut changes = Vec::new();
        for (ino, name) in come {
            let to = self.new.path_of(name)?;
            let names = gone.get_mut(&ino).filter(|_| self.is_one_inode(ino, inner));
            let names = names.filter(|names| !names.is_empty());
            debug_assert!(
                names.as_ref().is_none_or(|names| names.is_sorted()),
                "names are in order"
            );
            changes.push(match names {
                Some(names) => PathChange::Renamed {
                    from: self.old.path_of(names.remove(0))?,
                    to,
                },
                None => PathChange::Added(to),
            });
        }
        for name in gone.values().flatten() {
            changes.push(PathChange::Removed(self.old.path_of(name)?));
        }
        Ok(changes)
    }

    /// Returns the path of an inode that is below the directory at both moments, and another one
    /// now. `is_written`: its contents or extended attributes are other ones.
    fn modified(
        &self,
        ino: Ino,
        is_written: bool,
        inner: &InnerClones,
    ) -> FsResult<Option<Vec<u8>>> {
        debug_assert_ne!(
            ino, self.reach.dir,
            "the directory itself is compared apart"
        );
        if !self.relation.has_ino(ino) {
            return Ok(None);
        }
        let (Some(old), Some(new)) = (self.old.row(ino)?, self.new.row(ino)?) else {
            return Ok(None);
        };
        let is_other = |has_moved| {
            let has_contents = new.head.kind == FileKind::Regular;
            let is_other = has_contents && old.tail != new.tail;
            is_written || is_other || is_changed(&old.head, &new.head, has_moved)
        };
        // A move explains a part of the changes, and no others.
        if !is_other(false) {
            return Ok(None);
        }
        let names = self.new.names_of(ino, &new)?;
        let Some(first) = names.first() else {
            return Ok(None);
        };
        debug_assert!(
            new.name.as_ref().is_none_or(|name| name == first),
            "a row under a name has one"
        );
        let before = self.old.ino_of(first)?;
        let has_moved = !self.is_same_name(first, (before, Some(ino)), inner);
        let was_below = !has_moved || !self.old.names_of(ino, &old)?.is_empty();
        match was_below && is_other(has_moved) {
            true => Ok(Some(self.new.path_of(first)?)),
            false => Ok(None),
        }
    }
}
