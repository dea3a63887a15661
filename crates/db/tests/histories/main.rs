//! Random histories of transactions that run at the same time, and checkers that look at what each
//! has read and written.
//!
//! Most histories are made by one thread, which steps through several open transactions in an order
//! drawn from a seed: a history that breaks a rule can be run again.

mod checker;
mod faulty;
mod lists;
mod threads;

use checker::{History, Key, Number, Record, serializability, snapshot_isolation};
use faulty::{Fault, Faulty};
use std::sync::Barrier;
use stitch_base::random::Rng;
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{ErrorKind, TreeId};
use stitch_db::{
    CommitOptions, DbError, Direction, Isolation, KeyRange, LockWait, Scan as _, Transaction,
    TransactionOptions, Transactions, TreeOptions,
};
use stitch_kv::Engine;

const KEYS: u64 = 6;
const OPEN_MAX: u64 = 4;
const STEPS: usize = 400;
const SEEDS: u64 = 60;

/// A transaction under way, and what it has done.
struct Running {
    number: Number,
    transaction: Transaction,
    record: Record,
}

fn small(rng: &mut Rng, bound: u64) -> Key {
    Key::try_from(rng.below(bound)).expect("it is small")
}

fn number_of(value: &[u8]) -> Number {
    Number::from_le_bytes(value.try_into().expect("values are numbers"))
}

impl Running {
    fn saw(&mut self, key: Key, version: Number) {
        if !self.record.writes.contains(&key) {
            self.record.reads.insert((key, version));
        } else {
            assert_eq!(version, self.number, "a transaction sees its own write");
        }
    }

    fn read(&mut self, tree: TreeId, key: Key) -> Result<(), DbError> {
        let value = self.transaction.get(tree, &[key])?;
        self.saw(key, value.map_or(0, |value| number_of(&value)));
        Ok(())
    }

    /// Reads some entries of a range. Keys that are passed over are absent.
    fn scan(&mut self, tree: TreeId, rng: &mut Rng) -> Result<(), DbError> {
        let start = small(rng, KEYS);
        let end = start + 1 + small(rng, KEYS);
        let (first, after) = ([start], [end]);
        let (range, count) = (KeyRange::new(&first, &after), rng.below(4));
        let mut found = Vec::new();
        let mut scan = self.transaction.scan(tree, range, Direction::Forward)?;
        let mut reached = start;
        for _ in 0..count {
            let Some((key, value)) = scan.next()? else {
                reached = end;
                break;
            };
            found.push((key[0], number_of(value)));
            reached = key[0] + 1;
        }
        drop(scan);
        for key in (start..reached).filter(|key| u64::from(*key) < KEYS) {
            let version = found.iter().find(|(found, _)| *found == key);
            self.saw(key, version.map_or(0, |(_, version)| *version));
        }
        Ok(())
    }

    fn write(&mut self, tree: TreeId, key: Key) -> Result<(), DbError> {
        self.transaction
            .put(tree, &[key], &self.number.to_le_bytes())?;
        self.record.writes.insert(key);
        Ok(())
    }

    fn step(&mut self, tree: TreeId, rng: &mut Rng) -> Result<(), DbError> {
        match rng.below(8) {
            0 | 1 => self.scan(tree, rng),
            2..=4 => self.read(tree, small(rng, KEYS)),
            _ => self.write(tree, small(rng, KEYS)),
        }
    }

    /// Commits, and adds itself to a history.
    fn commit(mut self, history: &mut History) {
        let done = self.transaction.commit(CommitOptions::default());
        match done {
            Ok(seqno) => self.record.committed = Some(seqno.0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
        history.transactions.insert(self.number, self.record);
    }

    fn abandon(self, history: &mut History) {
        history.transactions.insert(self.number, self.record);
    }
}

fn begin(transactions: &Transactions, options: &TransactionOptions, number: Number) -> Running {
    let transaction = transactions.begin(options);
    let record = Record {
        begun: transaction.seqno().0,
        ..Record::default()
    };
    Running {
        number,
        transaction,
        record,
    }
}

fn fresh(fault: Fault) -> (Transactions, TreeId) {
    let engine = Faulty::new(fault);
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("the tree is made");
    (Transactions::new(engine), tree)
}

/// A history of transactions that one thread steps through.
fn history(fault: Fault, isolation: Isolation, seed: u64) -> History {
    let (transactions, tree) = fresh(fault);
    let options = TransactionOptions {
        wait: LockWait::Refuse,
        ..TransactionOptions::new(isolation)
    };
    let mut rng = Rng::new(seed);
    let mut history = History::default();
    let mut open: Vec<Running> = Vec::new();
    let mut last = 0;
    for _ in 0..STEPS {
        let slot = usize::try_from(rng.below(OPEN_MAX)).expect("it is small");
        if slot >= open.len() {
            last += 1;
            open.push(begin(&transactions, &options, last));
            continue;
        }
        match rng.below(8) {
            0 => open.swap_remove(slot).commit(&mut history),
            _ if open[slot].step(tree, &mut rng).is_err() => {
                open.swap_remove(slot).abandon(&mut history);
            }
            _ => {}
        }
    }
    for running in open {
        running.commit(&mut history);
    }
    history
}

/// How many of the histories break snapshot isolation, and how many serializability.
fn broken(fault: Fault, isolation: Isolation) -> (usize, usize) {
    let histories = (0..SEEDS).map(|seed| history(fault, isolation, seed));
    let mut counts = (0, 0);
    for history in histories {
        counts.0 += usize::from(snapshot_isolation(&history).is_some());
        counts.1 += usize::from(serializability(&history).is_some());
    }
    counts
}

#[test]
fn snapshots_are_kept_and_allow_write_skew() {
    let (snapshot, serial) = broken(Fault::None, Isolation::Snapshot);
    assert_eq!(snapshot, 0);
    assert!(
        serial > 0,
        "the histories are dense enough to show write skew"
    );
}

#[test]
fn serializable_transactions_are_serializable() {
    for seed in 0..SEEDS {
        let history = history(Fault::None, Isolation::Serializable, seed);
        assert_eq!(serializability(&history), None, "seed {seed}");
        let commits = history.transactions.values();
        let commits = commits.filter(|record| record.committed.is_some()).count();
        assert!(commits > 5, "seed {seed} has {commits} commits");
    }
}

#[test]
fn locking_transactions_are_serializable() {
    for seed in 0..SEEDS {
        let history = history(Fault::None, Isolation::Locking, seed);
        assert_eq!(serializability(&history), None, "seed {seed}");
    }
}

/// Locks are enough by themselves, where every writer takes them.
#[test]
fn locks_alone_make_transactions_serializable() {
    for seed in 0..SEEDS {
        let history = history(Fault::NoGuards, Isolation::Locking, seed);
        assert_eq!(serializability(&history), None, "seed {seed}");
    }
}

#[test]
fn faults_of_the_engine_are_found() {
    let found = |fault, isolation| broken(fault, isolation);
    assert!(found(Fault::NoGuards, Isolation::Snapshot).0 > 0);
    assert!(found(Fault::OnlyTheFirstGuard, Isolation::Snapshot).0 > 0);
    assert!(found(Fault::ReadsSeeNow, Isolation::Snapshot).0 > 0);
    assert!(found(Fault::NoGuards, Isolation::Serializable).1 > 0);
    assert!(found(Fault::OnlyTheFirstGuard, Isolation::Serializable).1 > 0);
    assert!(found(Fault::NoRangeGuards, Isolation::Serializable).1 > 0);
}

/// A history of transactions that several threads run at the same time.
fn threaded(isolation: Isolation, seed: u64) -> History {
    const THREADS: u32 = 3;
    const ROUNDS: u32 = 60;
    let (transactions, tree) = fresh(Fault::None);
    let history = Arc::new(Mutex::new(History::default()));
    let start = Arc::new(Barrier::new(THREADS as usize));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (transactions, start) = (transactions.clone(), Arc::clone(&start));
            let history = Arc::clone(&history);
            let body = move || {
                let mut rng = Rng::new(seed * u64::from(THREADS) + u64::from(thread));
                start.wait();
                for round in 0..ROUNDS {
                    let number = 1 + round * THREADS + thread;
                    let options = TransactionOptions::new(isolation);
                    let mut running = begin(&transactions, &options, number);
                    let steps = 2 + rng.below(5);
                    let ran = (0..steps).try_for_each(|_| running.step(tree, &mut rng));
                    let mut own = History::default();
                    match ran {
                        Ok(()) => running.commit(&mut own),
                        Err(_) => running.abandon(&mut own),
                    }
                    history.lock().transactions.extend(own.transactions);
                }
            };
            stitch_base::thread::spawn("transactions", body).expect("a thread starts")
        })
        .collect();
    for thread in threads {
        thread.join().expect("the thread ends");
    }
    let history = history.lock();
    history.clone()
}

#[test]
fn threads_keep_the_isolation_that_they_ask_for() {
    for seed in 0..8 {
        let history = threaded(Isolation::Snapshot, seed);
        assert_eq!(snapshot_isolation(&history), None, "seed {seed}");
        for isolation in [Isolation::Serializable, Isolation::Locking] {
            let history = threaded(isolation, seed);
            assert_eq!(
                serializability(&history),
                None,
                "{isolation:?}, seed {seed}"
            );
        }
    }
}
