//! What RocksDB calls back: the merge operator, which folds upserts by the registered functions,
//! and the compaction filter, which removes values that say that their key is absent.
//!
//! Invariant: memory that a callback returns is a boxed slice, and comes back to [`delete_value`]
//! with its length.

#![expect(unsafe_code, reason = "functions that a C library calls")]

use crate::c_api::{self, Handle, bytes_of};
use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::slice;
use stitch_format::rocks::{ABSENT, PRESENT, operand_head, operand_of, value_of};
use stitch_kv::{Folded, UpsertRegistry};

const MERGE_NAME: &[u8] = b"stitchfs.upsert\0";
const FILTER_NAME: &[u8] = b"stitchfs.absent\0";

/// Returns a merge operator; the options that it is set in own it.
pub(crate) fn merge_operator(registry: UpsertRegistry) -> Handle {
    let state = Box::into_raw(Box::new(registry)).cast::<c_void>();
    // SAFETY: the functions are those that the library expects, and the state is theirs alone until
    // `drop_registry`.
    unsafe {
        c_api::rocksdb_mergeoperator_create(
            state,
            drop_registry,
            full_merge,
            partial_merge,
            delete_value,
            merge_name,
        )
    }
}

/// Returns a compaction filter; it must outlive the database.
pub(crate) fn compaction_filter() -> Handle {
    // SAFETY: the functions are those that the library expects; they have no state.
    unsafe {
        c_api::rocksdb_compactionfilter_create(
            std::ptr::null_mut(),
            drop_nothing,
            is_absent,
            filter_name,
        )
    }
}

unsafe extern "C" fn drop_registry(state: *mut c_void) {
    // SAFETY: it was made by `merge_operator` and is dropped once.
    drop(unsafe { Box::from_raw(state.cast::<UpsertRegistry>()) });
}

unsafe extern "C" fn drop_nothing(_state: *mut c_void) {}

unsafe extern "C" fn merge_name(_state: *mut c_void) -> *const c_char {
    MERGE_NAME.as_ptr().cast()
}

unsafe extern "C" fn filter_name(_state: *mut c_void) -> *const c_char {
    FILTER_NAME.as_ptr().cast()
}

unsafe extern "C" fn delete_value(_state: *mut c_void, value: *const c_char, len: usize) {
    if !value.is_null() {
        let bytes = std::ptr::slice_from_raw_parts_mut(value.cast::<u8>().cast_mut(), len);
        // SAFETY: the invariant of this module.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

unsafe extern "C" fn is_absent(
    _state: *mut c_void,
    _level: c_int,
    _key: *const c_char,
    _key_len: usize,
    value: *const c_char,
    len: usize,
    _new_value: *mut *mut c_char,
    _new_len: *mut usize,
    changed: *mut c_uchar,
) -> c_uchar {
    // SAFETY: the library gives a value of this length and a place for the answer.
    let value = unsafe {
        *changed = 0;
        bytes_of(value, len)
    };
    c_uchar::from(value == [ABSENT])
}

unsafe extern "C" fn full_merge(
    state: *mut c_void,
    key: *const c_char,
    key_len: usize,
    value: *const c_char,
    value_len: usize,
    operands: *const *const c_char,
    operand_lens: *const usize,
    count: c_int,
    success: *mut c_uchar,
    new_len: *mut usize,
) -> *mut c_char {
    // SAFETY: the library gives what `full_merge` of `c_api` says, and `state` is our registry.
    let (registry, key, old, operands) = unsafe {
        (
            &*state.cast::<UpsertRegistry>(),
            bytes_of(key, key_len),
            (!value.is_null()).then(|| bytes_of(value, value_len)),
            Operands::new(operands, operand_lens, count),
        )
    };
    let folded = fold_all(registry, key, old, &operands);
    // SAFETY: places for the answer.
    unsafe { give(folded, success, new_len) }
}

unsafe extern "C" fn partial_merge(
    state: *mut c_void,
    _key: *const c_char,
    _key_len: usize,
    operands: *const *const c_char,
    operand_lens: *const usize,
    count: c_int,
    success: *mut c_uchar,
    new_len: *mut usize,
) -> *mut c_char {
    // SAFETY: the library gives what `partial_merge` of `c_api` says, and `state` is our registry.
    let (registry, operands) = unsafe {
        let registry = &*state.cast::<UpsertRegistry>();
        (registry, Operands::new(operands, operand_lens, count))
    };
    let joined = join_all(registry, &operands);
    // SAFETY: places for the answer.
    unsafe { give(joined, success, new_len) }
}

/// Operands of a merge, oldest first.
struct Operands<'a> {
    starts: &'a [*const c_char],
    lens: &'a [usize],
}

impl<'a> Operands<'a> {
    /// # Safety
    /// Both arrays have `count` entries that say where operands are.
    unsafe fn new(starts: *const *const c_char, lens: *const usize, count: c_int) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: as the caller says.
        let (starts, lens) = unsafe {
            (
                slice::from_raw_parts(starts, count),
                slice::from_raw_parts(lens, count),
            )
        };
        Self { starts, lens }
    }

    fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let pairs = self.starts.iter().zip(self.lens);
        // SAFETY: `new` was told so.
        pairs.map(|(start, len)| unsafe { bytes_of(*start, *len) })
    }
}

/// Folds all operands over a stored value; `None` for what cannot be decoded.
fn fold_all(
    registry: &UpsertRegistry,
    key: &[u8],
    stored: Option<&[u8]>,
    operands: &Operands<'_>,
) -> Option<Vec<u8>> {
    let old = match stored {
        None => None,
        Some(stored) => value_of(stored).ok()?,
    };
    let mut current = old.map(<[u8]>::to_vec);
    let mut next = Vec::new();
    for operand in operands.iter() {
        let (function, delta) = operand_of(operand)?;
        let function = registry.get(function)?;
        next.clear();
        match function.fold(key, current.as_deref(), delta, &mut next) {
            Folded::Value => std::mem::swap(current.get_or_insert_default(), &mut next),
            Folded::Absent => current = None,
        }
    }
    Some(match current {
        None => vec![ABSENT],
        Some(value) => [&[PRESENT][..], &value].concat(),
    })
}

/// Joins operands of one function; `None` if they stay apart.
fn join_all(registry: &UpsertRegistry, operands: &Operands<'_>) -> Option<Vec<u8>> {
    let mut operands = operands.iter();
    let (id, first) = operand_of(operands.next()?)?;
    let function = registry.get(id)?;
    let mut joined = first.to_vec();
    let mut next = Vec::new();
    for operand in operands {
        let (other, delta) = operand_of(operand)?;
        next.clear();
        if other != id || !function.join(&joined, delta, &mut next) {
            return None;
        }
        std::mem::swap(&mut joined, &mut next);
    }
    Some([&operand_head(id)[..], &joined].concat())
}

/// Hands a result to the library.
///
/// # Safety
/// `success` and `new_len` are places for it.
unsafe fn give(result: Option<Vec<u8>>, success: *mut c_uchar, new_len: *mut usize) -> *mut c_char {
    let is_there = result.is_some();
    let bytes = result.unwrap_or_default().into_boxed_slice();
    // SAFETY: as the caller says.
    unsafe {
        *success = c_uchar::from(is_there);
        *new_len = bytes.len();
    }
    Box::into_raw(bytes).cast()
}
