//! Creation and removal of pins.

use super::Pins;
use crate::snapshot::{HeldTrees, SnapshotInfo, pin_name};
use crate::system::FileSystem;
use crate::views::{ViewLimits, ViewSet};
use crate::{FsError, FsResult};
use stitch_kv::PinInfo;

/// Creates the pins of snapshots and moments, and deletes snapshots.
///
/// Invariant: a pin that a tag holds, or that a rollback goes back to, stays.
#[derive(Clone, Copy)]
pub(crate) struct PinMaker<'fs> {
    pins: Pins<'fs>,
    /// Clones, and the rollbacks that are under way.
    views: &'fs ViewSet,
    limits: ViewLimits<'fs>,
    is_read_only: bool,
}

impl<'fs> PinMaker<'fs> {
    pub(crate) fn of(mainline: &'fs FileSystem) -> Self {
        Self {
            pins: Pins::of(mainline),
            views: &mainline.standing.views,
            limits: ViewLimits::of(mainline),
            is_read_only: mainline.is_read_only(),
        }
    }

    /// Refuses where no pin can show the file system, or its inode numbers are too large.
    ///
    /// # Errors
    /// [`FsError::Unsupported`]; [`FsError::NumbersTooLarge`].
    pub(crate) fn check_takes_pins(self) -> FsResult<()> {
        self.limits.check_takes_snapshots()
    }

    /// Creates a pin of what a snapshot of a directory in a view may show; in mainline, 0, that is
    /// mainline and all clones.
    ///
    /// # Durability
    /// On the medium when this returns, with all that it shows.
    pub(crate) fn pin_views(self, name: &str, user: &[u8], view: u64) -> FsResult<PinInfo> {
        debug_assert!(!self.is_read_only, "a pin is about to be created");
        debug_assert!(!name.is_empty(), "a pin has a name");
        let held = HeldTrees::of(&self.views.live(), view);
        let has = |tree: &_| held.has(tree);
        let pin = self.pins.engine.create_pin_of(name, user, &has)?;
        debug_assert_eq!(pin.name, name, "the pin that was asked for");
        debug_assert_eq!(pin.user, user, "with these bytes");
        Ok(pin)
    }

    /// Deletes a snapshot; see [`crate::Snapshots::delete`].
    pub(crate) fn delete_snapshot(self, name: &str) -> FsResult<()> {
        let engine = self.pins.engine;
        if self.is_read_only {
            return Err(FsError::ReadOnly);
        }
        if !engine.capabilities().pins {
            return Err(FsError::NotFound);
        }
        let _command = self.views.commands.begin(&*self.pins.options.clock);
        let _changing = self.views.snapshot_change.lock();
        let drop_pin = || {
            let _named = self.views.narrowing.hold_names();
            Ok(engine.drop_pin(&pin_name(name))?)
        };
        let Ok(SnapshotInfo { id, tags, .. }) = self.pins.snapshot(name) else {
            // One whose record cannot be read can be deleted.
            return drop_pin();
        };
        if !tags.is_empty() {
            return Err(FsError::Held(tags.join(", ")));
        }
        let dropped = self.views.under_way.drop_unless_used(id, drop_pin);
        dropped.unwrap_or_else(|| Err(FsError::Held("a rollback to it is under way".to_owned())))
    }
}
