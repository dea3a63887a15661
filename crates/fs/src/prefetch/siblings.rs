//! Which directories have their files read one after the other, so that all of them are read ahead.
//!
//! Who searches, packs or copies a tree reads each file whole, directory by directory. Each is too short to be read
//! ahead by itself ([`super::ahead`]), but the files of a directory mostly lie together: they were made
//! one after the other, and chunks are in the order of inode numbers. So with the second file that is read from its
//! start, what is left of its directory is asked for together.
//!
//! - Where five of the last eight directories came to a second file, the next one does not wait for its own.
//! - Of a directory with more names than [`ROWS_MAX`], or more bytes than [`BYTES_MAX`], only what comes next in the order of listing is asked for, once some
//!   files were read in that order.
//! - In the same way, where directory after directory is listed, names are read ahead: around those of the next one, since
//!   rows of names are in the order of their directories' numbers.
//! - Where directories come in the order of listing, those that come next are asked for before anybody is there ([`super::walk`]).
//! - What is asked for is a guess: nothing is wrong where rows change meanwhile.

use super::slots::Slots;
use crate::FsResult;
use crate::contents::Contents;
use crate::inode::{Inode, Location};
use crate::locator::{Locator, RowKey};
use crate::system::FileSystem;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicU8, Ordering};
use stitch_db::{Caching, Coming};
use stitch_format::fs_inode::{InodeHead, MetaRow};

/// Longer files are read ahead by themselves.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most rows of a directory that are looked at together.
const ROWS_MAX: usize = 256;
/// Most bytes that are asked for at a time, and of them in one range.
const BYTES_MAX: u64 = 4 << 20;
const RANGE_BYTES_MAX: u64 = 1 << 20;
/// Ranges for one directory, at most.
const RANGES_MAX: usize = 6;
/// Most numbers between two files of one range that are not of this directory.
const GAP_MAX: u64 = 8;
/// Most numbers behind a file that something is read around.
const REACH_MAX: u64 = 1024;
/// Of the eight directories that were begun last so many came to a second file.
const HISTORY_MIN: u32 = 5;
/// Names have hashes from this one on.
pub(super) const FIRST_HASH: u64 = 1;
/// Files that were read in the order of listing, before more of a long directory is asked for.
const LISTED_MIN: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    dir: u64,
    /// Files that were read from their start.
    reads: u32,
    /// Files that were asked for and not yet read; 0: all of them were, or none was asked for.
    left: u32,
    /// It is longer than what is looked at together.
    is_long: bool,
    /// Hash of the last name, and how many came in the order of their hashes.
    last_hash: u64,
    listed: u32,
    /// Of a long one all names before this hash were looked at, and more is due from that one on.
    told_hash: u64,
    due_hash: u64,
}

/// What should be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Nothing,
    /// From the first name on; and what lies behind its files, where directory after directory is read.
    All {
        around: bool,
    },
    /// From this hash on.
    From(u64),
}

/// The directories of which files were read last.
#[derive(Debug, Default)]
pub(crate) struct Siblings {
    slots: Slots<Slot>,
    /// A bit for each of the directories that were begun last: one, if it came to a second file.
    history: AtomicU8,
}

impl Siblings {
    /// Notes that a file was read from its start. Answers what of its directory to look at now, and whether
    /// it is the first one of it.
    fn note(&self, dir: Ino, hash: u64) -> (Look, bool) {
        let mut slot = self.slots.of(dir).lock();
        if slot.dir != dir.0 {
            *slot = Slot {
                dir: dir.0,
                ..Slot::default()
            };
        }
        slot.reads = slot.reads.saturating_add(1);
        let reads = slot.reads;
        self.note_history(reads);
        (self.look(&mut slot, hash), reads == 1)
    }

    /// What to look at with a file that was noted.
    fn look(&self, slot: &mut Slot, hash: u64) -> Look {
        slot.listed = match hash > slot.last_hash {
            true => slot.listed.saturating_add(1),
            false => 0,
        };
        slot.last_hash = hash;
        if slot.is_long {
            let is_due = slot.listed >= LISTED_MIN && hash >= slot.due_hash;
            return match is_due {
                true => Look::From(hash.max(slot.told_hash)),
                false => Look::Nothing,
            };
        }
        if slot.left > 0 {
            slot.left -= 1;
            if slot.left == 0 {
                self.end(slot);
            }
            return Look::Nothing;
        }
        let is_on_its_way = self.is_on_its_way();
        match slot.reads {
            2 => Look::All {
                around: is_on_its_way,
            },
            1 if is_on_its_way => Look::All { around: true },
            _ => Look::Nothing,
        }
    }

    /// Whether directory after directory is read.
    fn is_on_its_way(&self) -> bool {
        self.history.load(Ordering::Relaxed).count_ones() >= HISTORY_MIN
    }

    /// Notes that so many files of a directory were read by now.
    fn note_history(&self, reads: u32) {
        // Two who note something at once may lose a bit, no more.
        let history = self.history.load(Ordering::Relaxed);
        match reads {
            1 => self.history.store(history << 1, Ordering::Relaxed),
            2 => self.history.store(history | 1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// All files of a directory were read: whoever comes now reads it once more.
    fn end(&self, slot: &mut Slot) {
        // It may have had one.
        self.note_history(2);
        slot.reads = 0;
    }

    /// Notes that all of a directory was asked for, so many files.
    fn told_all(&self, dir: Ino, count: usize) {
        let mut slot = self.slots.of(dir).lock();
        if slot.dir == dir.0 {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            slot.left = count.saturating_sub(slot.reads);
            if slot.left == 0 {
                self.end(&mut slot);
            }
        }
    }

    /// Notes that all of a directory was asked for before anybody came to it, so many files.
    pub(super) fn foretell(&self, dir: Ino, count: usize) {
        let mut slot = self.slots.of(dir).lock();
        let is_begun = slot.dir == dir.0 && slot.reads > 0;
        if !is_begun {
            *slot = Slot {
                dir: dir.0,
                left: u32::try_from(count).unwrap_or(u32::MAX),
                ..Slot::default()
            };
        }
    }

    /// Notes that a directory is long, what of it was asked for, and when more is due.
    fn told_part(&self, dir: Ino, told_hash: u64, due_hash: u64) {
        let mut slot = self.slots.of(dir).lock();
        if slot.dir == dir.0 {
            slot.is_long = true;
            (slot.told_hash, slot.due_hash) = (told_hash, due_hash);
        }
    }
}

/// What was seen of a directory.
#[derive(Default)]
pub(super) struct Seen {
    /// Files that may be read ahead, by number, with their sizes.
    pub(super) files: Vec<(u64, u64)>,
    pub(super) bytes: u64,
    /// Hashes of all names.
    hashes: Vec<u64>,
    /// There are more names.
    pub(super) is_part: bool,
}

impl Seen {
    /// Where about a megabyte ends that begins with the first of these files, if those after them are as long.
    fn beyond(&self, keys: Locator) -> Option<RowKey> {
        let numbers = self.files.iter().map(|(ino, _)| *ino);
        let (first, last) = (numbers.clone().min()?, numbers.max()?);
        let count = (last - first)
            .saturating_add(1)
            .max(self.hashes.len() as u64);
        let bytes_each = (self.bytes / count).max(1);
        let reach = (RANGE_BYTES_MAX / bytes_each).clamp(1, REACH_MAX);
        Some(keys.chunk(Ino(last.max(first + reach) + 1), 0))
    }

    /// Where what was seen ends, and where more of it is due: nowhere, if there is no more.
    fn limits(&self) -> (u64, u64) {
        match (self.is_part, self.hashes.last()) {
            (true, Some(last)) => (last.saturating_add(1), self.hashes[self.hashes.len() / 2]),
            _ => (u64::MAX, u64::MAX),
        }
    }
}

/// True for a file in chunks that is not read ahead by itself.
fn is_read_ahead(head: &InodeHead) -> bool {
    let contents = Contents::of_inode(head);
    contents == Some(Contents::Chunked) && (1..=FILE_BYTES_MAX).contains(&head.size)
}

/// Ranges of numbers in which files lie together, each of no more bytes than are read together.
fn ranges(files: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut files = files.to_vec();
    files.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut bytes = 0;
    for (ino, size) in files {
        let fits = bytes + size <= RANGE_BYTES_MAX;
        let is_full = ranges.len() == RANGES_MAX;
        match ranges.last_mut() {
            Some((_, end)) if fits && ino.saturating_sub(*end) <= GAP_MAX => {
                *end = ino + 1;
                bytes += size;
            }
            _ if is_full => break,
            _ => {
                ranges.push((ino, ino + 1));
                bytes = size;
            }
        }
    }
    ranges
}

impl FileSystem {
    /// Has the engine read the other files of a directory, if they are likely to be read. `inode` is read from its
    /// start.
    pub(super) fn read_siblings_ahead(&self, inode: &Inode) {
        let Location::Entry { parent, name } = &inode.location else {
            return;
        };
        if !is_read_ahead(&inode.head) {
            return;
        }
        let hash = self.store.keys.name_hash(name);
        let (look, is_first) = self.siblings.note(*parent, hash);
        self.look_and_ask(*parent, look);
        if is_first && self.siblings.is_on_its_way() {
            self.read_next_directories_ahead(*parent, hash);
        }
    }

    /// Asks for what there is to look at in a directory.
    fn look_and_ask(&self, dir: Ino, look: Look) {
        // What is wrong with the directory is told to who reads it.
        match look {
            Look::Nothing => {}
            Look::All { around } => {
                let Ok(seen) = self.look_at(dir, FIRST_HASH) else {
                    return;
                };
                if seen.is_part {
                    // Nobody knows yet in which order it is read.
                    self.siblings.told_part(dir, 0, 0);
                    return;
                }
                self.siblings.told_all(dir, seen.files.len());
                let is_known = self.walk.is_known();
                let beyond = if around && !is_known {
                    seen.beyond(self.store.keys)
                } else {
                    None
                };
                self.ask_for(
                    &seen,
                    beyond.as_deref().map_or(Coming::InParts, Coming::Around),
                );
            }
            Look::From(hash) => {
                let Ok(seen) = self.look_at(dir, hash) else {
                    return;
                };
                let (told, due) = seen.limits();
                self.siblings.told_part(dir, told, due);
                self.ask_for(&seen, Coming::InParts);
            }
        }
    }

    /// Asks for the files that were seen, the last range as it is `coming`. Answers whether there was memory for all.
    pub(super) fn ask_for(&self, seen: &Seen, coming: Coming<'_>) -> bool {
        let caching = self.last_reads.caching();
        let ranges = ranges(&seen.files);
        let mut is_all = true;
        for (number, (first, end)) in ranges.iter().enumerate() {
            let is_last = number + 1 == ranges.len();
            let coming = match coming {
                Coming::Around(_) if !is_last => Coming::InParts,
                coming => coming,
            };
            let range = self.store.keys.chunks_of(Ino(*first), Ino(*end));
            is_all &= self.store.read_ahead(&range, coming, caching);
        }
        is_all
    }

    /// Has the engine read the names of a directory that is about to be listed, and of others beside it, where directory
    /// after directory is listed.
    pub(crate) fn read_names_ahead(&self, dir: &Inode) {
        let Location::Entry { parent, name } = &dir.location else {
            return;
        };
        let hash = self.store.keys.name_hash(name);
        // Which of them come is of no interest, only that most do.
        let _ = self.listings.note(*parent, hash);
        if self.listings.is_on_its_way() {
            let ino = dir.head.ino;
            let beyond = self.store.keys.own(Ino(ino.0.saturating_add(REACH_MAX)));
            let names = self.store.keys.directory(ino);
            self.store
                .read_ahead(&names, Coming::Around(&beyond), Caching::IfRoom);
        }
    }

    /// Looks at the names of a directory from a hash on.
    pub(super) fn look_at(&self, dir: Ino, from_hash: u64) -> FsResult<Seen> {
        let names = self.store.keys.dentries_from(dir, from_hash);
        let mut scan = self.store.scan(&names)?;
        let mut seen = Seen::default();
        while let Some((key, row)) = scan.next()? {
            if seen.hashes.len() == ROWS_MAX || seen.bytes >= BYTES_MAX {
                seen.is_part = true;
                break;
            }
            let hash = Locator::name_of(key).map_or(0, |(hash, _)| hash);
            seen.hashes.push(hash);
            if let MetaRow::Inode(head, _) = MetaRow::decode(row)?
                && is_read_ahead(&head)
            {
                seen.files.push((head.ino.0, head.size));
                seen.bytes += head.size;
            }
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests;
