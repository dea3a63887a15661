//! Seeded lives of a volume, each ended by a power cut or a kill and checked against a model.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::testing::{crashable, fresh, open, open_with};
use crate::{Durability, Opened, Volume, VolumeError};
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, Lsn};
use stitch_device::{CrashDevice, CrashPlan, Device, Fault, FaultDevice, FaultOp, MemDevice};

/// A version of the model: payloads and log start.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Version {
    payloads: Vec<Vec<u8>>,
    log_start: Lsn,
}

/// What a reopened volume must contain.
#[derive(Debug, Default)]
struct Model {
    version: Version,
    /// A commit that failed: it may have become durable or not.
    attempted: Option<Version>,
    /// Records since ever: position after each, and payload.
    records: Vec<(Lsn, Vec<u8>)>,
    /// An append that failed.
    attempted_record: Option<Vec<u8>>,
    /// Positions up to here survive a power cut.
    durable: Lsn,
    /// The power failed since the last check.
    lost_power: bool,
    count: u64,
}

fn payload(rng: &mut Rng, count: u64, len_max: u64) -> Vec<u8> {
    let mut out = count.to_le_bytes().to_vec();
    let len = rng.below(len_max);
    out.resize(8 + usize::try_from(len).unwrap(), 0);
    rng.fill(&mut out[8..]);
    out
}

impl Model {
    /// Compares the reopened volume with what it must and may contain, and continues from there.
    fn check(&mut self, opened: &Opened) -> Result<(), VolumeError> {
        let found = Version {
            payloads: opened.versions.clone(),
            log_start: opened.log_start,
        };
        let is_new = self.attempted.as_ref() == Some(&found);
        assert!(
            is_new || found == self.version,
            "neither the old version nor the new"
        );
        self.version = found;
        self.attempted = None;
        let mut records = Vec::new();
        let log = opened.volume.log();
        let end = log.replay(opened.log_start, &mut |end, bytes| {
            records.push((end, bytes.to_vec()));
            Ok::<(), VolumeError>(())
        })?;
        let live = |&&(at, _): &&(Lsn, Vec<u8>)| at > self.version.log_start;
        let expected: Vec<_> = self.records.iter().filter(live).cloned().collect();
        let common = records.len().min(expected.len());
        assert_eq!(records[..common], expected[..common], "not a prefix");
        let has_more = records.len() > common;
        let is_attempted = records.len() == common + 1
            && self.attempted_record.as_ref() == Some(&records[common].1);
        assert!(!has_more || is_attempted, "records from nowhere");
        if let Some((lost, _)) = expected.get(common) {
            assert!(self.lost_power, "a kill loses nothing");
            assert!(*lost > self.durable, "a synced record is lost");
        }
        self.records = records;
        self.attempted_record = None;
        self.lost_power = false;
        // Opening syncs the device.
        self.durable = end;
        Ok(())
    }

    fn append(&mut self, volume: &Volume, rng: &mut Rng) -> Result<(), VolumeError> {
        self.count += 1;
        let long = rng.one_in(8);
        let bytes = payload(rng, self.count, if long { 300_000 } else { 1000 });
        let cut = bytes.len() / 2;
        match volume.log().append(&[&bytes[..cut], &bytes[cut..]]) {
            Ok(end) => self.records.push((end, bytes)),
            Err(VolumeError::LogFull { .. }) => {
                let end = volume.log().end()?;
                self.commit(volume, rng, false, end)?;
                // Also a long record fits now.
                let end = volume.log().append(&[&bytes])?;
                self.records.push((end, bytes));
            }
            Err(error) => {
                self.attempted_record = Some(bytes);
                return Err(error);
            }
        }
        Ok(())
    }

    fn sync(&mut self, volume: &Volume) -> Result<(), VolumeError> {
        let end = volume.log().end()?;
        volume.log().sync(end)?;
        assert!(volume.log().durable_end() >= end);
        self.durable = end;
        Ok(())
    }

    fn commit(
        &mut self,
        volume: &Volume,
        rng: &mut Rng,
        is_base: bool,
        log_start: Lsn,
    ) -> Result<(), VolumeError> {
        self.count += 1;
        let long = rng.one_in(4);
        let bytes = payload(rng, self.count, if long { 100_000 } else { 5000 });
        let mut next = self.version.clone();
        next.log_start = log_start;
        if is_base {
            next.payloads.clear();
        }
        next.payloads.push(bytes.clone());
        let durable = self.records.last().map_or(self.durable, |&(end, _)| end);
        let result = if is_base {
            volume.commit_base(&bytes, log_start)
        } else {
            volume.commit_delta(&bytes, log_start)
        };
        match result {
            Ok(()) => {
                self.version = next;
                self.durable = durable;
                self.records.retain(|&(at, _)| at > log_start);
                Ok(())
            }
            Err(VolumeError::VersionLogFull { .. }) if !is_base => {
                self.commit(volume, rng, true, log_start)
            }
            Err(error) => {
                assert!(
                    !matches!(error, VolumeError::VersionLogFull { .. }),
                    "no room for a base"
                );
                self.attempted = Some(next);
                Err(error)
            }
        }
    }

    fn step(&mut self, volume: &Volume, rng: &mut Rng) -> Result<(), VolumeError> {
        match rng.below(10) {
            0 => self.sync(volume),
            1 => {
                // Any record's end can be the new start.
                let starts: Vec<Lsn> = self.records.iter().map(|&(end, _)| end).collect();
                let index = rng.below(starts.len() as u64 + 1);
                let kept = self.version.log_start;
                let start = starts.get(usize::try_from(index).unwrap());
                let start = start.copied().unwrap_or(kept).max(kept);
                let is_base = rng.one_in(4) || volume.version_log_wants_base();
                self.commit(volume, rng, is_base, start)
            }
            _ => self.append(volume, rng),
        }
    }
}

/// One life: opens, checks, works until the device stops or the work is done.
fn live(
    device: &Arc<CrashDevice>,
    model: &mut Model,
    rng: &mut Rng,
    durability: Durability,
) -> Result<(), VolumeError> {
    let opened = open_with(device, durability)?;
    model.check(&opened)?;
    for _ in 0..rng.below(60) {
        model.step(&opened.volume, rng)?;
    }
    Ok(())
}

fn lives(seed: u64, image: &MemDevice, durability: Durability) {
    let mut rng = Rng::new(seed);
    let mut model = Model::default();
    let mut device = crashable(image, CrashPlan::NEVER);
    for _ in 0..6 {
        device.set_plan(match rng.below(3) {
            0 => CrashPlan::NEVER,
            1 => CrashPlan::at_write(1 + rng.below(80)),
            _ => CrashPlan::at_sync(1 + rng.below(16)),
        });
        let result = live(&device, &mut model, &mut rng, durability);
        assert_eq!(
            result.is_err(),
            device.is_stopped(),
            "seed {seed}: {result:?}"
        );
        let image = if durability == Durability::Os && rng.one_in(3) {
            device.kill_image()
        } else {
            model.lost_power = true;
            device.crash_image(&mut rng)
        };
        device = crashable(&image, CrashPlan::NEVER);
    }
    live(&device, &mut model, &mut rng, durability).unwrap();
}

fn many_lives(durability: Durability, seeds: std::ops::Range<u64>) {
    let image = fresh();
    for seed in seeds {
        let result = catch_unwind(AssertUnwindSafe(|| lives(seed, &image, durability)));
        assert!(result.is_ok(), "seed {seed} fails");
    }
}

#[test]
fn crashes_leave_the_old_version_or_the_new_and_a_prefix_of_the_log() {
    many_lives(Durability::Os, 0..400);
}

#[test]
fn crashes_with_a_log_kept_in_memory_leave_a_prefix() {
    many_lives(Durability::Application, 1000..1100);
}

/// A killed process, then a power cut before the next open is complete.
#[test]
fn a_power_cut_while_opening_after_a_kill_is_survived() {
    let image = fresh();
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut model = Model::default();
        let device = crashable(&image, CrashPlan::at_sync(9));
        let _ = live(&device, &mut model, &mut rng, Durability::Os);
        device.stop();
        let killed = device.kill_image();
        for nth in 1..=2 {
            let device = crashable(&killed, CrashPlan::at_sync(nth));
            assert!(open(&device).is_err());
            let cut = crashable(&device.crash_image(&mut rng), CrashPlan::NEVER);
            let opened = open(&cut).unwrap();
            opened
                .volume
                .log()
                .replay(opened.log_start, &mut |_, _| Ok::<(), VolumeError>(()))
                .unwrap();
        }
    }
}

/// Fails every call of a workload once: the caller gets an error, nothing more is written, and
/// everything acknowledged survives.
#[test]
fn an_error_at_any_call_poisons_and_loses_nothing() {
    let image = fresh();
    let mut nth = 1;
    loop {
        let inner = CrashDevice::from_image(&image, CrashPlan::NEVER);
        let device = Arc::new(FaultDevice::new(inner));
        device.add(Fault::once(FaultOp::Any, nth));
        let mut rng = Rng::new(7);
        let mut model = Model::default();
        let result = workload(&device, &mut model, &mut rng);
        if device.hits() == 0 {
            result.unwrap();
            break;
        }
        if nth <= 2 {
            // One unreadable superblock counts as one damaged superblock.
            result.unwrap();
            nth += 1;
            continue;
        }
        let error = result.expect_err("the fault is seen");
        assert_eq!(error.kind(), ErrorKind::Io, "call {nth}: {error}");
        for image in [
            device.inner().kill_image(),
            device.inner().crash_image(&mut rng),
        ] {
            let opened = open(&Arc::new(image)).unwrap();
            let found = Version {
                payloads: opened.versions.clone(),
                log_start: opened.log_start,
            };
            let is_new = model.attempted.as_ref() == Some(&found);
            assert!(is_new || found == model.version, "call {nth}");
        }
        nth += 1;
    }
    assert!(nth > 50, "the workload makes calls");
}

fn workload(
    device: &Arc<FaultDevice<CrashDevice>>,
    model: &mut Model,
    rng: &mut Rng,
) -> Result<(), VolumeError> {
    let opened = open(device)?;
    model.check(&opened)?;
    let volume = &opened.volume;
    for _ in 0..40 {
        if let Err(error) = model.step(volume, rng) {
            assert!(volume.is_poisoned());
            let refused = volume.log().append(&[b"more"]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Poisoned);
            let start = volume.log().end().unwrap();
            let refused = volume.commit_delta(b"more", start).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Poisoned);
            assert_eq!(volume.sync().unwrap_err().kind(), ErrorKind::Poisoned);
            let mut out = [0; 512];
            volume
                .read(volume.superblock().areas.zones_at, &mut out)
                .unwrap();
            return Err(error);
        }
    }
    Ok(())
}

/// Random damage anywhere that an open reads gives an error or a version, never a panic.
#[test]
fn damaged_images_are_opened_or_refused() {
    let image = fresh();
    let device = crashable(&image, CrashPlan::NEVER);
    let mut rng = Rng::new(1);
    live(&device, &mut Model::default(), &mut rng, Durability::Os).unwrap();
    let image = device.kill_image();
    let mut refused = 0;
    for _ in 0..400 {
        let device = FaultDevice::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        for _ in 0..=rng.below(6) {
            let areas = [
                (0, 512),
                (4096, 512),
                (8192, 20_000),
                (8192 + (512 << 10), 20_000),
            ];
            let (at, len) = areas[usize::try_from(rng.below(4)).unwrap()];
            let mask = 1 << rng.below(8);
            device.corrupt(at + rng.below(len), mask).unwrap();
        }
        let device: Arc<dyn Device> = Arc::new(device);
        let result = Volume::open(device, &crate::OpenOptions::default()).and_then(|opened| {
            let visit: &mut crate::Visit<'_, VolumeError> = &mut |_, _| Ok(());
            opened.volume.log().replay(opened.log_start, visit)
        });
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            refused += 1;
        }
    }
    assert!(refused > 0, "some damage is noticed");
}

#[test]
fn images_of_noise_are_refused() {
    let mut rng = Rng::new(3);
    for round in 0..20 {
        let mut noise = vec![0; 1 << 20];
        rng.fill(&mut noise);
        if round % 2 == 0 {
            noise[..8].copy_from_slice(b"StitchFS");
        }
        let device: Arc<dyn Device> = Arc::new(MemDevice::from_image(&noise));
        assert!(Volume::open(device, &crate::OpenOptions::default()).is_err());
    }
}
