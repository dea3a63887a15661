//! The guardian: a child process that cleans up after a run.
//!
//! The run reports each mount, process, switch of the kernel, link and folder through a pipe:
//! before it is made, and when it is gone. When the pipe closes, for whatever reason (the end, a
//! panic, `kill -9`), the guardian kills, unmounts and removes the rest of its list, newest first.
//!
//! A process is named by id and start time, so an id that was used again is never killed.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::Mutex;

static GUARDIAN: Mutex<Option<(Child, ChildStdin)>> = Mutex::new(None);

fn tell(sign: char, kind: &str, what: &str) -> Result<()> {
    let mut guardian = GUARDIAN.lock();
    if guardian.is_none() {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("guardian")
            .stdin(Stdio::piped())
            // Its own group: an interrupt at the terminal does not reach it.
            .process_group(0)
            .spawn()
            .context("cannot start the guardian")?;
        let stdin = child.stdin.take().expect("stdin is piped");
        *guardian = Some((child, stdin));
    }
    let (_, stdin) = guardian.as_mut().expect("started above");
    writeln!(stdin, "{sign} {kind} {what}").context("the guardian is gone")
}

/// Before a mount is made at `dir`.
pub(crate) fn watch_mount(dir: &Path) -> Result<()> {
    tell('+', "mount", &dir.display().to_string())
}

/// After the mount at `dir` is gone.
pub(crate) fn forget_mount(dir: &Path) {
    let _ = tell('-', "mount", &dir.display().to_string());
}

/// Once a process is started.
pub(crate) fn watch_process(id: u32) -> Result<()> {
    match start_time(id) {
        Some(start) => tell('+', "process", &format!("{id} {start}")),
        None => Ok(()),
    }
}

/// Before a file or link is made outside of the folder of the run.
pub(crate) fn watch_file(path: &Path) -> Result<()> {
    tell('+', "file", &path.display().to_string())
}

/// Before a folder is made.
pub(crate) fn watch_dir(path: &Path) -> Result<()> {
    tell('+', "dir", &path.display().to_string())
}

/// Before a switch of the kernel is turned that stood at `was`.
pub(crate) fn watch_switch(path: &str, was: &str) -> Result<()> {
    tell('+', "switch", &format!("{was} {path}"))
}

/// After it was turned back.
pub(crate) fn forget_switch(path: &str, was: &str) {
    let _ = tell('-', "switch", &format!("{was} {path}"));
}

/// Lets the guardian clean up, and waits for it.
pub(crate) fn finish() {
    let guardian = GUARDIAN.lock().take();
    if let Some((mut child, stdin)) = guardian {
        drop(stdin);
        let _ = child.wait();
    }
}

/// The guardian's own program.
pub(crate) fn serve() -> Result<()> {
    let mut list: Vec<String> = Vec::new();
    for line in BufReader::new(std::io::stdin()).lines() {
        let line = line?;
        match line.split_at_checked(2) {
            Some(("+ ", what)) => list.push(what.to_owned()),
            Some(("- ", what)) => list.retain(|watched| watched != what),
            _ => {}
        }
    }
    // Kill first: a busy mount becomes free, and a daemon does not come back to a folder.
    for kind in ["switch", "process", "mount", "file", "dir"] {
        for watched in list.iter().rev() {
            if let Some((watched_kind, what)) = watched.split_once(' ')
                && watched_kind == kind
            {
                undo(kind, what);
            }
        }
    }
    Ok(())
}

fn undo(kind: &str, what: &str) {
    match kind {
        "switch" => {
            if let Some((was, path)) = what.split_once(' ') {
                let _ = fs::write(path, was);
            }
        }
        "process" => kill_by_name(what),
        "mount" => detach(Path::new(what)),
        "file" => drop(fs::remove_file(what)),
        "dir" => drop(fs::remove_dir_all(what)),
        _ => {}
    }
}

fn kill_by_name(name: &str) {
    let Some((id, start)) = name.split_once(' ') else {
        return;
    };
    if let Ok(id) = id.parse()
        && start_time(id).as_deref() == Some(start)
    {
        kill(id);
    }
}

/// Sends SIGKILL.
pub(crate) fn kill(id: u32) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Detaches every mount at `dir`.
fn detach(dir: &Path) {
    let clock = SystemClock::default();
    for _ in 0..10 {
        if rustix::mount::unmount(dir, UnmountFlags::DETACH).is_err() {
            return;
        }
        clock.sleep(Duration::from_millis(20));
    }
}

/// When a process started, in clock ticks since boot.
pub(crate) fn start_time(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses may contain spaces; start time is the 22nd field.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19).map(str::to_owned)
}
