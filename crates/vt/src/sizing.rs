//! The sizes of an open store, which change with the length of its volume.
//!
//! Invariant: what follows from memory alone stays as it was when the store was opened; see
//! [`Sizes::resized`].

use crate::options::{Sizes, VtOptions};
use std::sync::Arc;
use stitch_volume::Volume;

/// The sizes of an open store.
pub(crate) struct Sizing {
    volume: Arc<Volume>,
    options: VtOptions,
    /// The sizes when the store was opened.
    pub(crate) opened: Sizes,
    /// Length of the zones when the store was opened.
    opened_zones_bytes: u64,
}

impl Sizing {
    /// Returns the sizes of a store that is opened now.
    pub(crate) fn new(volume: &Arc<Volume>, options: &VtOptions) -> Self {
        let zones_bytes = volume.zones().total_bytes();
        let log_bytes = volume.log().capacity_bytes();
        debug_assert!(zones_bytes > 0, "a volume has zones");
        debug_assert!(log_bytes > 0, "a volume has a log");
        Self {
            opened: Sizes::new(options, zones_bytes, log_bytes),
            opened_zones_bytes: zones_bytes,
            options: options.clone(),
            volume: Arc::clone(volume),
        }
    }

    /// Returns the sizes for the volume as it is now.
    pub(crate) fn now(&self) -> Sizes {
        let zones_bytes = self.volume.zones().total_bytes();
        if zones_bytes == self.opened_zones_bytes {
            return self.opened;
        }
        let sizes = self.on(zones_bytes);
        debug_assert_eq!(sizes.cache, self.opened.cache, "memory decides");
        sizes
    }

    /// Returns the sizes for `zones_bytes` of zones.
    pub(crate) fn on(&self, zones_bytes: u64) -> Sizes {
        let log_bytes = self.volume.log().capacity_bytes();
        let sizes = self.opened.resized(&self.options, zones_bytes, log_bytes);
        debug_assert_eq!(sizes.memtable, self.opened.memtable, "memory decides");
        debug_assert!(
            sizes.reserve <= zones_bytes,
            "the reserve lies in the zones"
        );
        sizes
    }
}
