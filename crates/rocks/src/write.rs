//! Batches as RocksDB takes them.

#![expect(unsafe_code, reason = "calls of a C library")]

use crate::c_api::{self, Handle};
use crate::database::{Database, Family, checked};
use stitch_format::rocks::{PRESENT, operand_head};
use stitch_kv::{KvError, Message};

/// A write batch under construction.
pub(crate) struct WriteBatch(Handle);

impl WriteBatch {
    pub(crate) fn new() -> Self {
        // SAFETY: a fresh object.
        Self(unsafe { c_api::rocksdb_writebatch_create() })
    }

    /// Adds a message. A range that ends where it begins, or before, has no keys.
    pub(crate) fn add(&mut self, family: &Family, message: Message<'_>) {
        match message {
            Message::Put { key, value } => self.put(family, key, value),
            Message::Delete { key } => self.delete(family, key),
            Message::DeleteRange { start, end } if start < end => {
                self.delete_range(family, start, end);
            }
            Message::DeleteRange { .. } => {}
            Message::Upsert {
                key,
                function,
                delta,
            } => self.merge(family, key, (function, delta)),
        }
    }

    pub(crate) fn put(&mut self, family: &Family, key: &[u8], value: &[u8]) {
        let pieces = Pieces::new(&[PRESENT], value);
        let (key_ptr, key_len) = (key.as_ptr().cast(), key.len());
        // SAFETY: all pointers live through the call; the batch copies what they refer to.
        unsafe {
            c_api::rocksdb_writebatch_putv_cf(
                self.0,
                family.handle(),
                1,
                &raw const key_ptr,
                &raw const key_len,
                2,
                pieces.starts.as_ptr(),
                pieces.lens.as_ptr(),
            );
        }
    }

    fn merge(&mut self, family: &Family, key: &[u8], (function, delta): (u32, &[u8])) {
        let head = operand_head(function);
        let pieces = Pieces::new(&head, delta);
        let (key_ptr, key_len) = (key.as_ptr().cast(), key.len());
        // SAFETY: as in `put`.
        unsafe {
            c_api::rocksdb_writebatch_mergev_cf(
                self.0,
                family.handle(),
                1,
                &raw const key_ptr,
                &raw const key_len,
                2,
                pieces.starts.as_ptr(),
                pieces.lens.as_ptr(),
            );
        }
    }

    pub(crate) fn delete(&mut self, family: &Family, key: &[u8]) {
        let (batch, family) = (self.0, family.handle());
        // SAFETY: as in `put`.
        unsafe {
            c_api::rocksdb_writebatch_delete_cf(batch, family, key.as_ptr().cast(), key.len());
        }
    }

    fn delete_range(&mut self, family: &Family, start: &[u8], end: &[u8]) {
        // SAFETY: as in `put`.
        unsafe {
            c_api::rocksdb_writebatch_delete_range_cf(
                self.0,
                family.handle(),
                start.as_ptr().cast(),
                start.len(),
                end.as_ptr().cast(),
                end.len(),
            );
        }
    }

    /// Applies the batch: it survives a killed process, and with `sync` a power cut.
    pub(crate) fn write(&self, database: &Database, sync: bool) -> Result<(), KvError> {
        // SAFETY: fresh options that are destroyed here; database and batch are living ones.
        unsafe {
            let options = c_api::rocksdb_writeoptions_create();
            c_api::rocksdb_writeoptions_set_sync(options, u8::from(sync));
            let done = checked("cannot write", |err| {
                c_api::rocksdb_write(database.handle(), options, self.0, err);
            });
            c_api::rocksdb_writeoptions_destroy(options);
            done
        }
    }
}

impl Drop for WriteBatch {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { c_api::rocksdb_writebatch_destroy(self.0) };
    }
}

/// A value in two pieces, so that what is before it costs no copy.
struct Pieces {
    starts: [*const std::ffi::c_char; 2],
    lens: [usize; 2],
}

impl Pieces {
    const fn new(head: &[u8], rest: &[u8]) -> Self {
        Self {
            starts: [head.as_ptr().cast(), rest.as_ptr().cast()],
            lens: [head.len(), rest.len()],
        }
    }
}
