//! Ends a session from another thread, for example on a signal.

use std::fs::File;
use std::io;
use std::path::Path;

use stitch_base::clock::SystemClock;
use stitch_base::sync::Arc;

use crate::counts::RequestCounts;
use crate::mount::{Mount, MountError, Unmount};
use crate::write_back::{self, Kernel, Look};

/// Ends a session from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    pub(super) mount: Arc<Mount>,
    pub(super) counts: Arc<RequestCounts>,
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
        let mut kernel = ServedKernel {
            root: File::open(self.mount.path())?,
            counts: &self.counts,
        };
        let before = kernel.look()?;
        write_back::run(&mut kernel, before, &SystemClock::default())
    }
}

/// The kernel and this daemon, as a thread sees them that serves no request.
struct ServedKernel<'a> {
    root: File,
    counts: &'a RequestCounts,
}

impl Kernel for ServedKernel<'_> {
    fn sync(&mut self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    fn look(&mut self) -> io::Result<Look> {
        Ok(self.counts.write_back().look(0))
    }
}
