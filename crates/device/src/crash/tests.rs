use super::*;
use std::collections::BTreeSet;

const SECTOR: usize = 512;

fn byte(image: &MemDevice, at: u64) -> u8 {
    let mut out = [0u8];
    image.read_at(at, &mut out).unwrap();
    out[0]
}

#[test]
fn synced_writes_are_in_every_image_and_others_in_some() {
    let device = CrashDevice::new(1 << 16, CrashPlan::NEVER);
    device.write_at(0, &[&[1; SECTOR]]).unwrap();
    device.sync().unwrap();
    for i in 1..5u64 {
        device.write_at(i * 4096, &[&[2; SECTOR]]).unwrap();
    }
    assert_eq!(device.pending_count(), 4);
    let mut seen = BTreeSet::new();
    for seed in 0..2000 {
        let image = device.crash_image(&mut Rng::new(seed));
        assert_eq!(byte(&image, 0), 1);
        seen.insert(
            (1..5u64)
                .map(|i| byte(&image, i * 4096))
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(seen.len(), 16, "every subset is drawn");
}

#[test]
fn writes_that_overlap_arrive_in_either_order() {
    let device = CrashDevice::new(4096, CrashPlan::NEVER);
    device.write_at(0, &[&[1; SECTOR]]).unwrap();
    device.write_at(0, &[&[2; SECTOR]]).unwrap();
    assert_eq!(byte(&device.kill_image(), 0), 2);
    let drawn: BTreeSet<u8> = (0..500)
        .map(|seed| byte(&device.crash_image(&mut Rng::new(seed)), 0))
        .collect();
    assert_eq!(drawn, BTreeSet::from([0, 1, 2]));
}

#[test]
fn a_write_is_torn_only_at_sectors() {
    let device = CrashDevice::new(1 << 16, CrashPlan::NEVER);
    device.write_at(4096, &[&[1; 4 * SECTOR]]).unwrap();
    let mut shapes = BTreeSet::new();
    for seed in 0..2000 {
        let image = device.crash_image(&mut Rng::new(seed));
        let mut out = [0u8; 4 * SECTOR];
        image.read_at(4096, &mut out).unwrap();
        for sector in out.chunks(SECTOR) {
            assert!(sector.iter().all(|&b| b == sector[0]), "a sector is whole");
        }
        shapes.insert(out.chunks(SECTOR).map(|s| s[0]).collect::<Vec<_>>());
    }
    assert_eq!(shapes.len(), 16, "every subset of the sectors is drawn");
}

#[test]
fn the_same_seed_draws_the_same_image() {
    let device = CrashDevice::new(1 << 16, CrashPlan::NEVER);
    for i in 0..10u64 {
        device.write_at(i * 1000, &[&[3; 1500]]).unwrap();
    }
    let draw = |seed| device.crash_image(&mut Rng::new(seed)).written_pages();
    assert_eq!(draw(4), draw(4));
    assert!((0..50).any(|seed| draw(seed) != draw(4)));
}

#[test]
fn the_device_stops_at_the_planned_sync_without_doing_it() {
    let device = CrashDevice::new(4096, CrashPlan::at_sync(2));
    device.sync().unwrap();
    device.write_at(0, &[&[9; SECTOR]]).unwrap();
    assert!(device.sync().is_err());
    assert!(device.is_stopped());
    assert!(device.write_at(0, &[&[8]]).is_err());
    assert!(device.read_at(0, &mut [0]).is_err());
    assert!(device.sync().is_err());
    assert!(device.discard(0, 512).is_err());
    assert_eq!(byte(&device.kill_image(), 0), 9);
    let lost = (0..100).any(|seed| byte(&device.crash_image(&mut Rng::new(seed)), 0) == 0);
    assert!(lost, "the failed sync made nothing durable");
}

#[test]
fn the_device_stops_at_the_planned_write_which_may_still_arrive() {
    let device = CrashDevice::new(4096, CrashPlan::at_write(2));
    device.write_at(0, &[&[1]]).unwrap();
    assert!(device.write_at(512, &[&[2]]).is_err());
    assert!(device.sync().is_err());
    assert_eq!(byte(&device.kill_image(), 512), 2);
}

#[test]
fn a_discarded_range_reads_as_junk_and_may_keep_its_bytes_after_a_crash() {
    let device = CrashDevice::new(4096, CrashPlan::NEVER);
    device.write_at(0, &[&[1; SECTOR]]).unwrap();
    device.sync().unwrap();
    device.discard(0, 512).unwrap();
    let drawn: BTreeSet<u8> = (0..500)
        .map(|seed| byte(&device.crash_image(&mut Rng::new(seed)), 0))
        .collect();
    assert_eq!(drawn, BTreeSet::from([0, 1, JUNK]));
    device.sync().unwrap();
    assert_eq!(byte(&device.crash_image(&mut Rng::new(0)), 0), JUNK);
}

#[test]
fn a_run_can_go_on_from_an_image() {
    let device = CrashDevice::new(4096, CrashPlan::NEVER);
    device.write_at(0, &[&[1; SECTOR]]).unwrap();
    let again = CrashDevice::from_image(&device.kill_image(), CrashPlan::at_sync(1));
    assert_eq!(
        byte(&again.crash_image(&mut Rng::new(0)), 0),
        1,
        "an image is durable"
    );
    again.set_plan(CrashPlan::NEVER);
    again.sync().unwrap();
    again.stop();
    assert!(again.sync().is_err());
}

#[test]
fn a_watcher_sees_every_write_and_the_state_before_every_sync() {
    let device = CrashDevice::new(4096, CrashPlan::NEVER);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    device.watch(move |moment| sink.lock().push((moment.is_sync, moment.freeze())));
    device.write_at(0, &[&[1; SECTOR]]).unwrap();
    device.sync().unwrap();
    device.unwatch();
    device.sync().unwrap();
    let seen = seen.lock();
    assert_eq!(
        seen.iter().map(|(is_sync, _)| *is_sync).collect::<Vec<_>>(),
        [false, true]
    );
    let before_sync = &seen[1].1;
    assert_eq!(before_sync.pending_count(), 1);
    assert_eq!(byte(&before_sync.kill_image(), 0), 1);
    assert!((0..100).any(|seed| byte(&before_sync.crash_image(&mut Rng::new(seed)), 0) == 0));
}

#[test]
fn what_a_killed_process_did_not_sync_can_still_be_lost_by_the_next() {
    let device = CrashDevice::new(4096, CrashPlan::NEVER);
    device.write_at(0, &[&[1; SECTOR]]).unwrap();
    let next = device.freeze().resume();
    assert_eq!(byte(&next.kill_image(), 0), 1);
    assert!((0..100).any(|seed| byte(&next.crash_image(&mut Rng::new(seed)), 0) == 0));
    next.sync().unwrap();
    assert!((0..100).all(|seed| byte(&next.crash_image(&mut Rng::new(seed)), 0) == 1));
}

#[test]
fn what_is_cut_off_is_gone_and_what_is_not_may_still_be_torn() {
    let device = CrashDevice::new(16384, CrashPlan::NEVER);
    device.write_at(0, &[&[1; 16384]]).unwrap();
    device.sync().unwrap();
    device.write_at(4096, &[&[2; 8192]]).unwrap();
    device.shrink(8192).unwrap();
    assert_eq!(device.pending_count(), 1);
    let mut rng = Rng::new(7);
    for _ in 0..20 {
        let image = device.crash_image(&mut rng);
        assert_eq!(image.geometry().len_bytes, 8192);
        let mut out = [0u8; 8192];
        image.read_at(0, &mut out).unwrap();
        assert!(out[4096..].iter().all(|&b| b == 1 || b == 2));
    }
    device.grow(8192, 12288).unwrap();
    let mut out = [9u8; 4096];
    device.read_at(8192, &mut out).unwrap();
    assert_eq!(out, [0; 4096]);
}
