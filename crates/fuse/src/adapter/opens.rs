//! Open files of a mount with passthrough.
//!
//! Each inode with open files has one of two modes, from its first open file to its last:
//! - *cached*: all open files use the kernel's page cache, and send requests;
//! - *lent*: readers read the plain file itself, other open files send requests and bypass the
//!   cache. All mappings are mappings of the plain file.
//!
//! The first open decides: an external file that is opened for reading is lent. The kernel refuses
//! to mix the modes ([`crate::backing`]). The count here is never less than the number of files
//! that the kernel has open, so no open breaks its rules.
//!
//! For the file system, a lent file stays lent until the kernel forgets its inode: mappings outlive
//! the open files. If one may be written through, for which there is no request, later open files
//! are lent too, and attributes expire at once (`is_mapped`).
//!
//! Locks: `table` is held while the file system checks whether it knows an inode and takes it back,
//! so that neither a LOOKUP nor an OPEN comes between.

mod table;

use std::io;
use std::os::fd::AsFd;

use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_fs::FileSystem;

use crate::backing::{Backing, BackingFiles};
use crate::wire::args::Fh;
use crate::wire::flags::OpenFlags;
use crate::wire::reply::Opened;
use table::{Access, OpenMode, Table};

/// The reply to OPEN for a cached file.
pub(super) const CACHED: Opened = Opened {
    fh: Fh(0),
    flags: OpenFlags::KEEP_CACHE,
    backing: 0,
};

/// The reply to OPEN, and whether the kernel must drop its attributes.
pub(super) struct Decided {
    pub(super) opened: Opened,
    pub(super) is_newly_mapped: bool,
}

/// All inodes that have open files or are lent.
#[derive(Debug)]
pub(super) struct Opens {
    files: BackingFiles,
    table: Mutex<Table<Backing>>,
    /// Number of inodes that may be changed through mappings.
    mapped_count: AtomicU64,
}

impl Opens {
    /// Creates an empty list.
    ///
    /// # Errors
    /// The reason that the kernel refuses files of this file system.
    pub(super) fn new(files: BackingFiles, fs: &FileSystem) -> io::Result<Self> {
        if !fs.has_large_files() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let sample = fs.sample_file().map_err(io::Error::other)?;
        drop(files.register(sample.as_fd())?);
        Ok(Self {
            files,
            table: Mutex::default(),
            mapped_count: AtomicU64::new(0),
        })
    }

    /// Serves an OPEN with these `O_*` flags.
    pub(super) fn open(&self, fs: &FileSystem, ino: Ino, flags: u32) -> Decided {
        let access = Access::of(flags);
        let is_decided = self.table.lock().is_decided(ino);
        let lent = match access {
            Access::Read if !is_decided => self.lend(fs, ino),
            _ => None,
        };
        let mut table = self.table.lock();
        // A concurrent open may have set the mode meanwhile.
        let (mode, is_newly_mapped, unused) = table.open(ino, access, lent);
        let opened = match mode {
            OpenMode::Lent(backing) => Opened {
                fh: Fh(0),
                flags: OpenFlags::PASSTHROUGH.with(OpenFlags::DIRECT_IO, access != Access::Read),
                backing: backing.id(),
            },
            OpenMode::Unset | OpenMode::Cached => CACHED,
        };
        drop(table);
        drop(unused);
        if is_newly_mapped {
            self.mapped_count.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = fs.lend_to_writer(ino) {
                tracing::warn!(%error, ino = ino.0, "changes through mappings are not tracked");
            }
        }
        Decided {
            opened,
            is_newly_mapped,
        }
    }

    /// Lends an external file, if possible.
    fn lend(&self, fs: &FileSystem, ino: Ino) -> Option<Backing> {
        let lent = fs.lend(ino).and_then(|name| match name {
            Some(name) => fs.lent_file(name).map(Some),
            None => Ok(None),
        });
        let file = match lent {
            Ok(file) => file?,
            Err(error) => {
                // Its readers get the error.
                tracing::debug!(%error, ino = ino.0, "the file is not lent");
                return None;
            }
        };
        match self.files.register(file.as_fd()) {
            Ok(backing) => Some(backing),
            Err(error) => {
                tracing::debug!(%error, ino = ino.0, "the kernel refused a passthrough file");
                None
            }
        }
    }

    /// Counts a new file that was opened with CREATE, in cached mode.
    pub(super) fn add_cached(&self, ino: Ino) {
        self.table.lock().open(ino, Access::Change, None);
    }

    /// Removes a file that was closed for good.
    pub(super) fn release(&self, ino: Ino) {
        let unused = self.table.lock().release(ino);
        drop(unused);
    }

    /// After FORGET: an inode that the kernel does not know is neither open nor mapped.
    pub(super) fn forget(&self, fs: &FileSystem, ino: Ino) {
        let mut table = self.table.lock();
        if !table.has(ino) || fs.knows(ino) {
            return;
        }
        if let Some(known) = table.forget(ino) {
            if known.is_mapped {
                let mapped = self.mapped_count.fetch_sub(1, Ordering::Relaxed);
                debug_assert!(mapped > 0, "it was counted");
            }
            // It may have been lent to a concurrent open as well.
            fs.take_back(ino);
        }
    }

    /// Reports whether it may be changed through a mapping, so that its times are unknown.
    pub(super) fn is_mapped(&self, ino: Ino) -> bool {
        self.mapped_count.load(Ordering::Relaxed) > 0 && self.table.lock().is_mapped(ino)
    }
}
