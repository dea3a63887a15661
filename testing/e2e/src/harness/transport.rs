//! Which transport is tested, and the kernel's switch for FUSE over `io_uring`, turned for as long
//! as a mount is made and not longer. Runs take turns at it, also those of other processes.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::guardian;
use super::report::Skip;

const SWITCH_PATH: &str = "/sys/module/fuse/parameters/enable_uring";
const DISABLED_PATH: &str = "/proc/sys/kernel/io_uring_disabled";
/// The file whose lock is the turn; the tests of `stitch-fuse` take it too.
const LOCK_NAME: &str = "stitchfs-enable-uring.lock";

/// How requests come to what is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Dev,
    Uring,
}

impl Transport {
    pub(crate) fn parse(name: Option<&str>) -> Result<Self> {
        match name {
            Some("dev") => Ok(Self::Dev),
            Some("uring") => Ok(Self::Uring),
            _ => bail!("--transport is dev or uring"),
        }
    }

    /// The mount option for it.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Dev => "transport=dev",
            Self::Uring => "transport=uring",
        }
    }

    /// Makes it possible until the answer is dropped, or skips the case.
    pub(crate) fn prepare(self) -> Result<Option<Turned>> {
        match self {
            Self::Dev => Ok(None),
            Self::Uring => Turned::on().map(Some),
        }
    }
}

/// Whether the kernel's switch is on at the moment.
pub(crate) fn is_ring_on() -> bool {
    fs::read_to_string(SWITCH_PATH).is_ok_and(|text| text.trim() == "Y")
}

/// The switch, on. Dropped, it is as it was.
pub(crate) struct Turned {
    was: String,
    _lock: File,
}

impl Turned {
    fn on() -> Result<Self> {
        if !Path::new(SWITCH_PATH).exists() {
            return Err(Skip("this kernel has no FUSE over io_uring".to_owned()).into());
        }
        if fs::read_to_string(DISABLED_PATH).is_ok_and(|text| text.trim() == "2") {
            return Err(Skip(format!("no io_uring here: {DISABLED_PATH} is 2")).into());
        }
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(std::env::temp_dir().join(LOCK_NAME))?;
        lock.lock().context("cannot wait for the turn")?;
        let was = fs::read_to_string(SWITCH_PATH)?.trim().to_owned();
        let turned = Self { was, _lock: lock };
        guardian::watch_switch(SWITCH_PATH, &turned.was)?;
        fs::write(SWITCH_PATH, "1").context(SWITCH_PATH)?;
        Ok(turned)
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH_PATH, &self.was);
        guardian::forget_switch(SWITCH_PATH, &self.was);
    }
}
