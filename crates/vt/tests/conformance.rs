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

/// From a tree that copies nothing that does not overlap to a plain LSM-tree.
#[test]
fn every_stitching_threshold() {
    for bytes_min in [0, 4 * KIB, 64 * KIB, u64::MAX] {
        println!("threshold {bytes_min}");
        run_all(&Setup::sized(16 * KIB, 32 * KIB, false).stitching(bytes_min));
    }
}
