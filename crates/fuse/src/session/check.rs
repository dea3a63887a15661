//! Whether a session can have what is asked for.

use std::os::fd::OwnedFd;

use stitch_base::sync::Arc;

use super::{Negotiated, Route, SessionConfig, SessionError};
use crate::backing::{BackingFiles, NoPassthrough};
use crate::handler::Handler;
use crate::transport::TransportChoice;

impl SessionConfig {
    /// Whether a mount can have the transport that is asked for. What the kernel refuses later, as it is mounted,
    /// is not known yet.
    ///
    /// # Errors
    /// As [`super::Session::mount`] gives them before it mounts; none where there is a way out.
    pub fn check(&self) -> Result<(), SessionError> {
        self.check_passthrough()?;
        match self.transport {
            TransportChoice::Auto => Ok(()),
            TransportChoice::Only(_) => Route::new(&mut self.clone()).map(drop),
        }
    }

    pub(super) const fn check_passthrough(&self) -> Result<(), SessionError> {
        if self.passthrough && self.held {
            return Err(SessionError::NoPassthrough(NoPassthrough::Held));
        }
        Ok(())
    }
}

/// Gives the handler what takes files for the kernel.
pub(super) fn hand_over(
    handler: &dyn Handler,
    device: &Arc<OwnedFd>,
    negotiated: &Negotiated,
) -> Result<(), SessionError> {
    let files = BackingFiles::new(Arc::clone(device), negotiated);
    let taken = files.and_then(|files| handler.passthrough(files).map_err(NoPassthrough::refused));
    taken.map_err(SessionError::NoPassthrough)
}
