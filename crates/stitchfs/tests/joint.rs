//! Transactions of files and records, as a program has them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use stitchfs::fs::{BeginOptions, FileTransaction, Files, TransactionIsolation, TransactionLife};
use stitchfs::{
    Batch, Database, ErrorKind, MakeOptions, StoreError, StoreOptions, TransactionOptions,
    TreeOptions,
};

fn run() -> BeginOptions {
    BeginOptions {
        life: TransactionLife::Run,
        ..BeginOptions::default()
    }
}

fn files() -> Files {
    let files = Files::in_memory(64 << 20, &StoreOptions::default()).unwrap();
    let stock = files
        .database()
        .create_tree("stock", &TreeOptions::default());
    stock.unwrap().put(b"a", b"1").unwrap();
    files
}

fn value(db: &Database, key: &[u8]) -> Option<Vec<u8>> {
    let tree = db.tree("stock").unwrap();
    tree.get(key).unwrap().map(|value| value.to_vec())
}

fn put(transaction: &FileTransaction, key: &[u8], value: &[u8]) {
    let tree = transaction.tree("stock").unwrap();
    tree.put(key, value).unwrap();
}

#[test]
fn conflicts_of_files_and_records_are_listed_and_both_are_kept_back() {
    let files = files();
    files.root().write("f", b"before").unwrap();
    let work = files.begin("work", &run()).unwrap();
    work.root().write("f", b"ours").unwrap();
    work.root().write("g", b"ours").unwrap();
    put(&work, b"a", b"ours");
    put(&work, b"b", b"ours");
    files.root().write("f", b"theirs").unwrap();
    files
        .database()
        .tree("stock")
        .unwrap()
        .put(b"a", b"theirs")
        .unwrap();
    let error = work.commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let shown: Vec<String> = error
        .file_conflicts()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(shown, ["f: attributes or contents", "stock: a: record"]);
    assert!(files.root().stat("g").is_err());
    assert_eq!(value(&files.database(), b"b"), None);
    assert_eq!(
        value(&work.database(), b"b").as_deref(),
        Some(&b"ours"[..]),
        "it is open"
    );
}

#[test]
fn a_run_that_is_dropped_is_aborted_and_an_ended_one_takes_nothing() {
    let files = files();
    let work = files.begin("work", &run()).unwrap();
    work.root().write("f", b"").unwrap();
    put(&work, b"a", b"2");
    let stock = work.tree("stock").unwrap();
    drop(work);
    assert!(files.transactions().unwrap().is_empty());
    assert_eq!(value(&files.database(), b"a").as_deref(), Some(&b"1"[..]));
    assert!(
        stock
            .put(b"a", b"3")
            .unwrap_err()
            .to_string()
            .contains("has ended")
    );
    let work = files.begin("work", &run()).unwrap();
    work.commit().unwrap();
    let again = work.commit().unwrap_err();
    assert!(again.to_string().contains("has ended"), "{again}");
    assert!(work.abort().is_err());
}

#[test]
fn a_transaction_in_a_transaction_is_committed_to_it() {
    let files = files();
    let outer = files.begin("work", &run()).unwrap();
    put(&outer, b"a", b"outer");
    let inner = outer.begin("work", &run()).unwrap();
    assert_eq!(inner.info().outer, Some(outer.info().number));
    assert_eq!(
        value(&inner.database(), b"a").as_deref(),
        Some(&b"outer"[..])
    );
    inner.root().write("f", b"inner").unwrap();
    put(&inner, b"a", b"inner");
    let error = outer.commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("are open: work;"), "{error}");
    inner.commit().unwrap();
    assert!(outer.root().stat("f").is_ok() && files.root().stat("f").is_err());
    drop(outer.begin("dropped", &run()).unwrap());
    outer.commit().unwrap();
    assert_eq!(
        value(&files.database(), b"a").as_deref(),
        Some(&b"inner"[..])
    );
    assert!(files.root().stat("f").is_ok());
}

#[test]
fn a_named_one_is_joined_by_name_or_number_in_a_later_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let make = MakeOptions {
        len_bytes: Some(64 << 20),
        ..MakeOptions::default()
    };
    let files = Files::create(&path, &make, &StoreOptions::default()).unwrap();
    let db = files.database();
    db.create_tree("stock", &TreeOptions::default()).unwrap();
    let work = files.begin("work", &BeginOptions::default()).unwrap();
    let number = work.info().number;
    work.root().write("f", b"both").unwrap();
    put(&work, b"a", b"both");
    drop((work, db));
    files.close().unwrap();
    drop(files);

    let files = Files::open(&path, &StoreOptions::default()).unwrap();
    let work = files.join_number(number).unwrap();
    assert_eq!(work.info().name, "work");
    assert_eq!(value(&work.database(), b"a").as_deref(), Some(&b"both"[..]));
    assert!(files.root().stat("f").is_err());
    files.join("work").unwrap().commit().unwrap();
    assert_eq!(files.root().read("f").unwrap(), b"both");
    assert_eq!(
        value(&files.database(), b"a").as_deref(),
        Some(&b"both"[..])
    );
    for missing in [files.join("work"), files.join_number(number)] {
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn handles_of_trees_stay_on_their_side() {
    let files = files();
    let work = files.begin("work", &run()).unwrap();
    let (outer, inner) = (files.database(), work.database());
    let (ours, theirs) = (inner.tree("stock").unwrap(), outer.tree("stock").unwrap());
    for (db, tree) in [(&outer, &ours), (&inner, &theirs)] {
        let mut batch = Batch::new();
        batch.put(tree, b"x", b"");
        let error = db.commit(&batch).unwrap_err();
        assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("transaction"), "{error}");
    }
    let refused = inner
        .create_tree("new", &TreeOptions::default())
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let names =
        |db: &Database| -> Vec<String> { db.trees().into_iter().map(|tree| tree.name).collect() };
    assert_eq!(names(&outer), ["stock"], "without those of the transaction");
    assert_eq!(names(&inner), ["stock"]);
    let kept = outer
        .create_tree("txn~1/meta", &TreeOptions::default())
        .unwrap_err();
    assert_eq!(kept.kind(), ErrorKind::Invalid);
}

#[test]
fn transactions_of_records_work_within_one() {
    let files = files();
    let work = files.begin("work", &run()).unwrap();
    let db = work.database();
    let stock = db.tree("stock").unwrap();
    let mut one = db.begin(&TransactionOptions::default());
    let mut two = db.begin(&TransactionOptions::default());
    one.put(&stock, b"a", b"one").unwrap();
    two.put(&stock, b"a", b"two").unwrap();
    one.commit().unwrap();
    let refused = two.commit().unwrap_err();
    assert_eq!(refused.conflicts()[0].tree_name, "stock");
    assert_eq!(value(&files.database(), b"a").as_deref(), Some(&b"1"[..]));
    work.commit().unwrap();
    assert_eq!(value(&files.database(), b"a").as_deref(), Some(&b"one"[..]));
}

/// Two that each read what the other writes.
#[test]
fn write_skew_over_records_is_allowed_by_snapshots_and_refused_by_serializable_ones() {
    for (isolation, is_allowed) in [
        (TransactionIsolation::Snapshot, true),
        (TransactionIsolation::Serializable, false),
    ] {
        let files = files();
        put_outside(&files, b"b", b"1");
        let options = BeginOptions { isolation, ..run() };
        let one = files.begin("one", &options).unwrap();
        let two = files.begin("two", &options).unwrap();
        for (work, read, written) in [(&one, b"a", b"b"), (&two, b"b", b"a")] {
            assert_eq!(value(&work.database(), read).as_deref(), Some(&b"1"[..]));
            put(work, written, b"0");
        }
        one.commit().unwrap();
        match two.commit() {
            Ok(()) => assert!(is_allowed, "both had read 1"),
            Err(error) => {
                assert!(!is_allowed, "{error}");
                assert_eq!(error.kind(), ErrorKind::Conflict);
                assert!(error.to_string().contains("stock: b"), "{error}");
            }
        }
    }
}

fn put_outside(files: &Files, key: &[u8], value: &[u8]) {
    let tree = files.database().tree("stock").unwrap();
    tree.put(key, value).unwrap();
}

/// Bytes that a store has in use after background work.
fn used(db: &Database) -> u64 {
    db.quiesce().unwrap();
    let space = db.space();
    space.total_bytes - space.free_bytes
}

const ROWS: u32 = 2000;

fn contents(seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed) << 1 | 1;
    let mut byte = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..1000).map(|_| byte()).collect()
}

/// Overwrites all records ten times.
fn overwrite_records(db: &Database) {
    for round in 0..10 {
        let stock = db.tree("stock").unwrap();
        for first in (0..ROWS).step_by(100) {
            let mut batch = Batch::new();
            for row in first..first + 100 {
                batch.put(&stock, &row.to_be_bytes(), &contents(round * ROWS + row));
            }
            db.commit(&batch).unwrap();
        }
        db.quiesce().unwrap();
    }
}

/// Overwrites a file ten times.
fn overwrite_file(files: &Files) {
    for round in 0..10 {
        let data: Vec<u8> = (0..ROWS).flat_map(|n| contents(round * ROWS + n)).collect();
        files
            .root()
            .open_dir("dir")
            .unwrap()
            .write("large", &data)
            .unwrap();
        files.database().quiesce().unwrap();
    }
}

#[test]
fn a_snapshot_of_a_directory_keeps_no_replaced_records() {
    let used = [true, false].map(|has_snapshot| {
        let files = files();
        let db = files.database();
        files.root().make_dir("dir").unwrap();
        files.root().write("dir/f", b"before").unwrap();
        overwrite_records(&db);
        if has_snapshot {
            let dir = files.root().open_dir("dir").unwrap();
            dir.create_snapshot("monday").unwrap();
        }
        files.root().write("dir/f", b"after").unwrap();
        overwrite_records(&db);
        let bytes = used(&db);
        if has_snapshot {
            let then = files.open_snapshot("monday").unwrap();
            assert_eq!(then.read("f").unwrap(), b"before");
        }
        bytes
    });
    assert!(used[1] > u64::from(ROWS) * 1000, "the records take space");
    assert!(used[0] <= used[1] + used[1] / 5, "{used:?}");
}

#[test]
fn a_snapshot_of_the_database_keeps_no_replaced_contents_of_files() {
    let used = [true, false].map(|has_snapshot| {
        let files = files();
        let db = files.database();
        let stock = db.tree("stock").unwrap();
        files.root().make_dir("dir").unwrap();
        overwrite_file(&files);
        if has_snapshot {
            db.create_snapshot("monday").unwrap();
        }
        stock.put(b"a", b"2").unwrap();
        overwrite_file(&files);
        let bytes = used(&db);
        if has_snapshot {
            let then = db.open_snapshot("monday").unwrap();
            assert_eq!(
                stock.get_at(&then, b"a").unwrap().as_deref(),
                Some(&b"1"[..])
            );
            let later = db.create_tree("later", &TreeOptions::default()).unwrap();
            later.put(b"a", b"1").unwrap();
            assert_eq!(later.get_at(&then, b"a").unwrap(), None, "made later");
        }
        bytes
    });
    assert!(used[1] > u64::from(ROWS) * 1000, "the file takes space");
    assert!(used[0] <= used[1] + used[1] / 5, "{used:?}");
}
