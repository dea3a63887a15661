//! Large files that the kernel reads itself: what the command says where that cannot be.

use crate::mounted::{Mounted, can_mount};
use crate::place::Place;

const HAVE: &str = "large_files=external:64K,passthrough";

#[test]
fn what_is_missing_for_passthrough_is_named() {
    if !can_mount() {
        return;
    }
    let place = Place::with_store("a");
    let refused = place.run(&["mount", "-o", "passthrough", "a", "mnt"]);
    refused
        .code(1)
        .says("passthrough cannot be had")
        .says("large_files=external");
    let both = format!("{HAVE},restart");
    let refused = place.run(&["mount", "-o", &both, "a", "mnt"]);
    refused
        .code(1)
        .says("passthrough cannot be had")
        .says("restart");
    let helper = place.named("mount.stitchfs");
    let refused = place.run_as(&helper, &["a", "mnt", "-o", "passthrough"]);
    refused.code(32).says("passthrough cannot be had");
    place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn a_mount_with_passthrough_says_so() {
    if !can_mount() {
        return;
    }
    let place = Place::with_store("probe");
    let probe = place.run(&["mount", "-o", HAVE, "probe", "mnt"]);
    if probe.err().contains("CONFIG_FUSE_PASSTHROUGH") {
        eprintln!("left out: this kernel has no passthrough");
        return;
    }
    probe.code(0);
    place.run(&["umount", "mnt"]).code(0);
    for (options, expected) in [("large_files=external:64K", false), (HAVE, true)] {
        let mounted = Mounted::new(&["-o", options]).expect("it can mount");
        let info = mounted.place.run(&["info", "--json", "mnt"]);
        assert_eq!(info.code(0).json()["passthrough"], expected, "{options}");
        let path = mounted.path("large");
        std::fs::write(&path, vec![7; 200_000]).expect("it is written");
        assert_eq!(std::fs::read(&path).expect("it is read"), [7; 200_000]);
        let stats = mounted.place.run(&["stats", "--json", "mnt"]).json();
        let opens = stats["counters"]["fuse.requests.open"].as_u64();
        assert_eq!(opens, Some(if expected { 2 } else { 1 }), "{options}");
        mounted.umount();
    }
}
