//! Several instances on one volume: each runs a workload of its own, and instances are created and
//! removed.
//!
//! The operations of one instance are ordered; those of different instances are not. So after a
//! crash each instance is in a state after some prefix of its own operations: at least as long as
//! the last one acknowledged as durable (after a kill: acknowledged). An instance whose creation
//! was acknowledged exists, and one whose removal was acknowledged does not. One that was being
//! created or removed may be either.
//!
//! [`crash`] cuts the power and kills, [`fault`] fails calls of the device, [`damage`] flips bits
//! and drops pages, [`nospace`] refuses one allocation after the other, [`full`] fills the volume
//! by one instance.

pub mod crash;
pub mod damage;
pub mod fault;
pub mod full;
mod life;
pub mod nospace;

use crate::System;
use crate::crash::Wrap;
use crate::kv::{KvSystem, Model, Shape, Trees, registry};
use crate::vt::VtHost;
use life::{All, One, VolumeRun};
use std::collections::BTreeMap;
use stitch_base::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_volume::Refusals;

/// The instance that every volume has.
const FIRST: &str = "main";

/// The progress of an instance at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Reach {
    /// Operations that a power cut leaves.
    synced: usize,
    /// Operations that were acknowledged.
    acked: usize,
    /// Operations that were begun.
    started: usize,
    /// True while it is being created or removed.
    is_in_doubt: bool,
}

/// The progress of each instance.
type InstanceProgress = BTreeMap<String, Reach>;

/// The contents of an instance after each of its operations.
#[derive(Clone)]
struct InstanceHistory {
    model: Model,
    states: Vec<Trees>,
}

impl InstanceHistory {
    fn new() -> Self {
        Self::of(Trees::new())
    }

    fn of(trees: Trees) -> Self {
        let mut model = Model::default();
        model.trees = trees.clone();
        Self {
            model,
            states: vec![trees],
        }
    }

    fn last(&self) -> &Trees {
        self.states.last().expect("there is a state at the start")
    }
}

/// A volume with several instances under test.
#[derive(Clone)]
pub struct Beside {
    system: KvSystem<VtHost>,
    ops_max: u64,
    points: usize,
    /// The layer between store and device.
    wrap: Wrap,
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

impl Beside {
    /// On volumes of this kind.
    #[must_use]
    pub const fn new(host: VtHost, shape: Shape, ops_max: u64, points: usize) -> Self {
        Self {
            system: KvSystem { host, shape },
            ops_max,
            points,
            wrap: |device| device,
        }
    }

    /// With something between store and device.
    #[must_use]
    pub fn with_wrap(mut self, wrap: Wrap) -> Self {
        self.wrap = wrap;
        self
    }

    /// With space that is refused at times.
    fn with_refusals(mut self, refusals: Arc<Refusals>) -> Self {
        self.system.host = self.system.host.with_refusals(refusals);
        self
    }

    /// Opens all instances.
    fn open(&self, device: Arc<dyn Device>) -> Result<All, crate::SystemError> {
        let first = self.system.host.open_engine(device, registry())?;
        let mut all = vec![Arc::clone(&first)];
        all.extend(first.further());
        Ok(all.into_iter().map(One::named).collect())
    }

    fn close(&self, all: &All) -> Result<(), crate::SystemError> {
        all["main"].live.close_engine()
    }

    /// Finishes the background work of all instances.
    fn quiesce(&self, all: &All) -> Result<(), crate::SystemError> {
        for one in all.values() {
            self.system.quiesce(&one.live)?;
        }
        Ok(())
    }

    /// Prepares the start of a scenario: a life of a few instances that was closed and, if `lives`
    /// is two, one that was closed or killed. Returns the image, and whether the last life was
    /// closed.
    fn begin(&self, run: &mut VolumeRun<'_>, lives: usize) -> Result<(MemDevice, bool), String> {
        let mut image = self.system.image();
        let mut is_closed = false;
        for life in 0..lives {
            let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
            let opened = self.open(Arc::clone(&device) as Arc<dyn Device>);
            let mut all = opened.map_err(|e| format!("a healthy device: {e}"))?;
            run.enter(&all);
            let (mut tries, turns) = (0, 1 + run.rng.below(self.ops_max));
            while all.len() < 3 && tries < 3 {
                run.create(&mut all).map_err(|e| e.to_string())?;
                tries += 1;
            }
            for _ in 0..turns {
                run.turn(&mut all).map_err(|e| e.to_string())?;
            }
            is_closed = life == 0 || run.rng.one_in(2);
            if is_closed {
                self.close(&all).map_err(|e| format!("close: {e}"))?;
                run.note_closed();
            }
            run.histories.retain(|name, _| all.contains_key(name));
            drop(all);
            image = device.kill_image();
        }
        Ok((image, is_closed))
    }
}

/// Compares the online-map and the promises with what all instances own.
fn audit(all: &All) -> Result<(), String> {
    let engines = all.values().map(|one| &*one.engine);
    let wrong = crate::audit::audit(all[FIRST].engine.volume(), engines);
    wrong.into_iter().next().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::instances_for_tests;
    use stitch_volume::{Class, Stream};

    fn opened(beside: &Beside) -> (VolumeRun<'_>, All) {
        let mut run = VolumeRun::new(beside, 5);
        let image = beside.begin(&mut run, 1).unwrap().0;
        let all = beside.open(Arc::new(image)).unwrap();
        run.enter(&all);
        (run, all)
    }

    #[test]
    fn a_byte_and_a_promise_without_an_owner_are_found() {
        let beside = instances_for_tests();
        let (run, all) = opened(&beside);
        run.check_all(&all).unwrap();
        let volume = all[FIRST].engine.volume();
        let lost = volume.zones().allocate(512, 512, Stream(0)).unwrap();
        let wrong = run.check_all(&all).unwrap_err();
        assert!(wrong.starts_with("live-bytes: "), "{wrong}");
        volume.zones().free(&[lost]);
        let lost = volume.space().reserve(512, Class::Internal).unwrap();
        let wrong = run.check_all(&all).unwrap_err();
        assert!(wrong.starts_with("promised-bytes: "), "{wrong}");
        drop(lost);
        run.check_all(&all).unwrap();
    }

    #[test]
    fn a_refused_operation_that_was_done_is_found() {
        let beside = instances_for_tests();
        let (mut run, mut all) = opened(&beside);
        while run.histories[FIRST].states.len() < 20 {
            run.step(&mut all, FIRST).unwrap();
        }
        run.hold_all(&all, None).unwrap();
        // As if the last that changed anything had been refused.
        let main = run.histories.get_mut(FIRST).unwrap();
        let last = main.last().clone();
        let before = main.states.iter().rev().find(|state| **state != last);
        let before = before.unwrap().clone();
        main.states.push(before);
        let wrong = run.hold_all(&all, None).unwrap_err();
        assert!(wrong.contains("main does not hold"), "{wrong}");
    }
}
