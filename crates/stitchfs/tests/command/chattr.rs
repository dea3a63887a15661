//! Opening files that `chattr` made immutable or append-only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use crate::mounted::Mounted;

#[track_caller]
fn chattr(flags: &str, path: &Path) {
    let ended = Command::new("chattr").arg(flags).arg(path).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

fn open(path: &Path, options: &mut OpenOptions) -> Option<i32> {
    let opened = options.open(path);
    opened.err().and_then(|error| error.raw_os_error())
}

fn options() -> OpenOptions {
    File::options()
}

#[track_caller]
fn expect_refused_by_flag(dir: &Path) {
    let eperm = Some(libc::EPERM);
    let immutable = dir.join("immutable");
    assert_eq!(open(&immutable, options().read(true)), None);
    for refused in [
        options().write(true),
        options().read(true).write(true),
        options().append(true),
        options().write(true).truncate(true),
    ] {
        assert_eq!(open(&immutable, refused), eperm, "{refused:?}");
    }
    let log = dir.join("log");
    for allowed in [
        options().read(true),
        options().append(true),
        options().read(true).append(true),
    ] {
        assert_eq!(open(&log, allowed), None, "{allowed:?}");
    }
    for refused in [
        options().write(true),
        options().read(true).write(true),
        options().write(true).truncate(true),
    ] {
        assert_eq!(open(&log, refused), eperm, "{refused:?}");
    }
}

#[test]
fn immutable_and_append_only_files_are_refused_at_open() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    let mnt = mounted.place.path("mnt");
    for name in ["immutable", "log", "plain"] {
        fs::write(mnt.join(name), b"x").unwrap();
    }
    chattr("+i", &mnt.join("immutable"));
    chattr("+a", &mnt.join("log"));
    mounted.umount();
    for transport in ["transport=dev", "restart"] {
        mounted.mount(&["-o", transport]);
        expect_refused_by_flag(&mnt);
        fs::write(mnt.join("plain"), b"y").unwrap();
        fs::write(mnt.join("new"), b"y").unwrap();
        chattr("-i", &mnt.join("immutable"));
        fs::write(mnt.join("immutable"), b"y").unwrap();
        chattr("+i", &mnt.join("immutable"));
        expect_refused_by_flag(&mnt);
        mounted.umount();
    }
}

#[test]
fn files_that_became_immutable_in_a_clone_are_refused_at_open() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    let (source, clone) = (mounted.path("source"), mounted.path("clone"));
    fs::create_dir(&source).unwrap();
    for name in ["immutable", "log"] {
        fs::write(source.join(name), b"x").unwrap();
    }
    let place = &mounted.place;
    place.run(&["clone", "mnt/source", "mnt/clone"]).code(0);
    chattr("+i", &clone.join("immutable"));
    chattr("+a", &clone.join("log"));
    mounted.umount();
    mounted.mount(&[]);
    // The reply to the first open holds for all of the mount.
    drop(File::open(source.join("log")).unwrap());
    expect_refused_by_flag(&clone);
    fs::write(source.join("immutable"), b"y").unwrap();
    mounted.umount();
}

#[test]
fn a_tree_with_an_immutable_file_in_it_is_not_removed() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    let (place, file) = (&mounted.place, mounted.path("tree/below/file"));
    fs::create_dir_all(mounted.path("tree/below")).unwrap();
    fs::write(&file, b"x").unwrap();
    chattr("+i", &file);
    place
        .run(&["rmtree", "mnt/tree"])
        .code(1)
        .says("lsattr -aR");
    assert_eq!(fs::read(&file).unwrap(), b"x");
    chattr("-i", &file);
    place.run(&["rmtree", "mnt/tree"]).code(0);
    assert!(!mounted.path("tree").exists());
    mounted.umount();
}

#[test]
fn in_the_mount_of_the_first_such_file_its_writes_are_refused() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    let path = mounted.path("immutable");
    fs::write(&path, b"x").unwrap();
    chattr("+i", &path);
    // The kernel was told before that opens need not be asked for.
    let mut file = options().write(true).open(&path).unwrap();
    let refused = file.write(b"y").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    let refused = fs::write(&path, b"").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    drop(file);
    chattr("-i", &path);
    mounted.umount();
}

#[test]
fn opens_are_asked_for_only_where_there_was_such_a_file() {
    let Some(mut mounted) = Mounted::new(&["-o", "transport=dev"]) else {
        return;
    };
    let opens = |mounted: &Mounted| {
        let stats = mounted.place.run(&["stats", "--json", "mnt"]);
        let counters = stats.code(0).json()["counters"].clone();
        counters["fuse.requests.open"].as_u64().unwrap()
    };
    let open_often = |mounted: &Mounted| {
        let before = opens(mounted);
        for _ in 0..50 {
            drop(File::open(mounted.path("file")).unwrap());
        }
        opens(mounted) - before
    };
    fs::write(mounted.path("file"), b"x").unwrap();
    assert_eq!(open_often(&mounted), 0);
    chattr("+a", &mounted.path("file"));
    chattr("-a", &mounted.path("file"));
    mounted.umount();
    mounted.mount(&["-o", "transport=dev"]);
    assert_eq!(open_often(&mounted), 50);
    mounted.umount();
}
