use super::*;
use crate::STORE_FILE_NAME;
use std::os::unix::fs::MetadataExt;
use stitch_base::ErrorKind;

const LEN: u64 = 1 << 20;

fn open_rw(path: &Path) -> Result<FileDevice, DeviceError> {
    FileDevice::open(path, OpenOptions::default())
}

#[test]
fn a_created_file_has_all_its_space_and_reads_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = FileDevice::create(&path, LEN).unwrap();
    assert_eq!(device.geometry().len_bytes, LEN);
    assert!(path.metadata().unwrap().blocks() * 512 >= LEN);
    let mut out = vec![1u8; 8192];
    device.read_at(LEN - 8192, &mut out).unwrap();
    assert!(out.iter().all(|&b| b == 0));
}

#[test]
fn zeros_stand_in_for_preallocation() {
    let file = tempfile::tempfile().unwrap();
    write_zeros(&file, 0, LEN + 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), LEN + 4096);
    assert!(file.metadata().unwrap().blocks() * 512 > LEN);
}

#[test]
fn bytes_come_back_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = FileDevice::create(&path, LEN).unwrap();
    device.write_at(5000, &[b"one", b"", b"two"]).unwrap();
    device.sync().unwrap();
    let counters = device.counters();
    assert_eq!(
        (counters.writes, counters.write_bytes, counters.syncs),
        (1, 6, 1)
    );
    drop(device);
    let device = open_rw(&path).unwrap();
    let mut out = [0u8; 6];
    device.read_at(5000, &mut out).unwrap();
    assert_eq!(&out, b"onetwo");
    assert_eq!(
        (device.counters().reads, device.counters().read_bytes),
        (1, 6)
    );
}

#[test]
fn a_directory_means_the_store_file_inside() {
    let dir = tempfile::tempdir().unwrap();
    drop(FileDevice::create(dir.path(), LEN).unwrap());
    assert!(dir.path().join(STORE_FILE_NAME).is_file());
    assert_eq!(open_rw(dir.path()).unwrap().geometry().len_bytes, LEN);
}

#[test]
fn creating_over_a_file_leaves_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    std::fs::write(&path, b"precious").unwrap();
    let error = FileDevice::create(&path, LEN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn no_room_on_the_host_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    FileDevice::create(&path, 1 << 60).unwrap_err();
    assert!(!path.exists());
}

#[test]
fn requests_beyond_the_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::create(dir.path(), LEN).unwrap();
    let error = device.write_at(LEN - 1, &[&[1], &[2]]).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange { at, .. } if at == LEN - 1));
    let error = device.read_at(u64::MAX, &mut [0; 2]).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange { .. }));
    let error = device.discard(LEN, 1).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange { .. }));
}

#[test]
fn two_writers_never_have_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = FileDevice::create(dir.path(), LEN).unwrap();
    assert!(matches!(open_rw(dir.path()), Err(DeviceError::Busy { .. })));
    let error = FileDevice::open(dir.path(), read_only).unwrap_err();
    assert!(matches!(error, DeviceError::Busy { .. }));
    drop(device);
    let first = FileDevice::open(dir.path(), read_only).unwrap();
    let second = FileDevice::open(dir.path(), read_only).unwrap();
    assert!(matches!(open_rw(dir.path()), Err(DeviceError::Busy { .. })));
    drop((first, second));
    open_rw(dir.path()).unwrap();
}

#[test]
#[expect(unsafe_code, reason = "a fork has no wrapper")]
fn a_forked_child_does_not_keep_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::create(dir.path(), LEN).unwrap();
    // SAFETY: the child only waits for its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: the call has no arguments and touches no memory.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    assert!(matches!(open_rw(dir.path()), Err(DeviceError::Busy { .. })));
    drop(device);
    let again = open_rw(dir.path());
    // SAFETY: the process is a child of this one that nothing else waits for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    again.unwrap();
}

#[test]
fn a_read_only_device_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    drop(FileDevice::create(dir.path(), LEN).unwrap());
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = FileDevice::open(dir.path(), read_only).unwrap();
    let error = device.write_at(0, &[&[1]]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
}

#[test]
fn a_discard_gives_the_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let blocks = || path.metadata().unwrap().blocks() * 512;
    let device = FileDevice::create(&path, LEN).unwrap();
    assert!(blocks() >= LEN);
    device.write_at(0, &[&[7; 4096]]).unwrap();
    device.discard(4096, LEN - 4096).unwrap();
    if device.counters().discard_bytes > 0 {
        assert!(blocks() < LEN);
    }
    assert_eq!(path.metadata().unwrap().len(), LEN);
    let mut out = [0u8; 4096];
    device.read_at(0, &mut out).unwrap();
    assert_eq!(out, [7; 4096]);
}

#[test]
fn a_file_grows_with_its_space_and_shrinks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = FileDevice::create(&path, LEN).unwrap();
    device.write_at(LEN - 4, &[b"kept"]).unwrap();
    device.grow(LEN, 3 * LEN).unwrap();
    assert_eq!(device.geometry().len_bytes, 3 * LEN);
    assert!(path.metadata().unwrap().blocks() * 512 >= 3 * LEN);
    let mut out = [0u8; 4];
    device.read_at(LEN - 4, &mut out).unwrap();
    assert_eq!(&out, b"kept");
    device.write_at(3 * LEN - 1, &[&[1]]).unwrap();
    device.shrink(2 * LEN).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 2 * LEN);
    assert!(device.write_at(2 * LEN, &[&[1]]).is_err());
    assert!(device.grow(2 * LEN, 2 * LEN + 1).is_err());
}

#[test]
fn a_file_that_its_host_has_no_room_for_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = FileDevice::create(&path, LEN).unwrap();
    // No file can be that long.
    let error = device
        .grow(LEN, (i64::MAX as u64) / 4096 * 4096)
        .unwrap_err();
    assert!(error.to_string().contains("cannot grow"), "{error}");
    assert_eq!(path.metadata().unwrap().len(), LEN);
    assert_eq!(device.geometry().len_bytes, LEN);
}

#[test]
fn a_file_that_was_made_longer_by_others_is_known_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = FileDevice::create(&path, LEN).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(2 * LEN + 5)
        .unwrap();
    assert_eq!(device.medium_bytes().unwrap(), 2 * LEN);
    assert_eq!(device.geometry().len_bytes, LEN);
}

#[test]
fn reserving_fills_the_holes_of_a_sparse_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    std::fs::File::create(&path).unwrap().set_len(LEN).unwrap();
    let options = OpenOptions {
        reserve: true,
        ..OpenOptions::default()
    };
    drop(FileDevice::open(&path, options).unwrap());
    assert!(path.metadata().unwrap().blocks() * 512 >= LEN);
}

#[test]
fn a_file_cut_short_while_open_is_an_io_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = FileDevice::create(&path, LEN).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4096)
        .unwrap();
    let error = device.read_at(8192, &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
}

#[test]
fn long_reads_give_what_was_written_last() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = FileDevice::create(&path, LEN).unwrap();
    let mut memory = vec![0u8; (256 << 10) + 4096];
    let start = memory.as_ptr().align_offset(4096);
    for (round, is_synced) in [(1u8, false), (2, true), (3, false)] {
        device.write_at(8192, &[&[round; 100 << 10]]).unwrap();
        if is_synced {
            device.sync().unwrap();
            let all = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&*device.file, 0, None, all).unwrap();
        }
        for (offset, len) in [(8192u64, 64usize << 10), (8704, 66 << 10), (8193, 64 << 10)] {
            let out = &mut memory[start..start + len];
            out.fill(0);
            device.read_once(&mut [Wanted { offset, out }]).unwrap();
            let found = &memory[start..start + len];
            assert!(found.iter().all(|&byte| byte == round), "{round} {offset}");
        }
    }
    let out = &mut memory[start..start + 4096];
    let offset = LEN;
    assert!(device.read_once(&mut [Wanted { offset, out }]).is_err());
}

#[test]
fn short_pieces_in_many_places_are_read_together() {
    const PIECE: usize = 12 << 10;
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&dir.path().join("store"), LEN).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|i| (i / 512 % 251) as u8).collect();
    device.write_at(0, &[&bytes]).unwrap();
    device.sync().unwrap();
    let all = rustix::fs::Advice::DontNeed;
    rustix::fs::fadvise(&*device.file, 0, None, all).unwrap();
    // What was written last is in the page cache only: of one piece a part, of others all.
    device.write_at(248 << 10, &[&[255; 64 << 10]]).unwrap();
    let expected = |offset: usize| match offset {
        at if (248 << 10..312 << 10).contains(&at) => 255,
        at => bytes[at],
    };
    let mut memory = vec![0u8; 50 * PIECE + 4096];
    for is_refused in [false, true] {
        let past = device.past.as_ref();
        past.inspect(|past| past.refuse(is_refused));
        for first in [512usize, 513] {
            let start = memory.as_ptr().align_offset(4096);
            memory.fill(0);
            let outs = memory[start..].chunks_exact_mut(PIECE).take(50);
            let pieces = outs.enumerate().map(|(n, out)| Wanted {
                offset: (first + n * (20 << 10)) as u64,
                out,
            });
            let mut pieces: Vec<Wanted<'_>> = pieces.collect();
            device.read_once(&mut pieces).unwrap();
            for piece in &pieces {
                let at = usize::try_from(piece.offset).unwrap();
                let is_right = |(n, byte): (usize, &u8)| *byte == expected(at + n);
                assert!(piece.out.iter().enumerate().all(is_right), "at {at}");
            }
            pieces[7].offset = LEN - 4096;
            assert!(device.read_once(&mut pieces).is_err(), "beyond the end");
        }
    }
}

#[test]
fn the_page_cache_is_asked_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&dir.path().join("store"), LEN).unwrap();
    device.write_at(0, &[&[1; 128 << 10]]).unwrap();
    let Ok(pages) = crate::resident::pages(&device.file, 0, 128 << 10) else {
        return; // A kernel before 6.5.
    };
    assert_eq!(pages, 32);
    assert!(positioned::is_resident(&device.file, 0, 256 << 10));
    assert!(!positioned::is_resident(&device.file, 512 << 10, 128 << 10));
}

#[test]
fn a_file_without_a_name_leaves_nothing_and_gets_its_name_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let entries = || std::fs::read_dir(dir.path()).unwrap().count();
    let Some((device, unnamed)) = FileDevice::create_unnamed(&path, LEN).unwrap() else {
        return; // The host of the temporary folder has no such files.
    };
    device.write_at(0, &[b"lost"]).unwrap();
    drop((device, unnamed));
    assert_eq!(entries(), 0);

    let (device, unnamed) = FileDevice::create_unnamed(&path, LEN).unwrap().unwrap();
    device.write_at(LEN - 4, &[b"kept"]).unwrap();
    assert_eq!(entries(), 0);
    unnamed.publish().unwrap();
    assert_eq!(path.metadata().unwrap().len(), LEN);
    assert!(path.metadata().unwrap().blocks() * 512 >= LEN);
    let error = FileDevice::open(&path, OpenOptions::default()).unwrap_err();
    let is_busy = matches!(error, DeviceError::Busy { .. });
    assert!(is_busy, "the lock goes along: {error}");
    drop(device);
    let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let mut out = [0u8; 4];
    device.read_at(LEN - 4, &mut out).unwrap();
    assert_eq!(&out, b"kept");
}

#[test]
fn a_name_that_is_taken_meanwhile_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    if let Some((_device, unnamed)) = FileDevice::create_unnamed(&path, LEN).unwrap() {
        std::fs::write(&path, b"precious").unwrap();
        let error = unnamed.publish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
