//! What a file system offers of the contents of files. Each operation refuses what a whole file
//! system refuses, and leaves the rest to [`FileContents`].

use super::{ExtentRows, FileContents};
use crate::change::Changes;
use crate::shared::SharedContents;
use crate::system::FileSystem;
use crate::{FsResult, SeekFor};
use bytes::Bytes;
use stitch_base::Ino;

impl FileSystem {
    pub(crate) fn file_contents(&self) -> FileContents<'_> {
        FileContents {
            store: &self.store,
            residents: &self.residents,
            reads: self.reads.as_deref(),
            prefetcher: self.prefetcher(),
            plain_files: self.plain_files(),
            atomic_writes: &self.atomic_writes,
        }
    }

    pub(crate) const fn extent_rows(&self) -> ExtentRows<'_> {
        ExtentRows {
            store: &self.store,
            maps: &self.extents,
        }
    }

    pub(crate) fn shared_contents(&self) -> SharedContents<'_> {
        SharedContents {
            store: &self.store,
            engine: self.engine().as_ref(),
            left: &self.left_contents,
            branch: self.branch,
            changes: Changes::of(self),
        }
    }

    /// Appends up to `len` bytes from `offset` on to `out`; fewer only at the end of the file.
    /// Returns their number.
    ///
    /// # Errors
    /// [`FsError::IsDir`], [`FsError::Invalid`] for what has no contents, [`FsError::Stale`],
    /// [`FsError::Storage`]: `out` may have grown by a part.
    ///
    /// # Cost
    /// One point read for a small file or one chunk, one scan otherwise.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> FsResult<usize> {
        let count = self.file_contents().read(ino, offset, len, out)?;
        if len > 0 {
            self.touch_atime(ino);
        }
        Ok(count)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is none; [`FsError::Stale`].
    pub fn read_link(&self, ino: Ino) -> FsResult<Bytes> {
        let target = self.file_contents().read_link(ino)?;
        self.touch_atime(ino);
        Ok(target)
    }

    /// Notes that readers keep what they have read, as the kernel does above a mount. Prefetched
    /// contents bypass the engine's cache from now on, and notices are kept for
    /// [`Self::take_notices`].
    pub fn readers_keep_contents(&self) {
        self.prefetch.bypass_cache();
        self.untold.begin();
    }

    /// The next data or hole at or after `offset`. A file small enough for its row is all data.
    ///
    /// # Errors
    /// [`FsError::NoSeekTarget`] at or beyond the end, or without data up to the end;
    /// [`FsError::IsDir`], [`FsError::Invalid`], [`FsError::Stale`].
    ///
    /// # Cost
    /// Nothing is read of a file without holes; of others one entry for data, and for a hole all
    /// chunks up to it.
    pub fn seek(&self, ino: Ino, offset: u64, what: SeekFor) -> FsResult<u64> {
        self.file_contents().seek(ino, offset, what)
    }
}
