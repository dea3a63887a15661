//! Requests and bytes that programs cost which read a cold store: a tree that is listed, searched
//! and packed, a long file in order, and eight files at once. By the device's own counters.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use stitchfs::fs::{Dir, File, FileKind, Files};
use stitchfs::{MakeOptions, StoreOptions};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4096;
const DIRS: u64 = 400;
const FILES: u64 = 10;
const READERS: u64 = 8;
const LONG_BYTES: u64 = 12 * MIB;

fn options() -> StoreOptions {
    StoreOptions {
        memory_bytes: 512 << 20,
        ..StoreOptions::default()
    }
}

/// Returns bytes of file `number`, in whole chunks but for the last: those of a chunk are equal.
fn contents(number: u64, offset: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for start in (offset..offset + len).step_by(4096) {
        let byte = (start / CHUNK * 31 + number * 101).to_le_bytes()[0];
        let end = (start + CHUNK).min(offset + len) - offset;
        out.resize(usize::try_from(end).unwrap(), byte);
    }
    out
}

fn make(path: &Path) -> Files {
    let make = MakeOptions {
        len_bytes: Some(384 << 20),
        ..MakeOptions::default()
    };
    Files::create(path, &make, &options()).unwrap()
}

/// A store with a tree of 400 directories with short files, each directory in another one.
fn make_tree(path: &Path) {
    let files = make(path);
    for dir in 0..DIRS {
        let way = std::iter::successors(Some(dir), |at| (*at > 0).then(|| (at - 1) / 8));
        let mut way: Vec<_> = way.map(|at| format!("dir{at}")).collect();
        way.reverse();
        let name = way.join("/");
        files.root().make_dir(&name).unwrap();
        let folder = files.root().open_dir(&name).unwrap();
        for number in 0..FILES {
            let file = folder.create(format!("file{number}")).unwrap();
            let len = 5000 + (dir * 7 + number * 13) % 9 * 1500;
            file.write_at(&contents(number, 0, len), 0).unwrap();
        }
    }
    files.close().unwrap();
}

/// Requests to read, and data blocks that were read, since `before`.
fn costs(files: &Files, before: (u64, u64)) -> (u64, u64) {
    let all = files.store().counters();
    let counter = |name: &str| all.iter().find(|(other, _)| other == name).unwrap().1;
    let (reads, blocks) = (counter("device.reads"), counter("vt.data_blocks_read"));
    (reads - before.0, blocks - before.1)
}

/// Runs a program over a cold store and returns its costs, and what it returns.
fn cold<T>(path: &Path, program: impl FnOnce(&Files) -> T) -> ((u64, u64), T) {
    let files = Files::open(path, &options()).unwrap();
    let before = costs(&files, (0, 0));
    let out = program(&files);
    let costs = costs(&files, before);
    files.close().unwrap();
    (costs, out)
}

/// Visits all files below a directory in the order of listing. Returns the number of entries.
fn walk(dir: &Dir, visit: &mut impl FnMut(&File, u64)) -> u64 {
    let mut count = 0;
    for entry in dir.entries(".").unwrap() {
        let entry = entry.unwrap();
        count += 1;
        if entry.attr.kind == FileKind::Directory {
            count += walk(&dir.open_dir(entry.name()).unwrap(), visit);
        } else {
            visit(&dir.open(entry.name()).unwrap(), entry.attr.size);
        }
    }
    count
}

/// Reads a file by requests of this length. Returns the number of its blocks.
fn read_by(file: &File, size: u64, len: u64) -> u64 {
    let mut out = Vec::new();
    for offset in (0..size).step_by(usize::try_from(len).unwrap()) {
        file.read_at(offset, usize::try_from(len).unwrap(), &mut out)
            .unwrap();
    }
    assert_eq!(out.len() as u64, size);
    size.div_ceil(CHUNK)
}

#[test]
fn a_cold_tree_is_listed_searched_and_packed_by_few_requests() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    make_tree(&path);
    let entries = DIRS + DIRS * FILES;

    let ((reads, _), count) = cold(&path, |files| walk(&files.root(), &mut |_, _| {}));
    assert_eq!(count, entries);
    assert!(reads <= 80, "{reads} to list {entries} entries");

    for (name, len) in [("grep", 96 << 10), ("tar", 10 << 10)] {
        let ((reads, blocks), least) = cold(&path, |files| {
            let mut least = 0;
            walk(&files.root(), &mut |file, size| {
                least += read_by(file, size, len)
            });
            least
        });
        assert!(reads <= 3 * DIRS, "{name}: {reads} for {DIRS} directories");
        assert!(blocks <= least + least / 50, "{name}: {blocks} for {least}");
    }
}

#[test]
fn a_cold_file_in_order_is_read_once_in_few_requests() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let files = make(&path);
    let file = files.root().create("long").unwrap();
    for at in 0..64 {
        file.write_at(&contents(0, at * MIB, MIB), at * MIB)
            .unwrap();
    }
    drop(file);
    files.close().unwrap();
    drop(files);
    for len in [128 << 10, MIB] {
        let ((reads, blocks), ()) = cold(&path, |files| {
            read_by(&files.root().open("long").unwrap(), 64 * MIB, len);
        });
        assert!(reads <= 100, "{reads} by {len}");
        assert!(blocks <= 64 * MIB / CHUNK + 16, "{blocks} by {len}");
    }
}

/// Each of eight readers in turn reads the next part of a file of its own. Regression: what there
/// was no memory for was never asked for again, and two of three requests were reads of their own.
#[test]
fn eight_readers_at_once_read_each_block_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let files = make(&path);
    for number in 0..READERS {
        let file = files.root().create(format!("long{number}")).unwrap();
        for at in 0..LONG_BYTES / MIB {
            file.write_at(&contents(number, at * MIB, MIB), at * MIB)
                .unwrap();
        }
    }
    files.close().unwrap();
    drop(files);
    for len in [128 << 10, MIB] {
        let ((reads, blocks), ()) = cold(&path, |files| {
            let open = |number| files.root().open(format!("long{number}")).unwrap();
            let all: Vec<_> = (0..READERS).map(open).collect();
            for offset in (0..LONG_BYTES).step_by(usize::try_from(len).unwrap()) {
                for (file, number) in all.iter().zip(0..) {
                    let mut out = Vec::new();
                    file.read_at(offset, usize::try_from(len).unwrap(), &mut out)
                        .unwrap();
                    assert!(out == contents(number, offset, len), "{number} at {offset}");
                }
            }
        });
        let least = READERS * LONG_BYTES;
        assert!(blocks <= least / CHUNK + 16, "{blocks} by {len}");
        // Pieces of a megabyte, but for the first requests of each.
        assert!(reads <= least / MIB * 2, "{reads} by {len}");
    }
}
