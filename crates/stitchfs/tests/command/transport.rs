//! How requests come: what the command chooses, and what it says about it.

use crate::mounted::{Mounted, can_mount};
use crate::place::Place;
use crate::switch::Turned;

const SWITCH_ON: &str = "echo 1 > /sys/module/fuse/parameters/enable_uring";

fn transport_of(mounted: &Mounted) -> String {
    let info = mounted.place.run(&["info", "--json", "mnt"]);
    let transport = info.code(0).json()["transport"].as_str().map(str::to_owned);
    let stats = mounted.place.run(&["stats", "mnt"]);
    let transport = transport.expect("a mount has one");
    let line = stats
        .code(0)
        .out()
        .lines()
        .find(|l| l.starts_with("transport "))
        .map(str::to_owned);
    assert!(line.expect("it is told").ends_with(&transport));
    transport
}

#[test]
fn where_uring_is_off_info_says_what_switches_it_on() {
    if !can_mount() {
        return;
    }
    let Some(_off) = Turned::to(false) else {
        return;
    };
    let place = Place::with_store("a");
    let ended = place.run(&["mount", "a", "mnt"]);
    assert_eq!(ended.code(0).err(), "", "few who mount can switch it on");
    let info = place.run(&["info", "--json", "mnt"]).code(0).json();
    assert_eq!(info["transport"], "dev");
    let reason = info["transport_reason"].as_str().expect("a reason");
    assert!(reason.contains(SWITCH_ON), "{reason}");
    place.run(&["umount", "mnt"]).code(0);

    let quiet = place.run(&["mount", "-o", "transport=dev", "a", "mnt"]);
    assert_eq!(quiet.code(0).err(), "", "who chose the device knows");
    place.run(&["umount", "mnt"]).code(0);

    let wanted = ["mount", "-o", "transport=uring", "a", "mnt"];
    let refused = place.run(&wanted);
    refused
        .code(1)
        .says("io_uring cannot be had")
        .says("transport=uring")
        .says(SWITCH_ON);
    let helper = place.named("mount.stitchfs");
    let refused = place.run_as(&helper, &["a", "mnt", "-o", "transport=uring"]);
    refused.code(32).says(SWITCH_ON);
    place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn where_uring_is_on_it_is_used_unless_the_device_is_wanted() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Turned::to(true) else {
        return;
    };
    for (option, transport) in [
        ("rw", "uring"),
        ("transport=uring", "uring"),
        ("transport=dev", "dev"),
    ] {
        let mounted = Mounted::new(&["-o", option]).expect("it can mount");
        assert_eq!(transport_of(&mounted), transport, "{option}");
        std::fs::write(mounted.path("file"), b"x").expect("it is written");
        mounted.umount();
    }
}

#[test]
fn root_switches_uring_on_when_asked() {
    if !can_mount() {
        return;
    }
    // Put back when this is dropped.
    let Some(_off) = Turned::to(false) else {
        return;
    };
    let mounted = Mounted::new(&["-o", "enable-uring"]).expect("it can mount");
    assert_eq!(transport_of(&mounted), "uring");
    mounted.umount();
}
