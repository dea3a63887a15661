//! The kernel's switch for FUSE over `io_uring`: a parameter of the module `fuse`, off at boot.

use std::io;
use std::path::Path;

/// Path of the parameter.
pub const SWITCH_PATH: &str = "/sys/module/fuse/parameters/enable_uring";

/// State of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// FUSE over `io_uring` is on.
    On,
    /// It is off.
    Off,
    /// The kernel does not support it.
    Missing,
}

impl Switch {
    /// Reads the switch.
    #[must_use]
    pub fn read() -> Self {
        Self::read_at(Path::new(SWITCH_PATH))
    }

    pub(super) fn read_at(path: &Path) -> Self {
        match std::fs::read(path) {
            Ok(text) if text.starts_with(b"Y") || text.starts_with(b"1") => Self::On,
            Ok(_) => Self::Off,
            Err(_) => Self::Missing,
        }
    }

    /// Turns it on for all later mounts.
    ///
    /// # Errors
    /// If the kernel does not support it, or the caller is not root.
    pub fn turn_on() -> io::Result<()> {
        Self::turn_on_at(Path::new(SWITCH_PATH))
    }

    pub(super) fn turn_on_at(path: &Path) -> io::Result<()> {
        if Self::read_at(path) == Self::On {
            return Ok(());
        }
        // Never creates the file: without it the kernel has no such switch.
        let mut file = std::fs::File::options().write(true).open(path)?;
        io::Write::write_all(&mut file, b"1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_read_and_turned_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("enable_uring");
        assert_eq!(Switch::read_at(&path), Switch::Missing);
        assert!(Switch::turn_on_at(&path).is_err());
        assert!(!path.exists());
        std::fs::write(&path, "N\n").unwrap();
        assert_eq!(Switch::read_at(&path), Switch::Off);
        Switch::turn_on_at(&path).unwrap();
        assert_eq!(Switch::read_at(&path), Switch::On);
        std::fs::write(&path, "Y\n").unwrap();
        Switch::turn_on_at(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"Y\n");
    }
}
