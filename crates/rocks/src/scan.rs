//! Scans.

#![expect(unsafe_code, reason = "calls of a C library")]

use crate::c_api::{self, Handle, bytes_of};
use crate::database::{Family, Moment, ReadOptions, checked};
use crate::point::decode;
use std::sync::Arc;
use stitch_kv::{Direction, Entry, KeyRange, KvError, Scan};

/// A walk over a range of a family.
pub(crate) struct RocksScan {
    iter: Handle,
    direction: Direction,
    has_begun: bool,
    // Dropped after the iterator, in this order.
    _options: ReadOptions,
    _bounds: [Box<[u8]>; 2],
    _moment: Option<Arc<Moment>>,
    _family: Arc<Family>,
}

// SAFETY: an iterator is used by one thread at a time, whichever it is.
unsafe impl Send for RocksScan {}

impl RocksScan {
    pub(crate) fn new(
        family: Arc<Family>,
        range: KeyRange<'_>,
        direction: Direction,
        (options, moment): (ReadOptions, Option<Arc<Moment>>),
    ) -> Self {
        let start: Box<[u8]> = range.start.into();
        let end: Box<[u8]> = range.end.unwrap_or_default().into();
        // SAFETY: the bounds live as long as the iterator; the options are not in use yet.
        let iter = unsafe {
            let options = options.handle();
            c_api::rocksdb_readoptions_set_iterate_lower_bound(
                options,
                start.as_ptr().cast(),
                start.len(),
            );
            if range.end.is_some() {
                c_api::rocksdb_readoptions_set_iterate_upper_bound(
                    options,
                    end.as_ptr().cast(),
                    end.len(),
                );
            }
            let db = family.database.handle();
            c_api::rocksdb_create_iterator_cf(db, options, family.handle())
        };
        Self {
            iter,
            direction,
            has_begun: false,
            _options: options,
            _bounds: [start, end],
            _moment: moment,
            _family: family,
        }
    }

    /// Steps to the next entry, or to the first one. Reports whether there is any.
    fn step(&mut self) -> Result<bool, KvError> {
        let start = &self._bounds[0];
        // SAFETY: the iterator is a living one, and is not moved beyond its end: `next` ends there.
        let is_valid = unsafe {
            match (self.has_begun, self.direction) {
                (true, Direction::Forward) => c_api::rocksdb_iter_next(self.iter),
                (true, Direction::Backward) => c_api::rocksdb_iter_prev(self.iter),
                (false, Direction::Forward) => {
                    c_api::rocksdb_iter_seek(self.iter, start.as_ptr().cast(), start.len());
                }
                (false, Direction::Backward) => c_api::rocksdb_iter_seek_to_last(self.iter),
            }
            c_api::rocksdb_iter_valid(self.iter) != 0
        };
        self.has_begun = true;
        if !is_valid {
            checked("cannot scan", |err| {
                // SAFETY: the iterator is a living one.
                unsafe { c_api::rocksdb_iter_get_error(self.iter, err) }
            })?;
        }
        Ok(is_valid)
    }

    /// The entry on which the iterator stands.
    fn stored(&self) -> (&[u8], &[u8]) {
        let (mut key_len, mut value_len) = (0, 0);
        // SAFETY: the iterator is valid; key and value are there until it moves.
        unsafe {
            let key = c_api::rocksdb_iter_key(self.iter, &raw mut key_len);
            let value = c_api::rocksdb_iter_value(self.iter, &raw mut value_len);
            (bytes_of(key, key_len), bytes_of(value, value_len))
        }
    }
}

impl Scan for RocksScan {
    fn next(&mut self) -> Result<Option<Entry<'_>>, KvError> {
        loop {
            if self.iter.is_null() || !self.step()? {
                self.end();
                return Ok(None);
            }
            if decode(self.stored().1)?.is_some() {
                let (key, stored) = self.stored();
                return Ok(decode(stored)?.map(|value| (key, value)));
            }
        }
    }
}

impl RocksScan {
    fn end(&mut self) {
        let iter = std::mem::replace(&mut self.iter, std::ptr::null_mut());
        if !iter.is_null() {
            // SAFETY: destroyed once, before what it refers to.
            unsafe { c_api::rocksdb_iter_destroy(iter) };
        }
    }
}

impl Drop for RocksScan {
    fn drop(&mut self) {
        self.end();
    }
}
