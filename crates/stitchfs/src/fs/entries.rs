//! A listing under way.

use super::hold::Hold;
use crate::StoreError;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use stitch_fs::{Attr, DirEntry, Taken};

/// Entries read at a time.
const BATCH: usize = 256;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    name: OsString,
    /// What it was when it was listed.
    pub attr: Attr,
}

impl Entry {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.name
    }
}

/// The entries of a directory, in no order that means anything. It ends after an error.
pub struct Entries {
    dir: Hold,
    read: VecDeque<Entry>,
    /// Where to go on; `None` when all was read.
    next: Option<u64>,
}

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entries")
            .field("dir", &self.dir.ino())
            .finish_non_exhaustive()
    }
}

impl Entries {
    pub(super) const fn new(dir: Hold) -> Self {
        Self {
            dir,
            read: VecDeque::new(),
            next: Some(0),
        }
    }

    /// Reads the next entries.
    fn read_more(&mut self, from: u64) -> Result<(), StoreError> {
        debug_assert!(self.read.is_empty(), "what was read is taken first");
        let fs = &self.dir.open().fs;
        let (mut last, mut is_full) = (from, false);
        let read = &mut self.read;
        let mut take = |entry: &DirEntry<'_>| {
            if read.len() == BATCH {
                is_full = true;
                return Taken::Full;
            }
            last = entry.offset;
            if let Some(attr) = entry.attr {
                let name = OsString::from_vec(entry.name.to_vec());
                read.push_back(Entry { name, attr });
            }
            Taken::More
        };
        fs.read_dir_stat(self.dir.ino(), from, &mut take)?;
        self.next = is_full.then_some(last);
        Ok(())
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.read.is_empty()
            && let Some(from) = self.next.take()
            && let Err(error) = self.read_more(from)
        {
            self.read.clear();
            return Some(Err(error));
        }
        self.read.pop_front().map(Ok)
    }
}
