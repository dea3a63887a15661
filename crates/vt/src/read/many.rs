//! Reads of several keys at one moment.
//!
//! The keys are looked up in their order, each once: neighbours lie in one data block, which the
//! first of them reads and the next ones find in the cache.

use crate::VtError;
use crate::read::ReadPath;
use crate::view::View;
use bytes::Bytes;
use stitch_base::{Seqno, TreeId};

impl ReadPath {
    /// Returns the values of keys in a view, as of `seqno`, in the order of `keys`. The tree is in
    /// the view.
    pub(crate) fn get_many_in(
        &self,
        view: &View,
        tree: TreeId,
        keys: &[&[u8]],
        seqno: Seqno,
    ) -> Result<Vec<Option<Bytes>>, VtError> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|at| keys[*at]);
        let mut values: Vec<Option<Bytes>> = vec![None; keys.len()];
        let mut last: Option<usize> = None;
        for at in order {
            values[at] = match last.filter(|last| keys[*last] == keys[at]) {
                Some(same) => values[same].clone(),
                None => self.get_in(view, tree, keys[at], seqno)?,
            };
            last = Some(at);
        }
        debug_assert_eq!(values.len(), keys.len(), "one value for each key");
        Ok(values)
    }
}
