//! State that all parts of an open volume share: the device, the identity, and the poison flag.

use crate::VolumeError;
use stitch_base::Generation;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_device::{Device, DeviceError, SECTOR_BYTES, Window};
use stitch_format::superblock::{Areas, Superblock};

/// First format version with short records in the backup log. Stores of older formats never have
/// any.
const FORMAT_OF_SHORT_RECORDS: (u16, u16) = (2, 3);

/// The device, and the rules that every write to it obeys.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) salt: u64,
    pub(crate) generation: Generation,
    /// True if every program that can open the volume knows short log records.
    pub(crate) has_short_records: bool,
    /// The areas at open. The zones may have been resized since.
    pub(crate) areas: Areas,
    /// Offset after the last zone.
    zones_end: AtomicU64,
    pub(crate) is_read_only: bool,
    /// Number of syncs of the device.
    syncs: AtomicU64,
    /// Set by the first failed write or sync that durability depends on; never cleared.
    poisoned: AtomicBool,
}

impl Core {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        superblock: &Superblock,
        generation: Generation,
        is_read_only: bool,
    ) -> Self {
        let areas = superblock.areas;
        assert!(generation >= superblock.generation, "generations go up");
        debug_assert!(areas.check().is_ok(), "the superblock was checked");
        Self {
            device,
            salt: superblock.salt,
            generation,
            has_short_records: superblock.readable >= FORMAT_OF_SHORT_RECORDS,
            zones_end: AtomicU64::new(areas.zones_at + areas.zones_bytes),
            areas,
            is_read_only,
            syncs: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
        }
    }

    /// Offset after the last zone.
    pub(crate) fn zones_end(&self) -> u64 {
        let end = self.zones_end.load(Ordering::Acquire);
        debug_assert!(end > self.areas.zones_at, "a volume has zones");
        end
    }

    /// Sets the offset after the last zone, after a resize.
    pub(crate) fn set_zones_end(&self, end: u64) {
        assert!(end > self.areas.zones_at, "a volume has zones");
        assert!(
            end <= self.device.geometry().len_bytes,
            "zones lie on the device"
        );
        self.zones_end.store(end, Ordering::Release);
    }

    pub(crate) fn check_writable(&self) -> Result<(), VolumeError> {
        if self.is_read_only {
            return Err(VolumeError::ReadOnly);
        }
        if self.is_poisoned() {
            return Err(VolumeError::Poisoned);
        }
        Ok(())
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    fn poison(&self, error: &VolumeError) {
        if !self.poisoned.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "the volume takes no more writes");
        }
    }

    /// Writes to a log. A failure poisons the volume.
    pub(crate) fn write(&self, at: u64, pieces: &[&[u8]]) -> Result<(), VolumeError> {
        self.check_writable()?;
        debug_assert!(at.is_multiple_of(SECTOR_BYTES), "writes start at sectors");
        let written = self.device.write_at(at, pieces);
        written.map_err(|error| self.poisoned_by(error))
    }

    /// Prepares a part of a log for writes; see [`Device::prepare`]. A failure poisons the volume.
    pub(crate) fn prepare(&self, at: u64, len_bytes: u64) -> Result<(), VolumeError> {
        self.check_writable()?;
        debug_assert!(len_bytes > 0, "something is prepared");
        debug_assert!(at.is_multiple_of(SECTOR_BYTES), "writes start at sectors");
        let prepared = self.device.prepare(at, len_bytes);
        prepared.map_err(|error| self.poisoned_by(error))
    }

    /// Returns the number of syncs of the device since the volume was opened.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Opens a window on a part of a log; see [`Device::open_window`]. A failure poisons the
    /// volume.
    pub(crate) fn open_window(
        &self,
        at: u64,
        len_bytes: usize,
        first: &[u8],
    ) -> Result<Option<Box<dyn Window>>, VolumeError> {
        self.check_writable()?;
        debug_assert!(at.is_multiple_of(SECTOR_BYTES), "writes start at sectors");
        debug_assert!(first.len() <= len_bytes, "the window holds its first bytes");
        let opened = self.device.open_window(at, len_bytes, first);
        opened.map_err(|error| self.poisoned_by(error))
    }

    /// Writes all of `pieces` to a window. A failure poisons the volume.
    pub(crate) fn write_window(
        &self,
        window: &mut dyn Window,
        mut at: usize,
        pieces: &[&[u8]],
    ) -> Result<(), VolumeError> {
        self.check_writable()?;
        debug_assert!(
            pieces.iter().any(|piece| !piece.is_empty()),
            "something is written"
        );
        for piece in pieces {
            let written = window.write(at, piece);
            written.map_err(|error| self.poisoned_by(error))?;
            at += piece.len();
        }
        Ok(())
    }

    fn poisoned_by(&self, error: DeviceError) -> VolumeError {
        let error = VolumeError::from(error);
        self.poison(&error);
        error
    }

    /// Syncs the device. A failure poisons the volume.
    pub(crate) fn sync(&self) -> Result<(), VolumeError> {
        self.check_writable()?;
        debug_assert!(
            !self.is_read_only,
            "a store for reading only is never synced"
        );
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let synced = self.device.sync();
        synced.map_err(|error| self.poisoned_by(error))
    }

    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        Ok(self.device.read_at(at, out)?)
    }
}
