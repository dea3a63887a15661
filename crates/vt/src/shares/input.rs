//! What a sweep merges: tables, blocks of values that were written at once, and memtables.

use super::{ENTRY_BYTES, Kind, SweepPlace, SweepSpan, VersionCost, block_bytes};
use crate::VtError;
use crate::direct::DirectRun;
use crate::entry::{BoxIter, EntryIter, EntryRef, Op};
use crate::table::{Bounds, Carry, IndexCursor, Table};
use crate::tables::Tables;
use crate::version::TableHandle;
use std::collections::VecDeque;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntry;

/// One version of a key, owned.
struct SweptVersion {
    key: Vec<u8>,
    seqno: Seqno,
    kind: Kind,
    bytes: u64,
}

/// What an input comes to next.
enum InputHead {
    /// A table that was not opened.
    Table(Arc<TableHandle>),
    /// A block that was not read.
    Block(IndexEntry),
    /// Entries of a block, or of a memtable. At least one.
    Entries(VecDeque<SweptVersion>),
    End,
}

/// Where blocks are read from.
enum BlockReader {
    Table(Arc<Table>),
    Direct(Arc<DirectRun>),
    None,
}

/// Where the next head comes from.
enum InputRest {
    /// Tables in key order, and the blocks of the one that is open.
    Tables(VecDeque<Arc<TableHandle>>),
    Memtable(BoxIter),
    None,
}

/// An input of a sweep: versions in key order, which share keys with those of other inputs.
pub(super) struct SweepInput {
    head: InputHead,
    /// Blocks after the head, of the open table or of a direct run.
    blocks: InputBlocks,
    reader: BlockReader,
    /// The open table, and the open block of it.
    place: SweepPlace,
    rest: InputRest,
    /// The newest write that is seen in it.
    ceiling: Seqno,
    depth: usize,
    bounds: Arc<Bounds>,
}

enum InputBlocks {
    Index(IndexCursor),
    Listed(VecDeque<IndexEntry>),
}

/// Which tree an input is of, and what is seen in it.
#[derive(Clone, Debug)]
pub(super) struct SweepScope {
    pub(super) ceiling: Seqno,
    /// Number of parents between the tree that is read and this one.
    pub(super) depth: usize,
    pub(super) bounds: Arc<Bounds>,
}

impl SweepInput {
    fn new(rest: InputRest, seen: &SweepScope) -> Self {
        Self {
            head: InputHead::End,
            blocks: InputBlocks::Listed(VecDeque::new()),
            reader: BlockReader::None,
            place: SweepPlace::default(),
            rest,
            ceiling: seen.ceiling,
            depth: seen.depth,
            bounds: Arc::clone(&seen.bounds),
        }
    }

    /// Tables in key order, without a key in common.
    pub(super) fn tables(
        tables: impl Iterator<Item = Arc<TableHandle>>,
        seen: &SweepScope,
    ) -> Result<Self, VtError> {
        let tables: VecDeque<Arc<TableHandle>> = tables.collect();
        debug_assert!(
            tables
                .iter()
                .is_sorted_by(|table, next| table.meta().is_before(next.meta())),
            "tables are in key order"
        );
        let mut input = Self::new(InputRest::Tables(tables), seen);
        input.advance()?;
        Ok(input)
    }

    /// Blocks that a commit wrote to their zone at once.
    pub(super) fn direct(run: &Arc<DirectRun>, seen: &SweepScope) -> Self {
        let mut input = Self::new(InputRest::None, seen);
        let entries = run.blocks.entries().iter();
        let touched = entries.filter(|entry| {
            let end = seen.bounds.end.as_deref();
            entry.last >= seen.bounds.start && end.is_none_or(|end| *entry.first < *end)
        });
        let mut touched: VecDeque<_> = touched.cloned().collect();
        debug_assert!(
            touched
                .iter()
                .is_sorted_by(|block, next| block.last < next.first),
            "blocks are in key order"
        );
        input.reader = BlockReader::Direct(Arc::clone(run));
        input.head = touched.pop_front().map_or(InputHead::End, InputHead::Block);
        input.blocks = InputBlocks::Listed(touched);
        input
    }

    /// The entries of a tree in a memtable.
    pub(super) fn memtable(mut entries: BoxIter, seen: &SweepScope) -> Result<Self, VtError> {
        entries.seek(&seen.bounds.start, Seqno(u64::MAX))?;
        let mut input = Self::new(InputRest::Memtable(entries), seen);
        input.advance()?;
        Ok(input)
    }

    /// Returns the first key of what comes next.
    pub(super) fn first(&self) -> Option<&[u8]> {
        match &self.head {
            InputHead::Table(table) => Some(&table.meta().smallest),
            InputHead::Block(block) => Some(&block.first),
            InputHead::Entries(entries) => {
                debug_assert!(!entries.is_empty(), "a head of entries has one");
                entries.front().map(|version| &*version.key)
            }
            InputHead::End => None,
        }
    }

    /// Returns the table or block that comes next, if that is what comes.
    pub(super) fn span(&self) -> Option<SweepSpan<'_>> {
        match &self.head {
            InputHead::Table(table) => {
                let meta = table.meta();
                debug_assert!(meta.smallest <= meta.largest, "a table has keys");
                Some(SweepSpan {
                    first: &meta.smallest,
                    last: &meta.largest,
                    min_seqno: meta.min_seqno,
                    max_seqno: meta.max_seqno,
                    bytes: meta.owned_bytes(),
                    depth: self.depth,
                    has_versions: true,
                    is_table: true,
                })
            }
            InputHead::Block(block) => Some(SweepSpan {
                first: &block.first,
                last: &block.last,
                min_seqno: block.min_seqno,
                max_seqno: block.max_seqno,
                bytes: block_bytes(block),
                depth: self.depth,
                has_versions: block.has_versions,
                is_table: false,
            }),
            InputHead::Entries(_) | InputHead::End => None,
        }
    }

    /// Reports whether entries come next, and not a table or a block.
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.head, InputHead::Entries(_))
    }

    /// Returns the bytes of the table that comes next, if one comes.
    pub(super) fn table_bytes(&self) -> Option<u64> {
        match &self.head {
            InputHead::Table(table) => Some(table.owned_bytes()),
            InputHead::Block(_) | InputHead::Entries(_) | InputHead::End => None,
        }
    }

    /// Goes on to what comes after the head, whatever that is.
    pub(super) fn advance(&mut self) -> Result<(), VtError> {
        debug_assert!(
            !matches!(&self.head, InputHead::Entries(entries) if !entries.is_empty()),
            "entries are taken one by one"
        );
        self.head = InputHead::End;
        let next = match &mut self.blocks {
            InputBlocks::Index(index) => index.next()?,
            InputBlocks::Listed(listed) => listed.pop_front(),
        };
        let end = self.bounds.end.as_deref();
        if let Some(block) = next.filter(|block| end.is_none_or(|end| *block.first < *end)) {
            self.head = InputHead::Block(block);
            return Ok(());
        }
        self.blocks = InputBlocks::Listed(VecDeque::new());
        match &mut self.rest {
            InputRest::Tables(tables) => {
                self.head = tables.pop_front().map_or(InputHead::End, InputHead::Table)
            }
            InputRest::Memtable(entries) => {
                let next = next_key(entries, self.ceiling, end)?;
                self.head = next.map_or(InputHead::End, InputHead::Entries);
            }
            InputRest::None => {}
        }
        Ok(())
    }

    /// Opens the table or block that comes next: its blocks or entries come then.
    pub(super) fn open(&mut self, of: &Tables) -> Result<(), VtError> {
        debug_assert!(self.span().is_some(), "a table or block is opened");
        match std::mem::replace(&mut self.head, InputHead::End) {
            InputHead::Table(handle) => {
                let table = of.reader(&handle);
                self.place.table = Some(handle.meta().id);
                self.blocks = InputBlocks::Index(table.index_cursor_from(&self.bounds.start)?);
                self.reader = BlockReader::Table(Arc::clone(table));
                self.advance()
            }
            InputHead::Block(block) => {
                debug_assert_eq!(
                    self.place.table.is_some(),
                    matches!(self.reader, BlockReader::Table(_)),
                    "a block of a table is in the open table"
                );
                let entries = self.entries_of(&block)?;
                self.place.block_addr = block.block.addr;
                if entries.is_empty() {
                    return self.advance();
                }
                self.head = InputHead::Entries(entries);
                Ok(())
            }
            opened @ (InputHead::Entries(_) | InputHead::End) => {
                self.head = opened;
                Ok(())
            }
        }
    }

    /// Takes the next entry if it is one of this key.
    pub(super) fn take(&mut self, key: &[u8]) -> Result<Option<VersionCost>, VtError> {
        let InputHead::Entries(entries) = &mut self.head else {
            return Ok(None);
        };
        if entries.front().is_none_or(|version| *version.key != *key) {
            return Ok(None);
        }
        let place = self.place;
        let version = entries.pop_front().expect("it was looked at");
        debug_assert!(version.seqno <= self.ceiling, "newer versions are not seen");
        if entries.is_empty() {
            self.advance()?;
        }
        Ok(Some(VersionCost {
            seqno: version.seqno,
            kind: version.kind,
            bytes: version.bytes,
            depth: self.depth,
            place,
        }))
    }

    /// The entries of a block that are seen. What the block takes is divided among all by their
    /// lengths.
    fn entries_of(&self, block: &IndexEntry) -> Result<VecDeque<SweptVersion>, VtError> {
        debug_assert!(
            block.min_seqno <= block.max_seqno,
            "its numbers are in order"
        );
        let mut out = VecDeque::new();
        if block.is_value {
            out.push_back(SweptVersion {
                key: block.last.clone(),
                seqno: block.max_seqno,
                kind: Kind::Put,
                bytes: block_bytes(block),
            });
        } else {
            let blocks = vec![block.clone()];
            let mut entries = match &self.reader {
                BlockReader::Table(table) => table.blocks_iter(blocks, Carry::Nothing),
                BlockReader::Direct(direct) => direct.blocks.blocks_iter(blocks, Carry::Nothing),
                BlockReader::None => unreachable!("a block comes from somewhere"),
            };
            entries.seek(&[], Seqno(u64::MAX))?;
            while let Some(entry) = entries.current() {
                out.push_back(version_of(&entry, length(&entry)));
                entries.next()?;
            }
            divide(&mut out, block_bytes(block));
        }
        out.retain(|version| version.seqno <= self.ceiling);
        debug_assert!(
            !block.is_value || out.iter().all(|version| version.key == block.first),
            "the version is that of the block's key"
        );
        debug_assert!(
            !block.is_value || out.len() <= 1,
            "a value block holds one version"
        );
        Ok(out)
    }
}

fn version_of(entry: &EntryRef<'_>, bytes: u64) -> SweptVersion {
    debug_assert!(bytes > 0, "a version takes space");
    SweptVersion {
        key: entry.key.to_vec(),
        seqno: entry.seqno,
        kind: Kind::of(&entry.op),
        bytes,
    }
}

/// What an entry takes in a block that is not compressed.
fn length(entry: &EntryRef<'_>) -> u64 {
    let operand = match entry.op {
        Op::Put(value) => value,
        Op::Delete => &[],
        Op::Upsert { delta, .. } => delta,
    };
    const { assert!(ENTRY_BYTES > 0, "a version takes space") };
    (entry.key.len() + operand.len()) as u64 + ENTRY_BYTES
}

/// Divides the bytes of a block among its entries by their lengths.
fn divide(entries: &mut VecDeque<SweptVersion>, block_bytes: u64) {
    let sum: u64 = entries.iter().map(|version| version.bytes).sum();
    for version in entries.iter_mut() {
        let share = u128::from(version.bytes) * u128::from(block_bytes) / u128::from(sum.max(1));
        version.bytes = u64::try_from(share).expect("at most the block's");
    }
    debug_assert!(
        entries.iter().map(|v| v.bytes).sum::<u64>() <= block_bytes,
        "no more than there is"
    );
}

/// The versions of the next key of a memtable before `end` that are not newer than `ceiling`.
fn next_key(
    entries: &mut BoxIter,
    ceiling: Seqno,
    end: Option<&[u8]>,
) -> Result<Option<VecDeque<SweptVersion>>, VtError> {
    let mut out: VecDeque<SweptVersion> = VecDeque::new();
    while let Some(entry) = entries.current() {
        let is_other = out.back().is_some_and(|last| *last.key != *entry.key);
        if is_other || end.is_some_and(|end| *entry.key >= *end) {
            break;
        }
        if entry.seqno <= ceiling {
            let placed = entries.carried();
            let bytes = placed.map_or_else(|| length(&entry), block_bytes);
            out.push_back(version_of(&entry, bytes));
        }
        entries.next()?;
    }
    debug_assert!(
        out.iter()
            .is_sorted_by(|newer, older| newer.seqno > older.seqno),
        "newest first"
    );
    debug_assert!(
        out.iter().all(|version| version.key == out[0].key),
        "versions of one key"
    );
    Ok((!out.is_empty()).then_some(out))
}
