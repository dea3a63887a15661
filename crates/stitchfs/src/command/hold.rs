//! The holder of a mount: a small process that keeps the mount's descriptors and its ledger, and
//! starts a daemon for it again whenever one dies.
//!
//! 1. It starts this program once more, as the daemon, with a [`Link`] for standard input.
//! 2. The daemon mounts, and sends what is to be kept; it says when it serves.
//! 3. A daemon that dies is followed by another, which is sent what was kept. More than
//!    [`RESTARTS_MAX`] in [`WINDOW`], and the holder gives up: its descriptors close, and with them
//!    the connection.
//! 4. A daemon that is asked for an upgrade ends by itself, and the program on disk follows. If
//!    that does not come to serve the mount, the program from before does.
//!
//! The holder opens no store and starts no thread, so that little can befall it. Programs are
//! started by their descriptors: after a crash the one that ran runs again, whatever is on the disk
//! by then.

mod messages;
mod program;
mod upgrade;
mod worker;

use super::daemon;
use super::log;
use super::mount::{self, MountArgs};
use super::startup;
use anyhow::{Context, Result, bail};
use messages::{Order, Report};
use program::Program;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};
use signal_hook::consts::SIGCHLD;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::survive::link::Link;
use upgrade::Upgrade;

pub(super) use worker::run as run_worker;

/// Daemons that may die in [`WINDOW`].
const RESTARTS_MAX: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);

/// Keeps a mount until it is unmounted. The exit code is that of its first daemon, if that did not
/// come to serve.
pub(super) fn run(args: &MountArgs, command_line: &[OsString], in_background: bool) -> Result<u8> {
    log::subscribe(args.log_target(in_background))?;
    super::daemon::keep_from_children();
    let signals = Signals::new(in_background)?;
    let program = Program::of_this_process()?;
    let mut holder = Holder::new(program, args, command_line, in_background)?;
    loop {
        signals.wait(&holder.link)?;
        if signals.end_is_wanted() {
            holder.end();
        }
        while let Some(message) = holder.link.receive_now()? {
            let report = Report::decode(&message.bytes)?;
            holder.hear(report, message.descriptors);
        }
        signals.forget_children();
        if let Some(status) = holder
            .child
            .try_wait()
            .context("cannot wait for the daemon")?
            && let Some(code) = holder.follow(status)?
        {
            return Ok(code);
        }
    }
}

/// Signals, as descriptors that can be waited for.
struct Signals {
    child: UnixStream,
    end: UnixStream,
}

impl Signals {
    fn new(in_background: bool) -> Result<Self> {
        let (child, child_writer) = UnixStream::pair().context("cannot wait for signals")?;
        let (end, end_writer) = UnixStream::pair().context("cannot wait for signals")?;
        for stream in [&child, &end] {
            stream.set_nonblocking(true)?;
        }
        signal_hook::low_level::pipe::register(SIGCHLD, child_writer)?;
        for signal in startup::end_signals(in_background) {
            signal_hook::low_level::pipe::register(signal, end_writer.try_clone()?)?;
        }
        Ok(Self { child, end })
    }

    /// Waits for a signal, or a word from the daemon.
    fn wait(&self, link: &Link) -> Result<()> {
        let mut watched = [
            PollFd::new(&self.child, PollFlags::IN),
            PollFd::new(&self.end, PollFlags::IN),
            PollFd::new(link, PollFlags::IN),
        ];
        match poll(&mut watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for the daemon"),
        }
    }

    fn end_is_wanted(&self) -> bool {
        matches!((&self.end).read(&mut [0; 16]), Ok(1..))
    }

    /// To be called before the child is looked at: what comes later wakes again.
    fn forget_children(&self) {
        let _ = (&self.child).read(&mut [0; 64]);
    }
}

struct Holder {
    program: Program,
    command_line: Vec<OsString>,
    in_background: bool,
    mount_point: PathBuf,
    child: Child,
    link: Link,
    kept: Option<(Value, Vec<OwnedFd>)>,
    is_ready: bool,
    is_ending: bool,
    deaths: VecDeque<Duration>,
    restarts: u64,
    upgrade: Option<Upgrade>,
    /// What came of the last upgrade.
    upgraded: Value,
    clock: SystemClock,
}

impl Holder {
    fn new(
        program: Program,
        args: &MountArgs,
        command_line: &[OsString],
        in_background: bool,
    ) -> Result<Self> {
        let (child, link) = program.start(command_line, in_background)?;
        let holder = Self {
            program,
            command_line: command_line.to_vec(),
            in_background,
            mount_point: args.mount_point().to_owned(),
            child,
            link,
            kept: None,
            is_ready: false,
            is_ending: false,
            deaths: VecDeque::new(),
            restarts: 0,
            upgrade: None,
            upgraded: Value::Null,
            clock: SystemClock::default(),
        };
        let about = holder.about();
        holder.order(&Order::Begin { about });
        Ok(holder)
    }

    /// What the daemon says of us.
    fn about(&self) -> Value {
        let mut about = json!({
            "holder_pid": std::process::id(),
            "restarts": self.restarts,
            "upgrade": self.upgraded,
        });
        stitchfs::set_path(&mut about, "program", self.program.path());
        about
    }

    /// A daemon that does not hear has died, or will.
    fn order(&self, order: &Order) {
        if let Err(error) = self.link.send(&order.encode(), &[]) {
            tracing::debug!(%error, "the daemon does not hear");
        }
    }

    fn hear(&mut self, report: Report, descriptors: Vec<OwnedFd>) {
        match report {
            Report::Keep { state } => self.kept = Some((state, descriptors)),
            Report::Ready => self.ready(),
            Report::Upgrade { token } => self.begin_upgrade(token),
            Report::HandedOver { waited_us } => self.handed_over(Duration::from_micros(waited_us)),
        }
    }

    /// The mount is served, perhaps again.
    fn ready(&mut self) {
        let is_first = !std::mem::replace(&mut self.is_ready, true);
        let told = match (is_first, self.in_background) {
            (false, _) => Ok(()),
            (true, true) => daemon::report_ready(),
            (true, false) => mount::report_ready(&self.mount_point),
        };
        if let Err(error) = told {
            // The command that waited for the mount has ended.
            tracing::warn!(%error, "the mount is undone");
            self.is_ending = true;
        }
        if self.is_handed_over() {
            self.finish_upgrade();
        }
        let about = self.about();
        self.order(&Order::About(about));
        if self.is_ending {
            self.end();
        }
    }

    /// Asks the daemon to unmount.
    fn end(&mut self) {
        self.is_ending = true;
        let id = i32::try_from(self.child.id()).ok();
        if let Some(pid) = id.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// The daemon has ended: the exit code, unless another one follows.
    fn follow(&mut self, status: ExitStatus) -> Result<Option<u8>> {
        // What it said last.
        while let Some(message) = self.link.receive_now()? {
            let report = Report::decode(&message.bytes)?;
            self.hear(report, message.descriptors);
        }
        let Some((_, descriptors)) = &self.kept else {
            return never_served(status).map(Some);
        };
        if is_closed(descriptors)? {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(Some(code.unwrap_or(0)));
        }
        if self.is_handed_over() {
            self.swap_program(status)?;
        } else {
            self.note_death(status)?;
        }
        self.start_again()?;
        Ok(None)
    }

    fn note_death(&mut self, status: ExitStatus) -> Result<()> {
        let now = self.clock.monotonic();
        self.fail_upgrade();
        self.deaths.push_back(now);
        while self.deaths.front().is_some_and(|&then| now - then > WINDOW) {
            self.deaths.pop_front();
        }
        if self.deaths.len() > RESTARTS_MAX {
            let (times, seconds) = (self.deaths.len(), WINDOW.as_secs());
            let gave_up = format!(
                "the daemon died {times} times within {seconds} s ({status}) and is not started \
                 again; unmount, see the log, and mount again"
            );
            tracing::error!("{gave_up}");
            bail!(gave_up);
        }
        self.restarts += 1;
        tracing::warn!(%status, restarts = self.restarts, "the daemon died and is started again");
        Ok(())
    }

    fn start_again(&mut self) -> Result<()> {
        let Some((state, descriptors)) = &self.kept else {
            bail!("nothing is kept of the mount");
        };
        let order = Order::TakeOver {
            state: state.clone(),
            about: self.about(),
        };
        let (child, link) = self.program.start(&self.command_line, self.in_background)?;
        self.child = child;
        self.link = link;
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if let Err(error) = self.link.send(&order.encode(), &borrowed) {
            tracing::warn!(%error, "the new daemon does not hear");
        }
        Ok(())
    }
}

/// A first daemon that ended before there was a mount to keep: it has said why.
fn never_served(status: ExitStatus) -> Result<u8> {
    if let Some(signal) = status.signal() {
        bail!("the daemon was ended by signal {signal}");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(1))
}

/// Whether the mount is gone for good: unmounted, or aborted.
fn is_closed(descriptors: &[OwnedFd]) -> Result<bool> {
    // The first is the ledger.
    let Some(device) = descriptors.get(1) else {
        return Ok(true);
    };
    let mut watched = [PollFd::new(device, PollFlags::empty())];
    poll(&mut watched, Some(&rustix::event::Timespec::default()))
        .context("cannot ask for the mount")?;
    Ok(watched[0].revents().contains(PollFlags::ERR))
}
