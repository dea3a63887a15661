//! SQLite by its C interface: one table of keys and values, in WAL mode.
//!
//! With `synchronous=NORMAL`, as usual in this mode: a commit is written and not synced, so it
//! survives a killed process. It has one writer at a time: transactions of several threads take
//! turns.
//!
//! Invariants: the statements are of the connection, and are finalized before it is closed; all
//! are used under the lock.

#![expect(unsafe_code, reason = "calls a C library")]

use super::{OpenOptions, Rows, Side, Steps, View, Write, folder_bytes, store_path};
use anyhow::{Context as _, Result, bail};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use stitch_base::sync::Mutex;

type Object = *mut c_void;

/// The library's number for success.
const OK: c_int = 0;
/// A statement has a row.
const ROW: c_int = 100;
/// A statement is at its end.
const DONE: c_int = 101;

#[link(name = "sqlite3")]
unsafe extern "C" {
    fn sqlite3_open(path: *const c_char, db: *mut Object) -> c_int;
    fn sqlite3_close(db: Object) -> c_int;
    fn sqlite3_errmsg(db: Object) -> *const c_char;
    fn sqlite3_exec(
        db: Object,
        sql: *const c_char,
        each: *const c_void,
        with: Object,
        message: *mut *mut c_char,
    ) -> c_int;
    fn sqlite3_prepare_v2(
        db: Object,
        sql: *const c_char,
        len: c_int,
        statement: *mut Object,
        rest: *mut *const c_char,
    ) -> c_int;
    /// `free` is null: the bytes stay where they are until the statement is reset.
    fn sqlite3_bind_blob(
        statement: Object,
        at: c_int,
        bytes: *const c_void,
        len: c_int,
        free: *const c_void,
    ) -> c_int;
    fn sqlite3_step(statement: Object) -> c_int;
    fn sqlite3_reset(statement: Object) -> c_int;
    fn sqlite3_column_blob(statement: Object, column: c_int) -> *const c_void;
    fn sqlite3_column_bytes(statement: Object, column: c_int) -> c_int;
    fn sqlite3_finalize(statement: Object) -> c_int;
}

/// An open database.
pub(crate) struct Sqlite {
    connection: Mutex<Connection>,
    dir: PathBuf,
}

struct Connection {
    db: Object,
    get: Object,
    put: Object,
    delete: Object,
}

// SAFETY: the library is built to be used by several threads (its default), and the connection is
// under a lock.
unsafe impl Send for Connection {}

impl Connection {
    fn open(path: &CStr, memory_bytes: u64) -> Result<Self> {
        let mut connection = Self {
            db: null_mut(),
            get: null_mut(),
            put: null_mut(),
            delete: null_mut(),
        };
        // SAFETY: the path ends with a zero.
        let code = unsafe { sqlite3_open(path.as_ptr(), &raw mut connection.db) };
        connection.check(code)?;
        let cache_kib = memory_bytes >> 10;
        connection.run(&format!("PRAGMA cache_size=-{cache_kib}"))?;
        connection.run("PRAGMA journal_mode=WAL")?;
        connection.run("PRAGMA synchronous=NORMAL")?;
        let table = "CREATE TABLE IF NOT EXISTS t (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID";
        connection.run(table)?;
        connection.get = connection.prepare("SELECT v FROM t WHERE k = ?1")?;
        connection.put = connection.prepare("INSERT OR REPLACE INTO t VALUES (?1, ?2)")?;
        connection.delete = connection.prepare("DELETE FROM t WHERE k = ?1")?;
        Ok(connection)
    }

    fn check(&self, code: c_int) -> Result<()> {
        if [OK, ROW, DONE].contains(&code) {
            return Ok(());
        }
        // SAFETY: the message ends with a zero and is valid until the next call.
        let text = unsafe { CStr::from_ptr(sqlite3_errmsg(self.db)) };
        bail!("sqlite: {}", text.to_string_lossy())
    }

    fn run(&self, sql: &str) -> Result<()> {
        let sql = CString::new(sql).expect("a statement has no zero");
        // SAFETY: the statement ends with a zero; no rows and no message are asked for.
        let code = unsafe { sqlite3_exec(self.db, sql.as_ptr(), null(), null_mut(), null_mut()) };
        self.check(code)
    }

    fn prepare(&self, sql: &str) -> Result<Object> {
        let sql = CString::new(sql).expect("a statement has no zero");
        let mut statement = null_mut();
        // SAFETY: the statement ends with a zero.
        let code = unsafe {
            sqlite3_prepare_v2(self.db, sql.as_ptr(), -1, &raw mut statement, null_mut())
        };
        self.check(code)?;
        Ok(statement)
    }

    /// Runs a prepared statement with these blobs, and shows the first column of its row. Returns
    /// whether there is one.
    fn step(&self, statement: Object, blobs: &[&[u8]], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        for (at, blob) in (1..).zip(blobs) {
            let len = c_int::try_from(blob.len())?;
            // SAFETY: the blob outlives the reset below.
            let code =
                unsafe { sqlite3_bind_blob(statement, at, blob.as_ptr().cast(), len, null()) };
            self.check(code)?;
        }
        // SAFETY: the statement is prepared; a column is valid until the reset.
        unsafe {
            let code = sqlite3_step(statement);
            if code == ROW {
                let len = usize::try_from(sqlite3_column_bytes(statement, 0))?;
                let start = sqlite3_column_blob(statement, 0);
                see(match len {
                    0 => &[],
                    _ => std::slice::from_raw_parts(start.cast(), len),
                });
            }
            let done = self.check(code);
            sqlite3_reset(statement);
            done.map(|()| code == ROW)
        }
    }

    fn transact(&mut self, body: &mut dyn FnMut(&mut dyn Steps) -> Result<()>) -> Result<()> {
        self.run("BEGIN IMMEDIATE")?;
        match body(self) {
            Ok(()) => self.run("COMMIT"),
            Err(error) => {
                self.run("ROLLBACK")?;
                Err(error)
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: null handles may be given; nothing else has the others.
        unsafe {
            for statement in [self.get, self.put, self.delete] {
                sqlite3_finalize(statement);
            }
            sqlite3_close(self.db);
        }
    }
}

impl Steps for Connection {
    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.step(self.get, &[key], see)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.step(self.put, &[key, value], &mut |_| ()).map(drop)
    }
}

impl Sqlite {
    pub(crate) fn open(options: &OpenOptions) -> Result<Self> {
        let dir = store_path(&options.dir, "sqlite");
        fs::create_dir_all(&dir)?;
        let path = dir.join("store.db");
        let path = CString::new(path.as_os_str().as_encoded_bytes()).context("path with a zero")?;
        let connection = Connection::open(&path, options.scale.cache_bytes())?;
        Ok(Self {
            connection: Mutex::new(connection),
            dir,
        })
    }
}

impl Side for Sqlite {
    fn write(&self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        let mut connection = self.connection.lock();
        connection.run("BEGIN IMMEDIATE")?;
        for write in writes {
            match write {
                Write::Put(key, value) => connection.put(key, value)?,
                Write::Delete(key) => {
                    connection.step(connection.delete, &[key], &mut |_| ())?;
                }
            }
        }
        connection.run("COMMIT")?;
        drop(connection);
        if sync { self.sync() } else { Ok(()) }
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Steps) -> Result<()>) -> Result<bool> {
        self.connection.lock().transact(body).map(|()| true)
    }

    fn sync(&self) -> Result<()> {
        self.connection.lock().run("PRAGMA wal_checkpoint(FULL)")
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.connection.lock().get(key, see)
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
