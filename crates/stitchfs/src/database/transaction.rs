//! A transaction, as users have it.

use super::{Database, Rows, Tree};
use crate::owner::Owner;
use crate::{CommitOptions, Direction, ErrorKind, KeyRange, Seqno, StoreError, TreeId};
use bytes::Bytes;
use stitch_db::{Access, ConflictPolicy, DbError, Savepoint, TransactionOptions};

/// Reads and writes over any trees of one instance that are committed as one step, and only if no
/// other writer was in the way. Dropping it aborts it.
///
/// Its writes are in memory, and beyond [`TransactionOptions::spill_bytes`] in trees of their own,
/// which no other reader sees and which are gone after a crash. With the RocksDB engine they fit
/// one batch ([`Limits::batch_bytes_max`](crate::Limits::batch_bytes_max)). [`Database::transact`]
/// runs a closure in one, again after conflicts.
///
/// ```
/// use stitchfs::{Database, StoreOptions, TransactionOptions, TreeOptions};
/// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
/// let stock = db.create_tree("stock", &TreeOptions::default())?;
/// stock.put(b"apples", b"11")?;
///
/// let mut first = db.begin(&TransactionOptions::default());
/// let mut second = db.begin(&TransactionOptions::default());
/// first.put(&stock, b"apples", b"10")?;
/// second.put(&stock, b"apples", b"9")?;
/// assert_eq!(stock.get(b"apples")?.as_deref(), Some(&b"11"[..]), "not committed yet");
/// first.commit()?;
/// let refused = second.commit().unwrap_err();
/// assert_eq!(refused.conflicts()[0].tree_name, "stock");
/// assert_eq!(refused.conflicts()[0].key, b"apples");
/// # Ok::<(), stitchfs::StoreError>(())
/// ```
#[derive(Debug)]
pub struct Transaction {
    inner: stitch_db::Transaction,
    db: Database,
    owner: Owner,
}

/// A key that another writer changed, so that a transaction was not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Number of the tree.
    pub tree: TreeId,
    /// Its name; empty if it was dropped.
    pub tree_name: String,
    /// The key. Of a range that another writer deleted: the first key in it that matters.
    pub key: Vec<u8>,
}

impl Database {
    /// Begins a transaction. O(1).
    #[must_use]
    pub fn begin(&self, options: &TransactionOptions) -> Transaction {
        self.wrap(self.transactions.begin(options))
    }

    fn wrap(&self, inner: stitch_db::Transaction) -> Transaction {
        Transaction {
            inner,
            db: self.clone(),
            owner: Owner::new(&self.instance),
        }
    }

    /// Runs a closure in a transaction and commits it. If another writer was in the way, both are
    /// done again, up to 100 times, with growing pauses of at most 10 ms: the closure must be ready
    /// to be run more than once, and its effects outside of the transaction with it. If it returns
    /// an error, the transaction is aborted and the error is returned.
    ///
    /// # Errors
    /// Those of the closure and of [`Transaction::commit`].
    ///
    /// # Durability
    /// As of [`Self::commit`].
    ///
    /// ```
    /// use stitchfs::{Database, StoreError, StoreOptions, TreeOptions};
    /// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// # let accounts = db.create_tree("accounts", &TreeOptions::default())?;
    /// # accounts.put(b"ada", &100u64.to_be_bytes())?;
    /// let number = |bytes: Option<stitchfs::Bytes>| {
    ///     bytes.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
    /// };
    /// let left = db.transact(|txn| {
    ///     let ada = number(txn.get(&accounts, b"ada")?);
    ///     let bob = number(txn.get(&accounts, b"bob")?);
    ///     txn.put(&accounts, b"ada", &(ada - 10).to_be_bytes())?;
    ///     txn.put(&accounts, b"bob", &(bob + 10).to_be_bytes())?;
    ///     Ok::<u64, StoreError>(ada - 10)
    /// })?;
    /// assert_eq!(left, 90);
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn transact<T, E: From<StoreError>>(
        &self,
        body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let options = TransactionOptions::default();
        self.transact_with(&options, CommitOptions::default(), body)
    }

    /// As [`Self::transact`], with isolation, priority and commit chosen by the caller.
    ///
    /// # Errors
    /// As [`Self::transact`].
    pub fn transact_with<T, E: From<StoreError>>(
        &self,
        options: &TransactionOptions,
        commit: CommitOptions,
        mut body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut attempts = self.transactions.attempts(options);
        loop {
            let mut transaction = self.wrap(attempts.begin());
            match body(&mut transaction) {
                // Whatever the closure has made of the error that it was given.
                Err(_) if transaction.inner.is_wounded() && attempts.has_more() => {}
                Err(error) => return Err(error),
                Ok(value) => match transaction.commit_with(commit) {
                    Ok(_) => return Ok(value),
                    Err(error) if error.kind() == ErrorKind::Conflict && attempts.has_more() => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// The same database, whose transactions do something else where two wrote the same key: ask a
    /// function, or overwrite what others wrote. Other handles stay as they are.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use stitchfs::{Clash, ConflictPolicy, Database, Resolution, StoreOptions};
    /// use stitchfs::{TransactionOptions, TreeOptions};
    /// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// let longest = |clash: &Clash<'_>| match clash.ours.clone().max(clash.theirs.clone()) {
    ///     Some(value) => Resolution::Put(value),
    ///     None => Resolution::Delete,
    /// };
    /// let db = db.with_conflicts(ConflictPolicy::Resolve(Arc::new(longest)));
    /// let scores = db.create_tree("scores", &TreeOptions::default())?;
    /// let mut transaction = db.begin(&TransactionOptions::default());
    /// transaction.put(&scores, b"ada", b"7")?;
    /// scores.put(b"ada", b"9")?;
    /// transaction.commit()?;
    /// assert_eq!(scores.get(b"ada")?.as_deref(), Some(&b"9"[..]));
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    #[must_use]
    pub fn with_conflicts(mut self, conflicts: ConflictPolicy) -> Self {
        self.transactions = self.transactions.with_conflicts(conflicts);
        self
    }

    /// The error of a transaction, with the names of trees.
    pub(super) fn store_error(&self, error: DbError) -> StoreError {
        let DbError::Conflict { keys } = error else {
            return error.into();
        };
        let trees = self.instance.engine.trees();
        let name = |tree: TreeId| {
            let found = trees.iter().find(|info| info.id == tree);
            found.map(|info| info.name.clone()).unwrap_or_default()
        };
        let conflict = |changed: stitch_db::ChangedKey| Conflict {
            tree: changed.tree,
            tree_name: name(changed.tree),
            key: changed.key,
        };
        let conflicts = keys.into_iter().map(conflict).collect();
        StoreError::Conflict { conflicts }
    }
}

impl Transaction {
    /// The number of a tree that may be used here.
    fn own(&self, tree: &Tree) -> Result<TreeId, StoreError> {
        if !self.owner.is(tree.instance()) {
            let handle = || format!("tree {}", tree.id());
            Owner::new(tree.instance()).check(handle, &self.db.instance)?;
        }
        Ok(tree.id())
    }

    fn named<T>(&self, result: Result<T, DbError>) -> Result<T, StoreError> {
        result.map_err(|error| self.db.store_error(error))
    }

    /// The last write of the store that the transaction sees, unless it is a locking one.
    #[must_use]
    pub const fn seqno(&self) -> Seqno {
        self.inner.seqno()
    }

    /// The value of a key, as the transaction sees it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if a transaction of higher rank has ended
    /// this one; [`ErrorKind::Busy`] for a lock that is not waited for;
    /// [`ErrorKind::Invalid`] for a tree of another store or instance, and
    /// for more reads than a commit can check; as [`Tree::get`].
    pub fn get(&self, tree: &Tree, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let tree = self.own(tree)?;
        self.named(self.inner.get(tree, key))
    }

    /// Returns the values of several keys, in the order of `keys`, as the transaction sees them.
    ///
    /// # Errors
    /// As [`Self::get`].
    ///
    /// # Cost
    /// As [`Tree::get_many`].
    pub fn get_many(&self, tree: &Tree, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let tree = self.own(tree)?;
        self.named(self.inner.get_many(tree, keys))
    }

    /// The rows of a range in order, as the transaction sees them. A locking transaction locks the
    /// whole range.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn scan(
        &self,
        tree: &Tree,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'_>, StoreError> {
        let tree = self.own(tree)?;
        let scan = self.named(self.inner.scan(tree, range, direction))?;
        Ok(Rows::new(Box::new(scan)))
    }

    /// Sets a key.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a key or value over [`Database::limits`], and if the transaction
    /// would not fit a batch, with the RocksDB engine or with more than 32 savepoints of many
    /// writes; as [`Self::get`], and as [`Database::commit`] if writes are moved out of memory.
    pub fn put(&mut self, tree: &Tree, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let tree = self.own(tree)?;
        let done = self.inner.put(tree, key, value);
        self.named(done)
    }

    /// Removes a key, present or not.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete(&mut self, tree: &Tree, key: &[u8]) -> Result<(), StoreError> {
        let tree = self.own(tree)?;
        let done = self.inner.delete(tree, key);
        self.named(done)
    }

    /// Removes every key in `[start, end)`. An empty range does nothing.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete_range(
        &mut self,
        tree: &Tree,
        start: &[u8],
        end: &[u8],
    ) -> Result<(), StoreError> {
        let tree = self.own(tree)?;
        let done = self.inner.delete_range(tree, start, end);
        self.named(done)
    }

    /// Folds `delta` into the key's value by a registered function, without reading the value now.
    ///
    /// # Errors
    /// As [`Self::put`]; [`ErrorKind::Invalid`] for a function that is
    /// not registered.
    pub fn upsert(
        &mut self,
        tree: &Tree,
        key: &[u8],
        function: u32,
        delta: &[u8],
    ) -> Result<(), StoreError> {
        let tree = self.own(tree)?;
        let done = self.inner.upsert(tree, key, function, delta);
        self.named(done)
    }

    /// Locks a range ahead of its reads or writes: one lock instead of one for each key. Does
    /// nothing if the transaction is no locking one.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn lock(&self, tree: &Tree, range: KeyRange<'_>, access: Access) -> Result<(), StoreError> {
        let tree = self.own(tree)?;
        self.named(self.inner.lock(tree, range, access))
    }

    /// Returns the number of bytes of writes that were moved out of memory.
    #[must_use]
    pub fn spilled_bytes(&self) -> u64 {
        self.inner.spilled_bytes()
    }

    /// Marks a place to which later writes can be taken back.
    ///
    /// # Cost
    /// While it is open, memory for what it takes back: at most twice what a transaction keeps in
    /// memory without savepoints.
    pub fn savepoint(&mut self) -> Savepoint {
        self.inner.savepoint()
    }

    /// Takes back what was written after a savepoint. It can be used again; later ones are gone.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the savepoint is gone, or another transaction's.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<(), StoreError> {
        let done = self.inner.rollback_to(savepoint);
        self.named(done)
    }

    /// Gives up a savepoint and later ones, and keeps what was written.
    ///
    /// # Errors
    /// As [`Self::rollback_to`].
    pub fn release(&mut self, savepoint: Savepoint) -> Result<(), StoreError> {
        let done = self.inner.release(savepoint);
        self.named(done)
    }

    /// Runs a closure as a transaction inside of this one: what it wrote is taken back if it
    /// returns an error. They can be nested.
    ///
    /// # Errors
    /// That of the closure.
    ///
    /// ```
    /// # use stitchfs::{Database, StoreError, StoreOptions, TransactionOptions, TreeOptions};
    /// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// # let tree = db.create_tree("t", &TreeOptions::default())?;
    /// let mut transaction = db.begin(&TransactionOptions::default());
    /// let failed = transaction.nested(|inner| {
    ///     inner.put(&tree, b"k", b"v")?;
    ///     inner.put(&tree, &[0; 5000], b"too long a key")
    /// });
    /// assert!(failed.is_err());
    /// assert_eq!(transaction.get(&tree, b"k")?, None);
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn nested<T, E: From<StoreError>>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let savepoint = self.savepoint();
        let result = body(self);
        if result.is_err() {
            self.rollback_to(&savepoint)?;
        }
        self.release(savepoint)?;
        result
    }

    /// Applies what was written, whole or not at all.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] with the keys that others have changed, and another error of kind
    /// [`Conflict`](crate::ErrorKind::Conflict) if a transaction of higher rank has ended this one:
    /// nothing is applied, run it again. Else as [`Database::commit`].
    ///
    /// # Durability
    /// As of [`Database::commit`].
    pub fn commit(self) -> Result<Seqno, StoreError> {
        self.commit_with(CommitOptions::default())
    }

    /// As [`Self::commit`], and returns when it and all before it are on the medium.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_sync(self) -> Result<Seqno, StoreError> {
        self.commit_with(CommitOptions {
            sync: true,
            ..CommitOptions::default()
        })
    }

    /// As [`Self::commit`], with everything chosen by the caller.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_with(self, options: CommitOptions) -> Result<Seqno, StoreError> {
        let db = self.db;
        let done = self.inner.commit(options);
        done.map_err(|error| db.store_error(error))
    }

    /// Ends the transaction without a change. So does dropping it.
    pub fn abort(self) {
        drop(self);
    }
}
