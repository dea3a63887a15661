use super::*;

pub(super) fn key(n: u64) -> BlockKey {
    BlockKey {
        origin: TableId(1),
        addr: n * 512,
    }
}

pub(super) fn block(len: usize) -> CachedBlock {
    CachedBlock::Data(Arc::new(DataBlock::for_test(len)))
}

#[test]
fn what_was_put_is_found() {
    let cache = BlockCache::new(1 << 20);
    assert!(cache.get(&key(1)).is_none());
    cache.insert(key(1), block(1000), Expectation::Normal);
    assert!(cache.get(&key(1)).is_some());
    let other_table = BlockKey {
        origin: TableId(2),
        ..key(1)
    };
    assert!(cache.get(&other_table).is_none());
    assert_eq!(cache.counters().get(ReadCount::Hits), 1);
    assert_eq!(cache.counters().get(ReadCount::Misses), 2);
}

#[test]
fn memory_stays_within_the_bound() {
    for capacity in [100_000, 3 << 20, 40 << 20] {
        let cache = BlockCache::new(capacity);
        for n in 0..5000 {
            cache.insert(key(n), block(16 << 10), Expectation::Normal);
            assert!(cache.bytes() <= capacity);
        }
        assert!(
            cache.bytes() > capacity / 2,
            "{} of {capacity}",
            cache.bytes()
        );
    }
}

#[test]
fn a_cache_of_nothing_keeps_nothing() {
    let cache = BlockCache::new(0);
    cache.insert(key(0), block(1), Expectation::Normal);
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn a_block_in_use_outlives_a_scan() {
    let cache = BlockCache::new(1 << 20);
    cache.insert(key(0), block(10_000), Expectation::Normal);
    for n in 1..2000 {
        assert!(cache.get(&key(0)).is_some(), "after {n} blocks");
        cache.insert(key(n), block(10_000), Expectation::Scan);
    }
}

#[test]
fn what_is_wanted_often_outlives_what_was_read_once() {
    let cache = BlockCache::new(1 << 20);
    let mut kept = [0, 0];
    for (slot, expectation) in [Expectation::Normal, Expectation::Often]
        .into_iter()
        .enumerate()
    {
        let first = slot as u64 * 10_000;
        cache.insert(key(first), block(10_000), expectation);
        for n in first + 1..first + 2000 {
            cache.insert(key(n), block(10_000), Expectation::Normal);
            if cache.glance(&key(first)).is_some() {
                kept[slot] = n - first;
            }
        }
    }
    assert!(kept[1] > 2 * kept[0], "{kept:?}");
    assert!(kept[1] < 1900, "not for ever: {kept:?}");
}

/// Numbers of those blocks that are in the cache.
fn kept(cache: &BlockCache, numbers: std::ops::Range<u64>) -> usize {
    numbers.filter(|n| cache.glance(&key(*n)).is_some()).count()
}

/// Inserts blocks as a writer of a branch does.
fn insert_written(cache: &BlockCache, numbers: std::ops::Range<u64>) {
    for n in numbers {
        cache.insert_written(key(n), block(10_000), Expectation::Scan, true);
    }
}

#[test]
fn written_blocks_displace_probationary_blocks_alone() {
    let cache = BlockCache::new(1 << 20);
    for n in 0..50 {
        cache.insert(key(n), block(10_000), Expectation::Normal);
        cache.insert(key(100 + n), block(10_000), Expectation::Scan);
    }
    assert!(cache.get(&key(100)).is_some(), "it was found again");
    insert_written(&cache, 200..400);
    assert_eq!(kept(&cache, 0..50), 50, "what was read stays");
    assert_eq!(kept(&cache, 100..150), 1, "what was scanned once goes");
    assert!(kept(&cache, 350..400) >= 45, "the newest are there");
    cache.assert_sound();
    // Rounds are as they were: one more turn of the clock leaves all that were read.
    cache.insert(key(500), block(10_000), Expectation::Scan);
    assert_eq!(kept(&cache, 0..50), 50);
}

#[test]
fn written_blocks_stay_out_where_all_blocks_were_read() {
    let cache = BlockCache::new(1 << 20);
    (0..103).for_each(|n| cache.insert(key(n), block(10_000), Expectation::Normal));
    let read = kept(&cache, 0..103);
    // The clock has taken all rounds.
    cache.shards.iter().for_each(|shard| {
        let shard = shard.read();
        let slots = shard.slots.iter();
        slots.for_each(|slot| slot.rounds.store(0, Ordering::Relaxed));
    });
    insert_written(&cache, 200..300);
    assert_eq!(kept(&cache, 0..103), read, "nothing went");
    assert_eq!(kept(&cache, 200..300), 0);
    cache.insert_written(key(300), block(1 << 20), Expectation::Scan, true);
    assert_eq!(kept(&cache, 0..103), read, "what is too large stays out");
}

#[test]
fn without_displacing_they_need_room() {
    let cache = BlockCache::new(1 << 20);
    (0..200).for_each(|n| {
        cache.insert_written(key(n), block(10_000), Expectation::Often, false);
    });
    assert_eq!(kept(&cache, 0..100), 100, "those that came first");
    assert_eq!(kept(&cache, 105..200), 0);
    // Those of a branch take the place of blocks that no lookup has found.
    insert_written(&cache, 200..400);
    assert_eq!(kept(&cache, 0..200), 0);
    cache.assert_sound();
}

#[test]
fn a_written_block_leaves_with_its_last_reader_unless_it_was_found() {
    let cache = BlockCache::new(1 << 20);
    insert_written(&cache, 0..10);
    assert!(cache.get(&key(3)).is_some());
    cache.insert(key(20), block(10_000), Expectation::Normal);
    let before = cache.bytes();
    for number in (0..10).chain([20]) {
        assert!(cache.take_written(&key(number)).is_some(), "{number}");
    }
    assert_eq!(
        kept(&cache, 0..21),
        2,
        "the found one, and the one that was read"
    );
    assert!(cache.take_written(&key(0)).is_none());
    assert!(cache.bytes() < before / 4, "{} of {before}", cache.bytes());
    cache.assert_sound();
}

#[test]
fn a_block_larger_than_a_shard_is_not_kept() {
    let cache = BlockCache::new(1 << 20);
    cache.insert(key(0), block(1 << 20), Expectation::Normal);
    assert!(cache.get(&key(0)).is_none());
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn threads_share_it() {
    let cache = Arc::new(BlockCache::new(1 << 20));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let cache = Arc::clone(&cache);
            stitch_base::thread::spawn("cache", move || {
                for n in 0..2000 {
                    let key = key((n * 7 + thread) % 300);
                    if cache.get(&key).is_none() {
                        cache.insert(key, block(5000), Expectation::Normal);
                    }
                }
            })
            .unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(cache.bytes() <= 1 << 20);
    cache.assert_sound();
}

#[test]
fn a_lower_capacity_holds_at_once_and_a_higher_one_is_used() {
    let capacity = 40 << 20;
    let cache = BlockCache::new(capacity);
    let fill = |first: u64| {
        for n in first..first + 5000 {
            cache.insert(key(n), block(16 << 10), Expectation::Often);
            assert!(cache.bytes() <= cache.capacity(), "block {n}");
        }
    };
    fill(0);
    let full = cache.bytes();
    assert!(full > capacity / 2, "{full}");
    cache.set_capacity(5 << 20);
    assert!(cache.bytes() <= 5 << 20, "{} are left", cache.bytes());
    assert!(cache.bytes() > 4 << 20, "and no fewer: {}", cache.bytes());
    fill(5000);
    cache.set_capacity(capacity);
    assert!(cache.bytes() <= 5 << 20, "nothing comes by itself");
    fill(10_000);
    assert!(cache.bytes() > capacity / 2, "{}", cache.bytes());
}

#[test]
fn the_capacity_can_change_while_blocks_come() {
    let cache = Arc::new(BlockCache::new(8 << 20));
    let writer = Arc::clone(&cache);
    let thread = stitch_base::thread::spawn("cache", move || {
        for n in 0..20_000 {
            writer.insert(key(n), block(16 << 10), Expectation::Normal);
        }
    });
    for n in 0..200 {
        let capacity = (1 + n % 8) << 20;
        cache.set_capacity(capacity);
        assert!(cache.bytes() <= capacity, "a bound that was set holds");
    }
    thread.unwrap().join().unwrap();
    assert!(cache.bytes() <= cache.capacity());
    cache.assert_sound();
}
