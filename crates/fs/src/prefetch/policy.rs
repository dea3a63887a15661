//! The policy: from what is read and listed, what is likely to be read next.
//!
//! [`Policy::observe`] is pure: no engine, no lock, no clock. What it must know to guess on it
//! returns as a [`Need`]; the caller brings the answer as the next event.
//!
//! ```text
//! Started: a file     -> need: its directory's files
//! Files               -> loads: those files                       need: the next directories
//! NextDirs            -> loads: their files, with less priority
//! refused: a load     -> a later read asks for it again
//! ```
//!
//! One search for directories is under way at a time.

use super::listing::{FIRST_HASH, Listing, ListingOrder};
use super::sequential::{FileRead, FileReads};
use super::siblings::Siblings;
use super::walk::Walk;
use crate::inode::{Inode, Location};
use crate::schema::Store;
use std::ops::Range;
use stitch_base::Ino;
use stitch_db::{Priority, ReadOrder};

/// Largest number of inode numbers behind a file or directory whose neighbourhood is prefetched.
pub(super) const REACH_MAX: u64 = 1024;
const _: () = assert!(REACH_MAX > 0, "the range behind has a number");
const _: () = assert!(
    Habit::RIGHT_MIN <= u8::BITS,
    "guesses are remembered in a byte"
);

/// A name: its directory and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HashedName {
    pub(super) dir: Ino,
    pub(super) hash: u64,
}

impl HashedName {
    /// Returns the name of an inode that has one of its own.
    pub(super) fn of(inode: &Inode, store: &Store) -> Option<Self> {
        match &inode.location {
            Location::Entry { parent, name } => Some(Self {
                dir: *parent,
                hash: store.keys.name_hash(name),
            }),
            Location::Own | Location::Memory(_) => None,
        }
    }

    /// The place behind it.
    pub(super) const fn next(self) -> Self {
        let hash = self.hash.saturating_add(1);
        Self { hash, ..self }
    }
}

/// An observation, or the answer to a need.
#[derive(Debug)]
pub(super) enum Observation {
    /// A part of a file in chunks is read.
    Read(FileRead),
    /// A short file with this name is read from its start.
    Started(HashedName),
    /// A directory with this name is about to be listed.
    Listed { dir: Ino, name: HashedName },
    /// What is in a directory; `None` if it could not be read.
    Files(DirGuess, Option<Listing>),
    /// The next directories and what is in them, and where the search goes on.
    NextDirs(ListingOrder, Vec<(Ino, Listing)>),
}

/// What the policy must know before it guesses on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// [`Observation::Files`].
    Files(DirGuess),
    /// [`Observation::NextDirs`]: at most `dirs`, and no more after `bytes` of files.
    NextDirs {
        order: ListingOrder,
        dirs: usize,
        bytes: u64,
    },
}

/// A directory whose files are likely to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirGuess {
    pub(super) dir: Ino,
    /// Names from this hash on are scanned: all, or those that come next in a long directory.
    pub(super) from_hash: u64,
    /// Hash of the first file that is read of it, if that is read now.
    pub(super) first: Option<u64>,
}

/// Rows to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoadSpan {
    /// These bytes of contents.
    Bytes(Range<u64>),
    /// All contents of inodes with these numbers.
    Files(Range<u64>),
    /// All names.
    Names,
}

/// A hint: rows that are likely to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// The contents, or the directory whose files or names they are.
    pub(super) of: Ino,
    pub(super) span: LoadSpan,
    /// Rows of inodes below this one that are read with the others are wanted, too.
    pub(super) beyond: Option<Ino>,
    pub(super) priority: Priority,
}

impl Load {
    pub(super) const fn order(&self) -> ReadOrder {
        match self.span {
            LoadSpan::Bytes(_) => ReadOrder::Sequential,
            LoadSpan::Files(_) | LoadSpan::Names => ReadOrder::Random,
        }
    }
}

/// What to load, and what the policy must know then.
pub(super) type Guesses = (Vec<Load>, Option<Need>);

/// The access history of a file system.
#[derive(Debug, Default)]
pub(super) struct Policy {
    reads: FileReads,
    /// Directories whose files are read.
    siblings: Siblings,
    walk: Walk,
    /// Directories that hold the directories that are listed.
    listings: Siblings,
}

impl Policy {
    /// Takes note of an event. Returns what to load now.
    pub(super) fn observe(&mut self, event: Observation) -> Guesses {
        match event {
            Observation::Read(read) => (self.reads.note(&read), None),
            Observation::Started(name) => (Vec::new(), self.started(name)),
            Observation::Listed { dir, name } => (self.listed(dir, name), None),
            Observation::Files(guess, listing) => {
                let loads = listing.map(|listing| self.files(guess, &listing));
                let need = self.begin_walk(guess.dir, guess.first);
                (loads.unwrap_or_default(), need)
            }
            Observation::NextDirs(order, found) => (self.next_dirs(order, &found), None),
        }
    }

    fn started(&mut self, name: HashedName) -> Option<Need> {
        let HashedName { dir, hash } = name;
        let (from_hash, is_first) = self.siblings.note(name);
        debug_assert!(
            from_hash.is_none_or(|from_hash| from_hash >= FIRST_HASH),
            "scans begin with names"
        );
        let first = is_first.then_some(hash);
        let guess = |from_hash| DirGuess {
            dir,
            from_hash,
            first,
        };
        match from_hash.map(guess) {
            Some(guess) => Some(Need::Files(guess)),
            None => self.begin_walk(dir, first),
        }
    }

    /// Where directory after directory is listed, the names of this one and of its neighbours.
    fn listed(&mut self, dir: Ino, name: HashedName) -> Vec<Load> {
        debug_assert_ne!(dir, name.dir, "no directory is in itself");
        // Only the history counts here, not the scan.
        let _ = self.listings.note(name);
        let load = || Load {
            of: dir,
            span: LoadSpan::Names,
            beyond: Some(Ino(dir.0.saturating_add(REACH_MAX))),
            priority: Priority::Soon,
        };
        self.listings.is_walk().then(load).into_iter().collect()
    }

    fn files(&mut self, guess: DirGuess, found: &Listing) -> Vec<Load> {
        debug_assert!(guess.from_hash >= FIRST_HASH, "scans begin with names");
        let dir = guess.dir;
        if guess.from_hash != FIRST_HASH {
            let (scanned_hash, due_hash) = found.limits();
            self.siblings.mark_part(dir, scanned_hash, due_hash);
            return found.loads(dir, Priority::Soon, None);
        }
        if found.is_part {
            // The order in which it is read is not known yet.
            self.siblings.mark_part(dir, 0, 0);
            return Vec::new();
        }
        let takes_beyond = self.siblings.is_walk() && !self.walk.is_known();
        let beyond = found.beyond().filter(|_| takes_beyond);
        self.siblings.mark_prefetched(dir, found.files.len());
        found.loads(dir, Priority::Soon, beyond)
    }

    /// The files of directories that come next, if directories come in the order of listing.
    fn next_dirs(&mut self, order: ListingOrder, found: &[(Ino, Listing)]) -> Vec<Load> {
        debug_assert!(
            found.iter().all(|(_, listing)| !listing.is_part),
            "long directories are passed over"
        );
        self.walk.found(order, found);
        if !self.walk.is_known() {
            return Vec::new();
        }
        let loads = found.iter().flat_map(|(dir, listing)| {
            self.siblings.expect_dir(*dir, listing.files.len());
            listing.loads(*dir, Priority::Later, None)
        });
        loads.collect()
    }

    /// Takes note that there was no memory for a load.
    pub(super) fn refused(&mut self, load: &Load) {
        debug_assert!(
            matches!(load.priority, Priority::Soon) || matches!(load.span, LoadSpan::Files(_)),
            "files alone are loaded later"
        );
        match (&load.span, load.priority) {
            (LoadSpan::Bytes(bytes), _) => self.reads.note_refused(load.of, bytes.start),
            (LoadSpan::Files(_), Priority::Soon) => self.siblings.note_refused(load.of),
            // Its own first reads prefetch it.
            (LoadSpan::Files(_), Priority::Later) => self.siblings.forget(load.of),
            (LoadSpan::Names, _) => {}
        }
    }

    /// Looks for the directories after one, with the hash of its first file if that is read now.
    fn begin_walk(&mut self, dir: Ino, first: Option<u64>) -> Option<Need> {
        debug_assert!(
            first.is_none_or(|hash| hash >= FIRST_HASH),
            "the hash of a name"
        );
        let hash = first.filter(|_| self.siblings.is_walk())?;
        self.walk.begin(HashedName { dir, hash })
    }
}

/// Whether most of the last eight guesses were right.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit(u8);

impl Habit {
    /// Number of the last eight that must have been.
    const RIGHT_MIN: u32 = 5;

    /// Begins a new guess, which is wrong so far.
    pub(super) const fn begin(&mut self) {
        self.0 <<= 1;
    }

    /// The last guess was right.
    pub(super) const fn confirm(&mut self) {
        self.0 |= 1;
    }

    pub(super) const fn is_known(self) -> bool {
        self.0.count_ones() >= Self::RIGHT_MIN
    }
}

#[cfg(test)]
mod tests;
