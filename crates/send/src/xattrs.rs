//! Extended attributes, access lists among them.

use crate::beneath::Root;
use crate::receive::RECEIVED_XATTR;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;

/// Attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Buffer of one call; the kernel has no longer lists or values.
const BYTES_MAX: usize = 64 << 10;

/// Reads all attributes that are sent of a path. A file system without attributes has none.
pub(crate) fn read(root: &Root, path: &[u8]) -> Result<Xattrs, Errno> {
    let parent = root.parent(path)?;
    let short = parent.short_path();
    let mut list = vec![0; BYTES_MAX];
    let len = match rustix::fs::llistxattr(&short, &mut list) {
        Err(Errno::NOTSUP) => 0,
        other => other?,
    };
    let names = list[..len].split(|byte| *byte == 0);
    let mut xattrs = Xattrs::new();
    for name in names.filter(|name| is_sent(name)) {
        match value(&short, name) {
            Ok(value) => drop(xattrs.insert(name.to_vec(), value)),
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(xattrs)
}

fn is_sent(name: &[u8]) -> bool {
    !name.is_empty() && name != RECEIVED_XATTR.as_bytes() && !name.starts_with(b"stitchfs.")
}

pub(crate) fn value(path: &Path, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; BYTES_MAX];
    let len = rustix::fs::lgetxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}
