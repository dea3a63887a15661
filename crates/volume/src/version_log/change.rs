//! Changes of a version. The log decides whether to append the edit or the whole version, and
//! refuses a change before anything is written.
//!
//! A version *fits* if there is space for a base of its length, and for another one after it. A
//! version of at most a fifth of the area always fits. A change that makes the version longer is
//! accepted only if the version fits afterwards. So there is always a way out: a change that keeps
//! or reduces the length fits as a base.
//!
//! The log tries these in order:
//!
//! | object | space that stays free | for |
//! |---|---|---|
//! | delta | as in the parent module, and the new version fits | a log that wants no base yet |
//! | base | as in the parent module | any change |
//! | delta | as in the first row | a base that is too long for the second row |
//! | base | for a base of the same length | a version that gets no longer |
//! | delta | for a base of the new version | the same, in a log that older programs filled |
//! | delta | none if the version shrinks by more than the delta takes, or nearly a base | same |
//!
//! A log that older programs filled with long edits may have less space than its version needs. A
//! short delta does not help then: each takes a page and may free less. An edit that removes enough
//! at once fits as a base.

use super::{Before, LogState, Place, VersionLog, keep_bytes};
use crate::{BackupLog, VolumeError};
use stitch_base::Lsn;
use stitch_format::version_object::{ObjectHeader, ObjectKind};

/// A change of a version.
#[derive(Clone, Copy)]
pub struct VersionChange<'a> {
    /// The edit.
    pub edit: &'a [u8],
    /// Returns the whole version after the change. Called only if the log wants it.
    pub base: &'a dyn Fn() -> Vec<u8>,
    /// Length of the whole version before the change, in bytes.
    pub bytes_before: u64,
    /// Length of the whole version after the change, in bytes; at least what `base` returns.
    pub bytes_after: u64,
    /// True if the change may use the space that is reserved for making the version shorter.
    pub may_use_reserve: bool,
    /// True if the change names blocks that no version before has named: they are made durable
    /// before.
    pub names_blocks: bool,
}

impl std::fmt::Debug for VersionChange<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VersionChange")
            .field("edit_bytes", &self.edit.len())
            .field("bytes_before", &self.bytes_before)
            .field("bytes_after", &self.bytes_after)
            .finish_non_exhaustive()
    }
}

/// Bytes that the objects of a change take in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectLengths {
    pub(super) delta: u64,
    pub(super) before: u64,
    pub(super) after: u64,
}

impl ObjectLengths {
    fn of(change: &VersionChange<'_>) -> Self {
        Self {
            delta: ObjectHeader::object_bytes(change.edit.len() as u64),
            before: ObjectHeader::object_bytes(change.bytes_before),
            after: ObjectHeader::object_bytes(change.bytes_after),
        }
    }
}

impl LogState {
    /// Reports whether a version of `len` bytes fits.
    fn fits(&self, area: u64, len: u64) -> bool {
        debug_assert!(len > 0, "objects have headers");
        self.place_base(area, len, len, len).is_some()
    }

    /// Returns the position of a delta that leaves the usual space and a version that fits.
    fn place_change(&self, area: u64, lengths: ObjectLengths) -> Option<Place> {
        let keep = keep_bytes(area, self.base_bytes);
        let place = self.place_delta(area, lengths.delta, keep)?;
        debug_assert!(place.position >= self.tail, "positions go up");
        let after = Self {
            tail: place.position + lengths.delta,
            ..self.clone()
        };
        after.fits(area, lengths.after).then_some(place)
    }

    /// Returns the position and the kind of a change's object.
    pub(super) fn place(
        &self,
        area: u64,
        lengths: ObjectLengths,
        may_use_reserve: bool,
    ) -> Option<(ObjectKind, Place)> {
        let delta = self.place_change(area, lengths);
        let delta = delta.map(|place| (ObjectKind::Delta, place));
        if delta.is_some() && !self.wants_base(area) {
            return delta;
        }
        debug_assert!(self.live < self.tail, "the base is before the end");
        let keep = keep_bytes(area, self.base_bytes);
        let keep_next = keep_bytes(area, lengths.after);
        let base = self.place_base(area, lengths.after, keep, keep_next);
        let base = base.map(|place| (ObjectKind::Base, place));
        let found = base.or(delta);
        if found.is_some() || !may_use_reserve {
            return found;
        }
        self.place_in_reserve(area, lengths)
    }

    /// Returns the position and the kind of a change's object, if the version gets no longer.
    fn place_in_reserve(&self, area: u64, lengths: ObjectLengths) -> Option<(ObjectKind, Place)> {
        let ObjectLengths {
            delta,
            before,
            after,
        } = lengths;
        debug_assert!(before > 0 && after > 0, "objects have headers");
        // After a crash the old version may have to go there.
        let base = self.place_base(area, after, before, after);
        let base = base.or_else(|| self.place_base(area, after, after, after));
        if let Some(place) = base {
            return Some((ObjectKind::Base, place));
        }
        let least = match before.saturating_sub(after) > delta {
            true => 0,
            false => after.saturating_sub(area / 16),
        };
        let place = self.place_delta(area, delta, after);
        let place = place.or_else(|| self.place_delta(area, delta, least))?;
        Some((ObjectKind::Delta, place))
    }
}

impl VersionLog {
    /// Commits a change as described at the head of the module.
    pub(crate) fn commit_change(
        &self,
        change: &VersionChange<'_>,
        log_start: Lsn,
        log: &BackupLog,
    ) -> Result<(), VolumeError> {
        let mut state = self.lock_to_commit()?;
        let lengths = ObjectLengths::of(change);
        debug_assert!(lengths.delta > 0, "objects have headers");
        let found = state.place(self.area_bytes, lengths, change.may_use_reserve);
        let (kind, place) = found.ok_or_else(|| self.full(change.bytes_after))?;
        let base;
        let payload = match kind {
            ObjectKind::Base => {
                base = (change.base)();
                &base
            }
            _ => change.edit,
        };
        if kind == ObjectKind::Base && payload.len() as u64 > change.bytes_after {
            debug_assert!(false, "a version is no longer than was said");
            return Err(self.full(payload.len() as u64));
        }
        let before = match change.names_blocks || log_start > state.log_start {
            true => Before::Device,
            false => Before::Log,
        };
        self.commit_at(&mut state, place, (kind, payload), (log_start, before), log)
    }
}

#[cfg(test)]
mod tests;
