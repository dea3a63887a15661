use super::*;
use crate::testing::{crashable, fresh, open, open_read_only, open_with, replay};
use crate::{Opened, VolumeError};
use stitch_base::{ErrorKind, thread};
use stitch_device::{CrashPlan, Device, Fault, FaultDevice, FaultOp, MemDevice, SECTOR_BYTES};

mod short;
mod torn;

const RING: u64 = 2 << 20;

fn record(number: u64, len: usize) -> Vec<u8> {
    let mut out = number.to_le_bytes().to_vec();
    out.resize(len.max(8), b'r');
    out
}

fn commit_all(opened: &Opened) {
    let end = opened.volume.log().end().unwrap();
    opened.volume.commit_base(b"base", end).unwrap();
}

#[test]
fn records_come_back_in_order_through_many_wraps() {
    let device = Arc::new(fresh());
    let mut kept = Vec::new();
    let mut number = 0;
    for life in 0..8 {
        let opened = open(&device).unwrap();
        assert_eq!(replay(&opened).unwrap(), kept, "life {life}");
        let log = opened.volume.log();
        for _ in 0..200 {
            number += 1;
            let bytes = record(number, usize::try_from(number * 7919 % 9000).unwrap());
            if log.room_bytes().unwrap() < 40_000 {
                commit_all(&opened);
                kept.clear();
            }
            log.append(&[&bytes[..8], &bytes[8..]]).unwrap();
            kept.push(bytes);
            if number % 17 == 0 {
                log.sync(log.end().unwrap()).unwrap();
            }
        }
    }
    let end = open(&device).unwrap().volume.log().end().unwrap();
    assert!(end.0 > 3 * RING, "the ring wrapped");
}

#[test]
fn a_full_log_refuses_and_takes_more_after_a_commit() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    let longest = usize::try_from(log.record_bytes_max()).unwrap();
    let bytes = vec![1; longest];
    let mut count = 0;
    let error = loop {
        match log.append(&[&bytes]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(count, 3, "four do not fit beside the slack");
    assert!(matches!(error, VolumeError::LogFull { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(replay(&opened).unwrap().len(), 3);
    // A full log can still be synced, however full.
    while log.append(&[b"x"]).is_ok() {}
    log.sync(log.end().unwrap()).unwrap();
    commit_all(&opened);
    assert_eq!(log.used_bytes().unwrap(), 0);
    log.append(&[&bytes]).unwrap();
    let too_long = vec![1; longest + 1];
    let error = log.append(&[&too_long]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn every_end_of_the_ring_is_survived() {
    // All distances from the ring's end at which a record can begin, also too short for a header.
    for gap in (0..64).step_by(8) {
        let device = Arc::new(fresh());
        let opened = open(&device).unwrap();
        let log = opened.volume.log();
        let mut end = 0;
        while end < RING - gap {
            let left = RING - gap - end;
            let len = if left > 400_000 { 200_000 } else { left };
            if left > 400_000 && log.room_bytes().unwrap() < 700_000 {
                commit_all(&opened);
            }
            let payload = vec![7; usize::try_from(len).unwrap() - HEADER_BYTES];
            end = log.append(&[&payload]).unwrap().0;
            if log.used_bytes().unwrap() > RING / 2 {
                log.advance(Lsn(end));
            }
        }
        assert_eq!(end, RING - gap);
        log.sync(Lsn(end)).unwrap();
        let before = log.end().unwrap();
        opened.volume.commit_delta(b"delta", before).unwrap();
        log.append(&[b"after"]).unwrap();
        drop(opened);
        let opened = open(&device).unwrap();
        assert_eq!(replay(&opened).unwrap(), [b"after"], "gap {gap}");
    }
}

#[test]
fn a_sync_leaves_no_sector_to_be_shared() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    for len in 0..1100 {
        let end = log.append(&[&vec![1; len]]).unwrap();
        log.sync(end).unwrap();
        let durable = log.durable_end();
        assert!(durable >= end);
        assert_eq!(durable.0 % SECTOR_BYTES, 0, "after {len} bytes");
        assert!(durable.0 - end.0 < SECTOR_BYTES + HEADER);
    }
    let opened = open(&device).unwrap();
    assert_eq!(replay(&opened).unwrap().len(), 1100);
}

#[test]
fn a_sync_of_what_is_durable_does_not_touch_the_device() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    let end = log.append(&[b"record"]).unwrap();
    log.sync(end).unwrap();
    let syncs = device.counters().syncs;
    log.sync(end).unwrap();
    assert_eq!(device.counters().syncs, syncs);
    log.append(&[b"more"]).unwrap();
    log.sync(end).unwrap();
    assert_eq!(device.counters().syncs, syncs);
}

#[test]
fn each_durability_survives_what_it_promises() {
    for durability in [Durability::Device, Durability::Os, Durability::Application] {
        let device = crashable(&fresh(), CrashPlan::NEVER);
        let opened = open_with(&device, durability).unwrap();
        opened.volume.log().append(&[b"record"]).unwrap();
        let has_record = |image: MemDevice| {
            let opened = open(&Arc::new(image)).unwrap();
            !replay(&opened).unwrap().is_empty()
        };
        assert_eq!(
            has_record(device.kill_image()),
            durability != Durability::Application
        );
        let rng = &mut stitch_base::random::Rng::new(1);
        let survivors = (0..20)
            .filter(|_| has_record(device.crash_image(rng)))
            .count();
        if durability == Durability::Device {
            assert_eq!(survivors, 20);
        } else {
            assert!(survivors < 20);
        }
        opened.volume.sync().unwrap();
        assert!(has_record(device.crash_image(rng)));
    }
}

#[test]
fn a_log_in_memory_goes_out_when_it_gets_long_and_replays_itself() {
    let device = Arc::new(fresh());
    let opened = open_with(&device, Durability::Application).unwrap();
    let log = opened.volume.log();
    let writes = device.counters().writes;
    for number in 0..2000 {
        log.append(&[&record(number, 1000)]).unwrap();
        if log.room_bytes().unwrap() < 10_000 {
            commit_all(&opened);
        }
    }
    assert!(device.counters().writes - writes < 2000 / 50, "collected");
    log.append(&[b"last"]).unwrap();
    let mut last = Vec::new();
    let start = Lsn(log.end().unwrap().0 - log.used_bytes().unwrap());
    log.replay(start, &mut |_, bytes| {
        last = bytes.to_vec();
        Ok::<(), VolumeError>(())
    })
    .unwrap();
    assert_eq!(last, b"last");
}

#[test]
fn threads_that_sync_share_the_device_s_syncs() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let before = device.counters().syncs;
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let volume = Arc::clone(&opened.volume);
            thread::spawn("appender", move || {
                for index in 0..200 {
                    let end = volume
                        .log()
                        .append(&[&record(number * 1000 + index, 64)])
                        .unwrap();
                    volume.log().sync(end).unwrap();
                    assert!(volume.log().durable_end() >= end);
                }
            })
            .unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(device.counters().syncs - before <= 800);
    let opened = open(&device).unwrap();
    let mut numbers: Vec<u64> = replay(&opened)
        .unwrap()
        .iter()
        .map(|bytes| u64::from_le_bytes(bytes[..8].try_into().unwrap()))
        .collect();
    numbers.sort_unstable();
    let expected: Vec<u64> = (0..4)
        .flat_map(|n| (0..200).map(move |i| n * 1000 + i))
        .collect();
    assert_eq!(numbers, expected);
}

#[test]
fn a_failed_sync_fails_its_caller_and_poisons_the_rest() {
    let device = Arc::new(FaultDevice::new(fresh()));
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    let end = log.append(&[b"record"]).unwrap();
    let syncs = device.calls().syncs;
    device.add(Fault::once(FaultOp::Sync, syncs + 1));
    assert_eq!(log.sync(end).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(log.sync(end).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.append(&[b"x"]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(
        device.calls().syncs,
        syncs + 1,
        "a failed sync is not tried again"
    );
    assert_eq!(replay(&opened).unwrap(), [b"record"], "reads go on");
}

#[test]
fn space_comes_back_only_with_a_durable_version() {
    let device = Arc::new(FaultDevice::new(fresh()));
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    log.append(&[&vec![1; 1000]]).unwrap();
    let end = log.end().unwrap();
    let syncs = device.calls().syncs;
    device.add(Fault::once(FaultOp::Sync, syncs + 2));
    opened.volume.commit_delta(b"delta", end).unwrap_err();
    assert!(
        log.used_bytes().unwrap() >= 1024,
        "the records are still live"
    );
}

#[test]
fn a_lost_record_s_successor_never_comes_back() {
    // Generation 1 writes two records of a sector each; a power cut keeps the second alone.
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let payload = vec![1; 512 - HEADER_BYTES];
    opened.volume.log().append(&[&payload]).unwrap();
    opened.volume.log().append(&[&payload]).unwrap();
    let ring_at = opened.volume.superblock().areas.backup_log_at;
    drop(opened);
    device.write_at(ring_at, &[&[0; 512]]).unwrap();
    // Generation 2 writes one record of a sector instead of the lost one, and a version in which
    // the log starts after it.
    let opened = open(&device).unwrap();
    assert_eq!(replay(&opened).unwrap().len(), 0);
    let end = opened.volume.log().append(&[&payload]).unwrap();
    assert_eq!(replay(&opened).unwrap().len(), 1);
    opened.volume.commit_delta(b"delta", end).unwrap();
    drop(opened);
    let opened = open(&device).unwrap();
    assert_eq!(opened.log_start, Lsn(512));
    assert_eq!(replay(&opened).unwrap().len(), 0, "the old tail stays lost");
}

#[test]
fn damage_to_synced_records_is_told_apart_from_the_end() {
    let device = Arc::new(FaultDevice::new(fresh()));
    let opened = open(&device).unwrap();
    let start = opened.volume.log().end().unwrap();
    for number in 0..10 {
        opened.volume.log().append(&[&record(number, 100)]).unwrap();
    }
    opened.volume.commit_delta(b"delta", start).unwrap();
    opened.volume.log().append(&[b"later"]).unwrap();
    let ring_at = opened.volume.superblock().areas.backup_log_at;
    drop(opened);
    device.corrupt(ring_at + 500, 1).unwrap();
    let opened = open(&device).unwrap();
    let error = replay(&opened).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let error = opened.volume.log().append(&[b"x"]).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Corrupt,
        "nothing is written over it"
    );
    opened.volume.log().accept_loss();
    assert_eq!(replay(&opened).unwrap().len(), 4);
}

#[test]
fn a_volume_open_for_reading_writes_nothing() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    opened.volume.log().append(&[b"record"]).unwrap();
    drop(opened);
    let writes = device.counters().writes;
    let opened = open_read_only(&device).unwrap();
    assert_eq!(replay(&opened).unwrap(), [b"record"]);
    let volume = &opened.volume;
    let end = volume.log().end().unwrap();
    assert_eq!(
        volume.log().append(&[b"x"]).unwrap_err().kind(),
        ErrorKind::ReadOnly
    );
    assert_eq!(
        volume.commit_delta(b"x", end).unwrap_err().kind(),
        ErrorKind::ReadOnly
    );
    volume.sync().unwrap();
    volume.log().sync(end).unwrap();
    assert_eq!(device.counters().writes, writes);
    assert_eq!(
        device.counters().syncs,
        2 + 3,
        "those of mkfs and of the first open"
    );
}

#[test]
fn a_replay_starts_at_a_live_record() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    let first = log.append(&[b"one"]).unwrap();
    log.append(&[b"two"]).unwrap();
    let mut seen = Vec::new();
    let visit: &mut Visit<'_, VolumeError> = &mut |end, bytes| {
        seen.push((end, bytes.to_vec()));
        Ok(())
    };
    let end = log.replay(first, visit).unwrap();
    assert_eq!(seen, [(end, b"two".to_vec())]);
    let visit: &mut Visit<'_, VolumeError> = &mut |_, _| Ok(());
    let beyond = log.replay(Lsn(end.0 + 8), visit).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::Invalid);
    let visit: &mut Visit<'_, VolumeError> = &mut |_, _| Err(VolumeError::Poisoned);
    let stopped = log.replay(first, visit).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Poisoned);
}
