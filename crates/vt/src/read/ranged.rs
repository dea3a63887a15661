//! A cursor over those entries of another one whose keys are in ranges: what a branch tree begins
//! with, if it begins with ranges of its parent's keys.
//!
//! ```text
//! entries     a  c  d  g  h  k
//! ranges        [c    f)  [h    no end)
//! shown          c  d     h  k            from `d` on it seeks `h`
//! ```

use crate::VtError;
use crate::entry::{BoxIter, EntryIter, EntryRef};
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntry;
use stitch_kv::KeyRanges;

/// A cursor over the entries in ranges.
pub(super) struct RangedIter {
    entries: BoxIter,
    ranges: KeyRanges,
    /// No entry is left in the direction of the last move.
    is_over: bool,
}

impl RangedIter {
    /// Stands nowhere: the first call is a seek.
    pub(super) fn new(entries: BoxIter, ranges: KeyRanges) -> Self {
        Self {
            entries,
            ranges,
            is_over: true,
        }
    }

    /// Goes on to the first entry in a range, from the one it stands on.
    fn settle_forward(&mut self) -> Result<(), VtError> {
        self.is_over = false;
        while let Some(entry) = self.entries.current()
            && !self.ranges.has(entry.key)
        {
            let Some(start) = self.ranges.next_change(entry.key) else {
                self.is_over = true;
                return Ok(());
            };
            debug_assert!(start > entry.key, "it goes on");
            let start = start.to_vec();
            self.entries.seek(&start, Seqno(u64::MAX))?;
        }
        Ok(())
    }

    /// Goes back to the last entry in a range, from the one it stands on.
    fn settle_backward(&mut self) -> Result<(), VtError> {
        self.is_over = false;
        while let Some(entry) = self.entries.current()
            && !self.ranges.has(entry.key)
        {
            let Some(end) = self.ranges.end_before(entry.key) else {
                self.is_over = true;
                return Ok(());
            };
            debug_assert!(end <= entry.key, "it goes back");
            let end = end.to_vec();
            self.entries.seek_before(Some(&end))?;
        }
        Ok(())
    }
}

impl EntryIter for RangedIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError> {
        self.entries.seek(key, seqno)?;
        self.settle_forward()
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        self.entries.seek_before(key)?;
        self.settle_backward()
    }

    fn next(&mut self) -> Result<(), VtError> {
        debug_assert!(!self.is_over, "it stands on an entry");
        self.entries.next()?;
        self.settle_forward()
    }

    fn prev(&mut self) -> Result<(), VtError> {
        debug_assert!(!self.is_over, "it stands on an entry");
        self.entries.prev()?;
        self.settle_backward()
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        if self.is_over {
            return None;
        }
        let entry = self.entries.current();
        debug_assert!(
            entry.is_none_or(|entry| self.ranges.has(entry.key)),
            "only entries in the ranges are shown"
        );
        entry
    }

    fn skip_older(&mut self, seqno: Seqno, end: &[u8]) -> Result<bool, VtError> {
        if self.is_over || !self.entries.skip_older(seqno, end)? {
            return Ok(false);
        }
        self.settle_forward()?;
        Ok(true)
    }

    fn skip_older_back(&mut self, seqno: Seqno, start: &[u8]) -> Result<bool, VtError> {
        if self.is_over || !self.entries.skip_older_back(seqno, start)? {
            return Ok(false);
        }
        self.settle_backward()?;
        Ok(true)
    }

    fn carried(&self) -> Option<&IndexEntry> {
        if self.is_over {
            return None;
        }
        let carried = self.entries.carried();
        debug_assert!(
            carried.is_none_or(|block| self.ranges.has(&block.last)),
            "only entries in the ranges are shown"
        );
        carried
    }
}
