//! Device errors under several instances: a read, write or sync of the device fails, whichever of
//! them made it.
//!
//! Rules, besides those of [`crate::fault`]:
//! - after a failed sync that was reported, no instance accepts a write: the lost writes may be of
//!   any instance;
//! - after a failed read or write of data, the other instances continue with their contents, unless
//!   the volume is poisoned;
//! - an instance that got an error is in the state after its last operation or before it;
//! - after a kill and after a power cut, each instance is in a state that its own acknowledgements
//!   allow.

use super::life::{All, Failed, VolumeRun};
use super::{Beside, Reach};
use crate::System;
use crate::fault::FaultStats;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device, Fault, FaultDevice, FaultOp, MemDevice};
use stitch_volume::InstanceOptions;

/// Turns of the other instances after a failure.
const TURNS_AFTER: u64 = 12;

/// Runs the workload of a seed again and again, with another call failing each time.
///
/// # Errors
/// What went wrong, and with which fault.
pub fn explore(beside: &Beside, seed: u64, runs: u64) -> Result<FaultStats, String> {
    let mut run = VolumeRun::new(beside, seed);
    let (image, _) = beside.begin(&mut run, 1)?;
    let turns = 1 + run.rng.below(beside.ops_max);
    let workload = run.rng.next_u64();
    let mut rng = Rng::new(!seed);
    let dry = Faulty::new(&run, &image, workload, None);
    let device = Arc::clone(&dry.device);
    dry.work(turns)
        .map_err(|e| format!("without any fault: {e}"))?;
    let calls = device.calls();
    let mut stats = FaultStats::default();
    for _ in 0..runs {
        let (op, made) = match rng.below(4) {
            0 => (FaultOp::Read, calls.reads),
            1 => (FaultOp::Write, calls.writes),
            2 => (FaultOp::Sync, calls.syncs),
            _ => (FaultOp::Any, calls.total()),
        };
        let nth = 1 + rng.below(made.max(1));
        let fault = match rng.one_in(2) {
            true => Fault::once(op, nth),
            false => Fault::from(op, nth),
        };
        let ran = Faulty::new(&run, &image, workload, Some(fault)).work(turns);
        stats.add(ran.map_err(|e| format!("{fault:?}: {e}"))?);
    }
    Ok(stats)
}

/// As [`explore`], for each call of a kind, one after the other, from the first to the last that
/// the workload makes.
///
/// # Errors
/// As [`explore`].
pub fn each(beside: &Beside, seed: u64, turns: u64, op: FaultOp) -> Result<FaultStats, String> {
    let mut run = VolumeRun::new(beside, seed);
    let (image, _) = beside.begin(&mut run, 1)?;
    let workload = run.rng.next_u64();
    let mut stats = FaultStats::default();
    for nth in 1.. {
        let fault = Fault::once(op, nth);
        let ran = Faulty::new(&run, &image, workload, Some(fault)).work(turns);
        let ran = ran.map_err(|e| format!("{fault:?}: {e}"))?;
        if ran.hits == 0 {
            break;
        }
        stats.add(ran);
    }
    Ok(stats)
}

/// One run with one fault.
struct Faulty<'a> {
    run: VolumeRun<'a>,
    medium: Arc<CrashDevice>,
    device: Arc<FaultDevice<Arc<CrashDevice>>>,
}

impl<'a> Faulty<'a> {
    fn new(start: &VolumeRun<'a>, image: &MemDevice, seed: u64, fault: Option<Fault>) -> Self {
        let medium = Arc::new(CrashDevice::from_image(image, CrashPlan::NEVER));
        let device = Arc::new(FaultDevice::new(Arc::clone(&medium)));
        if let Some(fault) = fault {
            device.add(fault);
        }
        Self {
            run: start.fork(seed),
            medium,
            device,
        }
    }

    fn work(mut self, turns: u64) -> Result<FaultStats, String> {
        let seen = (self.run.beside.wrap)(Arc::clone(&self.device) as Arc<dyn Device>);
        let opened = self.run.beside.open(seen);
        let mut failed = None;
        match opened {
            Ok(mut all) => {
                self.run.enter(&all);
                failed = self.live(&mut all, turns)?;
            }
            Err(error) => {
                self.is_honest(&error)?;
                let names = self.run.histories.keys();
                let begin = names.map(|name| (name.clone(), Reach::default()));
                *self.run.progress.lock() = begin.collect();
                self.device.clear();
                failed.replace("open".to_owned());
            }
        }
        let hits = self.device.hits();
        self.verify()?;
        Ok(FaultStats {
            runs: 1,
            hits: u64::from(hits > 0),
            errors: u64::from(failed.is_some()),
        })
    }

    /// Runs until an operation fails, and some turns more. Returns what failed.
    fn live(&mut self, all: &mut All, turns: u64) -> Result<Option<String>, String> {
        for _ in 0..turns {
            let Err(failed) = self.run.turn(all) else {
                continue;
            };
            self.is_honest(&failed.error)
                .map_err(|e| format!("{failed}: {e}"))?;
            let after = self.goes_on(all, &failed);
            after.map_err(|e| format!("after {failed}: {e}"))?;
            return Ok(Some(failed.to_string()));
        }
        if let Err(error) = self.run.beside.close(all) {
            self.is_honest(&error)?;
            return Ok(Some(error.to_string()));
        }
        self.run.note_closed();
        Ok(None)
    }

    fn is_honest(&self, error: &crate::SystemError) -> Result<(), String> {
        if self.device.hits() == 0 {
            return Err(format!("an error without a fault: {error}"));
        }
        // A failed read means unreadable data for the operation that would move it.
        let was_read = self.device.last_hit() == Some(FaultOp::Read);
        match error.kind {
            ErrorKind::Io | ErrorKind::Poisoned => Ok(()),
            ErrorKind::Corrupt if was_read && error.message.contains("cannot be read") => Ok(()),
            _ => Err(format!(
                "a device error came out as something else: {error}"
            )),
        }
    }

    /// Runs the rest of the life after one instance got an error.
    fn goes_on(&mut self, all: &mut All, failed: &Failed) -> Result<(), String> {
        let last_hit = self.device.last_hit();
        self.device.clear();
        let is_poisoned = all["main"].engine.volume().is_poisoned();
        if last_hit == Some(FaultOp::Sync) && !is_poisoned {
            return Err("a sync failed, and the volume takes writes".to_owned());
        }
        let whose = failed.whose(all);
        if is_poisoned {
            self.refuse_more(all)?;
        } else {
            self.others_go_on(all, &whose)?;
        }
        // An instance that got the error of another cannot know the outcome of its own operation.
        for (name, one) in all.iter() {
            let reach = self.run.progress.lock()[name];
            let last = self.run.histories[name].states.len() - 1;
            let span = match *name == whose || *name == failed.name {
                true => (reach.acked, reach.started),
                false => (last, last),
            };
            let state = self.run.state(one)?;
            self.run.is_after(name, &state, span)?;
        }
        Ok(())
    }

    /// Turns of all instances but the one that has met the error.
    fn others_go_on(&mut self, all: &mut All, whose: &str) -> Result<(), String> {
        // Of several errors the first was reported; others were met while space was being made.
        let may_fail = self.device.hits() > 1;
        for _ in 0..TURNS_AFTER {
            let name = self.run.pick(all);
            if name == whose {
                continue;
            }
            match self.run.step(all, &name) {
                Err(failed) if may_fail && failed.error.kind == ErrorKind::Poisoned => {
                    self.run.forgive(&name);
                }
                Err(failed) => return Err(format!("another cannot go on: {failed}")),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Checks that a poisoned volume refuses writes of every instance.
    fn refuse_more(&mut self, all: &mut All) -> Result<(), String> {
        let main = Arc::clone(&all["main"].engine);
        let made = main.create_instance("late", &InstanceOptions::default());
        if made.is_ok() {
            return Err("an instance is made on a volume that is poisoned".to_owned());
        }
        for name in all.keys().cloned().collect::<Vec<_>>() {
            for _ in 0..4 {
                let model = self.run.histories[&name].model.clone();
                let system = &self.run.beside.system;
                let op = system.generate(&model, &mut self.run.rng);
                let one = all.get_mut(&name).expect("it is there");
                if system.is_write(&op)
                    && let Ok(ack) = system.run(&mut one.live, &op, &model)
                    && ack != crate::Ack::Refused
                {
                    return Err(format!("{name} took {op:?} ({ack:?})"));
                }
            }
        }
        Ok(())
    }

    /// Checks the medium.
    fn verify(&mut self) -> Result<(), String> {
        let progress = self.run.progress.lock().clone();
        let killed = self.medium.kill_image();
        let found = self.run.verify(&killed, &progress, true);
        found.map_err(|e| format!("reopened: {e}"))?;
        let cut = self.medium.crash_image(&mut self.run.rng);
        let found = self.run.verify(&cut, &progress, false);
        found
            .map(drop)
            .map_err(|e| format!("after a power cut: {e}"))
    }
}
