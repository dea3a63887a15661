//! Making a store: what may be overwritten, and how a path becomes a formatted device.
//!
//! 1. A path that does not exist becomes a preallocated file; a file that holds nothing may be
//!    given another size; a block device is used whole.
//! 2. What holds data, or has the signature of anything known, is refused without `force`; what is
//!    in use is refused always.
//! 3. The device is formatted. A new file gets its name after that, so that no half-made store is
//!    left behind when it fails or the process ends in the middle of it.

use crate::{EngineKind, LargeFiles, StoreError};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, random};
use stitch_device::{
    Device, DeviceError, FileDevice, IoMode, LEN_UNIT_BYTES, OpenOptions, STORE_FILE_NAME, Unnamed,
    mounted_at, open_path,
};
use stitch_fs::CompressOptions;
use stitch_volume::{FormatOptions, VOLUME_BYTES_MIN, Volume, VolumeError};

/// How to make a store.
#[derive(Clone, Debug, Default)]
pub struct MakeOptions {
    /// Size of a new file, in bytes, rounded up to 4 KiB. Needed unless there is a file or device.
    pub len_bytes: Option<u64>,
    /// Name given by the user.
    pub label: String,
    /// Overwrite what is there.
    pub force: bool,
    /// Length of a zone, in bytes.
    pub zone_bytes: Option<u64>,
    /// Length that the store can be grown to later, in bytes. By default 16 times its own length,
    /// at least 1 GiB; without bound from 8 GiB on. Costs 1/2048 of it for a longer log, 64 MiB at
    /// most.
    pub grown_bytes: Option<u64>,
    /// Owner and mode of the root directory.
    pub root: RootOwner,
    /// How the file system is compressed.
    pub compress: CompressOptions,
    /// What keeps the records.
    pub engine: EngineKind,
    /// Which files are plain files in the directory of a store of the RocksDB engine, unless a
    /// mount says otherwise; by default those larger than 4 KiB.
    pub large_files: LargeFiles,
}

/// Owner and mode of the root directory of a new store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootOwner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

impl Default for RootOwner {
    /// The superuser, for all to read.
    fn default() -> Self {
        Self {
            uid: 0,
            gid: 0,
            mode: 0o755,
        }
    }
}

/// The file, device or directory that `path` means: in a directory that is no store, the store in
/// it.
#[must_use]
pub fn store_path(path: &Path) -> PathBuf {
    if path.is_dir() && EngineKind::at(path) == EngineKind::Vt {
        path.join(STORE_FILE_NAME)
    } else {
        path.to_owned()
    }
}

/// What is done with a device that was found or made.
type Work<'a, T> = dyn FnMut(&Arc<dyn Device>) -> Result<T, StoreError> + 'a;

/// Finds or makes the device that `path` means and hands it to `make`. If that fails, nothing is
/// left of a file that was made here.
pub(crate) fn on_device<T>(
    path: &Path,
    options: &MakeOptions,
    io: IoMode,
    make: &mut Work<'_, T>,
) -> Result<T, StoreError> {
    let path = store_path(path);
    check_for_volume(&path, options)?;
    let target = Found::find(&path)?;
    let (device, unnamed) = target.prepare(&path, options, io)?;
    let made = make(&device);
    match (made, unnamed, target) {
        (Ok(made), Some(unnamed), _) => {
            unnamed.publish()?;
            Ok(made)
        }
        (Err(error), None, Found::Nothing) => {
            // The error that stopped us says more than a failed clean-up would.
            let _ = fs::remove_file(&path);
            Err(error)
        }
        (made, _, _) => made,
    }
}

/// Refuses what a store on a volume cannot be made of.
fn check_for_volume(path: &Path, options: &MakeOptions) -> Result<(), StoreError> {
    let path = path.to_owned();
    if options.large_files != LargeFiles::AsMade {
        return Err(StoreError::Lacks {
            path,
            engine: EngineKind::Vt,
            what: "size of large files of its own: each mount says it",
        });
    }
    if EngineKind::at(&path) == EngineKind::RocksDb {
        let reason = "holds a store of the RocksDB engine; give another path".to_owned();
        return Err(StoreError::Directory { path, reason });
    }
    Ok(())
}

/// Makes an empty volume on a device.
pub(crate) fn format_device(
    device: &dyn Device,
    options: &MakeOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), StoreError> {
    let bytes = random::bytes16().map_err(|source| StoreError::Host {
        op: "find random numbers for",
        path: device.geometry().into_path(),
        source,
    })?;
    let format = FormatOptions {
        uuid: *uuid::Builder::from_random_bytes(bytes).as_uuid().as_bytes(),
        label: options.label.clone(),
        zone_bytes: options.zone_bytes,
        grown_bytes: options.grown_bytes,
        ..FormatOptions::default()
    };
    Volume::format(device, &format, progress).map_err(|error| match error {
        VolumeError::Invalid { reason } => StoreError::Size {
            path: device.geometry().into_path(),
            reason,
        },
        other => other.into(),
    })
}

/// A device to make a store on, and the name that it is still to get.
type NewDevice = (Arc<dyn Device>, Option<Unnamed>);

/// What is at a path before a store is made there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    File { len_bytes: u64 },
    BlockDevice,
    Unfit,
}

impl Found {
    fn find(path: &Path) -> Result<Self, StoreError> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::Nothing),
            Err(e) => return Err(host("look at", path, e)),
        };
        let kind = metadata.file_type();
        Ok(if kind.is_file() {
            Self::File {
                len_bytes: metadata.len(),
            }
        } else if kind.is_block_device() {
            Self::BlockDevice
        } else {
            Self::Unfit
        })
    }

    fn prepare(
        self,
        path: &Path,
        options: &MakeOptions,
        io: IoMode,
    ) -> Result<NewDevice, StoreError> {
        if !matches!(self, Self::BlockDevice) {
            io.check_for_file(&path.display().to_string())?;
        }
        let len_bytes = options.len_bytes.map(|bytes| round_up(path, bytes));
        let len_bytes = len_bytes.transpose()?;
        match self {
            Self::Nothing => create(path, len_bytes),
            Self::File { len_bytes: old } => {
                reuse_file(path, old, len_bytes, options.force)?;
                Ok((open(path, io)?, None))
            }
            Self::BlockDevice => {
                reuse_device(path, len_bytes, options.force)?;
                Ok((open(path, io)?, None))
            }
            // Says what it is and what to give instead.
            Self::Unfit => Ok((open(path, io)?, None)),
        }
    }
}

fn open(path: &Path, io: IoMode) -> Result<Arc<dyn Device>, StoreError> {
    let options = OpenOptions {
        reserve: true,
        io,
        ..OpenOptions::default()
    };
    Ok(open_path(path, options)?)
}

/// Creates a file, without its name where the host can do that.
fn create(path: &Path, len_bytes: Option<u64>) -> Result<NewDevice, StoreError> {
    let Some(len_bytes) = len_bytes else {
        return Err(no_size(path, "does not exist"));
    };
    let explain = |error| explain(path, len_bytes, error);
    let unnamed = FileDevice::create_unnamed(path, len_bytes).map_err(explain)?;
    if let Some((device, unnamed)) = unnamed {
        return Ok((Arc::new(device), Some(unnamed)));
    }
    let device = FileDevice::create(path, len_bytes).map_err(explain)?;
    Ok((Arc::new(device), None))
}

fn explain(path: &Path, len_bytes: u64, error: DeviceError) -> StoreError {
    match error.kind() {
        ErrorKind::NoSpace => size(
            path,
            &format!(
                "the file system there has no room for {} MiB; give a smaller size, or free some",
                len_bytes >> 20
            ),
        ),
        _ => error.into(),
    }
}

/// Checks that a file may be overwritten, and gives it the size that was asked for.
fn reuse_file(
    path: &Path,
    old_bytes: u64,
    len_bytes: Option<u64>,
    force: bool,
) -> Result<(), StoreError> {
    if old_bytes == 0 && len_bytes.is_none() {
        return Err(no_size(path, "is empty"));
    }
    let mut found = None;
    if old_bytes > 0 && old_bytes.is_multiple_of(LEN_UNIT_BYTES) {
        // Refuses a store that is in use.
        let device = open_path(path, OpenOptions::default())?;
        found = Volume::probe(device.as_ref())?.map(|signature| signature.name);
    }
    if !force && (found.is_some() || has_data(path)?) {
        let what = found.unwrap_or("data").to_owned();
        return Err(StoreError::Occupied {
            path: path.to_owned(),
            what,
        });
    }
    if let Some(len_bytes) = len_bytes.filter(|bytes| *bytes != old_bytes) {
        let resized = File::options().write(true).open(path);
        resized
            .and_then(|file| file.set_len(len_bytes))
            .map_err(|e| host("resize", path, e))?;
    }
    Ok(())
}

fn reuse_device(path: &Path, len_bytes: Option<u64>, force: bool) -> Result<(), StoreError> {
    if len_bytes.is_some() {
        return Err(size(
            path,
            "is a block device and used whole; leave out the size",
        ));
    }
    if let Some(at) = mounted_at(path)? {
        return Err(StoreError::Mounted {
            path: path.to_owned(),
            at,
        });
    }
    let device = open_path(path, OpenOptions::default())?;
    match Volume::probe(device.as_ref())? {
        Some(signature) if !force => Err(StoreError::Occupied {
            path: path.to_owned(),
            what: signature.name.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// True unless the file is one hole.
fn has_data(path: &Path) -> Result<bool, StoreError> {
    let file = File::open(path).map_err(|e| host("open", path, e))?;
    match rustix::fs::seek(&file, SeekFrom::Data(0)) {
        Ok(_) => Ok(true),
        Err(Errno::NXIO) => Ok(false),
        Err(error) => Err(host("read", path, error.into())),
    }
}

fn round_up(path: &Path, bytes: u64) -> Result<u64, StoreError> {
    if bytes < VOLUME_BYTES_MIN {
        let least = VOLUME_BYTES_MIN >> 20;
        return Err(size(
            path,
            &format!("is too small for a store; give {least}M or more"),
        ));
    }
    let rounded = bytes.checked_next_multiple_of(LEN_UNIT_BYTES);
    rounded.ok_or_else(|| size(path, "no file can be that large"))
}

fn size(path: &Path, reason: &str) -> StoreError {
    StoreError::Size {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}

fn no_size(path: &Path, found: &'static str) -> StoreError {
    StoreError::NoSize {
        path: path.to_owned(),
        found,
    }
}

fn host(op: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Host {
        op,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: u64 = 16 << 20;

    fn options(len_bytes: Option<u64>) -> MakeOptions {
        MakeOptions {
            len_bytes,
            ..MakeOptions::default()
        }
    }

    fn make(path: &Path, options: &MakeOptions) -> Result<u64, StoreError> {
        on_device(path, options, IoMode::Auto, &mut |device| {
            format_device(device.as_ref(), options, &mut |_, _| {})?;
            Ok(device.geometry().len_bytes)
        })
    }

    #[test]
    fn a_new_file_gets_the_size_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(
            make(&path, &options(Some(SMALL + 1))).unwrap(),
            SMALL + 4096
        );
        let device = open_path(&path, OpenOptions::default()).unwrap();
        assert!(Volume::identify(device.as_ref()).is_ok());
    }

    #[test]
    fn a_half_made_store_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let wanted = options(Some(SMALL));
        let mut was_there = true;
        on_device(&path, &wanted, IoMode::Auto, &mut |_| {
            was_there = path.exists();
            Ok(())
        })
        .unwrap();
        assert!(!was_there, "an interrupted mkfs would leave it behind");
        assert!(path.exists());
    }

    #[test]
    fn a_directory_gets_a_store_inside() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), &options(Some(SMALL))).unwrap();
        assert!(dir.path().join(STORE_FILE_NAME).is_file());
    }

    #[test]
    fn a_store_or_data_is_overwritten_by_force_only() {
        let dir = tempfile::tempdir().unwrap();
        let (store, data) = (dir.path().join("store"), dir.path().join("data"));
        make(&store, &options(Some(SMALL))).unwrap();
        fs::write(&data, b"precious").unwrap();
        for (path, what) in [(&store, "StitchFS"), (&data, "data")] {
            let error = make(path, &options(Some(SMALL))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Exists);
            assert!(error.to_string().contains(what), "{error}");
            let forced = MakeOptions {
                force: true,
                ..options(Some(2 * SMALL))
            };
            assert_eq!(make(path, &forced).unwrap(), 2 * SMALL);
        }
    }

    #[test]
    fn a_hole_or_an_empty_file_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (hole, empty) = (dir.path().join("hole"), dir.path().join("empty"));
        File::create(&hole).unwrap().set_len(SMALL).unwrap();
        assert_eq!(make(&hole, &options(None)).unwrap(), SMALL);
        fs::write(&empty, b"").unwrap();
        assert!(make(&empty, &options(None)).is_err());
        assert_eq!(make(&empty, &options(Some(SMALL))).unwrap(), SMALL);
    }

    #[test]
    fn a_store_in_use_is_refused_by_force_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        make(&path, &options(Some(SMALL))).unwrap();
        let _open = open_path(&path, OpenOptions::default()).unwrap();
        let forced = MakeOptions {
            force: true,
            ..options(None)
        };
        let error = make(&path, &forced).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
    }

    #[test]
    fn a_failure_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for options in [
            options(None),
            options(Some(SMALL - 1)),
            MakeOptions {
                zone_bytes: Some(12_345),
                ..options(Some(SMALL))
            },
            MakeOptions {
                label: "x".repeat(65),
                ..options(Some(SMALL))
            },
        ] {
            make(&path, &options).unwrap_err();
            assert!(!path.exists(), "{options:?}");
        }
    }
}
