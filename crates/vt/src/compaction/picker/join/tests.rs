use super::super::{Moments, Pressure, pick};
use super::*;
use crate::compaction::exclusions::Exclusions;
use crate::counters::MERGED_BYTES;
use crate::held::HeldSeqnos;
use crate::testing::{MIB, Small, text_version};
use crate::version::Version;
use std::collections::BTreeMap;
use stitch_base::random::Rng;
use stitch_kv::{Batch, Engine, TreeOptions};

const TABLE_BYTES: u64 = 200;

fn options(table_bytes: u64) -> PickOptions {
    PickOptions {
        level0_tables: 4,
        level0_batch: 8,
        cost_max: u64::MAX,
        level1_bytes: 1 << 40,
        fanout: 8,
        table_bytes,
        input_bytes_max: 2500,
    }
}

/// Levels that have more tables than they may, as text.
fn over_bound(version: &Version, table_bytes: u64) -> Vec<String> {
    let mut over = Vec::new();
    for tree in version.trees.values() {
        for (n, level) in tree.levels.iter().enumerate().skip(1) {
            let (count, weight) = (level.tables.len() as u64, level.weight);
            if count > 2 * weight / table_bytes + 1 {
                over.push(format!("L{n}: {count} tables weigh {weight}"));
            }
        }
    }
    over
}

/// A version with tables of these weights in level 2, in this order.
fn version_of(weights: &[(u64, u64)]) -> Version {
    let mut text = "tree 1\n".to_owned();
    for (at, (id, weight)) in weights.iter().enumerate() {
        text += &format!("L2 {id} {at:04}a..{at:04}z {weight}\n");
    }
    text_version(&text)
}

/// Carries out joins as if nothing could vanish. Answers how many.
fn join_all(weights: &mut Vec<(u64, u64)>, exclusions: &Exclusions, overhead: u64) -> usize {
    let moments = Moments {
        held: &HeldSeqnos::default(),
        released: &BTreeMap::new(),
    };
    let options = options(TABLE_BYTES);
    for joins in 0.. {
        let version = version_of(weights);
        let input = PickInput {
            version: &version,
            moments,
            pressure: Pressure::Shape,
            rules: PickRules::new(&options, exclusions),
        };
        let Some(plan) = pick(&input) else {
            return joins;
        };
        assert_eq!(plan.kind, PlanKind::Join);
        let ids: Vec<u64> = plan.upper.iter().map(|t| t.meta().id.0).collect();
        let first = weights.iter().position(|(id, _)| *id == ids[0]);
        let first = first.expect("it is there");
        let joined: Vec<_> = weights.drain(first..first + ids.len()).collect();
        assert!(
            joined.iter().map(|(id, _)| *id).eq(ids.iter().copied()),
            "neighbours"
        );
        let sum: u64 = joined.iter().map(|(_, weight)| weight).sum();
        assert!(sum <= TABLE_BYTES && ids.len() <= TABLES_MAX, "{joined:?}");
        weights.insert(first, (ids[0], sum - overhead.min(sum / 2)));
    }
    unreachable!("it ends")
}

#[test]
fn joins_end_and_the_bound_holds() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let most = 1 + rng.below(2 * TABLE_BYTES);
        let weight = |id| (id, 1 + rng.below(most));
        let mut weights: Vec<_> = (1..=80).map(weight).collect();
        let before = weights.len();
        let joins = join_all(&mut weights, &Exclusions::default(), seed % 10);
        assert_eq!(
            over_bound(&version_of(&weights), TABLE_BYTES),
            [""; 0],
            "seed {seed}"
        );
        assert!(joins <= before - weights.len(), "each takes one at least");
    }
}

#[test]
fn a_level_within_its_bound_is_left_alone() {
    let mut weights: Vec<(u64, u64)> = (1..=9).map(|id| (id, 101)).collect();
    assert_eq!(join_all(&mut weights, &Exclusions::default(), 0), 0);
    let mut weights: Vec<(u64, u64)> = (1..=9).map(|id| (id, 80)).collect();
    assert!(join_all(&mut weights, &Exclusions::default(), 0) > 0);
}

#[test]
fn what_is_avoided_is_not_joined_and_it_ends_nevertheless() {
    let mut weights: Vec<(u64, u64)> = (1..=60).map(|id| (id, 10)).collect();
    let mut exclusions = Exclusions::default();
    let avoided = (1..=60).step_by(3).map(stitch_base::TableId);
    exclusions.avoided.extend(avoided);
    // Of each three, the two beside each other.
    assert_eq!(join_all(&mut weights, &exclusions, 0), 20);
    assert_eq!(weights.len(), 40);
}

/// Thresholds from a tree that copies nothing that does not overlap to a plain LSM-tree.
const THRESHOLDS: [u64; 4] = [0, 4 << 10, 64 << 10, u64::MAX];

fn store(stitch_bytes: u64) -> Small {
    let mut store = Small::new(64 * MIB);
    let options = TreeOptions {
        stitch_bytes,
        ..TreeOptions::default()
    };
    store.tree = store.engine.create_tree("other", &options).unwrap();
    store
}

fn delete_range(store: &mut Small, keys: std::ops::Range<u64>) {
    let mut batch = Batch::new();
    let (start, end) = (keys.start.to_be_bytes(), keys.end.to_be_bytes());
    batch.delete_range(store.tree, &start, &end);
    store.commit(&batch);
    store.rows.retain(|key, _| !keys.contains(key));
}

/// Does all that is due and answers the number of tables below level 0, which nothing changes any
/// more.
fn at_rest(store: &Small) -> usize {
    for _ in 0..2 {
        store.engine.quiesce().unwrap();
    }
    let compactions = store.counter("vt.compactions");
    store.engine.quiesce().unwrap();
    let mut steps = (0..1000).map(|_| store.engine.step().unwrap());
    assert!(steps.any(|had_work| !had_work), "it comes to rest");
    assert_eq!(store.counter("vt.compactions"), compactions);
    let version = store.engine.store.version();
    let table_bytes = store.engine.store.sizing.now().pick.table_bytes;
    assert_eq!(over_bound(&version, table_bytes), [""; 0]);
    version.tables().filter(|(level, _)| *level > 0).count()
}

#[test]
fn what_is_left_of_tables_is_joined() {
    for stitch_bytes in THRESHOLDS {
        for value_bytes in [500, 3000] {
            let mut store = store(stitch_bytes);
            let rows = (8 << 20) / value_bytes as u64;
            let mut snapshots = Vec::new();
            for _ in 0..3 {
                store.put(0, rows, value_bytes);
                snapshots.push(store.engine.snapshot());
            }
            let before = at_rest(&store);
            assert_eq!(store.counter("vt.joined_tables"), 0);
            drop(snapshots);
            let after = at_rest(&store);
            let joined = store.counter("vt.joined_tables");
            let case = format!("threshold {stitch_bytes}, values of {value_bytes}");
            assert!(joined > 0 && after < before, "{case}: {before}, {after}");
            let part = rows / 48;
            for first in (0..rows).step_by(part as usize) {
                delete_range(&mut store, first..first + part * 3 / 4);
            }
            store.delete((0..rows).filter(|key| key % 3 == 0));
            at_rest(&store);
            store.engine.defrag(&mut |_, _| true).unwrap();
            store.scatter(rows / 32, rows, value_bytes);
            at_rest(&store);
            store.check();
        }
    }
}

#[test]
fn a_join_copies_no_data_whatever_the_threshold() {
    for stitch_bytes in THRESHOLDS {
        let mut store = store(stitch_bytes);
        store.reopen_as(|options| {
            options.memtable_bytes = Some(64 << 10);
            options.table_bytes = Some(64 << 10);
        });
        store.put(0, 20_000, 500);
        let before = at_rest(&store);
        store.reopen_as(|options| options.table_bytes = Some(1 << 20));
        let merged = store.counter(MERGED_BYTES);
        let written = store.counter("device.write_bytes");
        let after = at_rest(&store);
        assert!(after < before / 4, "{after} tables of {before}");
        let merged = store.counter(MERGED_BYTES) - merged;
        let written = store.counter("device.write_bytes") - written;
        let live = store.live_bytes();
        assert!(merged < live / 20, "{merged} of {live} bytes");
        assert!(written < live / 10, "{written} beside {live} bytes");
        store.check();
    }
}

#[test]
fn puts_in_random_order_meet_no_joins() {
    let mut store = store(64 << 10);
    store.reopen_as(|options| {
        options.memtable_bytes = Some(128 << 10);
        options.table_bytes = Some(128 << 10);
        options.level1_bytes = Some(512 << 10);
    });
    for _ in 0..100 {
        store.scatter(400, 1 << 16, 500);
        while store.engine.step().unwrap() {}
    }
    assert!(store.counter("vt.compactions") > 100);
    assert_eq!(store.counter("vt.joined_tables"), 0);
    at_rest(&store);
}
