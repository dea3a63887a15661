//! Damage to synced records of the backup log is an error, wherever they stand. What a power cut
//! leaves of unsynced records is not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, Lsn};
use stitch_device::{CrashDevice, CrashPlan, Device, FaultDevice, MemDevice};
use stitch_volume::{
    FormatOptions, OpenOptions, Opened, VOLUME_BYTES_MIN, Visit, Volume, VolumeError,
};

const RING_BYTES: u64 = 2 << 20;

fn fresh() -> MemDevice {
    let device = MemDevice::new(VOLUME_BYTES_MIN);
    Volume::format(&device, &FormatOptions::default(), &mut |_, _| ()).expect("a healthy device");
    device
}

fn open(device: &Arc<impl Device + 'static>) -> Opened {
    let device: Arc<dyn Device> = Arc::clone(device) as Arc<dyn Device>;
    Volume::open(device, &OpenOptions::default()).expect("the superblocks are whole")
}

fn records(opened: &Opened) -> Result<Vec<Vec<u8>>, VolumeError> {
    let mut out = Vec::new();
    let visit: &mut Visit<'_, VolumeError> = &mut |_, payload| {
        out.push(payload.to_vec());
        Ok(())
    };
    opened.volume.log().replay(opened.log_start, visit)?;
    Ok(out)
}

fn ring_at(opened: &Opened) -> u64 {
    opened.volume.superblock().areas.backup_log_at
}

/// Appends `count` records of about 100 bytes and returns the position of each.
fn fill(opened: &Opened, count: u64) -> Vec<Lsn> {
    let log = opened.volume.log();
    let mut at = Vec::new();
    for number in 0..count {
        at.push(log.end().unwrap());
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize(60 + usize::try_from(number % 7).unwrap() * 13, 1);
        log.append(&[&payload]).unwrap();
    }
    at
}

fn sync(opened: &Opened) {
    let log = opened.volume.log();
    log.sync(log.end().unwrap()).unwrap();
}

/// Returns the image after a killed process on a running machine: everything written is there.
fn image(device: &MemDevice) -> FaultDevice<MemDevice> {
    FaultDevice::new(device.clone())
}

#[test]
fn every_byte_of_the_last_sync_is_watched() {
    let device = Arc::new(fresh());
    let opened = open(&device);
    fill(&opened, 6);
    sync(&opened);
    let end = opened.volume.log().end().unwrap();
    let at = ring_at(&opened);
    drop(opened);
    let mut found = 0;
    for offset in 0..end.0 + 32 {
        let damaged = Arc::new(image(&device));
        damaged.corrupt(at + offset, 0x20).unwrap();
        match records(&open(&damaged)) {
            Ok(records) => assert_eq!(records.len(), 6, "byte {offset}: nothing may be missing"),
            Err(error) => {
                assert!(
                    matches!(error, VolumeError::LogDamaged { .. }),
                    "byte {offset}: {error}"
                );
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                found += 1;
            }
        }
    }
    // All but the padding and the mark itself.
    assert!(found > end.0 / 2, "{found} of {end}");
}

#[test]
fn the_error_says_where_and_how_much_is_behind() {
    let device = Arc::new(fresh());
    let opened = open(&device);
    let places = fill(&opened, 400);
    sync(&opened);
    let more = fill(&opened, 5);
    let written = opened.volume.log().end().unwrap();
    assert!(written > more[4]);
    let at = ring_at(&opened);
    drop(opened);
    let damaged = Arc::new(image(&device));
    let bad = places[250];
    for byte in 0..16 {
        damaged.corrupt(at + bad.0 + byte, 0xff).unwrap();
    }
    let VolumeError::LogDamaged {
        at: found,
        lost_bytes,
    } = records(&open(&damaged)).unwrap_err()
    else {
        panic!("another error");
    };
    assert_eq!(found, at + bad.0);
    assert_eq!(lost_bytes, written.0 - bad.0, "also what was not synced");
}

#[test]
fn what_was_recovered_from_a_killed_process_counts_as_synced() {
    let device = Arc::new(fresh());
    let opened = open(&device);
    let places = fill(&opened, 10);
    let at = ring_at(&opened);
    drop(opened);
    // Not synced, and nothing notes that it ever was.
    let damaged = Arc::new(image(&device));
    damaged.corrupt(at + places[5].0, 1).unwrap();
    assert_eq!(records(&open(&damaged)).unwrap().len(), 5);
    // The next life makes it durable, and its first record notes that.
    let opened = open(&device);
    assert_eq!(records(&opened).unwrap().len(), 10);
    fill(&opened, 1);
    drop(opened);
    let damaged = Arc::new(image(&device));
    damaged.corrupt(at + places[5].0, 1).unwrap();
    let error = records(&open(&damaged)).unwrap_err();
    assert!(matches!(error, VolumeError::LogDamaged { .. }), "{error}");
}

#[test]
fn a_loss_that_was_accepted_stays_accepted() {
    let device = Arc::new(fresh());
    let opened = open(&device);
    let places = fill(&opened, 20);
    opened
        .volume
        .commit_delta(b"delta", opened.log_start)
        .unwrap();
    sync(&opened);
    fill(&opened, 3);
    sync(&opened);
    let at = ring_at(&opened);
    drop(opened);
    let damaged = Arc::new(image(&device));
    damaged.corrupt(at + places[10].0, 1).unwrap();
    let opened = open(&damaged);
    records(&opened).unwrap_err();
    opened.volume.log().append(&[b"x"]).unwrap_err();
    drop(opened);
    let opened = open(&damaged);
    opened.volume.log().accept_loss();
    assert_eq!(opened.volume.log().loss(), None);
    assert_eq!(records(&opened).unwrap().len(), 10);
    let loss = opened.volume.log().loss().unwrap();
    assert_eq!(loss.at, at + places[10].0);
    drop(opened);
    // Nothing was written since, and the old records are all there.
    let opened = open(&damaged);
    assert_eq!(records(&opened).unwrap().len(), 10);
    fill(&opened, 2);
    sync(&opened);
    drop(opened);
    let opened = open(&damaged);
    assert_eq!(records(&opened).unwrap().len(), 12);
    // A version of the new life does not depend on the old life's notes.
    opened
        .volume
        .commit_base(b"base", opened.log_start)
        .unwrap();
    drop(opened);
    assert_eq!(records(&open(&damaged)).unwrap().len(), 12);
}

#[test]
fn a_page_that_is_lost_at_the_end_is_missed_once_the_log_was_quiet() {
    let device = Arc::new(fresh());
    let opened = open(&device);
    fill(&opened, 100);
    sync(&opened);
    let log = opened.volume.log();
    log.mark_apart().unwrap();
    let (writes, end) = (device.counters().writes, log.end().unwrap());
    log.mark_apart().unwrap();
    assert_eq!(device.counters().writes, writes, "once is enough");
    let at = ring_at(&opened);
    drop(opened);
    assert_eq!(records(&open(&device)).unwrap().len(), 100);
    let damaged = Arc::new(image(&device));
    damaged
        .write_at(at + end.0 / 4096 * 4096, &[&[0; 4096]])
        .unwrap();
    let error = records(&open(&damaged)).unwrap_err();
    assert!(matches!(error, VolumeError::LogDamaged { .. }), "{error}");
}

#[test]
fn a_mark_costs_no_sync_and_one_write_of_a_page() {
    let device = Arc::new(fresh());
    let opened = open(&device);
    let log = opened.volume.log();
    for _ in 0..10 {
        let end = log.append(&[b"record"]).unwrap();
        let before = device.counters();
        log.sync(end).unwrap();
        let after = device.counters();
        assert_eq!(after.syncs - before.syncs, 1);
        assert_eq!(after.writes - before.writes, 2, "a skip record and a mark");
        assert_eq!(after.write_bytes - before.write_bytes, 2 * 4096);
    }
}

#[test]
fn a_closed_volume_knows_where_its_log_ends() {
    let device = Arc::new(fresh());
    let opened = open(&device);
    let places = fill(&opened, 10);
    opened.volume.close().unwrap();
    let at = ring_at(&opened);
    drop(opened);
    assert_eq!(records(&open(&device)).unwrap().len(), 10);
    // Also with the loss of the whole page that holds the mark.
    let damaged = Arc::new(image(&device));
    let zeros = vec![0; 1 << 20];
    let len = usize::try_from(RING_BYTES - places[5].0)
        .unwrap()
        .min(zeros.len());
    damaged
        .write_at(at + places[5].0, &[&zeros[..len]])
        .unwrap();
    let opened = open(&damaged);
    let error = records(&opened).unwrap_err();
    assert!(matches!(error, VolumeError::LogDamaged { .. }), "{error}");
    // Having been opened for writing changes nothing about it.
    drop(opened);
    records(&open(&damaged)).unwrap_err();
}

/// Lives with power cuts, kills and damage: synced records are recovered, or their loss is
/// detected. If bits flip after a power cut, that holds only up to the sync before the last: the
/// note of the last one may be lost itself.
#[test]
fn damage_is_never_taken_for_a_power_cut_nor_a_power_cut_for_damage() {
    let image = fresh();
    let (mut found, mut whole) = (0, 0);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut device = CrashDevice::from_image(&image, CrashPlan::NEVER);
        for _ in 0..3 {
            let shared = Arc::new(device);
            let opened = open(&shared);
            records(&opened).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let synced = live(&opened, &mut rng);
            let start = opened.log_start;
            drop(opened);
            let (left, known) = if rng.one_in(2) {
                (shared.kill_image(), synced[1])
            } else {
                (shared.crash_image(&mut rng), synced[0])
            };
            match flipped(&left, &mut rng, start, known.1) {
                Ok(count) => {
                    assert!(count >= known.0, "seed {seed}: {count} of {synced:?}");
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "seed {seed}: {error}");
                    found += 1;
                }
            }
            device = CrashDevice::from_image(&left, CrashPlan::NEVER);
        }
    }
    assert!(found > 100 && whole > 50, "{found} found, {whole} whole");
}

/// Runs a workload. Returns how many live records the last two syncs made durable, and where they
/// end.
fn live(opened: &Opened, rng: &mut Rng) -> [(usize, Lsn); 2] {
    let log = opened.volume.log();
    let mut count = records(opened).unwrap().len();
    let mut synced = [(0, opened.log_start), (count, log.end().unwrap())];
    for _ in 0..rng.below(40) {
        match rng.below(6) {
            0 => {
                sync(opened);
                if count > synced[1].0 {
                    synced = [synced[1], (count, log.end().unwrap())];
                }
            }
            _ => {
                let len = if rng.one_in(5) { 3000 } else { 200 };
                let len = usize::try_from(rng.below(len)).unwrap();
                log.append(&[&vec![3; len]]).unwrap();
                count += 1;
            }
        }
    }
    synced
}

/// Opens a copy with one bit flipped somewhere in the synced part of the log.
fn flipped(image: &MemDevice, rng: &mut Rng, start: Lsn, end: Lsn) -> Result<usize, VolumeError> {
    let at = Volume::identify(image).unwrap().areas.backup_log_at;
    let device = Arc::new(FaultDevice::new(image.clone()));
    if end > start {
        let offset = start.0 + rng.below(end.0 - start.0);
        device.corrupt(at + offset, 1 << rng.below(8)).unwrap();
    }
    records(&open(&device)).map(|records| records.len())
}
