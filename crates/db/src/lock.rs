//! Locks on keys and ranges, for transactions that lock before they read or write.
//!
//! Strict two-phase locking: a transaction takes a lock before each access and gives all of them
//! back at its end. A lock is on a range of keys of one tree, for reading (shared) or for writing
//! (alone).
//!
//! Wound-wait: transactions have a rank, by priority and then by age. One that asks for a lock
//! which another holds
//!
//! 1. waits, if the holder has the higher rank or is committing;
//! 2. else ends the holder: it loses its locks at once, and its next call is refused. Its writes
//!    are private, so there is nothing to undo.
//!
//! A transaction waits only for those of higher rank and for commits, which wait for nothing. So
//! there is no deadlock, and the transaction of the highest rank always goes on.
//!
//! Differs: in the paper the lowest priority is aborted once there is a deadlock. Here it is
//! aborted before there can be one.
//!
//! Paper: Shetty et al., VT-tree, FAST 2013, section 3.2 (locking policy); Rosenkrantz et al.,
//! System Level Concurrency Control, TODS 1978 (wound-wait).
//!
//! Locks: `state`, a leaf.

mod segments;

pub use segments::Access;

use crate::DbError;
use segments::{Owner, Segments};
use std::collections::BTreeMap;
use stitch_base::TreeId;
use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_kv::{ChangedKey, KeyRange};

/// What a lock costs beside its keys, in bytes.
const LOCK_BYTES: usize = 64;

/// The order in which transactions get locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    /// The higher one goes first.
    pub(crate) priority: i32,
    /// Of the same priority the older one goes first, which has the lower number.
    pub(crate) age: u64,
}

impl Rank {
    const fn is_above(self, other: Self) -> bool {
        self.priority > other.priority || (self.priority == other.priority && self.age < other.age)
    }
}

/// All locks of the transactions of one store.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    state: Mutex<State>,
    /// Locks were given back, or a transaction was ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    trees: BTreeMap<TreeId, Segments>,
    holders: BTreeMap<Owner, Holder>,
    last_owner: u64,
    last_age: u64,
}

#[derive(Debug)]
struct Holder {
    rank: Rank,
    held: Vec<(TreeId, Range)>,
    /// What `held` takes, and may take, in bytes.
    len_bytes: usize,
    bytes_max: usize,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Its commit is under way: it keeps its locks, also against older transactions.
    Committing,
    /// Another took a lock of it: on this key.
    Ended(ChangedKey),
}

/// A range of keys with an owner of its own.
#[derive(Clone, Debug)]
struct Range {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Range {
    fn borrow(&self) -> KeyRange<'_> {
        KeyRange {
            start: &self.start,
            end: self.end.as_deref(),
        }
    }
}

/// The locks of one transaction; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Locks {
    table: Arc<LockTable>,
    owner: Owner,
    waits: bool,
}

impl LockTable {
    /// A number for the age of a new transaction: those begun later get higher ones.
    pub(crate) fn new_age(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_age += 1;
        state.last_age
    }

    /// No locks yet, for a transaction that may hold `bytes_max` of them. Without `waits` a lock
    /// that another holds is refused.
    pub(crate) fn begin(self: &Arc<Self>, rank: Rank, bytes_max: usize, waits: bool) -> Locks {
        let mut state = self.state.lock();
        state.last_owner += 1;
        let owner = Owner(state.last_owner);
        let holder = Holder {
            rank,
            held: Vec::new(),
            len_bytes: 0,
            bytes_max,
            phase: Phase::Open,
        };
        let before = state.holders.insert(owner, holder);
        debug_assert!(before.is_none(), "numbers of owners are not used again");
        Locks {
            table: Arc::clone(self),
            owner,
            waits,
        }
    }
}

impl Locks {
    /// Locks a range, and waits for it if that is needed. Nothing happens if it is locked so
    /// already.
    ///
    /// # Errors
    /// [`DbError::Wounded`] if another transaction has ended this one, [`DbError::Locked`] without
    /// waiting, [`DbError::TooLarge`] for more locks than a transaction may hold.
    pub(crate) fn take(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        access: Access,
    ) -> Result<(), DbError> {
        let mut state = self.table.state.lock();
        loop {
            state.check_open(self.owner)?;
            let others = state.others(self.owner, tree, range, access);
            if others.is_empty() {
                return state.grant(self.owner, tree, range, access);
            }
            let (above, below): (Vec<_>, Vec<_>) = others
                .into_iter()
                .partition(|(other, _)| state.must_wait(self.owner, *other));
            if let Some((_, key)) = above.first()
                && !self.waits
            {
                let key = key.clone();
                return Err(DbError::Locked { tree, key });
            }
            for (other, key) in below {
                state.end(other, ChangedKey { tree, key });
                self.table.changed.notify_all();
            }
            if !above.is_empty() {
                self.table.changed.wait(&mut state);
            }
        }
    }

    /// Keeps the locks until the commit is over: no other transaction ends this one from now on.
    ///
    /// # Errors
    /// [`DbError::Wounded`] if another transaction has ended it before.
    pub(crate) fn begin_commit(&self) -> Result<(), DbError> {
        let mut state = self.table.state.lock();
        state.check_open(self.owner)?;
        state.holder(self.owner).phase = Phase::Committing;
        Ok(())
    }

    /// Reports whether another transaction has ended this one.
    pub(crate) fn is_ended(&self) -> bool {
        self.table.state.lock().check_open(self.owner).is_err()
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        let mut state = self.table.state.lock();
        state.release(self.owner);
        state.holders.remove(&self.owner);
        self.table.changed.notify_all();
    }
}

impl State {
    fn holder(&mut self, owner: Owner) -> &mut Holder {
        let holder = self.holders.get_mut(&owner);
        holder.expect("a transaction with locks is listed")
    }

    fn check_open(&self, owner: Owner) -> Result<(), DbError> {
        match &self.holders[&owner].phase {
            Phase::Ended(ChangedKey { tree, key }) => Err(DbError::Wounded {
                tree: *tree,
                key: key.clone(),
            }),
            Phase::Open | Phase::Committing => Ok(()),
        }
    }

    /// The others whose locks are in the way, each with the first key where one is.
    fn others(
        &self,
        owner: Owner,
        tree: TreeId,
        range: KeyRange<'_>,
        access: Access,
    ) -> BTreeMap<Owner, Vec<u8>> {
        let segments = self.trees.get(&tree);
        segments.map_or_else(BTreeMap::new, |s| s.others(owner, range, access))
    }

    fn must_wait(&self, owner: Owner, other: Owner) -> bool {
        debug_assert_ne!(owner, other, "its own locks are not in its way");
        let (own, other) = (&self.holders[&owner], &self.holders[&other]);
        other.phase == Phase::Committing || !own.rank.is_above(other.rank)
    }

    fn grant(
        &mut self,
        owner: Owner,
        tree: TreeId,
        range: KeyRange<'_>,
        access: Access,
    ) -> Result<(), DbError> {
        let segments = self.trees.entry(tree).or_default();
        if segments.is_held(owner, range, access) {
            return Ok(());
        }
        let range_bytes = range.start.len() + range.end.map_or(0, <[u8]>::len) + LOCK_BYTES;
        let holder = self.holders.get_mut(&owner);
        let holder = holder.expect("a transaction with locks is listed");
        if holder.len_bytes + range_bytes > holder.bytes_max {
            return Err(DbError::too_large(
                "locks of a transaction",
                holder.len_bytes + range_bytes,
                holder.bytes_max,
            ));
        }
        holder.len_bytes += range_bytes;
        let held = Range {
            start: range.start.to_vec(),
            end: range.end.map(<[u8]>::to_vec),
        };
        holder.held.push((tree, held));
        segments.take(owner, range, access);
        debug_assert!(segments.is_held(owner, range, access), "it was taken");
        debug_assert!(holder.len_bytes <= holder.bytes_max, "locks are bounded");
        Ok(())
    }

    fn end(&mut self, owner: Owner, by: ChangedKey) {
        self.release(owner);
        let holder = self.holder(owner);
        debug_assert_eq!(holder.phase, Phase::Open, "a commit is not ended");
        holder.phase = Phase::Ended(by);
    }

    fn release(&mut self, owner: Owner) {
        for (tree, range) in std::mem::take(&mut self.holder(owner).held) {
            let Some(segments) = self.trees.get_mut(&tree) else {
                continue;
            };
            segments.release(owner, range.borrow());
            debug_assert!(!segments.is_held(owner, range.borrow(), Access::Read));
            if segments.is_empty() {
                self.trees.remove(&tree);
            }
        }
    }
}

#[cfg(test)]
mod tests;
