//! The command `kv`: every workload on every side, sides alternating, repeated.

use crate::args::KvArgs;
use crate::cgroup::{self, Cgroup};
use crate::child;
use crate::context::Spec;
use crate::kv::{self, Workload};
use crate::report::{self, FORMAT, Machine, Report, Run, Scale, Skipped};
use crate::side;
use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};

/// With `--quick`, nothing is begun after this.
const QUICK: Duration = Duration::from_secs(270);

/// Runs the command; whether all runs succeeded.
pub(crate) fn run(args: &KvArgs) -> Result<bool> {
    let mut scale = args.scale()?;
    let workloads = kv::choose(&args.workloads)?;
    let mut skipped = Vec::new();
    let sides = choose_sides(&args.sides, &mut skipped);
    ensure!(
        !sides.is_empty(),
        "none of the sides asked for can run: {skipped:?}"
    );
    if let Some(why) = scale.cgroup.then(cgroup::why_not).flatten() {
        scale.cgroup = false;
        skip(&mut skipped, "--cgroup", &why);
    }
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let folder = Folder::new(args.dir.as_deref().unwrap_or(&args.out))?;
    let clock = SystemClock::default();
    let mut driver = Driver {
        scale: &scale,
        folder: &folder,
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
    let summary = report::summarise(&runs);
    let report = Report {
        format: FORMAT,
        started_unix_s: started.seconds(),
        seconds: clock.monotonic().as_secs_f64(),
        machine: machine(&folder.path, load_before),
        scale,
        runs,
        summary,
        skipped,
    };
    write(&report, args)
}

/// Writes the files and prints; whether all runs succeeded.
fn write(report: &Report, args: &KvArgs) -> Result<bool> {
    let json = serde_json::to_string_pretty(report)?;
    let (json_path, html_path) = (args.out.join("kv.json"), args.out.join("kv.html"));
    fs::write(&json_path, &json).with_context(|| json_path.display().to_string())?;
    fs::write(&html_path, report::html(report)).with_context(|| html_path.display().to_string())?;
    if args.json {
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

fn skip(skipped: &mut Vec<Skipped>, what: &str, why: &str) {
    skipped.push(Skipped {
        what: what.to_owned(),
        why: why.to_owned(),
    });
}

/// What is needed for every run.
struct Driver<'a> {
    scale: &'a Scale,
    folder: &'a Folder,
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

    fn run_one(&mut self, workload: &Workload, side: &str, repeat: u32) {
        let what = format!("{} on {side}", workload.name);
        if workload.is_ours_only && side != side::OURS {
            return;
        }
        if self
            .deadline
            .is_some_and(|deadline| self.clock.monotonic() > deadline)
        {
            return skip(&mut self.skipped, &what, "the time of --quick is over");
        }
        let mut run = Run {
            workload: workload.name.to_owned(),
            side: side.to_owned(),
            repeat,
            phases: Vec::new(),
            peak_rss_bytes: 0,
            error: None,
        };
        let dir = self.folder.path.join(side);
        for step in 0..(workload.steps)(self.scale) {
            let spec = Spec {
                workload: workload.name.to_owned(),
                step,
                side: side.to_owned(),
                dir: dir.clone(),
                scale: self.scale.clone(),
                seed: 0x5717_c4f5 + u64::from(repeat),
                cgroup: None,
            };
            match self.run_step(workload, spec) {
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
        // What is left is removed with the folder.
        let _ = fs::remove_dir_all(&dir);
        self.runs.push(run);
    }

    fn run_step(&self, workload: &Workload, mut spec: Spec) -> Result<child::Outcome> {
        if (workload.is_fresh)(spec.step) {
            if spec.dir.exists() {
                fs::remove_dir_all(&spec.dir)?;
            }
            fs::create_dir_all(&spec.dir)?;
        }
        let group = self
            .scale
            .cgroup
            .then(|| Cgroup::new(self.scale.memory_bytes));
        let group = group.transpose()?;
        spec.cgroup = group.as_ref().map(|group| group.path().to_owned());
        let name = format!("{} on {}", spec.workload, spec.side);
        child::spawn(&spec, &mut |phase, done, total| {
            self.bar.set_length(total.max(1));
            self.bar.set_position(done);
            self.bar.set_message(format!("{name}: {phase}"));
        })
    }
}

/// Hidden unless standard error is a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {human_pos} of {human_len}");
    ProgressBar::new(1).with_style(style.expect("the template is valid"))
}

/// A folder that goes when this does.
struct Folder {
    path: PathBuf,
}

const FOLDER_PREFIX: &str = "stitch-bench-";

impl Folder {
    fn new(parent: &Path) -> Result<Self> {
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        remove_stale(parent)?;
        let path = parent.join(format!("{FOLDER_PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        let path = path.canonicalize()?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes what earlier runs left that were stopped in the middle.
fn remove_stale(parent: &Path) -> Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix(FOLDER_PREFIX)
            .and_then(|pid| pid.parse::<u32>().ok());
        if let Some(pid) = pid
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
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
