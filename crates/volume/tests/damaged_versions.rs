//! A damaged version log is refused wherever it can be told from one that a crash cut.

use stitch_base::ErrorKind;
use stitch_base::sync::Arc;
use stitch_device::{Device, Fault, FaultDevice, FaultOp, MemDevice};
use stitch_volume::{
    FormatOptions, OpenOptions, Opened, VOLUME_BYTES_MIN, Visit, Volume, VolumeError,
};

const OBJECT_BYTES: u64 = 4096;

fn open(device: &Arc<MemDevice>) -> Result<Opened, VolumeError> {
    let device: Arc<dyn Device> = Arc::clone(device) as Arc<dyn Device>;
    Volume::open(device, &OpenOptions::default())
}

/// A volume with three deltas after the base of `mkfs`.
fn made(is_closed: bool) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(VOLUME_BYTES_MIN));
    Volume::format(&*device, &FormatOptions::default(), &mut |_, _| ()).expect("a healthy device");
    let opened = open(&device).expect("a healthy device");
    for edit in [b"one", b"two", b"six"] {
        opened
            .volume
            .commit_delta(edit, opened.log_start)
            .expect("a healthy device");
    }
    if is_closed {
        opened.volume.close().expect("a healthy device");
    }
    device
}

fn read_log(opened: &Opened) -> Result<(), VolumeError> {
    let visit: &mut Visit<'_, VolumeError> = &mut |_, _| Ok(());
    opened
        .volume
        .log()
        .replay(opened.log_start, visit)
        .map(|_| ())
}

/// Flips a bit in the n-th object of the version log, from 0 for the base of `mkfs`.
fn flip(device: &MemDevice, object: u64) {
    let at = Volume::identify(device)
        .expect("a healthy device")
        .areas
        .version_log_at
        + object * OBJECT_BYTES
        + 30;
    let mut byte = [0];
    device.read_at(at, &mut byte).expect("a healthy device");
    device
        .write_at(at, &[&[byte[0] ^ 4]])
        .expect("a healthy device");
}

#[test]
fn after_a_clean_close_no_object_may_be_missing() {
    for object in 1..=3 {
        let device = made(true);
        flip(&device, object);
        let error = open(&device).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "object {object}: {error}");
        assert!(error.to_string().contains("version log"), "{error}");
    }
    assert_eq!(open(&made(true)).unwrap().versions.len(), 3);
}

#[test]
fn after_a_crash_no_durable_object_may_be_missing() {
    for object in 1..=2 {
        let device = made(false);
        flip(&device, object);
        let error = open(&device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "object {object}: {error}");
    }
    // The last one looks torn, except for the evidence in the backup log.
    let device = made(false);
    flip(&device, 3);
    let error = read_log(&open(&device).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("version log"), "{error}");
}

/// The empty version that mkfs writes first is the same for every volume but for the salt.
#[test]
fn the_first_object_of_all_is_known_without_being_read() {
    for is_closed in [false, true] {
        let device = made(is_closed);
        flip(&device, 0);
        let shared: Arc<dyn Device> = Arc::clone(&device) as Arc<dyn Device>;
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let opened = Volume::open(shared, &read_only).unwrap();
        assert_eq!(opened.versions, [b"one", b"two", b"six"]);
        assert!(opened.volume.version_log_damage().is_some());
        drop(opened);
        // Opening for writing repairs it.
        let opened = open(&device).unwrap();
        assert!(opened.volume.version_log_damage().is_some());
        drop(opened);
        let opened = open(&device).unwrap();
        assert!(opened.volume.version_log_damage().is_none());
        assert_eq!(opened.versions, [b"one", b"two", b"six"]);
    }
}

#[test]
fn the_first_object_of_all_and_its_successor_may_not_both_be_damaged() {
    let device = made(false);
    flip(&device, 0);
    flip(&device, 1);
    let error = open(&device).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// In a later round another object stands at the left end, and older ones may follow it.
#[test]
fn a_damaged_left_end_of_a_later_round_is_an_error() {
    let device = made(false);
    let opened = open(&device).unwrap();
    let at = Volume::identify(&*device).unwrap().areas.version_log_at;
    let left = || {
        let mut bytes = [0; 4096];
        device.read_at(at, &mut bytes).unwrap();
        bytes
    };
    let first = left();
    let commits = (0..10_000).find(|_| {
        let (volume, log_start) = (&opened.volume, opened.log_start);
        if volume.commit_delta(&[7; 3000], log_start).is_err() {
            volume.commit_base(&[8; 3000], log_start).unwrap();
        }
        left() != first
    });
    assert!(commits.is_some(), "the log wraps");
    drop(opened);
    for byte in [0, 8, 30] {
        let copy = left();
        device
            .write_at(at + byte, &[&[copy[byte as usize] ^ 1]])
            .unwrap();
        let error = open(&device).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {byte}: {error}");
        device.write_at(at, &[&copy]).unwrap();
    }
    open(&device).unwrap();
}

#[test]
fn records_of_the_backup_log_name_the_last_object_too() {
    for has_sync in [false, true] {
        let device = made(false);
        let opened = open(&device).unwrap();
        let log = opened.volume.log();
        let end = log.append(&[b"record"]).unwrap();
        if has_sync {
            log.sync(end).unwrap();
        }
        drop(opened);
        flip(&device, 3);
        let error = read_log(&open(&device).unwrap()).unwrap_err();
        assert!(error.to_string().contains("version log"), "{error}");
    }
}

#[test]
fn an_object_that_is_really_torn_is_none() {
    let device = made(false);
    let fails = FaultDevice::new(Arc::clone(&device));
    // Two of the opening, one before the object, and its own.
    fails.add(Fault::once(FaultOp::Sync, 4));
    let opened = Volume::open(Arc::new(fails), &OpenOptions::default()).unwrap();
    opened
        .volume
        .commit_delta(b"more", opened.log_start)
        .unwrap_err();
    drop(opened);
    flip(&device, 4);
    let opened = open(&device).unwrap();
    assert_eq!(opened.versions, [b"one", b"two", b"six"]);
    read_log(&opened).unwrap();
}

#[test]
fn a_close_is_remembered_until_the_next_one() {
    let device = made(true);
    let closed = || Volume::identify(&*device).unwrap().closed;
    let first = closed();
    assert!(first.version_end > 0);
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let shared: Arc<dyn Device> = Arc::clone(&device) as Arc<dyn Device>;
    drop(Volume::open(shared, &read_only).unwrap());
    let opened = open(&device).unwrap();
    assert_eq!(closed(), first);
    let generation = Volume::identify(&*device).unwrap().generation;
    assert!(generation > first.generation, "it is open");
    opened
        .volume
        .commit_delta(b"more", opened.log_start)
        .unwrap();
    opened.volume.close().unwrap();
    assert!(closed().version_end > first.version_end);
    assert_eq!(closed().generation, generation);
}
