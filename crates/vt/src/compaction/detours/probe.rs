//! Finds out what of a compaction's inputs cannot be read, after the compaction failed.

use super::Detours;
use crate::VtError;
use crate::compaction::Compactor;
use crate::compaction::picker::Plan;
use crate::compaction::run::{is_damage, upper_ids};
use crate::version::TableHandle;
use stitch_base::ErrorKind;
use stitch_format::vt_index::IndexEntry;

/// What of a plan's inputs cannot be read. The later, the more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unreadable {
    Nothing,
    /// Only what was known before: going around it must have failed.
    Known,
    /// Something that was not known: the next plan will be another.
    New,
}

impl Compactor {
    /// After a plan has failed: finds out whether there is a way around what it failed at. The
    /// next plan takes it.
    ///
    /// # Errors
    /// `error`, if there is no way around it; then the store takes no more writes.
    pub(in crate::compaction) fn go_around(
        &self,
        plan: &Plan,
        error: VtError,
    ) -> Result<(), VtError> {
        debug_assert!(
            !matches!(error, VtError::Closed),
            "a closed store is no failure"
        );
        // Nothing is picked before that is known.
        let exclusions = &mut self.scheduler.lock().exclusions;
        let found = match !self.gate.is_failed() && is_damage(&error) {
            true => self.find_unreadable(plan, &mut exclusions.detours)?,
            false => Unreadable::Nothing,
        };
        if found == Unreadable::New {
            return Ok(());
        }
        let may_pass = found == Unreadable::Known || error.kind() == ErrorKind::Io;
        if may_pass && self.gate.check_writable().is_ok() {
            // All could be read now, or going around what cannot be failed; later it may not.
            tracing::warn!(%error, %plan, "a compaction is put off");
            exclusions.avoided.extend(upper_ids(plan));
            return Ok(());
        }
        self.gate.fail(&error);
        Err(error)
    }

    /// Reads all that goes into a plan, block by block, and notes what cannot be read.
    fn find_unreadable(&self, plan: &Plan, detours: &mut Detours) -> Result<Unreadable, VtError> {
        debug_assert!(!plan.upper.is_empty(), "a plan has inputs");
        let mut found = Unreadable::Nothing;
        for table in plan.inputs() {
            found = found.max(self.probe(table, detours)?);
        }
        debug_assert!(
            found == Unreadable::Nothing || !detours.is_empty(),
            "what cannot be read is noted"
        );
        Ok(found)
    }

    fn probe(&self, handle: &TableHandle, detours: &mut Detours) -> Result<Unreadable, VtError> {
        let index = match self.index_of(handle) {
            Ok(index) => index,
            Err(error) if is_damage(&error) => {
                if !detours.add_table(handle.meta().id) {
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
            debug_assert!(
                block.first <= block.last,
                "the keys of a block are in order"
            );
            if self.signals.is_stopped() {
                return Err(VtError::Closed);
            }
            let Err(error) = self.tables.reader(handle).probe_block(&block) else {
                continue;
            };
            if !is_damage(&error) {
                return Err(error);
            }
            let is_new = detours.part_later(handle.meta().id);
            found = found.max(match is_new {
                true => Unreadable::New,
                false => Unreadable::Known,
            });
            if detours.add_block(&block) {
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
