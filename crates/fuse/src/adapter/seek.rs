//! LSEEK: data and holes, including bytes written through mappings.
//!
//! Only the kernel knows a page that is dirty through a mapping. It can lie in a hole of the file
//! system, and a copy that skips holes would lose it. So before LSEEK returns a hole, the kernel
//! writes back and drops its pages there, and the file system is asked again. A file that was not
//! read since the kernel's lookup has no such page. If the kernel does not complete in time, all is
//! reported as data, which is always correct.

use std::ops::Range;
use std::time::Duration;

use stitch_base::Ino;
use stitch_fs::{FsError, FsResult, SeekFor};

use super::{Adapter, OrErrno as _, convert};
use crate::handler::Answer;
use crate::wire::args::LSeek;

/// How long a search waits for write-back of the pages of a hole.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most holes that one search may find filled. The rest is reported as data.
const HOLES_MAX: usize = 8;

impl Adapter {
    pub(super) fn seek(&self, ino: Ino, args: &LSeek) -> Answer<u64> {
        let what = convert::seek_for(args.whence)?;
        self.seek_written(ino, args.offset, what).or_errno()
    }

    fn seek_written(&self, ino: Ino, offset: u64, what: SeekFor) -> FsResult<u64> {
        let mut found = self.fs.seek(ino, offset, what);
        if self.fs.is_read_only() || !self.fs.cached_pages(ino).some {
            return found;
        }
        let mut written_to = offset;
        for _ in 0..HOLES_MAX {
            let hole = self.hole(ino, offset, what, &found)?;
            if hole.start >= hole.end || hole.start < written_to {
                return found;
            }
            written_to = hole.end;
            if !self.pages.drop_range(ino, hole, PATIENCE) {
                tracing::debug!(
                    ino = ino.0,
                    "pages of a hole are not written back: all is data"
                );
                break;
            }
            found = self.fs.seek(ino, offset, what);
        }
        match what {
            SeekFor::Data => Ok(offset),
            SeekFor::Hole => Ok(self.fs.get_attr(ino)?.size),
        }
    }

    /// Returns the hole that a result is about; an empty range if it is about none.
    fn hole(
        &self,
        ino: Ino,
        offset: u64,
        what: SeekFor,
        found: &FsResult<u64>,
    ) -> FsResult<Range<u64>> {
        let size = self.fs.get_attr(ino)?.size;
        Ok(match (what, found) {
            (SeekFor::Data, Ok(data)) => offset..*data,
            (SeekFor::Data, Err(FsError::NoSeekTarget)) => offset..size,
            (SeekFor::Hole, Ok(hole)) if *hole < size => {
                match self.fs.seek(ino, *hole, SeekFor::Data) {
                    Ok(data) => *hole..data,
                    Err(FsError::NoSeekTarget) => *hole..size,
                    Err(error) => return Err(error),
                }
            }
            _ => 0..0,
        })
    }
}
