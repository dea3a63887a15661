//! The library as a program has it, over several lives of a store.

use std::path::Path;
use stitchfs::fs::Files;
use stitchfs::{
    Batch, Compression, Database, Direction, ErrorKind, InstanceOptions, KeyRange, MakeOptions,
    Store, StoreOptions, TreeOptions, UpsertRegistry, upsert_fn,
};

const APPEND: u32 = 1024;

fn size() -> MakeOptions {
    MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    }
}

fn with_append() -> StoreOptions {
    let mut upserts = UpsertRegistry::default();
    upserts.register(upsert_fn(APPEND, "append", |_, old, delta| {
        Some([old.unwrap_or_default(), delta].concat())
    }));
    StoreOptions {
        upserts,
        ..StoreOptions::default()
    }
}

fn open(path: &Path) -> Database {
    Database::open_or_create(path, &size(), &with_append()).expect("the store opens")
}

#[test]
fn records_and_options_outlive_their_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let options = TreeOptions {
        stitch_bytes: 0,
        compression: Compression::Zstd,
        ..TreeOptions::default()
    };
    for life in 0..4u8 {
        let db = open(&path);
        let tree = db.tree_or_create("tree", &TreeOptions::default()).unwrap();
        tree.put(&[life], &[life; 100]).unwrap();
        tree.upsert(b"all", APPEND, &[life]).unwrap();
        if life == 1 {
            tree.set_options(&options).unwrap();
        }
        // Every other life ends without a close.
        if life % 2 == 0 {
            db.close().unwrap();
        }
    }
    let db = open(&path);
    let tree = db.tree("tree").unwrap();
    assert_eq!(tree.info().unwrap().options, options);
    assert_eq!(
        tree.get(b"all").unwrap().as_deref(),
        Some(&[0, 1, 2, 3][..])
    );
    let rows = tree.scan(KeyRange::all(), Direction::Forward).unwrap();
    assert_eq!(rows.count(), 5);
    assert_eq!(db.check(&mut |_, _| {}).unwrap(), []);
}

#[test]
fn errors_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let missing = Database::open(&path, &StoreOptions::default()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let db = open(&path);
    let busy = Database::open(&path, &StoreOptions::default()).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    let again = Database::create(&path, &size(), &StoreOptions::default()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Busy, "{again}");

    let tree = db.create_tree("tree", &TreeOptions::default()).unwrap();
    let kind = |result: Result<stitchfs::Seqno, stitchfs::StoreError>| result.unwrap_err().kind();
    let twice = db.create_tree("tree", &TreeOptions::default());
    assert_eq!(twice.unwrap_err().kind(), ErrorKind::Exists);
    let kept = db.create_tree("fs/data", &TreeOptions::default());
    assert_eq!(kept.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(kind(tree.put(&[0; 5000], b"")), ErrorKind::Invalid);
    assert_eq!(kind(tree.upsert(b"k", 77_777, b"")), ErrorKind::Invalid);
    let other = Database::in_memory(16 << 20, &StoreOptions::default()).unwrap();
    let elsewhere = tree.get_at(&other.snapshot(), b"k").unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::Invalid);
    db.drop_tree(&tree).unwrap();
    assert_eq!(kind(tree.put(b"k", b"v")), ErrorKind::NotFound);
    assert_eq!(tree.info().unwrap_err().kind(), ErrorKind::NotFound);
    db.close().unwrap();
    drop((tree, db));
    let occupied = Database::create(&path, &size(), &StoreOptions::default()).unwrap_err();
    assert_eq!(occupied.kind(), ErrorKind::Exists);
}

#[test]
fn a_full_store_takes_deletes_and_then_puts() {
    let db = Database::in_memory(16 << 20, &StoreOptions::default()).unwrap();
    let tree = db.create_tree("tree", &TreeOptions::default()).unwrap();
    let full = (0u32..).find_map(|n| {
        let done = tree.put(&n.to_be_bytes(), &vec![n.to_le_bytes()[0]; 10_000]);
        done.err()
    });
    assert_eq!(full.unwrap().kind(), ErrorKind::NoSpace);
    tree.delete_range(b"", &[255]).unwrap();
    db.quiesce().unwrap();
    tree.put(b"again", &[1; 10_000]).unwrap();
    let mut mixed = Batch::new();
    mixed.delete(&tree, b"again");
    mixed.put(&tree, b"more", b"");
    db.commit_sync(&mixed).unwrap();
}

#[test]
fn files_and_records_share_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("both");
    stitchfs::make(&path, &size(), &mut |_, _| {}).unwrap();
    {
        let store = Store::open(&path, &with_append()).unwrap();
        let db = store.database();
        assert!(db.trees().is_empty() && db.tree("fs/meta").is_none());
        let notes = db.create_tree("notes", &TreeOptions::default()).unwrap();
        notes.put(b"k", b"v").unwrap();
        store.file_system().unwrap().close().unwrap();
        store.close().unwrap();
    }
    {
        let db = open(&path);
        let notes = db.tree("notes").unwrap();
        notes.upsert(b"k", APPEND, b"w").unwrap();
        // Ends without a close: the upsert is in the log.
    }
    // The mount knows nothing of the program's functions, and works on all the same.
    {
        let store = Store::open(&path, &StoreOptions::default()).unwrap();
        let notes = store.database().tree("notes").unwrap();
        let unknown = notes.get(b"k").unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unsupported, "{unknown}");
        for n in 0..20_000u32 {
            notes.put(&n.to_be_bytes(), &[7; 100]).unwrap();
        }
        store.database().quiesce().unwrap();
        assert!(store.check(&mut |_, _| {}).unwrap().findings.is_empty());
        store.close().unwrap();
    }
    let db = open(&path);
    let notes = db.tree("notes").unwrap();
    assert_eq!(notes.get(b"k").unwrap().as_deref(), Some(&b"vw"[..]));
}

#[test]
fn instances_are_databases_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("several");
    let db = open(&path);
    let plain = TreeOptions::default();
    let logs = InstanceOptions::default();
    db.create_tree("rows", &plain).unwrap();
    for name in ["b", "a"] {
        let made = db.create_instance(name, &logs).unwrap();
        let rows = made.create_tree("rows", &plain).unwrap();
        rows.put(b"name", name.as_bytes()).unwrap();
        rows.upsert(b"name", APPEND, b"!").unwrap();
    }
    assert_eq!(db.instances(), ["main", "a", "b"]);
    assert_eq!(db.tree("rows").unwrap().get(b"name").unwrap(), None);
    let error = db.create_instance("a", &logs).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    // As if the program had been killed.
    drop(db);
    let options = StoreOptions {
        instance: Some("b".to_owned()),
        ..with_append()
    };
    let b = Database::open(&path, &options).unwrap();
    let rows = b.tree("rows").unwrap();
    assert_eq!(rows.get(b"name").unwrap().as_deref(), Some(&b"b!"[..]));
    let a = b.instance("a").unwrap();
    let of_a = a.tree("rows").unwrap();
    assert_eq!(of_a.get(b"name").unwrap().as_deref(), Some(&b"a!"[..]));
    assert_eq!(
        b.instance("c").map(drop).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    b.remove_instance("a").unwrap();
    assert!(of_a.put(b"more", b"").is_err(), "it is gone");
    rows.put(b"more", b"here").unwrap();
    b.close().unwrap();
    assert!(rows.put(b"more", b"").is_err(), "all are closed");
    drop((a, of_a, b, rows));
    let b = Database::open(&path, &options).unwrap();
    assert_eq!(b.instances(), ["main", "b"]);
    assert!(b.check(&mut |_, _| {}).unwrap().is_empty());
    let rows = b.tree("rows").unwrap();
    assert_eq!(rows.get(b"more").unwrap().as_deref(), Some(&b"here"[..]));
}

/// Every call that would change a closed store, of records or of files, with its kind of error.
#[test]
fn a_closed_store_takes_nothing_and_says_that_it_was_closed() {
    let files = Files::in_memory(32 << 20, &StoreOptions::default()).unwrap();
    let db = files.database();
    let tree = db.create_tree("tree", &TreeOptions::default()).unwrap();
    tree.put(b"k", b"v").unwrap();
    let root = files.root();
    root.write("file", b"contents").unwrap();
    let file = root.open("file").unwrap();
    files.close().unwrap();

    let mut batch = Batch::new();
    batch.put(&tree, b"k", b"late");
    let instance = InstanceOptions::default();
    let late = [
        tree.put(b"k", b"late").map(drop),
        db.commit_sync(&batch).map(drop),
        db.create_tree("late", &TreeOptions::default()).map(drop),
        db.drop_tree(&tree),
        tree.set_options(&TreeOptions::default()),
        db.create_instance("late", &instance).map(drop),
        db.remove_instance("late"),
        db.defrag(&mut |_, _| true).map(drop),
        db.trim(&mut |_, _| true).map(drop),
        db.grow(Some(64 << 20)).map(drop),
        db.shrink(16 << 20, &mut |_, _| true).map(drop),
        root.make_dir("late"),
        root.remove_file("file"),
        file.append(b"late"),
        file.set_len(0),
    ];
    for (index, refused) in late.into_iter().enumerate() {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "call {index}: {error}");
        let message = error.to_string();
        assert!(message.contains("was closed"), "call {index}: {message}");
        assert!(!message.contains("fail"), "nothing has failed: {message}");
    }
    assert_eq!(tree.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(root.read("file").unwrap(), b"contents");
    db.sync().unwrap();
    db.close().unwrap();
}

/// A handle of an instance that was removed finds nothing, and says why it takes nothing.
#[test]
fn a_removed_instance_says_that_it_was_closed() {
    let db = Database::in_memory(32 << 20, &StoreOptions::default()).unwrap();
    let options = InstanceOptions::default();
    let cache = db.create_instance("cache", &options).unwrap();
    let pages = cache.create_tree("pages", &TreeOptions::default()).unwrap();
    db.remove_instance("cache").unwrap();
    let late = [
        pages.put(b"k", b"late").unwrap_err(),
        cache.drop_tree(&pages).unwrap_err(),
    ];
    for error in late {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    assert_eq!(pages.get(b"k").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_second_opening_is_busy_until_the_first_lets_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let db = open(&path);
    let again = [
        Database::open(&path, &StoreOptions::default()).unwrap_err(),
        Database::create(&path, &size(), &StoreOptions::default()).unwrap_err(),
        Files::open(&path, &StoreOptions::default()).unwrap_err(),
    ];
    for error in again {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(!error.to_string().contains("mount"), "{error}");
    }
    db.close().unwrap();
    drop(db);
    Database::open(&path, &StoreOptions::default()).unwrap();
}
