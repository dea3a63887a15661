//! Checks whether a session can have what its configuration requires.

use std::os::fd::OwnedFd;

use stitch_base::sync::Arc;

use super::{Negotiated, Route, SessionConfig, SessionError};
use crate::backing::{BackingFiles, NoPassthrough};
use crate::handler::Handler;
use crate::transport::TransportChoice;

impl SessionConfig {
    /// Checks whether the required transport is available. A later refusal by the kernel, at mount
    /// time, is not covered.
    ///
    /// # Errors
    /// Those of [`super::Session::mount`] before it mounts; none if there is a fallback.
    pub fn check(&self) -> Result<(), SessionError> {
        self.check_passthrough()?;
        self.check_atomic_writes()?;
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

    /// A daemon that dies takes staged bytes with it, which the kernel would go on to show.
    pub(super) const fn check_atomic_writes(&self) -> Result<(), SessionError> {
        if self.atomic_writes && self.held {
            return Err(SessionError::HeldAtomicWrites);
        }
        Ok(())
    }
}

/// Gives the handler access to passthrough.
pub(super) fn hand_over(
    handler: &dyn Handler,
    device: &Arc<OwnedFd>,
    negotiated: &Negotiated,
) -> Result<(), SessionError> {
    let files = BackingFiles::new(Arc::clone(device), negotiated);
    let taken = files.and_then(|files| handler.passthrough(files).map_err(NoPassthrough::refused));
    taken.map_err(SessionError::NoPassthrough)
}
