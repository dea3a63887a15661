//! Transactions of files and records.

use super::hold::Hold;
use super::{Dir, Files, Open};
use crate::{Database, StoreError};
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_fs::{BeginOptions, TransactionInfo, TransactionLife, TransactionView};

/// A transaction of files and records of one store: what is done in it is seen by others when it is
/// committed, all of it at once, or not at all.
///
/// It begins with what files and records are at that moment. Its directories start at
/// [`Self::root`]; its records are those of [`Self::database`], for all trees that the store had by
/// then. Handles of the store itself go on to see the store.
///
/// One that lives as [`TransactionLife::Run`] is aborted when the last handle of it is dropped, and
/// when the store is opened again. A [`TransactionLife::Named`] one stays open, also across
/// openings; [`Files::join`] gets it back.
///
/// With [`TransactionIsolation::Serializable`](super::TransactionIsolation) the commit also checks
/// the files and records that were read.
///
/// ```
/// use stitchfs::fs::{BeginOptions, Files, TransactionLife};
/// use stitchfs::{StoreOptions, TreeOptions};
///
/// # fn main() -> Result<(), stitchfs::StoreError> {
/// let files = Files::in_memory(64 << 20, &StoreOptions::default())?;
/// let photos = files.database().create_tree("photos", &TreeOptions::default())?;
///
/// let options = BeginOptions { life: TransactionLife::Run, ..BeginOptions::default() };
/// let import = files.begin("import", &options)?;
/// import.root().write("cat.jpg", b"...")?;
/// let records = import.tree("photos").expect("the store has it");
/// records.put(b"cat.jpg", b"{\"width\": 640}")?;
///
/// // Not seen by others yet: neither the file nor the record.
/// assert!(files.root().stat("cat.jpg").is_err());
/// assert_eq!(photos.get(b"cat.jpg")?, None);
///
/// import.commit()?;
/// assert_eq!(files.root().read("cat.jpg")?, b"...");
/// assert!(photos.get(b"cat.jpg")?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FileTransaction {
    inner: Arc<OpenFileTransaction>,
}

struct OpenFileTransaction {
    mainline: Arc<Open>,
    view: Arc<TransactionView>,
    open: Arc<Open>,
    /// One for all, so that its transactions of records share their locks.
    database: Database,
    has_ended: AtomicBool,
}

impl std::fmt::Debug for FileTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileTransaction")
            .field("info", self.info())
            .finish_non_exhaustive()
    }
}

impl Files {
    /// Begins a transaction of files and records. `name` is unique among open ones.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for an engine without branch trees, such as
    /// RocksDB, and for a store with large files beside it; [`Exists`](crate::ErrorKind::Exists) if
    /// an open transaction has the name; [`Invalid`](crate::ErrorKind::Invalid) for what is no
    /// name: at most 250 bytes without a slash.
    ///
    /// # Durability
    /// On the medium when this returns.
    ///
    /// # Cost
    /// Two syncs of the log; nothing is copied.
    pub fn begin(&self, name: &str, options: &BeginOptions) -> Result<FileTransaction, StoreError> {
        self.open.life.store.instance.check_branches()?;
        let view = self.open.fs.transactions().begin(name, options)?;
        Ok(FileTransaction::new(&self.open, view))
    }

    /// Returns the open transaction of a name, of this opening or an earlier one.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    pub fn join(&self, name: &str) -> Result<FileTransaction, StoreError> {
        let view = self.open.fs.transactions().open(name)?;
        Ok(FileTransaction::new(&self.open, view))
    }

    /// Returns the open transaction of a number: see [`TransactionInfo::number`].
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    pub fn join_number(&self, number: u64) -> Result<FileTransaction, StoreError> {
        let view = self.open.fs.transactions().open_number(number)?;
        Ok(FileTransaction::new(&self.open, view))
    }

    /// Returns the transactions that are open, and those that were committed last, by number.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn transactions(&self) -> Result<Vec<TransactionInfo>, StoreError> {
        Ok(self.open.fs.transactions().list()?)
    }
}

impl FileTransaction {
    fn new(mainline: &Arc<Open>, view: Arc<TransactionView>) -> Self {
        let open = Arc::new(Open {
            fs: Arc::clone(view.fs()),
            life: Arc::clone(&mainline.life),
        });
        let store = &mainline.life.store;
        let records = Arc::clone(view.records()) as _;
        let instance = store.instance.in_transaction(records, view.info().number);
        let inner = OpenFileTransaction {
            database: Database::of_instance(store.first.clone(), instance),
            mainline: Arc::clone(mainline),
            view,
            open,
            has_ended: AtomicBool::new(false),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Begins a transaction in this one. It starts with what this one holds now, and is committed
    /// to it. This one cannot be committed while it is open; if this one is aborted, so is it.
    ///
    /// # Errors
    /// As of [`Files::begin`]; [`Unsupported`](crate::ErrorKind::Unsupported) if more than 8 are in
    /// each other.
    pub fn begin(&self, name: &str, options: &BeginOptions) -> Result<Self, StoreError> {
        let options = BeginOptions {
            outer: Some(self.info().number),
            ..*options
        };
        let mainline = &self.inner.mainline;
        let view = mainline.fs.transactions().begin(name, &options)?;
        Ok(Self::new(mainline, view))
    }

    /// What it is: name, number, life.
    #[must_use]
    pub fn info(&self) -> &TransactionInfo {
        self.inner.view.info()
    }

    /// The root directory, as the transaction has it.
    #[must_use]
    pub fn root(&self) -> Dir {
        Dir::new(Hold::root(&self.inner.open))
    }

    /// The records, as the transaction has them. Its commits are part of the transaction, and
    /// transactions of records in it are so, too. Trees cannot be made or removed in it, and its
    /// handles of trees are its own.
    #[must_use]
    pub fn database(&self) -> Database {
        self.inner.database.clone()
    }

    /// The tree of records of this name, as the transaction has it; `None` if the store had none.
    #[must_use]
    pub fn tree(&self, name: &str) -> Option<crate::Tree> {
        self.inner.database.tree(name)
    }

    /// Commits all that was done in it, to files and to records, in one step.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) if others have changed the same files or records
    /// since it began: [`StoreError::file_conflicts`] lists them, and the transaction stays open.
    /// [`Busy`](crate::ErrorKind::Busy) if a transaction that began in it is open;
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is too large for one commit, or has ended; see
    /// [`StoreError`].
    ///
    /// # Durability
    /// On the medium when this returns. A crash leaves all of it or nothing.
    pub fn commit(&self) -> Result<(), StoreError> {
        self.inner
            .mainline
            .fs
            .transactions()
            .commit(&self.inner.view)?;
        self.inner.has_ended.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends it: nothing of it is left.
    ///
    /// # Errors
    /// If it was committed or aborted before; see [`StoreError`].
    pub fn abort(&self) -> Result<(), StoreError> {
        let fs = &self.inner.mainline.fs;
        fs.transactions().abort_number(self.info().number)?;
        self.inner.has_ended.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for OpenFileTransaction {
    fn drop(&mut self) {
        let info = self.view.info();
        if *self.has_ended.get_mut() || info.life != TransactionLife::Run {
            return;
        }
        if let Err(error) = self.mainline.fs.transactions().abort_number(info.number) {
            // Ended by another handle, or ended when the store is opened again.
            tracing::debug!(%error, name = info.name, "a transaction was not aborted");
        }
    }
}
