//! Threads: what is committed is seen by all, in whole batches only.

use super::functions::{ADD, number};
use super::{Factory, Store, read_all};
use crate::{Batch, CommitOptions, Engine};
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::thread::spawn;

pub(super) fn read_after_commit(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    let committed = Arc::new(AtomicU64::new(0));
    let is_done = Arc::new(AtomicBool::new(false));
    let reader = {
        let engine = store.shared();
        let (committed, is_done) = (Arc::clone(&committed), Arc::clone(&is_done));
        let body = move || {
            while !is_done.load(Ordering::SeqCst) {
                let at_least = committed.load(Ordering::SeqCst);
                let value = engine.get(tree, b"n", None).expect("the read works");
                let seen = value.map_or(0, |v| number(&v));
                assert!(seen >= at_least, "{at_least} was committed, {seen} is seen");
            }
        };
        spawn("reader", body).expect("a thread starts")
    };
    for n in 1..=2000u64 {
        store.commit(|b| b.put(tree, b"n", &n.to_le_bytes()));
        committed.store(n, Ordering::SeqCst);
        if n % 500 == 0 {
            store.quiesce();
        }
    }
    is_done.store(true, Ordering::SeqCst);
    assert!(reader.join().is_ok(), "a reader saw an old value");
    store.finish();
}

const KEYS: u8 = 24;
const WRITERS: u64 = 2;

/// Every batch gives all keys of both trees the same new value, by different messages, and counts
/// itself. Whatever a reader sees must be of one batch.
fn write_round(batch: &mut Batch, trees: [TreeId; 2], rng: &mut Rng, value: u64) {
    batch.clear();
    if rng.one_in(4) {
        batch.delete_range(trees[0], &[0], &[KEYS]);
        batch.delete_range(trees[1], &[0], &[KEYS]);
    }
    for key in 0..KEYS {
        for tree in trees {
            batch.put(tree, &[key], &value.to_le_bytes());
        }
    }
    for tree in trees {
        batch.upsert(tree, b"count", ADD, &1u64.to_le_bytes());
    }
}

fn assert_one_batch(engine: &dyn Engine, trees: [TreeId; 2], last_count: u64) -> u64 {
    let snapshot = engine.snapshot();
    let left = read_all(engine, trees[0], Some(&snapshot));
    let right = read_all(engine, trees[1], Some(&snapshot));
    assert!(left == right, "two trees of one snapshot differ");
    assert_eq!(left.len(), usize::from(KEYS) + 1);
    let (count, values) = left.split_last().expect("it has rows");
    assert!(values.iter().all(|(_, value)| *value == values[0].1));
    let count = number(&count.1);
    assert!(count >= last_count, "time goes forward");
    let got = engine.get(trees[0], &[3], Some(&snapshot));
    let got = got.expect("the read works").expect("it has the key");
    assert_eq!(got, values[0].1, "get and scan agree");
    count
}

pub(super) fn readers_see_whole_batches(factory: &dyn Factory) {
    let store = Store::new(factory);
    let trees = [store.tree("left"), store.tree("right")];
    let mut batch = Batch::new();
    write_round(&mut batch, trees, &mut Rng::new(0), 0);
    let first = store.engine().commit(&batch, CommitOptions::default());
    first.expect("the batch is committed");
    let writers_left = Arc::new(AtomicU64::new(WRITERS));
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let engine = store.shared();
        let left = Arc::clone(&writers_left);
        let body = move || {
            let mut rng = Rng::new(writer);
            let mut batch = Batch::new();
            for round in 0..400u64 {
                write_round(&mut batch, trees, &mut rng, round * WRITERS + writer);
                let done = engine.commit(&batch, CommitOptions::default());
                done.expect("the batch is committed");
                if round % 100 == 99 {
                    engine.quiesce().expect("background work succeeds");
                }
            }
            left.fetch_sub(1, Ordering::SeqCst);
        };
        threads.push(spawn("writer", body).expect("a thread starts"));
    }
    for _ in 0..2 {
        let engine = store.shared();
        let left = Arc::clone(&writers_left);
        let body = move || {
            let mut count = 1;
            // Bounded, should a writer have failed.
            for _ in 0..1_000_000 {
                count = assert_one_batch(engine.as_ref(), trees, count);
                if left.load(Ordering::SeqCst) == 0 {
                    break;
                }
            }
        };
        threads.push(spawn("reader", body).expect("a thread starts"));
    }
    let ends: Vec<_> = threads
        .into_iter()
        .map(stitch_base::thread::JoinHandle::join)
        .collect();
    assert!(ends.iter().all(Result::is_ok), "a thread failed");
    let count = store.get(trees[0], b"count").unwrap_or_default();
    assert_eq!(number(&count), 1 + 400 * WRITERS, "no batch is lost");
    store.finish();
}
