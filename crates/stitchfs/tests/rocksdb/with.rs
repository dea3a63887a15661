//! In a program that has the engine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::rocksdb;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use stitch_format::store_identity::{Identity, State};
use stitchfs::fs::Files;
use stitchfs::{
    Compression, Database, Direction, EngineKind, ErrorKind, InstanceOptions, IoMode, KeyRange,
    LargeFiles, MakeOptions, StitchByKey, Store, StoreError, StoreOptions, TreeOptions,
};

const IDENTITY: &str = "STITCHFS";

/// A store with a file system, in a directory that is made.
fn make(dir: &Path) -> PathBuf {
    let path = dir.join("store");
    let options = MakeOptions {
        label: "box".to_owned(),
        ..rocksdb()
    };
    let made = stitchfs::make(&path, &options, &mut |_, _| {}).unwrap();
    assert_eq!(
        (made.path.as_path(), made.engine),
        (path.as_path(), EngineKind::RocksDb)
    );
    assert_eq!(made.label, "box");
    path
}

fn make_again(path: &Path, force: bool) -> Result<(), StoreError> {
    let options = MakeOptions { force, ..rocksdb() };
    stitchfs::make(path, &options, &mut |_, _| {}).map(drop)
}

fn open(path: &Path) -> Files {
    Files::open(path, &StoreOptions::default()).unwrap()
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn files_are_there_again_after_a_close_and_after_a_drop() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    for close in [true, false] {
        let files = open(&path);
        let root = files.root();
        let name = format!("closed {close}");
        root.make_dir(&name).unwrap();
        for (file, len) in [("small", 100), ("inline", 4096), ("large", 300_000)] {
            root.write(format!("{name}/{file}"), &vec![7; len]).unwrap();
        }
        root.link(format!("{name}/small"), format!("{name}/link"))
            .unwrap();
        if close {
            files.close().unwrap();
        }
        drop((root, files));

        let files = open(&path);
        let root = files.root();
        for (file, len) in [
            ("small", 100),
            ("inline", 4096),
            ("large", 300_000),
            ("link", 100),
        ] {
            let found = root.read(format!("{name}/{file}")).unwrap();
            assert!(found == vec![7; len], "{name}/{file}");
        }
        assert_eq!(root.stat(format!("{name}/link")).unwrap().nlink, 2);
        files.close().unwrap();
    }
    let store = Store::open(&path, &StoreOptions::default()).unwrap();
    let checked = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(checked.findings, []);
    store.close().unwrap();
}

#[test]
fn files_of_more_than_a_row_holds_are_plain_files_unless_an_option_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    assert_eq!(stitchfs::large_files_path(&path), path.join("files"));
    let sizes = |large_files, len: usize| {
        let options = StoreOptions {
            large_files,
            ..StoreOptions::default()
        };
        let files = Files::open(&path, &options).unwrap();
        files.root().write("file", &vec![7; len]).unwrap();
        files.close().unwrap();
        drop(files);
        let count = stitchfs::large_files_of(&path).map_or(0, |(count, _)| count);
        let files = open(&path);
        files.root().remove_file("file").unwrap();
        files.close().unwrap();
        count
    };
    assert_eq!(sizes(LargeFiles::AsMade, 4096), 0);
    assert_eq!(sizes(LargeFiles::AsMade, 4097), 1);
    assert_eq!(sizes(LargeFiles::Inside, 100_000), 0);
    assert_eq!(sizes(LargeFiles::External(64 << 10), 50_000), 0);
    assert_eq!(sizes(LargeFiles::External(64 << 10), 100_000), 1);

    let inside = MakeOptions {
        large_files: LargeFiles::Inside,
        force: true,
        ..rocksdb()
    };
    stitchfs::make(&path, &inside, &mut |_, _| {}).unwrap();
    assert_eq!(sizes(LargeFiles::AsMade, 100_000), 0);
}

#[test]
fn a_store_is_its_owners_and_one_process_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    fs::create_dir(&path).unwrap();
    fs::create_dir(path.join("lost+found")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    make(dir.path());
    assert_eq!(
        path.metadata().unwrap().permissions().mode() & 0o7777,
        0o700
    );
    assert!(path.join("lost+found").is_dir(), "it is the host's");

    let files = open(&path);
    for read_only in [false, true] {
        let options = StoreOptions {
            read_only,
            ..StoreOptions::default()
        };
        let second = Store::open(&path, &options).unwrap_err();
        assert!(second.is_busy(), "{second}");
    }
    assert!(make_again(&path, true).unwrap_err().is_busy());
    files.close().unwrap();
    drop(files);

    let reading = StoreOptions {
        read_only: true,
        ..StoreOptions::default()
    };
    let readers = [0; 2].map(|_| Store::open(&path, &reading).unwrap());
    assert!(
        Store::open(&path, &StoreOptions::default())
            .unwrap_err()
            .is_busy()
    );
    drop(readers);
    open(&path).close().unwrap();
}

#[test]
fn what_is_there_is_overwritten_by_force_and_only_if_it_is_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    open(&path).root().write("file", &[7; 10_000]).unwrap();
    let refused = make_again(&path, false).unwrap_err();
    assert!(matches!(refused, StoreError::Occupied { .. }), "{refused}");
    make_again(&path, true).unwrap();
    assert!(open(&path).root().stat("file").is_err(), "it is made anew");
    assert_eq!(stitchfs::large_files_of(&path), Some((0, 0)));

    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("precious"), b"data").unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"data").unwrap();
    let volume = dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let size = MakeOptions {
        len_bytes: Some(16 << 20),
        ..MakeOptions::default()
    };
    stitchfs::make(&volume, &size, &mut |_, _| {}).unwrap();
    for other in [&data, &file, &volume] {
        for force in [false, true] {
            let refused = make_again(other, force).unwrap_err();
            assert!(matches!(refused, StoreError::Directory { .. }), "{refused}");
        }
    }
    assert_eq!(fs::read(data.join("precious")).unwrap(), b"data");

    let forced = MakeOptions {
        force: true,
        ..size
    };
    let refused = stitchfs::make(&path, &forced, &mut |_, _| {}).unwrap_err();
    assert!(matches!(refused, StoreError::Directory { .. }), "{refused}");
    open(&path).close().unwrap();
}

/// A copy of all files of a store, as a killed process leaves them.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in names(from) {
        let (source, target) = (from.join(&name), to.join(&name));
        match source.is_dir() {
            true => copy(&source, &target),
            false => drop(fs::copy(source, target).unwrap()),
        }
    }
}

#[test]
fn a_killed_process_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    let files = open(&path);
    files.root().write("small", &[5; 50]).unwrap();
    files.root().write("large", &[7; 100_000]).unwrap();
    let copied = dir.path().join("copied");
    copy(&path, &copied);
    let found = open(&copied);
    assert_eq!(found.root().read("small").unwrap(), [5; 50]);
    assert_eq!(found.root().read("large").unwrap(), [7; 100_000]);
    found.close().unwrap();
    files.close().unwrap();
}

#[test]
fn a_making_that_was_interrupted_is_no_store_and_is_made_anew_without_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    let bytes = fs::read(path.join(IDENTITY)).unwrap();
    let making = Identity {
        state: State::Making,
        ..Identity::decode(&bytes).unwrap()
    };
    fs::write(path.join(IDENTITY), making.encode()).unwrap();
    let refused = Store::open(&path, &StoreOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("interrupted"), "{refused}");
    make_again(&path, false).unwrap();

    // Before its identity was there.
    let early = dir.path().join("early");
    fs::create_dir(&early).unwrap();
    fs::write(early.join("STITCHFS.new"), &bytes[..50]).unwrap();
    make_again(&early, false).unwrap();
    open(&early).close().unwrap();
    assert!(!names(&early).contains(&"STITCHFS.new".to_owned()));
}

#[test]
fn a_failure_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let label = "x".repeat(65);
    let wrong = [
        MakeOptions {
            len_bytes: Some(1 << 30),
            ..rocksdb()
        },
        MakeOptions {
            grown_bytes: Some(1 << 30),
            ..rocksdb()
        },
        MakeOptions {
            zone_bytes: Some(1 << 20),
            ..rocksdb()
        },
        MakeOptions { label, ..rocksdb() },
    ];
    for options in wrong {
        stitchfs::make(&path, &options, &mut |_, _| {}).unwrap_err();
        assert!(!path.exists(), "{options:?}");
    }
}

#[test]
fn a_damaged_or_newer_identity_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    let bytes = fs::read(path.join(IDENTITY)).unwrap();
    for damaged in [
        bytes[..100].to_vec(),
        [&bytes[..30], &[0xff], &bytes[31..]].concat(),
    ] {
        fs::write(path.join(IDENTITY), damaged).unwrap();
        let refused = Store::open(&path, &StoreOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        assert!(stitchfs::identify(&path).is_err());
    }
    fs::write(path.join(IDENTITY), bytes).unwrap();
    open(&path).close().unwrap();
}

#[test]
fn options_of_a_volume_are_refused_and_none_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    let options = StoreOptions::default;
    let stitch_by_key = StitchByKey::new(|_, _| None);
    let wrong = [
        StoreOptions {
            discard: true,
            ..options()
        },
        StoreOptions {
            io: IoMode::Buffered,
            ..options()
        },
        StoreOptions {
            instance: Some("mail".to_owned()),
            ..options()
        },
        StoreOptions {
            drop_log_tail: true,
            ..options()
        },
        StoreOptions {
            stitch_by_key: Some(stitch_by_key),
            ..options()
        },
    ];
    for options in wrong {
        let refused = Store::open(&path, &options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{options:?}");
        assert!(
            refused.to_string().contains("RocksDB engine has no"),
            "{refused}"
        );
    }
    let main = StoreOptions {
        instance: Some("main".to_owned()),
        ..options()
    };
    let store = Store::open(&path, &main).unwrap();
    assert_eq!(store.instances(), ["main"]);
    let watch = &mut |_, _| true;
    let refused = [
        store.grow(Some(1 << 30)).map(drop),
        store.shrink(1 << 30, watch).map(drop),
        store.defrag(watch).map(drop),
        store.trim(watch).map(drop),
        store.create_instance("mail", &InstanceOptions::default(), None),
        store.remove_instance("mail"),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    store.close().unwrap();
}

#[test]
fn options_of_both_engines_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    let options = StoreOptions {
        durability: stitchfs::Durability::Device,
        compress: stitchfs::CompressOptions {
            data: Some(Compression::Zstd),
            meta: Some(Compression::None),
        },
        large_files: LargeFiles::Inside,
        ..StoreOptions::default()
    };
    let files = Files::open(&path, &options).unwrap();
    files.root().write("file", &[7; 500_000]).unwrap();
    files.close().unwrap();
    let trees = files.store().engine().trees();
    let data = trees
        .iter()
        .find(|tree| tree.name.ends_with("data"))
        .unwrap();
    assert_eq!(data.options.compression, Compression::Zstd);
    drop(files);
    assert_eq!(open(&path).root().read("file").unwrap(), [7; 500_000]);
}

#[test]
fn free_space_is_that_of_the_host_and_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    let files = open(&path);
    files.root().write("large", &vec![7; 8 << 20]).unwrap();
    let space = files.space().unwrap();
    let host = rustix::fs::statvfs(&path).unwrap();
    let host_bytes = host.f_blocks * host.f_frsize;
    assert_eq!(
        space.blocks * u64::from(space.block_bytes),
        host_bytes / 4096 * 4096
    );
    assert!(space.blocks_free < space.blocks);
    files.close().unwrap();
}

#[test]
fn records_are_kept_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let options = StoreOptions::default();
    let db = Database::open_or_create(&path, &rocksdb(), &options).unwrap();
    let tree = db.create_tree("words", &TreeOptions::default()).unwrap();
    tree.put(b"key", b"value").unwrap();
    let before = db.snapshot();
    tree.put(b"key", b"other").unwrap();
    assert_eq!(
        tree.get_at(&before, b"key").unwrap().as_deref(),
        Some(&b"value"[..])
    );
    let other = Database::in_memory(16 << 20, &options).unwrap();
    let foreign = other.create_tree("words", &TreeOptions::default()).unwrap();
    let refused = db.drop_tree(&foreign).unwrap_err();
    assert!(
        refused.to_string().contains(&*path.to_string_lossy()),
        "{refused}"
    );
    db.close().unwrap();
    drop((tree, before, db));

    let db = Database::open_or_create(&path, &rocksdb(), &options).unwrap();
    let tree = db.tree("words").unwrap();
    let rows: Vec<_> = tree
        .scan(KeyRange::all(), Direction::Forward)
        .unwrap()
        .collect();
    let rows: Result<Vec<_>, _> = rows.into_iter().collect();
    assert_eq!(rows.unwrap(), [(b"key".to_vec(), b"other".to_vec())]);
    let no_files = Files::open(&path, &options).unwrap_err();
    assert!(no_files.is_busy(), "{no_files}");
    db.close().unwrap();
    drop((tree, db));
    let no_files = Files::open(&path, &options).unwrap_err();
    assert!(
        matches!(no_files, StoreError::NoFileSystem { .. }),
        "{no_files}"
    );
}
