//! Targets in `.stitchfs`, where a name that is made is a snapshot.

use std::fs::File;
use std::process::{Command, Stdio};

use super::{moment, mounted, snapshots};
use crate::place::STITCHFS;

const REASON: &str = "is in .stitchfs, where no files are made";

#[test]
fn nothing_is_cloned_restored_or_mounted_there() {
    let Some(mounted) = mounted(&["-o", "history=10m"]) else {
        return;
    };
    let place = &mounted.place;
    moment(&mounted);
    place.run(&["snapshot", "create", "mnt/d", "mon"]).code(0);
    place.run(&["mkfs", "--size", "16M", "b"]).code(0);
    for target in [
        "mnt/.stitchfs/snap/oops",
        "mnt/.stitchfs/oops",
        "mnt/.stitchfs/history/oops",
        "mnt/.stitchfs/txn/oops",
        "mnt/d/.stitchfs/snap/oops",
        "mnt/d/.stitchfs/oops",
    ] {
        for source in ["mnt/d", "mnt/d/f", "mnt/.stitchfs/snap/mon"] {
            place.run(&["clone", source, target]).code(1).says(REASON);
        }
        let restore = ["restore", "--at", "0 s ago", "--to", target, "mnt/d"];
        place.run(&restore).code(1).says(REASON);
        place.run(&["mount", "b", target]).code(1).says(REASON);
    }
    let over = [
        "restore",
        "--force",
        "--at",
        "0 s ago",
        "mnt/d/.stitchfs/snap/mon",
    ];
    place.run(&over).code(1);
    assert_eq!(snapshots(&mounted), ["mon"]);
    mounted.umount();
}

#[test]
fn nothing_is_received_there() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    place.run(&["snapshot", "create", "mnt/d", "mon"]).code(0);
    let stream = place.path("stream");
    let sent = Command::new(STITCHFS)
        .args(["send", "mnt/.stitchfs/snap/mon"])
        .current_dir(place.path(""))
        .stdout(File::create(&stream).unwrap())
        .status();
    assert!(sent.unwrap().success());
    place.run(&["snapshot", "delete", "mnt", "mon"]).code(0);
    // The directory of snapshots is empty, as one to receive into is.
    for target in [
        "mnt/.stitchfs/snap",
        "mnt/.stitchfs/snap/a",
        "mnt/d/.stitchfs/snap",
    ] {
        let output = Command::new(STITCHFS)
            .args(["receive", target])
            .current_dir(place.path(""))
            .stdin(File::open(&stream).unwrap())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(REASON), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
    assert!(snapshots(&mounted).is_empty());
    mounted.umount();
}
