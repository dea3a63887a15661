//! Files that are read in order, and at random, by the device's own counters.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use stitchfs::fs::{File, Files};
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
fn who_reads_in_order_reads_each_block_once_in_few_calls() {
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
fn who_reads_here_and_there_reads_nothing_else() {
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
