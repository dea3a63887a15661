//! Tests of a file system that changes behind the kernel's back.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::fixture::Mounted;

#[test]
fn changes_behind_the_kernel_are_seen_after_a_notice() {
    let Some(mounted) = Mounted::plain() else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, b"old").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    let ino = stitch_base::Ino(fs::metadata(&path).unwrap().ino());
    mounted.memory().overwrite(ino, b"brand new");
    assert_eq!(
        fs::read(&path).unwrap(),
        b"old",
        "from the cache, as it should"
    );
    let notifier = mounted.session.notifier();
    notifier.invalidate_data(ino, 0, 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"brand new");

    assert!(!mounted.path("moved").exists());
    mounted.memory().rename_in_root(b"file", b"moved");
    assert!(
        path.exists() && !mounted.path("moved").exists(),
        "from the cache, as it should"
    );
    notifier
        .invalidate_entry(stitch_base::Ino::ROOT, b"moved")
        .unwrap();
    notifier
        .invalidate_entry(stitch_base::Ino::ROOT, b"file")
        .unwrap();
    assert!(!path.exists() && mounted.path("moved").exists());

    mounted.memory().rename_in_root(b"moved", b"file");
    if notifier.increment_epoch().unwrap() {
        assert!(path.exists() && !mounted.path("moved").exists());
    }
}
