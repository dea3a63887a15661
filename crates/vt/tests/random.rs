//! Random operations against the model, on stores so small that everything happens often.
//! `VT_SEEDS=from..to` runs other seeds.

mod common;

use common::Setup;
use stitch_kv::conformance::random::{Params, run};

const KIB: u64 = 1 << 10;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("VT_SEEDS") else {
        return 0..6;
    };
    let (from, to) = text.split_once("..").expect("from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn params(seed: u64) -> Params {
    Params {
        ops: 3000,
        keys: [40, 400, 4000][usize::try_from(seed % 3).expect("small")],
        value_bytes: [60, 600, 3000][usize::try_from(seed / 3 % 3).expect("small")],
        settle_one_in: 150,
        reopen_one_in: 300,
        ..Params::new(seed)
    }
}

#[test]
fn without_threads() {
    for seed in seeds() {
        run(&Setup::sized(8 * KIB, 16 * KIB, false), params(seed));
    }
}

#[test]
fn with_threads() {
    for seed in seeds() {
        run(&Setup::sized(32 * KIB, 24 * KIB, true), params(seed));
    }
}

#[test]
fn with_large_memtables() {
    for seed in seeds() {
        run(&Setup::default(), params(seed));
    }
}

/// Values of several blocks' length are in every other batch.
fn long_values(seed: u64) -> Params {
    Params {
        value_bytes: [600, 3000, 9000][usize::try_from(seed % 3).expect("small")],
        ..params(seed)
    }
}

#[test]
fn with_values_written_at_once() {
    for seed in seeds() {
        let setup = Setup::sized(8 * KIB, 16 * KIB, false).direct(300);
        run(&setup, long_values(seed));
    }
}

#[test]
fn with_values_written_at_once_and_threads() {
    for seed in seeds() {
        let setup = Setup::sized(32 * KIB, 24 * KIB, true).direct(2 * KIB);
        run(&setup, long_values(seed));
    }
}

#[test]
fn with_every_stitching_threshold() {
    for (seed, bytes_min) in seeds().zip([0, 4 * KIB, 64 * KIB, u64::MAX].into_iter().cycle()) {
        let setup = Setup::sized(8 * KIB, 16 * KIB, false).stitching(bytes_min);
        run(&setup, params(seed));
    }
}
