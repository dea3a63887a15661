//! `fallocate`: growing, punching and zeroing.
//!
//! Space cannot be set aside for one file, since every overwrite takes new space until old versions
//! are gone. So allocating checks that there is room now, and grows the file.

use super::read::check_regular;
use super::write::check_may_write;
use super::{FILE_BYTES_MAX, Staged, chunk_count, within};
use crate::change::Change;
use crate::system::FileSystem;
use crate::{Attr, FallocateMode, FsError, FsResult};
use stitch_base::Ino;
use stitch_format::fs_chunk::ChunkDelta;
use stitch_format::fs_inode::row_flag;
use stitch_format::fs_key::{self, CHUNK_BYTES};

/// Chunks that a punch counts at most: 128 MiB, the longest discard of an ext4 in an image file.
const COUNTED_CHUNKS_MAX: u64 = 32 << 10;

impl FileSystem {
    /// Makes, removes or zeroes a range of a file.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for an empty range, [`FsError::FileTooBig`], [`FsError::NoSpace`] if the
    /// store cannot hold the range now, and as [`Self::write`].
    ///
    /// # Cost
    /// Few messages, whatever the range. Reads nothing but the row of a small file, and what is
    /// stored in a range of up to 128 MiB of a file that has holes already, to count it.
    pub fn fallocate(
        &self,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        if len == 0 {
            return Err(FsError::Invalid("an empty range"));
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::FileTooBig)?;
        let _inode = self.locks.inode_write(ino);
        let inode = self.inodes.get(ino)?;
        check_regular(&inode)?;
        check_may_write(&inode, offset)?;
        let grown = match mode {
            FallocateMode::Allocate { keep_size: false }
            | FallocateMode::ZeroRange { keep_size: false } => end,
            _ => inode.head.size,
        };
        let mut staged = Staged::new(self.with_room_for(inode, grown)?);
        let (mut change, keeps_size) = match mode {
            FallocateMode::Allocate { keep_size } => {
                self.check_room(&staged, offset, end)?;
                (Change::new(self), keep_size)
            }
            FallocateMode::PunchHole => (Change::giving_back(self), true),
            FallocateMode::ZeroRange { keep_size } => (Change::new(self), keep_size),
        };
        let is_zeroing = !matches!(mode, FallocateMode::Allocate { .. });
        let grows = !keeps_size && end > staged.head.size;
        if is_zeroing {
            self.stage_zeros(&mut change, &mut staged, offset, end)?;
        }
        if grows {
            self.stage_growth(&mut change, &mut staged, end)?;
        }
        let now = self.now();
        staged.head.mtime = now;
        staged.head.ctime = now;
        self.drop_capabilities(&mut change, &mut staged.head);
        staged.finish(&mut change)?;
        change.commit()?;
        Ok(Attr::of(&staged.head))
    }

    /// Refuses a range that the store cannot hold at this moment.
    fn check_room(&self, staged: &Staged, offset: u64, end: u64) -> FsResult<()> {
        let head = &staged.head;
        let new = if head.has(row_flag::HOLES) {
            end - offset
        } else {
            end.saturating_sub(offset.max(head.size))
        };
        if !head.has(row_flag::EXTERNAL) {
            let is_room = new <= self.engine().space().free_bytes;
            return is_room.then_some(()).ok_or(FsError::NoSpace);
        }
        let files = self.externals.files()?;
        let mut is_room = new <= files.free_bytes()?;
        if !is_room && self.makes_room_beside()? {
            is_room = new <= files.free_bytes()?;
        }
        is_room.then_some(()).ok_or(FsError::NoSpace)
    }

    /// Returns the number of chunks in `[first, end)` that are stored, at least as far as
    /// [`COUNTED_CHUNKS_MAX`]. In a file without holes the size tells.
    fn stored_chunks(&self, staged: &Staged, first: u64, end: u64) -> FsResult<u64> {
        if !staged.head.has(row_flag::HOLES) {
            return Ok(0);
        }
        let ino = staged.head.ino;
        let (start, end) = (fs_key::chunk(ino, first), fs_key::chunk(ino, end));
        let mut scan = self.store.scan(self.store.data, &start, &end)?;
        let mut count = 0;
        while count < COUNTED_CHUNKS_MAX && scan.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Stages zeros in `[offset, end)` as far as the file goes.
    fn stage_zeros(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        offset: u64,
        end: u64,
    ) -> FsResult<()> {
        let size = staged.head.size;
        let end = end.min(size);
        if offset >= end {
            return Ok(());
        }
        if staged.head.has(row_flag::INLINE) {
            let mut tail = Vec::from(self.tail(&staged.inode)?);
            let stop = usize::try_from(end).expect("within a row").min(tail.len());
            let start = usize::try_from(offset).expect("within a row").min(stop);
            tail[start..stop].fill(0);
            staged.set_tail(tail);
            return Ok(());
        }
        let ino = staged.head.ino;
        self.inodes.note_counted(ino, None);
        let is_external = staged.head.has(row_flag::EXTERNAL);
        if is_external {
            self.zero_external(staged, offset, end)?;
        }
        let first_whole = chunk_count(offset);
        let after_whole = if end == size {
            chunk_count(end)
        } else {
            end / CHUNK_BYTES
        };
        if first_whole < after_whole {
            if !is_external {
                let removed = self.stored_chunks(staged, first_whole, after_whole)?;
                staged.head.chunks = staged.head.chunks.saturating_sub(removed);
                change.delete_chunks(ino, first_whole, after_whole);
            }
            staged.note_holes();
            let left = chunk_count(size) - (after_whole - first_whole);
            staged.head.chunks = staged.head.chunks.min(left);
        }
        if is_external {
            return Ok(());
        }
        let (start_in, end_in) = (within(offset), within(end));
        if offset / CHUNK_BYTES == end / CHUNK_BYTES && first_whole > after_whole {
            let (start, end) = (start_in, end_in);
            change.chunk(ino, offset / CHUNK_BYTES, ChunkDelta::Zero { start, end });
            return Ok(());
        }
        if start_in > 0 {
            let end = u16::try_from(CHUNK_BYTES).expect("4096");
            let start = start_in;
            change.chunk(ino, offset / CHUNK_BYTES, ChunkDelta::Zero { start, end });
        }
        if end_in > 0 && end != size {
            let (start, end_at) = (0, end_in);
            let delta = ChunkDelta::Zero { start, end: end_at };
            change.chunk(ino, end / CHUNK_BYTES, delta);
        }
        Ok(())
    }
}
