//! What is different below a directory on two sides, by the rows that were written between: one
//! directory at two moments, or in a clone and in what that is a clone of.
//!
//! ```text
//!   keys written between   meta: (d, f) (d, g) (16, -)        data: (40, 0)
//!   their rows             names that came, went or lead elsewhere; inodes with other heads
//!   the way up             (d, f) -> d -> e -> the directory: below it at this moment, or not
//! ```
//!
//! 1. *Rows*: the engine lists the keys that may hold something else ([`spans`]); both values of
//!    each are read.
//! 2. *The way up*: a directory is found by its row, if that was written, and otherwise by its back
//!    row. Of some moment all back rows must be there: the first call puts them.
//! 3. *Edges*: below a directory that was moved into or out of the directory, no row was written.
//!    Its names are scanned at the moment at which it is below.
//! 4. *Compare*: names, then heads of inodes, then contents where the head is the same, and
//!    extended attributes: a name that came or went changes times as an attribute does.
//! 5. *Clones* that lie below the directory on both sides, or that are clones of each other there:
//!    the same again, in their trees ([`inner`]).
//!
//! The result is that of a walk through both sides, which compares names, attributes and times.
//!
//! Everything is read at snapshots, so nothing is locked.
//!
//! | part | has |
//! |---|---|
//! | [`Comparer`] | finds the moments and a moment with all back rows, and visits views |
//! | [`views::ViewsAt`] | the views of the store at a moment: records, trees, names |
//! | [`comparison::Comparison`] | one view on both sides: names, inodes and contents |
//! | [`touched`] | what a copy of the first side needs to become the second |
//! | [`twins`] | which inodes of two views are the same |
//! | `operations.rs` | what [`crate::FileSystem`] offers of them |
//!
//! Invariant: a comparison changes nothing but back rows that are missing, and those only where
//! `may_put` says so.

mod comparison;
mod contents;
mod inner;
mod moment;
mod names;
mod operations;
mod rows;
mod side;
mod spans;
mod touched;
mod twins;
mod views;

use crate::back::ViewBackRows;
use crate::locator::Tree;
use crate::pins::Pins;
use crate::recent::WrittenBetween;
use crate::snapshot::SnapshotView;
use crate::system::FileSystem;
use crate::transaction::PathChange;
use crate::unchanged::{TreeState, is_same_inode, is_same_tree};
use crate::{FsError, FsResult};
use comparison::{Comparison, Reach};
use inner::{InnerClones, Pairing};
use moment::Moment;
use side::{Anchor, Reached};
use spans::Relation;
use stitch_base::{Ino, PinId};
use stitch_kv::Snapshot;
pub use touched::TouchedPaths;
pub use twins::TwinView;
use views::ViewsAt;

/// A directory with fewer names below it is better walked: the walk reads a few blocks, whatever
/// was written elsewhere.
const NAMES_MIN: usize = 512;

/// A directory of mainline or a clone at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirAt {
    /// Number of the clone that it is in, 0 for mainline.
    pub view: u64,
    /// The directory, in that file system.
    pub dir: Ino,
    /// The moment is that of this pin; the present for `None`.
    pub pin: Option<PinId>,
}

/// The sides to compare.
#[derive(Clone, Copy, Debug)]
struct Asked {
    old: DirAt,
    new: DirAt,
    /// All directories that hold what is different must belong to this user.
    owner: Option<u32>,
    /// Fewer names than these are left to a walk.
    names_min: usize,
    /// Back rows may be put.
    may_put: bool,
    /// What pairs the clones of one view at two moments.
    pairing: Pairing,
}

impl Asked {
    const fn new(old: DirAt, new: DirAt, owner: Option<u32>) -> Self {
        Self {
            old,
            new,
            owner,
            names_min: NAMES_MIN,
            may_put: true,
            pairing: Pairing::ByGraft,
        }
    }
}

/// The store at the moments of a comparison.
struct Moments<'f> {
    old: ViewsAt<'f>,
    new: ViewsAt<'f>,
}

/// Compares a directory of a store at two moments, or in two views.
#[derive(Clone, Copy)]
pub(crate) struct Comparer<'fs> {
    pins: Pins<'fs>,
    back_rows: ViewBackRows<'fs>,
    /// Others have neither records of clones nor pins of their own.
    is_mainline: bool,
}

impl<'fs> Comparer<'fs> {
    fn differences(&self, asked: &Asked) -> FsResult<Vec<PathChange>> {
        let mut changes = Vec::new();
        self.compare_sides(asked, &mut |comparison, inner, _| {
            changes.extend(comparison.changes(inner)?);
            Ok(true)
        })?;
        debug_assert!(asked.old.dir == asked.new.dir, "sides of one directory");
        changes.sort_by(|a, b| (a.path(), a).cmp(&(b.path(), b)));
        Ok(changes)
    }

    /// Reports whether a directory and all below it is the same at two pins, or a pin and now, but
    /// for times of access. `then` and `now` show the two moments, for a walk where that is better.
    /// The directory is known in both.
    pub(crate) fn is_same_tree(
        &self,
        dir: Ino,
        (from, to): (PinId, Option<PinId>),
        (then, now): (&SnapshotView, TreeState<'_>),
    ) -> FsResult<bool> {
        let views = (then.fs().view_number(), now.base().view_number());
        debug_assert_eq!(views.0, views.1, "one view at two moments");
        let head = |fs: &FileSystem| fs.residents.inodes.head(dir);
        if !is_same_inode(&head(then.fs())?, &head(now.base())?) {
            return Ok(false);
        }
        if views.0 == 0 {
            let at = |pin| DirAt { view: 0, dir, pin };
            let asked = Asked {
                may_put: false,
                ..Asked::new(at(Some(from)), at(to), None)
            };
            match self.is_same_of(&asked) {
                Err(FsError::Unsupported) => {}
                other => return other,
            }
        }
        self.walk_same_tree(dir, (from, to), (then, now))
    }

    /// Walks both moments.
    fn walk_same_tree(
        &self,
        dir: Ino,
        (from, to): (PinId, Option<PinId>),
        (then, now): (&SnapshotView, TreeState<'_>),
    ) -> FsResult<bool> {
        let to = to.map(|to| self.pins.moment_at(Some(to))).transpose()?;
        let from = self.pins.moment_at(Some(from))?;
        let written = WrittenBetween::new(&**self.pins.engine, from, to);
        is_same_tree(then, now, &written, dir)
    }

    fn is_same_of(&self, asked: &Asked) -> FsResult<bool> {
        let mut is_same = true;
        self.compare_sides(asked, &mut |comparison, inner, _| {
            // The numbers in one that was made again tell less: both are walked.
            if inner.both.iter().any(|pair| pair.views.0 != pair.views.1) {
                return Err(FsError::Unsupported);
            }
            let has_same_clones = inner.old.is_empty() && inner.new.is_empty();
            is_same = has_same_clones && comparison.is_same()?;
            debug_assert!(asked.old.view == asked.new.view, "of two moments");
            Ok(is_same)
        })?;
        Ok(is_same)
    }

    /// Calls `visit` with the directory on both sides, then with each pair of clones that lie below
    /// it, and the pairs in these, until it returns false.
    fn compare_sides(
        &self,
        asked: &Asked,
        visit: &mut dyn FnMut(&Comparison<'_>, &InnerClones, &Moments<'_>) -> FsResult<bool>,
    ) -> FsResult<()> {
        if !self.is_mainline || !self.pins.engine.capabilities().keys_between {
            return Err(FsError::Unsupported);
        }
        let (old, new) = (asked.old, asked.new);
        if old.dir != new.dir {
            return Err(FsError::Invalid("the directories are not the same one"));
        }
        let moments = self.moments((old.pin, new.pin))?;
        let top = (new.view, new.dir);
        if !moments.new.has_names_below(top, asked.names_min)? {
            return Err(FsError::Unsupported);
        }
        let mut waiting = vec![Reach {
            dir: new.dir,
            views: (old.view, new.view),
            old: Reached::first(),
            new: Reached::first(),
            has_moved: false,
        }];
        while let Some(reach) = waiting.pop() {
            let comparison = self.read_sides(&moments, reach, asked)?;
            let inner = comparison.inner_clones(&moments, asked.pairing)?;
            debug_assert!(
                inner
                    .both
                    .iter()
                    .all(|pair| pair.views.0 > 0 && pair.views.1 > 0),
                "clones are paired with clones"
            );
            if !visit(&comparison, &inner, &moments)? {
                break;
            }
            waiting.extend(inner.both);
        }
        Ok(())
    }

    fn clone_pairs(&self, (old, new): (DirAt, DirAt)) -> FsResult<Vec<(u64, u64)>> {
        if !self.is_mainline {
            return Err(FsError::Unsupported);
        }
        let moments = self.moments((old.pin, new.pin))?;
        let pairs = moments.clone_pairs((old.view, new.view))?;
        debug_assert!(
            pairs.iter().all(|pair| pair.0 > 0 && pair.1 > 0),
            "clones are paired with clones"
        );
        Ok(pairs)
    }

    fn moments(&self, (old, new): (Option<PinId>, Option<PinId>)) -> FsResult<Moments<'fs>> {
        Ok(Moments {
            old: self.views_at(&self.pins.moment_at(old)?)?,
            new: self.views_at(&self.pins.moment_at(new)?)?,
        })
    }

    fn views_at(&self, at: &Snapshot) -> FsResult<ViewsAt<'fs>> {
        debug_assert!(self.is_mainline, "mainline has the records of clones");
        ViewsAt::read(self.pins.engine, at)
    }

    /// Reads what was written on both sides of a view, or of two.
    fn read_sides(
        &self,
        moments: &Moments<'fs>,
        reach: Reach,
        asked: &Asked,
    ) -> FsResult<Comparison<'fs>> {
        let old = moments.old.moment(reach.views.0)?;
        let new = moments.new.moment(reach.views.1)?;
        let relation = Relation::of(&old, &new)?;
        debug_assert!(
            relation.is_one_view() || reach.views.0 != reach.views.1,
            "a view is one at all moments"
        );
        let anchor = self.anchor((&old, &new), reach.views.1, asked.may_put)?;
        Comparison::read(reach, relation, anchor, (old, new), asked.owner)
    }

    /// Finds a moment with all back rows, and puts them if there is none. The second side is of
    /// `view`.
    fn anchor(
        &self,
        sides: (&Moment<'fs>, &Moment<'fs>),
        view: u64,
        may_put: bool,
    ) -> FsResult<Anchor<'fs>> {
        if let Some(anchor) = Anchor::choose(sides, None)? {
            return Ok(anchor);
        }
        let mut present = self.present_of(view)?;
        debug_assert_eq!(
            present.tree(Tree::Meta),
            sides.1.tree(Tree::Meta),
            "the second side, as it is"
        );
        if may_put && !present.has_all_back_rows()? {
            self.back_rows.complete(view)?;
            present = self.present_of(view)?;
        }
        Anchor::choose(sides, Some(&present))?.ok_or(FsError::Unsupported)
    }

    /// Returns a view as it is.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] for a clone that was removed: back rows cannot be put in it.
    fn present_of(&self, view: u64) -> FsResult<Moment<'fs>> {
        let views = self.views_at(&self.pins.engine.snapshot())?;
        views.moment(view).map_err(|error| match error {
            FsError::NotFound => FsError::Unsupported,
            other => other,
        })
    }
}

#[cfg(test)]
mod tests;
