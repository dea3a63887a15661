//! Opening a store by the length of its version log, which is as full as it gets: its tables are
//! made up, as nothing of them is read.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, figure 17.

use super::Workload;
use crate::context::{Context, Work};
use crate::measure::Op;
use crate::process;
use crate::side::make_versions;
use anyhow::Result;

/// Lengths of the version log. The last is the longest that there is.
const LOG_BYTES: [u64; 4] = [1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// With less data than this, the longest are left out.
const BYTES_MIN: u64 = 512 << 20;

pub(super) fn workload() -> Workload {
    Workload {
        is_ours_only: true,
        steps: |scale| if scale.bytes < BYTES_MIN { 2 } else { 4 },
        ..Workload::new(
            "versions",
            "time to open, warm, by the length of the version log",
            run,
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn run(context: &mut Context<'_>, step: u32) -> Result<()> {
    let log_bytes = LOG_BYTES[step as usize];
    let mut options = context.options(0, 4096);
    let made = make_versions(&options, log_bytes)?;
    options.is_fresh = false;
    // What it took to make them is not what opening takes.
    let is_reset = process::reset_peak_rss();
    context.open_with(options)?;
    let peak_bytes = is_reset.then(process::peak_rss_bytes);
    let open_time = context.open_time();
    let name = format!("open-{}M", log_bytes >> 20);
    context.phase(&name, Work::Read, 1, |_, record| {
        record.took(Op::Open, (1, made.version_bytes), open_time);
        Ok(())
    })?;
    let values = &mut context.last().values;
    values.insert("version_bytes".to_owned(), made.version_bytes as f64);
    values.insert("tables".to_owned(), made.tables as f64);
    if let Some(peak_bytes) = peak_bytes {
        values.insert("open_peak_rss_bytes".to_owned(), peak_bytes as f64);
    }
    Ok(())
}
