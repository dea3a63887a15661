//! The functions of RocksDB's C interface that this crate calls. To be read against `rocksdb/c.h`.
//!
//! The library is loaded at run time, by the first store that needs it (ADR 0205):
//!
//! 1. [`load`] opens the library and fills [`Functions`], a table of addresses. A missing library
//!    or function is an error that names it and says what to install.
//! 2. A declaration below makes an entry of the table, and a function of its name that calls it.
//!
//! Invariant: every object of the library is made after [`load`] has succeeded. The library stays
//! loaded until the process ends, so an address of the table stays valid.

#![expect(unsafe_code, reason = "declares functions of a C library")]
#![expect(
    clippy::too_many_arguments,
    reason = "as the functions of the library have"
)]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::ptr::NonNull;
use std::slice;
use std::sync::OnceLock;
use stitch_base::ErrorKind;
use stitch_kv::KvError;

/// File names of the library, in the order in which they are tried: the version that this crate is
/// tested with, then the one for which headers are installed.
const LIBRARY_NAMES: [&CStr; 2] = [c"librocksdb.so.7.8", c"librocksdb.so"];
const REMEDY: &str = "install the package librocksdb7.8, or librocksdb-dev for another version";

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
pub(crate) type PutPieces = unsafe fn(
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

static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();

/// Loads the library, unless that was done or tried before in this process.
///
/// # Errors
/// [`KvError::Storage`] of kind `Unsupported` if the library, or a function of it, is missing.
pub(crate) fn load() -> Result<(), KvError> {
    match FUNCTIONS.get_or_init(|| Functions::load(&LIBRARY_NAMES)) {
        Ok(_) => Ok(()),
        Err(reason) => Err(KvError::Storage {
            kind: ErrorKind::Unsupported,
            message: format!("cannot load the RocksDB library: {reason}; {REMEDY}"),
            source: None,
        }),
    }
}

/// Returns the functions of the loaded library.
///
/// # Panics
/// If [`load`] has not succeeded.
fn functions() -> &'static Functions {
    let functions = FUNCTIONS.get().expect("the library is loaded first");
    functions.as_ref().expect("an object was made by it")
}

/// A shared library, loaded until the process ends.
struct Library(NonNull<c_void>);

impl Library {
    /// Opens the first library of these names that there is.
    fn open(names: &[&CStr]) -> Result<Self, String> {
        debug_assert!(!names.is_empty(), "there is a name to try");
        let mut reasons = Vec::new();
        for name in names {
            // SAFETY: the name is a string that ends with a zero byte. Initializers of the library
            // run; those of RocksDB and of what it uses set up their own state alone.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            match NonNull::new(handle) {
                Some(handle) => return Ok(Self(handle)),
                None => reasons.push(last_error()),
            }
        }
        Err(reasons.join("; "))
    }

    /// Returns the address of a function.
    fn address_of(&self, name: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the handle is that of an open library, and the name ends with a zero byte.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        NonNull::new(address).ok_or_else(last_error)
    }
}

/// Returns why the last call of the dynamic loader failed in this thread.
fn last_error() -> String {
    // SAFETY: the message is null or a string that stays until the loader's next call in this
    // thread.
    unsafe {
        let message = libc::dlerror();
        if message.is_null() {
            return "no reason is given".to_owned();
        }
        CStr::from_ptr(message).to_string_lossy().into_owned()
    }
}

/// Declares functions of the library: for each an entry of [`Functions`], and a function of the
/// same name that calls it.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The addresses of the library's functions.
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Functions {
            fn load(names: &[&CStr]) -> Result<Self, String> {
                let library = Library::open(names)?;
                $(
                    let name = concat!(stringify!($name), "\0");
                    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("one zero byte");
                    let $name = library.address_of(name)?;
                )*
                Ok(Self {
                    $(
                        // SAFETY: the library's function of this name has this type, as
                        // `rocksdb/c.h` says, and the library is never closed.
                        $name: unsafe {
                            std::mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($type),*) $(-> $result)?,
                            >($name)
                        },
                    )*
                })
            }
        }

        $(
            /// Calls the library's function of this name.
            ///
            /// # Safety
            /// As `rocksdb/c.h` says.
            pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: as the caller says.
                unsafe { (functions().$name)($($argument),*) }
            }
        )*
    };
}

functions! {
    fn rocksdb_open_column_families(
        options: Handle,
        path: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const Handle,
        families: *mut Handle,
        err: ErrPtr,
    ) -> Handle;
    fn rocksdb_open_for_read_only_column_families(
        options: Handle,
        path: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const Handle,
        families: *mut Handle,
        error_if_wal_exists: c_uchar,
        err: ErrPtr,
    ) -> Handle;
    fn rocksdb_list_column_families(
        options: Handle,
        path: *const c_char,
        count: *mut usize,
        err: ErrPtr,
    ) -> *mut *mut c_char;
    fn rocksdb_list_column_families_destroy(list: *mut *mut c_char, count: usize);
    fn rocksdb_create_column_family(
        db: Handle,
        options: Handle,
        name: *const c_char,
        err: ErrPtr,
    ) -> Handle;
    fn rocksdb_drop_column_family(db: Handle, family: Handle, err: ErrPtr);
    fn rocksdb_column_family_handle_destroy(family: Handle);
    fn rocksdb_set_options_cf(
        db: Handle,
        family: Handle,
        count: c_int,
        keys: *const *const c_char,
        values: *const *const c_char,
        err: ErrPtr,
    );
    fn rocksdb_close(db: Handle);
    fn rocksdb_cancel_all_background_work(db: Handle, wait: c_uchar);
    fn rocksdb_get_latest_sequence_number(db: Handle) -> u64;
    fn rocksdb_flush_wal(db: Handle, sync: c_uchar, err: ErrPtr);
    fn rocksdb_flush_cf(db: Handle, options: Handle, family: Handle, err: ErrPtr);
    fn rocksdb_compact_range_cf(
        db: Handle,
        family: Handle,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );
    fn rocksdb_write(db: Handle, options: Handle, batch: Handle, err: ErrPtr);
    fn rocksdb_get_pinned_cf(
        db: Handle,
        options: Handle,
        family: Handle,
        key: *const c_char,
        key_len: usize,
        err: ErrPtr,
    ) -> Handle;
    fn rocksdb_batched_multi_get_cf(
        db: Handle,
        options: Handle,
        family: Handle,
        count: usize,
        keys: *const *const c_char,
        key_lens: *const usize,
        slices: *mut Handle,
        errs: *mut *mut c_char,
        is_sorted: bool,
    );
    fn rocksdb_pinnableslice_value(slice: Handle, len: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: Handle);
    fn rocksdb_free(pointer: *mut c_void);

    fn rocksdb_create_snapshot(db: Handle) -> Handle;
    fn rocksdb_release_snapshot(db: Handle, snapshot: Handle);

    fn rocksdb_create_iterator_cf(db: Handle, options: Handle, family: Handle) -> Handle;
    fn rocksdb_iter_destroy(iter: Handle);
    fn rocksdb_iter_valid(iter: Handle) -> c_uchar;
    fn rocksdb_iter_seek(iter: Handle, key: *const c_char, len: usize);
    fn rocksdb_iter_seek_to_last(iter: Handle);
    fn rocksdb_iter_next(iter: Handle);
    fn rocksdb_iter_prev(iter: Handle);
    fn rocksdb_iter_key(iter: Handle, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iter: Handle, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iter: Handle, err: ErrPtr);

    fn rocksdb_writebatch_create() -> Handle;
    fn rocksdb_writebatch_destroy(batch: Handle);
    fn rocksdb_writebatch_putv_cf(
        batch: Handle,
        family: Handle,
        key_count: c_int,
        keys: *const *const c_char,
        key_lens: *const usize,
        value_count: c_int,
        values: *const *const c_char,
        value_lens: *const usize,
    );
    fn rocksdb_writebatch_mergev_cf(
        batch: Handle,
        family: Handle,
        key_count: c_int,
        keys: *const *const c_char,
        key_lens: *const usize,
        value_count: c_int,
        values: *const *const c_char,
        value_lens: *const usize,
    );
    fn rocksdb_writebatch_delete_cf(
        batch: Handle,
        family: Handle,
        key: *const c_char,
        len: usize,
    );
    fn rocksdb_writebatch_delete_range_cf(
        batch: Handle,
        family: Handle,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );

    fn rocksdb_options_create() -> Handle;
    fn rocksdb_options_destroy(options: Handle);
    fn rocksdb_options_set_create_if_missing(options: Handle, on: c_uchar);
    fn rocksdb_options_set_db_write_buffer_size(options: Handle, bytes: usize);
    fn rocksdb_options_set_write_buffer_size(options: Handle, bytes: usize);
    fn rocksdb_options_set_max_open_files(options: Handle, count: c_int);
    fn rocksdb_options_set_max_log_file_size(options: Handle, bytes: usize);
    fn rocksdb_options_set_keep_log_file_num(options: Handle, count: usize);
    fn rocksdb_options_set_info_log_level(options: Handle, level: c_int);
    fn rocksdb_options_set_level_compaction_dynamic_level_bytes(
        options: Handle,
        on: c_uchar,
    );
    fn rocksdb_options_set_compression(options: Handle, kind: c_int);
    fn rocksdb_options_set_merge_operator(options: Handle, operator: Handle);
    fn rocksdb_options_set_compaction_filter(options: Handle, filter: Handle);
    fn rocksdb_options_set_block_based_table_factory(options: Handle, table: Handle);
    fn rocksdb_mergeoperator_create(
        state: *mut c_void,
        destructor: Destructor,
        full_merge: FullMerge,
        partial_merge: PartialMerge,
        delete_value: DeleteValue,
        name: Name,
    ) -> Handle;
    fn rocksdb_compactionfilter_create(
        state: *mut c_void,
        destructor: Destructor,
        filter: Filter,
        name: Name,
    ) -> Handle;
    fn rocksdb_compactionfilter_destroy(filter: Handle);
    fn rocksdb_block_based_options_create() -> Handle;
    fn rocksdb_block_based_options_destroy(table: Handle);
    fn rocksdb_block_based_options_set_block_cache(table: Handle, cache: Handle);
    fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(
        table: Handle,
        on: c_uchar,
    );
    fn rocksdb_block_based_options_set_filter_policy(table: Handle, filter: Handle);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> Handle;
    fn rocksdb_cache_create_lru(bytes: usize) -> Handle;
    fn rocksdb_cache_destroy(cache: Handle);

    fn rocksdb_readoptions_create() -> Handle;
    fn rocksdb_readoptions_destroy(options: Handle);
    fn rocksdb_readoptions_set_snapshot(options: Handle, snapshot: Handle);
    fn rocksdb_readoptions_set_fill_cache(options: Handle, on: c_uchar);
    fn rocksdb_readoptions_set_verify_checksums(options: Handle, on: c_uchar);
    fn rocksdb_readoptions_set_iterate_upper_bound(
        options: Handle,
        key: *const c_char,
        len: usize,
    );
    fn rocksdb_readoptions_set_iterate_lower_bound(
        options: Handle,
        key: *const c_char,
        len: usize,
    );
    fn rocksdb_writeoptions_create() -> Handle;
    fn rocksdb_writeoptions_destroy(options: Handle);
    fn rocksdb_writeoptions_set_sync(options: Handle, on: c_uchar);
    fn rocksdb_flushoptions_create() -> Handle;
    fn rocksdb_flushoptions_destroy(options: Handle);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let loaded = Functions::load(&[c"librocksdb-missing.so.1", c"librocksdb-missing.so.2"]);
        let reason = loaded.err().expect("there is no such library");
        assert!(
            reason.contains("librocksdb-missing.so.1: cannot open"),
            "{reason}"
        );
        assert!(
            reason.contains("librocksdb-missing.so.2: cannot open"),
            "{reason}"
        );
    }

    #[test]
    fn a_library_without_a_function_is_refused_by_the_name_of_the_function() {
        let loaded = Functions::load(&[c"libc.so.6"]);
        let reason = loaded.err().expect("it has no function of RocksDB");
        assert!(reason.contains("rocksdb_open_column_families"), "{reason}");
    }
}
