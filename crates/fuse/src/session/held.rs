//! Sessions that another process can continue.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use stitch_base::sync::Arc;

use super::{Negotiated, Route, RunningSession, Session, SessionConfig, SessionError};
use crate::counts::RequestCounts;
use crate::handler::Handler;
use crate::mount::Mount;
use crate::notify::Notifier;
use crate::transport::dev::{DevQueue, DevSender};
use crate::transport::uring::Plan;
use crate::wire::flags::InitFlags;

/// The state of a mount that the next process needs, beside its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Its device number, major and minor.
    pub device: Option<(u32, u32)>,
    /// The result of the negotiation, which is not repeated.
    pub negotiated: Negotiated,
}

impl Session {
    /// Returns the state to keep.
    #[must_use]
    pub fn kept(&self) -> Kept {
        Kept {
            path: self.mount.path().to_owned(),
            device: self.mount.device(),
            negotiated: self.negotiated,
        }
    }

    /// Returns the descriptors to keep, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.fd().as_fd()).collect()
    }

    /// Marks the mount as held, once another process has all state: it stays when this process
    /// ends.
    pub fn hold(&mut self) {
        self.mount.hold();
        self.queues.iter_mut().for_each(DevQueue::touch);
    }

    /// Continues a mount whose process has ended. Requests in flight are sent again.
    ///
    /// # Errors
    /// `Device` without descriptors.
    pub fn take_over(
        handler: Arc<dyn Handler>,
        kept: Kept,
        devices: Vec<OwnedFd>,
        config: &SessionConfig,
    ) -> Result<Self, SessionError> {
        assert!(config.held, "it goes on to be held");
        let mut config = config.clone();
        let route = Route::new(&mut config)?;
        let idle_polling = super::idle_polling(&config)?;
        let negotiated = kept.negotiated;
        let mut mount = Mount::adopted(kept.path, kept.device);
        mount.hold();
        // The kernel sends requests of the size negotiated then.
        let agreed = usize::try_from(negotiated.max_write).unwrap_or(usize::MAX);
        let data_max = config.data_max().max(agreed);
        let mut queues: Vec<DevQueue> = devices
            .into_iter()
            .map(|device| DevQueue::new(device, data_max))
            .collect();
        let Some(first) = queues.first() else {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(SessionError::Device { op: "find", source });
        };
        let sender = DevSender::new(Arc::clone(first.fd()));
        let notifier = Notifier::new(Arc::new(sender), negotiated.minor);
        queues.iter_mut().for_each(DevQueue::touch);
        handler.init(&negotiated, &notifier);
        let counts = Arc::new(RequestCounts::default());
        counts.write_back().connect(mount.device());
        Ok(Self {
            mount,
            queues,
            handler,
            counts,
            negotiated,
            notifier,
            route,
            idle_polling,
            is_taken_over: true,
        })
    }
}

impl RunningSession {
    /// Sets how many requests may wait for write-back by the kernel. None in a mount that survives
    /// its daemon: a thread that waits so cannot be killed, and the next daemon would wait for its
    /// end.
    pub(super) fn let_requests_wait(&self, readers: usize, has_ring: bool) {
        let plan = self.route.plan.as_ref().filter(|_| has_ring);
        let served = plan.map_or(readers, Plan::served_at_once);
        let waits_max = match self.mount.is_held() {
            true => 0,
            false => served.saturating_sub(1),
        };
        debug_assert!(waits_max < served.max(1), "one is left to serve the WRITEs");
        self.notifier.set_waits_max(waits_max);
    }
}

/// Checks that the kernel can resend requests, which a held mount needs.
pub(super) fn check(config: &SessionConfig, negotiated: &Negotiated) -> Result<(), SessionError> {
    if config.held && !negotiated.offered.contains(InitFlags::HAS_RESEND) {
        return Err(SessionError::NoResend);
    }
    Ok(())
}
