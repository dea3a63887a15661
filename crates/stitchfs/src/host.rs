//! A store, mounted: the session that serves it, and what its daemon says about itself.

use crate::external::Settler;
use crate::jobs::Jobs;
use crate::snapshots::snapshot_json;
use crate::{Store, StoreError, set_path};
use serde_json::{Map, Value, json};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{FileSystem, Ledger, PolicyInfo};
use stitch_fuse::session::{Kept, Stopper};
use stitch_fuse::survive::ledger::SharedLedger;
use stitch_fuse::transport::gate::Gate;
use stitch_fuse::transport::idle_poll::IdlePolling;
use stitch_fuse::transport::uring::Refusal;
use stitch_fuse::wire::opcode::Opcode;
use stitch_fuse::{
    Adapter, AdapterOptions, ControlLink, Errno, MountOptions, Notifier, RequestCounts, RootReport,
    RunningSession, Session, SessionConfig, TellUsage, Transport, Trim, Views,
};
use stitch_volume::TrimRange;

/// What takes requests for the process that keeps a mount.
pub type Asked = Arc<dyn Fn(&[u8]) -> Result<(), Errno> + Send + Sync>;

/// What a daemon has to do with the process that keeps its mount.
#[derive(Clone)]
pub struct Keeper {
    /// Takes requests for it.
    pub asked: Asked,
    /// What is said of it, until [`KeeperNote::set`].
    pub about: Value,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("about", &self.about)
            .finish_non_exhaustive()
    }
}

/// A mounted store. Dropped, it is unmounted, by force if need be, and closed.
pub struct Host {
    session: Option<RunningSession>,
    rest: Rest,
}

/// What outlives the session.
struct Rest {
    store: Arc<Store>,
    settler: Settler,
    fs: Arc<FileSystem>,
    jobs: Arc<Jobs>,
    report: Arc<DaemonReport>,
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

/// What another process needs to keep a mount: the descriptors, and what the next daemon has to
/// know.
pub type Keep<'a> = &'a dyn Fn(&Kept, &[BorrowedFd<'_>]) -> io::Result<()>;

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
        let served = served(options.default_permissions, config);
        Self::start(store, None, served, None, |handler| {
            Ok(Session::mount(handler, mount_point, options, config)?)
        })
    }

    /// As [`Self::mount`]; `keep` hands the mount to a process that keeps it if this one dies, and
    /// `keeper` is what there is to say to that process, and of it.
    ///
    /// # Errors
    /// As [`Self::mount`], and what `keep` says. The mount is undone then.
    pub fn mount_held(
        store: Store,
        ledger: Arc<SharedLedger>,
        mount_point: &Path,
        options: &MountOptions,
        config: &SessionConfig,
        keep: Keep<'_>,
        keeper: Keeper,
    ) -> Result<Self, StoreError> {
        debug_assert!(config.held, "the session is to be held");
        let served = served(options.default_permissions, config);
        let kept_ledger: Arc<dyn Ledger> = Arc::clone(&ledger) as _;
        Self::start(store, Some(kept_ledger), served, Some(keeper), |handler| {
            let mut session = Session::mount(handler, mount_point, options, config)?;
            let mut descriptors = vec![ledger.as_fd()];
            descriptors.extend(session.devices());
            keep(&session.kept(), &descriptors).map_err(StoreError::Keep)?;
            session.hold();
            Ok(session)
        })
    }

    /// Goes on with a mount whose daemon has ended. The descriptors are those that were given to
    /// `keep`.
    ///
    /// # Errors
    /// See [`StoreError`]; the mount stays, for another to go on with.
    pub fn take_over(
        store: Store,
        kept: Kept,
        descriptors: Vec<OwnedFd>,
        default_permissions: bool,
        config: &SessionConfig,
        keeper: Keeper,
    ) -> Result<Self, StoreError> {
        let mut descriptors = descriptors.into_iter();
        let memory = descriptors.next();
        let memory = memory.ok_or_else(|| StoreError::Keep(io::ErrorKind::NotFound.into()))?;
        let ledger = SharedLedger::open(memory).map_err(StoreError::Keep)?;
        let ledger: Option<Arc<dyn Ledger>> = Some(Arc::new(ledger));
        let devices = descriptors.collect();
        let served = served(default_permissions, config);
        // It may be read-only since the daemon before.
        store.mount_mode().connect(kept.device);
        Self::start(store, ledger, served, Some(keeper), |handler| {
            Ok(Session::take_over(handler, kept, devices, config)?)
        })
    }

    fn start(
        store: Store,
        ledger: Option<Arc<dyn Ledger>>,
        options: AdapterOptions,
        keeper: Option<Keeper>,
        begin: impl FnOnce(Arc<Views>) -> Result<Session, StoreError>,
    ) -> Result<Self, StoreError> {
        let store = Arc::new(store);
        let fs = Arc::new(store.file_system_on(ledger)?);
        let jobs = Arc::new(Jobs::new(Arc::clone(&store), Arc::clone(&fs)));
        let report = Arc::new(DaemonReport::new(Arc::clone(&store), Arc::clone(&fs)));
        let settler = Settler::start(&fs, store.sync_interval());
        let rest = Rest {
            store,
            settler,
            fs: Arc::clone(&fs),
            jobs: Arc::clone(&jobs),
            report: Arc::clone(&report),
            is_ended: false,
        };
        // From here on whatever fails drops the host, which closes the store.
        let mut host = Self {
            session: None,
            rest,
        };
        let document = Arc::clone(&report);
        let answer = Arc::new(move || document.document().to_string().into_bytes());
        report.served.lock().has_xattrs = options.xattrs;
        let synced = sync_report(Arc::clone(&fs));
        let policies = policy_report(Arc::clone(&fs));
        let usage = usage_teller(Arc::clone(&fs));
        let mut adapter = Adapter::new(fs, options)
            .with_report(synced)
            .with_report(policies)
            .with_report(RootReport::new(crate::STATS_XATTR, answer))
            .with_report(job_report(Arc::clone(&jobs)))
            .with_trim(trim(jobs));
        if let Some(Keeper { asked, about }) = keeper {
            report.served.lock().keeper = Some(about);
            let nothing = Arc::new(Vec::new);
            let asked = RootReport::new(crate::RESTART_XATTR, nothing).with_requests(asked);
            adapter = adapter.with_report(asked);
        }
        let describe = Arc::new(|info: &_| snapshot_json(info).to_string().into_bytes());
        let mode = Arc::clone(host.rest.store.mount_mode());
        let views = Views::new(adapter, describe).with_mode(Arc::clone(&mode));
        let mut views = views.with_usage(usage);
        if let Some(socket) = host.rest.store.keys_socket() {
            views = views.with_link(socket_link(socket));
            if let Some(sockets) = host.rest.store.transaction_sockets() {
                views = views.with_transaction_sockets(sockets);
            }
        }
        let session = begin(Arc::new(views))?;
        mode.connect(session.device());
        // Before the first request, which may ask for them.
        report.served.lock().requests = Some(session.counts());
        report.served.lock().notifier = Some(session.notifier());
        report.served.lock().has_passthrough = session.negotiated().has_passthrough();
        let session = session.spawn()?;
        report.served.lock().transport = Some(session.transport());
        report.served.lock().refusal = session.refusal().map(ToString::to_string);
        report.served.lock().idle_polling = session.idle_polling();
        host.session = Some(session);
        Ok(host)
    }

    /// What lets requests in. Once it is shut, [`Self::join`] closes the store and leaves the
    /// mount.
    ///
    /// # Panics
    /// Never: there is a session as long as there is a host.
    #[must_use]
    pub fn gate(&self) -> Arc<Gate> {
        let session = self.session.as_ref().expect("it is served until joined");
        session.gate()
    }

    /// Sets what the daemon says of the process that keeps its mount.
    #[must_use]
    pub fn keeper_note(&self) -> KeeperNote {
        KeeperNote(Arc::clone(&self.rest.report))
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
        self.settler.stop();
        let closed = self.fs.close();
        self.store.close()?;
        Ok(closed?)
    }
}

/// Sets what a daemon says of the process that keeps its mount.
#[derive(Clone)]
pub struct KeeperNote(Arc<DaemonReport>);

impl std::fmt::Debug for KeeperNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeeperNote").finish_non_exhaustive()
    }
}

impl KeeperNote {
    /// Sets it.
    pub fn set(&self, note: Value) {
        self.0.served.lock().keeper = Some(note);
    }
}

/// How the file system of a mount is served: the same in the next daemon as in this one.
const fn served(default_permissions: bool, config: &SessionConfig) -> AdapterOptions {
    AdapterOptions {
        kernel_checks: default_permissions,
        xattrs: config.xattrs,
        atomic_writes: config.atomic_writes,
    }
}

/// The attribute through which a daemon is asked to do something.
fn job_report(jobs: Arc<Jobs>) -> RootReport {
    let asked = Arc::clone(&jobs);
    let answer = Arc::new(move || asked.report().to_string().into_bytes());
    let take = Arc::new(move |request: &[u8]| jobs.request(request));
    RootReport::new(crate::JOB_XATTR, answer).with_requests(take)
}

/// What tells the owner of a directory what it needs of the space.
fn usage_teller(fs: Arc<FileSystem>) -> TellUsage {
    Arc::new(move |dir, is_interrupted| {
        let told = crate::usage::directory(&fs, dir, &mut |_, _| !is_interrupted());
        match told {
            Ok(Some(told)) => Ok(told.to_string().into_bytes()),
            Ok(None) => Err(Errno::EINTR),
            Err(error) => Err(Errno::from(&error)),
        }
    })
}

/// The attribute that tells the policies of snapshots.
fn policy_report(fs: Arc<FileSystem>) -> RootReport {
    let told = move |is_shown: &dyn Fn(&PolicyInfo) -> bool| {
        let mut policies = policies_of(&fs);
        policies.retain(|policy| is_shown(policy));
        crate::policies_json(&policies).to_string().into_bytes()
    };
    let told = Arc::new(told);
    let of_users = Arc::clone(&told);
    let report = RootReport::new(crate::POLICIES_XATTR, Arc::new(move || told(&|_| true)));
    // As with snapshots: the owner of a directory sees what is of it.
    report.with_users(Arc::new(move |user| {
        of_users(&|policy| policy.owner == user)
    }))
}

fn policies_of(fs: &FileSystem) -> Vec<PolicyInfo> {
    fs.policies().list().unwrap_or_else(|error| {
        tracing::error!(%error, "the policies of snapshots cannot be read");
        Vec::new()
    })
}

/// The attribute through which a daemon is asked to make everything durable.
fn sync_report(fs: Arc<FileSystem>) -> RootReport {
    let take = Arc::new(move |_: &[u8]| {
        fs.sync().map_err(|error| {
            tracing::error!(%error, "a sync failed");
            Errno::from(&error)
        })
    });
    RootReport::new(crate::SYNC_XATTR, Arc::new(Vec::new)).with_requests(take)
}

/// What leads to the socket on which keys are served.
fn socket_link(socket: PathBuf) -> ControlLink {
    ControlLink {
        name: b"kv.sock".to_vec(),
        target: socket.into_os_string().into_vec(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

/// What serves `FITRIM`.
fn trim(jobs: Arc<Jobs>) -> Trim {
    Arc::new(move |asked, is_interrupted| {
        let range = TrimRange {
            start: asked.start,
            len: asked.len,
            extent_bytes_min: asked.extent_bytes_min,
        };
        jobs.trim(&range, is_interrupted)
    })
}

/// What a daemon says about itself.
pub(crate) struct DaemonReport {
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    served: Mutex<Served>,
    clock: SystemClock,
}

/// What is known of the session, once there is one.
#[derive(Clone, Default)]
struct Served {
    requests: Option<Arc<RequestCounts>>,
    notifier: Option<Notifier>,
    idle_polling: IdlePolling,
    /// Programs can read and set extended attributes.
    has_xattrs: bool,
    /// The kernel reads large files itself.
    has_passthrough: bool,
    /// How requests come; once that is settled.
    transport: Option<Transport>,
    /// Why requests do not come by `io_uring`, if that was wanted.
    refusal: Option<String>,
    /// Of the process that keeps the mount, if there is one.
    keeper: Option<Value>,
}

impl DaemonReport {
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
        let names = self.fs.names_usage();
        for (name, value) in [
            ("fs.missing_answers", names.answers),
            ("fs.whole_dirs", names.dirs as u64),
            ("fs.whole_dirs_bytes", names.bytes as u64),
            ("fs.known_inodes", self.fs.known_inodes() as u64),
            (crate::DETACHED_DIRS, self.fs.detached_dirs() as u64),
            (crate::DETACHED_REMOVED, self.fs.detached_removed()),
            ("fs.large_files", self.fs.external_usage().0),
            ("fs.large_files_bytes", self.fs.external_usage().1),
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
        let notices = |count: fn(&Notifier) -> u64| served.notifier.as_ref().map_or(0, count);
        let (pages, names) = (
            notices(Notifier::page_notices),
            notices(Notifier::name_notices),
        );
        counters.insert("fuse.page_notices".to_owned(), json!(pages));
        counters.insert("fuse.name_notices".to_owned(), json!(names));
        let polled_us = served.idle_polling.polled().as_micros();
        counters.insert("fuse.idle_poll_us".to_owned(), json!(polled_us));
        let mut out = self.store.identity();
        if self.fs.has_large_files() {
            let (count, bytes) = self.fs.external_usage();
            out["large_files"] = json!(count);
            out["large_files_bytes"] = json!(bytes);
            out["passthrough"] = json!(served.has_passthrough);
        }
        out["xattr"] = json!(served.has_xattrs);
        out["pid"] = json!(std::process::id());
        out["pid_namespace"] = json!(crate::pid_namespace());
        out["uptime_s"] = json!(self.clock.monotonic().as_secs());
        out["resident_bytes"] = json!(resident_bytes());
        if let Some(transport) = served.transport {
            out["transport"] = json!(transport.name());
        }
        if let Some(reason) = served.refusal {
            out["transport_reason"] = json!(reason);
        }
        if let Some(path) = self.store.keys_socket() {
            set_path(&mut out, "kv_socket", &path);
        }
        self.describe_history(&mut out);
        if let Some(keeper) = served.keeper {
            out["restart"] = keeper;
        }
        out["version"] = json!(env!("CARGO_PKG_VERSION"));
        out["counters"] = Value::Object(counters);
        out
    }

    /// Adds the policies of snapshots, and the history.
    fn describe_history(&self, out: &mut Value) {
        let policies = policies_of(&self.fs);
        if let Some(next) = policies.iter().map(|policy| policy.next).min() {
            out["snapshot_policies"] = json!(policies.len());
            out["next_snapshot_ns"] = json!(next.0);
        }
        if let Some(error) = policies.into_iter().find_map(|policy| policy.last_error) {
            out["snapshot_policy_error"] = json!(error);
        }
        if let Ok(moments) = self.fs.history().moments()
            && let (Some(first), Some(last)) = (moments.first(), moments.last())
        {
            out["history_moments"] = json!(moments.len());
            out["history_since_ns"] = json!(first.created.0);
            out["history_last_ns"] = json!(last.created.0);
        }
        if let Some(error) = self.fs.history().last_error() {
            out["history_error"] = json!(error);
        }
    }
}

/// Memory that this process has in use, as the system counts it; 0 where it does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
