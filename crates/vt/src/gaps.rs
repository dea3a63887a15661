//! Gaps: ranges of keys that are known to be empty, so that no scan steps over what was deleted
//! there more than once.
//!
//! A delete is a mark above what it deletes, and both stay until a compaction brings them together.
//! A scan steps over both, and a million of them take it a tenth of a second. So a scan that has
//! met many deleted keys and no row between two places notes that: *no reader of this sequence
//! number or a later one finds a row here*. That is about keys, not about tables: it stays true
//! whatever write-outs and compactions do, and only a put (or an upsert) ends it.
//!
//! 1. *Announce*, under the lock of commits: the gap is known to every later commit.
//! 2. *Check*: commits that came after what the scan has read are still in memtables; none of them
//!    may have put anything there. Nothing is to be checked if there was no commit.
//! 3. *Confirm*: unless a put has met it meanwhile, scans use it.
//!
//! A put that meets a gap parts it. So that scans need not come first, commits note rows of deletes
//! in rising order of keys ([`DeleteRuns`]), and a thread scans over each once there are enough. A
//! range delete over much that is in its own memtable is a gap when it is committed.
//!
//! Invariants:
//! - gaps of a tree are in order and do not touch;
//! - a set of gaps that a reader has taken after its sequence number stays right for it.
//!
//! Nothing of this is stored: after an open it is learned anew. What a write-out finds empty where
//! it has many deletes it stores by itself, as range deletes ([`crate::write_out`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::{Seqno, TreeId};

/// Most gaps of one tree.
const TREE_GAPS_MAX: usize = 128;
/// Most gaps of all.
const GAPS_MAX: usize = 2048;
/// Keys of a gap may always be as long as this together.
const GAP_BYTES_MIN: usize = 256;
/// What a gap takes beside its keys.
const GAP_OVERHEAD_BYTES: usize = size_of::<Gap>() + 64;
/// A gap that was parted so often is given up when it is met again.
const PARTED_MAX: u8 = 6;
/// Rows of deletes that are followed at a time.
const RUNS_MAX: usize = 4;
/// Rows of deletes that wait for a look.
const HINTS_MAX: usize = 16;

const _: () = assert!(TREE_GAPS_MAX <= GAPS_MAX);

/// No reader of `seqno` or later finds anything from `start` on and before `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) start: Arc<[u8]>,
    /// `None` for the end of the tree.
    pub(crate) end: Option<Arc<[u8]>>,
    pub(crate) seqno: Seqno,
    /// How many puts have parted it.
    parted: u8,
}

impl Gap {
    pub(crate) fn new(start: &[u8], end: Option<&[u8]>, seqno: Seqno) -> Self {
        debug_assert!(end.is_none_or(|end| start < end), "there are keys in it");
        Self {
            start: start.into(),
            end: end.map(Into::into),
            seqno,
            parted: 0,
        }
    }

    pub(crate) fn holds(&self, key: &[u8]) -> bool {
        *self.start <= *key && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Length of its keys.
    fn key_bytes(&self) -> usize {
        self.start.len() + self.end.as_ref().map_or(0, |end| end.len())
    }

    fn touches(&self, other: &Self) -> bool {
        let reaches = |a: &Self, b: &Self| a.end.as_ref().is_none_or(|end| *end >= b.start);
        reaches(self, other) && reaches(other, self)
    }

    /// Both, which touch, as one.
    fn joined(&self, other: &Self) -> Self {
        debug_assert!(self.touches(other), "nothing is between them");
        let end = match (&self.end, &other.end) {
            (Some(a), Some(b)) => Some(a.max(b)),
            _ => None,
        };
        let joined = Self {
            start: Arc::clone((&self.start).min(&other.start)),
            end: end.map(Arc::clone),
            seqno: self.seqno.max(other.seqno),
            parted: 0,
        };
        debug_assert!(
            joined.key_bytes() <= self.key_bytes() + other.key_bytes(),
            "its keys are those of both"
        );
        joined
    }

    /// What is left of it around a key in it.
    fn without(&self, key: &[u8]) -> impl Iterator<Item = Self> {
        debug_assert!(self.holds(key), "the key parts it");
        debug_assert!(
            self.parted <= PARTED_MAX,
            "a gap parted more often is given up"
        );
        let parted = self.parted + 1;
        let before = (*self.start < *key).then(|| Self {
            end: Some(key.into()),
            parted,
            ..self.clone()
        });
        let start: Arc<[u8]> = successor(key).into();
        let has_more = self.end.as_ref().is_none_or(|end| start < *end);
        let after = has_more.then(|| Self {
            start,
            parted,
            ..self.clone()
        });
        let is_kept = parted <= PARTED_MAX;
        before.into_iter().chain(after).filter(move |_| is_kept)
    }
}

/// The first key after `key`.
pub(crate) fn successor(key: &[u8]) -> Vec<u8> {
    let next = [key, &[0]].concat();
    debug_assert!(next.as_slice() > key, "it is after the key");
    next
}

/// The gaps of a tree, in order.
pub(crate) type TreeGaps = Arc<Vec<Gap>>;

/// Among the gaps of a tree, the one that holds a key for a reader of `seqno`.
pub(crate) fn gap_at<'a>(gaps: &'a [Gap], key: &[u8], seqno: Seqno) -> Option<&'a Gap> {
    let after = gaps.partition_point(|gap| *gap.start <= *key);
    let gap = gaps[..after].last()?;
    debug_assert!(
        gaps.get(after).is_none_or(|next| !next.touches(gap)),
        "gaps do not touch"
    );
    (gap.holds(key) && gap.seqno <= seqno).then_some(gap)
}

/// The known gaps of a store.
#[derive(Debug)]
pub(crate) struct Gaps {
    /// False if commits have nothing to look for. Set under the lock of commits.
    is_any: AtomicBool,
    /// Longest keys, together, of a gap that is kept.
    gap_bytes_max: usize,
    state: Mutex<GapsState>,
}

#[derive(Debug, Default)]
struct GapsState {
    trees: BTreeMap<TreeId, TreeGaps>,
    /// Announced, not confirmed yet.
    announced: Vec<(u64, TreeId, Gap)>,
    next_number: u64,
    /// Rows of deletes that are worth a look.
    hints: VecDeque<Hint>,
}

/// A row of deletes, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) tree: TreeId,
    pub(crate) first: Vec<u8>,
    pub(crate) last: Vec<u8>,
}

impl Gaps {
    /// None yet; gaps whose keys have at most so many bytes are kept.
    pub(crate) fn new(gap_bytes_max: usize) -> Self {
        Self {
            is_any: AtomicBool::new(false),
            gap_bytes_max,
            state: Mutex::default(),
        }
    }

    /// How long the keys of a gap may be, so that all gaps take about `bytes`.
    pub(crate) fn gap_bytes_max(bytes: u64) -> usize {
        let each = usize::try_from(bytes).unwrap_or(usize::MAX) / GAPS_MAX;
        each.saturating_sub(GAP_OVERHEAD_BYTES).max(GAP_BYTES_MIN)
    }

    /// The gaps of a tree as they are now.
    pub(crate) fn of(&self, tree: TreeId) -> Option<TreeGaps> {
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        self.state.lock().trees.get(&tree).cloned()
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.state
            .lock()
            .trees
            .values()
            .map(|gaps| gaps.len())
            .sum()
    }

    /// Makes a gap known to all commits that come later. The caller holds the lock of commits.
    pub(crate) fn announce(&self, tree: TreeId, gap: Gap) -> u64 {
        debug_assert!(
            gap.end.as_ref().is_none_or(|end| gap.start < *end),
            "there are keys in it"
        );
        let mut state = self.state.lock();
        self.is_any.store(true, Ordering::Release);
        let number = state.next_number;
        debug_assert!(
            state
                .announced
                .iter()
                .all(|(earlier, _, _)| *earlier < number),
            "numbers of gaps rise"
        );
        state.next_number += 1;
        state.announced.push((number, tree, gap));
        number
    }

    /// It may be none after all.
    pub(crate) fn withdraw(&self, number: u64) {
        let mut state = self.state.lock();
        debug_assert!(number < state.next_number, "it was announced");
        state.announced.retain(|(n, _, _)| *n != number);
    }

    /// From now on scans may use it, if no put has met it.
    pub(crate) fn confirm(&self, number: u64) {
        let mut state = self.state.lock();
        debug_assert!(number < state.next_number, "it was announced");
        let Some(at) = state.announced.iter().position(|(n, _, _)| *n == number) else {
            return;
        };
        let (_, tree, gap) = state.announced.swap_remove(at);
        if state.trees.values().map(|gaps| gaps.len()).sum::<usize>() >= GAPS_MAX {
            state.trees.clear();
        }
        let gaps = Arc::make_mut(state.trees.entry(tree).or_default());
        let first = gaps.partition_point(|g| g.end.as_ref().is_some_and(|end| *end < gap.start));
        let mut last = first;
        let mut whole = gap;
        while gaps.get(last).is_some_and(|g| g.touches(&whole)) {
            whole = whole.joined(&gaps[last]);
            last += 1;
        }
        if first == last && gaps.len() >= TREE_GAPS_MAX {
            return;
        }
        let is_kept = whole.key_bytes() <= self.gap_bytes_max;
        debug_assert!(
            whole.end.as_ref().is_none_or(|end| whole.start < *end),
            "there are keys in it"
        );
        gaps.splice(first..last, is_kept.then_some(whole));
        debug_assert!(
            gaps.windows(2).all(|pair| !pair[0].touches(&pair[1])),
            "gaps do not touch"
        );
    }

    /// Takes note that a commit puts these keys. The caller holds the lock of commits, has
    /// inserted them, and has not published them.
    pub(crate) fn put<'a>(&self, keys: impl Iterator<Item = (TreeId, &'a [u8])>) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        for (tree, key) in keys {
            state
                .announced
                .retain(|(_, of, gap)| *of != tree || !gap.holds(key));
            let Some(gaps) = state.trees.get_mut(&tree) else {
                continue;
            };
            let Some(at) = gaps
                .partition_point(|gap| *gap.start <= *key)
                .checked_sub(1)
            else {
                continue;
            };
            if gaps[at].holds(key) {
                let is_kept = |gap: &Gap| gap.key_bytes() <= self.gap_bytes_max;
                let parts: Vec<Gap> = gaps[at].without(key).filter(is_kept).collect();
                Arc::make_mut(gaps).splice(at..=at, parts);
                debug_assert!(
                    gaps.iter().all(|gap| !gap.holds(key)),
                    "no gap holds a key that was put"
                );
                debug_assert!(
                    gaps.windows(2).all(|pair| !pair[0].touches(&pair[1])),
                    "gaps do not touch"
                );
            }
        }
    }

    /// Forgets a tree that is gone, or that got tables from elsewhere: with the lock of commits,
    /// before they are visible.
    pub(crate) fn forget(&self, tree: TreeId) {
        let mut state = self.state.lock();
        state.trees.remove(&tree);
        state.announced.retain(|(_, of, _)| *of != tree);
    }

    /// Takes note of a row of deletes. It joins the one before if it goes on from there. If too
    /// many wait it is dropped, and the first scan learns it.
    pub(crate) fn hint(&self, hint: Hint) {
        debug_assert!(hint.first <= hint.last, "keys of a row rise");
        let hints = &mut self.state.lock().hints;
        let same = |h: &&mut Hint| h.tree == hint.tree && h.last == hint.first;
        if let Some(before) = hints.iter_mut().find(same) {
            before.last = hint.last;
        } else if hints.len() < HINTS_MAX {
            hints.push_back(hint);
        }
        debug_assert!(hints.len() <= HINTS_MAX, "few rows wait");
    }

    /// A row of deletes to look at.
    pub(crate) fn next_hint(&self) -> Option<Hint> {
        let hint = self.state.lock().hints.pop_front();
        debug_assert!(
            hint.as_ref().is_none_or(|hint| hint.first <= hint.last),
            "keys of a row rise"
        );
        hint
    }
}

/// Finds rows of deletes with rising keys, some at a time.
#[derive(Debug, Default)]
pub(crate) struct DeleteRuns {
    /// The one that went on last is the last.
    runs: Vec<(Hint, u64)>,
}

impl DeleteRuns {
    /// Takes note of a delete. Answers a row, each time that one has become long enough.
    pub(crate) fn delete(&mut self, tree: TreeId, key: &[u8], long: u64) -> Option<Hint> {
        debug_assert!(long > 0, "a row has a delete");
        debug_assert!(self.runs.len() <= RUNS_MAX, "few rows are followed");
        let goes_on = |(run, _): &&(Hint, u64)| run.tree == tree && run.last.as_slice() < key;
        let nearest = self.runs.iter().filter(goes_on).map(|(run, _)| &run.last);
        let at = nearest
            .max()
            .and_then(|last| self.runs.iter().position(|(run, _)| run.last == *last));
        let Some(at) = at else {
            if self.runs.len() == RUNS_MAX {
                self.runs.remove(0);
            }
            let (first, last) = (key.to_vec(), key.to_vec());
            self.runs.push((Hint { tree, first, last }, 1));
            debug_assert!(self.runs.len() <= RUNS_MAX, "few rows are followed");
            return None;
        };
        let newest = self.runs.len() - 1;
        self.runs[at..=newest].rotate_left(1);
        let (run, count) = &mut self.runs[newest];
        debug_assert!(run.last.as_slice() < key, "keys of a row rise");
        run.last.clear();
        run.last.extend_from_slice(key);
        *count += 1;
        debug_assert!(run.first < run.last, "a row that went on has two keys");
        if *count < long {
            return None;
        }
        *count = 0;
        let found = run.clone();
        run.first = run.last.clone();
        Some(found)
    }
}

#[cfg(test)]
mod tests;
