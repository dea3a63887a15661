use super::*;
use crate::testing::{fresh, open};
use crate::{Opened, VolumeError};
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_device::{Device, FaultDevice, MemDevice};

const AREA_AT: u64 = 8192;
const AREA: u64 = 512 << 10;

fn payload(number: u32, len: usize) -> Vec<u8> {
    let mut out = number.to_le_bytes().to_vec();
    out.resize(len.max(4), b'v');
    out
}

fn commit(opened: &Opened, bytes: &[u8], is_base: bool) -> Result<(), VolumeError> {
    let end = opened.volume.log().end().unwrap();
    if is_base {
        opened.volume.commit_base(bytes, end)
    } else {
        opened.volume.commit_delta(bytes, end)
    }
}

#[test]
fn a_fresh_volume_has_no_version() {
    let opened = open(&Arc::new(fresh())).unwrap();
    assert!(opened.versions.is_empty());
    assert_eq!(opened.log_start, Lsn(0));
    assert!(!opened.volume.version_log_wants_base());
}

#[test]
fn deltas_before_the_first_base_come_back() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    commit(&opened, b"", false).unwrap();
    commit(&opened, b"one", false).unwrap();
    drop(opened);
    assert_eq!(
        open(&device).unwrap().versions,
        [b"".to_vec(), b"one".to_vec()]
    );
}

#[test]
fn versions_come_back_through_many_wraps() {
    let device = Arc::new(fresh());
    let mut rng = Rng::new(5);
    let mut model: Vec<Vec<u8>> = Vec::new();
    let (mut wraps, mut bases) = (0, 0);
    for number in 0..1500 {
        let opened = open(&device).unwrap();
        assert_eq!(opened.versions, model, "at {number}");
        let is_base = opened.volume.version_log_wants_base();
        let long = if is_base { 100_000 } else { 12_000 };
        let bytes = payload(number, usize::try_from(rng.below(long)).unwrap());
        let before = opened.volume.versions.state.lock().tail / AREA;
        commit(&opened, &bytes, is_base).unwrap();
        wraps += opened.volume.versions.state.lock().tail / AREA - before;
        if is_base {
            model.clear();
            bases += 1;
        }
        model.push(bytes);
    }
    assert!(wraps > 20, "{wraps} wraps");
    assert!(bases > 20, "{bases} bases");
}

#[test]
fn deltas_wrap_while_their_base_stands_at_the_right() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let mut model: Vec<Vec<u8>> = Vec::new();
    // The first base cannot go left of the one that mkfs wrote; deltas before push it right.
    for number in 0..80 {
        commit(&opened, &payload(number, 10), false).unwrap();
    }
    commit(&opened, &payload(100, 10), true).unwrap();
    model.push(payload(100, 10));
    let mut number = 200;
    loop {
        let state = opened.volume.versions.state.lock().clone();
        if state.is_wrapped(AREA) && state.tail % AREA > 30_000 {
            break;
        }
        let bytes = payload(number, 10);
        commit(&opened, &bytes, false).unwrap();
        model.push(bytes);
        number += 1;
    }
    drop(opened);
    let opened = open(&device).unwrap();
    assert_eq!(opened.versions, model);
    // Continue until the log is full; then a base helps.
    let error = loop {
        if let Err(error) = commit(&opened, b"delta", false) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(
        matches!(error, VolumeError::VersionLogFull { .. }),
        "{error}"
    );
    assert!(opened.volume.version_log_wants_base());
    let longest = usize::try_from(opened.volume.base_bytes_max()).unwrap();
    commit(&opened, &payload(1, longest), true).unwrap();
    commit(&opened, b"delta", false).unwrap();
    drop(opened);
    let opened = open(&device).unwrap();
    assert_eq!(opened.versions, [payload(1, longest), b"delta".to_vec()]);
}

#[test]
fn a_longest_base_always_fits() {
    for seed in 0..20 {
        let device = Arc::new(fresh());
        let opened = open(&device).unwrap();
        let longest = opened.volume.base_bytes_max();
        let mut rng = Rng::new(seed);
        for number in 0..200 {
            if rng.one_in(3) {
                let len = longest - rng.below(2) * rng.below(longest);
                commit(
                    &opened,
                    &payload(number, usize::try_from(len).unwrap()),
                    true,
                )
                .unwrap();
                continue;
            }
            let len = usize::try_from(rng.below(60_000)).unwrap();
            match commit(&opened, &payload(number, len), false) {
                Ok(()) | Err(VolumeError::VersionLogFull { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_base_longer_than_the_area_is_refused() {
    let opened = open(&Arc::new(fresh())).unwrap();
    let error = commit(&opened, &vec![0; 1 << 20], true).unwrap_err();
    assert!(
        matches!(error, VolumeError::VersionLogFull { .. }),
        "{error}"
    );
    commit(&opened, b"base", true).unwrap();
}

#[test]
fn a_small_volume_takes_many_deltas_between_bases() {
    let opened = open(&Arc::new(fresh())).unwrap();
    let mut least = u32::MAX;
    let mut count = 0;
    for number in 0..2000 {
        if opened.volume.version_log_wants_base() {
            if number > 100 {
                least = least.min(count);
            }
            count = 0;
            commit(&opened, &payload(number, 30_000), true).unwrap();
        } else {
            count += 1;
            commit(&opened, &payload(number, 500), false).unwrap();
        }
    }
    assert!(least >= 8, "{least} deltas");
}

#[test]
fn recovery_reads_little_more_than_what_is_live() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    for number in 0..3000 {
        let is_base = opened.volume.version_log_wants_base();
        commit(&opened, &payload(number, 100), is_base).unwrap();
        let tail = opened.volume.versions.state.lock().tail % AREA;
        assert!(tail < AREA / 2, "the tail is at {tail}");
    }
}

#[test]
fn an_object_that_follows_another_is_not_taken_for_a_successor() {
    // Two histories of one volume: the same generation, positions and lengths.
    let copy = |device: &MemDevice| {
        let mut bytes = vec![0; usize::try_from(AREA_AT + AREA).unwrap()];
        device.read_at(0, &mut bytes).unwrap();
        let out = MemDevice::new(crate::VOLUME_BYTES_MIN);
        out.write_at(0, &[&bytes]).unwrap();
        Arc::new(out)
    };
    let first = fresh();
    let second = copy(&first);
    let first = Arc::new(first);
    let opened = open(&first).unwrap();
    commit(&opened, b"a1", false).unwrap();
    commit(&opened, b"a2", false).unwrap();
    let opened = open(&second).unwrap();
    commit(&opened, b"b1", false).unwrap();
    drop(opened);
    let mut stale = [0; 4096];
    first.read_at(AREA_AT + 8192, &mut stale).unwrap();
    second.write_at(AREA_AT + 8192, &[&stale]).unwrap();
    assert_eq!(open(&second).unwrap().versions, [b"b1"]);
}

#[test]
fn damage_to_the_live_base_is_an_error_and_not_an_older_version() {
    let device = Arc::new(FaultDevice::new(fresh()));
    let opened = open(&device).unwrap();
    commit(&opened, b"base", true).unwrap();
    commit(&opened, b"delta", false).unwrap();
    drop(opened);
    device.corrupt(AREA_AT + 4096, 1).unwrap();
    let error = open(&device).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.to_string().contains("version log at byte 12288"),
        "{error}"
    );
}
