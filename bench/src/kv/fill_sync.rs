//! fill-sync: each put is durable before the next; 116-byte records. By one thread, and by eight
//! that share the store.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section 5.

use super::Workload;
use super::fill::KEY_BYTES;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder, by_threads};
use crate::side::Write;
use crate::values::{decimal_key, mix};
use anyhow::Result;

const VALUE_BYTES: usize = 100;
const ROW_BYTES: u64 = KEY_BYTES + VALUE_BYTES as u64;
const THREADS: [u64; 2] = [1, 8];
/// One record in this many of what the other workloads of small rows write.
const PUTS_SHARE: u64 = 64;

pub(super) fn workload() -> Workload {
    Workload {
        is_append: true,
        ..Workload::new(
            "fill-sync",
            "116 B records, each synced, by 1 and by 8 threads",
            run,
        )
    }
}

fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let count = (context.scale().small_bytes / ROW_BYTES / PUTS_SHARE).max(THREADS[1]);
    context.open(count * ROW_BYTES * 16, ROW_BYTES)?;
    let mut done = 0;
    for threads in THREADS {
        let puts = count * threads;
        let name = format!("threads-{threads}");
        done += context.phase(&name, Work::Load, puts, |bench, record| {
            put_all(bench, record, threads, done..done + puts)
        })?;
        context.last().live_bytes = done * ROW_BYTES;
    }
    Ok(())
}

/// Puts these records, each thread an equal part. Returns their number.
fn put_all(
    bench: &Bench<'_>,
    record: &mut Recorder<'_>,
    threads: u64,
    ids: std::ops::Range<u64>,
) -> Result<u64> {
    let before = record.ops();
    let each = (ids.end - ids.start) / threads;
    by_threads(record, threads, |thread, record| {
        let first = ids.start + thread * each;
        put_synced(bench, record, first..first + each, VALUE_BYTES).map(drop)
    })?;
    Ok(record.ops() - before)
}

/// Puts these records, each synced, until the time is over. Returns their number.
pub(super) fn put_synced(
    bench: &Bench<'_>,
    record: &mut Recorder<'_>,
    ids: std::ops::Range<u64>,
    value_bytes: usize,
) -> Result<u64> {
    let before = record.ops();
    let row_bytes = KEY_BYTES + value_bytes as u64;
    for id in ids {
        if record.is_over() {
            break;
        }
        let key = decimal_key(mix(id) % 10_000_000_000_000_000);
        let writes = [Write::Put(&key, bench.values.value(id, value_bytes))];
        record.time(Op::Put, (1, row_bytes), || bench.side.write(&writes, true))?;
    }
    Ok(record.ops() - before)
}
