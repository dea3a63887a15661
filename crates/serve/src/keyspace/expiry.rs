//! Keys whose time is over.

use super::{Keyspace, Value};
use crate::error::CommandError;
use crate::pending::RowRange;
use std::ops::ControlFlow;
use stitch_db::Direction;
use stitch_format::redis;

impl Keyspace {
    pub(super) const fn is_over(&self, expiry_ms: u64) -> bool {
        expiry_ms > 0 && expiry_ms <= self.now_ms
    }

    /// The rows of keys whose time is over.
    fn rows_over(&self) -> RowRange {
        let (start, _) = redis::all_rows(redis::EXPIRIES);
        RowRange {
            start: start.to_vec(),
            end: redis::expiry_row(self.now_ms.saturating_add(1), &[]),
        }
    }

    /// Number of keys whose time is over and that were not removed yet.
    pub(super) fn count_over(&self) -> Result<u64, CommandError> {
        let mut count = 0;
        if self.totals.expiries == 0 || self.now_ms < self.next_expiry_ms {
            return Ok(count);
        }
        self.rows
            .scan(&self.rows_over(), Direction::Forward, |_, _| {
                count += 1;
                ControlFlow::Continue(())
            })?;
        Ok(count)
    }

    /// Milliseconds until a key expires, at least; `None` while none will.
    pub(crate) const fn until_expiry_ms(&self) -> Option<u64> {
        if self.totals.expiries == 0 || self.branch.is_some() {
            return None;
        }
        Some(self.next_expiry_ms.saturating_sub(self.now_ms))
    }

    /// Removes at most `count_max` keys whose time is over. Returns how many. In a transaction
    /// none: mainline does so, and two that remove the same would conflict.
    pub(crate) fn reclaim(&mut self, count_max: usize) -> Result<usize, CommandError> {
        if self.branch.is_some() || self.totals.expiries == 0 || self.now_ms < self.next_expiry_ms {
            return Ok(0);
        }
        let (keys, next_ms) = self.find_over(count_max)?;
        for key in &keys {
            // Not `value`: that is `None` for a key whose time is over.
            if let Some(row) = self.rows.get(&redis::key_row(key))? {
                let value = Value::decode(&row)?;
                self.remove_value(key, &value)?;
            }
        }
        self.next_expiry_ms = next_ms;
        Ok(keys.len())
    }

    /// Finds keys whose time is over, and when the one after them expires.
    fn find_over(&self, count_max: usize) -> Result<(Vec<Vec<u8>>, u64), CommandError> {
        let (start, end) = redis::all_rows(redis::EXPIRIES);
        let all = RowRange {
            start: start.to_vec(),
            end: end.to_vec(),
        };
        let mut keys = Vec::new();
        let mut next_ms = u64::MAX;
        self.rows.scan(&all, Direction::Forward, |row, _| {
            let Some((expiry_ms, key)) = redis::expiry_of_row(row) else {
                return ControlFlow::Continue(());
            };
            if keys.len() == count_max || !self.is_over(expiry_ms) {
                next_ms = expiry_ms;
                return ControlFlow::Break(());
            }
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok((keys, next_ms))
    }
}
