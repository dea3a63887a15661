//! RocksDB's transactions, through its C interface: `TransactionDB`, which locks keys, and
//! `OptimisticTransactionDB`, which checks them at the commit.
//!
//! Both are told which keys are read for a change (`get_for_update`), and take a snapshot at the
//! begin: of two transactions that change a key one is refused, as under our snapshot isolation.
//! They are for workloads of transactions alone.
//!
//! Invariants: as of [`super::c_engine`]; a transaction is destroyed before its database.

#![expect(unsafe_code, reason = "calls a C library")]

use super::c_api::{self, ErrPtr, Handle};
use super::c_engine::{CEngine, bytes, chars, checked};
use super::{OpenOptions, Rows, Side, Steps, View, Write, folder_bytes, store_path};
use anyhow::{Context as _, Result, bail};
use std::ffi::{CString, c_char, c_uchar};
use std::path::PathBuf;
use std::ptr::null_mut;

unsafe extern "C" {
    fn rocksdb_transactiondb_options_create() -> Handle;
    fn rocksdb_transactiondb_options_destroy(options: Handle);
    fn rocksdb_transactiondb_open(
        options: Handle,
        transactions: Handle,
        name: *const c_char,
        err: ErrPtr,
    ) -> Handle;
    fn rocksdb_transactiondb_close(db: Handle);
    fn rocksdb_transactiondb_flush_wal(db: Handle, sync: c_uchar, err: ErrPtr);
    fn rocksdb_transaction_options_create() -> Handle;
    fn rocksdb_transaction_options_destroy(options: Handle);
    fn rocksdb_transaction_options_set_set_snapshot(options: Handle, on: c_uchar);
    fn rocksdb_transaction_begin(db: Handle, write: Handle, how: Handle, old: Handle) -> Handle;
    fn rocksdb_optimistictransactiondb_open(
        options: Handle,
        name: *const c_char,
        err: ErrPtr,
    ) -> Handle;
    fn rocksdb_optimistictransactiondb_get_base_db(db: Handle) -> Handle;
    fn rocksdb_optimistictransactiondb_close_base_db(base: Handle);
    fn rocksdb_optimistictransactiondb_close(db: Handle);
    fn rocksdb_optimistictransaction_options_create() -> Handle;
    fn rocksdb_optimistictransaction_options_destroy(options: Handle);
    fn rocksdb_optimistictransaction_options_set_set_snapshot(options: Handle, on: c_uchar);
    fn rocksdb_optimistictransaction_begin(
        db: Handle,
        write: Handle,
        how: Handle,
        old: Handle,
    ) -> Handle;
    fn rocksdb_transaction_get_for_update(
        transaction: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        exclusive: c_uchar,
        err: ErrPtr,
    ) -> *mut c_char;
    fn rocksdb_transaction_get(
        transaction: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        err: ErrPtr,
    ) -> *mut c_char;
    fn rocksdb_transaction_put(
        transaction: Handle,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        err: ErrPtr,
    );
    fn rocksdb_transaction_delete(
        transaction: Handle,
        key: *const c_char,
        key_len: usize,
        err: ErrPtr,
    );
    fn rocksdb_transaction_commit(transaction: Handle, err: ErrPtr);
    fn rocksdb_transaction_destroy(transaction: Handle);
}

/// An open database with transactions.
pub(crate) struct RocksTransactions {
    db: Handle,
    /// Of an optimistic one: the plain database in it.
    base: Option<Handle>,
    /// How transactions begin.
    how: Handle,
    read_options: Handle,
    write_options: Handle,
    dir: PathBuf,
}

// SAFETY: as of `CEngine`: the handles are not bound to a thread, and the library locks for itself.
unsafe impl Send for RocksTransactions {}
// SAFETY: as above.
unsafe impl Sync for RocksTransactions {}

impl RocksTransactions {
    pub(crate) fn open(options: &OpenOptions, is_optimistic: bool) -> Result<Self> {
        let dir = store_path(&options.dir, "db");
        let name = CString::new(dir.as_os_str().as_encoded_bytes()).context("path with a zero")?;
        // SAFETY: the options are copied by the open, and destroyed afterwards.
        let opened = unsafe {
            let configured = CEngine::rocksdb_options(options);
            let opened = checked(&c_api::ROCKSDB, |err| match is_optimistic {
                true => rocksdb_optimistictransactiondb_open(configured, name.as_ptr(), err),
                false => {
                    let defaults = rocksdb_transactiondb_options_create();
                    let db = rocksdb_transactiondb_open(configured, defaults, name.as_ptr(), err);
                    rocksdb_transactiondb_options_destroy(defaults);
                    db
                }
            });
            (c_api::ROCKSDB.options_destroy)(configured);
            opened
        };
        let db = opened?;
        // SAFETY: the database is open; the options are objects without a connection to others.
        unsafe {
            let how = match is_optimistic {
                true => {
                    let how = rocksdb_optimistictransaction_options_create();
                    rocksdb_optimistictransaction_options_set_set_snapshot(how, 1);
                    how
                }
                false => {
                    let how = rocksdb_transaction_options_create();
                    rocksdb_transaction_options_set_set_snapshot(how, 1);
                    how
                }
            };
            Ok(Self {
                db,
                base: is_optimistic.then(|| rocksdb_optimistictransactiondb_get_base_db(db)),
                how,
                read_options: (c_api::ROCKSDB.read_options_new)(),
                write_options: (c_api::ROCKSDB.write_options_new)(),
                dir,
            })
        }
    }

    fn begin(&self) -> RocksTransaction<'_> {
        let (write, how) = (self.write_options, self.how);
        // SAFETY: all handles are valid as long as `self` is, which the transaction borrows.
        let handle = unsafe {
            match self.base {
                Some(_) => rocksdb_optimistictransaction_begin(self.db, write, how, null_mut()),
                None => rocksdb_transaction_begin(self.db, write, how, null_mut()),
            }
        };
        RocksTransaction { side: self, handle }
    }
}

impl Drop for RocksTransactions {
    fn drop(&mut self) {
        // SAFETY: no transaction is left, since they borrow `self`; each handle is destroyed once.
        unsafe {
            match self.base {
                Some(base) => {
                    rocksdb_optimistictransactiondb_close_base_db(base);
                    rocksdb_optimistictransactiondb_close(self.db);
                    rocksdb_optimistictransaction_options_destroy(self.how);
                }
                None => {
                    rocksdb_transactiondb_close(self.db);
                    rocksdb_transaction_options_destroy(self.how);
                }
            }
            (c_api::ROCKSDB.read_options_destroy)(self.read_options);
            (c_api::ROCKSDB.write_options_destroy)(self.write_options);
        }
    }
}

struct RocksTransaction<'s> {
    side: &'s RocksTransactions,
    handle: Handle,
}

impl RocksTransaction<'_> {
    /// Returns false if another transaction was first.
    fn commit(self) -> Result<bool> {
        // SAFETY: the transaction is open.
        let done = checked(&c_api::ROCKSDB, |err| unsafe {
            rocksdb_transaction_commit(self.handle, err);
        });
        is_first(done)
    }

    fn read(&self, key: &[u8], is_for_change: bool, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (options, at, mut len) = (self.side.read_options, chars(key), 0);
        // SAFETY: the key is valid for its length; the result is ours to free.
        let value = checked(&c_api::ROCKSDB, |err| unsafe {
            let len = &raw mut len;
            match is_for_change {
                true => rocksdb_transaction_get_for_update(
                    self.handle,
                    options,
                    at,
                    key.len(),
                    len,
                    1,
                    err,
                ),
                false => rocksdb_transaction_get(self.handle, options, at, key.len(), len, err),
            }
        })?;
        if value.is_null() {
            return Ok(false);
        }
        // SAFETY: the library gave `len` bytes, valid until they are freed.
        unsafe {
            see(bytes(value, len));
            (c_api::ROCKSDB.free)(value.cast());
        }
        Ok(true)
    }
}

impl Drop for RocksTransaction<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing else has the handle, and the database is open.
        unsafe { rocksdb_transaction_destroy(self.handle) };
    }
}

/// Tells a conflict from a failure.
fn is_first(done: Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) => match error.to_string() {
            text if text.starts_with("Resource busy") => Ok(false),
            text if text.starts_with("Operation failed. Try again") => Ok(false),
            text if text.starts_with("Operation timed out") => Ok(false),
            _ => Err(error),
        },
    }
}

impl Steps for RocksTransaction<'_> {
    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.read(key, true, see)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (key_at, value_at) = (chars(key), chars(value));
        // SAFETY: key and value are valid for their lengths during the call.
        checked(&c_api::ROCKSDB, |err| unsafe {
            rocksdb_transaction_put(self.handle, key_at, key.len(), value_at, value.len(), err);
        })
    }
}

impl Side for RocksTransactions {
    fn write(&self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        let mut transaction = self.begin();
        for write in writes {
            match write {
                Write::Put(key, value) => transaction.put(key, value)?,
                // SAFETY: the key is valid for its length during the call.
                Write::Delete(key) => checked(&c_api::ROCKSDB, |err| unsafe {
                    rocksdb_transaction_delete(transaction.handle, chars(key), key.len(), err);
                })?,
            }
        }
        if !transaction.commit()? {
            bail!("a load met another writer");
        }
        if sync { self.sync() } else { Ok(()) }
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Steps) -> Result<()>) -> Result<bool> {
        let mut transaction = self.begin();
        let ran = body(&mut transaction);
        if !is_first(ran)? {
            return Ok(false);
        }
        transaction.commit()
    }

    fn sync(&self) -> Result<()> {
        // SAFETY: the database is open.
        checked(&c_api::ROCKSDB, |err| unsafe {
            match self.base {
                Some(base) => c_api::rocksdb_flush_wal(base, 1, err),
                None => rocksdb_transactiondb_flush_wal(self.db, 1, err),
            }
        })
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.begin().read(key, false, see)
    }

    fn scan(&self, _start: &[u8], _rows: &mut Rows<'_>) -> Result<()> {
        bail!("this side only runs transactions")
    }

    fn snapshot(&self) -> Result<Box<dyn View + '_>> {
        bail!("this side only runs transactions")
    }

    fn space_bytes(&self) -> Result<u64> {
        folder_bytes(&self.dir)
    }
}
