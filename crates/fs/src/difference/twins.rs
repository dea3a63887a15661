//! The views that two sides have in common: how a copy of one tells the inodes of both apart.
//!
//! ```text
//!   source, view 0   clone 1 lies in it      40 was the next inode number when the clone was made
//!   clone, view 2    clone 3 lies in it      so 40 is another inode in each
//!   twins            (0, 2, first own 40)    (1, 3, first own 35)
//! ```

use super::spans::Relation;
use super::views::ViewsAt;
use super::{Comparer, DirAt, Moments};
use crate::{FsError, FsResult};
use stitch_base::Ino;
use stitch_base::clock::Timestamp;

/// Longest time that the making of a clone is taken to last: it shows what was written before that
/// began, and its record has the time of the end.
const MAKING_NS: i64 = 60_000_000_000;

/// A view on one side, and its counterpart on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinView {
    /// Number of the view on the first side.
    pub old: u64,
    /// Number of its counterpart on the second side.
    pub new: u64,
    /// The first number that inodes of their own have in both. Those below are the same inodes.
    pub first_own: Ino,
}

/// The views that two sides have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwinViews {
    /// Since when a side may have changed what the other has not. Of a clone of a snapshot it is
    /// the time at which the clone was made.
    pub since: Timestamp,
    /// The views of the sides, then clones that lie in both.
    pub views: Vec<TwinView>,
}

impl Comparer<'_> {
    pub(super) fn twin_views(&self, (old, new): (DirAt, DirAt)) -> FsResult<TwinViews> {
        if !self.is_mainline {
            return Err(FsError::Unsupported);
        }
        let moments = self.moments((old.pin, new.pin))?;
        let pairs = moments.clone_pairs((old.view, new.view))?;
        let mut twins = TwinViews {
            since: Timestamp(i64::MAX),
            views: Vec::with_capacity(1 + pairs.len()),
        };
        for views in std::iter::once((old.view, new.view)).chain(pairs) {
            twins.add(&moments, views)?;
        }
        debug_assert!(!twins.views.is_empty(), "those of the sides");
        Ok(twins)
    }
}

impl TwinViews {
    fn add(&mut self, moments: &Moments<'_>, (old, new): (u64, u64)) -> FsResult<()> {
        let relation = Relation::of(&moments.old.moment(old)?, &moments.new.moment(new)?)?;
        // One view at two moments is not told apart by numbers.
        let first_own = relation.first_own.ok_or(FsError::Unsupported)?;
        self.views.push(TwinView {
            old,
            new,
            first_own,
        });
        let branches = relation.branches;
        debug_assert!(branches.0 + branches.1 > 0, "one side is a branch");
        for (views, view, count) in [
            (&moments.old, old, branches.0),
            (&moments.new, new, branches.1),
        ] {
            self.since = self.since.min(parted(views, view, count));
        }
        Ok(())
    }
}

/// Returns when a view parted from the trees that are so many branches above it.
fn parted(views: &ViewsAt<'_>, view: u64, branches: usize) -> Timestamp {
    debug_assert!(branches <= stitch_kv::BRANCH_DEPTH_MAX, "a bounded depth");
    let created = views.created_ns(view);
    match (branches, created) {
        (0, _) => Timestamp(i64::MAX),
        (1, Some(created)) => Timestamp(created.saturating_sub(MAKING_NS)),
        // Clones between may be gone.
        _ => Timestamp(i64::MIN),
    }
}
