//! Values that were overwritten at random come back into key order.

use super::*;
use crate::background::{CompactionDuty, WriteOutDuty};
use crate::idle_order::IdleOrder;
use crate::testing::{MIB, Small};
use std::time::Duration;
use stitch_base::clock::Clock;
use stitch_kv::{Direction, Engine, KeyRange};

/// Length of a value: a page.
const PAGE: usize = 4096;
/// Values of a store.
const PAGES: u64 = 8192;
/// Bytes of them.
const BYTES: u64 = PAGES * PAGE as u64;
/// Most extents that are read, those of indexes among them. A fresh store has about 200.
const EXTENTS_MAX: u64 = 300;

/// A store of pages that were put in order.
fn in_order(store_bytes: u64) -> Small {
    let mut store = Small::new(store_bytes);
    for first in (0..PAGES).step_by(512) {
        store.put(first, 512, PAGE);
    }
    store.engine.quiesce().unwrap();
    store
}

/// Overwrites `count` of the pages, in random order.
fn overwrite(store: &mut Small, count: u64) {
    let mut keys: Vec<u64> = (0..PAGES).collect();
    for i in (1..keys.len()).rev() {
        keys.swap(i, usize::try_from(store.rng.below(i as u64 + 1)).unwrap());
    }
    for key in &keys[..usize::try_from(count).unwrap()] {
        store.put(*key, 1, PAGE);
    }
}

/// Does what the threads do while the store is idle.
fn idle_for(store: &Small, duration: Duration) {
    let engine = &store.engine.store;
    let mut writing = WriteOutDuty::new(engine);
    let mut compacting = CompactionDuty::new(engine);
    let until = store.clock.monotonic() + duration;
    while store.clock.monotonic() < until {
        store.clock.advance(Duration::from_millis(500));
        writing.look(engine);
        compacting.look(engine);
        assert!(!engine.gate.is_failed());
    }
}

/// Opens the store again and reads all in key order. Returns the number of extents that were read.
fn extents_read(store: &mut Small) -> u64 {
    store.reopen();
    let before = store.counter("device.reads");
    let range = KeyRange::all();
    let mut scan = store
        .engine
        .scan(store.tree, range, Direction::Forward, None)
        .unwrap();
    let mut count = 0;
    while scan.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, store.rows.len());
    drop(scan);
    store.counter("device.reads") - before
}

fn defrag(store: &Small) -> u64 {
    let done = store.engine.defrag(&mut |_, _| true).unwrap();
    assert!(!done.is_stopped && done.ordered_bytes <= done.moved_bytes);
    done.ordered_bytes
}

#[test]
fn values_overwritten_at_random_are_in_key_order_after_idle_time() {
    let mut store = in_order(128 * MIB);
    let first = extents_read(&mut store);
    assert!(first < EXTENTS_MAX, "{first} extents");
    overwrite(&mut store, PAGES);
    let scattered = extents_read(&mut store);
    assert!(scattered > PAGES / 4, "{scattered} extents");
    idle_for(&store, Duration::from_secs(60));
    let moved = store.counter("vt.ordered_bytes");
    assert!((BYTES / 2..BYTES / 4 * 5).contains(&moved), "{moved} bytes");
    idle_for(&store, Duration::from_secs(60));
    assert_eq!(store.counter("vt.ordered_bytes"), moved, "once is enough");
    store.check();
    let after = extents_read(&mut store);
    assert!(after < EXTENTS_MAX, "{after} extents, before {scattered}");
    store.check();
}

#[test]
fn values_overwritten_at_random_are_in_key_order_after_defrag() {
    for part in [1, 5, 10] {
        let mut store = in_order(128 * MIB);
        overwrite(&mut store, PAGES / part);
        store.engine.quiesce().unwrap();
        let scattered = extents_read(&mut store);
        assert!(scattered > PAGES / part / 4, "{scattered} extents");
        let moved = defrag(&store);
        assert!((BYTES / 2..BYTES / 4 * 5).contains(&moved), "{moved} bytes");
        store.check();
        assert_eq!(defrag(&store), 0, "a second one finds nothing");
        let after = extents_read(&mut store);
        assert!(after < EXTENTS_MAX, "{after} extents, before {scattered}");
        assert_eq!(defrag(&store), 0, "nor does one in another life");
        store.check();
    }
}

#[test]
fn values_of_several_rounds_are_merged_first() {
    let mut store = in_order(128 * MIB);
    for count in [PAGES / 2, PAGES / 8, PAGES / 64] {
        overwrite(&mut store, count);
        store.engine.quiesce().unwrap();
    }
    defrag(&store);
    let after = extents_read(&mut store);
    assert!(after < EXTENTS_MAX, "{after} extents");
    assert_eq!(defrag(&store), 0);
    store.check();
}

#[test]
fn a_snapshot_sees_old_values_that_are_not_moved_again() {
    let mut store = in_order(192 * MIB);
    let old = store.rows.clone();
    let snapshot = store.engine.snapshot();
    overwrite(&mut store, PAGES);
    assert!(defrag(&store) > 0);
    assert_eq!(defrag(&store), 0, "a second one finds nothing");
    for (key, value) in old.iter().step_by(97) {
        let found = store
            .engine
            .get(store.tree, &key.to_be_bytes(), Some(&snapshot))
            .unwrap();
        assert_eq!(found.as_deref(), Some(&value[..]), "key {key}");
    }
    drop(snapshot);
    store.check();
    defrag(&store);
    assert_eq!(defrag(&store), 0);
    let after = extents_read(&mut store);
    assert!(after < EXTENTS_MAX, "{after} extents");
}

#[test]
fn a_store_that_is_nearly_full_keeps_its_reserve() {
    let mut store = in_order(42 * MIB);
    let space = store.engine.space();
    assert!(space.free_bytes < space.total_bytes / 6, "{space:?}");
    overwrite(&mut store, PAGES / 4);
    store.engine.quiesce().unwrap();
    let free_bytes = store.engine.space().free_bytes;
    let engine = &store.engine.store;
    assert_eq!(engine.key_order.room_bytes(), 0);
    engine.key_order.measure(usize::MAX);
    assert!(engine.key_order.scattered_bytes() > MIB);
    assert_eq!(defrag(&store), 0);
    idle_for(&store, Duration::from_secs(30));
    assert_eq!(store.counter("vt.ordered_bytes"), 0);
    assert!(store.engine.space().free_bytes >= free_bytes);
    overwrite(&mut store, PAGES / 8);
    store.check();
}

#[test]
fn idle_steps_are_short_and_wait_for_those_who_write() {
    let mut store = in_order(128 * MIB);
    overwrite(&mut store, PAGES);
    store.engine.quiesce().unwrap();
    let mut idle = IdleOrder::new(store.clock.monotonic());
    let mut most = 0;
    for look in 0..60 {
        store.put(look, 1, PAGE);
        store.clock.advance(Duration::from_secs(4));
        assert!(!idle.look(&store.engine.store).unwrap(), "rows are written");
    }
    assert_eq!(store.counter("vt.ordered_bytes"), 0);
    for _ in 0..60 {
        store.clock.advance(Duration::from_secs(1));
        let before = store.counter("vt.ordered_bytes");
        idle.look(&store.engine.store).unwrap();
        most = most.max(store.counter("vt.ordered_bytes") - before);
    }
    assert!((MIB..9 * MIB).contains(&most), "{most} bytes in one step");
    assert!(idle.written_bytes > BYTES / 2);
    store.check();
}

#[test]
fn idle_steps_write_no_more_than_commits_have_paid_for() {
    let mut store = in_order(128 * MIB);
    overwrite(&mut store, PAGES);
    store.engine.quiesce().unwrap();
    let put = store.counter("kv.put_bytes");
    let mut idle = IdleOrder::after_writing(8 * put + 256 * MIB);
    for _ in 0..20 {
        store.clock.advance(Duration::from_secs(1));
        assert!(!idle.look(&store.engine.store).unwrap());
    }
    overwrite(&mut store, 512);
    for _ in 0..20 {
        store.clock.advance(Duration::from_secs(1));
        idle.look(&store.engine.store).unwrap();
    }
    let written = idle.written_bytes - (8 * put + 256 * MIB);
    assert!(
        (MIB..=8 * 512 * PAGE as u64 + MIB).contains(&written),
        "{written}"
    );
}

/// A beginning of order is worse to read than none.
#[test]
fn what_an_earlier_life_has_scattered_is_ordered_to_the_end() {
    let mut store = in_order(128 * MIB);
    overwrite(&mut store, PAGES / 5);
    store.engine.quiesce().unwrap();
    let scattered = extents_read(&mut store);
    assert!(scattered > PAGES / 8, "{scattered} extents");
    assert_eq!(store.counter("kv.put_bytes"), 0, "nothing is paid for");
    // What is not measured yet may be written: merges, and the beginning of order.
    let before = 256 * MIB - 16 * MIB;
    let mut idle = IdleOrder::after_writing(before);
    for _ in 0..300 {
        store.clock.advance(Duration::from_secs(1));
        idle.look(&store.engine.store).unwrap();
    }
    let written = idle.written_bytes - before;
    let bound = BYTES / 4 * 5 + 16 * MIB;
    assert!((BYTES / 2..bound).contains(&written), "{written} bytes");
    store.check();
    let after = extents_read(&mut store);
    assert!(after < EXTENTS_MAX, "{after} extents, before {scattered}");
}

#[test]
fn a_step_that_is_put_off_is_not_taken_again_at_once() {
    let mut store = in_order(128 * MIB);
    overwrite(&mut store, PAGES);
    store.engine.quiesce().unwrap();
    let engine = &store.engine.store;
    engine.key_order.measure(usize::MAX);
    let version = engine.version();
    let (level, table) = version
        .tables()
        .find(|(_, t)| engine.key_order.scattered_bytes_of(t) > 0)
        .unwrap();
    let scattered_bytes = engine.key_order.scattered_bytes_of(table);
    let step = OrderStep {
        tree: store.tree,
        level,
        input: table.meta().id,
        keys: [table.meta().smallest.clone(), table.meta().largest.clone()],
        before: level_ids(&version, store.tree, level),
        scattered_bytes,
        moved_bytes: scattered_bytes,
    };
    let before = engine.key_order.scattered_bytes();
    engine.key_order.note_ordered(&step);
    assert_eq!(engine.key_order.scattered_bytes(), before - scattered_bytes);
}

#[test]
fn what_was_stopped_goes_on_later() {
    let mut store = in_order(128 * MIB);
    overwrite(&mut store, PAGES);
    store.engine.quiesce().unwrap();
    let mut seen = 0;
    let done = store.engine.defrag(&mut |done, total| {
        assert!(done <= total);
        seen = seen.max(done);
        done == 0
    });
    let done = done.unwrap();
    assert!(done.is_stopped && done.ordered_bytes > 0, "{done:?}");
    assert!(seen < BYTES, "{seen}");
    assert!(defrag(&store) > 0);
    store.check();
}

#[test]
fn evacuation_keeps_the_order_while_many_zones_are_free() {
    let mut store = in_order(128 * MIB);
    // Holes of a page in the first half, too few to evacuate it; a quarter is left of each 2 MiB of
    // the second.
    store.delete((0..PAGES / 2).step_by(9));
    store.delete((PAGES / 2..PAGES).filter(|key| key % 512 >= 128));
    store.engine.quiesce().unwrap();
    let engine = &store.engine.store;
    let scattered = || -> u64 {
        let (version, from) = (engine.version(), (PAGES / 2).to_be_bytes());
        let later = version
            .tables()
            .filter(|(_, t)| t.meta().smallest[..] >= from[..]);
        later
            .map(|(_, t)| engine.key_order.scattered_bytes_of(t))
            .sum()
    };
    assert_eq!(scattered(), 0);
    assert!(
        engine
            .member
            .evacuate_untried(&mut BTreeSet::new(), &mut |_, _| true)
            .unwrap()
    );
    let moved = store.counter("vt.evacuated_bytes");
    assert!(moved > MIB, "{moved} bytes");
    assert_eq!(scattered(), 0, "what was moved lies in order");
    store.check();
}
