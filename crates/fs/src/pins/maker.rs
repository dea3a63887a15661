//! Creation and removal of pins.

use crate::FsResult;
use crate::system::FileSystem;
use stitch_kv::PinInfo;

/// Creates pins of the whole file system, and deletes snapshots. The file system behind it cannot
/// be reached.
#[derive(Clone, Copy)]
pub(crate) struct PinMaker<'fs> {
    mainline: &'fs FileSystem,
}

impl<'fs> PinMaker<'fs> {
    pub(crate) const fn of(mainline: &'fs FileSystem) -> Self {
        Self { mainline }
    }

    /// Refuses where no pin can show the file system, or its inode numbers are too large.
    ///
    /// # Errors
    /// [`crate::FsError::Unsupported`]; [`crate::FsError::NumbersTooLarge`].
    pub(crate) fn check_takes_pins(self) -> FsResult<()> {
        self.mainline.check_takes_snapshots()
    }

    /// Creates a pin of mainline and of all clones.
    ///
    /// # Durability
    /// On the medium when this returns, with all that it shows.
    pub(crate) fn pin_all(self, name: &str, user: &[u8]) -> FsResult<PinInfo> {
        let pin = self.mainline.pin_views(name, user, 0)?;
        debug_assert_eq!(pin.name, name, "the pin that was asked for");
        Ok(pin)
    }

    /// Deletes a snapshot; see [`FileSystem::delete_snapshot`].
    pub(crate) fn delete_snapshot(self, name: &str) -> FsResult<()> {
        self.mainline.delete_snapshot(name)
    }
}
