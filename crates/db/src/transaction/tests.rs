//! One transaction against a model of what it sees, and two against each other.

mod spill;

use super::*;
use crate::Transactions;
use std::collections::BTreeMap;
use std::sync::Barrier;
use stitch_base::ErrorKind;
use stitch_base::clock::{Clock, ManualClock};
use stitch_base::random::Rng;
use stitch_kv::conformance::functions::{ADD, APPEND, REMOVE_IF, number, registry};
use stitch_kv::{Batch, CommitOptions, ModelEngine, Scan as _, TreeOptions};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

struct Fixture {
    transactions: Transactions,
    tree: TreeId,
}

impl Fixture {
    fn new() -> Self {
        let engine = Arc::new(ModelEngine::new(registry()));
        let tree = engine.create_tree("tree", &TreeOptions::default()).unwrap();
        let transactions = Transactions::new(engine);
        Self { transactions, tree }
    }

    fn begin(&self, isolation: Isolation) -> Transaction {
        self.transactions.begin(&TransactionOptions::new(isolation))
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        let mut batch = Batch::new();
        batch.put(self.tree, key, value);
        let engine = self.transactions.engine();
        engine.commit(&batch, CommitOptions::default()).unwrap();
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let value = self.transactions.engine().get(self.tree, key, None);
        value.unwrap().map(|value| value.to_vec())
    }
}

fn commit(transaction: Transaction) -> Result<Seqno, DbError> {
    transaction.commit(CommitOptions::default())
}

#[track_caller]
fn conflicts(result: Result<Seqno, DbError>) -> Vec<Vec<u8>> {
    match result.expect_err("it is refused") {
        DbError::Conflict { keys } => keys.into_iter().map(|changed| changed.key).collect(),
        other => panic!("{other}"),
    }
}

fn rows(transaction: &Transaction, tree: TreeId, range: KeyRange<'_>, way: Direction) -> Rows {
    let mut scan = transaction.scan(tree, range, way).unwrap();
    let mut rows = Rows::new();
    let mut last: Option<Vec<u8>> = None;
    while let Some((key, value)) = scan.next().unwrap() {
        if let Some(last) = &last {
            assert_eq!(last.as_slice() < key, way == Direction::Forward, "in order");
        }
        last = Some(key.to_vec());
        rows.insert(key.to_vec(), value.to_vec());
    }
    assert!(scan.next().unwrap().is_none(), "the end stays the end");
    rows
}

fn small(rng: &mut Rng, bound: u64) -> u8 {
    u8::try_from(rng.below(bound)).unwrap()
}

/// Writes something to the transaction and to the model of what it sees.
fn write(transaction: &mut Transaction, tree: TreeId, seen: &mut Rows, rng: &mut Rng) {
    let key = [small(rng, 24)];
    let delta = rng.below(5).to_le_bytes();
    match rng.below(7) {
        0 => {
            transaction.delete(tree, &key).unwrap();
            seen.remove(&key[..]);
        }
        1 => {
            let end = [key[0] + small(rng, 6)];
            transaction.delete_range(tree, &key, &end).unwrap();
            seen.retain(|k, _| k[..] < key[..] || k[..] >= end[..]);
        }
        2 => upsert(transaction, tree, seen, (&key, APPEND, &delta[..1])),
        3 => upsert(transaction, tree, seen, (&key, ADD, &delta)),
        4 => upsert(transaction, tree, seen, (&key, REMOVE_IF, &delta[..1])),
        _ => {
            transaction.put(tree, &key, &delta).unwrap();
            seen.insert(key.to_vec(), delta.to_vec());
        }
    }
}

fn upsert(
    transaction: &mut Transaction,
    tree: TreeId,
    seen: &mut Rows,
    (key, function, delta): (&[u8], u32, &[u8]),
) {
    transaction.upsert(tree, key, function, delta).unwrap();
    let upserts = registry();
    let mut out = Vec::new();
    let old = seen.get(key).map(Vec::as_slice);
    match upserts
        .get(function)
        .unwrap()
        .fold(key, old, delta, &mut out)
    {
        stitch_kv::Folded::Value => drop(seen.insert(key.to_vec(), out)),
        stitch_kv::Folded::Absent => drop(seen.remove(key)),
    }
}

#[track_caller]
fn assert_sees(transaction: &Transaction, tree: TreeId, seen: &Rows, rng: &mut Rng) {
    let start = [small(rng, 26)];
    let end = [small(rng, 30)];
    let range = match rng.below(3) {
        0 => KeyRange::all(),
        1 => KeyRange::from(&start),
        _ => KeyRange::new(&start, &end),
    };
    let expected: Rows = seen
        .iter()
        .filter(|(key, _)| key.as_slice() >= range.start)
        .filter(|(key, _)| range.end.is_none_or(|end| key.as_slice() < end))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    for way in [Direction::Forward, Direction::Backward] {
        assert_eq!(
            rows(transaction, tree, range, way),
            expected,
            "{range:?} {way:?}"
        );
    }
    let key = [small(rng, 26)];
    let got = transaction.get(tree, &key).unwrap();
    assert_eq!(
        got.as_deref(),
        seen.get(&key[..]).map(Vec::as_slice),
        "key {key:?}"
    );
}

/// Reads see the snapshot with the transaction's own writes, savepoints take them back, and the
/// commit leaves what the transaction saw.
#[test]
fn a_transaction_sees_its_own_writes_over_its_moment() {
    let mut rng = Rng::new(26);
    let mut has_spilled = false;
    for isolation in [
        Isolation::Snapshot,
        Isolation::Serializable,
        Isolation::Locking,
    ] {
        for round in 0..90 {
            let fixture = Fixture::new();
            let mut seen = Rows::new();
            for key in (0..24).step_by(2) {
                let value = rng.below(9).to_le_bytes();
                fixture.put(&[key], &value);
                seen.insert(vec![key], value.to_vec());
            }
            let mut transaction = fixture.transactions.begin(&TransactionOptions {
                spill_bytes: [4 << 20, 0, 120][round % 3],
                ..TransactionOptions::new(isolation)
            });
            let mut savepoints: Vec<(Savepoint, Rows)> = Vec::new();
            for _ in 0..rng.below(40) {
                match rng.below(12) {
                    0 => savepoints.push((transaction.savepoint(), seen.clone())),
                    1 if !savepoints.is_empty() => {
                        let depth = usize::try_from(rng.below(savepoints.len() as u64)).unwrap();
                        savepoints.truncate(depth + 1);
                        transaction.rollback_to(&savepoints[depth].0).unwrap();
                        seen = savepoints[depth].1.clone();
                    }
                    2 => {
                        if let Some((savepoint, _)) = savepoints.pop() {
                            transaction.release(savepoint).unwrap();
                        }
                    }
                    _ => write(&mut transaction, fixture.tree, &mut seen, &mut rng),
                }
                assert_sees(&transaction, fixture.tree, &seen, &mut rng);
            }
            has_spilled |= transaction.spilled_bytes() > 0;
            commit(transaction).unwrap();
            let after = fixture.begin(Isolation::Snapshot);
            let found = rows(&after, fixture.tree, KeyRange::all(), Direction::Forward);
            assert_eq!(found, seen);
            assert_eq!(fixture.transactions.engine().trees().len(), 1);
        }
    }
    assert!(has_spilled, "some are larger than their memory");
}

#[test]
fn others_are_not_seen_and_the_first_committer_wins() {
    let fixture = Fixture::new();
    for key in [b"a", b"b", b"c"] {
        fixture.put(key, b"0");
    }
    let (mut first, mut second) = (
        fixture.begin(Isolation::Snapshot),
        fixture.begin(Isolation::Snapshot),
    );
    for (transaction, value) in [(&mut first, b"1"), (&mut second, b"2")] {
        transaction.put(fixture.tree, b"a", value).unwrap();
        transaction.delete(fixture.tree, b"b").unwrap();
    }
    second.put(fixture.tree, b"c", b"2").unwrap();
    assert_eq!(
        second.get(fixture.tree, b"a").unwrap().as_deref(),
        Some(&b"2"[..])
    );
    commit(first).unwrap();
    let reader = fixture.begin(Isolation::Serializable);
    assert_eq!(
        second.get(fixture.tree, b"c").unwrap().as_deref(),
        Some(&b"2"[..])
    );
    let error = second.commit(CommitOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("\"a\""), "{error}");
    assert_eq!(conflicts(Err(error)), [b"a", b"b"]);
    assert_eq!(fixture.get(b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(
        fixture.get(b"c").as_deref(),
        Some(&b"0"[..]),
        "nothing is applied"
    );
    assert_eq!(reader.get(fixture.tree, b"b").unwrap(), None);
    commit(reader).unwrap();
}

#[test]
fn an_aborted_transaction_leaves_nothing() {
    let fixture = Fixture::new();
    let mut transaction = fixture.begin(Isolation::Locking);
    transaction.put(fixture.tree, b"a", b"1").unwrap();
    transaction.abort();
    assert_eq!(fixture.get(b"a"), None);
    let mut next = fixture.begin(Isolation::Locking);
    next.put(fixture.tree, b"a", b"2").unwrap();
    commit(next).unwrap();
}

#[test]
fn range_deletes_conflict_with_what_came_into_their_range() {
    let fixture = Fixture::new();
    fixture.put(b"b", b"0");
    let mut transaction = fixture.begin(Isolation::Snapshot);
    transaction.delete_range(fixture.tree, b"a", b"m").unwrap();
    fixture.put(b"z", b"1");
    fixture.put(b"k", b"1");
    assert_eq!(conflicts(commit(transaction)), [b"k"]);
}

#[test]
fn upserts_conflict_unless_their_order_does_not_matter() {
    let fixture = Fixture::new();
    let one = 1u64.to_le_bytes();
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut transaction = fixture.begin(Isolation::Snapshot);
        transaction.upsert(fixture.tree, b"sum", ADD, &one).unwrap();
        all.push(transaction);
    }
    for transaction in all {
        commit(transaction).unwrap();
    }
    assert_eq!(number(&fixture.get(b"sum").unwrap()), 3);
    let (mut first, mut second) = (
        fixture.begin(Isolation::Snapshot),
        fixture.begin(Isolation::Snapshot),
    );
    first.upsert(fixture.tree, b"text", APPEND, b"1").unwrap();
    second.upsert(fixture.tree, b"text", APPEND, b"2").unwrap();
    commit(first).unwrap();
    assert_eq!(conflicts(commit(second)), [b"text"]);
}

/// Both transactions read a and b; each writes one of them.
fn write_skew(fixture: &Fixture, isolation: Isolation) -> [Result<Seqno, DbError>; 2] {
    fixture.put(b"a", b"on");
    fixture.put(b"b", b"on");
    let options = TransactionOptions {
        wait: LockWait::Refuse,
        ..TransactionOptions::new(isolation)
    };
    let mut both = [(); 2].map(|()| fixture.transactions.begin(&options));
    let run = |transaction: &mut Transaction, key: &[u8]| {
        for key in [b"a", b"b"] {
            transaction.get(fixture.tree, key)?;
        }
        transaction.put(fixture.tree, key, b"off")
    };
    let [first, second] = &mut both;
    let ran = [run(first, b"a"), run(second, b"b")];
    let [first, second] = both;
    let [first_ran, second_ran] = ran;
    [
        first_ran.and_then(|()| commit(first)),
        second_ran.and_then(|()| commit(second)),
    ]
}

#[test]
fn write_skew_is_taken_by_snapshots_and_refused_by_the_others() {
    let fixture = Fixture::new();
    let snapshot = write_skew(&fixture, Isolation::Snapshot);
    assert!(snapshot.iter().all(Result::is_ok), "{snapshot:?}");
    let [first, second] = write_skew(&fixture, Isolation::Serializable);
    first.unwrap();
    assert_eq!(conflicts(second), [b"a"]);
    let [first, second] = write_skew(&fixture, Isolation::Locking);
    first.unwrap();
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(fixture.get(b"b").as_deref(), Some(&b"on"[..]));
}

#[test]
fn serializable_scans_conflict_with_new_keys_as_far_as_they_went() {
    let fixture = Fixture::new();
    for key in [b"b", b"d", b"f"] {
        fixture.put(key, b"0");
    }
    let scan_two = |way| {
        let mut transaction = fixture.begin(Isolation::Serializable);
        let mut scan = transaction
            .scan(fixture.tree, KeyRange::all(), way)
            .unwrap();
        for _ in 0..2 {
            assert!(scan.next().unwrap().is_some());
        }
        drop(scan);
        transaction.put(fixture.tree, b"sum", b"2").unwrap();
        transaction
    };
    let (up, down) = (scan_two(Direction::Forward), scan_two(Direction::Backward));
    fixture.put(b"a", b"1");
    assert!(commit(down).is_ok(), "it has not come to a");
    assert_eq!(conflicts(commit(up)), [b"a"]);
    let up = scan_two(Direction::Forward);
    fixture.put(b"c", b"1");
    assert!(commit(up).is_ok(), "it has seen a and b");
}

#[test]
fn a_resolver_decides_key_by_key() {
    let fixture = Fixture::new();
    fixture.put(b"sum", &10u64.to_le_bytes());
    fixture.put(b"gone", b"0");
    let resolver = |clash: &Clash<'_>| {
        let of = |value: &Option<Bytes>| value.as_ref().map_or(0, |value| number(value));
        match clash.key {
            b"sum" => {
                let ours = of(&clash.ours).wrapping_sub(of(&clash.base));
                let sum = of(&clash.theirs).wrapping_add(ours);
                Resolution::Put(Bytes::copy_from_slice(&sum.to_le_bytes()))
            }
            b"gone" => Resolution::Delete,
            _ => Resolution::Refuse,
        }
    };
    let transactions = fixture.transactions.clone();
    let transactions = transactions.with_conflicts(ConflictPolicy::Resolve(Arc::new(resolver)));
    let begin = || transactions.begin(&TransactionOptions::default());
    let mut transaction = begin();
    transaction
        .put(fixture.tree, b"sum", &15u64.to_le_bytes())
        .unwrap();
    transaction.put(fixture.tree, b"gone", b"2").unwrap();
    transaction.put(fixture.tree, b"own", b"2").unwrap();
    fixture.put(b"sum", &11u64.to_le_bytes());
    fixture.put(b"gone", b"1");
    commit(transaction).unwrap();
    assert_eq!(number(&fixture.get(b"sum").unwrap()), 16);
    assert_eq!(
        (fixture.get(b"gone"), fixture.get(b"own")),
        (None, Some(b"2".to_vec()))
    );
    let mut transaction = begin();
    transaction.put(fixture.tree, b"own", b"3").unwrap();
    transaction
        .put(fixture.tree, b"sum", &0u64.to_le_bytes())
        .unwrap();
    fixture.put(b"own", b"4");
    fixture.put(b"sum", &20u64.to_le_bytes());
    assert_eq!(conflicts(commit(transaction)), [b"own"]);
    assert_eq!(number(&fixture.get(b"sum").unwrap()), 20);
}

#[test]
fn without_detection_the_last_committer_wins() {
    let fixture = Fixture::new();
    let transactions = fixture
        .transactions
        .clone()
        .with_conflicts(ConflictPolicy::Ignore);
    let mut transaction = transactions.begin(&TransactionOptions::default());
    transaction.put(fixture.tree, b"a", b"1").unwrap();
    fixture.put(b"a", b"2");
    commit(transaction).unwrap();
    assert_eq!(fixture.get(b"a").as_deref(), Some(&b"1"[..]));
}

#[test]
fn nested_transactions_are_kept_or_taken_back_alone() {
    let fixture = Fixture::new();
    let tree = fixture.tree;
    let mut transaction = fixture.begin(Isolation::Snapshot);
    transaction.put(tree, b"outer", b"1").unwrap();
    let mut kept = transaction.nest();
    kept.put(tree, b"kept", b"1").unwrap();
    let mut inner = kept.nest();
    inner.delete_range(tree, b"a", b"z").unwrap();
    assert_eq!(inner.get(tree, b"kept").unwrap(), None);
    inner.abort();
    assert!(kept.get(tree, b"kept").unwrap().is_some());
    kept.commit();
    let mut dropped = transaction.nest();
    dropped.put(tree, b"dropped", b"1").unwrap();
    drop(dropped);
    commit(transaction).unwrap();
    let after = fixture.begin(Isolation::Snapshot);
    let found = rows(&after, tree, KeyRange::all(), Direction::Forward);
    assert_eq!(
        found.into_keys().collect::<Vec<_>>(),
        [&b"kept"[..], b"outer"]
    );
}

#[test]
fn what_the_engine_would_refuse_is_refused_at_once() {
    let fixture = Fixture::new();
    let mut transaction = fixture.begin(Isolation::Snapshot);
    let long_key = vec![0; 1 << 20];
    let refused = transaction.put(fixture.tree, &long_key, b"").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let unknown = transaction.upsert(fixture.tree, b"k", 77, b"").unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Invalid);
    assert!(transaction.is_empty());
}

#[test]
fn reads_that_are_too_many_to_be_checked_are_refused() {
    let fixture = Fixture::new();
    let transaction = fixture.begin(Isolation::Serializable);
    let key = |n: u32| [&n.to_be_bytes()[..], &[0; 4000]].concat();
    let read = (0..4000).try_for_each(|n| transaction.get(fixture.tree, &key(n)).map(drop));
    assert!(matches!(read, Err(DbError::TooLarge { .. })), "{read:?}");
    assert!(matches!(commit(transaction), Err(DbError::TooLarge { .. })));
}

#[test]
fn a_closure_runs_again_until_it_meets_no_conflict() {
    let fixture = Fixture::new();
    let clock = Arc::new(ManualClock::default());
    let transactions = fixture
        .transactions
        .clone()
        .with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let options = TransactionOptions::default();
    let mut runs = 0;
    let mut disturbed = |times: u32| {
        runs = 0;
        transactions.transact(&options, CommitOptions::default(), |transaction| {
            runs += 1;
            transaction.put(fixture.tree, b"a", b"mine")?;
            if runs <= times {
                fixture.put(b"a", b"theirs");
            }
            Ok::<u32, DbError>(runs)
        })
    };
    assert_eq!(disturbed(5).unwrap(), 6);
    assert_eq!(fixture.get(b"a").as_deref(), Some(&b"mine"[..]));
    assert!(!clock.monotonic().is_zero(), "it lets others go first");
    let error = disturbed(u32::MAX).unwrap_err();
    assert!(
        matches!(&error, DbError::Conflict { keys } if keys.len() == 1),
        "{error}"
    );
    assert_eq!(runs, 100);
    let failed = transactions.transact(&options, CommitOptions::default(), |transaction| {
        transaction.put(fixture.tree, b"b", b"1")?;
        Err::<(), _>(DbError::NoSavepoint)
    });
    assert!(matches!(failed, Err(DbError::NoSavepoint)));
    assert_eq!(fixture.get(b"b"), None);
}

#[test]
fn a_savepoint_of_another_transaction_takes_nothing_back() {
    let fixture = Fixture::new();
    let mut first = fixture.begin(Isolation::Snapshot);
    let mut second = fixture.begin(Isolation::Snapshot);
    let (of_first, of_second) = (first.savepoint(), second.savepoint());
    second.put(fixture.tree, b"a", b"1").unwrap();
    let refused = second.rollback_to(&of_first);
    assert!(matches!(refused, Err(DbError::NoSavepoint)), "{refused:?}");
    let refused = second.release(of_first);
    assert!(matches!(refused, Err(DbError::NoSavepoint)), "{refused:?}");
    let kept = second.get(fixture.tree, b"a").unwrap();
    assert_eq!(kept.as_deref(), Some(&b"1"[..]));
    second.rollback_to(&of_second).unwrap();
    assert_eq!(second.get(fixture.tree, b"a").unwrap(), None);
}

#[test]
fn locking_reads_see_the_present() {
    let fixture = Fixture::new();
    fixture.put(b"a", b"1");
    let transaction = fixture.begin(Isolation::Locking);
    fixture.put(b"a", b"2");
    assert_eq!(
        transaction.get(fixture.tree, b"a").unwrap().as_deref(),
        Some(&b"2"[..])
    );
    // A writer that takes no locks is found at the commit.
    fixture.put(b"a", b"3");
    assert_eq!(conflicts(commit(transaction)), [b"a"]);
}

/// Each of two locks what the other wants next. Returns which of them commit.
fn deadlock(priorities: [i32; 2]) -> [bool; 2] {
    let fixture = Fixture::new();
    let transactions = priorities.map(|priority| {
        fixture.transactions.begin(&TransactionOptions {
            priority,
            ..TransactionOptions::new(Isolation::Locking)
        })
    });
    let keys = [[b"a", b"b"], [b"b", b"a"]];
    let both_hold_one = Arc::new(Barrier::new(2));
    let threads: Vec<_> = transactions
        .into_iter()
        .zip(keys)
        .map(|(mut transaction, [first, second])| {
            let (barrier, tree) = (Arc::clone(&both_hold_one), fixture.tree);
            stitch_base::thread::spawn("transaction", move || {
                transaction.put(tree, first, b"1").unwrap();
                barrier.wait();
                let ran = transaction.put(tree, second, b"1");
                let done = ran.and_then(|()| commit(transaction));
                assert!(
                    done.as_ref()
                        .err()
                        .is_none_or(|e| e.kind() == ErrorKind::Conflict)
                );
                done.is_ok()
            })
            .unwrap()
        })
        .collect();
    let mut ends = threads.into_iter().map(|thread| thread.join().unwrap());
    [(); 2].map(|()| ends.next().unwrap())
}

#[test]
fn a_deadlock_has_one_victim_by_priority_and_then_by_age() {
    for _ in 0..20 {
        assert_eq!(deadlock([0, 0]), [true, false], "the older one goes on");
        assert_eq!(deadlock([1, 0]), [true, false]);
        assert_eq!(deadlock([0, 1]), [false, true]);
    }
}

#[test]
fn locked_counters_lose_no_update() {
    let fixture = Fixture::new();
    let (writers, rounds) = (4, 40);
    let start = Arc::new(Barrier::new(writers));
    let threads: Vec<_> = (0..writers)
        .map(|_| {
            let (start, tree) = (Arc::clone(&start), fixture.tree);
            let transactions = fixture.transactions.clone();
            // Pauses take no time.
            let transactions = transactions.with_clock(Arc::new(ManualClock::default()));
            stitch_base::thread::spawn("writer", move || {
                start.wait();
                let options = TransactionOptions::new(Isolation::Locking);
                for _ in 0..rounds {
                    let counted = transactions.transact(&options, CommitOptions::default(), |t| {
                        let sum = t.get(tree, b"n")?.map_or(0, |value| number(&value));
                        t.put(tree, b"n", &(sum + 1).to_le_bytes())
                    });
                    counted.unwrap();
                }
            })
            .unwrap()
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(
        number(&fixture.get(b"n").unwrap()),
        (writers * rounds) as u64
    );
}
