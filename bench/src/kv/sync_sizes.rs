//! Synced puts of growing records: what a record costs on the device beside itself.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section
//! 4.6, figure 19. Differs: what is measured is a whole store, with the write-outs that its log
//! causes.

use super::Workload;
use super::fill::KEY_BYTES;
use super::fill_sync::put_synced;
use crate::context::{Context, Work};
use anyhow::Result;

/// Bytes of key and value.
const ROW_BYTES: [u64; 6] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// One put for so many bytes of what workloads of small rows write.
const PUT_SHARE: u64 = 64 << 10;
const PUTS_MIN: u64 = 8;

pub(super) fn workload() -> Workload {
    Workload {
        is_append: true,
        ..Workload::new(
            "sync-sizes",
            "records of 64 B to 64 KiB, each synced (LDS figure 19)",
            run,
        )
    }
}

fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let puts = (context.scale().small_bytes / PUT_SHARE).max(PUTS_MIN);
    let all_bytes: u64 = ROW_BYTES.iter().map(|row| row * puts).sum();
    context.open(all_bytes, ROW_BYTES[0])?;
    let mut live_bytes = 0;
    for (index, row) in (0..).zip(ROW_BYTES) {
        let value_bytes = usize::try_from(row - KEY_BYTES).expect("rows are short");
        let name = format!("row-{row}");
        let done = context.phase(&name, Work::Load, puts, |bench, record| {
            let ids = index * puts..(index + 1) * puts;
            put_synced(bench, record, ids, value_bytes)
        })?;
        live_bytes += done * row;
        context.last().live_bytes = live_bytes;
    }
    Ok(())
}
