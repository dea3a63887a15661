//! Stores of the RocksDB engine, by the library.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

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
    use stitchfs::{ErrorKind, StoreError, StoreOptions};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let made = stitchfs::make(&path, &rocksdb(), &mut |_, _| {});
    let error = made.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("librocksdb-dev"), "{error}");
    assert!(!path.exists());

    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("STITCHFS"), b"as of a program with the engine").unwrap();
    let opened = stitchfs::Store::open(&path, &StoreOptions::default());
    assert!(matches!(opened, Err(StoreError::NoEngine { .. })));
    assert!(!EngineKind::RocksDb.is_built_in());
}
