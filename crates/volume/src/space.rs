//! Space reservations: bytes that are promised before they are allocated.
//!
//! A user's request is refused while it would take space that internal work needs: writing
//! memtables out, compaction, deletes must never fail. A reservation is a number of bytes, not an
//! extent.

use crate::{VolumeError, Zones};
use stitch_base::sync::{Arc, Mutex};

/// Share of the zones that only internal work may use: one part in this many.
const RESERVE_PART: u64 = 25;
const RESERVE_BYTES_MIN: u64 = 1 << 20;
const RESERVE_BYTES_MAX: u64 = 256 << 20;

/// The purpose of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// New data of users. It must not use the internal reserve.
    User,
    /// Work that frees space or must not fail. It may use everything.
    Internal,
}

/// The reservations of a volume.
#[derive(Debug)]
pub struct Space {
    shared: Arc<Promises>,
}

#[derive(Debug)]
struct Promises {
    zones: Arc<Zones>,
    promised_bytes: Mutex<u64>,
}

/// A reservation: bytes promised to its holder, released when dropped.
#[derive(Debug)]
#[must_use = "a dropped reservation promises nothing"]
pub struct Reservation {
    shared: Arc<Promises>,
    bytes: u64,
}

impl Space {
    pub(crate) fn new(zones: Arc<Zones>) -> Self {
        let shared = Promises {
            promised_bytes: Mutex::new(0),
            zones,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Reserves `bytes`.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] if the bytes are not free, are reserved by others, or (for users)
    /// belong to the internal reserve.
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
        debug_assert!(*promised >= bytes, "promises add up");
        Ok(Reservation {
            shared: Arc::clone(&self.shared),
            bytes,
        })
    }

    /// Returns the number of bytes that [`Self::reserve`] would grant to this class now.
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

    /// Returns the same for zones of this total length.
    #[must_use]
    pub fn reserve_bytes_on(zones_bytes: u64) -> u64 {
        let bytes = (zones_bytes / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX);
        debug_assert!(
            bytes == RESERVE_BYTES_MIN || bytes <= zones_bytes,
            "a share of the zones"
        );
        bytes
    }

    /// Calls `with` with the number of promised bytes, while no reservation is made.
    pub(crate) fn with_promised<T>(&self, with: impl FnOnce(u64) -> T) -> T {
        let promised = self.shared.promised_bytes.lock();
        debug_assert!(
            *promised <= self.shared.zones.total_bytes(),
            "no more is promised than there is"
        );
        with(*promised)
    }

    /// Returns the number of bytes in all reservations.
    #[must_use]
    pub fn promised_bytes(&self) -> u64 {
        *self.shared.promised_bytes.lock()
    }
}

impl Promises {
    fn reserve_bytes(&self) -> u64 {
        Space::reserve_bytes_on(self.zones.total_bytes())
    }

    fn available(&self, promised: u64, class: Class) -> u64 {
        let kept = match class {
            Class::User => self.reserve_bytes(),
            Class::Internal => 0,
        };
        let usable = self.zones.usable_bytes();
        debug_assert!(
            usable <= self.zones.total_bytes(),
            "no more is usable than there is"
        );
        debug_assert!(kept <= RESERVE_BYTES_MAX, "the reserve is bounded");
        usable.saturating_sub(promised).saturating_sub(kept)
    }
}

impl Reservation {
    /// Returns the number of bytes in this reservation.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases a part of the reservation, for example because it was allocated.
    ///
    /// # Panics
    /// If the reservation is smaller than that.
    pub fn release(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "no more is given up than was promised");
        self.bytes -= bytes;
        let mut promised = self.shared.promised_bytes.lock();
        assert!(*promised >= bytes, "promises add up");
        *promised -= bytes;
        debug_assert!(
            *promised >= self.bytes,
            "the rest of the reservation is one part of all"
        );
    }

    /// Joins another reservation of the same volume to this one.
    pub fn absorb(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.shared, &other.shared), "one volume");
        self.bytes += other.bytes;
        other.bytes = 0;
        debug_assert!(
            self.bytes <= *self.shared.promised_bytes.lock(),
            "one part of all promises"
        );
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release(self.bytes);
        debug_assert_eq!(self.bytes, 0, "all of it is given up");
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
