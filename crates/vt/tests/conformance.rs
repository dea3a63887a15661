//! The conformance suite, under several sets of options.

mod common;

use common::Setup;
use stitch_kv::conformance::{CHECKS, run_one};

const KIB: u64 = 1 << 10;

fn run_all(setup: &Setup) {
    for (name, _) in CHECKS {
        println!("{name}");
        if std::env::var("ONE").is_ok_and(|one| one != *name) {
            continue;
        }
        run_one(setup, name);
    }
}

#[test]
fn as_it_comes() {
    run_all(&Setup::default());
}

#[test]
fn tiny_memtables_with_threads() {
    run_all(&Setup::sized(16 * KIB, 32 * KIB, true));
}

#[test]
fn tiny_memtables_without_threads() {
    run_all(&Setup::sized(16 * KIB, 32 * KIB, false));
}

#[test]
fn values_written_at_once() {
    run_all(&Setup::sized(16 * KIB, 32 * KIB, false).direct(300));
}

/// Runs all with a threshold: from a tree that copies nothing that does not overlap to a plain
/// LSM-tree. Each is a test, so that two of them run at once.
fn run_all_with_threshold(bytes_min: u64) {
    run_all(&Setup::sized(16 * KIB, 32 * KIB, false).stitching(bytes_min));
}

#[test]
fn stitching_whatever_does_not_overlap() {
    run_all_with_threshold(0);
}

#[test]
fn stitching_from_a_block_on() {
    run_all_with_threshold(4 * KIB);
}

#[test]
fn stitching_from_many_blocks_on() {
    run_all_with_threshold(64 * KIB);
}

#[test]
fn stitching_nothing() {
    run_all_with_threshold(u64::MAX);
}

#[test]
fn absorbs_that_move_tables() {
    run_all(&Setup::sized(16 * KIB, 32 * KIB, false).moving());
}

#[test]
fn absorbs_that_move_tables_with_threads() {
    run_all(&Setup::sized(16 * KIB, 32 * KIB, true).moving());
}
