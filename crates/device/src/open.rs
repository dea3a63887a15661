//! Opens the device at a path: finds its type, checks that it is usable, and locks it.

use crate::counter::Request;
use crate::{Device, DeviceError, FileDevice, RawDevice};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use stitch_base::sync::Arc;

/// Name of the store file in a directory that is given instead of a file.
pub const STORE_FILE_NAME: &str = "store.stitch";

/// Unit of device sizes, in bytes.
pub const LEN_UNIT_BYTES: u64 = 4096;

/// How to open a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open for reading only, shared with other readers.
    pub read_only: bool,
    /// Allocate the holes of a sparse file, for `mkfs`.
    pub reserve: bool,
    /// How a block device is read and written. A file always goes through the page cache.
    pub io: IoMode,
}

/// How a block device is read and written. A file goes through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// Direct I/O for writes of blocks and for single reads; reads in order are read ahead into the
    /// page cache. Everything goes through the page cache if the device does not support direct
    /// I/O.
    #[default]
    Auto,
    /// Everything goes through the page cache.
    Buffered,
    /// Direct I/O (`O_DIRECT`) for requests of whole sectors.
    Direct,
    /// Direct I/O, and parallel reads by io_uring.
    Ring,
}

impl IoMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Buffered, Self::Direct, Self::Ring];

    /// The name in mount options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Buffered => "buffered",
            Self::Direct => "direct",
            Self::Ring => "uring",
        }
    }

    /// Checks that a file can be read and written in this mode.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] if not, with the modes that work.
    pub fn check_for_file(self, name: &str) -> Result<(), DeviceError> {
        match self {
            Self::Auto | Self::Buffered => Ok(()),
            Self::Direct | Self::Ring => {
                let way = self.name();
                let reason = format!(
                    "is a file, which is read and written through the page cache; {way} is for \
                     block devices, auto and buffered are for files"
                );
                Err(unsuitable(name, reason))
            }
        }
    }
}

impl FromStr for IoMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|mode| mode.name() == word)
            .ok_or_else(|| format!("{word:?}: give auto, buffered, direct or uring"))
    }
}

/// Opens whatever is at `path`: a block device, a file, or a directory with a store in it.
///
/// # Errors
/// [`DeviceError::Unsuitable`] for anything else, with a remedy; [`DeviceError::Busy`] if another
/// process has it open; [`DeviceError::Io`] if it does not exist or cannot be opened.
pub fn open_path(path: &Path, options: OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
    let resolved = resolve(path);
    let name = resolved.display().to_string();
    match PathType::of(&resolved, &name)? {
        PathType::BlockDevice => Ok(Arc::new(RawDevice::open(&resolved, options)?)),
        PathType::File => {
            options.io.check_for_file(&name)?;
            Ok(Arc::new(FileDevice::open(&resolved, options)?))
        }
    }
}

/// Returns the path itself, or that of the store file inside a directory.
pub(crate) fn resolve(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join(STORE_FILE_NAME)
    } else {
        path.to_owned()
    }
}

/// Type of a path that can be a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathType {
    File,
    BlockDevice,
}

impl PathType {
    fn of(path: &Path, name: &str) -> Result<Self, DeviceError> {
        let metadata = path
            .metadata()
            .map_err(|e| Request::new("open", 0, 0).failed(name, e))?;
        let kind = metadata.file_type();
        if kind.is_file() {
            return Ok(Self::File);
        }
        if kind.is_block_device() {
            return Ok(Self::BlockDevice);
        }
        let found = if kind.is_fifo() {
            "a named pipe"
        } else if kind.is_socket() {
            "a socket"
        } else if kind.is_char_device() {
            "a character device"
        } else {
            "a directory"
        };
        Err(unsuitable(
            name,
            format!("is {found}; give a file, a directory or a block device"),
        ))
    }
}

/// Checks the type of a path before it is opened: opening a pipe would block.
pub(crate) fn require_type(path: &Path, name: &str, wanted: PathType) -> Result<(), DeviceError> {
    if PathType::of(path, name)? == wanted {
        return Ok(());
    }
    let reason = match wanted {
        PathType::File => "is a block device, not a file",
        PathType::BlockDevice => "is a file, not a block device",
    };
    Err(unsuitable(name, reason.to_owned()))
}

/// Checks that the size of a file is valid for a device.
pub(crate) fn check_len(name: &str, len_bytes: u64) -> Result<(), DeviceError> {
    if len_bytes == 0 {
        return Err(unsuitable(
            name,
            "is empty: there is no store in it".to_owned(),
        ));
    }
    if !len_bytes.is_multiple_of(LEN_UNIT_BYTES) {
        let reason = format!(
            "size of {len_bytes} bytes is not a multiple of {LEN_UNIT_BYTES}; was it cut short?"
        );
        return Err(unsuitable(name, reason));
    }
    if i64::try_from(len_bytes).is_err() {
        return Err(unsuitable(
            name,
            format!("size of {len_bytes} bytes is too large"),
        ));
    }
    Ok(())
}

/// Refuses a file that is longer than `RLIMIT_FSIZE`: its writes would fail later.
pub(crate) fn check_limit(name: &str, len_bytes: u64) -> Result<(), DeviceError> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < len_bytes => Err(unsuitable(
            name,
            format!(
                "size of {len_bytes} bytes is over this process's limit for the size of a file, \
                 {limit} bytes (RLIMIT_FSIZE, ulimit -f)"
            ),
        )),
        _ => Ok(()),
    }
}

/// A file with a lock that excludes other writers. Dropping it unlocks the file even if a forked
/// child still has the descriptor: the two share one lock.
#[derive(Debug)]
pub(crate) struct Locked {
    file: File,
    /// The process that may unlock it.
    process: u32,
}

impl Locked {
    /// Locks a file without waiting.
    pub(crate) fn new(file: File, path: &Path, read_only: bool) -> Result<Self, DeviceError> {
        lock(&file, path, read_only)?;
        let process = std::process::id();
        Ok(Self { file, process })
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A child that drops its copy must not unlock the file of its parent.
        if self.process == std::process::id() {
            // Unlocking an open and locked file does not fail; closing it unlocks it, too.
            let _ = flock(&self.file, FlockOperation::NonBlockingUnlock);
        }
    }
}

/// Takes the lock that excludes other writers, without waiting.
fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), DeviceError> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(DeviceError::Busy {
                    path: path.to_owned(),
                });
            }
            Err(errno) => {
                let name = path.display().to_string();
                return Err(Request::new("lock", 0, 0).failed(&name, errno));
            }
        }
    }
}

pub(crate) fn unsuitable(name: &str, reason: String) -> DeviceError {
    DeviceError::Unsuitable {
        name: name.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use stitch_base::ErrorKind;

    fn reason(path: &Path) -> String {
        match open_path(path, OpenOptions::default()) {
            Err(DeviceError::Unsuitable { reason, .. }) => reason,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_a_device_is_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(reason(&pipe).contains("named pipe"));
        assert!(reason(Path::new("/dev/null")).contains("character device"));
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(reason(&file).contains("empty"));
        std::fs::write(&file, [0u8; 4097]).unwrap();
        assert!(reason(&file).contains("4097 bytes is not a multiple of 4096"));
    }

    #[test]
    fn a_missing_path_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().join("none"), dir.path().to_owned()] {
            let error = open_path(&path, OpenOptions::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_file_opens_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        drop(FileDevice::create(dir.path(), 65536).unwrap());
        let device = open_path(dir.path(), OpenOptions::default()).unwrap();
        assert_eq!(device.geometry().len_bytes, 65536);
        assert!(!device.geometry().is_block_device);
        assert!(device.geometry().name.ends_with(STORE_FILE_NAME));
    }

    #[test]
    fn ways_have_words_and_a_file_has_one_way() {
        for io in IoMode::ALL {
            assert_eq!(io.name().parse(), Ok(io));
        }
        let error = "io_uring".parse::<IoMode>().unwrap_err();
        assert!(error.contains("auto, buffered, direct or uring"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        drop(FileDevice::create(dir.path(), 65536).unwrap());
        for (io, is_possible) in IoMode::ALL.into_iter().zip([true, true, false, false]) {
            let options = OpenOptions {
                io,
                ..OpenOptions::default()
            };
            match open_path(dir.path(), options) {
                Ok(_) => assert!(is_possible, "{io:?}"),
                Err(error) => {
                    assert!(!is_possible, "{error}");
                    assert_eq!(error.kind(), ErrorKind::Invalid);
                    assert!(
                        error
                            .to_string()
                            .contains("auto and buffered are for files")
                    );
                }
            }
        }
    }

    #[test]
    fn a_file_is_no_block_device() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, [0u8; 4096]).unwrap();
        let error = RawDevice::open(&file, OpenOptions::default()).unwrap_err();
        assert!(matches!(error, DeviceError::Unsuitable { .. }));
    }
}
