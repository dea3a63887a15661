use super::*;
use crate::cache::BlockCache;
use crate::table::Table;
use crate::table::blocks::{BlockList, TableBlocks};
use crate::table::tests::{Bed, numbered, options};
use stitch_base::ErrorKind;
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
    let root = table.loader.root(table.meta()).unwrap();
    match &root.root.index {
        RootIndex::Leaves(leaves) => leaves.clone(),
        other => panic!("a table with many index blocks, not {other:?}"),
    }
}

/// Which block is the first with keys at or after each key, as the index says.
fn found(table: &Table, keys: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut blocks: TableBlocks = table.blocks();
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
    table.loader.index(&leaves, 20).unwrap();
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
        table.loader.index(&leaves, sound).unwrap();
    }
    for _ in 0..2 {
        let error = table.loader.index(&leaves, 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let place = leaves[3].block.addr.to_string();
        assert!(error.to_string().contains(&place), "{error}");
    }
}
