//! Scans the indexes of tables that were there when the store was opened, for old versions that
//! nothing needs.

use super::Compactor;
use crate::VtError;
use crate::superseded::Superseded;
use crate::version::TableHandle;
use stitch_format::vt_index::IndexEntry;

impl Compactor {
    /// Scans at most `most` tables that were not scanned since the store was opened. Returns false
    /// if none was left.
    pub(crate) fn scan_for_superseded(&self, most: usize) -> bool {
        let mut count = 0;
        while count < most && !self.signals.is_stopped() && self.scan_unknown_table().is_some() {
            count += 1;
        }
        debug_assert!(count <= most, "few tables are scanned");
        count > 0
    }

    /// Scans until a table holds superseded versions. Returns false if none does.
    pub(crate) fn find_superseded(&self) -> bool {
        while !self.signals.is_stopped() {
            match self.scan_unknown_table() {
                Some(false) => {}
                found => return found.is_some(),
            }
        }
        false
    }

    /// Scans one table that was not scanned yet. Returns whether it holds superseded versions, or
    /// `None` if all were scanned.
    fn scan_unknown_table(&self) -> Option<bool> {
        let table = self.tables.superseded.take_unknown()?;
        let superseded = self.superseded_of(&table).unwrap_or_else(|error| {
            // A read there gets the error.
            tracing::debug!(%error, "a scan for old versions ends");
            Superseded::default()
        });
        let holds_any = !superseded.is_empty();
        self.tables.superseded.found(table.meta(), superseded);
        Some(holds_any)
    }

    /// Counts by the index alone.
    fn superseded_of(&self, handle: &TableHandle) -> Result<Superseded, VtError> {
        debug_assert!(handle.meta().min_seqno <= handle.meta().max_seqno);
        // Of the snapshots of now only pins are older than anything in it.
        let mut superseded = Superseded::new(self.snapshots.held().of(handle.meta().tree));
        if handle.meta().min_seqno == handle.meta().max_seqno {
            return Ok(superseded);
        }
        let mut index = self.tables.reader(handle).index_cursor()?;
        let mut before: Option<IndexEntry> = None;
        while let Some(block) = index.next()? {
            let is_first = before.as_ref().is_none_or(|b| b.last != block.first);
            debug_assert!(
                block.min_seqno <= block.max_seqno,
                "its numbers are in order"
            );
            // The newest version of a value is the first of its blocks.
            if !(block.is_value && is_first) {
                superseded.add_block(&block);
            }
            before = Some(block);
        }
        Ok(superseded)
    }
}
