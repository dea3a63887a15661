//! `stitchfs mount`: serves a store at a mount point.

mod arguments;
mod ending;
mod keys;
mod open;
mod remount;
mod rights;

pub(super) use arguments::{MountArgs, MountHelperArgs};
pub(super) use ending::{Ending, catch_signals, end_by_signals};

use super::daemon::{self, Started};
use super::log::{self, Target};
use super::options::MountWords;
use super::role::{Role, Stage};
use super::watch::Watcher;
use super::{access, hold, live, output, startup, utab};
use anyhow::{Context, Result, bail};
use rights::Rights;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use stitch_fuse::mount;
use stitch_fuse::transport::uring::{Refusal, SWITCH_PATH, Switch};
use stitch_fuse::{MountOptions, SessionConfig};
use stitchfs::{Host, Store};

pub(super) fn run(args: &MountArgs, command_line: &[OsString]) -> Result<u8> {
    if args.fake {
        return Ok(0);
    }
    let words = args.words();
    if words.remount {
        remount::run(args, &words)?;
        return Ok(0);
    }
    match Role::of(Stage::current(), args.foreground, words.restart) {
        Role::Worker => hold::run_worker(args),
        Role::Launcher => {
            startup::reset_for_daemon()?;
            launch(args, command_line)
        }
        Role::Holder { in_background } => {
            detach(in_background)?;
            hold::run(args, command_line, in_background)
        }
        Role::Daemon { in_background } => {
            detach(in_background)?;
            serve(args, in_background)?;
            Ok(0)
        }
    }
}

/// Detaches a process that stays from what started it. In the background, the launcher has reset
/// what it inherits.
fn detach(in_background: bool) -> Result<()> {
    if in_background {
        daemon::leave_terminal();
        return Ok(());
    }
    startup::reset_for_daemon()
}

/// Starts a daemon or holder in the background, and waits until the mount answers.
fn launch(args: &MountArgs, command_line: &[OsString]) -> Result<u8> {
    match daemon::start(command_line)? {
        Started::Serving => {
            daemon::await_answer(&args.mount_point)?;
            Ok(0)
        }
        Started::Ended(code) => Ok(code),
    }
}

/// A store that is open, and how it is to be mounted.
pub(super) struct Prepared {
    pub(super) store: Store,
    pub(super) options: MountOptions,
    pub(super) config: SessionConfig,
}

impl MountArgs {
    fn words(&self) -> MountWords {
        MountWords::new(self.options.iter().flat_map(|list| &list.0))
    }

    pub(super) const fn foreground(&self) -> bool {
        self.foreground
    }

    pub(super) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Where events go.
    pub(super) fn log_target(&self, in_background: bool) -> Target<'_> {
        self.log_target_or(self.log.as_deref(), in_background)
    }

    /// Where events go, with this file instead of ours.
    #[expect(clippy::unused_self, reason = "reads as what it is")]
    pub(super) fn log_target_or<'a>(
        &self,
        log: Option<&'a Path>,
        in_background: bool,
    ) -> Target<'a> {
        match log {
            Some(path) => Target::File(path),
            None if in_background => Target::System,
            None => Target::Terminal,
        }
    }

    /// The file of events, wherever a later daemon is started.
    pub(super) fn log_path(&self) -> Result<Option<PathBuf>> {
        let path = self.log.as_ref().map(std::path::absolute).transpose();
        path.context("cannot find the log")
    }

    /// Does all that comes before the mount.
    pub(super) fn prepare(&self) -> Result<Prepared> {
        let words = self.words();
        let rights = Rights::of(&words)?;
        clear_mount_point(&self.mount_point)?;
        live::check_target(&self.mount_point)?;
        if words.enable_uring {
            Switch::turn_on().with_context(|| {
                format!("enable-uring: only root can write to {SWITCH_PATH}, from Linux 6.14 on")
            })?;
        }
        let config = config(&words);
        // Before anything is made.
        config.check()?;
        keys::check(&words)?;
        let is_new = open::create_if_missing(self, &words)?;
        if !is_new && (words.uid.is_some() || words.gid.is_some() || words.umask.is_some()) {
            output::note("uid, gid and umask are for new stores only; they change nothing here");
        }
        let store = open::open(self, &words)?;
        access::warn_if_wide(store.path());
        for finding in store.damage() {
            output::note(&format!("{}: {}", finding.rule, finding.detail));
        }
        if !self.mount_point.exists() {
            std::fs::create_dir_all(&self.mount_point)
                .with_context(|| format!("cannot make {}", self.mount_point.display()))?;
        }
        keys::serve(&store, &words)?;
        let options = rights::mount_options(&words, rights, store.path());
        Ok(Prepared {
            store,
            options,
            config,
        })
    }

    /// Whether the kernel checks modes in this mount, and how it is served.
    pub(super) fn checks_and_config(&self) -> Result<(bool, SessionConfig)> {
        let words = self.words();
        Ok((Rights::of(&words)?.default_permissions, config(&words)))
    }
}

fn config(words: &MountWords) -> SessionConfig {
    SessionConfig {
        transport: words.transport,
        held: words.restart,
        idle_poll: words.idle_poll,
        passthrough: words.passthrough,
        atomic_writes: words.atomic_write,
        xattrs: !words.no_xattr,
        id_mapped_mounts: stitchfs::sees_all_processes(),
        ..SessionConfig::default()
    }
}

/// Mounts and serves until it is unmounted.
fn serve(args: &MountArgs, in_background: bool) -> Result<()> {
    log::subscribe(args.log_target(in_background))?;
    let Prepared {
        store,
        options,
        config,
    } = args.prepare()?;
    let signals = catch_signals(in_background)?;
    let host = Host::mount(store, &args.mount_point, &options, &config)?;
    // Where it is merely off, `info` says how to switch it on: few who mount can.
    let refused = host.transport().1;
    if let Some(reason) = refused.filter(|reason| !matches!(reason, Refusal::Off)) {
        output::note(&format!("{reason}; requests come by /dev/fuse"));
    }
    let _watcher = watcher(&args.mount_point);
    let ending = Ending {
        stopper: host.stopper(),
        gate: Some(host.gate()),
        in_background,
    };
    end_by_signals(signals, ending)?;
    if in_background {
        // Fails if the command that waited has ended: dropping the host undoes the mount.
        daemon::report_ready()?;
    } else {
        report_ready(&args.mount_point)?;
    }
    let _listed = utab::Listed::new(&args.mount_point);
    startup::leave_directory()?;
    host.join()?;
    Ok(())
}

/// Starts the watcher of a mount. Without one, a mount whose daemon is killed may hang.
fn watcher(mount_point: &Path) -> Option<Watcher> {
    let started = Watcher::start(mount_point);
    started
        .inspect_err(|error| tracing::warn!(%error, "the mount has no watcher"))
        .ok()
}

/// Prints that a mount in the foreground serves: `MNT: ready`.
///
/// The protocol is negotiated and the threads run, so no request to the mount is needed to know
/// that. None may be sent: a thread of the daemon that waits for its own daemon cannot be killed,
/// and holds the descriptors that keep the connection open.
pub(super) fn report_ready(mount_point: &Path) -> Result<()> {
    output::print(&format!("{}: ready", mount_point.display()))
}

/// Takes away what an earlier daemon left behind; refuses a mount of ours that lives.
fn clear_mount_point(mount_point: &Path) -> Result<()> {
    if mount::detach_dead(mount_point).unwrap_or(0) > 0 {
        let shown = mount_point.display();
        output::note(&format!(
            "{shown}: an earlier mount had lost its daemon and is cleared"
        ));
    }
    let entry = mount::mounted_at(mount_point).ok().flatten();
    if let Some(entry) = entry.filter(mount::table::MountEntry::is_ours) {
        bail!(
            "{}: {} is mounted there already; `stitchfs umount` takes it away",
            mount_point.display(),
            entry.source.display()
        );
    }
    Ok(())
}
