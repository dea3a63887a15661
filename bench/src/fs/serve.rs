//! A mount of ours, served by a process of its own: the store as `stitchfs mount` serves it, the
//! file system that does nothing, or the one that hands on; or another program's.

use super::null::NullFs;
use super::passthrough::{self, Passthrough};
use crate::cgroup::Cgroup;
use crate::{disk, process};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::{Handler, MountOptions, Session, SessionConfig, Transport, TransportChoice};
use stitchfs::{Host, LargeFiles, Store, StoreOptions};

const READY: &str = "ready";
/// A daemon that was unmounted has so long to write everything out.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a daemon is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    /// What it serves.
    pub(crate) what: What,
    /// Where it mounts.
    pub(crate) at: PathBuf,
    /// How requests come.
    pub(crate) transport: String,
    /// Control group to enter first.
    pub(crate) cgroup: Option<PathBuf>,
}

/// How large files are beside a store.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// The kernel reads them itself.
    pub(crate) is_read_by_kernel: bool,
}

/// What is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    /// The store on a device.
    Store {
        /// The device.
        device: PathBuf,
        /// Memory for buffers and caches.
        memory_bytes: u64,
        /// The mount is for all users, as mounts by root are by default; else for root alone.
        is_shared: bool,
        /// With extended attributes, as by default.
        has_xattrs: bool,
        /// Large files go beside it.
        beside: Option<Beside>,
    },
    /// A file system in memory that does nothing else.
    Null,
    /// A file system that hands every request on to this directory.
    Passthrough(PathBuf),
    /// Whatever this command mounts. What it says goes to the end of the file.
    Program {
        /// The command.
        words: Vec<String>,
        /// The file.
        log: PathBuf,
    },
}

/// The daemon's end: serves until it is unmounted.
pub(crate) fn run() -> Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let spec: Serve = serde_json::from_str(&line).context("expected what to serve")?;
    if let Some(group) = &spec.cgroup {
        Cgroup::enter(group)?;
    }
    if let What::Program { words, log } = &spec.what {
        return become_program(words, log);
    }
    let transport = [Transport::Uring, Transport::Dev]
        .into_iter()
        .find(|transport| transport.name() == spec.transport);
    let config = SessionConfig {
        transport: TransportChoice::Only(transport.context("no such transport")?),
        ..SessionConfig::default()
    };
    serve_what(&spec, config)
}

fn serve_what(spec: &Serve, config: SessionConfig) -> Result<()> {
    match &spec.what {
        What::Store {
            device,
            memory_bytes,
            is_shared,
            has_xattrs,
            beside,
        } => {
            stitchfs::allocator::hold_little();
            let options = StoreOptions {
                memory_bytes: *memory_bytes,
                large_files: beside.map_or(LargeFiles::AsMade, |_| {
                    LargeFiles::External(stitchfs::EXTERNAL_FROM_BYTES)
                }),
                ..StoreOptions::default()
            };
            let config = SessionConfig {
                xattrs: *has_xattrs,
                passthrough: beside.is_some_and(|beside| beside.is_read_by_kernel),
                ..config
            };
            let store = Store::open(device, &options)?;
            let mount = MountOptions {
                allow_other: *is_shared,
                default_permissions: *is_shared,
                ..MountOptions::shared(&device.display().to_string())
            };
            let host = Host::mount(store, &spec.at, &mount, &config)?;
            say_ready()?;
            Ok(host.join()?)
        }
        What::Null => {
            let mount = MountOptions::shared("null");
            serve(Arc::new(NullFs::new()), spec, (&mount, &config))
        }
        What::Passthrough(below) => {
            let handler = Arc::new(Passthrough::new(below)?);
            let config = passthrough::config(config);
            serve(handler, spec, (&passthrough::mount_options(), &config))
        }
        What::Program { .. } => bail!("a program mounts by itself"),
    }
}

/// Goes on as another program.
fn become_program(words: &[String], log: &Path) -> Result<()> {
    let (name, arguments) = words.split_first().context("expected a command")?;
    let log = File::options().create(true).append(true).open(log)?;
    let mut run = Command::new(name);
    run.args(arguments).stdin(Stdio::null());
    run.stdout(log.try_clone()?).stderr(log);
    Err(run.exec()).with_context(|| format!("cannot run {name}"))
}

/// Serves a file system that is not our store.
fn serve(
    handler: Arc<dyn Handler>,
    spec: &Serve,
    (mount, config): (&MountOptions, &SessionConfig),
) -> Result<()> {
    let session = Session::mount(handler, &spec.at, mount, config)?.spawn()?;
    say_ready()?;
    Ok(session.join()?)
}

fn say_ready() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{READY}")?;
    Ok(out.flush()?)
}

/// The parent's end: a daemon that serves. Dropped, it is unmounted and has ended.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    at: PathBuf,
}

impl Daemon {
    /// Starts one and waits until its mount answers.
    pub(crate) fn start(spec: &Serve) -> Result<Self> {
        let exe = std::env::current_exe().context("cannot find this program")?;
        // In a group of its own: an interrupt is for the parent, which unmounts.
        let mut child = Command::new(exe)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start a daemon")?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut daemon = Self {
            child,
            at: spec.at.clone(),
        };
        writeln!(stdin, "{}", serde_json::to_string(spec)?)?;
        if let What::Program { log, .. } = &spec.what {
            daemon.wait_for_mount(log)?;
            return Ok(daemon);
        }
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.trim() == READY, "the daemon did not mount");
        Ok(daemon)
    }

    /// Waits for a program that does not say when it has mounted.
    fn wait_for_mount(&mut self, log: &Path) -> Result<()> {
        let clock = SystemClock::default();
        while !disk::is_mounted(&self.at) {
            let is_over = self.child.try_wait()?.is_some() || clock.monotonic() > PATIENCE;
            if is_over {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!(
                    "it did not mount: {}",
                    said.lines().last().unwrap_or_default()
                );
            }
            clock.sleep(Duration::from_millis(5));
        }
        // It answers once it serves.
        rustix::fs::statvfs(&self.at)?;
        Ok(())
    }

    /// Most memory that it had resident so far, with the processes that it started.
    pub(crate) fn peak_bytes(&self) -> u64 {
        process::peak_rss_bytes_of_group(self.child.id())
    }

    /// Whether it has ended within the time that it has for that.
    fn has_ended(&mut self) -> bool {
        let clock = SystemClock::default();
        while clock.monotonic() < PATIENCE {
            match self.child.try_wait() {
                Ok(None) => clock.sleep(Duration::from_millis(5)),
                Ok(Some(_)) | Err(_) => return true,
            }
        }
        false
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = disk::unmount(&self.at) {
            eprintln!("{} stays mounted: {error:#}", self.at.display());
        }
        if !self.has_ended() {
            eprintln!("the daemon of {} does not end: killed", self.at.display());
            // If it ended meanwhile, that is well too.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
