//! RocksDB and LevelDB, through the C interface that they share.
//!
//! Invariants: every handle of an open store is valid until the store is dropped, and is destroyed
//! there once, the database first. Both libraries allow calls of several threads at once on one
//! database, with shared option objects that no thread changes.

#![expect(unsafe_code, reason = "calls C libraries")]

use super::c_api::{self, Api, ErrPtr, Handle};
use super::{OpenOptions, Rows, Side, View, Write, folder_bytes, store_path};
use anyhow::{Context as _, Result, bail};
use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::ptr::null_mut;

/// Bits of a Bloom filter per key; ours have at most as many.
const FILTER_BITS: i32 = 10;
/// The library's number for no compression.
const NO_COMPRESSION: i32 = 0;
/// Tables that may be open at once.
const OPEN_FILES: i32 = 2000;

/// An open store of one of the two libraries.
pub(crate) struct CEngine {
    api: &'static Api,
    kind: Kind,
    db: Handle,
    read_options: Handle,
    write_options: Handle,
    sync_options: Handle,
    /// What the database uses while it is open, and how it is destroyed afterwards.
    owned: Vec<Owned>,
    dir: PathBuf,
}

type Owned = (Handle, unsafe extern "C" fn(Handle));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    #[cfg(feature = "rocksdb")]
    RocksDb,
    #[cfg(feature = "leveldb")]
    LevelDb,
}

// SAFETY: the handles are not bound to a thread; both libraries say that a database may be used by
// several threads without locks of the caller's, and the option objects are not changed after open.
unsafe impl Send for CEngine {}
// SAFETY: as above.
unsafe impl Sync for CEngine {}

impl CEngine {
    /// RocksDB: two write buffers, the rest a block cache that holds indexes and filters too, so
    /// that it is bounded; Bloom filters; otherwise as it comes.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn rocksdb(options: &OpenOptions) -> Result<Self> {
        // SAFETY: the handle is given over to the open.
        let configured = unsafe { Self::rocksdb_options(options) };
        Self::open(
            &c_api::ROCKSDB,
            Kind::RocksDb,
            configured,
            Vec::new(),
            options,
        )
    }

    /// The options of a RocksDB database.
    ///
    /// # Safety
    /// The caller destroys the handle.
    #[cfg(feature = "rocksdb")]
    pub(super) unsafe fn rocksdb_options(options: &OpenOptions) -> Handle {
        let api = &c_api::ROCKSDB;
        // SAFETY: the table options and the cache are counted by the database's options once they
        // are given over, so both are destroyed here; the filter belongs to the table options.
        unsafe {
            let handle = Self::common(api, options);
            c_api::rocksdb_options_set_max_write_buffer_number(handle, 2);
            let cache = (api.cache_new)(as_usize(options.scale.cache_bytes()));
            let table = c_api::rocksdb_block_based_options_create();
            c_api::rocksdb_block_based_options_set_block_cache(table, cache);
            c_api::rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
            let filter = c_api::rocksdb_filterpolicy_create_bloom_full(f64::from(FILTER_BITS));
            c_api::rocksdb_block_based_options_set_filter_policy(table, filter);
            c_api::rocksdb_options_set_block_based_table_factory(handle, table);
            c_api::rocksdb_block_based_options_destroy(table);
            (api.cache_destroy)(cache);
            handle
        }
    }

    /// LevelDB: as RocksDB. Its indexes and filters are outside of any limit.
    #[cfg(feature = "leveldb")]
    pub(crate) fn leveldb(options: &OpenOptions) -> Result<Self> {
        let api = &c_api::LEVELDB;
        // SAFETY: the options only refer to cache and filter, which therefore live in `owned`.
        let (configured, owned) = unsafe {
            let handle = Self::common(api, options);
            let cache = (api.cache_new)(as_usize(options.scale.cache_bytes()));
            c_api::leveldb_options_set_cache(handle, cache);
            let filter = c_api::leveldb_filterpolicy_create_bloom(FILTER_BITS);
            c_api::leveldb_options_set_filter_policy(handle, filter);
            let owned: Vec<Owned> = vec![
                (cache, api.cache_destroy),
                (filter, c_api::leveldb_filterpolicy_destroy),
            ];
            (handle, owned)
        };
        Self::open(api, Kind::LevelDb, configured, owned, options)
    }

    /// # Safety
    /// The caller destroys the handle.
    unsafe fn common(api: &Api, options: &OpenOptions) -> Handle {
        // SAFETY: the handle was made by the same library a line before.
        unsafe {
            let handle = (api.options_new)();
            (api.set_create)(handle, 1);
            (api.set_compression)(handle, NO_COMPRESSION);
            (api.set_max_open_files)(handle, OPEN_FILES);
            (api.set_write_buffer)(handle, as_usize(options.scale.write_buffer_bytes()));
            handle
        }
    }

    /// Opens the database and takes over `configured` and `owned`.
    fn open(
        api: &'static Api,
        kind: Kind,
        configured: Handle,
        owned: Vec<Owned>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let dir = store_path(&options.dir, "db");
        let name = CString::new(dir.as_os_str().as_encoded_bytes()).context("path with a zero")?;
        // SAFETY: the name ends with a zero and outlives the call; so does the handle, which is
        // not needed afterwards.
        let opened = checked(api, |err| unsafe {
            (api.open)(configured, name.as_ptr(), err)
        });
        // SAFETY: options are copied by open.
        unsafe { (api.options_destroy)(configured) };
        let db = opened.inspect_err(|_| destroy(&owned))?;
        // SAFETY: objects without a connection to others; changed here only.
        let (read_options, write_options, sync_options) = unsafe {
            let sync_options = (api.write_options_new)();
            (api.write_options_sync)(sync_options, 1);
            (
                (api.read_options_new)(),
                (api.write_options_new)(),
                sync_options,
            )
        };
        Ok(Self {
            api,
            kind,
            db,
            read_options,
            write_options,
            sync_options,
            owned,
            dir,
        })
    }

    fn options_of(&self, sync: bool) -> Handle {
        if sync {
            self.sync_options
        } else {
            self.write_options
        }
    }

    /// Commits what `fill` puts into a batch.
    fn commit(&self, sync: bool, fill: impl FnOnce(Handle)) -> Result<()> {
        // SAFETY: the batch lives until it is destroyed below.
        let batch = unsafe { (self.api.batch_new)() };
        fill(batch);
        // SAFETY: all handles are valid.
        let done = checked(self.api, |err| unsafe {
            (self.api.write)(self.db, self.options_of(sync), batch, err);
        });
        // SAFETY: there is no other reference to the batch.
        unsafe { (self.api.batch_destroy)(batch) };
        done
    }

    fn scan_with(&self, read_options: Handle, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        let api = self.api;
        // SAFETY: the iterator is destroyed below, before the database can be. Keys and values are
        // valid until it moves, and are only lent to `rows`.
        unsafe {
            let iter = (api.iter_new)(self.db, read_options);
            (api.iter_seek)(iter, chars(start), start.len());
            while (api.iter_valid)(iter) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let key = (api.iter_key)(iter, &raw mut key_len);
                let value = (api.iter_value)(iter, &raw mut value_len);
                if !rows(bytes(key, key_len), bytes(value, value_len)) {
                    break;
                }
                (api.iter_next)(iter);
            }
            let done = checked(api, |err| (api.iter_error)(iter, err));
            (api.iter_destroy)(iter);
            done
        }
    }
}

impl Drop for CEngine {
    fn drop(&mut self) {
        // SAFETY: the database goes first, then what it used; no other reference is left, since
        // views borrow `self`.
        unsafe {
            (self.api.close)(self.db);
            (self.api.read_options_destroy)(self.read_options);
            (self.api.write_options_destroy)(self.write_options);
            (self.api.write_options_destroy)(self.sync_options);
        }
        destroy(&self.owned);
    }
}

fn destroy(owned: &[Owned]) {
    for (handle, destroy) in owned {
        // SAFETY: each was made by the library that the function is of, and is destroyed here only.
        unsafe { destroy(*handle) };
    }
}

fn as_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

pub(super) fn chars(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

/// # Safety
/// `start` is valid for `len` bytes as long as the result is used, or `len` is 0.
pub(super) unsafe fn bytes<'a>(start: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

/// Makes a call that may leave a message.
pub(super) fn checked<T>(api: &Api, call: impl FnOnce(ErrPtr) -> T) -> Result<T> {
    let mut message: *mut c_char = null_mut();
    let done = call(&raw mut message);
    if message.is_null() {
        return Ok(done);
    }
    // SAFETY: a message ends with a zero, and is ours to free by the library's function.
    let text = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        (api.free)(message.cast());
        text
    };
    bail!("{text}")
}

impl CEngine {
    /// RocksDB's `MultiGet`. Every result is freed, also where one of them is an error.
    #[cfg(feature = "rocksdb")]
    fn multi_get(&self, keys: &[&[u8]], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let count = keys.len();
        let starts: Vec<*const c_char> = keys.iter().map(|key| chars(key)).collect();
        let lens: Vec<usize> = keys.iter().map(|key| key.len()).collect();
        let (mut values, mut errors) = (vec![null_mut(); count], vec![null_mut(); count]);
        let mut value_lens = vec![0; count];
        // SAFETY: all arrays have `count` elements, and the keys are valid for their lengths.
        unsafe {
            c_api::rocksdb_multi_get(
                self.db,
                self.read_options,
                count,
                starts.as_ptr(),
                lens.as_ptr(),
                values.as_mut_ptr(),
                value_lens.as_mut_ptr(),
                errors.as_mut_ptr(),
            );
        }
        let mut found = 0;
        let mut failed = Ok(());
        for at in 0..count {
            let error = checked(self.api, |err| {
                // SAFETY: the place is that of this call's message.
                unsafe { *err = errors[at] };
            });
            failed = failed.and(error);
            if values[at].is_null() {
                continue;
            }
            found += 1;
            // SAFETY: the library gave so many bytes, valid until they are freed.
            unsafe {
                see(at, bytes(values[at], value_lens[at]));
                (self.api.free)(values[at].cast());
            }
        }
        failed.map(|()| found)
    }
}

impl Side for CEngine {
    fn write(&self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        let (api, options) = (self.api, self.options_of(sync));
        match writes {
            // SAFETY: key and value are valid for their lengths during the call.
            [Write::Put(key, value)] => checked(api, |err| unsafe {
                let (key_at, value_at) = (chars(key), chars(value));
                (api.put)(
                    self.db,
                    options,
                    key_at,
                    key.len(),
                    value_at,
                    value.len(),
                    err,
                );
            }),
            // SAFETY: as above.
            [Write::Delete(key)] => checked(api, |err| unsafe {
                (api.delete)(self.db, options, chars(key), key.len(), err);
            }),
            // SAFETY: as above; the batch copies them.
            many => self.commit(sync, |batch| unsafe {
                for write in many {
                    match write {
                        Write::Put(key, value) => {
                            (api.batch_put)(
                                batch,
                                chars(key),
                                key.len(),
                                chars(value),
                                value.len(),
                            );
                        }
                        Write::Delete(key) => (api.batch_delete)(batch, chars(key), key.len()),
                    }
                }
            }),
        }
    }

    fn sync(&self) -> Result<()> {
        match self.kind {
            #[cfg(feature = "rocksdb")]
            // SAFETY: the database is open.
            Kind::RocksDb => checked(self.api, |err| unsafe {
                c_api::rocksdb_flush_wal(self.db, 1, err);
            }),
            // An empty batch that is synced takes the log before it along.
            #[cfg(feature = "leveldb")]
            Kind::LevelDb => self.commit(true, |_| ()),
        }
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut len = 0;
        // SAFETY: key is valid for its length; the result is ours to free.
        let value = checked(self.api, |err| unsafe {
            let at = chars(key);
            (self.api.get)(self.db, self.read_options, at, key.len(), &raw mut len, err)
        })?;
        if value.is_null() {
            return Ok(false);
        }
        // SAFETY: the library gave `len` bytes, valid until they are freed.
        unsafe {
            see(bytes(value, len));
            (self.api.free)(value.cast());
        }
        Ok(true)
    }

    fn get_many(&self, keys: &[&[u8]], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        match self.kind {
            #[cfg(feature = "rocksdb")]
            Kind::RocksDb => self.multi_get(keys, see),
            #[cfg(feature = "leveldb")]
            Kind::LevelDb => {
                let mut found = 0;
                for (at, key) in keys.iter().enumerate() {
                    found += usize::from(self.get(key, &mut |value| see(at, value))?);
                }
                Ok(found)
            }
        }
    }

    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        self.scan_with(self.read_options, start, rows)
    }

    fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<bool> {
        match self.kind {
            #[cfg(feature = "rocksdb")]
            Kind::RocksDb => {
                // SAFETY: both keys are valid for their lengths; the batch copies them.
                self.commit(false, |batch| unsafe {
                    let (from, to) = (chars(start), chars(end));
                    c_api::rocksdb_writebatch_delete_range(batch, from, start.len(), to, end.len());
                })?;
                Ok(true)
            }
            #[cfg(feature = "leveldb")]
            Kind::LevelDb => {
                let _ = (start, end);
                Ok(false)
            }
        }
    }

    fn snapshot(&self) -> Result<Box<dyn View + '_>> {
        // SAFETY: the database is open; the view gives both back when dropped.
        let (snapshot, read_options) = unsafe {
            let snapshot = (self.api.snapshot_new)(self.db);
            let read_options = (self.api.read_options_new)();
            (self.api.read_options_snapshot)(read_options, snapshot);
            (snapshot, read_options)
        };
        Ok(Box::new(CView {
            engine: self,
            snapshot,
            read_options,
        }))
    }

    fn space_bytes(&self) -> Result<u64> {
        folder_bytes(&self.dir)
    }
}

struct CView<'a> {
    engine: &'a CEngine,
    snapshot: Handle,
    read_options: Handle,
}

impl View for CView<'_> {
    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        self.engine.scan_with(self.read_options, start, rows)
    }
}

impl Drop for CView<'_> {
    fn drop(&mut self) {
        // SAFETY: the database is still open, since it is borrowed; nothing else has the handles.
        unsafe {
            (self.engine.api.read_options_destroy)(self.read_options);
            (self.engine.api.snapshot_release)(self.engine.db, self.snapshot);
        }
    }
}
