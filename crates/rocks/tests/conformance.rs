//! The conformance suite on RocksDB.

#![cfg(feature = "rocksdb")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stitch_kv::conformance::{CHECKS, Ending, Factory, Subject, run_one};
use stitch_kv::{Engine, UpsertRegistry};
use stitch_rocks::{RocksEngine, RocksOptions};
use tempfile::TempDir;

struct Stores;

struct Store {
    folder: TempDir,
    options: RocksOptions,
    engine: Option<Arc<RocksEngine>>,
}

impl Factory for Stores {
    fn create(&self, upserts: UpsertRegistry) -> Box<dyn Subject> {
        let folder = tempfile::tempdir().expect("a folder");
        let options = RocksOptions {
            memory_bytes: 8 << 20,
            upserts,
            sync_interval: Duration::ZERO,
            read_only: false,
        };
        let engine = RocksEngine::create(folder.path(), &options).expect("a store is made");
        Box::new(Store {
            folder,
            options,
            engine: Some(Arc::new(engine)),
        })
    }
}

/// What a killed process leaves: all that was handed to the operating system.
fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let entry = entry.expect("an entry");
        // RocksDB may remove a file between the listing and the copy.
        let copied = fs::copy(entry.path(), copy.path().join(entry.file_name()));
        assert!(copied.is_ok() || !entry.path().exists(), "{copied:?}");
    }
    copy
}

impl Subject for Store {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(self.engine.as_ref().expect("open between calls")) as Arc<dyn Engine>
    }

    fn reopen(&mut self, ending: Ending) -> bool {
        match ending {
            Ending::PowerCut => return false,
            Ending::Closed => self.engine().close().expect("the store closes"),
            Ending::Killed => self.folder = copy_of(self.folder.path()),
        }
        self.engine = None;
        let engine = RocksEngine::open(self.folder.path(), &self.options);
        self.engine = Some(Arc::new(engine.expect("the store opens")));
        true
    }
}

#[test]
fn it_conforms() {
    for (name, _) in CHECKS {
        println!("{name}");
        run_one(&Stores, name);
    }
}
