//! The trees of a transaction, by their names, and the ranges that it has deleted.
//!
//! ```text
//! txn~N/meta, data, xattr, sys   branches of mainline's trees
//! txn~N/tree~P                   a branch of the tree of records with the number P
//! txn~N/ranges                   ranges of records that were deleted in N; made with the first
//! ```
//!
//! The keys of `ranges` are numbers (u64, big-endian), its values [`DeletedRange`]s.

use super::SCHEMA_PREFIX;
use crate::FormatError;
use crate::codec::Reader;
use stitch_base::TreeId;

/// Name of the tree of deleted ranges, behind the schema.
const RANGES: &str = "ranges";
/// What comes before the number of the parent in the name of a branch of a tree of records.
const RECORDS_PREFIX: &str = "tree~";
const RECORD: &str = "deleted range of a transaction";

/// What a tree of a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionTree {
    /// A branch of one of the file system's trees.
    Files,
    /// A branch of this tree of records.
    Records(TreeId),
    /// The deleted ranges.
    Ranges,
}

/// Returns the name of a transaction's branch of a tree of records.
#[must_use]
pub fn records_tree_name(number: u64, parent: TreeId) -> String {
    debug_assert!(parent.0 > 0, "tree 0 is never given out");
    format!("{SCHEMA_PREFIX}{number}/{RECORDS_PREFIX}{}", parent.0)
}

/// Returns the name of a transaction's tree of deleted ranges.
#[must_use]
pub fn ranges_tree_name(number: u64) -> String {
    format!("{SCHEMA_PREFIX}{number}/{RANGES}")
}

/// Returns the transaction that a tree of this name is of, and what it is there; `None` for a tree
/// that is of none.
#[must_use]
pub fn transaction_tree(name: &str) -> Option<(u64, TransactionTree)> {
    let (number, part) = name.strip_prefix(SCHEMA_PREFIX)?.split_once('/')?;
    let number = number.parse().ok()?;
    let tree = match part {
        RANGES => TransactionTree::Ranges,
        "meta" | "data" | "xattr" | "sys" => TransactionTree::Files,
        _ => TransactionTree::Records(TreeId(part.strip_prefix(RECORDS_PREFIX)?.parse().ok()?)),
    };
    Some((number, tree))
}

/// A range of records that was deleted in a transaction: `[start, end)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeletedRange {
    /// The tree of records, not its branch.
    pub tree: TreeId,
    /// First key of the range.
    pub start: Vec<u8>,
    /// First key after the range.
    pub end: Vec<u8>,
}

impl DeletedRange {
    /// Returns it as bytes: the tree and the length of the first key (u32 each, little-endian),
    /// then both keys.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(self.start < self.end, "an empty range deletes nothing");
        let mut out = Vec::with_capacity(8 + self.start.len() + self.end.len());
        out.extend_from_slice(&self.tree.0.to_le_bytes());
        let start_len = u32::try_from(self.start.len()).expect("keys are short");
        out.extend_from_slice(&start_len.to_le_bytes());
        out.extend_from_slice(&self.start);
        out.extend_from_slice(&self.end);
        out
    }

    /// Returns the range in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: no such range.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(RECORD, bytes);
        let tree = TreeId(reader.u32()?);
        let start_len = reader.u32()? as usize;
        let start = reader.take(start_len)?.to_vec();
        let end = bytes[8 + start_len..].to_vec();
        if tree.0 == 0 {
            return Err(reader.field("tree", "a number of a tree", "0".to_owned()));
        }
        if start >= end {
            return Err(reader.field("end", "behind the start", format!("{end:?}")));
        }
        Ok(Self { tree, start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        let cases = [
            (records_tree_name(7, TreeId(12)), "txn~7/tree~12"),
            (ranges_tree_name(7), "txn~7/ranges"),
        ];
        for (name, expected) in cases {
            assert_eq!(name, expected);
        }
        let of = |name: &str| transaction_tree(name);
        let records = TransactionTree::Records(TreeId(12));
        assert_eq!(of("txn~7/tree~12"), Some((7, records)));
        assert_eq!(of("txn~7/ranges"), Some((7, TransactionTree::Ranges)));
        assert_eq!(of("txn~7/meta"), Some((7, TransactionTree::Files)));
        for name in [
            "txn~7/tree~x",
            "txn~x/meta",
            "txn~7",
            "fs/meta",
            "txn~7/other",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }

    #[test]
    fn a_deleted_range_has_these_bytes_and_others_are_refused() {
        let range = DeletedRange {
            tree: TreeId(0x0102),
            start: b"a".to_vec(),
            end: b"bc".to_vec(),
        };
        let bytes = range.encode();
        assert_eq!(bytes, [2, 1, 0, 0, 1, 0, 0, 0, b'a', b'b', b'c']);
        assert_eq!(DeletedRange::decode(&bytes), Ok(range));
        for cut in 0..10 {
            assert!(DeletedRange::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(DeletedRange::decode(&[0, 0, 0, 0, 0, 0, 0, 0, 1]).is_err());
        assert!(DeletedRange::decode(&[1, 0, 0, 0, 1, 0, 0, 0, b'b', b'a']).is_err());
    }
}
