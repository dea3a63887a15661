//! Scans: the sources of a view merged, versions resolved, range deletes skipped.
//!
//! Sources are ordered from the newest data to the oldest. Where a source's next key lies under a
//! range delete of a newer source, everything up to the delete's end is older than it: the source
//! and all older ones go there at once, without stepping through what is hidden. In the same way
//! all sources go to the end of a gap ([`crate::gaps`]); a scan that had to step through one notes
//! it. Of what a range delete hides in its own source, whole blocks are left out that are older
//! than it.
//!
//! Keys must go on in their order. A damaged block under a right checksum can have its entries out
//! of order: callers would meet keys outside of their range, and a seek could take a source back
//! without end.

mod versions;

use super::gap_tracking::Passed;
use super::path::ReadPath;
use super::source::Source;
use super::source_heap::SourceHeap;
use crate::VtError;
use crate::cache::ReadCount;
use crate::entry::{EntryIter, Op};
use crate::gaps::{Gap, successor};
use crate::prefix::prefix_of;
use crate::table::Bounds;
use crate::view::View;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{Direction, Entry, KeyRange, KvError, Scan};
use versions::{Chain, versions_backward};

/// A scan under way. Holds its view, and no lock.
pub(crate) struct VtScan<'a> {
    reads: &'a ReadPath,
    tree: TreeId,
    sources: Vec<Source>,
    /// Upward: which of them is next.
    heap: SourceHeap,
    has_range_deletes: bool,
    seqno: Seqno,
    direction: Direction,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    passed: Passed,
    /// It waits for a commit that is under way, if that is needed to note a gap.
    waits_to_learn: bool,
    /// It sees all that a branch has of its parent. Where it sees less, a later reader may find
    /// more without any write to the branch.
    may_learn: bool,
    /// How many keys without a row make a gap.
    gap_count_min: u64,
    /// How many came before the row given last, or before the end.
    passed_before: u64,
    /// The key given last, and its value where it was folded or read backward.
    key: Vec<u8>,
    value: Vec<u8>,
    /// Forward: the sources still stand on `key`.
    stands_on_key: bool,
    /// `key` was resolved: the keys after it must be in their order.
    has_key: bool,
    is_over: bool,
    /// Keeps what the sources read. Dropped last.
    _view: Arc<View>,
}

/// What was found for a key.
pub(super) enum KeyState {
    Absent,
    /// The put on which this source stands.
    InPlace(usize),
    /// In the scan's value.
    Built,
}

impl<'a> VtScan<'a> {
    /// Begins a scan of a tree that is in the view. It sees what is not newer than `seqno`; the
    /// view holds at least all commits up to `complete`.
    pub(crate) fn new(
        reads: &'a ReadPath,
        view: Arc<View>,
        tree: TreeId,
        range: KeyRange<'_>,
        (direction, is_whole): (Direction, bool),
        (seqno, complete): (Seqno, Seqno),
    ) -> Result<Self, VtError> {
        let bounds = Bounds::of(range, is_whole);
        let version = &view.version.trees[&tree];
        let branch = version.info.branch;
        let sources = reads.sources(&view, version, bounds, seqno)?;
        let mut scan = Self {
            reads,
            tree,
            heap: SourceHeap::new(),
            has_range_deletes: sources.iter().any(Source::has_range_deletes),
            passed: Passed::new(reads, tree, range, direction, complete),
            waits_to_learn: false,
            may_learn: branch.is_none_or(|branch| branch.seqno <= seqno),
            gap_count_min: reads.gap_count_min(),
            passed_before: 0,
            sources,
            seqno,
            direction,
            start: range.start.to_vec(),
            end: range.end.map(<[u8]>::to_vec),
            key: Vec::new(),
            value: Vec::new(),
            stands_on_key: false,
            has_key: false,
            is_over: range.end.is_some_and(|end| end <= range.start),
            _view: view,
        };
        debug_assert!(
            scan.sources.iter().all(|source| source.seqno <= seqno),
            "no source shows more than the reader sees"
        );
        if !scan.is_over {
            for source in &mut scan.sources {
                match direction {
                    Direction::Forward => {
                        source.entries.seek(range.start, Seqno(u64::MAX))?;
                    }
                    Direction::Backward => source.entries.seek_before(range.end)?,
                }
            }
        }
        Ok(scan)
    }

    /// The scan is to note gaps, and no short ones. It waits for commits where that is needed.
    pub(super) fn begin_look(&mut self) {
        debug_assert!(!self.has_key, "the scan begins");
        self.waits_to_learn = true;
        self.gap_count_min = self.reads.gap_look_count_min();
    }

    /// The key given last.
    pub(super) fn key(&self) -> &[u8] {
        debug_assert!(self.has_key, "a key was given");
        &self.key
    }

    /// How many keys it stepped over to come to the row given last, or to the end.
    pub(super) const fn passed_before(&self) -> u64 {
        self.passed_before
    }

    fn count_passed(&mut self) {
        debug_assert!(!self.passed.is_nothing(), "keys or a gap were passed");
        self.passed_before = self.passed.row();
        debug_assert!(self.passed.is_nothing(), "they are counted once");
        if self.passed_before > 0 {
            let counters = self.reads.parts.cache.counters();
            counters.add(ReadCount::PassedKeys, self.passed_before);
        }
    }

    pub(super) fn advance(&mut self) -> Result<Option<KeyState>, VtError> {
        debug_assert!(!self.is_over, "nothing comes after the end");
        loop {
            let found = match self.direction {
                Direction::Forward => self.forward()?,
                Direction::Backward => self.backward()?,
            };
            match found {
                Some(KeyState::Absent) => {
                    let gap = self.passed.absent(&self.key, self.direction, self.seqno);
                    match gap {
                        Some(gap) if !self.jump(&gap)? => {
                            self.count_passed();
                            return Ok(None);
                        }
                        Some(_) => {}
                        None if self.has_range_deletes && self.passed.is_due() => {
                            self.skip_hidden()?;
                        }
                        None => {}
                    }
                }
                other => {
                    self.passed_before = 0;
                    if !self.passed.is_nothing() {
                        self.learn(other.is_some())?;
                        self.count_passed();
                    }
                    return Ok(other);
                }
            }
        }
    }

    /// Notes what the scan has passed without a row, up to the row that it stands on or to its end.
    fn learn(&mut self, is_row: bool) -> Result<(), VtError> {
        debug_assert!(!is_row || self.has_key, "a row has a key");
        let key_after;
        let to = match (self.direction, is_row) {
            (Direction::Forward, true) => Some(self.key.as_slice()),
            (Direction::Forward, false) => self.end.as_deref(),
            (Direction::Backward, true) => {
                key_after = successor(&self.key);
                Some(key_after.as_slice())
            }
            (Direction::Backward, false) => Some(self.start.as_slice()),
        };
        self.learn_to(to)
    }

    fn learn_to(&self, to: Option<&[u8]>) -> Result<(), VtError> {
        let count_min = self.gap_count_min;
        let gap = self.passed.gap(to, self.direction, self.seqno, count_min);
        let Some(gap) = gap.filter(|_| self.may_learn) else {
            return Ok(());
        };
        debug_assert!(*gap.start >= *self.start, "a gap is within the scan");
        let complete = self.passed.complete();
        self.reads
            .learn_gap(self.tree, &gap, complete, self.waits_to_learn)
    }

    /// Takes all sources to the other end of a gap that holds the key. Returns false if nothing can
    /// be there.
    fn jump(&mut self, gap: &Gap) -> Result<bool, VtError> {
        debug_assert!(gap.holds(&self.key), "it is in the gap");
        let counters = self.reads.parts.cache.counters();
        counters.add(ReadCount::GapsJumped, 1);
        match self.direction {
            Direction::Forward => {
                self.learn_to(Some(&gap.start))?;
                self.stands_on_key = false;
                self.heap.forget();
                let Some(end) = &gap.end else {
                    return Ok(false);
                };
                for source in &mut self.sources {
                    source.entries.seek_on(end)?;
                }
                self.passed.jumped(end);
            }
            Direction::Backward => {
                if let Some(end) = &gap.end {
                    self.learn_to(Some(end))?;
                }
                for source in &mut self.sources {
                    source.entries.seek_back(&gap.start)?;
                }
                self.passed.jumped(&gap.start);
            }
        }
        Ok(true)
    }

    /// Takes each source on over what a range delete of its own hides around the key, as far as
    /// whole blocks are older than that.
    fn skip_hidden(&mut self) -> Result<(), VtError> {
        debug_assert!(
            self.has_range_deletes,
            "a range delete hides what is skipped"
        );
        debug_assert!(self.has_key, "it is skipped around a key");
        self.heap.forget();
        let mut has_moved = false;
        for source in &mut self.sources {
            let Some(window) = source.window(&self.key).cloned() else {
                continue;
            };
            let Some(by) = window.hidden_by else {
                continue;
            };
            has_moved |= match (self.direction, &window.end) {
                (Direction::Forward, Some(end)) => source.entries.skip_older(by, end)?,
                (Direction::Forward, None) => unreachable!("a range delete has an end"),
                (Direction::Backward, _) => source.entries.skip_older_back(by, &window.start)?,
            };
        }
        if has_moved {
            self.passed.leapt();
        }
        Ok(())
    }

    /// Returns the error of a source that came back to keys that the scan has passed.
    #[cold]
    fn out_of_order(&self) -> VtError {
        let what = format!("tree {} has entries out of order", self.tree);
        VtError::Version { what }
    }

    /// Resolves the next key upward. `None` at the end.
    fn forward(&mut self) -> Result<Option<KeyState>, VtError> {
        debug_assert!(
            !self.stands_on_key || self.has_key,
            "the sources stand on a resolved key"
        );
        if self.stands_on_key {
            self.leave_key()?;
        }
        let Some(top) = self.heap.top(&self.sources) else {
            return Ok(None);
        };
        let next = self.sources[top.source].entries.current();
        let next = next.expect("the top stands on an entry");
        if self.end.as_deref().is_some_and(|end| next.key >= end) {
            return Ok(None);
        }
        if self.has_key && next.key <= self.key.as_slice() {
            return Err(self.out_of_order());
        }
        self.key.clear();
        self.key.extend_from_slice(next.key);
        self.has_key = true;
        self.stands_on_key = true;
        let is_seen = next.seqno <= self.sources[top.source].seqno && matches!(next.op, Op::Put(_));
        if is_seen && !self.has_range_deletes {
            return Ok(Some(KeyState::InPlace(top.source)));
        }
        self.resolve_forward().map(Some)
    }

    /// Steps every source that stands on the key beyond its versions.
    fn leave_key(&mut self) -> Result<(), VtError> {
        debug_assert!(self.has_key, "the key was resolved");
        debug_assert_eq!(
            self.direction,
            Direction::Forward,
            "it stands on a key upward"
        );
        self.stands_on_key = false;
        let prefix = prefix_of(&self.key);
        // The key is that of the top, unless that has moved.
        let mut is_on_key = self.heap.is_fresh();
        while let Some(top) = self.heap.top(&self.sources)
            && top.prefix == prefix
        {
            let entries = &mut self.sources[top.source].entries;
            if !is_on_key && entries.current().is_none_or(|e| e.key != self.key) {
                break;
            }
            is_on_key = false;
            match entries.next_prefix() {
                Ok(next) => self.heap.moved(next, &self.sources),
                Err(error) => {
                    self.heap.forget();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn resolve_forward(&mut self) -> Result<KeyState, VtError> {
        debug_assert!(self.stands_on_key, "the next key was found");
        let mut chain = Chain::default();
        let mut hidden_by: Option<Seqno> = None;
        for at in 0..self.sources.len() {
            if hidden_by.is_some() {
                // All that the sources from here on hold of the key is older than the delete.
                self.skip_forward(at)?;
                break;
            }
            let source = &mut self.sources[at];
            let window = source.window(&self.key);
            hidden_by = window.and_then(|w| w.hidden_by);
            while let Some(entry) = source.entries.current()
                && entry.key == self.key
            {
                if entry.seqno > source.seqno {
                    self.heap.forget();
                    source.entries.next()?;
                    continue;
                }
                if hidden_by.is_some_and(|by| entry.seqno < by) {
                    break;
                }
                if chain.upserts.is_empty() && matches!(entry.op, Op::Put(_)) {
                    return Ok(KeyState::InPlace(at));
                }
                if !chain.push(entry.op) {
                    return self.built(chain);
                }
                self.heap.forget();
                source.entries.next()?;
            }
        }
        self.built(chain)
    }

    /// Takes the sources from `first` on beyond the range delete of a newer one that hides `key`.
    fn skip_forward(&mut self, first: usize) -> Result<(), VtError> {
        debug_assert!(first > 0, "a newer source hides the key");
        let mut end: Option<&[u8]> = None;
        let (newer, older) = self.sources.split_at_mut(first);
        for source in newer {
            let window = source.window(&self.key);
            if let Some(window) = window.filter(|w| w.hidden_by.is_some()) {
                match &window.end {
                    Some(bound) => end = end.max(Some(bound)),
                    None => unreachable!("a range delete has an end"),
                }
            }
        }
        let end = end.expect("a newer source hides the key");
        debug_assert!(end > self.key.as_slice(), "the delete ends beyond the key");
        self.heap.forget();
        for source in older {
            source.entries.seek_on(end)?;
        }
        Ok(())
    }

    fn built(&mut self, chain: Chain) -> Result<KeyState, VtError> {
        debug_assert!(self.has_key, "the versions are of a key");
        Ok(match chain.fold(&self.reads.parts.upserts, &self.key)? {
            Some(value) => {
                self.value = value;
                KeyState::Built
            }
            None => KeyState::Absent,
        })
    }

    /// Resolves the next key downward. `None` at the end.
    fn backward(&mut self) -> Result<Option<KeyState>, VtError> {
        debug_assert!(!self.stands_on_key, "downward, sources have left the key");
        let next = self.sources.iter().filter_map(|s| s.entries.current());
        let Some(next) = next.map(|entry| entry.key).max() else {
            return Ok(None);
        };
        if next < self.start.as_slice() {
            return Ok(None);
        }
        if self.has_key && next >= self.key.as_slice() {
            return Err(self.out_of_order());
        }
        self.key.clear();
        self.key.extend_from_slice(next);
        self.has_key = true;
        self.resolve_backward().map(Some)
    }

    fn resolve_backward(&mut self) -> Result<KeyState, VtError> {
        let mut chain = Chain::default();
        let mut is_done = false;
        for at in 0..self.sources.len() {
            let source = &mut self.sources[at];
            let window = source.window(&self.key);
            let hidden_by = window.and_then(|w| w.hidden_by);
            let versions = versions_backward(&mut *source.entries, &self.key, source.seqno)?;
            for version in versions.iter().rev() {
                if is_done || hidden_by.is_some_and(|by| version.0 < by) {
                    break;
                }
                is_done = !chain.push(version.1.op());
            }
            if hidden_by.is_some() {
                self.skip_backward(at + 1)?;
                break;
            }
        }
        self.built(chain)
    }

    /// Takes the sources from `first` on before the range delete of a newer one that hides `key`.
    fn skip_backward(&mut self, first: usize) -> Result<(), VtError> {
        debug_assert!(first > 0, "a newer source hides the key");
        let mut start: Option<&[u8]> = None;
        let (newer, older) = self.sources.split_at_mut(first);
        for source in newer {
            let window = source.window(&self.key);
            if let Some(window) = window.filter(|w| w.hidden_by.is_some()) {
                start = Some(start.map_or(&window.start, |s| s.min(&window.start)));
            }
        }
        let start = start.expect("a newer source hides the key");
        debug_assert!(
            start <= self.key.as_slice(),
            "the delete begins at or before the key"
        );
        for source in older {
            source.entries.seek_back(start)?;
        }
        Ok(())
    }
}

impl Scan for VtScan<'_> {
    fn next(&mut self) -> Result<Option<Entry<'_>>, KvError> {
        if self.is_over {
            return Ok(None);
        }
        let found = self.advance().inspect_err(|_| self.is_over = true);
        match found? {
            None => {
                self.is_over = true;
                Ok(None)
            }
            Some(KeyState::InPlace(at)) => {
                let entry = self.sources[at].entries.current();
                debug_assert!(
                    entry.is_some_and(|entry| entry.key == self.key),
                    "the source stands on the key"
                );
                let Some(Op::Put(value)) = entry.map(|e| e.op) else {
                    unreachable!("the source stands on a put");
                };
                Ok(Some((&self.key, value)))
            }
            Some(_) => Ok(Some((&self.key, &self.value))),
        }
    }
}

#[cfg(test)]
mod tests;
