//! The mount table, from `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::MountError;

pub(super) const TABLE_PATH: &str = "/proc/self/mountinfo";

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number in the table.
    pub id: u32,
    /// The number of the mount that its mount point is in; that one may be outside of the table.
    pub parent: u32,
    /// Its root directory, as a path in its file system: `/`, but for a bind mount.
    pub root: PathBuf,
    /// The mount point.
    pub path: PathBuf,
    /// Its device number, major and minor.
    pub device: (u32, u32),
    /// Its type, as `fuse.stitchfs`.
    pub kind: String,
    /// The source.
    pub source: OsString,
    /// Options of this mount, as `rw,noatime`.
    pub options: String,
    /// Options of the file system.
    pub super_options: String,
}

impl MountEntry {
    /// Reports whether it is a FUSE file system.
    #[must_use]
    pub fn is_fuse(&self) -> bool {
        ["fuse", "fuseblk"].contains(&self.kind.as_str()) || self.kind.starts_with("fuse.")
    }

    /// Returns the number of the user who mounted it, if it is a FUSE file system.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        let mut options = self.super_options.split(',');
        let user = options.find_map(|option| option.strip_prefix("user_id="));
        user.filter(|_| self.is_fuse())?.parse().ok()
    }

    /// Reports whether it is a StitchFS mount.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.kind.strip_prefix("fuse.") == Some(super::SUBTYPE)
    }
}

/// Returns the topmost mount at `path`, which must not contain links.
///
/// # Errors
/// When the table cannot be read.
pub fn find(path: &Path) -> Result<Option<MountEntry>, MountError> {
    Ok(list()?.into_iter().rev().find(|entry| entry.path == path))
}

/// Returns all mounts, oldest first.
///
/// # Errors
/// When the table cannot be read.
pub fn list() -> Result<Vec<MountEntry>, MountError> {
    read(Path::new(TABLE_PATH))
}

/// Returns all mounts of a table, possibly of another process, oldest first.
///
/// # Errors
/// When the table cannot be read.
pub fn read(table: &Path) -> Result<Vec<MountEntry>, MountError> {
    let text = std::fs::read(table).map_err(|source| MountError::Io {
        op: "read",
        path: table.to_owned(),
        source,
    })?;
    Ok(text
        .split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .collect())
}

/// `id parent major:minor root path options [fields] - kind source super-options`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (id, parent) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let (major, minor) = text()?.split_once(':')?;
    let root = unescape(fields.next()?);
    let path = unescape(fields.next()?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    let super_options = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(MountEntry {
        id,
        parent,
        root: PathBuf::from(OsString::from_vec(root)),
        path: PathBuf::from(OsString::from_vec(path)),
        device: (major.parse().ok()?, minor.parse().ok()?),
        kind,
        source,
        options,
        super_options,
    })
}

/// Decodes a field, in which spaces and the like are a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .first_chunk::<3>()
            .filter(|_| first == b'\\')
            .and_then(|digits| {
                let digits = std::str::from_utf8(digits).ok()?;
                u8::from_str_radix(digits, 8).ok()
            });
        out.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = b"36 35 0:51 /a\\011b /mnt/with\\040blank rw,noatime shared:1 master:2 - \
            fuse.stitchfs /dev/a\\134b rw,user_id=0";
        let entry = parse_line(line).unwrap();
        assert_eq!((entry.id, entry.parent), (36, 35));
        assert_eq!(entry.root, Path::new("/a\tb"));
        assert_eq!(entry.path, Path::new("/mnt/with blank"));
        assert_eq!(entry.device, (0, 51));
        assert_eq!(entry.source, "/dev/a\\b");
        assert_eq!(entry.options, "rw,noatime");
        assert!(entry.is_fuse() && entry.is_ours());
    }

    #[test]
    fn broken_lines_are_passed_over() {
        for line in [
            &b""[..],
            b"1 2 3:4 / /p rw",
            b"1 2 x:y / /p rw - t s o",
            b"- - - - -",
        ] {
            assert_eq!(parse_line(line), None);
        }
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(find(Path::new("/")).unwrap().is_some());
    }
}
