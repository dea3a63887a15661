//! Stores of the RocksDB engine, by the command.

use crate::mounted::{Mounted, can_mount};
use crate::place::{Ended, Place};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const ENGINE: [&str; 2] = ["--engine", "rocksdb"];

/// Makes a store in the directory `a`; `None` where the program is without the engine, which it
/// says.
fn made(place: &Place) -> Option<Ended> {
    let made = place.run(&[&["mkfs"], &ENGINE[..], &["-L", "box", "a"]].concat());
    if cfg!(feature = "rocksdb") {
        made.code(0);
        return Some(made);
    }
    made.code(1)
        .says("this program was built without")
        .says("librocksdb-dev");
    assert!(!place.path("a").exists(), "nothing is left behind");
    None
}

/// A store that is mounted; `None` where it cannot be.
fn mounted(options: &[&str]) -> Option<Mounted> {
    let place = Place::new();
    made(&place)?;
    if !can_mount() {
        return None;
    }
    Some(Mounted::of(place, options))
}

#[test]
fn a_store_is_made_and_says_what_it_is() {
    let place = Place::new();
    let Some(made) = made(&place) else {
        return;
    };
    assert!(made.out().contains("made a store of the RocksDB engine"));
    let info = place.run(&["info", "--json", "a"]).code(0).json();
    assert_eq!(info["engine"], "rocksdb");
    assert_eq!(info["label"], "box");
    assert_eq!(info["large_files_from_bytes"], 4096);
    assert!(info["space_free_bytes"].is_u64(), "{info}");
    let list = place.run(&["instance", "list", "a"]).code(0).out();
    assert_eq!(list, "main\n");
    place.run(&["fsck", "a"]).code(0);
    place.run(&["fsck", "-y", "-f", "a"]).code(0);
    place.run(&["fsck", "-a", "a"]).code(0);

    let again = [&["mkfs"], &ENGINE[..], &["a"]].concat();
    place.run(&again).code(1).says("--force");
    let forced = [
        &["mkfs", "--json", "--force", "--large-files", "inside"],
        &ENGINE[..],
        &["a"],
    ];
    let json = place.run(&forced.concat()).code(0).json();
    assert_eq!(json["engine"], "rocksdb");
    assert_ne!(json["uuid"], info["uuid"]);
    let info = place.run(&["info", "--json", "a"]).code(0).json();
    assert!(info["large_files_from_bytes"].is_null(), "{info}");
}

#[test]
fn what_the_engine_lacks_is_refused_by_name() {
    let place = Place::new();
    if made(&place).is_none() {
        return;
    }
    let none = "the RocksDB engine has no";
    for args in [
        &["defrag", "a"][..],
        &["trim", "a"],
        &["grow", "a", "1G"],
        &["shrink", "a", "1G"],
        &["instance", "create", "a", "mail"],
        &["mount", "-o", "discard", "a", "mnt"],
        &["mount", "-o", "io=direct", "a", "mnt"],
        &["mount", "-o", "instance=mail", "a", "mnt"],
        &["mkfs", "--engine", "rocksdb", "--size", "1G", "b"],
        &["mkfs", "--engine", "rocksdb", "--max-size", "1G", "b"],
        &["mkfs", "--engine", "rocksdb", "--zone-size", "1M", "b"],
    ] {
        place.run(args).code(1).says(none);
    }
    assert!(!place.path("b").exists() && !place.path("mnt").exists());
    place
        .run(&["fsck", "-y", "--drop-log-tail", "a"])
        .code(8)
        .says(none);
    place
        .run(&["info", "--udev", "a"])
        .code(1)
        .says("is a directory");
    let vt = place.run(&["mkfs", "--size", "16M", "--large-files", "64K", "b"]);
    vt.code(1).says("the VT-tree engine has no");
    place
        .run(&["mkfs", "--engine", "lmdb", "b"])
        .code(2)
        .says("vt or rocksdb");
    let over = place.run(&["mkfs", "--size", "16M", "--force", "a"]);
    over.code(1).says("holds a store of the RocksDB engine");
}

#[test]
fn a_mount_serves_what_was_written_before() {
    let Some(mut mounted) = mounted(&[]) else {
        return;
    };
    let sizes = [("small", 100), ("inline", 4096), ("large", 200_000)];
    for (name, len) in sizes {
        fs::write(mounted.path(name), vec![7; len]).unwrap();
    }
    fs::hard_link(mounted.path("large"), mounted.path("link")).unwrap();
    let host = rustix::fs::statvfs(mounted.place.path("a")).unwrap();
    let found = rustix::fs::statvfs(mounted.place.path("mnt")).unwrap();
    let bytes = |stat: &rustix::fs::StatVfs| stat.f_blocks * stat.f_frsize / 4096;
    assert_eq!(bytes(&found), bytes(&host), "df shows the host's space");

    let info = mounted.place.run(&["info", "--json", "mnt"]).code(0).json();
    assert_eq!(info["engine"], "rocksdb");
    assert_eq!(info["large_files"], 1);
    let stats = mounted.place.run(&["stats", "a"]).code(0).out();
    assert!(stats.contains("kv.commits"), "{stats}");
    for task in ["defrag", "trim"] {
        mounted
            .place
            .run(&[task, "mnt"])
            .code(1)
            .says("the RocksDB engine has no");
    }
    mounted.place.run(&["sync", "mnt"]).code(0);
    mounted.place.run(&["info", "a"]).code(0);
    mounted
        .place
        .run(&["fsck", "a"])
        .code(8)
        .says("is in use: mounted at");
    let upgrade = mounted.place.run(&["upgrade", "mnt"]);
    upgrade.code(1).says("-o restart");
    mounted.umount();

    mounted.mount(&["-o", "ro"]);
    for (name, len) in sizes {
        assert!(
            fs::read(mounted.path(name)).unwrap() == vec![7; len],
            "{name}"
        );
    }
    assert_eq!(mounted.path("link").metadata().unwrap().nlink(), 2);
    assert!(fs::write(mounted.path("new"), b"").is_err());
    mounted.umount();
}

#[test]
fn a_directory_that_others_may_enter_is_warned_of() {
    let place = Place::new();
    if made(&place).is_none() {
        return;
    }
    let mode = fs::Permissions::from_mode(0o711);
    fs::set_permissions(place.path("a"), mode).unwrap();
    if can_mount() {
        let warned = place.run(&["mount", "a", "mnt"]);
        warned.code(0).says("/a: insecure mode 0711");
        place.run(&["umount", "mnt"]).code(0);
    }
}

/// Finds files that are no libraries by the names of RocksDB's, as a machine without them finds
/// none.
#[cfg(feature = "rocksdb")]
#[test]
fn a_machine_without_the_library_lacks_these_stores_alone() {
    let place = Place::new();
    made(&place);
    let libraries = place.path("libraries");
    fs::create_dir(&libraries).unwrap();
    for name in ["librocksdb.so.7.8", "librocksdb.so"] {
        fs::write(libraries.join(name), b"no library").unwrap();
    }
    let run = |args: &[&str]| place.run_with(("LD_LIBRARY_PATH", &libraries), args);
    for (args, code) in [
        (&["mkfs", "--engine", "rocksdb", "b"][..], 1),
        (&["mount", "a", "mnt"], 1),
        (&["fsck", "a"], 8),
    ] {
        run(args)
            .code(code)
            .says("cannot load the RocksDB library")
            .says("librocksdb.so.7.8: ")
            .says("install the package librocksdb7.8");
    }
    assert!(!place.path("b").exists() && !place.path("mnt").exists());
    assert_eq!(run(&["info", "--json", "a"]).code(0).json()["label"], "box");
    run(&["mkfs", "--size", "16M", "c"]).code(0);
    run(&["fsck", "c"]).code(0);
    place.run(&["fsck", "a"]).code(0);
}
