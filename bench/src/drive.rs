//! The command `kv`: every workload on every side, sides alternating, repeated.

use crate::args::KvArgs;
use crate::cgroup::{self, Cgroup};
use crate::child::{self, Task};
use crate::context::Spec;
use crate::disk::Disk;
use crate::kv::{self, Workload};
use crate::place::{Folder, Place};
use crate::report::{self, FORMAT, Machine, Report, Run, Scale, Skipped, Suite};
use crate::side;
use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};

/// With `--quick`, nothing is begun after this.
const QUICK: Duration = Duration::from_secs(240);
/// Seed of the first repetition; each has its own.
const SEED: u64 = 0x5717_c4f5;

/// Runs the command; whether all runs succeeded.
pub(crate) fn run(args: &KvArgs) -> Result<bool> {
    let mut scale = args.scale()?;
    let workloads = kv::choose(&args.workloads)?;
    let mut skipped = Vec::new();
    let mut sides = choose_sides(&args.sides, &mut skipped);
    if let Some(why) = scale.cgroup.then(cgroup::why_not).flatten() {
        scale.cgroup = false;
        skip(&mut skipped, "--cgroup", &why);
    }
    let stop = stop_flag()?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let folder = Folder::new(args.dir.as_deref().unwrap_or(&args.out))?;
    let disk = make_disk(&mut scale, &folder, &mut skipped);
    if disk.is_none() {
        for raw in sides.extract_if(.., |side| side::is_raw(side)) {
            skip(&mut skipped, &raw, "needs a disk of its own: --loop");
        }
    }
    ensure!(!sides.is_empty(), "no side can run: {skipped:?}");
    let clock = SystemClock::default();
    let mut driver = Driver {
        scale: &scale,
        folder: &folder,
        disk: disk.as_ref(),
        stop: &stop,
        bar: bar(),
        clock: &clock,
        deadline: args.quick.then_some(QUICK),
        skipped,
        runs: Vec::new(),
    };
    let (started, load_before) = (clock.now(), load());
    driver.run_all(&workloads, &sides);
    driver.bar.finish_and_clear();
    let Driver { runs, skipped, .. } = driver;
    let summary = report::summarise(Suite::Kv, &runs);
    let report = Report {
        format: FORMAT,
        suite: Suite::Kv,
        started_unix_s: started.seconds(),
        seconds: clock.monotonic().as_secs_f64(),
        machine: machine(folder.path(), load_before),
        scale,
        runs,
        summary,
        skipped,
    };
    write(&report, &args.out, args.json)
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

fn choose_sides(asked: &[String], skipped: &mut Vec<Skipped>) -> Vec<String> {
    if asked.is_empty() {
        return side::built();
    }
    let mut sides: Vec<String> = Vec::new();
    for name in asked {
        match side::why_not(name) {
            Some(why) => skip(skipped, name, &why),
            None if sides.contains(name) => {}
            None => sides.push(name.clone()),
        }
    }
    sides
}

/// A disk with room for the largest workload on any side, if asked for.
fn make_disk(scale: &mut Scale, folder: &Folder, skipped: &mut Vec<Skipped>) -> Option<Disk> {
    if !scale.is_on_disks {
        return None;
    }
    let data = scale.bytes.max(2 * scale.small_bytes);
    let len_bytes = 6 * data + 16 * scale.memory_bytes + (2 << 30);
    match Disk::new(folder.path(), len_bytes.next_multiple_of(1 << 20)) {
        Ok(disk) => Some(disk),
        Err(error) => {
            scale.is_on_disks = false;
            skip(skipped, "--loop", &format!("{error:#}"));
            None
        }
    }
}

/// Set when somebody wants this to end: what was made is taken down then, and what was measured
/// reported.
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

/// What is needed for every run.
struct Driver<'a> {
    scale: &'a Scale,
    folder: &'a Folder,
    disk: Option<&'a Disk>,
    stop: &'a AtomicBool,
    bar: ProgressBar,
    clock: &'a SystemClock,
    deadline: Option<Duration>,
    skipped: Vec<Skipped>,
    runs: Vec<Run>,
}

impl Driver<'_> {
    fn run_all(&mut self, workloads: &[Workload], sides: &[String]) {
        for workload in workloads {
            for repeat in 0..self.scale.repeat {
                // Another side begins each time.
                let first = repeat as usize % sides.len();
                for side in sides[first..].iter().chain(&sides[..first]) {
                    self.run_one(workload, side, repeat);
                }
            }
        }
    }

    /// Why nothing more is begun; `None` if it is.
    fn why_over(&self) -> Option<&'static str> {
        if self.stop.load(Ordering::Relaxed) {
            return Some("stopped");
        }
        let is_late = |deadline| self.clock.monotonic() > deadline;
        let is_over = self.deadline.is_some_and(is_late);
        is_over.then_some("the time of --quick is over")
    }

    fn run_one(&mut self, workload: &Workload, side: &str, repeat: u32) {
        let is_ours = [side::OURS, side::OURS_RAW].contains(&side);
        let is_beyond = side == side::RAW_APPEND && !workload.is_append;
        if (workload.is_ours_only && !is_ours) || is_beyond {
            return;
        }
        let what = format!("{} on {side}", workload.name);
        if let Some(why) = self.why_over() {
            return skip(&mut self.skipped, &what, why);
        }
        let mut run = Run {
            workload: workload.name.to_owned(),
            side: side.to_owned(),
            repeat,
            phases: Vec::new(),
            peak_rss_bytes: 0,
            error: None,
        };
        let mut place = None;
        for step in 0..(workload.steps)(self.scale) {
            match self.run_step(workload, step, &run, &mut place) {
                Ok(outcome) => {
                    run.phases.extend(outcome.phases);
                    run.peak_rss_bytes = run.peak_rss_bytes.max(outcome.peak_rss_bytes);
                }
                Err(error) => {
                    self.bar.suspend(|| eprintln!("{what}: {error:#}"));
                    run.error = Some(format!("{error:#}"));
                    break;
                }
            }
        }
        self.runs.push(run);
    }

    fn run_step(
        &self,
        workload: &Workload,
        step: u32,
        run: &Run,
        place: &mut Option<Place>,
    ) -> Result<child::Outcome> {
        let is_fresh = (workload.is_fresh)(step);
        if is_fresh {
            // The old place goes before the new one comes: they have one path.
            drop(place.take());
            *place = Some(self.folder.place(&run.side, self.disk)?);
        }
        let place = place.as_ref().expect("the first step is fresh");
        let limit = self.scale.memory_bytes;
        let group = self.scale.cgroup.then(|| Cgroup::new(limit)).transpose()?;
        let spec = Spec {
            workload: run.workload.clone(),
            step,
            side: run.side.clone(),
            dir: place.path().to_owned(),
            is_fresh,
            disk_counters: self.disk.map(Disk::counters),
            scale: self.scale.clone(),
            seed: SEED + u64::from(run.repeat),
            cgroup: group.as_ref().map(|group| group.path().to_owned()),
        };
        let name = format!("{} on {}", spec.workload, spec.side);
        child::spawn(&Task::Kv(spec), &mut |phase, done, total| {
            self.bar.set_length(total.max(1));
            self.bar.set_position(done);
            self.bar.set_message(format!("{name}: {phase}"));
        })
    }
}

/// Hidden unless standard error is a terminal.
pub(crate) fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {human_pos} of {human_len}");
    ProgressBar::new(1).with_style(style.expect("the template is valid"))
}

pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn machine(folder: &Path, load_before: String) -> Machine {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let file_system = rustix::fs::statfs(folder).map(|stat| format!("{:#x}", stat.f_type));
    Machine {
        cpus: std::thread::available_parallelism().map_or(0, |count| count.get() as u64),
        memory_bytes: kib.unwrap_or(0) * 1024,
        kernel: kernel.trim().to_owned(),
        file_system: file_system.unwrap_or_default(),
        load_before,
        load_after: load(),
    }
}
