//! Files and directories of a store, by calls instead of a mount.
//!
//! [`Files`] is an open store, [`Dir`] a directory to start paths from, [`File`] an open file. They
//! are the operations that a mount serves, without the kernel between: no request, no copy, no
//! cache of names. All are shared by threads.
//!
//! - **Paths** are relative to the [`Dir`] that is asked; those that begin with `/` start at the
//!   root. The last name costs a point read; a directory on the way does, if no path led through it
//!   lately (512 of them are remembered). So a program that works in many directories opens each
//!   once. Symbolic links are followed, except where a call says that it is about the link.
//! - **Permissions** are not checked: who can open the store may do everything. What is made
//!   belongs to user and group 0 until [`Dir::set_owner`].
//! - **Each call is one step**: it happened whole or not at all, also in a crash. Writes of more
//!   than 2 MiB are several steps.
//! - **Durability** is that of [`StoreOptions::durability`]: by default a call that returned
//!   survives that this process is killed, and a power cut after [`Files::sync`], [`File::sync`] or
//!   [`StoreOptions::sync_interval`].
//! - A store is open once: by a program or by a mount.
//! - **Transactions** of several calls, of files and of records together: [`Files::begin`].
//! - **Handles** reach their own store only: a [`HistoryMoment`] of another one is refused, and no
//!   other call takes two of them.
//!
//! ```
//! use stitchfs::StoreOptions;
//! use stitchfs::fs::Files;
//!
//! # fn main() -> Result<(), stitchfs::StoreError> {
//! let files = Files::in_memory(32 << 20, &StoreOptions::default())?;
//! let root = files.root();
//! root.make_dir("notes")?;
//! root.write("notes/today", b"buy apples")?;
//!
//! let notes = root.open_dir("notes")?;
//! let today = notes.open("today")?;
//! today.append(b", eat them")?;
//! today.sync()?;
//! assert_eq!(notes.read("today")?, b"buy apples, eat them");
//!
//! notes.rename("today", "/yesterday")?;
//! for entry in root.entries("/")? {
//!     let entry = entry?;
//!     println!("{:?}: {} bytes", entry.name(), entry.attr.size);
//! }
//! assert!(notes.stat("today").is_err());
//! files.close()?;
//! # Ok(())
//! # }
//! ```

mod change;
mod dir;
mod entries;
mod file;
mod history;
mod hold;
mod policy;
mod snapshot;
mod transaction;

pub use dir::Dir;
pub use entries::{Entries, Entry};
pub use file::File;
pub use history::HistoryMoment;
pub use stitch_base::clock::Timestamp;
pub use stitch_fs::{
    Attr, BeginOptions, Conflict, ConflictKind, FileKind, HistoryRound, Keep, KeptClones,
    LaterClones, LockTicket, MomentInfo, PolicyInfo, PolicyRound, PolicyRule, RecordKey, SetTime,
    SnapshotInfo, StatFs, TransactionInfo, TransactionIsolation, TransactionLife, TransactionState,
};
pub use transaction::FileTransaction;

use crate::external::Settler;
use crate::make::{self, MakeOptions};
use crate::store::{Store, StoreOptions, format_file_system, make as make_store};
use crate::{Database, StoreError};
use hold::Hold;
use std::path::Path;
use stitch_base::sync::Arc;
use stitch_device::{Device, MemDevice};
use stitch_fs::FileSystem;

/// The file system of a store, open. A handle: cheap to clone, to be shared by threads.
#[derive(Clone)]
pub struct Files {
    open: Arc<Open>,
}

/// What all handles of one file system share: that of a store, or that of a snapshot.
struct Open {
    fs: Arc<FileSystem>,
    life: Arc<Life>,
}

/// An open store. Open as long as anything of it or of its snapshots is.
struct Life {
    settler: Settler,
    store: Store,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files")
            .field("store", &self.open.life.store)
            .finish_non_exhaustive()
    }
}

impl Files {
    /// The file system of a store that is open. Goes on with the removal of trees that an earlier
    /// life has not ended.
    ///
    /// # Errors
    /// [`StoreError::NoFileSystem`]; see [`StoreError`].
    pub fn of(store: Store) -> Result<Self, StoreError> {
        let fs = store.file_system()?;
        if fs.detached_dirs() > 0
            && let Err(error) = fs.empty_detached(u64::MAX)
        {
            // The caller did not ask for this work: the store opens even if it fails.
            let what = "a removed tree gives no space back; tried again at the next open";
            tracing::warn!(%error, "{what}");
        }
        let fs = Arc::new(fs);
        let settler = Settler::start(&fs, store.sync_interval());
        let life = Arc::new(Life { settler, store });
        let open = Arc::new(Open { fs, life });
        Ok(Self { open })
    }

    /// Makes a store with an empty file system at `path` and opens it.
    ///
    /// # Errors
    /// As [`Database::create`].
    ///
    /// # Durability
    /// The store is durable when this returns.
    pub fn create(
        path: impl AsRef<Path>,
        make: &MakeOptions,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        make_store(path.as_ref(), make, &mut |_, _| {})?;
        Self::open(path, options)
    }

    /// Opens the file system of the store at `path`: a file, a directory with a store in it, or a
    /// block device.
    ///
    /// # Errors
    /// [`StoreError::NoFileSystem`]; those of [`Database::open`].
    pub fn open(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Self, StoreError> {
        Self::of(Store::open(path.as_ref(), options)?)
    }

    /// Opens the file system of the store at `path`; where there is nothing, makes a store first.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::create`].
    pub fn open_or_create(
        path: impl AsRef<Path>,
        make: &MakeOptions,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        if crate::store_path(path).exists() {
            return Self::open(path, options);
        }
        Self::create(path, make, options)
    }

    /// A file system in memory that is gone with its last handle: for tests of programs.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if it is smaller than 16 MiB.
    pub fn in_memory(len_bytes: u64, options: &StoreOptions) -> Result<Self, StoreError> {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(len_bytes));
        let make = MakeOptions::default();
        make::format_device(device.as_ref(), &make, &mut |_, _| {})?;
        let store = Store::on_device(device, options)?;
        format_file_system(store.engine(), &make)?;
        Self::of(store)
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> Dir {
        // The root is always known, even without a handle on it.
        Dir::new(Hold::root(&self.open))
    }

    /// The records in the same store; see [`Store::database`].
    #[must_use]
    pub fn database(&self) -> Database {
        self.open.life.store.database()
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.open.life.store
    }

    /// Space and inodes.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn space(&self) -> Result<StatFs, StoreError> {
        Ok(self.open.fs.stat_fs()?)
    }

    /// Makes everything durable that returned before, by any thread.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io),
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned): what was not durable may be lost; open
    /// the store anew.
    pub fn sync(&self) -> Result<(), StoreError> {
        Ok(self.open.fs.sync()?)
    }

    /// Writes everything out and ends background work: nothing more is taken afterwards. Dropping
    /// the last handle without it is as safe; the next open has more to do.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn close(&self) -> Result<(), StoreError> {
        self.open.life.settler.stop();
        let closed = self.open.fs.close();
        self.open.life.store.close()?;
        Ok(closed?)
    }
}
