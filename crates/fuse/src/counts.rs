//! Counts requests by opcode.

use std::fmt;

use stitch_base::sync::atomic::{AtomicU64, Ordering};

use crate::wire::opcode::{OPCODE_COUNT, Opcode};
use crate::write_back::WriteBackCounts;

/// Counters by opcode. Counting costs one atomic add.
#[derive(Debug)]
pub struct RequestCounts {
    by_opcode: [AtomicU64; OPCODE_COUNT],
    write_back: WriteBackCounts,
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self {
            by_opcode: std::array::from_fn(|_| AtomicU64::new(0)),
            write_back: WriteBackCounts::default(),
        }
    }
}

impl RequestCounts {
    /// Counts a request; unknown opcodes count as number 0.
    pub fn count(&self, opcode: u32) {
        let slot = usize::try_from(opcode)
            .ok()
            .and_then(|slot| self.by_opcode.get(slot));
        slot.unwrap_or(&self.by_opcode[0])
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts of write-back from the kernel's cache.
    pub(crate) const fn write_back(&self) -> &WriteBackCounts {
        &self.write_back
    }

    /// Returns the current counts.
    #[must_use]
    pub fn snapshot(&self) -> CountsSnapshot {
        CountsSnapshot {
            by_opcode: std::array::from_fn(|slot| self.by_opcode[slot].load(Ordering::Relaxed)),
        }
    }
}

/// Counts at one moment, or between two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CountsSnapshot {
    by_opcode: [u64; OPCODE_COUNT],
}

impl CountsSnapshot {
    /// The number of requests with one opcode.
    #[must_use]
    pub const fn get(&self, opcode: Opcode) -> u64 {
        self.by_opcode[opcode as usize]
    }

    /// The number of requests with unknown opcodes.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.by_opcode[0]
    }

    /// The number of all requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_opcode.iter().sum()
    }

    /// Returns the difference to an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |slot: usize| self.by_opcode[slot].saturating_sub(earlier.by_opcode[slot]);
        Self {
            by_opcode: std::array::from_fn(difference),
        }
    }

    /// Returns the counts without one opcode.
    #[must_use]
    pub const fn without(mut self, opcode: Opcode) -> Self {
        self.by_opcode[opcode as usize] = 0;
        self
    }

    /// Iterates over the opcodes that came, with their names and counts, in order of the opcodes.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let known = Opcode::ALL
            .iter()
            .map(|&opcode| (opcode.name(), self.get(opcode)));
        known
            .chain([("UNKNOWN", self.unknown())])
            .filter(|&(_, count)| count > 0)
    }
}

impl fmt::Display for CountsSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, count)) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{name} {count}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for CountsSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_names_what_came_in_between() {
        let counts = RequestCounts::default();
        counts.count(Opcode::Lookup as u32);
        let before = counts.snapshot();
        counts.count(Opcode::Write as u32);
        counts.count(Opcode::Lookup as u32);
        counts.count(4096);
        let delta = counts.snapshot().since(&before);
        assert_eq!(delta.to_string(), "LOOKUP 1, WRITE 1, UNKNOWN 1");
        assert_eq!(delta.total(), 3);
    }
}
