//! What was committed since a caller last asked for a sync.

/// Bytes that were committed since a caller last asked for a sync: few where callers sync often.
pub(crate) struct Unsynced {
    /// Syncs that had been asked for when the last batch came.
    syncs: u64,
    bytes: u64,
}

impl Default for Unsynced {
    /// No caller has asked for a sync yet.
    fn default() -> Self {
        Self {
            syncs: 0,
            bytes: u64::MAX,
        }
    }
}

impl Unsynced {
    /// Counts a batch of so many bytes, before which so many syncs had been asked for. Answers the
    /// bytes that came before it since the last of these.
    pub(crate) fn add(&mut self, bytes: u64, syncs: u64) -> u64 {
        debug_assert!(syncs >= self.syncs, "they are counted up");
        debug_assert!(bytes > 0, "a batch has messages");
        if syncs > self.syncs {
            *self = Self { syncs, bytes: 0 };
        }
        let before = self.bytes;
        self.bytes = before.saturating_add(bytes);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_from_the_last_sync_on() {
        let mut unsynced = Unsynced::default();
        assert_eq!(unsynced.add(10, 0), u64::MAX, "there was no sync");
        assert_eq!(unsynced.add(10, 0), u64::MAX);
        assert_eq!(unsynced.add(10, 1), 0);
        assert_eq!(unsynced.add(5, 1), 10);
        assert_eq!(unsynced.add(5, 1), 15);
        assert_eq!(unsynced.add(u64::MAX, 3), 0, "two syncs");
        assert_eq!(unsynced.add(1, 3), u64::MAX);
        assert_eq!(unsynced.add(1, 3), u64::MAX, "it stays there");
    }
}
