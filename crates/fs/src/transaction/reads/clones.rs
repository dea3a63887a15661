//! What a serializable transaction has read of clones, in bounded memory.
//!
//! A transaction reads clones by a pin of its first moment (see `clone_pins`). Each file system of
//! the pin notes its reads with its own inode numbers:
//!
//! ```text
//! read set    files of the transaction: graft 31 "contents", names, ...
//!             clone 7: names, inodes, ...        clone 9, in clone 7: names, inodes, ...
//! a close     the first line is kept in rows
//! an open     graft 31 was entered: all of clone 7 counts as read, and of 9, which lies in it
//! ```
//!
//! A graft is an empty directory, so "contents" of it is a mark that nothing else sets.
//!
//! Invariant: all clones together have at most [`ENTRIES_MAX`] entries, or one each.

use super::coarse::Reads;
use super::{NotedReads, ReadSet};
use crate::views::CloneInfo;
use crate::{FsError, FsResult};
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_format::fs_reads::{ReadEntry, read_of};

/// Most entries of all clones together. Beyond it, the clone with the most of them counts as read
/// whole.
const ENTRIES_MAX: usize = 32 << 10;

/// What was read of each clone.
#[derive(Clone, Debug, Default)]
pub(super) struct CloneReads {
    by_number: BTreeMap<u64, Reads>,
    /// Entries of all of them.
    count: usize,
}

impl CloneReads {
    /// Notes something in a clone. `add` reports whether that is new, as this does.
    pub(super) fn note(&mut self, number: u64, add: impl Fn(&mut Reads) -> bool) -> bool {
        debug_assert!(number > 0, "0 is mainline");
        let reads = self.by_number.entry(number).or_default();
        let before = reads.count();
        let is_new = add(reads);
        self.count = self.count - before + reads.count();
        while self.count > ENTRIES_MAX && self.coarsen() {}
        debug_assert!(
            self.count <= ENTRIES_MAX.max(self.by_number.len()),
            "all clones together have a bound"
        );
        is_new
    }

    /// Counts all of a clone as read.
    fn note_all(&mut self, number: u64) {
        self.note(number, |reads| {
            *reads = Reads::all();
            true
        });
        debug_assert_eq!(self.by_number[&number].count(), 1, "all is one entry");
    }

    /// Counts all of the clone with the most entries as read; false if none has more than one.
    fn coarsen(&mut self) -> bool {
        let largest = self.by_number.values_mut();
        let largest = largest.max_by_key(|reads| reads.count());
        let Some(reads) = largest.filter(|reads| reads.count() > 1) else {
            return false;
        };
        self.count -= reads.count() - 1;
        *reads = Reads::all();
        debug_assert_eq!(reads.count(), 1, "all is one entry");
        true
    }

    /// Counts all as read of each clone that was entered before a close, by the marks at grafts.
    /// `clones` are in the order of their numbers: one lies in an earlier one.
    fn note_marked(&mut self, clones: &[CloneInfo], is_marked: impl Fn(Ino) -> bool) {
        debug_assert!(clones.is_sorted_by_key(|info| info.number), "in order");
        for info in clones {
            debug_assert!(info.home < info.number, "it was made later");
            let is_entered = match info.home {
                0 => is_marked(info.graft),
                home => self.by_number.contains_key(&home),
            };
            if is_entered {
                self.note_all(info.number);
            }
        }
    }
}

impl ReadSet {
    /// Returns the set for a clone that the pin of the transaction shows: what is noted there is
    /// kept and checked with the rest. Notes that the clone is entered.
    ///
    /// # Errors
    /// [`FsError::Stale`] after a rebase of the transaction.
    pub(crate) fn enter_clone(&self, info: &CloneInfo) -> FsResult<Self> {
        debug_assert!(self.outer.is_none(), "the outermost one has the pin");
        debug_assert_eq!(self.clone, 0, "it is the set of a transaction");
        debug_assert!(info.number > 0, "mainline is no clone");
        if info.home == 0 {
            self.note_contents(info.graft)?;
        }
        let noted = &mut *self.noted.lock();
        if noted.is_ended {
            return Err(FsError::Stale(info.graft));
        }
        noted.added += u64::from(noted.clones.note(info.number, |_| true));
        Ok(Self {
            clone: info.number,
            // No inode of a clone is made in a transaction.
            first_made: u64::MAX,
            noted: Arc::clone(&self.noted),
            records: Mutex::default(),
            is_unknown: false,
            outer: None,
        })
    }

    /// Counts all as read of the clones that were entered in an earlier life of the file system.
    pub(super) fn with_entered(self, clones: &[CloneInfo]) -> Self {
        debug_assert_eq!(self.clone, 0, "it is the set of a transaction");
        debug_assert!(self.outer.is_none(), "the outermost one has the pin");
        let mut guard = self.noted.lock();
        let NotedReads {
            reads,
            clones: read,
            ..
        } = &mut *guard;
        read.note_marked(clones, |graft| reads.has_inode(graft, read_of::CONTENTS));
        drop(guard);
        self
    }

    /// Returns what was read of each clone, in the order of their numbers.
    pub(in crate::transaction) fn clone_reads(&self) -> Vec<(u64, Vec<ReadEntry>)> {
        let noted = self.noted.lock();
        debug_assert_eq!(self.clone, 0, "it is the set of a transaction");
        let clones = noted.clones.by_number.iter();
        clones
            .map(|(number, reads)| (*number, reads.entries()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::clock::Timestamp;

    fn info(number: u64, home: u64, graft: u64) -> CloneInfo {
        CloneInfo {
            number,
            root: Ino(16),
            home,
            graft: Ino(graft),
            owner: 0,
            created: Timestamp(0),
        }
    }

    #[test]
    fn reads_of_clones_are_bounded_and_none_is_lost() {
        let mut clones = CloneReads::default();
        let ino = |index: u64| Ino(16 + index * 0x9e37 % (1 << 30));
        for index in 0..200_000u64 {
            let number = 1 + index % 40;
            clones.note(number, |reads| {
                reads.note_inode(ino(index), read_of::CONTENTS)
            });
            assert!(clones.count <= ENTRIES_MAX);
        }
        let counted: usize = clones.by_number.values().map(Reads::count).sum();
        assert_eq!(clones.count, counted);
        for index in 0..200_000 {
            let reads = &clones.by_number[&(1 + index % 40)];
            assert!(reads.has_inode(ino(index), read_of::CONTENTS), "{index}");
        }
    }

    #[test]
    fn what_was_entered_before_a_close_counts_as_read_whole() {
        let infos = [
            info(3, 0, 30),
            info(5, 0, 50),
            info(7, 3, 70),
            info(8, 5, 80),
        ];
        let set = ReadSet::new(100);
        let clone = set.enter_clone(&infos[0]).expect("it is open");
        clone.note_list(Ino(16)).expect("it is open");
        let rows = set.entries();
        let again = ReadSet::of(100, Reads::of(&rows)).with_entered(&infos);
        let numbers = |set: &ReadSet| -> Vec<u64> {
            let all = set.clone_reads().into_iter();
            all.map(|(number, _)| number).collect()
        };
        assert_eq!(numbers(&set), [3]);
        assert_eq!(numbers(&again), [3, 7], "the second one lies in the first");
        assert_eq!(again.clone_reads()[0].1, Reads::all().entries());
        let unknown = ReadSet::unknown(100).with_entered(&infos);
        assert_eq!(numbers(&unknown), [3, 5, 7, 8]);
    }

    #[test]
    fn a_clone_is_noted_in_the_set_of_its_transaction_until_that_ends() {
        let set = ReadSet::new(100);
        let clone = set.enter_clone(&info(3, 0, 30)).expect("it is open");
        let checked = set.added();
        // Also an inode that has a number of one that the transaction may make.
        clone.note_contents(Ino(1000)).expect("it is open");
        assert!(set.close(checked).is_none(), "that was not checked");
        let closed = set.close(set.added()).expect("nothing was added");
        let rebased = closed.rebased(200);
        closed.end();
        let all = |set: &ReadSet| set.clone_reads()[0].1.clone();
        assert_eq!(all(&rebased), all(&set));
        assert_eq!(all(&set).len(), 1);
        let refused = [
            clone.note_list(Ino(16)),
            set.enter_clone(&info(5, 0, 50)).map(drop),
        ];
        assert!(
            refused
                .iter()
                .all(|it| matches!(it, Err(FsError::Stale(_))))
        );
    }
}
