//! Entries of a read set, in bounded memory.
//!
//! | bound | then |
//! |---|---|
//! | [`NAMES_PER_DIR_MAX`] names of one directory | the directory instead of its names |
//! | [`NAMES_MAX`] names | all directories instead of their names |
//! | [`GROUPS_MAX`] inodes and directories | groups of neighbouring numbers, twice as large |
//!
//! Inodes that were made one after the other have neighbouring numbers, and mostly change together.

use std::collections::BTreeMap;
use std::collections::HashMap;
use stitch_base::Ino;
use stitch_format::fs_key::INO_MAX;
use stitch_format::fs_reads::{ReadEntry, SHIFT_MAX, read_of};

/// Most names of one directory.
const NAMES_PER_DIR_MAX: u32 = 256;
/// Most names.
const NAMES_MAX: usize = 16 << 10;
const _: () = assert!(
    NAMES_PER_DIR_MAX as usize <= NAMES_MAX,
    "one directory fits"
);
/// Most inodes, directories or groups of them.
const GROUPS_MAX: usize = 16 << 10;

/// What was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    /// By directory and hash.
    names: HashMap<(u64, u64), u8>,
    /// Names of each directory in `names`.
    counts: HashMap<u64, u32>,
    /// By number, shifted by `shift`.
    groups: HashMap<u64, u8>,
    shift: u8,
}

impl Reads {
    /// Everything was read.
    pub(super) fn all() -> Self {
        Self {
            groups: HashMap::from([(0, read_of::ALL)]),
            shift: SHIFT_MAX,
            ..Self::default()
        }
    }

    /// Returns what entries say.
    pub(super) fn of(entries: &[ReadEntry]) -> Self {
        let mut reads = Self::default();
        for entry in entries {
            reads.shift = reads.shift.max(entry.shift);
        }
        for entry in entries {
            let number = entry.number << entry.shift;
            debug_assert!(
                number <= INO_MAX,
                "entries are checked when they are decoded"
            );
            match entry.hash {
                0 => reads.note_inode(Ino(number), entry.what),
                hash => reads.note_name(Ino(number), hash, entry.what),
            };
        }
        reads
    }

    /// Returns it as entries, in order.
    pub(super) fn entries(&self) -> Vec<ReadEntry> {
        let names = self.names.iter().map(|(&(number, hash), &what)| ReadEntry {
            number,
            hash,
            shift: 0,
            what,
        });
        let shift = self.shift;
        let groups = self.groups.iter().map(|(&number, &what)| ReadEntry {
            number,
            hash: 0,
            shift,
            what,
        });
        let mut entries: Vec<ReadEntry> = names.chain(groups).collect();
        entries.sort_unstable();
        debug_assert!(
            entries.is_sorted_by(|one, next| (one.number, one.hash, one.shift)
                != (next.number, next.hash, next.shift)),
            "each is noted once"
        );
        entries
    }

    /// Number of entries.
    pub(super) fn count(&self) -> usize {
        debug_assert!(self.names.len() <= NAMES_MAX, "names have a bound");
        debug_assert!(self.groups.len() <= GROUPS_MAX, "groups have a bound");
        self.names.len() + self.groups.len()
    }

    /// Reports whether this was noted of an inode, or of its group.
    pub(super) fn has_inode(&self, ino: Ino, what: u8) -> bool {
        debug_assert!(what != 0, "it is something");
        debug_assert!(what & !read_of::ALL == 0, "it is something known");
        let known = self.groups.get(&self.group(ino));
        known.is_some_and(|known| known & what == what)
    }

    /// Checks the bounds, and that names are counted.
    fn check(&self) {
        debug_assert!(self.names.len() <= NAMES_MAX, "names have a bound");
        debug_assert!(self.groups.len() <= GROUPS_MAX, "groups have a bound");
        debug_assert!(
            self.counts.len() <= self.names.len(),
            "each directory has a name"
        );
        debug_assert_eq!(
            self.counts.is_empty(),
            self.names.is_empty(),
            "each name is counted"
        );
    }

    const fn group(&self, ino: Ino) -> u64 {
        // A shift by 63 leaves one group.
        ino.0 >> self.shift
    }

    /// Notes something about an inode, or about all names of a directory. Reports whether that was
    /// not noted before.
    pub(super) fn note_inode(&mut self, ino: Ino, what: u8) -> bool {
        debug_assert!(what != 0, "it is something");
        debug_assert!(what & !read_of::ALL == 0, "it is something known");
        let group = self.group(ino);
        let known = self.groups.entry(group).or_default();
        let is_new = *known & what != what;
        *known |= what;
        while self.groups.len() > GROUPS_MAX {
            self.double_groups();
        }
        self.check();
        is_new
    }

    /// Notes something about one name of a directory. Reports whether that was not noted before.
    pub(super) fn note_name(&mut self, dir: Ino, hash: u64, what: u8) -> bool {
        debug_assert!(hash != 0, "a name has a hash");
        let known = self.groups.get(&self.group(dir)).copied();
        if known.is_some_and(|known| known & what == what) {
            return false;
        }
        let name = self.names.entry((dir.0, hash)).or_default();
        if *name == 0 {
            *self.counts.entry(dir.0).or_default() += 1;
        }
        let is_new = *name & what != what;
        *name |= what;
        if self.counts[&dir.0] > NAMES_PER_DIR_MAX {
            self.fold_names(|of| of == dir.0);
        } else if self.names.len() > NAMES_MAX {
            self.fold_names(|_| true);
        }
        self.check();
        is_new
    }

    /// Puts directories instead of their names.
    fn fold_names(&mut self, is_folded: impl Fn(u64) -> bool) {
        let mut folded: BTreeMap<u64, u8> = BTreeMap::new();
        self.names.retain(|&(dir, _), what| {
            if is_folded(dir) {
                *folded.entry(dir).or_default() |= *what;
            }
            !is_folded(dir)
        });
        self.counts.retain(|&dir, _| !is_folded(dir));
        for (dir, what) in folded {
            self.note_inode(Ino(dir), what);
        }
        debug_assert!(
            self.counts.len() <= self.names.len(),
            "what was folded is gone"
        );
    }

    fn double_groups(&mut self) {
        debug_assert!(self.shift < SHIFT_MAX, "one group is not too many");
        self.shift += 1;
        let count = self.groups.len();
        for (number, what) in std::mem::take(&mut self.groups) {
            *self.groups.entry(number >> 1).or_default() |= what;
            debug_assert!(self.groups.len() <= count, "groups are joined");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports whether something counts as read.
    fn has(reads: &Reads, ino: u64, hash: u64, what: u8) -> bool {
        let name = reads.names.get(&(ino, hash)).copied().unwrap_or_default();
        let group = reads.groups.get(&reads.group(Ino(ino)));
        (name | group.copied().unwrap_or_default()) & what == what
    }

    #[test]
    fn many_names_of_a_directory_become_the_directory() {
        let mut reads = Reads::default();
        let count = u64::from(NAMES_PER_DIR_MAX);
        for hash in 1..=count {
            reads.note_name(Ino(7), hash, read_of::NAMES);
        }
        assert!(reads.groups.is_empty() && !has(&reads, 7, count + 1, read_of::NAMES));
        assert!(!reads.note_name(Ino(7), 1, read_of::NAMES), "it is known");
        assert!(reads.note_name(Ino(7), count + 1, read_of::NAMED_INODES));
        assert!(reads.names.is_empty() && reads.counts.is_empty());
        let both = read_of::NAMES | read_of::NAMED_INODES;
        assert_eq!(reads.groups, HashMap::from([(7, both)]));
        assert!(!reads.note_name(Ino(7), 3, both), "it is known");
        assert!(reads.names.is_empty(), "it is known already");
    }

    #[test]
    fn nothing_is_lost_and_memory_is_bounded_whatever_is_read() {
        let mut reads = Reads::default();
        let numbers = |index: u64| (index * 0x9e37_79b9 % (1 << 40), index % 7 + 1);
        for index in 0..100_000 {
            let (ino, hash) = numbers(index);
            match index % 3 {
                0 => reads.note_inode(Ino(ino), read_of::CONTENTS),
                _ => reads.note_name(Ino(ino), hash, read_of::NAMES),
            };
            assert!(reads.names.len() <= NAMES_MAX && reads.groups.len() <= GROUPS_MAX);
        }
        let again = Reads::of(&reads.entries());
        for reads in [&reads, &again] {
            for index in 0..100_000 {
                let (ino, hash) = numbers(index);
                let what = match index % 3 {
                    0 => read_of::CONTENTS,
                    _ => read_of::NAMES,
                };
                assert!(has(reads, ino, hash, what), "{index}");
            }
        }
        assert!(reads.shift > 0 && again.entries() == reads.entries());
    }

    #[test]
    fn all_is_one_group_and_comes_back() {
        let mut all = Reads::all();
        all.note_name(Ino(9), 9, read_of::NAMES);
        all.note_inode(Ino(INO_MAX), read_of::XATTRS);
        assert_eq!(all.entries().len(), 1);
        let again = Reads::of(&all.entries());
        assert!(has(&again, INO_MAX, 1, read_of::ALL));
    }
}
