use crate::{CrashDevice, CrashPlan, Device, FileDevice, OpenOptions, Window};
use std::path::PathBuf;
use stitch_base::random::Rng;

const LEN: usize = 16 << 10;
const AT: u64 = 8 << 10;

fn file() -> (tempfile::TempDir, PathBuf, FileDevice) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let device = FileDevice::create(&path, 1 << 20).unwrap();
    (folder, path, device)
}

fn read(device: &dyn Device, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    device.read_at(offset, &mut out).unwrap();
    out
}

/// Checks that reads through the device see writes through the window, and the reverse.
fn holds(device: &dyn Device, mut window: Box<dyn Window>) {
    let mut twin = b"first".to_vec();
    twin.resize(LEN, 0);
    assert_eq!(read(device, AT, LEN), twin);
    let rng = &mut Rng::new(3);
    for step in 0..200_u8 {
        let at = usize::try_from(rng.below(LEN as u64)).unwrap();
        let len = usize::try_from(rng.below(5000)).unwrap().min(LEN - at);
        let bytes = vec![step; len];
        if rng.one_in(4) {
            device.write_at(AT + at as u64, &[&bytes]).unwrap();
        } else {
            window.write(at, &bytes).unwrap();
        }
        twin[at..at + len].copy_from_slice(&bytes);
        let mut out = vec![0; LEN];
        window.read(0, &mut out).unwrap();
        assert_eq!(out, twin, "step {step}");
        if rng.one_in(20) {
            device.sync().unwrap();
        }
    }
    drop(window);
    assert_eq!(read(device, AT, LEN), twin);
    assert_eq!(read(device, 0, 8 << 10), [0x77; 8 << 10], "before it");
    assert_eq!(
        read(device, AT + LEN as u64, 4096),
        [0x77; 4096],
        "after it"
    );
}

#[test]
fn a_window_is_a_piece_of_its_device() {
    let (_folder, path, device) = file();
    device.write_at(0, &[&[0x77; 64 << 10]]).unwrap();
    match device.open_window(AT, LEN, b"first").unwrap() {
        Some(window) => holds(&device, window),
        None => assert!(!super::has_steady_pages(
            &std::fs::File::open(&path).unwrap()
        )),
    }
    drop(device);
    let again = FileDevice::open(&path, OpenOptions::default()).unwrap();
    assert_eq!(read(&again, 0, 4096), [0x77; 4096]);
    let crash = CrashDevice::new(1 << 20, CrashPlan::NEVER);
    crash.write_at(0, &[&[0x77; 64 << 10]]).unwrap();
    let window = crash.open_window(AT, LEN, b"first").unwrap();
    holds(&crash, window.expect("a device for tests has windows"));
}

#[test]
fn what_a_window_holds_is_lost_by_a_power_cut_and_kept_by_a_kill() {
    let device = CrashDevice::new(1 << 20, CrashPlan::NEVER);
    let mut window = device.open_window(AT, LEN, &[]).unwrap().unwrap();
    window.write(100, b"synced").unwrap();
    device.sync().unwrap();
    window.write(200, b"later").unwrap();
    assert_eq!(read(&device.kill_image(), AT + 200, 5), b"later");
    let mut lost = 0;
    for seed in 0..50 {
        let image = device.crash_image(&mut Rng::new(seed));
        assert_eq!(read(&image, AT + 100, 6), b"synced");
        lost += u32::from(read(&image, AT + 200, 5) == [0; 5]);
    }
    assert!(0 < lost && lost < 50, "{lost} of 50");
    device.stop();
    window.write(300, b"no").unwrap_err();
    let mut out = [0; 2];
    window.read(300, &mut out).unwrap_err();
}

#[test]
#[should_panic(expected = "in a window of")]
fn nothing_is_written_beyond_a_window() {
    let (_folder, _path, device) = file();
    match device.open_window(AT, LEN, &[]).unwrap() {
        Some(mut window) => window.write(LEN - 3, b"four").unwrap(),
        None => panic!("this host has none, so nothing is written in a window of it"),
    }
}

#[test]
fn what_is_made_ready_is_zeros_or_as_it_was_and_is_written_as_before() {
    let (_folder, _, file) = file();
    let crash = CrashDevice::new(1 << 20, CrashPlan::NEVER);
    for device in [&file as &dyn Device, &crash] {
        device.write_at(0, &[&[0x77; 512 << 10]]).unwrap();
        device.prepare(AT, 300 << 10).unwrap();
        let found = read(device, AT, 300 << 10);
        let is_told = device.counters().prepared_bytes > 0;
        assert_eq!(found, vec![if is_told { 0 } else { 0x77 }; 300 << 10]);
        assert_eq!(read(device, 0, 8 << 10), [0x77; 8 << 10], "before it");
        let after = read(device, AT + (300 << 10), 4096);
        assert_eq!(after, [0x77; 4096], "after it");
        device.write_at(AT + 4096, &[&[5; 4096]]).unwrap();
        assert_eq!(read(device, AT + 4096, 4096), [5; 4096]);
        assert!(device.prepare(1 << 20, 4096).is_err(), "beyond the end");
    }
    assert!(crash.counters().prepared_bytes > 0 && crash.counters().writes == 2);
}
