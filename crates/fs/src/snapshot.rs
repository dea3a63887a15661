//! Read-only snapshots of directories.
//!
//! A snapshot is a pin of the engine: one moment of the trees of the file system ([`scope`]),
//! named, and kept in the store. The pin's user bytes ([`SnapshotRecord`]) say which directory it
//! is of. So creating one takes as long for a million files as for one.
//!
//! ```text
//! create(dir, "mon"):  path of dir --> pin "fs/mon" {root, path, owner, time}
//!                      walk the path at the pin's moment: is it the same directory?
//!                        no (renamed meanwhile): drop the pin, begin again
//! open("mon"):         FileSystem, read-only, over SnapshotEngine(engine, pin)
//! ```
//!
//! A snapshot may be of a directory in a clone, and shows the clones that lie in its directory
//! ([`parts`]): the pin holds their trees too. Records in mainline's `sys` tree say which clones
//! there were.
//!
//! | part | does |
//! |---|---|
//! | [`Snapshots`] | create, list, open, hold, release, delete, narrow |
//! | [`Pins`], [`PinMaker`] | list, open, create and drop pins, those of moments too |
//! | [`ViewPaths`] | paths of directories, through clones |
//! | [`follow_path`] | from a path to its directory |
//! | [`SnapshotView`], [`SnapshotPart`] | what is shown of one moment |
//!
//! A view of the past does no background work and writes nothing, not even times of access. An
//! inode has the number that it has in the present.

mod create;
mod follow;
mod hold;
mod narrow;
mod parts;
mod paths;
mod scope;
mod view;

use crate::pins::{PinMaker, Pins};
use crate::residents::Residents;
use crate::system::FileSystem;
use crate::views::{ViewLimits, ViewSet};
use crate::{FsError, FsResult};
use stitch_base::clock::{Clock, Timestamp};
use stitch_base::{Ino, PinId};
use stitch_format::fs_moment::moment_number;
use stitch_format::fs_snapshot::{PIN_PREFIX, SnapshotRecord};
use stitch_format::fs_transaction::transaction_of_pin;
use stitch_kv::PinInfo;

pub(crate) use follow::{follow_path, know_dir, know_dir_by_number, walk_path};
pub(crate) use narrow::{CloneNarrowing, Narrowing};
pub(crate) use parts::PartNumbers;
pub use parts::SnapshotPart;
pub(crate) use paths::ViewPaths;
pub(crate) use scope::HeldTrees;
pub use view::SnapshotView;

/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 250;
/// Right of others to pass through a directory.
const OTHERS_EXECUTE: u16 = 0o001;

/// A snapshot of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Number, never used again in a store; snapshots are numbered in the order of creation.
    pub id: PinId,
    /// Name.
    pub name: String,
    /// The directory, in the file system that it is in.
    pub root: Ino,
    /// Number of the clone that it is in, 0 for mainline.
    pub view: u64,
    /// Its path from the root of the file system at that moment, without a slash at either end;
    /// empty for the root.
    pub path: Vec<u8>,
    /// User that owned the directory, who may delete the snapshot.
    pub owner: u32,
    /// When it was created.
    pub created: Timestamp,
    /// A policy created it, and may delete it.
    pub is_automatic: bool,
    /// Tags of the holds, in order: with one it cannot be deleted.
    pub tags: Vec<String>,
}

impl SnapshotInfo {
    /// Returns the snapshot that a pin is; `None` for a pin of something else, and for one whose
    /// record is damaged or newer than this program.
    pub(crate) fn of(pin: &PinInfo) -> Option<Self> {
        let name = pin.name.strip_prefix(PIN_PREFIX)?;
        match SnapshotRecord::decode(&pin.user) {
            Ok(record) => Some(Self {
                id: pin.id,
                name: name.to_owned(),
                root: record.root,
                view: record.view,
                path: record.path,
                owner: record.owner,
                created: Timestamp(record.created_ns),
                is_automatic: record.is_automatic,
                tags: record.tags.into_iter().collect(),
            }),
            Err(error) => {
                tracing::warn!(name, %error, "a snapshot cannot be read");
                None
            }
        }
    }
}

pub(crate) fn pin_name(name: &str) -> String {
    let pin = format!("{PIN_PREFIX}{name}");
    debug_assert!(
        moment_number(&pin).is_none() && transaction_of_pin(&pin).is_none(),
        "a snapshot is no moment, and not that of a transaction"
    );
    pin
}

fn check_name(name: &str) -> FsResult<()> {
    if name.len() > SNAPSHOT_NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(FsError::Invalid("no name of a snapshot"));
    }
    Ok(())
}

/// The snapshots of a store: see [`FileSystem::snapshots`].
///
/// Invariant: a pin of a snapshot is created, altered and dropped by one caller at a time, and not
/// while a directory of any view is rolled back.
#[derive(Clone, Copy)]
pub struct Snapshots<'fs> {
    pins: Pins<'fs>,
    maker: PinMaker<'fs>,
    /// Which rollbacks are under way, in all views, and which snapshot is being narrowed.
    views: &'fs ViewSet,
    /// Directories that are known.
    residents: &'fs Residents,
    paths: ViewPaths<'fs>,
    limits: ViewLimits<'fs>,
    clock: &'fs dyn Clock,
    is_mainline: bool,
    is_read_only: bool,
}

impl std::fmt::Debug for Snapshots<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshots")
            .field("is_mainline", &self.is_mainline)
            .finish_non_exhaustive()
    }
}

impl FileSystem {
    /// Returns the handle of this store's snapshots. It borrows what it uses: to take it costs
    /// nothing.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots<'_> {
        Snapshots {
            pins: Pins::of(self),
            maker: PinMaker::of(self),
            views: &self.standing.views,
            residents: &self.residents,
            paths: ViewPaths::of(self),
            limits: ViewLimits::of(self),
            clock: &*self.options.clock,
            is_mainline: self.is_mainline(),
            is_read_only: self.is_read_only(),
        }
    }
}

impl Snapshots<'_> {
    /// Reports whether the engine can keep snapshots, and inode numbers leave room to name their
    /// inodes.
    #[must_use]
    pub fn are_supported(&self) -> bool {
        self.limits.may_take_snapshots()
    }

    /// Returns the snapshots in the order of their creation. An engine without pins has none. Reads
    /// nothing from the medium.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    pub fn list(&self) -> FsResult<Vec<SnapshotInfo>> {
        let list = self.pins.snapshots()?;
        debug_assert!(list.is_sorted_by(|one, next| one.id < next.id), "by number");
        Ok(list)
    }

    /// Returns the snapshot of this name.
    ///
    /// # Errors
    /// [`FsError::NotFound`].
    pub fn get(&self, name: &str) -> FsResult<SnapshotInfo> {
        self.pins.snapshot(name)
    }

    /// Opens the file system as it was when a snapshot was created.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such snapshot.
    ///
    /// # Cost
    /// A few point reads, one for each name of the directory's path, and a scan of the records of
    /// clones.
    pub fn open(&self, name: &str) -> FsResult<SnapshotView> {
        self.pins.open_snapshot(name)
    }

    /// Deletes a snapshot. Its name is free at once. The space that only it needed comes back in
    /// the background, once no [`SnapshotView`] of it is left. Works in a full store.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::ReadOnly`]; [`FsError::Held`]: release it first, or have
    /// the rollback that goes back to it finished.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn delete(&self, name: &str) -> FsResult<()> {
        self.maker.delete_snapshot(name)
    }

    const fn check_writable(&self) -> FsResult<()> {
        match self.is_read_only {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }
}
