//! What a file system offers of the inodes that are known: holds, cached pages, and those to be
//! forgotten.

use super::{CachedPages, Hold, Holds};
#[cfg(doc)]
use crate::FsError;
use crate::FsResult;
use crate::system::FileSystem;
use stitch_base::Ino;
use stitch_base::sync::atomic::Ordering;

impl FileSystem {
    /// Number of inodes that are known: looked up and not forgotten.
    #[must_use]
    pub fn known_inodes(&self) -> usize {
        let count = self.residents.inodes.count();
        debug_assert!(count > 0, "the root is known");
        count
    }

    /// Counts an open handle, which keeps an inode as a lookup does.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn open_handle(&self, ino: Ino) -> FsResult<()> {
        self.residents.inodes.hold(ino, Hold::Handle)
    }

    /// Takes back an open handle.
    pub fn close_handle(&self, ino: Ino) {
        Holds::of(self).let_go(ino, Hold::Handle);
    }

    /// Takes back `count` lookups of an inode. With the last one, and without open handles, the
    /// number is good no more, and a file without names is queued for [`Self::reclaim`].
    pub fn forget(&self, ino: Ino, count: u64) {
        Holds::of(self).let_go(ino, Hold::Lookups(count));
    }

    /// Notes that a cache gets pages of a file, before it gets them. `has_end`: the page with the
    /// end of the file is one of them. Returns which pages it may have had before.
    pub fn note_cached(&self, ino: Ino, has_end: bool) -> CachedPages {
        self.residents.inodes.set_pages(ino, |pages| {
            pages.some = true;
            pages.end |= has_end;
        })
    }

    /// Notes that a cache has dropped all pages of a file.
    pub fn note_uncached(&self, ino: Ino) {
        self.residents
            .inodes
            .set_pages(ino, |pages| *pages = CachedPages::NONE);
    }

    /// Notes that a cache has dropped the page that had the end of the file in it, or that the end
    /// is in another page now.
    pub fn note_end_uncached(&self, ino: Ino) {
        self.residents
            .inodes
            .set_pages(ino, |pages| pages.end = false);
    }

    /// Returns which pages a cache may hold; none of an inode that is not known.
    #[must_use]
    pub fn cached_pages(&self, ino: Ino) -> CachedPages {
        self.residents.inodes.pages(ino)
    }

    /// Reports whether more inodes are known than [`crate::FsOptions::inodes_max`].
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.residents.inodes.is_crowded()
    }

    /// Returns the numbers of all inodes that are known.
    #[must_use]
    pub fn known_numbers(&self) -> Vec<Ino> {
        self.residents.inodes.numbers()
    }

    /// How many inodes were known once and are not any more.
    #[must_use]
    pub fn forgotten_inodes(&self) -> u64 {
        self.residents.inodes.gone.load(Ordering::Relaxed)
    }

    /// While [`Self::is_crowded`], up to `count_max` inodes that were not asked for lately, those
    /// first that were not for longest. The front end asks the kernel to let go of them, and then
    /// forgets those that it did ([`Self::forget`]).
    #[must_use]
    pub fn unused(&self, count_max: usize) -> Vec<Ino> {
        let unused = self.residents.inodes.unused(count_max);
        debug_assert!(unused.len() <= count_max, "no more than was asked for");
        debug_assert!(!unused.contains(&Ino::ROOT), "the root is never forgotten");
        unused
    }
}
