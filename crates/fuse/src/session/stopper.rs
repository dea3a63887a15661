//! Ends a session from another thread, for example on a signal.

use std::io;
use std::path::Path;

use stitch_base::sync::Arc;

use crate::mount::{Mount, MountError, Unmount};

/// Ends a session from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    pub(super) mount: Arc<Mount>,
}

impl Stopper {
    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the device number of the file system.
    #[must_use]
    pub fn device(&self) -> Option<(u32, u32)> {
        self.mount.device()
    }

    /// Unmounts if it is idle.
    ///
    /// # Errors
    /// `Busy` if a process or a mount uses it; those of unmounting.
    pub fn stop_if_idle(&self) -> Result<(), MountError> {
        self.mount.unmount(Unmount::IfIdle)
    }

    /// Unmounts. If it is busy, the kernel's dirty pages are written out first. Then the connection
    /// is aborted, and its users get errors.
    ///
    /// # Errors
    /// Those of unmounting.
    pub fn stop(&self) -> Result<(), MountError> {
        match self.stop_if_idle() {
            Err(MountError::Busy { .. }) => {}
            other => return other,
        }
        tracing::info!(path = %self.mount.path().display(), "busy: aborted");
        if let Err(error) = self.write_out() {
            tracing::warn!(%error, "the kernel did not write everything out");
        }
        self.mount.abort()
    }

    fn write_out(&self) -> io::Result<()> {
        let root = std::fs::File::open(self.mount.path())?;
        Ok(rustix::fs::syncfs(&root)?)
    }
}
