use super::READY_BYTES;
use crate::testing::{crashable, fresh, open, replay};
use crate::{InstanceOptions, Opened};
use stitch_base::Lsn;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{CrashPlan, Device, MemDevice};

/// Draws a record. Most are short, as commits are, and some are too long for a window. Between them
/// are series of records that go to prepared pages.
fn record(rng: &mut Rng, number: u64) -> Vec<u8> {
    let is_long = number % 400 >= 360;
    let len_max = match rng.one_in(60) {
        true => 40_000,
        false if is_long => 6_000,
        false => 250,
    };
    let mut record = number.to_le_bytes().to_vec();
    let len = usize::try_from(rng.below(len_max)).unwrap();
    record.resize(8 + len, 0);
    rng.fill(&mut record[8..]);
    record
}

/// Performs one step of a log's life, the same for the same numbers. Returns the appended record,
/// if any.
fn step(opened: &Opened, rng: &mut Rng, number: u64) -> Option<Vec<u8>> {
    let log = opened.volume.log();
    match rng.below(400) {
        0 => log.sync(log.end().unwrap()).unwrap(),
        1 => log.mark_apart().unwrap(),
        2 => {
            let end = log.end().unwrap();
            opened.volume.commit_delta(b"delta", end).unwrap();
        }
        _ => {
            let record = record(rng, number);
            log.append(&[&record[..3], &record[3..]]).unwrap();
            return Some(record);
        }
    }
    None
}

#[test]
fn a_log_whose_end_is_memory_is_that_which_is_written() {
    let image = fresh();
    let with = crashable(&image, CrashPlan::NEVER);
    let without = Arc::new(image.clone());
    let lives = [open(&with).unwrap(), open(&without).unwrap()];
    let rngs = &mut [Rng::new(9), Rng::new(9)];
    for number in 0..40_000 {
        let [one, other] = [0, 1].map(|life| step(&lives[life], &mut rngs[life], number));
        assert_eq!(one, other);
        if number % 5000 == 0 {
            assert_eq!(
                lives[0].volume.log().end().unwrap(),
                lives[1].volume.log().end().unwrap()
            );
        }
    }
    assert!(with.counters().windows > 30, "{:?}", with.counters());
    assert!(with.counters().prepared_bytes > 20 * READY_BYTES);
    assert_eq!(without.counters().windows, 0);
    drop(lives);
    let found = [with.kill_image(), (*without).clone()].map(|image| {
        let opened = open(&Arc::new(image)).unwrap();
        (replay(&opened).unwrap(), opened.versions.len())
    });
    assert_eq!(found[0], found[1]);
    assert!(!found[0].0.is_empty(), "something was appended at the end");
}

#[test]
fn a_power_cut_leaves_what_was_synced_and_a_kill_all_of_it() {
    let device = crashable(&fresh(), CrashPlan::NEVER);
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    let rng = &mut Rng::new(4);
    let (mut records, mut synced) = (Vec::new(), 0);
    for number in 0..2500 {
        records.push(record(&mut Rng::new(number), number));
        log.append(&[records.last().unwrap()]).unwrap();
        if rng.one_in(600) {
            log.sync(log.end().unwrap()).unwrap();
            synced = records.len();
        }
        if rng.one_in(100) {
            let found = found_on(device.crash_image(rng));
            assert_eq!(found[..], records[..found.len()], "a prefix");
            assert!(found.len() >= synced, "what was synced is there");
            assert_eq!(found_on(device.kill_image()), records);
        }
    }
    assert!(synced > 0 && device.counters().windows > 10);
    assert!(device.counters().prepared_bytes > READY_BYTES);
}

fn found_on(image: MemDevice) -> Vec<Vec<u8>> {
    replay(&open(&Arc::new(image)).unwrap()).unwrap()
}

#[test]
fn a_full_ring_keeps_the_records_at_its_other_end() {
    for seed in 0..20 {
        let device = crashable(&fresh(), CrashPlan::NEVER);
        let opened = open(&device).unwrap();
        let log = opened.volume.log();
        let rng = &mut Rng::new(seed);
        let mut skipped = 0;
        // The live part starts anywhere in the ring, and in a page.
        while skipped < log.capacity_bytes() / 4 + rng.below(log.capacity_bytes() / 2) {
            skipped = log.append(&[&record(rng, 0)]).unwrap().0;
        }
        opened.volume.commit_delta(b"delta", Lsn(skipped)).unwrap();
        let mut records = Vec::new();
        let first = seed % 2 * 360;
        for number in first.. {
            let mut record = record(&mut Rng::new(number), number);
            record.truncate(4200);
            if log.append(&[&record]).is_err() {
                break;
            }
            records.push(record);
        }
        assert_eq!(found_on(device.kill_image()), records, "seed {seed}");
        let counters = device.counters();
        assert!(counters.windows > 0 || counters.prepared_bytes > 0);
    }
}

fn append_many(opened: &Opened, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let record = record(&mut Rng::new(number), number);
        opened.volume.log().append(&[&record]).unwrap();
    }
}

#[test]
fn a_log_that_moves_leaves_its_window_behind() {
    let device = crashable(&fresh(), CrashPlan::NEVER);
    let first = open(&device).unwrap();
    let made = |name| {
        let options = InstanceOptions::default();
        first.volume.create_instance(name, &options).unwrap()
    };
    let [early, between, late] = ["early", "between", "late"].map(made);
    append_many(&late, 0..1500);
    let before = device.counters().windows;
    assert!(before > 0);
    for early in [early, between] {
        first.volume.remove_instance(&early.volume).unwrap();
    }
    let cut = late.volume.superblock().instances[0].logs.version_log_at;
    let mut shrinking = first.volume.begin_shrink(cut, 0).unwrap();
    shrinking.move_logs(&late.volume).unwrap();
    shrinking.commit().unwrap();
    assert!(device.geometry().len_bytes <= cut, "the old place is gone");
    append_many(&late, 1500..2500);
    assert!(device.counters().windows > before, "there is another");
    let opened = open(&Arc::new(device.kill_image())).unwrap();
    let records: Vec<_> = (0..2500).map(|n| record(&mut Rng::new(n), n)).collect();
    assert_eq!(replay(&opened.further[0]).unwrap(), records);
}
