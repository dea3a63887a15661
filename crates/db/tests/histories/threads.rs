//! Random transactions of several threads on lists, on the model and on the VT-tree engine, with
//! and without branch trees of their own, against the checker of [`crate::lists`].

use crate::faulty::{Fault, Faulty};
use crate::lists::{Anomaly, Element, Key, Record, serializability, snapshot_isolation};
use std::sync::Barrier;
use stitch_base::ErrorKind;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_db::{
    CommitOptions, DbError, Direction, Isolation, KeyRange, Scan as _, Transaction,
    TransactionOptions, Transactions, TreeOptions,
};
use stitch_device::MemDevice;
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

const KEYS: u64 = 5;
const THREADS: u32 = 4;
/// Transactions of each thread.
const ROUNDS: u32 = 40;
/// Histories of each kind. A fault shows in fewer.
const HISTORIES: u64 = 6;
/// Histories in which a fault must show.
const FAULTY_HISTORIES: u64 = 60;

const EACH: [Isolation; 3] = [
    Isolation::Snapshot,
    Isolation::Serializable,
    Isolation::Locking,
];

fn model() -> Arc<dyn Engine> {
    Arc::new(ModelEngine::new(UpsertRegistry::default()))
}

fn vt() -> Arc<dyn Engine> {
    let device = Arc::new(MemDevice::new(64 << 20));
    let format = FormatOptions::default();
    Volume::format(&*device, &format, &mut |_, _| {}).expect("the device is large enough");
    let opened = Volume::open(device, &OpenOptions::default()).expect("the volume opens");
    let options = VtOptions {
        memory_bytes: 16 << 20,
        memtable_bytes: Some(32 << 10),
        table_bytes: Some(16 << 10),
        level1_bytes: Some(32 << 10),
        level0_tables_max: 4,
        ..VtOptions::default()
    };
    VtEngine::open(opened, options).expect("the store opens")
}

/// What the threads of a history share.
struct Shared {
    transactions: Transactions,
    tree: TreeId,
    isolation: Isolation,
    clock: AtomicU64,
    records: Mutex<Vec<Record>>,
    start: Barrier,
}

impl Shared {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

fn list_of(value: &[u8]) -> Vec<Element> {
    let (elements, rest) = value.as_chunks::<4>();
    assert!(rest.is_empty(), "lists are of whole elements");
    elements
        .iter()
        .map(|bytes| Element::from_le_bytes(*bytes))
        .collect()
}

/// A transaction under way.
struct Running<'s> {
    shared: &'s Shared,
    transaction: Transaction,
    record: Record,
    /// Its first element; the next ones follow.
    element: Element,
}

impl Running<'_> {
    fn saw(&mut self, key: Key, value: &[u8]) {
        let mut list = list_of(value);
        let appends = self.record.appends.iter().filter(|(of, _)| *of == key);
        let own: Vec<Element> = appends.map(|(_, element)| *element).collect();
        assert!(list.ends_with(&own), "a transaction sees what it appended");
        list.truncate(list.len() - own.len());
        self.record.reads.push((key, list));
    }

    fn read(&mut self, key: Key) -> Result<Vec<u8>, DbError> {
        let value = self.transaction.get(self.shared.tree, &[key])?;
        let value = value.map_or_else(Vec::new, |value| value.to_vec());
        self.saw(key, &value);
        Ok(value)
    }

    fn append(&mut self, key: Key) -> Result<(), DbError> {
        let mut value = self.read(key)?;
        value.extend_from_slice(&self.element.to_le_bytes());
        self.transaction.put(self.shared.tree, &[key], &value)?;
        self.record.appends.push((key, self.element));
        self.element += 1;
        Ok(())
    }

    fn read_several(&mut self, keys: &[Key]) -> Result<(), DbError> {
        let named: Vec<&[u8]> = keys.iter().map(std::slice::from_ref).collect();
        let values = self.transaction.get_many(self.shared.tree, &named)?;
        for (key, value) in keys.iter().zip(values) {
            self.saw(*key, value.as_deref().unwrap_or_default());
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(), DbError> {
        let all = KeyRange::all();
        let mut scan = self
            .transaction
            .scan(self.shared.tree, all, Direction::Forward)?;
        let mut lists = vec![Vec::new(); usize::try_from(KEYS).expect("it is small")];
        while let Some((key, value)) = scan.next()? {
            lists[usize::from(key[0])] = value.to_vec();
        }
        drop(scan);
        for (key, value) in (0..).zip(lists) {
            self.saw(key, &value);
        }
        Ok(())
    }

    fn step(&mut self, rng: &mut Rng) -> Result<(), DbError> {
        let mut key = || Key::try_from(rng.below(KEYS)).expect("it is small");
        let keys = [key(), key()];
        // The others get a turn, also on one processor.
        std::thread::yield_now();
        match rng.below(8) {
            0 => self.scan(),
            1 => self.read_several(&keys),
            2..=4 => self.read(keys[0]).map(drop),
            _ => self.append(keys[0]),
        }
    }

    /// Ends the transaction, and adds what it did to the history.
    fn end(mut self, ran: Result<(), DbError>) {
        let done = ran.and_then(|()| self.transaction.commit(CommitOptions::default()).map(drop));
        match done {
            Ok(()) => self.record.is_committed = true,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
        self.record.to = self.shared.now();
        self.shared.records.lock().push(self.record);
    }
}

fn begin(shared: &Shared, element: Element, spill_bytes: u64) -> Running<'_> {
    let from = shared.now();
    let options = TransactionOptions {
        spill_bytes,
        ..TransactionOptions::new(shared.isolation)
    };
    Running {
        shared,
        transaction: shared.transactions.begin(&options),
        record: Record {
            from,
            ..Record::default()
        },
        element,
    }
}

fn run_thread(shared: &Shared, thread: u32, seed: u64) {
    let mut rng = Rng::new(seed * u64::from(THREADS) + u64::from(thread));
    shared.start.wait();
    for round in 0..ROUNDS {
        let element = (round * THREADS + thread) * 16;
        // Every fourth one writes to trees of its own.
        let spill_bytes = if rng.below(4) == 0 { 0 } else { 4 << 20 };
        let mut running = begin(shared, element, spill_bytes);
        let steps = 1 + rng.below(5);
        let ran = (0..steps).try_for_each(|_| running.step(&mut rng));
        running.end(ran);
    }
}

/// Runs threads, then one transaction that reads all lists.
fn history(engine: Arc<dyn Engine>, fault: Fault, isolation: Isolation, seed: u64) -> Vec<Record> {
    let engine = Faulty::over(engine, fault);
    let tree = engine.create_tree("lists", &TreeOptions::default());
    let shared = Arc::new(Shared {
        transactions: Transactions::new(engine),
        tree: tree.expect("the tree is made"),
        isolation,
        clock: AtomicU64::new(0),
        records: Mutex::default(),
        start: Barrier::new(THREADS as usize),
    });
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let shared = Arc::clone(&shared);
            let body = move || run_thread(&shared, thread, seed);
            stitch_base::thread::spawn("lists", body).expect("a thread starts")
        })
        .collect();
    for thread in threads {
        thread.join().expect("the thread ends");
    }
    let mut last = begin(&shared, u32::MAX, 0);
    let ran = last.scan();
    last.end(ran);
    let records = shared.records.lock();
    records.clone()
}

fn broken(isolation: Isolation, records: &[Record]) -> Option<Anomaly> {
    match isolation {
        Isolation::Snapshot => snapshot_isolation(records),
        Isolation::Serializable | Isolation::Locking => serializability(records),
    }
}

fn check(engine: fn() -> Arc<dyn Engine>) {
    for isolation in EACH {
        let mut commits = 0;
        for seed in 0..HISTORIES {
            let records = history(engine(), Fault::None, isolation, seed);
            let found = broken(isolation, &records);
            assert_eq!(found, None, "{isolation:?}, seed {seed}");
            commits += records.iter().filter(|record| record.is_committed).count();
        }
        assert!(
            commits > 100,
            "{isolation:?}: {commits} commits show nothing"
        );
    }
}

#[test]
fn threads_on_the_model_keep_their_isolation() {
    check(model);
}

#[test]
fn threads_on_the_vt_engine_keep_their_isolation() {
    check(vt);
}

fn shows(fault: Fault, isolation: Isolation) -> bool {
    let mut seeds = 0..FAULTY_HISTORIES;
    seeds.any(|seed| broken(isolation, &history(model(), fault, isolation, seed)).is_some())
}

#[test]
fn faults_of_the_engine_show_in_histories_of_threads() {
    for (fault, isolation) in [
        (Fault::NoGuards, Isolation::Snapshot),
        (Fault::ReadsSeeNow, Isolation::Snapshot),
        (Fault::NoGuards, Isolation::Serializable),
        (Fault::OnlyTheFirstGuard, Isolation::Serializable),
        (Fault::NoRangeGuards, Isolation::Serializable),
    ] {
        assert!(shows(fault, isolation), "{fault:?} under {isolation:?}");
    }
}

/// Snapshot isolation allows what serializability does not, and the histories show it.
#[test]
fn write_skew_shows_in_histories_of_threads() {
    let mut seeds = 0..FAULTY_HISTORIES;
    let is_skewed = |seed| {
        let records = history(model(), Fault::None, Isolation::Snapshot, seed);
        serializability(&records).is_some()
    };
    assert!(seeds.any(is_skewed));
}
