//! Extended attributes, access lists among them.

use crate::beneath::Root;
use crate::receive::RECEIVED_XATTR;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;

/// Attributes by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Buffer of one call; the kernel has no longer lists or values.
const BYTES_MAX: usize = 64 << 10;

/// Reads all attributes that are sent of a path. A file system without attributes has none.
pub(crate) fn read(root: &Root, path: &[u8]) -> Result<Xattrs, Errno> {
    root.xattrs(path, is_sent)
}

fn is_sent(name: &[u8]) -> bool {
    name != RECEIVED_XATTR.as_bytes() && !name.starts_with(b"stitchfs.")
}

/// Returns the names of all attributes of a path, in the order of the kernel; none of a file system
/// without attributes. A symbolic link is not followed.
///
/// # Errors
/// Those of listxattr(2).
pub fn names(path: &Path) -> Result<Vec<Vec<u8>>, Errno> {
    let mut list = vec![0; BYTES_MAX];
    let len = match rustix::fs::llistxattr(path, &mut list) {
        Err(Errno::NOTSUP) => 0,
        other => other?,
    };
    let names = list[..len].split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Returns the value of an attribute. A symbolic link is not followed.
///
/// # Errors
/// Those of getxattr(2).
pub fn value(path: &Path, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; BYTES_MAX];
    let len = rustix::fs::lgetxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}
