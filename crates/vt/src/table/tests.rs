use super::point_read::Visit;
use super::*;
use crate::VtError;
use crate::cache::{BlockCache, ReadCount};
use crate::entry::{BoxIter, EntryIter, EntryRef, Op, RangeDelete, to_bytes};
use crate::iter::tests::{Row, check_against};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, Seqno, TableId, TreeId};
use stitch_device::{Device, MemDevice};
use stitch_filter::Precision;
use stitch_format::block::{HEADER_BYTES, stored_checksum};
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::{Compression, TreeOptions, Violation};
use stitch_volume::{BlockKind, Extent, FormatOptions, OpenOptions, Stream, Volume};

const NOW: Seqno = Seqno(u64::MAX);

/// A volume in memory, and a cache.
pub(super) struct Bed {
    pub(super) device: Arc<MemDevice>,
    pub(super) volume: Arc<Volume>,
    cache: Arc<BlockCache>,
    next_id: std::cell::Cell<u64>,
}

/// Newest first for each key: sequence number and value; `None` is a delete.
pub(super) type Model = BTreeMap<(Vec<u8>, std::cmp::Reverse<u64>), Option<Vec<u8>>>;

/// Adds one to three versions of a key, with values of which some get blocks of their own.
pub(super) fn add_versions(model: &mut Model, key: &[u8], rng: &mut Rng) {
    for _ in 0..1 + rng.below(3) {
        let mut value = vec![0; if rng.below(8) == 0 { 4096 } else { 20 }];
        rng.fill(&mut value);
        let value = (rng.below(6) > 0).then_some(value);
        let seqno = std::cmp::Reverse(1 + rng.below(5000));
        model.insert((key.to_vec(), seqno), value);
    }
}

impl Bed {
    pub(super) fn new(len_bytes: u64) -> Self {
        let device = Arc::new(MemDevice::new(len_bytes));
        let options = FormatOptions::default();
        Volume::format(&*device, &options, &mut |_, _| {}).unwrap();
        let open = OpenOptions::default();
        let shared: Arc<dyn Device> = Arc::<MemDevice>::clone(&device);
        let volume = Volume::open(shared, &open).unwrap().volume;
        Self {
            device,
            volume,
            cache: Arc::new(BlockCache::new(8 << 20)),
            next_id: std::cell::Cell::new(1),
        }
    }

    pub(super) fn writer(&self, options: &TreeOptions) -> TableWriter {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let table = NewTable {
            id: TableId(id),
            tree: TreeId(3),
            options: options.clone(),
            stream: Stream(0),
            precision: Precision::Normal,
            is_of_branch: false,
        };
        TableWriter::new(&self.volume, table)
    }

    pub(super) fn open(&self, meta: TableMeta) -> Arc<Table> {
        let (volume, cache) = (Arc::clone(&self.volume), Arc::clone(&self.cache));
        Table::open(volume, cache, Arc::new(meta))
    }

    pub(super) fn table(&self, model: &Model, options: &TreeOptions) -> Arc<Table> {
        let mut writer = self.writer(options);
        add_all(&mut writer, model);
        self.open(writer.finish().unwrap().unwrap())
    }

    fn live_bytes(&self) -> u64 {
        self.volume.zones().check();
        self.volume.zones().usage().live
    }
}

fn add_all(writer: &mut TableWriter, model: &Model) {
    for ((key, seqno), value) in model {
        let op = value.as_ref().map_or(Op::Delete, |value| Op::Put(value));
        let seqno = Seqno(seqno.0);
        writer.add(&EntryRef { key, seqno, op }).unwrap();
    }
}

pub(super) fn options(block_bytes: u32) -> TreeOptions {
    TreeOptions {
        block_bytes,
        ..TreeOptions::default()
    }
}

pub(super) fn numbered(range: std::ops::Range<u64>, value_len: usize) -> Model {
    let row = |n: u64| {
        let mut value = vec![0; value_len];
        Rng::new(n).fill(&mut value);
        (
            (format!("key{n:08}").into_bytes(), std::cmp::Reverse(n + 1)),
            Some(value),
        )
    };
    range.map(row).collect()
}

pub(super) fn rows(model: &Model) -> Vec<Row> {
    model
        .keys()
        .map(|(key, seqno)| (key.clone(), seqno.0))
        .collect()
}

pub(super) fn violations(table: &Arc<Table>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut done = 0;
    table
        .check(&mut |bytes| done += bytes, &mut |v| found.push(v))
        .unwrap();
    if found.is_empty() {
        assert_eq!(done, table.meta().data_bytes);
    }
    found
}

/// One point read.
fn versions_of(
    table: &Table,
    key: &[u8],
    max_seqno: Seqno,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, VtError> {
    let mut source = OneByOne;
    let mut read = PointRead::new(key, max_seqno, &mut source);
    let flow = table.versions_of(&mut read, visit);
    read.end(table.loader.cache.counters());
    flow
}

pub(super) fn newest(
    table: &Table,
    key: &[u8],
    max_seqno: Seqno,
) -> Option<(u64, Option<Vec<u8>>)> {
    let mut found = None;
    let flow = versions_of(table, key, max_seqno, &mut |entry, owner| {
        assert_eq!(entry.key, key);
        let value = match entry.op {
            Op::Put(value) => Some(to_bytes(value, owner).to_vec()),
            _ => None,
        };
        found = Some((entry.seqno.0, value));
        ControlFlow::Break(())
    });
    assert_eq!(flow.unwrap().is_break(), found.is_some());
    found
}

#[test]
fn an_empty_table_is_none() {
    let bed = Bed::new(16 << 20);
    assert_eq!(bed.writer(&options(4096)).finish().unwrap(), None);
    assert_eq!(bed.live_bytes(), 0);
}

#[test]
fn a_table_gives_back_what_was_put() {
    let bed = Bed::new(64 << 20);
    let model = numbered(0..30_000, 100);
    let table = bed.table(&model, &options(1024));
    let meta = table.meta();
    assert_eq!(meta.entry_count, 30_000);
    assert_eq!(meta.smallest, b"key00000000");
    assert_eq!(meta.largest, b"key00029999");
    assert!(!meta.largest_excluded);
    assert_eq!((meta.min_seqno, meta.max_seqno), (Seqno(1), Seqno(30_000)));
    assert_eq!(bed.live_bytes(), meta.owned_bytes());
    let mut iter = table.iter(Arc::default());
    check_against(&mut iter, &rows(&model), b"key00012345", 5);
    assert_eq!(violations(&table), []);
    for n in [0, 1, 500, 29_999] {
        let key = format!("key{n:08}");
        let value = model[&(key.clone().into_bytes(), std::cmp::Reverse(n + 1))].clone();
        assert_eq!(newest(&table, key.as_bytes(), NOW), Some((n + 1, value)));
        assert_eq!(newest(&table, key.as_bytes(), Seqno(n)), None);
    }
    assert_eq!(newest(&table, b"key", NOW), None);
    assert_eq!(newest(&table, b"key00000000x", NOW), None);
    assert_eq!(newest(&table, b"z", NOW), None);
}

#[test]
fn a_scan_reads_many_blocks_with_one_request() {
    let bed = Bed::new(64 << 20);
    let table = bed.table(&numbered(0..2000, 1000), &options(4096));
    let blocks = table.index_entries(b"", None).unwrap();
    let run = |mut iter: BoxIter| {
        let before = bed.device.counters().reads;
        let mut count = 0;
        iter.seek(b"", NOW).unwrap();
        while iter.current().is_some() {
            count += 1;
            iter.next().unwrap();
        }
        assert_eq!(count, 2000);
        bed.device.counters().reads - before
    };
    let merged = run(table.blocks_iter(blocks.clone(), Carry::Nothing));
    assert!(
        merged * 30 < blocks.len() as u64,
        "{merged} reads of {} blocks",
        blocks.len()
    );
    let cached_before = bed.cache.bytes();
    let scanned = run(table.iter(Arc::default()));
    assert!(
        scanned * 20 < blocks.len() as u64,
        "{scanned} reads of {} blocks",
        blocks.len()
    );
    assert!(
        bed.cache.bytes() > cached_before + (1 << 20),
        "a scan fills the cache"
    );
    assert_eq!(run(table.iter(Arc::default())), 0);
}

#[test]
fn filters_save_reads() {
    let bed = Bed::new(64 << 20);
    let table = bed.table(&numbered(0..10_000, 100), &options(4096));
    newest(&table, b"key00000000", NOW).unwrap();
    let counters = bed.cache.counters();
    let read_before = counters.get(ReadCount::DataBlocksRead);
    for n in 0..10_000 {
        assert_eq!(newest(&table, format!("key{n:08}x").as_bytes(), NOW), None);
    }
    let probes = counters.get(ReadCount::FilterProbes);
    let false_positives = counters.get(ReadCount::FilterFalsePositives);
    let read = counters.get(ReadCount::DataBlocksRead) - read_before;
    assert!(probes > 9000, "{probes}");
    assert!(false_positives > 0);
    assert!(
        false_positives * 100 < probes * 2,
        "{false_positives} of {probes}"
    );
    assert!(read <= false_positives, "{read}");
}

#[test]
fn versions_of_a_key_may_span_blocks() {
    let bed = Bed::new(64 << 20);
    let mut model = numbered(0..10, 100);
    let key = b"key00000005".to_vec();
    for seqno in 100..2100 {
        let mut value = vec![0; 100];
        Rng::new(seqno).fill(&mut value);
        model.insert((key.clone(), std::cmp::Reverse(seqno)), Some(value));
    }
    let table = bed.table(&model, &options(1024));
    let spanning = table.index_entries(&key, Some(b"key00000005\0")).unwrap();
    assert!(spanning.len() > 10);
    assert!(spanning.iter().all(|e| e.has_versions));
    assert_eq!(violations(&table), []);
    for seqno in [u64::MAX, 2099, 1500, 100] {
        let expected = seqno.min(2099);
        assert_eq!(newest(&table, &key, Seqno(seqno)).unwrap().0, expected);
    }
    assert_eq!(newest(&table, &key, Seqno(99)).unwrap().0, 6);
    let mut all = Vec::new();
    let _ = versions_of(&table, &key, Seqno(1999), &mut |entry, _| {
        all.push(entry.seqno.0);
        ControlFlow::Continue(())
    });
    let expected: Vec<u64> = (100..2000).rev().chain([6]).collect();
    assert_eq!(all, expected);
    let rows = rows(&model);
    for target in [2098, 1000, 50] {
        check_against(&mut table.iter(Arc::default()), &rows, &key, target);
    }
}

#[test]
fn large_values_come_back() {
    let bed = Bed::new(256 << 20);
    let model = numbered(0..5, 1 << 20);
    let table = bed.table(&model, &options(16 << 10));
    assert_eq!(table.index_entries(b"", None).unwrap().len(), 5);
    check_against(
        &mut table.iter(Arc::default()),
        &rows(&model),
        b"key00000003",
        4,
    );
    assert_eq!(
        newest(&table, b"key00000003", NOW)
            .unwrap()
            .1
            .unwrap()
            .len(),
        1 << 20
    );
    let overhead = table.meta().owned_bytes() - (5 << 20);
    assert!(overhead < 16 << 10, "{overhead}");
}

#[test]
fn the_longest_value_fits_the_smallest_store() {
    let bed = Bed::new(16 << 20);
    let len = usize::try_from(bed.volume.zones().zone_bytes() / 2).unwrap();
    let model = numbered(0..10, len);
    let table = bed.table(&model, &options(16 << 10));
    check_against(
        &mut table.iter(Arc::default()),
        &rows(&model),
        b"key00000003",
        4,
    );
    assert_eq!(violations(&table), []);
}

#[test]
fn versions_are_stitched_behind_one_that_was_merged() {
    let bed = Bed::new(16 << 20);
    let mut model = numbered(0..10, 100);
    let key = b"key00000005".to_vec();
    for seqno in 100..200 {
        let mut value = vec![0; 100];
        Rng::new(seqno).fill(&mut value);
        model.insert((key.clone(), std::cmp::Reverse(seqno)), Some(value));
    }
    let table = bed.table(&model, &options(1024));
    let blocks = table.index_entries(b"", None).expect("it reads");
    let is_later = |block: &&IndexEntry| block.first == key;
    let later: Vec<IndexEntry> = blocks.iter().filter(is_later).cloned().collect();
    assert!(later.len() > 1, "the versions of the key span blocks");
    // Of the block before these, one version is left.
    let mut writer = bed.writer(&options(1024));
    let only: Model = [((key.clone(), std::cmp::Reverse(199)), Some(vec![1; 100]))].into();
    add_all(&mut writer, &only);
    writer.stitch(&later).expect("they are in order");
    let meta = writer.finish().expect("it is written").expect("a table");
    let table = bed.open(meta);
    let index = table.index_entries(b"", None).expect("it reads");
    assert_eq!(index.len(), 1 + later.len());
    assert!(index.iter().all(|block| block.has_versions));
    assert_eq!(violations(&table), []);
    // A block that says it has no versions cannot go on with the key before.
    let mut writer = bed.writer(&options(1024));
    add_all(&mut writer, &only);
    let wrong = IndexEntry {
        has_versions: false,
        ..later[0].clone()
    };
    let refused = writer.stitch(&[wrong]).expect_err("it contradicts itself");
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
}

#[test]
fn blocks_that_overlap_are_not_stitched() {
    let bed = Bed::new(16 << 20);
    let table = bed.table(&numbered(0..100, 100), &options(4096));
    let live = bed.live_bytes();
    let mut blocks = table.index_entries(b"", None).unwrap();
    blocks[1].block = blocks[0].block;
    let mut writer = bed.writer(&options(4096));
    writer.stitch(&blocks).unwrap();
    assert_eq!(
        writer.finish().expect_err("damaged").kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(bed.live_bytes(), live);
}

#[test]
fn blocks_are_compressed_where_that_pays() {
    let bed = Bed::new(64 << 20);
    let compressed = |compression: Compression| TreeOptions {
        compression,
        ..options(16 << 10)
    };
    let (lz4, zstd) = (compressed(Compression::Lz4), compressed(Compression::Zstd));
    let mut dull = Model::new();
    for n in 0..2000u64 {
        let key = format!("key{n:08}").into_bytes();
        dull.insert((key, std::cmp::Reverse(n + 1)), Some(vec![b'x'; 200]));
    }
    let random = numbered(0..2000, 200);
    let sizes: Vec<u64> = [
        (&dull, &lz4),
        (&dull, &zstd),
        (&random, &lz4),
        (&random, &zstd),
        (&random, &options(16 << 10)),
    ]
    .into_iter()
    .map(|(model, options)| {
        let table = bed.table(model, options);
        check_against(
            &mut table.iter(Arc::default()),
            &rows(model),
            b"key00000777",
            778,
        );
        assert_eq!(violations(&table), []);
        table.meta().data_bytes
    })
    .collect();
    let plain = sizes[4];
    assert!(sizes[0] * 4 < plain, "{sizes:?}");
    assert!(sizes[1] < sizes[0], "{sizes:?}");
    assert_eq!(sizes[2..4], [plain, plain]);
}

#[test]
fn range_deletes_are_in_the_table_and_its_range() {
    let bed = Bed::new(64 << 20);
    let delete = |start: &[u8], end: &[u8], seqno| RangeDelete {
        start: start.to_vec(),
        end: end.to_vec(),
        seqno: Seqno(seqno),
    };
    let mut writer = bed.writer(&options(4096));
    writer.add_range_delete(delete(b"a", b"c", 70));
    writer.add_range_delete(delete(b"x", b"x", 71));
    add_all(&mut writer, &numbered(0..10, 10));
    writer.add_range_delete(delete(b"k", b"z", 90));
    let table = bed.open(writer.finish().unwrap().unwrap());
    assert_eq!(table.meta().range_delete_count, 2);
    assert_eq!(table.meta().smallest, b"a");
    assert_eq!(table.meta().largest, b"z");
    assert!(table.meta().largest_excluded);
    assert_eq!(table.meta().max_seqno, Seqno(90));
    let set = table.range_deletes().unwrap();
    assert_eq!(set.newest_covering(b"b", NOW), Some(Seqno(70)));
    assert_eq!(set.newest_covering(b"y", NOW), Some(Seqno(90)));
    assert_eq!(violations(&table), []);

    let mut alone = bed.writer(&options(4096));
    for n in 0..5000u64 {
        let start = n.to_be_bytes();
        alone.add_range_delete(delete(&start, &[&start[..], &[1]].concat(), n + 1));
    }
    let alone = bed.open(alone.finish().unwrap().unwrap());
    assert_eq!(alone.range_deletes().unwrap().len(), 5000);
    assert_eq!(alone.meta().entry_count, 0);
    assert_eq!(newest(&alone, b"a", NOW), None);
    let mut iter = alone.iter(Arc::default());
    iter.seek_before(None).unwrap();
    assert!(iter.current().is_none());
    assert_eq!(violations(&alone), []);
}

/// Two tables of alternating spans of keys, stitched into one that copies nothing.
fn stitched(bed: &Bed) -> (Arc<Table>, Model, [Arc<Table>; 2]) {
    let even: Model = numbered(0..1000, 100)
        .into_iter()
        .chain(numbered(2000..3000, 100))
        .collect();
    let odd = numbered(1000..2000, 100);
    let inputs = [&even, &odd].map(|model| bed.table(model, &options(4096)));
    let blocks = |table: usize, from: u64, to: u64| -> Vec<IndexEntry> {
        let (from, to) = (format!("key{from:08}"), format!("key{to:08}"));
        let all = inputs[table].index_entries(b"", None).unwrap();
        all.into_iter()
            .filter(|e| e.first.as_slice() >= from.as_bytes() && e.last.as_slice() < to.as_bytes())
            .collect()
    };
    let spans = [
        blocks(0, 0, 1000),
        blocks(1, 1000, 2000),
        blocks(0, 2000, 3000),
    ];
    let mut model = Model::new();
    let mut writer = bed.writer(&options(4096));
    for (number, span) in spans.iter().enumerate() {
        let (first, last) = (&span[0].first, &span[span.len() - 1].last);
        let of_span = even
            .iter()
            .chain(&odd)
            .filter(|((key, _), _)| first <= key && key <= last);
        model.extend(of_span.map(|(k, v)| (k.clone(), v.clone())));
        let live = bed.live_bytes();
        writer.stitch(span).unwrap();
        assert_eq!(bed.live_bytes(), live);
        // Something of its own in between.
        let own = format!("key{:08}~", number * 1000 + 999).into_bytes();
        let own: Model = [((own, std::cmp::Reverse(5000)), None)].into();
        add_all(&mut writer, &own);
        model.extend(own);
    }
    let meta = writer.finish().unwrap().unwrap();
    (bed.open(meta), model, inputs)
}

#[test]
fn a_stitched_table_reads_blocks_of_others() {
    let bed = Bed::new(64 << 20);
    let (table, model, _) = stitched(&bed);
    assert_eq!(table.meta().entry_count, model.len() as u64);
    assert_eq!(table.meta().delete_count, 3);
    check_against(
        &mut table.iter(Arc::default()),
        &rows(&model),
        b"key00001500",
        9,
    );
    for ((key, seqno), value) in &model {
        assert_eq!(newest(&table, key, NOW), Some((seqno.0, value.clone())));
    }
    assert_eq!(violations(&table), []);
}

#[test]
fn a_stitched_table_outlives_what_its_inputs_leave_behind() {
    let bed = Bed::new(64 << 20);
    let (table, model, inputs) = stitched(&bed);
    // As an install does it: what the inputs own and the output does not is freed.
    let kept = |addr: u64| {
        let runs = &table.meta().runs;
        runs.iter().any(|run| run.addr <= addr && addr < run.end())
    };
    for input in &inputs {
        for run in &input.meta().runs {
            for addr in (run.addr..run.end())
                .step_by(512)
                .filter(|addr| !kept(*addr))
            {
                bed.volume.zones().free(&[Extent { addr, len: 512 }]);
            }
        }
    }
    assert_eq!(bed.live_bytes(), table.meta().owned_bytes());
    let mut filler = bed.writer(&options(4096));
    add_all(&mut filler, &numbered(5000..20_000, 1000));
    filler.finish().unwrap().unwrap();
    let fresh = Table::open(
        Arc::clone(&bed.volume),
        Arc::new(BlockCache::new(1 << 20)),
        Arc::clone(table.meta()),
    );
    check_against(
        &mut fresh.iter(Arc::default()),
        &rows(&model),
        b"key00001500",
        9,
    );
    assert_eq!(violations(&fresh), []);
}

#[test]
fn a_writer_given_up_gives_its_space_back() {
    let bed = Bed::new(64 << 20);
    let mut writer = bed.writer(&options(4096));
    add_all(&mut writer, &numbered(0..5000, 1000));
    assert!(bed.live_bytes() > 4 << 20);
    assert!(writer.estimated_weight() > 5_000_000);
    drop(writer);
    assert_eq!(bed.live_bytes(), 0);
}

#[test]
fn a_full_volume_is_an_error_and_loses_no_space() {
    let bed = Bed::new(16 << 20);
    let mut writer = bed.writer(&options(4096));
    let mut failed = None;
    for ((key, seqno), value) in &numbered(0..20_000, 1000) {
        let seqno = Seqno(seqno.0);
        let op = Op::Put(value.as_ref().unwrap());
        if let Err(error) = writer.add(&EntryRef { key, seqno, op }) {
            failed = Some(error);
            break;
        }
    }
    assert_eq!(failed.unwrap().kind(), ErrorKind::NoSpace);
    drop(writer);
    assert_eq!(bed.live_bytes(), 0);
}

#[test]
fn a_table_fits_into_holes() {
    let bed = Bed::new(16 << 20);
    let zones = bed.volume.zones();
    let mut taken = Vec::new();
    while let Ok(extent) = zones.allocate(8192, 8192, Stream(9)) {
        taken.push(extent);
    }
    let freed: Vec<Extent> = taken.iter().copied().step_by(2).collect();
    zones.free(&freed);
    let model = numbered(0..1000, 1000);
    let table = bed.table(&model, &options(4096));
    assert!(table.meta().runs.len() > 50);
    assert_eq!(violations(&table), []);
    check_against(
        &mut table.iter(Arc::default()),
        &rows(&model),
        b"key00000500",
        9,
    );
}

/// Every key, or the first error.
fn read_all(table: &Arc<Table>) -> Result<Vec<Row>, crate::VtError> {
    let mut out = Vec::new();
    let mut iter = table.iter(Arc::default());
    iter.seek(b"", NOW)?;
    while let Some(entry) = iter.current() {
        out.push((entry.key.to_vec(), entry.seqno.0));
        iter.next()?;
    }
    table.range_deletes()?;
    Ok(out)
}

#[test]
fn a_flipped_bit_is_an_error_never_other_data() {
    let bed = Bed::new(16 << 20);
    let mut writer = bed.writer(&TreeOptions {
        compression: Compression::Lz4,
        ..options(1024)
    });
    let mut model = numbered(0..500, 20);
    model.extend(numbered(0..3, 600));
    add_all(&mut writer, &model);
    writer.add_range_delete(RangeDelete {
        start: b"a".to_vec(),
        end: b"b".to_vec(),
        seqno: Seqno(9),
    });
    let meta = Arc::new(writer.finish().unwrap().unwrap());
    let mut rng = Rng::new(11);
    for _ in 0..1500 {
        let run = &meta.runs[usize::try_from(rng.below(meta.runs.len() as u64)).unwrap()];
        let at = run.addr + rng.below(run.len_bytes);
        let mut byte = [0];
        bed.device.read_at(at, &mut byte).unwrap();
        let flipped = [byte[0] ^ (1 << rng.below(8))];
        bed.device.write_at(at, &[&flipped]).unwrap();
        let cache = Arc::new(BlockCache::new(0));
        let table = Table::open(Arc::clone(&bed.volume), cache, Arc::clone(&meta));
        let error = read_all(&table).expect_err("the byte belongs to a block");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(!violations(&table).is_empty());
        bed.device.write_at(at, &[&byte]).unwrap();
    }
    let table = bed.open((*meta).clone());
    assert_eq!(read_all(&table).unwrap(), rows(&model));
}

#[test]
fn a_sound_block_that_is_not_the_one_meant_is_an_error() {
    let bed = Bed::new(16 << 20);
    let table = bed.table(&numbered(0..100, 100), &options(4096));
    let mut blocks = table.index_entries(b"", None).unwrap();
    table
        .blocks_iter(blocks.clone(), Carry::Nothing)
        .seek(b"", NOW)
        .unwrap();
    // As if the block that the index means was never written over the one that stands there.
    blocks[0].block.checksum ^= 1;
    let error = table.blocks_iter(blocks, Carry::Nothing).seek(b"", NOW);
    assert_eq!(error.expect_err("another block").kind(), ErrorKind::Corrupt);
}

#[test]
fn a_cached_block_of_another_kind_is_not_taken() {
    let bed = Bed::new(16 << 20);
    let options = TreeOptions {
        compression: Compression::None,
        value_block_bytes: 1024,
        ..options(4096)
    };
    let mut model = numbered(0..1, 2000);
    model.extend(numbered(1..20, 100));
    let table = bed.table(&model, &options);
    let blocks = table.index_entries(b"", None).unwrap();
    assert!(blocks[0].is_value && !blocks[1].is_value);
    for block in &blocks {
        let visit = &mut |_: EntryRef<'_>, _: Option<&bytes::Bytes>| ControlFlow::Continue(());
        let _ = versions_of(&table, &block.last, NOW, visit).unwrap();
    }
    // As if a damaged index said of each block that it is one of the other kind.
    let entries = IndexEntry {
        is_value: false,
        ..blocks[0].clone()
    };
    let error = table.probe_block(&entries).expect_err("one value");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let value = IndexEntry {
        is_value: true,
        ..blocks[1].clone()
    };
    let error = table.value_of(&value).expect_err("several entries");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // The last reader of blocks takes them out of the cache, and no other kind either.
    for block in [entries, value] {
        let mut leaving = table.leaving_blocks_iter(vec![block], Carry::Nothing);
        let error = leaving.seek(b"", NOW).expect_err("of the other kind");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_root_of_another_table_is_an_error() {
    let bed = Bed::new(16 << 20);
    let first = bed.table(&numbered(0..100, 100), &options(4096));
    let other = bed.table(&numbered(0..100, 100), &options(4096));
    let mixed = bed.open(TableMeta {
        root_addr: other.meta().root_addr,
        root_bytes: other.meta().root_bytes,
        ..(**first.meta()).clone()
    });
    assert_eq!(
        read_all(&mixed).expect_err("another root").kind(),
        ErrorKind::Corrupt
    );
    let outside = bed.open(TableMeta {
        root_addr: 1 << 50,
        ..(**first.meta()).clone()
    });
    assert_eq!(
        read_all(&outside).expect_err("no place").kind(),
        ErrorKind::Corrupt
    );
}

/// Changes a few bytes of a block's payload, and seals it again.
fn forge(bed: &Bed, addr: u64, len_bytes: u32, kind: BlockKind, rng: &mut Rng) -> (Vec<u8>, u32) {
    let mut block = vec![0; len_bytes as usize];
    bed.device.read_at(addr, &mut block).unwrap();
    let payload_len = bed.volume.check_block(&block, addr, kind).unwrap().1.len();
    for _ in 0..=rng.below(3) {
        let at = HEADER_BYTES + usize::try_from(rng.below(payload_len as u64)).unwrap();
        block[at] = match rng.below(3) {
            0 => 0xff,
            1 => 0,
            _ => block[at] ^ (1 << rng.below(8)),
        };
    }
    bed.volume
        .seal_block_in(&mut block, payload_len, kind, 0, addr);
    let checksum = stored_checksum(&block);
    (block, checksum)
}

/// Does all that can be done with a table; the results do not matter.
fn try_everything(bed: &Bed, table: &Arc<Table>) {
    let _ = read_all(table);
    let keys: [&[u8]; 4] = [b"", b"key00000010", b"key00000099", b"z"];
    for key in keys {
        let _ = versions_of(table, key, NOW, &mut |_, _| ControlFlow::Continue(()));
        let mut iter = table.iter(Arc::default());
        let _ = iter.seek(key, Seqno(50));
        let mut steps = 0;
        let _ = iter.seek_before(Some(key));
        while iter.current().is_some() && iter.prev().is_ok() && steps < 1000 {
            steps += 1;
        }
    }
    let mut found = Vec::new();
    table.check(&mut |_| {}, &mut |v| found.push(v)).unwrap();
    let Ok(blocks) = table.index_entries(b"", None) else {
        return;
    };
    let mut writer = bed.writer(&options(1024));
    if writer.stitch(&blocks).is_ok() {
        let _ = writer.finish();
    }
    let mut writer = bed.writer(&options(1024));
    let mut iter = table.blocks_iter(blocks, Carry::Nothing);
    let mut flow = iter.seek(b"", NOW);
    while let (Ok(()), Some(entry)) = (&flow, iter.current()) {
        flow = writer.add(&entry).and_then(|()| iter.next());
    }
}

#[test]
fn forged_blocks_never_panic() {
    let bed = Bed::new(64 << 20);
    let mut writer = bed.writer(&options(1024));
    add_all(&mut writer, &numbered(0..100, 40));
    writer.add_range_delete(RangeDelete {
        start: b"a".to_vec(),
        end: b"b".to_vec(),
        seqno: Seqno(9),
    });
    let meta = Arc::new(writer.finish().unwrap().unwrap());
    let sound = bed.open((*meta).clone());
    let blocks = sound.index_entries(b"", None).unwrap();
    let mut root = vec![0; meta.root_bytes as usize];
    bed.device.read_at(meta.root_addr, &mut root).unwrap();
    let mut rng = Rng::new(3);
    let mut noticed = 0;
    for round in 0..3000 {
        let fresh = || {
            let cache = Arc::new(BlockCache::new(1 << 20));
            Table::open(Arc::clone(&bed.volume), cache, Arc::clone(&meta))
        };
        if round % 3 == 0 {
            let kind = BlockKind::TableRoot;
            let (forged, _) = forge(&bed, meta.root_addr, meta.root_bytes, kind, &mut rng);
            bed.device.write_at(meta.root_addr, &[&forged]).unwrap();
            try_everything(&bed, &fresh());
            noticed += usize::from(!violations(&fresh()).is_empty());
            bed.device.write_at(meta.root_addr, &[&root]).unwrap();
            continue;
        }
        let old = blocks[usize::try_from(rng.below(blocks.len() as u64)).unwrap()].block;
        let mut sound = vec![0; old.len_bytes as usize];
        bed.device.read_at(old.addr, &mut sound).unwrap();
        let kind = BlockKind::TableData;
        let (forged, checksum) = forge(&bed, old.addr, old.len_bytes, kind, &mut rng);
        // The index inside the root must agree.
        let mut forged_root = root.clone();
        let pointer = old.checksum.to_le_bytes();
        let at = root.windows(4).position(|w| w == pointer).unwrap();
        forged_root[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        let kind = BlockKind::TableRoot;
        let payload_len = bed
            .volume
            .check_block(&root, meta.root_addr, kind)
            .unwrap()
            .1
            .len();
        bed.volume
            .seal_block_in(&mut forged_root, payload_len, kind, 0, meta.root_addr);
        bed.device.write_at(old.addr, &[&forged]).unwrap();
        bed.device
            .write_at(meta.root_addr, &[&forged_root])
            .unwrap();
        try_everything(&bed, &fresh());
        bed.device.write_at(old.addr, &[&sound]).unwrap();
        bed.device.write_at(meta.root_addr, &[&root]).unwrap();
    }
    assert!(noticed > 800, "{noticed} of 1000 forged roots");
    assert_eq!(violations(&bed.open((*meta).clone())), []);
}

fn models() -> impl Strategy<Value = Model> {
    let key = proptest::collection::vec(0u8..4, 0..5);
    let value = proptest::option::of(0usize..300);
    let row = (key, value);
    proptest::collection::vec(row, 1..250).prop_map(|rows| {
        let rows = (1u64..).zip(rows);
        rows.map(|(n, (key, value))| ((key, std::cmp::Reverse(n)), value.map(|len| vec![1; len])))
            .collect()
    })
}

thread_local! {
    static BED: Bed = Bed::new(16 << 20);
}

proptest! {
    #[test]
    fn a_table_is_a_map(
        model in models(),
        key in proptest::collection::vec(0u8..4, 0..5),
        seqno in 0u64..250,
        lz4 in any::<bool>(),
        value_block_bytes in prop::sample::select(vec![0u32, 1, 100]),
    ) {
        BED.with(|bed| {
            let compression = if lz4 { Compression::Lz4 } else { Compression::None };
            let options = TreeOptions { compression, value_block_bytes, ..options(1024) };
            let table = bed.table(&model, &options);
            let rows = rows(&model);
            check_against(&mut table.iter(Arc::default()), &rows, &key, seqno);
            let blocks = table.index_entries(b"", None).unwrap();
            check_against(&mut table.blocks_iter(blocks, Carry::Nothing), &rows, &key, seqno);
            let expected = model.iter().find(|((k, s), _)| *k == key && s.0 <= seqno);
            let expected = expected.map(|((_, s), value)| (s.0, value.clone()));
            assert_eq!(newest(&table, &key, Seqno(seqno)), expected);
            assert_eq!(violations(&table), []);
            let runs = table.meta().runs.iter();
            let extents = runs.map(|r| Extent { addr: r.addr, len: r.len_bytes });
            bed.volume.zones().free(&extents.collect::<Vec<_>>());
            assert_eq!(bed.live_bytes(), 0);
        });
    }
}
