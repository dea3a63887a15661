use super::*;
use crate::options::VtOptions;
use crate::testing::{Small, meta, text_version};
use crate::version::{VersionBuilder, table_bytes};
use std::sync::Arc;
use stitch_base::{TableId, TreeId};
use stitch_format::vt_manifest::{Run, TableMeta};
use stitch_kv::{Batch, Engine};

const MIB: usize = 1 << 20;

fn with_runs(id: u64, count: u64) -> TableMeta {
    let run = |n| Run {
        addr: id * 1_000_000 + 2 * n * 512,
        len_bytes: 512,
    };
    TableMeta {
        runs: (0..count).map(run).collect(),
        ..meta(TreeId(1), id, &format!("k{id}"), &format!("k{id}z"))
    }
}

#[test]
fn lists_are_counted_as_they_come_and_go() {
    let version = text_version("tree 1\nL1 3 a..c 100\nL1 4 d..e 100");
    let lists = Arc::clone(&version.lists);
    let two = lists.bytes();
    assert!(two > 0, "tables that were never read take memory");
    let mut edit = version.edit();
    edit.added.push((1, Arc::new(with_runs(5, 10_000))));
    edit.removed.push(TableId(3));
    let mut builder = VersionBuilder::new(version.clone());
    builder.apply(&edit).expect("it belongs to the version");
    let next = builder.finish().expect("nothing overlaps");
    let with_all = lists.bytes();
    assert_eq!(with_all, two + table_bytes(&with_runs(5, 10_000)));
    assert!(with_all > two + 10_000 * size_of::<Run>());
    // A reader of the old version has the removed table still.
    drop(version);
    assert_eq!(lists.bytes(), with_all - two / 2);
    drop(next);
    assert_eq!(lists.bytes(), 0);
}

#[test]
fn a_table_that_cannot_be_added_is_not_counted() {
    let version = text_version("tree 1\nL1 3 a..c 100");
    let before = version.lists.bytes();
    let mut edit = version.edit();
    edit.added.push((1, Arc::new(meta(TreeId(1), 5, "b", "d"))));
    let mut builder = VersionBuilder::new(version.clone());
    builder
        .apply(&edit)
        .expect("the order is checked at the end");
    assert!(builder.finish().is_err());
    assert_eq!(version.lists.bytes(), before);
}

#[test]
fn the_cache_gets_what_lists_leave_and_a_least() {
    let options = VtOptions {
        compactors: 1,
        ..VtOptions::default()
    };
    let sizes = Sizes::new(&options, 8 << 30, 256 << 20);
    assert_eq!(sizes.cache_beside(0), 22 * MIB);
    assert_eq!(sizes.cache_beside(10 * MIB), 12 * MIB);
    assert_eq!(sizes.cache_beside(14 * MIB), 8 * MIB);
    assert_eq!(sizes.cache_beside(500 * MIB), 8 * MIB);
}

#[test]
fn a_memtable_is_full_with_the_index_entries_of_its_runs() {
    let small = Small::new(64 << 20);
    let mut batch = Batch::new();
    for number in 0..200u64 {
        batch.put(small.tree, &number.to_be_bytes(), &[7; 2000]);
    }
    small.commit(&batch);
    let store = &small.engine.store;
    let view = store.views.get();
    let active = view.active();
    assert_eq!(
        active.direct.count(),
        1,
        "values are in blocks of their own"
    );
    let inside = active.memtable.bytes() as u64;
    assert_eq!(active.memory_bytes(), inside + active.direct.memory_bytes());
    assert!(active.memory_bytes() > inside + 50 * size_of::<Run>() as u64);
    let sizes = |memtable| Sizes {
        memtable,
        ..store.sizing.opened
    };
    assert!(active.is_full_for(1, &sizes(active.memory_bytes())));
    assert!(!active.is_full_for(0, &sizes(active.memory_bytes())));
    assert_eq!(
        small.counter("vt.memtable_memory_bytes"),
        active.memory_bytes()
    );
}

#[test]
fn the_cache_follows_the_version_that_is_installed() {
    let mut small = Small::new(64 << 20);
    let capacity = |small: &Small| small.counter("vt.cache_memory_bytes_max");
    let empty = capacity(&small);
    small.scatter(2000, 5000, 1000);
    small.engine.quiesce().expect("nothing is wrong");
    let lists = small.counter("vt.list_memory_bytes");
    assert!(lists > 0, "there are tables");
    // The last compaction may have held what it removed until after its version came.
    assert!(capacity(&small) <= empty - lists);
    assert!(capacity(&small) > empty / 2);
    small.reopen();
    let lists = small.counter("vt.list_memory_bytes");
    assert!(lists > 0, "they are there again");
    let shards = 16;
    assert!((empty - lists - shards..=empty - lists).contains(&capacity(&small)));
    small.engine.drop_tree(small.tree).expect("it is there");
    small.reopen();
    assert_eq!(small.counter("vt.list_memory_bytes"), 0);
    assert_eq!(capacity(&small), empty, "it has all again");
}
