//! What a mount refuses that was remounted read-only.

use stitch_base::sync::Arc;

use super::Views;
use crate::errno::Errno;
use crate::handler::Answer;
use crate::mount::MountMode;

impl Views {
    /// Refuses requests that change something, and stops automatic snapshots, while this mode is
    /// read-only.
    #[must_use]
    pub fn with_mode(mut self, mode: Arc<MountMode>) -> Self {
        self.mode = mode;
        self
    }

    /// Refuses a request that changes something while the mount is read-only. The kernel refuses
    /// system calls by itself, but lets ioctls pass.
    pub(super) fn check_mode(&self) -> Answer<()> {
        match self.mode.look() {
            true => Err(Errno::EROFS),
            false => Ok(()),
        }
    }
}
