//! Creating snapshots, of directories in mainline and in clones.

use super::{SnapshotInfo, SnapshotView, Snapshots, check_name, pin_name};
#[cfg(doc)]
use crate::system::FileSystem;
use crate::views::ViewLimits;
use crate::{FsError, FsResult, LiveView};
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_format::fs_snapshot::{SNAPSHOT_PATH_BYTES_MAX, SnapshotRecord};

/// How often a snapshot is begun again because the directory, or one above it, was renamed.
const TRIES: usize = 16;
const _: () = assert!(TRIES > 0, "a snapshot is tried");

/// The directory that a snapshot is to be of, which is known.
#[derive(Clone, Copy)]
struct SnapshotSource<'a> {
    dir: Ino,
    /// The clone that it is in; `None` for mainline.
    clone: Option<&'a LiveView>,
}

impl Snapshots<'_> {
    /// Creates a snapshot of a directory that is known. It shows what was acknowledged before the
    /// call, and nothing of what is written after it returns.
    ///
    /// # Errors
    /// [`FsError::Exists`] if the name is taken; [`FsError::NotDir`]; [`FsError::NotFound`] for a
    /// directory that was removed; [`FsError::NameTooLong`] for a name over
    /// [`SNAPSHOT_NAME_BYTES_MAX`](super::SNAPSHOT_NAME_BYTES_MAX) or a path over 4000 bytes;
    /// [`FsError::Invalid`] for what is no name, and where a rollback was interrupted in the file
    /// system of the directory or in a clone that lies in it; [`FsError::Unsupported`] of an engine
    /// without pins, or a store with large files beside it, which are written in place, and in a
    /// transaction; [`FsError::NumbersTooLarge`]; [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// The snapshot, and all that it shows, are on the medium when this returns.
    ///
    /// # Cost
    /// One sync of the log, one record, a point read for each name of the path, and a scan of the
    /// records of clones.
    pub fn create(&self, dir: Ino, name: &str) -> FsResult<SnapshotInfo> {
        self.create_marked(dir, name, false)
    }

    /// Creates a snapshot, which may be that of a policy.
    pub(crate) fn create_marked(
        &self,
        dir: Ino,
        name: &str,
        is_automatic: bool,
    ) -> FsResult<SnapshotInfo> {
        self.create_of(SnapshotSource { dir, clone: None }, name, is_automatic)
    }

    /// Creates a snapshot of a directory in a clone, as [`Self::create`] does of one in this file
    /// system, which is mainline. The directory is known in the clone. Its path leads through the
    /// directories at which the clone, and those that it lies in, are found.
    ///
    /// # Errors
    /// As [`Self::create`]; [`FsError::NotFound`] for a clone that was removed; [`FsError::Stale`]
    /// for one that lies below the directory of another clone, which hides it.
    ///
    /// # Durability
    /// As [`Self::create`].
    ///
    /// # Cost
    /// As [`Self::create`]. Where the directory that a clone lies at is not known, it is found as
    /// by [`FileSystem::look_up_number`].
    pub fn create_in(&self, clone: &LiveView, dir: Ino, name: &str) -> FsResult<SnapshotInfo> {
        self.create_marked_in(clone, dir, name, false)
    }

    /// Creates a snapshot of a directory in a clone, which may be that of a policy.
    pub(crate) fn create_marked_in(
        &self,
        clone: &LiveView,
        dir: Ino,
        name: &str,
        is_automatic: bool,
    ) -> FsResult<SnapshotInfo> {
        debug_assert!(clone.info().number > 0, "0 is mainline");
        ViewLimits::of(clone.fs()).check_numbers()?;
        let clone = Some(clone);
        self.create_of(SnapshotSource { dir, clone }, name, is_automatic)
    }

    /// Creates a snapshot, in as many tries as it takes.
    fn create_of(
        &self,
        source: SnapshotSource<'_>,
        name: &str,
        is_automatic: bool,
    ) -> FsResult<SnapshotInfo> {
        self.check_writable()?;
        check_name(name)?;
        self.maker.check_takes_pins()?;
        let _command = self.views.commands.begin(self.clock);
        // No snapshot shows half of a rollback.
        let _changing = self.views.snapshot_change.lock();
        let mut tried = Err(FsError::NotFound);
        for _ in 0..TRIES {
            let record = self.record_of(source, is_automatic);
            tried = record.and_then(|record| self.pin_directory(name, &record));
            // The path led elsewhere: it was changed after it was read.
            if !matches!(tried, Err(FsError::Stale(_))) {
                return tried;
            }
        }
        debug_assert!(
            matches!(tried, Err(FsError::Stale(_))),
            "it was changed each time"
        );
        tried
    }

    /// Returns the record of a snapshot of a directory, as it is at the moment.
    fn record_of(
        &self,
        source: SnapshotSource<'_>,
        is_automatic: bool,
    ) -> FsResult<SnapshotRecord> {
        let SnapshotSource { dir, clone } = source;
        let residents = clone.map_or(self.residents, |clone| &clone.fs().residents);
        let inode = residents.inodes.get_dir(dir)?;
        debug_assert_eq!(inode.head.ino, dir, "the directory of the number");
        let (view, path) = match clone {
            None => (0, self.paths.outside_clones(Ino::ROOT, dir)?),
            Some(clone) => (clone.info().number, self.paths.through(clone, dir)?),
        };
        debug_assert_eq!(view > 0, clone.is_some(), "a clone has a number");
        debug_assert!(
            path.len() <= SNAPSHOT_PATH_BYTES_MAX,
            "a reader takes no longer path"
        );
        Ok(SnapshotRecord {
            root: dir,
            view,
            created_ns: self.clock.now().0,
            owner: inode.head.uid,
            is_automatic,
            tags: BTreeSet::new(),
            path,
        })
    }

    /// Creates the pin of a snapshot, unless the path does not lead to the directory at the pin's
    /// moment.
    fn pin_directory(&self, name: &str, record: &SnapshotRecord) -> FsResult<SnapshotInfo> {
        debug_assert!(record.tags.is_empty(), "it is not held yet");
        let (engine, options) = (self.pins.engine, self.pins.options);
        let pin = self
            .maker
            .pin_views(&pin_name(name), &record.encode(), record.view)?;
        let info = SnapshotInfo::of(&pin).ok_or(FsError::Invalid("no snapshot was made"))?;
        debug_assert_eq!(info.root, record.root);
        debug_assert_eq!(info.view, record.view);
        debug_assert_eq!(info.name, name);
        debug_assert_eq!(info.path, record.path);
        let opened = SnapshotView::open(engine, options, info.clone());
        match opened.and_then(|view| self.check_is_whole(&view)) {
            Ok(()) => Ok(info),
            Err(error) => {
                let _named = self.views.narrowing.hold_names();
                engine.drop_pin(&pin.name)?;
                Err(error)
            }
        }
    }

    /// Refuses a snapshot with a clone in it of which a rollback has restored a part: the snapshot
    /// could not show it.
    fn check_is_whole(&self, view: &SnapshotView) -> FsResult<()> {
        let under_way = &self.views.under_way;
        if !under_way.has_interrupted() {
            return Ok(());
        }
        let inner = view.inner_clones()?;
        debug_assert!(inner.iter().all(|clone| *clone > 0), "mainline is no clone");
        match inner.iter().any(|clone| under_way.is_interrupted(*clone)) {
            true => Err(FsError::Invalid(
                "a rollback of a clone in it was interrupted: repeat it",
            )),
            false => Ok(()),
        }
    }
}
