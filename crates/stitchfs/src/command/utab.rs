//! An entry of ours in `/run/mount/utab`, where libmount keeps what the kernel does not know of
//! mounts.
//!
//! Without one, umount(8) of an absolute path takes the type from statfs(2), which is `fuse`, and
//! finds no helper. With one it reads the mount table, finds `fuse.stitchfs` and starts
//! `umount.fuse.stitchfs`, which waits until the store is closed. The entry has no other use, so
//! whatever goes wrong with it is no error of the mount.
//!
//! Rules of libmount (util-linux, `libmount/src/tab_update.c`): changes are made under a lock of
//! `utab.lock`, in a new file that replaces the old one. Lines of others stay as they are.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::mount;

/// The folder of libmount; where it is missing nothing reads the table.
const FOLDER: &str = "/run/mount";
const LOCK_TRIES: u32 = 50;
const LOCK_POLL: Duration = Duration::from_millis(20);

/// The entry of a mount; removed when dropped.
#[derive(Debug)]
pub(super) struct Listed {
    folder: PathBuf,
    target: PathBuf,
}

impl Listed {
    /// Lists the mount at `mount_point`. Returns `None` where no entry is needed, or none can be
    /// made: for users other than root, and without libmount.
    pub(super) fn new(mount_point: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new(FOLDER).is_dir() {
            return None;
        }
        let entry = mount::mounted_at(mount_point).ok().flatten()?;
        Self::in_folder(Path::new(FOLDER), &entry.source, &entry.path)
            .inspect_err(|error| tracing::debug!(%error, "no entry in {FOLDER}/utab"))
            .ok()
    }

    fn in_folder(folder: &Path, source: &OsStr, target: &Path) -> io::Result<Self> {
        let new = line(source, target);
        change(folder, |table| [without(table, target), new].concat())?;
        Ok(Self {
            folder: folder.to_owned(),
            target: target.to_owned(),
        })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let target = &self.target;
        if let Err(error) = change(&self.folder, |table| without(table, target)) {
            tracing::debug!(%error, "an entry stays in {}/utab", self.folder.display());
        }
    }
}

/// Replaces the table under its lock.
fn change(folder: &Path, edit: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let _locked = lock(&folder.join("utab.lock"))?;
    let path = folder.join("utab");
    let before = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let after = edit(&before);
    if after == before {
        return Ok(());
    }
    let new_path = folder.join(format!("utab.stitchfs.{}", std::process::id()));
    let replaced = write(&new_path, &after).and_then(|()| fs::rename(&new_path, &path));
    if replaced.is_err() {
        drop(fs::remove_file(&new_path));
    }
    replaced
}

fn write(path: &Path, table: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(table)
}

/// Locks the table. Other programs hold the lock for milliseconds.
fn lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => SystemClock::default().sleep(LOCK_POLL),
            locked => return Ok(locked.map(|()| file)?),
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// Returns the line of a mount, as libmount writes it.
fn line(source: &OsStr, target: &Path) -> Vec<u8> {
    let (source, target) = (escaped(source), escaped(target.as_os_str()));
    let (source, target) = (&source[..], &target[..]);
    [
        b"SRC=",
        source,
        b" TARGET=",
        target,
        b" ROOT=/ OPTS=x-stitchfs\n",
    ]
    .concat()
}

/// Returns the table without our line of a mount point.
fn without(table: &[u8], target: &Path) -> Vec<u8> {
    let target = [b"TARGET=", &escaped(target.as_os_str())[..]].concat();
    let is_ours = |line: &[u8]| {
        let words = line.split(u8::is_ascii_whitespace);
        let has = |wanted: &[u8]| words.clone().any(|word| word == wanted);
        has(b"OPTS=x-stitchfs") && has(&target)
    };
    let lines = table.split_inclusive(|byte| *byte == b'\n');
    let kept = lines.filter(|line| !is_ours(line));
    kept.collect::<Vec<_>>().concat()
}

/// Returns a value with white space and backslashes in octal.
fn escaped(value: &OsStr) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for &byte in value.as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => {
                out.extend_from_slice(format!("\\{byte:03o}").as_bytes())
            }
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: &str = "SRC=/dev/sda1 TARGET=/a\\040b ROOT=/ OPTS=uhelper=udisks2\n";

    #[test]
    fn an_entry_is_added_once_and_removed_and_others_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let table = folder.path().join("utab");
        let read = || fs::read_to_string(&table).expect("it reads");
        fs::write(&table, OTHERS).expect("it is written");
        let list = |target: &str| {
            let listed = Listed::in_folder(folder.path(), OsStr::new("/s"), Path::new(target));
            listed.expect("it is listed")
        };
        let first = list("/a b");
        assert_eq!(
            read(),
            format!("{OTHERS}SRC=/s TARGET=/a\\040b ROOT=/ OPTS=x-stitchfs\n")
        );
        let (again, second) = (list("/a b"), list("/c"));
        assert_eq!(read().lines().count(), 3, "{}", read());
        drop((first, again, second));
        assert_eq!(read(), OTHERS);
    }

    #[test]
    fn a_table_is_made_where_there_is_none_and_its_lock_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let listed = Listed::in_folder(folder.path(), OsStr::new("s"), Path::new("/m"));
        let mode = folder
            .path()
            .join("utab")
            .metadata()
            .expect("it is there")
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o644);
        let held = lock(&folder.path().join("utab.lock")).expect("it is free");
        let refused = Listed::in_folder(folder.path(), OsStr::new("s"), Path::new("/n"));
        assert_eq!(
            refused.map_err(|error| error.kind()).err(),
            Some(ErrorKind::TimedOut)
        );
        drop(held);
        drop(listed);
        assert_eq!(fs::read(folder.path().join("utab")).expect("it reads"), b"");
    }
}
