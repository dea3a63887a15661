//! An edit of a VT-tree store's version, as the payload of a version log object.
//!
//! A delta holds the edit from the version before; a base holds the edit from nothing. One codec
//! serves both. Numbers are varints unless said otherwise, keys and names byte strings.
//!
//! | part of an edit | layout |
//! |---|---|
//! | version | u8: 1 to 8, the lowest that the edit needs |
//! | counters | last seqno, next table number, next tree number |
//! | dropped trees | count, tree numbers; every table of theirs goes with them |
//! | new trees | count, tree descriptions |
//! | altered trees | count, tree descriptions with changed options; from version 2 on |
//! | pins | from version 3 on: see [`PinChanges`] |
//! | removed tables | count, table numbers |
//! | moved tables | count, of each: table number, new level (u8) |
//! | added tables | count, of each: level (u8), table |
//!
//! Parts are applied in this order.
//!
//! Version 1 is that of format 2.0. Version 2 adds altered trees, value blocks and Zstandard, 3
//! adds pins, 4 adds branch trees, 5 adds shifts of tables, 6 adds pins of some trees, 7 adds pins
//! of key ranges, 8 adds branch trees of key ranges.
//!
//! A tree description: number, name, block bytes, stitching threshold, compression (u8), and in
//! version 2 value block threshold. From version 4 on its parent follows: see [`BranchRecord`].
//! From version 8 on the ranges of a branch tree follow its parent: 0 for all keys; otherwise 1,
//! and ranges as those of a pin: see [`NarrowedPin`].
//!
//! A table: number, tree, smallest key, largest key, flags (u8,
//! bit 0: the largest key itself is not in it), counts of entries, deletes and range deletes, bytes
//! of data blocks, smallest and largest seqno, root block (address u64, length u32), count of runs,
//! of each run: address u64, length. From version 2 on the bytes of value blocks follow those of
//! data blocks, and runs are stored as sectors of 512 bytes: how many lie between the end of the
//! run before (of the first: the beginning of the device) and this one, and how many it has. From
//! version 5 on the shift follows the largest seqno.

use crate::FormatError;
use crate::block::ALIGN;
use crate::codec::{Reader, put_bytes, put_varint, varint_bytes};
pub use branches::BranchRecord;
use branches::{put_branch, put_branch_ranges, read_branch, read_branch_ranges};
pub use lengths::BaseBytes;
pub use pin_ranges::{NarrowedPin, RangeRecord, TreeRanges};
pub use pins::{HIDDEN_TREE_BYTES_MAX, PinChanges, PinRecord};
use runs::{exact, read_runs, run_numbers};
use std::sync::Arc;
use stitch_base::{Seqno, TableId, TreeId};

mod branches;
mod features;
mod lengths;
mod pin_ranges;
mod pins;
mod runs;
mod shifts;

/// The layout of every edit that needs no other.
const VERSION_PLAIN: u8 = 1;
/// With altered trees and value blocks.
const VERSION_VALUES: u8 = 2;
/// With pins.
const VERSION_PINS: u8 = 3;
/// With branch trees.
const VERSION_BRANCHES: u8 = 4;
/// With shifts of tables.
const VERSION_SHIFTS: u8 = 5;
/// With pins of some trees.
const VERSION_SCOPES: u8 = 6;
/// With pins of key ranges.
const VERSION_RANGES: u8 = 7;
/// With branch trees of key ranges.
const VERSION: u8 = 8;
const SECTOR_BYTES: u64 = ALIGN;
const LARGEST_EXCLUDED: u8 = 1;
const COMPRESSION_MAX_VERSION_1: u8 = 1;
const COMPRESSION_MAX: u8 = 2;
/// Most entries of a table: more than a device has room for.
const COUNT_MAX: u64 = 1 << 40;
/// Largest seqno, and largest table number: no store counts up to it.
const NUMBER_MAX: u64 = 1 << 62;
/// Number of levels that a tree can have.
pub const LEVEL_COUNT: u8 = 8;

/// An extent of the device that belongs to one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// Offset on the device, in bytes.
    pub addr: u64,
    /// Length in bytes; not 0.
    pub len_bytes: u64,
}

impl Run {
    /// Offset after the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.addr.saturating_add(self.len_bytes)
    }

    /// Reports whether they share any byte.
    #[must_use]
    pub const fn meets(&self, other: &Self) -> bool {
        self.addr < other.end() && other.addr < self.end()
    }
}

/// Everything about a table that is known without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Its number, never reused.
    pub id: TableId,
    /// The tree that it belongs to.
    pub tree: TreeId,
    /// Smallest key of any entry or range delete.
    pub smallest: Vec<u8>,
    /// Largest key of any entry, or end of a range delete beyond it.
    pub largest: Vec<u8>,
    /// True where `largest` is the end of a range delete, hence not in the table.
    pub largest_excluded: bool,
    /// Number of entries: versions of keys, of every kind.
    pub entry_count: u64,
    /// Number of those that are deletes.
    pub delete_count: u64,
    /// Number of range deletes.
    pub range_delete_count: u64,
    /// Bytes of its data blocks on the device.
    pub data_bytes: u64,
    /// Of these, bytes of value blocks, which no compaction copies.
    pub value_bytes: u64,
    /// Smallest sequence number in it, the shift included.
    pub min_seqno: Seqno,
    /// Largest sequence number in it, the shift included.
    pub max_seqno: Seqno,
    /// What every sequence number in its blocks counts more than it says there. 0 but for tables
    /// that an absorb has moved from a branch tree: their root names that tree.
    pub shift: u64,
    /// Address of the root block.
    pub root_addr: u64,
    /// Length of the root block on the device.
    pub root_bytes: u32,
    /// Every extent that it owns, in order of addresses, not touching each other.
    pub runs: Vec<Run>,
}

impl TableMeta {
    /// Returns its weight in a compaction, in bytes: see [`weight`].
    #[must_use]
    pub fn weight(&self) -> u64 {
        weight(self.owned_bytes(), self.value_bytes)
    }

    /// Bytes of the device that it owns.
    #[must_use]
    pub fn owned_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len_bytes).sum()
    }

    /// Bytes that an edit takes to list its runs, where the store has value blocks.
    #[must_use]
    pub fn run_list_bytes(&self) -> u64 {
        let bytes = run_numbers(&self.runs).map(varint_bytes);
        bytes.sum::<usize>() as u64
    }

    /// Reports whether any key of the table lies at or after `start` and before `end` (`None`: no
    /// end).
    #[must_use]
    pub fn overlaps(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        let begins_before_end = end.is_none_or(|end| self.smallest.as_slice() < end);
        begins_before_end && self.reaches(start)
    }

    /// Reports whether the table's range extends to `key` or beyond.
    #[must_use]
    pub fn reaches(&self, key: &[u8]) -> bool {
        if self.largest_excluded {
            self.largest.as_slice() > key
        } else {
            self.largest.as_slice() >= key
        }
    }

    /// Reports whether the table's whole range lies before `other`'s.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        !self.reaches(&other.smallest)
    }
}

/// Returns the weight of `bytes` in a compaction, of which `value_bytes` are value blocks: those
/// cost it only their index entries, a quarter.
#[must_use]
pub const fn weight(bytes: u64, value_bytes: u64) -> u64 {
    bytes - value_bytes / 4 * 3
}

/// A tree in a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeRecord {
    /// Its number, never reused.
    pub id: TreeId,
    /// Its name.
    pub name: String,
    /// Size of data blocks before compression.
    pub block_bytes: u32,
    /// Stitching threshold in bytes.
    pub stitch_bytes: u64,
    /// Compression of data blocks: 0 none, 1 LZ4, 2 Zstandard. Do not renumber.
    pub compression: u8,
    /// Shortest value that gets a block of its own, in bytes; 0: none does.
    pub value_block_bytes: u32,
    /// Where it begins, if it is a branch tree.
    pub branch: Option<BranchRecord>,
    /// Of a branch tree that begins with ranges of its parent's keys: these, in order, none empty,
    /// none touching another; `None` for all keys.
    pub branch_ranges: Option<Vec<RangeRecord>>,
}

/// The change from one version to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionEdit {
    /// Every write up to this one is in the tables.
    pub last_seqno: Seqno,
    /// Number that the next table gets.
    pub next_table: TableId,
    /// Number that the next tree gets.
    pub next_tree: TreeId,
    /// Trees that are removed, with all their tables.
    pub dropped_trees: Vec<TreeId>,
    /// Trees that are added.
    pub new_trees: Vec<TreeRecord>,
    /// Existing trees whose options change. Their names do not change.
    pub altered_trees: Vec<TreeRecord>,
    /// Changes of the pins.
    pub pins: PinChanges,
    /// Tables that are removed.
    pub removed: Vec<TableId>,
    /// Tables that change only their level.
    pub moved: Vec<(TableId, u8)>,
    /// Tables that are added, with their levels. Shared with the version, so that a base does not
    /// copy them.
    pub added: Vec<(u8, Arc<TableMeta>)>,
}

impl VersionEdit {
    /// The edit as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let version = self.version();
        let mut out = vec![version];
        put_varint(&mut out, self.last_seqno.0);
        put_varint(&mut out, self.next_table.0);
        put_varint(&mut out, u64::from(self.next_tree.0));
        put_varint(&mut out, self.dropped_trees.len() as u64);
        for tree in &self.dropped_trees {
            put_varint(&mut out, u64::from(tree.0));
        }
        put_varint(&mut out, self.new_trees.len() as u64);
        for tree in &self.new_trees {
            put_tree(&mut out, tree, version);
        }
        if version > VERSION_PLAIN {
            put_varint(&mut out, self.altered_trees.len() as u64);
            for tree in &self.altered_trees {
                put_tree(&mut out, tree, version);
            }
        }
        if version > VERSION_VALUES {
            self.pins.put(&mut out, version);
        }
        put_varint(&mut out, self.removed.len() as u64);
        for table in &self.removed {
            put_varint(&mut out, table.0);
        }
        put_varint(&mut out, self.moved.len() as u64);
        for (table, level) in &self.moved {
            put_varint(&mut out, table.0);
            out.push(*level);
        }
        put_varint(&mut out, self.added.len() as u64);
        for (level, table) in &self.added {
            out.push(*level);
            put_table(&mut out, table, version);
        }
        out
    }

    fn version(&self) -> u8 {
        if self.has_branch_ranges() {
            return VERSION;
        }
        if self.has_pin_ranges() {
            return VERSION_RANGES;
        }
        if self.has_pin_scopes() {
            return VERSION_SCOPES;
        }
        if self.has_shifts() {
            return VERSION_SHIFTS;
        }
        if self.has_branches() {
            return VERSION_BRANCHES;
        }
        match (self.has_pins(), self.is_of_version_1()) {
            (true, _) => VERSION_PINS,
            (false, false) => VERSION_VALUES,
            (false, true) => VERSION_PLAIN,
        }
    }

    /// Reports whether it changes neither trees nor tables: counters and pins at most.
    #[must_use]
    pub fn keeps_trees(&self) -> bool {
        self.dropped_trees.is_empty()
            && self.new_trees.is_empty()
            && self.altered_trees.is_empty()
            && self.pins.hidden.is_empty()
            && self.removed.is_empty()
            && self.moved.is_empty()
            && self.added.is_empty()
    }

    /// Reports whether programs that know only format 2.0 can read it.
    #[must_use]
    pub fn is_of_version_1(&self) -> bool {
        !self.has_pins()
            && !self.has_shifts()
            && self.altered_trees.is_empty()
            && self.new_trees.iter().all(TreeRecord::is_plain)
            && self.added.iter().all(|(_, table)| table.value_bytes == 0)
    }

    /// Reads an edit.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("version edit", bytes);
        let version = reader.u8()?;
        if version > VERSION {
            return Err(FormatError::Newer {
                record: "version edit",
                found: u32::from(version),
                supported: u32::from(VERSION),
            });
        }
        if version < VERSION_PLAIN {
            return Err(reader.field("version", "1 to 8", version.to_string()));
        }
        let tree = |r: &mut Reader<'_>| read_tree(r, version);
        let r = &mut reader;
        let edit = Self {
            last_seqno: Seqno(counter(r)?),
            next_table: TableId(counter(r)?),
            next_tree: tree_id(r)?,
            dropped_trees: list(r, tree_id)?,
            new_trees: list(r, tree)?,
            altered_trees: match version {
                VERSION_PLAIN => Vec::new(),
                _ => list(r, tree)?,
            },
            pins: match version {
                VERSION_PLAIN | VERSION_VALUES => PinChanges::default(),
                _ => PinChanges::read(r, version)?,
            },
            removed: list(r, |r| Ok(TableId(r.varint()?)))?,
            moved: list(r, |r| Ok((TableId(r.varint()?), level(r)?)))?,
            added: list(r, |r| Ok((level(r)?, Arc::new(read_table(r, version)?))))?,
        };
        let is_lowest = match version {
            VERSION_SHIFTS => edit.has_shifts(),
            VERSION_SCOPES => edit.has_pin_scopes(),
            VERSION_RANGES => edit.has_pin_ranges(),
            VERSION => edit.has_branch_ranges(),
            _ => true,
        };
        if !is_lowest {
            return Err(reader.field("version", "the lowest needed", version.to_string()));
        }
        reader.finish()?;
        Ok(edit)
    }
}

/// A number that is counted up.
fn counter(r: &mut Reader<'_>) -> Result<u64, FormatError> {
    let number = r.varint()?;
    if number > NUMBER_MAX {
        return Err(r.field("counter", "at most 2^62", number.to_string()));
    }
    Ok(number)
}

fn put_tree(out: &mut Vec<u8>, tree: &TreeRecord, version: u8) {
    put_varint(out, u64::from(tree.id.0));
    put_bytes(out, tree.name.as_bytes());
    put_varint(out, u64::from(tree.block_bytes));
    put_varint(out, tree.stitch_bytes);
    out.push(tree.compression);
    if version > VERSION_PLAIN {
        put_varint(out, u64::from(tree.value_block_bytes));
    }
    if version > VERSION_PINS {
        put_branch(out, tree.branch);
    }
    if version > VERSION_RANGES && tree.branch.is_some() {
        put_branch_ranges(out, tree.branch_ranges.as_deref());
    }
}

fn put_table(out: &mut Vec<u8>, table: &TableMeta, version: u8) {
    put_varint(out, table.id.0);
    put_varint(out, u64::from(table.tree.0));
    put_bytes(out, &table.smallest);
    put_bytes(out, &table.largest);
    out.push(if table.largest_excluded {
        LARGEST_EXCLUDED
    } else {
        0
    });
    for number in [
        table.entry_count,
        table.delete_count,
        table.range_delete_count,
        table.data_bytes,
    ] {
        put_varint(out, number);
    }
    if version > VERSION_PLAIN {
        put_varint(out, table.value_bytes);
    }
    put_varint(out, table.min_seqno.0);
    put_varint(out, table.max_seqno.0);
    if version > VERSION_BRANCHES {
        put_varint(out, table.shift);
    }
    out.extend_from_slice(&table.root_addr.to_le_bytes());
    out.extend_from_slice(&table.root_bytes.to_le_bytes());
    put_varint(out, table.runs.len() as u64);
    if version == VERSION_PLAIN {
        for run in &table.runs {
            out.extend_from_slice(&run.addr.to_le_bytes());
            put_varint(out, run.len_bytes);
        }
        return;
    }
    let is_aligned = |n: u64| n.is_multiple_of(SECTOR_BYTES);
    let mut runs = table.runs.iter();
    let are_of_sectors = runs.all(|run| is_aligned(run.addr) && is_aligned(run.len_bytes));
    assert!(are_of_sectors, "runs are of sectors");
    let are_in_order = table.runs.windows(2).all(|w| w[0].end() <= w[1].addr);
    assert!(are_in_order, "runs are in order");
    for number in run_numbers(&table.runs) {
        put_varint(out, number);
    }
}

/// Reads a counted list. The count is not trusted: memory grows only with the items found.
fn list<'a, T>(
    r: &mut Reader<'a>,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let count = r.varint()?;
    let mut out = Vec::new();
    for _ in 0..count {
        out.push(item(r)?);
    }
    Ok(out)
}

fn tree_id(r: &mut Reader<'_>) -> Result<TreeId, FormatError> {
    let number = narrow(r, "tree")?;
    Ok(TreeId(number))
}

fn narrow(r: &mut Reader<'_>, field: &'static str) -> Result<u32, FormatError> {
    let number = r.varint()?;
    u32::try_from(number).map_err(|_| r.field(field, "at most 32 bits", number.to_string()))
}

fn level(r: &mut Reader<'_>) -> Result<u8, FormatError> {
    let level = r.u8()?;
    if level >= LEVEL_COUNT {
        return Err(r.field("level", "at most 7", level.to_string()));
    }
    Ok(level)
}

fn read_tree(r: &mut Reader<'_>, version: u8) -> Result<TreeRecord, FormatError> {
    let id = tree_id(r)?;
    if id.0 == 0 {
        return Err(r.field("tree", "above 0", "0".to_owned()));
    }
    let name = r.bytes()?;
    let name = std::str::from_utf8(name)
        .map_err(|e| r.field("name", "UTF-8", e.to_string()))?
        .to_owned();
    let block_bytes = narrow(r, "block bytes")?;
    let stitch_bytes = r.varint()?;
    let compression = r.u8()?;
    let compression_max = match version {
        VERSION_PLAIN => COMPRESSION_MAX_VERSION_1,
        _ => COMPRESSION_MAX,
    };
    if compression > compression_max {
        let expected = format!("at most {compression_max}");
        return Err(r.field("compression", &expected, compression.to_string()));
    }
    let value_block_bytes = match version {
        VERSION_PLAIN => 0,
        _ => narrow(r, "value block bytes")?,
    };
    let branch = match version {
        VERSION_BRANCHES.. => read_branch(r, id)?,
        _ => None,
    };
    let branch_ranges = match (version, branch) {
        (VERSION.., Some(_)) => read_branch_ranges(r)?,
        _ => None,
    };
    Ok(TreeRecord {
        id,
        name,
        block_bytes,
        stitch_bytes,
        compression,
        value_block_bytes,
        branch,
        branch_ranges,
    })
}

fn read_table(r: &mut Reader<'_>, version: u8) -> Result<TableMeta, FormatError> {
    let id = TableId(r.varint()?);
    let tree = tree_id(r)?;
    let smallest = r.bytes()?.to_vec();
    let largest = r.bytes()?.to_vec();
    let flags = r.u8()?;
    if flags & !LARGEST_EXCLUDED != 0 {
        return Err(r.field("flags", "0 or 1", flags.to_string()));
    }
    let table = TableMeta {
        id,
        tree,
        smallest,
        largest,
        largest_excluded: flags & LARGEST_EXCLUDED != 0,
        entry_count: r.varint()?,
        delete_count: r.varint()?,
        range_delete_count: r.varint()?,
        data_bytes: r.varint()?,
        value_bytes: match version {
            VERSION_PLAIN => 0,
            _ => r.varint()?,
        },
        min_seqno: Seqno(r.varint()?),
        max_seqno: Seqno(r.varint()?),
        shift: match version {
            VERSION_SHIFTS.. => counter(r)?,
            _ => 0,
        },
        root_addr: r.u64()?,
        root_bytes: r.u32()?,
        runs: exact(read_runs(r, version)?),
    };
    check_table(r, &table)?;
    Ok(table)
}

/// Checks the invariants of every table.
fn check_table(r: &Reader<'_>, table: &TableMeta) -> Result<(), FormatError> {
    let is_range = if table.largest_excluded {
        table.smallest < table.largest
    } else {
        table.smallest <= table.largest
    };
    if !is_range {
        return Err(r.field("largest", "not before the smallest key", "before".into()));
    }
    if table.data_bytes > table.owned_bytes() {
        let found = table.data_bytes.to_string();
        return Err(r.field("data bytes", "at most those of its runs", found));
    }
    if table.entry_count.max(table.range_delete_count) > COUNT_MAX {
        let found = table.entry_count.max(table.range_delete_count);
        return Err(r.field("counts", "at most 2^40", found.to_string()));
    }
    if table.value_bytes > table.data_bytes {
        let found = table.value_bytes.to_string();
        return Err(r.field("value bytes", "at most those of data blocks", found));
    }
    if table.min_seqno > table.max_seqno || table.delete_count > table.entry_count {
        let found = format!("{}..{}", table.min_seqno, table.max_seqno);
        return Err(r.field("counts", "in order", found));
    }
    // Writes are counted from 1, in a table's blocks too.
    if table.shift > 0 && table.shift >= table.min_seqno.0 {
        return Err(r.field("shift", "below the smallest seqno", table.shift.to_string()));
    }
    let apart = |pair: &[Run]| pair[0].end() < pair[1].addr;
    if !table.runs.windows(2).all(apart) {
        return Err(r.field("runs", "in order and apart", format!("{:?}", table.runs)));
    }
    let root_end = table.root_addr.checked_add(u64::from(table.root_bytes));
    let owns_root =
        |run: &Run| run.addr <= table.root_addr && root_end.is_some_and(|end| end <= run.end());
    if table.root_bytes == 0 || !table.runs.iter().any(owns_root) {
        return Err(r.field("root", "inside a run", table.root_addr.to_string()));
    }
    Ok(())
}

#[cfg(test)]
#[path = "vt_manifest/tests.rs"]
mod tests;
