//! Finds what keeps a file system in use: mounts of it, here and in other mount namespaces, and
//! processes with files or directories in it.
//!
//! Nothing here sends a request to the daemon of the file system, which may be the one that waits:
//! device numbers come from the kernel's caches. Without root, only the caller's own processes and
//! namespaces are seen.

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::collections::HashSet;
use std::ffi::OsStr;
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
    pub(super) fn new(pid: u32) -> Self {
        let command = std::fs::read(proc_path(pid, "comm")).unwrap_or_default();
        let command = String::from_utf8_lossy(command.trim_ascii_end()).into_owned();
        Self { pid, command }
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

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

fn pids() -> impl Iterator<Item = u32> {
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
    let descriptors = std::fs::read_dir(proc_path(pid, "fd"));
    let descriptors = descriptors.into_iter().flatten().filter_map(Result::ok);
    let mut files = links.into_iter().chain(descriptors.map(|fd| fd.path()));
    files.any(|path| device_of(path.as_os_str()) == Some(device)) || maps(pid, device)
}

/// The device number behind a link in `/proc`. The mask is empty, so that no attributes are asked for.
fn device_of(path: &OsStr) -> Option<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

/// Reports whether a process maps a file: its lines are `from-to mode offset major:minor inode path`.
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
