use super::*;
use crate::cache::{BlockCache, BlockKey, ReadCount};
use crate::table::blocks::BlockList;
use crate::table::tests::{Bed, numbered, options};
use crate::table::{DataBlock, Table};
use stitch_base::{ErrorKind, TableId};
use stitch_device::Device;
use stitch_format::vt_root::RootIndex;

/// A table with index blocks of 4 KiB in several groups.
fn written(bed: &Bed) -> Arc<Table> {
    bed.table(&numbered(0..8000, 500), &options(1024))
}

/// The same table, with nothing of it in a cache of `cache_bytes`.
fn cold(bed: &Bed, table: &Table, cache_bytes: usize) -> Arc<Table> {
    let cache = Arc::new(BlockCache::new(cache_bytes));
    Table::open(Arc::clone(&bed.volume), cache, Arc::clone(table.meta()))
}

fn leaves(table: &Table) -> Vec<Leaf> {
    let root = table.root(&mut 0).unwrap();
    match &root.root.index {
        RootIndex::Leaves(leaves) => leaves.clone(),
        other => panic!("a table with many index blocks, not {other:?}"),
    }
}

/// Which block is the first with keys at or after each key, as the index says.
fn found(table: &Arc<Table>, keys: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut blocks = table.blocks();
    let find = |key: u64| {
        blocks.seek(format!("key{key:08}").as_bytes()).unwrap();
        blocks.current().unwrap().unwrap().block.addr
    };
    keys.map(find).collect()
}

#[test]
fn an_index_is_read_in_groups_where_there_is_room() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    let count = leaves(&written).len() as u64;
    assert!(count > 64, "{count} index blocks");
    let keys = || (0..8000).map(|n| n * 7 % 8000);
    let expected = found(&written, keys());
    for (cache_bytes, most) in [(8 << 20, 1 + count / 20), (0, u64::MAX)] {
        let table = cold(&bed, &written, cache_bytes);
        let before = bed.device.counters();
        assert_eq!(found(&table, keys()), expected);
        let reads = bed.device.counters().reads - before.reads;
        assert!(reads <= most, "{reads} reads of {count} blocks and a root");
        assert!(cache_bytes > 0 || reads > count, "nothing was kept");
    }
}

#[test]
fn without_room_an_index_block_comes_alone() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    let table = cold(&bed, &written, 0);
    let leaves = leaves(&table);
    let before = bed.device.counters().read_bytes;
    table
        .loader
        .index(&leaves, 20, Reader::Walk, &mut Seen::default())
        .unwrap();
    let read = bed.device.counters().read_bytes - before;
    assert_eq!(read, u64::from(leaves[20].block.len_bytes));
}

#[test]
fn what_is_wrong_with_a_neighbour_is_told_to_who_wants_it() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    let leaves = leaves(&written);
    let bad = leaves[3].block.addr + 200;
    let mut byte = [0; 1];
    bed.device.read_at(bad, &mut byte).unwrap();
    bed.device.write_at(bad, &[&[byte[0] ^ 1]]).unwrap();
    let table = cold(&bed, &written, 8 << 20);
    for sound in (0..leaves.len()).filter(|at| *at != 3) {
        table
            .loader
            .index(&leaves, sound, Reader::Walk, &mut Seen::default())
            .unwrap();
    }
    for _ in 0..2 {
        let error = table
            .loader
            .index(&leaves, 3, Reader::Walk, &mut Seen::default())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let place = leaves[3].block.addr.to_string();
        assert!(error.to_string().contains(&place), "{error}");
    }
}

/// Hands the root and an index block out and says whether they were found past the cache.
fn find_again(table: &Table) -> [bool; 2] {
    let (mut root_hits, mut seen) = (0, Seen::default());
    let root = table.root(&mut root_hits).unwrap();
    let leaves = match &root.root.index {
        RootIndex::Leaves(leaves) => leaves,
        other => panic!("a table with many index blocks, not {other:?}"),
    };
    let leaf = table
        .loader
        .leaf(&root, leaves, 5, Reader::Walk, &mut seen)
        .unwrap();
    let same = table
        .loader
        .index(leaves, 5, Reader::Walk, &mut Seen::default())
        .unwrap();
    assert_eq!(leaf.entry(0).unwrap(), same.entry(0).unwrap());
    [root_hits == 1, seen.hits == 1]
}

/// Puts blocks of 10,000 bytes into the cache.
fn flood(cache: &BlockCache, blocks: std::ops::Range<u64>) {
    for number in blocks {
        let origin = TableId(1 << 40);
        let addr = number * 512;
        let block = CachedBlock::Data(Arc::new(DataBlock::for_test(10_000)));
        cache.insert(BlockKey { origin, addr }, block, Expectation::Normal);
    }
}

#[test]
fn what_is_in_the_cache_is_found_past_it() {
    let bed = Bed::new(64 << 20);
    let table = cold(&bed, &written(&bed), 8 << 20);
    let counters = table.loader.cache.counters();
    assert_eq!(find_again(&table), [false, false]);
    let before = bed.device.counters().reads;
    let misses = counters.get(ReadCount::Misses);
    for _ in 0..10 {
        assert_eq!(find_again(&table), [true, true]);
    }
    assert_eq!(bed.device.counters().reads, before);
    assert_eq!(counters.get(ReadCount::Misses), misses);
    // A cursor counts what it finds so, once it is done.
    let hits = counters.get(ReadCount::Hits);
    let mut blocks = table.blocks();
    blocks.seek(b"key00000300").unwrap();
    drop(blocks.clone());
    drop(blocks);
    let more = counters.get(ReadCount::Hits) - hits;
    assert!(
        more == 2 || more == 1,
        "{more} blocks found twice or not at all"
    );
}

#[test]
fn what_the_cache_lets_go_is_gone() {
    let bed = Bed::new(64 << 20);
    let written = written(&bed);
    // A cache of nothing keeps nothing, and neither does the table.
    let table = cold(&bed, &written, 0);
    assert_eq!(find_again(&table), [false, false]);
    assert_eq!(find_again(&table), [false, false]);
    // Blocks that no read asks for leave a cache that is full.
    let table = cold(&bed, &written, 2 << 20);
    find_again(&table);
    assert_eq!(find_again(&table), [true, true]);
    flood(&table.loader.cache, 0..2000);
    assert_eq!(find_again(&table), [false, false]);
    assert!(table.loader.cache.bytes() <= 2 << 20);
}

#[test]
fn what_is_found_past_the_cache_stays_in_it() {
    let bed = Bed::new(64 << 20);
    let table = cold(&bed, &written(&bed), 2 << 20);
    find_again(&table);
    for round in 0..100 {
        flood(&table.loader.cache, round * 50..(round + 1) * 50);
        let mut seen = Seen::default();
        let root = table.root(&mut seen.hits).unwrap();
        table
            .loader
            .leaf(&root, &leaves(&table), 5, Reader::Walk, &mut seen)
            .unwrap();
        assert_eq!(seen.hits, 2, "after {round} rounds");
    }
    let key = table.loader.own_key(leaves(&table)[5].block.addr);
    assert!(table.loader.cache.glance(&key).is_some());
}

#[test]
fn what_searches_take_in_memory_is_counted() {
    let bed = Bed::new(64 << 20);
    let table = cold(&bed, &written(&bed), 8 << 20);
    let root = table.root(&mut 0).unwrap();
    let leaves = leaves(&table);
    let each = 8 + size_of::<Leaf>() + size_of::<IndexBlock>();
    assert!(root.memory_bytes() > leaves.len() * each);
    let index = table
        .loader
        .index(&leaves, 0, Reader::Walk, &mut Seen::default())
        .unwrap();
    let payload_bytes = leaves[0].block.len_bytes as usize;
    let bytes = index.memory_bytes();
    assert!(bytes >= payload_bytes + 16 * index.len(), "{bytes} bytes");
    assert!(
        bytes < payload_bytes + 16 * index.len() + 1000,
        "{bytes} bytes"
    );
    let foreseen = IndexBlock::memory_bytes_of(payload_bytes);
    assert!(foreseen >= bytes, "{foreseen} for {bytes} bytes");
}
