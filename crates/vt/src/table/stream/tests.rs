use super::*;
use crate::cache::{BlockCache, ReadCount};
use crate::entry::EntryIter;
use crate::iter::tests::Row;
use crate::table::Table;
use crate::table::blocks::ListedBlocks;
use crate::table::tests::{Bed, Model, numbered, options, rows};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::{ErrorKind, Seqno};
use stitch_device::Device;
use stitch_kv::{KeyRange, Priority, ReadHint, ReadOrder};

/// Enough for streams.
const AHEAD_BYTES: u64 = 8 << 20;

/// Hints at keys that are read soon; the keys themselves are the bounds.
const fn hint(order: ReadOrder, once: bool) -> ReadHint<'static> {
    ReadHint {
        range: KeyRange::all(),
        beyond: None,
        order,
        priority: Priority::Soon,
        once,
    }
}

const SEQUENTIAL: ReadHint<'_> = hint(ReadOrder::Sequential, true);
const RANDOM: ReadHint<'_> = hint(ReadOrder::Random, true);
const LATER: ReadHint<'_> = ReadHint {
    priority: Priority::Later,
    ..RANDOM
};

/// A table of the bed's, read with a cache of `cache_bytes` and what may be read ahead.
fn reopened(bed: &Bed, table: &Table, cache_bytes: usize, ahead_bytes: u64) -> Arc<Table> {
    let cache = BlockCache::new(cache_bytes).with_readers(ahead_bytes);
    let volume = Arc::clone(&bed.volume);
    Table::open(volume, Arc::new(cache), Arc::clone(table.meta()))
}

/// The rows that a cursor gives from its first on, until it ends or fails.
fn walk(table: &Arc<Table>, bounds: Bounds) -> (Vec<Row>, Result<(), VtError>) {
    let start = bounds.start.clone();
    let mut iter = table.iter(Arc::new(bounds));
    let mut out = Vec::new();
    let mut step = iter.seek(&start, Seqno(u64::MAX));
    while step.is_ok()
        && let Some(entry) = iter.current()
    {
        out.push((entry.key.to_vec(), entry.seqno.0));
        step = iter.next();
    }
    (out, step)
}

fn model() -> Model {
    numbered(0..8000, 500)
}

#[test]
fn what_is_read_ahead_is_what_is_there() {
    let bed = Bed::new(64 << 20);
    let model = model();
    let written = bed.table(&model, &options(16 << 10));
    for (cache_bytes, ahead_bytes) in [(0, AHEAD_BYTES), (8 << 20, AHEAD_BYTES), (0, 0)] {
        let table = reopened(&bed, &written, cache_bytes, ahead_bytes);
        let (found, end) = walk(&table, Bounds::default());
        end.unwrap();
        assert_eq!(found, rows(&model));
        let blocks = table.index_entries(&[], None).unwrap().len() as u64;
        let counters = table.loader.cache.counters();
        assert_eq!(counters.get(ReadCount::DataBlocksRead), blocks);
    }
}

#[test]
fn nothing_after_the_end_is_read_far_ahead() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    let table = reopened(&bed, &written, 0, AHEAD_BYTES);
    let end = b"key00004000".to_vec();
    let blocks = table.index_entries(&[], Some(&end)).unwrap().len() as u64;
    let (found, walked) = walk(
        &table,
        Bounds {
            start: Vec::new(),
            end: Some(end),
            ..Bounds::default()
        },
    );
    walked.unwrap();
    assert!((4000..4100).contains(&found.len()), "{}", found.len());
    let counters = table.loader.cache.counters();
    let read = counters.get(ReadCount::DataBlocksRead);
    assert!(read <= blocks + 16, "{read} of {blocks}");
}

#[test]
fn a_damaged_block_is_told_to_who_comes_to_it() {
    let bed = Bed::new(64 << 20);
    let model = model();
    let written = bed.table(&model, &options(16 << 10));
    let blocks = written.index_entries(&[], None).unwrap();
    let bad = &blocks[blocks.len() * 3 / 4];
    let at = bad.block.addr + 100;
    let mut byte = [0; 1];
    bed.device.read_at(at, &mut byte).unwrap();
    bed.device.write_at(at, &[&[byte[0] ^ 1]]).unwrap();
    let table = reopened(&bed, &written, 0, AHEAD_BYTES);
    let (found, end) = walk(&table, Bounds::default());
    let before = rows(&model);
    let before = before.partition_point(|(key, _)| key.as_slice() < bad.first.as_slice());
    assert_eq!(found.len(), before, "all rows before it");
    let error = end.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let place = bad.block.addr.to_string();
    assert!(error.to_string().contains(&place), "{error}");
}

#[test]
fn blocks_in_many_places_come_in_their_order() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&numbered(0..1500, 3000), &options(16 << 10));
    let table = reopened(&bed, &written, 0, AHEAD_BYTES);
    let entries = table.index_entries(&[], None).unwrap();
    // No neighbour is beside its neighbour.
    let count = entries.len();
    let shuffled: Vec<_> = (0..count).map(|n| entries[n * 7 % count].clone()).collect();
    assert!(!count.is_multiple_of(7), "each comes once");
    let mut scout = ListedBlocks::new(shuffled.clone().into());
    scout.seek(&[]).unwrap();
    let mut stream = Stream::begin(&table.loader, scout, &Arc::default(), Start::SMALL).unwrap();
    let mut found = Vec::new();
    while let Some(window) = stream.next() {
        found.extend(window.unwrap().into_iter().map(|(data, _)| data));
    }
    let expected: Vec<DataRef> = shuffled
        .iter()
        .map(|entry| DataRef::of(&entry.borrow()))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(stream.layout, Layout::Scattered);
    drop(stream);
    let readers = table.loader.cache.readers();
    assert_eq!(readers.share_bytes(Layout::Scattered), AHEAD_BYTES / 4 * 3);
}

/// How long the longest window is of blocks that lie in so many places, in rows of what is beside
/// each other there.
fn longest_window(places: usize) -> u64 {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&numbered(0..6000, 3000), &options(4 << 10));
    let table = reopened(&bed, &written, 0, 3 * AHEAD_BYTES);
    let entries = table.index_entries(&[], None).unwrap();
    // Each place has its blocks in order, and they take turns.
    let each = entries.len() / places;
    let turns = (0..each * places).map(|n| entries[n % places * each + n / places].clone());
    let mut scout = ListedBlocks::new(turns.collect());
    scout.seek(&[]).unwrap();
    let mut stream = Stream::begin(&table.loader, scout, &Arc::default(), Start::SMALL).unwrap();
    let mut longest = 0;
    while let Some(window) = stream.next() {
        let found = window.unwrap();
        let bytes = found
            .iter()
            .map(|(data, _)| u64::from(data.block.len_bytes));
        longest = longest.max(bytes.sum());
    }
    assert_eq!(stream.layout, Layout::Scattered);
    longest
}

#[test]
fn a_window_grows_until_its_pieces_are_long() {
    let (few, many) = (longest_window(8), longest_window(200));
    assert!((1 << 20..3 << 20).contains(&few), "{few} bytes");
    assert!(many > 5 << 20, "{many} bytes");
}

#[test]
fn a_stream_goes_on_as_the_last_one_ended() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    let growth = Arc::new(StreamGrowth::default());
    let mut reads = Vec::new();
    for _ in 0..3 {
        let table = reopened(&bed, &written, 1 << 20, AHEAD_BYTES);
        let before = bed.device.counters().reads;
        let mut iter = table.iter_at(Arc::default(), Arc::clone(&growth));
        iter.seek(&[], Seqno(u64::MAX)).unwrap();
        let mut count = 0;
        while iter.current().is_some() {
            count += 1;
            iter.next().unwrap();
        }
        assert_eq!(count, 8000);
        reads.push(bed.device.counters().reads - before);
    }
    assert_eq!(reads[1], reads[2]);
    assert!(reads[1] + 4 <= reads[0], "{reads:?}");
    // Who comes to a place of his own begins anew.
    let table = reopened(&bed, &written, 1 << 20, AHEAD_BYTES);
    let mut iter = table.iter_at(Arc::default(), Arc::clone(&growth));
    let counters = table.loader.cache.counters();
    iter.seek(b"key00004000", Seqno(u64::MAX)).unwrap();
    assert_eq!(counters.get(ReadCount::DataBlocksRead), 1);
}

#[test]
fn a_pace_is_taken_once() {
    let growth = StreamGrowth::default();
    assert_eq!(growth.take(), None);
    for layout in [Layout::Rows, Layout::Scattered] {
        let window_bytes = 1 << 20;
        growth.leave(layout, window_bytes);
        assert_eq!(
            growth.take(),
            Some(Start {
                layout,
                window_bytes
            })
        );
        assert_eq!(growth.take(), None);
    }
}

#[test]
fn prefetched_blocks_are_read_once_and_stay_only_where_they_are_used_again() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    for (hint, reads) in [
        (hint(ReadOrder::Sequential, false), 1),
        (SEQUENTIAL, 2),
        (hint(ReadOrder::Random, false), 1),
        (RANDOM, 2),
    ] {
        let table = reopened(&bed, &written, 8 << 20, AHEAD_BYTES);
        let bounds = || Bounds {
            start: Vec::new(),
            end: Some(b"key00001000".to_vec()),
            is_whole: true,
            ..Bounds::default()
        };
        let end = bounds().end;
        let blocks = table.index_entries(&[], end.as_deref()).unwrap().len() as u64;
        for _ in 0..2 {
            table.read_ahead(&Arc::new(bounds()), &hint, table.clone());
            let (found, walked) = walk(&table, bounds());
            walked.unwrap();
            assert!((1000..1100).contains(&found.len()), "{}", found.len());
        }
        let counters = table.loader.cache.counters();
        let read = counters.get(ReadCount::DataBlocksRead);
        assert_eq!(read, reads * blocks, "{hint:?}");
    }
}

fn keys(from: u32, to: u32) -> Bounds {
    Bounds {
        start: format!("key{from:08}").into_bytes(),
        end: Some(format!("key{to:08}").into_bytes()),
        is_whole: true,
        ..Bounds::default()
    }
}

#[test]
fn parts_come_in_any_order_and_a_row_goes_with_its_last_block() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    let table = reopened(&bed, &written, 8 << 20, AHEAD_BYTES);
    let cache = &table.loader.cache;
    let read = || cache.counters().get(ReadCount::DataBlocksRead);
    for _ in 0..2 {
        table.read_ahead(&Arc::new(keys(100, 500)), &RANDOM, table.clone());
    }
    for (from, to) in [(400, 450), (100, 200), (450, 500), (200, 400)] {
        assert!(!cache.prefetched().is_empty(), "{from}");
        let (found, walked) = walk(&table, keys(from, to));
        walked.unwrap();
        let count = found.len() as u32;
        assert!((to - from..to - from + 200).contains(&count), "{count}");
    }
    assert!(cache.prefetched().is_empty(), "all of it was taken");
    let bounds = keys(100, 500);
    let entries = table.index_entries(&bounds.start, bounds.end.as_deref());
    assert_eq!(read(), entries.unwrap().len() as u64, "each block once");
}

/// With the first part all was taken for taken, so that the others were read once more.
#[test]
fn a_row_that_comes_in_order_stays_until_a_scan_comes_to_its_end() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    let table = reopened(&bed, &written, 8 << 20, AHEAD_BYTES);
    let cache = &table.loader.cache;
    table.read_ahead(&Arc::new(keys(100, 500)), &SEQUENTIAL, table.clone());
    for from in [100, 200, 300, 400] {
        assert!(!cache.prefetched().is_empty(), "{from}");
        walk(&table, keys(from, from + 100)).1.unwrap();
    }
    assert!(cache.prefetched().is_empty(), "a scan came to its end");
    let bounds = keys(100, 500);
    let entries = table.index_entries(&bounds.start, bounds.end.as_deref());
    let read = cache.counters().get(ReadCount::DataBlocksRead);
    assert_eq!(read, entries.unwrap().len() as u64, "each block once");
}

#[test]
fn what_lies_around_is_read_once_however_often_it_is_asked_for() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    let table = reopened(&bed, &written, 8 << 20, 8 * AHEAD_BYTES);
    let counters = table.loader.cache.counters();
    let hint = ReadHint {
        beyond: Some(b"key00002000"),
        ..RANDOM
    };
    let mut reads = Vec::new();
    for from in (0..1000).step_by(50) {
        table.read_ahead(&Arc::new(keys(from, from + 50)), &hint, table.clone());
        let (_, walked) = walk(&table, keys(from, from + 50));
        walked.unwrap();
        reads.push(counters.get(ReadCount::DataBlocksRead));
    }
    let steps = reads.windows(2).filter(|two| two[0] != two[1]).count();
    assert!(steps <= 4, "in few steps: {reads:?}");
}

#[test]
fn parts_that_no_reader_takes_make_room() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    let table = reopened(&bed, &written, 8 << 20, AHEAD_BYTES);
    let cache = &table.loader.cache;
    for from in 0..400 {
        table.read_ahead(
            &Arc::new(keys(from * 2, from * 2 + 1)),
            &RANDOM,
            table.clone(),
        );
    }
    // By threads that come to it in their time.
    let is_read = || cache.counters().get(ReadCount::DataBlocksRead) > 0;
    let clock = SystemClock::default();
    let tries = (0..10_000).take_while(|_| !is_read());
    tries.for_each(|_| clock.sleep(Duration::from_millis(1)));
    assert!(is_read(), "some were read");
    table.read_ahead(&Arc::new(keys(798, 800)), &RANDOM, table.clone());
    walk(&table, keys(0, 1)).1.unwrap();
    cache.prefetched().clear(cache.readers());
    assert!(cache.prefetched().is_empty(), "nothing is left");
}

/// Parts that were asked for later took the memory of parts that were being read.
#[test]
fn parts_that_come_later_take_no_place_of_what_is_being_read() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    // Memory for no more than one row.
    let table = reopened(&bed, &written, 8 << 20, 8 << 20);
    let ask = |bounds: Bounds, hint| table.read_ahead(&Arc::new(bounds), hint, table.clone());
    let counters = table.loader.cache.counters();
    let read = || counters.get(ReadCount::DataBlocksRead);
    assert!(ask(keys(100, 1900), &RANDOM));
    walk(&table, keys(100, 120)).1.unwrap();
    assert!(!ask(keys(3000, 4000), &LATER), "there is no room");
    assert!(ask(keys(200, 300), &LATER), "it is at hand");
    let before = read();
    for from in (120..480).step_by(10) {
        walk(&table, keys(from, from + 10)).1.unwrap();
    }
    assert_eq!(read(), before, "it was read ahead");
    // No reader takes the last of it any more.
    assert!(ask(keys(3000, 4000), &RANDOM), "it is wanted now");
}

/// Regression: with little memory a hint evicted blocks that had not been read yet, and whose
/// place in the cache was taken. They were read twice.
#[test]
fn random_hints_evict_runs_that_were_used_before_those_that_were_not() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    // Memory for two runs, and a cache for less than one.
    let table = reopened(&bed, &written, 256 << 10, 8 << 20);
    let hint = hint(ReadOrder::Random, false);
    let ask = |from, to| table.read_ahead(&Arc::new(keys(from, to)), &hint, table.clone());
    let counters = table.loader.cache.counters();
    let read = || counters.get(ReadCount::DataBlocksRead);
    assert!(ask(0, 900) && ask(2000, 2900));
    assert!(!ask(4000, 4900), "neither was used");
    walk(&table, keys(2000, 2100)).1.unwrap();
    assert!(ask(4000, 4900), "the one that was used made room");
    for from in [4000, 0] {
        walk(&table, keys(from, from + 900)).1.unwrap();
    }
    let each = table.index_entries(b"key00000000", Some(b"key00000900"));
    let blocks = 3 * each.unwrap().len() as u64;
    assert!(read() <= blocks + 8, "{} instead of {blocks}", read());
    let refused = (0..100).take_while(|_| !ask(6000, 7900)).count();
    assert_eq!(refused, 0, "both are used up");
}

/// Regression: a scan behind the last block of a run, whose task had not come that far, removed it.
#[test]
fn a_scan_behind_a_run_leaves_it() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    let table = reopened(&bed, &written, 0, 8 * AHEAD_BYTES);
    let cache = &table.loader.cache;
    let hint = ReadHint {
        beyond: Some(b"key00008000"),
        ..RANDOM
    };
    table.read_ahead(&Arc::new(keys(0, 50)), &hint, table.clone());
    walk(&table, keys(7000, 7010)).1.unwrap();
    walk(&table, keys(0, 50)).1.unwrap();
    let read = cache.counters().get(ReadCount::DataBlocksRead);
    walk(&table, keys(50, 1000)).1.unwrap();
    assert_eq!(cache.counters().get(ReadCount::DataBlocksRead), read);
}

/// Requests of one reader are served at the same time. Regression: the first one that came to the
/// end of a run removed it, and the others read their blocks again.
#[test]
fn a_request_that_overtakes_others_leaves_their_blocks() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    let table = reopened(&bed, &written, 8 << 20, AHEAD_BYTES);
    let cache = &table.loader.cache;
    for _ in 0..2 {
        table.read_ahead(&Arc::new(keys(100, 500)), &SEQUENTIAL, table.clone());
    }
    for from in [400, 100, 300, 200] {
        walk(&table, keys(from, from + 100)).1.unwrap();
    }
    assert!(cache.prefetched().is_empty(), "all of it was taken");
    let bounds = keys(100, 500);
    let entries = table.index_entries(&bounds.start, bounds.end.as_deref());
    let read = cache.counters().get(ReadCount::DataBlocksRead);
    assert_eq!(read, entries.unwrap().len() as u64, "each block once");
}

#[test]
fn sequential_hints_evict_what_is_read_to_its_end_or_was_left() {
    let bed = Bed::new(64 << 20);
    let written = bed.table(&model(), &options(16 << 10));
    // Memory for two runs.
    let table = reopened(&bed, &written, 8 << 20, 8 << 20);
    let ask = |from, to| table.read_ahead(&Arc::new(keys(from, to)), &SEQUENTIAL, table.clone());
    assert!(ask(0, 1500) && ask(2000, 3500));
    assert!(!ask(4000, 5500), "there is no room");
    assert!(ask(100, 1000), "a run has these keys");
    // Its beginning is not read.
    walk(&table, keys(200, 1500)).1.unwrap();
    assert!(
        ask(4000, 5500),
        "the one that was read to its end made room"
    );
    let refused = (0..100).take_while(|_| !ask(6000, 7500)).count();
    // Sixteen for each run, the first one above.
    assert_eq!(
        refused,
        2 * 16 - 1,
        "until one that no scan uses makes room"
    );
}
