//! Copying between files: by shared contents where that pays, see `share`; else by a read and a
//! write.

use super::read::check_regular;
use super::write::check_may_write;
use super::{ContentChanges, FILE_BYTES_MAX};
use crate::{ClearSetId, FsError, FsResult};
use stitch_base::Ino;

/// Most bytes that one copy reads and writes: the inodes are locked meanwhile.
const COPIED_BYTES_MAX: u64 = 64 << 20;

impl ContentChanges<'_> {
    /// Copies bytes between files. Returns their number.
    pub(super) fn copy_range(
        &self,
        source: (Ino, u64),
        target: (Ino, u64),
        len: u64,
    ) -> FsResult<u64> {
        let _inodes = self.locks().inodes_write(&[source.0, target.0]);
        let from = self.inodes().get(source.0)?;
        let to = self.inodes().get(target.0)?;
        check_regular(&from)?;
        check_regular(&to)?;
        check_may_write(&to, target.1)?;
        self.contents.atomic_writes.check_none(target.0)?;
        let len = len.min(from.head.size.saturating_sub(source.1));
        let end = target.1.checked_add(len);
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(FsError::FileTooBig);
        }
        if source.0 == target.0 && source.1.abs_diff(target.1) < len {
            return Err(FsError::Invalid("the ranges meet"));
        }
        let piece_bytes = usize::try_from(self.write_step_bytes()).expect("fits in memory");
        let mut buffer = Vec::new();
        let (mut done, mut copied) = (0, 0);
        debug_assert!(piece_bytes > 0, "each step comes further");
        while done < len && copied < COPIED_BYTES_MAX {
            let from = self.inodes().get(source.0)?;
            let to = self.inodes().get(target.0)?;
            let range = source.1 + done..source.1 + len;
            debug_assert!(range.start < range.end, "some bytes are left");
            debug_assert!(
                range.end <= from.head.size,
                "the source is not cut meanwhile"
            );
            if source.1 == target.1
                && let Some(bytes) = self.share_step(&from, &to, &range)?
            {
                debug_assert!(bytes > 0, "each step comes further");
                done += bytes;
                copied += bytes.min(self.write_step_bytes());
                continue;
            }
            let left = usize::try_from(len - done).unwrap_or(usize::MAX);
            buffer.clear();
            let count = left.min(piece_bytes);
            let count = self
                .contents
                .read_locked(&from, source.1 + done, count, &mut buffer)?;
            self.write_locked(to, target.1 + done, &buffer, ClearSetId::None)?;
            debug_assert!(count > 0, "each step comes further");
            done += count as u64;
            copied += count as u64;
        }
        debug_assert!(done <= len, "no more than was asked for");
        debug_assert!(
            done == 0 || self.inodes().head(target.0)?.size >= target.1 + done,
            "the target has all that was copied"
        );
        Ok(done)
    }
}
