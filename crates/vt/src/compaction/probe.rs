//! Finds out what of a compaction's inputs cannot be read, after the compaction failed.

use super::obstacles::Obstacles;
use super::picker::Plan;
use super::run::is_damage;
use crate::VtError;
use crate::store::Store;
use crate::version::TableHandle;
use stitch_format::vt_index::IndexEntry;

impl Store {
    /// Reads all that goes into a plan, block by block, and notes what cannot be read. Answers true
    /// if there is anything: then the plan is not to be tried again as it is.
    pub(super) fn find_unreadable(
        &self,
        plan: &Plan,
        obstacles: &mut Obstacles,
    ) -> Result<bool, VtError> {
        let mut is_found = false;
        for table in plan.inputs() {
            is_found |= self.probe(table, obstacles)?;
        }
        Ok(is_found)
    }

    fn probe(&self, handle: &TableHandle, obstacles: &mut Obstacles) -> Result<bool, VtError> {
        let index = match self.index_of(handle) {
            Ok(index) => index,
            Err(error) if is_damage(&error) => {
                self.counters.unreadable_tables.add(1);
                obstacles.unreadable.insert(handle.meta().id);
                let meta = handle.meta();
                tracing::error!(
                    tree = %meta.tree,
                    table = %meta.id,
                    from = %meta.smallest.escape_ascii(),
                    to = %meta.largest.escape_ascii(),
                    %error,
                    "the index of a table cannot be read: none of its rows can; compactions go \
                     around it"
                );
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let mut is_found = false;
        for block in index {
            if self.signals.is_stopped() {
                return Err(VtError::Closing);
            }
            let Err(error) = self.table(handle).probe_block(&block) else {
                continue;
            };
            if !is_damage(&error) {
                return Err(error);
            }
            is_found = true;
            obstacles.to_part.insert(handle.meta().id);
            if obstacles.add_block(&block) {
                self.counters.unreadable_blocks.add(1);
                tracing::error!(
                    tree = %handle.meta().tree,
                    from = %block.first.escape_ascii(),
                    to = %block.last.escape_ascii(),
                    %error,
                    "a data block cannot be read: its rows are lost; compactions go around it"
                );
            }
        }
        Ok(is_found)
    }

    /// All of a table but its data blocks.
    fn index_of(&self, handle: &TableHandle) -> Result<Vec<IndexEntry>, VtError> {
        let table = self.table(handle);
        table.range_deletes()?;
        table.index_entries(&[], None)
    }
}
