//! Branches and named snapshots of a database, and transactions that are larger than memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use stitchfs::{
    Bytes, Clash, ConflictPolicy, Database, Direction, ErrorKind, KeyRange, MakeOptions,
    Resolution, StoreOptions, TransactionOptions, Tree, TreeOptions,
};

fn create(path: &Path) -> Database {
    let make = MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    };
    Database::create(path, &make, &StoreOptions::default()).unwrap()
}

fn open(path: &Path) -> Database {
    Database::open(path, &StoreOptions::default()).unwrap()
}

fn memory() -> Database {
    Database::in_memory(32 << 20, &StoreOptions::default()).unwrap()
}

fn tree(db: &Database, name: &str) -> Tree {
    let tree = db.create_tree(name, &TreeOptions::default()).unwrap();
    tree.put(b"k", b"base").unwrap();
    tree
}

fn value(tree: &Tree) -> Vec<u8> {
    tree.get(b"k").unwrap().unwrap().to_vec()
}

fn names(db: &Database) -> Vec<String> {
    db.trees().into_iter().map(|info| info.name).collect()
}

#[test]
fn a_branch_goes_its_own_way_and_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let db = create(&path);
    let (one, two) = (tree(&db, "one"), tree(&db, "two"));
    let branch = db.create_branch("b", &[one.clone(), two], None).unwrap();
    branch.tree("one").unwrap().put(b"k", b"branch").unwrap();
    one.put(b"t", b"tree").unwrap();
    let inner = branch.tree("one").unwrap();
    db.create_branch("of b", &[inner], None).unwrap();
    assert_eq!(names(&db), ["one", "two"], "branches are listed apart");
    db.close().unwrap();
    drop((db, one, branch));

    let db = open(&path);
    let branches = db.branches();
    let listed: Vec<&str> = branches.iter().map(|branch| branch.name()).collect();
    assert_eq!(listed, ["b", "of b"]);
    let branch = db.branch("b").unwrap();
    let trees: Vec<&str> = branch
        .trees()
        .iter()
        .map(|tree| tree.name.as_str())
        .collect();
    assert_eq!(trees, ["one", "two"]);
    assert_eq!(branch.trees()[0].parent, db.tree("one").unwrap().id());
    assert_eq!(value(&branch.tree("one").unwrap()), b"branch");
    assert_eq!(
        value(&db.branch("of b").unwrap().tree("one").unwrap()),
        b"branch"
    );
    assert_eq!(value(&db.tree("one").unwrap()), b"base");
    assert_eq!(branch.tree("one").unwrap().get(b"t").unwrap(), None);
    assert_eq!(branch.written_keys("one", None, 9).unwrap(), [b"k"]);
    assert_eq!(branch.written_keys("two", None, 9).unwrap().len(), 0);
    let missing = branch.written_keys("three", None, 9).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(branch.tree("three").is_none());

    let has_a_branch = branch.absorb().unwrap_err();
    assert_eq!(has_a_branch.kind(), ErrorKind::Invalid, "{has_a_branch}");
    db.branch("of b").unwrap().drop_all().unwrap();
    branch.drop_all().unwrap();
    assert_eq!(branch.drop_all().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(db.branches().is_empty());
}

#[test]
fn absorbing_keeps_what_others_wrote_and_lists_what_both_wrote() {
    let db = memory();
    let one = tree(&db, "one");
    let make = |name: &str| {
        db.create_branch(name, std::slice::from_ref(&one), None)
            .unwrap()
    };
    let (apart, both, range) = (make("apart"), make("both"), make("range"));
    apart.tree("one").unwrap().put(b"new", b"1").unwrap();
    both.tree("one").unwrap().put(b"k", b"branch").unwrap();
    let deleted = range.tree("one").unwrap();
    deleted.delete_range(b"x", b"z").unwrap();
    one.put(b"k", b"tree").unwrap();
    one.put(b"y", b"tree").unwrap();
    apart.absorb().unwrap();
    assert_eq!(value(&one), b"tree");
    assert!(one.get(b"new").unwrap().is_some());
    assert_eq!(apart.absorb().unwrap_err().kind(), ErrorKind::NotFound);
    for (branch, key) in [(&both, b"k"), (&range, b"y")] {
        let refused = branch.absorb().unwrap_err();
        assert_eq!(refused.conflicts().len(), 1, "{refused}");
        assert_eq!(refused.conflicts()[0].key, key);
        assert_eq!(refused.conflicts()[0].tree_name, "one");
    }
    assert_eq!(
        value(&both.tree("one").unwrap()),
        b"branch",
        "it is as it was"
    );

    let join = |clash: &Clash<'_>| {
        let all = [&clash.base, &clash.ours, &clash.theirs];
        let text = |value: &Option<Bytes>| value.clone().unwrap_or_default();
        Resolution::Put(Bytes::from(all.map(text).join(&b'|')))
    };
    let settling = db
        .clone()
        .with_conflicts(ConflictPolicy::Resolve(Arc::new(join)));
    settling.branch("both").unwrap().absorb().unwrap();
    assert_eq!(value(&one), b"base|branch|tree");
    assert_eq!(db.branches().len(), 1);
}

#[test]
fn calls_about_branches_that_cannot_be_are_refused() {
    let db = memory();
    let one = tree(&db, "one");
    let other = memory();
    let strange = tree(&other, "one");
    db.create_branch("b", std::slice::from_ref(&one), None)
        .unwrap();
    let before = db.snapshot();
    let late = tree(&db, "late");
    let long = "n".repeat(250);
    for (name, trees, at, kind) in [
        ("b", vec![one.clone()], None, ErrorKind::Exists),
        ("", vec![one.clone()], None, ErrorKind::Invalid),
        ("a/b", vec![one.clone()], None, ErrorKind::Invalid),
        (&long, vec![one.clone()], None, ErrorKind::Invalid),
        ("none", vec![], None, ErrorKind::Invalid),
        ("strange", vec![strange], None, ErrorKind::Invalid),
        ("late", vec![late], Some(&before), ErrorKind::NotFound),
        (
            "then",
            vec![one.clone()],
            Some(&other.snapshot()),
            ErrorKind::Invalid,
        ),
    ] {
        let error = db.create_branch(name, &trees, at).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
    }
    assert_eq!(db.branches().len(), 1);
    for name in [
        "branch~b/x",
        "spill~1/2",
        "txn~1/meta",
        "fs~1/meta",
        "fs/meta",
    ] {
        let error = db.create_tree(name, &TreeOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}");
    }
}

#[test]
fn a_named_snapshot_is_read_in_the_next_life_and_branched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let db = create(&path);
    let one = tree(&db, "one");
    let seqno = db.create_snapshot("monday").unwrap().seqno();
    one.put(b"k", b"later").unwrap();
    db.close().unwrap();
    drop((db, one));

    let db = open(&path);
    let one = db.tree("one").unwrap();
    let listed = db.snapshots().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].name.as_str(), listed[0].seqno),
        ("monday", seqno)
    );
    let then = db.open_snapshot("monday").unwrap();
    assert_eq!(one.get_at(&then, b"k").unwrap().unwrap(), &b"base"[..]);
    let many = one.get_many_at(&then, &[b"x", b"k"]).unwrap();
    assert_eq!(many, [None, Some(Bytes::from_static(b"base"))]);
    let branch = db.create_branch("b", &[one], Some(&then)).unwrap();
    assert_eq!(value(&branch.tree("one").unwrap()), b"base");
    let again = db.create_snapshot("monday").unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Exists);
    assert!(again.to_string().contains("\"monday\""), "{again}");
    assert_eq!(
        db.create_snapshot("").unwrap_err().kind(),
        ErrorKind::Invalid
    );
    drop(then);
    db.drop_snapshot("monday").unwrap();
    for missing in [
        db.drop_snapshot("monday"),
        db.open_snapshot("monday").map(drop),
    ] {
        let missing = missing.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert_eq!(missing.to_string(), "there is no snapshot named \"monday\"");
    }
    assert!(db.snapshots().unwrap().is_empty());
}

#[test]
fn a_large_transaction_is_whole_or_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let db = create(&path);
    let one = tree(&db, "one");
    let options = TransactionOptions {
        spill_bytes: 16 << 10,
        ..TransactionOptions::default()
    };
    let fill = |first: u32| {
        let mut transaction = db.begin(&options);
        for key in first..first + 100 {
            transaction
                .put(&one, &key.to_be_bytes(), &[7; 1000])
                .unwrap();
        }
        assert!(transaction.spilled_bytes() > 60_000);
        transaction
    };
    let many = fill(0);
    let keys = [[0, 0, 0, 3], [9, 9, 9, 9], [0, 0, 0, 99]];
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let found = many.get_many(&one, &keys).unwrap();
    assert_eq!(found.iter().flatten().count(), 2);
    assert_eq!(names(&db), ["one"], "its trees are not listed");
    many.commit().unwrap();
    drop(fill(1000));
    let killed = fill(2000);
    // As if the program had been killed: nothing of the transaction is dropped.
    std::mem::forget(killed);
    db.sync().unwrap();
    // Nothing is written in the background while the file is copied.
    db.quiesce().unwrap();
    let image = dir.path().join("image");
    std::fs::copy(&path, &image).unwrap();

    let after = open(&image);
    let one = after.tree("one").unwrap();
    let rows = one.scan(KeyRange::all(), Direction::Forward).unwrap();
    assert_eq!(rows.count(), 101);
    assert!(after.check(&mut |_, _| {}).unwrap().is_empty());
    assert!(after.branches().is_empty());
    after.create_branch("b", &[one], None).unwrap();
}
