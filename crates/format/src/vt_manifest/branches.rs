//! Branch trees: where a tree reads what it does not hold.

use super::{counter, tree_id};
use crate::FormatError;
use crate::codec::{Reader, put_varint};
use stitch_base::{Seqno, TreeId};

/// Where a branch tree begins, as a version lists it. In the order of the layout:
///
/// | part | layout |
/// |---|---|
/// | parent | number of the tree that it reads; 0 for a tree without a parent, and nothing follows |
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

#[cfg(test)]
#[path = "branches/tests.rs"]
mod tests;
