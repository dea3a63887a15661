use super::*;
use crate::cache::BlockCache;
use crate::table::OneByOne;
use crate::table::tests::{Bed, Model, add_versions, newest, numbered, options};
use stitch_base::Seqno;
use stitch_base::random::Rng;
use stitch_device::Device;
use stitch_kv::TreeOptions;

/// Has reads through branches miss a table until a filter of it is due.
fn miss(table: &Arc<Table>) {
    let holder: Holder = Arc::new(());
    for _ in 0..due_at(&table.meta) {
        table.note_miss(|| Arc::clone(&holder));
    }
    table.loader.cache.filter_builds().finish();
}

fn denies(table: &Table, key: &[u8]) -> bool {
    let mut source = OneByOne;
    let mut read = PointRead::new(key, Seqno(u64::MAX), &mut source);
    table.denies(&mut read)
}

/// Several versions of keys, and deletes, with values of which some get blocks of their own.
fn sample(seed: u64) -> Model {
    let mut rng = Rng::new(seed);
    let mut model = Model::new();
    for _ in 0..1 + rng.below(600) {
        let key = format!("key{:05}", rng.below(2000)).into_bytes();
        add_versions(&mut model, &key, &mut rng);
    }
    model
}

fn with_values() -> TreeOptions {
    TreeOptions {
        value_block_bytes: 2048,
        ..options(1024)
    }
}

/// The table has a filter, which denies most keys that it has not, and none that it has.
fn check_filter(table: &Table, model: &Model) {
    assert!(table.has_filter());
    for (key, _) in model.keys() {
        assert!(!denies(table, key), "{key:?} is there");
    }
    let others = (0..2000).map(|n| format!("other{n}").into_bytes());
    let denied = others.filter(|key| denies(table, key)).count();
    assert!(denied > 1950, "{denied} of 2000 keys that are not there");
}

#[test]
fn a_filter_has_every_key_of_its_table() {
    for seed in 0..24 {
        let bed = Bed::new(64 << 20);
        let model = sample(seed);
        let table = bed.table(&model, &with_values());
        assert!(
            !denies(&table, b"other"),
            "without a filter all may be there"
        );
        miss(&table);
        check_filter(&table, &model);
        let mut moved = table.meta().as_ref().clone();
        moved.move_by(1_000_000);
        let moved = bed.open(moved);
        assert!(!moved.has_filter(), "each handle has its own");
        miss(&moved);
        check_filter(&moved, &model);
    }
}

#[test]
fn a_filter_has_the_keys_of_stitched_blocks() {
    let bed = Bed::new(64 << 20);
    let model = numbered(0..500, 100);
    let old = bed.table(&model, &options(1024));
    let blocks = old.index_entries(b"", None).expect("it reads");
    let mut writer = bed.writer(&options(1024));
    writer.stitch(&blocks[..20]).expect("they are in order");
    let table = writer.finish().expect("it is written").expect("a table");
    let table = bed.open(table);
    miss(&table);
    assert!(table.has_filter());
    let (last, mut stitched) = (&blocks[19].last, 0);
    for (key, _) in model.keys().filter(|(key, _)| key <= last) {
        assert!(!denies(&table, key), "{key:?} is there");
        stitched += 1;
    }
    assert!(stitched > 100, "{stitched} keys");
}

#[test]
fn a_second_build_that_finds_no_memory_leaves_the_filter() {
    let bed = Bed::new(64 << 20);
    let table = bed.table(&numbered(0..500, 100), &options(1024));
    miss(&table);
    let cache = Arc::clone(&table.loader.cache);
    let mut taken = Vec::new();
    for bytes in [1 << 16, 256, 1] {
        while let Some(room) = cache.set_aside(bytes) {
            taken.push(room);
        }
    }
    // Readers may lose each other's misses: then a filter is due twice.
    table.make_filter();
    assert!(table.has_filter());
}

#[test]
fn a_filter_is_made_after_enough_misses() {
    let bed = Bed::new(64 << 20);
    let table = bed.table(&numbered(0..4000, 10), &options(4096));
    assert_eq!(due_at(&table.meta), 500);
    for _ in 0..499 {
        table.note_miss(|| Arc::new(()) as Holder);
    }
    assert!(!table.has_filter());
    table.note_miss(|| Arc::new(()) as Holder);
    assert!(table.has_filter());
    let few = bed.table(&numbered(0..10, 10), &options(4096));
    assert_eq!(due_at(&few.meta), MISSES_MIN);
}

#[test]
fn a_table_with_many_entries_gets_no_filter() {
    let bed = Bed::new(64 << 20);
    let mut meta = bed
        .table(&numbered(0..10, 10), &options(4096))
        .meta()
        .as_ref()
        .clone();
    meta.entry_count = ENTRIES_MAX + 1;
    let table = bed.open(meta);
    miss(&table);
    assert_eq!(table.filter.misses.load(Ordering::Relaxed), 0);
    assert!(!table.has_filter());
}

#[test]
fn a_table_with_a_damaged_block_gets_no_filter_and_its_keys_are_errors() {
    let bed = Bed::new(64 << 20);
    let model = numbered(0..500, 100);
    let table = bed.table(&model, &options(1024));
    let blocks = table.index_entries(b"", None).expect("it reads");
    let bad = &blocks[7];
    let mut byte = [0];
    let at = bad.block.addr + 100;
    bed.device.read_at(at, &mut byte).expect("it reads");
    bed.device
        .write_at(at, &[&[byte[0] ^ 1]])
        .expect("it writes");
    miss(&table);
    assert!(!table.has_filter());
    assert!(
        !denies(&table, &bad.last),
        "no table denies what it cannot read"
    );
    assert_eq!(table.loader.cache.aside_bytes(), 0, "memory is given back");
    bed.device.write_at(at, &[&byte]).expect("it writes");
    miss(&table);
    check_filter(&table, &model);
}

#[test]
fn a_table_with_another_number_of_entries_gets_no_filter() {
    let bed = Bed::new(64 << 20);
    let model = numbered(0..500, 100);
    let mut meta = bed.table(&model, &options(1024)).meta().as_ref().clone();
    meta.entry_count += 1;
    let table = bed.open(meta);
    miss(&table);
    assert!(!table.has_filter());
    assert_eq!(
        newest(&table, b"key00000007", Seqno(9)).map(|(seqno, _)| seqno),
        Some(8)
    );
}

#[test]
fn filters_take_memory_from_the_cache_until_their_tables_go() {
    let bed = Bed::new(64 << 20);
    let model = numbered(0..4000, 10);
    let table = bed.table(&model, &options(4096));
    let open = |cache: &Arc<BlockCache>| {
        let (volume, cache) = (Arc::clone(&bed.volume), Arc::clone(cache));
        Table::open(volume, cache, Arc::clone(table.meta()))
    };
    let cache = Arc::new(BlockCache::new(300 << 10));
    let (first, second, third) = (open(&cache), open(&cache), open(&cache));
    miss(&first);
    let one = cache.aside_bytes();
    assert_eq!(one, WordFilter::bytes_for(4000) + size_of::<MadeFilter>());
    miss(&second);
    miss(&third);
    assert_eq!(cache.aside_bytes(), 2 * one, "a sixteenth has room for two");
    assert!(!third.has_filter());
    drop(first);
    assert_eq!(cache.aside_bytes(), one);
    miss(&third);
    check_filter(&third, &model);
    drop((second, third));
    assert_eq!(cache.aside_bytes(), 0);
}

#[test]
fn threads_that_read_ahead_make_filters() {
    let bed = Bed::new(64 << 20);
    let model = numbered(0..4000, 10);
    let table = bed.table(&model, &options(4096));
    let cache = Arc::new(BlockCache::new(8 << 20).with_readers(1 << 20));
    let table = Table::open(
        Arc::clone(&bed.volume),
        Arc::clone(&cache),
        Arc::clone(table.meta()),
    );
    miss(&table);
    check_filter(&table, &model);
    cache.filter_builds().clear();
    assert_eq!(Arc::strong_count(&table), 1, "no thread holds it");
}

#[test]
fn a_table_that_is_gone_when_a_thread_comes_to_it_gets_no_filter() {
    let bed = Bed::new(64 << 20);
    let table = bed.table(&numbered(0..10, 10), &options(4096));
    let cache = Arc::new(BlockCache::new(8 << 20).with_readers(1 << 20));
    let table = Table::open(
        Arc::clone(&bed.volume),
        Arc::clone(&cache),
        Arc::clone(table.meta()),
    );
    for _ in 0..MISSES_MIN {
        table.note_miss(|| Arc::new(()) as Holder);
    }
    cache.filter_builds().finish();
    assert!(!table.has_filter());
}
