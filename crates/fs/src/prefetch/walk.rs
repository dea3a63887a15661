//! Walks over trees: the files of the next directories are prefetched before they are read.
//!
//! A program that searches or packs a tree takes the entries of a directory in the order of
//! listing, and enters a directory where it meets it. So the next directories can be found by their
//! names, some of them ahead of the reader.
//!
//! - Nothing is prefetched unless five of the last eight directories were expected. Other orders
//!   (by name, by inode number) are not followed, nor are several walks at the same time.
//! - Directories without files to prefetch are passed over, and so are long ones.

use super::Prefetcher;
use super::siblings::FIRST_HASH;
use crate::FsResult;
use crate::inode::Location;
use crate::locator::Locator;
use std::collections::VecDeque;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU8, Ordering};
use stitch_db::Coming;
use stitch_format::fs_inode::{FileKind, MetaRow};

/// Largest number of directories that are expected at a time.
const DIRS_MAX: usize = 4;
/// Bytes of expected files beyond which no directory is added.
const BYTES_ENOUGH: u64 = 1 << 20;
/// Number of the last eight directories that must have been expected.
const HISTORY_MIN: u32 = 5;
/// Largest number of directories that are passed over at a time.
const PASSED_MAX: usize = 16;
/// Largest number of steps from one directory to the next.
const STEPS_MAX: usize = 32;
/// Largest depth of the search: damaged directories may contain themselves.
const DEPTH_MAX: usize = 1024;
/// Rows that one step scans.
const ROWS_MAX: usize = 256;

/// The search for the next directories.
#[derive(Debug, Default)]
struct Search {
    /// The directories from the top of the search down, each with the hash to scan next.
    path: Vec<(Ino, u64)>,
    /// The expected directories, with their bytes.
    coming: VecDeque<(Ino, u64)>,
}

impl Search {
    /// Notes the first read of a directory, of the file under this hash. Reports whether it was
    /// expected.
    fn note(&mut self, dir: Ino, hash: u64) -> bool {
        let at = self.coming.iter().position(|(coming, _)| *coming == dir);
        if let Some(at) = at {
            // A directory may be read after those in it: only the one before may still be read.
            self.coming.drain(..at.saturating_sub(1));
            self.coming.retain(|(coming, _)| *coming != dir);
            return true;
        }
        self.coming.clear();
        self.path.clear();
        self.path.push((dir, hash.saturating_add(1)));
        false
    }

    fn has_enough(&self, dirs_max: usize) -> bool {
        let bytes: u64 = self.coming.iter().map(|(_, bytes)| bytes).sum();
        self.coming.len() >= dirs_max || bytes >= BYTES_ENOUGH
    }
}

/// The walk over a tree that is under way.
#[derive(Debug, Default)]
pub(super) struct Walk {
    search: Mutex<Search>,
    /// A bit for each of the last eight directories: set if it was expected.
    history: AtomicU8,
}

impl Walk {
    /// Reports whether directories are mostly read as expected.
    pub(super) fn is_known(&self) -> bool {
        self.history.load(Ordering::Relaxed).count_ones() >= HISTORY_MIN
    }

    fn note(&self, search: &mut Search, dir: Ino, hash: u64) {
        let bit = u8::from(search.note(dir, hash));
        // The lock of the search is held.
        let history = self.history.load(Ordering::Relaxed);
        self.history.store(history << 1 | bit, Ordering::Relaxed);
    }
}

/// Result of a step.
enum SearchStep {
    /// A directory, and the hash of its name.
    Found(Ino, u64),
    /// Names from this hash on are to be scanned yet.
    Part(u64),
    End,
}

impl Prefetcher<'_> {
    /// Prefetches files of the directories that come after one whose first read was of the file
    /// under this hash, if directories are read as expected.
    pub(super) fn next_directories(&self, dir: Ino, hash: u64) {
        let walk = &self.history.walk;
        let Some(mut search) = walk.search.try_lock() else {
            // Another thread searches; no reader waits for a guess.
            return;
        };
        walk.note(&mut search, dir, hash);
        let is_known = walk.is_known();
        let dirs_max = if is_known { DIRS_MAX } else { 1 };
        for _ in 0..PASSED_MAX {
            if search.has_enough(dirs_max) {
                break;
            }
            // Errors surface on the foreground read.
            let Ok(Some(next)) = self.next_directory(&mut search.path) else {
                break;
            };
            let Ok(seen) = self.seen_from(next, FIRST_HASH) else {
                break;
            };
            if seen.files.is_empty() || seen.is_part {
                continue;
            }
            search.coming.push_back((next, seen.bytes));
            if is_known {
                if !self.prefetch_files(&seen, Coming::Later) {
                    // There is no more memory: its own first reads prefetch the rest.
                    break;
                }
                self.history.siblings.expect_dir(next, seen.files.len());
            }
        }
    }

    /// Returns the next directory in the order of listing: in the last one of the path, or after
    /// it. `None` if the search would take too many steps.
    fn next_directory(&self, path: &mut Vec<(Ino, u64)>) -> FsResult<Option<Ino>> {
        for _ in 0..STEPS_MAX {
            let is_deepest = path.len() >= DEPTH_MAX;
            let Some((dir, hash)) = path.last_mut() else {
                return Ok(None);
            };
            match self.find_directory(*dir, *hash)? {
                SearchStep::Found(..) if is_deepest => path.clear(),
                SearchStep::Found(found, found_hash) => {
                    *hash = found_hash.saturating_add(1);
                    path.push((found, FIRST_HASH));
                    return Ok(Some(found));
                }
                SearchStep::Part(next_hash) => *hash = next_hash,
                SearchStep::End => {
                    let dir = *dir;
                    path.pop();
                    if path.is_empty() {
                        path.extend(self.parent_after(dir)?);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Returns the parent of a directory, and the hash after its own; `None` for the root.
    fn parent_after(&self, dir: Ino) -> FsResult<Option<(Ino, u64)>> {
        Ok(match self.inodes.get(dir)?.location {
            Location::Entry { parent, name } => {
                let hash = self.store.keys.name_hash(&name);
                Some((parent, hash.saturating_add(1)))
            }
            Location::Own | Location::Memory(_) => None,
        })
    }

    /// Finds the first directory among the names of one, from a hash on.
    fn find_directory(&self, dir: Ino, from_hash: u64) -> FsResult<SearchStep> {
        let names = self.store.keys.dentries_from(dir, from_hash);
        let mut scan = self.store.scan(&names)?;
        for number in 0..=ROWS_MAX {
            let Some((key, row)) = scan.next()? else {
                return Ok(SearchStep::End);
            };
            let hash = Locator::name_of(key).map_or(0, |(hash, _)| hash);
            if number == ROWS_MAX {
                return Ok(SearchStep::Part(hash));
            }
            match MetaRow::decode(row)? {
                MetaRow::Inode(head, _) if head.kind == FileKind::Directory => {
                    return Ok(SearchStep::Found(head.ino, hash));
                }
                MetaRow::Inode(..) | MetaRow::Link { .. } => {}
            }
        }
        unreachable!("the last row ends it")
    }
}

#[cfg(test)]
mod tests;
