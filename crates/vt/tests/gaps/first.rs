//! The first scan over what was deleted: in any order, by one range delete, before and after the
//! next open, and under a snapshot that sees all of it.

use super::*;
use stitch_kv::conformance::Ending;

/// Most keys that a first scan steps over.
const STEPS_MAX: u64 = 2000;

/// Where the rows were deleted that a scan comes upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deleted {
    /// One by one, in no order.
    Each,
    /// One by one, in steps over others: round after round.
    Rounds,
    Range,
}

/// A tree with rows of which the first and the last stay.
struct Emptied {
    store: Store,
    tree: TreeId,
    /// Another tree, to fill memtables with.
    beside: TreeId,
    count: u64,
}

impl Emptied {
    fn new(count: u64, memtable: u64) -> Self {
        let (store, tree) = store(memtable, false, registry());
        let beside = store
            .engine()
            .create_tree("beside", &TreeOptions::default())
            .unwrap();
        let mut out = Self {
            store,
            tree,
            beside,
            count,
        };
        out.each(|key| key, |batch, tree, key| batch.put(tree, key, b"a row"));
        out
    }

    /// Commits something for each row, some at a time.
    fn each(&mut self, place: impl Fn(u64) -> u64, work: impl Fn(&mut Batch, TreeId, &[u8])) {
        let engine = self.store.engine();
        for some in 0..self.count.div_ceil(100) {
            commit(engine, |batch| {
                for n in (some * 100..some * 100 + 100).filter(|n| *n < self.count) {
                    work(batch, self.tree, &place(n).to_be_bytes());
                }
            });
            while some % 16 == 0 && engine.step().unwrap() {}
        }
    }

    fn delete(&mut self, how: Deleted) {
        let (count, last) = (self.count, (self.count - 1).to_be_bytes());
        match how {
            Deleted::Each | Deleted::Rounds => {
                let mut order: Vec<u64> = (0..count).map(|n| n * 17 % count).collect();
                if how == Deleted::Each {
                    shuffle(&mut Rng::new(count), &mut order);
                }
                self.each(
                    |n| order[usize::try_from(n).unwrap()],
                    |batch, tree, key| {
                        if key != [0; 8] && key != last {
                            batch.delete(tree, key);
                        }
                    },
                );
            }
            Deleted::Range => commit(self.store.engine(), |batch| {
                batch.delete_range(self.tree, &1u64.to_be_bytes(), &last);
            }),
        }
    }

    /// Has all that was committed so far written out, and nothing else.
    fn write_out(&self, memtable: u64) {
        let engine = self.store.engine();
        while engine.step().unwrap() {}
        let before = engine.counters().get("vt.write_outs");
        for n in 0..memtable / 64 {
            if engine.counters().get("vt.write_outs") > before {
                return;
            }
            commit(engine, |batch| {
                batch.put(self.beside, &n.to_be_bytes(), &[7; 100])
            });
            engine.step().unwrap();
        }
        unreachable!("a memtable is full some time");
    }

    /// Keys stepped over by the next scan from one end to the other.
    fn steps(&self, direction: Direction) -> u64 {
        let engine = self.store.engine();
        let (first, last) = (0u64.to_be_bytes(), (self.count - 1).to_be_bytes());
        let (start, end) = (1u64.to_be_bytes(), last);
        let (range, wanted) = match direction {
            Direction::Forward => (KeyRange::from(&start[..]), last),
            Direction::Backward => (
                KeyRange {
                    start: &[],
                    end: Some(&end),
                },
                first,
            ),
        };
        passed(engine, || {
            let found = rows(engine, self.tree, range, direction, None, 1);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].0, wanted);
        })
    }

    fn count_at(&self, at: &Snapshot) -> usize {
        let all = KeyRange::from(&[][..]);
        let engine = self.store.engine();
        rows(
            engine,
            self.tree,
            all,
            Direction::Forward,
            Some(at),
            usize::MAX,
        )
        .len()
    }
}

fn shuffle(rng: &mut Rng, all: &mut [u64]) {
    for at in (1..all.len()).rev() {
        let other = rng.below(at as u64 + 1);
        all.swap(at, usize::try_from(other).unwrap());
    }
}

/// Each way to delete, with each direction of the scan.
fn cases() -> impl Iterator<Item = (Deleted, Direction, u64)> {
    [
        (Deleted::Each, Direction::Forward, 200_000),
        (Deleted::Each, Direction::Backward, 100_000),
        (Deleted::Rounds, Direction::Forward, 100_000),
        (Deleted::Range, Direction::Forward, 200_000),
        (Deleted::Range, Direction::Backward, 100_000),
    ]
    .into_iter()
}

const MEMTABLE: u64 = MIB;

#[test]
fn the_first_scan_after_a_write_out_steps_over_few_keys() {
    for (how, direction, count) in cases() {
        let mut rows = Emptied::new(count, MEMTABLE);
        rows.delete(how);
        rows.write_out(MEMTABLE);
        let steps = rows.steps(direction);
        assert!(steps < STEPS_MAX, "{how:?} {direction:?}: {steps}");
    }
}

#[test]
fn the_first_scan_after_an_open_steps_over_few_keys() {
    let most = (Deleted::Each, Direction::Forward, 1_000_000);
    for (how, direction, count) in cases().chain([most]) {
        let mut rows = Emptied::new(count, MEMTABLE);
        rows.delete(how);
        rows.store.next_life(Ending::Closed);
        let steps = rows.steps(direction);
        assert!(steps < STEPS_MAX, "{how:?} {direction:?}: {steps}");
    }
}

#[test]
fn the_first_scan_under_a_snapshot_of_all_rows_steps_over_few_keys() {
    for (how, direction, count) in cases() {
        for is_settled in [false, true] {
            let mut rows = Emptied::new(count / 4, MEMTABLE);
            let all = rows.store.engine().snapshot();
            rows.delete(how);
            rows.write_out(MEMTABLE);
            if is_settled {
                rows.store.engine().quiesce().unwrap();
            }
            let steps = rows.steps(direction);
            let what = format!("{how:?} {direction:?} {is_settled}");
            assert!(steps < STEPS_MAX, "{what}: {steps}");
            assert_eq!(rows.count_at(&all) as u64, rows.count);
            drop(all);
            // Nothing is known of it from before, and all versions are still there.
            rows.store.next_life(Ending::Closed);
            let steps = rows.steps(direction);
            assert!(steps < STEPS_MAX, "{what}, opened again: {steps}");
        }
    }
}

#[test]
fn a_range_delete_over_its_own_memtable_is_stepped_over_at_once() {
    for direction in [Direction::Forward, Direction::Backward] {
        let mut rows = Emptied::new(100_000, 64 * MIB);
        let all = rows.store.engine().snapshot();
        rows.delete(Deleted::Range);
        let steps = rows.steps(direction);
        assert!(steps < 5, "at once: {steps}");
        let back = 20_000u64.to_be_bytes();
        commit(rows.store.engine(), |b| b.put(rows.tree, &back, b"back"));
        assert_eq!(rows.count_at(&all), 100_000);
        drop(all);
        rows.store.engine().sync().unwrap();
        rows.store.next_life(Ending::Killed);
        let whole = KeyRange::from(&[][..]);
        let engine = rows.store.engine();
        let steps = passed(engine, || {
            let found = super::rows(engine, rows.tree, whole, direction, None, 10);
            assert_eq!(found.len(), 3);
        });
        assert!(steps < 10, "replayed: {steps}");
    }
}

#[test]
fn deletes_that_the_log_holds_are_looked_at_after_an_open() {
    let mut rows = Emptied::new(50_000, 64 * MIB);
    rows.delete(Deleted::Each);
    rows.store.engine().sync().unwrap();
    rows.store.next_life(Ending::Killed);
    while rows.store.engine().step().unwrap() {}
    let steps = rows.steps(Direction::Forward);
    assert!(steps < 5, "{steps}");
}

/// What a test does to a store and to a model of it.
struct Modelled {
    store: Store,
    tree: TreeId,
    model: Model,
    held: Vec<(Snapshot, Model)>,
    emptied: u64,
}

impl Modelled {
    const KEYS: u64 = 4000;

    fn key(n: u64) -> Vec<u8> {
        n.to_be_bytes()[5..].to_vec()
    }

    fn commit(&mut self, fill: impl FnOnce(&mut Batch, TreeId)) {
        commit(self.store.engine(), |batch| fill(batch, self.tree));
    }

    fn put(&mut self, n: u64, value: &[u8]) {
        let key = Self::key(n);
        self.commit(|batch, tree| batch.put(tree, &key, value));
        self.model.insert(key, value.to_vec());
    }

    /// Deletes keys in no order; of one in 400, none.
    fn empty(&mut self, rng: &mut Rng, at: u64, count: u64) {
        let mut order: Vec<u64> = (at..at + count).collect();
        shuffle(rng, &mut order);
        order.retain(|_| !rng.one_in(400));
        for some in order.chunks(8) {
            self.commit(|batch, tree| {
                for n in some {
                    batch.delete(tree, &Self::key(*n));
                }
            });
            for n in some {
                self.model.remove(&Self::key(*n));
            }
        }
    }

    fn empty_range(&mut self, at: u64, count: u64) {
        let (start, end) = (Self::key(at), Self::key(at + count));
        self.commit(|batch, tree| batch.delete_range(tree, &start, &end));
        self.model.retain(|key, _| *key < start || *key >= end);
    }

    fn next_life(&mut self, ending: Ending) {
        self.held.clear();
        self.emptied += self.store.engine().counters().get("vt.emptied_ranges");
        self.store.engine().sync().unwrap();
        self.store.next_life(ending);
    }

    fn change(&mut self, rng: &mut Rng) {
        let at = rng.below(Self::KEYS);
        match rng.below(12) {
            0..=2 => {
                for n in at..at + rng.below(800) {
                    self.put(n, &n.to_be_bytes().repeat(3));
                }
            }
            3..=5 => self.empty(rng, at / 2, 2000),
            6 => self.empty_range(at, rng.below(3000)),
            7 => self.put(at, b"one"),
            8 => {
                let snapshot = self.store.engine().snapshot();
                self.held.push((snapshot, self.model.clone()));
            }
            9 if self.held.len() > 2 => drop(self.held.remove(0)),
            10 if rng.one_in(6) => self.store.engine().quiesce().unwrap(),
            11 if rng.one_in(8) => {
                let ending = [Ending::Closed, Ending::Killed];
                self.next_life(ending[usize::try_from(rng.below(2)).unwrap()]);
            }
            _ => while self.store.engine().step().unwrap() {},
        }
    }

    /// Scans from somewhere to somewhere, and compares.
    fn look(&self, rng: &mut Rng, what: &str) {
        let (low, high) = (rng.below(Self::KEYS * 2), rng.below(Self::KEYS * 2));
        let (low, high) = (Self::key(low.min(high)), Self::key(low.max(high)));
        let past = self.held.last().filter(|_| rng.one_in(3));
        let model = past.map_or(&self.model, |(_, model)| model);
        let range = KeyRange {
            start: &low,
            end: Some(&high),
        };
        let wanted = model.range(low.clone()..high.clone());
        let mut wanted: Rows = wanted.map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut direction = Direction::Forward;
        if rng.one_in(2) {
            direction = Direction::Backward;
            wanted.reverse();
        }
        let count = if rng.one_in(2) { 1 } else { usize::MAX };
        wanted.truncate(count);
        let at = past.map(|(snapshot, _)| snapshot);
        let found = rows(self.store.engine(), self.tree, range, direction, at, count);
        assert_eq!(found, wanted, "{what} {direction:?}");
    }
}

#[test]
fn rows_are_what_a_model_has_where_range_deletes_took_the_place_of_deletes() {
    for seed in 0..10 {
        let rng = &mut Rng::new(seed);
        let memtable = [32 * KIB, 128 * KIB, MIB][usize::try_from(seed).unwrap() % 3];
        let (store, tree) = store(memtable, seed % 5 == 4, registry());
        let mut all = Modelled {
            store,
            tree,
            model: Model::new(),
            held: Vec::new(),
            emptied: 0,
        };
        for step in 0..150 {
            all.change(rng);
            for _ in 0..2 {
                all.look(rng, &format!("seed {seed} step {step}"));
            }
        }
        let violations = all.store.engine().check(&mut |_, _| {}).unwrap();
        assert!(violations.is_empty(), "seed {seed}: {violations:?}");
        all.next_life(Ending::Closed);
        all.look(rng, "at the end");
        assert!(all.emptied > 5, "seed {seed}: {}", all.emptied);
    }
}
