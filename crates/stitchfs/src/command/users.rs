//! Finds what keeps a file system in use: mounts of it, here and in other mount namespaces, and
//! processes with files or directories in it.
//!
//! Nothing here sends a request to the daemon of the file system, which may be the one that waits:
//! device numbers come from the kernel's caches. Without root, only the caller's own processes and
//! namespaces are seen.

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use stitch_fuse::mount::table;

/// Users that are listed; the number of the others follows.
const LISTED_MAX: usize = 4;

/// Something that keeps a file system in use.
#[derive(Clone, Debug, PartialEq, Eq)]
enum User {
    /// A mount in this mount namespace.
    Mount(PathBuf),
    /// A mount in the mount namespace of a process.
    MountOf(Process, PathBuf),
    /// A process with a file, a mapping or a directory in it.
    Process(Process),
}

/// A process, and the name of its command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pid: u32,
    command: String,
}

impl Process {
    /// Reads the name of its command.
    pub(super) fn new(pid: u32) -> Self {
        let command = std::fs::read(proc_path(pid, "comm")).unwrap_or_default();
        let command = String::from_utf8_lossy(command.trim_ascii_end()).into_owned();
        Self { pid, command }
    }

    /// Reports whether there is a process of this number.
    pub(super) fn exists(pid: u32) -> bool {
        proc_path(pid, "").exists()
    }

    /// Returns the path of one of its files in `/proc`.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        proc_path(self.pid, name)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, command } = self;
        write!(f, "process {pid} ({})", command.escape_default())
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(path) => write!(f, "mounted at {}", path.display()),
            Self::MountOf(process, path) => {
                let path = path.display();
                write!(f, "mounted at {path} in the mount namespace of {process}")
            }
            Self::Process(process) => write!(f, "used by {process}"),
        }
    }
}

/// All users of a file system, found by its device number.
#[derive(Debug, Default)]
pub(super) struct Users(Vec<User>);

impl Users {
    /// Looks for mounts of the file system anywhere, and for processes in it.
    pub(super) fn anywhere(device: (u32, u32)) -> Self {
        let mut users = Self::default();
        users.add_mounts(device);
        users.add_processes(device);
        users
    }

    /// Looks for what makes the file system at `path` busy: mounts below, and processes in it.
    pub(super) fn inside(path: &Path, device: (u32, u32)) -> Self {
        let mut users = Self::default();
        let mounts = table::list().unwrap_or_default().into_iter();
        let below = mounts.filter(|entry| entry.path != path && entry.path.starts_with(path));
        users.0.extend(below.map(|entry| User::Mount(entry.path)));
        users.add_processes(device);
        users
    }

    fn add_mounts(&mut self, device: (u32, u32)) {
        let mut seen: HashSet<_> = namespace(Path::new("/proc/self")).into_iter().collect();
        let paths = mounts("/proc/self/mountinfo".as_ref(), device);
        self.0.extend(paths.into_iter().map(User::Mount));
        for pid in pids() {
            if namespace(&proc_path(pid, "")).is_none_or(|namespace| !seen.insert(namespace)) {
                continue;
            }
            let paths = mounts(&proc_path(pid, "mountinfo"), device);
            let of = |path| User::MountOf(Process::new(pid), path);
            self.0.extend(paths.into_iter().map(of));
        }
    }

    fn add_processes(&mut self, device: (u32, u32)) {
        let others = pids().filter(|&pid| pid != std::process::id());
        let users = others.filter(|&pid| is_in(pid, device));
        self.0
            .extend(users.map(|pid| User::Process(Process::new(pid))));
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("held by a mount or a process that cannot be seen from here");
        }
        for (index, user) in self.0.iter().take(LISTED_MAX).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{user}")?;
        }
        match self.0.len().saturating_sub(LISTED_MAX) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

fn proc_path(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

/// Returns the numbers of all processes that can be seen.
pub(super) fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The mount namespace of a process.
fn namespace(process: &Path) -> Option<PathBuf> {
    std::fs::read_link(process.join("ns/mnt")).ok()
}

/// Mount points of a file system in the namespace that a table is of.
fn mounts(table: &Path, device: (u32, u32)) -> Vec<PathBuf> {
    let mounts = table::read(table).unwrap_or_default();
    let same = mounts.into_iter().filter(|entry| entry.device == device);
    same.map(|entry| entry.path).collect()
}

/// Reports whether a process has an open file, a mapping, its root, its program or its working
/// directory in a file system.
fn is_in(pid: u32, device: (u32, u32)) -> bool {
    let links = ["cwd", "root", "exe"].map(|name| proc_path(pid, name));
    let mut files = links.into_iter().chain(descriptors(pid));
    files.any(|path| device_of(&path) == Some(device)) || maps(pid, device)
}

/// Reports whether a process holds a lock of flock(2) on a file, by one of its descriptors.
pub(super) fn has_locked(pid: u32, device: (u32, u32), inode: u64) -> bool {
    let is_same = |found: &Statx| {
        (found.stx_dev_major, found.stx_dev_minor) == device && found.stx_ino == inode
    };
    descriptors(pid).any(|fd| status(&fd).is_some_and(|found| is_same(&found)) && locks(pid, &fd))
}

/// Reports whether a process has a block device open.
pub(super) fn has_block_device(pid: u32, number: u64) -> bool {
    let number = (rustix::fs::major(number), rustix::fs::minor(number));
    let is_same = |found: Statx| {
        FileType::from_raw_mode(found.stx_mode.into()) == FileType::BlockDevice
            && (found.stx_rdev_major, found.stx_rdev_minor) == number
    };
    descriptors(pid).any(|fd| status(&fd).is_some_and(is_same))
}

fn descriptors(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(proc_path(pid, "fd"));
    let entries = entries.into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.path())
}

/// Reports whether the kernel lists a lock of flock(2) for a descriptor: `lock: 1: FLOCK ...`.
fn locks(pid: u32, descriptor: &Path) -> bool {
    let Some(number) = descriptor.file_name() else {
        return false;
    };
    let text = std::fs::read_to_string(proc_path(pid, "fdinfo").join(number));
    let text = text.unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("lock:"));
    lines.any(|line| line.split_whitespace().nth(1) == Some("FLOCK"))
}

/// Returns the device number behind a link in `/proc`.
fn device_of(path: &Path) -> Option<(u32, u32)> {
    status(path).map(|found| (found.stx_dev_major, found.stx_dev_minor))
}

/// Returns what the kernel knows of a file without asking its file system: numbers, no attributes.
fn status(path: &Path) -> Option<Statx> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, flags, StatxFlags::empty()).ok()
}

/// Reports whether a process maps a file: its lines are `from-to mode offset major:minor inode
/// path`.
fn maps(pid: u32, (major, minor): (u32, u32)) -> bool {
    let text = std::fs::read(proc_path(pid, "maps")).unwrap_or_default();
    let device = format!("{major:02x}:{minor:02x}");
    let mut lines = text.split(|&byte| byte == b'\n');
    lines.any(|line| line.split(|&byte| byte == b' ').nth(3) == Some(device.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_process_is_found_by_what_it_has_open() {
        let mine = std::process::id();
        let dev = std::fs::metadata("/proc/self/exe").unwrap().dev();
        let device = (rustix::fs::major(dev), rustix::fs::minor(dev));
        assert!(is_in(mine, device) && maps(mine, device));
        assert!(!is_in(mine, (4095, 7)));
        assert!(!mounts("/proc/self/mountinfo".as_ref(), device).is_empty());
    }

    #[test]
    fn a_long_list_is_cut() {
        let user = |pid| {
            let command = "a\nb".to_owned();
            User::Process(Process { pid, command })
        };
        let users = Users((1..=6).map(user).collect()).to_string();
        assert!(users.starts_with("used by process 1 (a\\nb), "), "{users}");
        assert!(users.ends_with("process 4 (a\\nb), and 2 more"), "{users}");
    }
}
