//! Damage under several instances: bits flip and pages are lost, in the extents of one instance or
//! in shared ones.
//!
//! Rules, besides those of [`crate::damage`]:
//! - damage in the logs of one instance does not affect the others: they keep their contents;
//! - a page of the zones has one owner: at most one instance has an unreadable part, and the others
//!   continue. Errors that they get from it, as when they evacuate its zone, name the owner;
//! - damage of one copy of the superblock affects no instance;
//! - if the volume cannot be opened, the message names the instance whose log is damaged.

use super::life::{All, VolumeRun};
use super::{Beside, FIRST, InstanceProgress};
use crate::System;
use crate::damage::DamageStats;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{Device, FaultDevice, MemDevice};
use stitch_format::superblock::{COPIES, COPY_BYTES, Superblock};
use stitch_volume::Volume;

/// Turns of each of two lives on a volume with an unreadable part.
const TURNS_AFTER: u64 = 40;

/// Damages the image of one seeded workload in `rounds` ways.
///
/// # Errors
/// What went wrong, and after which damage.
pub fn explore(beside: &Beside, seed: u64, rounds: u64) -> Result<DamageStats, String> {
    let mut run = VolumeRun::new(beside, seed);
    let (image, is_closed) = beside.begin(&mut run, 2)?;
    let superblock = Volume::identify(&image).map_err(|e| e.to_string())?;
    let made = MadeVolume {
        image,
        is_closed,
        superblock,
        run,
    };
    let mut rng = Rng::new(!seed);
    let mut stats = DamageStats::default();
    for _ in 0..rounds {
        stats.add(made.damage(&mut rng)?);
    }
    Ok(stats)
}

/// The owner of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// A copy of the superblock.
    All,
    /// The logs of this instance.
    Logs(String),
    /// The zones: one instance, if any.
    Zones,
}

/// A volume with contents.
struct MadeVolume<'a> {
    image: MemDevice,
    is_closed: bool,
    superblock: Superblock,
    run: VolumeRun<'a>,
}

/// The damage that was done.
struct Damage {
    owner: Owner,
    /// True for a page, false for a bit.
    is_page: bool,
}

impl MadeVolume<'_> {
    fn owner(&self, page: u64) -> Owner {
        if COPIES
            .iter()
            .any(|at| (*at..at + COPY_BYTES as u64).contains(&page))
        {
            return Owner::All;
        }
        let first = (FIRST, self.superblock.areas.logs());
        let further = self.superblock.instances.iter();
        let further = further.map(|instance| (&*instance.name, instance.logs));
        let mut all = std::iter::once(first).chain(further);
        let found = all.find(|(_, logs)| {
            let versions = logs.version_log_at..logs.version_log_at + logs.version_log_bytes;
            let backup = logs.backup_log_at..logs.backup_log_at + logs.backup_log_bytes;
            versions.contains(&page) || backup.contains(&page)
        });
        found.map_or(Owner::Zones, |(name, _)| Owner::Logs(name.to_owned()))
    }

    /// A written page; logs and superblock more often than they are long.
    fn page(&self, rng: &mut Rng) -> u64 {
        let pages = self.image.written_pages().into_iter().map(|(at, _)| at);
        let in_zones = rng.one_in(2);
        let is_wanted = |at: &u64| (self.owner(*at) == Owner::Zones) == in_zones;
        let pages: Vec<u64> = pages.filter(is_wanted).collect();
        let nth = rng.below(pages.len().max(1) as u64);
        let nth = usize::try_from(nth).expect("a small number");
        pages.get(nth).copied().unwrap_or(COPIES[0])
    }

    fn damage(&self, rng: &mut Rng) -> Result<DamageStats, String> {
        let page = self.page(rng);
        let is_page = rng.one_in(4);
        let what = match is_page {
            true => format!("page at {page} lost"),
            false => format!("a bit flipped in the page at {page}"),
        };
        let device = FaultDevice::new(self.image.clone());
        if is_page {
            device.write_at(page, &[&[0u8; 4096]])
        } else {
            let within = if rng.one_in(2) { 64 } else { 4096 };
            device.corrupt(page + rng.below(within), 1 << rng.below(8))
        }
        .map_err(|e| e.to_string())?;
        let owner = self.owner(page);
        let fail = |e: String| format!("{what} ({owner:?}): {e}");
        let owner = owner.clone();
        let damage = Damage { owner, is_page };
        let judged = self.judge(Arc::new(device), &damage, rng.next_u64());
        judged.map_err(fail)
    }

    fn judge(
        &self,
        device: Arc<dyn Device>,
        damage: &Damage,
        seed: u64,
    ) -> Result<DamageStats, String> {
        let mut stats = DamageStats {
            images: 1,
            ..DamageStats::default()
        };
        let all = match self.run.beside.open(Arc::clone(&device)) {
            Ok(all) => all,
            Err(error) => {
                self.may_refuse(&error, damage)?;
                stats.refused = 1;
                return Ok(stats);
            }
        };
        let Suffering { name, is_whole } = self.suffering(&all, damage)?;
        stats.whole = u64::from(name.is_none() && is_whole);
        if !is_whole {
            // An older state is possible: it is unknown which one the store continues from.
            return Ok(stats);
        }
        stats.unreadable = u64::from(name.is_some());
        let mut after = After {
            run: self.run.fork(seed),
            suffering: name,
            done: 0,
        };
        after.live_on(all, &device)?;
        stats.later_ops = after.done;
        Ok(stats)
    }

    /// Checks that opening is refused only for damage in logs, and names their instance.
    fn may_refuse(&self, error: &crate::SystemError, damage: &Damage) -> Result<(), String> {
        let is_honest = matches!(
            error.kind,
            ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid
        );
        let is_named = match &damage.owner {
            Owner::All => false,
            Owner::Logs(name) if name == FIRST => !error.message.contains("instance i"),
            Owner::Logs(name) => error.message.contains(&format!("instance {name}")),
            Owner::Zones => true,
        };
        match is_honest && is_named {
            true => Ok(()),
            false => Err(format!("open says: {error}")),
        }
    }

    /// Finds the instance with an unreadable part, and checks that all others have their contents.
    fn suffering(&self, all: &All, damage: &Damage) -> Result<Suffering, String> {
        let progress: InstanceProgress = self.run.progress.lock().clone();
        if !all.keys().eq(self.run.histories.keys()) {
            return Err(format!("there are {:?}", all.keys()));
        }
        let mut suffering = Vec::new();
        let mut is_whole = true;
        for (name, one) in all {
            let system = &self.run.beside.system;
            let last = self.run.histories[name].states.len() - 1;
            let is_other = match &damage.owner {
                Owner::All => true,
                Owner::Logs(owner) => owner != name,
                Owner::Zones => false,
            };
            let low = match damage.is_page {
                _ if is_other || self.is_closed => last,
                true => 0,
                false => progress[name].synced,
            };
            let found = system.check(&one.live);
            let found = found.unwrap_or_else(|e| vec![e.to_string()]);
            match system.state(&one.live) {
                Ok(state) => {
                    self.run.is_after(name, &state, (low, last))?;
                    let is_last = state == self.run.histories[name].states[last];
                    is_whole &= is_last;
                    if !is_last || !found.is_empty() {
                        suffering.push(name.clone());
                    }
                }
                Err(error) if error.kind != ErrorKind::Corrupt || found.is_empty() || is_other => {
                    return Err(format!(
                        "reading {name} says: {error}; its check finds {} broken rules",
                        found.len()
                    ));
                }
                Err(_) => {
                    suffering.push(name.clone());
                    is_whole &= self.last_is_readable(all, name, low)?;
                }
            }
        }
        if suffering.len() > 1 {
            return Err(format!("{suffering:?} suffer by one page"));
        }
        let name = suffering.pop();
        Ok(Suffering { name, is_whole })
    }

    /// Checks that each readable part is that of an allowed state. Returns whether that may be the
    /// last one.
    fn last_is_readable(&self, all: &All, name: &str, low: usize) -> Result<bool, String> {
        let states = &self.run.histories[name].states;
        let mut wrong = String::new();
        for (number, state) in states.iter().enumerate().skip(low).rev() {
            let system = &self.run.beside.system;
            match system.compare_readable(&all[name].live, state) {
                Ok(_) => return Ok(number == states.len() - 1 && low == number),
                Err(e) if wrong.is_empty() => wrong = e,
                Err(_) => {}
            }
        }
        Err(format!("instance {name}: {wrong}"))
    }
}

/// The instance that cannot read something.
struct Suffering {
    name: Option<String>,
    /// Each instance is in its last state, as far as it can be read.
    is_whole: bool,
}

/// Later lives of a volume with known damage.
struct After<'a> {
    run: VolumeRun<'a>,
    suffering: Option<String>,
    done: u64,
}

impl After<'_> {
    /// Runs two more lives.
    fn live_on(&mut self, mut all: All, device: &Arc<dyn Device>) -> Result<(), String> {
        for _ in 0..2 {
            self.run.enter(&all);
            for _ in 0..TURNS_AFTER {
                self.turn(&mut all)?;
            }
            let fail = |e: String| format!("after more turns: {e}");
            self.is_right(&all).map_err(fail)?;
            let closed = self.run.beside.close(&all);
            closed.map_err(|e| fail(format!("close: {e}")))?;
            drop(all);
            let opened = self.run.beside.open(Arc::clone(device));
            all = opened.map_err(|e| fail(format!("open: {e}")))?;
        }
        self.is_right(&all)
    }

    /// Runs a turn of any instance. Only operations that involve the damaged one may fail.
    fn turn(&mut self, all: &mut All) -> Result<(), String> {
        let Err(failed) = self.run.turn(all) else {
            self.done += 1;
            return Ok(());
        };
        let is_known = self.suffering == Some(failed.whose(all));
        if !is_known || failed.error.kind != ErrorKind::Corrupt {
            return Err(format!("later, {failed}"));
        }
        self.run.forgive(&failed.name);
        Ok(())
    }

    /// Checks that the damaged instance returns no wrong data, and that the others lost nothing.
    fn is_right(&self, all: &All) -> Result<(), String> {
        let suffering = self.suffering.as_deref();
        self.run.hold_all(all, suffering)?;
        for (name, one) in all {
            let system = &self.run.beside.system;
            let expected = self.run.histories[name].last();
            if suffering == Some(name) {
                system.compare_readable(&one.live, expected)?;
                continue;
            }
            let broken = system.check(&one.live).map_err(|e| e.to_string())?;
            if let Some(first) = broken.first() {
                return Err(format!("instance {name} breaks a rule: {first}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::instances_for_tests;

    fn made(beside: &Beside) -> MadeVolume<'_> {
        let mut run = VolumeRun::new(beside, 3);
        let (image, is_closed) = beside.begin(&mut run, 2).unwrap();
        let superblock = Volume::identify(&image).unwrap();
        MadeVolume {
            image,
            is_closed,
            superblock,
            run,
        }
    }

    fn judge(made: &MadeVolume<'_>, image: MemDevice, owner: Owner) -> Result<DamageStats, String> {
        let damage = Damage {
            owner,
            is_page: false,
        };
        made.judge(Arc::new(image), &damage, 1)
    }

    #[test]
    fn an_instance_that_has_not_what_it_must_is_found() {
        let beside = instances_for_tests();
        let mut made = made(&beside);
        let image = made.image.clone();
        judge(&made, image.clone(), Owner::All).unwrap();
        let main = made.run.histories.get_mut(FIRST).unwrap();
        let last = main.states.last_mut().unwrap();
        last.insert("not there".to_owned(), crate::kv::Map::new());
        let wrong = judge(&made, image, Owner::All).unwrap_err();
        assert!(wrong.contains("instance main is after none"), "{wrong}");
    }

    #[test]
    fn damage_that_names_the_wrong_instance_is_found() {
        let beside = instances_for_tests();
        let made = made(&beside);
        let image = made.image.clone();
        let instance = &made.superblock.instances[0];
        let lost = [0; 4096];
        let at = instance.logs.version_log_at;
        image.write_at(at, &[&lost]).unwrap();
        let owner = Owner::Logs(instance.name.clone());
        assert_eq!(made.owner(at), owner);
        let told = judge(&made, image.clone(), owner).unwrap();
        assert_eq!(told.refused, 1);
        judge(&made, image.clone(), Owner::Logs("i99".to_owned())).unwrap_err();
        judge(&made, image.clone(), Owner::Logs(FIRST.to_owned())).unwrap_err();
        judge(&made, image, Owner::All).unwrap_err();
    }
}
