//! Transactions of the library: what they see, how they are refused, and how they survive.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Barrier};
use stitchfs::{
    Batch, CommitOptions, Database, Direction, ErrorKind, InstanceOptions, Isolation, KeyRange,
    LockWait, MakeOptions, StoreError, StoreOptions, Transaction, TransactionOptions, Tree,
    TreeOptions,
};

fn store() -> (Database, Tree) {
    let db = Database::in_memory(32 << 20, &StoreOptions::default()).unwrap();
    let tree = db.create_tree("stock", &TreeOptions::default()).unwrap();
    (db, tree)
}

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()))
}

fn begin(db: &Database, isolation: Isolation) -> Transaction {
    db.begin(&TransactionOptions::new(isolation))
}

#[test]
fn a_conflict_lists_keys_with_the_names_of_their_trees() {
    let (db, stock) = store();
    let orders = db.create_tree("orders", &TreeOptions::default()).unwrap();
    let mut transaction = begin(&db, Isolation::Snapshot);
    transaction.put(&stock, b"apples", b"1").unwrap();
    transaction.put(&orders, b"7", b"apples").unwrap();
    transaction.put(&orders, b"8", b"pears").unwrap();
    let mut batch = Batch::new();
    batch.put(&stock, b"apples", b"2");
    batch.delete_range(&orders, b"7", b"9");
    db.commit(&batch).unwrap();
    let error = transaction.commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let found: Vec<_> = error
        .conflicts()
        .iter()
        .map(|conflict| (conflict.tree_name.as_str(), conflict.key.as_slice()))
        .collect();
    assert_eq!(
        found,
        [
            ("stock", &b"apples"[..]),
            ("orders", b"7"),
            ("orders", b"8")
        ]
    );
    let text = error.to_string();
    assert!(
        text.contains("\"apples\" of tree \"stock\", and 2 more"),
        "{text}"
    );
    assert_eq!(orders.get(b"7").unwrap(), None, "nothing is applied");
}

/// What is in memtables, in tables and in blocks of long values is checked alike.
#[test]
fn conflicts_are_found_wherever_the_newer_write_is() {
    let (db, stock) = store();
    let long = vec![7; 200 << 10];
    for settles in [false, true] {
        for value in [&b"short"[..], &long] {
            stock.put(b"a", b"0").unwrap();
            stock.put(b"range/5", b"0").unwrap();
            let mut writer = begin(&db, Isolation::Snapshot);
            let reader = || {
                let transaction = begin(&db, Isolation::Serializable);
                let range = KeyRange::new(b"range/", b"range0");
                let rows = transaction.scan(&stock, range, Direction::Forward);
                assert_eq!(rows.unwrap().count(), 1);
                transaction
            };
            let mut readers = [reader(), reader()];
            writer.put(&stock, b"a", b"mine").unwrap();
            stock.put(b"a", value).unwrap();
            readers[0].put(&stock, b"beside", b"1").unwrap();
            let [beside, mut inside] = readers;
            inside.put(&stock, b"beside", b"2").unwrap();
            if settles {
                db.quiesce().unwrap();
            }
            beside.commit().expect("nothing came into the range");
            stock.put(b"range/7", value).unwrap();
            if settles {
                db.quiesce().unwrap();
            }
            assert_eq!(writer.commit().unwrap_err().conflicts()[0].key, b"a");
            assert_eq!(inside.commit().unwrap_err().conflicts()[0].key, b"range/7");
            stock.delete(b"range/7").unwrap();
        }
    }
    assert_eq!(db.check(&mut |_, _| {}).unwrap(), []);
}

#[test]
fn threads_that_count_lose_no_update() {
    const THREADS: usize = 3;
    const ROUNDS: u64 = 40;
    for isolation in [
        Isolation::Snapshot,
        Isolation::Serializable,
        Isolation::Locking,
    ] {
        let (db, stock) = store();
        let start = Arc::new(Barrier::new(THREADS));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (db, stock, start) = (&db, &stock, Arc::clone(&start));
                scope.spawn(move || {
                    let options = TransactionOptions::new(isolation);
                    start.wait();
                    for _ in 0..ROUNDS {
                        let count = |txn: &mut Transaction| {
                            let count = number(txn.get(stock, b"n")?.as_deref());
                            txn.put(stock, b"n", &(count + 1).to_be_bytes())
                        };
                        // A conflict of the last attempt is no fault of the store.
                        while let Err(error) =
                            db.transact_with(&options, CommitOptions::default(), count)
                        {
                            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                        }
                    }
                });
            }
        });
        let count = number(stock.get(b"n").unwrap().as_deref());
        assert_eq!(count, THREADS as u64 * ROUNDS, "{isolation:?}");
    }
}

#[test]
fn write_skew_is_refused_where_it_is_asked_for() {
    for (isolation, both) in [
        (Isolation::Snapshot, true),
        (Isolation::Serializable, false),
        (Isolation::Locking, false),
    ] {
        let (db, stock) = store();
        let options = TransactionOptions {
            wait: LockWait::Refuse,
            ..TransactionOptions::new(isolation)
        };
        let run = |own: &[u8]| {
            let mut transaction = db.begin(&options);
            for key in [b"a", b"b"] {
                transaction.get(&stock, key)?;
            }
            transaction.put(&stock, own, b"1")?;
            Ok::<_, StoreError>(transaction)
        };
        let (first, second) = (run(b"a"), run(b"b"));
        let first = first.and_then(Transaction::commit);
        let second = second.and_then(Transaction::commit);
        assert!(first.is_ok(), "{isolation:?}");
        assert_eq!(second.is_ok(), both, "{isolation:?}");
    }
}

#[test]
fn trees_of_another_store_or_instance_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let make = MakeOptions {
        len_bytes: Some(64 << 20),
        ..MakeOptions::default()
    };
    let db = Database::create(dir.path().join("s"), &make, &StoreOptions::default()).unwrap();
    let own = db.create_tree("own", &TreeOptions::default()).unwrap();
    let cache = db
        .create_instance("cache", &InstanceOptions::default())
        .unwrap();
    let (_other, strange) = store();
    let pages = cache.create_tree("pages", &TreeOptions::default()).unwrap();
    let mut transaction = begin(&db, Isolation::Locking);
    for tree in [&strange, &pages] {
        let calls = [
            transaction.get(tree, b"k").map(drop),
            transaction
                .scan(tree, KeyRange::all(), Direction::Forward)
                .map(drop),
            transaction.put(tree, b"k", b"v"),
            transaction.delete(tree, b"k"),
            transaction.delete_range(tree, b"k", b"l"),
            transaction.upsert(tree, b"k", 1, b""),
            transaction.lock(tree, KeyRange::all(), stitchfs::Access::Read),
        ];
        for call in calls {
            let error = call.unwrap_err();
            assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
    transaction.put(&own, b"k", b"v").unwrap();
    transaction.commit().unwrap();
    assert_eq!(
        (strange.get(b"k").unwrap(), pages.get(b"k").unwrap()),
        (None, None)
    );
    assert!(own.get(b"k").unwrap().is_some());
    db.close().unwrap();
}

#[test]
fn a_committed_transaction_is_there_after_the_next_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let make = MakeOptions {
        len_bytes: Some(64 << 20),
        ..MakeOptions::default()
    };
    let db = Database::create(&path, &make, &StoreOptions::default()).unwrap();
    let tree = db.create_tree("t", &TreeOptions::default()).unwrap();
    let mut kept = begin(&db, Isolation::Serializable);
    kept.get(&tree, b"a").unwrap();
    kept.put(&tree, b"a", b"1").unwrap();
    let savepoint = kept.savepoint();
    kept.put(&tree, b"b", b"1").unwrap();
    kept.rollback_to(&savepoint).unwrap();
    kept.commit_sync().unwrap();
    let mut dropped = begin(&db, Isolation::Snapshot);
    dropped.put(&tree, b"c", b"1").unwrap();
    dropped.abort();
    drop((tree, db));
    let db = Database::open(&path, &StoreOptions::default()).unwrap();
    let tree = db.tree("t").unwrap();
    let rows: Result<Vec<_>, _> = tree
        .scan(KeyRange::all(), Direction::Forward)
        .unwrap()
        .collect();
    assert_eq!(rows.unwrap(), [(b"a".to_vec(), b"1".to_vec())]);
    db.close().unwrap();
}

#[test]
fn what_was_written_after_a_savepoint_may_be_larger_than_a_batch() {
    let db = Database::in_memory(256 << 20, &StoreOptions::default()).unwrap();
    let stock = db.create_tree("stock", &TreeOptions::default()).unwrap();
    let mut transaction = begin(&db, Isolation::Snapshot);
    transaction.put(&stock, b"kept", b"1").unwrap();
    let savepoint = transaction.savepoint();
    let value = vec![1; 64 << 10];
    for key in 0..1000u32 {
        transaction.put(&stock, &key.to_be_bytes(), &value).unwrap();
    }
    assert!(transaction.spilled_bytes() > db.limits().batch_bytes_max);
    transaction.rollback_to(&savepoint).unwrap();
    assert_eq!(transaction.get(&stock, &7u32.to_be_bytes()).unwrap(), None);
    transaction.put(&stock, b"after", b"1").unwrap();
    transaction.commit().unwrap();
    let rows = stock.scan(KeyRange::all(), Direction::Forward).unwrap();
    let keys: Vec<Vec<u8>> = rows.map(|row| row.unwrap().0).collect();
    assert_eq!(keys, [b"after".to_vec(), b"kept".to_vec()]);
}
