//! Space that comes back by itself, by a clock that stands still.

use super::*;
use crate::cache::ReadCount;
use crate::testing::{MIB, Small};
use stitch_base::random::Rng;
use stitch_kv::{Batch, Engine, Snapshot};

/// What the threads do in a minute.
fn a_minute(store: &Small) {
    let engine = &store.engine.store;
    let mut writing = WriteOutDuty::new(engine);
    let mut compacting = CompactionDuty::new(engine);
    for _ in 0..120 {
        store.clock.advance(LOOK_EVERY);
        writing.look(engine);
        compacting.look(engine);
        assert!(!engine.gate.is_failed());
    }
}

fn filled() -> Small {
    let mut store = Small::new(64 * MIB);
    for first in (0..8192).step_by(512) {
        store.put(first, 512, 4000);
    }
    store.scatter(2000, 8192, 2000);
    store.check();
    assert!(store.live_bytes() > 30 * MIB);
    store
}

/// Within 5 % of empty, told by the online-map and by what users are told.
fn assert_empty(store: &Small) {
    let usage = store.engine.volume().zones().usage();
    assert!(usage.live <= usage.total / 20, "{usage:?}");
    let space = store.engine.space();
    assert!(space.free_bytes >= space.total_bytes / 20 * 19, "{space:?}");
}

#[test]
fn what_a_range_delete_hides_comes_back_within_a_minute_and_unread() {
    let mut store = filled();
    a_minute(&store);
    let before = store.counter("device.read_bytes");
    let mut batch = Batch::new();
    batch.delete_range(store.tree, &[], &[255; 9]);
    store.commit(&batch);
    store.rows.clear();
    a_minute(&store);
    assert_empty(&store);
    let read = store.counter("device.read_bytes") - before;
    assert!(read < 256 << 10, "{read} bytes were read to drop 30 MiB");
    store.check();
    let dropped = store.counter("vt.dropped_bytes");
    assert!(dropped > 29 * MIB, "{dropped}");
}

#[test]
fn what_was_deleted_row_by_row_comes_back_within_a_minute() {
    let mut store = filled();
    let mut keys: Vec<u64> = store.rows.keys().copied().collect();
    let mut rng = Rng::new(7);
    for i in (1..keys.len()).rev() {
        keys.swap(i, usize::try_from(rng.below(i as u64 + 1)).unwrap());
    }
    store.delete(keys.into_iter());
    a_minute(&store);
    assert_empty(&store);
    store.check();
}

#[test]
fn what_a_dropped_tree_held_comes_back_at_once() {
    let store = filled();
    store.engine.drop_tree(store.tree).unwrap();
    a_minute(&store);
    assert_empty(&store);
    store.check_live_bytes();
}

#[test]
fn zones_that_become_free_are_discarded() {
    let mut store = filled();
    a_minute(&store);
    let before = store.counter("device.discard_bytes");
    let mut batch = Batch::new();
    batch.delete_range(store.tree, &[], &[255; 9]);
    store.commit(&batch);
    store.rows.clear();
    a_minute(&store);
    let discarded = store.counter("device.discard_bytes") - before;
    assert!(discarded > 30 * MIB, "{discarded}");
    store.reopen();
    store.check();
}

#[test]
fn what_was_overwritten_comes_back_but_for_the_upper_levels() {
    for (keys, bytes) in [(3072, 4000), (12_288, 1000)] {
        let mut store = Small::new(64 * MIB);
        store.put(0, keys, bytes);
        a_minute(&store);
        let first = store.live_bytes();
        store.scatter(2 * keys, keys, bytes);
        assert!(store.live_bytes() > first / 2 * 3);
        a_minute(&store);
        let after = store.live_bytes();
        assert!(
            after < first / 20 * 27,
            "{first} bytes before, {after} after"
        );
        store.check();
    }
}

/// A store all of whose rows are overwritten, while a snapshot sees the old ones or not.
fn overwritten(is_seen: bool) -> (Small, Option<Snapshot>) {
    let mut store = Small::new(64 * MIB);
    store.put(0, 12_288, 1000);
    a_minute(&store);
    let snapshot = is_seen.then(|| store.engine.snapshot());
    store.put(0, 12_288, 1000);
    store.put(0, 12_288, 1000);
    a_minute(&store);
    store.check();
    (store, snapshot)
}

#[test]
fn what_only_a_dropped_snapshot_saw_comes_back() {
    let unseen = overwritten(false).0.live_bytes();
    for is_opened_again in [false, true] {
        let (mut store, snapshot) = overwritten(true);
        let held = store.live_bytes();
        assert!(held > unseen / 2 * 3, "{unseen} and what is seen: {held}");
        drop(snapshot);
        if is_opened_again {
            store.reopen();
        }
        a_minute(&store);
        let after = store.live_bytes();
        assert!(
            after < unseen / 20 * 21,
            "{held} bytes before, {after} after"
        );
        store.check();
        let before = store.counter("vt.compactions");
        a_minute(&store);
        assert_eq!(store.counter("vt.compactions"), before, "once is enough");
    }
}

#[test]
fn what_only_a_dropped_pin_saw_comes_back() {
    let unseen = overwritten(false).0.live_bytes();
    for is_opened_again in [false, true] {
        let mut store = Small::new(64 * MIB);
        store.put(0, 12_288, 1000);
        a_minute(&store);
        store.engine.create_pin("pin", b"").expect("it is made");
        store.put(0, 12_288, 1000);
        store.put(0, 12_288, 1000);
        a_minute(&store);
        if is_opened_again {
            store.reopen();
            a_minute(&store);
        }
        let held = store.live_bytes();
        assert!(held > unseen / 2 * 3, "{unseen} and what is seen: {held}");
        let before = store.counter("vt.compactions");
        a_minute(&store);
        let compactions = store.counter("vt.compactions");
        assert_eq!(compactions, before, "what a pin sees stays where it is");
        store.engine.drop_pin("pin").expect("it goes");
        a_minute(&store);
        let after = store.live_bytes();
        assert!(
            after < unseen / 20 * 21,
            "{held} bytes before, {after} after"
        );
        store.check();
    }
}

/// Looks at a store every so often that is read between two looks, or not. Answers when level 0 is
/// taken for quiet.
fn quiet_after(is_read_for: Duration) -> Duration {
    let mut store = Small::new(64 * MIB);
    store.put(0, 512, 4000);
    let engine = &store.engine.store;
    let mut writing = WriteOutDuty::new(engine);
    let mut passed = Duration::ZERO;
    while !engine.level0.is_quiet() {
        store.clock.advance(LOOK_EVERY);
        passed += LOOK_EVERY;
        if passed <= is_read_for {
            engine
                .cache
                .counters()
                .add(ReadCount::Misses, READ_MISSES_MIN);
        }
        writing.look(engine);
        assert!(passed < 3 * READ_WAIT_MAX, "it does not wait for ever");
    }
    passed
}

#[test]
fn level_0_waits_until_reads_are_over_but_not_for_ever() {
    assert_eq!(quiet_after(Duration::ZERO), QUIET_AFTER);
    let reading = Duration::from_secs(5);
    assert_eq!(quiet_after(reading), reading + LOOK_EVERY);
    assert_eq!(quiet_after(2 * READ_WAIT_MAX), QUIET_AFTER + READ_WAIT_MAX);
}
