//! Which files have pages in a cache above the file system: that of the kernel, above a mount.
//!
//! A program that maps a file writes to such a page, and the file system hears of it later. Before
//! that a page must have been read. So a file that was not read has no such page.

use super::Inodes;
use stitch_base::Ino;

/// Pages of a file that a cache above the file system may hold. A flag that is not set is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedPages {
    /// A page of the file.
    pub some: bool,
    /// The page that has the end of the file in it.
    pub end: bool,
}

impl CachedPages {
    pub(crate) const NONE: Self = Self {
        some: false,
        end: false,
    };
    /// All is possible.
    pub(super) const ANY: Self = Self {
        some: true,
        end: true,
    };
}

impl Inodes {
    /// Changes the flags of an inode, and returns those before; none of an inode that is not known.
    pub(super) fn set_pages(&self, ino: Ino, set: impl FnOnce(&mut CachedPages)) -> CachedPages {
        let mut shard = self.shard(ino).lock();
        let Some(node) = shard.get_mut(&ino) else {
            return CachedPages::NONE;
        };
        let before = node.pages;
        set(&mut node.pages);
        debug_assert!(
            node.pages.some || !node.pages.end,
            "the page with the end is a page"
        );
        before
    }

    /// Returns the flags of an inode; none of an inode that is not known.
    pub(super) fn pages(&self, ino: Ino) -> CachedPages {
        let shard = self.shard(ino).lock();
        let pages = shard.get(&ino).map_or(CachedPages::NONE, |node| node.pages);
        debug_assert!(pages.some || !pages.end, "the page with the end is a page");
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, DirName, FileSystem, FsOptions, NewNode};

    #[test]
    fn flags_are_set_by_reads_and_cleared_by_what_drops_pages() {
        let engine = crate::testing::formatted(&FsOptions::default());
        let fs = FileSystem::open(engine, FsOptions::default()).unwrap();
        let new = NewNode {
            perm: 0o644,
            umask: 0,
        };
        let at = DirName::new(Ino::ROOT, b"file");
        let made = fs.make_node(&Caller::ROOT, at, crate::FileKind::Regular, 0, &new);
        let ino = made.unwrap().ino;
        assert_eq!(fs.cached_pages(ino), CachedPages::NONE);
        assert_eq!(fs.note_cached(ino, false), CachedPages::NONE);
        let some = CachedPages {
            some: true,
            end: false,
        };
        assert_eq!(fs.cached_pages(ino), some);
        assert_eq!(fs.note_cached(ino, true), some);
        assert_eq!(fs.note_cached(ino, false), CachedPages::ANY);
        assert_eq!(fs.cached_pages(ino), CachedPages::ANY);
        fs.note_end_uncached(ino);
        assert_eq!(fs.cached_pages(ino), some);
        fs.note_uncached(ino);
        assert_eq!(fs.cached_pages(ino), CachedPages::NONE);
        assert_eq!(fs.note_cached(Ino(999), true), CachedPages::NONE);
        assert_eq!(fs.cached_pages(Ino(999)), CachedPages::NONE);
    }
}
