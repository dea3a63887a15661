//! fstrim(8) on a mount: `FITRIM`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::mounted::{Mounted, can_mount};
use crate::place::Place;

fn fstrim(args: &[&str], mount_point: &Path) -> Command {
    let mut command = Command::new("fstrim");
    command.arg("-v").args(args).arg(mount_point);
    command
}

/// Returns the number of bytes that fstrim says it trimmed.
#[track_caller]
fn trimmed(args: &[&str], mount_point: &Path) -> u64 {
    let ended = fstrim(args, mount_point).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8(ended.stdout).unwrap();
    let bytes = said
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(" bytes"));
    bytes
        .and_then(|(bytes, _)| bytes.parse().ok())
        .expect(&said)
}

#[track_caller]
fn expect_refused(ended: &Output, reason: &str) {
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && said.contains(reason),
        "{ended:?}"
    );
}

#[test]
fn fstrim_gives_free_space_back_to_the_host() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    let (mnt, image) = (mounted.place.path("mnt"), mounted.place.path("a"));
    let kept = vec![7; 4 << 20];
    fs::write(mnt.join("kept"), &kept).unwrap();
    let allocated = || fs::metadata(&image).unwrap().blocks() * 512;
    let before = allocated();
    let bytes = trimmed(&[], &mnt);
    let after = allocated();
    assert!(bytes > 30 << 20, "{bytes}");
    assert!(
        after + (30 << 20) < before,
        "{after} of {before} bytes are left"
    );
    assert!(fs::read(mnt.join("kept")).unwrap() == kept);
    mounted.umount();
}

#[test]
fn fstrim_takes_a_range_and_the_least_length_of_an_extent() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    let mnt = mounted.place.path("mnt");
    let all = trimmed(&[], &mnt);
    let half = trimmed(&["--offset", "0", "--length", "32M"], &mnt);
    assert!(0 < half && half < all, "{half} of {all}");
    let rest = trimmed(&["--offset", "32M"], &mnt);
    assert_eq!(half + rest, all);
    assert_eq!(trimmed(&["--minimum", "1G"], &mnt), 0);
    mounted.umount();
}

#[test]
fn fstrim_is_for_root_and_for_mounts_that_can_be_written() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    let mnt = mounted.place.path("mnt");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(mounted.place.path("."), open).unwrap();
    let as_user = fstrim(&[], &mnt).uid(65534).gid(65534).output().unwrap();
    expect_refused(&as_user, "not permitted");
    mounted.umount();
    mounted.mount(&["-o", "ro"]);
    expect_refused(&fstrim(&[], &mnt).output().unwrap(), "Read-only");
    mounted.umount();
}

#[test]
fn a_host_that_takes_no_discards_is_named_by_fstrim_and_trim() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let host = place.path("host");
    fs::create_dir(&host).unwrap();
    // The system's own file system in memory that can punch no holes.
    let mut mount = Command::new("mount");
    mount.args(["-t", "ramfs", "ramfs"]).arg(&host);
    assert!(mount.status().unwrap().success());
    place.run(&["mkfs", "--size", "16M", "host/a"]).code(0);
    place
        .run(&["trim", "host/a"])
        .code(1)
        .says("cannot discard");
    place.run(&["mount", "host/a", "mnt"]).code(0);
    let ended = fstrim(&[], &place.path("mnt")).output().unwrap();
    place.run(&["umount", "mnt"]).code(0);
    let mut umount = Command::new("umount");
    assert!(umount.arg(&host).status().unwrap().success());
    expect_refused(&ended, "not supported");
}
