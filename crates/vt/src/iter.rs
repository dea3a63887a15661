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

impl crate::entry::EntryIter for MergeIter {
    fn seek(&mut self, _: &[u8], _: stitch_base::Seqno) -> Result<(), crate::VtError> {
        unimplemented!()
    }
    fn seek_before(&mut self, _: Option<&[u8]>) -> Result<(), crate::VtError> {
        unimplemented!()
    }
    fn next(&mut self) -> Result<(), crate::VtError> {
        unimplemented!()
    }
    fn prev(&mut self) -> Result<(), crate::VtError> {
        unimplemented!()
    }
    fn current(&self) -> Option<crate::entry::EntryRef<'_>> {
        None
    }
}
