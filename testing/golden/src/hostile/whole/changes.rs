//! Changes of one record: a number set to an extreme, a key that is not in its order, an entry that
//! is there twice. What is decoded and encoded again stays a record of its kind.

use super::records::{Kind, Record};
use std::sync::Arc;
use stitch_base::{PinId, Seqno, TableId, TreeId};
use stitch_format::block::{ALIGN, BlockKind};
use stitch_format::vt_data::DataLayout;
use stitch_format::vt_index::{BlockPtr, IndexBuilder, IndexEntry, IndexLayout};
use stitch_format::vt_manifest::{
    BranchRecord, NarrowedPin, PinChanges, PinRecord, Run, TableMeta, TreeRecord, VersionEdit,
};
use stitch_format::vt_range_delete;
use stitch_format::vt_root::{RootIndex, TableRoot};

/// Numbers at which loops go wrong.
const EDGES: [u64; 12] = [
    0,
    1,
    2,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 52,
    0x7fff_ffff_ffff_ffff,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Choices that bytes make, one after the other; zeros after their end.
#[derive(Debug)]
pub(super) struct Choices<'a>(pub(super) &'a [u8]);

impl Choices<'_> {
    pub(super) const fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        let number = u16::from_le_bytes([self.byte(), self.byte()]);
        usize::from(number) % bound.max(1)
    }

    /// A number instead of `old`.
    fn number(&mut self, old: u64) -> u64 {
        match self.byte() % 8 {
            0 => old.wrapping_add(1),
            1 => old.wrapping_sub(1),
            2 => u64::from(self.byte()),
            3 => old ^ 1 << (self.byte() % 64),
            _ => EDGES[self.below(EDGES.len())],
        }
    }

    fn small(&mut self, old: u32) -> u32 {
        let number = self.number(u64::from(old));
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    fn sectors(&mut self, old: u64) -> u64 {
        self.number(old / ALIGN).min(u64::MAX / ALIGN) * ALIGN
    }

    fn key(&mut self, key: &mut Vec<u8>) {
        let at = self.below(key.len());
        match (self.byte() % 4, key.get_mut(at)) {
            (0, _) => key.truncate(at),
            (1, _) => key.push(self.byte()),
            (_, Some(byte)) => *byte = byte.wrapping_add(self.byte()),
            (_, None) => {}
        }
    }
}

/// Changes a record.
pub(super) fn change(record: &mut Record, by: &mut Choices<'_>) {
    match by.byte() % 8 {
        0 => {
            let (field, value) = (by.below(64), by.number(0));
            record.put_field(field, value);
        }
        1 => patch(record.payload_mut(), by),
        _ => {
            let payload = record.payload();
            let changed = match record.kind {
                Kind::Version => edit(payload, by),
                Kind::Block(BlockKind::TableIndex) => index(payload, by),
                Kind::Block(BlockKind::TableRoot) => root(payload, by),
                Kind::Block(BlockKind::TableData) => data(payload, by),
                Kind::Block(BlockKind::RangeDeletes) => range_deletes(payload, by),
                Kind::Superblock => {
                    let (field, value) = (by.below(64), by.number(0));
                    record.put_field(field, value);
                    None
                }
                Kind::Log | Kind::ShortLog(..) | Kind::Block(BlockKind::TableFilter) => None,
            };
            match changed {
                Some(changed) => record.set_payload(&changed),
                None => patch(record.payload_mut(), by),
            }
        }
    }
}

/// Puts a number somewhere.
fn patch(bytes: &mut [u8], by: &mut Choices<'_>) {
    let at = by.below(bytes.len());
    let width = 1usize << (by.byte() % 4);
    let number = by.number(0).to_le_bytes();
    let is_big_endian = by.byte().is_multiple_of(2);
    for (index, byte) in bytes.iter_mut().skip(at).take(width).enumerate() {
        let from = if is_big_endian {
            width - 1 - index
        } else {
            index
        };
        *byte = number[from];
    }
}

/// Changes the order or the number of what is in a list.
fn shuffle<T: Clone>(list: &mut Vec<T>, by: &mut Choices<'_>) {
    let (at, other) = (by.below(list.len()), by.below(list.len()));
    if list.is_empty() {
        return;
    }
    match by.byte() % 4 {
        0 => drop(list.remove(at)),
        1 => list.insert(other, list[at].clone()),
        _ => list.swap(at, other),
    }
}

fn edit(payload: &[u8], by: &mut Choices<'_>) -> Option<Vec<u8>> {
    let mut edit = VersionEdit::decode(payload).ok()?;
    match by.byte() % 16 {
        0 => edit.last_seqno = Seqno(by.number(edit.last_seqno.0)),
        1 => edit.next_table = TableId(by.number(edit.next_table.0)),
        2 => edit.next_tree = TreeId(by.small(edit.next_tree.0)),
        3 => shuffle(&mut edit.added, by),
        4 => edit.removed.push(TableId(by.number(1))),
        5 => {
            let level = u8::try_from(by.below(9)).expect("small");
            edit.moved.push((TableId(by.number(1)), level));
        }
        6 => edit.dropped_trees.push(TreeId(by.small(1))),
        7 => {
            let at = by.below(edit.new_trees.len());
            edit.new_trees.get_mut(at).map(|record| tree(record, by))?;
        }
        8 => {
            let at = by.below(edit.added.len());
            edit.added.get_mut(at)?.0 = u8::try_from(by.below(9)).expect("small");
        }
        9 => pins(&mut edit.pins, by),
        _ => {
            let at = by.below(edit.added.len());
            table(Arc::make_mut(&mut edit.added.get_mut(at)?.1), by);
        }
    }
    Some(edit.encode())
}

/// Adds a pin or a hidden tree, which may belong there, or changes what is there of them.
fn pins(pins: &mut PinChanges, by: &mut Choices<'_>) {
    match by.byte() % 8 {
        0 => pins.last = PinId(by.number(pins.last.0)),
        1 => pins.dropped.push(PinId(by.number(1))),
        2 => pins.altered.push((PinId(by.number(1)), vec![1; 9])),
        3 => pins.hidden.push((TreeId(by.small(1)), PinId(by.number(1)))),
        4 => shuffle(&mut pins.new, by),
        5 => {
            let tree = TreeId(by.small(1));
            let (mut start, mut end) = (Vec::new(), Vec::new());
            by.key(&mut start);
            by.key(&mut end);
            pins.narrowed.push(NarrowedPin {
                id: PinId(by.number(1)),
                trees: vec![tree],
                ranges: vec![(tree, vec![(start, Some(end))])],
            });
        }
        _ => {
            pins.last = PinId(by.number(1));
            let mut name = b"pin".to_vec();
            by.key(&mut name);
            let next_tree = TreeId(by.small(2));
            let tree = TreeId(by.small(1));
            pins.new.push(PinRecord {
                id: PinId(by.number(1)),
                name: String::from_utf8_lossy(&name).into_owned(),
                seqno: Seqno(by.number(1)),
                next_tree,
                user: Vec::new(),
                // The others hold all trees.
                trees: by.byte().is_multiple_of(2).then(|| vec![tree]),
                ranges: Vec::new(),
            });
        }
    }
}

fn tree(tree: &mut TreeRecord, by: &mut Choices<'_>) {
    match by.byte() % 5 {
        0 => tree.id = TreeId(by.small(tree.id.0)),
        1 => tree.block_bytes = by.small(tree.block_bytes),
        2 => tree.stitch_bytes = by.number(tree.stitch_bytes),
        3 => {
            tree.branch = Some(BranchRecord {
                parent: TreeId(by.small(1)),
                seqno: Seqno(by.number(1)),
            });
            let first = vec![by.byte()];
            let range = (first, by.byte().is_multiple_of(2).then(|| vec![u8::MAX]));
            tree.branch_ranges = by.byte().is_multiple_of(2).then(|| vec![range]);
        }
        _ => tree.value_block_bytes = by.small(tree.value_block_bytes),
    }
}

fn table(table: &mut TableMeta, by: &mut Choices<'_>) {
    match by.byte() % 16 {
        0 => table.id = TableId(by.number(table.id.0)),
        1 => table.tree = TreeId(by.small(table.tree.0)),
        2 => by.key(&mut table.smallest),
        3 => by.key(&mut table.largest),
        4 => std::mem::swap(&mut table.smallest, &mut table.largest),
        5 => table.largest_excluded ^= true,
        6 => table.entry_count = by.number(table.entry_count),
        7 => table.delete_count = by.number(table.delete_count),
        8 => table.range_delete_count = by.number(table.range_delete_count),
        9 => table.data_bytes = by.number(table.data_bytes),
        10 => table.value_bytes = by.number(table.value_bytes),
        11 => table.min_seqno = Seqno(by.number(table.min_seqno.0)),
        12 => table.max_seqno = Seqno(by.number(table.max_seqno.0)),
        13 => table.root_addr = by.number(table.root_addr),
        14 => table.root_bytes = by.small(table.root_bytes),
        _ => runs(&mut table.runs, by),
    }
}

fn runs(runs: &mut Vec<Run>, by: &mut Choices<'_>) {
    let at = by.below(runs.len());
    let Some(run) = runs.get_mut(at) else { return };
    match by.byte() % 3 {
        0 => run.addr = by.sectors(run.addr),
        1 => run.len_bytes = by.sectors(run.len_bytes),
        _ => shuffle(runs, by),
    }
    // The layout of runs has room for no others.
    let mut end = 0u64;
    runs.retain(|run| {
        let next = run.addr.checked_add(run.len_bytes);
        let is_next = run.addr >= end && run.len_bytes > 0;
        end = next.filter(|_| is_next).unwrap_or(end);
        is_next && next.is_some()
    });
}

fn index(payload: &[u8], by: &mut Choices<'_>) -> Option<Vec<u8>> {
    let layout = IndexLayout::read(payload).ok()?;
    let entries = 0..layout.entry_count();
    let entries = entries.map(|at| layout.entry(payload, at).map(|entry| entry.to_owned()));
    let mut entries: Vec<IndexEntry> = entries.collect::<Result<_, _>>().ok()?;
    if by.byte().is_multiple_of(8) {
        shuffle(&mut entries, by);
    } else {
        let at = by.below(entries.len());
        index_entry(entries.get_mut(at)?, by);
    }
    if entries.is_empty() {
        return None;
    }
    let mut builder = IndexBuilder::new();
    entries.iter().for_each(|entry| builder.add(entry));
    Some(builder.finish())
}

fn index_entry(entry: &mut IndexEntry, by: &mut Choices<'_>) {
    match by.byte() % 12 {
        0 => by.key(&mut entry.first),
        1 => by.key(&mut entry.last),
        2 => pointer(&mut entry.block, by),
        3 => entry.origin = TableId(by.number(entry.origin.0)),
        4 => entry.raw_bytes = by.small(entry.raw_bytes),
        5 => entry.entry_count = by.small(entry.entry_count),
        6 => entry.delete_count = by.small(entry.delete_count),
        7 => entry.has_versions ^= true,
        8 => entry.is_value ^= true,
        9 => entry.min_seqno = Seqno(by.number(entry.min_seqno.0)),
        10 => entry.max_seqno = Seqno(by.number(entry.max_seqno.0)),
        _ => patch(&mut entry.filter, by),
    }
    entry.max_seqno = entry.max_seqno.max(entry.min_seqno);
}

fn pointer(block: &mut BlockPtr, by: &mut Choices<'_>) {
    match by.byte() % 2 {
        0 => block.addr = by.sectors(block.addr),
        _ => block.len_bytes = by.small(block.len_bytes),
    }
}

fn root(payload: &[u8], by: &mut Choices<'_>) -> Option<Vec<u8>> {
    let mut root = TableRoot::decode(payload).ok()?;
    let mut inside = match &root.index {
        RootIndex::Inside(range) => payload.get(range.clone())?.to_vec(),
        RootIndex::None | RootIndex::Leaves(_) => Vec::new(),
    };
    match by.byte() % 8 {
        0 => root.id = TableId(by.number(root.id.0)),
        1 => root.tree = TreeId(by.small(root.tree.0)),
        2 => root.entry_count = by.number(root.entry_count),
        3 => root.range_delete_count = by.number(root.range_delete_count),
        4 => root.data_bytes = by.number(root.data_bytes),
        5 => shuffle(&mut root.range_deletes, by),
        _ => match &mut root.index {
            RootIndex::Leaves(leaves) if by.byte().is_multiple_of(2) => shuffle(leaves, by),
            RootIndex::Leaves(leaves) => {
                let at = by.below(leaves.len());
                let leaf = leaves.get_mut(at)?;
                by.key(&mut leaf.last);
                pointer(&mut leaf.block, by);
            }
            RootIndex::Inside(_) => inside = index(&inside, by)?,
            RootIndex::None => return None,
        },
    }
    Some(root.encode(&inside))
}

/// Changes the key or the value of an entry in its place, so that keys may be out of order.
fn data(payload: &[u8], by: &mut Choices<'_>) -> Option<Vec<u8>> {
    let layout = DataLayout::read(payload).ok()?;
    let mut at = layout.restart(payload, 0).ok()?;
    let mut entries = Vec::new();
    while at < layout.entries_end() {
        let entry = layout.entry(payload, at).ok()?;
        at = entry.next;
        entries.push(entry);
    }
    let entry = entries.get(by.below(entries.len()))?;
    let place = match by.byte() % 3 {
        0 => entry.suffix.clone(),
        _ => entry.value.clone(),
    };
    let mut out = payload.to_vec();
    patch(&mut out[place], by);
    Some(out)
}

fn range_deletes(payload: &[u8], by: &mut Choices<'_>) -> Option<Vec<u8>> {
    let decoded = vt_range_delete::decode(payload).ok()?;
    let mut deletes: Vec<_> = decoded
        .iter()
        .map(|delete| (delete.start.to_vec(), delete.end.to_vec(), delete.seqno))
        .collect();
    let at = by.below(deletes.len());
    match by.byte() % 5 {
        0 => shuffle(&mut deletes, by),
        1 => by.key(&mut deletes.get_mut(at)?.0),
        2 => by.key(&mut deletes.get_mut(at)?.1),
        3 => {
            let delete = deletes.get_mut(at)?;
            std::mem::swap(&mut delete.0, &mut delete.1);
        }
        _ => {
            let delete = deletes.get_mut(at)?;
            delete.2 = Seqno(by.number(delete.2.0));
        }
    }
    let deletes: Vec<_> = deletes
        .iter()
        .map(|(start, end, seqno)| vt_range_delete::StoredRangeDelete {
            start,
            end,
            seqno: *seqno,
        })
        .collect();
    Some(vt_range_delete::encode(&deletes))
}
