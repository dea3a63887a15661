//! What a power cut may leave of contents that are plain files.
//!
//! Rows are as after some operation. Contents are written in place, so each byte is what some
//! operation since the last sync of the file has made it, or what it was at that sync, or, where
//! the file has grown since, zero. But what was cut off is gone for good: a byte is never from
//! before the file last ended in front of it.

use std::collections::BTreeMap;
use stitch_base::sync::{Arc, Mutex};

/// Pages of 4 KiB that hold anything, by their offsets.
pub(super) type Pages = BTreeMap<u64, Arc<[u8]>>;

/// What a file was after an operation.
#[derive(Debug)]
struct Version {
    size: u64,
    pages: Pages,
}

/// Everything that a file ever was, with what is yet to come when a crash is judged.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    versions: Arc<Mutex<Vec<Version>>>,
    /// The version that was last synced, and whether there is one.
    synced: Option<usize>,
}

/// A file at one moment of its history.
#[derive(Clone, Debug)]
pub(super) struct Past {
    versions: Arc<Mutex<Vec<Version>>>,
    synced: Option<usize>,
    now: usize,
}

impl History {
    /// After an operation.
    pub(super) fn note(&mut self, size: u64, pages: Pages) {
        let mut versions = self.versions.lock();
        let is_same = |last: &Version| last.size == size && last.pages == pages;
        if !versions.last().is_some_and(is_same) {
            versions.push(Version { size, pages });
        }
    }

    /// After a sync.
    pub(super) fn sync(&mut self) {
        self.synced = self.versions.lock().len().checked_sub(1);
    }

    /// The file now.
    pub(super) fn past(&self) -> Option<Past> {
        let now = self.versions.lock().len().checked_sub(1)?;
        Some(Past {
            versions: Arc::clone(&self.versions),
            synced: self.synced,
            now,
        })
    }
}

impl Past {
    /// All that is in it.
    pub(super) fn pages(&self) -> Pages {
        self.versions.lock()[self.now].pages.clone()
    }

    /// Whether all bytes of `found`, a plain file, are such that a power cut may leave them. Its
    /// size was compared.
    pub(super) fn allows(&self, found: &Pages) -> bool {
        let versions = self.versions.lock();
        let size = versions[self.now].size;
        let mut offsets: Vec<u64> = found.keys().copied().collect();
        let all = versions
            .iter()
            .flat_map(|version| version.pages.keys().copied());
        offsets.extend(all.filter(|&at| at < size));
        offsets.sort_unstable();
        offsets.dedup();
        offsets.into_iter().all(|at| {
            let page = found.get(&at).map_or(&[][..], |page| page);
            let end = size.min(at + 4096);
            (at..end).all(|i| self.allows_byte(&versions, i, byte(page, i - at)))
        })
    }

    fn allows_byte(&self, versions: &[Version], at: u64, found: u8) -> bool {
        let synced = self.synced.unwrap_or(0);
        // The last version, up to now, that ended before it.
        let ended = (0..=self.now).rev().find(|&k| versions[k].size <= at);
        let first = ended.map_or(synced, |ended| synced.max(ended + 1));
        let has_grown = self.synced.is_none() || ended.is_some_and(|ended| ended >= synced);
        if found == 0 && has_grown {
            return true;
        }
        versions[first..].iter().any(|version| {
            let start = at - at % 4096;
            let page = version.pages.get(&start).map_or(&[][..], |page| page);
            at < version.size && byte(page, at - start) == found
        })
    }
}

fn byte(page: &[u8], at: u64) -> u8 {
    let at = usize::try_from(at).expect("in a page");
    page.get(at).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(byte: u8, len: usize) -> Pages {
        BTreeMap::from([(0, vec![byte; len].into())])
    }

    #[test]
    fn unsynced_bytes_may_be_lost_and_cut_ones_never_come_back() {
        let mut history = History::default();
        history.note(100, pages(1, 100));
        history.sync();
        history.note(100, pages(2, 100));
        let past = history.past().expect("it is noted");
        assert!(past.allows(&pages(1, 100)), "the overwrite is lost");
        assert!(past.allows(&pages(2, 100)));
        assert!(!past.allows(&pages(3, 100)), "this was never written");
        assert!(!past.allows(&Pages::new()), "what was synced is there");
        history.note(60, pages(2, 60));
        history.note(100, pages(2, 60));
        let past = history.past().expect("it is noted");
        assert!(past.allows(&pages(2, 60)));
        assert!(past.allows(&pages(1, 60)));
        assert!(!past.allows(&pages(2, 100)), "what was cut is gone");
    }
}
