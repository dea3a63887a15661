//! `FITRIM` while other requests come, and its end by a signal.

use std::fs;
use std::process::Command;

use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU32, Ordering};
use stitch_fuse::{Errno, SessionConfig, Transport, TransportChoice, Trim};

use crate::fixture::{Mounted, can_mount, wait_until};
use crate::switch::Turned;

/// A trim that runs until it is interrupted, and the number of trims started.
fn endless() -> (Trim, Arc<AtomicU32>) {
    let begun = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&begun);
    let trim: Trim = Arc::new(move |_, is_interrupted| {
        count.fetch_add(1, Ordering::Relaxed);
        while !is_interrupted() {
            SystemClock::default().sleep(std::time::Duration::from_millis(1));
        }
        Err(Errno::EINTR)
    });
    (trim, begun)
}

fn expect_others_served(transport: Transport) {
    let (trim, begun) = endless();
    let config = SessionConfig {
        transport: TransportChoice::Only(transport),
        ..SessionConfig::default()
    };
    let Some(mounted) = Mounted::trimmed(trim, &config) else {
        return;
    };
    let mnt = mounted.path("");
    let mut fstrim = Command::new("fstrim").arg(&mnt).spawn().unwrap();
    wait_until("the trim runs", || begun.load(Ordering::Relaxed) == 1);
    for number in 0..100 {
        fs::write(mounted.path(&format!("file-{number}")), b"x").unwrap();
    }
    let second = Command::new("fstrim").arg(&mnt).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("busy"), "one at a time: {second:?}");
    assert_eq!(fstrim.try_wait().unwrap(), None, "it runs still");
    let pid = rustix::process::Pid::from_child(&fstrim);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!fstrim.wait().unwrap().success());
    assert_eq!(begun.load(Ordering::Relaxed), 1);
}

#[test]
fn a_trim_holds_up_no_other_request_and_ends_at_a_signal() {
    expect_others_served(Transport::Dev);
}

#[test]
fn a_trim_by_a_ring_holds_up_no_other_request_and_ends_at_a_signal() {
    if !can_mount() {
        return;
    }
    if let Some(_on) = Turned::to(true) {
        expect_others_served(Transport::Uring);
    }
}
