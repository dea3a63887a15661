//! What must outlive the daemon and is not in the trees: which inodes are known, by how many
//! lookups, and where their rows are. Names lead to rows, numbers do not; so who takes over a mount
//! could not find what the kernel names by number.
//!
//! ```text
//!   change: may(ino, new place) | commit to the trees | at(ino, new place, lookups)
//!   lookup:                                             count(ino, lookups)
//!   gone  :                                             gone(ino)
//! ```
//!
//! Invariants:
//! - each shard of the inode table has a log, and its lock is held whenever the log is added to;
//! - before a row moves, its new place is in the log: whenever the process is killed, an inode's
//!   row is at one of the places that the log names, or under the inode's number;
//! - the log counts no fewer lookups than the kernel: it is written before the answer is sent.

mod record;

#[cfg(test)]
mod tests;

use crate::inode::{Inode, Location};
use std::collections::HashMap;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use record::{LedgerInode, Record};

/// Logs that a [`Ledger`] has.
pub const LEDGER_LOGS: usize = 64;
/// A log up to this length is not written anew.
const REWRITE_MIN: usize = 64 << 10;

/// Memory that outlives the process: logs, and notes on requests under way.
///
/// A process may be killed at any moment: what was added before is there then, and of what was
/// being added nothing.
pub trait Ledger: Send + Sync + std::fmt::Debug {
    /// Adds to the end of a log. `None` if it is full; else its length now. Calls for one log do
    /// not overlap.
    fn append(&self, log: usize, bytes: &[u8]) -> Option<usize>;

    /// Replaces a log in one step. `false` if there is no room, after which the ledger is not to be
    /// trusted.
    fn replace(&self, log: usize, bytes: &[u8]) -> bool;

    /// All of a log.
    fn read(&self, log: usize) -> Vec<u8>;

    /// Reports whether the mount has had generations of inode numbers since it began. The kernel
    /// takes an inode with another generation for another inode.
    fn has_generations(&self) -> bool {
        true
    }

    /// Notes which inode a request is about, before it is served.
    fn note(&self, unique: u64, ino: Ino);

    /// What was noted on a request, if it is one of the last thousands.
    fn noted(&self, unique: u64) -> Option<Ino>;
}

/// The ledger as the inode table writes it.
#[derive(Debug)]
pub(crate) struct Register {
    pub(crate) ledger: Arc<dyn Ledger>,
    /// Lengths at which the logs are written anew.
    limits: [AtomicUsize; LEDGER_LOGS],
}

impl Register {
    pub(crate) fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self {
            ledger,
            limits: std::array::from_fn(|_| AtomicUsize::new(REWRITE_MIN)),
        }
    }

    /// Adds a record; `true` if the log is to be written anew. The shard is locked.
    pub(crate) fn add(&self, log: usize, record: &Record<'_>) -> bool {
        debug_assert!(log < LEDGER_LOGS, "one of the logs");
        let mut bytes = Vec::with_capacity(64);
        record.encode(&mut bytes);
        let limit = self.limits[log].load(Ordering::Relaxed);
        let len = self.ledger.append(log, &bytes);
        debug_assert!(
            len.is_none_or(|len| len >= bytes.len()),
            "the log has the record"
        );
        len.is_none_or(|len| len > limit)
    }

    /// Writes a log anew: what is known, and where it may be soon. The shard is locked.
    pub(crate) fn rewrite<'a>(&self, log: usize, known: impl Iterator<Item = Entry<'a>>) {
        debug_assert!(log < LEDGER_LOGS, "one of the logs");
        let mut bytes = Vec::new();
        for entry in known {
            entry.at().encode(&mut bytes);
            if let Some(inode) = entry.intent {
                debug_assert_eq!(
                    inode.head.ino, entry.inode.head.ino,
                    "a row moves with its inode"
                );
                Record::may(inode).encode(&mut bytes);
            }
        }
        let limit = (2 * bytes.len()).max(REWRITE_MIN);
        debug_assert!(limit > bytes.len(), "a log grows before it is written anew");
        self.limits[log].store(limit, Ordering::Relaxed);
        if !self.ledger.replace(log, &bytes) {
            tracing::error!(log, "too many inodes are known for a restart of the daemon");
        }
    }

    /// Everything that was known when the last process ended.
    pub(crate) fn known(&self) -> Vec<LedgerInode> {
        let mut all = Vec::new();
        for log in 0..LEDGER_LOGS {
            let mut known: HashMap<Ino, LedgerInode> = HashMap::new();
            let bytes = self.ledger.read(log);
            let mut rest = bytes.as_slice();
            while let Some((record, after)) = Record::decode(rest) {
                record.apply(&mut known);
                rest = after;
            }
            if !rest.is_empty() {
                tracing::error!(log, "the ledger has an end that makes no sense");
            }
            all.extend(known.into_values());
        }
        all
    }
}

/// An inode of the table, as it is written.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) inode: &'a Inode,
    pub(crate) lookups: u64,
    pub(crate) intent: Option<&'a Inode>,
}

impl<'a> Entry<'a> {
    pub(crate) fn at(&self) -> Record<'a> {
        Record::At {
            ino: self.inode.head.ino,
            lookups: self.lookups,
            is_temp: self.inode.is_temp,
            place: record::Place::of(self.inode),
        }
    }
}

impl<'a> Record<'a> {
    /// Where an inode may be from now on.
    pub(crate) fn may(inode: &'a Inode) -> Self {
        Self::May {
            ino: inode.head.ino,
            place: record::Place::of(inode),
        }
    }
}

/// Reports whether a change is to be written down: the row moves, or is in memory alone.
pub(crate) fn moves(before: &Location, after: &Location) -> bool {
    before != after || matches!(after, Location::Memory(_))
}
