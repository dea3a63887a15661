//! Transactions whose writes do not fit memory.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use stitch_format::db_names::spill_tree_name;
use stitch_kv::{Capabilities, Guards, KvError, NewBranch, WrappedEngine};

const EACH: [Isolation; 3] = [
    Isolation::Snapshot,
    Isolation::Serializable,
    Isolation::Locking,
];

fn spilling(isolation: Isolation) -> TransactionOptions {
    TransactionOptions {
        spill_bytes: 100,
        ..TransactionOptions::new(isolation)
    }
}

impl Fixture {
    fn begin_spilling(&self, isolation: Isolation) -> Transaction {
        self.transactions.begin(&spilling(isolation))
    }

    fn tree_count(&self) -> usize {
        self.transactions.engine().trees().len()
    }

    /// Puts many keys, so that the first ones are in a branch.
    fn put_many(&self, transaction: &mut Transaction, value: &[u8]) {
        for key in 0..30u8 {
            transaction.put(self.tree, &[key], value).unwrap();
        }
        assert!(transaction.spilled_bytes() > 0, "memory holds few of them");
        assert!(transaction.len_bytes() <= 100 + 30 + value.len());
    }
}

#[test]
fn writes_leave_memory_and_are_invisible_before_the_commit() {
    for isolation in EACH {
        let fixture = Fixture::new();
        let other = fixture.transactions.engine();
        let other = other.create_tree("other", &TreeOptions::default()).unwrap();
        let mut transaction = fixture.begin_spilling(isolation);
        fixture.put_many(&mut transaction, b"1");
        transaction.put(other, b"k", b"1").unwrap();
        fixture.put_many(&mut transaction, b"2");
        assert_eq!(fixture.get(&[0]), None);
        let own = transaction.get(fixture.tree, &[0]).unwrap();
        assert_eq!(own.as_deref(), Some(&b"2"[..]));
        assert!(!transaction.is_empty());
        commit(transaction).unwrap();
        assert_eq!(fixture.get(&[0]).as_deref(), Some(&b"2"[..]));
        let after = fixture.begin(isolation);
        assert!(after.get(other, b"k").unwrap().is_some());
        assert_eq!(fixture.tree_count(), 2, "no branch is left");
    }
}

#[test]
fn an_end_without_a_commit_leaves_nothing() {
    let fixture = Fixture::new();
    let mut aborted = fixture.begin_spilling(Isolation::Snapshot);
    fixture.put_many(&mut aborted, b"1");
    let mut refused = fixture.begin_spilling(Isolation::Snapshot);
    fixture.put_many(&mut refused, b"2");
    assert_eq!(fixture.tree_count(), 3);
    aborted.abort();
    fixture.put(&[7], b"other");
    assert_eq!(conflicts(commit(refused)), [[7]]);
    assert_eq!(fixture.tree_count(), 1);
    assert_eq!(fixture.get(&[0]), None);
}

#[test]
fn conflicts_are_the_keys_that_both_wrote() {
    let fixture = Fixture::new();
    for key in 0..40 {
        fixture.put(&[key], b"0");
    }
    let mut transaction = fixture.begin_spilling(Isolation::Snapshot);
    for key in (0..30u8).step_by(2) {
        transaction.put(fixture.tree, &[key], b"1").unwrap();
    }
    transaction
        .delete_range(fixture.tree, &[40], &[50])
        .unwrap();
    for key in (0..30u8).step_by(2) {
        transaction.put(fixture.tree, &[key], b"2").unwrap();
    }
    for key in [1, 3, 27, 33] {
        fixture.put(&[key], b"beside them");
    }
    // In no branch: the range had no keys.
    fixture.put(&[44], b"new");
    fixture.put(&[4], b"both");
    fixture.put(&[28], b"both");
    assert_eq!(conflicts(commit(transaction)), [[4], [28], [44]]);
    assert_eq!(fixture.get(&[2]).as_deref(), Some(&b"0"[..]));
}

#[test]
fn a_resolver_settles_what_is_in_a_branch() {
    let fixture = Fixture::new();
    fixture.put(&[3], b"base");
    fixture.put(&[4], b"base");
    let join = |clash: &Clash<'_>| {
        let all = [&clash.base, &clash.ours, &clash.theirs];
        let text = |value: &Option<Bytes>| value.clone().unwrap_or_default();
        Resolution::Put(Bytes::from(all.map(text).join(&b'|')))
    };
    let policy = ConflictPolicy::Resolve(Arc::new(join));
    let transactions = fixture.transactions.clone().with_conflicts(policy);
    let mut transaction = transactions.begin(&spilling(Isolation::Snapshot));
    fixture.put_many(&mut transaction, b"ours");
    fixture.put(&[3], b"theirs");
    fixture.put(&[29], b"theirs");
    commit(transaction).unwrap();
    assert_eq!(fixture.get(&[3]).unwrap(), b"base|ours|theirs");
    assert_eq!(fixture.get(&[29]).unwrap(), b"|ours|theirs");
    assert_eq!(fixture.get(&[4]).unwrap(), b"ours");
    assert_eq!(fixture.tree_count(), 1);
}

#[test]
fn without_detection_a_branch_is_absorbed_over_what_others_wrote() {
    let fixture = Fixture::new();
    let transactions = fixture.transactions.clone();
    let transactions = transactions.with_conflicts(ConflictPolicy::Ignore);
    let mut transaction = transactions.begin(&spilling(Isolation::Snapshot));
    fixture.put_many(&mut transaction, b"ours");
    fixture.put(&[3], b"theirs");
    commit(transaction).unwrap();
    assert_eq!(fixture.get(&[3]).unwrap(), b"ours");
}

#[test]
fn reads_are_checked_beside_a_branch() {
    for isolation in [Isolation::Serializable, Isolation::Locking] {
        let fixture = Fixture::new();
        fixture.put(b"read", b"0");
        let mut transaction = fixture.begin_spilling(isolation);
        fixture.put_many(&mut transaction, b"1");
        transaction.get(fixture.tree, b"read").unwrap();
        fixture.put(b"read", b"1");
        assert_eq!(conflicts(commit(transaction)), [b"read"]);
        assert_eq!((fixture.get(&[0]), fixture.tree_count()), (None, 1));
    }
}

#[test]
fn writes_after_a_savepoint_leave_memory_too_and_are_taken_back() {
    for isolation in EACH {
        let fixture = Fixture::new();
        let mut transaction = fixture.begin_spilling(isolation);
        fixture.put_many(&mut transaction, b"1");
        let savepoint = transaction.savepoint();
        let gone = transaction.savepoint();
        let spilled = transaction.spilled_bytes();
        for key in 0..40u8 {
            transaction.put(fixture.tree, &[key], b"2").unwrap();
        }
        assert!(transaction.spilled_bytes() > spilled, "memory holds few");
        assert_eq!(fixture.tree_count(), 3, "a branch of a branch");
        transaction.rollback_to(&savepoint).unwrap();
        assert_eq!(transaction.spilled_bytes(), spilled);
        assert_eq!(fixture.tree_count(), 2);
        let before = transaction.get(fixture.tree, &[0]).unwrap();
        assert_eq!(before.as_deref(), Some(&b"1"[..]));
        assert_eq!(transaction.get(fixture.tree, &[35]).unwrap(), None);
        let refused = transaction.rollback_to(&gone);
        assert!(matches!(refused, Err(DbError::NoSavepoint)), "{refused:?}");
        fixture.put_many(&mut transaction, b"3");
        transaction.release(savepoint).unwrap();
        let later = [transaction.savepoint(), transaction.savepoint()];
        let refused = transaction.rollback_to(&gone);
        assert!(matches!(refused, Err(DbError::NoSavepoint)), "{refused:?}");
        transaction.rollback_to(&later[1]).unwrap();
        commit(transaction).unwrap();
        assert_eq!(fixture.get(&[0]).unwrap(), b"3");
        assert_eq!(fixture.tree_count(), 1);
    }
}

#[test]
fn transactions_in_a_large_transaction_are_of_any_size() {
    let fixture = Fixture::new();
    let limit = fixture.transactions.engine().limits().batch_bytes_max;
    let value = vec![7; 1 << 20];
    let mut transaction = fixture.begin(Isolation::Snapshot);
    let mut kept = Vec::new();
    for round in 0..6u8 {
        let mut nested = transaction.nest();
        for key in 0..20u8 {
            nested.put(fixture.tree, &[round, key], &value).unwrap();
        }
        nested
            .delete_range(fixture.tree, &[round, 18], &[round, 19])
            .unwrap();
        assert!(nested.len_bytes() as u64 <= limit / 2 + (1 << 20) + 100);
        match round % 2 {
            0 => nested.abort(),
            _ => nested.commit(),
        }
        kept.extend((round % 2 == 1).then_some(round));
        // Each that was kept is a part of what was moved before.
        assert!(fixture.tree_count() <= 3, "{}", fixture.tree_count());
    }
    assert!(transaction.spilled_bytes() > limit);
    commit(transaction).unwrap();
    assert_eq!(fixture.tree_count(), 1);
    for round in 0..6u8 {
        let found = (0..20).filter(|key| fixture.get(&[round, *key]).is_some());
        let expected = if kept.contains(&round) { 19 } else { 0 };
        assert_eq!(found.count(), expected, "round {round}");
    }
}

#[test]
fn with_too_many_large_savepoints_writes_fit_a_batch_or_are_refused() {
    let fixture = Fixture::new();
    let mut transaction = fixture.begin_spilling(Isolation::Snapshot);
    let mut savepoints = Vec::new();
    for round in 0..stitch_kv::BRANCH_DEPTH_MAX {
        savepoints.push(transaction.savepoint());
        fixture.put_many(&mut transaction, &round.to_le_bytes());
    }
    let trees = fixture.tree_count();
    assert_eq!(trees, 1 + stitch_kv::BRANCH_DEPTH_MAX);
    transaction.savepoint();
    let value = vec![7; 1 << 20];
    let fill = (0..100u8).try_for_each(|key| transaction.put(fixture.tree, &[key], &value));
    let error = fill.unwrap_err();
    assert!(error.to_string().contains("open savepoints"), "{error}");
    transaction.rollback_to(&savepoints[2]).unwrap();
    assert_eq!(fixture.tree_count(), 3);
    let before = transaction.get(fixture.tree, &[0]).unwrap();
    assert_eq!(before.as_deref(), Some(&1usize.to_le_bytes()[..]));
    commit(transaction).unwrap();
    assert_eq!(fixture.get(&[0]).unwrap(), 1usize.to_le_bytes());
    assert_eq!(fixture.tree_count(), 1);
}

#[test]
fn a_transaction_of_many_batches_is_committed_whole() {
    let fixture = Fixture::new();
    let limit = fixture.transactions.engine().limits().batch_bytes_max;
    let value = vec![7; 1 << 20];
    let mut transaction = fixture.begin(Isolation::Snapshot);
    for key in 0..20u8 {
        transaction.put(fixture.tree, &[key], &value).unwrap();
        assert!(transaction.len_bytes() as u64 <= limit / 2 + (1 << 20) + 100);
    }
    assert!(transaction.spilled_bytes() > limit);
    commit(transaction).unwrap();
    assert!((0..20).all(|key| fixture.get(&[key]).is_some()));
}

/// The model without branch trees.
struct Plain(ModelEngine);

impl WrappedEngine for Plain {
    fn inner(&self) -> &dyn Engine {
        &self.0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            branches: false,
            absorb: false,
            ..self.0.capabilities()
        }
    }
}

#[test]
fn without_branch_trees_a_transaction_that_fits_no_batch_is_refused_with_the_limit() {
    let engine: Arc<dyn Engine> = Arc::new(Plain(ModelEngine::new(registry())));
    let limit = engine.limits().batch_bytes_max;
    let tree = engine.create_tree("tree", &TreeOptions::default()).unwrap();
    let transactions = Transactions::new(Arc::clone(&engine));
    let value = vec![7; 1 << 20];
    let mut transaction = transactions.begin(&spilling(Isolation::Snapshot));
    let fill = (0..100u8).try_for_each(|key| transaction.put(tree, &[key], &value));
    let error = fill.unwrap_err();
    let is_named = matches!(error, DbError::TooLarge { limit_bytes, .. } if limit_bytes == limit);
    assert!(is_named, "{error}");
    assert!(
        error.to_string().contains("without branch trees"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(transaction.len_bytes() as u64 <= limit);
    commit(transaction).unwrap();
    assert!(engine.get(tree, &[6], None).unwrap().is_some());
}

/// The model whose absorbs meet another writer, who puts a key before some of them.
struct Busy {
    inner: ModelEngine,
    key: Vec<u8>,
    count: AtomicU32,
}

impl WrappedEngine for Busy {
    fn inner(&self) -> &dyn Engine {
        &self.inner
    }

    fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.count.fetch_sub(1, Ordering::Relaxed);
            let mut other = Batch::new();
            other.put(TreeId(1), &self.key, b"other");
            self.inner.commit(&other, CommitOptions::default())?;
        }
        self.inner.absorb(branches, batch, guards, options)
    }
}

/// The guards of the commit are wider than what was written: a writer between the keys is no
/// conflict, unless it never ends.
#[test]
fn a_writer_between_the_comparison_and_the_commit_is_found() {
    for (key, count, is_refused) in [
        (5000u16, 1, true),
        (8, 1, true),
        (5001, 3, false),
        (9, 3, false),
        (5001, 1000, true),
    ] {
        let inner = ModelEngine::new(registry());
        let key = key.to_be_bytes().to_vec();
        let engine: Arc<dyn Engine> = Arc::new(Busy {
            inner,
            key: key.clone(),
            count: AtomicU32::new(count),
        });
        let tree = engine.create_tree("tree", &TreeOptions::default()).unwrap();
        let transactions = Transactions::new(Arc::clone(&engine));
        let mut transaction = transactions.begin(&spilling(Isolation::Snapshot));
        for number in (0..6000u16).step_by(2) {
            transaction.put(tree, &number.to_be_bytes(), b"1").unwrap();
        }
        let done = commit(transaction);
        assert_eq!(done.is_err(), is_refused, "{key:?}: {done:?}");
        if is_refused {
            assert_eq!(conflicts(done), std::slice::from_ref(&key));
        }
        let first = engine.get(tree, &[0, 0], None).unwrap();
        assert_eq!(first.is_none(), is_refused);
    }
}

/// The model, which counts the pages of keys that commits compare.
struct Paged {
    inner: ModelEngine,
    pages: Arc<AtomicU32>,
}

impl WrappedEngine for Paged {
    fn inner(&self) -> &dyn Engine {
        &self.inner
    }

    fn branch_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        self.pages.fetch_add(1, Ordering::Relaxed);
        self.inner.branch_keys(branch, after, count_max)
    }
}

/// Keys are compared only if there is something to compare them with.
#[test]
fn a_tree_that_no_other_writer_has_changed_is_compared_as_a_whole() {
    // What another changes before the commit: nothing, another tree, keys beside and among those.
    for (changed, is_compared, is_refused) in [
        (None, false, false),
        (Some((2, 8u16)), false, false),
        (Some((1, 9)), true, false),
        (Some((1, 60_000)), true, false),
        (Some((1, 8)), true, true),
    ] {
        let pages = Arc::new(AtomicU32::new(0));
        let engine: Arc<dyn Engine> = Arc::new(Paged {
            inner: ModelEngine::new(registry()),
            pages: Arc::clone(&pages),
        });
        let tree = engine.create_tree("tree", &TreeOptions::default()).unwrap();
        engine
            .create_tree("other", &TreeOptions::default())
            .unwrap();
        let transactions = Transactions::new(Arc::clone(&engine));
        let mut transaction = transactions.begin(&spilling(Isolation::Snapshot));
        for number in (0..6000u16).step_by(2) {
            transaction.put(tree, &number.to_be_bytes(), b"1").unwrap();
        }
        transaction.delete_range(tree, &[100], &[101]).unwrap();
        if let Some((tree, key)) = changed {
            let mut other = Batch::new();
            other.put(TreeId(tree), &key.to_be_bytes(), b"other");
            engine.commit(&other, CommitOptions::default()).unwrap();
        }
        let done = commit(transaction);
        assert_eq!(done.is_err(), is_refused, "{changed:?}: {done:?}");
        let pages = pages.load(Ordering::Relaxed);
        assert_eq!(pages > 0, is_compared, "{changed:?}: {pages} pages");
    }
}

#[test]
fn branches_that_a_crash_left_are_dropped_and_no_others() {
    let fixture = Fixture::new();
    let engine = fixture.transactions.engine();
    let make = |name: &str| {
        let made = engine.branch_trees(&[NewBranch::new(fixture.tree, name)], None);
        made.unwrap()[0]
    };
    let left = [
        make(&spill_tree_name(1, fixture.tree)),
        make(&spill_tree_name(9, fixture.tree)),
    ];
    make("spill~1");
    make(&spill_tree_name(1, TreeId(99)));
    let options = TreeOptions::default();
    engine.create_tree("spill~3/1", &options).unwrap();
    assert_eq!(crate::drop_abandoned(engine.as_ref()).unwrap(), 2);
    let trees = engine.trees();
    assert!(trees.iter().all(|info| !left.contains(&info.id)));
    assert_eq!(trees.len(), 4);
    assert_eq!(crate::drop_abandoned(engine.as_ref()).unwrap(), 0);
}

#[test]
fn a_name_in_use_is_passed_over() {
    let fixture = Fixture::new();
    let engine = fixture.transactions.engine();
    for number in 0..200 {
        let name = spill_tree_name(number, fixture.tree);
        engine.create_tree(&name, &TreeOptions::default()).unwrap();
    }
    let mut transaction = fixture.begin_spilling(Isolation::Snapshot);
    fixture.put_many(&mut transaction, b"1");
    commit(transaction).unwrap();
    assert_eq!(fixture.tree_count(), 201);
}
