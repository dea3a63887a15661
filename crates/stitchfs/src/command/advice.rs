//! What the user can do about an error of the library, in the words of the command line.
//!
//! The library's messages say what happened; a program that uses it has no command line. Advice
//! that loses data says so.

use std::io;
use std::path::{Path, PathBuf};
use stitch_device::{DeviceError, STORE_FILE_NAME};
use stitch_fuse::backing::NoPassthrough;
use stitch_fuse::mount;
use stitch_fuse::mount::table::MountEntry;
use stitch_fuse::transport::uring::Refusal;
use stitch_fuse::{MountError, SessionError};
use stitch_volume::VolumeError;
use stitch_vt::VtError;
use stitchfs::{EngineKind, StoreError};

/// Returns the advice for an error, if there is any.
pub(super) fn of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let of_store = || cause.downcast_ref().and_then(of_store);
        let of_vt = || cause.downcast_ref().and_then(of_vt);
        let of_volume = || cause.downcast_ref().and_then(of_volume);
        let of_mount = || cause.downcast_ref().and_then(of_mount);
        let of_session = || cause.downcast_ref().and_then(of_session);
        let of_device = || cause.downcast_ref().and_then(of_device);
        of_store()
            .or_else(of_device)
            .or_else(of_vt)
            .or_else(of_volume)
            .or_else(of_mount)
            .or_else(of_session)
    })
}

fn of_store(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Occupied { .. } => {
            Some("--force overwrites it, and all that is in it is lost".to_owned())
        }
        StoreError::Mounted { .. } => Some(UNMOUNT.to_owned()),
        StoreError::NoSize { .. } => Some("give the size, as --size 8G".to_owned()),
        StoreError::NoFileSystem {
            path,
            is_empty,
            others,
            ..
        } => Some(add_file_system(path, *is_empty, others)),
        StoreError::Volume(error) => of_volume(error),
        StoreError::Vt(error) => of_vt(error),
        StoreError::Session(error) => of_session(error),
        StoreError::Device(error) => of_device(error),
        _ => None,
    }
}

/// A directory was given, and taken for one with a store in it.
fn of_device(error: &DeviceError) -> Option<String> {
    let DeviceError::Io { name, source, .. } = error else {
        return None;
    };
    let path = Path::new(name);
    let is_missing = source.kind() == io::ErrorKind::NotFound && path.ends_with(STORE_FILE_NAME);
    let dir = path.parent().filter(|dir| is_missing && dir.is_dir())?;
    let mounted = mount::mounted_at(dir).ok().flatten();
    let mounted = mounted.filter(MountEntry::is_ours);
    let store = mounted.map(|entry| PathBuf::from(entry.source));
    Some(of_directory(dir, store.as_deref()))
}

/// Returns the advice for a directory in which no store is; `mounted` is the store that is mounted
/// there.
fn of_directory(dir: &Path, mounted: Option<&Path>) -> String {
    let dir = dir.display();
    match mounted {
        Some(store) => {
            let store = store.display();
            format!("{dir} is the mount point of {store}: unmount that and give {store}")
        }
        None => format!("no StitchFS is mounted at {dir}, and no store is in it"),
    }
}

const UNMOUNT: &str = "unmount it first";

/// Returns how to get a file system into a store, or to one that is in it, without a loss.
pub(super) fn add_file_system(path: &Path, is_empty: bool, others: &[String]) -> String {
    if EngineKind::at(path) == EngineKind::RocksDb {
        return of_records_on_rocksdb(path, is_empty);
    }
    let path = path.display();
    if is_empty {
        return format!(
            "`stitchfs mkfs --force {path}` makes it anew; nothing is in it to be lost"
        );
    }
    let add = format!(
        "`stitchfs instance create --fs {path} NAME` adds a file system and keeps all records, \
         `stitchfs mount -o instance=NAME {path} MNT` mounts it"
    );
    match others.first() {
        Some(name) => format!("instance {name} has a file system; {add}"),
        None => add,
    }
}

/// How to get a file system where a store of the RocksDB engine has none: it cannot be added.
fn of_records_on_rocksdb(path: &Path, is_empty: bool) -> String {
    let path = path.display();
    match is_empty {
        true => format!(
            "`stitchfs mkfs --engine rocksdb --force {path}` makes it anew; nothing is in it to \
             be lost"
        ),
        false => "`stitchfs mkfs --engine rocksdb` makes one in another directory".to_owned(),
    }
}

fn of_vt(error: &VtError) -> Option<String> {
    match error {
        VtError::Volume(error) => of_volume(error),
        VtError::Instance { source, .. } => of_vt(source),
        _ => None,
    }
}

fn of_volume(error: &VolumeError) -> Option<String> {
    match error {
        VolumeError::NotAVolume { holds: None, .. } => {
            Some("`stitchfs mkfs` makes one there, and all that is there is lost".to_owned())
        }
        VolumeError::NoInstance { .. } => {
            Some("`stitchfs instance list` tells which there are".to_owned())
        }
        VolumeError::Device(error) => of_device(error),
        VolumeError::NoZones { .. } => {
            Some("the commands are `stitchfs defrag` and `stitchfs grow`".to_owned())
        }
        _ => None,
    }
}

fn of_session(error: &SessionError) -> Option<String> {
    match error {
        SessionError::Mount(error) => of_mount(error),
        SessionError::NoRing(Refusal::Held) => {
            Some("give -o transport=dev, or leave out -o restart".to_owned())
        }
        SessionError::NoRing(_) => Some("or leave out -o transport=uring".to_owned()),
        SessionError::NoResend => Some("or leave out -o restart".to_owned()),
        SessionError::NoPassthrough(NoPassthrough::Held) => {
            Some("leave out one of -o restart and -o passthrough".to_owned())
        }
        SessionError::HeldAtomicWrites => {
            Some("leave out one of -o restart and -o atomic_write".to_owned())
        }
        SessionError::NoPassthrough(NoPassthrough::NoFiles) => Some(
            "give -o large_files=external too, for a store in a file, or leave out -o passthrough"
                .to_owned(),
        ),
        _ => None,
    }
}

fn of_mount(error: &MountError) -> Option<String> {
    match error {
        MountError::Dead { .. } => Some(UNMOUNT.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(error: impl Into<anyhow::Error>) -> String {
        of(&error.into()).unwrap_or_default()
    }

    #[test]
    fn advice_is_found_however_deep_the_error_is() {
        let none = || VolumeError::NoInstance {
            name: "a".to_owned(),
        };
        let inner = VtError::Instance {
            name: "b".to_owned(),
            source: Box::new(VtError::Volume(none())),
        };
        let errors = [
            anyhow::Error::new(none()),
            anyhow::Error::new(StoreError::Volume(none())),
            anyhow::Error::new(StoreError::Vt(inner)).context("a"),
        ];
        for error in errors {
            assert!(advice(error).contains("instance list"));
        }
        assert_eq!(advice(anyhow::anyhow!("alone")), "");
    }

    #[test]
    fn a_mount_point_is_not_said_to_have_no_mount() {
        let dir = Path::new("/srv");
        let advised = of_directory(dir, Some(Path::new("/data/a.stitch")));
        assert_eq!(
            advised,
            "/srv is the mount point of /data/a.stitch: unmount that and give /data/a.stitch"
        );
        assert!(of_directory(dir, None).contains("no StitchFS is mounted at /srv"));
    }

    #[test]
    fn a_mount_that_survives_is_advised_to_have_no_atomic_writes() {
        let advised = advice(SessionError::HeldAtomicWrites);
        assert!(advised.contains("restart") && advised.contains("atomic_write"));
    }

    #[test]
    fn a_file_system_is_never_made_over_records() {
        let without = |is_empty, others: &[&str]| {
            advice(StoreError::NoFileSystem {
                path: PathBuf::from("a"),
                instance: "main".to_owned(),
                is_empty,
                others: others.iter().map(|&name| name.to_owned()).collect(),
            })
        };
        assert!(without(true, &[]).contains("mkfs --force a"));
        assert!(without(false, &[]).contains("instance create --fs a NAME"));
        assert!(without(false, &["mail"]).contains("instance mail has"));
        for others in [&[][..], &["mail"]] {
            assert!(!without(false, others).contains("force"));
        }
    }
}
