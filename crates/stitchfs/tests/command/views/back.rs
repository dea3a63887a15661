//! `stitchfs restore` of directories.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::{moment, mounted, snapshots};

#[test]
fn a_directory_that_is_still_the_same_keeps_its_snapshots() {
    let Some(mounted) = mounted(&["-o", "history=10m"]) else {
        return;
    };
    let place = &mounted.place;
    place.run(&["snapshot", "create", "mnt/d", "mon"]).code(0);
    let first = moment(&mounted);
    let (_, at) = first.rsplit_once('/').unwrap();
    fs::write(mounted.path("d/f"), b"mistake").unwrap();
    fs::write(mounted.path("d/later"), b"later").unwrap();
    let number = mounted.path("d").metadata().unwrap().ino();
    let restored = place.run(&["restore", "--force", "--at", at, "mnt/d"]);
    let out = restored.code(0).out();
    assert_eq!(fs::read(mounted.path("d/f")).unwrap(), b"before");
    assert!(!mounted.path("d/later").exists());
    assert_eq!(mounted.path("d").metadata().unwrap().ino(), number);
    let own = place
        .run(&["snapshot", "list", "-q", "mnt/d"])
        .code(0)
        .out();
    assert!(own.contains("  mon  /d"), "{own}");
    // The state before is kept.
    let (before, _) = out.lines().last().unwrap().split_once("  ").unwrap();
    let before = std::path::Path::new(before);
    assert_eq!(fs::read(before.join("f")).unwrap(), b"mistake");
    mounted.umount();
}

#[test]
fn one_that_was_replaced_is_copied_and_its_snapshots_are_told_of() {
    let Some(mounted) = mounted(&["-o", "history=10m"]) else {
        return;
    };
    let place = &mounted.place;
    let first = moment(&mounted);
    let (_, at) = first.rsplit_once('/').unwrap();
    fs::rename(mounted.path("d"), mounted.path("old")).unwrap();
    fs::create_dir(mounted.path("d")).unwrap();
    place.run(&["snapshot", "create", "mnt/d", "mon"]).code(0);
    let restored = place.run(&["restore", "--force", "--at", at, "mnt/d"]);
    let said = restored.code(0).err();
    assert!(
        said.contains("will be a new directory: its 1 snapshots stay"),
        "{said}"
    );
    assert_eq!(fs::read(mounted.path("d/f")).unwrap(), b"before");
    assert_eq!(snapshots(&mounted), ["mon"]);
    mounted.umount();
}
