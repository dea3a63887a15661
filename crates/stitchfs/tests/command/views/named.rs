//! Snapshots by name and by path, and what other users may ask.

use std::fs;
use std::os::unix::fs::chown;

use serde_json::json;

use super::{as_user, mounted, snapshots};

#[test]
fn several_are_deleted_by_name_and_by_path() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    for name in ["a", "b", "c", "d", "e"] {
        place.run(&["snapshot", "create", "mnt/d", name]).code(0);
    }
    let told = place.run(&["snapshot", "delete", "--json", "mnt", "a", "b"]);
    assert_eq!(told.code(0).json(), json!({ "deleted": ["a", "b"] }));
    let paths = [
        "snapshot",
        "delete",
        "mnt/.stitchfs/snap/c",
        "mnt/d/.stitchfs/snap/d",
    ];
    place.run(&paths).code(0);
    assert_eq!(snapshots(&mounted), ["e"]);
    // What is there is deleted, and what is not is named.
    let some = place.run(&["snapshot", "delete", "mnt", "x", "e"]);
    some.code(1).says("x: there is no such snapshot");
    assert!(snapshots(&mounted).is_empty());
    place
        .run(&["snapshot", "delete", "mnt"])
        .code(2)
        .says("names of snapshots");
    let gone = place.run(&["snapshot", "delete", "mnt/.stitchfs/snap/c"]);
    gone.code(1).says("No such file");
    mounted.umount();
}

#[test]
fn a_name_stands_for_the_snapshot_in_diff_send_and_export() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    place.run(&["snapshot", "create", "mnt/d", "mon"]).code(0);
    fs::write(mounted.path("d/new"), b"new").unwrap();
    place.run(&["snapshot", "create", "mnt/d", "tue"]).code(0);
    fs::remove_file(mounted.path("d/f")).unwrap();
    let diff = |args: &[&str]| {
        let args = [&["diff"], args].concat();
        place.run(&args).code(0).out()
    };
    assert_eq!(diff(&["mon", "mnt/d"]), "-\tf\n+\tnew\n");
    assert_eq!(diff(&["mnt/d", "mon"]), "+\tf\n-\tnew\n");
    assert_eq!(diff(&["--walk", "mnt/d", "mon"]), "+\tf\n-\tnew\n");
    assert_eq!(diff(&["mon", "tue", "mnt"]), "+\tnew\n");
    assert_eq!(diff(&["tue", "mon", "mnt"]), "-\tnew\n");
    assert_eq!(diff(&["mnt/.stitchfs/snap/mon", "tue"]), "+\tnew\n");
    place
        .run(&["diff", "wed", "mnt"])
        .code(1)
        .says("wed: no such file or directory, and no snapshot of");
    let (named, by_path) = (
        place.run(&["send", "mon", "mnt"]),
        place.run(&["send", "mnt/.stitchfs/snap/mon"]),
    );
    assert_eq!(named.code(0).bytes(), by_path.code(0).bytes());
    let (named, by_path) = (
        place.run(&["send", "-i", "mon", "tue", "mnt/d"]),
        place.run(&[
            "send",
            "-i",
            "mnt/.stitchfs/snap/mon",
            "mnt/.stitchfs/snap/tue",
        ]),
    );
    assert_eq!(named.code(0).bytes(), by_path.code(0).bytes());
    let (named, by_path) = (
        place.run(&["export", "mon", "mnt"]),
        place.run(&["export", "mnt/.stitchfs/snap/mon"]),
    );
    assert_eq!(named.code(0).bytes(), by_path.code(0).bytes());
    mounted.umount();
}

#[test]
fn the_owner_of_a_directory_lists_its_policy_and_no_other() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    fs::create_dir(mounted.path("own")).unwrap();
    chown(mounted.path("own"), Some(65534), Some(65534)).unwrap();
    for dir in ["mnt/d", "mnt/own"] {
        let every = ["snapshot", "create", "--every", "1d", dir];
        place.run(&every).code(0);
    }
    let all = place
        .run(&["snapshot", "policy", "list", "mnt"])
        .code(0)
        .out();
    assert_eq!(all.lines().count(), 2, "{all}");
    let own = as_user(&mounted, &["snapshot", "policy", "list", "mnt"]);
    let own = own.code(0).out();
    assert!(
        own.starts_with("/own  ") && own.lines().count() == 1,
        "{own}"
    );
    mounted.umount();
}
