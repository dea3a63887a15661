//! Stores of the RocksDB engine, by the library.

#[cfg(feature = "rocksdb")]
mod with;

use stitchfs::{EngineKind, MakeOptions};

fn rocksdb() -> MakeOptions {
    MakeOptions {
        engine: EngineKind::RocksDb,
        ..MakeOptions::default()
    }
}

#[cfg(not(feature = "rocksdb"))]
#[test]
fn a_program_without_the_engine_says_so_and_leaves_nothing() {
    use stitch_format::store_identity::{FILE_NAME, Identity, State};
    use stitchfs::{ErrorKind, StoreError, StoreOptions};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let made = stitchfs::make(&path, &rocksdb(), &mut |_, _| {});
    let error = made.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("librocksdb-dev"), "{error}");
    assert!(!path.exists());

    // As a program with the engine leaves it.
    let identity = Identity {
        state: State::Made,
        uuid: [7; 16],
        large_files: None,
        label: "box".to_owned(),
    };
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join(FILE_NAME), identity.encode()).unwrap();
    assert_eq!(EngineKind::at(&path), EngineKind::RocksDb);
    let known = stitchfs::identify(&path).unwrap();
    assert_eq!(known.facts["engine"], "rocksdb");
    assert_eq!(known.facts["label"], "box");
    let opened = stitchfs::Store::open(&path, &StoreOptions::default());
    assert!(matches!(opened, Err(StoreError::NoEngine { .. })));
    assert!(!EngineKind::RocksDb.is_built_in());
}
