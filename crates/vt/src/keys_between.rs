//! Keys that were written between two moments.
//!
//! ```text
//! from                         to                       now
//!   |---- a put -- b deleted ---|---- a, c put ----------|
//!         the window            newer: passed over        keys between from and to: a, b
//! ```
//!
//! 1. Memtables and tables without a write in the window are passed over, by the oldest and the
//!    newest sequence number in their record; so are blocks, by those in their index entry.
//! 2. In the others, keys with a version in the window are listed. Value blocks are not read.
//! 3. Of a range that was deleted in the window, the keys are listed that the tree held at `from`.
//!
//! Why nothing is missed: both moments are held, so a compaction keeps what a reader of each sees.
//! If these differ, what the reader of `to` sees is a write of the window. A delete may go only
//! together with all that it hides. Numbers of a table that an absorb has moved count with its
//! shift (ADR 0179), in its record as in its blocks.

use crate::VtError;
use crate::buffer::Buffer;
use crate::entry::EntryIter;
use crate::range_delete::RangeDeletes;
use crate::read::{ReadPath, VtScan};
use crate::snapshots::Hold;
use crate::table::SeqnoWindow;
use crate::version::{TableHandle, TreeVersion};
use crate::view::View;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{Direction, Guarded, KeyRange, KvError, Scan, join_ranges};

/// The smallest of some keys, in order, at most `count_max`.
pub(crate) struct SmallestKeys {
    keys: BTreeSet<Vec<u8>>,
    count_max: usize,
}

impl SmallestKeys {
    /// None yet.
    pub(crate) const fn new(count_max: usize) -> Self {
        Self {
            keys: BTreeSet::new(),
            count_max,
        }
    }

    /// Adds a key. Returns false if no greater key can be among the smallest.
    pub(crate) fn add(&mut self, key: &[u8]) -> bool {
        let is_full = self.keys.len() >= self.count_max;
        let is_smaller = self.keys.last().is_some_and(|last| key < last.as_slice());
        if self.count_max == 0 || (is_full && !is_smaller) {
            return false;
        }
        self.keys.insert(key.to_vec());
        if self.keys.len() > self.count_max {
            self.keys.pop_last();
        }
        debug_assert!(self.keys.len() <= self.count_max, "the largest make way");
        debug_assert!(!self.keys.is_empty(), "a smaller key is among them");
        true
    }

    /// The keys, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        debug_assert!(self.keys.len() <= self.count_max, "no more than asked for");
        self.keys.iter().map(Vec::as_slice)
    }

    /// Takes the first one.
    pub(crate) fn pop_first(&mut self) -> Option<Vec<u8>> {
        debug_assert!(self.keys.len() <= self.count_max, "no more than asked for");
        self.keys.pop_first()
    }

    /// Returns all of them, in order.
    pub(crate) fn into_vec(self) -> Vec<Vec<u8>> {
        debug_assert!(self.keys.len() <= self.count_max, "no more than asked for");
        self.keys.into_iter().collect()
    }
}

impl ReadPath {
    /// The first keys of a range that may hold something else in `view`, to a reader of `up_to`,
    /// than at the moment of `hold`. The view holds all commits up to `complete`.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::keys_between`].
    pub(crate) fn keys_between(
        &self,
        (view, tree): (&Arc<View>, TreeId),
        range: KeyRange<'_>,
        hold: &Hold,
        (up_to, complete): (Seqno, Seqno),
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        hold.check_held(&view.version, (tree, Guarded::Range(range)))?;
        if !hold.has(tree) {
            return Err(KvError::NoTree(tree));
        }
        let after = hold.seqno();
        let window = SeqnoWindow { after, up_to };
        if after >= up_to || count_max == 0 || range.end.is_some_and(|end| end <= range.start) {
            return Ok(Vec::new());
        }
        let mut keys = SmallestKeys::new(count_max);
        debug_assert!(window.after < window.up_to, "the window is not empty");
        let version = &view.version.trees[&tree];
        self.keys_in_window(view, version, range, window, &mut |key| keys.add(key))?;
        let mut deleted = Vec::new();
        self.deletes_in_window(view, version, range, window, &mut |start, end| {
            deleted.push((start.to_vec(), end.to_vec()));
        })?;
        for (start, end) in join_ranges(deleted) {
            let deleted = KeyRange::new(&start, &end);
            let (way, seqnos) = ((Direction::Forward, false), (after, complete));
            let view = Arc::clone(view);
            let mut scan = VtScan::new(self, view, tree, deleted, way, seqnos)?;
            while let Some((key, _)) = scan.next()?
                && keys.add(key)
            {}
        }
        Ok(keys.into_vec())
    }

    /// Calls `visit` with the keys of a range of which a source of the tree has a version in the
    /// window. Those of each source come in order, up to one for which `visit` returns false.
    pub(crate) fn keys_in_window(
        &self,
        view: &View,
        tree: &TreeVersion,
        range: KeyRange<'_>,
        window: SeqnoWindow,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), VtError> {
        let id = tree.info.id;
        for buffer in newer_buffers(view, window.after) {
            let mut entries = buffer.memtable.iter(id);
            entries_in_window(&mut entries, range, window, visit)?;
            for run in buffer.direct.overlapping(id, range.start, range.end) {
                run.blocks.keys_in_window(range, window, visit)?;
            }
        }
        for handle in tables_in_window(tree, range, window) {
            debug_assert_eq!(handle.meta().tree, tree.info.id, "a table of the tree");
            self.table(handle).keys_in_window(range, window, visit)?;
        }
        Ok(())
    }

    /// Calls `visit` with the part of a range that each range delete of the window has deleted: its
    /// first key and the first key after it.
    pub(crate) fn deletes_in_window(
        &self,
        view: &View,
        tree: &TreeVersion,
        range: KeyRange<'_>,
        window: SeqnoWindow,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), VtError> {
        for buffer in newer_buffers(view, window.after) {
            let deletes = buffer.memtable.range_deletes(tree.info.id);
            clip_deletes(&deletes, range, window, visit);
        }
        for handle in tables_in_window(tree, range, window) {
            if handle.meta().range_delete_count > 0 {
                clip_deletes(&*self.table(handle).range_deletes()?, range, window, visit);
            }
        }
        Ok(())
    }
}

/// Memtables with a write that is newer than `since`. What is being committed may not be noted yet.
pub(crate) fn newer_buffers(view: &View, since: Seqno) -> impl Iterator<Item = &Arc<Buffer>> {
    let buffers = view.buffers.iter();
    buffers.filter(move |buffer| buffer.last_seqno() > since)
}

/// Tables with a write in the window that overlap a range.
fn tables_in_window<'v>(
    tree: &'v TreeVersion,
    range: KeyRange<'_>,
    window: SeqnoWindow,
) -> impl Iterator<Item = &'v Arc<TableHandle>> {
    let tables = tree.tables().map(|(_, handle)| handle);
    tables.filter(move |handle| {
        let meta = handle.meta();
        debug_assert!(meta.min_seqno <= meta.max_seqno, "its numbers are in order");
        window.meets(meta.min_seqno, meta.max_seqno) && meta.overlaps(range.start, range.end)
    })
}

fn clip_deletes(
    deletes: &RangeDeletes,
    range: KeyRange<'_>,
    window: SeqnoWindow,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) {
    for delete in deletes.iter().filter(|delete| window.holds(delete.seqno)) {
        let start = delete.start.as_slice().max(range.start);
        let end = delete.end.as_slice();
        let end = range.end.map_or(end, |range_end| end.min(range_end));
        debug_assert!(delete.start < delete.end, "a range delete has keys");
        if start < end {
            visit(start, end);
        }
    }
}

/// Calls `visit` with the keys of a range that have a version in the window, until it returns
/// false.
fn entries_in_window(
    entries: &mut dyn EntryIter,
    range: KeyRange<'_>,
    window: SeqnoWindow,
    visit: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<(), VtError> {
    entries.seek(range.start, Seqno(u64::MAX))?;
    while let Some(entry) = entries.current()
        && range.end.is_none_or(|end| entry.key < end)
    {
        debug_assert!(
            entry.key >= range.start,
            "a cursor goes on from where it stands"
        );
        if window.holds(entry.seqno) && !visit(entry.key) {
            break;
        }
        entries.next()?;
    }
    Ok(())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
