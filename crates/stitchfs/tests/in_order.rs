//! Files that are read in order, and at random, by the device's own counters.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use stitchfs::fs::{Dir, File, FileKind, Files};
use stitchfs::{MakeOptions, StoreOptions};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4096;

fn options() -> StoreOptions {
    StoreOptions {
        memory_bytes: 512 << 20,
        ..StoreOptions::default()
    }
}

fn byte(at: u64, life: u64) -> u8 {
    ((at / 509) * 31 + at + life * 101).to_le_bytes()[0]
}

fn bytes(offset: u64, len: u64, life: u64) -> Vec<u8> {
    (offset..offset + len).map(|at| byte(at, life)).collect()
}

/// A store in a file, closed, with a file of `len` bytes in it.
fn made(path: &Path, len: u64) {
    let make = MakeOptions {
        len_bytes: Some(256 << 20),
        ..MakeOptions::default()
    };
    let files = Files::create(path, &make, &options()).unwrap();
    let file = files.root().create("large").unwrap();
    for offset in (0..len).step_by(1 << 20) {
        file.write_at(&bytes(offset, MIB.min(len - offset), 0), offset)
            .unwrap();
    }
    files.close().unwrap();
}

fn opened(path: &Path) -> (Files, File) {
    let files = Files::open(path, &options()).unwrap();
    let file = files.root().open("large").unwrap();
    (files, file)
}

fn counter(files: &Files, name: &str) -> u64 {
    let all = files.store().counters();
    let found = all.iter().find(|(counter, _)| counter == name);
    found.unwrap_or_else(|| panic!("{name} in {all:?}")).1
}

#[test]
fn reads_in_order_read_each_block_once_in_few_calls() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let len = 24 * MIB + 12_345;
    made(&path, len);
    for piece in [64 << 10, 300_000, 1 << 20] {
        let (files, file) = opened(&path);
        let reads = counter(&files, "device.reads");
        let mut out = Vec::new();
        for offset in (0..len).step_by(piece) {
            out.clear();
            let read = file.read_at(offset, piece, &mut out).unwrap();
            assert_eq!(read as u64, (len - offset).min(piece as u64));
            assert!(out == bytes(offset, read as u64, 0), "{piece} at {offset}");
        }
        let blocks = counter(&files, "vt.data_blocks_read");
        assert!(
            blocks <= len / CHUNK + 64,
            "{blocks} for {len} bytes by {piece}"
        );
        let reads = counter(&files, "device.reads") - reads;
        assert!(reads < 200, "{reads} by {piece}");
        files.close().unwrap();
    }
}

#[test]
fn reads_here_and_there_read_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    made(&path, 24 * MIB);
    for len in [CHUNK, 2 * CHUNK] {
        let (files, file) = opened(&path);
        let mut at = 1u64;
        let mut out = Vec::new();
        for _ in 0..500 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (at >> 33) % (24 * MIB / len) * len;
            out.clear();
            file.read_at(offset, usize::try_from(len).unwrap(), &mut out)
                .unwrap();
            assert!(out == bytes(offset, len, 0), "{len} at {offset}");
        }
        let blocks = counter(&files, "vt.data_blocks_read");
        assert!(blocks <= 500 * len / CHUNK, "{blocks} blocks");
        files.close().unwrap();
    }
}

#[test]
fn what_is_written_while_a_file_is_read_in_order_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let len = 16 * MIB;
    made(&path, len);
    let (files, file) = opened(&path);
    let piece = 256 << 10;
    let mut out = Vec::new();
    for offset in (0..len).step_by(piece) {
        out.clear();
        file.read_at(offset, piece, &mut out).unwrap();
        let old = if offset.is_multiple_of(MIB) && offset > 0 {
            1
        } else {
            0
        };
        assert!(out == bytes(offset, piece as u64, old), "at {offset}");
        // What comes next was read ahead, and is written over.
        let next = (offset + 1).next_multiple_of(MIB);
        if next < len {
            file.write_at(&bytes(next, piece as u64, 1), next).unwrap();
        }
    }
    // A part that was asked for ahead is cut off, and comes back as zeros.
    let half = 2 * MIB;
    for offset in (0..half).step_by(piece) {
        file.read_at(offset, piece, &mut Vec::new()).unwrap();
    }
    file.set_len(half).unwrap();
    file.set_len(half + MIB).unwrap();
    out.clear();
    file.read_at(half, 1 << 20, &mut out).unwrap();
    assert!(out.iter().all(|byte| *byte == 0), "zeros");
    files.close().unwrap();
}

const DIRS: u64 = 48;
const FILES: u64 = 10;

fn file_len(dir: u64, number: u64) -> u64 {
    5000 + (dir * 7 + number * 13) % 9 * 1500
}

/// A store with a tree of short files, closed.
fn made_tree(path: &Path) {
    made_dirs(path, (0..DIRS).map(|dir| format!("dir{dir}")));
}

/// A store with directories of short files, closed.
fn made_dirs(path: &Path, names: impl Iterator<Item = String>) {
    let make = MakeOptions {
        len_bytes: Some(256 << 20),
        ..MakeOptions::default()
    };
    let files = Files::create(path, &make, &options()).unwrap();
    for (dir, name) in (0..).zip(names) {
        files.root().make_dir(&name).unwrap();
        let folder = files.root().open_dir(&name).unwrap();
        for number in 0..FILES {
            let file = folder.create(format!("file{number}")).unwrap();
            let len = file_len(dir, number);
            file.write_at(&bytes(0, len, dir + number), 0).unwrap();
        }
    }
    files.close().unwrap();
}

fn read_whole(files: &Files, dir: u64, number: u64) {
    let folder = files.root().open_dir(format!("dir{dir}")).unwrap();
    let file = folder.open(format!("file{number}")).unwrap();
    let (len, mut out) = (file_len(dir, number), Vec::new());
    file.read_at(0, 1 << 20, &mut out).unwrap();
    assert!(out == bytes(0, len, dir + number), "{dir}/{number}");
}

#[test]
fn files_of_a_directory_are_read_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    made_tree(&path);
    for is_upward in [true, false] {
        let files = Files::open(&path, &options()).unwrap();
        let reads = counter(&files, "device.reads");
        for at in 0..DIRS * FILES {
            let at = if is_upward { at } else { DIRS * FILES - 1 - at };
            read_whole(&files, at / FILES, at % FILES);
        }
        let reads = counter(&files, "device.reads") - reads;
        assert!(reads < DIRS * 3, "{reads} for {DIRS} directories");
        files.close().unwrap();
    }
}

#[test]
fn a_file_here_and_there_reads_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    made_tree(&path);
    let files = Files::open(&path, &options()).unwrap();
    let blocks = counter(&files, "vt.data_blocks_read");
    let mut least = 0;
    for at in 0..DIRS {
        read_whole(&files, at, at % FILES);
        least += file_len(at, at % FILES).div_ceil(CHUNK);
    }
    let blocks = counter(&files, "vt.data_blocks_read") - blocks;
    // Beside them those with names.
    assert!(blocks <= least + 2 * DIRS, "{blocks} for {least}");
    files.close().unwrap();
}

/// Reads all files below a directory in the order of listing, and answers their blocks.
fn read_below(dir: &Dir) -> u64 {
    let mut blocks = 0;
    for entry in dir.entries(".").unwrap() {
        let entry = entry.unwrap();
        if entry.attr.kind == FileKind::Directory {
            blocks += read_below(&dir.open_dir(entry.name()).unwrap());
            continue;
        }
        let mut out = Vec::new();
        let file = dir.open(entry.name()).unwrap();
        file.read_at(0, 1 << 20, &mut out).unwrap();
        assert_eq!(out.len() as u64, entry.attr.size);
        blocks += entry.attr.size.div_ceil(CHUNK);
    }
    blocks
}

/// What lay around each directory was read, and where there is little memory most of it more than
/// once.
#[test]
fn a_tree_that_is_read_in_the_order_of_listing_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    // Five levels, eight directories in each directory of the first ones.
    let name = |number: u64| {
        let way = std::iter::successors(Some(number), |at| (*at > 0).then(|| (at - 1) / 8));
        let mut way: Vec<_> = way.map(|at| format!("dir{at}")).collect();
        way.reverse();
        way.join("/")
    };
    made_dirs(&path, (0..800).map(name));
    let options = StoreOptions {
        memory_bytes: 96 << 20,
        ..options()
    };
    let files = Files::open(&path, &options).unwrap();
    let (reads, blocks) = (
        counter(&files, "device.reads"),
        counter(&files, "vt.data_blocks_read"),
    );
    let least = read_below(&files.root());
    let reads = counter(&files, "device.reads") - reads;
    let blocks = counter(&files, "vt.data_blocks_read") - blocks;
    assert!(
        blocks <= least + least / 8,
        "{blocks} blocks read, {least} wanted, in {reads} reads"
    );
    // Separate extents, of which one request reads several.
    assert!(reads <= 800 * 4, "{reads} for 800 directories");
    files.close().unwrap();
}

#[test]
fn what_is_written_after_it_was_read_ahead_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    made_tree(&path);
    let files = Files::open(&path, &options()).unwrap();
    for dir in 0..DIRS {
        for number in 0..3 {
            read_whole(&files, dir, number);
        }
        let folder = files.root().open_dir(format!("dir{dir}")).unwrap();
        for number in 3..FILES {
            let file = folder.open(format!("file{number}")).unwrap();
            let len = file_len(dir, number);
            match number % 3 {
                0 => file.write_at(&bytes(0, len, 99), 0).unwrap(),
                1 => file.set_len(len / 2).unwrap(),
                _ => continue,
            };
            let mut out = Vec::new();
            file.read_at(0, 1 << 20, &mut out).unwrap();
            let expected = match number % 3 {
                0 => bytes(0, len, 99),
                _ => bytes(0, len / 2, dir + number),
            };
            assert!(out == expected, "{dir}/{number}");
        }
        read_whole(&files, dir, 5);
    }
    files.close().unwrap();
}

/// Buffers of programs are no multiple of a block: `tar` has 10 KiB. What is begun of a block is
/// not written to its place, from where it would be read again for the rest.
#[test]
fn what_is_written_by_buffers_is_not_read_again() {
    const LEN: u64 = 40 * MIB;
    let dir = tempfile::tempdir().unwrap();
    for buffer in [2048, 6144, 10_240, 18_432] {
        let path = dir.path().join(format!("{buffer}"));
        made(&path, 0);
        let little = StoreOptions {
            memory_bytes: 32 << 20,
            ..options()
        };
        let files = Files::open(&path, &little).unwrap();
        let file = files.root().open("large").unwrap();
        let grown = |name: &str, before: u64| counter(&files, name) - before;
        let names = ["vt.data_blocks_read", "vt.direct_bytes", "vt.write_outs"];
        let before = names.map(|name| counter(&files, name));
        let mut written = 0;
        while written < LEN {
            file.write_at(&bytes(written, buffer, 0), written).unwrap();
            written += buffer;
        }
        files.sync().unwrap();
        assert!(grown(names[2], before[2]) > 0, "something was written out");
        assert_eq!(grown(names[0], before[0]), 0, "by {buffer}");
        // Whole blocks are in place at once, as far as a write has any.
        let whole = buffer / CHUNK * CHUNK;
        let direct = grown(names[1], before[1]);
        assert!(
            direct * buffer >= written * whole / 5 * 4,
            "{direct} of {written} by {buffer}"
        );
        let mut out = Vec::new();
        file.read_at(written / 2, 1 << 20, &mut out).unwrap();
        assert_eq!(out, bytes(written / 2, 1 << 20, 0));
        files.close().unwrap();
    }
}
