//! Keys of a transaction in whose conflicts sides were chosen: they go into a later branch of the
//! rows, key by key.
//!
//! ```text
//! begins      k h -> collection 1            m 1 f
//! ours        k h -> collection 1, 2 fields  m 1 f, m 1 g      HSET h g
//! theirs      k r -> collection 1            m 1 f             RENAME h r
//! ours wins   k h -> collection N, 2 fields  m N f, m N g
//!             k r -> collection 1            m 1 f
//! ```
//!
//! A key that the transaction has written is what it is there, with a copy of its collection, which
//! mainline may have under another key. Keys that are left to mainline keep all of their rows.
//! Totals follow from the keys that came and went.

use crate::ServeError;
use std::collections::BTreeSet;
use stitch_db::BranchMerge;
use stitch_format::redis::{self, Collection, HEAD_BYTES, KeyHead, Kind, Totals};
use stitch_kv::{DeletedRange, KeyRange};

/// Bytes of a collection's rows before what follows its number.
const COLLECTION_PREFIX_BYTES: usize = 2 + 8;

/// A key's row.
struct KeyRow {
    head: KeyHead,
    collection: Option<Collection>,
}

impl KeyRow {
    fn decode(row: &[u8]) -> Result<Self, ServeError> {
        let head = KeyHead::decode(row)?;
        let collection = match head.kind {
            Kind::String => None,
            Kind::Hash | Kind::SortedSet => Some(Collection::decode(&row[HEAD_BYTES..])?),
        };
        Ok(Self { head, collection })
    }
}

/// Returns the range of the rows that belong to a key's row, which holds `row`; `None` if none do,
/// or if it is the row of no key.
///
/// # Errors
/// [`ServeError::Format`] for a row that holds no value.
pub fn rows_of_key(tree: &str, key: &[u8], row: &[u8]) -> Result<Option<DeletedRange>, ServeError> {
    if tree != redis::TREE || redis::user_key(key).is_none() {
        return Ok(None);
    }
    let collection = KeyRow::decode(row)?.collection;
    Ok(collection.map(|collection| redis::collection_rows(collection.number)))
}

/// Puts the keys that a transaction has written into a later branch of the rows, but for those that
/// are left to mainline.
///
/// # Errors
/// [`ServeError::Format`] for rows that hold no keys; [`ServeError::Db`].
pub fn merge_keys(merge: &mut BranchMerge<'_>) -> Result<(), ServeError> {
    let ranges = ranges_of_keys(merge.ranges());
    let replaced = replaced_keys(merge, &ranges)?;
    let left = merge.left().iter().map(|key| redis::key_row(key)).collect();
    // What others add to a range that the transaction has emptied is in conflict later, too.
    merge.delete_ranges_without(&ranges, &left)?;
    let totals = merge.theirs(&redis::totals_key())?;
    let totals = totals.map_or(Ok(Totals::EMPTY), |row| Totals::decode(&row))?;
    let mut merged = KeyMerge {
        next_collection: redis::first_collection_of(merge.target()),
        merge,
        totals,
    };
    for key in replaced {
        merged.replace(&key)?;
    }
    merged.put_totals()
}

/// Returns the deleted ranges as far as they are of keys' rows.
fn ranges_of_keys(ranges: &[DeletedRange]) -> Vec<DeletedRange> {
    let (first, end) = redis::all_rows(redis::KEYS);
    let within = ranges.iter().map(|(start, stop)| {
        let start = start.as_slice().max(&first).to_vec();
        (start, stop.as_slice().min(&end).to_vec())
    });
    within.filter(|(start, end)| start < end).collect()
}

/// Returns the keys that become what they are in the transaction.
fn replaced_keys(
    merge: &BranchMerge<'_>,
    ranges: &[DeletedRange],
) -> Result<BTreeSet<Vec<u8>>, ServeError> {
    let mut keys = BTreeSet::new();
    let of_row = |row: &Vec<u8>| redis::user_key(row).map(<[u8]>::to_vec);
    keys.extend(merge.keys().iter().filter_map(of_row));
    for (start, end) in ranges {
        let rows = merge.keys_of_theirs(KeyRange::new(start, end))?;
        keys.extend(rows.iter().filter_map(of_row));
    }
    keys.retain(|key| !merge.left().contains(key));
    Ok(keys)
}

struct KeyMerge<'a, 'm> {
    merge: &'a mut BranchMerge<'m>,
    totals: Totals,
    next_collection: u64,
}

impl KeyMerge<'_, '_> {
    /// Makes a key what it is in the transaction.
    fn replace(&mut self, key: &[u8]) -> Result<(), ServeError> {
        let row = redis::key_row(key);
        if let Some(theirs) = self.merge.theirs(&row)? {
            self.remove(key, &KeyRow::decode(&theirs)?)?;
        }
        match self.merge.ours(&row)? {
            Some(ours) => self.put(key, &ours),
            None => Ok(self.merge.delete(&row)?),
        }
    }

    fn remove(&mut self, key: &[u8], row: &KeyRow) -> Result<(), ServeError> {
        let expiry_ms = row.head.expiry_ms;
        self.totals.keys = self.totals.keys.saturating_sub(1);
        if expiry_ms > 0 {
            self.totals.expiries = self.totals.expiries.saturating_sub(1);
            self.merge.delete(&redis::expiry_row(expiry_ms, key))?;
        }
        if let Some(collection) = row.collection {
            let (start, end) = redis::collection_rows(collection.number);
            self.merge.delete_range(&start, &end)?;
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], row: &[u8]) -> Result<(), ServeError> {
        let KeyRow { head, collection } = KeyRow::decode(row)?;
        let mut row = row.to_vec();
        if let Some(Collection { number, count }) = collection {
            let number = self.copy_collection(number)?;
            row.truncate(HEAD_BYTES);
            row.extend_from_slice(&Collection { number, count }.encode());
        }
        self.merge.put(&redis::key_row(key), &row)?;
        self.totals.keys += 1;
        if head.expiry_ms > 0 {
            self.totals.expiries += 1;
            self.merge
                .put(&redis::expiry_row(head.expiry_ms, key), b"")?;
        }
        Ok(())
    }

    /// Copies a collection, and returns the number of the copy.
    fn copy_collection(&mut self, number: u64) -> Result<u64, ServeError> {
        let copy = self.next_collection;
        self.next_collection += 1;
        debug_assert!(
            redis::is_of_branch(copy, self.merge.target()),
            "fewer than 2^32 keys"
        );
        let (start, end) = redis::collection_rows(number);
        let (prefix, _) = redis::collection_rows(copy);
        let moved = |row: &[u8]| [&prefix, &row[COLLECTION_PREFIX_BYTES..]].concat();
        self.merge.copy_ours(KeyRange::new(&start, &end), moved)?;
        Ok(copy)
    }

    fn put_totals(&mut self) -> Result<(), ServeError> {
        if self.next_collection != redis::first_collection_of(self.merge.target()) {
            self.totals.next_collection = self.next_collection;
        }
        let key = redis::totals_key();
        match self.totals == Totals::EMPTY {
            true => self.merge.delete(&key)?,
            false => self.merge.put(&key, &self.totals.encode())?,
        }
        Ok(())
    }
}
