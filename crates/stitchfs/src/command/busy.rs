//! Names what has a store or a mount in use, where an error says that it is.
//!
//! The library knows that a store is locked, not by which process. `/proc` does:
//!
//! 1. `/proc/locks` lists locks of files by device and inode, for every user.
//! 2. `/proc/PID/fdinfo` tells which descriptors hold a lock: also where 1 has another device
//!    number than `stat` (Btrfs, overlayfs), and after a fork.
//! 3. A block device may be claimed without a lock, by a mount or another device.

use super::live;
use super::users::{self, Process, Users};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use stitch_device::DeviceError;
use stitch_fuse::MountError;
use stitch_fuse::mount::table;
use stitch_volume::VolumeError;
use stitch_vt::VtError;
use stitchfs::StoreError;

const LOCKS: &str = "/proc/locks";
const UNSEEN: &str = "a process that cannot be seen from here (another user's, or one in another \
     container)";

/// Returns what to print for an error, if that is that a store or a mount is in use.
pub(super) fn explain(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(path) = store_of(cause) {
            return Some(explain_store(path));
        }
        match cause.downcast_ref::<MountError>() {
            Some(MountError::Busy { path }) => Some(explain_mount(path)),
            _ => None,
        }
    })
}

/// Returns the path of the store that an error says is in use.
fn store_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Path> {
    fn of_vt(error: &VtError) -> Option<&Path> {
        match error {
            VtError::Volume(error) => of_volume(error),
            VtError::Instance { source, .. } => of_vt(source),
            _ => None,
        }
    }
    fn of_volume(error: &VolumeError) -> Option<&Path> {
        match error {
            VolumeError::Device(error) => of_device(error),
            _ => None,
        }
    }
    fn of_device(error: &DeviceError) -> Option<&Path> {
        match error {
            DeviceError::Busy { path } => Some(path),
            _ => None,
        }
    }
    fn of_store(error: &StoreError) -> Option<&Path> {
        match error {
            StoreError::Device(error) => of_device(error),
            StoreError::Volume(error) => of_volume(error),
            StoreError::Vt(error) => of_vt(error),
            _ => None,
        }
    }
    let of_store = || error.downcast_ref().and_then(of_store);
    let of_vt = || error.downcast_ref().and_then(of_vt);
    let of_volume = || error.downcast_ref().and_then(of_volume);
    let of_device = || error.downcast_ref().and_then(of_device);
    of_store()
        .or_else(of_vt)
        .or_else(of_volume)
        .or_else(of_device)
}

fn explain_store(path: &Path) -> String {
    let shown = path.display();
    if let Ok(Some(entry)) = live::mount_of(path) {
        let at = entry.path.display();
        let served = holders(path)
            .first()
            .map(|process| format!(", served by {process}"));
        let served = served.unwrap_or_default();
        return format!("{shown}: is in use: mounted at {at}{served}; unmount it first");
    }
    let mut text = format!("{shown}: is in use by ");
    let holders = holders(path);
    for (index, process) in holders.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{process}");
        if let Some(at) = mounted_by(process, path) {
            let at = at.display();
            let _ = write!(
                text,
                ", which has it mounted at {at} in its own mount namespace"
            );
        }
    }
    if holders.is_empty() {
        text.push_str(&kernel_user(path).unwrap_or_else(|| UNSEEN.to_owned()));
    }
    text
}

fn explain_mount(path: &Path) -> String {
    let shown = path.display();
    let found = stitch_fuse::mount::mounted_at(path).ok().flatten();
    let users = found.map(|entry| Users::inside(path, entry.device));
    let users = users.unwrap_or_default();
    format!(
        "{shown}: is busy: {users}; `stitchfs umount -l {shown}` detaches it now, and the store is \
         closed when its users leave"
    )
}

/// Reports whether a store that is not mounted here is mounted in the mount namespace of a process
/// that holds it: then waiting for it is in vain.
pub(super) fn is_mounted_elsewhere(path: &Path) -> bool {
    let holders = holders(path);
    holders
        .iter()
        .any(|process| mounted_by(process, path).is_some())
}

/// Returns where a process has a store mounted.
fn mounted_by(process: &Process, store: &Path) -> Option<PathBuf> {
    let store = store.canonicalize().ok()?;
    let mounts = table::read(&process.file("mountinfo")).ok()?;
    let mut ours = mounts.into_iter().rev().filter(table::MountEntry::is_ours);
    ours.find(|entry| Path::new(&entry.source) == store)
        .map(|entry| entry.path)
}

/// Returns the processes that have a store open, but for this one.
fn holders(path: &Path) -> Vec<Process> {
    let Ok(metadata) = path.metadata() else {
        return Vec::new();
    };
    let own = std::process::id();
    let text = std::fs::read_to_string(LOCKS).unwrap_or_default();
    let device = (
        rustix::fs::major(metadata.dev()),
        rustix::fs::minor(metadata.dev()),
    );
    let mut pids: BTreeSet<u32> = text
        .lines()
        .filter_map(|line| locker(line, device, metadata.ino()))
        .filter(|&pid| pid != own && Process::exists(pid))
        .collect();
    if pids.is_empty() {
        let is_block = metadata.file_type().is_block_device();
        let is_holder = |&pid: &u32| match is_block {
            true => users::has_block_device(pid, metadata.rdev()),
            false => users::has_locked(pid, device, metadata.ino()),
        };
        pids = users::pids()
            .filter(|&pid| pid != own)
            .filter(is_holder)
            .collect();
    }
    pids.into_iter().map(Process::new).collect()
}

/// Returns the process of a line of `/proc/locks` if that is a lock of flock(2) on this inode:
/// `1: FLOCK ADVISORY WRITE 733 fe:01:9437 0 EOF`.
fn locker(line: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let mut fields = line.split_whitespace().skip(1);
    if fields.next() != Some("FLOCK") {
        return None;
    }
    let pid = fields.nth(2)?.parse().ok()?;
    let file = fields.next()?;
    (file == format!("{major:02x}:{minor:02x}:{inode}")).then_some(pid)
}

/// Returns what the kernel itself uses a block device for.
fn kernel_user(path: &Path) -> Option<String> {
    if let Ok(Some(at)) = stitch_device::mounted_at(path) {
        return Some(format!("the mount at {}", at.display()));
    }
    let rdev = path.metadata().ok()?.rdev();
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let claims = std::fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders")).ok()?;
    let names: Vec<_> = claims
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    (!names.is_empty()).then(|| format!("the block device {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_by_device_and_inode() {
        let line = "12: FLOCK  ADVISORY  WRITE 733 fe:01:9437 0 EOF";
        assert_eq!(locker(line, (0xfe, 1), 9437), Some(733));
        assert_eq!(locker(line, (0xfe, 1), 943), None);
        assert_eq!(locker(line, (0xfe, 2), 9437), None);
        for line in [
            "12: POSIX  ADVISORY  WRITE 733 fe:01:9437 0 EOF",
            "12: -> FLOCK  ADVISORY  WRITE 733 fe:01:9437 0 EOF",
            "12: FLOCK  ADVISORY  WRITE -1 fe:01:9437 0 EOF",
            "",
        ] {
            assert_eq!(locker(line, (0xfe, 1), 9437), None, "{line}");
        }
    }

    #[test]
    fn a_store_in_use_is_found_however_deep_the_error_is() {
        let busy = || DeviceError::Busy {
            path: PathBuf::from("/none/a"),
        };
        let inner = VtError::Instance {
            name: "b".to_owned(),
            source: Box::new(VtError::Volume(VolumeError::Device(busy()))),
        };
        for error in [
            anyhow::Error::new(busy()),
            anyhow::Error::new(VolumeError::Device(busy())),
            anyhow::Error::new(StoreError::Device(busy())),
            anyhow::Error::new(StoreError::Vt(inner)).context("a"),
        ] {
            let text = explain(&error).unwrap();
            assert!(
                text.starts_with("/none/a: is in use by a process that cannot"),
                "{text}"
            );
        }
        assert_eq!(explain(&anyhow::anyhow!("alone")), None);
    }

    #[test]
    fn a_process_that_has_a_file_locked_is_told_from_one_that_has_it_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let device = (
            rustix::fs::major(metadata.dev()),
            rustix::fs::minor(metadata.dev()),
        );
        let is_found = || users::has_locked(std::process::id(), device, metadata.ino());
        assert!(!is_found());
        file.as_file().lock().unwrap();
        assert!(is_found());
    }
}
