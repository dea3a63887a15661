//! The command `fs`: every workload on every side, sides alternating, repeated.

use super::ground::Ground;
use super::side::{self, Side};
use super::stage::Spec;
use super::{Caches, Workload, choose};
use crate::args::FsArgs;
use crate::cgroup::{self, Cgroup};
use crate::child::{self, Task};
use crate::disk::Disk;
use crate::drive::{bar, load, machine, skip, stop_flag, write};
use crate::place::Folder;
use crate::report::{self, FORMAT, Report, Run, Scale, Skipped, Suite};
use anyhow::{Context as _, Result, ensure};
use indicatif::ProgressBar;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::Transport;
use stitch_fuse::transport::uring::{SWITCH_PATH, Switch};

/// With `--quick`, nothing is begun after this.
const QUICK: Duration = Duration::from_secs(540);
/// Seed of the first repetition; each has its own.
const SEED: u64 = 0x5717_cf05;

/// Runs the command; whether all runs succeeded.
pub(crate) fn run(args: &FsArgs) -> Result<bool> {
    let mut scale = args.scale()?;
    let workloads = choose(&args.workloads)?;
    let mut skipped = Vec::new();
    let sides = choose_sides(args, &mut skipped);
    if let Some(why) = scale.cgroup.then(cgroup::why_not).flatten() {
        scale.cgroup = false;
        skip(&mut skipped, "--cgroup", &why);
    }
    ensure!(!sides.is_empty(), "no side can run: {skipped:?}");
    let stop = stop_flag()?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let folder = Folder::new(args.dir.as_deref().unwrap_or(&args.out))?;
    let disk = Disk::new(
        folder.path(),
        args.disk.unwrap_or_else(|| disk_bytes(&scale)),
    )?;
    disk.wear_in().context("cannot write to the disk")?;
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch)?;
    let clock = SystemClock::default();
    let mut driver = Driver {
        scale: &scale,
        folder: &folder,
        scratch: &scratch,
        disk: &disk,
        stop: &stop,
        bar: bar(),
        clock: &clock,
        deadline: args.quick.then_some(QUICK),
        skipped,
        runs: Vec::new(),
    };
    let (started, load_before) = (clock.now(), load());
    let switch = args.enable_uring.then(Turned::on).transpose()?;
    driver.run_all(&workloads, &sides);
    drop(switch);
    driver.bar.finish_and_clear();
    let Driver { runs, skipped, .. } = driver;
    let report = Report {
        format: FORMAT,
        suite: Suite::Fs,
        started_unix_s: started.seconds(),
        seconds: clock.monotonic().as_secs_f64(),
        machine: machine(folder.path(), load_before),
        summary: report::summarise(Suite::Fs, &runs),
        scale,
        runs,
        skipped,
    };
    write(&report, &args.out, args.json)
}

/// Room for the largest workload on any side.
fn disk_bytes(scale: &Scale) -> u64 {
    let fs = scale.fs.clone().unwrap_or_default();
    let tree = fs.tree.and_then(|path| fs::metadata(path).ok());
    let tree_bytes = tree.map_or(fs.tree_files * (20 << 10), |tarball| 8 * tarball.len());
    let bytes = 3 * scale.bytes + fs.files * (6 << 10) + 3 * tree_bytes + (1 << 30);
    bytes.next_multiple_of(1 << 20)
}

fn choose_sides(args: &FsArgs, skipped: &mut Vec<Skipped>) -> Vec<Side> {
    let all: Vec<String> = side::NAMES.iter().map(|name| (*name).to_owned()).collect();
    let asked = if args.sides.is_empty() {
        &all
    } else {
        &args.sides
    };
    let mut sides: Vec<Side> = Vec::new();
    for name in asked {
        match side::why_not(name, args.enable_uring) {
            Some(why) => skip(skipped, name, &why),
            None => sides.extend(Side::find(name)),
        }
    }
    sides.dedup();
    sides
}

/// The kernel's switch, on for as long as this is kept, and back as it was then.
struct Turned {
    was: Vec<u8>,
}

impl Turned {
    fn on() -> Result<Self> {
        let was = fs::read(SWITCH_PATH).context(SWITCH_PATH)?;
        Switch::turn_on().context(SWITCH_PATH)?;
        Ok(Self { was })
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH_PATH, &self.was) {
            eprintln!("{SWITCH_PATH} stays as it is: {error}");
        }
    }
}

/// What is needed for every run.
struct Driver<'a> {
    scale: &'a Scale,
    folder: &'a Folder,
    scratch: &'a Path,
    disk: &'a Disk,
    stop: &'a AtomicBool,
    bar: ProgressBar,
    clock: &'a SystemClock,
    deadline: Option<Duration>,
    skipped: Vec<Skipped>,
    runs: Vec<Run>,
}

impl Driver<'_> {
    fn run_all(&mut self, workloads: &[Workload], sides: &[Side]) {
        for workload in workloads {
            for repeat in 0..self.scale.repeat {
                // Another side begins each time.
                let first = repeat as usize % sides.len();
                for side in sides[first..].iter().chain(&sides[..first]) {
                    self.run_one(workload, *side, repeat);
                }
            }
        }
    }

    /// Why it is not begun; `None` if it is.
    fn why_not(&self, workload: &Workload, side: &Side) -> Option<String> {
        if self.stop.load(Ordering::Relaxed) {
            return Some("stopped".to_owned());
        }
        let is_late = |deadline| self.clock.monotonic() > deadline;
        if self.deadline.is_some_and(is_late) {
            return Some("the time of --quick is over".to_owned());
        }
        (workload.why_not)(side)
    }

    fn run_one(&mut self, workload: &Workload, side: Side, repeat: u32) {
        let what = format!("{} on {}", workload.name, side.name);
        if let Some(why) = self.why_not(workload, &side) {
            if repeat == 0 || self.stop.load(Ordering::Relaxed) {
                skip(&mut self.skipped, &what, &why);
            }
            return;
        }
        let mut run = Run {
            workload: workload.name.to_owned(),
            side: side.name.to_owned(),
            repeat,
            phases: Vec::new(),
            peak_rss_bytes: 0,
            error: None,
        };
        if let Err(error) = self.run_steps(workload, side, &mut run) {
            self.bar.suspend(|| eprintln!("{what}: {error:#}"));
            run.error = Some(format!("{error:#}"));
        }
        self.runs.push(run);
    }

    /// All steps of a workload on one empty disk. What was measured before a failure is kept.
    fn run_steps(&self, workload: &Workload, side: Side, run: &mut Run) -> Result<()> {
        if side.transport() == Some(Transport::Uring) {
            // Somebody else may have turned it off since this run began.
            ensure!(Switch::read() == Switch::On, "FUSE over io_uring is off");
        }
        let limit = self.scale.memory_bytes;
        let group = self.scale.cgroup.then(|| Cgroup::new(limit)).transpose()?;
        let group_path = group.as_ref().map(|group| group.path().to_owned());
        let memory = (self.scale.budget_bytes(), group_path.clone());
        let mut ground = Ground::new(side, self.disk, self.folder.path(), memory)?;
        let mut carry = 0;
        for (step, caches) in (0_u32..).zip(workload.steps) {
            if *caches == Caches::Cold {
                ground.cool()?;
            }
            let spec = Spec {
                workload: run.workload.clone(),
                step,
                side: run.side.clone(),
                at: ground.path().to_owned(),
                scratch: self.scratch.to_owned(),
                disk_counters: ground.counters(),
                scale: self.scale.clone(),
                seed: SEED + u64::from(run.repeat),
                cgroup: group_path.clone(),
                carry,
            };
            let name = format!("{} on {}", run.workload, run.side);
            let outcome = child::spawn(&Task::Fs(spec), &mut |phase, done, total| {
                self.bar.set_length(total.max(1));
                self.bar.set_position(done);
                self.bar.set_message(format!("{name}: {phase}"));
            })?;
            run.phases.extend(outcome.phases);
            run.peak_rss_bytes = run.peak_rss_bytes.max(outcome.peak_rss_bytes);
            carry = outcome.carry;
        }
        Ok(())
    }
}
