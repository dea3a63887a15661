//! Random histories of mainline, snapshots, clones and transactions, beside plain copies.
//!
//! Each view has a [`Plain`] copy: a tree of nodes in memory, cloned whole where the file system
//! branches. Every operation is done on both. Views are compared whole at random moments and after
//! each reopening: names, attributes, times, contents, extended attributes.
//!
//! ```text
//! mainline   ops -> plain copy           snapshot   a clone of mainline's copy, never changed
//! clone      ops -> its plain copy       rollback   the rows of the snapshot's copy come back,
//!                                                   in mainline and in clones
//! transaction: ops -> its plain copy, and kept; a commit does them again on mainline's copy
//! ```
//!
//! `STITCH_SEEDS=from..to` runs other seeds.

mod clones;
mod compare;
mod ops;
mod pasts;
mod plain;
mod rollbacks;
mod works;
mod world;

use crate::common::*;
use std::ops::Range;
use world::{Counts, World};

const STEPS: u64 = 1000;

/// The seeds of a test, unless the environment names others.
fn seeds(of_test: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("STITCH_SEEDS") else {
        return of_test;
    };
    let (from, to) = text.split_once("..").expect("from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn run(seed: u64) -> Counts {
    let mut world = World::new(seed, setup());
    for _ in 0..STEPS {
        world.step();
    }
    world.end()
}

#[test]
fn each_view_is_its_plain_copy() {
    let mut all = Counts::default();
    let seeds = seeds(1..9);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        all.add(run(seed));
    }
    println!("{count} seeds: {all:?}");
    let least = all.least();
    assert!(least >= count, "something hardly ever happens: {all:?}");
}
