//! Changes of a round that are not committed yet, and reads that see them.
//!
//! ```text
//! read of a key:  rows has it    -> that; only searched if marks has it
//!                 cleared has it -> absent
//!                 recent has it  -> that
//!                 fetched has it -> that
//!                 else           -> the store
//! ```
//!
//! Several changes of a row become one: what a pipeline increments a thousand times is put once.
//! When the round ends, the ranges that were cleared come first in the batch, then the rows: a row
//! in `rows` was changed after the clearing of any range around it, since clearing takes the rows
//! out.
//!
//! Invariants:
//! - each row of `rows` has its mark, and rows that are not changed have one by chance only;
//! - `recent` and `fetched` have what the store has, without the changes.

mod marks;

use crate::recent::RecentRows;
use bytes::Bytes;
use marks::RowMarks;
use std::cell::RefCell;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::{Bound, ControlFlow};
use stitch_db::{
    Changes, CommitOptions, DbError, Dictionary, Direction, KeyRange, SpaceClass, View,
};

/// What a changed row costs a batch beyond its bytes, at most.
const ROW_OVERHEAD_BYTES: usize = 24;
/// Most rows that are fetched at once: enough for the store to read their blocks together. All are
/// in memory until the command has ended.
pub(crate) const FETCHED_MAX: usize = 256;
/// A put of at most so many bytes for each delete still counts as giving space back.
const PUT_BYTES_PER_DELETE: usize = 64;

/// A range of rows: `[start, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowRange {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl RowRange {
    /// The rows whose keys begin with `prefix`, which does not end with 255.
    pub(crate) fn of_prefix(prefix: &[u8]) -> Self {
        let end = stitch_kv::prefix_end(prefix).expect("a prefix has a byte below 255");
        Self {
            start: prefix.to_vec(),
            end,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

/// The rows, with changes that are not committed yet.
#[derive(Debug)]
pub(crate) struct PendingRows {
    view: View,
    dictionary: Dictionary,
    rows: BTreeMap<Vec<u8>, Option<Bytes>>,
    marks: RowMarks,
    /// Start and end of ranges without a row in the store; disjoint.
    cleared: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
    /// What the store has, without the changes.
    recent: RefCell<RecentRows>,
    /// What the store has, for the command that runs.
    fetched: BTreeMap<Vec<u8>, Option<Bytes>>,
}

impl PendingRows {
    /// Rows of `view`, of which so many bytes are kept in memory.
    pub(crate) fn new(view: View, dictionary: Dictionary, recent_bytes: u64) -> Self {
        Self {
            view,
            dictionary,
            rows: BTreeMap::new(),
            marks: RowMarks::new(),
            cleared: BTreeMap::new(),
            bytes: 0,
            recent: RefCell::new(RecentRows::new(recent_bytes)),
            fetched: BTreeMap::new(),
        }
    }

    /// Forgets what is known of a row that others have changed.
    pub(crate) fn forget(&mut self, key: &[u8]) {
        self.recent.get_mut().forget(key);
        self.forget_fetched();
    }

    /// Forgets what is known of all rows.
    pub(crate) fn forget_all(&mut self) {
        self.recent.get_mut().forget_all();
        self.forget_fetched();
    }

    /// Forgets the rows that were fetched for a command, which has ended.
    pub(crate) fn forget_fetched(&mut self) {
        self.fetched.clear();
    }

    /// Bytes of the batch that the changes would make, at most.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.cleared.is_empty()
    }

    /// Returns the value of a row.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, DbError> {
        if let Some(known) = self.known(key) {
            return Ok(known);
        }
        let row = self.view.get(self.dictionary, key)?;
        self.recent.borrow_mut().note_read(key, row.as_ref());
        Ok(row)
    }

    /// Reads rows by one call of the store, those that are not known. Each is known to reads until
    /// [`Self::forget_fetched`], or until so many others were fetched.
    pub(crate) fn fetch(&mut self, keys: Vec<Vec<u8>>) -> Result<(), DbError> {
        assert!(keys.len() <= FETCHED_MAX, "the caller cuts them");
        let mut unknown = keys;
        unknown.retain(|key| self.known(key).is_none());
        if unknown.is_empty() {
            return Ok(());
        }
        if self.fetched.len() + unknown.len() > FETCHED_MAX {
            self.fetched.clear();
        }
        let keys: Vec<&[u8]> = unknown.iter().map(Vec::as_slice).collect();
        let rows = self.view.get_many(self.dictionary, &keys)?;
        assert_eq!(rows.len(), unknown.len(), "one row for each key");
        let recent = self.recent.get_mut();
        for (key, row) in unknown.into_iter().zip(rows) {
            recent.note_read(&key, row.as_ref());
            self.fetched.insert(key, row);
        }
        debug_assert!(
            self.fetched.len() <= FETCHED_MAX,
            "rows in memory are bounded"
        );
        Ok(())
    }

    /// Returns the value of a row, if the store is not needed for that.
    fn known(&self, key: &[u8]) -> Option<Option<Bytes>> {
        if self.marks.may_have(key)
            && let Some(changed) = self.rows.get(key)
        {
            return Some(changed.clone());
        }
        debug_assert!(!self.rows.contains_key(key), "a changed row has its mark");
        if self.is_cleared(key) {
            return Some(None);
        }
        let recent = self.recent.borrow().get(key);
        recent.or_else(|| self.fetched.get(key).cloned())
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        self.set(key, Some(value.into()));
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.set(key, None);
    }

    fn set(&mut self, key: Vec<u8>, value: Option<Bytes>) {
        let value_bytes = value.as_ref().map_or(0, Bytes::len);
        self.marks.note(&key);
        match self.rows.entry(key) {
            btree_map::Entry::Occupied(mut row) => {
                self.bytes -= row.get().as_ref().map_or(0, Bytes::len);
                row.insert(value);
            }
            btree_map::Entry::Vacant(row) => {
                self.bytes += row.key().len() + ROW_OVERHEAD_BYTES;
                row.insert(value);
            }
        }
        self.bytes += value_bytes;
    }

    /// Removes all rows of a range, at a cost that does not depend on how many the store has.
    /// Ranges are nested or disjoint.
    pub(crate) fn clear(&mut self, range: RowRange) {
        if range.is_empty() {
            return;
        }
        let bounds = (Bound::Included(&range.start), Bound::Excluded(&range.end));
        let within: Vec<Vec<u8>> = self
            .rows
            .range::<Vec<u8>, _>(bounds)
            .map(|(key, _)| key.clone())
            .collect();
        for key in within {
            if let Some(value) = self.rows.remove(&key) {
                let value_bytes = value.map_or(0, |value| value.len());
                self.bytes -= key.len() + ROW_OVERHEAD_BYTES + value_bytes;
            }
        }
        if self
            .cleared_end(&range.start)
            .is_some_and(|end| range.end.as_slice() <= end)
        {
            return;
        }
        let within: Vec<Vec<u8>> = self
            .cleared
            .range::<Vec<u8>, _>(bounds)
            .map(|(start, _)| start.clone())
            .collect();
        for start in within {
            if let Some(end) = self.cleared.remove(&start) {
                self.bytes -= start.len() + end.len() + ROW_OVERHEAD_BYTES;
            }
        }
        self.bytes += range.start.len() + range.end.len() + ROW_OVERHEAD_BYTES;
        debug_assert!(
            !self.is_cleared(&range.start),
            "ranges are nested or disjoint"
        );
        self.cleared.insert(range.start, range.end);
    }

    fn is_cleared(&self, key: &[u8]) -> bool {
        self.cleared_end(key).is_some()
    }

    /// The end of the cleared range that a key is in.
    fn cleared_end(&self, key: &[u8]) -> Option<&[u8]> {
        let bounds = (Bound::Unbounded, Bound::Included(key));
        let (_, end) = self.cleared.range::<[u8], _>(bounds).next_back()?;
        (key < end.as_slice()).then_some(end)
    }

    /// Calls `visit` with each row of a range in order, until it breaks.
    pub(crate) fn scan(
        &self,
        range: &RowRange,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), DbError> {
        if range.is_empty() {
            return Ok(());
        }
        let keys = KeyRange::new(&range.start, &range.end);
        let mut stored = self.view.scan(self.dictionary, keys, direction)?;
        let mut changed = self.changed(range, direction).peekable();
        while let Some((key, value)) = stored.next()? {
            if visit_before(&mut changed, key, direction, &mut visit).is_break() {
                return Ok(());
            }
            let value = match changed.next_if(|(row, _)| row.as_slice() == key) {
                Some((_, changed)) => changed.as_deref(),
                None => (!self.is_cleared(key)).then_some(value),
            };
            if let Some(value) = value
                && visit(key, value).is_break()
            {
                return Ok(());
            }
        }
        for (key, value) in changed {
            if let Some(value) = value
                && visit(key, value).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn changed<'a>(
        &'a self,
        range: &'a RowRange,
        direction: Direction,
    ) -> Box<dyn Iterator<Item = (&'a Vec<u8>, &'a Option<Bytes>)> + 'a> {
        let bounds = (Bound::Included(&range.start), Bound::Excluded(&range.end));
        let rows = self.rows.range::<Vec<u8>, _>(bounds);
        match direction {
            Direction::Forward => Box::new(rows),
            Direction::Backward => Box::new(rows.rev()),
        }
    }

    /// Applies all changes as one batch, and forgets them whether that succeeds or not.
    pub(crate) fn commit(&mut self, sync: bool) -> Result<(), DbError> {
        let mut changes = Changes::new();
        changes.reserve(self.bytes);
        for (start, end) in &self.cleared {
            changes.delete_range(self.dictionary, start, end);
        }
        for (key, value) in &self.rows {
            match value {
                Some(value) => changes.put(self.dictionary, key, value),
                None => changes.delete(self.dictionary, key),
            }
        }
        let space = self.space_class();
        let committed = self.view.commit(&changes, CommitOptions { sync, space });
        match &committed {
            Ok(_) => self.note_committed(),
            // It may have happened all the same.
            Err(_) => self.forget_all(),
        }
        self.discard();
        committed.map(drop)
    }

    /// Keeps what the store has now.
    fn note_committed(&mut self) {
        let recent = self.recent.get_mut();
        for (start, end) in &self.cleared {
            recent.note_cleared(start, end);
        }
        for (key, row) in std::mem::take(&mut self.rows) {
            recent.note_written(key, row);
        }
    }

    /// Changes that give back more than they take may use the space that is kept for that.
    fn space_class(&self) -> SpaceClass {
        let mut deletes = self.cleared.len();
        let mut put_bytes = 0;
        for (key, value) in &self.rows {
            match value {
                Some(value) => put_bytes += key.len() + value.len(),
                None => deletes += 1,
            }
        }
        if deletes > 0 && put_bytes <= deletes * PUT_BYTES_PER_DELETE {
            SpaceClass::Reserve
        } else {
            SpaceClass::Normal
        }
    }

    pub(crate) fn discard(&mut self) {
        self.rows.clear();
        self.marks.clear();
        self.forget_fetched();
        self.cleared.clear();
        self.bytes = 0;
    }
}

/// Visits changed rows that come before `key`.
fn visit_before<'a>(
    changed: &mut Peekable<impl Iterator<Item = (&'a Vec<u8>, &'a Option<Bytes>)>>,
    key: &[u8],
    direction: Direction,
    visit: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let is_before = |row: &[u8]| match direction {
        Direction::Forward => row < key,
        Direction::Backward => row > key,
    };
    while let Some((row, value)) = changed.next_if(|(row, _)| is_before(row)) {
        if let Some(value) = value {
            visit(row, value)?;
        }
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests;
