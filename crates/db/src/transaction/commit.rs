//! The commit of a transaction.

use super::settle::{ROUNDS_MAX, Settling};
use super::{ConflictPolicy, Isolation, Resolver, Transaction};
use crate::DbError;
use crate::error::LISTED_COUNT_MAX;
use stitch_base::Seqno;
use stitch_kv::{Batch, ChangedKey, CommitOptions, Guards, KvError, Snapshot};

impl Transaction {
    /// Applies what was written, whole or not at all.
    ///
    /// A transaction that wrote nothing commits without a check if it has read one moment.
    ///
    /// # Errors
    /// [`DbError::Conflict`] with the keys that others have changed, [`DbError::Wounded`]: nothing
    /// is applied; run the transaction again. [`DbError::TooLarge`] for more reads than can be
    /// checked. [`DbError::Kv`] as of [`Engine::commit`](stitch_kv::Engine::commit), and of
    /// [`Engine::absorb`](stitch_kv::Engine::absorb) if it has [spilled](Self::spilled_bytes).
    ///
    /// # Durability
    /// As of [`Engine::commit`](stitch_kv::Engine::commit).
    ///
    /// # Cost
    /// One batch, and a search for each key that is checked among what was written since the begin.
    /// What was spilled is absorbed: at most written once more.
    pub fn commit(mut self, options: CommitOptions) -> Result<Seqno, DbError> {
        if let Some(locks) = &self.locks {
            locks.begin_commit()?;
        }
        self.reads.get_mut().check()?;
        self.keep_all()?;
        if self.is_empty() && self.isolation != Isolation::Locking {
            return Ok(self.snapshot.seqno());
        }
        match (self.isolation, self.conflicts.clone()) {
            (Isolation::Snapshot, ConflictPolicy::Ignore) => Ok(self.apply(None, options)?),
            (Isolation::Snapshot, policy) if !self.spill.is_empty() => {
                self.commit_spilled(&policy, options)
            }
            (Isolation::Snapshot, ConflictPolicy::Resolve(resolver)) => {
                self.commit_resolved(resolver.as_ref(), options)
            }
            (Isolation::Snapshot, ConflictPolicy::Refuse) => {
                let guards = self.guards_on_writes(&self.snapshot);
                self.commit_checked(&guards, options)
            }
            (Isolation::Serializable | Isolation::Locking, _) => {
                let guards = self.reads.get_mut().guards().cloned();
                match guards {
                    Some(guards) => self.commit_checked(&guards, options),
                    None if self.is_empty() => Ok(self.snapshot.seqno()),
                    None => Ok(self.apply(None, options)?),
                }
            }
        }
    }

    fn guards_on_writes(&self, since: &Snapshot) -> Guards {
        let mut guards = Guards::since(since);
        self.writes.guard(&mut guards, self.engine.upserts());
        guards
    }

    fn apply(&mut self, guards: Option<&Guards>, options: CommitOptions) -> Result<Seqno, KvError> {
        if !self.spill.is_empty() {
            let none = Guards::since(&self.snapshot);
            let settling = Settling {
                engine: self.engine.as_ref(),
                branches: &self.spill.branches(),
                writes: &mut self.writes,
            };
            let done = settling.absorb(guards.unwrap_or(&none), options)?;
            self.spill.forget();
            return Ok(done);
        }
        let mut batch = Batch::new();
        self.writes.fill(&mut batch, |tree| tree);
        match guards {
            Some(guards) => self.engine.commit_guarded(&batch, guards, options),
            None => self.engine.commit(&batch, options),
        }
    }

    fn commit_checked(
        &mut self,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, DbError> {
        match self.apply(Some(guards), options) {
            Err(KvError::Conflict { tree, key }) => {
                Err(self.listed(guards, ChangedKey { tree, key }))
            }
            other => Ok(other?),
        }
    }

    /// The error that lists the keys that have changed, of which one is known.
    fn listed(&self, guards: &Guards, first: ChangedKey) -> DbError {
        DbError::conflict(self.engine.as_ref(), guards, first)
    }

    /// Commits writes that are in branch trees.
    fn commit_spilled(
        &mut self,
        policy: &ConflictPolicy,
        options: CommitOptions,
    ) -> Result<Seqno, DbError> {
        let mut settling = Settling {
            engine: self.engine.as_ref(),
            branches: &self.spill.branches(),
            writes: &mut self.writes,
        };
        let done = settling.commit(&self.snapshot, policy, options)?;
        self.spill.forget();
        Ok(done)
    }

    /// Commits, and has a resolver decide about the keys that others have changed.
    fn commit_resolved(
        &mut self,
        resolver: &dyn Resolver,
        options: CommitOptions,
    ) -> Result<Seqno, DbError> {
        let mut since = self.snapshot.clone();
        let mut rounds = 0;
        loop {
            let guards = self.guards_on_writes(&since);
            let first = match self.apply(Some(&guards), options) {
                Err(KvError::Conflict { tree, key }) => ChangedKey { tree, key },
                other => return Ok(other?),
            };
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return Err(self.listed(&guards, first));
            }
            // What is changed after this moment is a conflict of the next round.
            let now = self.engine.snapshot();
            let changed = self.engine.changed_keys(&guards, usize::MAX)?;
            let mut refused = Vec::new();
            let mut settling = Settling {
                engine: self.engine.as_ref(),
                branches: &[],
                writes: &mut self.writes,
            };
            for changed in changed {
                if !settling.resolve(resolver, &changed, (&since, &now))? {
                    refused.push(changed);
                }
            }
            if !refused.is_empty() {
                refused.truncate(LISTED_COUNT_MAX);
                return Err(DbError::Conflict { keys: refused });
            }
            since = now;
        }
    }
}
