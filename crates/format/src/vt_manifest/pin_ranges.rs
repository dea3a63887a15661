//! Pins of key ranges: of some trees, such a pin holds ranges of keys alone.

use super::pins::{pin_id, put_trees, read_trees};
use super::{counter, list, tree_id};
use crate::FormatError;
use crate::codec::{Reader, put_bytes, put_varint};
use stitch_base::{PinId, TreeId};

/// Most ranges of one tree.
const RANGES_MAX: u64 = 256;

/// A range of keys: its first key, and the first key after it; `None` for no end.
pub type RangeRecord = (Vec<u8>, Option<Vec<u8>>);

/// A tree, and the ranges of its keys that a pin holds: in order, none empty, none touching
/// another.
pub type TreeRanges = (TreeId, Vec<RangeRecord>);

/// A pin that is there and holds less from now on. The layout is its number, its trees as those of
/// a new pin, and its ranges:
///
/// | part of the ranges | layout |
/// |---|---|
/// | trees | count, of each in ascending order: tree number, ranges |
/// | ranges of a tree | count (at most 256), of each in order: first key, end |
/// | end of a range | 0 for none; otherwise its length plus 1, and its bytes |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NarrowedPin {
    /// Its number.
    pub id: PinId,
    /// The trees whose moment it holds, in ascending order.
    pub trees: Vec<TreeId>,
    /// Those of them of which it holds ranges alone, in ascending order.
    pub ranges: Vec<TreeRanges>,
}

impl NarrowedPin {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.id.0);
        put_trees(out, Some(&self.trees));
        put_ranges(out, &self.ranges);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let id = pin_id(r)?;
        let trees = read_trees(r, TreeId(u32::MAX))?;
        let Some(trees) = trees else {
            return Err(r.field("trees of a narrowed pin", "listed", "all".to_owned()));
        };
        let ranges = read_ranges(r, Some(&trees))?;
        Ok(Self { id, trees, ranges })
    }
}

pub(super) fn put_ranges(out: &mut Vec<u8>, ranges: &[TreeRanges]) {
    debug_assert!(ranges.is_sorted_by(|a, b| a.0 < b.0), "trees are in order");
    put_varint(out, ranges.len() as u64);
    for (tree, ranges) in ranges {
        put_varint(out, u64::from(tree.0));
        put_tree_ranges(out, ranges);
    }
}

pub(super) fn put_tree_ranges(out: &mut Vec<u8>, ranges: &[RangeRecord]) {
    put_varint(out, ranges.len() as u64);
    for (start, end) in ranges {
        put_bytes(out, start);
        put_varint(out, end.as_ref().map_or(0, |end| 1 + end.len() as u64));
        out.extend_from_slice(end.as_deref().unwrap_or_default());
    }
}

/// Reads ranges of a pin that holds these trees; `None` for all.
pub(super) fn read_ranges(
    r: &mut Reader<'_>,
    trees: Option<&[TreeId]>,
) -> Result<Vec<TreeRanges>, FormatError> {
    let mut last = TreeId(0);
    list(r, |r| {
        let tree = tree_id(r)?;
        let is_held = trees.is_some_and(|trees| trees.binary_search(&tree).is_ok());
        if tree <= last || !is_held {
            let expected = "in ascending order, held by their pin";
            return Err(r.field("trees of ranges", expected, tree.to_string()));
        }
        last = tree;
        Ok((tree, read_tree_ranges(r)?))
    })
}

pub(super) fn read_tree_ranges(r: &mut Reader<'_>) -> Result<Vec<RangeRecord>, FormatError> {
    let count = counter(r)?;
    if count > RANGES_MAX {
        return Err(r.field("ranges of a pin", "at most 256", count.to_string()));
    }
    let mut ranges: Vec<RangeRecord> = Vec::new();
    for _ in 0..count {
        let start = r.bytes()?.to_vec();
        let end = read_end(r)?;
        let is_some = end.as_ref().is_none_or(|end| start < *end);
        let is_after = ranges.last().is_none_or(|(_, before)| {
            let before = before.as_ref();
            before.is_some_and(|before| *before < start)
        });
        if !is_some || !is_after {
            let expected = "in order, none empty, none touching another";
            return Err(r.field("ranges of a pin", expected, format!("{start:02x?}")));
        }
        ranges.push((start, end));
    }
    Ok(ranges)
}

fn read_end(r: &mut Reader<'_>) -> Result<Option<Vec<u8>>, FormatError> {
    let Some(len) = r.varint()?.checked_sub(1) else {
        return Ok(None);
    };
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    Ok(Some(r.take(len)?.to_vec()))
}

#[cfg(test)]
#[path = "pin_ranges/tests.rs"]
mod tests;
