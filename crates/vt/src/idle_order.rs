//! Order steps while the store is idle.
//!
//! - They begin after 5 s without a commit. Each takes a turn of its own and moves 8 MiB at most,
//!   so that a commit soon finds the store as it was.
//! - The device rests after each for three times as long as it took.
//! - A table is worth a step only if much of it is scattered.
//! - All that is written is paid for by what was committed before. So a program that changes a few
//!   pages every now and then does not have whole windows written for each of them. What is found
//!   scattered at the beginning of a life was committed in earlier ones: it is paid for, too. A
//!   store that was merged and only begun to be ordered is read worse than before.

use crate::VtError;
use crate::compaction::Pressure;
use crate::key_order::StepRules;
use crate::store::Store;
use crate::version::TableHandle;
use std::time::Duration;
use stitch_base::TableId;

/// Steps begin after this time without a commit.
const QUIET_AFTER: Duration = Duration::from_secs(5);
/// Most that one step moves.
const STEP_BYTES: u64 = 8 << 20;
/// A table is worth a step if one part in this many of its values is scattered, or enough bytes for
/// a whole step.
const MIN_HOLE_PART: u64 = 8;
/// Rest this many times as long as a step took.
const REST_TIMES: u32 = 3;
/// Tables measured at a time.
const MEASURED: usize = 16;
/// What a store may write for order in one life, for each byte that is committed in it ...
const WRITTEN_TIMES: u64 = 8;
/// ... and beside that, for what is not measured yet.
const WRITTEN_BYTES: u64 = 256 << 20;

/// Order steps of the background, and what they go by.
#[derive(Debug, Default)]
pub(crate) struct IdleOrder {
    /// Commits at the last look.
    commits: u64,
    quiet_since: Duration,
    rest_until: Duration,
    /// Bytes written so far.
    pub(crate) written_bytes: u64,
    /// Bytes of scattered windows when all tables were measured for the first time.
    found_bytes: Option<u64>,
    /// Number of the next table when nothing was to be done.
    done_at: Option<TableId>,
}

impl IdleOrder {
    /// Returns that of a store that was opened now.
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            quiet_since: now,
            ..Self::default()
        }
    }

    /// Does one step, if it is time to and there is one. Returns true if it did.
    pub(crate) fn look(&mut self, store: &Store) -> Result<bool, VtError> {
        let clock = &store.options.clock;
        let begin = clock.monotonic();
        let commits = store.counters.commits.get();
        debug_assert!(commits >= self.commits, "counters rise");
        debug_assert!(begin >= self.quiet_since, "time goes on");
        if std::mem::replace(&mut self.commits, commits) != commits {
            self.quiet_since = begin;
        }
        let is_quiet = begin.saturating_sub(self.quiet_since) >= QUIET_AFTER;
        if !is_quiet || begin < self.rest_until || !self.may_write(store) {
            return Ok(false);
        }
        if self.done_at == Some(store.tables.next_id()) {
            return Ok(false);
        }
        let Some(_one_at_a_time) = store.member.pool.evacuation.try_lock() else {
            return Ok(false);
        };
        let before = store.counters.merged_bytes.get();
        let has_worked = self.step(store)?;
        self.done_at = (!has_worked).then(|| store.tables.next_id());
        self.written_bytes += store.counters.merged_bytes.get() - before;
        let end = clock.monotonic();
        debug_assert!(end >= begin, "time goes on");
        self.rest_until = end + end.saturating_sub(begin) * REST_TIMES;
        Ok(has_worked)
    }

    /// Has the next look find out anew whether there is anything to be done.
    pub(crate) fn forget(&mut self) {
        self.done_at = None;
    }

    /// Returns one that has written this many bytes.
    #[cfg(test)]
    pub(crate) fn after_writing(written_bytes: u64) -> Self {
        Self {
            written_bytes,
            ..Self::default()
        }
    }

    /// Reports whether what was committed pays for more.
    fn may_write(&self, store: &Store) -> bool {
        const { assert!(STEP_BYTES < WRITTEN_BYTES, "the first steps are paid for") };
        let put = store.counters.put_bytes.get();
        // A step writes indexes beside the values that it moves.
        let found = self.found_bytes.unwrap_or(0);
        let paid = put.saturating_mul(WRITTEN_TIMES).max(found + found / 4);
        self.written_bytes + STEP_BYTES <= paid.saturating_add(WRITTEN_BYTES)
    }

    /// Does what is due first: a write-out, a merge, a measurement, or an order step.
    fn step(&mut self, store: &Store) -> Result<bool, VtError> {
        let is_worth = |table: &TableHandle, scattered: u64| {
            let part = table.meta().value_bytes / MIN_HOLE_PART;
            debug_assert!(
                scattered > 0,
                "a table that is asked about has scattered bytes"
            );
            scattered >= part.min(STEP_BYTES)
        };
        if store.write_outs.seal_values()? || store.compactor.compact(Pressure::Order, false)? {
            return Ok(true);
        }
        if store.key_order.measure(MEASURED) == MEASURED {
            return Ok(true);
        }
        let found = || store.key_order.scattered_bytes();
        self.found_bytes.get_or_insert_with(found);
        let rules = StepRules {
            bytes_max: STEP_BYTES,
            is_worth: &is_worth,
        };
        Ok(store.key_order.order_one(rules)? > 0)
    }
}
