//! The runs of a suite, repeated and with alternating sides, until all are done or the user stops
//! them; and their report.

use crate::child::{self, Outcome, Task};
use crate::process::{after, field};
use crate::report::{self, FORMAT, Machine, Report, Run, Scale, Skipped, Suite};
use crate::shares;
use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock, Timestamp};

/// Runs, as far as they have gone.
pub(crate) struct Runs {
    stop: Arc<AtomicBool>,
    bar: ProgressBar,
    clock: SystemClock,
    deadline: Option<Duration>,
    started: Timestamp,
    load_before: String,
    skipped: Vec<Skipped>,
    done: Vec<Run>,
}

impl Runs {
    /// None yet. Nothing is begun after `deadline`.
    pub(crate) fn new(
        stop: Arc<AtomicBool>,
        deadline: Option<Duration>,
        skipped: Vec<Skipped>,
    ) -> Self {
        let clock = SystemClock::default();
        Self {
            stop,
            bar: bar(),
            deadline,
            started: clock.now(),
            load_before: load(),
            clock,
            skipped,
            done: Vec::new(),
        }
    }

    /// Reports whether the user has stopped the run.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the reason that no further run begins; `None` if one may.
    pub(crate) fn why_over(&self) -> Option<&'static str> {
        if self.is_stopped() {
            return Some("stopped");
        }
        let is_late = |deadline| self.clock.monotonic() > deadline;
        let is_over = self.deadline.is_some_and(is_late);
        is_over.then_some(shares::WHY)
    }

    /// Time since the first run began.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Records that something was left out.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        skip(&mut self.skipped, what, why);
    }

    /// One repetition of a workload on a side. What was measured before a failure is kept; if
    /// nothing was, as the time was over, it is as if it had not begun.
    pub(crate) fn run(
        &mut self,
        (workload, side, repeat): (&str, &str, u32),
        body: impl FnOnce(&Self, &mut Run) -> Result<()>,
    ) {
        let mut run = Run::new(workload, side, repeat);
        if let Err(error) = body(self, &mut run) {
            let what = format!("{workload} on {side}");
            self.bar.suspend(|| eprintln!("{what}: {error:#}"));
            run.error = Some(format!("{error:#}"));
        }
        if !run.phases.is_empty() || run.error.is_some() {
            self.done.push(run);
        }
    }

    /// Runs a step in a process of its own, which is killed after `most`. Adds its phases to the
    /// run, and returns the rest of the outcome.
    pub(crate) fn step(
        &self,
        run: &mut Run,
        task: &Task,
        most: Option<Duration>,
    ) -> Result<Outcome> {
        let name = format!("{} on {}", run.workload, run.side);
        let mut outcome = child::spawn(task, most, &mut |phase, done, total| {
            self.bar.set_length(total.max(1));
            self.bar.set_position(done);
            self.bar.set_message(format!("{name}: {phase}"));
        })?;
        run.phases.append(&mut outcome.phases);
        run.peak_rss_bytes = run.peak_rss_bytes.max(outcome.peak_rss_bytes);
        Ok(outcome)
    }

    /// The report of all of them; `folder` is where the sides were.
    pub(crate) fn report(self, suite: Suite, scale: Scale, folder: &Path) -> Report {
        self.bar.finish_and_clear();
        Report {
            format: FORMAT,
            suite,
            started_unix_s: self.started.seconds(),
            seconds: self.clock.monotonic().as_secs_f64(),
            arguments: std::env::args().skip(1).collect(),
            machine: machine(folder, self.load_before),
            summary: report::summarise(suite, &self.done),
            scale,
            runs: self.done,
            skipped: self.skipped,
        }
    }
}

/// The sides in the order of a repetition: another one begins each time.
pub(crate) fn in_turn<S>(sides: &[S], repeat: u32) -> impl Iterator<Item = &S> {
    let first = repeat as usize % sides.len();
    sides[first..].iter().chain(&sides[..first])
}

/// Writes the files and prints; whether all runs succeeded.
pub(crate) fn write(report: &Report, out: &Path, is_json: bool) -> Result<bool> {
    let json = serde_json::to_string_pretty(report)?;
    let file = |extension: &str| out.join(format!("{}.{extension}", report.suite.name()));
    let (json_path, html_path) = (file("json"), file("html"));
    fs::write(&json_path, &json).with_context(|| json_path.display().to_string())?;
    fs::write(&html_path, report::html(report)).with_context(|| html_path.display().to_string())?;
    if is_json {
        println!("{json}");
    } else {
        print!("{}", report::table(report));
        println!("{}\n{}", json_path.display(), html_path.display());
    }
    Ok(report.runs.iter().all(|run| run.error.is_none()))
}

/// Returns a flag that is set when the user stops the run: then everything is cleaned up, and the
/// measurements are reported.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

pub(crate) fn skip(skipped: &mut Vec<Skipped>, what: &str, why: &str) {
    skipped.push(Skipped {
        what: what.to_owned(),
        why: why.to_owned(),
    });
}

/// Hidden unless standard error is a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {human_pos} of {human_len}");
    ProgressBar::new(1).with_style(style.expect("the template is valid"))
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

fn machine(folder: &Path, load_before: String) -> Machine {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let file_system = rustix::fs::statfs(folder).map(|stat| format!("{:#x}", stat.f_type));
    Machine {
        cpus: std::thread::available_parallelism().map_or(0, |count| count.get() as u64),
        processor: after(&processors, "model name\t: ")
            .unwrap_or("")
            .to_owned(),
        memory_bytes: field(&memory, "MemTotal:") * 1024,
        kernel: kernel.trim().to_owned(),
        file_system: file_system.unwrap_or_default(),
        load_before,
        load_after: load(),
    }
}
