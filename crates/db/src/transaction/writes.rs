//! What a transaction has written: of each key its newest state, and the ranges it has cleared.
//!
//! 1. A range delete removes the states of the keys in its range and adds the range to the cleared
//!    ones. States that come later lie over it.
//! 2. An upsert is folded at once where the value is known: over a value of the transaction's own,
//!    or in a cleared range. Else its delta is kept, and folded into what the store has.
//! 3. The batch has the cleared ranges first, then the keys: the order in which they were written
//!    no longer matters.
//!
//! While a savepoint is open, each change notes how to take it back.

use super::cleared::Cleared;
use crate::DbError;
use bytes::Bytes;
use std::collections::BTreeMap;
use stitch_base::TreeId;
use stitch_base::sync::Arc;
use stitch_kv::{Batch, Folded, Guards, KeyRange, Message, UpsertFn, UpsertRegistry};

/// The most that a message takes in a batch beside its key and operand.
const MESSAGE_BYTES: usize = 24;
/// Values of at least this length are not copied into the batch.
const BORROWED_BYTES_MIN: usize = 4 << 10;

/// The most that a message adds to a batch.
pub(super) fn message_bytes(message: Message<'_>) -> usize {
    MESSAGE_BYTES + message.key().len() + message.operand().len()
}

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Value(Bytes),
    Absent,
    /// Deltas to fold into what the store has, oldest first.
    Deltas(Vec<Delta>),
}

/// An upsert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delta {
    pub(super) function: u32,
    pub(super) bytes: Bytes,
}

impl Own {
    fn len_bytes(&self, key: &[u8]) -> usize {
        match self {
            Self::Value(value) => MESSAGE_BYTES + key.len() + value.len(),
            Self::Absent => MESSAGE_BYTES + key.len(),
            Self::Deltas(deltas) => {
                let delta = |delta: &Delta| MESSAGE_BYTES + key.len() + delta.bytes.len();
                deltas.iter().map(delta).sum()
            }
        }
    }
}

/// What was written to one tree.
#[derive(Debug, Default)]
pub(super) struct TreeWrites {
    pub(super) keys: BTreeMap<Vec<u8>, Own>,
    pub(super) cleared: Arc<Cleared>,
}

/// How to take a change back.
#[derive(Debug)]
enum Undo {
    Key {
        tree: TreeId,
        key: Vec<u8>,
        before: Option<Own>,
    },
    Delta {
        tree: TreeId,
        key: Vec<u8>,
    },
    Clear {
        tree: TreeId,
        removed: Vec<(Vec<u8>, Own)>,
        before: Arc<Cleared>,
    },
}

/// What a transaction has written.
#[derive(Debug, Default)]
pub(super) struct Writes {
    trees: BTreeMap<TreeId, TreeWrites>,
    /// The most that the batch takes.
    len_bytes: usize,
    /// Of each open savepoint: its number, the length of `undo`, and `len_bytes` then.
    savepoints: Vec<(u64, usize, usize)>,
    last_savepoint: u64,
    undo: Vec<Undo>,
    undo_bytes: usize,
}

impl Writes {
    /// What was written to a tree, if anything was.
    pub(super) fn tree(&self, tree: TreeId) -> Option<&TreeWrites> {
        self.trees.get(&tree)
    }

    /// The trees that something was written to.
    pub(super) fn trees(&self) -> impl Iterator<Item = TreeId> {
        let is_written = |tree: &TreeWrites| !tree.keys.is_empty() || !tree.cleared.is_empty();
        let trees = self.trees.iter();
        trees.filter_map(move |(tree, writes)| is_written(writes).then_some(*tree))
    }

    /// True if a savepoint is open.
    pub(super) const fn has_savepoint(&self) -> bool {
        !self.savepoints.is_empty()
    }

    /// Reports whether this savepoint is open here.
    pub(super) fn is_open(&self, savepoint: u64) -> bool {
        self.depth(savepoint).is_ok()
    }

    /// The number of the newest savepoint so far.
    pub(super) const fn last_savepoint(&self) -> u64 {
        self.last_savepoint
    }

    /// Uses no number of savepoints up to this one again.
    pub(super) fn skip_savepoints(&mut self, last: u64) {
        self.last_savepoint = self.last_savepoint.max(last);
    }

    /// Nothing, to be written to after this.
    pub(super) fn next(&self) -> Self {
        Self {
            last_savepoint: self.last_savepoint,
            ..Self::default()
        }
    }

    /// Closes all savepoints; what was written stays.
    pub(super) fn keep_all(&mut self) {
        self.savepoints.clear();
        self.undo.clear();
        self.undo_bytes = 0;
    }

    /// Forgets what was written. No savepoint is open; numbers of savepoints are not used again.
    pub(super) fn forget_all(&mut self) {
        debug_assert!(!self.has_savepoint(), "there is nothing to take back");
        debug_assert!(self.undo.is_empty(), "only savepoints need it");
        *self = self.next();
    }

    /// True if nothing was written.
    pub(super) fn is_empty(&self) -> bool {
        self.trees().next().is_none()
    }

    /// The most that the batch takes, in bytes.
    pub(super) const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// What savepoints keep to take changes back, in bytes.
    pub(super) const fn undo_bytes(&self) -> usize {
        self.undo_bytes
    }

    /// Gives a key another state.
    pub(super) fn set(&mut self, tree: TreeId, key: &[u8], own: Own) {
        let of_tree = self.trees.entry(tree).or_default();
        // Under a cleared range an absent key is the same as none.
        let is_nothing = own == Own::Absent && of_tree.cleared.covers(key);
        let before = match is_nothing {
            true => of_tree.keys.remove(key),
            false => {
                self.len_bytes += own.len_bytes(key);
                of_tree.keys.insert(key.to_vec(), own)
            }
        };
        self.len_bytes -= before.as_ref().map_or(0, |before| before.len_bytes(key));
        if !self.savepoints.is_empty() {
            let kept_bytes = before.as_ref().map_or(0, |before| before.len_bytes(key));
            self.undo_bytes += MESSAGE_BYTES + key.len() + kept_bytes;
            let key = key.to_vec();
            self.undo.push(Undo::Key { tree, key, before });
        }
    }

    /// Removes every key of a range that is not empty.
    pub(super) fn clear(&mut self, tree: TreeId, start: &[u8], end: &[u8]) {
        debug_assert!(start < end, "the range is not empty");
        let of_tree = self.trees.entry(tree).or_default();
        let range = start.to_vec()..end.to_vec();
        let removed = of_tree.keys.extract_if(range, |_, _| true);
        let removed: Vec<(Vec<u8>, Own)> = removed.collect();
        let removed_bytes = removed.iter().map(|(key, own)| own.len_bytes(key));
        let removed_bytes: usize = removed_bytes.sum();
        let before = Arc::clone(&of_tree.cleared);
        let mut cleared = Cleared::clone(&before);
        cleared.add(start, end);
        self.len_bytes += cleared.len_bytes(MESSAGE_BYTES);
        self.len_bytes -= removed_bytes + before.len_bytes(MESSAGE_BYTES);
        of_tree.cleared = Arc::new(cleared);
        if !self.savepoints.is_empty() {
            self.undo_bytes += removed_bytes + before.len_bytes(MESSAGE_BYTES);
            self.undo.push(Undo::Clear {
                tree,
                removed,
                before,
            });
        }
    }

    /// Folds a delta into a key.
    pub(super) fn upsert(
        &mut self,
        tree: TreeId,
        key: &[u8],
        function: &dyn UpsertFn,
        delta: &[u8],
    ) {
        let of_tree = self.trees.entry(tree).or_default();
        let is_cleared = of_tree.cleared.covers(key);
        let old = match of_tree.keys.get_mut(key) {
            Some(Own::Deltas(deltas)) => {
                let bytes = Bytes::copy_from_slice(delta);
                let function = function.id();
                deltas.push(Delta { function, bytes });
                self.len_bytes += MESSAGE_BYTES + key.len() + delta.len();
                if !self.savepoints.is_empty() {
                    self.undo_bytes += MESSAGE_BYTES + key.len();
                    let key = key.to_vec();
                    self.undo.push(Undo::Delta { tree, key });
                }
                return;
            }
            None if !is_cleared => {
                let bytes = Bytes::copy_from_slice(delta);
                let function = function.id();
                let deltas = vec![Delta { function, bytes }];
                return self.set(tree, key, Own::Deltas(deltas));
            }
            Some(Own::Value(old)) => Some(old.clone()),
            Some(Own::Absent) | None => None,
        };
        let own = fold_one(function, key, old.as_deref(), delta);
        self.set(tree, key, own.map_or(Own::Absent, Own::Value));
    }

    /// The messages of a batch that does all of it, to the trees that `to` gives.
    pub(super) fn fill<'v>(&'v self, batch: &mut Batch<'v>, to: impl Fn(TreeId) -> TreeId) {
        debug_assert!(batch.is_empty(), "the batch has nothing else");
        // Not touched where values are borrowed.
        batch.reserve(self.len_bytes);
        for (tree, writes) in &self.trees {
            let tree = to(*tree);
            for (start, end) in writes.cleared.iter() {
                batch.delete_range(tree, start, end);
            }
            for (key, own) in &writes.keys {
                match own {
                    Own::Value(value) if value.len() >= BORROWED_BYTES_MIN => {
                        batch.put_borrowed(tree, key, value);
                    }
                    Own::Value(value) => batch.put(tree, key, value),
                    Own::Absent => batch.delete(tree, key),
                    Own::Deltas(deltas) => {
                        for delta in deltas {
                            batch.upsert(tree, key, delta.function, &delta.bytes);
                        }
                    }
                }
            }
        }
        debug_assert!(batch.len_bytes() <= self.len_bytes, "it was counted");
    }

    /// Adds guards on all that was written, but for deltas whose order does not matter.
    pub(super) fn guard(&self, guards: &mut Guards, upserts: &UpsertRegistry) {
        let commutes = |delta: &Delta| upserts.get(delta.function).is_some_and(|f| f.commutes());
        for (tree, writes) in &self.trees {
            for (start, end) in writes.cleared.iter() {
                guards.range(*tree, KeyRange::new(start, end));
            }
            for (key, own) in &writes.keys {
                let is_blind = matches!(own, Own::Deltas(deltas) if deltas.iter().all(commutes));
                if !is_blind && !writes.cleared.covers(key) {
                    guards.key(*tree, key);
                }
            }
        }
    }

    /// Opens a savepoint and returns its number.
    pub(super) fn save(&mut self) -> u64 {
        self.last_savepoint += 1;
        let undo = self.undo.len();
        let last = self.savepoints.last();
        debug_assert!(
            last.is_none_or(|(_, before, _)| *before <= undo),
            "they are nested"
        );
        self.savepoints
            .push((self.last_savepoint, undo, self.len_bytes));
        self.last_savepoint
    }

    fn depth(&self, savepoint: u64) -> Result<usize, DbError> {
        let depth = self.savepoints.iter().position(|(n, _, _)| *n == savepoint);
        depth.ok_or(DbError::NoSavepoint)
    }

    /// Closes a savepoint and those after it; what was written stays.
    pub(super) fn keep(&mut self, savepoint: u64) -> Result<(), DbError> {
        let depth = self.depth(savepoint)?;
        self.savepoints.truncate(depth);
        if self.savepoints.is_empty() {
            self.keep_all();
        }
        Ok(())
    }

    /// Takes back what was written after a savepoint. It stays open; those after it are closed.
    pub(super) fn take_back(&mut self, savepoint: u64) -> Result<(), DbError> {
        let depth = self.depth(savepoint)?;
        self.savepoints.truncate(depth + 1);
        let (_, undo_len, len_bytes) = self.savepoints[depth];
        while self.undo.len() > undo_len {
            let undo = self.undo.pop().expect("there are more");
            self.apply(undo);
        }
        debug_assert_eq!(self.undo.len(), undo_len, "no more was taken back");
        self.len_bytes = len_bytes;
        if depth == 0 {
            self.undo_bytes = 0;
        }
        Ok(())
    }

    fn apply(&mut self, undo: Undo) {
        let known = "what was changed has a tree";
        match undo {
            Undo::Key { tree, key, before } => {
                let keys = &mut self.trees.get_mut(&tree).expect(known).keys;
                match before {
                    Some(own) => drop(keys.insert(key, own)),
                    None => drop(keys.remove(&key)),
                }
            }
            Undo::Delta { tree, key } => {
                let keys = &mut self.trees.get_mut(&tree).expect(known).keys;
                let Some(Own::Deltas(deltas)) = keys.get_mut(&key) else {
                    unreachable!("the delta was added to others");
                };
                deltas.pop();
            }
            Undo::Clear {
                tree,
                removed,
                before,
            } => {
                let of_tree = self.trees.get_mut(&tree).expect(known);
                of_tree.keys.extend(removed);
                of_tree.cleared = before;
            }
        }
    }
}

fn fold_one(
    function: &dyn UpsertFn,
    key: &[u8],
    old: Option<&[u8]>,
    delta: &[u8],
) -> Option<Bytes> {
    let mut out = Vec::new();
    match function.fold(key, old, delta, &mut out) {
        Folded::Value => Some(Bytes::from(out)),
        Folded::Absent => None,
    }
}

/// The value of a key whose value in the store is `base`, after `deltas`.
pub(super) fn fold(
    upserts: &UpsertRegistry,
    key: &[u8],
    base: Option<Bytes>,
    deltas: &[Delta],
) -> Option<Bytes> {
    deltas.iter().fold(base, |old, delta| {
        let function = upserts.get(delta.function);
        let function = function.expect("an upsert is refused without its function");
        fold_one(function.as_ref(), key, old.as_deref(), &delta.bytes)
    })
}

#[cfg(test)]
mod tests;
