//! Notices to the kernel about changes that its own requests did not make.

use std::io;

use rustix::io::Errno as OsError;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::transport::ReplySender;
use crate::wire::notice::Notice;

/// Sends notices. Cheap to clone.
///
/// Do not send from inside a request, except for [`Self::invalidate_attr`]: the kernel takes the
/// lock of the named directory or waits for pages, and the caller of that request may hold them.
#[derive(Clone, Debug)]
pub struct Notifier {
    sender: Arc<dyn ReplySender>,
    minor: u32,
    /// Numbers of inodes in the mount have this beside those that are told here.
    base: u64,
    shared: Arc<NotifierState>,
}

#[derive(Debug, Default)]
struct NotifierState {
    /// Most requests that may wait for a notice at a time.
    waits_max: AtomicUsize,
    /// Notices about pages that were sent.
    pages: AtomicU64,
    /// Notices about names that were sent.
    names: AtomicU64,
}

impl Notifier {
    pub(crate) fn new(sender: Arc<dyn ReplySender>, minor: u32) -> Self {
        Self {
            sender,
            minor,
            base: 0,
            shared: Arc::default(),
        }
    }

    /// Returns one for a view, whose inodes have numbers from `base` on in the mount.
    pub(crate) fn within(&self, base: u64) -> Self {
        debug_assert_eq!(self.base, 0, "views are in the mount, not in each other");
        Self {
            base,
            ..self.clone()
        }
    }

    const fn number(&self, ino: Ino) -> Ino {
        debug_assert!(
            ino.0 & self.base == 0,
            "the number of an inode in its own file system"
        );
        Ino(ino.0 | self.base)
    }

    /// Sets how many requests may wait at a time for a notice that writes pages back. This must be
    /// fewer than are served at a time, so that the WRITEs are served.
    pub(crate) fn set_waits_max(&self, count: usize) {
        self.shared.waits_max.store(count, Ordering::Relaxed);
    }

    /// Returns how many requests may wait at a time for a notice that writes pages back; 0 before
    /// the session serves, and in mounts where requests must not wait for notices.
    #[must_use]
    pub fn waits_max(&self) -> usize {
        self.shared.waits_max.load(Ordering::Relaxed)
    }

    /// Returns how many notices about pages were sent.
    #[must_use]
    pub fn page_notices(&self) -> u64 {
        self.shared.pages.load(Ordering::Relaxed)
    }

    /// Returns how many notices about names were sent.
    #[must_use]
    pub fn name_notices(&self) -> u64 {
        self.shared.names.load(Ordering::Relaxed)
    }

    /// Drops cached attributes of `ino`, and its pages of `[offset, offset + length)`; a length of
    /// 0 means to the end.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn invalidate_data(&self, ino: Ino, offset: u64, length: u64) -> io::Result<()> {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        self.shared.pages.fetch_add(1, Ordering::Relaxed);
        self.send(&Notice::InvalidateInode {
            ino: self.number(ino),
            offset,
            length,
        })
    }

    /// Drops cached attributes and all pages of `ino`. Returns whether the kernel has the inode.
    ///
    /// # Errors
    /// When the mount is gone.
    pub(crate) fn invalidate_known(&self, ino: Ino) -> io::Result<bool> {
        self.shared.pages.fetch_add(1, Ordering::Relaxed);
        self.is_accepted(&Notice::InvalidateInode {
            ino: self.number(ino),
            offset: 0,
            length: 0,
        })
    }

    /// Stores bytes in the kernel's page of `ino`, if it has that page, without a WRITE. If the
    /// kernel's file ends before them, it is extended to their end.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn store(&self, ino: Ino, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.shared.pages.fetch_add(1, Ordering::Relaxed);
        let ino = self.number(ino);
        self.send(&Notice::Store { ino, offset, bytes })
    }

    /// Drops cached attributes of `ino`, but no pages. Takes no lock of the inode, so it may be
    /// sent from inside a request.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn invalidate_attr(&self, ino: Ino) -> io::Result<()> {
        self.send(&Notice::InvalidateInode {
            ino: self.number(ino),
            offset: -1,
            length: 0,
        })
    }

    /// Drops the cached entry `name` in `parent`, positive or negative.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn invalidate_entry(&self, parent: Ino, name: &[u8]) -> io::Result<()> {
        self.shared.names.fetch_add(1, Ordering::Relaxed);
        self.send(&Notice::InvalidateEntry {
            parent: self.number(parent),
            name,
            expire_only: false,
        })
    }

    /// Asks the kernel to drop the unused ones of these inodes, with all their names; FORGET
    /// follows. At most [`PRUNE_COUNT_MAX`](crate::wire::notice::PRUNE_COUNT_MAX), and only if
    /// [`Self::can_prune`].
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn prune(&self, inos: &[Ino]) -> io::Result<()> {
        debug_assert!(self.can_prune(), "the kernel knows the notice");
        let numbers: Vec<Ino> = inos.iter().map(|ino| self.number(*ino)).collect();
        self.send(&Notice::Prune { inos: &numbers })
    }

    /// Reports whether the kernel supports [`Self::prune`] (7.45).
    #[must_use]
    pub const fn can_prune(&self) -> bool {
        self.minor >= 45
    }

    /// Tells watchers that `name` in `parent`, which was `child`, was removed.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn removed(&self, parent: Ino, child: Ino, name: &[u8]) -> io::Result<()> {
        self.send(&Notice::Delete {
            parent: self.number(parent),
            child: self.number(child),
            name,
        })
    }

    /// Makes the kernel look up every name again at its next use. Returns whether the kernel
    /// supports this (7.44).
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn increment_epoch(&self) -> io::Result<bool> {
        if self.minor < 44 {
            return Ok(false);
        }
        self.send(&Notice::IncrementEpoch).map(|()| true)
    }

    /// Makes the kernel send unanswered requests again, with [`RESENT`](crate::survive::RESENT) in
    /// their numbers.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn resend(&self) -> io::Result<()> {
        self.send(&Notice::Resend)
    }

    fn send(&self, notice: &Notice<'_>) -> io::Result<()> {
        self.is_accepted(notice).map(drop)
    }

    /// Sends a notice. Returns false if the kernel has no such inode or entry: nothing is stale.
    fn is_accepted(&self, notice: &Notice<'_>) -> io::Result<bool> {
        match self.sender.send(&notice.encode()) {
            Err(error) if OsError::from_io_error(&error) == Some(OsError::NOENT) => Ok(false),
            other => other.map(|()| true),
        }
    }
}
