//! stub
use crate::entry::BoxIter;

/// Several cursors as one, in entry order.
pub(crate) struct MergeIter {
    inputs: Vec<BoxIter>,
}

impl MergeIter {
    /// A cursor over all of `inputs`, not yet positioned.
    pub(crate) fn new(inputs: Vec<BoxIter>) -> Self {
        Self { inputs }
    }
}
