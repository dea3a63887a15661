//! A torn end stays lost, even if the next life writes the missing part again and a power cut keeps
//! only that.

use super::*;
use stitch_base::random::Rng;
use stitch_base::sync::Mutex;
use stitch_device::{CrashDevice, CrashPoint};

/// 6,000 bytes that begin with `first`, and are alike but for their first sector.
fn payload(first: u8) -> Vec<u8> {
    let mut out = vec![first; 6000];
    out[200..].fill(b'x');
    out
}

/// True if an area has a page with these bytes at an offset in it.
fn has_page(device: &MemDevice, (at, len): (u64, u64), offset: usize, bytes: &[u8]) -> bool {
    (at..at + len).step_by(4096).any(|at| {
        let mut page = [0; 4096];
        device.read_at(at, &mut page).unwrap();
        page[offset..].starts_with(bytes)
    })
}

/// The device at each write and sync of a commit of a delta.
fn points_of_commit(device: &CrashDevice, opened: &Opened, delta: &[u8]) -> Vec<CrashPoint> {
    let points = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&points);
    device.watch(move |moment| kept.lock().push(moment.freeze()));
    let start = opened.log_start;
    opened.volume.commit_delta(delta, start).unwrap();
    device.unwatch();
    let mut points = points.lock();
    std::mem::take(&mut *points)
}

#[test]
fn a_torn_record_is_not_completed_by_the_next_life() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    opened.volume.log().append(&[b"whole"]).unwrap();
    opened.volume.log().append(&[&payload(1)]).unwrap();
    let ring_at = opened.volume.superblock().areas.backup_log_at;
    drop(opened);
    device.write_at(ring_at + 4096, &[&[0; 4096]]).unwrap();
    let device = crashable(&device, CrashPlan::NEVER);
    let opened = open(&device).unwrap();
    assert_eq!(replay(&opened).unwrap(), [b"whole"]);
    opened.volume.log().append(&[&payload(2)]).unwrap();
    let mut rng = Rng::new(7);
    let mut seen = [0; 2];
    for _ in 0..500 {
        let left = open(&Arc::new(device.crash_image(&mut rng))).unwrap();
        let records = replay(&left).unwrap();
        assert_eq!(records[0], b"whole");
        assert!(records[1..].iter().all(|record| record[0] == 2), "torn");
        seen[records.len() - 1] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

#[test]
fn a_torn_version_is_not_completed_by_the_next_life() {
    const PAYLOAD_AT: usize = stitch_format::version_object::HEADER_BYTES;
    let device = crashable(&fresh(), CrashPlan::NEVER);
    let opened = open(&device).unwrap();
    let logs = opened.volume.superblock().areas;
    let area = (logs.version_log_at, logs.version_log_bytes);
    opened
        .volume
        .commit_base(b"base", opened.log_start)
        .unwrap();
    let points = points_of_commit(&device, &opened, &payload(1));
    let mut rng = Rng::new(3);
    let is_torn = |image: &MemDevice| {
        has_page(image, area, PAYLOAD_AT, &[1; 200]) && !has_page(image, area, 0, &[b'x'; 900])
    };
    let mut images = (0..50)
        .flat_map(|_| &points)
        .map(|p| p.crash_image(&mut rng));
    let torn = images.find(is_torn).expect("one of many");
    drop(images);
    let device = crashable(&torn, CrashPlan::NEVER);
    let opened = open(&device).unwrap();
    assert_eq!(opened.versions, [b"base"]);
    let mut seen = [0; 2];
    for point in points_of_commit(&device, &opened, &payload(2)) {
        for _ in 0..100 {
            let left = open(&Arc::new(point.crash_image(&mut rng))).unwrap();
            let deltas = &left.versions[1..];
            assert!(deltas.iter().all(|delta| delta[0] == 2), "torn");
            seen[deltas.len()] += 1;
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}
