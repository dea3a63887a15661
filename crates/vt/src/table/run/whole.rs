//! Cursors that are known to read all of their keys.
//!
//! They take blocks that were prefetched ([`super::super::prefetched`]). They read the others, up
//! to the end of the range, together: neighbouring blocks into one buffer.

use super::RunIter;
use crate::VtError;
use crate::cache::Expectation;
use crate::table::block::DataBlock;
use crate::table::blocks::BlockList;
use crate::table::loader::DataRef;
use crate::table::prefetched::Wanted;
use crate::table::stream::collect;
use std::sync::Arc;

/// A cursor that reads at most this many blocks leaves them in the cache.
const WHOLE_KEPT_MAX: usize = 32;
/// Most bytes that a cursor reads at a time.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

impl<L: BlockList + Clone> RunIter<L> {
    /// Returns a block that was prefetched, and keeps those after it.
    pub(super) fn prefetched(
        &mut self,
        wanted: &DataRef,
    ) -> Result<Option<Arc<DataBlock>>, VtError> {
        debug_assert!(self.ahead.is_empty(), "what was read ahead is used up");
        let cache = &self.loader.cache;
        if cache.prefetched().is_empty() {
            return Ok(None);
        }
        let Some(entry) = self.blocks.current()? else {
            return Ok(None);
        };
        let wanted = Wanted {
            table: self.loader.id,
            data: *wanted,
            // The first block may begin before the run does.
            key: entry.first.max(self.bounds.start.as_slice()),
            end: self.bounds.end.as_deref(),
        };
        let count = || self.count_within();
        let found = cache.prefetched().take(&wanted, count, cache.readers());
        debug_assert!(
            found.first().is_none_or(|(first, _)| *first == wanted.data),
            "the wanted block comes first"
        );
        self.ahead.extend(found);
        Ok(self.ahead.pop_front().map(|(_, block)| block))
    }

    /// Counts the blocks from the current one on that have keys within bounds.
    fn count_within(&self) -> usize {
        let end = self.bounds.end.as_deref();
        let mut scout = self.blocks.clone();
        let mut count = 1;
        // An error of the index is reported when the cursor meets it.
        while scout.next().is_ok()
            && let Ok(Some(next)) = scout.current()
            && end.is_none_or(|end| next.first < end)
        {
            count += 1;
        }
        count
    }

    /// Reads a block together with those that the cursor needs after it.
    pub(super) fn load_whole(&mut self, wanted: &DataRef) -> Result<Arc<DataBlock>, VtError> {
        debug_assert!(self.bounds.is_whole, "all blocks within bounds are read");
        let mut items = Vec::new();
        let mut scout = self.blocks.clone();
        // An error of the index is reported when the cursor meets it.
        let _ = collect(
            &mut scout,
            &self.loader,
            &self.bounds,
            WHOLE_BYTES_MAX,
            &mut items,
        );
        let wanted_all = items.into_iter().take_while(|(_, cached)| cached.is_none());
        let mut span: Vec<DataRef> = wanted_all.map(|(data, _)| data).collect();
        if span.first() != Some(wanted) {
            span = vec![*wanted];
        }
        debug_assert_eq!(span.first(), Some(wanted), "the wanted block is read first");
        let is_long = span.len() > WHOLE_KEPT_MAX;
        self.read_span(span, is_long, Some(Expectation::Scan))
    }
}
