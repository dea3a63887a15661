//! Batches as RocksDB takes them.

#![expect(unsafe_code, reason = "calls of a C library")]

use crate::c_api::{self, Handle, PutPieces};
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
        let put = c_api::rocksdb_writebatch_putv_cf;
        self.add_pieces(put, family, key, [&[PRESENT], value]);
    }

    fn merge(&mut self, family: &Family, key: &[u8], (function, delta): (u32, &[u8])) {
        let merge = c_api::rocksdb_writebatch_mergev_cf;
        self.add_pieces(merge, family, key, [&operand_head(function), delta]);
    }

    /// Adds a value in two pieces, so that what is before it costs no copy.
    fn add_pieces(&mut self, add: PutPieces, family: &Family, key: &[u8], value: [&[u8]; 2]) {
        let (key_ptr, key_len) = (key.as_ptr().cast(), key.len());
        let starts = value.map(|piece| piece.as_ptr().cast());
        let lens = value.map(<[u8]>::len);
        // SAFETY: all pointers live through the call; the batch copies what they refer to.
        unsafe {
            add(
                self.0,
                family.handle(),
                1,
                &raw const key_ptr,
                &raw const key_len,
                2,
                starts.as_ptr(),
                lens.as_ptr(),
            );
        }
    }

    pub(crate) fn delete(&mut self, family: &Family, key: &[u8]) {
        let (batch, family) = (self.0, family.handle());
        // SAFETY: as in `add_pieces`.
        unsafe {
            c_api::rocksdb_writebatch_delete_cf(batch, family, key.as_ptr().cast(), key.len());
        }
    }

    fn delete_range(&mut self, family: &Family, start: &[u8], end: &[u8]) {
        // SAFETY: as in `add_pieces`.
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
