//! Hashes and sorted sets: rows of their own, counted by the key's row.

use super::{Keyspace, Value};
use crate::error::CommandError;
use crate::pending::RowRange;
use bytes::Bytes;
use std::ops::ControlFlow;
use stitch_db::Direction;
use stitch_format::redis::{self, Collection, FIELD, KeyHead, Kind, MEMBER};

/// A hash or sorted set that a command works on. Changes of its count are stored by
/// [`Keyspace::finish`].
#[derive(Debug)]
pub(crate) struct OpenCollection {
    old: Option<Value>,
    kind: Kind,
    pub(crate) collection: Collection,
}

impl Keyspace {
    /// Returns the collection of a key; `None` where there is no key.
    pub(crate) fn open_collection(
        &mut self,
        key: &[u8],
        kind: Kind,
    ) -> Result<Option<OpenCollection>, CommandError> {
        let Some(value) = self.value(key)? else {
            return Ok(None);
        };
        let collection = value.collection()?.filter(|_| value.head.kind == kind);
        let collection = collection.ok_or(CommandError::WRONG_TYPE)?;
        Ok(Some(OpenCollection {
            old: Some(value),
            kind,
            collection,
        }))
    }

    /// As [`Self::open_collection`], and an empty one where there is no key. It is stored once it
    /// has a member.
    pub(crate) fn collection_or_new(
        &mut self,
        key: &[u8],
        kind: Kind,
    ) -> Result<OpenCollection, CommandError> {
        self.check_name(key)?;
        if let Some(open) = self.open_collection(key, kind)? {
            return Ok(open);
        }
        let collection = Collection {
            number: self.new_collection()?,
            count: 0,
        };
        Ok(OpenCollection {
            old: None,
            kind,
            collection,
        })
    }

    /// Stores the count of a collection that has changed, or removes the key of one that is empty
    /// now.
    pub(crate) fn finish(&mut self, key: &[u8], open: &OpenCollection) -> Result<(), CommandError> {
        debug_assert!(open.old.is_some() || open.collection.number >= self.totals.next_collection);
        match (&open.old, open.collection.count) {
            (None, 0) => Ok(()),
            (Some(old), 0) => self.remove_value(key, old),
            (old, _) => {
                let expiry_ms = old.as_ref().map_or(0, |old| old.head.expiry_ms);
                if old.is_none() {
                    self.totals.next_collection += 1;
                }
                let kind = open.kind;
                let head = KeyHead { kind, expiry_ms };
                self.put_row(key, old.as_ref(), head, &open.collection.encode())
            }
        }
    }

    pub(crate) fn field(
        &self,
        hash: Collection,
        field: &[u8],
    ) -> Result<Option<Bytes>, CommandError> {
        if field.len() > self.key_bytes_max {
            return Ok(None);
        }
        Ok(self
            .rows
            .get(&redis::member_row(hash.number, FIELD, field))?)
    }

    /// Reads the rows of several fields or members, by their mark, as [`Self::fetch_keys`] does
    /// those of keys.
    pub(crate) fn fetch_members<'n>(
        &mut self,
        collection: Collection,
        mark: u8,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<(), CommandError> {
        debug_assert!([FIELD, MEMBER].contains(&mark), "rows with a name");
        let named = names.filter(|name| name.len() <= self.key_bytes_max);
        let row = |name| redis::member_row(collection.number, mark, name);
        let rows = named.map(row).collect();
        Ok(self.rows.fetch(rows)?)
    }

    /// Sets a field. Returns whether it is new.
    pub(crate) fn set_field(
        &mut self,
        open: &mut OpenCollection,
        field: &[u8],
        value: &[u8],
    ) -> Result<bool, CommandError> {
        let is_new = self.field(open.collection, field)?.is_none();
        let row = redis::member_row(open.collection.number, FIELD, field);
        self.rows.put(row, Bytes::copy_from_slice(value));
        open.collection.count += u64::from(is_new);
        Ok(is_new)
    }

    /// Removes a field. Returns whether it was there.
    pub(crate) fn remove_field(
        &mut self,
        open: &mut OpenCollection,
        field: &[u8],
    ) -> Result<bool, CommandError> {
        if self.field(open.collection, field)?.is_none() {
            return Ok(false);
        }
        self.rows
            .delete(redis::member_row(open.collection.number, FIELD, field));
        open.collection.count -= 1;
        Ok(true)
    }

    pub(crate) fn score(
        &self,
        set: Collection,
        member: &[u8],
    ) -> Result<Option<f64>, CommandError> {
        if member.len() > self.key_bytes_max {
            return Ok(None);
        }
        let stored = self
            .rows
            .get(&redis::member_row(set.number, MEMBER, member))?;
        stored.map(|bytes| score_of(&bytes)).transpose()
    }

    /// Sets a member's score, which is `old` by now.
    pub(crate) fn set_score(
        &mut self,
        open: &mut OpenCollection,
        member: &[u8],
        old: Option<f64>,
        score: f64,
    ) {
        let number = open.collection.number;
        match old {
            Some(old) => self.rows.delete(redis::score_row(number, old, member)),
            None => open.collection.count += 1,
        }
        let stored = score.to_bits().to_le_bytes().to_vec();
        self.rows
            .put(redis::member_row(number, MEMBER, member), stored);
        self.rows
            .put(redis::score_row(number, score, member), Bytes::new());
    }

    /// Removes a member that has this score.
    pub(crate) fn remove_member(&mut self, open: &mut OpenCollection, member: &[u8], score: f64) {
        let number = open.collection.number;
        self.rows.delete(redis::member_row(number, MEMBER, member));
        self.rows.delete(redis::score_row(number, score, member));
        open.collection.count -= 1;
    }

    /// Calls `visit` with what follows the mark in the keys of a collection's rows, and their
    /// values, from `start` on, until it breaks.
    pub(crate) fn scan_members(
        &self,
        collection: Collection,
        mark: u8,
        start: &[u8],
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), CommandError> {
        let prefix = redis::member_prefix(collection.number, mark);
        let mut range = RowRange::of_prefix(&prefix);
        range.start.extend_from_slice(start);
        let scanned = self.rows.scan(&range, direction, |row, value| {
            visit(&row[prefix.len()..], value)
        });
        Ok(scanned?)
    }

    /// Puts a copy of a value under another key, instead of what that has.
    ///
    /// # Cost
    /// Reads and writes every member of a collection, in one batch.
    pub(crate) fn copy_over(&mut self, value: &Value, to: &[u8]) -> Result<(), CommandError> {
        let old = self.value(to)?;
        let Some(source) = value.collection()? else {
            return self.put_row(to, old.as_ref(), value.head, &value.body);
        };
        let target = Collection {
            number: self.new_collection()?,
            count: source.count,
        };
        for (row, member) in self.copied_rows(source, target)? {
            self.rows.put(row, member);
        }
        self.totals.next_collection += 1;
        self.put_row(to, old.as_ref(), value.head, &target.encode())
    }

    /// The rows of a collection, for another.
    fn copied_rows(
        &self,
        source: Collection,
        target: Collection,
    ) -> Result<Vec<(Vec<u8>, Bytes)>, CommandError> {
        let (start, end) = redis::collection_rows(source.number);
        let (to_start, _) = redis::collection_rows(target.number);
        let mut copied = Vec::new();
        let range = RowRange { start, end };
        let mut bytes = 0;
        self.rows.scan(&range, Direction::Forward, |row, value| {
            let key = [&to_start, &row[to_start.len()..]].concat();
            bytes += key.len() + value.len();
            copied.push((key, Bytes::copy_from_slice(value)));
            if bytes > self.batch_bytes_max {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if bytes > self.batch_bytes_max {
            return Err(CommandError::text(
                "ERR the value is too large to copy at once",
            ));
        }
        Ok(copied)
    }
}

/// The score in a member's row.
fn score_of(stored: &[u8]) -> Result<f64, CommandError> {
    let mut reader = stitch_format::codec::Reader::new("score of the Redis protocol", stored);
    let bits = reader.u64()?;
    reader.finish()?;
    Ok(f64::from_bits(bits))
}
