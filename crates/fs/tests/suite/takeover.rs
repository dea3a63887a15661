//! A process that was killed, and the next one, which takes over what it served.

use crate::common::{ROOT, SUPER, Setup, at, new, setup_on, setup_with};
use std::collections::HashMap;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{DirName, FileKind, FsError, FsResult, LEDGER_LOGS, Ledger, RenameMode};
use stitch_kv::ModelEngine;

/// A ledger in plain memory, of which only what is written before a commit is left once
/// `is_killed`: the process is killed then, between the commit and all that follows it.
#[derive(Debug)]
struct Plain {
    logs: [Mutex<Vec<u8>>; LEDGER_LOGS],
    notes: Mutex<HashMap<u64, Ino>>,
    is_killed: AtomicBool,
}

/// The kind of record that says where a row may be.
const MAY: u8 = 2;

impl Default for Plain {
    fn default() -> Self {
        Self {
            logs: std::array::from_fn(|_| Mutex::default()),
            notes: Mutex::default(),
            is_killed: AtomicBool::new(false),
        }
    }
}

impl Ledger for Plain {
    fn append(&self, log: usize, bytes: &[u8]) -> Option<usize> {
        let mut log = self.logs[log].lock();
        if bytes[4] == MAY || !self.is_killed.load(Ordering::SeqCst) {
            log.extend_from_slice(bytes);
        }
        Some(log.len())
    }

    fn replace(&self, log: usize, bytes: &[u8]) -> bool {
        assert!(!self.is_killed.load(Ordering::SeqCst), "not so soon");
        *self.logs[log].lock() = bytes.to_vec();
        true
    }

    fn read(&self, log: usize) -> Vec<u8> {
        self.logs[log].lock().clone()
    }

    fn note(&self, unique: u64, ino: Ino) {
        self.notes.lock().insert(unique, ino);
    }

    fn noted(&self, unique: u64) -> Option<Ino> {
        self.notes.lock().get(&unique).copied()
    }
}

fn kept() -> (Setup, Arc<Plain>) {
    let ledger = Arc::new(Plain::default());
    let shared: Arc<dyn Ledger> = ledger.clone();
    (setup_with(|options| options.ledger = Some(shared)), ledger)
}

/// The process is killed: nothing of it is left but the trees and the ledger.
fn taken_over(setup: Setup, ledger: &Arc<Plain>) -> Setup {
    let engine = setup.engine.clone();
    drop(setup);
    opened(engine, ledger)
}

fn opened(engine: Arc<ModelEngine>, ledger: &Arc<Plain>) -> Setup {
    ledger.is_killed.store(false, Ordering::SeqCst);
    let shared: Arc<dyn Ledger> = ledger.clone();
    setup_on(engine, |options| options.ledger = Some(shared))
}

fn is_stale(setup: &Setup, ino: Ino) -> bool {
    matches!(setup.fs.get_attr(ino), Err(FsError::Stale(_)))
}

#[test]
fn what_was_known_is_known_by_as_many_lookups() {
    let (setup, ledger) = kept();
    let dir = setup.dir(ROOT, "dir");
    let file = setup.file(dir.ino, "file");
    let gone = setup.file(dir.ino, "gone");
    setup.lookup(dir.ino, "file").unwrap();
    setup.write(file.ino, 0, b"contents");
    setup.fs.forget(gone.ino, 1);
    let setup = taken_over(setup, &ledger);
    assert_eq!(setup.contents(file.ino), b"contents");
    assert!(is_stale(&setup, gone.ino));
    // The directory stays for the file's sake, and both go with the last lookup.
    setup.fs.forget(file.ino, 1);
    assert!(setup.fs.get_attr(file.ino).is_ok());
    setup.fs.forget(file.ino, 1);
    assert!(is_stale(&setup, file.ino));
    assert_eq!(setup.fs.known_inodes(), 2);
}

#[test]
fn unlinked_files_stay_until_they_are_forgotten() {
    let (setup, ledger) = kept();
    let small = setup.file(ROOT, "small");
    let large = setup.file(ROOT, "large");
    setup.write(small.ino, 0, b"in memory alone");
    setup.write(large.ino, 0, &[7; 20_000]);
    for name in ["small", "large"] {
        setup.fs.unlink(&SUPER, at(ROOT, name)).unwrap();
    }
    setup.write(small.ino, 0, b"IN");
    let setup = taken_over(setup, &ledger);
    assert_eq!(setup.contents(small.ino), b"IN memory alone");
    assert_eq!(setup.contents(large.ino), [7; 20_000]);
    assert_eq!(setup.attr(large.ino).nlink, 0);
    let setup = taken_over(setup, &ledger);
    for ino in [small.ino, large.ino] {
        setup.fs.forget(ino, 1);
        assert!(setup.fs.get_attr(ino).is_err());
    }
    assert_eq!(setup.fs.reclaim().unwrap(), 1);
    setup.check();
    assert_eq!(setup.rows("data"), 0);
}

#[test]
fn a_temporary_file_can_still_be_named() {
    let (setup, ledger) = kept();
    let temp = setup.fs.make_temp_file(&SUPER, ROOT, &new(0o644)).unwrap();
    setup.write(temp.ino, 0, b"kept");
    let setup = taken_over(setup, &ledger);
    setup.fs.link(&SUPER, temp.ino, at(ROOT, "named")).unwrap();
    let setup = taken_over(setup, &ledger);
    assert_eq!(setup.contents(temp.ino), b"kept");
    setup.check();
}

type Act = fn(&Setup, Ino) -> FsResult<()>;

/// Whatever moves rows.
const ACTS: [Act; 6] = [
    |s, d| rename(s, at(d, "a"), at(ROOT, "z"), RenameMode::NoReplace),
    |s, d| rename(s, at(d, "a"), at(d, "b"), RenameMode::Exchange),
    |s, d| rename(s, at(d, "a"), at(d, "b"), RenameMode::Replace),
    |s, _| rename(s, at(ROOT, "dir"), at(ROOT, "moved"), RenameMode::Replace),
    |s, d| s.fs.unlink(&SUPER, at(d, "a")),
    |s, d| {
        let a = s.lookup(d, "a")?.ino;
        s.fs.link(&SUPER, a, at(ROOT, "l")).map(drop)
    },
];

fn rename(setup: &Setup, from: DirName<'_>, to: DirName<'_>, mode: RenameMode) -> FsResult<()> {
    setup.fs.rename(&SUPER, from, to, mode)
}

#[test]
fn a_row_is_found_wherever_a_kill_leaves_it() {
    for (number, act) in ACTS.iter().enumerate() {
        for is_committed in [false, true] {
            let (setup, ledger) = kept();
            let dir = setup.dir(ROOT, "dir");
            let (a, b) = (setup.file(dir.ino, "a"), setup.file(dir.ino, "b"));
            setup.write(a.ino, 0, b"a");
            setup.write(b.ino, 0, b"b");
            let before = Arc::new(setup.engine.reopened());
            ledger.is_killed.store(true, Ordering::SeqCst);
            act(&setup, dir.ino).unwrap();
            let setup = match is_committed {
                true => taken_over(setup, &ledger),
                false => opened(before, &ledger),
            };
            let found = (setup.contents(a.ino), setup.contents(b.ino));
            let expected = (b"a".to_vec(), b"b".to_vec());
            assert_eq!(found, expected, "{number} {is_committed}");
            assert_eq!(setup.attr(dir.ino).kind, FileKind::Directory);
            setup.check();
        }
    }
}

#[test]
fn a_long_log_is_written_anew_and_says_the_same() {
    let (setup, ledger) = kept();
    let file = setup.file(ROOT, "file");
    for _ in 0..20_000 {
        setup.lookup(ROOT, "file").unwrap();
    }
    let len: usize = ledger.logs.iter().map(|log| log.lock().len()).sum();
    assert!(len < 200_000, "{len} bytes");
    let setup = taken_over(setup, &ledger);
    setup.fs.forget(file.ino, 20_000);
    assert!(setup.fs.get_attr(file.ino).is_ok());
    setup.fs.forget(file.ino, 1);
    assert!(setup.fs.get_attr(file.ino).is_err());
}
