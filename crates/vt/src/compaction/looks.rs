//! Looks at tables from before the store was opened: which of them hold old versions that nobody
//! needs.

use super::Compactor;
use crate::VtError;
use crate::superseded::Superseded;
use crate::version::TableHandle;
use stitch_format::vt_index::IndexEntry;

impl Compactor {
    /// Looks at so many tables that nobody has looked at since the store was opened. Returns false
    /// if there was none left.
    pub(crate) fn look_for_superseded(&self, most: usize) -> bool {
        let mut looks = 0;
        while looks < most && !self.signals.is_stopped() && self.look_at_unknown().is_some() {
            looks += 1;
        }
        looks > 0
    }

    /// The same, up to the first table that holds something. Returns false if there was none.
    pub(crate) fn find_superseded(&self) -> bool {
        while !self.signals.is_stopped() {
            match self.look_at_unknown() {
                Some(false) => {}
                found => return found.is_some(),
            }
        }
        false
    }

    /// Looks at a table that nobody has looked at, if there is one. Reports whether it holds
    /// something.
    fn look_at_unknown(&self) -> Option<bool> {
        let table = self.tables.superseded.take_unknown()?;
        let superseded = self.superseded_of(&table).unwrap_or_else(|error| {
            // Whoever reads there is told.
            tracing::debug!(%error, "a look for old versions ends");
            Superseded::default()
        });
        let holds_any = !superseded.is_empty();
        self.tables.superseded.found(table.meta(), superseded);
        Some(holds_any)
    }

    /// Counts by the index alone.
    fn superseded_of(&self, handle: &TableHandle) -> Result<Superseded, VtError> {
        // Of the snapshots of now only pins are older than anything in it.
        let mut superseded = Superseded::new(self.snapshots.held().of(handle.meta().tree).into());
        if handle.meta().min_seqno == handle.meta().max_seqno {
            return Ok(superseded);
        }
        let mut index = self.tables.reader(handle).index_cursor()?;
        let mut before: Option<IndexEntry> = None;
        while let Some(block) = index.next()? {
            let is_first = before.as_ref().is_none_or(|b| b.last != block.first);
            // The newest version of a value is the first of its blocks.
            if !(block.is_value && is_first) {
                superseded.add_block(&block);
            }
            before = Some(block);
        }
        Ok(superseded)
    }
}
