//! Files and records in one transaction.

use super::random::Rng;
use super::*;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::TreeId;
use stitch_base::sync::Arc as SyncArc;
use stitch_fs::{PausedRecords, RecordKey, RecordRules, RecordSides, Side, TransactionLife};
use stitch_kv::{Batch, CommitOptions, Direction, Engine, Guards, KeyRange, KvError, TreeOptions};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A change of one tree of records.
#[derive(Clone, Debug)]
enum Write {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Clear(Vec<u8>, Vec<u8>),
}

impl Write {
    fn commit(&self, engine: &dyn Engine, tree: TreeId) -> Result<(), KvError> {
        let mut batch = Batch::new();
        match self {
            Self::Put(key, value) => batch.put(tree, key, value),
            Self::Delete(key) => batch.delete(tree, key),
            Self::Clear(start, end) => batch.delete_range(tree, start, end),
        }
        engine.commit(&batch, CommitOptions::default()).map(drop)
    }

    fn apply(&self, rows: &mut Rows) {
        match self {
            Self::Put(key, value) => drop(rows.insert(key.clone(), value.clone())),
            Self::Delete(key) => drop(rows.remove(key)),
            Self::Clear(start, end) => rows.retain(|key, _| key < start || key >= end),
        }
    }

    fn hits(&self, at: &[u8]) -> bool {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key == at,
            Self::Clear(start, end) => &start[..] <= at && at < &end[..],
        }
    }
}

fn put_in(engine: &dyn Engine, tree: TreeId, key: &[u8], value: &[u8]) {
    let write = Write::Put(key.to_vec(), value.to_vec());
    write.commit(engine, tree).expect("it is taken");
}

fn rows_of(engine: &dyn Engine, tree: TreeId) -> Rows {
    let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None);
    let (mut scan, mut rows) = (scan.expect("the tree is there"), Rows::new());
    while let Some((key, value)) = scan.next().expect("it is read") {
        rows.insert(key.to_vec(), value.to_vec());
    }
    rows
}

fn store(setup: &Setup) -> Arc<dyn Engine> {
    crate::engine::dynamic(&setup.engine)
}

/// A file system beside a tree of records with the keys a and b.
fn with_records() -> (Setup, Arc<dyn Engine>, TreeId) {
    let setup = setup();
    let engine = store(&setup);
    let tree = engine.create_tree("stock", &TreeOptions::default());
    let tree = tree.expect("the name is free");
    put_in(&*engine, tree, b"a", b"1");
    put_in(&*engine, tree, b"b", b"1");
    (setup, engine, tree)
}

/// Trees of transactions.
fn own_trees(engine: &dyn Engine) -> Vec<String> {
    let trees = engine.trees().into_iter().map(|tree| tree.name);
    trees.filter(|name| name.starts_with("txn~")).collect()
}

fn expect_records(setup: &Setup, view: &TransactionView, expected: &[(&str, &[u8])]) {
    let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(view) else {
        panic!("it conflicts");
    };
    let found: Vec<(&str, &[u8])> = found
        .iter()
        .filter_map(|conflict| conflict.record.as_ref())
        .map(|record| (&*record.tree, &*record.key))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn files_and_records_are_committed_together_and_not_seen_before() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "work");
    let records = view.records();
    let listed: Vec<_> = records
        .trees()
        .into_iter()
        .map(|t| (t.id, t.name))
        .collect();
    assert_eq!(listed, [(tree, "stock".to_owned())]);
    file(view.fs(), ROOT, "f", b"both");
    put_in(&**records, tree, b"c", b"2");
    Write::Delete(b"a".to_vec())
        .commit(&**records, tree)
        .expect("it is taken");
    assert_eq!(rows_of(&**records, tree).len(), 2, "it sees its own");
    assert!(find(&setup.fs, "f").is_err());
    assert_eq!(rows_of(&*engine, tree).len(), 2);
    assert!(engine.get(tree, b"c", None).unwrap().is_none());
    commit(&setup, &view);
    assert_eq!(contents(&setup.fs, "f"), b"both");
    let expected = [
        (b"b".to_vec(), b"1".to_vec()),
        (b"c".to_vec(), b"2".to_vec()),
    ];
    assert_eq!(rows_of(&*engine, tree), Rows::from(expected));
    assert_eq!(own_trees(&*engine), Vec::<String>::new());
}

#[test]
fn an_aborted_transaction_changes_no_record_and_leaves_no_tree() {
    let (setup, engine, tree) = with_records();
    let before = rows_of(&*engine, tree);
    let view = begin(&setup, "work");
    put_in(&**view.records(), tree, b"a", b"2");
    let clear = Write::Clear(b"a".to_vec(), b"z".to_vec());
    clear.commit(&**view.records(), tree).expect("it is taken");
    assert_eq!(own_trees(&*engine).len(), 5, "files, records");
    setup.fs.transactions().abort("work").expect("it is open");
    assert_eq!(rows_of(&*engine, tree), before);
    assert_eq!(own_trees(&*engine), Vec::<String>::new());
    let put = Write::Put(b"a".to_vec(), b"3".to_vec());
    let refused = put.commit(&**view.records(), tree);
    assert!(matches!(refused, Err(KvError::Invalid(text)) if text.contains("has ended")));
}

#[test]
fn a_record_that_both_sides_wrote_is_listed_with_its_tree_and_nothing_changes() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "work");
    file(view.fs(), ROOT, "f", b"");
    put_in(&**view.records(), tree, b"a", b"ours");
    put_in(&**view.records(), tree, b"\0new", b"ours");
    put_in(&*engine, tree, b"a", b"theirs");
    put_in(&*engine, tree, b"\0new", b"theirs");
    put_in(&*engine, tree, b"b", b"theirs");
    let before = setup.engine.dump();
    expect_records(&setup, &view, &[("stock", b"\0new"), ("stock", b"a")]);
    assert!(before == setup.engine.dump(), "nothing has changed");
    assert!(find(&setup.fs, "f").is_err());
    // It is still open.
    put_in(&**view.records(), tree, b"a", b"again");
    assert_eq!(rows_of(&*engine, tree)[&b"a"[..]], b"theirs");
}

#[test]
fn files_and_records_in_conflict_are_listed_together() {
    let (setup, engine, tree) = with_records();
    let name = file(&setup.fs, ROOT, "f", b"1");
    let view = begin(&setup, "work");
    write(view.fs(), ino(view.fs(), "f"), b"ours");
    put_in(&**view.records(), tree, b"a", b"ours");
    write(&setup.fs, name, b"theirs");
    put_in(&*engine, tree, b"a", b"theirs");
    let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(&view) else {
        panic!("it conflicts");
    };
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["f: attributes or contents", "stock: a: record"]);
    assert_eq!(found[1].kind, ConflictKind::Record);
}

#[test]
fn others_records_join_and_write_skew_is_allowed() {
    let (setup, engine, tree) = with_records();
    let (one, two) = (begin(&setup, "one"), begin(&setup, "two"));
    for (view, read, written) in [(&one, b"a", b"b"), (&two, b"b", b"a")] {
        let records = view.records();
        assert_eq!(
            records.get(tree, read, None).unwrap().as_deref(),
            Some(&b"1"[..])
        );
        put_in(&**records, tree, written, b"0");
    }
    put_in(&*engine, tree, b"c", b"3");
    commit(&setup, &one);
    commit(&setup, &two);
    let values: Vec<Vec<u8>> = rows_of(&*engine, tree).into_values().collect();
    assert_eq!(values, [b"0", b"0", b"3"]);
}

#[test]
fn a_record_that_came_into_a_deleted_range_is_a_conflict() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "work");
    let clear = Write::Clear(b"a".to_vec(), b"f".to_vec());
    clear.commit(&**view.records(), tree).expect("it is taken");
    put_in(&*engine, tree, b"c", b"theirs");
    expect_records(&setup, &view, &[("stock", b"c")]);
    setup.fs.transactions().abort("work").expect("it is open");

    let view = begin(&setup, "work");
    clear.commit(&**view.records(), tree).expect("it is taken");
    put_in(&**view.records(), tree, b"d", b"ours");
    put_in(&*engine, tree, b"x", b"theirs");
    commit(&setup, &view);
    let keys: Vec<Vec<u8>> = rows_of(&*engine, tree).into_keys().collect();
    assert_eq!(keys, [b"d", b"x"]);
    assert_eq!(own_trees(&*engine), Vec::<String>::new());
}

#[test]
fn named_transactions_keep_records_and_deleted_ranges_and_runs_leave_nothing() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "kept");
    let clear = Write::Clear(b"a".to_vec(), b"b".to_vec());
    clear.commit(&**view.records(), tree).expect("it is taken");
    put_in(&**view.records(), tree, b"k", b"kept");
    let run = BeginOptions {
        life: TransactionLife::Run,
        ..BeginOptions::default()
    };
    let run = setup
        .fs
        .transactions()
        .begin("run", &run)
        .expect("it begins");
    put_in(&**run.records(), tree, b"r", b"run");
    engine.sync().expect("it syncs");
    drop((view, run, engine));
    let setup = setup.reopened();
    let engine = store(&setup);
    assert_eq!(own_trees(&*engine).len(), 5, "{:?}", own_trees(&*engine));
    let view = setup.fs.transactions().open("kept").expect("it is open");
    clear
        .commit(&**view.records(), tree)
        .expect("a second range");
    put_in(&*engine, tree, b"a", b"theirs");
    expect_records(&setup, &view, &[("stock", b"a")]);
    setup.fs.transactions().abort("kept").expect("it is open");
    assert_eq!(own_trees(&*engine), Vec::<String>::new());
    assert_eq!(rows_of(&*engine, tree).len(), 2);
    setup.check();
}

#[test]
fn a_tree_that_was_dropped_is_a_conflict_if_it_was_written() {
    let (setup, engine, tree) = with_records();
    let (unused, used) = (begin(&setup, "unused"), begin(&setup, "used"));
    put_in(&**used.records(), tree, b"a", b"2");
    file(unused.fs(), ROOT, "f", b"");
    engine.drop_tree(tree).expect("it is there");
    commit(&setup, &unused);
    expect_records(&setup, &used, &[("stock", b"a")]);
    setup.fs.transactions().abort("used").expect("it is open");
    assert_eq!(own_trees(&*engine), Vec::<String>::new());
}

#[test]
fn trees_cannot_be_made_in_a_transaction_and_guards_work_in_it() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "work");
    let records = view.records();
    let made = Engine::create_tree(&**records, "new", &TreeOptions::default());
    assert!(matches!(made, Err(KvError::Unsupported(_))));
    let unknown = records.get(TreeId(1), b"a", None);
    assert!(
        matches!(unknown, Err(KvError::NoTree(TreeId(1)))),
        "a file system's"
    );
    let moment = records.snapshot();
    put_in(&**records, tree, b"a", b"2");
    let mut guards = Guards::since(&moment);
    guards.key(tree, b"a");
    let mut batch = Batch::new();
    batch.put(tree, b"b", b"2");
    let options = CommitOptions::default();
    let refused = records.commit_guarded(&batch, &guards, options);
    let Err(KvError::Conflict { tree: at, key }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((at, &*key), (tree, &b"a"[..]));
    assert_eq!(records.changed_keys(&guards, 9).unwrap()[0].tree, tree);
    assert_eq!(
        engine.get(tree, b"b", None).unwrap().as_deref(),
        Some(&b"1"[..])
    );
}

/// Adds up what both sides have added to the record `n`.
#[derive(Default)]
struct Sums {
    told: stitch_base::sync::Mutex<Vec<(String, Vec<Vec<u8>>)>>,
}

struct Paused<'s>(&'s Sums);

impl PausedRecords for Paused<'_> {
    fn changed(&mut self, tree: &str, keys: &[Vec<u8>]) {
        self.0.told.lock().push((tree.to_owned(), keys.to_vec()));
    }
}

impl RecordRules for Sums {
    fn is_joined(&self, tree: &str, key: &[u8]) -> bool {
        tree == "stock" && key == b"n"
    }

    fn join(
        &self,
        _: &str,
        _: &[u8],
        sides: &RecordSides,
    ) -> Result<Option<bytes::Bytes>, KvError> {
        let number = |side: &Option<bytes::Bytes>| side.as_ref().map_or(0, |row| row[0]);
        let sum = number(&sides.theirs) + number(&sides.ours) - number(&sides.base);
        Ok((sum > 0).then(|| vec![sum].into()))
    }

    fn shown(&self, tree: &str, key: &[u8]) -> Option<(String, Vec<u8>)> {
        (key != b"hidden").then(|| (tree.to_uppercase(), key.to_vec()))
    }

    fn pause(&self, _: Option<u64>, _: &[&str]) -> Box<dyn PausedRecords + '_> {
        Box::new(Paused(self))
    }
}

#[test]
fn rules_join_records_and_hear_of_a_commit_alone() {
    let sums = SyncArc::new(Sums::default());
    let rules = SyncArc::clone(&sums);
    let setup = setup_with(|options| options.records = rules);
    let engine = store(&setup);
    let tree = engine
        .create_tree("stock", &TreeOptions::default())
        .unwrap();
    put_in(&*engine, tree, b"n", &[10]);
    let (one, two) = (begin(&setup, "one"), begin(&setup, "two"));
    put_in(&**one.records(), tree, b"n", &[15]);
    put_in(&**two.records(), tree, b"n", &[7]);
    put_in(&**two.records(), tree, b"x", b"ours");
    put_in(&**two.records(), tree, b"hidden", b"ours");
    put_in(&*engine, tree, b"n", &[11]);
    commit(&setup, &one);
    assert_eq!(rows_of(&*engine, tree)[&b"n"[..]], [16]);
    let told = [("stock".to_owned(), vec![b"n".to_vec()])];
    assert_eq!(std::mem::take(&mut *sums.told.lock()), told);
    put_in(&*engine, tree, b"hidden", b"theirs");
    expect_records(&setup, &two, &[("stock", b"hidden")]);
    put_in(&*engine, tree, b"x", b"theirs");
    expect_records(&setup, &two, &[("STOCK", b"x")]);
    assert!(sums.told.lock().is_empty(), "there was no commit");
    setup.fs.transactions().abort("two").expect("it is open");
    let three = begin(&setup, "three");
    put_in(&**three.records(), tree, b"n", &[0]);
    commit(&setup, &three);
    assert!(
        !rows_of(&*engine, tree).contains_key(&b"n"[..]),
        "joined to nothing"
    );
}

const KEYS: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];

fn write_of(rng: &mut Rng) -> (usize, Write) {
    let key = rng.pick(&KEYS).to_vec();
    let write = match rng.below(8) {
        0..5 => Write::Put(key, vec![rng.byte()]),
        5 | 6 => Write::Delete(key),
        _ => Write::Clear(key, rng.pick(&[b"d", b"g"]).to_vec()),
    };
    (usize::try_from(rng.below(2)).expect("0 or 1"), write)
}

struct Open {
    view: Arc<TransactionView>,
    base: [Rows; 2],
    sees: [Rows; 2],
    writes: Vec<(usize, Write)>,
    /// What mainline wrote meanwhile.
    theirs: Vec<(usize, Write)>,
}

/// Random writes of two transactions and mainline, beside maps.
#[test]
fn random_transactions_of_files_and_records_are_whole() {
    let (mut commits, mut conflicts) = (0, 0);
    for seed in 1..60 {
        let mut rng = Rng::new(seed);
        let mut setup = setup();
        let engine = store(&setup);
        let trees = ["one", "two"].map(|name| {
            let made = engine.create_tree(name, &TreeOptions::default());
            made.expect("the name is free")
        });
        drop(engine);
        let mut rows = [Rows::new(), Rows::new()];
        for round in 0..6 {
            let engine = store(&setup);
            let names = [format!("a{round}"), format!("b{round}")];
            let mut open: Vec<Open> = Vec::new();
            for name in &names {
                open.push(Open {
                    view: begin(&setup, name),
                    base: rows.clone(),
                    sees: rows.clone(),
                    writes: Vec::new(),
                    theirs: Vec::new(),
                });
            }
            for _ in 0..14 {
                let (tree, write) = write_of(&mut rng);
                let who = usize::try_from(rng.below(4)).expect("small");
                match open.get_mut(who) {
                    Some(one) => {
                        let records = one.view.records();
                        write.commit(&**records, trees[tree]).expect("it is taken");
                        write.apply(&mut one.sees[tree]);
                        one.writes.push((tree, write));
                    }
                    None if who == 2 => {
                        write.commit(&*engine, trees[tree]).expect("it is taken");
                        write.apply(&mut rows[tree]);
                        for one in &mut open {
                            one.theirs.push((tree, write.clone()));
                        }
                    }
                    None => {}
                }
            }
            drop(engine);
            if rng.below(3) == 0 {
                let dropped = std::mem::take(&mut open);
                let kept = dropped.into_iter().map(|one| {
                    let Open {
                        view,
                        base,
                        sees,
                        writes,
                        theirs,
                    } = one;
                    let name = view.info().name.clone();
                    (name, base, sees, writes, theirs)
                });
                let kept: Vec<_> = kept.collect();
                setup = setup.reopened();
                for (name, base, sees, writes, theirs) in kept {
                    let view = setup.fs.transactions().open(&name).expect("it is named");
                    open.push(Open {
                        view,
                        base,
                        sees,
                        writes,
                        theirs,
                    });
                }
            }
            let mut open = open.into_iter();
            while let Some(one) = open.next() {
                let name = one.view.info().name.clone();
                file(one.view.fs(), ROOT, &name, b"");
                for (tree, sees) in trees.iter().zip(&one.sees) {
                    assert_eq!(&rows_of(&**one.view.records(), *tree), sees, "seed {seed}");
                }
                let hit = |tree: usize, key: &[u8], of: &[(usize, Write)]| {
                    of.iter().any(|(at, write)| *at == tree && write.hits(key))
                };
                let all = (0..2).flat_map(|tree| KEYS.map(|key| (tree, key)));
                let both: BTreeSet<_> = all
                    .filter(|(tree, key)| {
                        hit(*tree, key, &one.writes) && hit(*tree, key, &one.theirs)
                    })
                    .collect();
                let differs = both
                    .iter()
                    .any(|(tree, key)| one.base[*tree].get(*key) != rows[*tree].get(*key));
                match setup.fs.transactions().commit(&one.view) {
                    Ok(_) => {
                        assert!(!differs, "seed {seed}: a lost update");
                        assert!(find(&setup.fs, &name).is_ok());
                        commits += 1;
                        for (tree, write) in &one.writes {
                            write.apply(&mut rows[*tree]);
                        }
                        for other in open.as_mut_slice() {
                            other.theirs.extend(one.writes.iter().cloned());
                        }
                    }
                    Err(FsError::Conflict(_)) => {
                        assert!(!both.is_empty(), "seed {seed}: no conflict");
                        assert!(find(&setup.fs, &name).is_err());
                        conflicts += 1;
                        setup.fs.transactions().abort(&name).expect("it is open");
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                for (tree, rows) in trees.iter().zip(&rows) {
                    assert_eq!(&rows_of(&*store(&setup), *tree), rows, "seed {seed}");
                }
            }
            assert_eq!(own_trees(&*store(&setup)), Vec::<String>::new());
        }
        setup.check();
    }
    assert!(commits > 100 && conflicts > 100, "{commits} {conflicts}");
}

#[test]
fn records_come_along_in_a_rebase() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "work");
    file(view.fs(), ROOT, "f", b"both");
    put_in(&**view.records(), tree, b"c", b"2");
    let gone = Write::Delete(b"a".to_vec());
    gone.commit(&**view.records(), tree).expect("it is taken");
    put_in(&*engine, tree, b"d", b"3");
    let rebased = setup.fs.transactions().rebase(&view).expect("no conflict");
    let stale = gone.commit(&**view.records(), tree);
    assert!(stale.is_err(), "the old view has ended");
    let rows = |pairs: &[(&[u8], &[u8])]| -> Rows {
        let pairs = pairs.iter();
        pairs
            .map(|(key, row)| (key.to_vec(), row.to_vec()))
            .collect()
    };
    let expected = rows(&[(b"b", b"1"), (b"c", b"2"), (b"d", b"3")]);
    assert_eq!(rows_of(&**rebased.records(), tree), expected);
    assert_eq!(own_trees(&*engine).len(), 5, "the old ones are gone");
    commit(&setup, &rebased);
    assert_eq!(rows_of(&*engine, tree), expected);
    // A record that both wrote is a conflict, also of a rebase, and is listed.
    let view = begin(&setup, "again");
    put_in(&**view.records(), tree, b"c", b"4");
    put_in(&*engine, tree, b"c", b"5");
    let refused = setup.fs.transactions().rebase(&view);
    assert!(matches!(refused, Err(FsError::Conflict(_))));
    let listed = setup
        .fs
        .transactions()
        .conflicts(&view)
        .expect("it is open");
    assert!(listed.len() == 1 && listed[0].0.record.is_some() && listed[0].1.is_none());
    expect_records(&setup, &view, &[("stock", b"c")]);
}

#[test]
fn deleted_ranges_come_along_in_a_rebase() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "range");
    let clear = Write::Clear(b"a".to_vec(), b"k".to_vec());
    clear.commit(&**view.records(), tree).expect("it is taken");
    put_in(&**view.records(), tree, b"b", b"ours");
    put_in(&*engine, tree, b"x", b"theirs");
    let view = setup.fs.transactions().rebase(&view).expect("no conflict");
    let rows = |pairs: &[(&str, &str)]| -> Rows {
        let pair = |(key, row): &(&str, &str)| ((*key).into(), (*row).into());
        pairs.iter().map(pair).collect()
    };
    assert_eq!(
        rows_of(&**view.records(), tree),
        rows(&[("b", "ours"), ("x", "theirs")])
    );
    // What others add to the range is a conflict still, of the next rebase, too.
    put_in(&*engine, tree, b"c", b"theirs");
    expect_records(&setup, &view, &[("stock", b"c")]);
    let refused = setup.fs.transactions().rebase(&view);
    assert!(matches!(refused, Err(FsError::Conflict(_))));
    resolve(&setup, &view, "c", Side::Theirs).expect("it is in conflict");
    let view = setup
        .fs
        .transactions()
        .rebase(&view)
        .expect("all are resolved");
    let expected = rows(&[("b", "ours"), ("c", "theirs"), ("x", "theirs")]);
    assert_eq!(rows_of(&**view.records(), tree), expected);
    // It is not the transaction's any more, and the range around it is.
    put_in(&*engine, tree, b"c", b"later");
    put_in(&*engine, tree, b"d", b"later");
    expect_records(&setup, &view, &[("stock", b"d")]);
    resolve(&setup, &view, "d", Side::Ours).expect("it is in conflict");
    commit(&setup, &view);
    let expected = rows(&[("b", "ours"), ("c", "later"), ("x", "theirs")]);
    assert_eq!(rows_of(&*engine, tree), expected);
    assert_eq!(own_trees(&*engine), Vec::<String>::new());
}

fn key(tree: &str, key: &str) -> RecordKey {
    RecordKey {
        tree: tree.to_owned(),
        key: key.into(),
    }
}

fn resolve(setup: &Setup, view: &TransactionView, at: &str, side: Side) -> FsResult<()> {
    setup
        .fs
        .transactions()
        .resolve_record(view, &key("stock", at), side)
}

#[test]
fn records_in_conflict_are_resolved_one_by_one() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "work");
    let (records, gone) = (view.records(), Write::Delete(b"b".to_vec()));
    file(view.fs(), ROOT, "f", b"ours");
    for at in ["a", "c", "own"] {
        put_in(&**records, tree, at.as_bytes(), b"ours");
    }
    gone.commit(&**records, tree).expect("it is taken");
    file(&setup.fs, ROOT, "f", b"theirs");
    for at in ["a", "b", "c"] {
        put_in(&*engine, tree, at.as_bytes(), b"theirs");
    }
    for none in [key("stock", "own"), key("stock", "x"), key("other", "a")] {
        let none = setup
            .fs
            .transactions()
            .resolve_record(&view, &none, Side::Ours);
        assert!(matches!(none, Err(FsError::NotFound)), "{none:?}");
    }
    for (at, side) in [("a", Side::Theirs), ("a", Side::Ours), ("b", Side::Ours)] {
        resolve(&setup, &view, at, side).expect("it is in conflict");
    }
    let found = setup.fs.transactions().resolve(&view, b"", Side::Ours);
    assert_eq!(found.ok(), Some(1), "paths are of files alone");
    expect_records(&setup, &view, &[("stock", b"c")]);
    resolve(&setup, &view, "c", Side::Theirs).expect("it is in conflict");
    // They are kept, and hold for what was seen.
    drop((view, engine));
    let setup = setup.reopened();
    let engine = store(&setup);
    let view = setup.fs.transactions().open("work").expect("it is named");
    put_in(&*engine, tree, b"b", b"again");
    let sides = || {
        let all = setup
            .fs
            .transactions()
            .conflicts(&view)
            .expect("it is open");
        let records = all
            .into_iter()
            .filter_map(|(it, side)| Some((it.record?, side)));
        records
            .map(|(record, side)| (record.key, side))
            .collect::<Vec<_>>()
    };
    let expected = [
        (b"a".to_vec(), Some(Side::Ours)),
        (b"b".to_vec(), None),
        (b"c".to_vec(), Some(Side::Theirs)),
    ];
    assert_eq!(sides(), expected);
    expect_records(&setup, &view, &[("stock", b"b")]);
    resolve(&setup, &view, "b", Side::Ours).expect("it is in conflict");
    commit(&setup, &view);
    let expected = [("a", "ours"), ("c", "theirs"), ("own", "ours")];
    let expected = expected.map(|(key, row)| (key.into(), row.into()));
    assert_eq!(rows_of(&*engine, tree), Rows::from(expected));
    assert_eq!(contents(&setup.fs, "f"), b"ours");
}

#[test]
fn records_of_a_removed_tree_are_left() {
    let (setup, engine, tree) = with_records();
    let view = begin(&setup, "work");
    put_in(&**view.records(), tree, b"a", b"ours");
    file(view.fs(), ROOT, "f", b"");
    engine.drop_tree(tree).expect("it is there");
    let refused = resolve(&setup, &view, "a", Side::Ours);
    assert!(
        matches!(refused, Err(FsError::Unresolvable(_))),
        "{refused:?}"
    );
    resolve(&setup, &view, "a", Side::Theirs).expect("it is in conflict");
    commit(&setup, &view);
    assert!(find(&setup.fs, "f").is_ok());
    assert_eq!(own_trees(&*engine), Vec::<String>::new());
}

#[test]
fn rules_join_records_of_a_rebase_and_rows_that_follow_are_resolved_last() {
    let setup = setup_with(|options| options.records = SyncArc::new(Sums::default()));
    let engine = store(&setup);
    let tree = engine.create_tree("stock", &TreeOptions::default());
    let tree = tree.expect("the name is free");
    put_in(&*engine, tree, b"n", &[10]);
    let view = begin(&setup, "work");
    for (key, row) in [(&b"n"[..], 15), (b"x", 1), (b"hidden", 1)] {
        put_in(&**view.records(), tree, key, &[row]);
        put_in(&*engine, tree, key, &[row + 1]);
    }
    let resolve = |tree: &str, at: &str, side| {
        let at = key(tree, at);
        setup.fs.transactions().resolve_record(&view, &at, side)
    };
    expect_records(&setup, &view, &[("STOCK", b"x")]);
    resolve("STOCK", "x", Side::Theirs).expect("it is in conflict");
    expect_records(&setup, &view, &[("stock", b"hidden")]);
    resolve("stock", "hidden", Side::Ours).expect("it is in conflict");
    commit(&setup, &view);
    let rows = rows_of(&*engine, tree).into_values().collect::<Vec<_>>();
    assert_eq!(rows, [vec![1], vec![21], vec![2]], "hidden, n, x");
}

#[test]
fn files_and_records_are_one_commit_beside_clones() {
    let (setup, engine, tree) = with_records();
    let source = stitch_fs::CloneSource {
        fs: &setup.fs,
        dir: dir(&setup.fs, ROOT, "s"),
        snapshot: None,
    };
    let made = setup.fs.make_clone(&SUPER, &source, at(ROOT, "c"));
    made.expect("a clone is made");
    let view = begin(&setup, "work");
    let pins = engine.pins().expect("they are listed");
    assert_eq!(pins.len(), 1, "it shows the clone");
    // A later tree is not in it.
    let later = engine.create_tree("later", &TreeOptions::default());
    let later = later.expect("the name is free");
    put_in(&*engine, later, b"k", b"1");
    file(view.fs(), ROOT, "f", b"1");
    put_in(&**view.records(), tree, b"a", b"2");
    assert_eq!(rows_of(&*engine, tree)[&b"a"[..]], b"1");
    commit(&setup, &view);
    assert_eq!(rows_of(&*engine, tree)[&b"a"[..]], b"2");
    assert_eq!(rows_of(&*engine, later)[&b"k"[..]], b"1");
    assert_eq!(contents(&setup.fs, "f"), b"1");
    assert_eq!(own_trees(&*engine), [""; 0]);
    assert!(engine.pins().expect("they are listed").is_empty());
}
