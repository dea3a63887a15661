//! Where transactions begin: the engine, the locks that they share, and what they do on a conflict.

use crate::DbError;
use crate::lock::{LockTable, Rank};
use crate::transaction::{ConflictPolicy, Isolation, LockWait, Transaction, TransactionOptions};
use std::time::Duration;
use stitch_base::ErrorKind;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::Arc;
use stitch_kv::{CommitOptions, Engine};

/// How often a closure is run before its conflict is returned.
const ATTEMPTS_MAX: u32 = 100;
/// Attempts that follow each other at once.
const EAGER_ATTEMPTS: u32 = 3;
const BACKOFF_MIN: Duration = Duration::from_micros(50);
const BACKOFF_MAX: Duration = Duration::from_millis(10);

/// Begins transactions on one engine. Cheap to clone.
///
/// Locks are shared by the clones, and by no other. Locking transactions of two that were made
/// apart do not wait for each other; what they have read is still checked at their commits.
#[derive(Clone)]
pub struct Transactions {
    engine: Arc<dyn Engine>,
    locks: Arc<LockTable>,
    conflicts: ConflictPolicy,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Transactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactions")
            .field("conflicts", &self.conflicts)
            .finish_non_exhaustive()
    }
}

impl Transactions {
    /// Transactions on an engine that are refused on a conflict.
    #[must_use]
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            engine,
            locks: Arc::default(),
            conflicts: ConflictPolicy::default(),
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// The same with another policy for conflicts under [`Isolation::Snapshot`].
    #[must_use]
    pub fn with_conflicts(self, conflicts: ConflictPolicy) -> Self {
        Self { conflicts, ..self }
    }

    /// The same with another clock for the pauses of [`Self::transact`].
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// What they do on a conflict.
    #[must_use]
    pub const fn conflicts(&self) -> &ConflictPolicy {
        &self.conflicts
    }

    /// The engine that transactions are on.
    #[must_use]
    pub const fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Begins a transaction. O(1).
    #[must_use]
    pub fn begin(&self, options: &TransactionOptions) -> Transaction {
        self.begin_aged(options, self.locks.new_age())
    }

    /// Attempts at one transaction, for a caller that runs it again after conflicts itself.
    #[must_use]
    pub fn attempts(&self, options: &TransactionOptions) -> Attempts<'_> {
        Attempts {
            transactions: self,
            options: *options,
            age: self.locks.new_age(),
            count: 0,
        }
    }

    /// Runs a closure in a transaction and commits it; on a conflict both again, up to 100 times,
    /// with growing pauses of at most 10 ms. A locking transaction keeps its age, so that it comes
    /// to be the oldest. The closure must be ready to be run more than once. If it returns an
    /// error, the transaction is aborted and the error is returned.
    ///
    /// # Errors
    /// Those of the closure and of [`Transaction::commit`]; [`DbError::Conflict`] and
    /// [`DbError::Wounded`] of the last attempt.
    ///
    /// # Durability
    /// As of [`Transaction::commit`].
    pub fn transact<T, E: From<DbError>>(
        &self,
        options: &TransactionOptions,
        commit: CommitOptions,
        mut body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut attempts = self.attempts(options);
        loop {
            let mut transaction = attempts.begin();
            match body(&mut transaction) {
                // Whatever the closure has made of the error that it was given.
                Err(_) if transaction.is_wounded() && attempts.has_more() => {}
                Err(error) => return Err(error),
                Ok(value) => match transaction.commit(commit) {
                    Ok(_) => return Ok(value),
                    Err(error) if error.kind() == ErrorKind::Conflict && attempts.has_more() => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    fn begin_aged(&self, options: &TransactionOptions, age: u64) -> Transaction {
        let locks = (options.isolation == Isolation::Locking).then(|| {
            let rank = Rank {
                priority: options.priority,
                age,
            };
            let bytes_max = self.engine.limits().batch_bytes_max;
            let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
            self.locks
                .begin(rank, bytes_max, options.wait == LockWait::Wait)
        });
        let engine = Arc::clone(&self.engine);
        Transaction::new(engine, self.conflicts.clone(), options, locks)
    }
}

/// Attempts at one transaction: they have one age, and the later ones let others go first.
#[derive(Debug)]
pub struct Attempts<'t> {
    transactions: &'t Transactions,
    options: TransactionOptions,
    age: u64,
    count: u32,
}

impl Attempts<'_> {
    /// Begins the next attempt, after a pause if there were several. The transaction of the last
    /// one is over.
    #[must_use]
    pub fn begin(&mut self) -> Transaction {
        self.pause();
        self.count += 1;
        self.transactions.begin_aged(&self.options, self.age)
    }

    /// Reports whether another attempt should follow.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.count < ATTEMPTS_MAX
    }

    fn pause(&self) {
        let Some(round) = self.count.checked_sub(EAGER_ATTEMPTS) else {
            return;
        };
        let pause = BACKOFF_MIN.saturating_mul(1 << round.min(16));
        self.transactions.clock.sleep(pause.min(BACKOFF_MAX));
    }
}
