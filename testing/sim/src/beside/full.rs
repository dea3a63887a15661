//! A volume that one instance fills for all of them.
//!
//! Rules:
//! - the others get "no space", and keep their contents;
//! - deletes and syncs still work, in all of them;
//! - the others can use the space that this one releases by deletes, dropped trees or its removal;
//! - all of this also holds after a crash in the middle.

use super::life::{All, VolumeRun};
use super::{Beside, FIRST};
use crate::System;
use crate::kv::{KvOp, Message};
use stitch_base::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};

/// Refusals in a row that make a full volume.
const REFUSALS: u64 = 6;
/// Longest value, in bytes.
const VALUE_BYTES_MAX: u64 = 8 << 10;
/// The others must be able to write one part in this many of what the first could.
const COMES_BACK_PART: u64 = 2;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct FullStats {
    /// Bytes that the one instance could write.
    pub filled_bytes: u64,
    /// Bytes that the others could write when they were given back.
    pub back_bytes: u64,
    /// Commits that were refused.
    pub refused: u64,
    /// Images opened, compared and checked.
    pub images: u64,
}

/// Runs one seed.
///
/// # Errors
/// What went wrong.
pub fn explore(beside: &Beside, seed: u64) -> Result<FullStats, String> {
    let mut fill = Fill {
        run: VolumeRun::new(beside, seed),
        next: 0,
        images: 0,
    };
    let image = beside.system.image();
    let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
    let mut all = fill.open(&device)?;
    for _ in 0..2 {
        fill.run.create(&mut all).map_err(|e| e.to_string())?;
    }
    let names: Vec<String> = all.keys().cloned().collect();
    for name in &names {
        fill.say(&mut all, name, &KvOp::CreateTree("tree-0".to_owned()))?;
        fill.put(&mut all, name, 900)?;
    }
    let filler = fill.run.pick(&all);
    let filled_bytes = fill.fill(&mut all, &filler)?;
    for name in names.iter().filter(|name| **name != filler) {
        fill.fill(&mut all, name)?;
    }
    let stage = |e: String| format!("full by {filler}: {e}");
    fill.run.hold_all(&all, None).map_err(stage)?;
    let (device, mut all) = fill.dies_at_times(device, all).map_err(stage)?;
    fill.deletes_work(&mut all).map_err(stage)?;
    fill.give_back(&mut all, &filler).map_err(stage)?;
    let (device, mut all) = fill.dies_at_times(device, all).map_err(stage)?;
    let settled = beside.quiesce(&all);
    settled.map_err(|e| stage(format!("quiesce: {e}")))?;
    let back_bytes = fill.others_go_on(&mut all, &filler, filled_bytes);
    let back_bytes = back_bytes.map_err(stage)?;
    fill.run.hold_all(&all, None).map_err(stage)?;
    fill.run.check_all(&all).map_err(stage)?;
    fill.verify(&device)?;
    Ok(FullStats {
        filled_bytes,
        back_bytes,
        refused: fill.run.tally.refused,
        images: fill.images,
    })
}

struct Fill<'a> {
    run: VolumeRun<'a>,
    /// Number of the next key.
    next: u64,
    images: u64,
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl Fill<'_> {
    fn open(&mut self, device: &Arc<CrashDevice>) -> Result<All, String> {
        let seen = Arc::clone(device) as Arc<dyn Device>;
        let all = self.run.beside.open(seen);
        let all = all.map_err(|e| format!("open failed: {e}"))?;
        self.run.enter(&all);
        Ok(all)
    }

    fn say(&mut self, all: &mut All, name: &str, op: &KvOp) -> Result<bool, String> {
        self.run.run(all, name, op).map_err(|e| e.to_string())
    }

    /// Puts one value. Returns false if it was refused.
    fn put(&mut self, all: &mut All, name: &str, bytes: u64) -> Result<bool, String> {
        let mut value = vec![0; usize::try_from(bytes).expect("a small value")];
        self.run.rng.fill(&mut value);
        self.next += 1;
        let put = Message::Put(key(self.next), value.into());
        let op = KvOp::Commit {
            messages: vec![("tree-0".to_owned(), put)],
            sync: self.run.rng.one_in(16),
            reserve: false,
        };
        self.say(all, name, &op)
    }

    /// Puts values until the volume is full. Returns their length.
    fn fill(&mut self, all: &mut All, name: &str) -> Result<u64, String> {
        let (mut bytes, mut refused) = (0, 0);
        while refused < REFUSALS {
            let len = 300 + self.run.rng.below(VALUE_BYTES_MAX - 300);
            if self.put(all, name, len)? {
                (bytes, refused) = (bytes + len, 0);
                continue;
            }
            refused += 1;
            let op = match refused % 2 {
                0 => KvOp::Settle,
                _ => KvOp::Step,
            };
            self.say(all, name, &op)?;
        }
        Ok(bytes)
    }

    /// Deletes and syncs, in each instance.
    fn deletes_work(&mut self, all: &mut All) -> Result<(), String> {
        for name in all.keys().cloned().collect::<Vec<_>>() {
            let held = &self.run.histories[&name].last()["tree-0"];
            let mut keys = held.keys();
            let (first, last) = (keys.next().cloned(), keys.next_back().cloned());
            let (Some(first), Some(last)) = (first, last) else {
                continue;
            };
            for (message, sync) in [
                (Message::Delete(last.clone()), false),
                (Message::DeleteRange(first, last), true),
            ] {
                let op = KvOp::Commit {
                    messages: vec![("tree-0".to_owned(), message)],
                    sync,
                    reserve: true,
                };
                if !self.say(all, &name, &op)? {
                    return Err(format!("{name} takes no {op:?}"));
                }
            }
            self.say(all, &name, &KvOp::Sync)?;
        }
        Ok(())
    }

    /// Releases everything that the filling instance holds.
    fn give_back(&mut self, all: &mut All, filler: &str) -> Result<(), String> {
        if filler != FIRST && self.run.rng.one_in(2) {
            let removed = self.run.remove_named(all, filler);
            return removed.map(drop).map_err(|e| e.to_string());
        }
        if self.run.rng.one_in(3) {
            let dropped = KvOp::DropTree("tree-0".to_owned());
            return self.say(all, filler, &dropped).map(drop);
        }
        let rest = Message::DeleteRange(Vec::new(), vec![0xff; 8]);
        let op = KvOp::Commit {
            messages: vec![("tree-0".to_owned(), rest)],
            sync: false,
            reserve: true,
        };
        self.say(all, filler, &op).map(drop)
    }

    /// Checks that the other instances can write as much as the first could.
    fn others_go_on(
        &mut self,
        all: &mut All,
        filler: &str,
        filled_bytes: u64,
    ) -> Result<u64, String> {
        let others = all.keys().filter(|name| *name != filler);
        let others: Vec<String> = others.cloned().collect();
        let wanted = filled_bytes / COMES_BACK_PART;
        let mut bytes = 0;
        while bytes < wanted {
            let nth = usize::try_from(self.run.rng.below(others.len() as u64)).unwrap_or(0);
            let len = 300 + self.run.rng.below(VALUE_BYTES_MAX - 300);
            if !self.put(all, &others[nth], len)? {
                return Err(format!(
                    "{} could write {bytes} bytes of the {filled_bytes} that were given back",
                    others[nth]
                ));
            }
            bytes += len;
        }
        Ok(bytes)
    }

    /// Crashes in half of all cases, and checks the image.
    fn dies_at_times(
        &mut self,
        device: Arc<CrashDevice>,
        all: All,
    ) -> Result<(Arc<CrashDevice>, All), String> {
        if self.run.rng.one_in(2) {
            return Ok((device, all));
        }
        drop(all);
        let image = self.verify(&device)?;
        let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        let all = self.open(&device)?;
        Ok((device, all))
    }

    /// Kills, cuts the power, checks both images, and returns that of the kill.
    fn verify(&mut self, device: &CrashDevice) -> Result<MemDevice, String> {
        self.images += 2;
        let progress = self.run.progress.lock().clone();
        let cut = device.crash_image(&mut self.run.rng);
        let found = self.run.verify(&cut, &progress, false);
        found.map_err(|e| format!("power cut: {e}"))?;
        let killed = device.kill_image();
        let found = self.run.verify(&killed, &progress, true);
        found.map_err(|e| format!("killed: {e}"))?;
        Ok(killed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::instances_for_tests;
    use stitch_volume::Class;

    #[test]
    fn space_that_does_not_come_back_is_found() {
        let beside = instances_for_tests();
        let mut fill = Fill {
            run: VolumeRun::new(&beside, 1),
            next: 0,
            images: 0,
        };
        let device = CrashDevice::from_image(&beside.system.image(), CrashPlan::NEVER);
        let mut all = fill.open(&Arc::new(device)).unwrap();
        fill.run.create(&mut all).unwrap();
        for name in [FIRST, "i0"] {
            let op = KvOp::CreateTree("tree-0".to_owned());
            fill.say(&mut all, name, &op).unwrap();
        }
        let filled_bytes = fill.fill(&mut all, "i0").unwrap();
        assert!(filled_bytes > 100_000, "{filled_bytes}");
        fill.run.remove_named(&mut all, "i0").unwrap();
        let space = all[FIRST].engine.volume().space();
        let free_bytes = space.available_bytes(Class::User);
        let lost = space.reserve(free_bytes, Class::User).unwrap();
        let wrong = fill.others_go_on(&mut all, "i0", filled_bytes);
        assert!(wrong.unwrap_err().contains("that were given back"));
        drop(lost);
        fill.others_go_on(&mut all, "i0", filled_bytes).unwrap();
    }
}
