//! Transactions: reads at one moment, private writes, and a commit that is refused where another
//! transaction was first.
//!
//! 1. A transaction holds a snapshot. Its writes stay in memory ([`writes`]); its reads see the
//!    snapshot with its own writes over it ([`scan`]). With [`Isolation::Locking`] each access
//!    takes a lock first, and reads see the present.
//! 2. Writes beyond [`TransactionOptions::spill_bytes`] move to branch trees of the transaction
//!    ([`spill`]), if the engine has them.
//! 3. The commit makes one batch of the writes and has the engine check guards in the same step:
//!    on what was written ([`Isolation::Snapshot`]), or on what was read (the others). It absorbs
//!    the branch trees ([`settle`]).
//! 4. On a conflict the resolver of the schema may settle it; else the keys are listed.
//!
//! Dropping a transaction aborts it: its writes are gone, and its branch trees are dropped.
//!
//! Paper: Shetty et al., VT-tree, FAST 2013, section 3.2. Differs: the writes of a transaction
//! become trees of their own only if they are too large for memory.

mod cleared;
mod commit;
mod frozen;
mod options;
mod reads;
mod savepoint;
mod scan;
mod settle;
mod spill;
mod writes;

pub use options::{
    Clash, ConflictPolicy, Isolation, LockWait, Resolution, Resolver, TransactionOptions,
};
pub use savepoint::{Nested, Savepoint};
pub use scan::TransactionScan;
pub use settle::absorb_branches;
pub use spill::drop_abandoned;

use crate::DbError;
use crate::lock::{Access, Locks};
use bytes::Bytes;
use frozen::Frozen;
use reads::Reads;
use spill::Spill;
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{Seqno, TreeId};
use stitch_kv::{Direction, Engine, KeyRange, Message, Snapshot};
use writes::{Own, Writes, fold};

/// A transaction over any trees of one engine. Dropping it aborts it.
pub struct Transaction {
    engine: Arc<dyn Engine>,
    conflicts: ConflictPolicy,
    isolation: Isolation,
    /// The moment of the begin.
    snapshot: Snapshot,
    /// Those in memory.
    writes: Writes,
    /// Those before.
    spill: Spill,
    /// Of those before, what open savepoints need to take them back.
    frozen: Vec<Frozen>,
    reads: Mutex<Reads>,
    /// With [`Isolation::Locking`].
    locks: Option<Locks>,
    /// The most that writes in memory and reads may take, each, in bytes.
    bytes_max: usize,
    /// Beyond so many bytes, writes move to branch trees.
    spill_bytes: usize,
    /// Of its savepoints.
    mark: Option<savepoint::Mark>,
}

/// Where the store is read for a tree.
struct Source {
    /// The tree, or the branch that has what the transaction has written to it.
    tree: TreeId,
    /// `None` for a branch, to which only the transaction writes.
    at: Option<Snapshot>,
    /// The moment of the tree itself that is seen.
    since: Snapshot,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("isolation", &self.isolation)
            .field("snapshot", &self.snapshot)
            .finish_non_exhaustive()
    }
}

impl Transaction {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        conflicts: ConflictPolicy,
        options: &TransactionOptions,
        locks: Option<Locks>,
    ) -> Self {
        let isolation = options.isolation;
        debug_assert_eq!(locks.is_some(), isolation == Isolation::Locking);
        let snapshot = engine.snapshot();
        let bytes_max = engine.limits().batch_bytes_max;
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let reads = match isolation {
            Isolation::Snapshot => Reads::unchecked(),
            Isolation::Serializable | Isolation::Locking => Reads::checked(&snapshot, bytes_max),
        };
        // Guards on what is in memory are to fit too, and take somewhat more.
        let spill_bytes = usize::try_from(options.spill_bytes).unwrap_or(usize::MAX);
        let spill_bytes = match Spill::is_supported(engine.as_ref()) {
            true => spill_bytes.min(bytes_max / 2),
            false => usize::MAX,
        };
        Self {
            spill: Spill::new(Arc::clone(&engine)),
            frozen: Vec::new(),
            spill_bytes,
            engine,
            conflicts,
            isolation,
            snapshot,
            writes: Writes::default(),
            reads: Mutex::new(reads),
            locks,
            bytes_max,
            mark: None,
        }
    }

    /// The moment of the begin, which reads see unless the transaction is a locking one.
    #[must_use]
    pub const fn seqno(&self) -> Seqno {
        self.snapshot.seqno()
    }

    /// The most that its writes in memory would take in a batch, in bytes. They are refused over
    /// [`Limits::batch_bytes_max`](crate::Limits), if they cannot be
    /// [spilled](Self::spilled_bytes).
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.writes.len_bytes()
    }

    /// Bytes of writes that were moved to branch trees, because memory was to hold no more than
    /// [`TransactionOptions::spill_bytes`].
    #[must_use]
    pub fn spilled_bytes(&self) -> u64 {
        self.spill.len_bytes()
    }

    /// True if nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.spill.is_empty()
    }

    /// The value of a key, as the transaction sees it.
    ///
    /// # Errors
    /// [`DbError::Wounded`], [`DbError::Locked`] of a locking transaction; [`DbError::TooLarge`]
    /// for too many reads that are to be checked; [`DbError::Kv`].
    pub fn get(&self, tree: impl Into<TreeId>, key: &[u8]) -> Result<Option<Bytes>, DbError> {
        let tree = tree.into();
        self.lock_key(tree, key, Access::Read)?;
        let Some(writes) = self.writes.tree(tree) else {
            return self.get_stored(tree, key);
        };
        match writes.keys.get(key) {
            Some(Own::Value(value)) => Ok(Some(value.clone())),
            Some(Own::Absent) => Ok(None),
            Some(Own::Deltas(deltas)) => {
                let base = self.get_stored(tree, key)?;
                Ok(fold(self.engine.upserts(), key, base, deltas))
            }
            None if writes.cleared.covers(key) => Ok(None),
            None => self.get_stored(tree, key),
        }
    }

    /// Returns the values of several keys, in the order of `keys`, as the transaction sees them.
    /// Those of the store are of one moment.
    ///
    /// # Errors
    /// As [`Self::get`].
    ///
    /// # Cost
    /// As [`Engine::get_many`] for the keys that the transaction has not written.
    pub fn get_many(
        &self,
        tree: impl Into<TreeId>,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Bytes>>, DbError> {
        let tree = tree.into();
        for key in keys {
            self.lock_key(tree, key, Access::Read)?;
        }
        let writes = self.writes.tree(tree);
        let own = |key: &[u8]| writes.and_then(|writes| writes.keys.get(key));
        let is_stored = |key: &[u8]| match own(key) {
            Some(Own::Value(_) | Own::Absent) => false,
            Some(Own::Deltas(_)) => true,
            None => !writes.is_some_and(|writes| writes.cleared.covers(key)),
        };
        let stored: Vec<&[u8]> = keys.iter().copied().filter(|key| is_stored(key)).collect();
        let mut stored = self.get_many_stored(tree, &stored)?.into_iter();
        let value = |key: &&[u8]| {
            let base = is_stored(key)
                .then(|| stored.next().expect("one for each"))
                .flatten();
            match own(key) {
                Some(Own::Value(value)) => Some(value.clone()),
                Some(Own::Deltas(deltas)) => fold(self.engine.upserts(), key, base, deltas),
                Some(Own::Absent) | None => base,
            }
        };
        let values: Vec<Option<Bytes>> = keys.iter().map(value).collect();
        debug_assert_eq!(values.len(), keys.len(), "one value for each key");
        debug_assert!(stored.next().is_none(), "each was of a key");
        Ok(values)
    }

    /// Reads the store, and notes it.
    fn get_many_stored(&self, tree: TreeId, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>, DbError> {
        let source = self.source(tree);
        {
            let mut reads = self.reads.lock();
            for key in keys {
                reads.key(&source.since, tree, key);
            }
            reads.check()?;
        }
        Ok(self
            .engine
            .get_many(source.tree, keys, source.at.as_ref())?)
    }

    /// Reads the store, and notes it.
    fn get_stored(&self, tree: TreeId, key: &[u8]) -> Result<Option<Bytes>, DbError> {
        let source = self.source(tree);
        {
            let mut reads = self.reads.lock();
            reads.key(&source.since, tree, key);
            reads.check()?;
        }
        Ok(self.engine.get(source.tree, key, source.at.as_ref())?)
    }

    /// Where the store is read for a tree.
    fn source(&self, tree: TreeId) -> Source {
        if let Some(branch) = self.spill.tree(tree) {
            return Source {
                tree: branch.tree,
                at: None,
                since: branch.since.clone(),
            };
        }
        let moment = self.moment();
        Source {
            tree,
            at: Some(moment.clone()),
            since: moment,
        }
    }

    /// The moment that a read sees.
    fn moment(&self) -> Snapshot {
        match self.isolation {
            // What is locked does not change, but what was committed since the begin is to be seen.
            Isolation::Locking => self.engine.snapshot(),
            Isolation::Snapshot | Isolation::Serializable => self.snapshot.clone(),
        }
    }

    /// The entries of a range in order, as the transaction sees them. A locking transaction locks
    /// the whole range; another counts as read what the scan has passed.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn scan(
        &self,
        tree: impl Into<TreeId>,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<TransactionScan<'_>, DbError> {
        let tree = tree.into();
        self.lock_range(tree, range, Access::Read)?;
        self.reads.lock().check()?;
        Ok(TransactionScan::new(self, tree, range, direction))
    }

    /// Sets a key.
    ///
    /// # Errors
    /// [`DbError::TooLarge`] if the transaction would not fit a batch, on an engine without branch
    /// trees or with more than [`BRANCH_DEPTH_MAX`](stitch_kv::BRANCH_DEPTH_MAX) open savepoints
    /// after each of which writes were moved out of memory; [`DbError::Kv`] for a key or value over
    /// the limits of the engine, and if writes cannot be moved; [`DbError::Wounded`],
    /// [`DbError::Locked`].
    ///
    /// # Cost
    /// None on the medium, until [`TransactionOptions::spill_bytes`] are in memory: then one batch,
    /// and for the first to a tree one record in the engine's list of trees.
    pub fn put(
        &mut self,
        tree: impl Into<TreeId>,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), DbError> {
        let tree = tree.into();
        self.admit(tree, Message::Put { key, value })?;
        self.lock_key(tree, key, Access::Write)?;
        let value = Own::Value(Bytes::copy_from_slice(value));
        self.writes.set(tree, key, value);
        Ok(())
    }

    /// Removes a key, present or not.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete(&mut self, tree: impl Into<TreeId>, key: &[u8]) -> Result<(), DbError> {
        let tree = tree.into();
        self.admit(tree, Message::Delete { key })?;
        self.lock_key(tree, key, Access::Write)?;
        self.writes.set(tree, key, Own::Absent);
        Ok(())
    }

    /// Removes every key in `[start, end)`. An empty range does nothing.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete_range(
        &mut self,
        tree: impl Into<TreeId>,
        start: &[u8],
        end: &[u8],
    ) -> Result<(), DbError> {
        let tree = tree.into();
        if end <= start {
            return Ok(());
        }
        self.admit(tree, Message::DeleteRange { start, end })?;
        self.lock_range(tree, KeyRange::new(start, end), Access::Write)?;
        self.writes.clear(tree, start, end);
        Ok(())
    }

    /// Folds `delta` into the key's value by a registered function, without reading the value now.
    ///
    /// # Errors
    /// As [`Self::put`]; [`DbError::Kv`] for a function that is not registered.
    pub fn upsert(
        &mut self,
        tree: impl Into<TreeId>,
        key: &[u8],
        function: u32,
        delta: &[u8],
    ) -> Result<(), DbError> {
        let tree = tree.into();
        let message = Message::Upsert {
            key,
            function,
            delta,
        };
        self.admit(tree, message)?;
        self.lock_key(tree, key, Access::Write)?;
        let function = self.engine.upserts().get(function).cloned();
        let function = function.expect("an upsert without its function was refused");
        self.writes.upsert(tree, key, function.as_ref(), delta);
        Ok(())
    }

    /// Locks a range ahead of its reads or writes: one lock instead of one for each key. Does
    /// nothing if the transaction is no locking one.
    ///
    /// # Errors
    /// [`DbError::Wounded`], [`DbError::Locked`], [`DbError::TooLarge`] for too many locks.
    pub fn lock(
        &self,
        tree: impl Into<TreeId>,
        range: KeyRange<'_>,
        access: Access,
    ) -> Result<(), DbError> {
        self.lock_range(tree.into(), range, access)
    }

    /// Reports whether a transaction of higher rank has ended this one: every call is refused.
    #[must_use]
    pub fn is_wounded(&self) -> bool {
        self.locks.as_ref().is_some_and(Locks::is_ended)
    }

    /// Ends the transaction without a change. So does dropping it.
    pub fn abort(self) {
        drop(self);
    }

    fn lock_key(&self, tree: TreeId, key: &[u8], access: Access) -> Result<(), DbError> {
        let Some(locks) = &self.locks else {
            return Ok(());
        };
        let mut end = key.to_vec();
        end.push(0);
        locks.take(tree, KeyRange::new(key, &end), access)
    }

    fn lock_range(&self, tree: TreeId, range: KeyRange<'_>, access: Access) -> Result<(), DbError> {
        let is_empty = range.end.is_some_and(|end| end <= range.start);
        match &self.locks {
            Some(locks) if !is_empty => locks.take(tree, range, access),
            Some(_) | None => Ok(()),
        }
    }

    /// Refuses a write that the engine would refuse, or that would not fit. Moves earlier writes
    /// out of memory if they are many.
    fn admit(&mut self, tree: TreeId, message: Message<'_>) -> Result<(), DbError> {
        assert!(tree.0 > 0, "tree 0 is never given out");
        let limits = self.engine.limits();
        limits.check_message(message, self.engine.upserts())?;
        let more = writes::message_bytes(message);
        let kept_bytes = self.writes.len_bytes().max(self.writes.undo_bytes());
        if kept_bytes + more > self.spill_bytes && !self.writes.is_empty() {
            self.spill_writes()?;
        }
        let len_bytes = self.writes.len_bytes() + more;
        if len_bytes > self.bytes_max {
            let what = match self.spill_bytes < usize::MAX {
                true => "writes of a transaction with so many open savepoints",
                false => "transaction on an engine without branch trees",
            };
            return Err(DbError::too_large(what, len_bytes, self.bytes_max));
        }
        let undo_bytes = self.writes.undo_bytes() + more;
        if undo_bytes > self.bytes_max {
            let what = "changes after a savepoint";
            return Err(DbError::too_large(what, undo_bytes, self.bytes_max));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
