//! The command `fs`: every workload on every side, sides alternating, repeated.

use super::ground::Ground;
use super::side::{self, FsSide};
use super::stage::StageSpec;
use super::{Caches, FsWorkload, choose};
use crate::args::FsArgs;
use crate::cgroup::{self, Cgroup};
use crate::child::Task;
use crate::disk::Disk;
use crate::place::Folder;
use crate::report::{Run, Scale, Skipped, Suite};
use crate::runs::{Runs, in_turn, skip, stop_flag, write};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::Path;
use std::time::Duration;
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
        args.disk.unwrap_or_else(|| disk_bytes(&scale, &workloads)),
    )?;
    disk.wear_in().context("cannot write to the disk")?;
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch)?;
    let mut driver = FsDriver {
        setting: Setting {
            scale: &scale,
            folder: &folder,
            scratch: &scratch,
            disk: &disk,
            may_enable: args.enable_uring,
        },
        runs: Runs::new(stop, args.quick.then_some(QUICK), skipped),
    };
    let switch = args.enable_uring.then(Turned::on).transpose()?;
    driver.run_all(&workloads, &sides);
    drop(switch);
    let runs = driver.runs;
    let report = runs.report(Suite::Fs, scale, folder.path());
    write(&report, &args.out, args.json)
}

/// Room for the largest of these workloads on any side.
fn disk_bytes(scale: &Scale, workloads: &[FsWorkload]) -> u64 {
    let fs = scale.fs.clone().unwrap_or_default();
    let tree = fs.tree.and_then(|path| fs::metadata(path).ok());
    let tree_bytes = tree.map_or(fs.tree_files * (20 << 10), |tarball| 8 * tarball.len());
    let factor = workloads.iter().map(|one| one.files_factor).max();
    let files = fs.files * factor.unwrap_or(1);
    let bytes = 3 * scale.bytes + files * (6 << 10) + 3 * tree_bytes + (1 << 30);
    bytes.next_multiple_of(1 << 20)
}

fn choose_sides(args: &FsArgs, skipped: &mut Vec<Skipped>) -> Vec<FsSide> {
    let asked: Vec<String> = match &args.sides[..] {
        [] => side::defaults().map(str::to_owned).collect(),
        some => some.iter().flat_map(|name| side::meant(name)).collect(),
    };
    let mut sides: Vec<FsSide> = Vec::new();
    for name in &asked {
        match side::why_not(name, args.enable_uring) {
            Some(why) => skip(skipped, name, &why),
            None if sides.iter().any(|side| side.name == name) => {}
            None => sides.extend(FsSide::find(name)),
        }
    }
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
#[derive(Clone, Copy)]
struct Setting<'a> {
    scale: &'a Scale,
    folder: &'a Folder,
    scratch: &'a Path,
    disk: &'a Disk,
    /// FUSE over `io_uring` may be switched on.
    may_enable: bool,
}

/// The runs, one after the other.
struct FsDriver<'a> {
    setting: Setting<'a>,
    runs: Runs,
}

impl FsDriver<'_> {
    fn run_all(&mut self, workloads: &[FsWorkload], sides: &[FsSide]) {
        for workload in workloads {
            for repeat in 0..self.setting.scale.repeat {
                for side in in_turn(sides, repeat) {
                    self.run_one(workload, *side, repeat);
                }
            }
        }
    }

    /// Returns the reason that it is skipped; `None` if it runs.
    fn why_not(&self, workload: &FsWorkload, side: &FsSide) -> Option<String> {
        let why_over = self.runs.why_over().map(str::to_owned);
        why_over.or_else(|| (workload.why_not)(side))
    }

    fn run_one(&mut self, workload: &FsWorkload, side: FsSide, repeat: u32) {
        if let Some(why) = self.why_not(workload, &side) {
            if repeat == 0 || self.runs.is_stopped() {
                let what = format!("{} on {}", workload.name, side.name);
                self.runs.skip(&what, &why);
            }
            return;
        }
        let setting = self.setting;
        self.runs
            .run((workload.name, side.name, repeat), |runs, run| {
                setting.run_steps(runs, run, (workload, side))
            });
    }
}

impl Setting<'_> {
    /// Turns FUSE over `io_uring` on before a mount: another process may have turned it off since.
    fn check_switch(&self, side: FsSide) -> Result<()> {
        if side.transport() != Some(Transport::Uring) {
            return Ok(());
        }
        if self.may_enable && Switch::read() == Switch::Off {
            Switch::turn_on().context(SWITCH_PATH)?;
        }
        ensure!(Switch::read() == Switch::On, "FUSE over io_uring is off");
        Ok(())
    }

    /// All steps of a workload on one empty disk. What was measured before a failure is kept.
    fn run_steps(
        &self,
        runs: &Runs,
        run: &mut Run,
        (workload, side): (&FsWorkload, FsSide),
    ) -> Result<()> {
        self.check_switch(side)?;
        let limit = self.scale.memory_bytes;
        let group = self.scale.cgroup.then(|| Cgroup::new(limit)).transpose()?;
        let group_path = group.as_ref().map(|group| group.path().to_owned());
        let memory = (self.scale.budget_bytes(), group_path.clone());
        let mut ground = Ground::new(side, self.disk, self.folder.path(), memory)?;
        let mut carry = 0;
        for (step, caches) in (0_u32..).zip(workload.steps) {
            if *caches == Caches::Cold {
                self.check_switch(side)?;
                ground.cool()?;
            }
            let spec = StageSpec {
                workload: run.workload.clone(),
                step,
                side: run.side.clone(),
                at: ground.path(),
                scratch: self.scratch.to_owned(),
                below: ground.below().map(Path::to_owned),
                disk_counters: ground.counters(),
                scale: self.scale.clone(),
                seed: SEED + u64::from(run.repeat),
                cgroup: group_path.clone(),
                carry,
            };
            let done = runs.step(run, &Task::Fs(spec), None);
            run.daemon_peak_bytes = run.daemon_peak_bytes.max(ground.daemon_peak_bytes());
            carry = done?.carry;
        }
        Ok(())
    }
}
