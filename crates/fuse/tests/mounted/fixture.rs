//! A mounted file system that is unmounted at the end of its test.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::Arc;
use stitch_fs::{Caller, DirName, FileSystem, FsOptions, NewNode};
use stitch_fuse::wire::opcode::Opcode;
use stitch_fuse::{
    Adapter, AdapterOptions, CountsSnapshot, Handler, MountOptions, RootReport, RunningSession,
    Session, SessionConfig, Transport, TransportChoice, Trim, Views,
};
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

use crate::memfs::{MemFs, MemOptions, SOON};
use crate::switch::Turned;

/// Reports whether this process can mount; prints the reason for skipping a test if not.
pub(crate) fn can_mount() -> bool {
    let reason = if !Path::new("/dev/fuse").exists() {
        "/dev/fuse is missing"
    } else if !rustix::process::geteuid().is_root() {
        "not root"
    } else {
        return true;
    };
    #[expect(
        clippy::print_stderr,
        reason = "the output of a test run shows skipped tests"
    )]
    {
        eprintln!("SKIP: {reason}");
    }
    false
}

/// Returns the real file system on the model engine, both as a handler and as itself.
pub(crate) fn store_handler(options: FsOptions) -> (Arc<Adapter>, Arc<FileSystem>) {
    let fs = store(options);
    let adapter = Arc::new(Adapter::new(Arc::clone(&fs), AdapterOptions::default()));
    (adapter, fs)
}

fn store(options: FsOptions) -> Arc<FileSystem> {
    let mut registry = UpsertRegistry::default();
    stitch_fs::register_upserts(&mut registry);
    let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(registry));
    FileSystem::format(&engine, &options, (0, 0)).unwrap();
    Arc::new(FileSystem::open(engine, options).unwrap())
}

/// The report of [`Mounted::served`], of the greatest length.
pub(crate) const REPORT: &[u8] = &[b'r'; 16_376];

enum Backend {
    Memory(Arc<MemFs>),
    Store(Arc<FileSystem>),
}

pub(crate) struct Mounted {
    // Dropped first: the directory can go only when nothing is mounted on it.
    pub(crate) session: RunningSession,
    backend: Backend,
    dir: tempfile::TempDir,
}

impl Mounted {
    /// A file system in memory.
    pub(crate) fn new(options: MemOptions, config: &SessionConfig) -> Option<Self> {
        let fs = Arc::new(MemFs::new(options));
        Self::mount(fs.clone(), Backend::Memory(fs), config)
    }

    pub(crate) fn plain() -> Option<Self> {
        Self::new(MemOptions::default(), &SessionConfig::default())
    }

    /// A file system in memory whose requests come by `io_uring`, if this kernel can.
    pub(crate) fn ring(options: MemOptions) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let _on = Turned::to(true)?;
        let config = SessionConfig {
            transport: TransportChoice::Only(Transport::Uring),
            ..SessionConfig::default()
        };
        let mounted = Self::new(options, &config)?;
        assert_eq!(mounted.session.transport(), Transport::Uring);
        Some(mounted)
    }

    /// The real file system, on an engine in memory.
    pub(crate) fn store() -> Option<Self> {
        Self::store_with(FsOptions::default(), &SessionConfig::default())
    }

    pub(crate) fn store_with(options: FsOptions, config: &SessionConfig) -> Option<Self> {
        let (adapter, fs) = store_handler(options);
        Self::mount(adapter, Backend::Store(fs), config)
    }

    /// The real file system on an engine in memory, for root alone.
    pub(crate) fn private() -> Option<Self> {
        let unchecked = AdapterOptions {
            kernel_checks: false,
            ..AdapterOptions::default()
        };
        Self::served(unchecked, SessionConfig::default())
    }

    /// The real file system on an engine in memory, with one report `a.report`.
    pub(crate) fn served(served: AdapterOptions, config: SessionConfig) -> Option<Self> {
        let fs = store(FsOptions::default());
        let report = RootReport::new("a.report", Arc::new(|| REPORT.to_vec()));
        let adapter = Adapter::new(Arc::clone(&fs), served).with_report(report);
        let options = MountOptions {
            allow_other: served.kernel_checks,
            default_permissions: served.kernel_checks,
            ..MountOptions::shared("store")
        };
        let config = SessionConfig {
            xattrs: served.xattrs,
            ..config
        };
        Self::mount_as(Arc::new(adapter), Backend::Store(fs), &options, &config)
    }

    /// The real file system on an engine in memory, with its snapshots. Each tells its name.
    pub(crate) fn with_snapshots(config: &SessionConfig) -> Option<Self> {
        let fs = store(FsOptions::default());
        let adapter = Adapter::new(Arc::clone(&fs), AdapterOptions::default());
        let describe = |info: &stitch_fs::SnapshotInfo| info.name.clone().into_bytes();
        let views = Views::new(adapter, Arc::new(describe));
        Self::mount(Arc::new(views), Backend::Store(fs), config)
    }

    /// The real file system on an engine in memory, which is trimmed by `trim`.
    pub(crate) fn trimmed(trim: Trim, config: &SessionConfig) -> Option<Self> {
        let fs = store(FsOptions::default());
        let adapter = Adapter::new(Arc::clone(&fs), AdapterOptions::default());
        Self::mount(
            Arc::new(adapter.with_trim(trim)),
            Backend::Store(fs),
            config,
        )
    }

    fn mount(handler: Arc<dyn Handler>, backend: Backend, config: &SessionConfig) -> Option<Self> {
        let options = MountOptions::shared("memfs");
        Self::mount_as(handler, backend, &options, config)
    }

    fn mount_as(
        handler: Arc<dyn Handler>,
        backend: Backend,
        options: &MountOptions,
        config: &SessionConfig,
    ) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut config = config.clone();
        if config.transport == TransportChoice::Auto {
            // Independent of the switch, which other tests turn.
            config.transport = TransportChoice::Only(Transport::Dev);
        }
        let session = Session::mount(handler, dir.path(), options, &config).unwrap();
        let session = session.spawn().unwrap();
        Some(Self {
            session,
            backend,
            dir,
        })
    }

    pub(crate) fn memory(&self) -> &Arc<MemFs> {
        match &self.backend {
            Backend::Memory(fs) => fs,
            Backend::Store(_) => panic!("a test of the file system in memory"),
        }
    }

    pub(crate) fn fs(&self) -> &Arc<FileSystem> {
        match &self.backend {
            Backend::Store(fs) => fs,
            Backend::Memory(_) => panic!("a test of the real file system"),
        }
    }

    /// Makes a directory with empty files, without the kernel.
    pub(crate) fn populate(&self, name: &str, count: u32) {
        let fs = match &self.backend {
            Backend::Memory(fs) => return fs.populate(name.as_bytes(), count),
            Backend::Store(fs) => fs,
        };
        let at = DirName::new(Ino::ROOT, name.as_bytes());
        let new = NewNode {
            perm: 0o755,
            umask: 0,
        };
        let dir = fs.make_dir(&Caller::ROOT, at, &new).unwrap();
        for i in 0..count {
            let name = format!("file-{i}");
            let at = DirName::new(dir.ino, name.as_bytes());
            let file = fs.create(&Caller::ROOT, at, &new).unwrap();
            fs.forget(file.ino, 1);
        }
        fs.forget(dir.ino, 1);
    }

    /// Returns the number of inodes, including the root.
    pub(crate) fn inodes_used(&self) -> u64 {
        let space = rustix::fs::statvfs(self.dir.path()).unwrap();
        space.f_files - space.f_ffree
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Counts the requests during `body` and until the kernel is quiet. Leaves out FORGET, which
    /// depends on the machine's memory and for which no process waits.
    pub(crate) fn requests_of(&self, body: impl FnOnce()) -> CountsSnapshot {
        let before = self.quiet();
        body();
        let sent = self.quiet().since(&before);
        sent.without(Opcode::Forget).without(Opcode::BatchForget)
    }

    /// Waits until the kernel has sent nothing for a while: RELEASE and FORGET come late.
    fn quiet(&self) -> CountsSnapshot {
        let clock = SystemClock::default();
        let mut last = self.session.counts();
        loop {
            clock.sleep(Duration::from_millis(30));
            let now = self.session.counts();
            if now == last {
                return now;
            }
            last = now;
        }
    }
}

/// Waits for an event in another thread or process.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = SystemClock::default();
    while !is_so() {
        assert!(clock.monotonic() < SOON, "waited in vain for: {what}");
        clock.sleep(Duration::from_millis(5));
    }
}

/// Runs a shell script as a user, the path as its first argument.
pub(crate) fn run_as(uid: u32, script: &str, path: &Path) -> bool {
    let mut command = Command::new("sh");
    command
        .uid(uid)
        .gid(uid)
        .args(["-c", script, "sh"])
        .arg(path);
    command.output().unwrap().status.success()
}

/// Runs each test on a file system in memory, by both transports, and on the real one over an
/// engine in memory.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod memory {
            $(#[test]
            fn $name() {
                if let Some(mounted) = crate::fixture::Mounted::plain() {
                    super::$name(&mounted);
                }
            })*
        }
        mod ring {
            $(#[test]
            fn $name() {
                let options = crate::memfs::MemOptions::default();
                if let Some(mounted) = crate::fixture::Mounted::ring(options) {
                    super::$name(&mounted);
                }
            })*
        }
        mod store {
            $(#[test]
            fn $name() {
                if let Some(mounted) = crate::fixture::Mounted::store() {
                    super::$name(&mounted);
                }
            })*
        }
    };
}
pub(crate) use on_both;
