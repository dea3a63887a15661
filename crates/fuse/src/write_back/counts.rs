//! Counts the WRITEs that come from the kernel's cache.

use std::path::PathBuf;
use std::sync::OnceLock;

use stitch_base::sync::atomic::{AtomicU64, Ordering};

use super::Look;

/// Folder of the control file system of FUSE, with a folder for each connection.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The WRITEs from the kernel's cache that a session has served and serves. Two atomic additions
/// for each, nothing for other requests.
///
/// Invariant: no more have ended than have begun.
#[derive(Debug, Default)]
pub struct WriteBackCounts {
    begun: AtomicU64,
    ended: AtomicU64,
    /// The file in which the kernel counts requests without a reply.
    waiting: OnceLock<PathBuf>,
}

/// A WRITE that is being served. Dropped when it was.
#[derive(Debug)]
pub(crate) struct Busy<'a>(&'a WriteBackCounts);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

impl WriteBackCounts {
    /// Notes the mount's device number, by which the kernel names the connection.
    pub(crate) fn connect(&self, device: Option<(u32, u32)>) {
        if let Some((_, minor)) = device {
            let waiting = format!("{CONNECTIONS}/{minor}/waiting");
            let first = self.waiting.set(waiting.into()).is_ok();
            debug_assert!(first, "a session has one mount");
        }
    }

    /// Counts a WRITE from the cache until the guard is dropped.
    pub(crate) fn begin(&self) -> Busy<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    /// Returns the counts. `own` is the number of requests of the kernel that the caller serves.
    ///
    /// The file is opened each time: fusectl may be mounted later than the store, and its absence
    /// costs one system call.
    pub(crate) fn look(&self, own: u64) -> Look {
        let waiting = self.waiting.get();
        let waiting = waiting.and_then(|path| std::fs::read_to_string(path).ok());
        let waiting = waiting.and_then(|text| text.trim().parse::<u64>().ok());
        // In this order a WRITE that ends meanwhile counts as busy.
        let ended = self.ended.load(Ordering::Acquire);
        let begun = self.begun.load(Ordering::Relaxed);
        assert!(ended <= begun, "no more have ended than have begun");
        Look {
            begun,
            busy: begun - ended,
            others: waiting.map(|waiting| waiting.saturating_sub(own)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(begun: u64, busy: u64, others: Option<u64>) -> Look {
        Look {
            begun,
            busy,
            others,
        }
    }

    #[test]
    fn a_write_is_busy_until_its_guard_goes_also_by_a_panic() {
        let counts = WriteBackCounts::default();
        assert_eq!(counts.look(1), look(0, 0, None));
        let first = counts.begin();
        let second = counts.begin();
        assert_eq!(counts.look(1), look(2, 2, None));
        drop(first);
        assert_eq!(counts.look(1), look(2, 1, None));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _busy = second;
            panic!("a handler");
        }));
        assert!(panicked.is_err());
        assert_eq!(counts.look(1), look(2, 0, None));
    }

    #[test]
    fn the_requests_of_the_kernel_are_counted_but_for_the_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("waiting");
        let counts = WriteBackCounts::default();
        counts.waiting.set(path.clone()).unwrap();
        for (text, own, others) in [
            ("3\n", 1, Some(2)),
            ("3\n", 0, Some(3)),
            ("1\n", 1, Some(0)),
            ("0\n", 1, Some(0)),
            ("what\n", 1, None),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(counts.look(own), look(0, 0, others), "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(counts.look(1), look(0, 0, None), "fusectl was unmounted");
    }
}
