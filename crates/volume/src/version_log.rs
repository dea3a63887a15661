//! The version log: the durable history of the versions. A base is a complete version, a delta is a
//! change; a commit is one append between two syncs.
//!
//! 1. What the version names, and what was committed before, is made durable before the version is:
//!    the device is synced. A change that names no new blocks needs the backup log alone, which may
//!    be durable already; see [`Before`].
//! 2. If the object does not fit after the last one, the log wraps: a wrapping object at the right
//!    end marks the end, and one at the left end names the live base. Both are synced.
//! 3. The object is appended and synced.
//!
//! A base goes to the left end whenever the live objects leave ample space there. Recovery scans
//! from the left end, so it reads little more than the live objects.
//!
//! Invariants:
//! - live objects (the last base and all after it) are never overwritten;
//! - after every append a base fits that takes a fifth of the area, or is a quarter longer than the
//!   last one; for changes that need the reserve, see [`change`];
//! - at most one object is not durable.
//!
//! Positions count the bytes of all rounds: `round * area + offset`. A round ends where the log
//! wraps.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, sections
//! 3.2 and 3.3.1.

mod change;
pub(crate) mod recover;

use crate::core::Core;
use crate::{BackupLog, VolumeError};
pub use change::VersionChange;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex, MutexGuard};
use stitch_base::{Generation, Lsn};
use stitch_format::superblock::LogAreas;
use stitch_format::version_object::{ALIGN, HEADER_BYTES, ObjectHeader, ObjectKind};

/// Deltas shorter than this in total ask for no new base.
const DELTAS_BYTES_MIN: u64 = 256 << 10;

/// The writes that are made durable before an object of the version log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// All that was written: the object names blocks that may not be durable.
    Device,
    /// The records of the backup log. Without a sync if they are already.
    ///
    /// ```text
    ///   records    r1 r2 | sync | r3          cp snapshot/file .; snapshot delete
    ///   edit                          e       r3 is durable before e, whatever is lost
    /// ```
    Log,
}

/// The state of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    /// Position of the live base.
    pub(crate) live: u64,
    /// Position after the last object.
    pub(crate) tail: u64,
    /// Sequence number of the live base.
    pub(crate) serial: u64,
    /// Checksum of the last object.
    pub(crate) previous: u32,
    /// Bytes that the live base takes.
    pub(crate) base_bytes: u64,
    /// Bytes that the deltas after it take.
    pub(crate) deltas_bytes: u64,
    /// Start of the live records of the backup log.
    pub(crate) log_start: Lsn,
    /// Lowest generation of records there.
    pub(crate) log_generation: Generation,
    /// Position up to which the backup log is known to be durable.
    pub(crate) log_durable: Lsn,
}

/// The position of a new object, and whether the log wraps before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    position: u64,
    wraps: bool,
}

/// The version log of an open volume.
#[derive(Debug)]
pub(crate) struct VersionLog {
    core: Arc<Core>,
    /// Changes with `state` held.
    area_at: AtomicU64,
    area_bytes: u64,
    state: Mutex<LogState>,
    /// True if the area no longer belongs to this log. Set with `state` held.
    is_given_up: AtomicBool,
}

/// Longest base object that always fits. A base of this length can stand anywhere: another one fits
/// right or left of it.
const fn base_room(area_bytes: u64) -> u64 {
    area_bytes / 5 / ALIGN * ALIGN
}

/// Space that must stay free for a base if the last one takes `base_bytes`.
const fn keep_bytes(area: u64, base_bytes: u64) -> u64 {
    let grown = (base_bytes + base_bytes / 4).next_multiple_of(ALIGN);
    let room = base_room(area);
    let keep = if grown > room { grown } else { room };
    debug_assert!(keep >= base_bytes, "the base has room to grow");
    keep
}

impl LogState {
    /// Reports whether a base should be committed soon.
    fn wants_base(&self, area: u64) -> bool {
        let patience = DELTAS_BYTES_MIN.min(area / 16);
        let is_long = self.deltas_bytes >= patience.max(2 * self.base_bytes);
        let delta_bytes = (area / 16).next_multiple_of(ALIGN);
        let has_room = self.place_delta(area, delta_bytes, keep_bytes(area, self.base_bytes));
        is_long || has_room.is_none()
    }

    /// Returns the offset after the last object; the area's length if it ends there.
    const fn tail_offset(&self, area: u64) -> u64 {
        match self.tail % area {
            0 => area,
            offset => offset,
        }
    }

    /// Reports whether the last object is in a later round than the live base.
    const fn is_wrapped(&self, area: u64) -> bool {
        debug_assert!(self.live < self.tail, "the base is before the end");
        (self.tail - 1) / area != self.live / area
    }

    /// Returns the position of a delta of `len` bytes, such that a base of `keep` bytes still fits
    /// after it.
    fn place_delta(&self, area: u64, len: u64, keep: u64) -> Option<Place> {
        let (tail, live) = (self.tail_offset(area), self.live % area);
        debug_assert!(
            len.is_multiple_of(ALIGN) && len > 0,
            "objects are whole pages"
        );
        debug_assert!(self.live < self.tail, "the base is before the end");
        if self.is_wrapped(area) {
            debug_assert!(tail <= live, "live objects are not overwritten");
            return (tail + len + keep <= live).then_some(self.here(area));
        }
        let base_fits_left = ALIGN + keep <= live;
        if tail + len <= area && (tail + len + keep <= area || base_fits_left) {
            return Some(self.here(area));
        }
        (ALIGN + len + keep <= live).then_some(self.left(area))
    }

    /// Returns the position of a base of `len` bytes, such that one of `keep_next` bytes fits after
    /// it. A crash may leave a wrapping object and no base: one of `keep` bytes must fit then, too.
    fn place_base(&self, area: u64, len: u64, keep: u64, keep_next: u64) -> Option<Place> {
        let (tail, live) = (self.tail_offset(area), self.live % area);
        debug_assert!(
            len.is_multiple_of(ALIGN) && len > 0,
            "objects are whole pages"
        );
        let next_fits = |at: u64| at + len + keep_next <= area || ALIGN + keep_next <= at;
        let is_wrapped = self.is_wrapped(area);
        if !is_wrapped && ALIGN + len.max(keep) <= live && next_fits(ALIGN) {
            return Some(self.left(area));
        }
        let end = if is_wrapped { live } else { area };
        (tail + len <= end && next_fits(tail)).then_some(self.here(area))
    }

    /// Returns the position after the last object.
    const fn here(&self, area: u64) -> Place {
        assert!(self.tail > 0, "the log has an object");
        let round = (self.tail - 1) / area;
        Place {
            position: round * area + self.tail_offset(area),
            wraps: false,
        }
    }

    /// Returns the position after a wrapping object at the left end.
    const fn left(&self, area: u64) -> Place {
        assert!(self.tail > 0, "the log has an object");
        let round = (self.tail - 1) / area + 1;
        Place {
            position: round * area + ALIGN,
            wraps: true,
        }
    }
}

impl VersionLog {
    pub(crate) fn new(core: Arc<Core>, logs: &LogAreas, state: LogState) -> Self {
        assert!(state.live < state.tail, "the base is before the end");
        debug_assert!(
            state.tail - state.live <= logs.version_log_bytes,
            "live objects lie within one length of the log"
        );
        Self {
            core,
            area_at: AtomicU64::new(logs.version_log_at),
            area_bytes: logs.version_log_bytes,
            state: Mutex::new(state),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// Detaches the log from its area: nothing is written there after this returns.
    pub(crate) fn give_up(&self) {
        let _no_commit = self.state.lock();
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Returns the longest payload of a base that always fits.
    pub(crate) fn base_bytes_max(&self) -> u64 {
        debug_assert!(
            base_room(self.area_bytes) > HEADER_BYTES as u64,
            "a log is long enough"
        );
        base_room(self.area_bytes) - HEADER_BYTES as u64
    }

    /// Reports whether a base should be committed soon.
    pub(crate) fn wants_base(&self) -> bool {
        self.state.lock().wants_base(self.area_bytes)
    }

    /// Position after the last object.
    pub(crate) fn end(&self) -> u64 {
        self.state.lock().tail
    }

    /// Bytes that the live objects take.
    pub(crate) fn live_bytes(&self) -> u64 {
        let state = self.state.lock();
        debug_assert!(
            state.base_bytes <= self.area_bytes,
            "the base lies in the log"
        );
        debug_assert!(
            state.deltas_bytes <= self.area_bytes,
            "deltas lie in the log"
        );
        state.base_bytes + state.deltas_bytes
    }

    /// Returns the offset of the area on the device.
    pub(crate) fn area_at(&self) -> u64 {
        self.area_at.load(Ordering::Acquire)
    }

    /// Moves the area: `copy` copies the log to the new offset while nothing is appended.
    pub(crate) fn relocate(
        &self,
        area_at: u64,
        copy: impl FnOnce() -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let _no_commit = self.state.lock();
        assert!(area_at.is_multiple_of(ALIGN), "a log starts at a page");
        copy()?;
        self.area_at.store(area_at, Ordering::Release);
        Ok(())
    }

    /// Commits one object as described at the head of the module.
    pub(crate) fn commit(
        &self,
        kind: ObjectKind,
        payload: &[u8],
        log_start: Lsn,
        log: &BackupLog,
    ) -> Result<(), VolumeError> {
        let mut state = self.lock_to_commit()?;
        let len = ObjectHeader::object_bytes(payload.len() as u64);
        debug_assert!(len > payload.len() as u64, "objects have headers");
        let keep = keep_bytes(self.area_bytes, state.base_bytes);
        let place = if kind == ObjectKind::Base {
            state.place_base(self.area_bytes, len, keep, keep_bytes(self.area_bytes, len))
        } else {
            state.place_delta(self.area_bytes, len, keep)
        };
        let place = place.ok_or_else(|| self.full(len))?;
        self.commit_at(
            &mut state,
            place,
            (kind, payload),
            (log_start, Before::Device),
            log,
        )
    }

    /// Locks the state, after checking that the log may be written to.
    fn lock_to_commit(&self) -> Result<MutexGuard<'_, LogState>, VolumeError> {
        let state = self.state.lock();
        self.core.check_writable()?;
        if self.is_given_up.load(Ordering::Acquire) {
            return Err(VolumeError::Poisoned);
        }
        Ok(state)
    }

    /// Returns the error for an object or version of `wanted_bytes` that does not fit. Nothing was
    /// written.
    fn full(&self, wanted_bytes: u64) -> VolumeError {
        VolumeError::VersionLogFull {
            wanted_bytes,
            base_bytes_max: self.base_bytes_max(),
        }
    }

    /// Commits an object at its position, once what has to be is durable.
    fn commit_at(
        &self,
        state: &mut LogState,
        place: Place,
        (kind, payload): (ObjectKind, &[u8]),
        (log_start, before): (Lsn, Before),
        log: &BackupLog,
    ) -> Result<(), VolumeError> {
        let Ok(payload_len) = u32::try_from(payload.len()) else {
            return Err(self.full(payload.len() as u64));
        };
        assert!(log_start >= state.log_start, "log starts do not go back");
        match before {
            Before::Device => log.barrier()?,
            Before::Log => log.sync(log.end()?)?,
        }
        // The wrapping objects repeat the last version, not the new one, which may fail.
        if place.wraps {
            self.wrap(state, place.position - ALIGN, log.durable_end())?;
        }
        let header = ObjectHeader {
            kind,
            payload_len,
            previous: state.previous,
            position: place.position,
            serial: state.serial + u64::from(kind == ObjectKind::Base),
            log_start,
            target: 0,
            generation: self.core.generation,
            log_generation: log.generation_at(log_start)?,
            log_durable: log.durable_end(),
        };
        assert!(
            log_start <= header.log_durable,
            "a version starts at durable records"
        );
        self.append(state, &header, payload)?;
        self.core.sync()?;
        state.apply(&header);
        debug_assert_eq!(state.tail, header.end(), "the log ends after the object");
        log.committed(log_start, state.tail)
    }

    /// Writes both wrapping objects and syncs them: no object behind the left one is ever found
    /// without it.
    fn wrap(
        &self,
        state: &mut LogState,
        position: u64,
        log_durable: Lsn,
    ) -> Result<(), VolumeError> {
        assert!(
            position.is_multiple_of(self.area_bytes),
            "a round starts at the left end"
        );
        assert!(
            state.live % self.area_bytes >= ALIGN,
            "the live base is not overwritten"
        );
        let tail_offset = state.tail_offset(self.area_bytes);
        let mut header = ObjectHeader {
            kind: ObjectKind::WrapRight,
            payload_len: 0,
            previous: state.previous,
            position: state.tail,
            serial: state.serial,
            log_start: state.log_start,
            target: 0,
            generation: self.core.generation,
            log_generation: state.log_generation,
            log_durable,
        };
        if tail_offset < self.area_bytes {
            let (bytes, _) = header.encode(self.core.salt, &[]);
            self.core.write(self.area_at() + tail_offset, &[&bytes])?;
        }
        assert!(
            position > state.live,
            "the live base is in the round before"
        );
        header.kind = ObjectKind::WrapLeft;
        header.position = position;
        header.target = state.live;
        self.append(state, &header, &[])?;
        self.core.sync()
    }

    /// Reports whether an object lies apart from the live ones. For assertions.
    fn spares_live(&self, state: &LogState, header: &ObjectHeader) -> bool {
        debug_assert!(
            header.end() > state.live,
            "objects are written behind the base"
        );
        header.end() <= state.live + self.area_bytes
    }

    fn append(
        &self,
        state: &mut LogState,
        header: &ObjectHeader,
        payload: &[u8],
    ) -> Result<(), VolumeError> {
        let (bytes, checksum) = header.encode(self.core.salt, payload);
        let offset = header.position % self.area_bytes;
        assert!(
            offset + bytes.len() as u64 <= self.area_bytes,
            "objects do not straddle"
        );
        debug_assert!(header.position >= state.tail, "positions go up");
        debug_assert!(
            self.spares_live(state, header),
            "live objects are not overwritten"
        );
        self.core.write(self.area_at() + offset, &[&bytes])?;
        state.previous = checksum;
        state.tail = header.end();
        Ok(())
    }
}

impl LogState {
    /// Updates the state after a durable object.
    fn apply(&mut self, header: &ObjectHeader) {
        let len = header.end() - header.position;
        debug_assert!(
            header.log_start >= self.log_start,
            "log starts do not go back"
        );
        debug_assert!(
            header.log_generation >= self.log_generation,
            "generations go up"
        );
        self.log_start = header.log_start;
        self.log_generation = header.log_generation;
        self.log_durable = header.log_durable;
        match header.kind {
            ObjectKind::Base => {
                assert!(header.position > self.live, "a newer base is further on");
                assert_eq!(header.serial, self.serial + 1, "bases are counted");
                self.live = header.position;
                self.serial = header.serial;
                self.base_bytes = len;
                self.deltas_bytes = 0;
            }
            ObjectKind::Delta => self.deltas_bytes += len,
            ObjectKind::WrapLeft | ObjectKind::WrapRight => {}
        }
        debug_assert!(
            self.live + self.base_bytes + self.deltas_bytes <= self.tail,
            "live objects lie between the base and the end"
        );
    }
}

#[cfg(test)]
mod tests;
