//! What operations cost, by the engine's own counters.

mod common;

use common::{MIB, Setup, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::conformance::functions::{APPEND, registry};
use stitch_kv::{
    Batch, CommitOptions, Counters, Direction, Engine, KeyRange, StreamName, TreeOptions, counters,
};
use stitch_vt::counters::{DATA_BLOCKS_READ, MERGED_BYTES, STITCHED_BYTES};
use stitch_vt::{StitchByKey, VtEngine};

const KIB: u64 = 1 << 10;

fn store(stitch_bytes: u64) -> (Store, TreeId) {
    let setup = Setup::sized(256 * KIB, 512 * KIB, false);
    let store = Store::new(&setup, 128 * MIB, None, registry());
    let options = TreeOptions {
        block_bytes: 4096,
        stitch_bytes,
        ..TreeOptions::default()
    };
    let tree = store.engine().create_tree("tree", &options);
    (store, tree.expect("the tree is made"))
}

fn value(seed: u64) -> Vec<u8> {
    let mut out = vec![0; 1000];
    Rng::new(seed).fill(&mut out);
    out
}

fn put_all(engine: &VtEngine, tree: TreeId, keys: impl Iterator<Item = u64>) {
    let mut batch = Batch::new();
    for key in keys {
        batch.clear();
        batch.put(tree, &key.to_be_bytes(), &value(key));
        let put = engine.commit(&batch, CommitOptions::default());
        put.expect("there is space");
        while engine.step().expect("background work succeeds") {}
    }
}

/// What has happened since `before`, by name.
fn since<'a>(engine: &VtEngine, before: &'a Counters) -> impl Fn(&str) -> u64 + use<'a> {
    let now = engine.counters();
    move |name| now.get(name) - before.get(name)
}

#[test]
fn what_comes_in_order_is_written_once() {
    let (store, tree) = store(64 * KIB);
    let engine = store.engine();
    let before = engine.counters();
    put_all(engine, tree, 0..20_000);
    engine.quiesce().expect("background work succeeds");
    let grown = since(engine, &before);
    let put = grown(counters::PUT_BYTES);
    assert!(grown("vt.moved_tables") > 10);
    assert!(grown(MERGED_BYTES) < put / 20);
    // The page that the log ends in is written again and again, but not to the medium.
    let written = grown("device.write_bytes") - grown("log.padding_bytes");
    assert!(written < put * 22 / 10, "log and tables");
}

#[test]
fn long_runs_in_order_are_written_once_with_the_log() {
    let setup = Setup::sized(256 * KIB, 512 * KIB, false).direct(64 * KIB);
    let store = Store::new(&setup, 128 * MIB, None, registry());
    let engine = store.engine();
    let options = TreeOptions {
        block_bytes: 64 << 10,
        stitch_bytes: 64 * KIB,
        ..TreeOptions::default()
    };
    let tree = engine.create_tree("tree", &options);
    let tree = tree.expect("the tree is made");
    let before = engine.counters();
    let mut batch = Batch::new();
    let chunk: Vec<u8> = (0..4).flat_map(value).chain([0; 96]).collect();
    for round in 0..160u64 {
        batch.clear();
        for key in round * 128..(round + 1) * 128 {
            batch.put(tree, &key.to_be_bytes(), &chunk);
        }
        let put = engine.commit(&batch, CommitOptions::default());
        put.expect("there is space");
        while engine.step().expect("background work succeeds") {}
    }
    engine.quiesce().expect("background work succeeds");
    let grown = since(engine, &before);
    let put = grown(counters::PUT_BYTES);
    let direct = grown("vt.direct_bytes");
    assert!(direct > put * 99 / 100, "{direct} of {put} bytes");
    let written = grown("device.write_bytes");
    assert!(written < put * 105 / 100, "{written} bytes for {put}");
    let found = engine.get(tree, &7000u64.to_be_bytes(), None);
    assert_eq!(found.expect("reads").as_deref(), Some(&*chunk));
}

fn page(seed: u64) -> Vec<u8> {
    let mut out = vec![0; 4096];
    Rng::new(seed).fill(&mut out);
    out
}

fn put_pages(engine: &VtEngine, tree: TreeId, keys: impl Iterator<Item = u64>) {
    let mut batch = Batch::new();
    for (seed, key) in (0..).zip(keys) {
        batch.clear();
        batch.put(tree, &key.to_be_bytes(), &page(seed));
        let put = engine.commit(&batch, CommitOptions::default());
        put.expect("there is space");
        while engine.step().expect("background work succeeds") {}
    }
    engine.quiesce().expect("background work succeeds");
}

/// Puts pages with the log and rows as they are by default. Answers bytes written to the medium for
/// each byte that was put.
fn cost_of_pages(keys: &[u64]) -> f64 {
    let setup = Setup::sized(256 * KIB, 512 * KIB, false).direct(64 * KIB);
    let store = Store::new(&setup, 128 * MIB, None, registry());
    let engine = store.engine();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    let before = engine.counters();
    put_pages(engine, tree, keys.iter().copied());
    let grown = since(engine, &before);
    let put = grown(counters::PUT_BYTES);
    let written = grown("device.write_bytes") - grown("log.padding_bytes");
    for (seed, key) in (0..).zip(keys).step_by(7) {
        let found = engine.get(tree, &key.to_be_bytes(), None).expect("reads");
        assert_eq!(found.as_deref(), Some(&*page(seed)), "key {key}");
    }
    written as f64 / put as f64
}

#[test]
fn pages_in_order_are_written_once_with_the_log() {
    let keys: Vec<u64> = (0..16_000).collect();
    let cost = cost_of_pages(&keys);
    assert!(cost < 1.05, "{cost} bytes for one");
}

#[test]
fn pages_that_are_appended_to_ranges_are_written_once_after_the_first() {
    let mut rng = Rng::new(2);
    let mut ends = vec![0; 64];
    let keys: Vec<u64> = (0..16_000)
        .map(|_| {
            let range = rng.below(64);
            let end: &mut u64 = &mut ends[range as usize];
            *end += 1;
            (range << 32) + *end
        })
        .collect();
    let cost = cost_of_pages(&keys);
    assert!(cost < 1.2, "{cost} bytes for one");
}

/// Puts every second page of 16 files, and then the others, all by turns. Returns bytes that went
/// to the log for each byte of the others.
fn logged_of_pages_between_others(is_named: bool) -> f64 {
    // No memtable is sealed, so that all keys of before are in it.
    let setup = Setup::sized(32 * MIB, 64 * MIB, false).direct(64 * KIB);
    let store = Store::new(&setup, 192 * MIB, Some(64 * MIB), registry());
    let engine = store.engine();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    let put = |first: u64| {
        let before = engine.counters();
        for number in 0..100 {
            for file in 0..16u64 {
                let key = (file << 32) + 2 * number + first;
                let mut batch = Batch::new();
                batch.put(tree, &key.to_be_bytes(), &page(key));
                if is_named {
                    batch.name_stream(StreamName(first << 8 | file));
                }
                let done = engine.commit(&batch, CommitOptions::default());
                done.expect("there is space");
            }
        }
        let grown = since(engine, &before);
        grown(counters::LOG_BYTES) as f64 / grown(counters::PUT_BYTES) as f64
    };
    put(1);
    let logged = put(0);
    for key in (0..200).step_by(7) {
        let found = engine.get(tree, &u64::to_be_bytes(key), None);
        assert_eq!(found.expect("reads").as_deref(), Some(&*page(key)));
    }
    logged
}

#[test]
fn named_streams_are_written_once_whatever_lies_between_their_keys() {
    let unnamed = logged_of_pages_between_others(false);
    assert!(
        unnamed > 0.9,
        "{unnamed}: a key lies between any two of a file"
    );
    // Of each file the first 16 pages of 100 go to the log.
    let named = logged_of_pages_between_others(true);
    assert!(named < 0.2, "{named}");
}

#[test]
fn what_is_synced_little_by_little_goes_to_the_log_alone() {
    let setup = Setup::sized(256 * KIB, 512 * KIB, false).direct(64 * KIB);
    let store = Store::new(&setup, 128 * MIB, None, registry());
    let engine = store.engine();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    let before = engine.counters();
    let mut next = 0..;
    let mut put = |count: usize, sync: bool| {
        let mut batch = Batch::new();
        for key in next.by_ref().take(count) {
            batch.clear();
            batch.put(tree, &u64::to_be_bytes(key), &page(key));
            let done = engine.commit(
                &batch,
                CommitOptions {
                    sync,
                    ..CommitOptions::default()
                },
            );
            done.expect("there is space");
        }
        since(engine, &before)("vt.direct_bytes")
    };
    // The first 16 pages of a write stream go to the log.
    assert_eq!(put(20, false), 4 * 4096, "there was no sync before");
    assert_eq!(put(100, true), 4 * 4096, "each is waited for");
    for _ in 0..10 {
        assert_eq!(put(30, false), 4 * 4096, "some are waited for together");
        engine.sync().expect("it is synced");
    }
    // After 256 KiB, and 64 KiB of a write stream.
    let seldom = put(100, false) / 4096 - 4;
    assert!((16..=36).contains(&seldom), "{seldom} pages");
    for key in 0..520u64 {
        let found = engine.get(tree, &key.to_be_bytes(), None).expect("reads");
        assert_eq!(found.as_deref(), Some(&*page(key)), "key {key}");
    }
}

#[test]
fn long_values_in_random_order_are_written_to_the_log_and_once_more() {
    let (store, tree) = store(64 * KIB);
    let engine = store.engine();
    let before = engine.counters();
    let mut rng = Rng::new(1);
    let keys: Vec<u64> = (0..12_000).map(|_| rng.below(8_000)).collect();
    put_pages(engine, tree, keys.iter().copied());
    let grown = since(engine, &before);
    let put = grown(counters::PUT_BYTES);
    let written = grown("device.write_bytes") - grown("log.padding_bytes");
    assert!(written < put * 22 / 10, "{written} bytes for {put}");
    assert!(grown(STITCHED_BYTES) > 2 * put);
    for key in (0..8_000).step_by(7) {
        let seed = keys.iter().rposition(|k| *k == key);
        let expected = seed.map(|seed| page(seed as u64));
        let found = engine.get(tree, &key.to_be_bytes(), None).expect("reads");
        assert!(found.as_deref() == expected.as_deref(), "key {key}");
    }
}

#[test]
fn a_read_of_a_long_value_reads_one_block() {
    let (store, tree) = store(64 * KIB);
    let engine = store.engine();
    put_pages(engine, tree, (0..6_000).map(|n: u64| n * 7919 % 6_000));
    let before = engine.counters();
    for key in (0..6_000u64).step_by(3) {
        assert!(
            engine
                .get(tree, &key.to_be_bytes(), None)
                .expect("reads")
                .is_some()
        );
        let absent = [&key.to_be_bytes()[..], b"x"].concat();
        assert!(engine.get(tree, &absent, None).expect("reads").is_none());
    }
    let read = since(engine, &before)("vt.data_blocks_read");
    assert!(read <= 2_000, "{read} blocks for 2000 rows");
}

#[test]
fn a_store_in_too_many_pieces_copies_long_values() {
    let mut setup = Setup::sized(64 * KIB, 128 * KIB, false);
    setup.version_log_bytes = Some(512 * KIB);
    let store = Store::new(&setup, 512 * MIB, None, registry());
    let engine = store.engine();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    put_pages(engine, tree, 0..40_000);
    // Each second page goes, all over the store.
    put_pages(engine, tree, (0..40_000).step_by(2));
    let before = engine.counters();
    let mut rng = Rng::new(1);
    put_pages(engine, tree, (0..10_000).map(|_| rng.below(40_000)));
    assert!(since(engine, &before)(MERGED_BYTES) > 40 * MIB);
}

/// Fills every tenth range of keys, then what is between; answers the counters' growth in between.
fn interleaved(stitch_bytes: u64) -> (u64, u64) {
    let (store, tree) = store(stitch_bytes);
    let engine = store.engine();
    let ranges = |odd: bool| {
        let ranges = (0..20).filter(move |range| (range % 2 == 1) == odd);
        ranges.flat_map(|range: u64| range * 1000..(range + 1) * 1000)
    };
    put_all(engine, tree, ranges(false));
    engine.quiesce().expect("background work succeeds");
    let before = engine.counters();
    put_all(engine, tree, ranges(true));
    // A key in each table's range, so that nothing can just be moved.
    put_all(engine, tree, (0..20).map(|range| range * 1000 + 500));
    engine.quiesce().expect("background work succeeds");
    let grown = since(engine, &before);
    let check = engine.check(&mut |_, _| {}).expect("the check runs");
    assert_eq!(check, []);
    (grown(STITCHED_BYTES), grown(MERGED_BYTES))
}

#[test]
fn the_threshold_decides_what_is_stitched() {
    let (all, little) = interleaved(0);
    let (most, some) = interleaved(64 * KIB);
    let (none, everything) = interleaved(u64::MAX);
    assert_eq!(none, 0);
    assert!(little < everything / 4, "{little} of {everything} copied");
    assert!(some < everything / 2, "{some} of {everything} copied");
    assert!(all > 0 && most > 0, "{all} and {most} stitched");
}

/// Puts whole ranges of 1000 keys, each written out for itself.
fn put_ranges(engine: &VtEngine, tree: TreeId, ranges: impl Iterator<Item = u64>) {
    for range in ranges {
        put_all(engine, tree, range * 1000..(range + 1) * 1000);
        engine.quiesce().expect("background work succeeds");
    }
}

/// Bytes stitched and data blocks read by putting ranges between ranges, none of which overlap.
fn between(engine: &VtEngine, tree: TreeId, ranges: std::ops::Range<u64>) -> (u64, u64) {
    put_ranges(engine, tree, ranges.clone().filter(|range| range % 2 == 0));
    let before = engine.counters();
    put_ranges(engine, tree, ranges.filter(|range| range % 2 == 1));
    let grown = since(engine, &before);
    assert!(grown("vt.compactions") > 0, "tables overlap, blocks do not");
    (grown(STITCHED_BYTES), grown(DATA_BLOCKS_READ))
}

#[test]
fn threshold_0_copies_nothing_that_does_not_overlap() {
    let (store, tree) = store(0);
    let (stitched, read) = between(store.engine(), tree, 0..20);
    assert!(stitched > 0);
    assert_eq!(read, 0, "data blocks read");
}

#[test]
fn an_infinite_threshold_stitches_nothing() {
    let (store, tree) = store(u64::MAX);
    let (stitched, read) = between(store.engine(), tree, 0..20);
    assert_eq!(stitched, 0);
    assert!(read > 1000, "{read} data blocks read");
}

#[test]
fn the_threshold_of_a_living_tree_changes_and_is_kept() {
    let (mut store, tree) = store(u64::MAX);
    let set = |store: &Store, stitch_bytes| {
        let engine = store.engine();
        let options = TreeOptions {
            stitch_bytes,
            ..engine.trees()[0].options.clone()
        };
        let altered = engine.alter_tree(tree, &options);
        altered.expect("the tree takes other options");
    };
    assert_eq!(between(store.engine(), tree, 0..8).0, 0);
    set(&store, 0);
    // What came before may have blocks over the gaps between ranges: they are merged now.
    assert!(between(store.engine(), tree, 8..16).0 > 0);
    assert_eq!(between(store.engine(), tree, 32..40).1, 0);
    store.next_life(stitch_kv::conformance::Ending::PowerCut);
    assert_eq!(between(store.engine(), tree, 16..24).1, 0);
    set(&store, u64::MAX);
    store.next_life(stitch_kv::conformance::Ending::Closed);
    assert_eq!(between(store.engine(), tree, 24..32).0, 0);
    let check = store.engine().check(&mut |_, _| {});
    assert_eq!(check.expect("the check runs"), []);
}

#[test]
fn the_threshold_goes_by_key_and_may_change_at_any_time() {
    let (flag, asked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut setup = Setup::sized(256 * KIB, 512 * KIB, false);
    let by_key = {
        let (flag, asked) = (Arc::clone(&flag), Arc::clone(&asked));
        StitchByKey::new(move |tree, first| {
            assert_eq!(tree.name, "tree");
            asked.fetch_add(1, Ordering::Relaxed);
            // Keys are numbers of 8 bytes; the tree's own threshold says never.
            let is_even_part = first[6] / 64 % 2 == 0;
            is_even_part.then(|| flag.load(Ordering::Relaxed))
        })
    };
    setup.options.stitch_by_key = Some(by_key);
    let store = Store::new(&setup, 128 * MIB, None, registry());
    let engine = store.engine();
    let options = TreeOptions {
        block_bytes: 4096,
        stitch_bytes: u64::MAX,
        ..TreeOptions::default()
    };
    let tree = engine.create_tree("tree", &options);
    let tree = tree.expect("the tree is made");
    let (some_stitched, some_read) = between(engine, tree, 0..20);
    assert!(
        some_stitched > 0 && some_read > 0,
        "the one here, the other there"
    );
    assert!(asked.load(Ordering::Relaxed) > 100);
    flag.store(u64::MAX, Ordering::Relaxed);
    let (stitched, read) = between(engine, tree, 20..40);
    assert_eq!(stitched, 0);
    assert!(read > some_read, "{read} and {some_read} data blocks read");
}

#[test]
fn an_upsert_reads_no_data_block() {
    let (mut store, tree) = store(64 * KIB);
    put_all(store.engine(), tree, 0..2000);
    store.next_life(stitch_kv::conformance::Ending::Closed);
    let engine = store.engine();
    let before = engine.counters();
    let mut batch = Batch::new();
    batch.upsert(tree, &700u64.to_be_bytes(), APPEND, b"more");
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("there is space");
    assert_eq!(since(engine, &before)(DATA_BLOCKS_READ), 0);
    let found = engine.get(tree, &700u64.to_be_bytes(), None);
    let mut expected = value(700);
    expected.extend_from_slice(b"more");
    assert_eq!(found.expect("reads").as_deref(), Some(&expected[..]));
}

#[test]
fn a_scan_skips_what_a_range_delete_hides() {
    let (mut store, tree) = store(64 * KIB);
    put_all(store.engine(), tree, 0..20_000);
    store.next_life(stitch_kv::conformance::Ending::Closed);
    let engine = store.engine();
    let mut batch = Batch::new();
    let (start, end) = (10u64.to_be_bytes(), 19_990u64.to_be_bytes());
    batch.delete_range(tree, &start, &end);
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("there is space");
    for direction in [Direction::Forward, Direction::Backward] {
        let before = engine.counters();
        let mut scan = engine
            .scan(tree, KeyRange::all(), direction, None)
            .expect("the scan begins");
        let mut rows = 0;
        while scan.next().expect("the scan reads").is_some() {
            rows += 1;
        }
        drop(scan);
        assert_eq!(rows, 20);
        let read = since(engine, &before)(DATA_BLOCKS_READ);
        assert!(read < 20, "{read} blocks read");
    }
}

#[test]
fn what_a_range_delete_hides_is_dropped_unread() {
    let (store, tree) = store(64 * KIB);
    let engine = store.engine();
    put_all(engine, tree, 0..10_000);
    engine.quiesce().expect("background work succeeds");
    let free = engine.space().free_bytes;
    let before = engine.counters();
    let mut batch = Batch::new();
    batch.delete_range(tree, b"", &[255; 9]);
    let done = engine.commit(&batch, CommitOptions::default());
    done.expect("there is space");
    engine.quiesce().expect("background work succeeds");
    let grown = since(engine, &before);
    assert!(engine.space().free_bytes > free + 9 * MIB);
    assert!(grown("device.write_bytes") < MIB, "a few edits");
    assert!(grown(DATA_BLOCKS_READ) < 10);
}

/// The data is larger than the cache, and each block has two of the keys.
#[test]
fn many_keys_share_the_blocks_that_they_are_in() {
    const ROWS: u64 = 24_000;
    let (mut store, tree) = store(64 * KIB);
    put_all(store.engine(), tree, 0..ROWS);
    store.next_life(stitch_kv::conformance::Ending::Closed);
    let engine = store.engine();
    let mut keys: Vec<[u8; 8]> = (0..ROWS).step_by(2).map(u64::to_be_bytes).collect();
    let mut rng = Rng::new(9);
    for at in 1..keys.len() {
        let other = usize::try_from(rng.below(at as u64)).expect("it is small");
        keys.swap(at, other);
    }
    let named: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let before = engine.counters();
    let values = engine.get_many(tree, &named, None).expect("reads");
    for (key, found) in keys.iter().zip(values) {
        let key = u64::from_be_bytes(*key);
        assert_eq!(found.as_deref(), Some(&*value(key)), "key {key}");
    }
    let read = since(engine, &before)(DATA_BLOCKS_READ);
    assert!(read < ROWS / 3, "{read} blocks read");
}

#[test]
fn a_missing_key_reads_hardly_any_data_block() {
    let (mut store, tree) = store(64 * KIB);
    put_all(store.engine(), tree, (0..10_000).map(|key| key * 2));
    store.next_life(stitch_kv::conformance::Ending::Closed);
    let engine = store.engine();
    let before = engine.counters();
    for key in 0..10_000u64 {
        let found = engine.get(tree, &(key * 2 + 1).to_be_bytes(), None);
        assert_eq!(found.expect("reads"), None);
    }
    let grown = since(engine, &before);
    assert!(grown(counters::FILTER_PROBES) > 5000);
    assert!(grown(counters::FILTER_FALSE_POSITIVES) < 200);
    assert!(grown(DATA_BLOCKS_READ) < 200);
}

/// Counts how often it folds.
#[derive(Debug, Default)]
struct Counted(std::sync::atomic::AtomicU64);

impl stitch_kv::UpsertFn for Counted {
    fn id(&self) -> u32 {
        77
    }

    fn name(&self) -> &'static str {
        "counted"
    }

    fn fold(
        &self,
        _key: &[u8],
        old: Option<&[u8]>,
        delta: &[u8],
        out: &mut Vec<u8>,
    ) -> stitch_kv::Folded {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        out.extend_from_slice(old.unwrap_or_default());
        out.extend_from_slice(delta);
        stitch_kv::Folded::Value
    }
}

#[test]
fn a_value_folded_before_a_write_out_is_not_folded_into_again() {
    let (store, tree) = store(64 * KIB);
    let engine = store.engine();
    let mut batch = Batch::new();
    batch.put(tree, b"row", b"base");
    engine
        .commit(&batch, CommitOptions::default())
        .expect("there is space");
    engine.quiesce().expect("background work succeeds");
    let mut wanted = b"base".to_vec();
    for round in 0..12u8 {
        batch.clear();
        batch.upsert(tree, b"row", APPEND, &[round]);
        engine
            .commit(&batch, CommitOptions::default())
            .expect("there is space");
        wanted.push(round);
        if round == 9 {
            let found = engine.get(tree, b"row", None).expect("it can be read");
            assert_eq!(found.as_deref(), Some(&*wanted), "in the memtable");
        }
    }
    // Other rows fill the memtable, and it is written out: the chain is joined into one upsert,
    // whose newest write the folded value lacks.
    for key in 0..300u64 {
        batch.clear();
        batch.put(tree, &key.to_be_bytes(), &value(key));
        engine
            .commit(&batch, CommitOptions::default())
            .expect("there is space");
    }
    assert!(engine.step().expect("background work succeeds"));
    let found = engine.get(tree, b"row", None).expect("it can be read");
    assert_eq!(found.as_deref(), Some(&*wanted), "after the write-out");
}

#[test]
fn reads_of_a_row_with_many_upserts_fold_each_about_once() {
    let counted = std::sync::Arc::new(Counted::default());
    let mut registry = registry();
    registry.register(counted.clone());
    let store = Store::new(&Setup::default(), 64 * MIB, None, registry);
    let engine = store.engine();
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    let mut expected = Vec::new();
    for round in 0..2000u64 {
        let mut batch = Batch::new();
        batch.upsert(tree, b"row", 77, &round.to_be_bytes()[6..]);
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("there is space");
        expected.extend_from_slice(&round.to_be_bytes()[6..]);
        let found = engine.get(tree, b"row", None).expect("reads");
        assert_eq!(found.as_deref(), Some(&expected[..]));
    }
    let folds = counted.0.load(std::sync::atomic::Ordering::Relaxed);
    assert!(folds < 20 * 2000, "{folds} folds for 2,000 upserts");
}

#[test]
fn a_hit_reads_one_data_block_and_hardly_ever_another() {
    const ROWS: u64 = 20_000;
    let (store, tree) = store(64 * KIB);
    let engine = store.engine();
    let key = |n: u64| n * 7919 % ROWS;
    put_all(engine, tree, (0..ROWS).map(key));
    engine.quiesce().expect("background work succeeds");
    put_all(engine, tree, (0..ROWS / 3).map(|n| key(n * 3)));
    let before = engine.counters();
    let gets = 8000;
    let mut hits = 0;
    for n in 0..gets {
        let found = engine.get(tree, &key(n * 7 + 1).to_be_bytes(), None);
        hits += u64::from(found.expect("reads").is_some());
    }
    assert!(hits * 2 > gets, "{hits} of {gets} are there");
    let grown = since(engine, &before);
    let read = grown(DATA_BLOCKS_READ);
    assert!(read * 100 <= hits * 105, "{read} blocks for {hits} hits");
    // Also where all of them would be cold: a second block is read only where a filter is wrong.
    let wrong = grown(counters::FILTER_FALSE_POSITIVES);
    assert!(wrong * 100 <= hits * 5, "{wrong} false for {hits} hits");
}

#[test]
fn a_cold_get_waits_for_one_block_and_hardly_ever_for_an_index() {
    const ROWS: u64 = 12_000;
    let setup = Setup::sized(MIB, 2 * MIB, false);
    let mut store = Store::new(&setup, 192 * MIB, None, registry());
    let options = TreeOptions {
        block_bytes: 4096,
        ..TreeOptions::default()
    };
    let tree = store.engine().create_tree("tree", &options);
    let tree = tree.expect("the tree is made");
    put_pages(store.engine(), tree, (0..ROWS).map(|n| n * 7919 % ROWS));
    store.next_life(stitch_kv::conformance::Ending::Closed);
    let engine = store.engine();
    let before = engine.counters();
    let gets = 1000;
    for n in 0..gets {
        let key = (n * 6151 % ROWS).to_be_bytes();
        assert!(engine.get(tree, &key, None).expect("reads").is_some());
    }
    let grown = since(engine, &before);
    assert_eq!(grown(DATA_BLOCKS_READ), gets);
    let index = grown("device.reads") - gets;
    assert!(
        index * 100 <= gets * 5,
        "{index} reads of indexes for {gets} rows"
    );
}

/// Rows of 64 bytes in random order, one after the other, in a store of this setup. Answers the
/// keys.
fn put_short(engine: &VtEngine, tree: TreeId, count: u64) -> Vec<[u8; 8]> {
    let mut rng = Rng::new(count);
    let keys: Vec<[u8; 8]> = (0..count).map(|_| rng.next_u64().to_be_bytes()).collect();
    for some in keys.chunks(32) {
        let mut batch = Batch::new();
        for key in some {
            batch.put(tree, key, &[key[7]; 56]);
        }
        let put = engine.commit(&batch, CommitOptions::default());
        put.expect("there is space");
        while engine.step().expect("background work succeeds") {}
    }
    keys
}

#[test]
fn a_cold_get_reads_one_block_however_many_tables_of_level_0_there_are() {
    let mut setup = Setup::sized(256 * KIB, MIB, false);
    setup.options.level0_tables_max = 16;
    let mut store = Store::new(&setup, 128 * MIB, None, registry());
    let options = TreeOptions {
        block_bytes: 1024,
        ..TreeOptions::default()
    };
    let tree = store.engine().create_tree("tree", &options);
    let tree = tree.expect("the tree is made");
    let keys = put_short(store.engine(), tree, 32_000);
    let written = store.engine().counters();
    assert!(written.get("vt.write_outs") > 10, "many tables");
    assert_eq!(written.get("vt.compactions"), 0, "all of them in level 0");
    store.next_life(stitch_kv::conformance::Ending::Closed);
    let engine = store.engine();
    let before = engine.counters();
    let mut gets = 0;
    for key in keys.iter().step_by(64) {
        let found = engine.get(tree, key, None).expect("reads");
        assert_eq!(found.expect("it was put"), [key[7]; 56][..]);
        gets += 1;
    }
    let grown = since(engine, &before);
    let probes = grown(counters::FILTER_PROBES);
    assert!(probes > 4 * gets, "{probes} filters for {gets} rows");
    let read = grown(DATA_BLOCKS_READ);
    assert!(
        read * 100 <= gets * 105,
        "{read} data blocks for {gets} rows"
    );
    // Also where no row were in the block of another.
    let wrong = grown(counters::FILTER_FALSE_POSITIVES);
    assert!(wrong * 100 <= gets * 2, "{wrong} false for {gets} rows");
    let index = grown("device.reads") - read;
    assert!(
        index * 100 <= gets * 10,
        "{index} reads of indexes for {gets} rows"
    );
}
