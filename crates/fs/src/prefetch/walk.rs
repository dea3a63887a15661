//! Which directories come next where a tree is read, so that their files are there before anybody comes to them.
//!
//! Who searches or packs a tree takes what a directory has in the order of listing, and a directory within it where it
//! is met. So the next ones are known: they are found by their names, some ahead of who reads.
//!
//! - Nothing is asked for unless five of the eight directories that were begun last had been expected. Other orders (of
//!   names, of inode numbers) are not followed; neither are several walks at the same time.
//! - Directories in which there is nothing to read ahead are passed over, and so are long ones.

use super::siblings::FIRST_HASH;
use crate::FsResult;
use crate::inode::Location;
use crate::locator::Locator;
use crate::system::FileSystem;
use std::collections::VecDeque;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU8, Ordering};
use stitch_db::Coming;
use stitch_format::fs_inode::{FileKind, MetaRow};

/// Directories that are expected at a time, at most.
const DIRS_MAX: usize = 4;
/// With so many bytes asked for ahead, no more are.
const BYTES_ENOUGH: u64 = 1 << 20;
/// Of the eight directories that were begun last so many were expected.
const HISTORY_MIN: u32 = 5;
/// Directories that are passed over at a time, at most, and steps from one to the next.
const PASSED_MAX: usize = 16;
const STEPS_MAX: usize = 32;
/// Directories on the way down at most: damaged ones may contain themselves.
const DEPTH_MAX: usize = 1024;
/// Names that are looked at in one step.
const ROWS_MAX: usize = 256;

/// Where the search for directories is.
#[derive(Debug, Default)]
struct Place {
    /// The directories on the way down, each with the hash that it goes on from.
    path: Vec<(Ino, u64)>,
    /// Those that are expected, with their bytes.
    coming: VecDeque<(Ino, u64)>,
}

impl Place {
    /// Notes that a directory was begun, with the file under this hash. Answers whether it was expected.
    fn note(&mut self, dir: Ino, hash: u64) -> bool {
        let at = self.coming.iter().position(|(coming, _)| *coming == dir);
        if let Some(at) = at {
            // Some come later than what is in them: only the one before may still come.
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
pub(crate) struct Walk {
    place: Mutex<Place>,
    /// A bit for each of the directories that were begun last: one, if it was expected.
    history: AtomicU8,
}

impl Walk {
    /// Whether directories mostly come as expected.
    pub(super) fn is_known(&self) -> bool {
        self.history.load(Ordering::Relaxed).count_ones() >= HISTORY_MIN
    }

    fn note(&self, place: &mut Place, dir: Ino, hash: u64) {
        let bit = u8::from(place.note(dir, hash));
        // Who holds the place is alone here.
        let history = self.history.load(Ordering::Relaxed);
        self.history.store(history << 1 | bit, Ordering::Relaxed);
    }
}

/// What a step came to.
enum Step {
    /// A directory, and the hash of its name.
    Found(Ino, u64),
    /// Names from this hash on are left.
    Part(u64),
    End,
}

impl FileSystem {
    /// Has the engine read files of the directories that come after one that was begun with the file under this hash,
    /// if directories come as expected.
    pub(super) fn read_next_directories_ahead(&self, dir: Ino, hash: u64) {
        let Some(mut place) = self.walk.place.try_lock() else {
            // Somebody else is at it; nobody waits for a guess.
            return;
        };
        self.walk.note(&mut place, dir, hash);
        let is_known = self.walk.is_known();
        let dirs_max = if is_known { DIRS_MAX } else { 1 };
        for _ in 0..PASSED_MAX {
            if place.has_enough(dirs_max) {
                break;
            }
            // What is wrong with a directory is told to who reads it.
            let Ok(Some(next)) = self.next_directory(&mut place.path) else {
                break;
            };
            let Ok(seen) = self.look_at(next, FIRST_HASH) else {
                break;
            };
            if seen.files.is_empty() || seen.is_part {
                continue;
            }
            place.coming.push_back((next, seen.bytes));
            if is_known {
                if !self.ask_for(&seen, Coming::Later) {
                    // There is no more memory: the rest is asked for when somebody is there.
                    break;
                }
                self.siblings.foretell(next, seen.files.len());
            }
        }
    }

    /// The next directory in the order of listing: in the last one of the path, or after it. `None` if it is too far.
    fn next_directory(&self, path: &mut Vec<(Ino, u64)>) -> FsResult<Option<Ino>> {
        for _ in 0..STEPS_MAX {
            let is_deepest = path.len() >= DEPTH_MAX;
            let Some((dir, hash)) = path.last_mut() else {
                return Ok(None);
            };
            match self.find_directory(*dir, *hash)? {
                Step::Found(..) if is_deepest => path.clear(),
                Step::Found(found, found_hash) => {
                    *hash = found_hash.saturating_add(1);
                    path.push((found, FIRST_HASH));
                    return Ok(Some(found));
                }
                Step::Part(next_hash) => *hash = next_hash,
                Step::End => {
                    let dir = *dir;
                    path.pop();
                    if path.is_empty() {
                        path.extend(self.place_after(dir)?);
                    }
                }
            }
        }
        Ok(None)
    }

    /// The directory that one is in, and the hash after its own; none of the root.
    fn place_after(&self, dir: Ino) -> FsResult<Option<(Ino, u64)>> {
        Ok(match self.inodes.get(dir)?.location {
            Location::Entry { parent, name } => {
                let hash = self.store.keys.name_hash(&name);
                Some((parent, hash.saturating_add(1)))
            }
            Location::Own | Location::Memory(_) => None,
        })
    }

    /// Looks for a directory among the names of one, from a hash on.
    fn find_directory(&self, dir: Ino, from_hash: u64) -> FsResult<Step> {
        let names = self.store.keys.dentries_from(dir, from_hash);
        let mut scan = self.store.scan(&names)?;
        for number in 0..=ROWS_MAX {
            let Some((key, row)) = scan.next()? else {
                return Ok(Step::End);
            };
            let hash = Locator::name_of(key).map_or(0, |(hash, _)| hash);
            if number == ROWS_MAX {
                return Ok(Step::Part(hash));
            }
            match MetaRow::decode(row)? {
                MetaRow::Inode(head, _) if head.kind == FileKind::Directory => {
                    return Ok(Step::Found(head.ino, hash));
                }
                MetaRow::Inode(..) | MetaRow::Link { .. } => {}
            }
        }
        unreachable!("the last row ends it")
    }
}

#[cfg(test)]
mod tests;
