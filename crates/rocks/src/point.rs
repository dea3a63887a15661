//! Point reads, of one key and of several.
//!
//! A read of several keys is one `MultiGet`: RocksDB sorts the keys, and reads the blocks of a
//! table that are not in its cache together. Values of a read stay in RocksDB's hands until they
//! are copied, with their blocks, so the keys go to it in groups of [`GROUP_MAX`].

#![expect(unsafe_code, reason = "calls of a C library")]

use crate::c_api::{self, Handle, bytes_of};
use crate::database::{Family, ReadOptions, checked, take_message};
use bytes::Bytes;
use std::ffi::c_char;
use std::ptr;
use stitch_base::ErrorKind;
use stitch_format::rocks::value_of;
use stitch_kv::KvError;

/// Most keys of one `MultiGet`. It bounds the blocks that are held beside the cache.
pub(crate) const GROUP_MAX: usize = 256;
const READING: &str = "cannot read";

/// Returns the value of a key.
pub(crate) fn get(
    family: &Family,
    options: &ReadOptions,
    key: &[u8],
) -> Result<Option<Bytes>, KvError> {
    let slice = checked(READING, |err| {
        // SAFETY: database, family and options are living ones; the key lives through the call.
        unsafe {
            c_api::rocksdb_get_pinned_cf(
                family.database.handle(),
                options.handle(),
                family.handle(),
                key.as_ptr().cast(),
                key.len(),
                err,
            )
        }
    })?;
    Pinned::of(slice).map_or(Ok(None), |pinned| pinned.value())
}

/// Appends the values of a group of keys, in the order of `keys`. All are of one moment.
///
/// # Errors
/// That of the first key that cannot be read; `values` is of no use then.
pub(crate) fn get_group(
    family: &Family,
    options: &ReadOptions,
    keys: &[&[u8]],
    values: &mut Vec<Option<Bytes>>,
) -> Result<(), KvError> {
    assert!(keys.len() <= GROUP_MAX, "the caller cuts groups");
    let first = values.len();
    let starts: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr().cast()).collect();
    let lens: Vec<usize> = keys.iter().map(|key| key.len()).collect();
    let mut slices: Vec<Handle> = vec![ptr::null_mut(); keys.len()];
    let mut messages: Vec<*mut c_char> = vec![ptr::null_mut(); keys.len()];
    // SAFETY: database, family and options are living ones; all arrays have an entry for each key,
    // and live through the call, as the keys do.
    unsafe {
        c_api::rocksdb_batched_multi_get_cf(
            family.database.handle(),
            options.handle(),
            family.handle(),
            keys.len(),
            starts.as_ptr(),
            lens.as_ptr(),
            slices.as_mut_ptr(),
            messages.as_mut_ptr(),
            false,
        );
    }
    // Every slice and every message gets its owner before the first error ends this.
    let pinned: Vec<Option<Pinned>> = slices.into_iter().map(Pinned::of).collect();
    let errors = messages.into_iter();
    let mut errors = errors.filter_map(|message| take_message(READING, message));
    let failed = errors.next();
    errors.for_each(drop);
    if let Some(error) = failed {
        return Err(error);
    }
    for slice in pinned {
        values.push(slice.map_or(Ok(None), |pinned| pinned.value())?);
    }
    debug_assert_eq!(values.len() - first, keys.len(), "one value for each key");
    Ok(())
}

/// Returns the value that a stored one stands for; `None` for that of a deleted key.
pub(crate) fn decode(stored: &[u8]) -> Result<Option<&[u8]>, KvError> {
    value_of(stored).map_err(|error| KvError::storage(ErrorKind::Corrupt, error))
}

/// A value that RocksDB holds for us. Invariant: the handle is that of a slice of the library.
struct Pinned(Handle);

impl Pinned {
    /// Takes a slice over; `None` for null, which stands for a missing key.
    fn of(slice: Handle) -> Option<Self> {
        (!slice.is_null()).then_some(Self(slice))
    }

    fn bytes(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the slice is a living one, and its bytes are there as long as it.
        unsafe {
            let start = c_api::rocksdb_pinnableslice_value(self.0, &raw mut len);
            bytes_of(start, len)
        }
    }

    /// Copies the value.
    fn value(&self) -> Result<Option<Bytes>, KvError> {
        Ok(decode(self.bytes())?.map(Bytes::copy_from_slice))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { c_api::rocksdb_pinnableslice_destroy(self.0) };
    }
}
