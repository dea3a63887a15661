//! Finds out what of a compaction's inputs cannot be read, after the compaction failed.

use super::Compactor;
use super::exclusions::Exclusions;
use super::picker::Plan;
use super::run::is_damage;
use crate::VtError;
use crate::version::TableHandle;
use stitch_format::vt_index::IndexEntry;

/// What of a plan's inputs cannot be read. The later, the more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unreadable {
    Nothing,
    /// Only what was known before: going around it must have failed.
    Known,
    /// Something that was not known: the next plan will be another.
    New,
}

impl Compactor {
    /// Reads all that goes into a plan, block by block, and notes what cannot be read.
    pub(super) fn find_unreadable(
        &self,
        plan: &Plan,
        exclusions: &mut Exclusions,
    ) -> Result<Unreadable, VtError> {
        let mut found = Unreadable::Nothing;
        for table in plan.inputs() {
            found = found.max(self.probe(table, exclusions)?);
        }
        Ok(found)
    }

    fn probe(
        &self,
        handle: &TableHandle,
        exclusions: &mut Exclusions,
    ) -> Result<Unreadable, VtError> {
        let index = match self.index_of(handle) {
            Ok(index) => index,
            Err(error) if is_damage(&error) => {
                if !exclusions.unreadable.insert(handle.meta().id) {
                    return Ok(Unreadable::Known);
                }
                self.counters.unreadable_tables.add(1);
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
                return Ok(Unreadable::New);
            }
            Err(error) => return Err(error),
        };
        let mut found = Unreadable::Nothing;
        for block in index {
            if self.signals.is_stopped() {
                return Err(VtError::Closed);
            }
            let Err(error) = self.tables.reader(handle).probe_block(&block) else {
                continue;
            };
            if !is_damage(&error) {
                return Err(error);
            }
            let is_new = exclusions.to_part.insert(handle.meta().id);
            found = found.max(match is_new {
                true => Unreadable::New,
                false => Unreadable::Known,
            });
            if exclusions.add_block(&block) {
                found = Unreadable::New;
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
        Ok(found)
    }

    /// All of a table but its data blocks.
    fn index_of(&self, handle: &TableHandle) -> Result<Vec<IndexEntry>, VtError> {
        let table = self.tables.reader(handle);
        table.range_deletes()?;
        table.index_entries(&[], None)
    }
}
