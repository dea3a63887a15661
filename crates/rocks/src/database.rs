//! RocksDB's objects with owners: each is destroyed once, and before what it belongs to.
//!
//! Invariants:
//! - families, snapshots and iterators hold the database, so it closes after all of them;
//! - the functions that make the first objects, [`family_names`] and [`Database::open`], load the
//!   library.

#![expect(unsafe_code, reason = "calls of a C library")]

use crate::c_api::{self, Handle};
use crate::callbacks;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use stitch_base::ErrorKind;
use stitch_kv::{Compression, KvError, TreeOptions, UpsertRegistry};

/// Part of the memory for memtables of all column families; the rest is the block cache.
const WRITE_BUFFERS_PART: u64 = 4;
const BITS_PER_KEY: f64 = 10.0;
const OPEN_FILES_MAX: c_int = 512;
const LOG_FILE_BYTES_MAX: usize = 1 << 20;
const LOG_LEVEL_WARN: c_int = 2;

/// How a database is opened.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) memory_bytes: u64,
    pub(crate) is_read_only: bool,
    pub(crate) creates: bool,
    pub(crate) upserts: UpsertRegistry,
}

/// Options of a database and of all its column families.
#[derive(Debug)]
struct Options {
    options: Handle,
    filter: Handle,
}

impl Options {
    fn new(opening: &Opening) -> Self {
        let memory = usize::try_from(opening.memory_bytes).unwrap_or(usize::MAX);
        let buffers = memory / usize::try_from(WRITE_BUFFERS_PART).unwrap_or(1);
        let filter = callbacks::compaction_filter();
        let operator = callbacks::merge_operator(opening.upserts.clone());
        // SAFETY: plain setters of a fresh object. The options own the operator, and copies of them
        // share table and cache; the filter is destroyed after the database.
        let options = unsafe {
            let options = c_api::rocksdb_options_create();
            c_api::rocksdb_options_set_create_if_missing(options, u8::from(opening.creates));
            c_api::rocksdb_options_set_db_write_buffer_size(options, buffers);
            c_api::rocksdb_options_set_write_buffer_size(options, buffers / 2);
            c_api::rocksdb_options_set_max_open_files(options, OPEN_FILES_MAX);
            c_api::rocksdb_options_set_max_log_file_size(options, LOG_FILE_BYTES_MAX);
            c_api::rocksdb_options_set_keep_log_file_num(options, 2);
            c_api::rocksdb_options_set_info_log_level(options, LOG_LEVEL_WARN);
            c_api::rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
            c_api::rocksdb_options_set_compression(options, 0);
            c_api::rocksdb_options_set_merge_operator(options, operator);
            c_api::rocksdb_options_set_compaction_filter(options, filter);
            set_table(options, memory - buffers);
            options
        };
        Self { options, filter }
    }
}

/// # Safety
/// `options` are living options.
unsafe fn set_table(options: Handle, cache_bytes: usize) {
    // SAFETY: fresh objects; the table takes a share of the cache and owns the filter.
    unsafe {
        let table = c_api::rocksdb_block_based_options_create();
        let cache = c_api::rocksdb_cache_create_lru(cache_bytes);
        c_api::rocksdb_block_based_options_set_block_cache(table, cache);
        c_api::rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
        let bloom = c_api::rocksdb_filterpolicy_create_bloom_full(BITS_PER_KEY);
        c_api::rocksdb_block_based_options_set_filter_policy(table, bloom);
        c_api::rocksdb_options_set_block_based_table_factory(options, table);
        c_api::rocksdb_cache_destroy(cache);
        c_api::rocksdb_block_based_options_destroy(table);
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: the database that used both is closed.
        unsafe {
            c_api::rocksdb_options_destroy(self.options);
            c_api::rocksdb_compactionfilter_destroy(self.filter);
        }
    }
}

/// An open database.
#[derive(Debug)]
pub(crate) struct Database {
    db: Handle,
    options: Options,
}

// SAFETY: RocksDB's database may be used by several threads at once.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

/// A column family of a database.
#[derive(Debug)]
pub(crate) struct Family {
    family: Handle,
    pub(crate) database: Arc<Database>,
}

// SAFETY: RocksDB's handles of column families may be used by several threads at once.
unsafe impl Send for Family {}
// SAFETY: as above.
unsafe impl Sync for Family {}

impl Family {
    pub(crate) const fn handle(&self) -> Handle {
        self.family
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed once, and the database lives as long as it.
        unsafe { c_api::rocksdb_column_family_handle_destroy(self.family) };
    }
}

/// Runs a call that reports errors, and returns its message as an error.
pub(crate) fn checked<T>(
    what: &'static str,
    call: impl FnOnce(c_api::ErrPtr) -> T,
) -> Result<T, KvError> {
    let mut message: *mut c_char = ptr::null_mut();
    let result = call(&raw mut message);
    match take_message(what, message) {
        None => Ok(result),
        Some(error) => Err(error),
    }
}

/// Makes a message that a call has left an error, and frees it; `None` if the call left none.
pub(crate) fn take_message(what: &'static str, message: *mut c_char) -> Option<KvError> {
    if message.is_null() {
        return None;
    }
    // SAFETY: a message is a string of the library that is ours to free.
    let text = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        c_api::rocksdb_free(message.cast());
        text
    };
    Some(error(what, &text))
}

fn error(what: &str, text: &str) -> KvError {
    let kind = if text.starts_with("Corruption") {
        ErrorKind::Corrupt
    } else if is_locked(text) {
        ErrorKind::Busy
    } else {
        ErrorKind::Io
    };
    storage(kind, format!("{what}: {text}"))
}

/// Reports whether a message says that another process, or this one, has the store open.
fn is_locked(text: &str) -> bool {
    let held = ["No locks available", "Resource temporarily unavailable"];
    text.contains("/LOCK: ") && held.into_iter().any(|end| text.ends_with(end))
}

/// Returns a storage error without a cause.
pub(crate) const fn storage(kind: ErrorKind, message: String) -> KvError {
    KvError::Storage {
        kind,
        message,
        source: None,
    }
}

fn c_path(path: &Path) -> Result<CString, KvError> {
    use std::os::unix::ffi::OsStrExt as _;
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| KvError::Invalid("a path has no zero byte".to_owned()))
}

/// Returns the names of all column families of a database.
pub(crate) fn family_names(path: &Path) -> Result<Vec<CString>, KvError> {
    c_api::load()?;
    let path = c_path(path)?;
    let mut count = 0;
    // SAFETY: fresh options that are destroyed here; the list is copied before it is freed.
    unsafe {
        let options = c_api::rocksdb_options_create();
        let list = checked("cannot list the trees", |err| {
            c_api::rocksdb_list_column_families(options, path.as_ptr(), &raw mut count, err)
        });
        c_api::rocksdb_options_destroy(options);
        let list = list?;
        let names = (0..count).map(|index| CStr::from_ptr(*list.add(index)).to_owned());
        let names = names.collect();
        c_api::rocksdb_list_column_families_destroy(list, count);
        Ok(names)
    }
}

impl Database {
    /// Opens a database with these column families, which are all that it has.
    pub(crate) fn open(
        path: &Path,
        opening: &Opening,
        names: &[CString],
    ) -> Result<(Arc<Self>, Vec<Family>), KvError> {
        c_api::load()?;
        let options = Options::new(opening);
        let path = c_path(path)?;
        let name_ptrs: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let family_options = vec![options.options; names.len()];
        let mut handles: Vec<Handle> = vec![ptr::null_mut(); names.len()];
        let count = c_int::try_from(names.len())
            .map_err(|_| KvError::Invalid("too many trees".to_owned()))?;
        let db = checked("cannot open the store", |err| {
            let (names, families) = (name_ptrs.as_ptr(), handles.as_mut_ptr());
            let (options, each) = (options.options, family_options.as_ptr());
            // SAFETY: all arrays have `count` entries, and live through the call.
            unsafe {
                match opening.is_read_only {
                    true => c_api::rocksdb_open_for_read_only_column_families(
                        options,
                        path.as_ptr(),
                        count,
                        names,
                        each,
                        families,
                        0,
                        err,
                    ),
                    false => c_api::rocksdb_open_column_families(
                        options,
                        path.as_ptr(),
                        count,
                        names,
                        each,
                        families,
                        err,
                    ),
                }
            }
        })?;
        let database = Arc::new(Self { db, options });
        let families = handles.into_iter().map(|family| Family {
            family,
            database: Arc::clone(&database),
        });
        let families = families.collect();
        Ok((database, families))
    }

    pub(crate) const fn handle(&self) -> Handle {
        self.db
    }

    pub(crate) fn latest_seqno(&self) -> u64 {
        // SAFETY: the database is open.
        unsafe { c_api::rocksdb_get_latest_sequence_number(self.db) }
    }

    pub(crate) fn create_family(self: &Arc<Self>, name: &CStr) -> Result<Family, KvError> {
        let family = checked("cannot make a tree", |err| {
            // SAFETY: the database is open, and the options are living ones.
            unsafe {
                c_api::rocksdb_create_column_family(
                    self.db,
                    self.options.options,
                    name.as_ptr(),
                    err,
                )
            }
        })?;
        Ok(Family {
            family,
            database: Arc::clone(self),
        })
    }

    pub(crate) fn drop_family(&self, family: &Family) -> Result<(), KvError> {
        checked("cannot drop a tree", |err| {
            // SAFETY: database and family are open.
            unsafe { c_api::rocksdb_drop_column_family(self.db, family.family, err) }
        })
    }

    /// Has a family's new tables made with these options.
    pub(crate) fn tune(&self, family: &Family, options: &TreeOptions) -> Result<(), KvError> {
        let compression = match options.compression {
            Compression::None => "kNoCompression",
            Compression::Lz4 => "kLZ4Compression",
            Compression::Zstd => "kZSTD",
        };
        let table = format!("{{block_size={}}}", options.block_bytes);
        let values = [compression.to_owned(), table]
            .map(|value| CString::new(value).expect("no zero byte in it"));
        let values = [values[0].as_ptr(), values[1].as_ptr()];
        let keys = [
            c"compression".as_ptr(),
            c"block_based_table_factory".as_ptr(),
        ];
        checked("cannot tune a tree", |err| {
            // SAFETY: two keys and two values, which live through the call.
            unsafe {
                c_api::rocksdb_set_options_cf(
                    self.db,
                    family.family,
                    2,
                    keys.as_ptr(),
                    values.as_ptr(),
                    err,
                );
            }
        })
    }

    /// Makes all that was committed durable.
    pub(crate) fn sync_wal(&self) -> Result<(), KvError> {
        checked("cannot sync the log", |err| {
            // SAFETY: the database is open.
            unsafe { c_api::rocksdb_flush_wal(self.db, 1, err) }
        })
    }

    /// Writes a family's memtable out.
    pub(crate) fn flush(&self, family: &Family) -> Result<(), KvError> {
        // SAFETY: fresh options that are destroyed here; database and family are open.
        unsafe {
            let options = c_api::rocksdb_flushoptions_create();
            let done = checked("cannot write a tree out", |err| {
                c_api::rocksdb_flush_cf(self.db, options, family.family, err);
            });
            c_api::rocksdb_flushoptions_destroy(options);
            done
        }
    }

    /// Merges all tables of a family.
    pub(crate) fn compact(&self, family: &Family) {
        // SAFETY: null stands for no bound; database and family are open.
        unsafe {
            c_api::rocksdb_compact_range_cf(self.db, family.family, ptr::null(), 0, ptr::null(), 0);
        }
    }

    /// Ends background work, and waits for what is under way.
    pub(crate) fn end_background(&self) {
        // SAFETY: the database is open.
        unsafe { c_api::rocksdb_cancel_all_background_work(self.db, 1) };
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: nothing that belongs to it is left: all hold it.
        unsafe { c_api::rocksdb_close(self.db) };
    }
}

/// A moment of a database.
#[derive(Debug)]
pub(crate) struct Moment {
    snapshot: Handle,
    pub(crate) database: Arc<Database>,
}

// SAFETY: RocksDB's snapshots may be used and released by any thread.
unsafe impl Send for Moment {}
// SAFETY: as above.
unsafe impl Sync for Moment {}

impl Moment {
    pub(crate) fn now(database: &Arc<Database>) -> Self {
        // SAFETY: the database is open.
        let snapshot = unsafe { c_api::rocksdb_create_snapshot(database.db) };
        Self {
            snapshot,
            database: Arc::clone(database),
        }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        // SAFETY: released once, and the database is open.
        unsafe { c_api::rocksdb_release_snapshot(self.database.db, self.snapshot) };
    }
}

/// Options of a read.
#[derive(Debug)]
pub(crate) struct ReadOptions(Handle);

// SAFETY: they are not changed once a read uses them.
unsafe impl Send for ReadOptions {}
// SAFETY: as above.
unsafe impl Sync for ReadOptions {}

impl ReadOptions {
    pub(crate) fn new(at: Option<&Moment>) -> Self {
        // SAFETY: fresh options; the snapshot is a living one of the reader's database.
        unsafe {
            let options = c_api::rocksdb_readoptions_create();
            if let Some(at) = at {
                c_api::rocksdb_readoptions_set_snapshot(options, at.snapshot);
            }
            Self(options)
        }
    }

    /// For reading everything once: checksums are verified, and the cache stays as it is.
    pub(crate) fn for_check() -> Self {
        let options = Self::new(None);
        // SAFETY: living options.
        unsafe {
            c_api::rocksdb_readoptions_set_fill_cache(options.0, 0);
            c_api::rocksdb_readoptions_set_verify_checksums(options.0, 1);
        }
        options
    }

    pub(crate) const fn handle(&self) -> Handle {
        self.0
    }
}

impl Drop for ReadOptions {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { c_api::rocksdb_readoptions_destroy(self.0) };
    }
}
