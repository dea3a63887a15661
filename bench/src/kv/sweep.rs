//! The stitching threshold f from nothing (never copy what does not overlap) to everything (a plain
//! LSM-tree), on RANDOM-APPEND with 4 KiB tuples: what inserting gains, what scanning loses.
//!
//! Paper: Shetty et al., VT-Trees, FAST 2013, section 4.1, figures 5 and 6.

use super::Workload;
use super::append::Append;
use super::tuples::Tuples;
use crate::context::Context;
use anyhow::Result;

/// Thresholds in bytes. The paper's are 0, 7, 15 and 16,383 blocks of 4 KiB.
const THRESHOLDS: [u64; 6] = [0, 28 << 10, 60 << 10, 256 << 10, 1 << 20, 16_383 << 12];

pub(super) fn workload() -> Workload {
    let about = "stitching threshold f from 0 to 64 MiB on append-4k";
    Workload {
        is_ours_only: true,
        steps: |_| THRESHOLDS.len() as u32,
        ..Workload::new("sweep", about, run)
    }
}

fn run(context: &mut Context<'_>, step: u32) -> Result<()> {
    let threshold = THRESHOLDS[step as usize];
    let tuples = Tuples::LARGE;
    let bytes = tuples.count(context) * tuples.tuple_bytes;
    let mut options = context.options(bytes, tuples.tuple_bytes);
    options.stitch_bytes = Some(threshold);
    context.open_with(options)?;
    let mut pattern = Append::paper(context.seed());
    let suffix = format!(" f={}K", threshold >> 10);
    tuples.load_and_read(context, &mut pattern, &suffix)?;
    context.set_on_all("f_bytes", u32::try_from(threshold)?.into());
    Ok(())
}
