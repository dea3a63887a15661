//! Begin, open, list, abort, reopen.

use super::*;
use stitch_base::clock::Timestamp;
use stitch_fs::{TRANSACTION_NAME_BYTES_MAX, TransactionLife, TransactionState};

fn listed(setup: &Setup) -> Vec<(String, bool)> {
    let all = setup.fs.transactions().list().expect("they are read");
    all.into_iter()
        .map(|info| (info.name.clone(), info.is_open()))
        .collect()
}

/// Trees of transactions.
fn branch_trees(setup: &Setup) -> usize {
    let trees = crate::engine::dynamic(&setup.engine).trees();
    trees.iter().filter(|tree| tree.branch.is_some()).count()
}

#[test]
fn an_aborted_transaction_leaves_nothing() {
    let setup = setup();
    let view = begin(&setup, "work");
    file(view.fs(), ROOT, "f", &[1; 50_000]);
    let rows = setup.engine.dump();
    setup.fs.transactions().abort("work").expect("it is open");
    assert_eq!(setup.names(ROOT), Vec::<String>::new());
    assert_eq!((listed(&setup).len(), branch_trees(&setup)), (0, 0));
    assert!(rows.len() > setup.engine.dump().len(), "its trees are gone");
    let ended = setup.fs.transactions().commit(&view);
    assert!(matches!(ended, Err(FsError::Ended)));
    let ended = view.fs().create(&SUPER, at(ROOT, "g"), &new(0o644));
    assert!(matches!(ended, Err(FsError::Ended)));
    let gone = setup.fs.transactions().abort("work");
    assert!(matches!(gone, Err(FsError::NotFound)));
    setup.check();
}

#[test]
fn a_number_names_one_transaction_for_ever() {
    let setup = setup();
    let first = begin(&setup, "work");
    commit(&setup, &first);
    let second = begin(&setup, "work");
    let stale = setup.fs.transactions().abort_number(first.info().number);
    assert!(matches!(stale, Err(FsError::Ended)));
    assert_eq!(branch_trees(&setup), 4, "the later one goes on");
    let number = second.info().number;
    setup.fs.transactions().abort_number(number).expect("open");
    assert_eq!(branch_trees(&setup), 0);
    let again = setup.fs.transactions().abort_number(number);
    assert!(matches!(again, Err(FsError::Ended)));
}

#[test]
fn a_committed_transaction_has_ended_and_is_remembered() {
    let setup = setup();
    let view = begin(&setup, "work");
    file(view.fs(), ROOT, "f", b"");
    setup.tick();
    commit(&setup, &view);
    let again = setup.fs.transactions().commit(&view);
    assert!(matches!(again, Err(FsError::Ended)));
    let infos = setup.fs.transactions().list().expect("they are read");
    assert_eq!(infos.len(), 1);
    let TransactionState::Committed(at) = infos[0].state else {
        panic!("it is committed");
    };
    assert!(Timestamp(at) > infos[0].created);
    assert_eq!(branch_trees(&setup), 0);
    // The name is free again.
    let next = begin(&setup, "work");
    assert!(next.info().number > infos[0].number);
    let setup = setup.reopened();
    assert_eq!(
        listed(&setup),
        [("work".to_owned(), false), ("work".to_owned(), true)]
    );
    setup.check();
}

#[test]
fn named_transactions_survive_and_runs_do_not() {
    let setup = setup();
    let named = begin(&setup, "named");
    file(named.fs(), ROOT, "f", b"bytes");
    let options = BeginOptions {
        life: TransactionLife::Run,
        ..BeginOptions::default()
    };
    let run = setup
        .fs
        .transactions()
        .begin("run", &options)
        .expect("it begins");
    file(run.fs(), ROOT, "g", b"bytes");
    let due = BeginOptions {
        expires: Some(setup.fs.get_attr(ROOT).expect("known").btime),
        owner: 1000,
        ..BeginOptions::default()
    };
    let due = setup
        .fs
        .transactions()
        .begin("due", &due)
        .expect("it begins");
    assert_eq!(
        (due.info().owner, due.info().expires.is_some()),
        (1000, true)
    );
    assert_eq!(branch_trees(&setup), 12);
    drop((named, run, due));
    let setup = setup.reopened();
    assert_eq!(listed(&setup), [("named".to_owned(), true)]);
    assert_eq!(branch_trees(&setup), 4);
    setup.check();
    let named = setup.fs.transactions().open("named").expect("it survived");
    assert_eq!(contents(named.fs(), "f"), b"bytes");
    file(named.fs(), ROOT, "h", b"more");
    let other = setup.file(ROOT, "outside").ino;
    assert_ne!(ino(named.fs(), "h"), other, "numbers are used once");
    commit(&setup, &named);
    assert_eq!(setup.names(ROOT), ["f", "h", "outside"]);
}

#[test]
fn all_callers_share_the_file_system_of_a_transaction() {
    let setup = setup();
    let view = begin(&setup, "work");
    let again = setup.fs.transactions().open("work").expect("it is open");
    assert!(Arc::ptr_eq(&view, &again));
    drop((view, again));
    let anew = setup.fs.transactions().open("work").expect("it is open");
    assert_eq!(anew.info().name, "work");
}

#[test]
fn names_and_places_are_checked() {
    let setup = setup();
    let begin = |fs: &FileSystem, name: &str| {
        let begun = fs.transactions().begin(name, &BeginOptions::default());
        begun.map(drop)
    };
    assert!(setup.fs.transactions().can_begin());
    for name in ["", ".", "..", "a/b", "a\0"] {
        assert!(matches!(begin(&setup.fs, name), Err(FsError::Invalid(_))));
    }
    let long = "x".repeat(TRANSACTION_NAME_BYTES_MAX + 1);
    assert!(matches!(begin(&setup.fs, &long), Err(FsError::NameTooLong)));
    begin(&setup.fs, &long[1..]).expect("it is as long as may be");
    begin(&setup.fs, "work").expect("the name is free");
    assert!(matches!(begin(&setup.fs, "work"), Err(FsError::Exists)));
    let view = setup.fs.transactions().open("work").expect("it is open");
    assert!(!view.fs().transactions().can_begin());
    let nested = begin(view.fs(), "nested");
    assert!(matches!(nested, Err(FsError::Unsupported)));
    let snapshot = view.fs().snapshots().create(ROOT, "mon");
    assert!(matches!(snapshot, Err(FsError::Unsupported)));
    let none = setup.fs.transactions().open("none");
    assert!(matches!(none, Err(FsError::NotFound)));
}

#[test]
fn a_store_with_files_beside_it_has_no_transactions() {
    let setup = setup_external();
    large(&setup, "large");
    assert!(!setup.fs.transactions().can_begin());
    let begun = setup
        .fs
        .transactions()
        .begin("work", &BeginOptions::default());
    assert!(matches!(begun, Err(FsError::Unsupported)));
    assert_eq!(branch_trees(&setup), 0);
}
