//! Mounts without extended attributes (`-o noxattr`), and what is still told and done there.

use std::fs;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::mounted::{Mounted, wait_until};

/// `security.capability`: a port below 1024 may be bound to.
const MAY_BIND: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CAPABILITY: &str = "security.capability";

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 100];
    let len = rustix::fs::getxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

#[track_caller]
fn expect_none(path: &Path) {
    assert_eq!(set(path, "user.color", b"red"), Err(Errno::OPNOTSUPP));
    assert_eq!(get(path, "user.color"), Err(Errno::OPNOTSUPP));
    let listed = rustix::fs::listxattr(path, &mut [0; 100][..]);
    assert_eq!(listed, Err(Errno::OPNOTSUPP));
    let removed = rustix::fs::removexattr(path, "user.color");
    assert_eq!(removed, Err(Errno::OPNOTSUPP));
}

fn has_xattrs(mounted: &Mounted) -> bool {
    let text = mounted.place.run(&["info", "mnt"]).code(0).out();
    let info = mounted.place.run(&["info", "--json", "mnt"]).code(0).json();
    let said = info["xattr"].as_bool().expect("it is said");
    let line = text.lines().find(|line| line.starts_with("xattr "));
    let line = line.expect("a line of its own");
    assert!(line.ends_with(&said.to_string()), "{text}");
    said
}

#[test]
fn attributes_are_back_with_the_next_mount_but_for_capabilities_of_what_was_changed() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    assert!(has_xattrs(&mounted));
    for name in ["kept", "changed"] {
        let path = mounted.path(name);
        fs::write(&path, b"program").unwrap();
        set(&path, "user.color", b"red").unwrap();
        set(&path, CAPABILITY, &MAY_BIND).unwrap();
    }
    mounted.umount();
    mounted.mount(&["-o", "noxattr"]);
    assert!(!has_xattrs(&mounted));
    expect_none(&mounted.path("kept"));
    expect_none(&mounted.path(""));
    assert_eq!(
        get(&mounted.path("kept"), CAPABILITY),
        Err(Errno::OPNOTSUPP)
    );
    fs::write(mounted.path("changed"), b"another").unwrap();
    mounted.umount();
    mounted.mount(&["-o", "noxattr,xattr"]);
    assert!(has_xattrs(&mounted));
    let of = |name: &str, attribute| get(&mounted.path(name), attribute);
    assert_eq!(of("kept", "user.color").unwrap(), b"red");
    assert_eq!(of("kept", CAPABILITY).unwrap(), MAY_BIND);
    assert_eq!(of("changed", "user.color").unwrap(), b"red");
    assert_eq!(of("changed", CAPABILITY), Err(Errno::NODATA));
    mounted.umount();
}

#[test]
fn whatever_asks_the_daemon_works_without_attributes() {
    let Some(mut mounted) = Mounted::new(&["-o", "noxattr"]) else {
        return;
    };
    // From here on the kernel does not even ask.
    expect_none(&mounted.path(""));
    let place = &mounted.place;
    let stats = place.run(&["stats", "--json", "mnt"]).code(0).json();
    assert!(stats["counters"]["fuse.requests.ioctl"].as_u64() > Some(0));
    // An ioctl carries twice as much: there is room for longer numbers and paths.
    let len_bytes = stats.to_string().len();
    assert!(len_bytes < 8 << 10, "{len_bytes} bytes");
    let text = place.run(&["stats", "a"]).code(0).out();
    assert!(text.contains("fuse.requests.ioctl "), "{text}");
    fs::create_dir_all(mounted.path("tree/inner")).unwrap();
    fs::write(mounted.path("tree/inner/file"), b"x").unwrap();
    let removed = place.run(&["rmtree", "--wait", "--json", "mnt/tree"]);
    assert_eq!(removed.code(0).json()["entries"], 2);
    assert!(!mounted.path("tree").exists());
    place.run(&["trim", "mnt"]).code(0);
    place.run(&["defrag", "mnt"]).code(0);
    place.run(&["grow", "mnt", "80M"]).code(0);
    place.run(&["shrink", "mnt", "64M"]).code(0);
    let listed = place.run(&["instance", "list", "mnt"]).code(0).out();
    assert_eq!(listed, "main\n");
    place.run(&["upgrade", "mnt"]).code(1).says("restart");
    mounted.umount();
    let helper = mounted.place.named("mount.stitchfs");
    let args = ["a", "mnt", "-o", "rw,noxattr"];
    mounted.place.run_as(&helper, &args).code(0);
    assert!(!has_xattrs(&mounted));
    mounted.place.run(&["umount", "mnt"]).code(0);
    // With the store closed, and as the others do it.
    mounted.mount(&[]);
    mounted.umount();
}

#[test]
fn the_next_daemon_of_a_mount_serves_it_in_the_same_way() {
    let Some(mut mounted) = Mounted::new(&["-o", "noxattr,restart"]) else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    expect_none(&path);
    mounted.signal(Signal::KILL);
    // Waits for the next one, which the kernel does ask to set some.
    expect_none(&path);
    assert!(!has_xattrs(&mounted));
    let stats = mounted.place.run(&["stats", "--json", "mnt"]);
    assert_eq!(stats.code(0).json()["restart"]["restarts"], 1);
    mounted.place.run(&["upgrade", "mnt"]).code(0);
    expect_none(&path);
    assert!(!has_xattrs(&mounted));
    mounted.place.run(&["umount", "mnt"]).code(0);
    let is_free = || mounted.place.run(&["fsck", "-n", "a"]).err().is_empty();
    assert!(wait_until(is_free), "the store is closed");
    mounted.mount(&[]);
    assert_eq!(get(&mounted.path("file"), "user.color"), Err(Errno::NODATA));
    mounted.umount();
}
