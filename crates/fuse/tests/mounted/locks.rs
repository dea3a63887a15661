//! Locks: kept by the kernel, or by the handler.

use std::fs::File;
use std::process::{Command, Stdio};

use stitch_fuse::SessionConfig;
use stitch_fuse::wire::opcode::Opcode;

use crate::fixture::{Mounted, wait_until};
use crate::memfs::MemOptions;

fn remote() -> SessionConfig {
    SessionConfig {
        remote_posix_locks: true,
        remote_flock: true,
        ..SessionConfig::default()
    }
}

/// A process that waits for the lock of a file.
fn waiting_process(path: &std::path::Path) -> std::process::Child {
    Command::new("flock")
        .arg(path)
        .arg("true")
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn the_kernel_keeps_locks_without_a_request() {
    let Some(mounted) = Mounted::plain() else {
        return;
    };
    let path = mounted.path("file");
    let first = File::create(&path).unwrap();
    let second = File::open(&path).unwrap();
    let counts = mounted.requests_of(|| {
        first.lock().unwrap();
        assert!(second.try_lock().is_err());
        first.unlock().unwrap();
        second.try_lock().unwrap();
        let posix = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::fcntl_lock(&first, posix).unwrap();
    });
    // A command that another test starts has the descriptors until it closes them: that asks.
    let counts = counts.without(Opcode::Flush);
    assert_eq!(counts.to_string(), "");
}

#[test]
fn the_kernel_drops_posix_locks_with_their_process() {
    let Some(mounted) = Mounted::plain() else {
        return;
    };
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    // Takes an fcntl lock on the whole file, says so, and waits for the end of its input.
    let script = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f,fcntl.LOCK_EX); \
                  print('locked',flush=True); sys.stdin.read()";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 7];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    let lock =
        || rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert!(lock().is_err());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    lock().unwrap();
}

#[test]
fn a_lock_that_is_waited_for_is_granted_later() {
    let Some(mounted) = Mounted::new(MemOptions::default(), &remote()) else {
        return;
    };
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    file.lock().unwrap();
    let mut child = waiting_process(&path);
    wait_until("the lock is asked for", || {
        mounted.session.counts().get(Opcode::SetLkW) == 2
    });
    // No worker is blocked by it.
    std::fs::write(mounted.path("other"), b"x").unwrap();
    std::fs::write(mounted.path("another"), b"x").unwrap();
    assert!(child.try_wait().unwrap().is_none());
    file.unlock().unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_process_that_waits_for_a_lock_can_be_killed() {
    let Some(mounted) = Mounted::new(MemOptions::default(), &remote()) else {
        return;
    };
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    file.lock().unwrap();
    let mut child = waiting_process(&path);
    wait_until("the lock is asked for", || {
        mounted.session.counts().get(Opcode::SetLkW) == 2
    });
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    wait_until("an interrupt", || {
        mounted.session.counts().get(Opcode::Interrupt) > 0
    });
    file.unlock().unwrap();
    file.lock().unwrap();
}
