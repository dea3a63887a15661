//! Extended attributes of both sides, access lists among them.

use anyhow::{Context, Result};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;

/// The kernel has no longer lists and values.
const BYTES_MAX: usize = 64 << 10;

/// Values by name; `None` for one that the user may not read.
type Attributes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Reports whether two paths have the same extended attributes. A path that is gone, and one of a
/// file system without attributes, has none.
pub(super) fn are_same(old: &Path, new: &Path) -> Result<bool> {
    Ok(read(old)? == read(new)?)
}

fn read(path: &Path) -> Result<Attributes> {
    let mut list = vec![0; BYTES_MAX];
    let len = match rustix::fs::llistxattr(path, &mut list[..]) {
        Err(Errno::NOTSUP | Errno::NOENT) => 0,
        other => other.with_context(|| path.display().to_string())?,
    };
    let names = list[..len].split(|byte| *byte == 0);
    let mut attributes = Attributes::new();
    for name in names.filter(|name| !name.is_empty()) {
        match value(path, name) {
            Ok(value) => drop(attributes.insert(name.to_vec(), Some(value))),
            Err(Errno::ACCESS | Errno::PERM) => drop(attributes.insert(name.to_vec(), None)),
            // It was removed meanwhile.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT) => {}
            Err(errno) => return Err(errno).with_context(|| path.display().to_string()),
        }
    }
    Ok(attributes)
}

fn value(path: &Path, name: &[u8]) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; BYTES_MAX];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}
