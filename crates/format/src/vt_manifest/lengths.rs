//! The length of a base, without encoding it.

use super::{TableMeta, TreeRecord, VERSION_PLAIN, put_tree};
use crate::codec::varint_bytes;

/// Lengths of the parts of a base, in each version of the layout, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BaseBytes {
    plain: u64,
    full: u64,
}

impl BaseBytes {
    /// The most that a base takes without trees and tables: its version, counters and counts.
    const HEAD: u64 = 1 + 3 * 10 + 6 * 10;

    /// Returns the most that a base takes of which these are all trees and tables, where all are
    /// `plain`, as [`super::VersionEdit::is_of_version_1`] reports, or not.
    #[must_use]
    pub const fn of_base(&self, plain: bool) -> u64 {
        let parts = if plain { self.plain } else { self.full };
        Self::HEAD + parts
    }
}

impl std::ops::Add for BaseBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            plain: self.plain + other.plain,
            full: self.full + other.full,
        }
    }
}

impl std::iter::Sum for BaseBytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), std::ops::Add::add)
    }
}

impl TreeRecord {
    /// Returns what a base takes to list the tree, without its parent: see
    /// [`super::BranchRecord::BYTES_MAX`].
    #[must_use]
    pub fn base_bytes(&self) -> BaseBytes {
        let mut out = Vec::new();
        put_tree(&mut out, self, VERSION_PLAIN);
        let plain = out.len() as u64;
        BaseBytes {
            plain,
            full: plain + varint_bytes(u64::from(self.value_block_bytes)) as u64,
        }
    }

    /// Reports whether edits of the first layout can list the tree.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.compression <= super::COMPRESSION_MAX_VERSION_1
            && self.value_block_bytes == 0
            && self.branch.is_none()
    }
}

impl TableMeta {
    /// The most that a base takes for the shift of a table that has one.
    pub const SHIFT_BYTES_MAX: u64 = 10;
    /// What a base takes to say that a table has no shift, where any table has one.
    pub const NO_SHIFT_BYTES: u64 = 1;

    /// Returns what a base takes to list the table and its level, without its shift.
    #[must_use]
    pub fn base_bytes(&self) -> BaseBytes {
        let numbers = [
            self.id.0,
            u64::from(self.tree.0),
            self.smallest.len() as u64,
            self.largest.len() as u64,
            self.entry_count,
            self.delete_count,
            self.range_delete_count,
            self.data_bytes,
            self.min_seqno.0,
            self.max_seqno.0,
            self.runs.len() as u64,
        ];
        let numbers: usize = numbers.into_iter().map(varint_bytes).sum();
        // The level, the flags and the root block.
        let fixed = 1 + 1 + 8 + 4;
        let common = (fixed + numbers + self.smallest.len() + self.largest.len()) as u64;
        let runs = self.runs.iter();
        let plain_runs: usize = runs.map(|run| 8 + varint_bytes(run.len_bytes)).sum();
        BaseBytes {
            plain: common + plain_runs as u64,
            full: common + varint_bytes(self.value_bytes) as u64 + self.run_list_bytes(),
        }
    }
}
