//! Runs the command to its end, and ends what it leaves behind.
//!
//! This process is the subreaper of its descendants: one whose parent ends becomes its child. So
//! when no child is left, no descendant is. Only children are signalled: their numbers cannot be
//! used again before they are waited for. If this process is killed, so is the command.

use super::super::output;
use super::super::users::Process;
use super::signals::{BlockedSignals, Event};
use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};

/// Time between SIGTERM and SIGKILL for what the command leaves behind.
const GRACE: Duration = Duration::from_secs(5);
/// Time that killed processes have to end.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Exit codes of env(1).
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// Runs a command and returns the code to end with. If `waits`, its descendants end by themselves.
///
/// # Errors
/// If the system refuses, or a descendant does not end though it was killed.
pub(super) fn run(command: &mut Command, waits: bool) -> Result<u8> {
    set_child_subreaper(Some(getpid())).context("cannot take over orphaned processes")?;
    let signals = BlockedSignals::block()?;
    let id = match start(command, signals) {
        Ok(id) => id,
        Err(error) => return not_started(command, error),
    };
    let mut family = Family {
        signals,
        main: id,
        status: None,
        is_empty: false,
    };
    family.run_main()?;
    if waits {
        family.run_all()?;
    } else {
        family.end_all()?;
    }
    let status = family.status.context("the command's end was not seen")?;
    Ok(code_of(status))
}

/// Starts a command that dies with this process.
#[expect(unsafe_code, reason = "code between fork and exec")]
fn start(command: &mut Command, signals: BlockedSignals) -> std::io::Result<Pid> {
    let parent = getpid();
    let die_together = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It ended before the signal was asked for.
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        signals.unblock()
    };
    // SAFETY: three system calls, and no memory is allocated.
    unsafe { command.pre_exec(die_together) };
    command.spawn().map(|child| Pid::from_child(&child))
}

fn not_started(command: &Command, error: std::io::Error) -> Result<u8> {
    let code = match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::PermissionDenied | ErrorKind::IsADirectory => NOT_EXECUTABLE,
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => NOT_EXECUTABLE,
        _ => return Err(error).context("cannot start the command"),
    };
    let program = command.get_program().display();
    output::note(&format!("{program}: cannot be executed: {error}"));
    Ok(code)
}

/// Returns the exit code of a command as a shell gives it.
fn code_of(status: WaitStatus) -> u8 {
    let by_signal = status.terminating_signal().map(|signal| BY_SIGNAL + signal);
    let code = status.exit_status().or(by_signal);
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// The command and its descendants.
struct Family {
    signals: BlockedSignals,
    /// The command.
    main: Pid,
    /// How it ended.
    status: Option<WaitStatus>,
    /// No descendant is left.
    is_empty: bool,
}

impl Family {
    /// Waits until the command has ended.
    fn run_main(&mut self) -> Result<()> {
        self.reap()?;
        while self.status.is_none() {
            if let Event::PassOn(signal) = self.signals.wait(None)? {
                send(self.main, signal)?;
            }
            self.reap()?;
        }
        Ok(())
    }

    /// Waits until all descendants have ended.
    fn run_all(&mut self) -> Result<()> {
        while !self.is_empty {
            if let Event::PassOn(signal) = self.signals.wait(None)? {
                children()?
                    .into_iter()
                    .try_for_each(|id| send(id, signal))?;
            }
            self.reap()?;
        }
        Ok(())
    }

    /// Ends all descendants.
    fn end_all(&mut self) -> Result<()> {
        for (signal, limit) in [(Signal::TERM, GRACE), (Signal::KILL, KILL_LIMIT)] {
            if !self.end_by(signal, limit)? {
                return Ok(());
            }
        }
        let left: Vec<String> = children()?
            .into_iter()
            .filter_map(|id| u32::try_from(id.as_raw_nonzero().get()).ok())
            .map(|id| Process::new(id).to_string())
            .collect();
        bail!("killed, and still there: {}", left.join(", "));
    }

    /// Sends a signal to each descendant, once, when it is or becomes a child. Reports whether some
    /// are left after `limit`.
    fn end_by(&mut self, signal: Signal, limit: Duration) -> Result<bool> {
        let clock = SystemClock::default();
        let end = clock.monotonic() + limit;
        let mut told = BTreeSet::new();
        while !self.is_empty {
            for id in children()? {
                if told.insert(id.as_raw_nonzero()) {
                    send(id, signal)?;
                    // A stopped process takes the signal when it goes on.
                    send(id, Signal::CONT)?;
                }
            }
            let left = end.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return Ok(true);
            }
            self.signals.wait(Some(left))?;
            self.reap()?;
        }
        Ok(false)
    }

    /// Takes the status of each child that has ended.
    fn reap(&mut self) -> Result<()> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((id, status))) if id == self.main => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(()),
                Err(Errno::CHILD) => {
                    self.is_empty = true;
                    return Ok(());
                }
                Err(error) => return Err(error).context("cannot wait for processes"),
            }
        }
    }
}

/// Sends a signal to a child, which may have ended.
fn send(id: Pid, signal: Signal) -> Result<()> {
    match kill_process(id, signal) {
        // One that has taken other ids ends by itself, or is named when it does not.
        Ok(()) | Err(Errno::SRCH | Errno::PERM) => Ok(()),
        Err(error) => Err(error).context("cannot send a signal"),
    }
}

/// Returns the children of this process.
fn children() -> Result<Vec<Pid>> {
    let own = getpid().as_raw_nonzero().get();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("/proc")? {
        let path = entry.context("/proc")?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(id) = name
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw)
        else {
            continue;
        };
        // One that is gone has no parent.
        let stat = std::fs::read(path.join("stat")).unwrap_or_default();
        if parent_in(&stat) == Some(own) {
            found.push(id);
        }
    }
    Ok(found)
}

/// Returns the parent's number from `/proc/PID/stat`: `id (name) state parent ...`.
fn parent_in(stat: &[u8]) -> Option<i32> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_whatever_the_name() {
        assert_eq!(parent_in(b"12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in(b"12 (a) R 3 (b) S 7 12 12 0"), Some(7));
        for broken in [&b""[..], b"12", b"12 (sh)", b"12 (sh) S", b"12 (sh) S x"] {
            assert_eq!(parent_in(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_child_is_listed_until_it_is_waited_for() {
        let mut child = Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let id = Pid::from_child(&child);
        assert!(children().unwrap().contains(&id));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!children().unwrap().contains(&id));
    }
}
