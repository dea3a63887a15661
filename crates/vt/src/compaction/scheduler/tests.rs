//! Compactions at once, on a device that holds the writes of one of them back.

use crate::compaction::Pressure;
use crate::compaction::picker::{PickRules, flatten_plan};
use crate::store::Store;
use crate::{VtEngine, VtOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stitch_base::TreeId;
use stitch_base::clock::ManualClock;
use stitch_base::sync::{Condvar, Mutex};
use stitch_base::thread::{JoinHandle, spawn};
use stitch_device::{Device, DeviceCounters, DeviceError, Geometry, MemDevice};
use stitch_kv::{Batch, CommitOptions, Direction, Engine, KeyRange, TreeOptions};
use stitch_volume::{FormatOptions, OpenOptions, Refusals, Volume};

const KEYS: u8 = 200;
/// The thread whose writes wait.
const HELD: &str = "held";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    Closed,
    /// The thread waits at it.
    Met,
}

/// A device on which one thread's writes wait while the gate is closed.
#[derive(Debug)]
struct Gated {
    inner: MemDevice,
    gate: Mutex<Gate>,
    changed: Condvar,
}

impl Gated {
    fn set(&self, gate: Gate) {
        *self.gate.lock() = gate;
        self.changed.notify_all();
    }

    fn await_met(&self) {
        let mut gate = self.gate.lock();
        while *gate != Gate::Met {
            self.changed.wait(&mut gate);
        }
    }
}

impl Device for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        if std::thread::current().name() == Some(HELD) {
            let mut gate = self.gate.lock();
            while *gate != Gate::Open {
                *gate = Gate::Met;
                self.changed.notify_all();
                self.changed.wait(&mut gate);
            }
        }
        self.inner.write_at(offset, pieces)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        self.inner.discard(offset, len_bytes)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

/// A store with two trees whose level 0 is due.
struct Two {
    device: Arc<Gated>,
    refusals: Arc<Refusals>,
    engine: Arc<VtEngine>,
    trees: [TreeId; 2],
    rounds: u8,
}

impl Two {
    fn new(compactors: usize) -> Self {
        let inner = MemDevice::new(64 << 20);
        let format = FormatOptions::default();
        Volume::format(&inner, &format, &mut |_, _| {}).expect("the device is large enough");
        let device = Arc::new(Gated {
            inner,
            gate: Mutex::new(Gate::Open),
            changed: Condvar::new(),
        });
        let opened = Volume::open(
            Arc::clone(&device) as Arc<dyn Device>,
            &OpenOptions::default(),
        );
        let opened = opened.expect("the volume opens");
        let refusals = Arc::new(Refusals::default());
        opened.volume.zones().refuse_by(Arc::clone(&refusals));
        let options = VtOptions {
            clock: Arc::new(ManualClock::default()),
            background: false,
            level0_tables_max: 4,
            compactors,
            ..VtOptions::default()
        };
        let engine = VtEngine::open(opened, options).expect("the store opens");
        let options = TreeOptions::default();
        let trees = ["left", "right"].map(|name| engine.create_tree(name, &options));
        let mut two = Self {
            device,
            refusals,
            engine,
            trees: trees.map(|tree| tree.expect("the tree is made")),
            rounds: 0,
        };
        for _ in 0..6 {
            two.put(two.trees);
        }
        two
    }

    fn store(&self) -> &Arc<Store> {
        &self.engine.store
    }

    /// One more table of level 0 in each of these.
    fn put<const N: usize>(&mut self, trees: [TreeId; N]) {
        self.rounds += 1;
        let mut batch = Batch::new();
        for tree in trees {
            for key in 0..KEYS {
                batch.put(tree, &[key], &[self.rounds; 100]);
            }
        }
        let done = self.engine.commit(&batch, CommitOptions::default());
        done.expect("there is room");
        self.store()
            .member
            .write_all_out()
            .expect("it is written out");
    }

    /// Tables in level 0, of each tree.
    fn level0(&self) -> [usize; 2] {
        let version = self.store().version();
        self.trees
            .map(|tree| version.trees[&tree].levels[0].tables.len())
    }

    /// Begins a compaction that comes to its first write and waits there.
    fn hold(&self) -> JoinHandle<bool> {
        self.device.set(Gate::Closed);
        let store = Arc::clone(self.store());
        let held = spawn(HELD, move || {
            store
                .compactor
                .compact_one(Pressure::Shape)
                .expect("it runs")
        });
        self.device.await_met();
        assert_eq!(self.store().compactor.scheduler.lock().count(), 1);
        held.expect("there are threads")
    }

    fn release(&self, held: JoinHandle<bool>) {
        self.device.set(Gate::Open);
        assert!(held.join().expect("it does not panic"), "it had work");
    }

    fn help(&self) -> bool {
        self.store().compactor.help_compact().expect("it runs")
    }

    fn beside(&self) -> u64 {
        self.engine.counters().get("vt.compactions_beside")
    }

    /// Both trees hold what was put last, and nothing is amiss.
    fn check(&self, rounds: [u8; 2]) {
        self.engine.quiesce().expect("background work goes on");
        assert_eq!(self.level0(), [0, 0]);
        for (tree, round) in self.trees.into_iter().zip(rounds) {
            let scan = self
                .engine
                .scan(tree, KeyRange::all(), Direction::Forward, None);
            let mut scan = scan.expect("it scans");
            let mut rows = BTreeMap::new();
            while let Some((key, value)) = scan.next().expect("it reads") {
                rows.insert(key[0], value.to_vec());
            }
            let expected = (0..KEYS).map(|key| (key, vec![round; 100]));
            assert_eq!(rows, expected.collect());
        }
        let found = self.engine.check(&mut |_, _| {});
        assert_eq!(found.expect("the check goes on"), []);
        self.engine.volume().zones().check();
    }
}

#[test]
fn what_does_not_overlap_is_compacted_at_once() {
    let two = Two::new(2);
    let held = two.hold();
    assert_eq!(two.level0(), [6, 6]);
    assert!(two.help(), "the other tree is due");
    assert_eq!(two.level0(), [6, 0], "one is done while the other runs");
    assert_eq!(two.store().compactor.scheduler.lock().count(), 1);
    two.release(held);
    assert_eq!((two.level0(), two.beside()), ([0, 0], 1));
    two.check([6, 6]);
}

#[test]
fn a_branch_is_flattened_beside_a_compaction_of_another_tree() {
    let two = Two::new(2);
    let held = two.hold();
    let compactor = &two.store().compactor;
    compactor.flatten(two.trees[1]).expect("it runs");
    assert_eq!(two.level0(), [6, 0], "one is flat while the other runs");
    assert_eq!(two.beside(), 1);
    two.release(held);
    assert_eq!(two.level0(), [0, 0]);
    two.check([6, 6]);
}

#[test]
fn a_compaction_that_shares_lets_another_run_and_keeps_its_own() {
    let two = Two::new(2);
    let compactor = &two.store().compactor;
    let scheduler = &compactor.scheduler;
    let version = two.store().version();
    let options = compactor.pick_options(&version, Pressure::Shape, u64::MAX);
    let plan = {
        let state = scheduler.lock();
        let rules = PickRules::new(&options, &state.exclusions);
        flatten_plan(&version.trees[&two.trees[0]], rules).expect("level 0 is full")
    };
    let slot = scheduler.alone();
    assert!(!two.help(), "it is alone");
    slot.share(&plan);
    assert_eq!(two.level0(), [6, 6]);
    assert!(two.help(), "the other tree is due");
    assert_eq!(two.level0(), [6, 0]);
    assert!(!two.help(), "all that is due is claimed");
    drop(slot);
    assert!(two.help(), "nothing is claimed any more");
    two.check([6, 6]);
}

#[test]
fn what_overlaps_waits() {
    let mut two = Two::new(2);
    let held = two.hold();
    assert!(two.help(), "the other tree is due");
    let left = [two.trees[0]];
    for _ in 0..5 {
        two.put(left);
    }
    assert_eq!(two.level0(), [11, 0]);
    assert!(!two.help(), "all that is due overlaps");
    let store = Arc::clone(two.store());
    let is_over = Arc::new(AtomicBool::new(false));
    let second = {
        let is_over = Arc::clone(&is_over);
        spawn("second", move || {
            let had_work = store
                .compactor
                .compact_one(Pressure::Shape)
                .expect("it runs");
            assert!(is_over.load(Ordering::SeqCst), "it waits for the first");
            // Which may have been all that was wanted: who wants more looks again.
            while store
                .compactor
                .compact_one(Pressure::Shape)
                .expect("it runs")
            {}
            had_work
        })
    };
    assert_eq!(two.level0(), [11, 0]);
    is_over.store(true, Ordering::SeqCst);
    two.release(held);
    let had_work = second.expect("there are threads").join();
    assert!(had_work.expect("it does not panic"), "more was due");
    assert_eq!((two.level0(), two.beside()), ([0, 0], 1));
    two.check([11, 6]);
}

#[test]
fn with_one_compactor_there_is_one_at_a_time() {
    let two = Two::new(1);
    let held = two.hold();
    assert!(!two.help(), "one is enough");
    assert_eq!(two.level0(), [6, 6]);
    two.release(held);
    assert!(two.help(), "now it may");
    assert_eq!((two.level0(), two.beside()), ([0, 0], 0));
    two.check([6, 6]);
}

#[test]
fn a_compaction_that_must_be_alone_goes_next_and_none_beside_it() {
    let two = Two::new(2);
    let held = two.hold();
    let (goes, may_end) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
    let ends = may_end.lock();
    let alone = {
        let (store, goes) = (Arc::clone(two.store()), Arc::clone(&goes));
        let may_end = Arc::clone(&may_end);
        spawn("alone", move || {
            let _turn = store.compactor.scheduler.alone();
            goes.store(true, Ordering::SeqCst);
            drop(may_end.lock());
        })
    };
    while two.store().compactor.scheduler.lock().waiting == 0 {
        std::thread::yield_now();
    }
    assert!(!two.help(), "it would have to wait for one more");
    assert!(!goes.load(Ordering::SeqCst), "one still runs");
    two.release(held);
    while !goes.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert!(!two.help(), "it is alone");
    assert_eq!(two.level0(), [0, 6]);
    drop(ends);
    let ended = alone.expect("there are threads").join();
    ended.expect("it does not panic");
    assert!(two.help(), "now the other tree is done");
    two.check([6, 6]);
}

#[test]
fn two_that_find_no_space_are_tried_again_one_by_one() {
    let two = Two::new(2);
    let held = two.hold();
    two.refusals.spare_promises(true);
    two.refusals.begin(0..u64::MAX);
    assert!(two.help(), "it was begun");
    two.refusals.end();
    assert_eq!(two.level0(), [6, 6], "it found no space");
    {
        let state = two.store().compactor.scheduler.lock();
        assert!(state.is_short && state.exclusions.avoided.is_empty());
    }
    assert!(!two.help(), "only alone");
    two.release(held);
    assert!(
        !two.store().compactor.scheduler.lock().is_short,
        "there is space again"
    );
    assert!(two.help(), "what found none is not forgotten");
    assert_eq!(two.level0(), [0, 0]);
    two.check([6, 6]);
}

#[test]
fn a_second_one_leaves_the_first_its_space() {
    let two = Two::new(2);
    let held = two.hold();
    let claimed = two
        .store()
        .compactor
        .scheduler
        .lock()
        .exclusions
        .claims
        .weight();
    assert!(claimed > 0, "what goes in may come out");
    let space = two.engine.volume().space();
    let free = space.available_bytes(stitch_volume::Class::Internal);
    assert_eq!(
        two.store().compactor.unclaimed_bytes(claimed),
        free - claimed
    );
    // All but a little more than what the first may still take.
    let taken = space.reserve(free - claimed - claimed / 2, stitch_volume::Class::Internal);
    let taken = taken.expect("it is free");
    let second = two.store().compactor.compact(Pressure::Shape, false);
    assert!(!second.expect("it runs"), "its inputs are as large");
    drop(taken);
    assert!(two.help(), "now there is room for both");
    two.release(held);
    two.check([6, 6]);
}

#[test]
fn each_turn_has_streams_of_its_own() {
    let all = [(1, 0), (2, 0), (1, 1), (2, 1)];
    let mut streams = all.map(|(level, slot)| crate::compaction::run::stream(level, slot).0);
    streams.sort_unstable();
    assert!(streams.windows(2).all(|pair| pair[0] < pair[1]));
}
