//! Checking a table: reads all of it and compares it with itself.

use super::block_iter::BlockIter;
use super::blocks::BlockList;
use super::key_hash;
use super::loader::DataRef;
use super::{DirectBlocks, Table, ValueReader};
use crate::VtError;
use crate::entry::EntryRef;
use crate::iter::cmp_entries;
use std::cmp::Ordering;
use std::fmt::Display;
use std::sync::Arc;
use stitch_base::{ErrorKind, Seqno, TreeId};
use stitch_filter::QuotientFilterRef;
use stitch_format::vt_data::Op;
use stitch_format::vt_index::{IndexEntry, IndexEntryRef};
use stitch_kv::{LostKeys, Violation};

/// Sums over what was read.
#[derive(Debug, Default)]
struct EntrySums {
    entries: u64,
    deletes: u64,
    data_bytes: u64,
    value_bytes: u64,
    seqnos: Option<(Seqno, Seqno)>,
}

impl EntrySums {
    fn assert_invariants(&self) {
        debug_assert!(self.deletes <= self.entries, "deletes are entries");
        debug_assert!(
            self.value_bytes <= self.data_bytes,
            "value blocks are data blocks"
        );
        debug_assert!(
            self.seqnos.is_none_or(|(min, max)| min <= max),
            "the newest is not older"
        );
    }

    fn see(&mut self, seqno: Seqno) {
        let (min, max) = self.seqnos.unwrap_or((seqno, seqno));
        self.seqnos = Some((min.min(seqno), max.max(seqno)));
        debug_assert!(
            self.seqnos
                .is_some_and(|(min, max)| min <= seqno && seqno <= max),
            "the number is between the oldest and the newest"
        );
    }
}

/// Collects violations of one table.
struct Reporter<'a> {
    name: String,
    tree: TreeId,
    report: &'a mut dyn FnMut(Violation),
}

impl Reporter<'_> {
    fn say(&mut self, rule: &'static str, what: &str) {
        debug_assert!(
            !rule.is_empty() && !what.is_empty(),
            "a report says what is wrong"
        );
        let detail = format!("{}: {what}", self.name);
        (self.report)(Violation {
            rule,
            detail,
            lost: None,
        });
    }

    /// Reports that rows with these keys cannot be read.
    fn lose(&mut self, rule: &'static str, error: &dyn Display, first: &[u8], last: &[u8]) {
        debug_assert!(first <= last, "a range of keys");
        debug_assert!(!rule.is_empty(), "a report names the rule");
        let lost = LostKeys {
            tree: self.tree,
            first: first.to_vec(),
            last: last.to_vec(),
        };
        (self.report)(Violation {
            rule,
            detail: format!("{}: {error}", self.name),
            lost: Some(lost),
        });
    }

    fn expect(&mut self, is_right: bool, rule: &'static str, what: impl FnOnce() -> String) {
        if !is_right {
            self.say(rule, &what());
        }
    }

    /// Damage is reported; other failures end the check.
    fn damage<T>(&mut self, result: Result<T, VtError>) -> Result<Option<T>, VtError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_damage(&error) => {
                self.say("block-damaged", &error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// True for errors that are of one block only.
fn is_damage(error: &VtError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Io
    )
}

impl DirectBlocks {
    /// Reads all blocks past the cache and reports those that are not as they were written.
    ///
    /// # Errors
    /// Where the check itself cannot go on.
    pub(crate) fn check(
        &self,
        tree: TreeId,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), VtError> {
        for entry in self.entries() {
            debug_assert!(entry.first <= entry.last, "a block's keys are in order");
            report_block(tree, entry, self.probe_block(entry), report)?;
        }
        Ok(())
    }
}

impl ValueReader {
    /// As [`DirectBlocks::check`], of one value block.
    ///
    /// # Errors
    /// As [`DirectBlocks::check`].
    pub(crate) fn check(
        &self,
        tree: TreeId,
        entry: &IndexEntry,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), VtError> {
        debug_assert!(entry.is_value, "a value block");
        report_block(tree, entry, self.get_once(entry).map(drop), report)
    }
}

fn report_block(
    tree: TreeId,
    entry: &IndexEntry,
    found: Result<(), VtError>,
    report: &mut dyn FnMut(Violation),
) -> Result<(), VtError> {
    debug_assert!(entry.entry_count > 0, "a block holds an entry");
    let name = format!("tree {tree}, values written at once");
    let mut reporter = Reporter { name, tree, report };
    match found {
        Err(error) if is_damage(&error) => {
            reporter.lose("block-unreadable", &error, &entry.first, &entry.last);
            Ok(())
        }
        other => other,
    }
}

impl Table {
    /// Reads all of the table past the cache and reports what breaks a rule. `progress` is told the
    /// bytes done since it was called last.
    ///
    /// # Errors
    /// Where the check itself cannot go on. What cannot be read is reported.
    pub(crate) fn check(
        self: &Arc<Self>,
        progress: &mut dyn FnMut(u64),
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), VtError> {
        let name = format!("tree {}, table {}", self.meta.tree, self.meta.id);
        let tree = self.meta.tree;
        let mut reporter = Reporter { name, tree, report };
        let mut sums = EntrySums::default();
        let whole = self.range_deletes();
        let whole = whole.and_then(|deletes| Ok((deletes, self.index_entries(&[], None)?)));
        let (deletes, entries) = match whole {
            Err(error) if is_damage(&error) => {
                let meta = &self.meta;
                reporter.lose("table-unreadable", &error, &meta.smallest, &meta.largest);
                return Ok(());
            }
            other => other?,
        };
        let mut last: Option<(Vec<u8>, Seqno)> = None;
        let mut is_whole = true;
        let mut blocks = self.blocks();
        for entry in &entries {
            self.check_owned(entry, &mut reporter);
            let found = reporter.damage(find_block(&mut blocks, entry))?;
            if found == Some(false) {
                // A search for any key of the table may go wrong.
                let what = format!(
                    "block at byte {} is not found by its keys",
                    entry.block.addr
                );
                let meta = &self.meta;
                reporter.lose("index-order", &what, &meta.smallest, &meta.largest);
            }
            let result = self.check_block(entry, &mut last, &mut sums, &mut reporter);
            match result {
                Err(error) if is_damage(&error) => {
                    reporter.lose("block-unreadable", &error, &entry.first, &entry.last);
                    is_whole = false;
                }
                other => other?,
            }
            progress(u64::from(entry.block.len_bytes));
        }
        deletes.iter().for_each(|delete| sums.see(delete.seqno));
        debug_assert!(
            sums.seqnos.is_some() || (entries.is_empty() && deletes.is_empty()) || !is_whole,
            "entries that were read have sequence numbers"
        );
        for delete in deletes.iter() {
            let is_inside = self.meta.smallest <= delete.start && delete.end <= self.meta.largest;
            reporter.expect(is_inside, "table-range", || {
                format!(
                    "range delete {} is outside of the table's range",
                    delete.seqno
                )
            });
        }
        if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
            let is_inside = self.meta.smallest <= first.first && self.meta.reaches(&last.last);
            reporter.expect(is_inside, "table-range", || {
                "has keys outside of the table's range".to_owned()
            });
        }
        self.check_root(&mut reporter)?;
        if is_whole {
            self.check_sums(&sums, &mut reporter);
        }
        Ok(())
    }

    /// The root says what the version says.
    fn check_root(&self, reporter: &mut Reporter<'_>) -> Result<(), VtError> {
        debug_assert!(self.meta.smallest <= self.meta.largest, "a range of keys");
        let root = self.root(&mut 0);
        if let Some(root) = reporter.damage(root)? {
            let (root, meta) = (&root.root, &self.meta);
            // A table that was moved from a branch has the number of that tree in its root.
            let tree = if meta.shift > 0 { meta.tree } else { root.tree };
            let found = (tree, root.entry_count, root.delete_count);
            let expected = (meta.tree, meta.entry_count, meta.delete_count);
            reporter.expect(found == expected, "table-counts", || {
                let counted = "tree, entries and deletes are";
                format!("{counted} {found:?} in the root, {expected:?} in the version")
            });
        }
        Ok(())
    }

    /// The table owns every block that it refers to.
    fn check_owned(&self, entry: &IndexEntry, reporter: &mut Reporter<'_>) {
        let (addr, end) = (entry.block.addr, entry.block.end());
        debug_assert!(addr < end, "a block has a length");
        let after = self.meta.runs.partition_point(|run| run.addr <= addr);
        let run = after.checked_sub(1).map(|at| &self.meta.runs[at]);
        let is_owned = run.is_some_and(|run| end <= run.end());
        reporter.expect(is_owned, "block-owner", || {
            format!("block at byte {addr} is in none of the table's runs")
        });
    }

    fn check_block(
        &self,
        index: &IndexEntry,
        last: &mut Option<(Vec<u8>, Seqno)>,
        sums: &mut EntrySums,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), VtError> {
        let addr = index.block.addr;
        let index = index.borrow();
        let damaged = |error| self.loader.damaged(addr, error);
        let data = self.loader.read_data(&DataRef::of(&index))?;
        let mut iter = match index.is_value {
            true => BlockIter::value(index.last.to_vec(), index.max_seqno, data),
            false => BlockIter::Entries(self.loader.entries(data)),
        };
        iter.seek_first().map_err(damaged)?;
        debug_assert!(iter.is_on(), "a block holds an entry");
        let first = iter.current().map(|entry| entry.key.to_vec());
        let mut block = EntrySums::default();
        let mut span = AffectedKeys::of(&index);
        let filter = QuotientFilterRef::new(index.filter).ok();
        while let Some(entry) = iter.current() {
            span.see(&entry, last.as_ref());
            let is_hit =
                index.is_value || filter.is_some_and(|f| f.may_contain(key_hash(entry.key)));
            reporter.expect(is_hit, "filter-miss", || {
                format!("block at byte {addr} holds a key that its filter denies")
            });
            block.entries += 1;
            block.deletes += u64::from(entry.op == Op::Delete);
            block.see(entry.seqno);
            *last = Some((entry.key.to_vec(), entry.seqno));
            iter.next().map_err(damaged)?;
        }
        debug_assert!(block.entries > 0, "a block holds an entry");
        let last = last.as_ref().map(|(key, _)| key.as_slice());
        debug_assert!(last.is_some(), "the last entry of the block was noted");
        let is_right = first.as_deref() == Some(index.first) && last == Some(index.last);
        span.report(addr, is_right, reporter);
        block.assert_invariants();
        check_index_entry(&index, &block, reporter);
        sums.entries += block.entries;
        sums.deletes += block.deletes;
        sums.data_bytes += u64::from(index.block.len_bytes);
        if index.is_value {
            sums.value_bytes += u64::from(index.block.len_bytes);
        }
        if let Some((min, max)) = block.seqnos {
            sums.see(min);
            sums.see(max);
        }
        sums.assert_invariants();
        Ok(())
    }

    fn check_sums(&self, sums: &EntrySums, reporter: &mut Reporter<'_>) {
        sums.assert_invariants();
        let meta = &self.meta;
        let (data, values) = (sums.data_bytes, sums.value_bytes);
        let found = (sums.entries, sums.deletes, data, values);
        let counts = (meta.entry_count, meta.delete_count);
        let expected = (counts.0, counts.1, meta.data_bytes, meta.value_bytes);
        reporter.expect(found == expected, "table-counts", || {
            format!("entries, deletes and bytes are {found:?}, the version says {expected:?}")
        });
        let expected = Some((meta.min_seqno, meta.max_seqno));
        reporter.expect(sums.seqnos == expected, "table-counts", || {
            format!(
                "sequence numbers are {:?}, the version says {expected:?}",
                sums.seqnos
            )
        });
    }
}

/// True if a search for the block's last key comes to the block, or to one before it that holds
/// versions of the same key.
fn find_block(blocks: &mut impl BlockList, entry: &IndexEntry) -> Result<bool, VtError> {
    debug_assert!(entry.first <= entry.last, "a block's keys are in order");
    blocks.seek(&entry.last)?;
    let found = blocks.current()?;
    Ok(found.is_some_and(|f| f.block == entry.block || f.last == entry.last))
}

/// The keys that an error in a block's order reaches: those that its index promises and those that
/// are in it, which a search or a scan may miss or meet at the wrong time.
struct AffectedKeys {
    low: Vec<u8>,
    high: Vec<u8>,
    is_ordered: bool,
}

impl AffectedKeys {
    fn of(index: &IndexEntryRef<'_>) -> Self {
        let mut span = Self {
            low: index.last.to_vec(),
            high: index.last.to_vec(),
            is_ordered: true,
        };
        if !index.is_value {
            span.reach(index.first);
        }
        debug_assert!(span.low <= span.high, "a range of keys");
        span
    }

    fn reach(&mut self, key: &[u8]) {
        if key < self.low.as_slice() {
            self.low = key.to_vec();
        }
        if key > self.high.as_slice() {
            self.high = key.to_vec();
        }
        debug_assert!(self.low.as_slice() <= key, "the range holds the key");
        debug_assert!(key <= self.high.as_slice(), "the range holds the key");
    }

    /// Notes an entry, and the one before it.
    fn see(&mut self, entry: &EntryRef<'_>, last: Option<&(Vec<u8>, Seqno)>) {
        self.reach(entry.key);
        let Some((key, seqno)) = last else { return };
        let before = EntryRef {
            key,
            seqno: *seqno,
            op: Op::Delete,
        };
        if cmp_entries(&before, entry) != Ordering::Less {
            self.is_ordered = false;
            self.reach(key);
        }
    }

    fn report(&self, addr: u64, is_index_right: bool, reporter: &mut Reporter<'_>) {
        if !self.is_ordered {
            let what = format!("block at byte {addr} has entries out of order");
            reporter.lose("table-order", &what, &self.low, &self.high);
        }
        if !is_index_right {
            let what =
                format!("block at byte {addr} has other first and last keys than its index says");
            reporter.lose("index-keys", &what, &self.low, &self.high);
        }
    }
}

fn check_index_entry(index: &IndexEntryRef<'_>, block: &EntrySums, reporter: &mut Reporter<'_>) {
    let addr = index.block.addr;
    debug_assert!(block.seqnos.is_some(), "a block holds an entry");
    let expected = (u64::from(index.entry_count), u64::from(index.delete_count));
    reporter.expect(
        (block.entries, block.deletes) == expected,
        "index-counts",
        || format!("block at byte {addr} has other counts than its index says"),
    );
    let expected = Some((index.min_seqno, index.max_seqno));
    reporter.expect(block.seqnos == expected, "index-counts", || {
        format!("block at byte {addr} has other sequence numbers than its index says")
    });
}

#[cfg(test)]
mod tests;
