//! Reads of a tree, through one branch of it, and through a chain of eight: what a branch costs who
//! reads through it. Every branch has written some rows anew.

use super::Workload;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use crate::side::{Side, Write};
use crate::values::mix;
use anyhow::{Result, ensure};
use std::sync::Arc;
use stitch_base::random::Rng;

const KEY_BYTES: u64 = 8;
const VALUE_BYTES: usize = 100;
const ROW_BYTES: u64 = KEY_BYTES + VALUE_BYTES as u64;
/// Branches between the reader and the tree.
const DEPTHS: [usize; 3] = [0, 1, 8];
/// A branch writes one of so many rows.
const SHARE: u64 = 32;
/// Gets of a phase, for each row.
const GETS_SHARE: u64 = 4;

pub(super) fn workload() -> Workload {
    Workload {
        is_ours_only: true,
        ..Workload::new(
            "branch-reads",
            "gets and a scan of a tree, through one branch and through eight",
            run,
        )
    }
}

fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let rows = (context.scale().small_bytes / ROW_BYTES).max(SHARE);
    context.open(4 * rows * ROW_BYTES, ROW_BYTES)?;
    context.set_live_bytes(rows * ROW_BYTES);
    context.without_cap();
    context.phase("load", Work::Load, rows, |bench, record| {
        put(bench, bench.side, record, 0..rows)
    })?;
    let mut sides: Vec<Arc<dyn Side>> = vec![context.side()];
    context.phase("branch", Work::Load, 0, |bench, record| {
        for depth in 1..=DEPTHS[2] as u64 {
            let branch = sides[sides.len() - 1].branch()?;
            let ids = (0..rows / SHARE).map(|n| (n * SHARE + depth) % rows);
            put(bench, branch.as_ref(), record, ids)?;
            sides.push(branch);
        }
        Ok(())
    })?;
    let seed = context.seed();
    for depth in DEPTHS {
        let side = &sides[depth];
        context.phase(
            &format!("get-{depth}"),
            Work::Read,
            rows / GETS_SHARE,
            |bench, record| get(bench, side.as_ref(), record, (rows, seed)),
        )?;
        context.phase(&format!("scan-{depth}"), Work::Read, rows, |_, record| {
            let mut seen = 0;
            record.time(Op::Scan, (rows, rows * ROW_BYTES), || {
                side.scan(&[], &mut |_, _| {
                    seen += 1;
                    true
                })
            })?;
            ensure!(seen == rows, "{seen} of {rows} rows are there");
            Ok(())
        })?;
    }
    Ok(())
}

fn key(id: u64) -> [u8; 8] {
    mix(id).to_be_bytes()
}

fn put(
    bench: &Bench<'_>,
    side: &dyn Side,
    record: &mut Recorder<'_>,
    ids: impl Iterator<Item = u64>,
) -> Result<()> {
    for id in ids {
        let key = key(id);
        let writes = [Write::Put(&key, bench.values.value(id, VALUE_BYTES))];
        record.time(Op::Put, (1, ROW_BYTES), || side.write(&writes, false))?;
    }
    Ok(())
}

fn get(
    bench: &Bench<'_>,
    side: &dyn Side,
    record: &mut Recorder<'_>,
    (rows, seed): (u64, u64),
) -> Result<()> {
    let mut rng = Rng::new(seed);
    for _ in 0..rows / GETS_SHARE {
        let (id, mut is_right) = (rng.below(rows), false);
        let found = record.time(Op::Get, (1, ROW_BYTES), || {
            side.get(&key(id), &mut |found| {
                is_right = bench.values.is_value(id, VALUE_BYTES, found);
            })
        })?;
        ensure!(found && is_right, "row {id} is lost or has a wrong value");
    }
    Ok(())
}
