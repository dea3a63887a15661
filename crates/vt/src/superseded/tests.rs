use super::*;
use crate::VtOptions;
use crate::compaction::Pressure;
use crate::held::HeldSeqnos;
use crate::key_moments::tests::of_range;
use crate::testing::{MIB, Small, walks};
use stitch_kv::Engine;

fn seqnos(numbers: &[u64]) -> Arc<[Seqno]> {
    numbers.iter().map(|n| Seqno(*n)).collect()
}

/// None yet, while these moments are held of every key.
fn held(snapshots: &[u64]) -> Superseded {
    Superseded::new(KeyMoments::of_every_key(&seqnos(snapshots)))
}

/// Versions that no reader needs while these snapshots are held.
fn released(superseded: &Superseded, snapshots: &[u64]) -> u64 {
    superseded.released_count(&seqnos(snapshots))
}

#[test]
fn a_version_goes_with_the_last_snapshot_between_it_and_the_next() {
    let mut superseded = held(&[10, 20, 30]);
    superseded.add(b"k", Seqno(5), Seqno(15));
    superseded.add(b"k", Seqno(10), Seqno(21));
    superseded.add(b"k", Seqno(25), Seqno(35));
    assert_eq!(released(&superseded, &[10, 20, 30]), 0);
    assert_eq!(released(&superseded, &[10, 20, 40]), 1);
    assert_eq!(released(&superseded, &[20, 30]), 1);
    assert_eq!(released(&superseded, &[10, 30]), 0);
    assert_eq!(released(&superseded, &[30]), 2);
    assert_eq!(released(&superseded, &[]), 3);
}

#[test]
fn a_version_is_held_by_the_moments_of_its_key() {
    let ranged = vec![of_range("10", ("c", "f")), of_range("20", ("a", "d"))];
    let mut superseded = Superseded::new(KeyMoments::new(Vec::new(), ranged));
    superseded.add(b"b", Seqno(5), Seqno(15));
    assert!(superseded.is_empty(), "an upsert stands on it");
    superseded.add(b"c", Seqno(5), Seqno(25));
    superseded.add(b"e", Seqno(5), Seqno(25));
    assert_eq!(released(&superseded, &[10]), 0);
    assert_eq!(released(&superseded, &[20]), 1);
    assert_eq!(released(&superseded, &[]), 2);
}

#[test]
fn samples_tell_how_many_versions_are_released_between_others() {
    let mut superseded = held(&[10]);
    for key in 0..1000u32 {
        superseded.add(&key.to_be_bytes(), Seqno(5), Seqno(15));
    }
    let samples = &superseded.samples;
    assert!(samples.keys.len() <= SAMPLES_MAX);
    assert!(samples.keys.len() > SAMPLES_MAX / 4, "they are many");
    // Every other run of a hundred keys is held.
    let held = (0..10).step_by(2).map(|run: u32| {
        let bound = |run: u32| (100 * run).to_be_bytes().to_vec();
        (bound(run), Some(bound(run + 1)))
    });
    let ranged = vec![(Seqno(10), stitch_kv::KeyRanges::new(held))];
    let moments = KeyMoments::new(Vec::new(), ranged);
    assert_eq!(released(&superseded, &[10]), 0, "some key is held");
    let count = samples.released_count(&moments);
    assert!((300..700).contains(&count), "{count} of about 500");
    let whole = KeyMoments::of_every_key(&[Seqno(10)]);
    assert_eq!(samples.released_count(&whole), 0);
}

#[test]
fn a_version_that_no_snapshot_holds_is_there_for_another_reason() {
    let mut superseded = held(&[10]);
    superseded.add(b"k", Seqno(11), Seqno(12));
    superseded.add(b"k", Seqno(8), Seqno(10));
    assert!(superseded.is_empty());
}

#[test]
fn many_sets_of_holders_are_taken_together_and_none_is_lost() {
    let all: Vec<u64> = (1..=100).map(|n| 10 * n).collect();
    let mut superseded = held(&all);
    for n in 1..=100 {
        superseded.add(b"k", Seqno(10 * n - 1), Seqno(10 * n + 1));
    }
    assert_eq!(superseded.held.len(), HOLDERS_MAX);
    assert_eq!(released(&superseded, &all), 0);
    assert_eq!(released(&superseded, &[]), 100);
}

#[test]
fn a_block_is_counted_by_its_entries_and_its_keys() {
    let mut filter = Vec::new();
    let mut hashes: Vec<u64> = (1..=6).map(|n| n << 60).collect();
    stitch_filter::QuotientFilter::build(
        &mut hashes,
        stitch_filter::Precision::Normal,
        &mut filter,
    );
    let block = IndexEntry {
        entry_count: 10,
        has_versions: true,
        min_seqno: Seqno(5),
        max_seqno: Seqno(25),
        filter,
        ..IndexEntry::default()
    };
    let mut superseded = held(&[10, 20, 30]);
    superseded.add_block(&block);
    assert_eq!(released(&superseded, &[20, 30]), 0);
    assert_eq!(released(&superseded, &[30]), 4);
    let plain = IndexEntry {
        has_versions: false,
        ..block.clone()
    };
    superseded.add_block(&plain);
    assert_eq!(released(&superseded, &[]), 4);
    let gone = |first, last| BTreeSet::from([(Seqno(first), Seqno(last))]);
    assert!(has_released(&block, &gone(10, 20)));
    assert!(!has_released(&block, &gone(10, 25)));
    assert!(!has_released(&plain, &gone(10, 20)));
    let mut after = Superseded::default();
    after.add_block(&block);
    assert_eq!(released(&after, &[]), 4);
}

/// Live bytes of a store with these rows written again and again, after settling.
fn settled(store: &Small) -> u64 {
    store.engine.quiesce().unwrap();
    store.check();
    store.live_bytes()
}

#[test]
fn a_snapshot_keeps_what_it_alone_can_see() {
    let mut store = Small::new(64 * MIB);
    let rows = 4096;
    store.put(0, rows, 1000);
    let once = settled(&store);
    let old = store.engine.snapshot();
    store.put(0, rows, 1000);
    let short = store.engine.snapshot();
    store.put(0, rows, 1000);
    let thrice = settled(&store);
    assert!(
        thrice > once / 10 * 29,
        "{once} for one, {thrice} for three"
    );
    drop(short);
    let twice = settled(&store);
    assert!(twice < once / 10 * 21, "{once} for one, {twice} for two");
    let first = store
        .engine
        .get(store.tree, &0u64.to_be_bytes(), Some(&old))
        .unwrap();
    assert!(first.is_some_and(|value| value != store.rows[&0]));
    let compactions = store.counter("vt.compactions");
    // One that holds nothing is no reason to look again.
    drop(store.engine.snapshot());
    assert_eq!(settled(&store), twice);
    assert_eq!(store.counter("vt.compactions"), compactions);
    drop(old);
    let after = settled(&store);
    assert!(after < once / 10 * 11, "{once} for one, {after}");
}

#[test]
fn a_full_store_gets_back_what_a_dropped_snapshot_held() {
    for is_opened_again in [false, true] {
        let mut store = Small::new(32 * MIB);
        let rows = 8000;
        store.put(0, rows, 1900);
        store.engine.quiesce().unwrap();
        let snapshot = store.engine.snapshot();
        // Until there is hardly room for more.
        let mut end = 0;
        while store.engine.space().free_bytes > MIB {
            store.put(end, 50, 1900);
            end += 50;
        }
        assert!(1000 < end && end < rows, "{end} rows were written again");
        store.engine.quiesce().unwrap();
        drop(snapshot);
        if is_opened_again {
            store.reopen();
        }
        // Without a quiesce in between, and these rows overlap nothing.
        store.put(rows, 4500, 1900);
        store.check();
    }
}

fn small_tables(options: &mut VtOptions) {
    options.memtable_bytes = Some(32 << 10);
    options.table_bytes = Some(32 << 10);
}

#[test]
fn all_tables_are_looked_at_in_a_few_walks_over_them() {
    for is_settled in [true, false] {
        let mut store = Small::new(64 * MIB);
        store.reopen_as(small_tables);
        store.put(0, 8192, 1000);
        store.engine.quiesce().unwrap();
        store.reopen_as(small_tables);
        let tables = store.engine.store.version().tables().count();
        assert!(tables > 100, "{tables} tables");
        let before = walks();
        match is_settled {
            true => store.engine.quiesce().unwrap(),
            false => {
                while store
                    .engine
                    .store
                    .compactor
                    .compact_one(Pressure::Space)
                    .unwrap()
                {}
            }
        }
        let walks = walks() - before;
        assert!(walks < 20, "{walks} walks over {tables} tables");
        assert!(
            !store.engine.store.compactor.scan_for_superseded(1),
            "all are known"
        );
    }
}

#[test]
fn what_goes_while_it_is_looked_at_is_forgotten() {
    let mut store = Small::new(64 * MIB);
    store.put(0, 64, 1000);
    store.engine.quiesce().unwrap();
    store.reopen();
    let superseded = &store.engine.store.tables.superseded;
    let table = superseded.take_unknown().expect("there is one");
    let some = Superseded {
        unheld: 3,
        ..Superseded::default()
    };
    superseded.forget(table.meta().id);
    superseded.found(table.meta(), some);
    assert_eq!(
        *superseded.released(&HeldSeqnos::default()),
        BTreeMap::new()
    );
}
