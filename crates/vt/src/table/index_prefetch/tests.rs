use super::*;
use crate::cache::BlockCache;
use crate::table::leaves::{Reader, Seen};
use crate::table::tests::{Bed, numbered, options};
use crate::table::{OneByOne, PointRead, Table};
use crate::testing::Small;
use std::ops::ControlFlow;
use stitch_base::Seqno;
use stitch_device::Device;
use stitch_kv::{Engine, KeyRange, Priority, ReadHint, ReadOrder};
use stitch_volume::Volume;

/// What may be read ahead.
const AHEAD_BYTES: u64 = 1 << 20;

/// A table with index blocks of 4 KiB in several groups.
fn written(bed: &Bed) -> Arc<Table> {
    bed.table(&numbered(0..8000, 500), &options(1024))
}

/// The same table, with nothing of it in a cache of `cache_bytes`.
fn cold(bed: &Bed, table: &Table, cache_bytes: usize, ahead_bytes: u64) -> Arc<Table> {
    let cache = BlockCache::new(cache_bytes).with_readers(ahead_bytes);
    let volume = Arc::clone(&bed.volume);
    Table::open(volume, Arc::new(cache), Arc::clone(table.meta()))
}

/// Looks a key up. Answers true if it had to read an index block.
fn look_up(table: &Arc<Table>, number: u64) -> bool {
    let key = format!("key{number:08}");
    let mut source = OneByOne;
    let mut read = PointRead::new(key.as_bytes(), Seqno(u64::MAX), &mut source);
    let mut found = false;
    let visit = &mut |_: crate::entry::EntryRef<'_>, _: Option<&bytes::Bytes>| {
        found = true;
        ControlFlow::Break(())
    };
    let _ = table.versions_of(&mut read, visit).unwrap();
    assert!(found, "{key} is there");
    read.take_index_read()
}

/// Has the indexes of tables fetched, as who missed a block of the first one's.
fn fetch(tables: &[&Arc<Table>]) {
    let hold = |table: &&Arc<Table>| (Arc::clone(table), Arc::clone(table) as _);
    tables[0].fetch_indexes(|| tables.iter().map(hold));
}

/// Looks a key up as the store does. Answers true if it had to read an index block.
fn get(table: &Arc<Table>, number: u64) -> bool {
    let is_read = look_up(table, number);
    if is_read {
        fetch(&[table]);
    }
    is_read
}

fn leaves(table: &Table) -> Vec<Leaf> {
    let root = table.root(&mut 0).unwrap();
    match &root.root.index {
        RootIndex::Leaves(leaves) => leaves.clone(),
        other => panic!("a table with many index blocks, not {other:?}"),
    }
}

/// Index blocks that are in the cache, once all prefetches have ended.
fn cached(table: &Table) -> usize {
    table.loader.cache.index_prefetches().finish();
    let leaves = leaves(table);
    let is_cached = |leaf: &&Leaf| {
        let key = table.loader.own_key(leaf.block.addr);
        table.loader.cache.glance(&key).is_some()
    };
    leaves.iter().filter(is_cached).count()
}

#[test]
fn after_a_miss_the_rest_of_a_short_index_is_there() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    let table = cold(&bed, &written, 8 << 20, AHEAD_BYTES);
    let count = leaves(&table).len();
    assert!(get(&table, 4000), "the first waits");
    assert_eq!(cached(&table), count);
    let misses = (0..8000).filter(|number| get(&table, number * 7 % 8000));
    assert_eq!(misses.count(), 0);
    table.loader.cache.index_prefetches().clear();
}

#[test]
fn a_miss_waits_for_one_block_alone() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    for (ahead_bytes, reads_group) in [(AHEAD_BYTES, false), (0, true)] {
        let table = cold(&bed, &written, 8 << 20, ahead_bytes);
        leaves(&table);
        let before = bed.device.counters().read_bytes;
        assert!(look_up(&table, 4000), "nothing is there");
        let read = bed.device.counters().read_bytes - before;
        assert_eq!(read > 16 << 10, reads_group, "{read} bytes");
    }
}

#[test]
fn a_miss_has_only_so_much_fetched() {
    let bed = Bed::new(256 << 20);
    // Long keys make a long index.
    let row = |n: u64| {
        let key = format!("key{n:08}{}", "k".repeat(600)).into_bytes();
        ((key, std::cmp::Reverse(n + 1)), Some(vec![7; 1000]))
    };
    let written = bed.table(&(0..8000).map(row).collect(), &options(1024));
    let table = cold(&bed, &written, 64 << 20, AHEAD_BYTES);
    let leaves = leaves(&table);
    let index_bytes = leaves[leaves.len() - 1].block.end() - leaves[0].block.addr;
    assert!(
        index_bytes > 4 * PREFETCH_BYTES,
        "{index_bytes} bytes of index"
    );
    let before = bed.device.counters().read_bytes;
    let mut seen = Seen::default();
    let root = table.root(&mut 0).unwrap();
    table
        .loader
        .leaf(&root, &leaves, 20, Reader::Walk, &mut seen)
        .unwrap();
    assert_eq!(seen.reads, 1);
    fetch(&[&table]);
    let cached = cached(&table);
    assert!(cached > 0 && cached < leaves.len() / 2, "{cached} blocks");
    let read = bed.device.counters().read_bytes - before;
    assert!(read <= PREFETCH_BYTES + (512 << 10), "{read} bytes");
    table.loader.cache.index_prefetches().clear();
}

#[test]
fn what_follows_is_fetched_too_and_more_with_each_wait() {
    let bed = Bed::new(256 << 20);
    let tables: Vec<_> = (0..12).map(|_| written(&bed)).collect();
    let cache = Arc::new(BlockCache::new(64 << 20).with_readers(AHEAD_BYTES));
    let open = |table: &Arc<Table>| {
        let (volume, cache) = (Arc::clone(&bed.volume), Arc::clone(&cache));
        Table::open(volume, cache, Arc::clone(table.meta()))
    };
    let cold: Vec<_> = tables.iter().map(open).collect();
    let follow = |first: usize| cold[first..].iter().collect::<Vec<_>>();
    let count = leaves(&tables[0]).len();
    let index_bytes = count as u64 * 4096;
    let mut missing = Vec::new();
    for _ in 0..4 {
        let is_cold = |table: &Arc<Table>| cached(table) < count;
        let Some(first) = cold.iter().position(is_cold) else {
            break;
        };
        missing.push(cold.len() - first);
        fetch(&follow(first));
    }
    let fetched = (missing[0] - missing[1]) as u64;
    assert!(fetched <= PREFETCH_BYTES / index_bytes + 1, "{missing:?}");
    assert!(
        missing[1] - missing[2] > missing[0] - missing[1],
        "{missing:?}"
    );
    cache.index_prefetches().clear();
}

#[test]
fn half_of_the_cache_is_left_to_others() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    let index_bytes: u64 = leaves(&written)
        .iter()
        .map(|l| u64::from(l.block.len_bytes))
        .sum();
    let cache_bytes = usize::try_from(index_bytes).unwrap();
    let table = cold(&bed, &written, cache_bytes, AHEAD_BYTES);
    get(&table, 0);
    let (cached, count) = (cached(&table), leaves(&table).len());
    assert!(cached < count * 3 / 4, "{cached} of {count}");
    let cache = &table.loader.cache;
    assert!(cache.bytes() < cache.capacity() * 3 / 4);
    cache.index_prefetches().clear();
}

#[test]
fn who_may_not_read_ahead_does_not() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    let table = cold(&bed, &written, 8 << 20, 0);
    get(&table, 0);
    let before = cached(&table);
    assert!(before < leaves(&table).len());
}

#[test]
fn what_is_wrong_is_told_to_who_comes_to_it() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    let all = leaves(&written);
    let bad = all[all.len() / 2].block.addr + 200;
    let mut byte = [0; 1];
    bed.device.read_at(bad, &mut byte).unwrap();
    bed.device.write_at(bad, &[&[byte[0] ^ 1]]).unwrap();
    let table = cold(&bed, &written, 8 << 20, AHEAD_BYTES);
    get(&table, 0);
    assert_eq!(cached(&table), all.len() - 1);
    let error = table
        .loader
        .index(&all, all.len() / 2, Reader::Walk, &mut Seen::default())
        .unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    table.loader.cache.index_prefetches().clear();
}

#[test]
fn what_was_not_begun_is_given_up() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    let table = cold(&bed, &written, 8 << 20, AHEAD_BYTES);
    let holder: Holder = Arc::new(());
    let prefetches = table.loader.cache.index_prefetches();
    for _ in 0..2 * PREFETCHES_MAX {
        table.fetch_indexes(|| std::iter::once((Arc::clone(&table), Arc::clone(&holder))));
    }
    assert!(prefetches.count() <= PREFETCHES_MAX);
    prefetches.clear();
    assert_eq!(Arc::strong_count(&holder), 1, "nothing is held any more");
    let volume: &Arc<Volume> = &bed.volume;
    assert!(Arc::strong_count(volume) > 1, "the table itself");
}

/// Regression: a batch began eight, of up to 79 MiB in all.
#[test]
fn a_batch_of_keys_begins_one() {
    let mut bed = Small::new(256 << 20);
    bed.reopen_as(|options| {
        (options.memtable_bytes, options.table_bytes) = (Some(4 << 20), Some(4 << 20));
    });
    bed.put(0, 40_000, 1000);
    bed.engine.quiesce().expect("it is written out");
    bed.reopen_as(|options| options.background = true);
    let keys: Vec<_> = (0..40_000u64).step_by(1000).map(u64::to_be_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let values = bed.engine.get_many(bed.tree, &keys, None).expect("a read");
    assert!(values.iter().all(Option::is_some));
    let waits = bed.counter("vt.index_waits");
    assert!(
        waits > 3,
        "{waits} tables with an index that is not in the cache"
    );
    let next = bed.engine.store.cache.index_prefetches().next_bytes();
    assert_eq!(next, 2 * PREFETCH_BYTES, "one was handed over");
    bed.engine.close().expect("it closes");
}

/// Regression: a prefetch that waited for a thread kept the tables of its view, and their space.
#[test]
fn what_waits_for_a_thread_keeps_no_space() {
    let mut bed = Small::new(64 << 20);
    bed.reopen_as(|options| {
        (options.memtable_bytes, options.table_bytes) = (Some(1 << 20), Some(1 << 20));
    });
    let before = bed.live_bytes();
    bed.put(0, 10_000, 500);
    bed.engine.quiesce().expect("it is written out");
    bed.reopen_as(|options| options.background = true);
    let readers = bed.engine.store.cache.readers();
    let gate = Arc::new(Mutex::new(()));
    // Opened before the tasks are waited for, also where the test fails.
    let busy: Vec<Ahead<()>>;
    let closed = gate.lock();
    busy = (0..8)
        .map(|_| {
            let gate = Arc::clone(&gate);
            readers.hand(move || drop(gate.lock()), Priority::Soon)
        })
        .collect();
    let value = bed.engine.get(bed.tree, &5000_u64.to_be_bytes(), None);
    assert!(value.expect("a read").is_some());
    let prefetches = bed.engine.store.cache.index_prefetches();
    assert_eq!(prefetches.count(), 1, "indexes are prefetched");
    let (start, end) = (6000_u64.to_be_bytes(), 7000_u64.to_be_bytes());
    let hint = ReadHint {
        range: KeyRange::new(&start, &end),
        beyond: None,
        order: ReadOrder::Sequential,
        priority: Priority::Later,
        once: false,
    };
    assert!(bed.engine.read_ahead(bed.tree, &hint), "there is memory");
    let with_rows = bed.live_bytes();
    bed.delete(0..10_000);
    bed.engine.quiesce().expect("it settles");
    let left = bed.live_bytes() - before;
    assert!(left < (with_rows - before) / 20, "{left} of {with_rows}");
    drop(closed);
    busy.into_iter().for_each(|task| task.take());
    bed.check();
    bed.engine.close().expect("it closes");
}
