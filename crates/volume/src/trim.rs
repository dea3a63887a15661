//! Telling the device what is free, so that it (or the host of a file) can use the space.
//!
//! Only what the online-map calls free is discarded, and that is what no durable version names, what
//! no log record that would be replayed names, and what no reader holds. While the device is told of
//! a zone, nothing is handed out of it. A discard that fails loses nothing.

use crate::zones::Held;
use crate::{Volume, VolumeError};
use stitch_base::sync::atomic::Ordering;

impl Volume {
    /// Tells the device of zones that have become free since it was told, at most `zones_max`.
    /// Answers the bytes. Without [`crate::OpenOptions::discard`], none. A device that fails is not
    /// told again.
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
            match self.discard(held) {
                Ok(told) => bytes += told,
                Err(error) => {
                    tracing::warn!(%error, "discards are off until the next mount");
                    self.shared.discards.store(false, Ordering::Relaxed);
                }
            }
        }
        bytes
    }

    /// Tells the device of all that is free, in whole pages. Answers the bytes. `watch` is called
    /// with zones done and zones to do; false ends it early.
    ///
    /// # Errors
    /// [`VolumeError::Device`]; [`VolumeError::ReadOnly`], [`VolumeError::Poisoned`].
    pub fn trim(&self, watch: &mut dyn FnMut(u64, u64) -> bool) -> Result<u64, VolumeError> {
        let mut bytes = 0;
        let mut zone = 0;
        while zone < self.shared.zones.count()
            && watch(u64::from(zone), u64::from(self.shared.zones.count()))
        {
            self.shared.core.check_writable()?;
            if let Some(held) = self.shared.zones.hold_zone(zone) {
                bytes += self.discard(held)?;
            }
            zone += 1;
        }
        Ok(bytes)
    }

    fn discard(&self, mut held: Held<'_>) -> Result<u64, VolumeError> {
        let mut bytes = 0;
        for run in &held.free {
            self.shared.core.device.discard(run.addr, run.len)?;
            bytes += run.len;
        }
        held.is_told = true;
        Ok(bytes)
    }
}
