use super::*;
use crate::{mounted_at, open_path};
use rustix::fs::{FlockOperation, flock};
use std::path::PathBuf;
use std::process::Command;
use stitch_base::thread;

/// A loop device over a temporary file, detached when dropped. `None` without the permission to
/// create one.
pub(super) struct Loop {
    pub(super) path: PathBuf,
    backing: tempfile::NamedTempFile,
}

impl Loop {
    pub(super) fn attach(len_bytes: u64) -> Option<Self> {
        Self::attach_in(&std::env::temp_dir(), len_bytes)
    }

    /// Attaches a loop device, with its file in `folder`.
    pub(super) fn attach_in(folder: &Path, len_bytes: u64) -> Option<Self> {
        let backing = tempfile::NamedTempFile::new_in(folder).unwrap();
        backing.as_file().set_len(len_bytes).unwrap();
        let out = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(backing.path())
            .output()
            .ok()?;
        let path = String::from_utf8(out.stdout).unwrap().trim().to_owned();
        (out.status.success() && !path.is_empty()).then(|| Self {
            path: path.into(),
            backing,
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

#[test]
fn a_block_device_is_opened_once_for_writing_and_keeps_its_bytes() {
    let Some(disk) = Loop::attach((1 << 20) + 512) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let options = OpenOptions::default();
    let device = RawDevice::open(&disk.path, options).unwrap();
    assert_eq!(device.geometry().len_bytes, 1 << 20);
    assert!(device.geometry().is_block_device);
    device.write_at(8192, &[b"he", b"llo"]).unwrap();
    device.sync().unwrap();
    let again = RawDevice::open(&disk.path, options);
    assert!(matches!(again, Err(DeviceError::Busy { .. })), "{again:?}");
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let reader = RawDevice::open(&disk.path, read_only);
    assert!(
        matches!(reader, Err(DeviceError::Busy { .. })),
        "{reader:?}"
    );
    drop(device);

    let device = open_path(&disk.path, options).unwrap();
    let mut out = [0u8; 5];
    device.read_at(8192, &mut out).unwrap();
    assert_eq!(&out, b"hello");
    device.discard(0, 1 << 20).unwrap();
    assert!(device.read_at(1 << 20, &mut out).is_err());
    assert_eq!(mounted_at(&disk.path).unwrap(), None);
}

#[test]
fn a_device_that_is_busy_for_a_moment_is_opened() {
    let Some(disk) = Loop::attach(1 << 20) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let options = OpenOptions::default();
    let device = RawDevice::open(&disk.path, options).unwrap();
    let path = disk.path.clone();
    let opener = thread::spawn("opener", move || RawDevice::open(&path, options));
    SystemClock::default().sleep(Duration::from_millis(100));
    drop(device);
    opener.unwrap().join().unwrap().unwrap();
    // As udev does while it looks at a device.
    let looks = File::open(&disk.path).unwrap();
    flock(&looks, FlockOperation::NonBlockingLockShared).unwrap();
    let path = disk.path.clone();
    let opener = thread::spawn("opener", move || RawDevice::open(&path, options));
    SystemClock::default().sleep(Duration::from_millis(100));
    drop(looks);
    opener.unwrap().join().unwrap().unwrap();
}

#[test]
fn a_block_device_takes_note_of_its_new_length() {
    let Some(disk) = Loop::attach(1 << 20) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let device = RawDevice::open(&disk.path, OpenOptions::default()).unwrap();
    let error = device.grow(1 << 20, 2 << 20).unwrap_err();
    assert!(error.to_string().contains("1048576 bytes only"), "{error}");
    disk.backing.as_file().set_len(2 << 20).unwrap();
    let status = Command::new("losetup").arg("-c").arg(&disk.path).status();
    assert!(status.unwrap().success());
    assert_eq!(device.medium_bytes().unwrap(), 2 << 20);
    device.grow(1 << 20, 2 << 20).unwrap();
    assert_eq!(device.geometry().len_bytes, 2 << 20);
    device.write_at((2 << 20) - 1, &[&[1]]).unwrap();
    device.shrink(1 << 20).unwrap();
}

/// Opens a device in each mode that works here.
fn each_mode(disk: &Loop, mut check: impl FnMut(&RawDevice, IoMode)) {
    for io in [IoMode::Buffered, IoMode::Direct, IoMode::Ring, IoMode::Auto] {
        let options = OpenOptions {
            io,
            ..OpenOptions::default()
        };
        match RawDevice::open(&disk.path, options) {
            Ok(device) => {
                assert!(io == IoMode::Auto || device.io_mode() == io, "as forced");
                check(&device, io);
            }
            Err(DeviceError::Unsuitable { reason, .. }) if io != IoMode::Auto => {
                eprintln!("skipped: {io:?}: {reason}");
            }
            Err(error) => panic!("{io:?}: {error}"),
        }
    }
}

/// Copies bytes into memory that is aligned for direct writes.
pub(super) fn pages_of(bytes: &[u8]) -> Bytes {
    let mut room = vec![0; bytes.len() + 4096];
    let start = room.as_ptr().align_offset(4096);
    room[start..start + bytes.len()].copy_from_slice(bytes);
    Bytes::from_owner(room).slice(start..start + bytes.len())
}

#[test]
fn all_ways_to_a_device_give_the_same_bytes() {
    const LEN: usize = 4 << 20;
    let Some(disk) = Loop::attach(LEN as u64) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let mut model = vec![0u8; LEN];
    let rng = &mut stitch_base::random::Rng::new(3);
    let below = |bound: usize, rng: &mut stitch_base::random::Rng| {
        usize::try_from(rng.below(bound as u64)).unwrap()
    };
    each_mode(&disk, |device, io| {
        for step in 0..300 {
            // Whole sectors or single bytes, beside bytes that were just written in another mode.
            let unit = [1, 512, 4096][below(3, rng)];
            let longest = if rng.one_in(10) { 700 << 10 } else { 20_000 };
            let len = below(longest / unit, rng) * unit;
            let at = below((LEN - len) / unit, rng) * unit;
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            let (a, b) = bytes.split_at(below(len + 1, rng));
            let offset = at as u64;
            match below(5, rng) {
                0 => device.write_at(offset, &[a, b]).unwrap(),
                1 => device.write_blocks(offset, &[a, &[], b]).unwrap(),
                2 => device.write_blocks(offset, &[&pages_of(&bytes)]).unwrap(),
                _ => device.write_behind(offset, &pages_of(&bytes)).unwrap(),
            }
            model[at..at + len].copy_from_slice(&bytes);
            if rng.one_in(20) {
                device.sync().unwrap();
            }
            let mut places: Vec<(usize, usize)> = Vec::new();
            for _ in 0..below(50, rng) + 1 {
                let unit = [512, 512, 512, 7][below(4, rng)];
                let len = below(40_000 / unit, rng) * unit;
                let after = places.last().map_or(0, |(at, len)| at + len);
                let at = match rng.one_in(2) && after + len <= LEN {
                    true => after,
                    false => below((LEN - len) / unit, rng) * unit,
                };
                places.push((at, len));
            }
            let mut outs: Vec<Vec<u8>> = places.iter().map(|(_, len)| vec![1; *len]).collect();
            let wanted = places.iter().zip(&mut outs);
            let mut wanted: Vec<Wanted<'_>> = wanted
                .map(|(&(at, _), out)| Wanted {
                    offset: at as u64,
                    out,
                })
                .collect();
            device.read_each(&mut wanted).unwrap();
            for ((at, len), out) in places.iter().zip(&outs) {
                assert!(*out == model[*at..at + len], "{io:?} step {step}");
                let mut again = vec![0; *len];
                device.read_at(*at as u64, &mut again).unwrap();
                assert!(again == *out, "{io:?} step {step}");
            }
        }
        device.sync().unwrap();
    });
    let device = open_path(&disk.path, OpenOptions::default()).unwrap();
    let mut all = vec![0; LEN];
    device.read_at(0, &mut all).unwrap();
    assert!(all == model, "what every way has written is there");
}

#[test]
fn short_blocks_wait_in_the_page_cache_and_leave_it_in_strips() {
    const STRIP: u64 = 256 << 10;
    let Some(disk) = Loop::attach(4 << 20) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    let device = RawDevice::open(&disk.path, OpenOptions::default()).unwrap();
    if device.direct.is_none() {
        eprintln!("skipped: nothing goes past the page cache here");
        return;
    }
    let is_there = |at: u64| positioned::is_resident(&device.file, at, 4096);
    let page = [7; 4096];
    device.write_blocks(0, &[&page]).unwrap();
    assert!(is_there(0), "the write did not wait for the device");
    for at in (4096..STRIP).step_by(4096) {
        device.write_blocks(at, &[&page]).unwrap();
    }
    device.sync().unwrap();
    for at in (STRIP..2 * STRIP).step_by(4096) {
        device.write_blocks(at, &[&page]).unwrap();
    }
    assert!(!is_there(0), "what was written makes room");
    for (at, len, is_short) in [
        (1 << 20, 60 << 10, true),
        (2 << 20, 512, true),
        (3 << 20, 64 << 10, false),
    ] {
        device.write_blocks(at, &[&vec![8; len]]).unwrap();
        assert_eq!(is_there(at), is_short, "{len} bytes");
    }
    let mut out = vec![0; 4096];
    device.read_at(4096, &mut out).unwrap();
    assert_eq!(out, page);
}

#[test]
fn threads_read_at_the_same_time() {
    const LEN: u64 = 8 << 20;
    let Some(disk) = Loop::attach(LEN) else {
        eprintln!("skipped: no loop device to be had here");
        return;
    };
    each_mode(&disk, |device, io| {
        let page = |number: u64| number.to_le_bytes().repeat(512);
        for number in 0..LEN / 4096 {
            device.write_at(number * 4096, &[&page(number)]).unwrap();
        }
        std::thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || {
                    let rng = &mut stitch_base::random::Rng::new(seed);
                    for _ in 0..60 {
                        let numbers: Vec<u64> = (0..70).map(|_| rng.below(LEN / 4096)).collect();
                        let mut outs = vec![vec![0; 4096]; numbers.len()];
                        let pieces = numbers.iter().zip(&mut outs);
                        let mut pieces: Vec<Wanted<'_>> = pieces
                            .map(|(number, out)| Wanted {
                                offset: number * 4096,
                                out,
                            })
                            .collect();
                        device.read_each(&mut pieces).unwrap();
                        for (number, out) in numbers.iter().zip(outs) {
                            assert!(out == page(*number), "{io:?}");
                        }
                    }
                });
            }
        });
    });
}
