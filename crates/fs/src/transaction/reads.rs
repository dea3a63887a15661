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
//! Clones are read at the moment at which the transaction began. What is read there is noted, too
//! ([`clones`]).
//!
//! A first access is enough: what caches above keep is as it was then. What the transaction has
//! made itself is not noted.
//!
//! A rebase ends the set ([`ClosedReads`]): what is noted up to there was checked and is copied to
//! the set of the transaction that goes on. A later read of the old file system that would add to
//! the set fails.
//!
//! Invariants:
//! - nothing is ever taken out: entries are replaced by coarser ones only, which refuse more;
//! - the number of entries is bounded (see [`coarse`]).

mod clones;
mod coarse;
mod kept;
mod of_clones;
mod ranges;
mod records;
mod validate;

pub(super) use kept::KeptReads;
pub(super) use of_clones::{CloneChecks, CloneSide};
pub(super) use ranges::{ReadTree, ReadTrees};
pub(super) use records::RecordReads;
pub(super) use validate::Validation;

use super::TransactionView;
use crate::{FsError, FsResult};
use clones::CloneReads;
use coarse::Reads;
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex, MutexGuard};
use stitch_format::fs_reads::{ReadEntry, read_of};

/// What a transaction has read.
#[derive(Debug)]
pub(crate) struct ReadSet {
    /// Number of the clone whose inodes are noted; 0 for the files of the transaction.
    clone: u64,
    /// Inodes from here on were made in the transaction.
    first_made: u64,
    noted: Arc<Mutex<NotedReads>>,
    records: Mutex<RecordReads>,
    /// Some of it is not known: all of it counts as read.
    is_unknown: bool,
    /// That of the transaction that this one began in: what is read here is read there.
    outer: Option<Arc<ReadSet>>,
}

/// What was noted of files.
#[derive(Debug, Default)]
struct NotedReads {
    reads: Reads,
    clones: CloneReads,
    /// Number of notes that have added something.
    added: u64,
    /// The transaction goes on with another set.
    is_ended: bool,
}

/// A read set that is closed: who notes something waits until this is dropped.
pub(super) struct ClosedReads<'r> {
    set: &'r ReadSet,
    noted: MutexGuard<'r, NotedReads>,
}

impl ClosedReads<'_> {
    /// Returns the set of the transaction that goes on from a later moment, where all that was read
    /// holds.
    pub(super) fn rebased(&self, first_made: u64) -> ReadSet {
        debug_assert!(self.set.first_made <= first_made, "a later moment");
        debug_assert!(!self.noted.is_ended, "it was not rebased before");
        ReadSet {
            records: Mutex::new(self.set.record_reads()),
            is_unknown: self.set.is_unknown,
            noted: Arc::new(Mutex::new(NotedReads {
                reads: Reads::of(&self.noted.reads.entries()),
                clones: self.noted.clones.clone(),
                ..NotedReads::default()
            })),
            ..ReadSet::new(first_made)
        }
    }

    /// Refuses all later notes.
    pub(super) fn end(mut self) {
        debug_assert!(!self.noted.is_ended, "a set ends once");
        self.noted.is_ended = true;
    }
}

impl ReadSet {
    /// Nothing was read yet.
    pub(super) fn new(first_made: u64) -> Self {
        Self::of(first_made, Reads::default())
    }

    fn of(first_made: u64, reads: Reads) -> Self {
        debug_assert!(first_made > 0, "0 is no inode number");
        Self {
            clone: 0,
            first_made,
            noted: Arc::new(Mutex::new(NotedReads {
                reads,
                ..NotedReads::default()
            })),
            records: Mutex::default(),
            is_unknown: false,
            outer: None,
        }
    }

    /// Has all that is read count as read by the transaction that this one began in, if that is
    /// serializable: at once, since what it does next may follow from a read of one that fails.
    pub(super) fn within(self, outer: Option<&TransactionView>) -> Self {
        debug_assert!(self.outer.is_none(), "it began in one transaction");
        debug_assert_eq!(self.clone, 0, "it is the set of a transaction");
        let outer = outer.and_then(|outer| outer.fs.reads.clone());
        Self { outer, ..self }
    }

    /// This one, and those of the transactions that it is in.
    fn all_outwards(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |set| set.outer.as_deref())
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
        debug_assert_eq!(self.clone, 0, "it is the set of a transaction");
        self.records.lock().is_unknown = true;
        self
    }

    /// Returns what was read, in order.
    fn entries(&self) -> Vec<ReadEntry> {
        debug_assert_eq!(self.clone, 0, "those of a clone are beside them");
        self.noted.lock().reads.entries()
    }

    /// Returns the number of notes of files that have added something.
    pub(super) fn added(&self) -> u64 {
        debug_assert_eq!(self.clone, 0, "it is the set of a transaction");
        self.noted.lock().added
    }

    /// Closes the set, unless something was added to it since [`Self::added`] returned `added`.
    pub(super) fn close(&self, added: u64) -> Option<ClosedReads<'_>> {
        debug_assert_eq!(self.clone, 0, "it is the set of a transaction");
        let noted = self.noted.lock();
        debug_assert!(added <= noted.added, "the number only grows");
        debug_assert!(!noted.is_ended, "a set that has ended is not asked for");
        (noted.added == added).then_some(ClosedReads { set: self, noted })
    }

    /// Notes something about an inode in this set and in those that it is in. `add` reports whether
    /// that is new.
    fn note(&self, ino: Ino, add: impl Fn(&mut Reads) -> bool) -> FsResult<()> {
        for set in self.all_outwards().take_while(|set| ino.0 < set.first_made) {
            let noted = &mut *set.noted.lock();
            if noted.is_ended {
                return Err(FsError::Stale(ino));
            }
            noted.added += u64::from(match set.clone {
                0 => add(&mut noted.reads),
                clone => noted.clones.note(clone, &add),
            });
        }
        Ok(())
    }

    fn note_inode(&self, ino: Ino, what: u8) -> FsResult<()> {
        debug_assert!(what != 0, "something was read");
        debug_assert!(what & !read_of::ALL == 0, "it is something known");
        self.note(ino, |reads| reads.note_inode(ino, what))
    }

    fn note_row(&self, dir: Ino, hash: u64, what: u8) -> FsResult<()> {
        debug_assert!(hash > 0, "a name has a hash");
        debug_assert!(what & read_of::NAMES != 0, "its name was read");
        self.note(dir, |reads| reads.note_name(dir, hash, what))
    }

    /// Notes which inode a name stands for, or that it is missing.
    ///
    /// # Errors
    /// [`FsError::Stale`] after a rebase of the transaction, as for all notes.
    pub(crate) fn note_name(&self, dir: Ino, hash: u64) -> FsResult<()> {
        self.note_row(dir, hash, read_of::NAMES)
    }

    /// Notes the attributes of the inode whose row is under a name.
    pub(crate) fn note_named_inode(&self, dir: Ino, hash: u64) -> FsResult<()> {
        self.note_row(dir, hash, read_of::NAMES | read_of::NAMED_INODES)
    }

    /// Notes the attributes of an inode whose row is under its number.
    pub(crate) fn note_own_inode(&self, ino: Ino) -> FsResult<()> {
        self.note_inode(ino, read_of::OWN_INODE)
    }

    /// Notes all names of a directory.
    pub(crate) fn note_list(&self, dir: Ino) -> FsResult<()> {
        self.note_inode(dir, read_of::NAMES)
    }

    pub(crate) fn note_contents(&self, ino: Ino) -> FsResult<()> {
        self.note_inode(ino, read_of::CONTENTS)
    }

    pub(crate) fn note_xattrs(&self, ino: Ino) -> FsResult<()> {
        self.note_inode(ino, read_of::XATTRS)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_closed_only_if_nothing_was_added_since_it_was_checked() {
        let set = ReadSet::new(100);
        let checked = set.added();
        set.note_list(Ino(7)).expect("it is open");
        assert!(set.close(checked).is_none(), "the list was not checked");
        let checked = set.added();
        set.note_list(Ino(7)).expect("it is open");
        let closed = set.close(checked).expect("nothing was added");
        assert_eq!(closed.rebased(200).entries().len(), 1);
        drop(closed);
        set.note_list(Ino(8)).expect("the rebase has failed");
        let closed = set.close(set.added()).expect("nothing was added");
        closed.end();
        for refused in [set.note_name(Ino(7), 3), set.note_contents(Ino(9))] {
            assert!(matches!(refused, Err(FsError::Stale(_))), "{refused:?}");
        }
        set.note_contents(Ino(100))
            .expect("it was made in the transaction");
    }
}
