//! Idle processors are kept awake by requests, and only by them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::transport::idle_poll::{IdlePollChoice, LATENCY_PATH};
use stitch_fuse::{SessionConfig, Transport, TransportChoice};

use crate::fixture::Mounted;
use crate::memfs::MemOptions;
use crate::switch::Turned;

fn by(transport: Transport) {
    if let Err(error) = fs::File::options().write(true).open(LATENCY_PATH) {
        eprintln!("SKIP: {LATENCY_PATH}: {error}");
        return;
    }
    let config = SessionConfig {
        transport: TransportChoice::Only(transport),
        idle_poll: IdlePollChoice::Always,
        ..SessionConfig::default()
    };
    let Some(mounted) = Mounted::new(MemOptions::default(), &config) else {
        return;
    };
    let polling = mounted.session.idle_polling();
    let clock = SystemClock::default();
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    let mut mode = 0o600;
    while polling.polled() == Duration::ZERO && clock.monotonic() < Duration::from_secs(30) {
        for _ in 0..200 {
            mode ^= 0o060;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        clock.sleep(Duration::from_millis(20));
    }
    assert!(polling.polled() > Duration::ZERO);
    clock.sleep(Duration::from_millis(100));
    let polled = polling.polled();
    clock.sleep(Duration::from_millis(300));
    assert_eq!(polling.polled(), polled, "there are no requests");
}

#[test]
fn requests_by_the_device_keep_processors_awake() {
    by(Transport::Dev);
}

#[test]
fn requests_by_the_ring_keep_processors_awake() {
    let Some(_on) = Turned::to(true) else {
        return;
    };
    by(Transport::Uring);
}
