//! Transactions that read and put random rows: of 1, 10 and 1,000 rows; by one thread and by four
//! on rows apart; and one of a million rows.
//!
//! Commits are not synced, as puts in other workloads: they survive a killed process. A row that is
//! put was read in the same transaction, so that each store has to find out whether another was
//! first.

use super::Workload;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder, by_threads};
use crate::side::{Steps, Write};
use crate::values::mix;
use anyhow::{Result, ensure};
use stitch_base::random::Rng;

const KEY_BYTES: u64 = 8;
const VALUE_BYTES: usize = 100;
const ROW_BYTES: u64 = KEY_BYTES + VALUE_BYTES as u64;
/// Rows of the transactions of a phase.
const SIZES: [u64; 3] = [1, 10, 1_000];
const THREADS: [u64; 2] = [1, 4];
/// Rows of the transactions by threads.
const THREAD_SIZE: u64 = 10;
/// Each phase changes one of so many rows.
const SHARE: u64 = 8;
const MILLION: u64 = 1_000_000;
/// Rows that a load writes at once.
const LOAD_ROWS: u64 = 1_000;

pub(super) fn workloads() -> [Workload; 2] {
    [
        Workload {
            is_of_transactions: true,
            ..Workload::new(
                "transactions",
                "transactions of 1, 10 and 1,000 rows that are read and put; by 4 threads",
                run,
            )
        },
        Workload {
            is_of_transactions: true,
            ..Workload::new(
                "transactions-million",
                "a million rows put in one transaction",
                run_million,
            )
        },
    ]
}

fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let rows = (context.scale().small_bytes / ROW_BYTES).max(SIZES[2]);
    context.open(3 * rows * ROW_BYTES, ROW_BYTES)?;
    context.set_live_bytes(rows * ROW_BYTES);
    // Later phases need all rows.
    context.without_cap();
    context.phase("load", Work::Load, rows, |bench, record| {
        load(bench, record, rows)
    })?;
    let seed = context.seed();
    for size in SIZES {
        let count = (rows / SHARE / size).max(1);
        let name = format!("rows-{size}");
        context.phase(&name, Work::Load, count, |bench, record| {
            let mut rng = Rng::new(seed ^ size);
            change(bench, record, (count, size), |_| rng.below(rows))
        })?;
    }
    for threads in THREADS {
        let count = (rows / SHARE / THREAD_SIZE / threads).max(1);
        let name = format!("threads-{threads}");
        context.phase(&name, Work::Load, count * threads, |bench, record| {
            by_threads(record, threads, |thread, record| {
                let mut rng = Rng::new(seed ^ mix(threads << 8 | thread));
                let part = rows / threads;
                let own = |_| thread * part + rng.below(part);
                change(bench, record, (count, THREAD_SIZE), own)
            })
        })?;
    }
    Ok(())
}

fn key(id: u64) -> [u8; 8] {
    mix(id).to_be_bytes()
}

fn load(bench: &Bench<'_>, record: &mut Recorder<'_>, rows: u64) -> Result<()> {
    let mut done = 0;
    while done < rows && !record.is_over() {
        let ids: Vec<u64> = (done..rows.min(done + LOAD_ROWS)).collect();
        let keys: Vec<[u8; 8]> = ids.iter().map(|id| key(*id)).collect();
        let values = ids.iter().map(|id| bench.values.value(*id, VALUE_BYTES));
        let pairs = keys.iter().zip(values);
        let writes: Vec<Write<'_>> = pairs.map(|(key, value)| Write::Put(key, value)).collect();
        let count = ids.len() as u64;
        let size = (count, count * ROW_BYTES);
        record.time(Op::Put, size, || bench.side.write(&writes, false))?;
        done += count;
    }
    Ok(())
}

/// Runs transactions that each read rows and put them again. One that another was in the way of is
/// run again.
fn change(
    bench: &Bench<'_>,
    record: &mut Recorder<'_>,
    (count, size): (u64, u64),
    mut next: impl FnMut(u64) -> u64,
) -> Result<()> {
    for _ in 0..count {
        if record.is_over() {
            break;
        }
        let ids: Vec<u64> = (0..size).map(&mut next).collect();
        record.time(Op::Rmw, (1, size * ROW_BYTES), || {
            let body = &mut |steps: &mut dyn Steps| change_rows(bench, steps, &ids);
            while !bench.side.transact(body)? {}
            Ok::<_, anyhow::Error>(())
        })?;
    }
    Ok(())
}

fn change_rows(bench: &Bench<'_>, steps: &mut dyn Steps, ids: &[u64]) -> Result<()> {
    for id in ids {
        let (key, mut is_right) = (key(*id), false);
        let value = bench.values.value(*id, VALUE_BYTES);
        let found = steps.get(&key, &mut |found| {
            is_right = bench.values.is_value(*id, VALUE_BYTES, found);
        })?;
        ensure!(found && is_right, "row {id} is lost or has a wrong value");
        steps.put(&key, value)?;
    }
    Ok(())
}

fn run_million(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let rows = (context.scale().small_bytes / ROW_BYTES).clamp(1, MILLION);
    context.open(4 * rows * ROW_BYTES, ROW_BYTES)?;
    context.set_live_bytes(rows * ROW_BYTES);
    context.without_cap();
    context.phase("one", Work::Load, rows, |bench, record| {
        record.time(Op::Put, (rows, rows * ROW_BYTES), || {
            let is_committed = bench.side.transact(&mut |steps| {
                let mut ids = 0..rows;
                ids.try_for_each(|id| steps.put(&key(id), bench.values.value(id, VALUE_BYTES)))
            })?;
            ensure!(is_committed, "there is no other writer");
            Ok(())
        })
    })?;
    context.phase("get", Work::Read, 1_000, |bench, record| {
        let mut rng = Rng::new(7);
        for _ in 0..1_000 {
            let (id, mut is_right) = (rng.below(rows), false);
            let found = record.time(Op::Get, (1, ROW_BYTES), || {
                bench.side.get(&key(id), &mut |found| {
                    is_right = bench.values.is_value(id, VALUE_BYTES, found);
                })
            })?;
            ensure!(found && is_right, "row {id} is lost or has a wrong value");
        }
        Ok(())
    })
}
