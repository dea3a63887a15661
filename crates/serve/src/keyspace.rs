//! Keys with their types, values and expiry, over rows.
//!
//! Invariants, after each command:
//! - `totals` counts the rows `k`, and those of them with an expiry;
//! - a key with an expiry has one row `x`, and there are no other rows `x`;
//! - a collection has the rows `m` that its key's row counts, and no collection is empty.
//!
//! A key whose time is over is removed as soon as a command meets it, and by [`Keyspace::reclaim`].
//! In a transaction it is removed when it is written.

mod collection;
mod expiry;
mod scan;

pub(crate) use scan::KeyFilter;

use crate::error::{CommandError, ServeError};
use crate::gate::Changes;
pub(crate) use crate::pending::FETCHED_MAX;
use crate::pending::{PendingRows, RowRange};
use crate::watch::Watches;
use bytes::Bytes;
use stitch_base::TreeId;
use stitch_base::sync::Arc;
use stitch_db::{DbError, Schema, TreeOptions};
use stitch_format::redis::{self, Collection, HEAD_BYTES, KeyHead, Kind, PREFIX_BYTES_MAX, Totals};
use stitch_kv::Engine;

/// Schema and dictionary of [`redis::TREE`].
const SCHEMA: &str = "redis";
const ROWS: &str = "rows";

/// A key's row.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) head: KeyHead,
    /// The string, or a [`Collection`].
    pub(crate) body: Bytes,
}

impl Value {
    fn decode(row: &Bytes) -> Result<Self, CommandError> {
        let head = KeyHead::decode(row)?;
        let body = row.slice(HEAD_BYTES..);
        Ok(Self { head, body })
    }

    /// Returns the collection of a hash or a sorted set; `None` for a string.
    fn collection(&self) -> Result<Option<Collection>, CommandError> {
        match self.head.kind {
            Kind::String => Ok(None),
            Kind::Hash | Kind::SortedSet => Ok(Some(Collection::decode(&self.body)?)),
        }
    }
}

/// Reads the totals. A branch gives out numbers of its own for collections.
fn totals_of(rows: &PendingRows, branch: Option<TreeId>) -> Result<Totals, ServeError> {
    let mut totals = match rows.get(&redis::totals_key())? {
        Some(totals) => Totals::decode(&totals)?,
        None => Totals::EMPTY,
    };
    if let Some(branch) = branch
        && !redis::is_of_branch(totals.next_collection, branch)
    {
        totals.next_collection = redis::first_collection_of(branch);
    }
    Ok(totals)
}

/// All keys of a store, with changes that are not committed yet.
pub(crate) struct Keyspace {
    rows: PendingRows,
    engine: Arc<dyn Engine>,
    totals: Totals,
    committed_totals: Totals,
    /// No key expires before this.
    next_expiry_ms: u64,
    now_ms: u64,
    /// The branch that is written to, of a transaction.
    branch: Option<TreeId>,
    pub(crate) watches: Watches,
    key_bytes_max: usize,
    value_bytes_max: usize,
    batch_bytes_max: usize,
    /// A batch of more bytes is to be committed before the next command.
    round_bytes_max: usize,
}

impl Keyspace {
    /// Opens the keys of a store, and makes their tree if there is none. So many bytes of rows are
    /// kept in memory.
    ///
    /// # Errors
    /// Those of the store; a layout that is newer than this program, or damaged.
    pub(crate) fn open(
        engine: Arc<dyn Engine>,
        branch: Option<TreeId>,
        recent_bytes: u64,
    ) -> Result<Self, ServeError> {
        let schema = match Schema::open(Arc::clone(&engine), SCHEMA) {
            Err(DbError::NoSchema(_)) => {
                let rows = (ROWS, TreeOptions::default());
                Schema::create(Arc::clone(&engine), SCHEMA, &[rows])?
            }
            other => other?,
        };
        let mut rows = PendingRows::new(schema.now(), schema.dictionary(ROWS)?, recent_bytes);
        match rows.get(redis::VERSION_KEY)? {
            Some(version) => redis::check_version(&version)?,
            None => {
                let version = redis::VERSION.to_le_bytes().to_vec();
                rows.put(redis::VERSION_KEY.to_vec(), version);
                rows.commit(true)?;
            }
        }
        let totals = totals_of(&rows, branch)?;
        let limits = engine.limits();
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Self {
            rows,
            engine,
            totals,
            committed_totals: totals,
            next_expiry_ms: 0,
            now_ms: 0,
            branch,
            watches: Watches::default(),
            key_bytes_max: size(limits.key_bytes_max) - PREFIX_BYTES_MAX,
            value_bytes_max: size(limits.value_bytes_max) - HEAD_BYTES,
            batch_bytes_max: size(limits.batch_bytes_max),
            round_bytes_max: 0,
        })
    }

    /// Begins a round at this time. Its batch is at most a quarter of the largest, and while space
    /// is short, no longer than what is surely free.
    pub(crate) fn begin_round(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let free = usize::try_from(self.engine.space().free_bytes).unwrap_or(usize::MAX);
        self.round_bytes_max = (self.batch_bytes_max / 4).min(free / 16);
    }

    /// Forgets what others have changed since the last round.
    pub(crate) fn follow(&mut self, changes: &Changes) -> Result<(), ServeError> {
        debug_assert!(self.rows.is_empty(), "a round ends with its changes");
        match changes {
            Changes::Keys(keys) => {
                for key in keys {
                    self.watches.touch(key);
                    self.rows.forget(&redis::key_row(key));
                }
            }
            Changes::All => {
                self.watches.touch_all();
                self.rows.forget_all();
            }
        }
        self.totals = totals_of(&self.rows, self.branch)?;
        self.committed_totals = self.totals;
        self.next_expiry_ms = 0;
        Ok(())
    }

    pub(crate) const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Reports whether what is pending should be committed before a command of so many bytes runs.
    pub(crate) const fn is_round_full(&self, command_bytes: usize) -> bool {
        let bytes = self.rows.bytes();
        bytes > 0 && bytes + command_bytes > self.round_bytes_max
    }

    pub(crate) fn has_changes(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Makes all changes since the last commit one batch. If that fails, they are forgotten.
    ///
    /// # Durability
    /// With `sync` on the medium when this returns; without, it survives a killed process.
    pub(crate) fn commit(&mut self, sync: bool) -> Result<(), ServeError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        if self.totals != self.committed_totals {
            let key = redis::totals_key().to_vec();
            if self.totals == Totals::EMPTY {
                self.rows.delete(key);
            } else {
                self.rows.put(key, self.totals.encode().to_vec());
            }
        }
        match self.rows.commit(sync) {
            Ok(()) => {
                self.committed_totals = self.totals;
                Ok(())
            }
            Err(error) => {
                self.discard();
                Err(error.into())
            }
        }
    }

    /// Forgets all changes since the last commit.
    pub(crate) fn discard(&mut self) {
        self.rows.discard();
        self.totals = self.committed_totals;
        self.next_expiry_ms = 0;
    }

    /// Returns a key's value; `None` for one that is not there or has expired.
    pub(crate) fn value(&mut self, key: &[u8]) -> Result<Option<Value>, CommandError> {
        if key.len() > self.key_bytes_max {
            return Ok(None);
        }
        let Some(row) = self.rows.get(&redis::key_row(key))? else {
            return Ok(None);
        };
        let value = Value::decode(&row)?;
        if self.is_over(value.head.expiry_ms) {
            match self.branch {
                // Its end is no change of the transaction.
                Some(_) => self.watches.touch(key),
                None => self.remove_value(key, &value)?,
            }
            return Ok(None);
        }
        Ok(Some(value))
    }

    /// Reads the rows of several keys by one call of the store, for the command that runs: at most
    /// [`FETCHED_MAX`]. What reads of the keys return does not depend on it.
    pub(crate) fn fetch_keys<'n>(
        &mut self,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<(), CommandError> {
        let named = names.filter(|name| name.len() <= self.key_bytes_max);
        let rows = named.map(redis::key_row).collect();
        Ok(self.rows.fetch(rows)?)
    }

    /// Ends a command: what was fetched for it is not needed.
    pub(crate) fn end_command(&mut self) {
        self.rows.forget_fetched();
    }

    /// Removes a key whose time is over, in a transaction too.
    pub(crate) fn remove_over(&mut self, key: &[u8]) -> Result<(), CommandError> {
        if key.len() <= self.key_bytes_max
            && let Some(row) = self.rows.get(&redis::key_row(key))?
        {
            let value = Value::decode(&row)?;
            if self.is_over(value.head.expiry_ms) {
                self.remove_value(key, &value)?;
            }
        }
        Ok(())
    }

    /// Returns the number of the next collection.
    fn new_collection(&self) -> Result<u64, CommandError> {
        let number = self.totals.next_collection;
        match self.branch {
            Some(branch) if !redis::is_of_branch(number, branch) => Err(CommandError::text(
                "ERR the transaction has made too many hashes and sorted sets",
            )),
            _ => Ok(number),
        }
    }

    /// Returns a key's string; `None` where there is no key.
    pub(crate) fn string(&mut self, key: &[u8]) -> Result<Option<Value>, CommandError> {
        match self.value(key)? {
            Some(value) if value.head.kind != Kind::String => Err(CommandError::WRONG_TYPE),
            other => Ok(other),
        }
    }

    pub(crate) const fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// Refuses a key, field or member that is too long.
    pub(crate) const fn check_name(&self, name: &[u8]) -> Result<(), CommandError> {
        if name.len() > self.key_bytes_max {
            return Err(CommandError::KEY_TOO_LONG);
        }
        Ok(())
    }

    /// Refuses a string that is too long.
    pub(crate) const fn check_value_len(&self, len: usize) -> Result<(), CommandError> {
        if len > self.value_bytes_max {
            return Err(CommandError::TOO_LONG);
        }
        Ok(())
    }

    /// Sets a key to a string. `old` is what [`Self::value`] returned.
    pub(crate) fn set_string(
        &mut self,
        key: &[u8],
        old: Option<&Value>,
        string: &[u8],
        expiry_ms: u64,
    ) -> Result<(), CommandError> {
        self.check_value_len(string.len())?;
        let kind = Kind::String;
        self.put_row(key, old, KeyHead { kind, expiry_ms }, string)
    }

    /// Sets a key's expiry; 0 for none.
    pub(crate) fn set_expiry(
        &mut self,
        key: &[u8],
        old: &Value,
        expiry_ms: u64,
    ) -> Result<(), CommandError> {
        let kind = old.head.kind;
        self.put_row(key, Some(old), KeyHead { kind, expiry_ms }, &old.body)
    }

    /// Puts a key's row. The one place where a key changes, but for [`Self::remove_value`].
    fn put_row(
        &mut self,
        key: &[u8],
        old: Option<&Value>,
        head: KeyHead,
        body: &[u8],
    ) -> Result<(), CommandError> {
        self.check_name(key)?;
        if old.is_none() && self.branch.is_some() {
            self.remove_over(key)?;
        }
        if let Some(old) = old {
            self.drop_rows_of(old, head.kind, body)?;
            self.forget_expiry(key, old.head.expiry_ms, head.expiry_ms);
        } else {
            self.totals.keys += 1;
        }
        let old_expiry_ms = old.map_or(0, |old| old.head.expiry_ms);
        if head.expiry_ms > 0 && head.expiry_ms != old_expiry_ms {
            let row = redis::expiry_row(head.expiry_ms, key);
            self.rows.put(row, Bytes::new());
            self.totals.expiries += 1;
            self.next_expiry_ms = self.next_expiry_ms.min(head.expiry_ms);
        }
        let mut row = Vec::with_capacity(HEAD_BYTES + body.len());
        head.encode(&mut row);
        row.extend_from_slice(body);
        self.rows.put(redis::key_row(key), row);
        self.watches.touch(key);
        Ok(())
    }

    /// Removes the members of what a key had, unless it has the same collection again.
    fn drop_rows_of(&mut self, old: &Value, kind: Kind, body: &[u8]) -> Result<(), CommandError> {
        let Some(collection) = old.collection()? else {
            return Ok(());
        };
        let is_same = |new: Collection| new.number == collection.number;
        if kind == Kind::String || !Collection::decode(body).is_ok_and(is_same) {
            let (start, end) = redis::collection_rows(collection.number);
            self.rows.clear(RowRange { start, end });
        }
        Ok(())
    }

    fn forget_expiry(&mut self, key: &[u8], old_ms: u64, new_ms: u64) {
        if old_ms > 0 && old_ms != new_ms {
            self.rows.delete(redis::expiry_row(old_ms, key));
            self.totals.expiries -= 1;
        }
    }

    /// Removes a key. Returns whether it was there.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<bool, CommandError> {
        let Some(value) = self.value(key)? else {
            return Ok(false);
        };
        self.remove_value(key, &value)?;
        Ok(true)
    }

    /// Removes a key that has this value.
    pub(crate) fn remove_value(&mut self, key: &[u8], old: &Value) -> Result<(), CommandError> {
        if let Some(collection) = old.collection()? {
            let (start, end) = redis::collection_rows(collection.number);
            self.rows.clear(RowRange { start, end });
        }
        self.remove_row(key, old);
        Ok(())
    }

    /// Removes a key's row, and leaves the rows of its collection.
    fn remove_row(&mut self, key: &[u8], old: &Value) {
        self.forget_expiry(key, old.head.expiry_ms, 0);
        self.rows.delete(redis::key_row(key));
        self.totals.keys -= 1;
        self.watches.touch(key);
    }

    /// Gives a key's value another name. The rows of a collection stay where they are.
    pub(crate) fn rename(
        &mut self,
        from: &[u8],
        value: &Value,
        to: &[u8],
    ) -> Result<(), CommandError> {
        self.check_name(to)?;
        if from == to {
            return Ok(());
        }
        self.remove(to)?;
        self.remove_row(from, value);
        self.put_row(to, None, value.head, &value.body)
    }

    /// Removes all keys, at a cost that does not depend on how many there are.
    pub(crate) fn flush(&mut self) {
        for first in [redis::KEYS, redis::MEMBERS, redis::EXPIRIES] {
            let (start, end) = redis::all_rows(first);
            let (start, end) = (start.to_vec(), end.to_vec());
            self.rows.clear(RowRange { start, end });
        }
        let next_collection = match self.branch {
            Some(_) => self.totals.next_collection,
            None => Totals::EMPTY.next_collection,
        };
        self.totals = Totals {
            next_collection,
            ..Totals::EMPTY
        };
        self.watches.touch_all();
    }

    /// Number of keys, and of those with an expiry; keys whose time is over are not among them.
    pub(crate) fn counts(&self) -> Result<(u64, u64), CommandError> {
        let over = self.count_over()?;
        Ok((
            self.totals.keys.saturating_sub(over),
            self.totals.expiries.saturating_sub(over),
        ))
    }
}
