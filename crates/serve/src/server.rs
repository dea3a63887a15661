//! Sockets, and the thread that serves them.

mod connection;
mod event_loop;
mod listener;
mod poll;
mod syncer;

pub use listener::Listener;

use crate::service::{Service, SyncPolicy};
use crate::{RoundGate, ServeError};
use event_loop::EventLoop;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use stitch_base::TreeId;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::Arc;
use stitch_base::thread::{self, JoinHandle};
use stitch_kv::Engine;
use syncer::Syncer;

/// Clients that are served at the same time.
const CLIENTS_MAX: usize = 10_000;

/// How keys are served.
#[derive(Clone)]
pub struct ServerOptions {
    /// When what was replied is durable.
    pub sync: SyncPolicy,
    /// What clients have to give before anything else.
    pub password: Option<Vec<u8>>,
    /// Clients that are served at the same time, 10,000 by default.
    pub clients_max: usize,
    /// What tells when keys expire.
    pub clock: Arc<dyn Clock>,
    /// The branch of `redis/rows` that the engine writes to, of a transaction; `None` for the tree
    /// itself.
    pub branch: Option<TreeId>,
    /// What others pause to write the rows.
    pub gate: Arc<RoundGate>,
    /// Reports whether the keys are read-only at the moment; `None` if they never are. Commands
    /// that change keys are refused then, and keys that have expired are not removed.
    pub read_only: Option<IsReadOnly>,
    /// Bytes of memory for rows of keys that were met lately; 0, the default, for none. The store's
    /// own memory is beside it. Of a branch none are to be kept where its reads are recorded.
    pub recent_bytes: u64,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            sync: SyncPolicy::default(),
            password: None,
            clients_max: CLIENTS_MAX,
            clock: Arc::new(SystemClock::default()),
            branch: None,
            gate: Arc::default(),
            read_only: None,
            recent_bytes: 0,
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("sync", &self.sync)
            .field("has_password", &self.password.is_some())
            .field("clients_max", &self.clients_max)
            .field("branch", &self.branch)
            .field("recent_bytes", &self.recent_bytes)
            .finish_non_exhaustive()
    }
}

/// Reports whether keys are read-only at the moment.
pub type IsReadOnly = Arc<dyn Fn() -> bool + Send + Sync>;

/// A server that runs. Dropped, it ends.
pub struct Server {
    addresses: Vec<SocketAddr>,
    /// Closed, it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    syncer: Option<Syncer>,
    engine: Arc<dyn Engine>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Starts to serve the keys of a store. Nothing else may change the tree `redis/rows`
    /// meanwhile, unless it pauses the rounds ([`ServerOptions::gate`]).
    ///
    /// # Errors
    /// [`ServeError::Db`] and [`ServeError::Format`] for keys that cannot be opened,
    /// [`ServeError::Host`] where the system has no thread or descriptor to give.
    pub fn start(
        engine: Arc<dyn Engine>,
        listeners: Vec<Listener>,
        options: &ServerOptions,
    ) -> Result<Self, ServeError> {
        let service = Service::open(Arc::clone(&engine), options)?;
        let syncer = match options.sync {
            SyncPolicy::Always => None,
            SyncPolicy::EverySecond => Some(Syncer::start(Arc::clone(&engine))?),
        };
        let addresses = listeners.iter().filter_map(Listener::address).collect();
        let pair = UnixStream::pair();
        let (stop, stopped) = pair.map_err(|error| ServeError::host("socketpair", error))?;
        let marker = syncer.as_ref().map(Syncer::marker);
        let clients_max = options.clients_max;
        let event_loop = EventLoop::new(service, listeners, stopped, marker, clients_max)?;
        let thread = thread::spawn("serve", move || event_loop.run());
        let thread = thread.map_err(|error| ServeError::host("cannot start a thread", error))?;
        Ok(Self {
            addresses,
            stop: Some(stop),
            thread: Some(thread),
            syncer,
            engine,
        })
    }

    /// The addresses on which it listens, with the ports that the system has chosen.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends the round that runs, closes all connections, and makes what was replied durable.
    ///
    /// # Errors
    /// [`ServeError::Db`] if the last sync fails.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.end();
        self.engine.sync().map_err(stitch_db::DbError::from)?;
        Ok(())
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the server's thread has panicked");
        }
        drop(self.syncer.take());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
