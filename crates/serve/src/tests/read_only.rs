//! Keys that are read-only for a time.

use super::{Desk, run};
use crate::ServerOptions;
use crate::service::{Service, SyncPolicy};
use std::time::Duration;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

const REFUSED: &str = "!READONLY the store is mounted for reading only";

/// A desk, and the switch that makes its keys read-only.
fn desk() -> (Desk, Arc<AtomicBool>) {
    let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(1000));
    let switch = Arc::new(AtomicBool::new(false));
    let read_only = Arc::clone(&switch);
    let options = ServerOptions {
        sync: SyncPolicy::Always,
        clock: Arc::clone(&clock) as _,
        read_only: Some(Arc::new(move || read_only.load(Ordering::Relaxed))),
        ..ServerOptions::default()
    };
    let shared: Arc<dyn Engine> = Arc::clone(&engine) as _;
    let mut service = Service::open(shared, &options).unwrap();
    let client = service.connect();
    let desk = Desk {
        engine,
        clock,
        service,
        client,
    };
    (desk, switch)
}

#[test]
fn commands_that_change_keys_are_refused() {
    let (mut desk, switch) = desk();
    desk.check(&[("SET a 1", "OK")]);
    switch.store(true, Ordering::Relaxed);
    desk.check(&[
        ("SET a 2", REFUSED),
        ("DEL a", REFUSED),
        ("INCR a", REFUSED),
        ("GET a", "1"),
        ("MULTI", "OK"),
        ("GET a", "QUEUED"),
        ("EXEC", "[1]"),
        ("MULTI", "OK"),
        ("SET a 2", REFUSED),
        (
            "EXEC",
            "!EXECABORT Transaction discarded because of previous errors.",
        ),
        ("GET a", "1"),
    ]);
    switch.store(false, Ordering::Relaxed);
    desk.check(&[("SET a 2", "OK"), ("GET a", "2")]);
}

#[test]
fn commands_that_were_queued_before_are_refused_at_exec() {
    let (mut desk, switch) = desk();
    desk.check(&[("MULTI", "OK"), ("SET a 1", "QUEUED")]);
    switch.store(true, Ordering::Relaxed);
    let discarded = "!EXECABORT Transaction discarded because of previous errors.";
    desk.check(&[("EXEC", discarded)]);
    switch.store(false, Ordering::Relaxed);
    desk.check(&[("GET a", "nil")]);
}

#[test]
fn keys_that_expire_stay_in_the_store_and_are_not_seen() {
    let (mut desk, switch) = desk();
    desk.check(&[("SET a 1 PX 10", "OK")]);
    switch.store(true, Ordering::Relaxed);
    desk.advance(10);
    desk.service.begin_round();
    assert_eq!(run(&mut desk.service, &mut desk.client, "GET a"), "nil");
    desk.service.reclaim();
    assert_eq!(desk.service.commit(), Ok(false), "nothing is written");
    switch.store(false, Ordering::Relaxed);
    desk.service.begin_round();
    desk.service.reclaim();
    assert_eq!(desk.service.commit(), Ok(true), "it is removed now");
}
