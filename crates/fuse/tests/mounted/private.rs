//! A mount that only root can enter: the kernel checks no modes, and asks less.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use rustix::fs::{Access, AtFlags, CWD};

use crate::fixture::{Mounted, run_as};

/// The first requests teach the kernel what it need not ask.
fn private() -> Option<Mounted> {
    let mounted = Mounted::private()?;
    fs::write(mounted.path("warm"), b"x").unwrap();
    fs::read(mounted.path("warm")).unwrap();
    fs::remove_file(mounted.path("warm")).unwrap();
    Some(mounted)
}

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_change_in_a_directory_asks_nothing_about_the_directory() {
    let Some(mounted) = private() else { return };
    let counts = mounted.requests_of(|| drop(File::create(mounted.path("empty")).unwrap()));
    assert_eq!(counts.to_string(), "LOOKUP 1, MKNOD 1", "create and close");
    let counts = mounted.requests_of(|| fs::write(mounted.path("small"), [7; 200]).unwrap());
    let expected = "LOOKUP 1, MKNOD 1, WRITE 1, GETXATTR 1";
    assert_eq!(counts.to_string(), expected, "create, write and close");
    let counts = mounted.requests_of(|| fs::remove_file(mounted.path("empty")).unwrap());
    assert_eq!(counts.to_string(), "UNLINK 1");
}

#[test]
fn other_users_do_not_walk_open_create_or_run() {
    let Some(mounted) = private() else { return };
    let (root, dir) = (mounted.path(""), mounted.path("dir"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), b"#!/bin/sh\nexit 0\n").unwrap();
    for path in [&root, &dir, &dir.join("file")] {
        set_mode(path, 0o777);
    }
    // With all modes open and everything cached.
    assert!(run_as(
        0,
        "cd \"$1\" && cat file && ./file && touch new",
        &dir
    ));
    for script in [
        "cd \"$1\"",
        "ls \"$1\"",
        "stat \"$1/file\"",
        "cat \"$1/file\"",
        "echo x >> \"$1/file\"",
        "touch \"$1/mine\"",
        "mkdir \"$1/mine\"",
        "rm \"$1/file\"",
        "\"$1/file\"",
    ] {
        assert!(!run_as(65534, script, &dir), "{script}");
    }
    assert!(!dir.join("mine").exists());
}

#[test]
fn root_may_all_but_run_files_without_an_execute_bit() {
    let Some(mounted) = private() else { return };
    let script = mounted.path("script");
    fs::write(&script, b"#!/bin/sh\nexit 0\n").unwrap();
    let may_run = || rustix::fs::accessat(CWD, &script, Access::EXEC_OK, AtFlags::EACCESS);
    let runs = || {
        Command::new(&script)
            .status()
            .is_ok_and(|status| status.success())
    };
    set_mode(&script, 0o644);
    assert_eq!(may_run(), Err(rustix::io::Errno::ACCESS));
    assert!(!runs(), "without a bit that says so");
    set_mode(&script, 0o010);
    assert_eq!(may_run(), Ok(()));
    assert!(runs());

    let closed = mounted.path("closed");
    fs::create_dir(&closed).unwrap();
    set_mode(&closed, 0);
    let inside = closed.join("file");
    fs::write(&inside, b"x").unwrap();
    set_mode(&inside, 0);
    fs::write(&inside, b"yy").unwrap();
    assert_eq!(fs::read(&inside).unwrap(), b"yy");
    assert!(run_as(0, "cd \"$1\" && rm file", &closed));
}

#[test]
fn owners_groups_and_lists_are_kept_all_the_same() {
    let Some(mounted) = private() else { return };
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    let script = "setfacl -m u:65534:rwx \"$1\" && setfacl -d -m u:65534:rw,g::r,o::- \"$1\" && \
                  umask 022 && touch \"$1/new\" && getfacl -n \"$1/new\" | grep -q user:65534:rw";
    assert!(run_as(0, script, &dir));
    let listed = fs::metadata(dir.join("new")).unwrap();
    assert_eq!(
        listed.mode() & 0o7777,
        0o660,
        "by the default list, not the umask"
    );

    let shared = mounted.path("shared");
    fs::create_dir(&shared).unwrap();
    assert!(run_as(
        0,
        "chgrp 7 \"$1\" && chmod 2775 \"$1\" && umask 027 && touch \"$1/f\"",
        &shared
    ));
    let file = fs::metadata(shared.join("f")).unwrap();
    assert_eq!((file.gid(), file.mode() & 0o7777), (7, 0o640));
    assert!(run_as(
        0,
        "chown 65534 \"$1/f\" && chmod 4755 \"$1/f\"",
        &shared
    ));
    assert_eq!(
        fs::metadata(shared.join("f")).unwrap().mode() & 0o7777,
        0o4755
    );
}
