//! Crashes: several lives, each of which dies at some of its moments.

use super::life::{Tally, VolumeRun};
use super::{Beside, InstanceProgress};
use crate::System;
use crate::kv::Trees;
use std::collections::BTreeMap;
use stitch_base::random::Rng;
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{CrashDevice, CrashPlan, CrashPoint, Device, MemDevice};

/// Lives after the first.
const LIVES: usize = 2;

/// What was done for one seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct BesideStats {
    /// Operations run.
    pub ops: u64,
    /// Of these, how many were refused for want of space.
    pub refused: u64,
    /// Instances made.
    pub created: u64,
    /// Instances removed.
    pub removed: u64,
    /// Images opened, compared and checked.
    pub images: u64,
}

/// A moment of a life, frozen.
struct FrozenVolume {
    point: CrashPoint,
    progress: InstanceProgress,
}

/// A fair sample of the moments of a life.
struct VolumeSample {
    kept: Vec<FrozenVolume>,
    seen: u64,
    rng: Rng,
}

/// Runs one seed.
///
/// # Errors
/// What went wrong.
pub fn explore(beside: &Beside, seed: u64) -> Result<BesideStats, String> {
    let mut run = VolumeRun::new(beside, seed);
    let mut image = beside.system.image();
    let mut images = 0;
    for life in 0..=LIVES {
        let in_life = |message: String| format!("life {}: {message}", life + 1);
        image = run.live(&image, &mut images).map_err(in_life)?;
    }
    let Tally {
        ops,
        refused,
        created,
        removed,
    } = run.tally;
    Ok(BesideStats {
        ops,
        refused,
        created,
        removed,
        images,
    })
}

impl VolumeRun<'_> {
    /// Runs one life and its crashes. Returns the image that the next life starts from.
    fn live(&mut self, image: &MemDevice, images: &mut u64) -> Result<MemDevice, String> {
        let device = Arc::new(CrashDevice::from_image(image, CrashPlan::NEVER));
        let seen_by_store = (self.beside.wrap)(Arc::clone(&device) as Arc<dyn Device>);
        let opened = self.beside.open(seen_by_store);
        let mut all = opened.map_err(|e| format!("open failed: {e}"))?;
        self.enter(&all);
        let sample = self.watch(&device);
        let count = 1 + self.rng.below(self.beside.ops_max);
        for _ in 0..count {
            self.turn(&mut all).map_err(|e| e.to_string())?;
        }
        self.hold_all(&all, None)?;
        if self.rng.one_in(2) {
            let closed = self.beside.close(&all);
            closed.map_err(|e| format!("close failed: {e}"))?;
        }
        let end = FrozenVolume {
            point: device.freeze(),
            progress: self.progress.lock().clone(),
        };
        drop(all);
        device.unwatch();
        let mut points = std::mem::take(&mut sample.lock().kept);
        points.push(end);
        let survivor = usize::try_from(self.rng.below(points.len() as u64)).unwrap_or(0);
        let mut next = None;
        for (index, frozen) in points.iter().enumerate() {
            *images += 1;
            let left = self.die(frozen)?;
            if index == survivor {
                next = Some(left);
            }
        }
        let (image, states) = next.expect("one of them survives");
        self.found(states);
        Ok(image)
    }

    /// Samples moments of a life.
    fn watch(&mut self, device: &CrashDevice) -> Arc<Mutex<VolumeSample>> {
        let sample = Arc::new(Mutex::new(VolumeSample {
            kept: Vec::new(),
            seen: 0,
            rng: Rng::new(self.rng.next_u64()),
        }));
        let (sink, progress) = (Arc::clone(&sample), Arc::clone(&self.progress));
        let room = self.beside.points;
        device.watch(move |moment| {
            let mut sample = sink.lock();
            if !moment.is_sync && !sample.rng.one_in(4) {
                return;
            }
            sample.seen += 1;
            let seen = sample.seen;
            let slot = match sample.kept.len() < room {
                true => sample.kept.len(),
                false => usize::try_from(sample.rng.below(seen)).unwrap_or(room),
            };
            if slot >= room {
                return;
            }
            let frozen = FrozenVolume {
                point: moment.freeze(),
                progress: progress.lock().clone(),
            };
            match slot == sample.kept.len() {
                true => sample.kept.push(frozen),
                false => sample.kept[slot] = frozen,
            }
        });
        sample
    }

    /// Cuts the power or kills at one moment. Returns the image, and the contents of each instance.
    fn die(
        &mut self,
        frozen: &FrozenVolume,
    ) -> Result<(MemDevice, BTreeMap<String, Trees>), String> {
        let is_kill = self.rng.one_in(4);
        let image = match is_kill {
            true => frozen.point.kill_image(),
            false => frozen.point.crash_image(&mut self.rng),
        };
        let how = if is_kill { "killed" } else { "power cut" };
        let explain = |message: String| format!("{how}: {message}");
        let found = self.verify(&image, &frozen.progress, is_kill);
        Ok((image, found.map_err(explain)?))
    }
}
