//! Space reservations: room that is promised before it is written.
//!
//! A user's request is refused while what it could fill is still needed by work that must never
//! fail: writing memtables out, compaction, deletes. Promises are bytes, not places.

use crate::{VolumeError, Zones};
use stitch_base::sync::{Arc, Mutex};

/// Share of the zones that only internal work may use: one part in this many.
const RESERVE_PART: u64 = 25;
const RESERVE_BYTES_MIN: u64 = 1 << 20;
const RESERVE_BYTES_MAX: u64 = 256 << 20;

/// Who asks for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// New data of users: leaves the internal reserve alone.
    User,
    /// Work that makes space or must not fail: may use everything.
    Internal,
}

/// The promises of a volume.
#[derive(Debug)]
pub struct Space {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    zones: Arc<Zones>,
    promised_bytes: Mutex<u64>,
}

/// Bytes that are promised to its holder; given up when dropped.
#[derive(Debug)]
#[must_use = "a dropped reservation promises nothing"]
pub struct Reservation {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Space {
    pub(crate) fn new(zones: Arc<Zones>) -> Self {
        let shared = Shared {
            promised_bytes: Mutex::new(0),
            zones,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Promises `bytes` to the caller.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] if they are not free, or promised to others, or (for users) kept
    /// for internal work.
    pub fn reserve(&self, bytes: u64, class: Class) -> Result<Reservation, VolumeError> {
        let mut promised = self.shared.promised_bytes.lock();
        let mut free_bytes = self.shared.available(*promised, class);
        if self.shared.zones.is_promise_refused() {
            free_bytes = 0;
        }
        if bytes > free_bytes {
            return Err(VolumeError::NoSpace {
                wanted_bytes: bytes,
                free_bytes,
            });
        }
        *promised += bytes;
        Ok(Reservation {
            shared: Arc::clone(&self.shared),
            bytes,
        })
    }

    /// Bytes that [`Self::reserve`] would give to this class now.
    #[must_use]
    pub fn available_bytes(&self, class: Class) -> u64 {
        let promised = self.shared.promised_bytes.lock();
        self.shared.available(*promised, class)
    }

    /// Bytes that only internal work may use.
    #[must_use]
    pub fn reserve_bytes(&self) -> u64 {
        self.shared.reserve_bytes()
    }

    /// The same, with so many bytes of zones.
    #[must_use]
    pub fn reserve_bytes_on(zones_bytes: u64) -> u64 {
        (zones_bytes / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
    }

    /// Calls `with` with the bytes that are promised; nothing is promised meanwhile.
    pub(crate) fn with_promised<T>(&self, with: impl FnOnce(u64) -> T) -> T {
        let promised = self.shared.promised_bytes.lock();
        with(*promised)
    }

    /// Bytes that are promised and not given up.
    #[must_use]
    pub fn promised_bytes(&self) -> u64 {
        *self.shared.promised_bytes.lock()
    }
}

impl Shared {
    fn reserve_bytes(&self) -> u64 {
        Space::reserve_bytes_on(self.zones.total_bytes())
    }

    fn available(&self, promised: u64, class: Class) -> u64 {
        let kept = match class {
            Class::User => self.reserve_bytes(),
            Class::Internal => 0,
        };
        let usable = self.zones.usable_bytes();
        usable.saturating_sub(promised).saturating_sub(kept)
    }
}

impl Reservation {
    /// Bytes still promised.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives up a part, for example because it was allocated.
    ///
    /// # Panics
    /// If that is more than what is promised.
    pub fn release(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "no more is given up than was promised");
        self.bytes -= bytes;
        let mut promised = self.shared.promised_bytes.lock();
        assert!(*promised >= bytes, "promises add up");
        *promised -= bytes;
    }

    /// Joins another reservation of the same volume to this one.
    pub fn absorb(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.shared, &other.shared), "one volume");
        self.bytes += other.bytes;
        other.bytes = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{fresh, open};
    use crate::{Class, Stream};
    use stitch_base::ErrorKind;
    use stitch_base::sync::Arc;

    #[test]
    fn users_leave_the_reserve_to_internal_work() {
        let opened = open(&Arc::new(fresh())).unwrap();
        let space = opened.volume.space();
        let usable = opened.volume.zones().usage().usable;
        assert_eq!(space.reserve_bytes(), 1 << 20);
        assert_eq!(space.available_bytes(Class::User), usable - (1 << 20));
        let mut user = space.reserve(usable - (1 << 20), Class::User).unwrap();
        let error = space.reserve(1, Class::User).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let internal = space.reserve(1 << 20, Class::Internal).unwrap();
        let error = space.reserve(1, Class::Internal).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        user.release(4096);
        assert_eq!(space.available_bytes(Class::Internal), 4096);
        user.absorb(internal);
        assert_eq!(user.bytes(), usable - 4096);
        drop(user);
        assert_eq!(space.promised_bytes(), 0);
    }

    #[test]
    fn what_is_allocated_is_no_longer_there_to_promise() {
        let opened = open(&Arc::new(fresh())).unwrap();
        let (space, zones) = (opened.volume.space(), opened.volume.zones());
        let before = space.available_bytes(Class::Internal);
        let got = zones.allocate(65_536, 65_536, Stream(0)).unwrap();
        assert_eq!(space.available_bytes(Class::Internal), before - 65_536);
        zones.free(&[got]);
        assert_eq!(space.available_bytes(Class::Internal), before);
    }
}
