//! The stitching threshold f from nothing (never copy what does not overlap) to everything (a plain
//! LSM-tree), on RANDOM-APPEND with 4 KiB tuples: what inserting gains, what scanning loses.
//!
//! Paper: Shetty et al., VT-Trees, FAST 2013, section 4.1, figures 5 and 6.

use super::Workload;
use super::append::Append;
use super::tuples::Tuples;
use crate::context::Context;
use anyhow::Result;

/// Thresholds in bytes. The paper's are 0, 7, 15 and 16,383 blocks of 4 KiB; the last is one that
/// nothing reaches.
const THRESHOLDS: [u64; 7] = [
    0,
    28 << 10,
    60 << 10,
    256 << 10,
    1 << 20,
    16_383 << 12,
    u64::MAX,
];

pub(super) fn workload() -> Workload {
    let about = "stitching threshold f from 0 to infinity on append-4k";
    Workload {
        is_ours_only: true,
        steps: |_| THRESHOLDS.len() as u32,
        ..Workload::new("sweep", about, run)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn run(context: &mut Context<'_>, step: u32) -> Result<()> {
    let threshold = THRESHOLDS[step as usize];
    let tuples = Tuples::LARGE;
    let bytes = tuples.count(context) * tuples.tuple_bytes;
    let mut options = context.options(bytes, tuples.tuple_bytes);
    options.ours.tree.stitch_bytes = threshold;
    context.open_with(options)?;
    let mut pattern = Append::paper(context.seed());
    let suffix = match threshold {
        u64::MAX => " f=inf".to_owned(),
        _ => format!(" f={}K", threshold >> 10),
    };
    tuples.load_and_read(context, &mut pattern, &suffix)?;
    context.set_on_all("f_bytes", threshold as f64);
    Ok(())
}
