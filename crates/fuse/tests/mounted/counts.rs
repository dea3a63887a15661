//! The requests of common operations: as few as possible.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, chown};

use rustix::fs::{AtFlags, CWD};
use stitch_fuse::{AdapterOptions, SessionConfig};

use crate::fixture::{Mounted, on_both};
use crate::memfs::MemOptions;

on_both! {
    what_is_known_is_not_asked
    a_new_file_costs_a_lookup_and_its_making
    overwriting_costs_a_write
    listing_brings_the_attributes
    unlinking_costs_one_request_that_is_waited_for
}

/// stat(2) as C programs call it: without the birth time, which std asks for.
fn stat(path: &std::path::Path) {
    rustix::fs::statat(CWD, path, AtFlags::empty()).unwrap();
}

/// Sends the first requests, which teach the kernel what it need not send.
fn warm(mounted: &Mounted) {
    fs::write(mounted.path("warm"), b"x").unwrap();
    fs::read(mounted.path("warm")).unwrap();
    fs::read_dir(mounted.path("")).unwrap().count();
    fs::remove_file(mounted.path("warm")).unwrap();
}

fn what_is_known_is_not_asked(mounted: &Mounted) {
    warm(mounted);
    let path = mounted.path("file");
    fs::write(&path, vec![1; 200]).unwrap();
    fs::read(&path).unwrap();
    stat(&path);
    let counts = mounted.requests_of(|| stat(&path));
    assert_eq!(counts.to_string(), "", "stat of a known file");
    assert!(!mounted.path("missing").exists());
    let counts = mounted.requests_of(|| assert!(!mounted.path("missing").exists()));
    assert_eq!(counts.to_string(), "", "stat of a name known missing");
    let counts = mounted.requests_of(|| {
        let mut text = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), 200);
    });
    assert_eq!(
        counts.to_string(),
        "",
        "open, read and close of a cached file"
    );
}

fn a_new_file_costs_a_lookup_and_its_making(mounted: &Mounted) {
    warm(mounted);
    fs::write(mounted.path("before"), b"x").unwrap();
    let counts = mounted.requests_of(|| drop(File::create(mounted.path("empty")).unwrap()));
    // The GETATTR is the parent's, by default_permissions after a change in it.
    assert_eq!(
        counts.to_string(),
        "LOOKUP 1, GETATTR 1, MKNOD 1",
        "create and close"
    );
    let counts = mounted.requests_of(|| fs::write(mounted.path("small"), [7; 200]).unwrap());
    let expected = "LOOKUP 1, GETATTR 1, MKNOD 1, WRITE 1, GETXATTR 1";
    assert_eq!(
        counts.to_string(),
        expected,
        "create, write 200 bytes and close"
    );
}

#[test]
fn without_extended_attributes_a_new_file_costs_one_request_less() {
    let options = MemOptions {
        no_xattrs: true,
        ..MemOptions::default()
    };
    let Some(mounted) = Mounted::new(options, &SessionConfig::default()) else {
        return;
    };
    warm(&mounted);
    fs::write(mounted.path("before"), b"x").unwrap();
    let counts = mounted.requests_of(|| fs::write(mounted.path("small"), [7; 200]).unwrap());
    assert_eq!(counts.to_string(), "LOOKUP 1, GETATTR 1, MKNOD 1, WRITE 1");
}

/// With `noxattr` the kernel asks for no capabilities before the first write or change of owner of
/// any file but the first.
#[test]
fn a_mount_without_extended_attributes_is_not_asked_for_capabilities() {
    for (kernel_checks, rights) in [(true, "GETATTR 1, "), (false, "")] {
        let served = AdapterOptions {
            kernel_checks,
            xattrs: false,
            ..AdapterOptions::default()
        };
        let Some(mounted) = Mounted::served(served, SessionConfig::default()) else {
            return;
        };
        warm(&mounted);
        fs::write(mounted.path("before"), b"x").unwrap();
        let path = mounted.path("small");
        let counts = mounted.requests_of(|| fs::write(&path, [7; 200]).unwrap());
        let expected = format!("LOOKUP 1, {rights}MKNOD 1, WRITE 1");
        assert_eq!(counts.to_string(), expected);
        let counts = mounted.requests_of(|| chown(&path, Some(7), Some(7)).unwrap());
        assert_eq!(counts.to_string(), format!("{rights}SETATTR 1"));
        // This drops the kernel's cached reply in other mounts.
        let counts = mounted.requests_of(|| fs::write(&path, [8; 200]).unwrap());
        assert_eq!(counts.to_string(), "SETATTR 1, WRITE 1");
    }
}

#[test]
fn served_opens_cost_more() {
    let options = MemOptions {
        serve_open: true,
        ..MemOptions::default()
    };
    let Some(mounted) = Mounted::new(options, &SessionConfig::default()) else {
        return;
    };
    warm(&mounted);
    fs::write(mounted.path("before"), b"x").unwrap();
    let counts = mounted.requests_of(|| drop(File::create(mounted.path("empty")).unwrap()));
    assert_eq!(
        counts.to_string(),
        "LOOKUP 1, GETATTR 1, RELEASE 1, CREATE 1"
    );
}

fn overwriting_costs_a_write(mounted: &Mounted) {
    warm(mounted);
    let path = mounted.path("file");
    fs::write(&path, vec![1; 8192]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[2; 100], 5).unwrap();
    let counts = mounted.requests_of(|| file.write_all_at(&[3; 100], 4000).unwrap());
    assert_eq!(counts.to_string(), "WRITE 1");
}

fn listing_brings_the_attributes(mounted: &Mounted) {
    mounted.populate("d", 1000);
    let list = || {
        let mut seen = 0;
        for entry in fs::read_dir(mounted.path("d")).unwrap() {
            stat(&entry.unwrap().path());
            seen += 1;
        }
        assert_eq!(seen, 1000);
    };
    let counts = mounted.requests_of(list);
    // The GETATTR is of the root, whose attributes were not read yet.
    let asked = counts.get(stitch_fuse::wire::opcode::Opcode::GetAttr);
    assert_eq!(asked, 1, "{counts}");
    assert!(counts.total() < 20, "{counts}");
    // READDIRPLUS makes the access time unknown, which fdopendir(3) then asks for.
    let counts = mounted.requests_of(list);
    assert_eq!(counts.to_string(), "GETATTR 1", "listed again");
    let counts = mounted.requests_of(list);
    assert_eq!(counts.to_string(), "", "listed once more");
}

fn unlinking_costs_one_request_that_is_waited_for(mounted: &Mounted) {
    warm(mounted);
    fs::write(mounted.path("a"), b"x").unwrap();
    fs::write(mounted.path("b"), b"x").unwrap();
    fs::remove_file(mounted.path("a")).unwrap();
    let counts = mounted.requests_of(|| fs::remove_file(mounted.path("b")).unwrap());
    assert_eq!(counts.to_string(), "GETATTR 1, UNLINK 1");
}

#[test]
fn write_back_keeps_small_writes_until_they_are_synced() {
    let config = SessionConfig {
        writeback_cache: true,
        ..SessionConfig::default()
    };
    let Some(mounted) = Mounted::new(MemOptions::default(), &config) else {
        return;
    };
    warm(&mounted);
    fs::write(mounted.path("file"), b"x").unwrap();
    let mut file = File::create(mounted.path("file")).unwrap();
    let counts = mounted.requests_of(|| {
        for _ in 0..100 {
            file.write_all(&[1; 100]).unwrap();
        }
    });
    // None, unless another process syncs the machine meanwhile.
    let writes = counts.get(stitch_fuse::wire::opcode::Opcode::Write);
    assert!(writes < 10, "{counts}");
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), vec![1; 10_000]);
}
