//! Large files as plain files beside the store.
//!
//! A file that a write, a new size or an allocation takes past a threshold leaves the store: its
//! contents become a plain file, its row keeps the rest, and a row of the sys tree
//! ([`ExternalRow`]) says which plain file it is. It comes back only when it is cut to nothing. See
//! `docs/adr/0083-external-large-files.md`.
//!
//! Order, so that neither a power cut nor a kill can mislead:
//! 1. *Leaving*: the plain file is made, filled and synced, its name too; then one batch says that
//!    the contents are there. A plain file without a row is what a crash left, and goes at the next
//!    open.
//! 2. *Growing*: bytes go to the plain file, then the new size to the row. What the plain file
//!    lacks of the size reads as zeros, but only behind `settled`, the length that was synced;
//!    below it is damage.
//! 3. *Cutting*: the smaller size goes to the row. Bytes of the plain file behind that size are not
//!    of the file any more. Before the file may grow again they are cut off, and that is synced, so
//!    that they cannot come back.
//! 4. *Leaving for good*: the rows go; once that is durable, the plain file is removed.
//! 5. *Lent*: while the kernel may read the plain file itself, it is as long as the file, and stays
//!    (`lent`).
//!
//! | part | has |
//! |---|---|
//! | [`Externals`] | what is known of each plain file in use, those to be removed, their number |
//! | [`PlainFiles`] | one plain file: opened by its row, read, written, cut, made durable |
//! | [`inodes::ExternalContents`] | all, with their inodes: synced, trimmed, lent, removed |
//! | `operations.rs` | what [`crate::FileSystem`] offers of them |
//!
//! Invariants, on the medium at any time:
//! - `settled` is at most the size, and the plain file is at least `settled` bytes long;
//! - a plain file with a row has no bytes between its size and its end that a later growth could
//!   show.
//!
//! Locks: what is kept of a file is guarded by its inode's lock; `files` and `retired` are leaves.

mod files;
mod inodes;
mod lent;
mod mem;
mod operations;
mod sweep;
pub(crate) use files::PlainFiles;
pub(crate) use inodes::ExternalContents;
pub use mem::{MemFiles, MemFilesPoint, PLAIN_OPS, PlainFault, PlainHit};

use crate::data::FILE_BYTES_MAX;
use crate::{FsError, FsResult, SeekFor};
use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{ErrorKind, Ino};
use stitch_format::fs_sys::ExternalRow;

/// Files larger than this become external, where nothing else is said.
pub const EXTERNAL_FROM_BYTES: u64 = 1 << 20;
const _: () = assert!(
    EXTERNAL_FROM_BYTES >= crate::data::INLINE_BYTES_MAX,
    "external files are too large for their rows"
);
const _: () = assert!(
    EXTERNAL_FROM_BYTES < FILE_BYTES_MAX,
    "a file can become so large"
);

/// Which plain file: the inode, and a number that no other plain file ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExternalName {
    /// The inode whose contents it has.
    pub ino: Ino,
    /// Its number.
    pub number: u64,
}

impl fmt::Display for ExternalName {
    /// Both in hexadecimal, with a dot between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.ino.0, self.number)
    }
}

impl std::str::FromStr for ExternalName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ino, number) = text.split_once('.').ok_or(())?;
        let parse = |text| u64::from_str_radix(text, 16).map_err(|_| ());
        let (ino, number) = (Ino(parse(ino)?), parse(number)?);
        let name = Self { ino, number };
        if name.to_string() == text {
            Ok(name)
        } else {
            Err(())
        }
    }
}

/// A plain file that fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: cannot {op}: {reason}")]
pub struct ExternalError {
    /// Where it is.
    pub path: String,
    /// What was tried.
    pub op: &'static str,
    /// What the host says.
    pub reason: String,
    /// What a caller can do about it.
    pub kind: ErrorKind,
}

/// Result of an operation on plain files.
pub type ExternalResult<T> = Result<T, ExternalError>;

/// The plain files of one file system. Shared by threads.
///
/// # Durability
/// None but by [`Self::sync`], [`Self::publish`] and [`Self::remove`]; a killed process loses
/// nothing that returned. After a power cut what was not synced may be there, or not, or in part,
/// and never bytes of another file.
///
/// # Errors
/// [`ExternalError`] with [`ErrorKind::NotFound`] for a file that is not there,
/// [`ErrorKind::NoSpace`] where the host is full, [`ErrorKind::Invalid`] where it lets no file be
/// so long, else mostly [`ErrorKind::Io`].
pub trait ExternalFiles: Send + Sync {
    /// Makes an empty file; [`ErrorKind::Exists`] if there is one.
    fn create(&self, name: ExternalName) -> ExternalResult<()>;

    /// Appends the bytes that exist of `[offset, offset + len)` to `out`. Returns their number.
    fn read_at(
        &self,
        name: ExternalName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> ExternalResult<usize>;

    /// Writes all of `bytes`; after an error any part may have been written.
    fn write_at(&self, name: ExternalName, offset: u64, bytes: &[u8]) -> ExternalResult<()>;

    /// Cuts the file, or lets it grow by a hole.
    fn set_len(&self, name: ExternalName, len: u64) -> ExternalResult<()>;

    /// Makes a range read as zeros, and gives its space back where that can be done. It is within
    /// the file.
    fn punch(&self, name: ExternalName, offset: u64, len: u64) -> ExternalResult<()>;

    /// Gives a range the host's space, also beyond the end, where the host can. Length and contents
    /// stay.
    fn allocate(&self, name: ExternalName, offset: u64, len: u64) -> ExternalResult<()>;

    /// The next data or hole at or after `offset`; `None` if there is no data. The end counts as a
    /// hole.
    fn seek(&self, name: ExternalName, offset: u64, what: SeekFor) -> ExternalResult<Option<u64>>;

    /// Its length in bytes.
    fn len(&self, name: ExternalName) -> ExternalResult<u64>;

    /// Makes contents and length durable.
    fn sync(&self, name: ExternalName) -> ExternalResult<()>;

    /// Makes contents, length and the file's name durable.
    fn publish(&self, name: ExternalName) -> ExternalResult<()>;

    /// Removes the file; one that is not there is no error. Some time later that is durable.
    fn remove(&self, name: ExternalName) -> ExternalResult<()>;

    /// Moves a file away to where people can find it. Returns the new path.
    fn set_aside(&self, name: ExternalName) -> ExternalResult<String>;

    /// All files with their lengths, in no order.
    fn list(&self) -> ExternalResult<Vec<(ExternalName, u64)>>;

    /// Where a file is, for people.
    fn path(&self, name: ExternalName) -> String;

    /// Bytes that the host could still take.
    fn free_bytes(&self) -> ExternalResult<u64>;

    /// Reports whether the engine's space is that of the host, so that [`Engine::space`] has
    /// counted the files and the free bytes already.
    ///
    /// [`Engine::space`]: stitch_kv::Engine::space
    fn shares_engine_space(&self) -> bool {
        false
    }

    /// When its contents changed last. Only good for being compared: another moment, another
    /// number.
    fn modified(&self, name: ExternalName) -> ExternalResult<u64>;

    /// The file itself, open for reading, to be lent to the kernel. [`ErrorKind::Unsupported`]
    /// where it is none of the host's.
    fn host_file(&self, name: ExternalName) -> ExternalResult<OwnedFd>;

    /// A file that is the contents of no inode, in the same place, open for reading past the page
    /// cache: to try what the kernel does with such files. [`ErrorKind::Unsupported`] as for
    /// [`Self::host_file`].
    fn sample(&self) -> ExternalResult<OwnedFd>;
}

impl From<ExternalError> for FsError {
    fn from(error: ExternalError) -> Self {
        match error.kind {
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::Invalid => Self::FileTooBig,
            _ => Self::External(error),
        }
    }
}

/// Where large files go.
#[derive(Clone)]
pub struct External {
    /// The plain files.
    pub files: Arc<dyn ExternalFiles>,
    /// Files that become larger than this go there; without it none do, and those that are there
    /// stay.
    pub from_bytes: Option<u64>,
    /// Each write is durable when it returns.
    pub is_synchronous: bool,
}

/// What is known of a plain file.
///
/// Invariants: one that is mapped is lent, and counts as not synced; what is settled is there,
/// unless a sync failed.
#[derive(Debug)]
struct Status {
    /// Its length.
    len: u64,
    /// The size by its inode's row.
    size: u64,
    /// As the trees say.
    settled: u64,
    /// Something of it may not be durable.
    is_dirty: bool,
    /// Bytes that were cut off cannot come back by a power cut.
    is_cut_durable: bool,
    /// A sync failed, or its length could not be told after an error: what it holds is not known
    /// any more, and `len` is the most that it can be.
    is_failed: bool,
    /// Its rows are gone, or will be with the commit that is under way.
    is_gone: bool,
    /// The kernel may read it without us.
    is_lent: bool,
    /// The kernel may write to it without us, through mappings: when it changed last, as far as we
    /// know.
    mapped: Option<u64>,
}

impl Status {
    /// Of a plain file of `len` bytes that is unchanged so far.
    const fn new(len: u64, size: u64, settled: u64) -> Self {
        debug_assert!(
            settled <= len,
            "a plain file is never shorter than what is settled"
        );
        Self {
            len,
            size,
            settled,
            is_dirty: false,
            is_cut_durable: true,
            is_failed: false,
            is_gone: false,
            is_lent: false,
            mapped: None,
        }
    }

    /// Reports whether a plain file that is mapped is lent and counts as not synced, and has what
    /// is settled.
    const fn holds(&self) -> bool {
        (self.mapped.is_none() || (self.is_lent && self.is_dirty))
            && (self.is_failed || self.settled <= self.len)
    }

    const fn is_too_long(&self) -> bool {
        self.len > self.size
    }

    const fn needs_trim(&self) -> bool {
        self.is_too_long() || !self.is_cut_durable
    }

    const fn is_unsettled(&self) -> bool {
        !self.is_failed && (self.is_dirty || self.is_too_long())
    }
}

/// A plain file in use.
pub(crate) struct Plain {
    pub(crate) name: ExternalName,
    status: Mutex<Status>,
}

impl Plain {
    /// Its length.
    pub(crate) fn len(&self) -> u64 {
        let status = self.status.lock();
        debug_assert!(status.holds(), "mappings are of lent files");
        status.len
    }

    /// It is not known what it holds, and how long it is.
    pub(crate) fn is_failed(&self) -> bool {
        let status = self.status.lock();
        debug_assert!(status.holds(), "mappings are of lent files");
        status.is_failed
    }
}

/// The plain files of an open file system.
#[derive(Default)]
pub(crate) struct Externals {
    external: Option<External>,
    known: Mutex<HashMap<Ino, Arc<Plain>>>,
    /// Without rows, as soon as that is durable.
    retired: Mutex<Vec<ExternalName>>,
    /// One thread removes them at a time: others wait for what it gives back.
    removing: Mutex<()>,
    count: AtomicU64,
    bytes: AtomicU64,
}

/// What a row says of a plain file that a batch takes from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    name: ExternalName,
    settled: u64,
}

impl Externals {
    pub(crate) fn new(external: Option<External>) -> Self {
        Self {
            external,
            ..Self::default()
        }
    }

    /// The plain files.
    pub(crate) fn files(&self) -> FsResult<&dyn ExternalFiles> {
        match &self.external {
            Some(external) => Ok(&*external.files),
            None => Err(FsError::Corrupt(
                "there are external files, and no folder of them".to_owned(),
            )),
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.external.is_some()
    }

    pub(crate) fn is_synchronous(&self) -> bool {
        self.external.as_ref().is_some_and(|e| e.is_synchronous)
    }

    /// Reports whether a file of `size` bytes that is to have `end` leaves the store now. What is
    /// larger already was made without the option, and stays: leaving costs no more than the
    /// threshold.
    pub(crate) fn wants(&self, size: u64, end: u64) -> bool {
        debug_assert!(end <= FILE_BYTES_MAX, "the caller has checked the end");
        let from = self.external.as_ref().and_then(|e| e.from_bytes);
        from.is_some_and(|from| size <= from && end > from)
    }

    /// Reports whether files can become external.
    pub(crate) fn takes_more(&self) -> bool {
        self.external
            .as_ref()
            .is_some_and(|e| e.from_bytes.is_some())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn add(&self, count: u64, bytes: u64) {
        debug_assert!(count <= 1, "plain files are counted one by one");
        self.count.fetch_add(count, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes bytes from the count.
    pub(crate) fn uncount(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "the bytes were counted");
    }

    fn set_len(&self, status: &mut Status, len: u64) {
        debug_assert!(status.holds(), "mappings are of lent files");
        let by = len.wrapping_sub(status.len);
        self.bytes.fetch_add(by, Ordering::Relaxed);
        status.len = len;
    }

    /// Adds the plain file of a file that has just left the store.
    pub(crate) fn enter(&self, name: ExternalName, len: u64, size: u64) {
        debug_assert!(name.number > 0, "0 is the number of no plain file");
        debug_assert_ne!(name.ino, Ino::ROOT, "the root is a directory");
        debug_assert!(len <= size, "a plain file is no longer than its file");
        debug_assert!(size <= FILE_BYTES_MAX, "the size of a file");
        self.add(1, len);
        let status = Mutex::new(Status::new(len, size, len));
        let plain = Arc::new(Plain { name, status });
        let before = self.known.lock().insert(name.ino, plain);
        debug_assert!(before.is_none(), "an inode has one plain file");
    }

    fn find(&self, ino: Ino) -> Option<Arc<Plain>> {
        let plain = self.known.lock().get(&ino).cloned();
        debug_assert!(
            plain.as_ref().is_none_or(|plain| plain.name.ino == ino),
            "the plain file of the inode"
        );
        plain
    }

    /// Notes the size of an inode by its row. Returns a plain file that must be cut now.
    pub(crate) fn note_size(&self, ino: Ino, size: u64) -> Option<Arc<Plain>> {
        debug_assert!(size <= FILE_BYTES_MAX, "the size of a file");
        let plain = self.find(ino)?;
        let mut status = plain.status.lock();
        status.size = size;
        status.settled = status.settled.min(size);
        debug_assert!(
            status.settled <= status.size,
            "what is settled is within the size"
        );
        debug_assert!(status.holds(), "mappings are of lent files");
        let is_unfit = status.is_lent && status.is_too_long();
        drop(status);
        is_unfit.then_some(plain)
    }

    /// Notes, before the commit that deletes the rows, that nothing is committed for the file any
    /// more.
    pub(crate) fn leave(&self, leaving: &Leaving) {
        if let Some(plain) = self.find(leaving.name.ino) {
            debug_assert_eq!(plain.name, leaving.name, "the plain file of the row");
            let mut status = plain.status.lock();
            debug_assert!(!status.is_gone, "its rows are deleted once");
            status.is_gone = true;
        }
    }

    /// Takes back [`Self::leave`] after a commit that failed.
    pub(crate) fn stay(&self, leaving: &Leaving) {
        if let Some(plain) = self.find(leaving.name.ino) {
            debug_assert_eq!(plain.name, leaving.name, "the plain file of the row");
            let mut status = plain.status.lock();
            debug_assert!(status.is_gone, "it was about to leave");
            status.is_gone = false;
        }
    }

    /// Queues a plain file for removal, after the commit that deletes its rows.
    pub(crate) fn retire(&self, leaving: &Leaving) {
        debug_assert!(leaving.name.number > 0, "0 is the number of no plain file");
        if let Some(plain) = self.known.lock().remove(&leaving.name.ino) {
            debug_assert_eq!(plain.name, leaving.name, "the plain file of the row");
            let mut status = plain.status.lock();
            debug_assert!(status.is_gone, "nothing is committed for it any more");
            self.set_len(&mut status, leaving.settled);
        }
        let count = self.count.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(count > 0, "the plain file was counted");
        self.uncount(leaving.settled);
        let mut retired = self.retired.lock();
        debug_assert!(
            !retired.contains(&leaving.name),
            "a plain file loses its rows once"
        );
        retired.push(leaving.name);
    }

    /// Notes that the inode is not known any more.
    pub(crate) fn forget(&self, ino: Ino) {
        let mut known = self.known.lock();
        let Some(plain) = known.get(&ino) else { return };
        let mut status = plain.status.lock();
        debug_assert!(status.holds(), "mappings are of lent files");
        let is_needed = status.is_dirty || status.is_failed || status.is_lent;
        debug_assert_eq!(plain.name.ino, ino, "the plain file of the inode");
        debug_assert!(
            is_needed || status.mapped.is_none(),
            "a mapped file is in use"
        );
        if !is_needed && status.len == status.settled {
            status.is_gone = true;
            drop(status);
            known.remove(&ino);
        }
    }

    /// Reports whether a sync would do something for one of them.
    fn are_unsettled(&self) -> bool {
        if !self.is_there() {
            return false;
        }
        // One that is locked is being written or settled.
        let is_open = |plain: &Arc<Plain>| plain.status.try_lock().is_none_or(|s| s.is_unsettled());
        !self.retired.lock().is_empty() || self.known.lock().values().any(is_open)
    }

    fn all(&self) -> Vec<(Ino, Arc<Plain>)> {
        let known = self.known.lock();
        let mut all: Vec<_> = known.iter().map(|(ino, p)| (*ino, Arc::clone(p))).collect();
        all.sort_by_key(|(ino, _)| *ino);
        debug_assert!(
            all.is_sorted_by(|one, next| one.0 < next.0),
            "an inode has one plain file"
        );
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_nothing_else_is_one() {
        let name = ExternalName {
            ino: Ino(0x1f),
            number: 0xabc,
        };
        assert_eq!(name.to_string(), "1f.abc");
        assert_eq!("1f.abc".parse(), Ok(name));
        for other in ["", "1f", "1F.abc", "1f.abc.1", "01.2", "+1.2", "x.1", "1."] {
            assert_eq!(other.parse::<ExternalName>(), Err(()), "{other}");
        }
    }
}
