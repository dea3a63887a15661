//! Both ends of a step. A step is a process of its own, so that the kernel's counters are those of
//! the side, and so that it can be killed.
//!
//! The parent writes a [`Spec`] to its standard input; it answers with [`Message`]s, one a line, of
//! which the last is `Done` or `Failed`.

use crate::cgroup::Cgroup;
use crate::context::{Context, Spec};
use crate::fs;
use crate::kv;
use crate::process;
use crate::report::Phase;
use crate::shares::Cut;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, getpid, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A message of a child.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Progress {
        phase: String,
        done: u64,
        total: u64,
    },
    Done(Outcome),
    Failed(String),
}

/// What a step measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Its phases.
    pub(crate) phases: Vec<Phase>,
    /// Most memory that the process had resident.
    pub(crate) peak_rss_bytes: u64,
    /// Passed to the next step of the workload.
    #[serde(default)]
    pub(crate) carry: u64,
    /// It ended before all was done.
    #[serde(default)]
    pub(crate) is_cut: bool,
}

/// A step of either suite.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Of a key-value workload.
    Kv(Spec),
    /// Of a workload of file systems.
    Fs(fs::stage::StageSpec),
}

/// The child's end.
pub(crate) fn run() -> Result<()> {
    // A child without a parent would keep its mount busy.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let task: Task = serde_json::from_reader(std::io::stdin()).context("expected a step")?;
    let outcome = match &task {
        Task::Kv(spec) => run_step(spec),
        Task::Fs(spec) => fs::run_step(spec, &tell).map(|outcome| (outcome, false)),
    };
    let is_killed = outcome.as_ref().is_ok_and(|(_, is_killed)| *is_killed);
    say(&match outcome {
        Ok((outcome, _)) => Message::Done(outcome),
        Err(error) => Message::Failed(format!("{error:#}")),
    })?;
    if is_killed {
        kill_process(getpid(), Signal::KILL)?;
    }
    Ok(())
}

fn say(message: &Message) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

fn tell(phase: &str, done: u64, total: u64) {
    // If the parent is gone, the next message fails.
    let _ = say(&Message::Progress {
        phase: phase.to_owned(),
        done,
        total,
    });
}

fn run_step(spec: &Spec) -> Result<(Outcome, bool)> {
    if let Some(group) = &spec.cgroup {
        Cgroup::enter(group)?;
    }
    let workloads = kv::all();
    let workload = workloads.iter().find(|w| w.name == spec.workload);
    let workload = workload.with_context(|| format!("no workload `{}`", spec.workload))?;
    let mut context = Context::new(spec, &tell);
    let is_cut = match (workload.run)(&mut context, spec.step) {
        Err(error) if error.is::<Cut>() => true,
        done => done.map(|()| false)?,
    };
    let is_killed = is_cut || (workload.is_killed)(spec.step);
    let phases = if is_killed {
        context.leave()
    } else {
        context.finish()?
    };
    let peak_rss_bytes = process::peak_rss_bytes();
    let outcome = Outcome {
        phases,
        peak_rss_bytes,
        carry: 0,
        is_cut,
    };
    Ok((outcome, is_killed))
}

/// The parent's end: runs a step and waits for it, at most for `most`. `progress` gets the phase,
/// operations done and operations to do.
pub(crate) fn spawn(
    task: &Task,
    most: Option<Duration>,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Outcome> {
    let exe = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(exe)
        .arg("child")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a child")?;
    let stdin = child.stdin.take().expect("stdin is piped");
    let stdout = child.stdout.take().expect("stdout is piped");
    let told = serde_json::to_writer(stdin, task);
    let (heard, is_late) = within(most, &child, || {
        told.map_err(Into::into)
            .and_then(|()| listen(stdout, progress))
    });
    let status = child.wait()?;
    match heard {
        // What it measured died with it.
        Ok(None) | Err(_) if is_late => Ok(Outcome {
            phases: Vec::new(),
            peak_rss_bytes: 0,
            carry: 0,
            is_cut: true,
        }),
        Ok(None) => bail!("ended without a result: {status}"),
        Ok(Some(outcome)) => Ok(outcome),
        Err(error) => Err(error),
    }
}

/// Listens to a child, and kills it if that takes longer than `most`. Returns whether it was
/// killed.
fn within<T>(most: Option<Duration>, child: &Child, listen: impl FnOnce() -> T) -> (T, bool) {
    let Some(most) = most else {
        return (listen(), false);
    };
    let pid = Pid::from_child(child);
    let (done, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // The child is not waited for before this ends, so its process id is not reused.
        let watch = scope.spawn(move || {
            let is_late = wait.recv_timeout(most) == Err(RecvTimeoutError::Timeout);
            is_late && kill_process(pid, Signal::KILL).is_ok()
        });
        let heard = listen();
        drop(done);
        let is_late = watch.join().expect("a watch does not panic");
        (heard, is_late)
    })
}

fn listen(
    stdout: impl std::io::Read,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Option<Outcome>> {
    for line in BufReader::new(stdout).lines() {
        match serde_json::from_str(&line?).context("cannot read a child's answer")? {
            Message::Progress { phase, done, total } => progress(&phase, done, total),
            Message::Failed(error) => bail!(error),
            Message::Done(outcome) => {
                let mut names: Vec<&str> = outcome.phases.iter().map(|p| &*p.name).collect();
                names.sort_unstable();
                names.dedup();
                ensure!(
                    names.len() == outcome.phases.len(),
                    "phases have their own names"
                );
                return Ok(Some(outcome));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_child_that_takes_too_long_is_killed() {
        let sleep = |most| {
            let mut run = Command::new("sleep");
            let mut child = run.arg("600").stdout(Stdio::piped()).spawn().unwrap();
            let mut out = child.stdout.take().unwrap();
            let mut text = String::new();
            let (read, is_late) = within(most, &child, || out.read_to_string(&mut text));
            assert!(read.is_ok());
            child.wait().unwrap();
            is_late
        };
        assert!(sleep(Some(Duration::from_millis(50))));
    }

    #[test]
    fn a_child_that_ends_in_time_is_not() {
        let mut child = Command::new("true").spawn().unwrap();
        let (heard, is_late) = within(Some(Duration::from_secs(600)), &child, || 7);
        assert_eq!((heard, is_late), (7, false));
        assert!(child.wait().unwrap().success());
    }
}
