//! Handles belong to one instance of one store: every call refuses those of another.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;
use stitchfs::fs::{Files, LaterClones};
use stitchfs::{
    Batch, Database, Direction, ErrorKind, InstanceOptions, KeyRange, MakeOptions, Store,
    StoreError, StoreOptions, Tree, TreeOptions,
};

/// A store in a file.
fn store(path: &Path) -> Database {
    let make = MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    };
    Database::create(path, &make, &StoreOptions::default()).unwrap()
}

/// A tree with one record, whose value is the tree's name.
fn tree(db: &Database, name: &str) -> Tree {
    let tree = db.create_tree(name, &TreeOptions::default()).unwrap();
    tree.put(b"ada", name.as_bytes()).unwrap();
    tree
}

/// Asserts that a call is refused as [`ErrorKind::Invalid`], with a message that has these words.
fn assert_refused<T: std::fmt::Debug>(result: Result<T, StoreError>, words: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

/// Two databases, a tree of the same number in each, and words that name each database.
struct Pair {
    dbs: [Database; 2],
    trees: [Tree; 2],
    words: [Vec<String>; 2],
}

impl Pair {
    fn new(dbs: [Database; 2], words: [Vec<String>; 2]) -> Self {
        let trees = [tree(&dbs[0], "users"), tree(&dbs[1], "pages")];
        assert_eq!(
            trees[0].id(),
            trees[1].id(),
            "or it would be refused anyway"
        );
        Self { dbs, trees, words }
    }

    fn words(&self) -> Vec<&str> {
        self.words.iter().flatten().map(String::as_str).collect()
    }

    fn assert_unchanged(&self) {
        for (db, tree) in self.dbs.iter().zip(&self.trees) {
            let name = tree.info().unwrap().name;
            assert_eq!(tree.get(b"ada").unwrap().unwrap(), name.as_bytes());
            let rows = tree.scan(KeyRange::all(), Direction::Forward).unwrap();
            assert_eq!((rows.count(), db.trees().len()), (1, 1));
        }
    }
}

/// Each check, for two stores and for two instances of one.
fn for_each_pair(check: impl Fn(&Pair)) {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("first"), dir.path().join("second")];
    let stores = [store(&paths[0]), store(&paths[1])];
    let words = paths.map(|path| vec![path.display().to_string()]);
    check(&Pair::new(stores, words));

    let path = dir.path().join("third");
    let main = store(&path);
    let cache = main.create_instance("cache", &InstanceOptions::default());
    let words = ["main", "cache"].map(|name| vec![name.to_owned(), path.display().to_string()]);
    check(&Pair::new([main, cache.unwrap()], words));
}

#[test]
fn a_batch_with_a_tree_of_another_instance_is_refused_whole() {
    for_each_pair(|pair| {
        let [ours, theirs] = &pair.trees;
        let fills: [&dyn Fn(&mut Batch<'_>); 7] = [
            &|batch| batch.put(theirs, b"ada", b"page"),
            &|batch| batch.put_borrowed(theirs, b"ada", b"page"),
            &|batch| batch.delete(theirs, b"ada"),
            &|batch| batch.delete_range(theirs, b"a", b"b"),
            &|batch| batch.upsert(theirs, b"ada", 1024, b"page"),
            // A stranger in either place.
            &|batch| {
                batch.put(ours, b"bob", b"user");
                batch.put(theirs, b"ada", b"page");
            },
            &|batch| {
                batch.put(theirs, b"ada", b"page");
                batch.put(ours, b"bob", b"user");
            },
        ];
        let mut batch = Batch::new();
        for fill in fills {
            batch.clear();
            fill(&mut batch);
            assert_refused(pair.dbs[0].commit(&batch), &pair.words());
            assert_refused(pair.dbs[0].commit_sync(&batch.clone()), &pair.words());
            let with = pair.dbs[0].commit_with(&batch, stitchfs::CommitOptions::default());
            assert_refused(with, &pair.words());
        }
        pair.assert_unchanged();
        // A cleared batch belongs to no store.
        batch.clear();
        batch.put(theirs, b"ada", b"pages");
        pair.dbs[1].commit(&batch).unwrap();
        batch.clear();
        batch.put(ours, b"ada", b"users");
        pair.dbs[0].commit(&batch).unwrap();
    });
}

#[test]
fn a_tree_of_another_instance_is_not_dropped() {
    for_each_pair(|pair| {
        assert_refused(pair.dbs[0].drop_tree(&pair.trees[1]), &pair.words());
        assert_refused(pair.dbs[1].drop_tree(&pair.trees[0]), &pair.words());
        let both = [pair.trees[1].clone(), pair.trees[0].clone()];
        assert_refused(pair.dbs[1].drop_trees(&both), &pair.words());
        pair.assert_unchanged();
        pair.dbs[1].drop_trees(&both[..1]).unwrap();
        pair.dbs[0].drop_tree(&pair.trees[0]).unwrap();
    });
}

#[test]
fn a_snapshot_of_another_instance_reads_nothing() {
    for_each_pair(|pair| {
        let theirs = pair.dbs[1].snapshot();
        let ours = &pair.trees[0];
        assert_refused(ours.get_at(&theirs, b"ada"), &pair.words());
        let scan = ours.scan_at(&theirs, KeyRange::all(), Direction::Forward);
        assert_refused(scan, &pair.words());
        // Every handle of the instance takes it, a clone and one that was had later.
        let name = &pair.dbs[1].trees()[0].name;
        let again = pair.dbs[1].clone().tree(name).unwrap();
        assert!(again.get_at(&theirs.clone(), b"ada").unwrap().is_some());
    });
}

#[test]
fn handles_of_one_instance_are_taken_by_all_its_handles() {
    let main = Database::in_memory(32 << 20, &StoreOptions::default()).unwrap();
    let made = main.create_instance("cache", &InstanceOptions::default());
    let pages = tree(&made.unwrap(), "pages");
    let cache = main.instance("cache").unwrap();
    let mut batch = Batch::new();
    batch.put(&pages, b"ada", b"page");
    cache.commit(&batch).unwrap();
    let again = cache.instance("main").unwrap().instance("cache").unwrap();
    assert!(pages.get_at(&again.snapshot(), b"ada").unwrap().is_some());
    again.drop_tree(&pages).unwrap();
}

#[test]
fn a_batch_outlives_its_store_and_keeps_it_from_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut batch = Batch::new();
    let db = store(&path);
    batch.put(&tree(&db, "users"), b"ada", b"again");
    let moment = db.snapshot();
    drop(db);
    // The store is gone, so that it can be opened anew. What belonged to it belongs to no other.
    let db = Database::open(&path, &StoreOptions::default()).unwrap();
    assert_refused(db.commit(&batch), &["main", &path.display().to_string()]);
    let users = db.tree("users").unwrap();
    assert_refused(users.get_at(&moment, b"ada"), &["main"]);
    assert_eq!(users.get(b"ada").unwrap().as_deref(), Some(&b"users"[..]));
}

#[test]
fn a_tree_that_was_dropped_is_not_found_when_its_name_is_used_again() {
    let db = Database::in_memory(32 << 20, &StoreOptions::default()).unwrap();
    let old = tree(&db, "users");
    let moment = db.snapshot();
    db.drop_tree(&old).unwrap();
    let new = tree(&db, "users");
    let mut batch = Batch::new();
    batch.put(&new, b"ada", b"new");
    batch.put(&old, b"ada", b"old");
    let not_found = [
        db.commit(&batch).unwrap_err(),
        db.drop_tree(&old).unwrap_err(),
        old.get(b"ada").unwrap_err(),
        old.get_at(&moment, b"ada").unwrap_err(),
        old.scan(KeyRange::all(), Direction::Forward).unwrap_err(),
        old.info().unwrap_err(),
        old.set_options(&TreeOptions::default()).unwrap_err(),
    ];
    for error in not_found {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert_eq!(new.get(b"ada").unwrap().as_deref(), Some(&b"users"[..]));
}

#[test]
fn handles_of_an_instance_that_was_removed_are_refused_by_its_successor() {
    let main = Database::in_memory(32 << 20, &StoreOptions::default()).unwrap();
    let create = || main.create_instance("cache", &InstanceOptions::default());
    let old = create().unwrap();
    let (old_pages, moment) = (tree(&old, "pages"), old.snapshot());
    main.remove_instance("cache").unwrap();
    let new = create().unwrap();
    let pages = tree(&new, "pages");
    let words = ["closed instance cache", "not of instance cache"];
    let mut batch = Batch::new();
    batch.put(&old_pages, b"ada", b"old");
    assert_refused(new.commit(&batch), &words);
    assert_refused(new.drop_tree(&old_pages), &words);
    assert_refused(pages.get_at(&moment, b"ada"), &words);
    assert_eq!(pages.get(b"ada").unwrap().as_deref(), Some(&b"pages"[..]));
}

#[test]
fn two_stores_of_one_name_are_told_apart() {
    let open = || Database::in_memory(32 << 20, &StoreOptions::default()).unwrap();
    let (first, second) = (open(), open());
    let users = tree(&second, "users");
    assert_refused(first.drop_tree(&users), &["another store or opening"]);
}

#[test]
fn a_check_of_another_store_repairs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let make = MakeOptions {
            len_bytes: Some(32 << 20),
            ..MakeOptions::default()
        };
        let path = dir.path().join(name);
        stitchfs::make(&path, &make, &mut |_, _| {}).unwrap();
        Store::open(&path, &StoreOptions::default()).unwrap()
    };
    let (first, second) = (open("first"), open("second"));
    let checked = second.check(&mut |_, _| {}).unwrap();
    assert_refused(first.repair(&checked), &["first", "second"]);
    assert_eq!(second.repair(&checked).unwrap(), 0);
}

#[test]
fn a_check_of_a_copy_repairs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [path, copy] = ["store", "copy"].map(|name| dir.path().join(name));
    let make = MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    };
    stitchfs::make(&path, &make, &mut |_, _| {}).unwrap();
    std::fs::copy(&path, &copy).unwrap();
    let [original, copy] = [path, copy].map(|path| {
        let store = Store::open(&path, &StoreOptions::default());
        store.unwrap()
    });
    let checked = copy.check(&mut |_, _| {}).unwrap();
    assert_refused(original.repair(&checked), &["store", "copy"]);
    assert_eq!(copy.repair(&checked).unwrap(), 0);
}

#[test]
fn a_moment_of_another_store_is_no_moment() {
    let open = || {
        let options = StoreOptions {
            history: Some(Duration::from_secs(3600)),
            ..StoreOptions::default()
        };
        let files = Files::in_memory(32 << 20, &options).unwrap();
        let root = files.root();
        root.write("file", b"then").unwrap();
        assert!(files.run_history().unwrap().created.is_some());
        root.write("file", b"now").unwrap();
        (files, root)
    };
    let [(first, root), (second, _)] = [open(), open()];
    let own = first.moments().unwrap().remove(0);
    let other = second.moments().unwrap().remove(0);
    assert_eq!(own.info().id, other.info().id, "the same number");
    let words = ["moment", "another store or opening"];
    assert_refused(first.open_moment(&other).map(drop), &words);
    assert_refused(root.has_changed(&other, None), &words);
    assert_refused(root.has_changed(&own, Some(&other)), &words);
    assert_refused(root.roll_back_to(&other, LaterClones::Keep), &words);
    assert_eq!(root.read("file").unwrap(), b"now");
    assert!(root.has_changed(&own, None).unwrap());
    root.roll_back_to(&own, LaterClones::Keep).unwrap();
    assert_eq!(root.read("file").unwrap(), b"then");
}

/// Two would give the same inode numbers to different files.
#[test]
fn a_file_system_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let make = MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    };
    stitchfs::make(&path, &make, &mut |_, _| {}).unwrap();
    let store = Store::open(&path, &StoreOptions::default()).unwrap();
    let fs = store.file_system().unwrap();
    let error = store.file_system().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(
        error.to_string().contains("instance main is open"),
        "{error}"
    );
    drop(fs);
    store.file_system().unwrap().close().unwrap();
    store.file_system().unwrap().close().unwrap();
}

/// But for moments, no call takes two handles of files: a path starts at its own store's directory.
#[test]
fn files_and_directories_reach_their_own_store_only() {
    let open = || Files::in_memory(32 << 20, &StoreOptions::default()).unwrap();
    let stores = [open(), open()];
    let files = [0, 1].map(|index: u8| {
        let root = stores[usize::from(index)].root();
        root.make_dir("dir").unwrap();
        let file = root.open_dir("dir").unwrap().create("file").unwrap();
        file.append(&[index]).unwrap();
        (root.open_dir("dir").unwrap(), file)
    });
    let inos = [0, 1].map(|index: usize| files[index].1.stat().unwrap().ino);
    assert_eq!(inos[0], inos[1], "the same numbers mean different files");
    for (index, (dir, file)) in (0u8..).zip(&files) {
        file.append(b"+").unwrap();
        assert_eq!(dir.read("/dir/file").unwrap(), [index, b'+']);
        dir.rename("file", "/moved").unwrap();
        assert_eq!(dir.read("/moved").unwrap(), [index, b'+']);
        assert_eq!(dir.entries("").unwrap().count(), 0);
    }
    stores[0].root().remove_file("moved").unwrap();
    assert_eq!(stores[1].root().read("moved").unwrap(), [1, b'+']);
}
