//! Finds the mount of a block device in the kernel's list.

use crate::DeviceError;
use crate::counter::Request;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Returns the mount point of the block device at `path`. `None` if it is not mounted or not a
/// block device.
///
/// # Errors
/// [`DeviceError::Io`] if `path` or the kernel's list cannot be read.
pub fn mounted_at(path: &Path) -> Result<Option<PathBuf>, DeviceError> {
    let request = Request::new("open", 0, 0);
    let metadata = path
        .metadata()
        .map_err(|e| request.failed(&path.display().to_string(), e))?;
    if !metadata.file_type().is_block_device() {
        return Ok(None);
    }
    let list = std::fs::read(MOUNTINFO).map_err(|e| request.failed(MOUNTINFO, e))?;
    let rdev = metadata.rdev();
    let number = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let source = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Ok(find(&list, &number, &source))
}

/// Finds a mount by device number, or by source for file systems with a device number of their own.
fn find(list: &[u8], number: &str, source: &Path) -> Option<PathBuf> {
    list.split(|&b| b == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let at = fields.get(4)?;
        let dash = fields.iter().position(|&field| field == b"-")?;
        let same_number = *fields.get(2)? == number.as_bytes();
        let same_source = fields
            .get(dash + 2)
            .is_some_and(|field| unescape(field) == source);
        (same_number || same_source).then(|| unescape(at))
    })
}

/// Decodes a path of the list, where spaces and the like are a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| first == b'\\').and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        out.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"22 1 254:1 / / rw,noatime shared:1 - ext4 /dev/vda1 rw\n\
        31 22 0:44 / /mnt/a\\040b rw - btrfs /dev/vdb rw,ssd\n";

    #[test]
    fn a_mount_is_found_by_number_and_by_source() {
        let none = Path::new("/dev/none");
        assert_eq!(find(LIST, "254:1", none), Some("/".into()));
        assert_eq!(
            find(LIST, "8:1", Path::new("/dev/vdb")),
            Some("/mnt/a b".into())
        );
        assert_eq!(find(LIST, "25:1", none), None);
        assert_eq!(find(b"", "254:1", none), None);
        assert_eq!(find(b"\n1 2 254:1\n", "254:1", none), None);
    }

    #[test]
    fn a_file_is_not_mounted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(mounted_at(file.path()).unwrap(), None);
    }
}
