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
/// Largest number of directories that one search finds.
const FOUND_MAX: usize = 16;

/// The walk over a tree that is under way.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Where the search for directories goes on, unless one is under way.
    order: ListingOrder,
    /// The expected directories, with their bytes.
    coming: VecDeque<(Ino, u64)>,
    /// Number of directories that the search under way has found.
    search: Option<usize>,
    /// Right for each directory that was expected.
    habit: Habit,
}

impl Walk {
    /// Reports whether directories are mostly read as expected.
    pub(super) const fn is_known(&self) -> bool {
        self.habit.is_known()
    }

    /// Begins to look for the directories after the one of a name, of which this is the first file
    /// that is read.
    pub(super) fn begin(&mut self, name: HashedName) -> Option<Need> {
        if self.search.is_some() {
            // Another reader searches.
            return None;
        }
        self.note(name);
        self.search = Some(0);
        self.search()
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
        } else {
            self.coming.clear();
            self.order = ListingOrder::behind(name);
        }
    }

    fn has_enough(&self) -> bool {
        let dirs_max = if self.is_known() { DIRS_MAX } else { 1 };
        let bytes: u64 = self.coming.iter().map(|(_, bytes)| bytes).sum();
        self.coming.len() >= dirs_max || bytes >= BYTES_ENOUGH
    }

    /// Searches on, if a search is under way and has not found enough.
    pub(super) fn search(&mut self) -> Option<Need> {
        let is_enough = self.has_enough();
        self.search = self.search.filter(|found| *found < FOUND_MAX && !is_enough);
        self.search?;
        Some(Need::NextDir(std::mem::take(&mut self.order)))
    }

    /// Has the search that is under way find nothing more. Its need still has to be met.
    pub(super) fn give_up(&mut self) {
        self.search = self.search.map(|_| FOUND_MAX);
    }

    /// Takes note of the next directory. Returns it, if its files are likely to be read soon.
    pub(super) fn found(
        &mut self,
        order: ListingOrder,
        found: Option<(Ino, Listing)>,
    ) -> Option<(Ino, Listing)> {
        debug_assert!(self.search.is_some(), "the need is that of a search");
        self.order = order;
        let count = self.search.take().filter(|count| *count < FOUND_MAX)?;
        let (dir, listing) = found?;
        self.search = Some(count + 1);
        if listing.files.is_empty() || listing.is_part {
            return None;
        }
        self.coming.push_back((dir, listing.bytes));
        debug_assert!(self.coming.len() <= DIRS_MAX, "bounded");
        self.is_known().then_some((dir, listing))
    }
}

#[cfg(test)]
mod tests;
