//! The whole engine on a device in memory: commits, syncs, write-outs, compactions and readers.

use crate::compaction::Pressure;
use crate::{VtEngine, VtOptions};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::clock::ManualClock;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::explored::{explore, join, start};
use stitch_base::thread::JoinHandle;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_kv::{Batch, CommitOptions, Direction, Engine, KeyRange, Snapshot, TreeOptions};
use stitch_volume::{FormatOptions, OpenOptions, VOLUME_BYTES_MIN, Volume};

fn options() -> VtOptions {
    VtOptions {
        clock: Arc::new(ManualClock::default()),
        background: false,
        memtable_bytes: Some(4 << 10),
        table_bytes: Some(8 << 10),
        level1_bytes: Some(16 << 10),
        direct_bytes_min: 3 << 10,
        compactors: 2,
        ..VtOptions::default()
    }
}

fn open(device: Arc<dyn Device>) -> Arc<VtEngine> {
    open_with(device, options())
}

fn open_with(device: Arc<dyn Device>, options: VtOptions) -> Arc<VtEngine> {
    let opened = Volume::open(device, &OpenOptions::default()).expect("the volume opens");
    VtEngine::open(opened, options).expect("the store opens")
}

/// A fresh store with two trees.
pub(super) fn store() -> (Arc<CrashDevice>, Arc<VtEngine>, [TreeId; 2]) {
    store_with(options())
}

fn store_with(options: VtOptions) -> (Arc<CrashDevice>, Arc<VtEngine>, [TreeId; 2]) {
    let medium = MemDevice::new(VOLUME_BYTES_MIN);
    let format = FormatOptions::default();
    Volume::format(&medium, &format, &mut |_, _| {}).expect("the device is large enough");
    let device = Arc::new(CrashDevice::from_image(&medium, CrashPlan::NEVER));
    let engine = open_with(Arc::clone(&device) as Arc<dyn Device>, options);
    let options = TreeOptions {
        block_bytes: 1 << 10,
        stitch_bytes: 0,
        ..TreeOptions::default()
    };
    let trees = ["left", "right"].map(|name| {
        let made = engine.create_tree(name, &options);
        made.expect("the tree is made")
    });
    (device, engine, trees)
}

/// One batch over both trees: number `n` of a writer.
pub(super) fn put_both(engine: &VtEngine, trees: [TreeId; 2], writer: u8, n: u8, value_len: usize) {
    let mut batch = Batch::new();
    for tree in trees {
        batch.put(tree, &[writer, n], &vec![n; value_len]);
        batch.put(tree, &[writer, 255], &[n]);
    }
    let options = CommitOptions {
        sync: n % 2 == 0,
        ..CommitOptions::default()
    };
    engine.commit(&batch, options).expect("there is space");
}

/// The number of the last batch of a writer that a tree has; all before must be there too.
fn last_of(engine: &VtEngine, tree: TreeId, writer: u8, at: Option<&Snapshot>) -> u8 {
    let (start, end) = ([writer], [writer + 1]);
    let range = KeyRange::new(&start, &end);
    let mut scan = engine
        .scan(tree, range, Direction::Forward, at)
        .expect("the scan begins");
    let (mut count, mut last) = (0, 0);
    while let Some((key, value)) = scan.next().expect("the scan reads") {
        if key[1] == 255 {
            last = value[0];
        } else {
            count += 1;
            assert_eq!(key[1], count, "one before the last is missing");
            assert!(value.iter().all(|byte| *byte == count), "another value");
        }
    }
    assert_eq!(count, last, "a batch is there by half");
    last
}

/// Both trees of a moment have the same batches.
fn read_both(engine: &VtEngine, trees: [TreeId; 2], writer: u8, acknowledged: u8) -> u8 {
    let now = engine.snapshot();
    let [left, right] = trees.map(|tree| last_of(engine, tree, writer, Some(&now)));
    assert_eq!(left, right, "a batch is in one tree only");
    assert!(
        left >= acknowledged,
        "{acknowledged} was acknowledged, {left} is seen"
    );
    left
}

fn worker(engine: &Arc<VtEngine>, steps: usize) -> JoinHandle<()> {
    let engine = Arc::clone(engine);
    start("worker", move || {
        for _ in 0..steps {
            engine.step().expect("background work succeeds");
        }
    })
}

fn expect_sound(engine: &VtEngine) {
    let found = engine.check(&mut |_, _| {}).expect("the check runs");
    assert_eq!(found, []);
}

#[test]
fn commits_are_whole_ordered_and_durable_when_they_say_so() {
    const BATCHES: u8 = 4;
    explore(480, || {
        let (device, engine, trees) = store();
        let durable = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writers: Vec<_> = (0..2u8)
            .map(|writer| {
                let (engine, durable) = (Arc::clone(&engine), Arc::clone(&durable));
                start("writer", move || {
                    for n in 1..=BATCHES {
                        put_both(&engine, trees, writer, n, 40);
                        if n % 2 == 0 {
                            durable[usize::from(writer)].store(n.into(), Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        let reader = {
            let engine = Arc::clone(&engine);
            start("reader", move || {
                let mut seen = [0; 2];
                for _ in 0..3 {
                    for writer in 0..2u8 {
                        let before = &mut seen[usize::from(writer)];
                        *before = read_both(&engine, trees, writer, *before);
                    }
                }
            })
        };
        // The power goes at some moment: what said that it was durable before is there.
        let promised = [0, 1].map(|writer: usize| durable[writer].load(Ordering::SeqCst));
        let image = device.crash_image(&mut stitch_base::random::Rng::new(promised[0]));
        join(writers.into_iter().chain([reader]));
        for writer in 0..2 {
            assert_eq!(read_both(&engine, trees, writer, BATCHES), BATCHES);
        }
        drop(engine);
        let engine = open(Arc::new(image));
        for (writer, promised) in (0..2u8).zip(promised) {
            let promised = u8::try_from(promised).expect("a few batches");
            read_both(&engine, trees, writer, promised);
        }
        let engine = open(Arc::new(device.kill_image()));
        for writer in 0..2 {
            assert_eq!(read_both(&engine, trees, writer, BATCHES), BATCHES);
        }
    });
}

#[test]
fn readers_see_all_while_versions_are_installed() {
    const BATCHES: u8 = 9;
    explore(480, || {
        let (_, engine, trees) = store();
        // Three batches are a memtable; some values go to their zones at once.
        let acknowledged = Arc::new(AtomicU64::new(0));
        let writer = {
            let (engine, acknowledged) = (Arc::clone(&engine), Arc::clone(&acknowledged));
            start("writer", move || {
                for n in 1..=BATCHES {
                    let len = if n % 4 == 0 { 3500 } else { 500 };
                    put_both(&engine, trees, 0, n, len);
                    acknowledged.store(n.into(), Ordering::SeqCst);
                }
            })
        };
        let reader = {
            let (engine, acknowledged) = (Arc::clone(&engine), Arc::clone(&acknowledged));
            start("reader", move || {
                let held = engine.snapshot();
                let then = last_of(&engine, trees[0], 0, Some(&held));
                for _ in 0..3 {
                    let known = u8::try_from(acknowledged.load(Ordering::SeqCst));
                    let known = known.expect("a few batches");
                    read_both(&engine, trees, 0, known);
                    let again = last_of(&engine, trees[0], 0, Some(&held));
                    assert_eq!(again, then, "a snapshot moved");
                }
            })
        };
        let workers = [worker(&engine, 6), worker(&engine, 6)];
        join([writer, reader].into_iter().chain(workers));
        assert_eq!(read_both(&engine, trees, 0, BATCHES), BATCHES);
        engine.quiesce().expect("background work succeeds");
        assert_eq!(read_both(&engine, trees, 0, BATCHES), BATCHES);
        expect_sound(&engine);
    });
}

#[test]
fn trees_come_change_and_go_beside_commits_and_compactions() {
    explore(320, || {
        let (_, engine, trees) = store();
        let writer = {
            let engine = Arc::clone(&engine);
            start("writer", move || {
                for n in 1..=6 {
                    put_both(&engine, trees, 0, n, 600);
                }
            })
        };
        let maker = {
            let engine = Arc::clone(&engine);
            start("maker", move || {
                let options = TreeOptions::default();
                let made = engine.create_tree("short-lived", &options);
                let made = made.expect("the tree is made");
                let mut batch = Batch::new();
                batch.put(made, b"k", &[7; 2000]);
                let done = engine.commit(&batch, CommitOptions::default());
                done.expect("there is space");
                let altered = engine.alter_tree(trees[1], &options);
                altered.expect("the tree takes other options");
                engine.drop_tree(made).expect("the tree goes");
                let refused = engine.commit(&batch, CommitOptions::default());
                assert!(refused.is_err(), "the tree is gone");
            })
        };
        join([writer, maker, worker(&engine, 6)]);
        assert_eq!(read_both(&engine, trees, 0, 6), 6);
        assert_eq!(engine.trees()[1].options, TreeOptions::default());
        engine.quiesce().expect("background work succeeds");
        assert_eq!(read_both(&engine, trees, 0, 6), 6);
        expect_sound(&engine);
    });
}

/// Nothing keeps older versions for a reader without a snapshot: it must not look for one. What one
/// reader has seen, another sees.
#[test]
fn reads_of_now_find_what_compactions_leave() {
    explore(800, || {
        let (_, engine, [tree, _]) = store();
        let known = Arc::new(AtomicU64::new(0));
        // Each has its own shard.
        let readers = [0, 1].map(|_| {
            let (engine, known) = (Arc::clone(&engine), Arc::clone(&known));
            start("reader", move || {
                for _ in 0..8 {
                    let before = known.load(Ordering::SeqCst);
                    let value = engine.get(tree, b"key", None).expect("the read works");
                    let last = value.map_or(0, |value| u64::from(value[0]));
                    assert!(last >= before, "{before} was known, {last} is read");
                    known.fetch_max(last, Ordering::SeqCst);
                }
            })
        });
        // Each seals a memtable, and the writer itself writes it out.
        for n in 1..=4u8 {
            let mut batch = Batch::new();
            batch.put(tree, b"key", &[n; 2500]);
            let done = engine.commit(&batch, CommitOptions::default());
            done.expect("there is space");
            known.fetch_max(n.into(), Ordering::SeqCst);
            engine.step().expect("background work succeeds");
        }
        engine.quiesce().expect("background work succeeds");
        join(readers);
    });
}

/// Two that compact, beside a writer and a reader: of both trees, or of one, where the levels of
/// their plans must differ. Some orders have two at once.
#[test]
fn compactions_at_once_lose_nothing() {
    const BATCHES: u8 = 6;
    for (count, rounds) in [(2, 240), (1, 240)] {
        let beside = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let seen = Arc::clone(&beside);
        explore(rounds, move || {
            // Level 0 is due from the beginning.
            let (_, engine, trees) = store_with(VtOptions {
                level0_tables_max: 4,
                ..options()
            });
            let written = [trees[0], trees[count - 1]];
            for n in 1..=4 {
                put_both(&engine, written, 0, n, 1500);
                engine
                    .store
                    .member
                    .write_all_out()
                    .expect("it is written out");
            }
            let compactors = [0, 1].map(|_| {
                let engine = Arc::clone(&engine);
                start("compactor", move || {
                    for _ in 0..3 {
                        let done = engine.store.compactor.compact_one(Pressure::Shape);
                        done.expect("compactions succeed");
                    }
                })
            });
            let writer = {
                let engine = Arc::clone(&engine);
                start("writer", move || {
                    for n in 5..=BATCHES {
                        put_both(&engine, written, 0, n, 1500);
                        engine.step().expect("background work succeeds");
                    }
                })
            };
            let reader = {
                let engine = Arc::clone(&engine);
                start("reader", move || {
                    let mut before = 4;
                    for _ in 0..3 {
                        before = read_both(&engine, written, 0, before);
                    }
                })
            };
            join([writer, reader].into_iter().chain(compactors));
            assert_eq!(read_both(&engine, written, 0, BATCHES), BATCHES);
            engine.quiesce().expect("background work succeeds");
            assert_eq!(read_both(&engine, written, 0, BATCHES), BATCHES);
            expect_sound(&engine);
            let count = engine.counters().get("vt.compactions_beside");
            seen.fetch_add(count, std::sync::atomic::Ordering::SeqCst);
        });
        let beside = beside.load(std::sync::atomic::Ordering::SeqCst);
        assert!(beside > 0 || count == 1, "some ran at once");
    }
}
