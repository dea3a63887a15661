//! Writable views: file systems over branches of another one's trees, in the same engine.
//!
//! ```text
//! mainline   fs/meta   fs/data   fs/xattr   fs/sys      sys: "v" 1 -> {root, home 0, graft, ...}
//!               |         |         |          |        sys: "v" 2 -> {root, home 1, graft, ...}
//! view 1     fs~1/meta ...           branches of mainline's trees
//!               |
//! view 2     fs~2/meta ...           branches of view 1's trees
//! ```
//!
//! A *clone* is a view that lies at a name: an empty directory of its *home* (mainline or another
//! view), which the view's record names as its *graft*. A front end shows the view's directory
//! there. A snapshot has the records of its moment. A clone of the home has records of its own: the
//! clones in its source are cloned with it (see [`inner`]).
//!
//! | step | on the medium afterwards |
//! |---|---|
//! | branch the trees | trees without a record: dropped at open |
//! | one batch: the graft's row, the record, and those of the clones in it | a clone |
//! | one batch: the graft's row is deleted, the record says *removed* | dropped soon, or at open |
//! | drop the trees | a record without trees |
//! | delete the record | nothing |
//!
//! Locks: `making` before all others. Of a removal, those of the view before those of its home.

mod ahead;
mod inner;
mod make;
mod remove;
mod set;

use crate::aside::Aside;
use crate::room::SharedRoom;
use crate::schema::view_schema;
use crate::system::FileSystem;
use crate::{FsError, FsOptions, FsResult};
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_base::sync::Arc;
use stitch_format::fs_view::ViewRecord;

pub use inner::INNER_CLONES_MAX;
pub use make::CloneSource;
pub(crate) use set::ViewSet;

/// Where a file system stands among those of its engine.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Number of the view, 0 for mainline; of a snapshot, that of the view whose past it is.
    pub(crate) number: u64,
    pub(crate) views: Arc<ViewSet>,
    pub(crate) room: Arc<SharedRoom>,
}

impl Standing {
    /// Returns the directory that the view shows. Nothing above it, and beside it, is reached.
    pub(crate) fn shown_root(&self) -> Ino {
        let record = self.views.record(self.number);
        record.map_or(Ino::ROOT, |record| record.root)
    }

    /// Returns the clone that lies at a directory of the file system.
    pub(crate) fn clone_at(&self, graft: Ino) -> Option<CloneInfo> {
        self.views.at(self.number, graft)
    }
}

/// A clone of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneInfo {
    /// Number, never used again in a store; clones are numbered in the order of creation.
    pub number: u64,
    /// Its directory, in its own file system.
    pub root: Ino,
    /// Number of the view that has its name, 0 for mainline.
    pub home: u64,
    /// The directory of that view which it replaces.
    pub graft: Ino,
    /// User that made it.
    pub owner: u32,
    /// When it was made.
    pub created: Timestamp,
}

impl CloneInfo {
    fn of(number: u64, record: &ViewRecord) -> Self {
        Self {
            number,
            root: record.root,
            home: record.home,
            graft: record.graft,
            owner: record.owner,
            created: Timestamp(record.created_ns),
        }
    }
}

/// The file system of a writable view, open. It is open once in a process: see
/// [`FileSystem::open_clone`].
#[derive(Debug)]
pub struct LiveView {
    fs: Arc<FileSystem>,
    info: CloneInfo,
}

impl LiveView {
    /// Returns the file system. Its directory is known in it.
    #[must_use]
    pub const fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Returns what is known of the clone.
    #[must_use]
    pub const fn info(&self) -> &CloneInfo {
        &self.info
    }
}

impl FileSystem {
    /// Returns the number of the view that this file system is, 0 for mainline; of a snapshot, that
    /// of the view whose past it is.
    #[must_use]
    pub const fn view_number(&self) -> u64 {
        self.standing.number
    }

    /// Opens the file system of a writable view by the name of its schema. Nobody else may have it
    /// open.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there are no such trees.
    pub(crate) fn open_writable(&self, number: u64) -> FsResult<Self> {
        debug_assert!(number > 0, "mainline is open");
        let options = FsOptions {
            ledger: None,
            external: None,
            ..self.options.clone()
        };
        let standing = Standing {
            number,
            views: Arc::clone(&self.standing.views),
            room: Arc::clone(&self.standing.room),
        };
        let aside = Aside::beside(&self.aside);
        let engine = Arc::clone(self.engine());
        let view = Self::open_with(engine, options, &view_schema(number), standing, aside)?;
        Ok(view.with_writes_beside(self))
    }

    /// Opens a clone as it is in the snapshot that this file system is of. Its directory is known.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there was none.
    pub(crate) fn open_past_clone(&self, number: u64) -> FsResult<Self> {
        debug_assert!(self.is_read_only(), "the past does not change");
        let record = self.standing.views.record(number);
        let record = record.ok_or(FsError::NotFound)?;
        let fs = self.open_writable(number)?;
        fs.walk_path(record.root, &record.path)?;
        Ok(fs)
    }

    /// Returns the clones of the store in the order of their creation. Reads nothing from the
    /// medium.
    #[must_use]
    pub fn clones(&self) -> Vec<CloneInfo> {
        self.standing.views.live()
    }

    /// Returns the clone of a number.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none, or it was removed.
    pub fn clone_of(&self, number: u64) -> FsResult<CloneInfo> {
        let record = self.standing.views.record(number);
        let record = record.ok_or(FsError::NotFound)?;
        Ok(CloneInfo::of(number, &record))
    }

    /// Returns the clone that lies at a directory of this file system.
    #[must_use]
    pub fn clone_at(&self, graft: Ino) -> Option<CloneInfo> {
        self.standing.clone_at(graft)
    }

    /// Opens the file system of a clone. If it is open already, that one is returned.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none, or it was removed.
    ///
    /// # Cost
    /// A few point reads, and one for each name of the path that its directory had.
    pub fn open_clone(&self, number: u64) -> FsResult<Arc<LiveView>> {
        let views = Arc::clone(&self.standing.views);
        views.open_once(number, |record| {
            let fs = self.open_writable(number)?;
            fs.walk_path(record.root, &record.path)?;
            Ok(LiveView {
                fs: Arc::new(fs),
                info: CloneInfo::of(number, record),
            })
        })
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        // Inode numbers that were set aside are skipped, as after a crash: another thread may be
        // opening the view again.
        self.fs.aside.release(self.fs.engine().as_ref());
    }
}
