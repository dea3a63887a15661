//! The functions of RocksDB's C interface that this crate calls. To be read against `rocksdb/c.h`.

#![expect(unsafe_code, reason = "declares functions of a C library")]

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::slice;

/// Any object of the library.
pub(crate) type Handle = *mut c_void;
/// Where a call leaves its message when it fails; freed by [`rocksdb_free`].
pub(crate) type ErrPtr = *mut *mut c_char;

/// Folds operands over a value: state, key, value (null if absent), operands, their number; reports
/// success and the length of what it returns.
pub(crate) type FullMerge = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    usize,
    *const c_char,
    usize,
    *const *const c_char,
    *const usize,
    c_int,
    *mut c_uchar,
    *mut usize,
) -> *mut c_char;
/// Joins operands into one: state, key, operands, their number.
pub(crate) type PartialMerge = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    usize,
    *const *const c_char,
    *const usize,
    c_int,
    *mut c_uchar,
    *mut usize,
) -> *mut c_char;
/// Reports whether a compaction removes an entry.
pub(crate) type Filter = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const c_char,
    usize,
    *const c_char,
    usize,
    *mut *mut c_char,
    *mut usize,
    *mut c_uchar,
) -> c_uchar;
/// Adds a value in pieces to a batch: batch, family, number of keys, keys and their lengths, number
/// of pieces, pieces and their lengths.
pub(crate) type PutPieces = unsafe extern "C" fn(
    Handle,
    Handle,
    c_int,
    *const *const c_char,
    *const usize,
    c_int,
    *const *const c_char,
    *const usize,
);
pub(crate) type Destructor = unsafe extern "C" fn(*mut c_void);
pub(crate) type DeleteValue = unsafe extern "C" fn(*mut c_void, *const c_char, usize);
pub(crate) type Name = unsafe extern "C" fn(*mut c_void) -> *const c_char;

/// Returns what a pointer and a length of the library stand for.
///
/// # Safety
/// `len` bytes are at `start` for as long as `'a` says.
pub(crate) unsafe fn bytes_of<'a>(start: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts(start.cast(), len) }
}

#[link(name = "rocksdb")]
unsafe extern "C" {
    pub(crate) fn rocksdb_open_column_families(
        options: Handle,
        path: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const Handle,
        families: *mut Handle,
        err: ErrPtr,
    ) -> Handle;
    pub(crate) fn rocksdb_open_for_read_only_column_families(
        options: Handle,
        path: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const Handle,
        families: *mut Handle,
        error_if_wal_exists: c_uchar,
        err: ErrPtr,
    ) -> Handle;
    pub(crate) fn rocksdb_list_column_families(
        options: Handle,
        path: *const c_char,
        count: *mut usize,
        err: ErrPtr,
    ) -> *mut *mut c_char;
    pub(crate) fn rocksdb_list_column_families_destroy(list: *mut *mut c_char, count: usize);
    pub(crate) fn rocksdb_create_column_family(
        db: Handle,
        options: Handle,
        name: *const c_char,
        err: ErrPtr,
    ) -> Handle;
    pub(crate) fn rocksdb_drop_column_family(db: Handle, family: Handle, err: ErrPtr);
    pub(crate) fn rocksdb_column_family_handle_destroy(family: Handle);
    pub(crate) fn rocksdb_set_options_cf(
        db: Handle,
        family: Handle,
        count: c_int,
        keys: *const *const c_char,
        values: *const *const c_char,
        err: ErrPtr,
    );
    pub(crate) fn rocksdb_close(db: Handle);
    pub(crate) fn rocksdb_cancel_all_background_work(db: Handle, wait: c_uchar);
    pub(crate) fn rocksdb_get_latest_sequence_number(db: Handle) -> u64;
    pub(crate) fn rocksdb_flush_wal(db: Handle, sync: c_uchar, err: ErrPtr);
    pub(crate) fn rocksdb_flush_cf(db: Handle, options: Handle, family: Handle, err: ErrPtr);
    pub(crate) fn rocksdb_compact_range_cf(
        db: Handle,
        family: Handle,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );
    pub(crate) fn rocksdb_write(db: Handle, options: Handle, batch: Handle, err: ErrPtr);
    pub(crate) fn rocksdb_get_pinned_cf(
        db: Handle,
        options: Handle,
        family: Handle,
        key: *const c_char,
        key_len: usize,
        err: ErrPtr,
    ) -> Handle;
    pub(crate) fn rocksdb_pinnableslice_value(slice: Handle, len: *mut usize) -> *const c_char;
    pub(crate) fn rocksdb_pinnableslice_destroy(slice: Handle);
    pub(crate) fn rocksdb_free(pointer: *mut c_void);

    pub(crate) fn rocksdb_create_snapshot(db: Handle) -> Handle;
    pub(crate) fn rocksdb_release_snapshot(db: Handle, snapshot: Handle);

    pub(crate) fn rocksdb_create_iterator_cf(db: Handle, options: Handle, family: Handle)
    -> Handle;
    pub(crate) fn rocksdb_iter_destroy(iter: Handle);
    pub(crate) fn rocksdb_iter_valid(iter: Handle) -> c_uchar;
    pub(crate) fn rocksdb_iter_seek(iter: Handle, key: *const c_char, len: usize);
    pub(crate) fn rocksdb_iter_seek_to_last(iter: Handle);
    pub(crate) fn rocksdb_iter_next(iter: Handle);
    pub(crate) fn rocksdb_iter_prev(iter: Handle);
    pub(crate) fn rocksdb_iter_key(iter: Handle, len: *mut usize) -> *const c_char;
    pub(crate) fn rocksdb_iter_value(iter: Handle, len: *mut usize) -> *const c_char;
    pub(crate) fn rocksdb_iter_get_error(iter: Handle, err: ErrPtr);

    pub(crate) fn rocksdb_writebatch_create() -> Handle;
    pub(crate) fn rocksdb_writebatch_destroy(batch: Handle);
    pub(crate) fn rocksdb_writebatch_putv_cf(
        batch: Handle,
        family: Handle,
        key_count: c_int,
        keys: *const *const c_char,
        key_lens: *const usize,
        value_count: c_int,
        values: *const *const c_char,
        value_lens: *const usize,
    );
    pub(crate) fn rocksdb_writebatch_mergev_cf(
        batch: Handle,
        family: Handle,
        key_count: c_int,
        keys: *const *const c_char,
        key_lens: *const usize,
        value_count: c_int,
        values: *const *const c_char,
        value_lens: *const usize,
    );
    pub(crate) fn rocksdb_writebatch_delete_cf(
        batch: Handle,
        family: Handle,
        key: *const c_char,
        len: usize,
    );
    pub(crate) fn rocksdb_writebatch_delete_range_cf(
        batch: Handle,
        family: Handle,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );

    pub(crate) fn rocksdb_options_create() -> Handle;
    pub(crate) fn rocksdb_options_destroy(options: Handle);
    pub(crate) fn rocksdb_options_set_create_if_missing(options: Handle, on: c_uchar);
    pub(crate) fn rocksdb_options_set_db_write_buffer_size(options: Handle, bytes: usize);
    pub(crate) fn rocksdb_options_set_write_buffer_size(options: Handle, bytes: usize);
    pub(crate) fn rocksdb_options_set_max_open_files(options: Handle, count: c_int);
    pub(crate) fn rocksdb_options_set_max_log_file_size(options: Handle, bytes: usize);
    pub(crate) fn rocksdb_options_set_keep_log_file_num(options: Handle, count: usize);
    pub(crate) fn rocksdb_options_set_info_log_level(options: Handle, level: c_int);
    pub(crate) fn rocksdb_options_set_level_compaction_dynamic_level_bytes(
        options: Handle,
        on: c_uchar,
    );
    pub(crate) fn rocksdb_options_set_compression(options: Handle, kind: c_int);
    pub(crate) fn rocksdb_options_set_merge_operator(options: Handle, operator: Handle);
    pub(crate) fn rocksdb_options_set_compaction_filter(options: Handle, filter: Handle);
    pub(crate) fn rocksdb_options_set_block_based_table_factory(options: Handle, table: Handle);
    pub(crate) fn rocksdb_mergeoperator_create(
        state: *mut c_void,
        destructor: Destructor,
        full_merge: FullMerge,
        partial_merge: PartialMerge,
        delete_value: DeleteValue,
        name: Name,
    ) -> Handle;
    pub(crate) fn rocksdb_compactionfilter_create(
        state: *mut c_void,
        destructor: Destructor,
        filter: Filter,
        name: Name,
    ) -> Handle;
    pub(crate) fn rocksdb_compactionfilter_destroy(filter: Handle);
    pub(crate) fn rocksdb_block_based_options_create() -> Handle;
    pub(crate) fn rocksdb_block_based_options_destroy(table: Handle);
    pub(crate) fn rocksdb_block_based_options_set_block_cache(table: Handle, cache: Handle);
    pub(crate) fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(
        table: Handle,
        on: c_uchar,
    );
    pub(crate) fn rocksdb_block_based_options_set_filter_policy(table: Handle, filter: Handle);
    pub(crate) fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> Handle;
    pub(crate) fn rocksdb_cache_create_lru(bytes: usize) -> Handle;
    pub(crate) fn rocksdb_cache_destroy(cache: Handle);

    pub(crate) fn rocksdb_readoptions_create() -> Handle;
    pub(crate) fn rocksdb_readoptions_destroy(options: Handle);
    pub(crate) fn rocksdb_readoptions_set_snapshot(options: Handle, snapshot: Handle);
    pub(crate) fn rocksdb_readoptions_set_fill_cache(options: Handle, on: c_uchar);
    pub(crate) fn rocksdb_readoptions_set_verify_checksums(options: Handle, on: c_uchar);
    pub(crate) fn rocksdb_readoptions_set_iterate_upper_bound(
        options: Handle,
        key: *const c_char,
        len: usize,
    );
    pub(crate) fn rocksdb_readoptions_set_iterate_lower_bound(
        options: Handle,
        key: *const c_char,
        len: usize,
    );
    pub(crate) fn rocksdb_writeoptions_create() -> Handle;
    pub(crate) fn rocksdb_writeoptions_destroy(options: Handle);
    pub(crate) fn rocksdb_writeoptions_set_sync(options: Handle, on: c_uchar);
    pub(crate) fn rocksdb_flushoptions_create() -> Handle;
    pub(crate) fn rocksdb_flushoptions_destroy(options: Handle);
}
