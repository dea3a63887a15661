//! The ledger in shared memory: its contents survive a killed process as long as another process
//! holds the descriptor.
//!
//! ```text
//! 0        magic, version, whether it is of no use since a log did not fit
//! 4096     for each log a word: which half is in use (1 bit), and its length
//! 64 KiB   notes: number of the request, inode
//! 1 MiB    for each log two halves of 64 MiB, of which only what is used takes memory
//! ```
//!
//! Invariants:
//! - the word of a log defines its contents: records are copied first, then the word is stored, so
//!   a process that is killed in between has added nothing;
//! - only the owner of a log's lock writes to it (see [`Ledger`]); a note is written by the thread
//!   that took its slot.

#![expect(
    unsafe_code,
    reason = "memory that is mapped from a descriptor is reached by its address"
)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use stitch_fs::{LEDGER_LOGS, Ledger};

/// The first bytes: `stitldgr`.
const MAGIC: u64 = u64::from_le_bytes(*b"stitldgr");
const VERSION: u64 = 2;
/// A ledger of a mount whose inodes all have generation 0, and otherwise the same.
const WITHOUT_GENERATIONS: u64 = 1;
const VERSION_AT: usize = 8;
/// Offset of the word that is not 0 once a log did not fit: the ledger is then invalid.
const BROKEN_AT: usize = 16;
const WORDS_AT: usize = 4096;
const NOTES_AT: usize = 64 << 10;
/// Most requests that can be noted. Each worker has one in flight.
const NOTES: usize = 4096;
const LOGS_AT: usize = 1 << 20;
const HALF_SIZE: usize = 64 << 20;
const SIZE: usize = LOGS_AT + LEDGER_LOGS * 2 * HALF_SIZE;
/// Flag in a log's word: the second half is in use.
const SECOND: u64 = 1 << 63;

const _: () = assert!(WORDS_AT + LEDGER_LOGS * 8 <= NOTES_AT);
const _: () = assert!(NOTES_AT + NOTES * 16 <= LOGS_AT);

/// The ledger of a mount.
#[derive(Debug)]
pub struct SharedLedger {
    memory: OwnedFd,
    start: NonNull<u8>,
    next_note: AtomicUsize,
}

// SAFETY: the mapping is not tied to a thread. Its words are atomics, and only the owner of a log's
// lock writes the rest of the log, as the trait demands.
unsafe impl Send for SharedLedger {}
// SAFETY: as above.
unsafe impl Sync for SharedLedger {}

impl SharedLedger {
    /// Creates an empty ledger.
    ///
    /// # Errors
    /// Those of the system, such as too little address space.
    pub fn create() -> io::Result<Self> {
        let memory = rustix::fs::memfd_create("stitchfs-ledger", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, SIZE as u64)?;
        let ledger = Self::map(memory)?;
        ledger.word(0).store(MAGIC, Ordering::Release);
        ledger.word(VERSION_AT).store(VERSION, Ordering::Release);
        Ok(ledger)
    }

    /// Maps the ledger that another process has created.
    ///
    /// # Errors
    /// `InvalidData` if it is not a ledger, or of another version.
    pub fn open(memory: OwnedFd) -> io::Result<Self> {
        let size = rustix::fs::fstat(&memory)?.st_size;
        let is_whole = usize::try_from(size).is_ok_and(|size| size == SIZE);
        let ledger = if is_whole {
            Some(Self::map(memory)?)
        } else {
            None
        };
        let is_ours = |ledger: &Self| {
            ledger.word(0).load(Ordering::Acquire) == MAGIC
                && [WITHOUT_GENERATIONS, VERSION].contains(&ledger.version())
        };
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let ledger = ledger
            .filter(is_ours)
            .ok_or_else(|| invalid("not a ledger of this version"))?;
        if ledger.word(BROKEN_AT).load(Ordering::Acquire) != 0 {
            return Err(invalid(
                "more inodes are known than the ledger has room for",
            ));
        }
        Ok(ledger)
    }

    fn map(memory: OwnedFd) -> io::Result<Self> {
        let (prot, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::NORESERVE,
        );
        // SAFETY: the kernel chooses the address, so nothing that is mapped is replaced.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), SIZE, prot, flags, &memory, 0) }?;
        let start = NonNull::new(start.cast()).expect("a mapping is not at zero");
        Ok(Self {
            memory,
            start,
            next_note: AtomicUsize::new(0),
        })
    }

    fn version(&self) -> u64 {
        self.word(VERSION_AT).load(Ordering::Acquire)
    }

    /// The word at `at`.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(
            at.is_multiple_of(8) && at < LOGS_AT,
            "words are in the head"
        );
        // SAFETY: the mapping is page aligned and as long as SIZE, lives as long as `self`, and its
        // head is only ever used as these atomics.
        unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU64>() }
    }

    fn log_word(&self, log: usize) -> &AtomicU64 {
        assert!(log < LEDGER_LOGS, "there is such a log");
        self.word(WORDS_AT + log * 8)
    }

    /// Returns the half of a log that is in use, and its length.
    fn state(&self, log: usize) -> (usize, usize) {
        let word = self.log_word(log).load(Ordering::Acquire);
        let len = usize::try_from(word & !SECOND).unwrap_or(HALF_SIZE);
        (usize::from(word & SECOND != 0), len.min(HALF_SIZE))
    }

    fn set_state(&self, log: usize, half: usize, len: usize) {
        debug_assert!(half < 2 && len <= HALF_SIZE, "within the log");
        let word = len as u64 | if half == 1 { SECOND } else { 0 };
        self.log_word(log).store(word, Ordering::Release);
    }

    fn copy_in(&self, log: usize, half: usize, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= HALF_SIZE, "it fits");
        let offset = LOGS_AT + (log * 2 + half) * HALF_SIZE + at;
        // SAFETY: the assertions here and in `log_word` keep the range inside the mapping. No other
        // thread uses it: it is behind the length in the log's word, and the caller has the log's
        // lock.
        unsafe {
            let target = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    fn notes(&self, index: usize) -> (&AtomicU64, &AtomicU64) {
        let at = NOTES_AT + index % NOTES * 16;
        (self.word(at), self.word(at + 8))
    }
}

impl AsFd for SharedLedger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Ledger for SharedLedger {
    fn append(&self, log: usize, bytes: &[u8]) -> Option<usize> {
        let (half, len) = self.state(log);
        let end = len
            .checked_add(bytes.len())
            .filter(|&end| end <= HALF_SIZE)?;
        self.copy_in(log, half, len, bytes);
        self.set_state(log, half, end);
        Some(end)
    }

    fn replace(&self, log: usize, bytes: &[u8]) -> bool {
        let (old, _) = self.state(log);
        if bytes.len() > HALF_SIZE {
            self.word(BROKEN_AT).store(1, Ordering::Release);
            return false;
        }
        self.copy_in(log, 1 - old, 0, bytes);
        self.set_state(log, 1 - old, bytes.len());
        let offset = (LOGS_AT + (log * 2 + old) * HALF_SIZE) as u64;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let freed = rustix::fs::fallocate(&self.memory, flags, offset, HALF_SIZE as u64);
        if let Err(error) = freed {
            tracing::debug!(%error, "the old half of a log keeps its memory");
        }
        true
    }

    fn read(&self, log: usize) -> Vec<u8> {
        let (half, len) = self.state(log);
        let mut bytes = vec![0; len];
        let offset = LOGS_AT + (log * 2 + half) * HALF_SIZE;
        // SAFETY: inside the mapping as in `copy_in`; bytes within the length of the word are not
        // written any more.
        unsafe {
            let source = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), len);
        }
        bytes
    }

    fn has_generations(&self) -> bool {
        self.version() > WITHOUT_GENERATIONS
    }

    fn note(&self, unique: u64, ino: Ino) {
        let (number, about) = self.notes(self.next_note.fetch_add(1, Ordering::Relaxed));
        // A kill at any moment must not leave a number with another request's inode.
        number.store(0, Ordering::Release);
        about.store(ino.0, Ordering::Release);
        number.store(unique, Ordering::Release);
    }

    fn noted(&self, unique: u64) -> Option<Ino> {
        let mut places = (0..NOTES).map(|index| self.notes(index));
        let found = places.find(|(number, _)| number.load(Ordering::Acquire) == unique);
        found.map(|(_, about)| Ino(about.load(Ordering::Acquire)))
    }
}

impl Drop for SharedLedger {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping of this length, and no reference into it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), SIZE) };
        debug_assert!(unmapped.is_ok(), "it was mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_reads_what_was_added_and_replaced() {
        let ledger = SharedLedger::create().unwrap();
        assert_eq!(ledger.append(3, b"one"), Some(3));
        assert_eq!(ledger.append(3, b"two"), Some(6));
        assert!(ledger.replace(5, b"all"));
        ledger.note(7, Ino(70));
        let other = SharedLedger::open(ledger.memory.try_clone().unwrap()).unwrap();
        assert_eq!(other.read(3), b"onetwo");
        assert_eq!(other.read(5), b"all");
        assert_eq!((other.noted(7), other.noted(8)), (Some(Ino(70)), None));
        assert_eq!(other.append(5, b"more"), Some(7));
        assert!(other.replace(3, b""));
        assert_eq!(
            (ledger.read(5), ledger.read(3)),
            (b"allmore".to_vec(), vec![])
        );
    }

    #[test]
    fn a_log_is_full_at_its_size_and_gives_its_memory_back() {
        let ledger = SharedLedger::create().unwrap();
        let part = vec![1; HALF_SIZE / 2];
        assert_eq!(ledger.append(0, &part), Some(part.len()));
        assert_eq!(ledger.append(0, &part), Some(HALF_SIZE));
        assert_eq!(ledger.append(0, b"x"), None);
        let blocks = || rustix::fs::fstat(&ledger).unwrap().st_blocks;
        assert!(blocks() >= 100_000);
        assert!(ledger.replace(0, b"short"));
        assert!(blocks() < 1000);
    }

    #[test]
    fn a_ledger_that_did_not_fit_is_not_trusted() {
        let ledger = SharedLedger::create().unwrap();
        assert!(!ledger.replace(0, &vec![0; HALF_SIZE + 1]));
        assert!(ledger.replace(0, b"fits"));
        let error = SharedLedger::open(ledger.memory.try_clone().unwrap()).unwrap_err();
        assert!(error.to_string().contains("room"), "{error}");
    }

    #[test]
    fn a_mount_without_generations_stays_without() {
        let ledger = SharedLedger::create().unwrap();
        let again = || SharedLedger::open(ledger.memory.try_clone().unwrap());
        assert!(ledger.has_generations() && again().unwrap().has_generations());
        ledger.word(VERSION_AT).store(1, Ordering::Release);
        assert!(!again().unwrap().has_generations());
        for other in [0, 3] {
            ledger.word(VERSION_AT).store(other, Ordering::Release);
            assert!(again().is_err());
        }
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let memory = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(SharedLedger::open(memory.try_clone().unwrap()).is_err());
        rustix::fs::ftruncate(&memory, SIZE as u64).unwrap();
        assert!(SharedLedger::open(memory).is_err());
    }
}
