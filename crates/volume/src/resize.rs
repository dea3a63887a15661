//! Grows and shrinks an open volume. Only the number of zones changes: superblocks and logs stay
//! where they are.
//!
//! Growing: the device is extended. Then both copies of the superblock are written, each synced.
//! Only then is the new space used. A crash leaves the old length or the new one. Whichever copy is
//! used, all extents of the live version are inside.
//!
//! Shrinking: the zones at the end are fenced off ([`Volume::begin_shrink`]), and the engine moves
//! their contents. Then both copies of the superblock are written, each synced. Only then is the
//! device cut. No version has extents behind the new end since before the first write.

use crate::error::invalid;
use crate::instances;
use crate::mkfs::{PAGE, TAIL_BYTES, VERSION_LOG_BYTES, ZONES_MIN, zero};
use crate::superblocks;
use crate::{Class, Extent, Reservation, Volume, VolumeError};
use stitch_format::superblock::{Areas, Superblock};

/// A volume may be this many times as long as the one to which `mkfs` would give such a version
/// log: the log must hold the list of all tables.
const GROWTH_MAX: u64 = 16;
/// Share of a volume that `mkfs` makes the version log: one part in this many.
const VERSION_LOG_PART: u64 = 128;

/// The areas of a volume that is made longer or shorter.
fn resized(areas: &Areas, device_bytes: u64) -> Areas {
    let device_bytes = device_bytes / PAGE * PAGE;
    debug_assert!(
        areas.zones_at.is_multiple_of(PAGE),
        "zones start at a page, so that the last one is whole pages"
    );
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
    debug_assert!(
        needed.is_multiple_of(PAGE) || needed == u64::MAX,
        "whole pages"
    );
    needed.clamp(*VERSION_LOG_BYTES.start(), *VERSION_LOG_BYTES.end())
}

fn longest(areas: &Areas, version_log_bytes: u64) -> u64 {
    let by_log = version_log_bytes.saturating_mul(VERSION_LOG_PART * GROWTH_MAX);
    debug_assert!(areas.zone_bytes > 0, "zones are not empty");
    let by_zones = (u64::from(u32::MAX) - 1).saturating_mul(areas.zone_bytes);
    if version_log_bytes >= *VERSION_LOG_BYTES.end() {
        return by_zones;
    }
    by_zones.min(by_log)
}

impl Volume {
    /// Grows the volume to `device_bytes`, rounded down to 4 KiB, and the device with it.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] if that is not longer than the volume, or longer than its logs
    /// allow; [`VolumeError::Device`] if the device cannot be that long: nothing has changed then,
    /// or the volume is poisoned; [`VolumeError::ReadOnly`], [`VolumeError::Poisoned`].
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
                "its logs are made for {longest} bytes at most; make a new store of that size and \
                 copy"
            ));
        }
        debug_assert_eq!(areas.zones_at, before.zones_at, "logs stay where they are");
        let device = &*self.shared.core.device;
        device.grow(before.device_bytes, areas.device_bytes)?;
        // A signature of another format at the new end must not be recognised.
        let tail_bytes = TAIL_BYTES.min(areas.device_bytes - before.device_bytes);
        let tail_at = areas.device_bytes - tail_bytes;
        zero(device, tail_at, tail_bytes, &mut |_| ())?;
        self.shared.core.sync()?;
        superblock.areas = areas;
        debug_assert!(
            areas.zones_bytes > before.zones_bytes,
            "only zones are added"
        );
        superblocks::write_both(&self.shared.core, &superblock)?;
        self.shared
            .core
            .set_zones_end(areas.zones_at + areas.zones_bytes);
        self.shared.zones.grow(areas.zones_bytes);
        Ok(())
    }

    /// Starts a shrink: from now on nothing is allocated behind the new end, which is rounded down
    /// to 4 KiB. At least `kept_bytes` stay free before it.
    ///
    /// # Errors
    /// [`VolumeError::TooSmall`] if the live bytes would not fit; [`VolumeError::Invalid`] if the
    /// length is not shorter, or too short for any volume; [`VolumeError::ReadOnly`],
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
        // Moving takes space before it releases any.
        debug_assert!(areas.zones_bytes < before.zones_bytes, "zones are cut off");
        let new_end = areas.zones_at + areas.zones_bytes;
        debug_assert!(
            self.shared
                .zones
                .fenced()
                .is_none_or(|tail| tail.addr <= new_end),
            "all behind the new end is emptied"
        );
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

/// A shrink in progress. Dropping it cancels the shrink.
#[derive(Debug)]
#[must_use = "a shrink that is dropped is given up"]
pub struct Shrinking<'a> {
    volume: &'a Volume,
    areas: Areas,
    /// Space reserved for the moved bytes.
    room: Option<Reservation>,
}

impl Shrinking<'_> {
    /// Returns the extent that must become empty.
    ///
    /// # Errors
    /// Those of [`Self::live_bytes`].
    pub fn tail(&self) -> Result<Extent, VolumeError> {
        self.volume
            .shared
            .zones
            .fenced()
            .ok_or_else(|| self.too_small())
    }

    /// Returns the number of live bytes in the end to be cut off.
    ///
    /// # Errors
    /// [`VolumeError::TooSmall`] if an allocation found space nowhere else: the shrink is
    /// cancelled.
    pub fn live_bytes(&self) -> Result<u64, VolumeError> {
        let live = self.volume.shared.zones.fenced_live_bytes();
        live.ok_or_else(|| self.too_small())
    }

    /// Records what was moved so far.
    ///
    /// # Errors
    /// Those of [`Self::live_bytes`].
    pub fn note_moved(&mut self) -> Result<u64, VolumeError> {
        let live = self.live_bytes()?;
        debug_assert!(self.room.is_some(), "the space for moved bytes is reserved");
        if let Some(room) = &mut self.room {
            room.release(room.bytes().saturating_sub(live));
            debug_assert!(
                room.bytes() <= live,
                "what was moved needs no room any more"
            );
        }
        Ok(live)
    }

    /// Returns the error that the live bytes do not fit.
    #[must_use]
    pub fn too_small(&self) -> VolumeError {
        let usage = self.volume.shared.zones.usage();
        let needed = usage.live + self.volume.shared.space.reserve_bytes();
        debug_assert!(usage.live <= usage.total, "no more is live than there is");
        let zones = needed.div_ceil(self.areas.zone_bytes) + 1;
        let least_bytes = self.areas.zones_at + zones * self.areas.zone_bytes;
        VolumeError::TooSmall {
            wanted_bytes: self.areas.device_bytes,
            least_bytes: least_bytes.max(self.areas.device_bytes + PAGE),
        }
    }

    /// Shrinks the volume, and then the device. Call it when nothing is left in [`Self::tail`].
    ///
    /// # Errors
    /// [`VolumeError::Device`], [`VolumeError::Poisoned`]: reopen; [`VolumeError::TooSmall`].
    ///
    /// # Durability
    /// The new length is durable when this returns. A crash leaves the old one or the new one.
    ///
    /// # Panics
    /// If live bytes are left there.
    pub fn commit(mut self) -> Result<(), VolumeError> {
        assert_eq!(self.note_moved()?, 0, "what is cut off is not in use");
        let core = &self.volume.shared.core;
        let mut superblock = self.volume.shared.superblock.lock();
        assert!(
            self.areas.device_bytes < superblock.areas.device_bytes,
            "a shrink makes it shorter"
        );
        assert_eq!(
            self.areas.zones_at, superblock.areas.zones_at,
            "logs stay where they are"
        );
        superblock.areas = self.areas;
        superblocks::write_both(core, &superblock)?;
        core.set_zones_end(self.areas.zones_at + self.areas.zones_bytes);
        self.volume.shared.zones.cut(self.areas.zones_bytes);
        // The volume is shorter even if the device is not.
        if let Err(error) = core.device.shrink(self.areas.device_bytes) {
            tracing::warn!(%error, "could not resize the device");
        }
        Ok(())
    }
}

impl Drop for Shrinking<'_> {
    fn drop(&mut self) {
        self.volume.shared.zones.lift_fence();
    }
}
