//! Branch trees: where a tree reads what it does not hold.

use super::pin_ranges::{RangeRecord, put_tree_ranges, read_tree_ranges};
use super::{counter, tree_id};
use crate::FormatError;
use crate::codec::{Reader, put_varint, varint_bytes};
use stitch_base::{Seqno, TreeId};

/// Where a branch tree begins, as a version lists it. In the order of the layout:
///
/// | part | layout |
/// |---|---|
/// | parent | number of the tree that it reads; 0 for none, and nothing follows |
/// | seqno | the last write to the parent that it sees |
///
/// The parent is made before the branch, so its number is less. It stays in the version, hidden if
/// it was dropped, until the edit that drops the last tree that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchRecord {
    /// The parent.
    pub parent: TreeId,
    /// The last write to the parent that it sees.
    pub seqno: Seqno,
}

impl BranchRecord {
    /// The most that a base takes for the parent of a branch tree.
    pub const BYTES_MAX: u64 = 5 + 10;
    /// What a base takes to say that a tree has no parent, where any tree has one.
    pub const NONE_BYTES: u64 = 1;
    /// What a base takes to say that a branch tree begins with all keys, where any has ranges.
    pub const ALL_KEYS_BYTES: u64 = 1;

    /// Returns what a base takes for the ranges of a branch tree, in bytes.
    #[must_use]
    pub fn ranges_bytes(ranges: &[RangeRecord]) -> u64 {
        let bytes = |len: usize| varint_bytes(len as u64) + len;
        let range = |(start, end): &RangeRecord| {
            let end = end
                .as_ref()
                .map_or(1, |end| varint_bytes(1 + end.len() as u64) + end.len());
            bytes(start.len()) + end
        };
        let all: usize = ranges.iter().map(range).sum();
        (1 + varint_bytes(ranges.len() as u64) + all) as u64
    }
}

pub(super) fn put_branch(out: &mut Vec<u8>, branch: Option<BranchRecord>) {
    let Some(BranchRecord { parent, seqno }) = branch else {
        return put_varint(out, 0);
    };
    debug_assert!(parent.0 > 0, "tree 0 is never given out");
    put_varint(out, u64::from(parent.0));
    put_varint(out, seqno.0);
}

/// Reads the parent of the tree `of`.
pub(super) fn read_branch(
    r: &mut Reader<'_>,
    of: TreeId,
) -> Result<Option<BranchRecord>, FormatError> {
    let parent = tree_id(r)?;
    if parent.0 == 0 {
        return Ok(None);
    }
    if parent >= of {
        return Err(r.field("parent", "a tree made before", parent.to_string()));
    }
    let seqno = Seqno(counter(r)?);
    Ok(Some(BranchRecord { parent, seqno }))
}

pub(super) fn put_branch_ranges(out: &mut Vec<u8>, ranges: Option<&[RangeRecord]>) {
    put_varint(out, u64::from(ranges.is_some()));
    if let Some(ranges) = ranges {
        put_tree_ranges(out, ranges);
    }
}

/// Reads the ranges of a branch tree; `None` for all keys.
pub(super) fn read_branch_ranges(
    r: &mut Reader<'_>,
) -> Result<Option<Vec<RangeRecord>>, FormatError> {
    match r.varint()? {
        0 => Ok(None),
        1 => Ok(Some(read_tree_ranges(r)?)),
        other => Err(r.field("ranges of a branch", "0 or 1", other.to_string())),
    }
}

#[cfg(test)]
#[path = "branches/tests.rs"]
mod tests;

#[cfg(test)]
#[path = "branches/ranges_tests.rs"]
mod ranges_tests;
