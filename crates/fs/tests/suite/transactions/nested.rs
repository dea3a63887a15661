//! Transactions in transactions.

use super::*;
use stitch_base::TreeId;
use stitch_fs::{
    NESTED_DEPTH_MAX, ReadKind, TransactionIsolation, TransactionLife, TransactionState,
};
use stitch_kv::{Batch, CommitOptions, Engine, TreeOptions};

const SER: TransactionIsolation = TransactionIsolation::Serializable;
const SI: TransactionIsolation = TransactionIsolation::Snapshot;

fn options_in(outer: &TransactionView) -> BeginOptions {
    BeginOptions {
        outer: Some(outer.info().number),
        ..BeginOptions::default()
    }
}

pub(super) fn begin_in(setup: &Setup, outer: &TransactionView, name: &str) -> Arc<TransactionView> {
    let begun = setup.fs.transactions().begin(name, &options_in(outer));
    begun.expect("it begins")
}

fn begin_as(
    setup: &Setup,
    outer: Option<&TransactionView>,
    name: &str,
    (life, isolation): (TransactionLife, TransactionIsolation),
) -> Arc<TransactionView> {
    let options = BeginOptions {
        life,
        isolation,
        outer: outer.map(|outer| outer.info().number),
        ..BeginOptions::default()
    };
    let begun = setup.fs.transactions().begin(name, &options);
    begun.expect("it begins")
}

fn abort(setup: &Setup, view: &TransactionView) {
    let aborted = setup.fs.transactions().abort_number(view.info().number);
    aborted.expect("it is open");
}

/// Trees of transactions.
fn branch_trees(setup: &Setup) -> usize {
    let trees = crate::engine::dynamic(&setup.engine).trees();
    trees.iter().filter(|tree| tree.branch.is_some()).count()
}

/// Names of the transactions that are listed, and whether they are open.
fn listed(setup: &Setup) -> Vec<(String, bool)> {
    let all = setup.fs.transactions().list().expect("they are read");
    all.into_iter()
        .map(|info| (info.name.clone(), info.is_open()))
        .collect()
}

fn is_ended<T>(result: &FsResult<T>) -> bool {
    matches!(result, Err(FsError::Ended))
}

#[test]
fn an_inner_one_sees_the_outer_one_and_is_committed_to_it() {
    let setup = setup();
    file(&setup.fs, ROOT, "f", b"mainline");
    let outer = begin(&setup, "outer");
    write(outer.fs(), ino(outer.fs(), "f"), b"outer 12");
    file(outer.fs(), ROOT, "made", &[1; 50_000]);
    let inner = begin_in(&setup, &outer, "inner");
    assert_eq!(inner.info().outer, Some(outer.info().number));
    assert_eq!(contents(inner.fs(), "f"), b"outer 12");
    assert_eq!(contents(inner.fs(), "made"), [1; 50_000]);
    write(inner.fs(), ino(inner.fs(), "f"), b"inner 12");
    let deep = dir(inner.fs(), dir(inner.fs(), ROOT, "a"), "b");
    let large = file(inner.fs(), deep, "large", &[7; 100_000]);
    unlink(inner.fs(), ROOT, "made");
    // The outer one goes on, and does not see it.
    file(outer.fs(), ROOT, "later", b"");
    assert_eq!(contents(outer.fs(), "f"), b"outer 12");
    assert_eq!(names_in(outer.fs(), ROOT), ["f", "later", "made"]);
    assert_eq!(names_in(inner.fs(), ROOT), ["a", "f"]);
    assert!(find(outer.fs(), "a").is_err(), "a negative entry is noted");
    commit(&setup, &inner);
    assert_eq!(contents(outer.fs(), "f"), b"inner 12");
    assert_eq!(names_in(outer.fs(), ROOT), ["a", "f", "later"]);
    assert_eq!(ino(outer.fs(), "a/b/large"), large, "numbers are the same");
    assert_eq!(contents(outer.fs(), "a/b/large"), [7; 100_000]);
    assert_eq!(setup.names(ROOT), ["f"]);
    assert_eq!(contents(&setup.fs, "f"), b"mainline");
    let expected = [("outer".to_owned(), true), ("inner".to_owned(), false)];
    assert_eq!(listed(&setup), expected);
    let ended = inner.fs().create(&SUPER, at(ROOT, "x"), &new(0o644));
    assert!(is_ended(&ended));
    commit(&setup, &outer);
    assert_eq!(setup.names(ROOT), ["a", "f", "later"]);
    assert_eq!(contents(&setup.fs, "f"), b"inner 12");
    assert_eq!(contents(&setup.fs, "a/b/large"), [7; 100_000]);
    // What was committed to the outer one is told of no more.
    assert_eq!(listed(&setup), [("outer".to_owned(), false)]);
    assert_eq!(branch_trees(&setup), 0);
    let setup = setup.reopened();
    assert_eq!(contents(&setup.fs, "f"), b"inner 12");
}

#[test]
fn an_inner_one_is_aborted_alone_and_an_outer_one_with_all_in_it() {
    let setup = setup();
    let outer = begin(&setup, "outer");
    file(outer.fs(), ROOT, "f", b"outer");
    let before = setup.engine.dump();
    let inner = begin_in(&setup, &outer, "inner");
    write(inner.fs(), ino(inner.fs(), "f"), b"inner");
    abort(&setup, &inner);
    assert_eq!(contents(outer.fs(), "f"), b"outer");
    assert!(is_ended(&setup.fs.transactions().commit(&inner)));
    assert!(
        setup.engine.dump().len() == before.len(),
        "something of it is left"
    );
    let inner = begin_in(&setup, &outer, "inner");
    let innermost = begin_in(&setup, &inner, "innermost");
    let other = begin_in(&setup, &outer, "other");
    let beside = begin(&setup, "beside");
    file(innermost.fs(), ROOT, "g", b"");
    commit(&setup, &other);
    abort(&setup, &outer);
    for view in [&outer, &inner, &innermost, &other] {
        assert!(is_ended(&setup.fs.transactions().commit(view)));
        let ended = view.fs().create(&SUPER, at(ROOT, "x"), &new(0o644));
        assert!(is_ended(&ended));
    }
    assert_eq!(listed(&setup), [("beside".to_owned(), true)]);
    assert_eq!(branch_trees(&setup), 4);
    commit(&setup, &beside);
    assert_eq!(setup.names(ROOT), Vec::<String>::new());
}

#[test]
fn an_outer_one_is_not_committed_while_others_in_it_are_open() {
    let setup = setup();
    let outer = begin(&setup, "outer");
    let (one, two) = (
        begin_in(&setup, &outer, "one"),
        begin_in(&setup, &outer, "two"),
    );
    let innermost = begin_in(&setup, &one, "innermost");
    let open_in = |view: &TransactionView| match setup.fs.transactions().commit(view) {
        Err(FsError::HasInner(names)) => names,
        other => panic!("{other:?}"),
    };
    assert_eq!(open_in(&outer), "one, two, innermost");
    assert_eq!(open_in(&one), "innermost");
    let rebased = setup.fs.transactions().rebase(&outer);
    assert!(matches!(rebased, Err(FsError::HasInner(_))));
    file(innermost.fs(), ROOT, "f", b"");
    commit(&setup, &innermost);
    commit(&setup, &one);
    assert_eq!(open_in(&outer), "two");
    abort(&setup, &two);
    commit(&setup, &outer);
    assert_eq!(setup.names(ROOT), ["f"]);
}

#[test]
fn conflicts_of_an_inner_one_are_with_the_outer_one_alone() {
    let setup = setup();
    file(&setup.fs, ROOT, "f", b"before");
    file(&setup.fs, ROOT, "g", b"before");
    let outer = begin(&setup, "outer");
    let inner = begin_in(&setup, &outer, "inner");
    write(inner.fs(), ino(inner.fs(), "f"), b"inner!");
    write(inner.fs(), ino(inner.fs(), "g"), b"inner!");
    dir(inner.fs(), ROOT, "mine");
    setup.write(ino(&setup.fs, "g"), 0, b"outside");
    write(outer.fs(), ino(outer.fs(), "f"), b"outer!");
    dir(outer.fs(), ROOT, "theirs");
    expect_conflicts(&setup, &inner, &[("f", ConflictKind::Inode)]);
    assert_eq!(contents(inner.fs(), "f"), b"inner!");
    assert_eq!(contents(outer.fs(), "f"), b"outer!");
    let number = inner.info().number;
    let resolved = setup
        .fs
        .transactions()
        .resolve(&inner, b"f", stitch_fs::Side::Ours);
    assert_eq!(resolved.expect("there is one"), 1);
    commit(&setup, &inner);
    assert_eq!(contents(outer.fs(), "f"), b"inner!");
    assert_eq!(names_in(outer.fs(), ROOT), ["f", "g", "mine", "theirs"]);
    assert!(setup.fs.transactions().abort_number(number).is_err());
    // What others did in mainline conflicts with the outer one, once it has the change.
    expect_conflicts(&setup, &outer, &[("g", ConflictKind::Inode)]);
    abort(&setup, &outer);
    assert_eq!(setup.names(ROOT), ["f", "g"]);
    setup.check();
}

#[test]
fn an_inner_one_is_rebased_on_the_outer_one() {
    let setup = setup();
    let outer = begin(&setup, "outer");
    file(outer.fs(), ROOT, "f", b"before");
    let inner = begin_in(&setup, &outer, "inner");
    file(inner.fs(), ROOT, "own", b"own");
    write(outer.fs(), ino(outer.fs(), "f"), b"after!");
    file(outer.fs(), ROOT, "later", b"later");
    let rebased = setup.fs.transactions().rebase(&inner).expect("no conflict");
    assert_eq!(rebased.info().outer, Some(outer.info().number));
    assert_eq!(names_in(rebased.fs(), ROOT), ["f", "later", "own"]);
    assert_eq!(contents(rebased.fs(), "f"), b"after!");
    let changes = rebased.changes().expect("it is open");
    assert_eq!(changes.len(), 1, "{changes:?}");
    let base = setup
        .fs
        .transactions()
        .open_base(&rebased)
        .expect("it is open");
    assert_eq!(names_in(&base, ROOT), ["f", "later"]);
    commit(&setup, &rebased);
    commit(&setup, &outer);
    assert_eq!(setup.names(ROOT), ["f", "later", "own"]);
}

#[test]
fn names_are_those_of_one_outer_transaction_and_depth_has_a_limit() {
    let setup = setup();
    let mut all = vec![begin(&setup, "same")];
    for _ in 1..NESTED_DEPTH_MAX {
        let last = all.last().expect("there is one");
        all.push(begin_in(&setup, last, "same"));
    }
    let last = all.last().expect("there is one");
    file(last.fs(), ROOT, "f", b"deep");
    let deeper = setup.fs.transactions().begin("same", &options_in(last));
    assert!(
        matches!(deeper, Err(FsError::NestedTooDeep(8))),
        "{deeper:?}"
    );
    let again = setup.fs.transactions().begin("same", &options_in(&all[0]));
    assert!(matches!(again, Err(FsError::Exists)));
    let found = setup.fs.transactions().open("same").expect("it is open");
    assert!(Arc::ptr_eq(&found, &all[0]), "that in mainline");
    for view in all.iter().rev() {
        commit(&setup, view);
    }
    assert_eq!(contents(&setup.fs, "f"), b"deep");
    let none = setup.fs.transactions().begin("x", &options_in(&all[0]));
    assert!(is_ended(&none), "the outer one has ended");
}

/// A file of mainline that loses its last name in an inner one stays as long as it is used.
#[test]
fn inodes_are_reclaimed_by_whose_they_are() {
    let setup = setup();
    let old = file(&setup.fs, ROOT, "old", &[1; 50_000]);
    let outer = begin(&setup, "outer");
    let made = file(outer.fs(), ROOT, "made", &[2; 50_000]);
    let inner = begin_in(&setup, &outer, "inner");
    let temp = file(inner.fs(), ROOT, "temp", &[3; 50_000]);
    for name in ["old", "made", "temp"] {
        find(inner.fs(), name).expect("it is there");
        unlink(inner.fs(), ROOT, name);
    }
    for ino in [old, made, temp] {
        inner.fs().forget(ino, u64::MAX);
    }
    assert_eq!(inner.fs().reclaim().expect("there is room"), 1, "its own");
    commit(&setup, &inner);
    assert_eq!(
        contents_of(outer.fs(), made),
        [2; 50_000],
        "it is open there"
    );
    outer.fs().forget(made, u64::MAX);
    assert_eq!(outer.fs().reclaim().expect("there is room"), 1, "its own");
    commit(&setup, &outer);
    assert_eq!(contents_of(&setup.fs, old), [1; 50_000], "it is open there");
    setup.fs.forget(old, u64::MAX);
    setup.fs.reclaim().expect("there is room");
    assert_eq!(setup.rows("data"), 0);
    setup.check();
}

#[test]
fn named_ones_survive_as_long_as_the_outer_one_does() {
    let setup = setup();
    let outer = begin(&setup, "outer");
    let inner = begin_in(&setup, &outer, "inner");
    let done = begin_in(&setup, &outer, "done");
    file(done.fs(), ROOT, "done", b"");
    commit(&setup, &done);
    file(inner.fs(), ROOT, "f", b"inner");
    let run = begin_as(&setup, None, "run", (TransactionLife::Run, SI));
    let in_run = begin_in(&setup, &run, "in run");
    let deep_in_run = begin_in(&setup, &in_run, "in that");
    file(deep_in_run.fs(), ROOT, "g", b"");
    let run_inside = begin_as(&setup, Some(&outer), "inside", (TransactionLife::Run, SI));
    file(run_inside.fs(), ROOT, "h", b"");
    let number = inner.info().number;
    for view in [&outer, &inner] {
        view.fs().close().expect("it is synced");
    }
    drop((outer, inner, done, run, in_run, deep_in_run, run_inside));
    let setup = setup.reopened();
    let expected = ["outer", "inner", "done"].map(|name| (name.to_owned(), name != "done"));
    assert_eq!(listed(&setup), expected);
    assert_eq!(branch_trees(&setup), 8);
    // The inner one is found first, and opens the outer one.
    let inner = setup.fs.transactions().open_number(number).expect("open");
    let outer = setup.fs.transactions().open("outer").expect("it is open");
    assert!(Arc::ptr_eq(inner.outer().expect("it has one"), &outer));
    assert_eq!(contents(inner.fs(), "f"), b"inner");
    assert_eq!(names_in(outer.fs(), ROOT), ["done"]);
    commit(&setup, &inner);
    commit(&setup, &outer);
    assert_eq!(setup.names(ROOT), ["done", "f"]);
    let state = setup.fs.transactions().list().expect("they are read")[0].state;
    assert!(matches!(state, TransactionState::Committed(_)));
}

#[test]
fn an_expired_outer_one_takes_the_inner_ones_along_at_open() {
    let setup = setup();
    let outer = begin(&setup, "outer");
    let inner = begin_in(&setup, &outer, "inner");
    let done = begin_in(&setup, &outer, "done");
    commit(&setup, &done);
    drop((inner, done));
    let at = Some(stitch_base::clock::Timestamp(1));
    let set = setup.fs.transactions().expire(outer.info().number, at);
    set.expect("it is open");
    drop(outer);
    let setup = setup.reopened();
    assert_eq!(listed(&setup), []);
    assert_eq!(branch_trees(&setup), 0);
    setup.check();
}

/// Runs an inner one in a serializable one that reads a file, ends it, and changes the file in
/// mainline.
fn read_inside(asked: TransactionIsolation, commits: bool) {
    let setup = setup();
    file(&setup.fs, ROOT, "f", b"before");
    let outer = begin_as(&setup, None, "outer", (TransactionLife::Named, SER));
    let inner = begin_as(
        &setup,
        Some(&outer),
        "inner",
        (TransactionLife::Named, asked),
    );
    assert_eq!(inner.info().isolation, SER, "as the outer one is");
    assert_eq!(contents(inner.fs(), "f"), b"before");
    file(inner.fs(), ROOT, "result", b"");
    match commits {
        true => commit(&setup, &inner),
        false => abort(&setup, &inner),
    }
    file(outer.fs(), ROOT, "other", b"");
    setup.write(ino(&setup.fs, "f"), 0, b"after!");
    let read = ConflictKind::Read(ReadKind::Inode);
    expect_conflicts(&setup, &outer, &[("f", read)]);
}

#[test]
fn what_an_inner_one_reads_counts_for_a_serializable_outer_one() {
    for asked in [SI, SER] {
        read_inside(asked, true);
        // The program may decide by seeing it fail.
        read_inside(asked, false);
    }
}

#[test]
fn a_serializable_inner_one_is_checked_against_the_outer_one() {
    for (isolation, is_refused) in [(SI, false), (SER, true)] {
        let setup = setup();
        file(&setup.fs, ROOT, "f", b"before");
        let outer = begin(&setup, "outer");
        let life = TransactionLife::Named;
        let inner = begin_as(&setup, Some(&outer), "inner", (life, isolation));
        assert_eq!(contents(inner.fs(), "f"), b"before");
        file(inner.fs(), ROOT, "result", b"");
        setup.write(ino(&setup.fs, "f"), 0, b"outside");
        write(outer.fs(), ino(outer.fs(), "f"), b"after!");
        let read = ConflictKind::Read(ReadKind::Inode);
        match is_refused {
            true => expect_conflicts(&setup, &inner, &[("f", read)]),
            false => commit(&setup, &inner),
        }
    }
}

fn put_record(engine: &dyn Engine, tree: TreeId, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(tree, key, value);
    let put = engine.commit(&batch, CommitOptions::default());
    put.expect("it is taken");
}

#[test]
fn records_go_along_and_conflict_with_the_outer_one() {
    let setup = setup();
    let engine = crate::engine::dynamic(&setup.engine);
    let made = engine.create_tree("stock", &TreeOptions::default());
    let tree = made.expect("the name is free");
    put_record(&*engine, tree, b"a", b"1");
    let outer = begin_as(&setup, None, "outer", (TransactionLife::Named, SER));
    put_record(&**outer.records(), tree, b"a", b"2");
    let inner = begin_in(&setup, &outer, "inner");
    let records = inner.records();
    let get = |engine: &dyn Engine, key: &[u8]| {
        let found = engine.get(tree, key, None).expect("it is read");
        found.map(|value| value.to_vec())
    };
    assert_eq!(records.trees().len(), 1);
    assert_eq!(get(&**records, b"a"), Some(b"2".to_vec()));
    put_record(&**records, tree, b"b", b"3");
    assert_eq!(get(&**outer.records(), b"b"), None);
    file(inner.fs(), ROOT, "f", b"");
    let other = begin_in(&setup, &outer, "other");
    put_record(&**other.records(), tree, b"b", b"4");
    commit(&setup, &inner);
    assert_eq!(get(&**outer.records(), b"b"), Some(b"3".to_vec()));
    assert_eq!(get(&*engine, b"b"), None);
    let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(&other) else {
        panic!("both have written b");
    };
    let record = found[0].record.as_ref().expect("it is about one");
    assert_eq!((&*record.tree, &record.key[..]), ("stock", &b"b"[..]));
    abort(&setup, &other);
    commit(&setup, &outer);
    assert_eq!(get(&*engine, b"a"), Some(b"2".to_vec()));
    assert_eq!(get(&*engine, b"b"), Some(b"3".to_vec()));
    // What is read of records inside counts outside.
    let outer = begin_as(&setup, None, "outer", (TransactionLife::Named, SER));
    let inner = begin_in(&setup, &outer, "inner");
    assert_eq!(get(&**inner.records(), b"a"), Some(b"2".to_vec()));
    abort(&setup, &inner);
    file(outer.fs(), ROOT, "g", b"");
    put_record(&*engine, tree, b"a", b"5");
    assert!(matches!(
        setup.fs.transactions().commit(&outer),
        Err(FsError::Conflict(_))
    ));
}

#[test]
fn path_locks_go_to_the_outer_one_at_the_commit() {
    let setup = setup();
    let locks = setup.fs.transactions().path_locks();
    let begin_locked = |name: &str, path: &[u8], within: &[u64]| {
        let ticket = locks.request_within(name, &[path.to_vec()], within);
        let ticket = ticket.expect("it is a path");
        locks.try_lock(ticket).map(|()| {
            let options = BeginOptions {
                lock: Some(ticket),
                outer: within.last().copied(),
                ..BeginOptions::default()
            };
            let begun = setup.fs.transactions().begin(name, &options);
            begun.expect("it begins")
        })
    };
    let outer = begin_locked("outer", b"a", &[]).expect("it is free");
    let number = outer.info().number;
    assert!(begin_locked("waits", b"a/b", &[]).is_err());
    // It goes before one that waits for the outer one.
    let inner = begin_locked("inner", b"a/b", &[number]).expect("the outer one has it");
    let also = begin_locked("also", b"x", &[number]).expect("it is free");
    assert_eq!(
        begin_locked("other", b"a/b", &[number])
            .err()
            .map(|names| names.len()),
        Some(1)
    );
    abort(&setup, &inner);
    commit(&setup, &also);
    assert!(
        begin_locked("later", b"x", &[]).is_err(),
        "the outer one has it"
    );
    let held = locks.list().into_iter().filter(|lock| lock.is_held);
    assert_eq!(
        held.map(|lock| lock.name).collect::<Vec<_>>(),
        ["outer", "outer"]
    );
    abort(&setup, &outer);
    assert!(!locks.list().iter().any(|lock| lock.is_held));
}
