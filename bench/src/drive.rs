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
use crate::shares::{self, Deadlines, Shares};
use crate::side;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::time::Duration;

/// With `--quick`, everything has ended by then.
const QUICK: Duration = Duration::from_secs(270);
/// A step that is still there so long after its end is killed.
const GRACE: Duration = Duration::from_secs(8);
/// With `--quick`, everything is run on these sides before it is on others.
const FIRST: [&str; 3] = [side::OURS, side::OURS_RAW, "rocksdb"];
/// Most that a workload of several steps weighs, when time is shared out.
const WEIGHT_MAX: u32 = 4;
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
        is_quick: args.quick,
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
    is_quick: bool,
    runs: Runs,
}

impl Driver<'_> {
    fn run_all(&mut self, workloads: &[Workload], sides: &[String]) {
        for pass in passes(sides, self.is_quick) {
            let pairs = workloads
                .iter()
                .flat_map(|w| pass.iter().map(move |side| (w, side)));
            let weights = pairs
                .filter(|(workload, side)| is_for(workload, side))
                .map(|(workload, _)| weight(workload, self.scale));
            let weights = weights.sum::<u32>() * self.scale.repeat;
            let mut shares = self.is_quick.then(|| Shares::new(QUICK, weights));
            for workload in workloads {
                for repeat in 0..self.scale.repeat {
                    for side in in_turn(&pass, repeat) {
                        if is_for(workload, side) {
                            self.run_one(workload, side, repeat, shares.as_mut());
                        }
                    }
                }
            }
        }
    }

    fn run_one(
        &mut self,
        workload: &Workload,
        side: &str,
        repeat: u32,
        shares: Option<&mut Shares>,
    ) {
        if let Some(why) = self.runs.why_over() {
            return self.runs.skip(&format!("{} on {side}", workload.name), why);
        }
        let (scale, folder, disk) = (self.scale, self.folder, self.disk);
        let begun = self.runs.now();
        let ends = shares.map(|shares| shares.next(begun, weight(workload, scale)));
        let mut is_cut = false;
        self.runs.run((workload.name, side, repeat), |runs, run| {
            let mut place = None;
            let steps = (workload.steps)(scale);
            for step in 0..steps {
                let is_fresh = (workload.is_fresh)(step);
                if is_fresh {
                    // The old place goes before the new one comes: they have one path.
                    drop(place.take());
                    place = Some(folder.place(side, disk)?);
                }
                let place = place.as_ref().expect("the first step is fresh");
                let since = runs.now().saturating_sub(begun);
                let ends = ends.map(|ends| shares::of_step(ends, since, steps - step));
                is_cut = run_step(runs, run, (scale, disk, ends), (step, is_fresh, place))?;
                if is_cut {
                    break;
                }
            }
            Ok(())
        });
        if is_cut {
            let what = format!("the rest of {} on {side}", workload.name);
            self.runs.skip(&what, shares::WHY);
        }
    }
}

/// What is run one after the other: all sides by turns; with little time first some, then the
/// others.
fn passes(sides: &[String], is_quick: bool) -> Vec<Vec<String>> {
    let is_first = |side: &&String| !is_quick || FIRST.contains(&side.as_str());
    let (first, others): (Vec<&String>, Vec<&String>) = sides.iter().partition(is_first);
    let passes = [first, others].into_iter();
    let passes = passes.map(|pass| pass.into_iter().cloned().collect::<Vec<String>>());
    passes.filter(|pass| !pass.is_empty()).collect()
}

/// Whether a side can do what a workload asks for.
fn is_for(workload: &Workload, side: &str) -> bool {
    if workload.is_of_servers || side::is_server(side) {
        return workload.is_of_servers && side::is_server(side);
    }
    let is_ours = [side::OURS, side::OURS_RAW].contains(&side);
    let is_beyond = side == side::RAW_APPEND && !workload.is_append;
    let has_transactions = is_ours || side::has_transactions(side);
    let is_asked = match workload.is_of_transactions {
        true => has_transactions,
        false => !side::is_of_transactions(side),
    };
    (is_ours || !workload.is_ours_only) && !is_beyond && is_asked
}

/// What a workload weighs when time is shared out.
fn weight(workload: &Workload, scale: &Scale) -> u32 {
    (workload.steps)(scale).clamp(1, WEIGHT_MAX)
}

/// Whether the step was cut short, so that those after it cannot be done.
fn run_step(
    runs: &Runs,
    run: &mut Run,
    (scale, disk, ends): (&Scale, Option<&Disk>, Option<Deadlines>),
    (step, is_fresh, place): (u32, bool, &Place),
) -> Result<bool> {
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
        ends,
    };
    let most = ends.map(|ends| ends.hard + GRACE);
    let outcome = runs.step(run, &Task::Kv(spec), most)?;
    Ok(outcome.is_cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_little_time_ours_and_rocksdb_come_first() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let sides = names(&["stitch", "lmdb", "rocksdb"]);
        assert_eq!(passes(&sides, false), vec![sides.clone()]);
        let quick = passes(&sides, true);
        assert_eq!(quick, [names(&["stitch", "rocksdb"]), names(&["lmdb"])]);
        assert_eq!(passes(&names(&["lmdb"]), true).len(), 1);
    }

    #[test]
    fn servers_run_what_is_for_servers_and_nothing_else() {
        let workloads = kv::choose(&[]).unwrap();
        let of = |side: &str| workloads.iter().filter(|w| is_for(w, side)).count();
        let (server, ours) = (of(side::OURS_RESP), of(side::OURS));
        assert!(server > 0 && server == of("redis"));
        assert_eq!(server + ours, workloads.len());
    }

    #[test]
    fn what_has_not_begun_in_time_is_skipped() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let folder = Folder::new(folder.path()).unwrap();
        let over = Some(Duration::ZERO);
        let mut driver = Driver {
            scale: &Scale::tiny(),
            folder: &folder,
            disk: None,
            is_quick: true,
            runs: Runs::new(std::sync::Arc::default(), over, Vec::new()),
        };
        let workloads = kv::choose(&["sweep".to_owned(), "ycsb".to_owned()]).unwrap();
        let sides = ["stitch".to_owned(), "rocksdb".to_owned()];
        driver.run_all(&workloads, &sides);
        let report = driver.runs.report(Suite::Kv, Scale::tiny(), folder.path());
        assert!(report.runs.is_empty());
        let what: Vec<&str> = report.skipped.iter().map(|s| s.what.as_str()).collect();
        assert_eq!(
            what,
            ["ycsb on stitch", "ycsb on rocksdb", "sweep on stitch"]
        );
        assert!(report.skipped.iter().all(|s| s.why == shares::WHY));
    }
}
