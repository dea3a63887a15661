//! Snapshots in a mount: what the kernel does with them.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use stitch_fuse::{SessionConfig, Transport, TransportChoice, report, snapshots};

use crate::fixture::{Mounted, can_mount, wait_until};
use crate::switch::Turned;

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    Errno::from_io_error(&result.err()?)
}

fn create(mounted: &Mounted, dir: &Path, name: &str) {
    let root = File::open(mounted.path("")).unwrap();
    rustix::fs::syncfs(&root).unwrap();
    snapshots::create(File::open(dir).unwrap(), name).unwrap();
}

fn list(mounted: &Mounted) -> PathBuf {
    mounted.path(".stitchfs/snap")
}

fn names(dir: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// A directory with the file `f`, and a snapshot of it as `mon`.
fn mounted(config: &SessionConfig) -> Option<(Mounted, PathBuf)> {
    let mounted = Mounted::with_snapshots(config)?;
    let dir = mounted.path("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), b"before").unwrap();
    create(&mounted, &dir, "mon");
    let past = list(&mounted).join("mon");
    Some((mounted, past))
}

fn expect_a_moment_that_stays(config: &SessionConfig) {
    let Some((mounted, past)) = mounted(config) else {
        return;
    };
    let dir = mounted.path("d");
    fs::write(dir.join("f"), b"AFTER!").unwrap();
    fs::write(dir.join("new"), b"new").unwrap();
    assert_eq!(fs::read(past.join("f")).unwrap(), b"before");
    assert_eq!(names(&past), ["f"]);
    assert_eq!(names(&mounted.path("")), ["d"], "it is not listed");
    assert_eq!(names(&list(&mounted)), ["mon"]);
    create(&mounted, &dir, "tue");
    assert_eq!(
        names(&list(&mounted)),
        ["mon", "tue"],
        "the kernel lists it anew"
    );
    let (then, now) = (past.join("f"), dir.join("f"));
    let ino = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_ne!(ino(&then), ino(&now));
    assert_ne!(ino(&then), ino(&list(&mounted).join("tue/f")));
    let told = report::read(File::open(&past).unwrap(), "stitchfs.snapshot").unwrap();
    assert_eq!(told, b"mon");
    let copied = fs::copy(&then, mounted.path("copy")).unwrap();
    assert_eq!(copied, 6);
}

#[test]
fn a_moment_stays() {
    expect_a_moment_that_stays(&SessionConfig::default());
}

#[test]
fn a_moment_stays_by_io_uring() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Turned::to(true) else { return };
    expect_a_moment_that_stays(&SessionConfig {
        transport: TransportChoice::Only(Transport::Uring),
        ..SessionConfig::default()
    });
}

#[test]
fn writes_are_refused_at_once_and_leave_nothing_behind() {
    let Some((_mounted, past)) = mounted(&SessionConfig::default()) else {
        return;
    };
    let file = past.join("f");
    // What makes the kernel do without OPEN.
    assert_eq!(fs::read(&file).unwrap(), b"before");
    let mut open = OpenOptions::new().append(true).open(&file).unwrap();
    assert_eq!(errno(open.write(b"x")), Some(Errno::ROFS));
    assert_eq!(errno(open.set_len(1)), Some(Errno::ROFS));
    assert_eq!(errno(File::create(&file)), Some(Errno::ROFS));
    assert_eq!(errno(File::create(past.join("new"))), Some(Errno::ROFS));
    assert_eq!(errno(fs::remove_file(&file)), Some(Errno::ROFS));
    assert_eq!(
        errno(fs::rename(&file, past.join("new"))),
        Some(Errno::ROFS)
    );
    assert_eq!(fs::read(&file).unwrap(), b"before");
}

#[test]
#[expect(unsafe_code, reason = "a mapping is written to")]
fn bytes_written_through_a_mapping_are_refused_when_they_are_synced() {
    let Some((_mounted, past)) = mounted(&SessionConfig::default()) else {
        return;
    };
    let file = past.join("f");
    assert_eq!(fs::read(&file).unwrap(), b"before");
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&file)
        .unwrap();
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, which nothing else uses, unmapped below.
    let place = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, prot, flags, &open, 0) };
    let place = place.unwrap();
    // SAFETY: the mapping has a page, and the file a byte there.
    unsafe { place.cast::<u8>().write(b'X') };
    // SAFETY: as mapped above.
    let synced = unsafe { rustix::mm::msync(place, 4096, MsyncFlags::SYNC) };
    assert!(synced.is_err(), "it was not written");
    // SAFETY: as mapped above; not used afterwards.
    unsafe { rustix::mm::munmap(place, 4096) }.unwrap();
}

#[test]
fn inside_a_deleted_one_all_is_stale() {
    let Some((mounted, past)) = mounted(&SessionConfig::default()) else {
        return;
    };
    let (dir, open) = (
        File::open(&past).unwrap(),
        File::open(past.join("f")).unwrap(),
    );
    let mut bytes = [0; 6];
    open.read_exact_at(&mut bytes, 0).unwrap();
    snapshots::delete(File::open(list(&mounted)).unwrap(), "mon").unwrap();
    assert_eq!(errno(fs::metadata(&past)), Some(Errno::NOENT));
    assert!(names(&list(&mounted)).is_empty());
    // The kernel drops what it has cached a moment later.
    wait_until("stale contents", || {
        errno(open.read_at(&mut bytes, 0)) == Some(Errno::STALE)
    });
    wait_until("stale attributes", || {
        errno(dir.metadata()) == Some(Errno::STALE)
    });
    let again = snapshots::delete(File::open(list(&mounted)).unwrap(), "mon");
    assert_eq!(errno(again), Some(Errno::NOENT));
}

#[test]
fn the_name_of_the_hidden_directory_is_taken() {
    let Some((mounted, past)) = mounted(&SessionConfig::default()) else {
        return;
    };
    let hidden = mounted.path(".stitchfs");
    assert_eq!(errno(fs::create_dir(&hidden)), Some(Errno::EXIST));
    assert_eq!(errno(fs::remove_dir(&hidden)), Some(Errno::BUSY));
    assert_eq!(errno(File::create(hidden.join("x"))), Some(Errno::ROFS));
    assert_eq!(
        errno(File::create(list(&mounted).join("x"))),
        Some(Errno::ROFS)
    );
    let other = fs::rename(mounted.path("d"), &hidden);
    assert!(other.is_err(), "it was replaced");
    assert_eq!(fs::read(past.join("f")).unwrap(), b"before");
}
