//! Rows of keys that commands have met lately, in memory, and keys that had no row.
//!
//! A command on one of them looks into a hash table, where the store would search its memtables and
//! several tables. Rows of collections are not among them: they are removed by ranges.
//!
//! Invariant: what is here is what the store has. Rows come in as they are read and once they are
//! committed; what others change is forgotten before the next round
//! ([`crate::RoundGate`]).

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use std::fmt;
use stitch_format::redis;

/// Rows of more bytes stay out: a few of them would take the place of many.
const ROW_BYTES_MAX: usize = 16 << 10;
/// What a row takes beside its bytes, about: hash table, queue of the cache, two allocations.
const OVERHEAD_BYTES: u64 = 136;
/// What a row is expected to take, to size the hash table.
const EXPECTED_BYTES: u64 = 256;

/// A row, or that there is none.
type Row = Option<Bytes>;

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<Vec<u8>, Row> for ByBytes {
    fn weight(&self, key: &Vec<u8>, row: &Row) -> u64 {
        let row_bytes = row.as_ref().map_or(0, Bytes::len);
        (key.len() + row_bytes) as u64 + OVERHEAD_BYTES
    }
}

/// The newest rows of keys, as many as a number of bytes holds.
pub(crate) struct RecentRows {
    rows: Cache<Vec<u8>, Row, ByBytes>,
}

impl fmt::Debug for RecentRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentRows")
            .field("count", &self.rows.len())
            .finish_non_exhaustive()
    }
}

impl RecentRows {
    /// Holds rows of so many bytes in all; with 0 none.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let expected = usize::try_from(bytes_max / EXPECTED_BYTES).unwrap_or(usize::MAX);
        Self {
            rows: Cache::with_weighter(expected, bytes_max, ByBytes),
        }
    }

    /// Returns the row of a key, `Some(None)` for none; `None` if it is not known.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Row> {
        self.rows.get(key).cloned()
    }

    /// Keeps what was read of the store. Copies it: it may be a part of a whole block.
    pub(crate) fn note_read(&mut self, key: &[u8], row: Option<&Bytes>) {
        if is_kept(key, row) {
            let row = row.map(|row| Bytes::copy_from_slice(row));
            self.rows.insert(key.to_vec(), row);
        }
    }

    /// Keeps a row that was committed.
    pub(crate) fn note_written(&mut self, key: Vec<u8>, row: Row) {
        if is_kept(&key, row.as_ref()) {
            self.rows.insert(key, row);
        } else {
            self.rows.remove(&key);
        }
    }

    /// Learns that a range of rows was removed by a commit.
    pub(crate) fn note_cleared(&mut self, start: &[u8], end: &[u8]) {
        let (keys_start, keys_end) = redis::all_rows(redis::KEYS);
        let meets_keys = start < keys_end.as_slice() && keys_start.as_slice() < end;
        if meets_keys {
            self.rows.clear();
        }
    }

    /// Forgets the row of a key.
    pub(crate) fn forget(&mut self, key: &[u8]) {
        self.rows.remove(key);
    }

    /// Forgets all.
    pub(crate) fn forget_all(&mut self) {
        self.rows.clear();
    }
}

fn is_kept(key: &[u8], row: Option<&Bytes>) -> bool {
    let len = key.len() + row.map_or(0, Bytes::len);
    redis::user_key(key).is_some() && len <= ROW_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_format::redis::{key_row, member_row};

    fn row(text: &'static str) -> Row {
        Some(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn rows_of_keys_are_kept_until_they_are_forgotten_and_others_never() {
        let mut recent = RecentRows::new(1 << 16);
        recent.note_read(&key_row(b"a"), row("1").as_ref());
        recent.note_written(key_row(b"b"), None);
        recent.note_read(&member_row(7, b'f', b"a"), row("1").as_ref());
        assert_eq!(recent.get(&key_row(b"a")), Some(row("1")));
        assert_eq!(recent.get(&key_row(b"b")), Some(None));
        assert_eq!(recent.get(&member_row(7, b'f', b"a")), None);
        recent.forget(&key_row(b"a"));
        assert_eq!(recent.get(&key_row(b"a")), None);
        let (start, end) = redis::collection_rows(7);
        recent.note_cleared(&start, &end);
        assert_eq!(recent.get(&key_row(b"b")), Some(None), "not of a key");
        let (start, end) = redis::all_rows(redis::KEYS);
        recent.note_cleared(&start, &end);
        assert_eq!(recent.get(&key_row(b"b")), None);
    }

    #[test]
    fn a_row_that_grows_too_long_is_forgotten() {
        let mut recent = RecentRows::new(1 << 20);
        recent.note_written(key_row(b"a"), row("1"));
        recent.note_written(key_row(b"a"), Some(vec![0; ROW_BYTES_MAX].into()));
        assert_eq!(
            recent.get(&key_row(b"a")),
            None,
            "the store has a newer one"
        );
    }

    #[test]
    fn rows_take_no_more_than_their_bytes() {
        let bytes_max = 64 << 10;
        let mut recent = RecentRows::new(bytes_max);
        for number in 0..10_000_u32 {
            recent.note_written(key_row(&number.to_be_bytes()), row("some value"));
        }
        assert!(
            recent.rows.weight() <= bytes_max,
            "{}",
            recent.rows.weight()
        );
        assert!(recent.rows.len() > 100, "{}", recent.rows.len());
        let mut none = RecentRows::new(0);
        none.note_written(key_row(b"a"), row("1"));
        assert_eq!(none.get(&key_row(b"a")), None);
    }
}
