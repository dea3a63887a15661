//! What it prints and how it ends. Nothing is mounted here.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use crate::place::{Place, STITCHFS};

#[test]
fn help_and_version_are_a_success() {
    let place = Place::new();
    for args in [
        &["--help"][..],
        &["help"],
        &["mount", "--help"],
        &["fsck", "--help"],
    ] {
        let ended = place.run(args);
        assert!(ended.code(0).out().contains("Usage:"), "{args:?}");
    }
    let version = place.run(&["--version"]);
    let expected = concat!("stitchfs ", env!("CARGO_PKG_VERSION"));
    assert_eq!(version.code(0).out().trim(), expected);
}

#[test]
fn every_subcommand_explains_itself() {
    let place = Place::new();
    for command in [
        "mkfs", "mount", "umount", "fsck", "info", "stats", "defrag", "trim", "grow", "shrink",
    ] {
        let help = place.run(&[command, "--help"]).code(0).out();
        assert!(help.contains("Arguments:"), "{command}");
    }
}

#[test]
fn a_wrong_command_line_has_its_own_code() {
    let place = Place::new();
    place.run(&[]).code(2);
    place.run(&["mkfs"]).code(2).says("PATH");
    place
        .run(&["mkfs", "--sise", "1G", "a"])
        .code(2)
        .says("--sise");
    place
        .run(&["mkfs", "--size", "lots", "a"])
        .code(2)
        .says("lots");
    place.run(&["mount", "a"]).code(2).says("MNT");
    place
        .run(&["mount", "-o", "noatme", "a", "b"])
        .code(2)
        .says("noatme");
    place
        .run(&["mount", "-o", "commit=0", "a", "b"])
        .code(2)
        .says("3600");
    place.run(&["unmount", "a"]).code(2).says("unmount");
    place.run(&["fsck"]).code(16).says("STORE");
    place.run(&["fsck", "-n", "-y", "a"]).code(16).says("-y");
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 0);
}

/// Whatever the value is of: nothing is looked at before.
#[test]
fn a_value_that_makes_no_sense_has_the_code_of_a_wrong_command_line() {
    let place = Place::new();
    let (long, tag) = ("n".repeat(251), "t".repeat(65));
    for (args, hint) in [
        (
            &["snapshot", "create", "--every", "15", "d"][..],
            "30s, 15m",
        ),
        (&["snapshot", "create", "--every", "0m", "d"], "30s, 15m"),
        (
            &[
                "snapshot", "create", "--every", "1h", "--keep", "often=3", "d",
            ],
            "last=3",
        ),
        (&["snapshot", "create", "d", "a/b"], "has no slash"),
        (&["snapshot", "create", "d", ""], "is not empty"),
        (&["snapshot", "create", "d", &long], "250 bytes"),
        (
            &["snapshot", "create", "--every", "1h", "d", &long],
            "250 bytes",
        ),
        (
            &["snapshot", "create", "--every", "1h", "d", &long[..201]],
            "200 bytes",
        ),
        (
            &["snapshot", "create", "--every", "1h", "d", "a\nb"],
            "without control",
        ),
        (&["snapshot", "hold", "d", "mon", &tag], "64 bytes"),
        (&["snapshot", "hold", "d", "mon", ""], "1 to 64"),
        (
            &["snapshot", "release", "d", "mon", "a\nb"],
            "control characters",
        ),
        (&["restore", "--at", "soon", "d"], "is no time"),
        (&["send", "--resume", "x", "d"], "--resume"),
        (&["txn", "begin", "a/..", "d"], "a name is"),
        (&["txn", "begin", &long, "d"], "250 bytes"),
        (
            &["txn", "begin", "--expires", "soon", "a", "d"],
            "is no time",
        ),
        (&["txn", "resolve", "--ours", "a"], "which conflicts?"),
        (&["grow", "d", "lots"], "is not a size"),
    ] {
        place.run(args).code(2).says(hint);
    }
    // A command that runs another one has the codes of env(1).
    place
        .run(&["txn", "run", "--name", "..", "d"])
        .code(125)
        .says("a name is");
}

#[test]
fn mkfs_says_what_it_needs() {
    let place = Place::new();
    place.run(&["mkfs", "a"]).code(1).says("--size 8G");
    place
        .run(&["mkfs", "--size", "15M", "a"])
        .code(1)
        .says("give 16M or more");
    place
        .run(&["mkfs", "--size", "16M", "none/a"])
        .code(1)
        .says("none/a");
    place
        .run(&["mkfs", "/dev/null"])
        .code(1)
        .says("character device");
    let label = "x".repeat(65);
    place
        .run(&["mkfs", "--size", "16M", "-L", &label, "a"])
        .code(1)
        .says("label");
    place
        .run(&["mkfs", "--size", "16M", "--zone-size", "5000", "a"])
        .code(1);
    assert!(!place.path("a").exists());
}

#[test]
fn wrong_mount_options_say_what_would_do() {
    let place = Place::with_store("a");
    for (args, hint) in [
        (["--memory", "1M"], "64M or more"),
        (["-o", "memory=1M"], "64M or more"),
        (["-o", "umask=888"], "umask=022"),
        (["-o", "uid=nobody"], "id nobody"),
        (["-o", "noatme"], "--help"),
    ] {
        let args = [&["mount"], &args[..], &["a", "mnt"]].concat();
        place.run(&args).code(2).says(hint);
    }
    place.run(&["stats", "a"]).code(1).says("findmnt");
    assert!(!place.path("mnt").exists());
}

#[test]
fn a_store_that_is_not_there_or_too_small_is_named() {
    let place = Place::new();
    place.run(&["fsck", "a"]).code(8).says("a: cannot open: No");
    place.run(&["info", "a"]).code(1).says("a: no such file");
    let small = File::create(place.path("small")).unwrap();
    small.set_len(102_400).unwrap();
    let small = place.run(&["mkfs", "small"]);
    small.code(1).says("small: a volume needs at least 16 MiB");
    fs::write(place.path("empty"), []).unwrap();
    let empty = place.run(&["fsck", "empty"]);
    empty.code(8).says("empty: is empty: there is no store");
}

#[test]
fn mkfs_makes_a_store_and_says_so() {
    let place = Place::new();
    let ended = place.run(&["mkfs", "--size", "16M", "-L", "photos", "a"]);
    assert!(ended.code(0).out().contains("16 MiB"), "{}", ended.out());
    assert_eq!(ended.err(), "");
    assert_eq!(fs::metadata(place.path("a")).unwrap().len(), 16 << 20);
    let made = place.run(&["mkfs", "--json", "--size", "32M", "--force", "a"]);
    let made = made.code(0).json();
    assert_eq!(made["bytes"], 32 << 20);
    assert_eq!(made["label"], "");
    let info = place.run(&["info", "--json", "a"]).code(0).json();
    assert_eq!(info["uuid"], made["uuid"]);
    assert_eq!(info["bytes"], 32 << 20);
}

#[test]
fn mkfs_overwrites_nothing_without_force() {
    let place = Place::with_store("a");
    place
        .run(&["mkfs", "a"])
        .code(1)
        .says("StitchFS")
        .says("--force");
    fs::write(place.path("letter"), b"dear").unwrap();
    place
        .run(&["mkfs", "--size", "16M", "letter"])
        .code(1)
        .says("--force");
    assert_eq!(fs::read(place.path("letter")).unwrap(), b"dear");
    let mut ext4 = vec![0u8; 16 << 20];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(place.path("ext4"), &ext4).unwrap();
    place
        .run(&["mkfs", "ext4"])
        .code(1)
        .says("ext4")
        .says("--force");
    assert!(fs::read(place.path("ext4")).unwrap() == ext4);
}

#[test]
fn a_directory_holds_a_store() {
    let place = Place::new();
    fs::create_dir(place.path("dir")).unwrap();
    place.run(&["info", "dir"]).code(1).says("store.stitch");
    place.run(&["mkfs", "--size", "16M", "dir"]).code(0);
    place.run(&["info", "dir"]).code(0);
    place.run(&["fsck", "-n", "dir/store.stitch"]).code(0);
}

#[test]
fn info_is_for_people_and_for_programs() {
    let place = Place::with_store("a");
    let text = place.run(&["info", "a"]).code(0).out();
    assert!(text.contains("16777216 (16 MiB)"), "{text}");
    let json = place.run(&["info", "--json", "a"]).code(0).json();
    let full = place.path("a").canonicalize().unwrap();
    assert_eq!(json["store"], full.to_str().unwrap());
}

#[test]
fn what_is_no_store_is_refused_everywhere() {
    let place = Place::new();
    File::create(place.path("zeros"))
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    fs::write(place.path("odd"), b"not a multiple of anything").unwrap();
    for (file, says) in [
        ("zeros", "not a StitchFS"),
        ("odd", "multiple"),
        ("none", "none"),
    ] {
        place.run(&["info", file]).code(1).says(says);
        place.run(&["fsck", "-n", file]).code(8).says(says);
        place.run(&["fsck", "-y", file]).code(8).says(says);
        place.run(&["mount", file, "mnt"]).code(1).says(file);
    }
    place
        .run(&["mount", "none", "mnt"])
        .code(1)
        .says("--create");
    assert!(!place.path("mnt").exists(), "no mount point for nothing");
    assert!(!place.path("none").exists());
}

#[test]
fn damaged_superblocks_are_named() {
    let place = Place::with_store("a");
    let mut image = fs::read(place.path("a")).unwrap();
    for at in [0, 4096, 8192, 12_288, 16_384] {
        image[at + 100..at + 200].fill(0xaa);
    }
    fs::write(place.path("b"), &image).unwrap();
    let ended = place.run(&["info", "b"]);
    assert!(ended.code(1).err().contains("b"), "{}", ended.err());
    image.truncate(8 << 20);
    fs::write(place.path("c"), &image).unwrap();
    place.run(&["mount", "c", "mnt"]).code(1);
}

#[test]
fn fsck_of_a_good_store_finds_nothing() {
    let place = Place::with_store("a");
    for flag in ["-n", "-y", "-a", "-p"] {
        let ended = place.run(&["fsck", flag, "a"]);
        assert!(ended.code(0).out().contains("a:"), "{flag}");
        assert_eq!(ended.err(), "", "quiet without a terminal");
    }
    let json = place
        .run(&["fsck", "-f", "-p", "--json", "a"])
        .code(0)
        .json();
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(0));
}

#[test]
fn fsck_only_looks_without_a_terminal() {
    let place = Place::with_store("a");
    let before = fs::read(place.path("a")).unwrap();
    place.run(&["fsck", "a"]).code(0);
    place.run(&["fsck", "-n", "a"]).code(0);
    assert!(
        fs::read(place.path("a")).unwrap() == before,
        "nothing was written"
    );
}

#[test]
fn what_is_not_mounted_cannot_be_unmounted_or_asked() {
    let place = Place::with_store("a");
    fs::create_dir(place.path("dir")).unwrap();
    for path in ["a", "dir", "none"] {
        place.run(&["umount", path]).code(1).says(path);
        place.run(&["stats", path]).code(1).says(path);
    }
}

#[test]
fn info_of_a_directory_without_a_mount_names_the_directory() {
    let place = Place::new();
    std::fs::create_dir(place.path("dir")).unwrap();
    let said = place.run(&["info", "dir"]).code(1).err();
    assert!(said.contains("dir: no StitchFS is mounted here"), "{said}");
    let said = place.run(&["info", "missing"]).code(1).err();
    assert!(said.contains("missing: no such file"), "{said}");
}

#[test]
fn a_directory_without_a_store_is_named_by_every_command() {
    let place = Place::new();
    std::fs::create_dir(place.path("dir")).unwrap();
    for args in [
        &["fsck", "dir"][..],
        &["defrag", "dir"],
        &["trim", "dir"],
        &["grow", "dir"],
        &["usage", "dir"],
        &["instance", "list", "dir"],
        &["kv", "scan", "dir"],
        &["serve", "dir"],
    ] {
        let ended = place.run(args);
        ended.says("no StitchFS is mounted at dir, and no store is in it");
    }
}

#[test]
fn of_several_trees_none_is_removed_if_one_is_missing() {
    let place = Place::new();
    std::fs::create_dir(place.path("dir")).unwrap();
    let said = place.run(&["rmtree", "missing", "dir"]).code(1).err();
    assert!(said.contains("nothing was removed"), "{said}");
}

#[test]
fn a_store_in_use_is_refused() {
    let place = Place::with_store("a");
    let file = File::open(place.path("a")).unwrap();
    file.lock().unwrap();
    place.run(&["mkfs", "--force", "a"]).code(1).says("in use");
    place.run(&["fsck", "-y", "a"]).code(8).says("in use");
    place.run(&["mount", "a", "mnt"]).code(1).says("in use");
}

#[test]
fn helpers_of_mkfs_mount_and_fsck_go_by_their_names() {
    let place = Place::with_store("a");
    let (mkfs, mount, fsck) = (
        place.named("mkfs.stitchfs"),
        place.named("mount.stitchfs"),
        place.named("fsck.stitchfs"),
    );
    place.run_as(&mkfs, &["--size", "16M", "b"]).code(0);
    place.run_as(&fsck, &["-a", "b"]).code(0);
    place.run_as(&fsck, &["-a", "none"]).code(8).says("none");
    place.run_as(&fsck, &["--what"]).code(16);
    place
        .run_as(&mount, &["a", "mnt", "-f", "-n", "-s", "-o", "rw,noatime"])
        .code(0);
    place.run_as(&mount, &["a"]).code(1);
    place
        .run_as(&mount, &["none", "mnt", "-o", "rw"])
        .code(32)
        .says("none");
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let place = Place::with_store("a");
    let mut child = Command::new(STITCHFS)
        .args(["info", "a"])
        .current_dir(place.0.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}
