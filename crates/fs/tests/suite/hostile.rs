//! Rows that no program of ours has written, under right checksums.

use crate::common::*;
use std::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_format::fs_inode::{FileKind, encode_link};
use stitch_format::fs_key::{self, NAME_HASH_MAX};
use stitch_format::fs_sys::encode_number;
use stitch_format::fs_transaction::records_tree_name;
use stitch_format::fs_view::ViewRecord;
use stitch_fs::fsck::{self, Issue};
use stitch_fs::{
    BeginOptions, CloneSource, FileSystem, FsError, KeptClones, RenameMode, RollbackRights, Taken,
    inode_flag,
};
use stitch_kv::{Batch, CommitOptions, Engine, NewBranch, TreeOptions};

/// Entries that a walk may be given before it is taken for one without end.
const ENTRIES_MAX: usize = 100;

fn put(setup: &Setup, tree: &str, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(tree_of(setup, tree), key, value);
    let committed = setup.engine.commit(&batch, CommitOptions::default());
    committed.expect("the model commits");
}

fn tree_of(setup: &Setup, tree: &str) -> TreeId {
    let all = setup.engine.trees();
    let found = all.iter().find(|t| t.name == format!("fs/{tree}"));
    found.expect("there is such a tree").id
}

/// Returns the row that a tree has for a key.
fn row(setup: &Setup, tree: TreeId, key: &[u8]) -> Vec<u8> {
    let row = setup.engine.get(tree, key, None).expect("the model reads");
    row.expect("there is a row").to_vec()
}

/// Puts a name of a file into a directory under a hash of choice.
fn put_name(setup: &Setup, dir: Ino, hash: u64, name: &str, ino: Ino) {
    let key = [&fs_key::dentry_start(dir, hash)[..], name.as_bytes()].concat();
    put(setup, "meta", &key, &encode_link(ino, FileKind::Regular));
}

/// Lists a directory with one entry a call.
fn list_one_by_one(setup: &Setup, dir: Ino) -> Result<Vec<Vec<u8>>, FsError> {
    let mut names = Vec::new();
    let mut offset = 0;
    loop {
        let before = names.len();
        let mut next = offset;
        setup.fs.read_dir(dir, offset, &mut |entry| {
            if names.len() > before {
                return Taken::Full;
            }
            names.push(entry.name.to_vec());
            next = entry.offset;
            Taken::More
        })?;
        if names.len() == before {
            return Ok(names);
        }
        assert!(names.len() < ENTRIES_MAX, "a listing without end");
        offset = next;
    }
}

#[test]
fn listing_a_name_whose_hash_is_too_large_is_an_error() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d").ino;
    let file = setup.file(dir, "f").ino;
    for hash in [NAME_HASH_MAX + 1, 1 << 60, 1 << 63, u64::MAX] {
        put_name(&setup, dir, hash, "x", file);
        let listed = list_one_by_one(&setup, dir);
        assert!(matches!(listed, Err(FsError::Corrupt(_))), "{listed:?}");
    }
}

/// Positions tell 16 names of one hash apart; a listing that stopped at the 17th never went on.
#[test]
fn a_listing_of_many_names_of_one_hash_ends() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d").ino;
    let file = setup.file(ROOT, "f").ino;
    for number in 0..20 {
        put_name(&setup, dir, 77, &format!("n{number:02}"), file);
    }
    put_name(&setup, dir, 78, "last", file);
    let listed = list_one_by_one(&setup, dir).unwrap();
    // `.`, `..`, sixteen names of the one hash, and the one after them.
    assert_eq!(listed.len(), 2 + 16 + 1, "{listed:?}");
    assert_eq!(listed.last().unwrap(), b"last");
}

#[test]
fn inode_numbers_end_without_overflow() {
    for next in [fs_key::INO_MAX, fs_key::INO_MAX - 1] {
        let mut setup = setup();
        put(&setup, "sys", fs_key::SYS_NEXT_INO, &encode_number(next));
        setup = setup.reopened();
        let made = setup.fs.create(&SUPER, at(ROOT, "f"), &new(0o644));
        assert!(matches!(made, Err(FsError::NoSpace)), "{made:?}");
    }
    for next in [fs_key::INO_MAX + 1, u64::MAX] {
        let setup = setup();
        put(&setup, "sys", fs_key::SYS_NEXT_INO, &encode_number(next));
        let engine = std::sync::Arc::clone(&setup.engine) as std::sync::Arc<dyn Engine>;
        let opened = FileSystem::open(engine, stitch_fs::FsOptions::default());
        assert!(matches!(opened, Err(FsError::Corrupt(_))));
    }
}

/// A hard-linked file has a row of its own, under its number. One that has the number of another
/// file led to that one.
#[test]
fn an_own_row_of_another_number_is_an_error() {
    let mut setup = setup();
    let numbers = ["f", "g"].map(|name| {
        let ino = setup.file(ROOT, name).ino;
        let second = format!("{name}2");
        let linked = setup.fs.link(&SUPER, ino, at(ROOT, &second));
        linked.expect("it gets a second name");
        ino
    });
    setup.fs.sync().expect("the model commits");
    let [f, g] = numbers.map(fs_key::own);
    let row = row(&setup, tree_of(&setup, "meta"), &g);
    put(&setup, "meta", &f, &row);
    setup = setup.reopened();
    let found = setup.fs.lookup(at(ROOT, "f"));
    assert!(matches!(found, Err(FsError::Corrupt(_))), "{found:?}");
    assert_eq!(setup.fs.lookup(at(ROOT, "g")).unwrap().ino, numbers[1]);
}

/// Makes a clone of a directory. Returns its number.
fn make_clone(setup: &Setup, dir: Ino, parent: Ino, name: &str) -> u64 {
    let (fs, snapshot) = (&setup.fs, None);
    let source = CloneSource { fs, dir, snapshot };
    let made = fs.make_clone(&SUPER, &source, at(parent, name));
    made.expect("makes a clone").number
}

/// Has the record of a clone say that the clone lies elsewhere.
fn move_record(setup: &Setup, number: u64, home: u64, graft: Ino) {
    let key = fs_key::view(number);
    let row = row(setup, tree_of(setup, "sys"), &key);
    let record = ViewRecord {
        home,
        graft,
        ..ViewRecord::decode(&row).expect("it was written")
    };
    put(setup, "sys", &key, &record.encode());
}

/// The clones because of which a rollback of a directory is refused.
fn kept_clones(setup: &Setup, dir: Ino) -> KeptClones {
    let refused = setup.fs.roll_back("mon", dir, RollbackRights::default());
    match refused {
        Err(FsError::LaterClones(kept)) => kept,
        other => panic!("{other:?}"),
    }
}

/// Makes directories `a/b` in `top`, and a name in `b` that leads to `a`. Returns `b`.
fn make_ring(setup: &Setup, top: Ino) -> Ino {
    let a = setup.dir(top, "a").ino;
    let b = setup.dir(a, "b").ino;
    let key = fs_key::dentry(7, top, b"a");
    let row = row(setup, tree_of(setup, "meta"), &key);
    let again = [&fs_key::dentry_start(b, 77)[..], b"x"].concat();
    put(setup, "meta", &again, &row);
    b
}

/// The way up from the clone had no end.
#[test]
fn a_rollback_names_a_clone_below_a_ring_of_directories() {
    let setup = setup();
    let top = setup.dir(ROOT, "d").ino;
    setup.fs.snapshots().create(top, "mon").expect("it pins");
    let below = make_ring(&setup, top);
    let source = setup.dir(ROOT, "source").ino;
    make_clone(&setup, source, below, "c");
    let kept = kept_clones(&setup, top);
    assert_eq!(kept.paths, [b"a/b/c"]);
}

/// The search for immutable files had no end.
#[test]
fn a_tree_with_a_ring_of_directories_is_removed() {
    let setup = setup();
    let fixed = setup.file(ROOT, "fixed").ino;
    let set = setup
        .fs
        .set_inode_flags(&SUPER, fixed, inode_flag::IMMUTABLE);
    set.expect("root may set it");
    let top = setup.dir(ROOT, "d").ino;
    make_ring(&setup, top);
    let removed = setup.fs.remove_tree(&SUPER, at(ROOT, "d"), None);
    removed.expect("no file in it is immutable");
    assert_eq!(setup.names(ROOT), ["fixed"]);
}

#[test]
fn a_rollback_counts_a_clone_that_lies_at_a_file() {
    let mut setup = setup();
    let top = setup.dir(ROOT, "d").ino;
    setup.fs.snapshots().create(top, "mon").expect("it pins");
    let file = setup.file(top, "f").ino;
    let source = setup.dir(ROOT, "source").ino;
    let number = make_clone(&setup, source, top, "c");
    move_record(&setup, number, 0, file);
    setup = setup.reopened();
    setup.lookup(ROOT, "d").expect("it is there");
    let kept = kept_clones(&setup, top);
    assert_eq!((kept.paths.len(), kept.count), (0, 1));
}

/// No program names a branch so. It counted as the branch of a tree of records, which it was
/// itself.
#[test]
fn a_tree_that_is_named_as_a_branch_of_itself_holds_no_records_of_a_transaction() {
    let mut setup = setup();
    let records = setup
        .engine
        .create_tree("records", &TreeOptions::default())
        .expect("the model makes trees");
    let begun = setup.fs.transactions().begin("t", &BeginOptions::default());
    let number = begun.expect("it begins").info().number;
    let last = setup.engine.trees().iter().map(|tree| tree.id.0).max();
    let own = TreeId(last.expect("there are trees") + 1);
    let name = records_tree_name(number, own);
    let branches = [NewBranch::new(records, &name)];
    let made = setup.engine.branch_trees(&branches, None);
    assert_eq!(made.expect("the model branches"), [own]);
    setup = setup.reopened();
    let transactions = setup.fs.transactions();
    let view = transactions.open("t").expect("it is open");
    assert!(view.records().branch_of(records).is_some());
    assert_eq!(view.records().branch_of(own), None);
    transactions.commit(&view).expect("nothing conflicts");
}

/// Makes a clone of a directory, whose record says that it lies in itself. Returns its number.
fn clone_in_itself(setup: &Setup) -> u64 {
    let dir = setup.dir(ROOT, "d").ino;
    let graft = setup.dir(dir, "graft").ino;
    let number = make_clone(setup, dir, ROOT, "c");
    move_record(setup, number, number, graft);
    number
}

#[test]
fn a_check_finds_a_clone_that_lies_in_itself() {
    let setup = setup();
    let number = clone_in_itself(&setup);
    let mut issues = setup.issues();
    assert_eq!(issues, [Issue::CloneAdrift { number }]);
    let engine: Arc<dyn Engine> = setup.engine.clone();
    for _ in 0..4 {
        fsck::repair(&engine, &issues).expect("the model commits");
        issues = setup.issues();
    }
    assert_eq!(issues, []);
}

/// A record of a clone whose home was made later, or is the clone itself: the way up from it had no
/// end.
#[test]
fn a_clone_that_lies_in_itself_is_not_shown() {
    let mut setup = setup();
    let number = clone_in_itself(&setup);
    setup = setup.reopened();
    assert_eq!(setup.fs.clones(), []);
    let opened = setup
        .fs
        .open_clone(number)
        .map(|clone| clone.info().clone());
    assert!(matches!(opened, Err(FsError::NotFound)), "{opened:?}");
}

/// A transaction whose rows have directories in each other: they were looked for above a directory
/// that mainline knows, again and again.
#[test]
fn a_transaction_with_a_ring_of_directories_is_not_committed() {
    let setup = setup();
    let moved = setup.dir(ROOT, "moved").ino;
    let transactions = setup.fs.transactions();
    let view = transactions.begin("t", &BeginOptions::default());
    let view = view.expect("it begins");
    let make = |parent, name| {
        let made = view.fs().make_dir(&SUPER, at(parent, name), &new(0o755));
        made.expect("the name is free").ino
    };
    let outer = make(ROOT, "outer");
    let inner = make(outer, "inner");
    let (from, to) = (at(ROOT, "moved"), at(inner, "moved"));
    view.fs().lookup(from).expect("it is there");
    let renamed = view.fs().rename(&SUPER, from, to, RenameMode::Replace);
    renamed.expect("it is moved");
    view.fs().sync().expect("the model commits");
    let trees = setup.engine.trees();
    let meta = trees
        .iter()
        .find(|tree| tree.name.ends_with("/meta") && tree.branch.is_some());
    let meta = meta.expect("the transaction has a tree of names").id;
    let [old, ring] = [ROOT, inner].map(|parent| fs_key::dentry(7, parent, b"outer"));
    let mut batch = Batch::new();
    batch.put(meta, &ring, &row(&setup, meta, &old));
    batch.delete(meta, &old);
    let committed = setup.engine.commit(&batch, CommitOptions::default());
    committed.expect("the model commits");
    let committed = transactions.commit(&view);
    assert!(
        matches!(committed, Err(FsError::Corrupt(_))),
        "{committed:?}"
    );
    assert_eq!(
        setup.fs.lookup(at(ROOT, "moved")).expect("it stays").ino,
        moved
    );
}
