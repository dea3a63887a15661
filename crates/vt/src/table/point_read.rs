//! Point reads of a table: the versions of one key, by index and filters.

use super::Table;
use super::block::check_filter;
use super::block_source::BlockSource;
use super::blocks::{BlockList, TableBlocks};
use super::key_hash;
use super::leaves::Reader;
use super::loader::{DataRef, Loader};
use crate::VtError;
use crate::cache::{ReadCount, ReadCounters};
use crate::entry::{EntryRef, Op};
use bytes::Bytes;
use std::ops::ControlFlow;
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntryRef;

/// What a filter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    No,
    Maybe,
    /// The key is an end of the block's range.
    Yes,
}

impl Table {
    /// Visits the versions that a read looks for, newest first, until told to stop. With each comes
    /// the buffer that its value lies in, for [`crate::entry::to_bytes`].
    ///
    /// # Cost
    /// At most one data block read for most keys; none if the filter says no.
    ///
    /// # Errors
    /// Those of the source of blocks.
    pub(crate) fn versions_of<S: BlockSource>(
        &self,
        read: &mut PointRead<'_, S>,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, S::Error> {
        let mut blocks = TableBlocks::new(self, Reader::Point);
        let flow = match blocks.seek_from(read.key, read.source) {
            Ok(()) => versions_in(&self.loader, &mut blocks, read, visit),
            Err(error) => Err(error),
        };
        let seen = blocks.take_seen();
        read.hits += seen.hits;
        read.index_reads += seen.reads;
        debug_assert!(
            read.false_positives <= read.filter_probes,
            "each was found by a probe"
        );
        flow
    }
}

/// Called with each version of a key, and with the buffer that its value lies in.
pub(crate) type Visit<'a> = dyn FnMut(EntryRef<'_>, Option<&Bytes>) -> ControlFlow<()> + 'a;

/// A point read under way: what it looks for, and what it counts. Counters are told at its end,
/// once.
#[derive(Debug)]
pub(crate) struct PointRead<'a, S> {
    /// The key.
    key: &'a [u8],
    /// The newest write that the reader sees.
    max_seqno: Seqno,
    /// Where its blocks come from.
    source: &'a mut S,
    /// The key's hash, once a filter was asked.
    hash: Option<u64>,
    hits: u64,
    filter_probes: u64,
    false_positives: u64,
    /// Tables that were denied by filters of whole tables.
    denied: u64,
    /// Memtables that were denied by filters of keys.
    memtables_denied: u64,
    /// Index blocks that were not in the cache, since that was asked last.
    index_reads: u64,
}

impl<'a, S: BlockSource> PointRead<'a, S> {
    /// A read of `key` that sees writes up to `max_seqno`.
    pub(crate) const fn new(key: &'a [u8], max_seqno: Seqno, source: &'a mut S) -> Self {
        Self {
            key,
            max_seqno,
            source,
            hash: None,
            hits: 0,
            filter_probes: 0,
            false_positives: 0,
            denied: 0,
            memtables_denied: 0,
            index_reads: 0,
        }
    }

    /// The key.
    pub(super) const fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Where its blocks come from.
    pub(crate) const fn source(&mut self) -> &mut S {
        self.source
    }

    /// From now on it sees writes up to `seqno` at most.
    pub(crate) fn see_to(&mut self, seqno: Seqno) {
        self.max_seqno = self.max_seqno.min(seqno);
        debug_assert!(self.max_seqno <= seqno, "it sees no newer write");
    }

    /// Adds what it has counted.
    pub(crate) fn end(self, counters: &ReadCounters) {
        debug_assert!(
            self.false_positives <= self.filter_probes,
            "each was found by a probe"
        );
        counters.add_all([
            (ReadCount::Hits, self.hits),
            (ReadCount::FilterProbes, self.filter_probes),
            (ReadCount::FilterFalsePositives, self.false_positives),
            (ReadCount::TablesDenied, self.denied),
            (ReadCount::MemtablesDenied, self.memtables_denied),
        ]);
    }

    /// True if an index block had to be read since this was asked last.
    pub(crate) const fn take_index_read(&mut self) -> bool {
        std::mem::replace(&mut self.index_reads, 0) > 0
    }

    /// The key's hash. It is taken once.
    #[inline]
    pub(crate) fn hash(&mut self) -> u64 {
        let hash = *self.hash.get_or_insert_with(|| key_hash(self.key));
        debug_assert_eq!(self.hash, Some(hash), "it is kept");
        hash
    }

    /// Counts a table whose filter was asked.
    pub(super) fn note_denied(&mut self, is_denied: bool) {
        self.denied += u64::from(is_denied);
    }

    /// Counts a search of a memtable that was spared, although its tree has entries there.
    pub(crate) fn note_memtable_denied(&mut self) {
        self.memtables_denied += 1;
    }

    /// Reports whether a block may have the key, before its index entry is read; `None` if that is
    /// not known.
    fn may_be_in(&mut self, blocks: &impl BlockList) -> Option<bool> {
        let hash = self.hash();
        let answer = blocks.may_hold(hash);
        self.filter_probes += u64::from(answer.is_some());
        answer
    }

    /// Asks the index entry of a block for the key; `may_hold` was known before.
    fn probe(
        &mut self,
        loader: &Loader,
        entry: &IndexEntryRef<'_>,
        may_hold: Option<bool>,
    ) -> Result<Answer, VtError> {
        debug_assert!(!entry.is_value, "a value block has no filter");
        debug_assert!(
            entry.first <= self.key,
            "a search ends before blocks behind the key"
        );
        debug_assert!(may_hold != Some(false), "the filter has not denied the key");
        if entry.first == self.key || entry.last == self.key {
            return Ok(Answer::Yes);
        }
        if may_hold == Some(true) {
            return Ok(Answer::Maybe);
        }
        self.filter_probes += 1;
        let filter = check_filter(entry.filter);
        let filter = filter.map_err(|error| loader.damaged(entry.block.addr, error))?;
        let hash = self.hash();
        Ok(match filter.may_contain(hash) {
            true => Answer::Maybe,
            false => Answer::No,
        })
    }
}

/// Visits the versions of a key in some blocks, from the one on that the list stands on, which is
/// where a seek to the key has led; see [`Table::versions_of`].
pub(super) fn versions_in<S: BlockSource>(
    loader: &Loader,
    blocks: &mut impl BlockList,
    read: &mut PointRead<'_, S>,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, S::Error> {
    let (key, max_seqno) = (read.key, read.max_seqno);
    loop {
        let may_hold = read.may_be_in(blocks);
        if may_hold == Some(false) {
            // Nor is it in the next block: all keys before the block's last one are before that.
            break;
        }
        let Some(entry) = blocks.current()?.filter(|entry| entry.first <= key) else {
            break;
        };
        let goes_on = entry.last == key;
        if entry.is_value {
            debug_assert!(entry.first == entry.last, "a value block holds one key");
            if entry.last == key && entry.max_seqno <= max_seqno {
                let data = DataRef::of(&entry);
                let block = read.source.data(loader, &data)?;
                debug_assert!(
                    data.is_of(&block),
                    "the block is the one that is referenced"
                );
                let value = block.payload();
                let (seqno, op) = (entry.max_seqno, Op::Put(value));
                if visit(EntryRef { key, seqno, op }, Some(value)).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        } else if entry.min_seqno <= max_seqno {
            let answer = read.probe(loader, &entry, may_hold)?;
            let data = DataRef::of(&entry);
            if answer != Answer::No && visit_block(loader, &data, answer, read, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if !goes_on {
            break;
        }
        blocks.next()?;
    }
    Ok(ControlFlow::Continue(()))
}

fn visit_block<S: BlockSource>(
    loader: &Loader,
    data: &DataRef,
    answer: Answer,
    read: &mut PointRead<'_, S>,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, S::Error> {
    let (key, max_seqno) = (read.key, read.max_seqno);
    debug_assert!(!data.is_value, "a value block is not searched");
    debug_assert!(answer != Answer::No, "the filter has not denied the key");
    let damaged = |error| loader.damaged(data.block.addr, error);
    let mut iter = loader.entries(read.source.data(loader, data)?);
    iter.seek(key, max_seqno).map_err(damaged)?;
    debug_assert!(
        iter.current()
            .is_none_or(|entry| entry.key != key || entry.seqno <= max_seqno),
        "newer versions are left out"
    );
    let mut is_found = false;
    while let Some(entry) = iter.current()
        && entry.key == key
    {
        is_found = true;
        if visit(entry, Some(iter.owner())).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        iter.next().map_err(damaged)?;
    }
    if !is_found && answer == Answer::Maybe {
        // The key may be here in newer versions only.
        iter.seek(key, Seqno(u64::MAX)).map_err(damaged)?;
        if iter.current().is_none_or(|entry| entry.key != key) {
            read.false_positives += 1;
            debug_assert!(
                read.false_positives <= read.filter_probes,
                "each was found by a probe"
            );
        }
    }
    Ok(ControlFlow::Continue(()))
}
