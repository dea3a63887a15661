//! A store, mounted: the session that serves it, and what its daemon says about itself.

use crate::jobs::Jobs;
use crate::{Store, StoreError};
use serde_json::{Map, Value, json};
use std::path::Path;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::FileSystem;
use stitch_fuse::session::Stopper;
use stitch_fuse::transport::uring::Refusal;
use stitch_fuse::wire::opcode::Opcode;
use stitch_fuse::{
    Adapter, AdapterOptions, MountOptions, RequestCounts, RootReport, RunningSession, Session,
    SessionConfig, Transport,
};

/// A mounted store. Dropped, it is unmounted, by force if need be, and closed.
pub struct Host {
    session: Option<RunningSession>,
    rest: Rest,
}

/// What outlives the session.
struct Rest {
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    jobs: Arc<Jobs>,
    is_ended: bool,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("session", &self.session)
            .field("store", &self.rest.store)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// Mounts the file system of a store and starts to serve it.
    ///
    /// # Errors
    /// See [`StoreError`]; the store is closed then.
    pub fn mount(
        store: Store,
        mount_point: &Path,
        options: &MountOptions,
        config: &SessionConfig,
    ) -> Result<Self, StoreError> {
        let store = Arc::new(store);
        let fs = Arc::new(store.file_system()?);
        let jobs = Arc::new(Jobs::new(Arc::clone(&store)));
        let rest = Rest {
            store: Arc::clone(&store),
            fs: Arc::clone(&fs),
            jobs: Arc::clone(&jobs),
            is_ended: false,
        };
        // From here on whatever fails drops the host, which closes the store.
        let mut host = Self {
            session: None,
            rest,
        };
        let report = Arc::new(Report::new(store, Arc::clone(&fs)));
        let asked = Arc::clone(&report);
        let answer = Arc::new(move || asked.document().to_string().into_bytes());
        let adapter_options = AdapterOptions {
            kernel_checks: options.default_permissions,
            ..AdapterOptions::default()
        };
        let adapter = Adapter::new(fs, adapter_options)
            .with_report(RootReport::new(crate::STATS_XATTR, answer))
            .with_report(job_report(jobs));
        let session = Session::mount(Arc::new(adapter), mount_point, options, config)?;
        // Before the first request, which may ask for them.
        report.served.lock().requests = Some(session.counts());
        let session = session.spawn()?;
        report.served.lock().transport = Some(session.transport());
        host.session = Some(session);
        Ok(host)
    }

    /// How requests come, and why not by `io_uring` if that was wanted.
    ///
    /// # Panics
    /// Never: there is a session as long as there is a host.
    #[must_use]
    pub fn transport(&self) -> (Transport, Option<&Refusal>) {
        let session = self.session.as_ref().expect("it is served until joined");
        (session.transport(), session.refusal())
    }

    /// Something that can unmount it from another thread.
    ///
    /// # Panics
    /// Never: there is a session as long as there is a host.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        let session = self.session.as_ref().expect("it is served until joined");
        session.stopper()
    }

    /// Waits until it is unmounted, then writes everything out and closes the store.
    ///
    /// # Errors
    /// The first failure; what was acknowledged may not be durable then.
    pub fn join(mut self) -> Result<(), StoreError> {
        let session = self.session.take().map(RunningSession::join);
        let served = session.unwrap_or(Ok(()));
        self.rest.end()?;
        Ok(served?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let session = self.session.take().map(RunningSession::stop);
        if let Some(Err(error)) = session {
            tracing::warn!(%error, "the mount did not end well");
        }
        // After `join` there is nothing left to do.
        if let Err(error) = self.rest.end() {
            tracing::error!(%error, "the store was not closed well");
        }
    }
}

impl Rest {
    fn end(&mut self) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.is_ended, true) {
            return Ok(());
        }
        self.jobs.stop();
        let closed = self.fs.close();
        self.store.close()?;
        Ok(closed?)
    }
}

/// The attribute through which a daemon is asked to do something.
fn job_report(jobs: Arc<Jobs>) -> RootReport {
    let asked = Arc::clone(&jobs);
    let answer = Arc::new(move || asked.report().to_string().into_bytes());
    let take = Arc::new(move |request: &[u8]| jobs.request(request));
    RootReport::new(crate::JOB_XATTR, answer).with_requests(take)
}

/// What a daemon says about itself.
pub(crate) struct Report {
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    served: Mutex<Served>,
    clock: SystemClock,
}

/// What is known of the session, once there is one.
#[derive(Clone, Default)]
struct Served {
    requests: Option<Arc<RequestCounts>>,
    /// How requests come; once that is settled.
    transport: Option<Transport>,
}

impl Report {
    fn new(store: Arc<Store>, fs: Arc<FileSystem>) -> Self {
        Self {
            store,
            fs,
            served: Mutex::default(),
            clock: SystemClock::default(),
        }
    }

    /// The answer to [`crate::STATS_XATTR`].
    fn document(&self) -> Value {
        let mut counters: Map<String, Value> = Map::new();
        for (name, value) in self.store.counters() {
            counters.insert(name, json!(value));
        }
        for (name, value) in [
            ("fs.known_inodes", self.fs.known_inodes() as u64),
            (crate::DETACHED_DIRS, self.fs.detached_dirs() as u64),
            (crate::DETACHED_REMOVED, self.fs.detached_removed()),
        ] {
            counters.insert(name.to_owned(), json!(value));
        }
        let served = self.served.lock().clone();
        if let Some(requests) = &served.requests {
            let requests = requests.snapshot();
            counters.insert("fuse.requests_total".to_owned(), json!(requests.total()));
            for opcode in Opcode::ALL {
                let name = format!("fuse.requests.{}", opcode.name().to_lowercase());
                counters.insert(name, json!(requests.get(*opcode)));
            }
        }
        let mut out = self.store.identity();
        out["pid"] = json!(std::process::id());
        out["uptime_s"] = json!(self.clock.monotonic().as_secs());
        out["resident_bytes"] = json!(resident_bytes());
        if let Some(transport) = served.transport {
            out["transport"] = json!(transport.name());
        }
        out["version"] = json!(env!("CARGO_PKG_VERSION"));
        out["counters"] = Value::Object(counters);
        out
    }
}

/// Memory that this process has in use, as the system counts it; 0 where it does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
