//! The views that two sides have in common: how a copy of one tells the inodes of both apart.
//!
//! ```text
//!   source, view 0   clone 1 lies in it      40 was the next inode number when the clone was made
//!   clone, view 2    clone 3 lies in it      so 40 is another inode in each
//!   twins            (0, 2, first own 40)    (1, 3, first own 35)
//! ```

use super::spans::Relation;
use super::{Comparer, DirAt, Moments};
use crate::{FsError, FsResult};
use stitch_base::Ino;

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

impl Comparer<'_> {
    pub(super) fn twin_views(&self, (old, new): (DirAt, DirAt)) -> FsResult<Vec<TwinView>> {
        if !self.is_mainline {
            return Err(FsError::Unsupported);
        }
        let moments = self.moments((old.pin, new.pin))?;
        let pairs = moments.clone_pairs((old.view, new.view))?;
        let views = std::iter::once((old.view, new.view)).chain(pairs);
        let twins: Vec<TwinView> = views
            .map(|views| twin(&moments, views))
            .collect::<FsResult<_>>()?;
        debug_assert!(!twins.is_empty(), "those of the sides");
        Ok(twins)
    }
}

fn twin(moments: &Moments<'_>, (old, new): (u64, u64)) -> FsResult<TwinView> {
    let relation = Relation::of(&moments.old.moment(old)?, &moments.new.moment(new)?)?;
    // One view at two moments is not told apart by numbers.
    let first_own = relation.first_own.ok_or(FsError::Unsupported)?;
    debug_assert_ne!(old, new, "two views have numbers of their own");
    Ok(TwinView {
        old,
        new,
        first_own,
    })
}
