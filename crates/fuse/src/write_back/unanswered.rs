//! The kernel's count of requests of a mount that it has no reply of, from fusectl.
//!
//! fusectl is mounted on most machines, and often not in containers. Where it is not, a daemon of
//! root has an instance of it that is mounted nowhere; all others do without the count.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Result as OsResult;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where fusectl is mounted: a folder for each connection.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Longest number of requests as text.
const TEXT_BYTES_MAX: u64 = 32;

/// The file with the count of one connection.
#[derive(Debug)]
pub(super) struct UnansweredCount {
    /// Where fusectl is mounted.
    connections: PathBuf,
    /// The file in fusectl.
    file: PathBuf,
    /// An instance of fusectl that is mounted nowhere; `None` if this user may not have one.
    own: OnceLock<Option<OwnedFd>>,
}

impl UnansweredCount {
    /// Returns that of the connection of a mount, by the minor number of its device.
    pub(super) fn of(minor: u32) -> Self {
        Self {
            connections: PathBuf::from(CONNECTIONS),
            file: Path::new(&minor.to_string()).join("waiting"),
            own: OnceLock::new(),
        }
    }

    /// Returns the count; `None` if fusectl cannot be read.
    ///
    /// The file is opened each time: fusectl may be mounted later than the store, and its absence
    /// costs one system call.
    pub(super) fn read(&self) -> Option<u64> {
        let mounted = File::open(self.connections.join(&self.file));
        let file = mounted.ok().or_else(|| self.open_own())?;
        let mut text = String::new();
        file.take(TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    fn open_own(&self) -> Option<File> {
        let own = self.own.get_or_init(|| fusectl().ok()).as_ref()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(own, &self.file, flags, Mode::empty());
        file.ok().map(File::from)
    }
}

/// Returns an instance of fusectl that is mounted nowhere. It goes when it is closed.
fn fusectl() -> OsResult<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_where_it_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let waiting = UnansweredCount {
            connections: dir.path().to_owned(),
            own: OnceLock::from(None),
            ..UnansweredCount::of(39)
        };
        std::fs::create_dir(dir.path().join("39")).unwrap();
        let file = dir.path().join("39/waiting");
        for (text, count) in [("3\n", Some(3)), ("0\n", Some(0)), ("what\n", None)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(waiting.read(), count, "{text:?}");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(waiting.read(), None, "fusectl was unmounted");
    }

    #[test]
    fn a_connection_that_is_not_there_has_no_count() {
        assert_eq!(UnansweredCount::of(u32::MAX).read(), None);
    }
}
