//! Another length for a volume that is open. Only the zones become more or fewer: superblocks and
//! logs stay where they are.
//!
//! Growing: the device is made longer; both copies of the superblock are written, each synced; only
//! then is anything put into the new space. A crash leaves the old length or the new one, and
//! whichever copy counts, what the live version names is inside.
//!
//! Shrinking: the zones at the end are set aside ([`Volume::begin_shrink`]), the engine moves away
//! what is in them, both copies of the superblock are written, each synced; only then is the device
//! cut. Nothing that a version names has been behind the new end since before the first write.

use crate::instances;
use crate::mkfs::{PAGE, TAIL_BYTES, VERSION_LOG_BYTES, ZONES_MIN, zero};
use crate::superblocks;
use crate::{Class, Extent, Reservation, Volume, VolumeError};
use stitch_format::superblock::{Areas, Superblock};

/// A volume may be this many times as long as the one that `mkfs` would have given such a version
/// log to: the log must hold the list of all tables.
const GROWTH_MAX: u64 = 16;
/// Share of a volume that `mkfs` makes the version log: one part in this many.
const VERSION_LOG_PART: u64 = 128;

fn invalid<T>(reason: String) -> Result<T, VolumeError> {
    Err(VolumeError::Invalid { reason })
}

/// The areas of a volume that is made longer or shorter.
fn resized(areas: &Areas, device_bytes: u64) -> Areas {
    let device_bytes = device_bytes / PAGE * PAGE;
    Areas {
        device_bytes,
        zones_bytes: device_bytes.saturating_sub(areas.zones_at),
        ..*areas
    }
}

/// Returns the longest that a volume may become, in bytes: its shortest version log must hold the
/// list of all tables.
#[must_use]
pub fn device_bytes_max(superblock: &Superblock) -> u64 {
    let logs = instances::records(superblock).into_iter();
    let shortest = logs.map(|record| record.logs.version_log_bytes).min();
    let shortest = shortest.expect("a volume has a first instance");
    longest(&superblock.areas, shortest)
}

/// Returns the length of the shortest version log by which a volume may become `device_bytes` long.
pub(crate) fn version_log_bytes_for(device_bytes: u64) -> u64 {
    let needed = device_bytes.div_ceil(VERSION_LOG_PART * GROWTH_MAX);
    let needed = needed.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    needed.clamp(*VERSION_LOG_BYTES.start(), *VERSION_LOG_BYTES.end())
}

fn longest(areas: &Areas, version_log_bytes: u64) -> u64 {
    let by_log = version_log_bytes.saturating_mul(VERSION_LOG_PART * GROWTH_MAX);
    let by_zones = (u64::from(u32::MAX) - 1).saturating_mul(areas.zone_bytes);
    if version_log_bytes >= *VERSION_LOG_BYTES.end() {
        return by_zones;
    }
    by_zones.min(by_log)
}

impl Volume {
    /// Makes the volume `device_bytes` long, rounded down to 4 KiB, and the device as long as that.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] if that is not longer than it is, or longer than its logs are made
    /// for; [`VolumeError::Device`] if the device cannot be that long: nothing has changed then, or
    /// the volume is poisoned; [`VolumeError::ReadOnly`], [`VolumeError::Poisoned`].
    ///
    /// # Durability
    /// The new length is durable when this returns. A crash leaves the old one or the new one.
    pub fn grow(&self, device_bytes: u64) -> Result<(), VolumeError> {
        self.shared.core.check_writable()?;
        let mut superblock = self.shared.superblock.lock();
        let before = superblock.areas;
        let areas = resized(&before, device_bytes);
        if areas.device_bytes <= before.device_bytes {
            return invalid(format!(
                "has {} bytes already; give a larger size",
                before.device_bytes
            ));
        }
        let longest = device_bytes_max(&superblock);
        if areas.device_bytes > longest {
            return invalid(format!(
                "its logs are made for {longest} bytes at most; make a new store of that size and copy"
            ));
        }
        let device = &*self.shared.core.device;
        device.grow(before.device_bytes, areas.device_bytes)?;
        // What some other format has left at the end is not to be taken for it.
        let tail_bytes = TAIL_BYTES.min(areas.device_bytes - before.device_bytes);
        let tail_at = areas.device_bytes - tail_bytes;
        zero(device, tail_at, tail_bytes, &mut |_| ())?;
        self.shared.core.sync()?;
        superblock.areas = areas;
        superblocks::write_both(&self.shared.core, &superblock)?;
        self.shared
            .core
            .set_zones_end(areas.zones_at + areas.zones_bytes);
        self.shared.zones.grow(areas.zones_bytes);
        Ok(())
    }

    /// Begins to make the volume shorter: from now on nothing is put behind the new end, which is
    /// rounded down to 4 KiB. `kept_bytes` are to be free in what is left.
    ///
    /// # Errors
    /// [`VolumeError::TooSmall`] if what is in use would not fit; [`VolumeError::Invalid`] if that is
    /// not shorter than it is, or too short for any volume; [`VolumeError::ReadOnly`],
    /// [`VolumeError::Poisoned`].
    pub fn begin_shrink(
        &self,
        device_bytes: u64,
        kept_bytes: u64,
    ) -> Result<Shrinking<'_>, VolumeError> {
        self.shared.core.check_writable()?;
        let before = self.superblock().areas;
        let areas = resized(&before, device_bytes);
        if areas.device_bytes >= before.device_bytes {
            return invalid(format!(
                "has {} bytes only; give a smaller size",
                before.device_bytes
            ));
        }
        let least = before.zones_at + ZONES_MIN * before.zone_bytes;
        if areas.device_bytes < least {
            return invalid(format!(
                "its logs and {ZONES_MIN} zones need {least} bytes; give that or more"
            ));
        }
        if self.shared.zones.fenced().is_some() {
            return invalid("is being made smaller already".to_owned());
        }
        let fence = |promised| {
            self.shared
                .zones
                .fence(areas.zones_bytes, promised, kept_bytes)
        };
        self.shared.space.with_promised(fence)?;
        let mut shrinking = Shrinking {
            volume: self,
            areas,
            room: None,
        };
        // What is moved takes room before it gives any.
        let live = shrinking.live_bytes()?;
        shrinking.room = Some(self.shared.space.reserve(live, Class::Internal)?);
        Ok(shrinking)
    }

    /// Length of the volume, in bytes.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.shared.superblock.lock().areas.device_bytes
    }
}

/// A volume on its way to become shorter. Dropped, it stays as long as it was.
#[derive(Debug)]
#[must_use = "a shrink that is dropped is given up"]
pub struct Shrinking<'a> {
    volume: &'a Volume,
    areas: Areas,
    /// Room for what is moved, promised to us.
    room: Option<Reservation>,
}

impl Shrinking<'_> {
    /// What is to be left empty.
    ///
    /// # Errors
    /// As [`Self::live_bytes`].
    pub fn tail(&self) -> Result<Extent, VolumeError> {
        self.volume
            .shared
            .zones
            .fenced()
            .ok_or_else(|| self.too_small())
    }

    /// Bytes that are still in use there.
    ///
    /// # Errors
    /// [`VolumeError::TooSmall`] if room was to be had nowhere else meanwhile: the shrink is off.
    pub fn live_bytes(&self) -> Result<u64, VolumeError> {
        let live = self.volume.shared.zones.fenced_live_bytes();
        live.ok_or_else(|| self.too_small())
    }

    /// Takes note of what was moved so far.
    ///
    /// # Errors
    /// As [`Self::live_bytes`].
    pub fn note_moved(&mut self) -> Result<u64, VolumeError> {
        let live = self.live_bytes()?;
        if let Some(room) = &mut self.room {
            room.release(room.bytes().saturating_sub(live));
        }
        Ok(live)
    }

    /// The error that says that what is in use does not fit.
    #[must_use]
    pub fn too_small(&self) -> VolumeError {
        let usage = self.volume.shared.zones.usage();
        let needed = usage.live + self.volume.shared.space.reserve_bytes();
        let zones = needed.div_ceil(self.areas.zone_bytes) + 1;
        let least_bytes = self.areas.zones_at + zones * self.areas.zone_bytes;
        VolumeError::TooSmall {
            wanted_bytes: self.areas.device_bytes,
            least_bytes: least_bytes.max(self.areas.device_bytes + PAGE),
        }
    }

    /// Makes the volume shorter, and then the device. To be called when nothing is left in
    /// [`Self::tail`].
    ///
    /// # Errors
    /// [`VolumeError::Device`], [`VolumeError::Poisoned`]: reopen; [`VolumeError::TooSmall`].
    ///
    /// # Durability
    /// The new length is durable when this returns. A crash leaves the old one or the new one.
    ///
    /// # Panics
    /// If something is left.
    pub fn commit(mut self) -> Result<(), VolumeError> {
        assert_eq!(self.note_moved()?, 0, "what is cut off is not in use");
        let core = &self.volume.shared.core;
        let mut superblock = self.volume.shared.superblock.lock();
        superblock.areas = self.areas;
        superblocks::write_both(core, &superblock)?;
        core.set_zones_end(self.areas.zones_at + self.areas.zones_bytes);
        self.volume.shared.zones.cut(self.areas.zones_bytes);
        // The volume is shorter whether the device is or not.
        if let Err(error) = core.device.shrink(self.areas.device_bytes) {
            tracing::warn!(%error, "the device keeps its length");
        }
        Ok(())
    }
}

impl Drop for Shrinking<'_> {
    fn drop(&mut self) {
        self.volume.shared.zones.lift_fence();
    }
}
