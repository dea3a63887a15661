//! Stored records of the RocksDB engine: its catalog of trees, and the marks of values and deltas.
//!
//! | column family | key | value |
//! |---|---|---|
//! | `default` | `v` | version of this layout (u32) |
//! | `default` | `n` | number of the next tree (u32) |
//! | `default` | `t`, tree (u32, big-endian) | [`TreeRecord`] |
//! | `t` and the tree's number in decimal | the user's key | [`PRESENT`], value; or [`ABSENT`] |
//!
//! An upsert is a merge operand: number of its function (u32) and delta. A merge cannot delete a
//! key, so a fold that leaves nothing stores [`ABSENT`]; a compaction removes it.

use crate::FormatError;
use crate::codec::Reader;
use stitch_base::TreeId;

/// Version of the layout that this program writes and reads.
pub const VERSION: u32 = 1;
/// Key of the version in the default column family.
pub const VERSION_KEY: &[u8] = b"v";
/// Key of the next tree number in the default column family.
pub const NEXT_TREE_KEY: &[u8] = b"n";
/// First byte of the keys of tree records in the default column family.
pub const TREE_KEY: u8 = b't';
/// First byte of a stored value that is there.
pub const PRESENT: u8 = 1;
/// A stored value that says that the key is absent.
pub const ABSENT: u8 = 0;

const FUNCTION_BYTES: usize = 4;
const RECORD: &str = "tree of a RocksDB store";

/// A tree in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeRecord {
    /// Size of a data block, in bytes.
    pub block_bytes: u32,
    /// Stitching threshold, in bytes; kept, and of no use to this engine.
    pub stitch_bytes: u64,
    /// 0 none, 1 LZ4, 2 Zstandard.
    pub compression: u8,
    /// Shortest value with a block of its own; kept, and of no use to this engine.
    pub value_block_bytes: u32,
    /// Its name.
    pub name: String,
}

impl TreeRecord {
    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17 + self.name.len());
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
        out.extend_from_slice(&self.stitch_bytes.to_le_bytes());
        out.push(self.compression);
        out.extend_from_slice(&self.value_block_bytes.to_le_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Returns the record in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] for bytes that are no record.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(RECORD, bytes);
        let block_bytes = reader.u32()?;
        let stitch_bytes = reader.u64()?;
        let compression = reader.u8()?;
        let value_block_bytes = reader.u32()?;
        if compression > 2 {
            return Err(reader.field("compression", "0 to 2", compression.to_string()));
        }
        let rest = reader.rest();
        let Ok(name) = std::str::from_utf8(rest) else {
            return Err(reader.field("name", "UTF-8", rest.escape_ascii().to_string()));
        };
        Ok(Self {
            block_bytes,
            stitch_bytes,
            compression,
            value_block_bytes,
            name: name.to_owned(),
        })
    }
}

/// Returns the catalog's key of a tree.
#[must_use]
pub fn tree_key(tree: TreeId) -> [u8; 5] {
    let [a, b, c, d] = tree.0.to_be_bytes();
    [TREE_KEY, a, b, c, d]
}

/// Returns the tree of a catalog's key.
#[must_use]
pub fn tree_of_key(key: &[u8]) -> Option<TreeId> {
    let (kind, number) = key.split_first()?;
    let number = number.try_into().ok().map(u32::from_be_bytes)?;
    (*kind == TREE_KEY && number > 0).then_some(TreeId(number))
}

/// Returns the name of the column family of a tree.
#[must_use]
pub fn family_name(tree: TreeId) -> String {
    format!("t{}", tree.0)
}

/// Returns the tree of a column family; `None` for the default one and for others' names.
#[must_use]
pub fn tree_of_family(name: &str) -> Option<TreeId> {
    let number = name.strip_prefix('t')?.parse().ok()?;
    let tree = TreeId(number);
    (number > 0 && family_name(tree) == name).then_some(tree)
}

/// Returns the value behind its mark, `None` if it says that the key is absent.
///
/// # Errors
/// [`FormatError`] for a mark that is neither.
pub fn value_of(stored: &[u8]) -> Result<Option<&[u8]>, FormatError> {
    match stored.split_first() {
        Some((&PRESENT, value)) => Ok(Some(value)),
        Some((&ABSENT, [])) => Ok(None),
        other => {
            let reader = Reader::new("value of a RocksDB store", stored);
            let found = other.map_or("nothing".to_owned(), |(mark, _)| mark.to_string());
            Err(reader.field("mark", "0 alone, or 1", found))
        }
    }
}

/// Returns function and delta of a merge operand, `None` if it is too short for one.
#[must_use]
pub fn operand_of(operand: &[u8]) -> Option<(u32, &[u8])> {
    let (function, delta) = operand.split_at_checked(FUNCTION_BYTES)?;
    let function = function.try_into().ok()?;
    Some((u32::from_le_bytes(function), delta))
}

/// Returns what stands before the delta in a merge operand.
#[must_use]
pub const fn operand_head(function: u32) -> [u8; FUNCTION_BYTES] {
    function.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_these_bytes() {
        let record = TreeRecord {
            block_bytes: 0x0102_0304,
            stitch_bytes: 5,
            compression: 2,
            value_block_bytes: 6,
            name: "ab".to_owned(),
        };
        let bytes = record.encode();
        assert_eq!(
            bytes,
            [
                4, 3, 2, 1, 5, 0, 0, 0, 0, 0, 0, 0, 2, 6, 0, 0, 0, b'a', b'b'
            ]
        );
        assert_eq!(TreeRecord::decode(&bytes).ok(), Some(record));
        assert_eq!(tree_key(TreeId(0x0a0b)), [b't', 0, 0, 0x0a, 0x0b]);
        assert_eq!(operand_head(0x0102), [2, 1, 0, 0]);
        assert_eq!(family_name(TreeId(17)), "t17");
    }

    #[test]
    fn any_bytes_give_a_record_or_an_error() {
        for len in 0..17 {
            assert!(TreeRecord::decode(&[0; 17][..len]).is_err());
        }
        let mut bytes = [0; 18];
        bytes[12] = 3;
        assert!(TreeRecord::decode(&bytes).is_err(), "a compression of 3");
        bytes[12] = 0;
        bytes[17] = 0xff;
        assert!(
            TreeRecord::decode(&bytes).is_err(),
            "a name that is no UTF-8"
        );
    }

    #[test]
    fn names_and_keys_lead_back() {
        assert_eq!(tree_of_key(&tree_key(TreeId(9))), Some(TreeId(9)));
        assert_eq!(tree_of_key(b"t123"), None);
        assert_eq!(tree_of_key(b"v\0\0\0\x01"), None);
        assert_eq!(tree_of_family("t17"), Some(TreeId(17)));
        for other in ["default", "t0", "t017", "t+1", "x1", "t"] {
            assert_eq!(tree_of_family(other), None, "{other}");
        }
    }

    #[test]
    fn marks_and_operands_are_checked() {
        assert_eq!(value_of(&[PRESENT, 7]).ok(), Some(Some(&[7][..])));
        assert_eq!(value_of(&[ABSENT]).ok(), Some(None));
        for wrong in [&[][..], &[2], &[ABSENT, 1]] {
            assert!(value_of(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(operand_of(&[1, 0, 0, 0, 9]), Some((1, &[9][..])));
        assert_eq!(operand_of(&[1, 0, 0]), None);
    }
}
