//! Maintenance of an open store: defragmentation, trimming, another size, what it holds.

use crate::VtError;
use crate::check::Holdings;
use crate::defrag::{Defragged, Watch};
use crate::engine::VtEngine;
use crate::signals::Worker;
use stitch_volume::TrimRange;

impl VtEngine {
    /// Evacuates every zone that has enough in holes. Reads and writes go on meanwhile. `watch` is
    /// called between steps.
    ///
    /// # Errors
    /// [`VtError`]; what was moved before stays moved.
    pub fn defrag(&self, watch: &mut Watch<'_>) -> Result<Defragged, VtError> {
        self.store.member.defrag(watch)
    }

    /// Tells the device of all that is free in a range. Returns the number of bytes. `watch` is
    /// called with zones.
    ///
    /// # Errors
    /// [`VtError`].
    pub fn trim(&self, range: &TrimRange, watch: &mut Watch<'_>) -> Result<u64, VtError> {
        self.store.gate.check_writable()?;
        Ok(self.store.volume.trim(range, watch)?)
    }

    /// Makes the store `device_bytes` long, and its device with it. Reads and writes go on.
    ///
    /// # Errors
    /// As [`stitch_volume::Volume::grow`].
    ///
    /// # Durability
    /// Durable when this returns; a crash leaves the old length or the new one.
    pub fn grow(&self, device_bytes: u64) -> Result<(), VtError> {
        self.store.gate.check_writable()?;
        self.store.volume.grow(device_bytes)?;
        for member in self.store.member.pool.all() {
            member.gate.wake_commits();
            member.signals.wake(Worker::Compaction);
        }
        Ok(())
    }

    /// Makes the store `device_bytes` long: moves what is behind that, and cuts the volume and its
    /// device. Reads and writes go on. Returns false if `watch` did, and nothing has changed then.
    ///
    /// # Errors
    /// `ErrorKind::NoSpace` if what is in use does not fit; `ErrorKind::Invalid` if that is not
    /// shorter or too short for any store; `ErrorKind::Corrupt` if something there cannot be
    /// read; `ErrorKind::Conflict` if a reader holds on to what was moved. Nothing has changed
    /// then. Others as [`stitch_volume::Shrinking::commit`].
    ///
    /// # Durability
    /// Durable when this returns; a crash leaves the old length or the new one.
    pub fn shrink(&self, device_bytes: u64, watch: &mut Watch<'_>) -> Result<bool, VtError> {
        self.store.member.shrink(device_bytes, watch)
    }

    /// What the store holds of the space of its volume: all of it, while no read and no write is
    /// under way.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let mut owned = self.store.member.owned();
        owned.extend(self.store.committer.lock().streams.append_extents());
        let view = self.store.views.get();
        let promised = view.buffers.iter().map(|buffer| buffer.promised_bytes());
        Holdings {
            owned,
            promised_bytes: promised.sum(),
        }
    }
}
