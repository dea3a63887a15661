//! How transactions are isolated from each other, and what happens where two meet.

use bytes::Bytes;
use std::fmt;
use stitch_base::TreeId;
use stitch_base::sync::Arc;

/// What a transaction is kept apart from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Reads see the moment of the begin. A commit is refused if a key that the transaction wrote
    /// was changed since: the first committer wins. Two transactions that each read what the other
    /// writes both commit (write skew).
    #[default]
    Snapshot,
    /// Reads see the moment of the begin, and are checked at the commit: it is refused if anything
    /// that was read has changed since. What is committed is as if transactions ran one by one.
    Serializable,
    /// Strict two-phase locking: a key or range is locked before it is read or written, until the
    /// end. Reads see the present. A transaction waits for those of higher rank and ends those of
    /// lower rank. As [`Self::Serializable`], what was read is checked at the commit as well, so
    /// that writers that take no locks are not overlooked.
    Locking,
}

/// What a locking transaction does where another of higher rank holds a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockWait {
    /// It waits until the other ends. A thread that has two transactions open must not.
    #[default]
    Wait,
    /// The call is refused with [`DbError::Locked`](crate::DbError::Locked).
    Refuse,
}

/// Bytes of writes that a transaction keeps in memory, if nothing else is asked for.
const SPILL_BYTES: u64 = 4 << 20;

/// How a transaction is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionOptions {
    /// What it is kept apart from.
    pub isolation: Isolation,
    /// Rank with [`Isolation::Locking`]: a higher one goes first. Among equals the older
    /// transaction does.
    pub priority: i32,
    /// With [`Isolation::Locking`]: whether calls wait for locks.
    pub wait: LockWait,
    /// Bytes of writes beyond which memory holds no more of them: they move to branch trees of the
    /// transaction, on an engine that has such. By default 4 MiB. At most half of what a batch may
    /// take is kept in memory, whatever this says.
    pub spill_bytes: u64,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self {
            isolation: Isolation::default(),
            priority: 0,
            wait: LockWait::default(),
            spill_bytes: SPILL_BYTES,
        }
    }
}

impl TransactionOptions {
    /// Options with this isolation, and the defaults else.
    #[must_use]
    pub fn new(isolation: Isolation) -> Self {
        Self {
            isolation,
            ..Self::default()
        }
    }
}

/// A key that a transaction wrote and another changed since it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash<'a> {
    /// The tree.
    pub tree: TreeId,
    /// The key.
    pub key: &'a [u8],
    /// The value when the transaction began; `None` if there was none.
    pub base: Option<Bytes>,
    /// What the transaction makes of it.
    pub ours: Option<Bytes>,
    /// What it is now.
    pub theirs: Option<Bytes>,
}

/// What becomes of a [`Clash`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The key gets this value.
    Put(Bytes),
    /// The key is removed.
    Delete,
    /// The commit is refused.
    Refuse,
}

/// Decides what becomes of keys that two transactions wrote. Called during a commit, maybe more
/// than once for a key; must be pure.
pub trait Resolver: Send + Sync {
    /// What becomes of a key.
    fn resolve(&self, clash: &Clash<'_>) -> Resolution;
}

impl<F: Fn(&Clash<'_>) -> Resolution + Send + Sync> Resolver for F {
    fn resolve(&self, clash: &Clash<'_>) -> Resolution {
        self(clash)
    }
}

/// What a commit under [`Isolation::Snapshot`] does about keys that others have changed.
#[derive(Clone, Default)]
pub enum ConflictPolicy {
    /// It is refused, and the keys are listed.
    #[default]
    Refuse,
    /// A function decides, key by key.
    Resolve(Arc<dyn Resolver>),
    /// Nothing: the last committer wins. For transactions that never write the same keys.
    Ignore,
}

impl fmt::Debug for ConflictPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "Refuse",
            Self::Resolve(_) => "Resolve",
            Self::Ignore => "Ignore",
        })
    }
}
