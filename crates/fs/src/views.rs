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
//! | part | does |
//! |---|---|
//! | [`ViewSet`] | the table: records of all views, and those that are open |
//! | [`ViewCommands`] | lets passes of the background make way for commands |
//! | [`ViewLimits`] | which file systems can have snapshots and clones made |
//! | [`ViewOpener`] | opens the file system of a view |
//! | [`make::CloneMaker`], [`inner::GraftFinder`] | make a clone, with the clones in its source |
//! | [`ways::GraftWays`] | where the directories above clones are |
//! | [`CloneRemoval`] | removes a clone by its name |
//! | [`RestoredClones`] | makes clones again that a rollback brings back |
//! | `operations.rs` | what [`FileSystem`] offers of them |
//!
//! Locks: `making` after `snapshot_change`, and before those of file systems. Of a removal, those
//! of the view before those of its home.

mod branch;
mod commands;
mod inner;
mod limits;
mod make;
mod open;
mod operations;
mod remove;
mod restored;
mod set;
mod ways;

use crate::room::SharedRoom;
use crate::system::FileSystem;
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_base::sync::Arc;
use stitch_format::fs_view::ViewRecord;

pub(crate) use commands::ViewCommands;
pub use inner::INNER_CLONES_MAX;
pub(crate) use inner::InnerClone;
pub use limits::VIEW_INO_BITS;
pub(crate) use limits::ViewLimits;
pub use make::CloneSource;
pub(crate) use open::ViewOpener;
pub(crate) use remove::CloneRemoval;
pub(crate) use restored::RestoredClones;
pub(crate) use set::{ViewSet, read_record, release_replaced};

/// Where a file system stands among those of its engine.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Number of the view, 0 for mainline; of a snapshot, that of the view whose past it is.
    pub(crate) number: u64,
    pub(crate) views: Arc<ViewSet>,
    pub(crate) room: Arc<SharedRoom>,
}

impl ViewSet {
    /// Returns the directory that a view shows. Nothing above it, and beside it, is reached: no
    /// clone lies there.
    pub(crate) fn shown_root(&self, view: u64) -> Ino {
        let record = self.record(view);
        debug_assert!(record.is_none() || view > 0, "mainline has no record");
        record.map_or(Ino::ROOT, |record| record.root)
    }
}

impl Standing {
    /// Returns the clone that lies at a directory of the file system.
    pub(crate) fn clone_at(&self, graft: Ino) -> Option<CloneInfo> {
        let found = self.views.at(self.number, graft);
        debug_assert!(
            found.as_ref().is_none_or(|clone| clone.home == self.number),
            "it lies in this view"
        );
        found
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
        debug_assert!(number > 0, "0 is mainline, which has no record");
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
