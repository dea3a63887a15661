//! A directory that is listed, from request to request.

use super::convert::errno;
use super::inodes::Inode;
use rustix::fs::{self as sys, Dir, Mode, OFlags};
use std::os::fd::BorrowedFd;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_fuse::Errno;
use stitch_fuse::handler::Answer;
use stitch_fuse::wire::reply::{DirEntry, FileKind};

/// An open directory.
pub(super) struct OpenDir {
    place: Mutex<ListPosition>,
}

/// How far it was listed.
struct ListPosition {
    dir: Dir,
    /// Where the next entry is.
    offset: u64,
    /// The next entry, if it was read and there was no room for it.
    next: Option<sys::DirEntry>,
}

impl OpenDir {
    /// Opens it.
    pub(super) fn new(inode: &Inode) -> Answer<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = sys::openat(&inode.fd, ".", flags, Mode::empty()).map_err(errno)?;
        let place = ListPosition {
            dir: Dir::new(fd).map_err(errno)?,
            offset: 0,
            next: None,
        };
        Ok(Self {
            place: Mutex::new(place),
        })
    }

    /// Does something with its descriptor.
    pub(super) fn with_fd<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> Answer<T>) -> Answer<T> {
        let place = self.place.lock();
        act(place.dir.fd().map_err(errno)?)
    }

    /// Gives entries from `offset` on, until one is not taken.
    pub(super) fn list(
        &self,
        offset: u64,
        mut push: impl FnMut(&DirEntry<'_>) -> Answer<bool>,
    ) -> Answer<()> {
        let mut place = self.place.lock();
        if offset != place.offset {
            place.go_to(offset)?;
        }
        while let Some(entry) = place.take()? {
            let next_offset = entry.offset().cast_unsigned();
            let shown = DirEntry {
                ino: Ino(entry.ino()),
                next_offset,
                kind: kind_of(entry.file_type())?,
                name: entry.file_name().to_bytes(),
            };
            if !push(&shown)? {
                place.next = Some(entry);
                break;
            }
            place.offset = next_offset;
        }
        Ok(())
    }
}

impl ListPosition {
    fn go_to(&mut self, offset: u64) -> Answer<()> {
        self.next = None;
        self.offset = offset;
        self.dir.seek(offset.cast_signed()).map_err(errno)
    }

    fn take(&mut self) -> Answer<Option<sys::DirEntry>> {
        match self.next.take() {
            Some(entry) => Ok(Some(entry)),
            None => self.dir.read().transpose().map_err(errno),
        }
    }
}

fn kind_of(kind: sys::FileType) -> Answer<FileKind> {
    FileKind::from_mode(kind.as_raw_mode()).ok_or(Errno::EIO)
}
