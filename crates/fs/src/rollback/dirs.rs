//! Finding the directory of a rollback that was interrupted.

use crate::FsResult;
use crate::inode::{Hold, Holds};
use crate::snapshot::know_dir;
use crate::system::FileSystem;
use stitch_base::Ino;

/// Makes directories known. The file system behind it cannot be reached.
#[derive(Clone, Copy)]
pub(super) struct DirFinder<'fs> {
    fs: &'fs FileSystem,
}

/// A directory that is known as long as this lives.
pub(super) struct DirHold<'fs> {
    holds: Holds<'fs>,
    dir: Ino,
}

impl Drop for DirHold<'_> {
    fn drop(&mut self) {
        self.holds.let_go(self.dir, Hold::Handle);
    }
}

impl<'fs> DirFinder<'fs> {
    pub(super) const fn of(fs: &'fs FileSystem) -> Self {
        Self { fs }
    }

    /// Makes a directory known by its path, or by its number where it was renamed since.
    ///
    /// # Errors
    /// [`crate::FsError::Stale`] if it was removed.
    pub(super) fn hold(self, dir: Ino, path: &[u8]) -> FsResult<DirHold<'fs>> {
        know_dir(self.fs, dir, path)?;
        debug_assert!(self.fs.residents.inodes.is_known(dir), "it was looked up");
        let holds = Holds::of(self.fs);
        Ok(DirHold { holds, dir })
    }
}
