//! What a file system offers of the contents of files. Each operation refuses what a whole file
//! system refuses, and leaves the rest to [`FileContents`] or [`ContentChanges`].

use super::atomic::takes_atomic_writes;
use super::{ContentChanges, FILE_BYTES_MAX, FileContents};
#[cfg(doc)]
use crate::FsError;
use crate::atomic::{AtomicWriter, AtomicWrites, Writer};
use crate::system::FileSystem;
use crate::{Attr, Caller, ClearSetId, FallocateMode, FsResult, SeekFor, WriteOptions};
use bytes::Bytes;
use stitch_base::Ino;

impl FileSystem {
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
        let before = out.len();
        let count = FileContents::of(self).read(ino, offset, len, out)?;
        debug_assert!(count <= len, "no more than was asked for");
        debug_assert_eq!(out.len() - before, count, "what was read is appended");
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
        let target = FileContents::of(self).read_link(ino)?;
        self.touch_atime(ino);
        Ok(target)
    }

    /// Notes that readers keep what they have read, as the kernel does above a mount. Prefetched
    /// contents bypass the engine's cache from now on, and notices are kept for
    /// [`Self::send_notices`].
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
        let found = FileContents::of(self).seek(ino, offset, what)?;
        debug_assert!(found >= offset, "nothing before the offset is looked for");
        Ok(found)
    }

    /// Writes all of `data`. Returns the attributes afterwards.
    ///
    /// # Errors
    /// [`FsError::FileTooBig`], [`FsError::Perm`] for what is immutable, or append-only and not
    /// written at its end, [`FsError::IsDir`], [`FsError::Invalid`], [`FsError::NoSpace`],
    /// [`FsError::ReadOnly`], [`FsError::Busy`] if the file has an atomic write,
    /// [`FsError::Stale`].
    ///
    /// # Durability
    /// One batch for each [`Self::write_step_bytes`]: of a longer write a crash may leave a
    /// beginning.
    ///
    /// # Cost
    /// One message for each chunk, one for the row; reads nothing but the row of a small file.
    pub fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> FsResult<Attr> {
        self.write_by(Writer::Other, ino, offset, data, options)
    }

    /// As [`Self::write`], by a writer that may have an atomic write of the file.
    ///
    /// # Errors
    /// As [`Self::write`]; [`FsError::Busy`] if another writer has an atomic write of the file,
    /// [`FsError::FileTooBig`] also if this one's would take too much memory.
    ///
    /// # Durability
    /// As [`Self::write`]; with the commit, of bytes that belong to an atomic write.
    pub fn write_by(
        &self,
        writer: Writer,
        ino: Ino,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        let attr = ContentChanges::of(self).write(writer, ino, offset, data, options)?;
        debug_assert_eq!(attr.ino, ino, "the file that was written");
        debug_assert!(attr.size <= FILE_BYTES_MAX, "the size of a file");
        Ok(attr)
    }

    /// Returns the longest write, in bytes from a multiple of 4 KiB on, that is one step also in a
    /// crash: 2 MiB, or what fits a batch of the engine where its log is short.
    #[must_use]
    pub fn write_step_bytes(&self) -> u64 {
        ContentChanges::of(self).write_step_bytes()
    }

    /// Allocates, removes or zeroes a range of a file.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for an empty range, [`FsError::FileTooBig`], [`FsError::NoSpace`] if
    /// the store cannot hold the range now, and as [`Self::write`].
    ///
    /// # Durability
    /// One batch. Where thousands of extents are in the range, several: a crash may leave a
    /// beginning.
    ///
    /// # Cost
    /// Few messages, whatever the range, but that a file which shares contents copies all of them
    /// where more than holes come or go. Reads the row of a small file, extents in the range, once
    /// up to 4 MiB of a sparse file, and what is stored in a range of up to 128 MiB that is punched
    /// from a file with holes, to count it.
    pub fn fallocate(
        &self,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        let attr = ContentChanges::of(self).fallocate(ino, mode, offset, len)?;
        debug_assert_eq!(attr.ino, ino, "the file that was changed");
        debug_assert!(attr.size <= FILE_BYTES_MAX, "the size of a file");
        Ok(attr)
    }

    /// Copies bytes between files (or within one, where the ranges do not meet). Returns their
    /// number, fewer at the end of the source and after 64 MiB that are not shared. Of a source
    /// with an atomic write, what is in the file is copied.
    ///
    /// A file of at least 64 KiB that is copied to an empty one, at the same offsets, shares its
    /// contents with it until one of both changes. Files with allocated extents and external files
    /// do not.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for ranges of one file that meet, and as [`Self::read`] and
    /// [`Self::write`]; a part may have been copied then.
    ///
    /// # Cost
    /// One batch of a few rows where contents are shared. Otherwise all bytes are read and written.
    pub fn copy_range(&self, source: (Ino, u64), target: (Ino, u64), len: u64) -> FsResult<u64> {
        self.check_writable()?;
        let copied = ContentChanges::of(self).copy_range(source, target, len)?;
        debug_assert!(copied <= len, "no more than was asked for");
        Ok(copied)
    }

    /// Shares the memory of atomic writes with another file system of the engine.
    pub(crate) fn with_writes_beside(mut self, other: &AtomicWrites) -> Self {
        debug_assert!(!self.atomic_writes.any(), "none has started");
        self.atomic_writes = AtomicWrites::beside(other);
        self
    }

    /// Reports whether a file can have an atomic write: a regular file in the store whose contents
    /// are not shared.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn takes_atomic_writes(&self, ino: Ino) -> FsResult<bool> {
        let head = self.residents.inodes.head(ino)?;
        Ok(takes_atomic_writes(&head) && !self.is_read_only())
    }

    /// Starts an atomic write of a file. What `writer` writes to the file from now on, and sizes
    /// that it sets, are held in memory until [`Self::commit_atomic_write`]. Readers see them; no
    /// other process can change the contents. An atomic write of the same process goes on.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] if the file cannot have one ([`Self::takes_atomic_writes`]),
    /// [`FsError::Busy`] if another process has one, [`FsError::Access`] if `caller` neither owns
    /// the file nor is the superuser, [`FsError::Perm`] if the file is immutable or append-only,
    /// [`FsError::ReadOnly`], [`FsError::IsDir`], [`FsError::Invalid`] for what is no file,
    /// [`FsError::Stale`].
    pub fn start_atomic_write(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        writer: AtomicWriter,
    ) -> FsResult<()> {
        self.check_writable()?;
        ContentChanges::of(self).start_atomic_write(caller, ino, writer)
    }

    /// Puts the changes of an atomic write into the file, all of them or none, and ends it.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if none is open, also after one was ended by a rollback or the commit
    /// of a transaction; [`FsError::Busy`] if it is of another process; [`FsError::NoSpace`],
    /// [`FsError::Perm`], [`FsError::FileTooBig`] (also if thousands of allocated extents lie
    /// between its first and its last byte): the file is as before, and the atomic write stays open
    /// until [`Self::end_atomic_write`]. [`FsError::Storage`].
    ///
    /// # Durability
    /// On the medium when this returns; after a crash before that the file is as before, or as
    /// committed. In a run, which the crash ends, nothing is synced.
    ///
    /// # Cost
    /// One batch, and one sync of the log, shared with other callers. Reads the allocated extents
    /// between its first and its last byte, if the file has any.
    pub fn commit_atomic_write(&self, ino: Ino, process: u32) -> FsResult<Attr> {
        self.check_writable()?;
        let attr = ContentChanges::of(self).commit_atomic_write(ino, process)?;
        debug_assert_eq!(attr.ino, ino, "the file that was written");
        self.sync_inode(ino)?;
        Ok(attr)
    }

    /// Ends the atomic write of a file, if there is one: readers see the file as it was before, and
    /// its contents cannot be changed until [`Self::remove_atomic_write`]. Returns whether there is
    /// one.
    ///
    /// A cache above the file system drops what it has of the file between these two calls. Pages
    /// with staged bytes that it writes back meanwhile are dropped with them.
    pub fn end_atomic_write(&self, ino: Ino) -> bool {
        ContentChanges::of(self).end_atomic_write(ino)
    }

    /// Drops an atomic write that was ended.
    pub fn remove_atomic_write(&self, ino: Ino) {
        ContentChanges::of(self).remove_atomic_write(ino);
    }

    /// Reports whether any file has an atomic write.
    #[must_use]
    pub fn has_atomic_writes(&self) -> bool {
        self.atomic_writes.any()
    }

    /// Returns who has the atomic write of a file, also of one that was ended and not removed.
    #[must_use]
    pub fn atomic_writer(&self, ino: Ino) -> Option<AtomicWriter> {
        self.atomic_writes.writer(ino)
    }

    /// Returns the size of a file with an atomic write.
    #[must_use]
    pub fn staged_size(&self, ino: Ino) -> Option<u64> {
        let size = self.atomic_writes.size(ino);
        debug_assert!(
            size.is_none_or(|size| size <= FILE_BYTES_MAX),
            "the size of a file"
        );
        size
    }

    /// Sets the size of a file in its atomic write.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if none is open, [`FsError::Busy`] if it is of another process,
    /// [`FsError::FileTooBig`].
    pub fn resize_staged(
        &self,
        ino: Ino,
        process: u32,
        size: u64,
        clear_setid: ClearSetId,
    ) -> FsResult<()> {
        ContentChanges::of(self).resize_staged(ino, process, size, clear_setid)
    }
}
