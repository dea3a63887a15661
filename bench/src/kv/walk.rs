//! Scans over everything, counted and checked.

use crate::measure::{Recorder, TALLY};
use crate::side::Rows;
use anyhow::{Result, ensure};

/// Walks the rows that `scan` gives, of which there are `count`, each of `row_bytes`, until the
/// phase has had its time. Fails if one is not right, or if some are missing.
pub(super) fn walk(
    record: &mut Recorder<'_>,
    (count, row_bytes): (u64, u64),
    scan: impl FnOnce(&mut Rows<'_>) -> Result<()>,
    mut is_right: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<()> {
    let (mut seen, mut wrong) = (0, 0u64);
    scan(&mut |key, value| {
        wrong += u64::from(!is_right(key, value));
        seen += 1;
        if seen % TALLY == 0 {
            record.tally(TALLY, TALLY * row_bytes);
        }
        !record.is_over()
    })?;
    record.tally(seen % TALLY, seen % TALLY * row_bytes);
    ensure!(
        wrong == 0,
        "{wrong} of {seen} rows are not as they were put"
    );
    let is_whole = seen == count || record.is_over();
    ensure!(is_whole, "the scan saw {seen} rows of {count}");
    Ok(())
}
