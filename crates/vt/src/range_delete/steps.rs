//! Steps over range deletes in all that a store does with them, for two numbers of them.

use crate::testing::{MIB, Small, delete_steps};
use stitch_kv::{Batch, Engine};

/// A store of `n` rows, in memtables large enough for all range deletes and in small tables.
fn filled(n: u64) -> Small {
    let mut store = Small::new(256 * MIB);
    store.reopen_as(|options| {
        options.memory_bytes = 256 << 20;
        options.memtable_bytes = Some(32 << 20);
        options.table_bytes = Some(16 << 10);
        options.level1_bytes = Some(64 << 10);
    });
    store.put(0, n, 100);
    store.engine.quiesce().expect("it settles");
    store
}

/// Puts a row and deletes a range at random, as programs that truncate a file do.
fn truncate(store: &mut Small, n: u64, to_end: bool) {
    let key = store.rng.below(n);
    store.put(key, 1, 10);
    let (a, b) = (store.rng.below(n), store.rng.below(n));
    let end = if to_end { n } else { a.max(b) };
    let range = a.min(b)..end;
    let mut batch = Batch::new();
    let [start, end] = [range.start, range.end].map(u64::to_be_bytes);
    batch.delete_range(store.tree, &start, &end);
    store.commit(&batch);
    store.rows.retain(|key, _| !range.contains(key));
}

/// The steps of committing, reading, recovering, writing out, compacting and checking.
fn steps(n: u64, to_end: bool) -> [usize; 4] {
    let mut store = filled(n);
    let mut steps = Vec::new();
    let mut before = delete_steps();
    let mut lap = || {
        let now = delete_steps();
        steps.push(now - std::mem::replace(&mut before, now));
    };
    let mut snapshot = None;
    for i in 0..n {
        if i == n / 2 {
            snapshot = Some(store.engine.snapshot());
        }
        truncate(&mut store, n, to_end);
    }
    lap();
    store.check();
    lap();
    store.engine.quiesce().expect("it settles");
    drop(snapshot);
    store.engine.quiesce().expect("it settles");
    lap();
    store.check();
    for key in 0..n {
        let row = store.engine.get(store.tree, &key.to_be_bytes(), None);
        let row = row.expect("it is read").map(|value| value.to_vec());
        assert_eq!(row.as_ref(), store.rows.get(&key));
    }
    lap();
    steps.try_into().expect("four laps")
}

#[test]
fn four_times_as_many_range_deletes_take_less_than_five_times_the_steps() {
    for to_end in [true, false] {
        let (few, many) = (steps(500, to_end), steps(2000, to_end));
        for (few, many) in few.into_iter().zip(many) {
            assert!(many < 5 * few.max(500), "{few} steps, then {many}");
        }
    }
}
