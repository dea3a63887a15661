//! Extents of the files that were changed last, in memory.
//!
//! A write into an allocated range needs the extents around it. Their rows are put and deleted
//! again and again under the same few keys, and a scan passes what an engine keeps of that. So they
//! are read once, and then follow the commits.

use super::extents::{Extent, are_apart};
use std::collections::HashMap;
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};

/// Most extents of a file that are kept.
pub(super) const EXTENTS_MAX: usize = 512;
/// Most files. Together they take 1.5 MiB at most.
const FILES_MAX: usize = 128;

/// The extents of a file in memory.
#[derive(Clone, Debug)]
pub(super) enum KnownExtents {
    /// All of them.
    All(Arc<[Extent]>),
    /// They are more than are kept.
    Many,
}

/// The extents of some files. Those of a file change under its lock.
#[derive(Debug, Default)]
pub(crate) struct ExtentMaps {
    files: Mutex<HashMap<Ino, KnownExtents>>,
}

impl ExtentMaps {
    pub(super) fn get(&self, ino: Ino) -> Option<KnownExtents> {
        self.files.lock().get(&ino).cloned()
    }

    /// Takes over the extents that a commit leaves; `None` if the file has none any more.
    pub(crate) fn set(&self, ino: Ino, extents: Option<Vec<Extent>>) {
        let mut files = self.files.lock();
        let Some(extents) = extents else {
            files.remove(&ino);
            return;
        };
        if files.len() >= FILES_MAX && !files.contains_key(&ino) {
            files.clear();
        }
        debug_assert!(are_apart(&extents), "extents are in order and not empty");
        let known = match extents.len() <= EXTENTS_MAX {
            true => KnownExtents::All(extents.into()),
            false => KnownExtents::Many,
        };
        files.insert(ino, known);
        debug_assert!(files.len() <= FILES_MAX, "the maps of few files are kept");
    }
}
