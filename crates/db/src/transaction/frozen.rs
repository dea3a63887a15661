//! Savepoints of transactions whose writes do not fit memory.
//!
//! A savepoint takes writes back by a log of changes in memory. When memory is full, the writes go
//! to branch trees ([`super::spill`]), and a copy of them with that log is *frozen*, as long as
//! their savepoints are open. Later writes go to branches above.
//!
//! ```text
//! savepoint S, memory full:   memory w1 + log  ->  layer 0 := w1,  frozen := w1 + log
//! memory full again:          memory w2        ->  layer 0 := w1 + w2
//! rollback to S:              drop layer 0,        memory := frozen, taken back to S
//! release S:                  drop frozen
//! ```
//!
//! Invariants: frozen writes are in order of their savepoints, which are older than those in
//! memory; each has an open one; between two of them lies one layer.

use super::Transaction;
use super::writes::Writes;
use crate::DbError;
use stitch_kv::KvError;

/// Writes that were moved to branch trees, as they were in memory, with open savepoints.
#[derive(Debug)]
pub(super) struct Frozen {
    writes: Writes,
    /// Layers of branch trees below them.
    depth: usize,
}

impl Transaction {
    /// Moves the writes out of memory. They stay there if too many savepoints are open for another
    /// layer.
    pub(super) fn spill_writes(&mut self) -> Result<(), DbError> {
        let at = self.moment();
        if !self.writes.has_savepoint() {
            return self.spill.take(&mut self.writes, &at);
        }
        self.join_layers()?;
        let depth = self.spill.depth();
        match self.spill.add_layer(&self.writes, &at) {
            Err(DbError::Kv(KvError::TooDeep)) => return Ok(()),
            done => done?,
        }
        let next = self.writes.next();
        let writes = std::mem::replace(&mut self.writes, next);
        self.frozen.push(Frozen { writes, depth });
        debug_assert!(self.frozen.is_sorted_by_key(|frozen| frozen.depth));
        Ok(())
    }

    /// Joins layers of branch trees that no savepoint lies between any more.
    pub(super) fn join_layers(&mut self) -> Result<(), DbError> {
        let lowest = self.frozen.last().map_or(0, |frozen| frozen.depth);
        self.spill.join_layers(lowest)
    }

    /// Takes back what was written after a savepoint. It stays open; those after it are closed.
    pub(super) fn take_back(&mut self, savepoint: u64) -> Result<(), DbError> {
        if self.writes.is_open(savepoint) {
            return self.writes.take_back(savepoint);
        }
        let at = self.frozen_with(savepoint)?;
        let last = self.writes.last_savepoint();
        self.frozen.truncate(at + 1);
        let frozen = self.frozen.pop().expect("it was found");
        self.spill.drop_layers(frozen.depth);
        debug_assert_eq!(self.spill.depth(), frozen.depth, "as when it was moved");
        self.writes = frozen.writes;
        self.writes.skip_savepoints(last);
        self.writes.take_back(savepoint)
    }

    /// Closes a savepoint and those after it; what was written stays.
    pub(super) fn keep(&mut self, savepoint: u64) -> Result<(), DbError> {
        if self.writes.is_open(savepoint) {
            return self.writes.keep(savepoint);
        }
        let at = self.frozen_with(savepoint)?;
        self.frozen.truncate(at + 1);
        let frozen = &mut self.frozen[at].writes;
        frozen.keep(savepoint)?;
        if !frozen.has_savepoint() {
            self.frozen.pop();
        }
        self.writes.keep_all();
        Ok(())
    }

    /// Closes all savepoints, and leaves what was moved in one layer, as a commit needs it.
    pub(super) fn keep_all(&mut self) -> Result<(), DbError> {
        self.frozen.clear();
        self.writes.keep_all();
        self.join_layers()?;
        debug_assert!(self.spill.depth() <= 1, "a commit absorbs one layer");
        debug_assert!(!self.writes.has_savepoint(), "all were closed");
        Ok(())
    }

    fn frozen_with(&self, savepoint: u64) -> Result<usize, DbError> {
        let mut frozen = self.frozen.iter();
        let at = frozen.position(|frozen| frozen.writes.is_open(savepoint));
        at.ok_or(DbError::NoSavepoint)
    }
}
