//! The C interfaces of RocksDB and LevelDB, as far as the benchmark calls them.
//!
//! RocksDB's interface grew out of LevelDB's: what both have, both have with the same parameters.
//! So one table of functions serves both; what only one has is declared beside it.

#![expect(unsafe_code, reason = "declares functions of C libraries")]

use std::ffi::{c_char, c_int, c_uchar, c_void};

/// Any object of the library.
pub(super) type Handle = *mut c_void;
/// Where a call leaves its message when it fails; to be freed by the library.
pub(super) type ErrPtr = *mut *mut c_char;

macro_rules! api {
    ($($field:ident: $rocksdb:ident / $leveldb:ident ($($arg:ty),*) $(-> $ret:ty)?;)+) => {
        /// The functions that both libraries have.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)+
        }

        /// RocksDB's.
        #[cfg(feature = "rocksdb")]
        pub(super) static ROCKSDB: Api = Api { $($field: rocksdb_names::$rocksdb,)+ };
        /// LevelDB's.
        #[cfg(feature = "leveldb")]
        pub(super) static LEVELDB: Api = Api { $($field: leveldb_names::$leveldb,)+ };

        #[cfg(feature = "rocksdb")]
        mod rocksdb_names {
            use super::*;
            #[link(name = "rocksdb")]
            unsafe extern "C" {
                $(pub(super) fn $rocksdb($(_: $arg),*) $(-> $ret)?;)+
            }
        }

        #[cfg(feature = "leveldb")]
        mod leveldb_names {
            use super::*;
            #[link(name = "leveldb")]
            unsafe extern "C" {
                $(pub(super) fn $leveldb($(_: $arg),*) $(-> $ret)?;)+
            }
        }
    };
}

api! {
    open: rocksdb_open / leveldb_open (Handle, *const c_char, ErrPtr) -> Handle;
    close: rocksdb_close / leveldb_close (Handle);
    put: rocksdb_put / leveldb_put
        (Handle, Handle, *const c_char, usize, *const c_char, usize, ErrPtr);
    delete: rocksdb_delete / leveldb_delete (Handle, Handle, *const c_char, usize, ErrPtr);
    write: rocksdb_write / leveldb_write (Handle, Handle, Handle, ErrPtr);
    get: rocksdb_get / leveldb_get
        (Handle, Handle, *const c_char, usize, *mut usize, ErrPtr) -> *mut c_char;
    free: rocksdb_free / leveldb_free (*mut c_void);
    iter_new: rocksdb_create_iterator / leveldb_create_iterator (Handle, Handle) -> Handle;
    iter_destroy: rocksdb_iter_destroy / leveldb_iter_destroy (Handle);
    iter_valid: rocksdb_iter_valid / leveldb_iter_valid (Handle) -> c_uchar;
    iter_seek: rocksdb_iter_seek / leveldb_iter_seek (Handle, *const c_char, usize);
    iter_next: rocksdb_iter_next / leveldb_iter_next (Handle);
    iter_key: rocksdb_iter_key / leveldb_iter_key (Handle, *mut usize) -> *const c_char;
    iter_value: rocksdb_iter_value / leveldb_iter_value (Handle, *mut usize) -> *const c_char;
    iter_error: rocksdb_iter_get_error / leveldb_iter_get_error (Handle, ErrPtr);
    snapshot_new: rocksdb_create_snapshot / leveldb_create_snapshot (Handle) -> Handle;
    snapshot_release: rocksdb_release_snapshot / leveldb_release_snapshot (Handle, Handle);
    batch_new: rocksdb_writebatch_create / leveldb_writebatch_create () -> Handle;
    batch_destroy: rocksdb_writebatch_destroy / leveldb_writebatch_destroy (Handle);
    batch_put: rocksdb_writebatch_put / leveldb_writebatch_put
        (Handle, *const c_char, usize, *const c_char, usize);
    batch_delete: rocksdb_writebatch_delete / leveldb_writebatch_delete
        (Handle, *const c_char, usize);
    options_new: rocksdb_options_create / leveldb_options_create () -> Handle;
    options_destroy: rocksdb_options_destroy / leveldb_options_destroy (Handle);
    set_create: rocksdb_options_set_create_if_missing / leveldb_options_set_create_if_missing
        (Handle, c_uchar);
    set_write_buffer: rocksdb_options_set_write_buffer_size / leveldb_options_set_write_buffer_size
        (Handle, usize);
    set_max_open_files: rocksdb_options_set_max_open_files / leveldb_options_set_max_open_files
        (Handle, c_int);
    set_compression: rocksdb_options_set_compression / leveldb_options_set_compression
        (Handle, c_int);
    read_options_new: rocksdb_readoptions_create / leveldb_readoptions_create () -> Handle;
    read_options_destroy: rocksdb_readoptions_destroy / leveldb_readoptions_destroy (Handle);
    read_options_snapshot: rocksdb_readoptions_set_snapshot / leveldb_readoptions_set_snapshot
        (Handle, Handle);
    write_options_new: rocksdb_writeoptions_create / leveldb_writeoptions_create () -> Handle;
    write_options_destroy: rocksdb_writeoptions_destroy / leveldb_writeoptions_destroy (Handle);
    write_options_sync: rocksdb_writeoptions_set_sync / leveldb_writeoptions_set_sync
        (Handle, c_uchar);
    cache_new: rocksdb_cache_create_lru / leveldb_cache_create_lru (usize) -> Handle;
    cache_destroy: rocksdb_cache_destroy / leveldb_cache_destroy (Handle);
}

#[cfg(feature = "leveldb")]
unsafe extern "C" {
    pub(super) fn leveldb_options_set_cache(options: Handle, cache: Handle);
    pub(super) fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> Handle;
    pub(super) fn leveldb_filterpolicy_destroy(filter: Handle);
    pub(super) fn leveldb_options_set_filter_policy(options: Handle, filter: Handle);
}

#[cfg(feature = "rocksdb")]
unsafe extern "C" {
    pub(super) fn rocksdb_block_based_options_create() -> Handle;
    pub(super) fn rocksdb_block_based_options_destroy(options: Handle);
    pub(super) fn rocksdb_block_based_options_set_block_cache(options: Handle, cache: Handle);
    pub(super) fn rocksdb_block_based_options_set_filter_policy(options: Handle, filter: Handle);
    pub(super) fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(
        options: Handle,
        on: c_uchar,
    );
    pub(super) fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> Handle;
    pub(super) fn rocksdb_options_set_block_based_table_factory(options: Handle, table: Handle);
    pub(super) fn rocksdb_options_set_max_write_buffer_number(options: Handle, count: c_int);
    pub(super) fn rocksdb_multi_get(
        db: Handle,
        options: Handle,
        count: usize,
        keys: *const *const c_char,
        key_lens: *const usize,
        values: *mut *mut c_char,
        value_lens: *mut usize,
        errs: ErrPtr,
    );
    pub(super) fn rocksdb_flush_wal(db: Handle, sync: c_uchar, err: ErrPtr);
    pub(super) fn rocksdb_writebatch_delete_range(
        batch: Handle,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );
}
