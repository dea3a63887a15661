//! Space that runs out under several instances. Their workload is run again and again, and each
//! time another one of its allocations and reservations is refused.
//!
//! The workload has everything that allocates: commits, values that go straight to zones, range
//! deletes, snapshots, write-outs, compactions, evacuation, shrink and grow, creation and removal
//! of instances. The rules are those of [`crate::nospace`], for each instance.

use super::life::{All, Failed, VolumeRun};
use super::{Beside, InstanceProgress};
use crate::System;
use crate::kv::{KvOp, Message};
use crate::nospace::Refused;
use stitch_base::ErrorKind;
use stitch_base::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_volume::Refusals;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeNoSpaceStats {
    /// Runs of the workload with refusals.
    pub runs: u64,
    /// Refusals that the instances met.
    pub refused: u64,
    /// Turns that got the error.
    pub told: u64,
    /// Images opened, compared and checked.
    pub images: u64,
}

/// The allocations of a workload that are refused, one run for each.
#[derive(Clone, Copy, Debug)]
pub struct RefusalNumbers {
    /// The first.
    pub first: u64,
    /// From one to the next.
    pub step: u64,
}

/// Refuses one allocation after the other, until a run has none of that number; `turns` is the
/// length of the workload.
///
/// # Errors
/// What went wrong, and with which refusal.
pub fn each(
    beside: &Beside,
    seed: u64,
    turns: u64,
    numbers: RefusalNumbers,
    refused: Refused,
) -> Result<VolumeNoSpaceStats, String> {
    let refusals = Arc::new(Refusals::default());
    let beside = beside.clone().with_refusals(Arc::clone(&refusals));
    let start = VolumeRun::new(&beside, seed);
    let mut stats = VolumeNoSpaceStats::default();
    let mut number = numbers.first;
    loop {
        let mut short = ShortVolume {
            run: start.fork(seed),
            refusals: &refusals,
            stats: VolumeNoSpaceStats::default(),
        };
        refusals.begin(refused.from(number));
        let ran = short.live(turns);
        ran.map_err(|e| format!("refused {number} ({refused:?}): {e}"))?;
        let ran = short.stats;
        if ran.refused == 0 {
            return Ok(stats);
        }
        stats.runs += 1;
        stats.refused += ran.refused;
        stats.told += ran.told;
        stats.images += ran.images;
        number += numbers.step;
    }
}

/// One run with refusals.
struct ShortVolume<'a> {
    run: VolumeRun<'a>,
    refusals: &'a Refusals,
    stats: VolumeNoSpaceStats,
}

impl ShortVolume<'_> {
    fn live(&mut self, turns: u64) -> Result<(), String> {
        let image = self.run.beside.system.image();
        let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        let seen = Arc::clone(&device) as Arc<dyn Device>;
        let opened = self.run.beside.open(seen);
        let mut all = opened.map_err(|e| format!("open failed: {e}"))?;
        self.run.enter(&all);
        for _ in 0..turns {
            self.turn(&mut all)?;
        }
        self.run.hold_all(&all, None)?;
        let progress = self.run.progress.lock().clone();
        self.stats.refused = self.refusals.refused();
        self.refusals.end();
        self.reopens(&device.kill_image(), &progress, true)?;
        let cut = device.crash_image(&mut self.run.rng);
        self.reopens(&cut, &progress, false)?;
        self.goes_on(&mut all)
    }

    fn turn(&mut self, all: &mut All) -> Result<(), String> {
        let before = self.refusals.refused();
        let turned = self.run.turn(all);
        if self.refusals.refused() == before {
            return turned.map(drop).map_err(|e| e.to_string());
        }
        match turned {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(failed) if failed.error.kind == ErrorKind::NoSpace => self.forgive(&failed),
            Err(failed) => return Err(format!("told of no space as: {failed}")),
        }
        self.stats.told += 1;
        let fail = |e| format!("after a refusal an instance is changed: {e}");
        self.run.hold_all(all, None).map_err(fail)
    }

    fn forgive(&mut self, failed: &Failed) {
        self.run.forgive(&failed.name);
    }

    /// With space again, work goes on in all instances, and the sums are right.
    fn goes_on(&mut self, all: &mut All) -> Result<(), String> {
        let settled = self.run.beside.quiesce(all);
        settled.map_err(|e| format!("with space again: {e}"))?;
        self.run.check_all(all)?;
        for name in all.keys().cloned().collect::<Vec<_>>() {
            if self.run.histories[&name].model.trees.is_empty() {
                let op = KvOp::CreateTree("tree-0".to_owned());
                self.run.run(all, &name, &op).map_err(|e| e.to_string())?;
            }
            let trees = &self.run.histories[&name].model.trees;
            let tree = trees.keys().next().expect("there is one now").clone();
            let value: Arc<[u8]> = vec![7; 1000].into();
            let put = Message::Put(b"later".to_vec(), value);
            let op = KvOp::Commit {
                messages: vec![(tree, put)],
                sync: true,
                reserve: true,
            };
            let done = self.run.run(all, &name, &op).map_err(|e| e.to_string())?;
            if !done {
                return Err(format!("with space again, {name} takes nothing"));
            }
        }
        self.run.hold_all(all, None)
    }

    fn reopens(
        &mut self,
        image: &MemDevice,
        progress: &InstanceProgress,
        is_kill: bool,
    ) -> Result<(), String> {
        self.stats.images += 1;
        let found = self.run.verify(image, progress, is_kill);
        found.map(drop).map_err(|e| format!("reopened: {e}"))
    }
}
