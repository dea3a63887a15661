//! The read set of a serializable transaction: what it has read of mainline, from the first access
//! on.
//!
//! ```text
//! lookup d/a        name (d, hash of a), and the attributes of its inode
//! lookup d/b: none  name (d, hash of b)
//! list d            all names of d
//! read a file       contents, beside what its lookup noted
//! mkdir d/c         name (d, hash of c): that it is missing
//! ```
//!
//! A first access is enough: what caches above keep is as it was then. What the transaction has
//! made itself is not noted.
//!
//! Invariants:
//! - nothing is ever taken out: entries are replaced by coarser ones only, which refuse more;
//! - the number of entries is bounded (see [`coarse`]).

mod coarse;
mod kept;
mod records;
mod validate;

pub(super) use kept::KeptReads;
pub(super) use records::RecordReads;
pub(super) use validate::Validation;

use super::TransactionView;
use coarse::Reads;
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_format::fs_reads::{ReadEntry, read_of};

/// What a transaction has read.
#[derive(Debug)]
pub(crate) struct ReadSet {
    /// Inodes from here on were made in the transaction.
    first_made: u64,
    reads: Mutex<Reads>,
    records: Mutex<RecordReads>,
    /// Some of it is not known: all of it counts as read.
    is_unknown: bool,
    /// That of the transaction that this one began in: what is read here is read there.
    outer: Option<Arc<ReadSet>>,
}

impl ReadSet {
    /// Nothing was read yet.
    pub(super) fn new(first_made: u64) -> Self {
        Self::of(first_made, Reads::default())
    }

    fn of(first_made: u64, reads: Reads) -> Self {
        debug_assert!(first_made > 0, "0 is no inode number");
        Self {
            first_made,
            reads: Mutex::new(reads),
            records: Mutex::default(),
            is_unknown: false,
            outer: None,
        }
    }

    /// Has all that is read count as read by the transaction that this one began in, if that is
    /// serializable: at once, since what it does next may follow from a read of one that fails.
    pub(super) fn within(self, outer: Option<&TransactionView>) -> Self {
        let outer = outer.and_then(|outer| outer.fs.reads.clone());
        Self { outer, ..self }
    }

    /// This one, and those of the transactions that it is in.
    fn all_outwards(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |set| set.outer.as_deref())
    }

    /// What was read by a transaction that goes on from a later moment, where all of it holds.
    pub(super) fn rebased(before: &Self, first_made: u64) -> Self {
        debug_assert!(before.first_made <= first_made, "a later moment");
        Self {
            records: Mutex::new(before.record_reads()),
            is_unknown: before.is_unknown,
            ..Self::of(first_made, Reads::of(&before.entries()))
        }
    }

    /// What was read is not known: everything counts.
    pub(super) fn unknown(first_made: u64) -> Self {
        Self {
            is_unknown: true,
            ..Self::of(first_made, Reads::all()).without_records()
        }
    }

    /// Makes all records count as read: which ones were is not kept over a close.
    fn without_records(self) -> Self {
        self.records.lock().is_unknown = true;
        self
    }

    /// Returns what was read, in order.
    fn entries(&self) -> Vec<ReadEntry> {
        self.reads.lock().entries()
    }

    fn note_inode(&self, ino: Ino, what: u8) {
        for set in self.all_outwards().take_while(|set| ino.0 < set.first_made) {
            set.reads.lock().note_inode(ino, what);
        }
    }

    fn note_row(&self, dir: Ino, hash: u64, what: u8) {
        for set in self.all_outwards().take_while(|set| dir.0 < set.first_made) {
            set.reads.lock().note_name(dir, hash, what);
        }
    }

    /// Notes which inode a name stands for, or that it is missing.
    pub(crate) fn note_name(&self, dir: Ino, hash: u64) {
        self.note_row(dir, hash, read_of::NAMES);
    }

    /// Notes the attributes of the inode whose row is under a name.
    pub(crate) fn note_named_inode(&self, dir: Ino, hash: u64) {
        self.note_row(dir, hash, read_of::NAMES | read_of::NAMED_INODES);
    }

    /// Notes the attributes of an inode whose row is under its number.
    pub(crate) fn note_own_inode(&self, ino: Ino) {
        self.note_inode(ino, read_of::OWN_INODE);
    }

    /// Notes all names of a directory.
    pub(crate) fn note_list(&self, dir: Ino) {
        self.note_inode(dir, read_of::NAMES);
    }

    pub(crate) fn note_contents(&self, ino: Ino) {
        self.note_inode(ino, read_of::CONTENTS);
    }

    pub(crate) fn note_xattrs(&self, ino: Ino) {
        self.note_inode(ino, read_of::XATTRS);
    }
}
