//! `stitchfs clone` of a file: a copy that shares its contents.

use super::shown;
use crate::command::output;
use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde_json::json;
use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Longest value, and longest list of names, of extended attributes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Copies a file with its attributes to a new name in its mount.
pub(super) fn run(source: &Path, target: &Path, is_json: bool) -> Result<u8> {
    let from = File::open(source).with_context(|| shown(source))?;
    let about = from.metadata().with_context(|| shown(source))?;
    if !about.is_file() {
        bail!("{}: is no file and no directory", shown(source));
    }
    let mut options = OpenOptions::new();
    let to = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target);
    let to = to.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow!("{}: exists; give a new name", shown(target)),
        _ => anyhow!("{}: {error}", shown(target)),
    })?;
    if let Err(error) = fill(&from, &to, &about) {
        // It may be gone already.
        let _ = std::fs::remove_file(target);
        return Err(error.context(shown(target)));
    }
    if is_json {
        let mut out = json!({ "size": about.len() });
        stitchfs::set_path(&mut out, "clone", target);
        output::print_json(&out)?;
    }
    Ok(0)
}

/// Copies contents, then attributes, and makes them durable.
fn fill(from: &File, to: &File, about: &Metadata) -> Result<()> {
    // By `copy_file_range`, which shares within one view; from a snapshot by reads and writes.
    let (mut source, mut target) = (from, to);
    std::io::copy(&mut source, &mut target)?;
    let owner = (Uid::from_raw(about.uid()), Gid::from_raw(about.gid()));
    match rustix::fs::fchown(to, Some(owner.0), Some(owner.1)) {
        // As of `cp -p`: it belongs to the caller then.
        Ok(()) | Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    rustix::fs::fchmod(to, Mode::from_raw_mode(about.mode() & 0o7777))?;
    copy_xattrs(from, to)?;
    let time = |seconds, nanoseconds| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: time(about.atime(), about.atime_nsec()),
        last_modification: time(about.mtime(), about.mtime_nsec()),
    };
    rustix::fs::futimens(to, &times)?;
    to.sync_all()?;
    Ok(())
}

/// Copies extended attributes. Of those that the caller may not set, only `user.` ones are missed.
fn copy_xattrs(from: &File, to: &File) -> Result<()> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let len = match rustix::fs::flistxattr(from, &mut names[..]) {
        Ok(len) => len,
        // The mount has none.
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut value = vec![0; XATTR_BYTES_MAX];
    let names = names[..len].split(|byte| *byte == 0);
    for name in names.filter(|name| !name.is_empty()) {
        let key = CString::new(name)?;
        let len = match rustix::fs::fgetxattr(from, &key, &mut value[..]) {
            Ok(len) => len,
            // It was removed meanwhile.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(error.into()),
        };
        let set = rustix::fs::fsetxattr(to, &key, &value[..len], XattrFlags::empty());
        if let Err(error) = set
            && (name.starts_with(b"user.") || error != Errno::PERM)
        {
            let shown = OsStr::from_bytes(name).to_string_lossy().into_owned();
            return Err(anyhow!("{error}").context(shown));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_copy_has_contents_mode_and_times() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&from, vec![7; 100_000]).unwrap();
        std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o741)).unwrap();
        let file = File::options().write(true).open(&from).unwrap();
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        file.set_modified(old).unwrap();
        assert_eq!(run(&from, &to, false).unwrap(), 0);
        assert_eq!(std::fs::read(&to).unwrap(), vec![7; 100_000]);
        let about = to.metadata().unwrap();
        assert_eq!(about.mode() & 0o7777, 0o741);
        assert_eq!(about.modified().unwrap(), old);
        let error = run(&from, &to, false).unwrap_err().to_string();
        assert!(error.contains("give a new name"), "{error}");
        assert!(run(dir.path(), &dir.path().join("x"), false).is_err());
        assert!(!dir.path().join("x").exists());
    }
}
