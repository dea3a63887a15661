//! `defrag`, `trim`, `grow` and `shrink`, on a store at rest and on one that is mounted.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use stitch_base::clock::{Clock, SystemClock};

use crate::mounted::{Mounted, can_mount, wait_until};
use crate::place::Place;

const MIB: u64 = 1 << 20;

/// Bytes that a file takes of its host.
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// Bytes of the file system at a path, and those that are free.
fn space(path: &Path) -> (u64, u64) {
    let space = rustix::fs::statvfs(path).unwrap();
    (
        space.f_blocks * space.f_frsize,
        space.f_bavail * space.f_frsize,
    )
}

/// The store `a`, as its host knows it.
fn file_of(place: &Place) -> File {
    let options = File::options().write(true).open(place.path("a"));
    options.unwrap()
}

/// Files of 1 MiB, number by number.
fn write_files(dir: &Path, numbers: std::ops::Range<u8>) {
    for number in numbers {
        fs::write(dir.join(format!("file{number}")), content(number)).unwrap();
    }
}

fn content(number: u8) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    stitch_base::random::Rng::new(u64::from(number)).fill(&mut bytes);
    bytes
}

#[track_caller]
fn expect_files(dir: &Path, numbers: impl Iterator<Item = u8>) {
    for number in numbers {
        assert!(fs::read(dir.join(format!("file{number}"))).unwrap() == content(number));
    }
}

#[test]
fn how_far_a_store_can_grow_is_shown_and_chosen_at_mkfs() {
    let most = |place: &Place| {
        let info = place.run(&["info", "--json", "a"]).code(0).json();
        info["grow_max_bytes"].as_u64().expect("it is shown")
    };
    let place = Place::with_store("a");
    assert_eq!(most(&place), 1024 * MIB);
    let refused = place.run(&["grow", "a", "1028M"]).code(1).err();
    assert!(refused.contains("1073741824 bytes at most"), "{refused}");

    let far = [
        "mkfs",
        "--force",
        "--size",
        "16M",
        "--max-size",
        "1500M",
        "a",
    ];
    place.run(&far).code(0);
    assert!(most(&place) >= 1500 * MIB);
    place.run(&["grow", "a", "1028M"]).code(0);
    place.run(&["fsck", "-n", "a"]).code(0);

    let too_far = ["mkfs", "--size", "16M", "--max-size", "1T", "b"];
    let refused = place.run(&too_far).code(1).err();
    assert!(refused.contains("the logs and 16 zones need"), "{refused}");
    assert!(!place.path("b").exists());
}

#[test]
fn a_store_at_rest_grows_and_shrinks() {
    let place = Place::with_store("a");
    let done = place.run(&["grow", "--json", "a", "40M"]).code(0).json();
    assert_eq!(done["bytes_before"], 16 * MIB);
    assert_eq!(done["bytes"], 40 * MIB);
    assert_eq!(fs::metadata(place.path("a")).unwrap().len(), 40 * MIB);
    assert!(allocated(&place.path("a")) >= 40 * MIB);
    place.run(&["fsck", "-n", "a"]).code(0);
    let info = place.run(&["info", "--json", "a"]).code(0).json();
    assert_eq!(info["bytes"], 40 * MIB);
    // As if a crash had come before the file was cut.
    file_of(&place).set_len(48 * MIB).unwrap();
    place.run(&["shrink", "a", "40M"]).code(0);
    assert_eq!(fs::metadata(place.path("a")).unwrap().len(), 40 * MIB);
    let text = place.run(&["shrink", "a", "20M"]).code(0).out();
    assert!(text.contains("20 MiB, before 40 MiB"), "{text}");
    assert_eq!(fs::metadata(place.path("a")).unwrap().len(), 20 * MIB);
    place.run(&["fsck", "-n", "a"]).code(0);
    // As long as the file has become.
    file_of(&place).set_len(24 * MIB).unwrap();
    let done = place.run(&["grow", "--json", "a"]).code(0).json();
    assert_eq!(done["bytes"], 24 * MIB);
    assert!(allocated(&place.path("a")) >= 24 * MIB);
    place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn sizes_that_do_not_do_are_refused_with_a_reason() {
    let place = Place::with_store("a");
    let before = fs::read(place.path("a")).unwrap().len();
    place.run(&["grow", "a"]).code(1).says("give the new size");
    place
        .run(&["grow", "a", "16M"])
        .code(1)
        .says("give a larger size");
    place.run(&["grow", "a", "2T"]).code(1).says("at most");
    place.run(&["grow", "a", "lots"]).code(2).says("lots");
    place.run(&["shrink", "a"]).code(2).says("SIZE");
    place
        .run(&["shrink", "a", "8M"])
        .code(1)
        .says("give 16M or more");
    place
        .run(&["shrink", "a", "32M"])
        .code(1)
        .says("give a smaller size");
    place.run(&["grow", "b", "32M"]).code(1).says("b");
    fs::write(place.path("other"), vec![0; 1 << 20]).unwrap();
    for command in [
        &["defrag", "other"][..],
        &["trim", "other"],
        &["grow", "other", "32M"],
        &["shrink", "other", "16M"],
    ] {
        place.run(command).code(1).says("other");
    }
    assert_eq!(fs::read(place.path("a")).unwrap().len(), before);
    place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn a_store_at_rest_gives_its_free_space_to_the_host() {
    let place = Place::with_store("a");
    assert!(allocated(&place.path("a")) >= 16 * MIB);
    let done = place.run(&["trim", "--json", "a"]).code(0).json();
    let discarded = done["discarded_bytes"].as_u64().unwrap();
    assert!(discarded > 12 * MIB, "{done}");
    assert!(allocated(&place.path("a")) < 16 * MIB - discarded / 2);
    place.run(&["fsck", "-n", "a"]).code(0);
    let text = place.run(&["trim", "a"]).code(0).out();
    assert!(text.contains("discarded"), "{text}");
    let text = place.run(&["defrag", "a"]).code(0).out();
    assert!(
        text.contains("moved 0 B, freed 0 B"),
        "nothing to be had: {text}"
    );
    place.run(&["defrag", "--json", "a"]).code(0).json();
    place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn a_mounted_store_grows_shrinks_and_is_defragmented() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    let dir = mounted.path("");
    write_files(&dir, 0..40);
    for number in (0..40).filter(|number| number % 2 == 1) {
        fs::remove_file(dir.join(format!("file{number}"))).unwrap();
    }
    let (blocks, _) = space(&dir);
    let place = &mounted.place;
    let done = place.run(&["grow", "--json", "mnt", "128M"]).code(0).json();
    assert_eq!(done["bytes"], 128 * MIB);
    let (grown, _) = space(&dir);
    assert!(grown > blocks + 60 * MIB, "{blocks} {grown}");
    write_files(&dir, 40..100);
    for number in (40..100).filter(|number| number % 2 == 1) {
        fs::remove_file(dir.join(format!("file{number}"))).unwrap();
    }
    // Space of removed files comes back a moment later.
    assert!(wait_until(|| space(&dir).1 > 50 * MIB));
    let done = place.run(&["defrag", "--json", "a"]).code(0).json();
    assert_eq!(done["is_stopped"], false, "{done}");
    let done = place.run(&["shrink", "--json", "a", "80M"]).code(0).json();
    assert_eq!(done["bytes"], 80 * MIB);
    assert_eq!(fs::metadata(place.path("a")).unwrap().len(), 80 * MIB);
    let (shrunk, _) = space(&dir);
    assert!(shrunk < grown - 40 * MIB, "{grown} {shrunk}");
    let info = place.run(&["info", "--json", "mnt"]).code(0).json();
    assert_eq!(info["bytes"], 80 * MIB);
    let small = place.run(&["shrink", "mnt", "32M"]);
    small.code(1).says("are the least");
    expect_files(&dir, (0..100).filter(|number| number % 2 == 0));
    mounted.umount();
    mounted.mount(&[]);
    expect_files(&dir, (0..100).filter(|number| number % 2 == 0));
    mounted.umount();
}

#[test]
fn a_mount_for_reading_only_is_left_as_it_is() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    mounted.mount(&["-o", "ro"]);
    for command in [&["trim", "mnt"][..], &["grow", "mnt", "128M"]] {
        mounted.place.run(command).code(1).says("reading only");
    }
    mounted.umount();
}

#[test]
fn what_is_deleted_comes_back_by_itself_also_to_the_host() {
    let Some(mounted) = Mounted::new(&["-o", "discard"]) else {
        return;
    };
    let dir = mounted.path("");
    let (total, free) = space(&dir);
    write_files(&dir, 0..40);
    rustix::fs::fsync(File::open(dir.join("file1")).unwrap()).unwrap();
    let (_, full) = space(&dir);
    assert!(full < free - 35 * MIB);
    for number in 0..40 {
        fs::remove_file(dir.join(format!("file{number}"))).unwrap();
    }
    let clock = SystemClock::default();
    let store = mounted.place.path("a");
    let is_back = || space(&dir).1 > free - total / 20 && allocated(&store) < 40 * MIB;
    while !is_back() && clock.monotonic().as_secs() < 60 {
        clock.sleep(std::time::Duration::from_millis(200));
    }
    let (_, now) = space(&dir);
    let held = allocated(&store);
    assert!(
        is_back(),
        "{now} of {free} bytes are free, the host gives {held}"
    );
    mounted.umount();
}

#[test]
fn used_space_is_what_was_written_and_what_its_write_out_may_need() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    // One whose write buffer takes as much as is written here.
    fs::remove_file(mounted.place.path("a")).unwrap();
    mounted.mount(&["--create", "2G"]);
    let dir = mounted.place.path("mnt");
    let used = || {
        let (total, free) = space(&dir);
        total - free
    };
    let empty = used();
    write_files(&dir, 0..50);
    let written = 50 * MIB;
    let now = used() - empty;
    assert!(written <= now && now <= written * 5 / 4, "{now}");
    mounted.umount();
    mounted.mount(&[]);
    let now = used() - empty;
    assert!(written <= now && now <= written * 103 / 100, "{now}");
    mounted.umount();
}

/// A file system of 48 MiB at `host`; taken away when dropped.
struct SmallHost<'a>(&'a Place);

impl<'a> SmallHost<'a> {
    fn new(place: &'a Place) -> Self {
        let dir = place.path("host");
        fs::create_dir(&dir).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=48M", "tmpfs"])
            .arg(&dir);
        assert!(mount.status().unwrap().success());
        Self(place)
    }
}

impl Drop for SmallHost<'_> {
    fn drop(&mut self) {
        for name in ["mnt", "host"] {
            let mut umount = Command::new("umount");
            umount
                .arg("-l")
                .arg(self.0.path(name))
                .stderr(Stdio::null());
            let _ = umount.status();
        }
    }
}

#[test]
fn a_host_that_is_full_by_then_is_a_device_that_fails() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let host = SmallHost::new(&place);
    place.run(&["mkfs", "--size", "40M", "host/a"]).code(0);
    place.run(&["mount", "host/a", "mnt"]).code(0);
    write_files(&place.path("mnt"), 0..4);
    place.run(&["trim", "mnt"]).code(0);
    let mut filler = File::create(place.path("host/filler")).unwrap();
    while filler.write_all(&[1; 65_536]).is_ok() {}
    // Free as the store knows it; but there is nothing behind it.
    let mut failed = None;
    for number in 4..30 {
        let file = place.path("mnt").join(format!("file{number}"));
        let written = fs::write(&file, content(number)).and_then(|()| File::open(file)?.sync_all());
        if let Err(error) = written {
            failed = Some(error);
            break;
        }
    }
    assert!(failed.is_some(), "the host has no room");
    expect_files(&place.path("mnt"), 0..4);
    // It cannot write everything out, and says so in its log.
    place.run(&["umount", "mnt"]);
    place.run(&["fsck", "-n", "host/a"]).code(0);
    drop(filler);
    fs::remove_file(place.path("host/filler")).unwrap();
    place.run(&["mount", "host/a", "mnt"]).code(0);
    expect_files(&place.path("mnt"), 0..4);
    write_files(&place.path("mnt"), 4..20);
    place.run(&["umount", "mnt"]).code(0);
    place.run(&["fsck", "-n", "host/a"]).code(0);
    drop(host);
}
