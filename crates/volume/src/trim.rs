//! Discards free space, so that the device (or the host of a file) can use it.
//!
//! Only extents that are free in the online-map are discarded: no durable version names them, no
//! log record to be replayed names them, and no reader holds them. While a zone is being discarded,
//! nothing is allocated in it. A failed discard loses nothing.

use crate::zones::{Extent, Held, PAGE_BYTES};
use crate::{Volume, VolumeError};
use stitch_base::sync::atomic::Ordering;

/// The part of a volume whose free space is discarded, as `FITRIM` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimRange {
    /// First byte of the volume.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
    /// Shorter free extents are left alone, in bytes.
    pub extent_bytes_min: u64,
}

impl TrimRange {
    /// The whole volume.
    pub const ALL: Self = Self {
        start: 0,
        len: u64::MAX,
        extent_bytes_min: 0,
    };

    /// Returns the whole pages of a free extent that are to be discarded.
    ///
    /// ```text
    ///   range         [---------------)
    ///   free     [--------)       [--------)
    ///   result        [---)       [---)
    /// ```
    fn part_of(&self, free: Extent) -> Option<Extent> {
        let end = self.start.saturating_add(self.len);
        let from = free
            .addr
            .max(self.start)
            .checked_next_multiple_of(PAGE_BYTES)?;
        let to = (free.addr + free.len).min(end);
        let to = to - to % PAGE_BYTES;
        let len = to.checked_sub(from).filter(|len| *len > 0)?;
        debug_assert!(
            free.addr <= from && to <= free.end(),
            "nothing but free bytes"
        );
        debug_assert!(len.is_multiple_of(PAGE_BYTES), "whole pages");
        (len >= self.extent_bytes_min).then_some(Extent { addr: from, len })
    }
}

impl Volume {
    /// Discards at most `zones_max` zones that became free since their last discard. Returns the
    /// number of bytes: 0 without [`crate::OpenOptions::discard`]. After a failure nothing more is
    /// discarded.
    pub fn discard_freed(&self, zones_max: usize) -> u64 {
        let mut bytes = 0;
        for _ in 0..zones_max {
            if !self.shared.discards.load(Ordering::Relaxed)
                || self.shared.core.check_writable().is_err()
            {
                break;
            }
            let Some(held) = self.shared.zones.hold_dirty() else {
                break;
            };
            match self.discard(held, &TrimRange::ALL) {
                Ok(told) => bytes += told,
                Err(error) => {
                    tracing::warn!(%error, "discards are off until the next mount");
                    self.shared.discards.store(false, Ordering::Relaxed);
                }
            }
        }
        bytes
    }

    /// Discards all free space in a range, in whole pages. Returns the number of bytes. `watch` is
    /// called with zones done and zones to do, and cancels the trim by returning false.
    ///
    /// # Errors
    /// [`VolumeError::Unsupported`] if the device cannot discard; [`VolumeError::Device`];
    /// [`VolumeError::ReadOnly`], [`VolumeError::Poisoned`].
    pub fn trim(
        &self,
        range: &TrimRange,
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<u64, VolumeError> {
        let mut bytes = 0;
        let mut zone = 0;
        while zone < self.shared.zones.count()
            && watch(u64::from(zone), u64::from(self.shared.zones.count()))
        {
            self.shared.core.check_writable()?;
            if let Some(held) = self.shared.zones.hold_zone(zone) {
                bytes += self.discard(held, range)?;
            }
            zone += 1;
        }
        Ok(bytes)
    }

    fn discard(&self, mut held: Held<'_>, range: &TrimRange) -> Result<u64, VolumeError> {
        let device = &self.shared.core.device;
        let mut bytes = 0;
        debug_assert!(!held.is_told, "a held zone is discarded once");
        for run in &held.free {
            let Some(part) = range.part_of(*run) else {
                continue;
            };
            debug_assert!(
                self.is_in_zones(part.addr, part.len),
                "logs are not discarded"
            );
            if !device.discard(part.addr, part.len)? {
                return Err(VolumeError::Unsupported {
                    name: device.geometry().name,
                    reason: "cannot discard: the device, or the file system that the file is in, \
                             takes no discards"
                        .to_owned(),
                });
            }
            bytes += part.len;
        }
        debug_assert!(bytes.is_multiple_of(PAGE_BYTES), "whole pages");
        held.is_told = bytes == held.free.iter().map(|run| run.len).sum::<u64>();
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_takes_whole_pages_of_free_extents_in_it() {
        let range = TrimRange {
            start: 5_000,
            len: 100_000,
            extent_bytes_min: 8_192,
        };
        let part = |addr, len| range.part_of(Extent { addr, len }).map(|e| (e.addr, e.len));
        assert_eq!(part(0, 40_960), Some((8_192, 32_768)));
        assert_eq!(part(81_920, 81_920), Some((81_920, 20_480)));
        assert_eq!(part(16_384, 8_192), Some((16_384, 8_192)));
        assert_eq!(part(16_384, 4_096), None, "shorter than asked for");
        assert_eq!(part(0, 4_096), None, "before the range");
        assert_eq!(part(1 << 20, 1 << 20), None, "behind the range");
        let all = Extent {
            addr: 4_096,
            len: 4_096,
        };
        assert_eq!(TrimRange::ALL.part_of(all), Some(all));
    }
}
