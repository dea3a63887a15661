//! Large files in a folder beside the store, by the library.

use std::path::{Path, PathBuf};
use stitchfs::fs::Files;
use stitchfs::{LargeFiles, MakeOptions, Store, StoreError, StoreOptions, large_files_path};

const LEN: usize = 200_000;

fn options() -> StoreOptions {
    StoreOptions {
        large_files: LargeFiles::External(64 << 10),
        ..StoreOptions::default()
    }
}

fn make(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let size = MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    };
    let files = Files::create(&path, &size, &options()).expect("works");
    files.root().write("large", &[5; LEN]).expect("works");
    files.root().write("small", b"small").expect("works");
    files.close().expect("works");
    path
}

fn refusal(path: &Path, options: &StoreOptions) -> String {
    match Files::open(path, options) {
        Err(error @ StoreError::LargeFiles { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn they_are_served_with_and_without_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path(), "store");
    assert!(large_files_path(&path).join("uuid").is_file());
    assert_eq!(stitchfs::large_files_of(&path), Some((1, LEN as u64)));
    for options in [StoreOptions::default(), options()] {
        let files = Files::open(&path, &options).unwrap();
        assert_eq!(files.root().read("large").unwrap(), [5; LEN]);
        files.close().unwrap();
    }
    let files = Files::open(&path, &options()).unwrap();
    files.root().remove_file("large").unwrap();
    files.sync().unwrap();
    assert_eq!(stitchfs::large_files_of(&path), Some((0, 0)));
    files.close().unwrap();
}

#[test]
fn a_folder_that_is_missing_or_another_stores_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (make(dir.path(), "one"), make(dir.path(), "two"));
    let (of_one, of_two) = (large_files_path(&one), large_files_path(&two));
    let away = dir.path().join("away");
    std::fs::rename(&of_one, &away).unwrap();
    for options in [StoreOptions::default(), options()] {
        assert!(refusal(&one, &options).contains("is missing"));
    }
    std::fs::rename(&of_two, &of_one).unwrap();
    assert!(refusal(&one, &StoreOptions::default()).contains("another store"));
    let store = Store::open(&one, &StoreOptions::default()).unwrap();
    let checked = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(checked.findings[0].rule, "large-files");
    store.close().unwrap();
    drop(store);
    std::fs::rename(&of_one, &of_two).unwrap();
    std::fs::rename(&away, &of_one).unwrap();
    for path in [one, two] {
        let files = Files::open(&path, &StoreOptions::default()).unwrap();
        assert_eq!(files.root().read("large").unwrap().len(), LEN);
        files.close().unwrap();
    }
}

#[test]
fn a_store_that_is_no_file_has_none() {
    let opened = Files::in_memory(32 << 20, &options());
    assert!(matches!(opened, Err(StoreError::LargeFiles { .. })));
}
