//! Atomic writes: changes of one file's contents that become part of it all at once.
//!
//! ```text
//!   start -> [ writes, new sizes ] -> commit   one batch, synced
//!               in memory         \-> end      readers see the file as before
//!                                       -> remove, when no cache shows them any more
//! ```
//!
//! One process has the atomic write of a file. Readers see what it has written, as they do with the
//! `F2FS_IOC_START_ATOMIC_WRITE` of F2FS: the kernel's page cache has it. Other processes cannot
//! change the contents meanwhile.
//!
//! Invariants:
//! - an atomic write changes while the inode is locked exclusively, and is read while it is locked;
//!   only its size may be asked for without a lock;
//! - it stays in the table until its changes are in the file, so that the size never steps back.
//!
//! Locks: `open` is held for moments, below the locks of inodes.

mod overlay;

pub(crate) use overlay::Overlay;

use crate::data::FILE_BYTES_MAX;
use crate::{ClearSetId, FsError, FsResult};
use std::collections::HashMap;
use std::ops::Range;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use stitch_base::sync::{Arc, Mutex};

/// Most bytes in all atomic writes together: those of mainline and of its writable views.
const TOTAL_BYTES_MAX: u64 = 32 << 20;
/// Memory of an extent beside its bytes, with its node of the map.
const EXTENT_BYTES: u64 = 64;
const _: () = assert!(
    TOTAL_BYTES_MAX <= u64::MAX - FILE_BYTES_MAX,
    "a sum with a write does not overflow"
);

/// The sender of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A process, by its number.
    Process(u32),
    /// The cache above the file system: bytes that a program has changed in a mapping.
    Cache,
    /// Another one.
    Other,
}

/// A process that has an atomic write, and the thread that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicWriter {
    /// Number of the process.
    pub process: u32,
    /// Number of the thread.
    pub thread: u32,
}

/// The atomic write of one file.
#[derive(Clone, Debug)]
pub(crate) struct AtomicWrite {
    writer: AtomicWriter,
    pub(crate) overlay: Overlay,
    /// Set-id bits that its writes take from the file.
    pub(crate) clear_setid: ClearSetId,
    /// It cannot be committed, and readers see the file without it.
    is_ended: bool,
}

impl AtomicWrite {
    fn bytes(&self) -> u64 {
        let (extents, bytes) = self.overlay.usage();
        debug_assert!(extents <= bytes, "extents are not empty");
        bytes + extents * EXTENT_BYTES
    }
}

#[derive(Debug, Default)]
struct OpenWrites {
    by_ino: HashMap<Ino, Arc<AtomicWrite>>,
    /// Bytes in all of them.
    bytes: u64,
}

impl OpenWrites {
    /// Checks that the bytes are those of all atomic writes.
    fn check(&self) {
        let sum = || self.by_ino.values().map(|write| write.bytes()).sum::<u64>();
        debug_assert_eq!(self.bytes, sum(), "every write is counted once");
    }

    /// Returns the atomic write of a file, unless it has ended.
    fn live(&self, ino: Ino) -> Option<&Arc<AtomicWrite>> {
        self.by_ino.get(&ino).filter(|write| !write.is_ended)
    }
}

/// The atomic writes of a file system.
#[derive(Debug, Default)]
pub(crate) struct AtomicWrites {
    open: Mutex<OpenWrites>,
    /// Bytes in the atomic writes of all file systems that share their memory.
    total_bytes: Arc<AtomicU64>,
    /// Number of atomic writes, to find without a lock that there is none.
    count: AtomicUsize,
}

impl Drop for AtomicWrites {
    fn drop(&mut self) {
        // A view may end with atomic writes open.
        let bytes = self.open.lock().bytes;
        let total = self.total_bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(total >= bytes, "its own are part of the total");
    }
}

impl AtomicWrites {
    /// None yet, within the memory of another file system's.
    pub(crate) fn beside(other: &Self) -> Self {
        Self {
            open: Mutex::default(),
            total_bytes: Arc::clone(&other.total_bytes),
            count: AtomicUsize::new(0),
        }
    }

    /// Reserves bytes within the memory of all atomic writes.
    fn reserve(&self, bytes: u64) -> FsResult<()> {
        debug_assert!(bytes <= FILE_BYTES_MAX, "bytes of one write");
        let total = &self.total_bytes;
        let more = |total: u64| (total + bytes <= TOTAL_BYTES_MAX).then_some(total + bytes);
        let reserved = total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        reserved.map(drop).map_err(|_| FsError::FileTooBig)
    }

    /// Reports whether there is one. With the inode locked this is exact.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Starts the atomic write of a file of `size` bytes. One of the same process goes on.
    pub(crate) fn start(&self, ino: Ino, writer: AtomicWriter, size: u64) -> FsResult<()> {
        let mut open = self.open.lock();
        debug_assert_ne!(ino, Ino::ROOT, "files alone have atomic writes");
        if let Some(found) = open.by_ino.get(&ino) {
            let is_own = found.writer.process == writer.process && !found.is_ended;
            return if is_own { Ok(()) } else { Err(FsError::Busy) };
        }
        let write = AtomicWrite {
            writer,
            overlay: Overlay::new(size),
            clear_setid: ClearSetId::None,
            is_ended: false,
        };
        debug_assert!(size <= FILE_BYTES_MAX, "the size of a file");
        open.by_ino.insert(ino, Arc::new(write));
        open.check();
        debug_assert!(open.live(ino).is_some(), "it takes writes");
        self.count.store(open.by_ino.len(), Ordering::Release);
        debug_assert!(self.any(), "it is found without the lock");
        Ok(())
    }

    /// Returns the atomic write of a file, unless it has ended.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<AtomicWrite>> {
        if !self.any() {
            return None;
        }
        self.open.lock().live(ino).map(Arc::clone)
    }

    /// Returns the atomic write that a process may commit.
    pub(crate) fn of(&self, ino: Ino, process: u32) -> FsResult<Arc<AtomicWrite>> {
        let found = self
            .get(ino)
            .ok_or(FsError::Invalid("no atomic write is open"))?;
        debug_assert!(!found.is_ended, "an ended write is not committed");
        match found.writer.process == process {
            true => Ok(found),
            false => Err(FsError::Busy),
        }
    }

    /// Returns who has the atomic write of a file, ended or not.
    pub(crate) fn writer(&self, ino: Ino) -> Option<AtomicWriter> {
        if !self.any() {
            return None;
        }
        self.open.lock().by_ino.get(&ino).map(|write| write.writer)
    }

    /// Returns the size that the atomic write of a file gives it.
    pub(crate) fn size(&self, ino: Ino) -> Option<u64> {
        if !self.any() {
            return None;
        }
        // Not by a reference that is kept: a writer would copy what it changes.
        let open = self.open.lock();
        let size = open.live(ino).map(|write| write.overlay.size());
        debug_assert!(
            size.is_none_or(|size| size <= FILE_BYTES_MAX),
            "the size of a file"
        );
        size
    }

    /// Reports whether a write of a range goes into the atomic write of the file.
    ///
    /// # Errors
    /// [`FsError::Busy`] if the file has an atomic write of another process, or an ended one.
    pub(crate) fn takes(&self, ino: Ino, writer: Writer, range: &Range<u64>) -> FsResult<bool> {
        debug_assert!(range.start <= range.end, "a range of bytes");
        if !self.any() {
            return Ok(false);
        }
        let open = self.open.lock();
        let Some(found) = open.by_ino.get(&ino) else {
            return Ok(false);
        };
        match writer {
            // The page may have staged bytes in it.
            Writer::Cache => Ok(found.overlay.touches(range)),
            Writer::Process(process) if process == found.writer.process && !found.is_ended => {
                Ok(true)
            }
            Writer::Process(_) | Writer::Other => Err(FsError::Busy),
        }
    }

    /// Refuses a change of the contents of a file that has an atomic write.
    pub(crate) fn check_none(&self, ino: Ino) -> FsResult<()> {
        match self.writer(ino) {
            None => Ok(()),
            Some(_) => Err(FsError::Busy),
        }
    }

    /// Changes the atomic write of a file, within the memory that is left. The inode is locked
    /// exclusively, and `added` is at least the number of bytes that are added.
    ///
    /// # Errors
    /// [`FsError::FileTooBig`]: nothing is changed.
    pub(crate) fn change(
        &self,
        ino: Ino,
        added: u64,
        change: impl FnOnce(&mut AtomicWrite),
    ) -> FsResult<()> {
        let mut open = self.open.lock();
        let OpenWrites { by_ino, bytes } = &mut *open;
        let write = by_ino.get_mut(&ino);
        let write = write.ok_or(FsError::Invalid("no atomic write is open"))?;
        debug_assert!(!write.is_ended, "an ended write takes no more");
        self.reserve(added)?;
        let write = Arc::make_mut(write);
        let before = write.bytes();
        debug_assert!(before <= *bytes, "each write is a part of the sum");
        let bytes_max = write.overlay.usage().1 + added;
        change(write);
        let after = write.bytes();
        debug_assert!(
            write.overlay.usage().1 <= bytes_max,
            "the bytes were reserved"
        );
        *bytes = *bytes - before + after;
        debug_assert!(after <= *bytes, "each write is a part of the sum");
        self.total_bytes.fetch_add(after, Ordering::Relaxed);
        let past = self
            .total_bytes
            .fetch_sub(before + added, Ordering::Relaxed);
        debug_assert!(past >= before + added, "what was reserved is part of all");
        open.check();
        Ok(())
    }

    /// Ends the atomic write of a file. Returns false if there is none.
    pub(crate) fn end(&self, ino: Ino) -> bool {
        let mut open = self.open.lock();
        let found = open.by_ino.get_mut(&ino);
        let is_there = found.is_some();
        if let Some(write) = found {
            Arc::make_mut(write).is_ended = true;
        }
        debug_assert!(open.live(ino).is_none(), "readers see the file as before");
        is_there
    }

    /// Ends all atomic writes.
    pub(crate) fn end_all(&self) {
        if !self.any() {
            return;
        }
        for write in self.open.lock().by_ino.values_mut() {
            Arc::make_mut(write).is_ended = true;
        }
    }

    /// Removes the atomic write of a file, if there is one.
    pub(crate) fn remove(&self, ino: Ino) {
        if !self.any() {
            return;
        }
        let mut open = self.open.lock();
        if let Some(write) = open.by_ino.remove(&ino) {
            debug_assert!(open.bytes >= write.bytes(), "every write is counted");
            open.bytes -= write.bytes();
            let total = self.total_bytes.fetch_sub(write.bytes(), Ordering::Relaxed);
            debug_assert!(total >= write.bytes(), "its own are part of the total");
        }
        open.check();
        self.count.store(open.by_ino.len(), Ordering::Release);
        debug_assert!(
            self.any() != open.by_ino.is_empty(),
            "the count is that of the writes"
        );
    }
}
