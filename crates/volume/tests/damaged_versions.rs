//! A damaged version log is refused wherever it can be told from one that a crash cut.

use stitch_base::ErrorKind;
use stitch_base::sync::Arc;
use stitch_device::{Device, MemDevice};
use stitch_volume::{FormatOptions, OpenOptions, Opened, VOLUME_BYTES_MIN, Volume, VolumeError};

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
    for object in 0..=3 {
        let device = made(true);
        flip(&device, object);
        let error = open(&device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "object {object}: {error}");
        assert!(error.to_string().contains("version log"), "{error}");
    }
    assert_eq!(open(&made(true)).unwrap().versions.len(), 3);
}

#[test]
fn after_a_crash_only_the_last_object_can_be_a_torn_one() {
    for object in 0..=2 {
        let device = made(false);
        flip(&device, object);
        let error = open(&device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "object {object}: {error}");
    }
    let device = made(false);
    flip(&device, 3);
    assert_eq!(open(&device).unwrap().versions, [b"one", b"two"]);
}

#[test]
fn a_close_is_forgotten_by_the_next_open_for_writing() {
    let device = made(true);
    assert!(Volume::identify(&*device).unwrap().clean_version_end > 0);
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let shared: Arc<dyn Device> = Arc::clone(&device) as Arc<dyn Device>;
    drop(Volume::open(shared, &read_only).unwrap());
    assert!(Volume::identify(&*device).unwrap().clean_version_end > 0);
    let opened = open(&device).unwrap();
    assert_eq!(Volume::identify(&*device).unwrap().clean_version_end, 0);
    opened
        .volume
        .commit_delta(b"more", opened.log_start)
        .unwrap();
    drop(opened);
    flip(&device, 4);
    assert_eq!(
        open(&device).unwrap().versions.len(),
        3,
        "a torn object is none"
    );
}
