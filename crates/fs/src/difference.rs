//! What is different below a directory at two moments, by the rows that were written between.
//!
//! ```text
//!   keys written between   meta: (d, f) (d, g) (16, -)        data: (40, 0)
//!   their rows             names that came, went or lead elsewhere; inodes with other heads
//!   the way up             (d, f) -> d -> e -> the directory: below it at this moment, or not
//! ```
//!
//! 1. *Rows*: the engine lists the keys that may hold something else; both values of each are read.
//! 2. *The way up*: a directory is found by its row, if that was written, and otherwise by its back
//!    row. Of some moment all back rows must be there: the first call puts them.
//! 3. *Edges*: below a directory that was moved into or out of the directory, no row was written.
//!    Its names are scanned at the moment at which it is below.
//! 4. *Compare*: names, then heads of inodes, then contents where the head is the same.
//!
//! The result is that of a walk through both sides, which compares names, attributes and times.
//!
//! Everything is read at two snapshots, so nothing is locked.

mod moment;
mod names;
mod rows;
mod side;
mod touched;

use crate::system::FileSystem;
use crate::transaction::{PathChange, is_changed};
use crate::unchanged::{TreeState, is_same_below, is_same_inode};
use crate::{FsError, FsResult};
use moment::Moment;
use names::{Name, NameSet};
use rows::{ROWS_MAX, WrittenRows, written_contents};
use side::{Anchor, Side};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::{Ino, PinId};
use stitch_format::fs_inode::FileKind;
use stitch_kv::Snapshot;
pub use touched::TouchedPaths;

/// A directory with fewer names below it is better walked: the walk reads a few blocks, whatever
/// was written elsewhere.
const NAMES_MIN: usize = 512;

impl FileSystem {
    /// Returns what is different below a directory at a later moment, in the order of paths, which
    /// begin at the directory. The moments are those of pins, the second one the present for
    /// `None`. With `owner`, all directories that hold what is different must belong to this user,
    /// who may list them.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] where a walk through both sides does it better or alone: for a
    /// directory with few names, one with a clone below it, more changes than are held in memory,
    /// in clones and transactions, and of an engine that does not list changed keys.
    /// [`FsError::NotFound`] if a pin was dropped; [`FsError::Invalid`] if the second moment is
    /// before the first; [`FsError::Stale`] for a directory that was not there; [`FsError::Perm`];
    /// those of a read.
    ///
    /// # Cost
    /// That of reading what was written in the whole store between the moments, and the directories
    /// above it. A scan of all names below directories that were moved in or out, and of all names
    /// below the directory if a changed file has several names. The first call in the life of a
    /// store runs a pass over all names, as the first file handle does.
    pub fn differences(
        &self,
        dir: Ino,
        from: PinId,
        to: Option<PinId>,
        owner: Option<u32>,
    ) -> FsResult<Vec<PathChange>> {
        self.between_moments(dir, (from, to), owner, |found| found.run())
    }

    /// Calls `compare` with a directory at two moments, those of pins or the present.
    fn between_moments<T>(
        &self,
        dir: Ino,
        (from, to): (PinId, Option<PinId>),
        owner: Option<u32>,
        compare: impl FnOnce(&Comparison<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        self.check_differences()?;
        let from = self.moment_of(from)?;
        let to = to.map(|to| self.moment_of(to)).transpose()?;
        let now = self.engine().snapshot();
        let later = Moment::new(self, to.as_ref().unwrap_or(&now));
        if !later.has_names_below(dir, NAMES_MIN)? {
            return Err(FsError::Unsupported);
        }
        self.by_rows(dir, (&from, to.as_ref()), owner, compare)
    }

    /// Reports whether a directory and all below it is the same at two pins, or a pin and now, but
    /// for times of access. `then` and `now` show the two moments, for a walk where that is better.
    /// The directory is known in both.
    pub(crate) fn is_same_tree(
        &self,
        dir: Ino,
        (from, to): (PinId, Option<PinId>),
        (then, now): (TreeState<'_>, TreeState<'_>),
    ) -> FsResult<bool> {
        let head = |state: TreeState<'_>| state.base().residents.inodes.head(dir);
        if !is_same_inode(&head(then)?, &head(now)?) {
            return Ok(false);
        }
        let from = self.moment_of(from)?;
        let to = to.map(|to| self.moment_of(to)).transpose()?;
        let present = self.engine().snapshot();
        let later = Moment::new(self, to.as_ref().unwrap_or(&present));
        let is_walked = self.check_differences().is_err()
            || then.base().view_number() != 0
            || !self.is_anchored(&from, to.as_ref())?
            || !later.has_names_below(dir, NAMES_MIN)?;
        if !is_walked {
            match self.is_same_by_rows(dir, &from, to.as_ref()) {
                Err(FsError::Unsupported) => {}
                other => return other,
            }
        }
        is_same_below(then, now, dir)
    }

    fn is_same_by_rows(&self, dir: Ino, from: &Snapshot, to: Option<&Snapshot>) -> FsResult<bool> {
        self.with_comparison(dir, (from, to), None, |comparison| comparison.is_same())
    }

    fn check_differences(&self) -> FsResult<()> {
        let lists = self.engine().capabilities().keys_between;
        if !lists || self.branch.is_some() || self.view_number() != 0 {
            return Err(FsError::Unsupported);
        }
        Ok(())
    }

    fn moment_of(&self, id: PinId) -> FsResult<Snapshot> {
        let pins = self.engine().pins()?;
        let pin = pins.into_iter().find(|pin| pin.id == id);
        let pin = pin.ok_or(FsError::NotFound)?;
        Ok(self.engine().open_pin(&pin.name)?)
    }

    /// As [`Self::between_moments`], however few names there are.
    fn by_rows<T>(
        &self,
        dir: Ino,
        (from, to): (&Snapshot, Option<&Snapshot>),
        owner: Option<u32>,
        compare: impl FnOnce(&Comparison<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        if !self.is_anchored(from, to)? {
            self.check_writable()?;
            self.complete_back_rows()?;
        }
        self.with_comparison(dir, (from, to), owner, compare)
    }

    /// Reports whether all back rows are there at one of two moments, or now for `None`.
    fn is_anchored(&self, from: &Snapshot, to: Option<&Snapshot>) -> FsResult<bool> {
        let now = self.engine().snapshot();
        for at in [Some(from), to, Some(&now)].into_iter().flatten() {
            if Moment::new(self, at).has_all_back_rows()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn with_comparison<T>(
        &self,
        dir: Ino,
        (from, to): (&Snapshot, Option<&Snapshot>),
        owner: Option<u32>,
        compare: impl FnOnce(&Comparison<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        let now = self.engine().snapshot();
        let later = to.unwrap_or(&now);
        if from.seqno() > later.seqno() {
            return Err(FsError::Invalid("the second moment is before the first"));
        }
        let anchor = Anchor::choose(self, from, later, &now)?;
        let (old, new) = WrittenRows::between(self, from, later)?;
        let side = |at, rows| Side::new(Moment::new(self, at), rows, &anchor, dir, owner);
        let comparison = Comparison {
            fs: self,
            dir,
            old: side(from, old)?,
            new: side(later, new)?,
        };
        if comparison.has_clones()? {
            return Err(FsError::Unsupported);
        }
        compare(&comparison)
    }
}

/// A directory at two moments.
struct Comparison<'f> {
    fs: &'f FileSystem,
    dir: Ino,
    old: Side<'f>,
    new: Side<'f>,
}

impl Comparison<'_> {
    /// Reports whether a clone lies below the directory at one of the moments. Its rows are in
    /// other trees.
    fn has_clones(&self) -> FsResult<bool> {
        for side in [&self.old, &self.new] {
            for graft in side.moment.grafts()? {
                if side.has_dir(graft)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn run(&self) -> FsResult<Vec<PathChange>> {
        let mut changes = self.names_changed(&self.names()?)?;
        let written = written_contents(self.fs, &self.old, &self.new)?;
        let inodes = self.new.rows.inodes().chain(written.iter().copied());
        for ino in inodes.collect::<BTreeSet<Ino>>() {
            if ino != self.dir
                && let Some(path) = self.modified(ino, written.contains(&ino))?
            {
                changes.push(PathChange::Modified(path));
            }
        }
        if is_changed(&self.old.dir_head()?, &self.new.dir_head()?, false) {
            changes.push(PathChange::Modified(Vec::new()));
        }
        changes.sort_by(|a, b| (a.path(), a).cmp(&(b.path(), b)));
        Ok(changes)
    }

    /// Reports whether all below the directory is the same, but for times of access.
    fn is_same(&self) -> FsResult<bool> {
        for name in &self.names()? {
            if self.old.ino_of(name)? != self.new.ino_of(name)? {
                return Ok(false);
            }
        }
        for ino in self.new.rows.inodes().filter(|ino| *ino != self.dir) {
            let (Some(old), Some(new)) = (self.old.row(ino)?, self.new.row(ino)?) else {
                continue;
            };
            let is_same = is_same_inode(&old.head, &new.head) && old.tail == new.tail;
            if !is_same && !self.new.names_of(ino, &new)?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The names that may be different: those whose rows were written, and those in directories
    /// that are below the directory at one of the moments alone.
    fn names(&self) -> FsResult<NameSet> {
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
        Ok(names)
    }

    /// Names that came and went. Of an inode with both, the first ones are a rename.
    fn names_changed(&self, names: &NameSet) -> FsResult<Vec<PathChange>> {
        let mut gone: BTreeMap<Ino, Vec<&Name>> = BTreeMap::new();
        let mut come: Vec<(Ino, &Name)> = Vec::new();
        for name in names {
            let (old, new) = (self.old.ino_of(name)?, self.new.ino_of(name)?);
            if old == new {
                continue;
            }
            if let Some(ino) = old {
                gone.entry(ino).or_default().push(name);
            }
            come.extend(new.map(|ino| (ino, name)));
        }
        let mut changes = Vec::new();
        for (ino, name) in come {
            let to = self.new.path_of(name)?;
            let names = gone.get_mut(&ino).filter(|names| !names.is_empty());
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
    /// now. `is_written`: its contents are other ones.
    fn modified(&self, ino: Ino, is_written: bool) -> FsResult<Option<Vec<u8>>> {
        let (Some(old), Some(new)) = (self.old.row(ino)?, self.new.row(ino)?) else {
            return Ok(None);
        };
        let is_other = |has_moved| {
            let has_contents = new.head.kind == FileKind::Regular;
            let is_other = is_written || old.tail != new.tail;
            is_changed(&old.head, &new.head, has_moved) || (has_contents && is_other)
        };
        // A move explains a part of the changes, and no others.
        if !is_other(false) {
            return Ok(None);
        }
        let names = self.new.names_of(ino, &new)?;
        let Some(first) = names.first() else {
            return Ok(None);
        };
        let has_moved = self.old.ino_of(first)? != Some(ino);
        let was_below = !has_moved || !self.old.names_of(ino, &old)?.is_empty();
        match was_below && is_other(has_moved) {
            true => Ok(Some(self.new.path_of(first)?)),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
