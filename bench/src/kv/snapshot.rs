//! A snapshot held while everything is overwritten: what it costs in rate and space while it is
//! held, that it still shows what it showed, and what comes back when it is dropped.

use super::Workload;
use super::walk::walk;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use crate::side::Write;
use crate::values::mix;
use anyhow::Result;

const KEY_BYTES: u64 = 8;
const ROW_BYTES: u64 = 1024;
const VALUE_BYTES: usize = (ROW_BYTES - KEY_BYTES) as usize;
/// The data is this part of what other workloads load: it is written three times.
const SHARE: u64 = 4;

pub(super) fn workload() -> Workload {
    Workload::new(
        "snapshot",
        "a snapshot held while all rows are overwritten",
        run,
    )
}

fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let count = (context.scale().bytes / SHARE / ROW_BYTES).max(1);
    context.open(2 * count * ROW_BYTES, ROW_BYTES)?;
    // Without a limit of time: the snapshot is to show every row.
    context.without_cap();
    context.set_live_bytes(count * ROW_BYTES);
    context.phase("load", Work::Load, count, |bench, record| {
        put_all(bench, record, count, 0)
    })?;
    context.phase("overwrite", Work::Load, count, |bench, record| {
        put_all(bench, record, count, 0)
    })?;
    {
        let side = context.side();
        let view = side.snapshot()?;
        context.phase("overwrite-held", Work::Load, count, |bench, record| {
            put_all(bench, record, count, 1)
        })?;
        context.phase("scan-held", Work::Read, count, |bench, record| {
            let is_right = |key: &[u8], value: &[u8]| {
                let key = key.try_into().map(u64::from_be_bytes).unwrap_or(0);
                bench.values.is_value(key, VALUE_BYTES, value)
            };
            walk(
                record,
                (count, ROW_BYTES),
                |rows| view.scan(&[], rows),
                is_right,
            )
        })?;
    }
    context.phase("dropped", Work::Load, 0, |_, _| Ok(()))
}

/// Puts every row, in random order; `version` tells its value from earlier ones.
fn put_all(bench: &Bench<'_>, record: &mut Recorder<'_>, count: u64, version: u64) -> Result<u64> {
    let mut done = 0;
    while done < count && !record.is_over() {
        let key = mix(done);
        let bytes = key.to_be_bytes();
        let value = bench.values.value(key ^ version, VALUE_BYTES);
        let writes = [Write::Put(&bytes, value)];
        record.time(Op::Put, (1, ROW_BYTES), || bench.side.write(&writes, false))?;
        done += 1;
    }
    Ok(done)
}
