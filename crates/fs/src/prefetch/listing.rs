//! What guesses are made from: files among the names of a directory, the ranges of inode numbers
//! that they lie in, and the next directory in the order of listing.

use super::policy::{HashedName, Load, LoadSpan, REACH_MAX};
use crate::FsResult;
use crate::contents::Contents;
use crate::inode::Inodes;
use crate::locator::Locator;
use crate::schema::Store;
use std::ops::Range;
use stitch_base::Ino;
use stitch_db::Priority;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

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
/// Largest number of directories that one search looks at.
const DIRS_PASSED_MAX: usize = 16;
/// Largest number of steps from one directory to the next.
const STEPS_MAX: usize = 32;
/// Largest depth of the search: damaged directories may contain themselves.
const DEPTH_MAX: usize = 1024;
/// Names have hashes from this one on.
pub(super) const FIRST_HASH: u64 = 1;
const _: () = assert!(FIRST_HASH > 0, "0 is the row of the directory itself");
const _: () = assert!(FILE_BYTES_MAX <= RANGE_BYTES_MAX, "each file fits a range");
const _: () = assert!(RANGES_MAX > 0, "the first file is in a range");

/// What a scan found in a directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    /// Files to prefetch, by number, with their sizes.
    pub(super) files: Vec<(u64, u64)>,
    pub(super) bytes: u64,
    /// Hashes of all names.
    pub(super) hashes: Vec<u64>,
    /// There are more names.
    pub(super) is_part: bool,
}

/// Reports whether a file is prefetched with its directory.
pub(super) fn is_prefetched(head: &InodeHead) -> bool {
    let contents = Contents::of_inode(head);
    contents == Some(Contents::Chunked) && (1..=FILE_BYTES_MAX).contains(&head.size)
}

impl Listing {
    /// Scans the names of a directory from a hash on.
    pub(super) fn of(store: &Store, dir: Ino, hash: u64) -> FsResult<Self> {
        debug_assert!(hash >= FIRST_HASH, "scans begin with names");
        let mut listing = Self::default();
        let end = scan_names(store, HashedName { dir, hash }, |hash, head| {
            let is_full = listing.hashes.len() == ROWS_MAX || listing.bytes >= BYTES_MAX;
            if is_full {
                return true;
            }
            listing.hashes.push(hash);
            if let Some(head) = head.filter(|head| is_prefetched(head)) {
                listing.files.push((head.ino.0, head.size));
                listing.bytes += head.size;
            }
            false
        })?;
        listing.is_part = end.is_some();
        debug_assert!(listing.bytes <= BYTES_MAX + FILE_BYTES_MAX, "bounded");
        debug_assert!(listing.hashes.len() <= ROWS_MAX, "bounded");
        debug_assert!(listing.files.len() <= ROWS_MAX, "bounded");
        debug_assert!(
            listing.files.len() <= listing.hashes.len(),
            "each file has a name"
        );
        Ok(listing)
    }

    /// Returns the inode behind about a megabyte of files from the first of these on, if those
    /// after them are as long on average.
    pub(super) fn beyond(&self) -> Option<Ino> {
        let numbers = self.files.iter().map(|(ino, _)| *ino);
        let (first, last) = (numbers.clone().min()?, numbers.max()?);
        let count = (last - first)
            .saturating_add(1)
            .max(self.hashes.len() as u64);
        let bytes_each = (self.bytes / count).max(1);
        let reach = (RANGE_BYTES_MAX / bytes_each).clamp(1, REACH_MAX);
        debug_assert!(
            (1..=REACH_MAX).contains(&reach),
            "some numbers, and not too many"
        );
        let last = last.max(first.saturating_add(reach));
        Some(Ino(last.saturating_add(1)))
    }

    /// Returns the hash that the next scan begins with, and the one that makes it due: none, if all
    /// names were scanned.
    pub(super) fn limits(&self) -> (u64, u64) {
        match (self.is_part, self.hashes.last()) {
            (true, Some(last)) => (last.saturating_add(1), self.hashes[self.hashes.len() / 2]),
            _ => (u64::MAX, u64::MAX),
        }
    }

    /// Returns the loads of the files of a directory; `beyond` is that of the last.
    pub(super) fn loads(&self, of: Ino, priority: Priority, beyond: Option<Ino>) -> Vec<Load> {
        let load = |files| Load {
            of,
            span: LoadSpan::Files(files),
            beyond: None,
            priority,
        };
        let mut loads: Vec<Load> = self.ranges().into_iter().map(load).collect();
        debug_assert!(loads.len() <= RANGES_MAX, "bounded");
        if let Some(last) = loads.last_mut() {
            last.beyond = beyond;
        }
        loads
    }

    /// Returns ranges of inode numbers whose files are neighbours, each of a bounded number of
    /// bytes.
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut files = self.files.clone();
        files.sort_unstable();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut bytes = 0;
        for (ino, size) in files {
            let fits = bytes + size <= RANGE_BYTES_MAX;
            let is_full = ranges.len() == RANGES_MAX;
            match ranges.last_mut() {
                Some(last) if fits && ino.saturating_sub(last.end) <= GAP_MAX => {
                    last.end = ino + 1;
                    bytes += size;
                }
                _ if is_full => break,
                _ => {
                    ranges.push(ino..ino + 1);
                    bytes = size;
                }
            }
        }
        debug_assert!(ranges.len() <= RANGES_MAX, "bounded");
        debug_assert!(
            ranges.is_sorted_by_key(|range| range.start),
            "ranges come in order"
        );
        debug_assert!(
            ranges.is_empty() == self.files.is_empty(),
            "the first file is in a range"
        );
        ranges
    }
}

/// A place in the order of listing: the directories from the top of a search down, each with the
/// hash to scan next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListingOrder(pub(super) Vec<HashedName>);

impl ListingOrder {
    /// The place behind a name.
    pub(super) fn behind(name: HashedName) -> Self {
        Self(vec![name.next()])
    }

    /// Returns the next directories that have files to prefetch and are not long: at most `dirs`,
    /// and no more after `bytes` of files.
    pub(super) fn next_dirs(
        &mut self,
        (store, inodes): (&Store, &Inodes),
        dirs: usize,
        bytes: u64,
    ) -> Vec<(Ino, Listing)> {
        debug_assert!(dirs > 0, "some are wanted");
        debug_assert!(bytes > 0, "some are wanted");
        let (mut found, mut left) = (Vec::new(), bytes);
        for _ in 0..DIRS_PASSED_MAX {
            if found.len() == dirs || left == 0 {
                break;
            }
            // Errors surface on the foreground read.
            let Ok(Some(dir)) = self.next(store, inodes) else {
                break;
            };
            let Ok(listing) = Listing::of(store, dir, FIRST_HASH) else {
                break;
            };
            if !listing.files.is_empty() && !listing.is_part {
                left = left.saturating_sub(listing.bytes);
                found.push((dir, listing));
            }
        }
        found
    }

    /// Returns the next directory: in the last one of the path, or after it. `None` if the search
    /// would take too many steps.
    fn next(&mut self, store: &Store, inodes: &Inodes) -> FsResult<Option<Ino>> {
        for _ in 0..STEPS_MAX {
            let is_deepest = self.0.len() >= DEPTH_MAX;
            let Some(at) = self.0.last_mut() else {
                return Ok(None);
            };
            match find_directory(store, *at)? {
                (Some(_), Some(_)) if is_deepest => self.0.clear(),
                (Some(hash), Some(dir)) => {
                    *at = HashedName { hash, ..*at }.next();
                    let hash = FIRST_HASH;
                    self.0.push(HashedName { dir, hash });
                    debug_assert!(self.0.len() <= DEPTH_MAX, "bounded");
                    return Ok(Some(dir));
                }
                (Some(hash), None) => at.hash = hash,
                (None, _) => {
                    let dir = at.dir;
                    self.0.pop();
                    if self.0.is_empty() {
                        let name = HashedName::of(&inodes.get(dir)?, store);
                        self.0.extend(name.map(HashedName::next));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Finds the first directory among the names of one, from a hash on. Returns it with the hash of
/// its name; the hash alone, if names from it on are to be scanned yet.
fn find_directory(store: &Store, from: HashedName) -> FsResult<(Option<u64>, Option<Ino>)> {
    let (mut count, mut found) = (0, None);
    let end = scan_names(store, from, |_, head| {
        let is_dir = |head: &&InodeHead| head.kind == FileKind::Directory;
        found = head.filter(is_dir).map(|head| head.ino);
        count += 1;
        found.is_some() || count > ROWS_MAX
    })?;
    debug_assert!(count <= ROWS_MAX + 1, "bounded");
    debug_assert!(
        found.is_none() || end.is_some(),
        "the scan ends at a directory"
    );
    Ok((end, found))
}

/// Visits the names of a directory from a hash on, with the inodes that are in their rows, until
/// `ends` returns true. Returns the hash of the last one then.
fn scan_names(
    store: &Store,
    from: HashedName,
    mut ends: impl FnMut(u64, Option<&InodeHead>) -> bool,
) -> FsResult<Option<u64>> {
    let mut scan = store.scan(&store.keys.dentries_from(from.dir, from.hash))?;
    while let Some((key, row)) = scan.next()? {
        let hash = Locator::name_of(key).map_or(0, |(hash, _)| hash);
        let is_end = match MetaRow::decode(row)? {
            MetaRow::Inode(head, _) => ends(hash, Some(&head)),
            MetaRow::Link { .. } => ends(hash, None),
        };
        if is_end {
            return Ok(Some(hash));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
