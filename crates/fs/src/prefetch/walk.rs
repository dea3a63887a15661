//! Walks over trees: the files of the next directories are prefetched before they are read.
//!
//! A program that searches or packs a tree takes the entries of a directory in the order of
//! listing, and enters a directory where it meets it. So the next directories can be found by their
//! names ([`ListingOrder`]), some of them ahead of the reader.
//!
//! - Nothing is prefetched unless five of the last eight directories were expected. Other orders
//!   (by name, by inode number) are not followed, nor are several walks at the same time.
//! - Directories without files to prefetch are passed over, and so are long ones.

use super::listing::{Listing, ListingOrder};
use super::policy::{Habit, HashedName, Need};
use std::collections::VecDeque;
use stitch_base::Ino;

/// Largest number of directories that are expected at a time.
const DIRS_MAX: usize = 4;
/// Bytes of expected files beyond which no directory is added.
const BYTES_ENOUGH: u64 = 1 << 20;

/// The walk over a tree that is under way.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Where the search for directories goes on, unless one is under way.
    order: ListingOrder,
    is_searching: bool,
    /// The expected directories, with their bytes.
    coming: VecDeque<(Ino, u64)>,
    /// Right for each directory that was expected.
    habit: Habit,
}

impl Walk {
    /// Reports whether directories are mostly read as expected.
    pub(super) const fn is_known(&self) -> bool {
        self.habit.is_known()
    }

    /// Begins to look for the directories after the one of a name, of which this is the first file
    /// that is read, unless another reader searches or enough are expected.
    pub(super) fn begin(&mut self, name: HashedName) -> Option<Need> {
        if self.is_searching {
            return None;
        }
        self.note(name);
        let dirs_max = if self.is_known() { DIRS_MAX } else { 1 };
        let dirs = dirs_max.saturating_sub(self.coming.len());
        debug_assert!(dirs <= DIRS_MAX, "bounded");
        let bytes: u64 = self.coming.iter().map(|(_, bytes)| bytes).sum();
        let bytes = BYTES_ENOUGH.saturating_sub(bytes);
        self.is_searching = dirs > 0 && bytes > 0;
        self.is_searching.then(|| Need::NextDirs {
            order: std::mem::take(&mut self.order),
            dirs,
            bytes,
        })
    }

    /// Notes the first read of a directory.
    fn note(&mut self, name: HashedName) {
        self.habit.begin();
        let at = self.coming.iter().position(|(dir, _)| *dir == name.dir);
        if let Some(at) = at {
            self.habit.confirm();
            // A directory may be read after those in it: only the one before may still be read.
            self.coming.drain(..at.saturating_sub(1));
            self.coming.retain(|(dir, _)| *dir != name.dir);
            debug_assert!(
                self.coming.len() <= DIRS_MAX,
                "directories that were read are expected no more"
            );
        } else {
            self.coming.clear();
            self.order = ListingOrder::behind(name);
        }
        debug_assert!(
            self.coming.iter().all(|(dir, _)| *dir != name.dir),
            "it is read now"
        );
    }

    /// Takes note of the next directories, which are expected from now on.
    pub(super) fn found(&mut self, order: ListingOrder, found: &[(Ino, Listing)]) {
        debug_assert!(self.is_searching, "the need is that of a search");
        self.is_searching = false;
        debug_assert!(found.len() <= DIRS_MAX, "no more than was asked for");
        self.order = order;
        let found = found.iter().map(|(dir, listing)| (*dir, listing.bytes));
        self.coming.extend(found);
        debug_assert!(self.coming.len() <= DIRS_MAX, "bounded");
    }
}

#[cfg(test)]
mod tests;
