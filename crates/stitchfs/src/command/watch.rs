//! The watcher of a daemon: a second process that aborts the FUSE connection if the daemon is
//! killed.
//!
//! The kernel aborts a connection when its last descriptor closes. A thread of the daemon that
//! waits in a notice until pages are written back keeps the descriptors open, and no signal ends
//! it: the kernel waits there for WRITEs which no thread is left to answer. Programs that use the
//! mount would hang with it. So a process without descriptors of the mount gets a signal when the
//! daemon's main thread dies, and aborts the connection, which answers all that waits with an
//! error.
//!
//! ```text
//! daemon  -- starts ------------> watcher: prctl(PR_SET_PDEATHSIG), waits for signals
//!   kill -9: all threads end, but the one in a notice
//!   main thread is gone  -------> SIGUSR1: abort; the notice returns, the daemon is gone
//! daemon ends by itself  -------> SIGTERM: the watcher ends
//! ```
//!
//! The mount stays, without a daemon, as after any `kill -9` (docs/adr/0158).

use super::daemon;
use super::role::Stage;
use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Pid, Signal};
use rustix::thread::UnshareFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use stitch_fuse::mount;

/// Environment of the watcher: the process that it watches, and the connection's number.
const WATCHED: &str = "STITCHFS_WATCHED";
const CONNECTION: &str = "STITCHFS_CONNECTION";
/// Where the kernel's control files for FUSE connections are.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// A watcher that runs. Dropped, it ends.
pub(super) struct Watcher(Child);

impl Watcher {
    /// Starts a watcher for the mount at `mount_point`, which this process serves. To be called by
    /// the main thread: its death is the signal.
    ///
    /// # Errors
    /// The mount is not in the table, or no process can be started.
    pub(super) fn start(mount_point: &Path) -> Result<Self> {
        let entry = mount::mounted_at(mount_point)?;
        let (_, connection) = entry.context("the mount is gone")?.device;
        daemon::keep_from_children();
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let mut command = Command::new(program);
        let child = Stage::Watcher
            .mark(&mut command)
            .arg0("stitchfs-watcher")
            .env(WATCHED, std::process::id().to_string())
            .env(CONNECTION, connection.to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the watcher")?;
        Ok(Self(child))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(id) = Pid::from_raw(self.0.id().cast_signed()) {
            // It may have ended by itself, and is not waited for yet.
            let _ = rustix::process::kill_process(id, Signal::TERM);
        }
        if let Err(error) = self.0.wait() {
            tracing::warn!(%error, "the watcher cannot be waited for");
        }
    }
}

/// Waits for the end of the daemon.
pub(super) fn run() -> Result<()> {
    let watched: i32 = number(WATCHED)?;
    let connection: u32 = number(CONNECTION)?;
    // A Ctrl-C in the terminal is for the daemon, which ends the watcher.
    let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])?;
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
    let parent = rustix::process::getppid().map(Pid::as_raw_nonzero);
    if parent.is_none_or(|parent| parent.get() != watched) || has_ended(watched) {
        // It died before the signal was asked for.
        return abort(connection);
    }
    for signal in signals.forever() {
        match signal {
            SIGUSR1 => return abort(connection),
            SIGTERM => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

/// Reports whether the main thread of a process has ended. Other threads of it may be left.
fn has_ended(process: i32) -> bool {
    // "PID (NAME) STATE ...", with any characters in the name.
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().map(str::trim_start);
    state.is_some_and(|state| state.starts_with(['Z', 'X']))
}

fn number<N: std::str::FromStr>(variable: &str) -> Result<N> {
    let text = std::env::var(variable).with_context(|| format!("{variable} is not set"))?;
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => bail!("{variable} is no number"),
    }
}

/// Aborts a connection. Does nothing to one that is gone.
fn abort(connection: u32) -> Result<()> {
    let control = Path::new(CONTROL);
    if !control.join(connection.to_string()).exists() {
        show_control()?;
    }
    let file = control.join(connection.to_string()).join("abort");
    match std::fs::write(&file, "1") {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        written => written.with_context(|| file.display().to_string()),
    }
}

/// Mounts the control file system where only this process sees it. Needs root.
fn show_control() -> Result<()> {
    leave_namespace().context("cannot leave the mount namespace")?;
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .context("cannot make the mount namespace private")?;
    rustix::mount::mount("fusectl", CONTROL, "fusectl", MountFlags::empty(), None)
        .context("cannot mount the control files of FUSE")
}

#[expect(unsafe_code, reason = "unshare can leave threads of a process apart")]
fn leave_namespace() -> rustix::io::Result<()> {
    // SAFETY: the watcher has one thread. Only its mount namespace changes, and no descriptor or
    // memory is shared or taken away.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
}
