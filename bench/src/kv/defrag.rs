//! What stitching costs scans, and what a defragmentation gives back: a store is aged by
//! RANDOM-APPEND with a small stitching threshold, so that nearly all is stitched and what is
//! merged leaves holes; then a scan, the defragmentation, and the scan again. And the same load
//! without stitching, for comparison.
//!
//! Paper: Shetty et al., VT-Trees, FAST 2013, section 4.4.

use super::Workload;
use super::append::Append;
use super::tuples::Tuples;
use crate::context::{Context, Work};
use crate::measure::Op;
use anyhow::{Result, ensure};

/// Thresholds in bytes: that of the paper's measurements, and none that anything would reach.
const THRESHOLDS: [u64; 2] = [64 << 10, u64::MAX];

pub(super) fn workload() -> Workload {
    Workload {
        is_ours_only: true,
        steps: |_| THRESHOLDS.len() as u32,
        ..Workload::new(
            "defrag",
            "a store aged by stitching: scan, defragment, scan again",
            run,
        )
    }
}

fn run(context: &mut Context<'_>, step: u32) -> Result<()> {
    let threshold = THRESHOLDS[step as usize];
    let name = if threshold == u64::MAX {
        "copied"
    } else {
        "stitched"
    };
    let tuples = Tuples::LARGE;
    let count = tuples.count(context);
    let bytes = count * tuples.tuple_bytes;
    let mut options = context.options(bytes, tuples.tuple_bytes);
    options.ours.tree.stitch_bytes = threshold;
    context.open_with(options)?;
    // All must be there, or there is nothing to compare.
    context.without_cap();
    let mut pattern = Append::paper(context.seed());
    tuples.load_and_scan(context, &mut pattern, &format!("-{name}"))?;
    if step > 0 {
        return Ok(());
    }
    context.phase("defragment", Work::Load, 1, |bench, record| {
        let defrag = || bench.side.defrag();
        let is_offered = record.time(Op::Delete, (1, bytes), defrag)?;
        ensure!(is_offered, "the side has a defragmentation");
        Ok(())
    })?;
    let moved = context.last().counters.get("vt.evacuated_bytes").copied();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let moved = moved.unwrap_or(0) as f64;
    context
        .last()
        .values
        .insert("moved_bytes".to_owned(), moved);
    context.reopen_cold()?;
    tuples.scan_all(context, "scan-defragmented", count)
}
