//! Extended attributes of both sides, access lists among them.

use anyhow::{Context, Result};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;
use stitch_send::xattrs;

/// Values by name; `None` for one that the user may not read.
type Attributes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Reports whether two paths have the same extended attributes. A path that is gone, and one of a
/// file system without attributes, has none.
pub(super) fn are_same(old: &Path, new: &Path) -> Result<bool> {
    Ok(read(old)? == read(new)?)
}

fn read(path: &Path) -> Result<Attributes> {
    let names = match xattrs::names(path) {
        Err(Errno::NOENT) => Vec::new(),
        other => other.with_context(|| path.display().to_string())?,
    };
    let mut attributes = Attributes::new();
    for name in names {
        match xattrs::value(path, &name) {
            Ok(value) => drop(attributes.insert(name, Some(value))),
            Err(Errno::ACCESS | Errno::PERM) => drop(attributes.insert(name, None)),
            // It was removed meanwhile.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT) => {}
            Err(errno) => return Err(errno).with_context(|| path.display().to_string()),
        }
    }
    Ok(attributes)
}
