//! Scans over deleted rows: what they cost, and that they never miss a row.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod first;

use common::{MIB, Setup, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::random::Rng;
use stitch_base::{TreeId, thread};
use stitch_kv::conformance::functions::{APPEND, registry};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, Snapshot, TreeOptions, UpsertRegistry,
};
use stitch_vt::VtEngine;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KIB: u64 = 1 << 10;
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn store(memtable: u64, background: bool, registry: UpsertRegistry) -> (Store, TreeId) {
    let setup = Setup::sized(memtable, 512 * KIB, background);
    let store = Store::new(&setup, 128 * MIB, None, registry);
    let tree = store
        .engine()
        .create_tree("tree", &TreeOptions::default())
        .unwrap();
    (store, tree)
}

fn commit(engine: &VtEngine, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    engine.commit(&batch, CommitOptions::default()).unwrap();
}

fn rows(
    engine: &VtEngine,
    tree: TreeId,
    range: KeyRange<'_>,
    direction: Direction,
    at: Option<&Snapshot>,
    count: usize,
) -> Rows {
    let mut scan = engine.scan(tree, range, direction, at).unwrap();
    let mut out = Vec::new();
    while out.len() < count
        && let Some((key, value)) = scan.next().unwrap()
    {
        out.push((key.to_vec(), value.to_vec()));
    }
    out
}

fn first_row(engine: &VtEngine, tree: TreeId, direction: Direction) -> Option<Vec<u8>> {
    let all = KeyRange::from(&[][..]);
    let first = rows(engine, tree, all, direction, None, 1).pop();
    first.map(|(key, _)| key)
}

fn passed(engine: &VtEngine, work: impl FnOnce()) -> u64 {
    let before = engine.counters().get("vt.passed_keys");
    work();
    engine.counters().get("vt.passed_keys") - before
}

#[test]
fn a_scan_over_deleted_rows_steps_over_few_of_them() {
    const ROWS: u64 = 60_000;
    for memtable in [128 * KIB, 64 * MIB] {
        let (store, tree) = store(memtable, false, registry());
        let engine = store.engine();
        for key in 0..ROWS + 10 {
            commit(engine, |b| b.put(tree, &key.to_be_bytes(), b"row"));
            while key % 100 == 0 && engine.step().unwrap() {}
        }
        for key in 0..ROWS {
            commit(engine, |b| b.delete(tree, &key.to_be_bytes()));
            while key % 100 == 0 && engine.step().unwrap() {}
        }
        while engine.step().unwrap() {}
        let found = ROWS.to_be_bytes().to_vec();
        let first = || first_row(engine, tree, Direction::Forward);
        let steps = passed(engine, || assert_eq!(first().as_ref(), Some(&found)));
        assert!(steps < 1100, "{steps} deleted keys");
        let steps = passed(engine, || assert_eq!(first().as_ref(), Some(&found)));
        assert!(steps < 100, "{steps} deleted keys, once learned");
        // Nothing but a put ends it.
        engine.quiesce().unwrap();
        let steps = passed(engine, || assert_eq!(first().as_ref(), Some(&found)));
        assert!(steps < 100, "{steps} deleted keys, settled");
        let back = 20_000u64.to_be_bytes();
        commit(engine, |b| b.put(tree, &back, b"back"));
        let steps = passed(engine, || assert_eq!(first().as_deref(), Some(&back[..])));
        assert!(steps < 100, "{steps} deleted keys, after a put");
    }
}

#[test]
fn deletes_in_any_order_are_stepped_over_once_in_each_direction() {
    const ROWS: u64 = 20_000;
    let (store, tree) = store(16 * MIB, false, registry());
    let engine = store.engine();
    let middle = |key: u64| key * 7919 % ROWS + 10;
    for key in 0..ROWS + 20 {
        commit(engine, |b| b.put(tree, &key.to_be_bytes(), b"row"));
    }
    engine.quiesce().unwrap();
    for key in 0..ROWS {
        commit(engine, |b| b.delete(tree, &middle(key).to_be_bytes()));
    }
    let range = |start: &[u8]| {
        let range = KeyRange::from(start);
        rows(engine, tree, range, Direction::Forward, None, 20).len()
    };
    let steps = passed(engine, || assert_eq!(range(&9u64.to_be_bytes()), 11));
    assert_eq!(steps, ROWS);
    for _ in 0..3 {
        let steps = passed(engine, || assert_eq!(range(&9u64.to_be_bytes()), 11));
        assert!(steps < 5, "{steps}");
        let all = KeyRange::from(&[][..]);
        let steps = passed(engine, || {
            let back = rows(engine, tree, all, Direction::Backward, None, 100);
            assert_eq!(back.len(), 20);
        });
        assert!(steps < 5, "{steps}");
    }
}

#[test]
fn rows_are_what_a_model_has_under_snapshots_and_in_both_directions() {
    for seed in 0..12 {
        let rng = &mut Rng::new(seed);
        let memtable = [128 * KIB, 16 * KIB, 4 * MIB][usize::try_from(seed).unwrap() % 3];
        let (store, tree) = store(memtable, seed % 4 == 3, registry());
        let engine = store.engine();
        let mut model: Model = BTreeMap::new();
        let mut held: Vec<(Snapshot, Model)> = Vec::new();
        let key = |n: u64| (n / 3).to_be_bytes()[5..].to_vec();
        for step in 0..1500u64 {
            let at = rng.below(6000);
            match rng.below(10) {
                0..=2 => {
                    let count = rng.below(400);
                    for n in at..at + count {
                        commit(engine, |b| b.delete(tree, &key(n)));
                        model.remove(&key(n));
                    }
                }
                3 => {
                    for n in at..at + rng.below(300) {
                        let value = (n * step).to_be_bytes().repeat(4);
                        commit(engine, |b| b.put(tree, &key(n), &value));
                        model.insert(key(n), value);
                    }
                }
                4 => {
                    commit(engine, |b| b.put(tree, &key(at), b"one"));
                    model.insert(key(at), b"one".to_vec());
                }
                5 => {
                    commit(engine, |b| b.upsert(tree, &key(at), APPEND, b"+"));
                    model.entry(key(at)).or_default().push(b'+');
                }
                6 if rng.one_in(4) => {
                    let (start, end) = (key(at), key(at + 900));
                    commit(engine, |b| b.delete_range(tree, &start, &end));
                    model.retain(|k, _| *k < start || *k >= end);
                }
                7 => held.push((engine.snapshot(), model.clone())),
                8 if held.len() > 2 => drop(held.swap_remove(0)),
                _ => {
                    engine.step().unwrap();
                }
            }
            let (low, high) = (key(rng.below(6000)), key(rng.below(6000)));
            let range = match rng.below(4) {
                0 => KeyRange::from(&[][..]),
                1 => KeyRange::from(&low[..]),
                _ => KeyRange {
                    start: (&low).min(&high),
                    end: Some((&high).max(&low)),
                },
            };
            let past = held.last().filter(|_| rng.one_in(3));
            let model = past.map_or(&model, |(_, model)| model);
            let inside = |k: &[u8]| k >= range.start && range.end.is_none_or(|end| k < end);
            let wanted = model.iter().filter(|(k, _)| inside(k));
            let mut wanted: Rows = wanted.map(|(k, v)| (k.clone(), v.clone())).collect();
            let direction = match rng.one_in(2) {
                true => Direction::Forward,
                false => Direction::Backward,
            };
            if direction == Direction::Backward {
                wanted.reverse();
            }
            let count = if rng.one_in(2) { 1 } else { usize::MAX };
            wanted.truncate(count);
            let at = past.map(|(snapshot, _)| snapshot);
            let found = rows(engine, tree, range, direction, at, count);
            assert_eq!(found, wanted, "seed {seed} step {step}");
        }
        let counters = engine.counters();
        assert!(counters.get("vt.gaps_learned") > 50, "seed {seed}");
        assert!(counters.get("vt.gaps_jumped") > 50, "seed {seed}");
    }
}

#[test]
fn a_row_that_was_put_is_found_while_others_delete_and_scan() {
    const ROWS: u64 = 4000;
    let (store, tree) = store(128 * KIB, true, registry());
    let engine = store.engine();
    // Rows up to this one, of those that stay, are there.
    let stays = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let scanners: Vec<_> = (0..3u64)
        .map(|n| {
            let (engine, stays, is_over) = (Arc::clone(engine), stays.clone(), is_over.clone());
            let look = move || {
                let mut looks = 0u64;
                while !is_over.load(Ordering::Acquire) {
                    let before = stays.load(Ordering::Acquire);
                    let direction = [Direction::Forward, Direction::Backward];
                    let direction = direction[usize::try_from((looks + n) % 2).unwrap()];
                    let all = KeyRange::from(&[][..]);
                    let found = rows(&engine, tree, all, direction, None, usize::MAX);
                    let found = found.iter().filter(|(_, value)| value == b"stays").count();
                    assert!(found as u64 >= before, "{found} of {before}");
                    looks += 1;
                }
                looks
            };
            thread::spawn("scanner", look).unwrap()
        })
        .collect();
    let rng = &mut Rng::new(5);
    let mut staying = 0;
    let mut places: Vec<u64> = (0..ROWS).collect();
    for round in 0..40 {
        for key in places.iter().map(|place| place * 2) {
            commit(engine, |b| b.put(tree, &key.to_be_bytes(), b"goes"));
        }
        for key in 0..ROWS {
            commit(engine, |b| b.delete(tree, &(key * 2).to_be_bytes()));
            if rng.one_in(400) {
                let place = rng.below(ROWS) * 2 + 1;
                let was = engine.get(tree, &place.to_be_bytes(), None).unwrap();
                commit(engine, |b| b.put(tree, &place.to_be_bytes(), b"stays"));
                staying += u64::from(was.is_none());
                stays.store(staying, Ordering::Release);
            }
        }
        if round > 3 {
            places.truncate(usize::try_from(rng.below(ROWS)).unwrap());
        }
    }
    is_over.store(true, Ordering::Release);
    for scanner in scanners {
        assert!(scanner.join().unwrap() > 0);
    }
    assert!(engine.counters().get("vt.gaps_learned") > 10);
}
