//! Refusals name the cause, and what to do.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use super::{as_user, moment, mounted};
use crate::mounted::Mounted;
use crate::place::STITCHFS;

const USER: u32 = 65534;

#[test]
fn the_mount_of_another_user_is_told_as_such() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let refused = as_user(&mounted, &["umount", "mnt"]);
    refused.code(1).says("was mounted by root");
    assert!(mounted.is_mounted());
    mounted.umount();
}

#[test]
fn a_user_is_told_where_a_right_is_missing() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    let own = mounted.path("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(USER), Some(USER)).unwrap();
    let refused = as_user(&mounted, &["clone", "mnt/own", "mnt/x"]);
    refused
        .code(1)
        .says("mnt: no permission to make a name in it");
    let closed = mounted.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    place
        .run(&["snapshot", "create", "mnt/closed", "c"])
        .code(0);
    for args in [&["send"][..], &["export"], &["diff"], &["snapshot", "run"]] {
        let args = [args, &["mnt/.stitchfs/snap/c"]].concat();
        let refused = as_user(&mounted, &args);
        let said = refused.err();
        assert!(said.contains("ermission denied"), "{args:?}: {said}");
        assert!(!said.contains("os error"), "{said}");
    }
    mounted.umount();
}

#[test]
fn a_name_that_is_taken_is_told_with_its_directory() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    fs::create_dir(mounted.path("e")).unwrap();
    place.run(&["snapshot", "create", "mnt/d", "mon"]).code(0);
    let taken = place.run(&["snapshot", "create", "mnt/e", "mon"]);
    taken.code(1).says("mon: a snapshot of /d in ");
    taken.says("names are unique in a store");
    mounted.umount();
}

#[test]
fn views_without_clones_and_snapshots_are_named() {
    let Some(mounted) = mounted(&["-o", "history=10m"]) else {
        return;
    };
    let place = &mounted.place;
    let past = moment(&mounted);
    let past = place.run(&["clone", &format!("{past}/d"), "mnt/x"]);
    past.code(1).says("is in the history");
    place.run(&["txn", "begin", "work", "mnt"]).code(0);
    let inside = "mnt/.stitchfs/txn/work/root/d";
    let reason = "is in a transaction";
    place.run(&["clone", inside, "mnt/x"]).code(1).says(reason);
    let target = "mnt/.stitchfs/txn/work/root/x";
    place.run(&["clone", "mnt/d", target]).code(1).says(reason);
    let snapshot = place.run(&["snapshot", "create", inside, "mon"]);
    snapshot.code(1).says(reason);
    let policy = ["snapshot", "create", "--every", "1d", inside];
    place.run(&policy).code(1).says(reason);
    assert!(!mounted.path("x").exists());
    assert!(!mounted.path(".stitchfs/txn/work/root/x").exists());
    place.run(&["txn", "abort", "work", "mnt"]).code(0);
    mounted.umount();
}

#[test]
fn what_is_found_in_the_control_directory_is_ended_by_its_command() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    place.run(&["snapshot", "create", "mnt/d", "mon"]).code(0);
    place.run(&["txn", "begin", "work", "mnt"]).code(0);
    for (path, hint) in [
        ("mnt/.stitchfs/snap/mon", "`stitchfs snapshot delete "),
        ("mnt/d/.stitchfs/snap/mon", "`stitchfs snapshot delete "),
        ("mnt/.stitchfs/txn/work", "`stitchfs txn abort work "),
        ("mnt/.stitchfs/snap", "is made up by the daemon"),
    ] {
        for command in ["destroy", "rmtree"] {
            place.run(&[command, path]).code(1).says(hint);
        }
    }
    // The first one goes only if all can go.
    fs::create_dir(mounted.path("e")).unwrap();
    let both = ["rmtree", "mnt/e", "mnt/.stitchfs/snap/mon"];
    place.run(&both).code(1).says("snapshot delete");
    assert!(mounted.path("e").exists());
    place.run(&["txn", "abort", "work", "mnt"]).code(0);
    mounted.umount();
}

#[test]
fn a_rebase_that_is_refused_was_no_commit() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    place.run(&["txn", "begin", "work", "mnt"]).code(0);
    fs::write(mounted.path(".stitchfs/txn/work/root/d/f"), b"ours").unwrap();
    fs::write(mounted.path("d/f"), b"theirs").unwrap();
    let refused = place.run(&["txn", "rebase", "work", "mnt"]);
    refused.code(75).says("nothing was rebased");
    assert!(!refused.err().contains("committed"), "{}", refused.err());
    let missing = place.run(&["txn", "resolve", "--ours", "work", "d/x", "mnt"]);
    let mnt = place.path("mnt").canonicalize().unwrap();
    let hint = format!("`stitchfs txn conflicts work {}`", mnt.display());
    missing.code(1).says(&hint);
    place.run(&["txn", "abort", "work", "mnt"]).code(0);
    mounted.umount();
}

/// Each line that a serializable run says begins with the name of the program, or is a conflict.
#[test]
fn a_run_that_read_what_was_changed_is_to_be_run_again() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    let script = "cat mnt/d/f > read; touch ready; while [ ! -e go ]; do sleep 0.05; done; \
        echo x > mnt/d/new";
    let run = "\"$0\" txn run --isolation ser mnt -- sh -c \"$1\" & \
        while [ ! -e ready ]; do sleep 0.05; done; echo theirs > mnt/d/f; touch go; wait $!";
    let ended = place.run_as(Path::new("sh"), &["-c", run, STITCHFS, script]);
    ended.code(75).says("run it again");
    for line in ended.err().lines() {
        let is_ours = line.starts_with("stitchfs: ") || line.starts_with("  ");
        assert!(is_ours, "{line}");
    }
    assert!(!ended.err().contains("copy from it"), "{}", ended.err());
    mounted.umount();
}

#[test]
fn a_socket_of_keys_that_has_no_directory_is_told_as_such() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    let own = place.path("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(USER), Some(USER)).unwrap();
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let command = [
        "env",
        "XDG_RUNTIME_DIR=/dev/null/x",
        STITCHFS,
        "mount",
        "-o",
        "kv",
    ];
    let args = [
        &user[..],
        &command,
        &["--create", "64M", "own/a", "own/mnt"],
    ]
    .concat();
    let ended = place.run_as(Path::new("setpriv"), &args);
    ended
        .code(1)
        .says("kv: no directory for the socket of its keys");
    ended.says("/dev/null/x/stitchfs");
    mounted.umount();
}

#[test]
fn no_message_has_the_number_of_an_error() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let missing = |mounted: &Mounted, args: &[&str]| {
        let ended = mounted.place.run(args);
        ended.code(1).says("No such file or directory");
        assert!(!ended.err().contains("os error"), "{}", ended.err());
    };
    missing(&mounted, &["diff", "mnt/x"]);
    missing(&mounted, &["clone", "mnt/x", "mnt/y"]);
    missing(&mounted, &["snapshot", "create", "mnt/x", "mon"]);
    mounted.umount();
}
