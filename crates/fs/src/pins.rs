//! Snapshots, moments of the history, and moments at which transactions began, as the pins of the
//! engine that they are.
//!
//! ```text
//! pins of the engine    fs/mon  fs/tue    snapshots of directories, by name
//!                       history/7         moments: the whole file system, by number
//!                       txn/7             the whole file system where a transaction began
//!                       others            none of these: left out
//! ```
//!
//! The pins of transactions are opened by their numbers and are in no list of names.
//!
//! Invariant: everything here reads, and what is opened is read-only.

mod maker;

pub(crate) use maker::PinMaker;

use crate::history::MomentInfo;
use crate::snapshot::{SnapshotInfo, SnapshotView, pin_name};
use crate::system::FileSystem;
use crate::transaction::PinReads;
use crate::{FsError, FsOptions, FsResult};
use stitch_base::clock::Timestamp;
use stitch_base::sync::Arc;
use stitch_base::{Ino, PinId};
use stitch_format::fs_transaction::transaction_of_pin;
use stitch_kv::{Engine, PinInfo, Snapshot};

/// The pins of a store, as one of its file systems lists and opens them.
#[derive(Clone, Copy)]
pub(crate) struct Pins<'fs> {
    pub(crate) engine: &'fs Arc<dyn Engine>,
    pub(crate) options: &'fs FsOptions,
    /// Number of the view that the file system is.
    view: u64,
    /// Where reads at the pins of transactions are noted.
    reads: PinReads<'fs>,
}

impl<'fs> Pins<'fs> {
    /// Snapshots and moments of the store of a file system.
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self {
            engine: fs.engine(),
            options: &fs.options,
            view: fs.view_number(),
            reads: PinReads::of(fs),
        }
    }
}

impl Pins<'_> {
    /// Reports whether the file system is a clone, or the past of one.
    pub(crate) const fn is_in_clone(&self) -> bool {
        self.view != 0
    }
    /// Refuses in a clone what is kept in mainline: rows of policies, rollbacks under way.
    ///
    /// # Errors
    /// [`FsError::Unsupported`].
    pub(crate) const fn check_no_clone(&self) -> FsResult<()> {
        match self.is_in_clone() {
            true => Err(FsError::Unsupported),
            false => Ok(()),
        }
    }

    /// Returns all pins; none of an engine that has none.
    fn all(&self) -> FsResult<Vec<PinInfo>> {
        match self.engine.capabilities().pins {
            true => {
                let pins = self.engine.pins()?;
                debug_assert!(
                    pins.is_sorted_by(|one, next| one.id < next.id),
                    "in the order of their creation"
                );
                Ok(pins)
            }
            false => Ok(Vec::new()),
        }
    }

    /// Returns the pin of a number.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it was dropped; [`FsError::Storage`].
    pub(crate) fn pin(&self, id: PinId) -> FsResult<PinInfo> {
        self.find(id)?.ok_or(FsError::NotFound)
    }

    /// Returns the pin of a number; none of an engine that has none.
    fn find(&self, id: PinId) -> FsResult<Option<PinInfo>> {
        match self.engine.capabilities().pins {
            true => {
                let found = self.engine.pin_by_id(id)?;
                debug_assert!(
                    found.as_ref().is_none_or(|pin| pin.id == id),
                    "the pin of the number"
                );
                Ok(found)
            }
            false => Ok(None),
        }
    }

    /// Reports whether the pin of a snapshot, a moment or a transaction has this number.
    pub(crate) fn is_pinned(&self, id: PinId) -> FsResult<bool> {
        let pin = self.find(id)?;
        Ok(pin.is_some_and(|pin| self.is_opened(&pin)))
    }

    /// Reports whether a pin is of a snapshot, a moment or a transaction. A clone has none of the
    /// last two.
    fn is_opened(&self, pin: &PinInfo) -> bool {
        let is_whole = || MomentInfo::of(pin).is_some() || pinned_transaction(pin).is_some();
        SnapshotInfo::of(pin).is_some() || (!self.is_in_clone() && is_whole())
    }

    /// Returns the moment of the engine that a pin keeps; that of now for `None`.
    ///
    /// # Errors
    /// As [`Self::pin`].
    pub(crate) fn moment_at(&self, pin: Option<PinId>) -> FsResult<Snapshot> {
        match pin {
            Some(id) => Ok(self.engine.open_pin(&self.pin(id)?.name)?),
            None => Ok(self.engine.snapshot()),
        }
    }

    /// Returns the snapshots in the order of their creation.
    pub(crate) fn snapshots(&self) -> FsResult<Vec<SnapshotInfo>> {
        let pins = self.all()?;
        Ok(pins.iter().filter_map(SnapshotInfo::of).collect())
    }

    /// Returns the snapshot of this name.
    ///
    /// # Errors
    /// [`FsError::NotFound`].
    pub(crate) fn snapshot(&self, name: &str) -> FsResult<SnapshotInfo> {
        if !self.engine.capabilities().pins {
            return Err(FsError::NotFound);
        }
        let pin = self.engine.pin_by_name(&pin_name(name))?;
        let found = pin.as_ref().and_then(SnapshotInfo::of);
        debug_assert!(found.as_ref().is_none_or(|info| info.name == name));
        found.ok_or(FsError::NotFound)
    }

    /// Opens the file system as it was when a snapshot was created.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such snapshot.
    pub(crate) fn open_snapshot(&self, name: &str) -> FsResult<SnapshotView> {
        let view = SnapshotView::open(self.engine, self.options, self.snapshot(name)?)?;
        debug_assert_eq!(view.info().name, name, "the snapshot that was asked for");
        Ok(view)
    }

    /// Returns the moments in the order of their creation. A clone lists none.
    pub(crate) fn moments(&self) -> FsResult<Vec<MomentInfo>> {
        if self.is_in_clone() {
            return Ok(Vec::new());
        }
        let pins = self.all()?;
        Ok(pins.iter().filter_map(MomentInfo::of).collect())
    }

    /// Returns a moment. Clones find those of mainline.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it was dropped.
    pub(crate) fn moment(&self, id: PinId) -> FsResult<MomentInfo> {
        let moment = MomentInfo::of(&self.pin(id)?);
        debug_assert!(moment.as_ref().is_none_or(|moment| moment.id == id));
        moment.ok_or(FsError::NotFound)
    }

    /// Opens the whole file system as it was at a moment.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it was dropped.
    pub(crate) fn open_moment(&self, id: PinId) -> FsResult<SnapshotView> {
        let moment = self.moment(id)?;
        debug_assert_eq!(moment.id, id, "the pin that was asked for");
        let (pin, info) = (moment.pin_name(), moment.as_snapshot());
        SnapshotView::open_pin(self.engine, self.options, &pin, info)
    }

    /// Opens a moment with a directory of this view, by the path that the directory had in this
    /// file system then.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the moment was dropped, or the view was made later;
    /// [`FsError::Stale`] if the path led elsewhere.
    pub(crate) fn open_moment_of_view(
        &self,
        id: PinId,
        root: Ino,
        path: Vec<u8>,
    ) -> FsResult<SnapshotView> {
        debug_assert!(root.0 > 0, "a number of a directory");
        let moment = self.moment(id)?;
        let info = SnapshotInfo {
            view: self.view,
            ..moment.as_snapshot_of(root, path)
        };
        let view = SnapshotView::open_in_view(self.engine, self.options, &moment.pin_name(), info)?;
        debug_assert_eq!(view.info().root, root, "the directory of the path");
        debug_assert_eq!(view.info().id, id, "the moment that was asked for");
        Ok(view)
    }

    /// Returns the numbers of the pins of all snapshots, moments and transactions, in rising order.
    pub(crate) fn pinned(&self) -> FsResult<Vec<PinId>> {
        let pins = self.all()?.into_iter().filter(|pin| self.is_opened(pin));
        let ids: Vec<PinId> = pins.map(|pin| pin.id).collect();
        debug_assert!(ids.is_sorted_by(|a, b| a < b), "in rising order");
        Ok(ids)
    }

    /// Opens the snapshot or moment that a pin is, or the moment at which a transaction began.
    /// Reads of clones at that of a serializable transaction count as its own.
    ///
    /// # Errors
    /// [`FsError::NotFound`], also for the pin of a transaction that has ended.
    pub(crate) fn open_pinned(&self, id: PinId) -> FsResult<SnapshotView> {
        let pin = self.pin(id)?;
        let view = match (SnapshotInfo::of(&pin), pinned_transaction(&pin)) {
            (Some(info), _) => SnapshotView::open(self.engine, self.options, info)?,
            (None, Some(info)) if !self.is_in_clone() => {
                let reads = self.reads.of_pin(&pin)?;
                let mut view = SnapshotView::open_pin(self.engine, self.options, &pin.name, info)?;
                if let Some(reads) = reads {
                    view.note_reads(reads);
                }
                view
            }
            (None, _) => self.open_moment(id)?,
        };
        debug_assert_eq!(view.info().id, id, "the pin that was asked for");
        Ok(view)
    }
}

/// Returns the pin of a transaction as if it were a snapshot of the root directory, under a name
/// that no snapshot has; `None` for any other pin.
pub(crate) fn pinned_transaction(pin: &PinInfo) -> Option<SnapshotInfo> {
    transaction_of_pin(&pin.name)?;
    debug_assert!(pin.name.contains('/'), "no snapshot has the name");
    Some(SnapshotInfo {
        id: pin.id,
        name: pin.name.clone(),
        root: Ino::ROOT,
        view: 0,
        path: Vec::new(),
        owner: 0,
        created: Timestamp(0),
        is_automatic: true,
        tags: Vec::new(),
    })
}
