use super::super::tests::{Loop, pages_of};
use super::*;
use crate::{Device, OpenOptions, RawDevice};
use std::path::Path;
use std::process::Command;

const CHILD: &str = "STITCH_WRITES_BEHIND_TO";
const PIECE_BYTES: usize = 1 << 20;
const PIECES: u64 = 24;

fn piece(number: u64) -> Bytes {
    let mut bytes = vec![0; PIECE_BYTES];
    stitch_base::random::Rng::new(number).fill(&mut bytes);
    pages_of(&bytes)
}

fn offset(number: u64) -> u64 {
    number * PIECE_BYTES as u64
}

fn open(path: &Path) -> RawDevice {
    RawDevice::open(path, OpenOptions::default()).unwrap()
}

fn write_all(device: &RawDevice) {
    for number in 0..PIECES {
        device.write_behind(offset(number), &piece(number)).unwrap();
    }
}

fn check_all(device: &RawDevice) {
    for number in 0..PIECES {
        let mut found = vec![0; PIECE_BYTES];
        device.read_at(offset(number), &mut found).unwrap();
        assert!(found == piece(number), "piece {number}");
    }
}

/// The child process of the next test. Does nothing if it is not started as one.
#[test]
fn a_process_that_dies() {
    if let Some(path) = std::env::var_os(CHILD) {
        write_all(&open(Path::new(&path)));
        std::process::abort();
    }
}

#[test]
fn a_killed_process_loses_nothing_that_was_taken() {
    let Some(disk) = Loop::attach(offset(PIECES)) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    for _ in 0..3 {
        open(&disk.path).discard(0, offset(PIECES)).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "raw::behind::tests::a_process_that_dies"]);
        let done = child.env(CHILD, &disk.path).output().unwrap();
        assert!(!done.status.success(), "it was killed");
        check_all(&open(&disk.path));
    }
}

#[test]
fn memory_is_kept_as_long_as_it_is_needed_and_no_longer() {
    let Some(disk) = Loop::attach(offset(PIECES)) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let device = open(&disk.path);
    let behind = device.behind.as_ref().expect("it is not read only");
    for number in 0..PIECES {
        assert!(behind.write(offset(number), &piece(number)), "it is taken");
        let state = behind.state.lock();
        let bytes: usize = state.slots.iter().map(|slot| slot.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX && bytes > 0, "{bytes}");
    }
    device.sync().unwrap();
    assert!(behind.state.lock().slots.is_empty());
    assert!(!behind.is_busy.load(Ordering::Relaxed));
    check_all(&device);
    // Not page-aligned, short, long.
    let bytes = pages_of(&vec![0; BYTES_MAX + 8192]);
    let other = [
        bytes.slice(512..512 + LEN_MIN),
        bytes.slice(..LEN_MIN - 512),
        bytes.slice(..BYTES_MAX + 512),
    ];
    for bytes in other {
        assert!(!behind.write(0, &bytes), "{} bytes", bytes.len());
    }
}

#[test]
fn many_write_and_read_at_the_same_time() {
    let Some(disk) = Loop::attach(offset(PIECES)) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let device = &open(&disk.path);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in (thread..PIECES).step_by(4) {
                    // Not page-aligned: neighbours share a page.
                    let bytes = piece(number).slice(..PIECE_BYTES - 4096);
                    let at = offset(number) + 512;
                    device.write_behind(at, &bytes).unwrap();
                    device.write_at(offset(number), &[&[7; 512]]).unwrap();
                    let mut found = vec![0; PIECE_BYTES - 4096 + 512];
                    device.read_at(offset(number), &mut found).unwrap();
                    assert!(found[..512] == [7; 512] && found[512..] == bytes);
                    if number % 3 == 0 {
                        device.sync().unwrap();
                    }
                }
            });
        }
    });
}

/// A small file system in memory, unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2M", "none"]);
        let done = mount.arg(dir.path()).output().ok()?;
        done.status.success().then_some(Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// The file below the device cannot grow, so that writes to some blocks fail.
#[test]
fn what_could_not_be_written_is_an_error_to_read_and_of_every_sync() {
    let Some(small) = Small::mount() else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let Some(disk) = Loop::attach_in(small.0.path(), offset(PIECES)) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let device = open(&disk.path);
    // Few enough to be in flight together.
    for number in 0..4 {
        device.write_behind(offset(number), &piece(number)).unwrap();
    }
    let error = device.sync().unwrap_err().to_string();
    assert!(error.contains("write"), "{error}");
    assert_eq!(device.sync().unwrap_err().to_string(), error);
    let mut found = vec![0; PIECE_BYTES];
    device.read_at(0, &mut found).unwrap();
    assert!(found == piece(0), "what was written is there");
    let lost = device.behind.as_ref().unwrap().state.lock().failed[0].clone();
    let mut found = [0; 512];
    let read = device.read_at(lost.range.start, &mut found).unwrap_err();
    assert!(matches!(read, DeviceError::Io { op: "write", .. }));
    drop(device);
    open(&disk.path).sync().unwrap();
}
