//! The kernel's switch for FUSE over `io_uring`, turned for as long as a test mounts.

use std::fs::File;

use stitch_fuse::transport::uring::{SWITCH_PATH, Switch};

/// The switch, turned, and restored when dropped. Tests of all processes take turns.
pub(crate) struct Turned {
    was: Vec<u8>,
    _lock: File,
}

impl Turned {
    /// Turns it on or off. Returns `None`, with a message, if the kernel has no switch.
    pub(crate) fn to(on: bool) -> Option<Self> {
        if Switch::read() == Switch::Missing {
            #[expect(
                clippy::print_stderr,
                reason = "the output of a test run shows skipped tests"
            )]
            {
                eprintln!("SKIP: this kernel has no FUSE over io_uring");
            }
            return None;
        }
        let path = std::env::temp_dir().join("stitchfs-enable-uring.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .unwrap();
        lock.lock().unwrap();
        let was = std::fs::read(SWITCH_PATH).unwrap();
        std::fs::write(SWITCH_PATH, if on { "1" } else { "0" }).unwrap();
        Some(Self { was, _lock: lock })
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        std::fs::write(SWITCH_PATH, &self.was).unwrap();
    }
}
