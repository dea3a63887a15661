//! The tables that a write-out or a compaction makes: cut by size, each with its part of the range
//! deletes. What was not installed gives its space back.

use crate::VtError;
use crate::compaction::Distilled;
use crate::entry::{EntryRef, RangeDelete};
use crate::key_moments::KeyMoments;
use crate::range_delete::note_steps;
use crate::table::{NewTable, TableWriter};
use crate::tables::Tables;
use crate::under_way::UnderWay;
use std::collections::VecDeque;
use std::sync::Arc;
use stitch_filter::Precision;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::{Run, TableMeta};
use stitch_kv::TreeInfo;
use stitch_volume::Stream;

/// Makes tables of entries and blocks that come in key order: `(add | stitch)* finish`.
pub(crate) struct Outputs<'a> {
    tables: &'a Tables,
    tree: &'a TreeInfo,
    rules: OutputRules,
    /// Range deletes that no table has yet, by start.
    range_deletes: VecDeque<RangeDelete>,
    writer: Option<TableWriter>,
    /// How many of the rules' cuts were made.
    cuts_made: usize,
    /// Last key that the writer got.
    last_key: Vec<u8>,
    done: Vec<TableMeta>,
}

/// How outputs are made.
pub(crate) struct OutputRules {
    /// Where the volume puts them.
    pub(crate) stream: Stream,
    /// How seldom filters of their blocks are to be wrong.
    pub(crate) precision: Precision,
    /// Weight at which a table ends and the next begins.
    pub(crate) table_bytes: u64,
    /// Moments that are held.
    pub(crate) moments: KeyMoments,
    /// Keys, in order, that no table has keys on both sides of.
    pub(crate) cuts: Vec<Vec<u8>>,
    /// Runs that belong to the inputs, sorted: not given back with outputs that stitched them.
    pub(crate) input_runs: Vec<Run>,
    /// Of a compaction: where the space is counted that its tables take.
    pub(crate) under_way: Option<Arc<UnderWay>>,
}

impl<'a> Outputs<'a> {
    /// Outputs for a tree, with the range deletes (by start) that they are to hold.
    pub(crate) fn new(
        tables: &'a Tables,
        tree: &'a TreeInfo,
        rules: OutputRules,
        range_deletes: Vec<RangeDelete>,
    ) -> Self {
        debug_assert!(rules.cuts.is_sorted(), "cuts are in order");
        debug_assert!(rules.table_bytes > 0, "a table has room");
        debug_assert!(
            rules.input_runs.is_sorted(),
            "runs of the inputs are in order"
        );
        debug_assert!(
            range_deletes
                .windows(2)
                .all(|pair| pair[0].start <= pair[1].start),
            "range deletes come by start"
        );
        Self {
            tables,
            tree,
            rules,
            range_deletes: range_deletes.into(),
            writer: None,
            cuts_made: 0,
            last_key: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Adds what distilling left.
    pub(crate) fn keep(&mut self, kept: Distilled<'_>) -> Result<(), VtError> {
        match kept {
            Distilled::Entry(entry) => self.add(&entry),
            Distilled::Carried(block) => self.carry(block),
        }
    }

    /// Adds an entry.
    pub(crate) fn add(&mut self, entry: &EntryRef<'_>) -> Result<(), VtError> {
        self.begin_key(entry.key)?;
        debug_assert_eq!(self.last_key, entry.key, "the key has begun");
        self.writer().add(entry)
    }

    /// Re-references a value block, as the entry that it is.
    fn carry(&mut self, block: &IndexEntry) -> Result<(), VtError> {
        debug_assert!(block.is_value, "a value block");
        self.begin_key(&block.last)?;
        self.writer().carry(block)
    }

    /// Cuts where versions of a key before this one end, if a cut is due.
    fn begin_key(&mut self, key: &[u8]) -> Result<(), VtError> {
        if self.writer.is_some() && self.last_key == key {
            return Ok(());
        }
        self.cut_before(Some(key))?;
        self.cut_if_full(key)?;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        Ok(())
    }

    /// Re-references blocks that follow each other on the medium.
    pub(crate) fn stitch(&mut self, blocks: &[IndexEntry]) -> Result<(), VtError> {
        for block in blocks {
            debug_assert!(block.first <= block.last, "a block's keys are in order");
            self.cut_before(Some(&block.first))?;
            self.cut_if_full(&block.first)?;
            self.writer().stitch(std::slice::from_ref(block))?;
            self.last_key.clear();
            self.last_key.extend_from_slice(&block.last);
        }
        Ok(())
    }

    /// The tables.
    pub(crate) fn finish(mut self) -> Result<Vec<TableMeta>, VtError> {
        self.cut_before(None)?;
        debug_assert_eq!(self.cuts_made, self.rules.cuts.len(), "all cuts are made");
        if self.writer.is_some() || !self.range_deletes.is_empty() {
            self.cut(None)?;
        }
        assert!(self.writer.is_none(), "the last table is finished");
        assert!(
            self.range_deletes.is_empty(),
            "each range delete has a table"
        );
        debug_assert!(
            self.done.iter().all(|table| table.tree == self.tree.id),
            "outputs are of one tree"
        );
        Ok(std::mem::take(&mut self.done))
    }

    fn writer(&mut self) -> &mut TableWriter {
        self.writer.get_or_insert_with(|| {
            let table = NewTable {
                id: self.tables.new_id(),
                tree: self.tree.id,
                options: self.tree.options.clone(),
                stream: self.rules.stream,
                precision: self.rules.precision,
                is_of_branch: self.tree.branch.is_some(),
            };
            let writer = self.tables.writer(table);
            let writer = writer.under(self.rules.moments.clone());
            match &self.rules.under_way {
                Some(under_way) => writer.counting(Arc::clone(under_way)),
                None => writer,
            }
        })
    }

    /// Makes the cuts up to a key; with `None`, all.
    fn cut_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        debug_assert!(
            self.cuts_made <= self.rules.cuts.len(),
            "each cut is made once"
        );
        while let Some(at) = self.rules.cuts.get(self.cuts_made)
            && key.is_none_or(|key| at.as_slice() <= key)
        {
            let at = at.clone();
            self.cuts_made += 1;
            self.cut(Some(&at))?;
        }
        Ok(())
    }

    fn cut_if_full(&mut self, next_key: &[u8]) -> Result<(), VtError> {
        let is_full = self
            .writer
            .as_ref()
            .is_some_and(|w| w.estimated_weight() >= self.rules.table_bytes);
        if is_full {
            self.cut(Some(next_key))?;
        }
        Ok(())
    }

    /// Ends the current table: it gets what range deletes have before `next_key`.
    fn cut(&mut self, next_key: Option<&[u8]>) -> Result<(), VtError> {
        let mut going_on = Vec::new();
        while let Some(delete) = self
            .range_deletes
            .pop_front_if(|d| begins_before(d, next_key))
        {
            note_steps(1);
            let (here, after) = split(delete, next_key);
            self.writer().add_range_delete(here);
            going_on.extend(after);
        }
        // They begin at `next_key` now, before all others.
        for delete in going_on.into_iter().rev() {
            self.range_deletes.push_front(delete);
        }
        debug_assert!(
            self.range_deletes
                .front()
                .is_none_or(|delete| !begins_before(delete, next_key)),
            "range deletes before the cut have a table"
        );
        if let Some(mut writer) = self.writer.take() {
            let superseded = writer.take_superseded();
            if let Some(table) = writer.finish()? {
                debug_assert!(
                    self.done.last().is_none_or(|before| before.id < table.id),
                    "numbers of tables rise"
                );
                self.tables.superseded.note(&table, superseded);
                self.done.push(table);
            }
        }
        Ok(())
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        if !self.done.is_empty()
            && let Some(under_way) = &self.rules.under_way
        {
            // It has failed.
            under_way.end();
        }
        self.tables.discard(&self.done, &self.rules.input_runs);
    }
}

fn begins_before(delete: &RangeDelete, at: Option<&[u8]>) -> bool {
    at.is_none_or(|at| delete.start.as_slice() < at)
}

/// The parts before and from `at` of a range delete that begins before it.
fn split(delete: RangeDelete, at: Option<&[u8]>) -> (RangeDelete, Option<RangeDelete>) {
    debug_assert!(begins_before(&delete, at), "it is in order");
    debug_assert!(delete.start < delete.end, "a range has keys");
    let Some(at) = at.filter(|at| *at < delete.end.as_slice()) else {
        return (delete, None);
    };
    let after = RangeDelete {
        start: at.to_vec(),
        ..delete.clone()
    };
    let here = RangeDelete {
        end: at.to_vec(),
        ..delete
    };
    debug_assert!(here.start < here.end, "the part here has keys");
    debug_assert!(after.start < after.end, "the part after it has keys");
    (here, Some(after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{VtEngine, VtOptions};
    use stitch_base::Seqno;
    use stitch_device::{Device, MemDevice};
    use stitch_format::superblock::{COPIES, COPY_BYTES, Superblock, VERSION};
    use stitch_volume::{FormatOptions, OpenOptions};

    /// A store that was formatted by a program of `version`.
    fn formatted_by(version: (u16, u16)) -> Arc<VtEngine> {
        let device = Arc::new(MemDevice::new(32 << 20));
        let format = FormatOptions::default();
        stitch_volume::Volume::format(&*device, &format, &mut |_, _| {}).expect("it has room");
        for address in COPIES {
            let mut bytes = vec![0; COPY_BYTES];
            device.read_at(address, &mut bytes).expect("it reads");
            let copy = Superblock::decode(&bytes, address).expect("sound");
            let mut copy = copy.expect("there is one");
            (copy.version, copy.readable) = (version, version);
            let written = device.write_at(address, &[&copy.encode(address)]);
            written.expect("it writes");
        }
        let opened = stitch_volume::Volume::open(device, &OpenOptions::default());
        let options = VtOptions {
            background: false,
            ..VtOptions::default()
        };
        VtEngine::open(opened.expect("the volume opens"), options).expect("the store opens")
    }

    #[test]
    fn level_0_has_precise_filters_where_all_who_read_it_know_them() {
        let now = formatted_by(VERSION);
        let precision = [0, 1, 2].map(|level| now.store.tables.precision(level));
        let normal = Precision::Normal;
        assert_eq!(precision, [Precision::High, normal, normal]);
        for version in [(2, 0), (2, 1)] {
            let older = formatted_by(version);
            assert_eq!(older.store.tables.precision(0), normal, "{version:?}");
        }
    }

    fn delete(start: &str, end: &str) -> RangeDelete {
        RangeDelete {
            start: start.into(),
            end: end.into(),
            seqno: Seqno(5),
        }
    }

    #[test]
    fn range_deletes_are_cut_where_a_table_ends() {
        assert_eq!(split(delete("b", "d"), None), (delete("b", "d"), None));
        assert!(!begins_before(&delete("b", "d"), Some(b"b")));
        let whole = split(delete("b", "d"), Some(b"d"));
        assert_eq!(whole, (delete("b", "d"), None));
        let (here, after) = split(delete("b", "d"), Some(b"c"));
        assert_eq!((here, after), (delete("b", "c"), Some(delete("c", "d"))));
    }
}
