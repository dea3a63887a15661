//! Rebases and resolutions of serializable transactions: sound as long as all that was read holds.

use super::*;
use stitch_base::TreeId;
use stitch_fs::{ReadKind, RecordKey, Side, TransactionIsolation, XattrMode};
use stitch_kv::{Batch, CommitOptions, Engine, TreeOptions};

const INODE: ConflictKind = ConflictKind::Read(ReadKind::Inode);

fn begin_ser(setup: &Setup, name: &str) -> Arc<TransactionView> {
    let options = BeginOptions {
        isolation: TransactionIsolation::Serializable,
        ..BeginOptions::default()
    };
    let begun = setup.fs.transactions().begin(name, &options);
    begun.expect("it begins")
}

fn set_xattr(fs: &FileSystem, path: &str, value: &[u8]) {
    let ino = ino(fs, path);
    let set = fs.set_xattr(&SUPER, ino, b"user.x", value, XattrMode::Set, false);
    set.expect("it is known");
}

fn xattr(fs: &FileSystem, path: &str) -> Vec<u8> {
    let found = fs.get_xattr(&SUPER, ino(fs, path), b"user.x");
    found.expect("it is set").to_vec()
}

/// Each goes because the other one stays: the first is committed.
fn skewed() -> (Setup, Arc<TransactionView>) {
    let setup = setup();
    for name in ["ada", "bob"] {
        file(&setup.fs, ROOT, name, b"on call");
    }
    dir(&setup.fs, ROOT, "d");
    let views = ["first", "second"].map(|name| begin_ser(&setup, name));
    for (view, (other, own)) in views.iter().zip([("ada", "bob"), ("bob", "ada")]) {
        assert_eq!(contents(view.fs(), other), b"on call");
        write(view.fs(), ino(view.fs(), own), b"at home");
    }
    let [first, second] = views;
    commit(&setup, &first);
    (setup, second)
}

fn kinds(setup: &Setup, view: &TransactionView) -> Vec<(String, ConflictKind, Option<Side>)> {
    let all = setup.fs.transactions().conflicts(view).expect("it is open");
    let plain = |(it, side): (Conflict, _)| {
        (
            String::from_utf8_lossy(&it.path).into_owned(),
            it.kind,
            side,
        )
    };
    all.into_iter().map(plain).collect()
}

#[test]
fn write_skew_is_refused_by_commit_rebase_and_resolution() {
    let (setup, view) = skewed();
    // A conflict of writes elsewhere, which a side could settle.
    set_xattr(view.fs(), "d", b"inside");
    set_xattr(&setup.fs, "d", b"outside");
    let listed = kinds(&setup, &view);
    assert!(
        listed.contains(&("bob".to_owned(), INODE, None)),
        "{listed:?}"
    );
    assert!(
        listed.contains(&("d".to_owned(), ConflictKind::Xattr, None)),
        "{listed:?}"
    );
    for path in ["bob", "d", ""] {
        for side in [Side::Ours, Side::Theirs] {
            let refused = setup
                .fs
                .transactions()
                .resolve(&view, path.as_bytes(), side);
            let Err(FsError::Unresolvable(why)) = refused else {
                panic!("{path:?}: {refused:?}");
            };
            assert!(why.contains("begin it again"), "{why}");
        }
    }
    let Err(FsError::Conflict(found)) = setup.fs.transactions().rebase(&view) else {
        panic!("what it has read is changed");
    };
    assert!(
        found.iter().any(|it| it.path == b"bob" && it.kind == INODE),
        "{found:?}"
    );
    assert!(setup.fs.transactions().commit(&view).is_err());
    assert_eq!(contents(&setup.fs, "ada"), b"on call");
    setup.check();
}

#[test]
fn what_was_read_before_a_rebase_is_checked_after_it() {
    for reopens in [false, true] {
        let setup = setup();
        for name in ["ada", "bob"] {
            file(&setup.fs, ROOT, name, b"on call");
        }
        let view = begin_ser(&setup, "work");
        assert_eq!(contents(view.fs(), "bob"), b"on call");
        write(view.fs(), ino(view.fs(), "ada"), b"at home");
        file(&setup.fs, ROOT, "later", b"outside");
        let mut view = setup.fs.transactions().rebase(&view).expect("all holds");
        assert_eq!(view.info().isolation, TransactionIsolation::Serializable);
        // What came meanwhile is not its own.
        assert_eq!(contents(view.fs(), "later"), b"outside");
        let mut setup = setup;
        if reopens {
            drop(view);
            setup.fs.close().expect("closes");
            setup = setup.reopened();
            view = setup.fs.transactions().open("work").expect("it is named");
        }
        write(&setup.fs, ino(&setup.fs, "bob"), b"at home");
        expect_conflicts(&setup, &view, &[("bob", INODE)]);
        assert!(
            setup.fs.transactions().rebase(&view).is_err(),
            "as the commit"
        );
        write(&setup.fs, ino(&setup.fs, "bob"), b"on call");
        write(&setup.fs, ino(&setup.fs, "later"), b"changed");
        let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(&view) else {
            panic!("it has read what came before the rebase");
        };
        assert!(found.iter().any(|it| it.path == b"later"), "{found:?}");
        setup.check();
    }
}

/// The root's attributes are in memory, and no lock is taken to read them.
fn read_root(view: &TransactionView) -> stitch_fs::FsResult<()> {
    view.fs().get_attr(ROOT).map(drop)
}

#[test]
fn a_read_in_the_old_view_is_refused_after_a_rebase() {
    let setup = setup();
    let view = begin_ser(&setup, "work");
    let made = file(view.fs(), ROOT, "made", b"inside");
    let rebased = setup
        .fs
        .transactions()
        .rebase(&view)
        .expect("nothing has changed");
    assert!(matches!(read_root(&view), Err(FsError::Stale(ROOT))));
    let listed = view.fs().read_dir(ROOT, 0, &mut |_| stitch_fs::Taken::More);
    assert!(matches!(listed, Err(FsError::Stale(ROOT))), "{listed:?}");
    view.fs()
        .get_attr(made)
        .expect("its own inode is no read of mainline");
    read_root(&rebased).expect("it goes on there");
    commit(&setup, &rebased);
}

#[test]
fn a_read_beside_a_rebase_is_checked_by_it_or_refused() {
    let (mut served, mut refused) = (0, 0);
    for round in 0..200 {
        let setup = setup();
        dir(&setup.fs, ROOT, "d");
        let view = begin_ser(&setup, "work");
        let within = view.fs().lookup(at(ROOT, "d")).expect("it is there").ino;
        file(view.fs(), within, "made", b"inside");
        let set = stitch_fs::SetAttr {
            perm: Some(0o711),
            ..Default::default()
        };
        setup
            .fs
            .set_attr(&SUPER, ROOT, &set)
            .expect("it is changed");
        let beside = Arc::clone(&view);
        let reader = stitch_base::thread::spawn("reader", move || {
            (0..round * 500).for_each(|_| std::hint::spin_loop());
            read_root(&beside)
        });
        let rebased = setup.fs.transactions().rebase(&view);
        let read = reader.expect("there are threads").join().expect("it ends");
        match (&read, &rebased) {
            // It came first, or waited for a rebase that failed.
            (Ok(()), Err(FsError::Conflict(_))) => served += 1,
            (Err(FsError::Stale(_)), Ok(_)) => refused += 1,
            other => panic!("round {round}: {other:?}"),
        }
    }
    println!("{served} were served, {refused} refused");
}

#[test]
fn what_is_not_known_after_a_crash_is_not_known_after_a_rebase() {
    let setup = setup();
    file(&setup.fs, ROOT, "f", b"before");
    dir(&setup.fs, ROOT, "d");
    let view = begin_ser(&setup, "work");
    file(view.fs(), ino(view.fs(), "d"), "made", b"");
    view.fs().sync().expect("syncs");
    drop(view);
    let setup = setup.reopened();
    let view = setup.fs.transactions().open("work").expect("it is named");
    let view = setup
        .fs
        .transactions()
        .rebase(&view)
        .expect("nothing was changed");
    write(&setup.fs, ino(&setup.fs, "f"), b"after");
    let unknown = ConflictKind::Read(ReadKind::Unknown);
    expect_conflicts(&setup, &view, &[("f", unknown)]);
    let refused = setup.fs.transactions().resolve(&view, b"f", Side::Ours);
    assert!(matches!(refused, Err(FsError::Unresolvable(_))));
}

/// Both set an attribute of a directory, without a look at it: times of directories are not read.
#[test]
fn conflicts_of_writes_are_resolved_while_all_reads_hold() {
    for side in [Side::Ours, Side::Theirs] {
        let setup = setup();
        dir(&setup.fs, ROOT, "d");
        // The first attribute of a directory changes its inode.
        set_xattr(&setup.fs, "d", b"before");
        file(&setup.fs, ROOT, "f", b"before");
        let view = begin_ser(&setup, "work");
        contents(view.fs(), "f");
        set_xattr(view.fs(), "d", b"inside");
        file(view.fs(), ROOT, "own", b"inside");
        set_xattr(&setup.fs, "d", b"outside");
        expect_conflicts(&setup, &view, &[("d", ConflictKind::Xattr)]);
        let resolved = setup.fs.transactions().resolve(&view, b"d", side);
        assert_eq!(resolved.expect("all that was read holds"), 1);
        let listed = kinds(&setup, &view);
        assert_eq!(listed, [("d".to_owned(), ConflictKind::Xattr, Some(side))]);
        // It may be lost after that by what it has read.
        write(&setup.fs, ino(&setup.fs, "f"), b"after");
        expect_conflicts(&setup, &view, &[("f", INODE)]);
        write(&setup.fs, ino(&setup.fs, "f"), b"before");
        let view = match setup.fs.transactions().rebase(&view) {
            Ok(rebased) => rebased,
            Err(error) => panic!("a value that is back is no change: {error}"),
        };
        write(&setup.fs, ino(&setup.fs, "f"), b"after");
        expect_conflicts(&setup, &view, &[("f", INODE)]);
        write(&setup.fs, ino(&setup.fs, "f"), b"before");
        commit(&setup, &view);
        let expected = if side == Side::Ours {
            "inside"
        } else {
            "outside"
        };
        assert_eq!(xattr(&setup.fs, "d"), expected.as_bytes());
        assert_eq!(contents(&setup.fs, "own"), b"inside");
    }
}

fn put(engine: &dyn Engine, tree: TreeId, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(tree, key, value);
    let put = engine.commit(&batch, CommitOptions::default());
    put.expect("it is taken");
}

#[test]
fn records_that_were_written_are_resolved_while_those_that_were_read_hold() {
    let setup = setup();
    let engine = crate::engine::dynamic(&setup.engine);
    let tree = engine.create_tree("stock", &TreeOptions::default());
    let tree = tree.expect("the name is free");
    for key in [b"read", b"both"] {
        put(&*engine, tree, key, b"1");
    }
    let view = begin_ser(&setup, "work");
    let records = view.records();
    records.get(tree, b"read", None).expect("the tree is there");
    put(&**records, tree, b"both", b"inside");
    put(&*engine, tree, b"both", b"outside");
    let at = |key: &str| RecordKey {
        tree: "stock".to_owned(),
        key: key.into(),
    };
    let resolve = |view: &TransactionView, key, side| {
        setup.fs.transactions().resolve_record(view, &at(key), side)
    };
    resolve(&view, "both", Side::Ours).expect("all that was read holds");
    put(&*engine, tree, b"read", b"2");
    let kind = ConflictKind::Read(ReadKind::Record);
    let refused = |view: &TransactionView| {
        let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(view) else {
            panic!("what was read is changed");
        };
        assert_eq!((found.len(), found[0].kind), (1, kind));
        assert_eq!(found[0].record, Some(at("read")));
        assert!(
            setup.fs.transactions().rebase(view).is_err(),
            "as the commit"
        );
        for side in [Side::Ours, Side::Theirs] {
            for key in ["both", "read"] {
                let refused = resolve(view, key, side);
                assert!(
                    matches!(refused, Err(FsError::Unresolvable(_))),
                    "{refused:?}"
                );
            }
        }
    };
    refused(&view);
    // Of records no value is compared: a new transaction.
    setup.fs.transactions().abort("work").expect("it is open");
    let view = begin_ser(&setup, "work");
    let records = view.records();
    records.get(tree, b"read", None).expect("the tree is there");
    put(&**records, tree, b"both", b"inside");
    put(&*engine, tree, b"both", b"outside");
    resolve(&view, "both", Side::Ours).expect("all that was read holds");
    let rebased = setup.fs.transactions().rebase(&view).expect("all holds");
    let late = view.records().get(tree, b"read", None);
    assert!(
        late.is_err(),
        "a read that the rebased one would not know of"
    );
    put(&*engine, tree, b"read", b"3");
    refused(&rebased);
    setup.check();
}
