//! Read-only snapshots of directories.
//!
//! A snapshot is a pin of the engine: one moment of the trees of the file system ([`scope`]),
//! named, and kept in the store. The pin's user bytes ([`SnapshotRecord`]) say which directory it
//! is of. So creating one takes as long for a million files as for one.
//!
//! ```text
//! create_snapshot(dir, "mon"):  path of dir --> pin "fs/mon" {root, path, owner, time}
//!                               walk the path at the pin's moment: is it the same directory?
//!                                 no (renamed meanwhile): drop the pin, begin again
//! open_snapshot("mon"):         FileSystem, read-only, over SnapshotEngine(engine, pin)
//! ```
//!
//! A snapshot may be of a directory in a clone, and shows the clones that lie in its directory
//! ([`parts`]): the pin holds their trees too. Records in mainline's `sys` tree say which clones
//! there were.
//!
//! A view of the past does no background work and writes nothing, not even times of access. An
//! inode has the number that it has in the present.

mod follow;
mod hold;
mod in_clone;
mod narrow;
mod parts;
mod scope;
mod view;

use crate::system::FileSystem;
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::clock::Timestamp;
use stitch_base::{Ino, PinId};
use stitch_format::fs_snapshot::{PIN_PREFIX, SnapshotRecord};
use stitch_kv::PinInfo;

pub(crate) use follow::follow_path;
pub(crate) use narrow::Narrowing;
pub use parts::SnapshotPart;
pub use view::SnapshotView;

/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 250;
/// Bits of the inode numbers of a file system that takes snapshots: a front end numbers the inodes
/// of all views with what is left of 64.
pub const VIEW_INO_BITS: u32 = 44;
/// The largest number that the next inode may have when a snapshot is created. A process would have
/// to make half of all numbers before one is larger than [`VIEW_INO_BITS`].
const NEXT_INO_MAX: u64 = 1 << (VIEW_INO_BITS - 1);
/// How often a snapshot is begun again because the directory, or one above it, was renamed.
const TRIES: usize = 16;
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
    format!("{PIN_PREFIX}{name}")
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

impl FileSystem {
    /// Reports whether the engine can keep snapshots, and inode numbers leave room to name their
    /// inodes.
    #[must_use]
    pub fn takes_snapshots(&self) -> bool {
        let has_pins = self.branch.is_none() && self.engine().capabilities().pins;
        has_pins && self.next_number() <= NEXT_INO_MAX
    }

    /// Creates a snapshot of a directory that is known. It shows what was acknowledged before the
    /// call, and nothing of what is written after it returns.
    ///
    /// # Errors
    /// [`FsError::Exists`] if the name is taken; [`FsError::NotDir`]; [`FsError::NotFound`] for a
    /// directory that was removed; [`FsError::NameTooLong`] for a name over
    /// [`SNAPSHOT_NAME_BYTES_MAX`] or a path over 4000 bytes; [`FsError::Invalid`] for what is no
    /// name, and where a rollback was interrupted in the file system of the directory or in a clone
    /// that lies in it; [`FsError::Unsupported`] of an engine without pins, or a store with large
    /// files beside it, which are written in place, and in a transaction;
    /// [`FsError::NumbersTooLarge`]; [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// The snapshot, and all that it shows, are on the medium when this returns.
    ///
    /// # Cost
    /// One sync of the log, one record, a point read for each name of the path, and a scan of the
    /// records of clones.
    pub fn create_snapshot(&self, dir: Ino, name: &str) -> FsResult<SnapshotInfo> {
        self.create_marked(dir, name, false)
    }

    /// Creates a snapshot, which may be that of a policy.
    pub(crate) fn create_marked(
        &self,
        dir: Ino,
        name: &str,
        is_automatic: bool,
    ) -> FsResult<SnapshotInfo> {
        self.create_with(name, || self.try_snapshot(dir, name, is_automatic))
    }

    /// Creates a snapshot, in as many tries as it takes.
    fn create_with(
        &self,
        name: &str,
        create: impl Fn() -> FsResult<SnapshotInfo>,
    ) -> FsResult<SnapshotInfo> {
        self.check_writable()?;
        check_name(name)?;
        self.check_takes_snapshots()?;
        // No snapshot shows half of a rollback.
        let _changing = self.standing.views.snapshot_change.lock();
        let mut tried = Err(FsError::NotFound);
        for _ in 0..TRIES {
            tried = create();
            // The path led elsewhere: it was changed after it was read.
            if !matches!(tried, Err(FsError::Stale(_))) {
                return tried;
            }
        }
        tried
    }

    pub(crate) fn check_takes_snapshots(&self) -> FsResult<()> {
        let is_branch = self.branch.is_some();
        if is_branch || self.header.lock().has_external || !self.engine().capabilities().pins {
            return Err(FsError::Unsupported);
        }
        // The pin would show mainline.
        if self.view_number() != 0 {
            return Err(FsError::Unsupported);
        }
        self.check_numbers_leave_room()
    }

    /// Refuses where inode numbers are so large that they cannot be numbers of views as well.
    pub(crate) fn check_numbers_leave_room(&self) -> FsResult<()> {
        if self.next_number() > NEXT_INO_MAX {
            return Err(FsError::NumbersTooLarge);
        }
        Ok(())
    }

    fn try_snapshot(&self, dir: Ino, name: &str, is_automatic: bool) -> FsResult<SnapshotInfo> {
        let inode = self.residents.inodes.get_dir(dir)?;
        let record = SnapshotRecord {
            root: dir,
            view: 0,
            created_ns: self.now(),
            owner: inode.head.uid,
            is_automatic,
            tags: BTreeSet::new(),
            path: self.path_outside_clones(Ino::ROOT, dir)?,
        };
        self.pin_directory(name, &record)
    }

    /// Returns the path of a directory that is known, from `top`. Fails if a clone lies at it or
    /// above it, below `top`: its path leads into the clone.
    fn path_outside_clones(&self, top: Ino, dir: Ino) -> FsResult<Vec<u8>> {
        self.residents
            .path_through(top, dir, |at| match self.clone_at(at) {
                Some(_) => Err(FsError::Stale(dir)),
                None => Ok(()),
            })
    }

    /// Returns the path of the directory at which a clone lies. Fails if another clone lies above
    /// it.
    fn path_of_clone(&self, top: Ino, graft: Ino) -> FsResult<Vec<u8>> {
        self.residents
            .path_through(top, graft, |at| match self.clone_at(at) {
                Some(_) if at != graft => Err(FsError::Stale(graft)),
                _ => Ok(()),
            })
    }

    /// Creates the pin of a snapshot, unless the path does not lead to the directory at the pin's
    /// moment.
    fn pin_directory(&self, name: &str, record: &SnapshotRecord) -> FsResult<SnapshotInfo> {
        let engine = self.engine();
        let pin = self.pin_views(&pin_name(name), &record.encode(), record.view)?;
        let info = SnapshotInfo::of(&pin).ok_or(FsError::Invalid("no snapshot was made"))?;
        let opened = SnapshotView::open(engine, &self.options, info.clone());
        match opened.and_then(|view| self.check_is_whole(&view)) {
            Ok(()) => Ok(info),
            Err(error) => {
                engine.drop_pin(&pin.name)?;
                Err(error)
            }
        }
    }

    /// Refuses a snapshot with a clone in it of which a rollback has restored a part: the snapshot
    /// could not show it.
    fn check_is_whole(&self, view: &SnapshotView) -> FsResult<()> {
        let under_way = &self.standing.views.under_way;
        if !under_way.has_interrupted() {
            return Ok(());
        }
        let inner = view.inner_clones()?;
        match inner.iter().any(|clone| under_way.is_interrupted(*clone)) {
            true => Err(FsError::Invalid(
                "a rollback of a clone in it was interrupted: repeat it",
            )),
            false => Ok(()),
        }
    }

    /// Looks up the directory of a view along its path, so that it is known. Reports whether some
    /// directory above it does not let all users pass.
    ///
    /// # Errors
    /// [`FsError::Stale`] if the path does not lead there.
    pub(crate) fn walk_path(&self, root: Ino, path: &[u8]) -> FsResult<bool> {
        let dir = (self.view_number(), root);
        let (_, is_private) = follow_path(self, path, dir, |_, _| Ok(None))?;
        Ok(is_private)
    }

    /// Makes a directory known by its path, or by its number where it was renamed since. A handle
    /// holds it.
    pub(crate) fn know_dir(&self, dir: Ino, path: &[u8]) -> FsResult<()> {
        // By its path no back rows are needed.
        if self.walk_path(dir, path).is_ok() {
            return Ok(());
        }
        self.know_dir_by_number(dir)
    }

    /// The same, by its number alone.
    pub(crate) fn know_dir_by_number(&self, dir: Ino) -> FsResult<()> {
        self.look_up_number(dir)?;
        let held = self.open_handle(dir);
        self.forget(dir, 1);
        held
    }

    /// Returns the snapshots in the order of their creation. An engine without pins has none. Reads
    /// nothing from the medium.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    pub fn snapshots(&self) -> FsResult<Vec<SnapshotInfo>> {
        self.pins().snapshots()
    }

    /// Returns the snapshot of this name.
    ///
    /// # Errors
    /// [`FsError::NotFound`].
    pub fn snapshot(&self, name: &str) -> FsResult<SnapshotInfo> {
        self.pins().snapshot(name)
    }

    /// Opens the file system as it was when a snapshot was created.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such snapshot.
    ///
    /// # Cost
    /// A few point reads, one for each name of the directory's path, and a scan of the records of
    /// clones.
    pub fn open_snapshot(&self, name: &str) -> FsResult<SnapshotView> {
        self.pins().open_snapshot(name)
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
    pub fn delete_snapshot(&self, name: &str) -> FsResult<()> {
        self.check_writable()?;
        if !self.engine().capabilities().pins {
            return Err(FsError::NotFound);
        }
        let _changing = self.standing.views.snapshot_change.lock();
        let drop_pin = || Ok(self.engine().drop_pin(&pin_name(name))?);
        let Ok(SnapshotInfo { id, tags, .. }) = self.snapshot(name) else {
            // One whose record cannot be read can be deleted.
            return drop_pin();
        };
        if !tags.is_empty() {
            return Err(FsError::Held(tags.join(", ")));
        }
        let under_way = &self.standing.views.under_way;
        let dropped = under_way.drop_unless_used(id, drop_pin);
        dropped.unwrap_or_else(|| Err(FsError::Held("a rollback to it is under way".to_owned())))
    }
}
