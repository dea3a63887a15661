//! Access times: which reads update them, and when the kernel learns of it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use stitch_fs::{AtimePolicy, FsOptions};
use stitch_fuse::SessionConfig;

use crate::fixture::Mounted;

const LONG_AGO: i64 = 1_000_000_000;

fn set_long_ago(path: &Path) {
    let at = Timespec {
        tv_sec: LONG_AGO,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: at,
        last_modification: at,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
    assert_eq!(accessed(path), LONG_AGO);
}

fn accessed(path: &Path) -> i64 {
    fs::metadata(path).unwrap().atime()
}

fn copy(source: &Path, target: &Path) {
    let (source, target) = (
        fs::File::open(source).unwrap(),
        fs::File::create(target).unwrap(),
    );
    let copied = rustix::fs::copy_file_range(&source, None, &target, None, 100_000).unwrap();
    assert!(copied > 0);
}

#[test]
fn copying_moves_the_time_of_access_of_its_source() {
    let Some(mounted) = Mounted::store() else {
        return;
    };
    let (source, target) = (mounted.path("source"), mounted.path("target"));
    fs::write(&source, vec![7; 100_000]).unwrap();
    set_long_ago(&source);
    copy(&source, &target);
    let moved = accessed(&source);
    assert!(moved > LONG_AGO, "it was not later than the last change");
    // As with any read: not again, by relatime.
    copy(&source, &target);
    assert_eq!(accessed(&source), moved);
}

#[test]
fn copying_moves_no_time_of_access_with_noatime() {
    let options = FsOptions {
        atime: AtimePolicy::Noatime,
        ..FsOptions::default()
    };
    let Some(mounted) = Mounted::store_with(options, &SessionConfig::default()) else {
        return;
    };
    let source = mounted.path("source");
    fs::write(&source, vec![7; 100_000]).unwrap();
    set_long_ago(&source);
    copy(&source, &mounted.path("target"));
    assert_eq!(accessed(&source), LONG_AGO);
}

#[test]
fn reads_that_the_kernel_serves_from_its_pages_move_no_time_of_access() {
    let options = FsOptions {
        atime: AtimePolicy::Strictatime,
        ..FsOptions::default()
    };
    let Some(mounted) = Mounted::store_with(options, &SessionConfig::default()) else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, vec![7; 98_304]).unwrap();
    set_long_ago(&path);
    // What was written is in the kernel's pages.
    fs::read(&path).unwrap();
    assert_eq!(accessed(&path), LONG_AGO);
}
