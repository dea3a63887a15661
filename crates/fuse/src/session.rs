//! A session: a mounted file system from its first request to its last.
//!
//! 1. Mount, and reply to INIT ([`SessionConfig`] is what is asked for, [`negotiate()`] what
//!    results).
//! 2. Start the workers, each with a cloned descriptor and its own buffers, or each with an entry
//!    of a ring. If the kernel refuses the ring, start those with descriptors.
//! 3. They end when the file system is unmounted. A worker that fails ends the others by aborting
//!    the connection.
//!
//! Invariants:
//! - [`Handler::destroy`] is called once, after the last request;
//! - however a session ends, even by a panic, its mount is removed, unless another process holds
//!   it.

mod check;
mod held;
mod negotiate;
mod stopper;

use std::io;
use std::path::Path;
use stitch_base::thread::JoinHandle;

use stitch_base::ErrorKind;
use stitch_base::sync::{Arc, Mutex};

pub use held::Kept;
pub use negotiate::{Negotiated, SessionConfig, negotiate};
pub use stopper::Stopper;

use crate::backing::NoPassthrough;
use crate::counts::{CountsSnapshot, RequestCounts};
use crate::dispatch::Dispatcher;
use crate::errno::Errno;
use crate::handler::Handler;
use crate::mount::{Mount, MountError, MountOptions};
use crate::notify::Notifier;
use crate::transport::dev::{DevQueue, DevSender, clone_device};
use crate::transport::gate::Gate;
use crate::transport::idle_poll::{IdlePolling, LATENCY_PATH};
use crate::transport::uring::{self, Plan, Refusal};
use crate::transport::{End, Queue, ReplySender, Transport, TransportChoice, choose, fall_back};
use crate::wire::codec::WireError;
use crate::wire::flags::InitFlags;
use crate::wire::init::{InitReply, MAJOR};
use crate::wire::reply::ReplyBuffer;
use crate::wire::request::{Layout, Operation, Request};

/// Read-ahead in requests of the largest size: one is served while the one before it is used.
const READ_AHEAD_REQUESTS: u64 = 2;

/// Errors of a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Mounting or unmounting.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel's protocol version is not supported.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (linux 5.4) or newer is needed")]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The first request is malformed.
    #[error("the kernel's first request is malformed")]
    Malformed(#[from] WireError),
    /// The file system was unmounted before it was served.
    #[error("the file system was unmounted before it was served")]
    UnmountedEarly,
    /// The device failed.
    #[error("cannot {op} /dev/fuse")]
    Device {
        /// The operation.
        op: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// FUSE over `io_uring` was required and is not available.
    #[error("the transport io_uring cannot be had: {0}")]
    NoRing(Refusal),
    /// The kernel cannot resend requests.
    #[error("a mount that survives its daemon needs Linux 6.9 or newer")]
    NoResend,
    /// Passthrough was required and is not available.
    #[error("passthrough cannot be had: {0}")]
    NoPassthrough(NoPassthrough),
    /// Atomic writes were required of a mount that survives its daemon.
    #[error("a mount that survives its daemon has no atomic writes")]
    HeldAtomicWrites,
    /// No thread could be started.
    #[error("cannot start a worker")]
    NoThread {
        /// Why not.
        source: io::Error,
    },
    /// Idle polling was required and is not available.
    #[error(
        "idle_poll cannot be had: {LATENCY_PATH} cannot be opened ({source}); root may, outside of \
         containers"
    )]
    NoIdlePoll {
        /// Why not.
        source: io::Error,
    },
    /// A request hit a bug in this program, which ended the session.
    #[error("a request panicked, and the session was ended")]
    Panicked,
}

impl SessionError {
    /// Returns the kind, which tells what a caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Mount(error) => error.kind(),
            Self::Version { .. }
            | Self::NoRing(_)
            | Self::NoResend
            | Self::NoPassthrough(_)
            | Self::HeldAtomicWrites
            | Self::NoIdlePoll { .. } => ErrorKind::Unsupported,
            Self::Malformed(_) | Self::Panicked => ErrorKind::Bug,
            Self::UnmountedEarly => ErrorKind::Conflict,
            Self::Device { .. } | Self::NoThread { .. } => ErrorKind::Io,
        }
    }
}

/// A file system that is mounted and has negotiated the protocol, but is not served yet.
pub struct Session {
    mount: Mount,
    queues: Vec<DevQueue>,
    handler: Arc<dyn Handler>,
    counts: Arc<RequestCounts>,
    negotiated: Negotiated,
    notifier: Notifier,
    route: Route,
    idle_polling: IdlePolling,
    /// True if an earlier process has served it.
    is_taken_over: bool,
}

/// The chosen transport.
#[derive(Debug)]
struct Route {
    choice: TransportChoice,
    /// The plan of the ring, if it is one.
    plan: Option<Plan>,
    /// The reason that it is not, if a ring was wanted.
    refusal: Option<Refusal>,
    data_max: usize,
}

impl Route {
    /// Chooses the transport by `config` and by what the machine supports. Changes `config` to ask
    /// the kernel for it.
    fn new(config: &mut SessionConfig) -> Result<Self, SessionError> {
        if config.held && config.transport == TransportChoice::Auto {
            config.transport = TransportChoice::Only(Transport::Dev);
        }
        let choice = config.transport;
        let is_held = config.held;
        let has_remote_locks = config.remote_posix_locks || config.remote_flock;
        let probe = || match (is_held, has_remote_locks) {
            (true, _) => Err(Refusal::Held),
            (false, true) => Err(Refusal::RemoteLocks),
            (false, false) => uring::probe(),
        };
        let (transport, refusal) = choose(choice, probe).map_err(SessionError::NoRing)?;
        config.transport = TransportChoice::Only(transport);
        let mut plan = None;
        if transport == Transport::Uring {
            let made = Plan::of_machine(config.max_pages);
            let made = made.map_err(|source| SessionError::Device { op: "plan", source })?;
            config.max_pages = made.pages;
            plan = Some(made);
        }
        Ok(Self {
            choice,
            plan,
            refusal,
            data_max: config.data_max(),
        })
    }

    /// Adjusts the choice to the kernel's reply: it may not offer a ring.
    fn adjust_to(&mut self, negotiated: &Negotiated) -> Result<(), SessionError> {
        let is_offered = negotiated.flags.contains(InitFlags::OVER_IO_URING);
        if self.plan.is_some() && !is_offered {
            self.refuse(Refusal::NotOffered)?;
        }
        Ok(())
    }

    fn refuse(&mut self, refusal: Refusal) -> Result<(), SessionError> {
        debug_assert!(self.plan.is_some(), "a ring was chosen");
        self.plan = None;
        let (_, refusal) = fall_back(self.choice, refusal).map_err(SessionError::NoRing)?;
        self.refusal = refusal;
        Ok(())
    }

    fn transport(&self) -> Transport {
        debug_assert!(
            self.plan.is_none() || self.refusal.is_none(),
            "a refused ring is not used"
        );
        match self.plan {
            Some(_) => Transport::Uring,
            None => Transport::Dev,
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("mount", &self.mount)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Mounts `handler` at `path` and negotiates the protocol.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn mount(
        handler: Arc<dyn Handler>,
        path: &Path,
        options: &MountOptions,
        config: &SessionConfig,
    ) -> Result<Self, SessionError> {
        config.check_passthrough()?;
        config.check_atomic_writes()?;
        let mut config = config.clone();
        let mut route = Route::new(&mut config)?;
        let idle_polling = idle_polling(&config)?;
        let (mount, fd) = Mount::new(path, options)?;
        let counts = Arc::new(RequestCounts::default());
        counts.write_back().connect(mount.device());
        let mut first = DevQueue::new(fd, config.data_max());
        let negotiated = greet(&mut first, &config, options.default_permissions, &counts)?;
        route.adjust_to(&negotiated)?;
        held::check(&config, &negotiated)?;
        if config.passthrough {
            check::hand_over(&*handler, first.fd(), &negotiated)?;
        }
        mount.set_read_ahead(READ_AHEAD_REQUESTS * config.data_max() as u64);
        let mut queues = vec![first];
        for _ in 1..config.workers.max(1) {
            let clone = clone_device(queues[0].fd()).map_err(|source| SessionError::Device {
                op: "clone",
                source,
            })?;
            queues.push(DevQueue::new(clone, config.data_max()));
        }
        let sender = DevSender::new(Arc::clone(queues[0].fd()));
        let notifier = Notifier::new(Arc::new(sender), negotiated.minor);
        tracing::info!(
            path = %mount.path().display(),
            minor = negotiated.minor,
            transport = route.transport().name(),
            "mounted"
        );
        handler.init(&negotiated, &notifier);
        Ok(Self {
            mount,
            queues,
            handler,
            counts,
            negotiated,
            notifier,
            route,
            idle_polling,
            is_taken_over: false,
        })
    }

    /// Returns the result of the negotiation.
    #[must_use]
    pub const fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns the device number of the mount, major and minor.
    #[must_use]
    pub const fn device(&self) -> Option<(u32, u32)> {
        self.mount.device()
    }

    /// Returns a sender of notices.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Returns the counters of requests.
    #[must_use]
    pub fn counts(&self) -> Arc<RequestCounts> {
        Arc::clone(&self.counts)
    }

    /// Serves requests until it is unmounted.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn run(self) -> Result<(), SessionError> {
        self.spawn()?.join()
    }

    /// Starts the threads that serve requests.
    ///
    /// # Errors
    /// `NoThread`, or `NoRing` if a ring was required.
    pub fn spawn(self) -> Result<RunningSession, SessionError> {
        let Self {
            mount,
            queues,
            handler,
            counts,
            negotiated,
            notifier,
            route,
            idle_polling,
            is_taken_over,
        } = self;
        debug_assert!(!queues.is_empty(), "a session has a descriptor");
        let mount = Arc::new(mount);
        let layout = Layout {
            setxattr_ext: negotiated.setxattr_ext(),
        };
        let dispatcher = Arc::new(Dispatcher::new(
            Arc::clone(&handler),
            Arc::clone(&counts),
            layout,
        ));
        let mut running = RunningSession {
            workers: Mutex::new(Vec::with_capacity(queues.len())),
            dispatcher,
            mount,
            handler,
            counts,
            negotiated,
            notifier,
            route,
            idle_polling,
            gate: Arc::default(),
            is_ended: false,
        };
        if is_taken_over && let Err(error) = running.notifier.resend() {
            // It was unmounted meanwhile: the workers will notice.
            tracing::debug!(%error, "nothing is sent again");
        }
        // Before a thread of the ring serves, and again if the ring is refused.
        running.let_requests_wait(queues.len(), true);
        let has_ring = running.start_ring(queues[0].fd())?;
        running.let_requests_wait(queues.len(), has_ring);
        let mut queues = queues.into_iter();
        if has_ring && let Some(first) = queues.next() {
            running.start("fuse-dev".to_owned(), first.beside_a_ring())?;
            return Ok(running);
        }
        for (index, queue) in queues.enumerate() {
            let queue = queue
                .behind(Arc::clone(&running.gate))
                .awake(running.idle_polling.clone());
            running.start(format!("fuse-{index}"), queue)?;
        }
        Ok(running)
    }
}

/// A worker thread of a session.
struct Worker<Q> {
    queue: Q,
    dispatcher: Arc<Dispatcher>,
    mount: Arc<Mount>,
    gate: Arc<Gate>,
}

impl<Q: Queue> Worker<Q> {
    fn run(mut self) -> Result<(), SessionError> {
        let _noted = Arc::clone(&self.gate).at_end();
        self.serve()
    }

    fn serve(&mut self) -> Result<(), SessionError> {
        let served = self.queue.serve(&self.dispatcher);
        let result = match served {
            Ok(End::Unmounted) => return Ok(()),
            Ok(End::Poisoned) => Err(SessionError::Panicked),
            Err(source) => Err(SessionError::Device { op: "read", source }),
        };
        if self.mount.is_held() {
            tracing::error!(error = ?result, "daemon aborts; the next one takes over the mount");
            // The memory cannot be trusted, so nothing of it may be written out.
            std::process::abort();
        }
        if let Err(error) = self.mount.abort() {
            tracing::warn!(%error, "the connection was not aborted");
        }
        result
    }
}

/// A file system that is being served. Dropping it ends it as [`Self::stop`] does.
pub struct RunningSession {
    workers: Mutex<Vec<JoinHandle<Result<(), SessionError>>>>,
    dispatcher: Arc<Dispatcher>,
    mount: Arc<Mount>,
    handler: Arc<dyn Handler>,
    counts: Arc<RequestCounts>,
    negotiated: Negotiated,
    notifier: Notifier,
    route: Route,
    idle_polling: IdlePolling,
    gate: Arc<Gate>,
    is_ended: bool,
}

impl std::fmt::Debug for RunningSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningSession")
            .field("mount", &self.mount)
            .finish_non_exhaustive()
    }
}

impl RunningSession {
    /// Starts the threads of a ring, if one was chosen. Returns whether it works.
    fn start_ring(&mut self, device: &Arc<std::os::fd::OwnedFd>) -> Result<bool, SessionError> {
        let Some(plan) = &self.route.plan else {
            return Ok(false);
        };
        let (queues, roll) = uring::queues(plan, device, self.route.data_max, &self.idle_polling);
        for (index, queue) in queues.into_iter().enumerate() {
            self.start(format!("fuse-ring-{index}"), queue)?;
        }
        let Err(refusal) = roll.wait() else {
            return Ok(true);
        };
        uring::give_up(device).map_err(|source| SessionError::Device {
            op: "go back to",
            source,
        })?;
        self.route.refuse(refusal)?;
        Ok(false)
    }

    fn start(&mut self, name: String, queue: impl Queue + 'static) -> Result<(), SessionError> {
        let worker = Worker {
            queue,
            dispatcher: Arc::clone(&self.dispatcher),
            mount: Arc::clone(&self.mount),
            gate: Arc::clone(&self.gate),
        };
        let started = stitch_base::thread::spawn(&name, move || worker.run())
            .map_err(|source| SessionError::NoThread { source })?;
        self.workers.get_mut().push(started);
        Ok(())
    }

    /// Returns the handle of idle polling.
    #[must_use]
    pub fn idle_polling(&self) -> IdlePolling {
        self.idle_polling.clone()
    }

    /// Returns the transport.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.route.transport()
    }

    /// Returns the reason that it is not `io_uring`, if that was wanted.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        self.route.refusal.as_ref()
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the result of the negotiation.
    #[must_use]
    pub const fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns a sender of notices.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Returns the current counts.
    #[must_use]
    pub fn counts(&self) -> CountsSnapshot {
        self.counts.snapshot()
    }

    /// Returns the counters of requests.
    #[must_use]
    pub fn counters(&self) -> Arc<RequestCounts> {
        Arc::clone(&self.counts)
    }

    /// Returns a handle that ends this session from another thread, for example on a signal.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            mount: Arc::clone(&self.mount),
            counts: Arc::clone(&self.counts),
        }
    }

    /// Waits until it is unmounted.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn join(mut self) -> Result<(), SessionError> {
        self.end()
    }

    /// Unmounts, by force if it is in use, and waits for the end.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn stop(mut self) -> Result<(), SessionError> {
        self.stopper().stop()?;
        self.end()
    }

    /// Returns the gate of the requests. Shutting it makes [`Self::join`] return and leaves the
    /// mount for another process to continue.
    #[must_use]
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    fn end(&mut self) -> Result<(), SessionError> {
        debug_assert!(!self.is_ended, "the handler is destroyed once");
        self.is_ended = true;
        let mut result = Ok(());
        let count = self.workers.get_mut().len();
        if self.gate.wait(count) {
            // The workers wait, for a request or with an unanswered one, until the process ends.
            self.workers.get_mut().clear();
        }
        for worker in self.workers.get_mut().drain(..) {
            let ended = worker.join().unwrap_or(Err(SessionError::Panicked));
            result = result.and(ended);
        }
        self.idle_polling.end();
        self.handler.destroy();
        result
    }
}

impl Drop for RunningSession {
    fn drop(&mut self) {
        // A held mount is left to the next process.
        if self.is_ended || self.mount.is_held() {
            return;
        }
        let ended = self
            .stopper()
            .stop()
            .map_err(SessionError::from)
            .and_then(|()| self.end());
        if let Err(error) = ended {
            tracing::warn!(%error, "the session did not end well");
        }
    }
}

pub(super) fn idle_polling(config: &SessionConfig) -> Result<IdlePolling, SessionError> {
    IdlePolling::new(config.idle_poll).map_err(|source| SessionError::NoIdlePoll { source })
}

/// Reads INIT and replies to it.
fn greet(
    queue: &mut DevQueue,
    config: &SessionConfig,
    default_permissions: bool,
    counts: &RequestCounts,
) -> Result<Negotiated, SessionError> {
    let sender = DevSender::new(Arc::clone(queue.fd()));
    let mut buffer = ReplyBuffer::default();
    loop {
        let first = queue
            .receive_first()
            .map_err(|source| SessionError::Device { op: "read", source })?
            .ok_or(SessionError::UnmountedEarly)?;
        let request = Request::parse(first, Layout::default())?;
        counts.count(request.header.opcode);
        let unique = request.header.unique;
        let Operation::Init(offer) = request.operation else {
            return Err(SessionError::Malformed(WireError::BadValue));
        };
        let send = |message: &[u8]| {
            sender.send(message).map_err(|source| SessionError::Device {
                op: "write",
                source,
            })
        };
        if offer.major > MAJOR {
            // The kernel repeats INIT with the version of this reply.
            buffer.clear();
            buffer.put_init(&InitReply::version_only());
            send(buffer.finish(unique, None))?;
            continue;
        }
        let Some((negotiated, reply)) = negotiate(config, default_permissions, &offer) else {
            send(buffer.finish(unique, Some(Errno::from_raw(libc::EPROTO))))?;
            return Err(SessionError::Version {
                major: offer.major,
                minor: offer.minor,
            });
        };
        buffer.clear();
        buffer.put_init(&reply);
        send(buffer.finish(unique, None))?;
        return Ok(negotiated);
    }
}
