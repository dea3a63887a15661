//! The root block of a VT-tree table, to which a version points.
//!
//! Numbers are varints unless said otherwise, keys byte strings.
//!
//! | part | layout |
//! |---|---|
//! | version | u8: 1 |
//! | identity | table, tree |
//! | counts | entries, deletes, range deletes, bytes of data blocks |
//! | range deletes | count of blocks, of each: block (see [`BlockPtr`]) |
//! | kind of index | u8: 0 none, 1 in this root, 2 in leaves |
//! | index in root | the payload of an index block, to the end |
//! | index in leaves | count, of each: last key, block |

use crate::FormatError;
use crate::codec::{Reader, put_bytes, put_varint};
use crate::vt_index::BlockPtr;
use std::ops::Range;
use stitch_base::{TableId, TreeId};

const RECORD: &str = "table root block";
const VERSION: u8 = 1;

/// An index block of a table with several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Last key of its last data block.
    pub last: Vec<u8>,
    /// Pointer to the block.
    pub block: BlockPtr,
}

/// The index of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootIndex {
    /// No data blocks: the table has only range deletes.
    None,
    /// The payload of the only index block, as a range of the root's payload.
    Inside(Range<usize>),
    /// Index blocks, in key order.
    Leaves(Vec<Leaf>),
}

/// A table's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRoot {
    /// The table's number.
    pub id: TableId,
    /// Its tree.
    pub tree: TreeId,
    /// Number of entries.
    pub entry_count: u64,
    /// Number of those that are deletes.
    pub delete_count: u64,
    /// Number of range deletes.
    pub range_delete_count: u64,
    /// Bytes of data blocks on the device.
    pub data_bytes: u64,
    /// Blocks of range deletes.
    pub range_deletes: Vec<BlockPtr>,
    /// Its index.
    pub index: RootIndex,
}

impl TableRoot {
    /// The root as bytes. `inside` is the index block's payload if it is to be in the root; then
    /// [`RootIndex::Inside`] is expected, with any range.
    ///
    /// # Panics
    /// If `inside` and `index` contradict each other.
    #[must_use]
    pub fn encode(&self, inside: &[u8]) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.id.0);
        put_varint(&mut out, u64::from(self.tree.0));
        for number in [
            self.entry_count,
            self.delete_count,
            self.range_delete_count,
            self.data_bytes,
        ] {
            put_varint(&mut out, number);
        }
        put_varint(&mut out, self.range_deletes.len() as u64);
        for block in &self.range_deletes {
            block.put(&mut out);
        }
        let is_inside = matches!(self.index, RootIndex::Inside(_));
        assert_eq!(
            is_inside,
            !inside.is_empty(),
            "an index in the root is given"
        );
        match &self.index {
            RootIndex::None => out.push(0),
            RootIndex::Inside(_) => {
                out.push(1);
                out.extend_from_slice(inside);
            }
            RootIndex::Leaves(leaves) => {
                out.push(2);
                put_varint(&mut out, leaves.len() as u64);
                for leaf in leaves {
                    put_bytes(&mut out, &leaf.last);
                    leaf.block.put(&mut out);
                }
            }
        }
        out
    }

    /// Reads a root.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(RECORD, bytes);
        let version = reader.u8()?;
        if version > VERSION {
            return Err(FormatError::Newer {
                record: RECORD,
                found: u32::from(version),
                supported: u32::from(VERSION),
            });
        }
        if version != VERSION {
            return Err(reader.field("version", "1", version.to_string()));
        }
        let r = &mut reader;
        let id = TableId(r.varint()?);
        let tree = r.varint()?;
        let tree = u32::try_from(tree)
            .map_err(|_| r.field("tree", "at most 32 bits", tree.to_string()))?;
        let mut root = Self {
            id,
            tree: TreeId(tree),
            entry_count: r.varint()?,
            delete_count: r.varint()?,
            range_delete_count: r.varint()?,
            data_bytes: r.varint()?,
            range_deletes: Vec::new(),
            index: RootIndex::None,
        };
        for _ in 0..r.varint()? {
            root.range_deletes.push(BlockPtr::read(r)?);
        }
        root.index = read_index(r, bytes.len())?;
        reader.finish()?;
        Ok(root)
    }
}

fn read_index(r: &mut Reader<'_>, len: usize) -> Result<RootIndex, FormatError> {
    match r.u8()? {
        0 => Ok(RootIndex::None),
        1 => {
            let at = r.at();
            r.take(len - at)?;
            Ok(RootIndex::Inside(at..len))
        }
        2 => {
            let mut leaves: Vec<Leaf> = Vec::new();
            for _ in 0..r.varint()? {
                let last = r.bytes()?.to_vec();
                let block = BlockPtr::read(r)?;
                if leaves.last().is_some_and(|before| before.last > last) {
                    return Err(r.field("leaves", "in key order", "out of order".to_owned()));
                }
                leaves.push(Leaf { last, block });
            }
            if leaves.is_empty() {
                return Err(r.field("leaves", "some", "none".to_owned()));
            }
            Ok(RootIndex::Leaves(leaves))
        }
        other => Err(r.field("kind of index", "0 to 2", other.to_string())),
    }
}

#[cfg(test)]
mod tests;
