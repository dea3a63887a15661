//! fill-seq and fill-random: 16-byte keys, values of 1 to 200 bytes.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section 5.

use super::Workload;
use crate::context::{Context, Work};
use crate::measure::Op;
use crate::side::Write;
use crate::values::{decimal_key, mix};
use anyhow::Result;

pub(super) const KEY_BYTES: u64 = 16;
const VALUE_BYTES_MAX: u64 = 200;
/// A row of average size.
pub(super) const ROW_BYTES: u64 = KEY_BYTES + 1 + VALUE_BYTES_MAX / 2;

pub(super) fn workloads() -> [Workload; 2] {
    [
        Workload::new(
            "fill-seq",
            "16 B keys in order, values of 1-200 B",
            |c, _| run(c, |number, _| number),
        ),
        Workload::new(
            "fill-random",
            "16 B random keys, values of 1-200 B",
            |c, _| {
                // With repetitions, as db_bench draws them.
                run(c, |number, count| mix(number) % count)
            },
        ),
    ]
}

/// Length of the value of a key.
pub(super) fn value_bytes(id: u64) -> usize {
    usize::try_from(1 + mix(id ^ 0x5a) % VALUE_BYTES_MAX).expect("small")
}

fn run(context: &mut Context<'_>, id_of: fn(u64, u64) -> u64) -> Result<()> {
    let count = (context.scale().small_bytes / ROW_BYTES).max(1);
    context.open(count * ROW_BYTES, ROW_BYTES)?;
    context.phase("load", Work::Load, count, |bench, record| {
        let mut number = 0;
        while number < count && !record.is_over() {
            let batch = bench.batch.min(count - number);
            let ids: Vec<u64> = (number..number + batch).map(|n| id_of(n, count)).collect();
            let keys: Vec<[u8; 16]> = ids.iter().map(|id| decimal_key(*id)).collect();
            let rows = keys.iter().zip(&ids);
            let rows = rows.map(|(key, id)| (key, bench.values.value(*id, value_bytes(*id))));
            let writes: Vec<Write<'_>> = rows.map(|(key, value)| Write::Put(key, value)).collect();
            let bytes = ids
                .iter()
                .map(|id| KEY_BYTES + value_bytes(*id) as u64)
                .sum();
            record.time(Op::Put, (batch, bytes), || bench.side.write(&writes, false))?;
            number += batch;
        }
        Ok(())
    })?;
    let live = live_bytes(context)?;
    context.last().live_bytes = live;
    Ok(())
}

/// Bytes of all rows, found by looking.
fn live_bytes(context: &Context<'_>) -> Result<u64> {
    let mut live = 0;
    context.side().scan(&[], &mut |key, value| {
        live += (key.len() + value.len()) as u64;
        true
    })?;
    Ok(live)
}
