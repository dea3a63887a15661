//! Directories whose files are read one after the other: their other files are prefetched.
//!
//! A program that searches, packs or copies a tree reads each file whole, directory by directory.
//! Each file is too short for sequential prefetching ([`super::sequential`]). But the chunks of a
//! directory's files are mostly neighbours: the files were made one after the other, and chunks are
//! in the order of inode numbers. So with the second file that is read from its start, the rest of
//! its directory is prefetched at once.
//!
//! - Where five of the last eight directories came to a second file, the first file is enough.
//! - Of a directory with more names than [`ROWS_MAX`], or more bytes than [`BYTES_MAX`], only the
//!   files that come next in the order of listing are prefetched, once some files were read in that
//!   order.
//! - In the same way names are prefetched where directory after directory is listed: rows of names
//!   are in the order of their directories' numbers.
//! - Where directories come in the order of listing, the next ones are prefetched before their
//!   first file is read ([`super::walk`]).

use super::Prefetcher;
use super::slots::Slots;
use crate::FsResult;
use crate::contents::Contents;
use crate::inode::{Inode, Location};
use crate::locator::{Locator, RowKey};
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicU8, Ordering};
use stitch_db::{Caching, Coming};
use stitch_format::fs_inode::{InodeHead, MetaRow};

/// Longer files are prefetched by their own reads.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Largest number of rows of a directory that one scan reads.
const ROWS_MAX: usize = 256;
/// Largest number of bytes that are prefetched at a time, and of them in one range.
const BYTES_MAX: u64 = 4 << 20;
const RANGE_BYTES_MAX: u64 = 1 << 20;
/// Largest number of ranges for one directory.
const RANGES_MAX: usize = 6;
/// Largest gap between the inode numbers of two files of one range.
const GAP_MAX: u64 = 8;
/// Largest number of inode numbers behind a file whose neighbourhood is prefetched.
const REACH_MAX: u64 = 1024;
/// Number of the last eight directories that must have come to a second file.
const HISTORY_MIN: u32 = 5;
/// Names have hashes from this one on.
pub(super) const FIRST_HASH: u64 = 1;
/// Files that are read in the order of listing before more of a long directory is prefetched.
const LISTED_MIN: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct DirReads {
    dir: u64,
    /// Files that were read from their start.
    reads: u32,
    /// Files that were prefetched and not yet read; 0: all of them were, or none was prefetched.
    left: u32,
    /// One scan does not read all of it.
    is_long: bool,
    /// Hash of the last name.
    last_hash: u64,
    /// Number of files read in the order of their hashes.
    listed: u32,
    /// Of a long directory all names before this hash were scanned.
    scanned_hash: u64,
    /// A read from this hash on makes the next scan due.
    due_hash: u64,
}

/// Part of a directory to scan for files to prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Nothing,
    /// All names. `around`: chunks behind its files are prefetched too, where directory after
    /// directory is read.
    All {
        around: bool,
    },
    /// From this hash on.
    From(u64),
}

/// Directories whose files were read last.
#[derive(Debug, Default)]
pub(super) struct Siblings {
    slots: Slots<DirReads>,
    /// A bit for each of the last eight directories: set if it came to a second file.
    history: AtomicU8,
}

impl Siblings {
    /// Notes that a file was read from its start. Returns the part of its directory to scan now,
    /// and whether it is the first file of it.
    fn note(&self, dir: Ino, hash: u64) -> (Part, bool) {
        let mut slot = self.slots.of(dir).lock();
        if slot.dir != dir.0 {
            *slot = DirReads {
                dir: dir.0,
                ..DirReads::default()
            };
        }
        slot.reads = slot.reads.saturating_add(1);
        let reads = slot.reads;
        self.note_history(reads);
        (self.part(&mut slot, hash), reads == 1)
    }

    /// Returns the part to scan with a file that was noted.
    fn part(&self, slot: &mut DirReads, hash: u64) -> Part {
        slot.listed = match hash > slot.last_hash {
            true => slot.listed.saturating_add(1),
            false => 0,
        };
        slot.last_hash = hash;
        if slot.is_long {
            let is_due = slot.listed >= LISTED_MIN && hash >= slot.due_hash;
            return match is_due {
                true => Part::From(hash.max(slot.scanned_hash)),
                false => Part::Nothing,
            };
        }
        if slot.left > 0 {
            slot.left -= 1;
            if slot.left == 0 {
                self.end(slot);
            }
            return Part::Nothing;
        }
        let is_walk = self.is_walk();
        match slot.reads {
            2 => Part::All { around: is_walk },
            1 if is_walk => Part::All { around: true },
            _ => Part::Nothing,
        }
    }

    /// Reports whether directory after directory is read.
    fn is_walk(&self) -> bool {
        self.history.load(Ordering::Relaxed).count_ones() >= HISTORY_MIN
    }

    /// Notes the number of files of a directory that were read by now.
    fn note_history(&self, reads: u32) {
        // Two threads that note at once may lose a bit, no more.
        let history = self.history.load(Ordering::Relaxed);
        match reads {
            1 => self.history.store(history << 1, Ordering::Relaxed),
            2 => self.history.store(history | 1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Notes that all files of a directory were read: the next read begins it anew.
    fn end(&self, slot: &mut DirReads) {
        // A directory with one file counts like one that came to a second.
        self.note_history(2);
        slot.reads = 0;
    }

    /// Notes that all `count` files of a directory were prefetched.
    fn mark_prefetched(&self, dir: Ino, count: usize) {
        let mut slot = self.slots.of(dir).lock();
        if slot.dir == dir.0 {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            slot.left = count.saturating_sub(slot.reads);
            if slot.left == 0 {
                self.end(&mut slot);
            }
        }
    }

    /// Notes that all `count` files of a directory were prefetched before the first of them was
    /// read.
    pub(super) fn expect_dir(&self, dir: Ino, count: usize) {
        let mut slot = self.slots.of(dir).lock();
        let is_begun = slot.dir == dir.0 && slot.reads > 0;
        if !is_begun {
            *slot = DirReads {
                dir: dir.0,
                left: u32::try_from(count).unwrap_or(u32::MAX),
                ..DirReads::default()
            };
        }
    }

    /// Notes that a directory is long, how far it was scanned, and when the next scan is due.
    fn mark_part(&self, dir: Ino, scanned_hash: u64, due_hash: u64) {
        let mut slot = self.slots.of(dir).lock();
        if slot.dir == dir.0 {
            slot.is_long = true;
            (slot.scanned_hash, slot.due_hash) = (scanned_hash, due_hash);
        }
    }
}

/// What a scan found in a directory.
#[derive(Default)]
pub(super) struct Seen {
    /// Files to prefetch, by number, with their sizes.
    pub(super) files: Vec<(u64, u64)>,
    pub(super) bytes: u64,
    /// Hashes of all names.
    hashes: Vec<u64>,
    /// There are more names.
    pub(super) is_part: bool,
}

impl Seen {
    /// Returns the end of about a megabyte of files from the first of these on, if those after them
    /// are as long on average.
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

    /// Returns the hash that the next scan begins with, and the one that makes it due: none, if all
    /// names were scanned.
    fn limits(&self) -> (u64, u64) {
        match (self.is_part, self.hashes.last()) {
            (true, Some(last)) => (last.saturating_add(1), self.hashes[self.hashes.len() / 2]),
            _ => (u64::MAX, u64::MAX),
        }
    }
}

/// Reports whether a file is prefetched with its directory.
fn is_prefetched(head: &InodeHead) -> bool {
    let contents = Contents::of_inode(head);
    contents == Some(Contents::Chunked) && (1..=FILE_BYTES_MAX).contains(&head.size)
}

/// Returns ranges of inode numbers whose files are neighbours, each of a bounded number of bytes.
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

impl Prefetcher<'_> {
    /// Prefetches the other files of a directory, if they are likely to be read. `inode` is read
    /// from its start.
    pub(super) fn siblings_of(&self, inode: &Inode) {
        let Location::Entry { parent, name } = &inode.location else {
            return;
        };
        if !is_prefetched(&inode.head) {
            return;
        }
        let hash = self.store.keys.name_hash(name);
        let (part, is_first) = self.history.siblings.note(*parent, hash);
        self.prefetch_part(*parent, part);
        if is_first && self.history.siblings.is_walk() {
            self.next_directories(*parent, hash);
        }
    }

    /// Prefetches the files of a part of a directory.
    fn prefetch_part(&self, dir: Ino, part: Part) {
        match part {
            Part::Nothing => {}
            Part::All { around } => {
                let Ok(seen) = self.seen_from(dir, FIRST_HASH) else {
                    return;
                };
                if seen.is_part {
                    // The order in which it is read is not known yet.
                    self.history.siblings.mark_part(dir, 0, 0);
                    return;
                }
                self.history.siblings.mark_prefetched(dir, seen.files.len());
                let is_known = self.history.walk.is_known();
                let beyond = if around && !is_known {
                    seen.beyond(self.store.keys)
                } else {
                    None
                };
                self.prefetch_files(
                    &seen,
                    beyond.as_deref().map_or(Coming::InParts, Coming::Around),
                );
            }
            Part::From(hash) => {
                let Ok(seen) = self.seen_from(dir, hash) else {
                    return;
                };
                let (scanned, due) = seen.limits();
                self.history.siblings.mark_part(dir, scanned, due);
                self.prefetch_files(&seen, Coming::InParts);
            }
        }
    }

    /// Prefetches the files of a scan, the last range as `coming` says. Reports whether there was
    /// memory for all.
    pub(super) fn prefetch_files(&self, seen: &Seen, coming: Coming<'_>) -> bool {
        let caching = self.history.caching();
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

    /// Prefetches the names of a directory that is about to be listed, and of its neighbours, where
    /// directory after directory is listed.
    pub(crate) fn dir_listed(&self, dir: &Inode) {
        let Location::Entry { parent, name } = &dir.location else {
            return;
        };
        let hash = self.store.keys.name_hash(name);
        // Only the history counts here, not the part.
        let _ = self.history.listings.note(*parent, hash);
        if self.history.listings.is_walk() {
            let ino = dir.head.ino;
            let beyond = self.store.keys.own(Ino(ino.0.saturating_add(REACH_MAX)));
            let names = self.store.keys.directory(ino);
            self.store
                .read_ahead(&names, Coming::Around(&beyond), Caching::IfRoom);
        }
    }

    /// Scans the names of a directory from a hash on.
    pub(super) fn seen_from(&self, dir: Ino, from_hash: u64) -> FsResult<Seen> {
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
                && is_prefetched(&head)
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
