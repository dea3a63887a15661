//! The orders in which threads can meet, gone through by a model checker: every lock, atomic and
//! wake-up is a choice of who goes on. `cargo test -p stitch-vt --features shuttle --lib
//! interleavings`; see [`explore`] for more of them, and for others.
//!
//! The checker knows one memory, in which every write is seen at once: it finds wrong locking, not
//! missing fences. For those the memtable's sources are tested in `testing/orders` (ADR 0074).

mod engine;
mod steps;
mod views;

use crate::cache::{BlockCache, BlockKey, CachedBlock, Expectation, ReadCount};
use crate::entry::{EntryIter, EntryRef, Op, RangeDelete};
use crate::memtable::Memtable;
use crate::table::{DataBlock, key_hash};
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::explored::{explore, join, start};
use stitch_base::{Seqno, TableId, TreeId};

const TREE: TreeId = TreeId(3);

#[test]
#[should_panic(expected = "an update is lost")]
fn a_lost_update_is_found() {
    explore(1000, || {
        let number = Arc::new(AtomicU64::new(0));
        let add = |number: Arc<AtomicU64>| {
            let before = number.load(Ordering::SeqCst);
            number.store(before + 1, Ordering::SeqCst);
        };
        let other = Arc::clone(&number);
        let thread = start("other", move || add(other));
        add(Arc::clone(&number));
        join([thread]);
        assert_eq!(number.load(Ordering::SeqCst), 2, "an update is lost");
    });
}

fn key_of(n: u64) -> [u8; 8] {
    // Not in the order of insertion.
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes()
}

/// Everything up to `visible` is found, in order, whatever is being added meanwhile.
fn read_memtable(memtable: &Memtable, visible: &AtomicU64) {
    let seen = visible.load(Ordering::Acquire);
    for n in 1..=seen {
        let mut found = None;
        memtable.versions_of(TREE, &key_of(n), Seqno(seen), &mut |entry, _| {
            found = Some(entry.seqno);
            ControlFlow::Break(())
        });
        assert_eq!(found, Some(Seqno(n)), "entry {n} of {seen}");
    }
    let mut iter = memtable.iter(TREE);
    iter.seek(&[], Seqno(u64::MAX)).expect("memory reads");
    let (mut count, mut last) = (0, Vec::new());
    while let Some(entry) = iter.current() {
        assert!(
            last.is_empty() || last.as_slice() < entry.key,
            "out of order"
        );
        assert_eq!(entry.op, Op::Put(&entry.seqno.0.to_le_bytes()), "torn");
        last = entry.key.to_vec();
        count += u64::from(entry.seqno.0 <= seen);
        iter.next().expect("memory reads");
    }
    assert_eq!(count, seen, "a scan misses entries");
    // What was added since lies behind the last key too.
    last = vec![u8::MAX; 9];
    let mut back = memtable.iter(TREE);
    back.seek_before(None).expect("memory reads");
    while let Some(entry) = back.current() {
        assert!(last.as_slice() > entry.key, "out of order backwards");
        last = entry.key.to_vec();
        count -= u64::from(entry.seqno.0 <= seen);
        back.prev().expect("memory reads");
    }
    assert_eq!(count, 0, "a backward scan misses entries");
    let newest = memtable
        .range_deletes(TREE)
        .newest_covering(b"x", Seqno(seen));
    assert_eq!(newest, (seen > 0).then_some(Seqno(seen)), "range deletes");
}

#[test]
fn readers_of_a_memtable_see_all_that_was_published() {
    explore(1600, || {
        let memtable = Arc::new(Memtable::new(64 << 10));
        let visible = Arc::new(AtomicU64::new(0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (memtable, visible) = (Arc::clone(&memtable), Arc::clone(&visible));
                start("reader", move || {
                    for _ in 0..2 {
                        read_memtable(&memtable, &visible);
                    }
                })
            })
            .collect();
        for n in 1..=8 {
            let entry = EntryRef {
                key: &key_of(n),
                seqno: Seqno(n),
                op: Op::Put(&n.to_le_bytes()),
            };
            memtable.insert(TREE, &entry);
            memtable.insert(TreeId(9), &entry);
            let delete = RangeDelete {
                start: b"x".to_vec(),
                end: b"y".to_vec(),
                seqno: Seqno(n),
            };
            memtable.insert_range_delete(TREE, delete);
            visible.store(n, Ordering::Release);
        }
        read_memtable(&memtable, &visible);
        join(readers);
    });
}

/// What a read through branches does: it asks the filter, then the list.
fn read_branch(memtable: &Memtable, tree: TreeId, visible: &AtomicU64) {
    let seen = visible.load(Ordering::Acquire);
    for n in 1..=seen {
        let key = key_of(n);
        let may_hold = memtable.may_hold_key(tree, || key_hash(&key));
        assert!(may_hold, "entry {n} of {seen} is denied");
        let mut found = None;
        memtable.versions_of(tree, &key, Seqno(seen), &mut |entry, _| {
            found = Some(entry.seqno);
            ControlFlow::Break(())
        });
        assert_eq!(found, Some(Seqno(n)), "entry {n} of {seen}");
    }
}

#[test]
fn no_filter_of_a_memtable_denies_what_was_published() {
    // Trees 9 and 73 have one mark, and so have 3 and 67.
    const BRANCHES: [TreeId; 3] = [TreeId(9), TreeId(67), TreeId(73)];
    explore(1600, || {
        let memtable = Arc::new(Memtable::new(4 << 10));
        let visible = Arc::new(AtomicU64::new(0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (memtable, visible) = (Arc::clone(&memtable), Arc::clone(&visible));
                start("reader", move || {
                    for tree in BRANCHES.into_iter().chain([TREE]) {
                        read_branch(&memtable, tree, &visible);
                    }
                })
            })
            .collect();
        for n in 1..=4 {
            let entry = EntryRef {
                key: &key_of(n),
                seqno: Seqno(n),
                op: Op::Put(&n.to_le_bytes()),
            };
            memtable.insert(TREE, &entry);
            for branch in BRANCHES {
                if memtable.lacks(branch) {
                    memtable.filter_keys_of(branch);
                }
                memtable.insert(branch, &entry);
            }
            visible.store(n, Ordering::Release);
        }
        join(readers);
        let absent = (100..200).map(key_of);
        let denied = absent.filter(|key| !memtable.may_hold_key(BRANCHES[0], || key_hash(key)));
        assert!(denied.count() > 50, "the filter denies keys");
    });
}

#[test]
fn a_cache_gives_what_was_put_and_stays_within_its_bound() {
    const CAPACITY: usize = 12 << 10;
    explore(4000, || {
        let cache = Arc::new(BlockCache::new(CAPACITY));
        let threads: Vec<_> = (0..3u64)
            .map(|thread| {
                let cache = Arc::clone(&cache);
                start("user", move || {
                    for n in 0..8 {
                        let number = (n + thread) % 6;
                        use_cache(&cache, number);
                        assert!(cache.bytes() <= CAPACITY, "over the bound");
                    }
                })
            })
            .collect();
        join(threads);
        assert!(cache.bytes() <= CAPACITY);
        cache.assert_sound();
        let counters = cache.counters();
        let asked = counters.get(ReadCount::Hits) + counters.get(ReadCount::Misses);
        assert_eq!(asked, 24);
    });
}

/// Reads a block through the cache, as a loader does.
fn use_cache(cache: &BlockCache, number: u64) {
    let key = BlockKey {
        origin: TableId(1 + number % 2),
        addr: number * 512,
    };
    let len = 1000 + usize::try_from(number).expect("small") * 300;
    match cache.get(&key) {
        Some(CachedBlock::Data(block)) => {
            let expected = DataBlock::for_test(len).memory_bytes();
            assert_eq!(block.memory_bytes(), expected, "another block");
        }
        Some(_) => panic!("a block of another kind"),
        None => {
            let block = Arc::new(DataBlock::for_test(len));
            cache.insert(key, CachedBlock::Data(block), Expectation::Normal);
        }
    }
}
