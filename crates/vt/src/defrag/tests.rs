use super::*;
use crate::testing::{MIB, Small};
use std::sync::Arc;
use stitch_base::clock::{Clock, ManualClock, Timestamp};
use stitch_kv::{Batch, Engine};

/// A store of which two thirds were deleted, in pieces that are longer than blocks.
fn full_of_holes() -> Small {
    let mut store = Small::new(64 * MIB);
    store.put(0, 8192, 4000);
    store.engine.quiesce().unwrap();
    for first in (0..8192u64).step_by(96) {
        let end = first + 64;
        let mut batch = Batch::new();
        batch.delete_range(store.tree, &first.to_be_bytes(), &end.to_be_bytes());
        store.commit(&batch);
        store.rows.retain(|key, _| !(first..end).contains(key));
    }
    store.engine.quiesce().unwrap();
    store
}

#[test]
fn holes_become_free_zones_and_nothing_else_changes() {
    let mut store = full_of_holes();
    store.check();
    let holes = hole_bytes(store.engine.volume().zones());
    assert!(holes > 4 * MIB, "{holes} bytes in holes");
    let mut seen = Vec::new();
    let done = store.engine.defrag(&mut |done, total| {
        seen.push((done, total));
        true
    });
    let done = done.unwrap();
    assert!(!done.is_stopped);
    assert!(
        done.moved_bytes > 0 && done.freed_bytes > holes / 2,
        "{done:?}"
    );
    assert!(done.holes_after_bytes < holes / 3, "{done:?}");
    assert!(seen.iter().all(|(done, total)| done <= total), "{seen:?}");
    store.check();
    store.reopen();
    store.check();
    let again = store.engine.defrag(&mut |_, _| true).unwrap();
    assert!(again.moved_bytes < done.moved_bytes / 4, "{again:?}");
    store.check();
}

#[test]
fn it_stops_when_told_to() {
    let store = full_of_holes();
    let mut steps = 0;
    let done = store.engine.defrag(&mut |_, _| {
        steps += 1;
        steps < 3
    });
    assert!(done.unwrap().is_stopped);
    assert!(!store.engine.volume().zones().is_closed());
    store.check();
}

#[test]
fn the_background_evacuates_a_zone_at_a_time_while_much_is_in_holes() {
    let store = full_of_holes();
    let engine = &store.engine.store;
    let total = store.engine.volume().zones().usage().total;
    let mut idle = IdleDefrag::default();
    assert!(hole_bytes(engine.volume.zones()) > total / HOLES_PART);
    for _ in 0..200 {
        let before = store.counter("vt.evacuated_bytes");
        idle.look(&engine.member).unwrap();
        let moved = store.counter("vt.evacuated_bytes") - before;
        assert!(moved <= 2 * store.engine.volume().zones().zone_bytes());
    }
    assert!(hole_bytes(engine.volume.zones()) <= total / HOLES_PART);
    store.check();
    let before = store.counter("vt.evacuated_bytes");
    idle.look(&engine.member).unwrap();
    assert_eq!(store.counter("vt.evacuated_bytes"), before, "it is enough");
}

/// A clock on which every look at it takes some time.
#[derive(Debug, Default)]
struct Busy(ManualClock);

impl Clock for Busy {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.advance(Duration::from_millis(10));
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
    }
}

#[test]
fn the_background_rests_three_times_as_long_as_it_works() {
    let clock = Arc::new(Busy::default());
    let mut store = full_of_holes();
    store.reopen_with(Arc::clone(&clock) as Arc<dyn Clock>);
    let engine = &store.engine.store;
    let mut idle = IdleDefrag::default();
    let moved = || store.counter("vt.evacuated_bytes");
    let (mut working, mut resting) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..2000 {
        let (before, begin) = (moved(), clock.0.monotonic());
        idle.look(&engine.member).unwrap();
        let took = clock.0.monotonic() - begin;
        if moved() > before {
            assert!(took <= 2 * MOST_AT_ONCE, "{took:?}");
            working += took;
        } else if !working.is_zero() {
            resting += took;
        }
        if hole_bytes(engine.volume.zones()) <= engine.volume.zones().usage().total / HOLES_PART {
            break;
        }
    }
    assert!(working > Duration::from_millis(100), "{working:?}");
    assert!(resting >= 2 * working, "{resting:?} after {working:?}");
    store.check();
}
