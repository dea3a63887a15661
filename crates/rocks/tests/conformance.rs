//! The conformance suite on RocksDB.

#![cfg(feature = "rocksdb")]

use std::ffi::OsString;
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
            ..RocksOptions::default()
        };
        let engine = RocksEngine::create(folder.path(), &options).expect("a store is made");
        Box::new(Store {
            folder,
            options,
            engine: Some(Arc::new(engine)),
        })
    }
}

/// Names and lengths of all files.
fn listing(folder: &Path) -> Vec<(OsString, u64)> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let entries = entries.map(|entry| entry.expect("an entry"));
    // RocksDB may remove a file meanwhile.
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some((entry.file_name(), entry.metadata().ok()?.len())))
        .collect();
    files.sort();
    files
}

/// What a killed process leaves: all that was handed to the operating system, at one moment. The
/// copy is made again if RocksDB's background work has changed the folder meanwhile.
fn copy_of(folder: &Path) -> TempDir {
    for _ in 0..1000 {
        let copy = tempfile::tempdir().expect("a folder");
        let before = listing(folder);
        let copied = before.iter().all(|(name, _)| {
            let (from, to) = (folder.join(name), copy.path().join(name));
            fs::copy(from, to).is_ok()
        });
        if copied && listing(folder) == before {
            return copy;
        }
    }
    panic!("the folder changes all the time");
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
