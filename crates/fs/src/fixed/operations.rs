//! What a file system offers of immutable and append-only files.

use super::{FixedFiles, check_open, is_fixed};
#[cfg(doc)]
use crate::FsError;
use crate::FsResult;
use crate::system::FileSystem;
use stitch_base::Ino;

impl FileSystem {
    /// Reports whether some file was ever immutable or append-only, as far as is known.
    #[must_use]
    pub fn has_fixed_files(&self) -> bool {
        FixedFiles::of(self).any()
    }

    /// Takes note of the flags of an inode that was met. If it is the first immutable or
    /// append-only one, the store is marked.
    pub fn note_flags(&self, iflags: u32) {
        FixedFiles::of(self).note(iflags, self.is_read_only());
        debug_assert!(
            !is_fixed(iflags) || self.has_fixed_files(),
            "one that was met is known"
        );
    }

    /// Refuses what an immutable or append-only file may not be opened for.
    ///
    /// # Errors
    /// [`FsError::Perm`]; [`FsError::Stale`].
    pub fn check_open(&self, ino: Ino, writes: bool, appends: bool) -> FsResult<()> {
        let iflags = self.residents.inodes.head(ino)?.iflags;
        check_open(iflags, writes, appends)
    }
}
