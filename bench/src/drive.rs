//! The command `kv`: every workload on every side, sides alternating, repeated.

use crate::args::KvArgs;
use crate::cgroup::{self, Cgroup};
use crate::child::Task;
use crate::context::Spec;
use crate::disk::Disk;
use crate::kv::{self, Workload};
use crate::place::{Folder, Place};
use crate::report::{Run, Scale, Skipped, Suite};
use crate::runs::{Runs, in_turn, skip, stop_flag, write};
use crate::side;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::time::Duration;

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
    let mut driver = Driver {
        scale: &scale,
        folder: &folder,
        disk: disk.as_ref(),
        runs: Runs::new(stop, args.quick.then_some(QUICK), skipped),
    };
    driver.run_all(&workloads, &sides);
    let runs = driver.runs;
    let report = runs.report(Suite::Kv, scale, folder.path());
    write(&report, &args.out, args.json)
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

/// What is needed for every run.
struct Driver<'a> {
    scale: &'a Scale,
    folder: &'a Folder,
    disk: Option<&'a Disk>,
    runs: Runs,
}

impl Driver<'_> {
    fn run_all(&mut self, workloads: &[Workload], sides: &[String]) {
        for workload in workloads {
            for repeat in 0..self.scale.repeat {
                for side in in_turn(sides, repeat) {
                    self.run_one(workload, side, repeat);
                }
            }
        }
    }

    fn run_one(&mut self, workload: &Workload, side: &str, repeat: u32) {
        let is_ours = [side::OURS, side::OURS_RAW].contains(&side);
        let is_beyond = side == side::RAW_APPEND && !workload.is_append;
        if (workload.is_ours_only && !is_ours) || is_beyond {
            return;
        }
        if let Some(why) = self.runs.why_over() {
            return self.runs.skip(&format!("{} on {side}", workload.name), why);
        }
        let (scale, folder, disk) = (self.scale, self.folder, self.disk);
        self.runs.run((workload.name, side, repeat), |runs, run| {
            let mut place = None;
            for step in 0..(workload.steps)(scale) {
                let is_fresh = (workload.is_fresh)(step);
                if is_fresh {
                    // The old place goes before the new one comes: they have one path.
                    drop(place.take());
                    place = Some(folder.place(side, disk)?);
                }
                let place = place.as_ref().expect("the first step is fresh");
                run_step(runs, run, (scale, disk), (step, is_fresh, place))?;
            }
            Ok(())
        });
    }
}

fn run_step(
    runs: &Runs,
    run: &mut Run,
    (scale, disk): (&Scale, Option<&Disk>),
    (step, is_fresh, place): (u32, bool, &Place),
) -> Result<()> {
    let limit = scale.memory_bytes;
    let group = scale.cgroup.then(|| Cgroup::new(limit)).transpose()?;
    let spec = Spec {
        workload: run.workload.clone(),
        step,
        side: run.side.clone(),
        dir: place.path().to_owned(),
        is_fresh,
        disk_counters: disk.map(Disk::counters),
        scale: scale.clone(),
        seed: SEED + u64::from(run.repeat),
        cgroup: group.as_ref().map(|group| group.path().to_owned()),
    };
    runs.step(run, &Task::Kv(spec)).map(drop)
}
