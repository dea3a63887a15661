//! The extents of a table, as an edit lists them.

use super::{Run, SECTOR_BYTES, VERSION_PLAIN, list};
use crate::FormatError;
use crate::codec::Reader;

/// Runs as an edit lists them: for each, the sectors since the one before, and its own.
pub(super) fn run_numbers(runs: &[Run]) -> impl Iterator<Item = u64> {
    let mut end = 0;
    runs.iter().flat_map(move |run| {
        let gap = run.addr.saturating_sub(end);
        end = run.end();
        [gap / SECTOR_BYTES, run.len_bytes / SECTOR_BYTES]
    })
}

pub(super) fn read_runs(r: &mut Reader<'_>, version: u8) -> Result<Vec<Run>, FormatError> {
    if version == VERSION_PLAIN {
        return list(r, read_run);
    }
    let mut end = 0u64;
    list(r, |r| {
        let (gap, sectors) = (r.varint()?, r.varint()?);
        let addr = gap
            .checked_mul(SECTOR_BYTES)
            .and_then(|gap| end.checked_add(gap));
        let len_bytes = sectors.checked_mul(SECTOR_BYTES);
        let (Some(addr), Some(len_bytes)) = (addr, len_bytes) else {
            return Err(r.field("run", "a piece of the device", gap.to_string()));
        };
        let run = Run { addr, len_bytes };
        check_run(r, &run)?;
        end = run.end();
        Ok(run)
    })
}

/// Shrinks a list to the memory that it needs, since it is kept for long.
pub(super) fn exact<T>(mut list: Vec<T>) -> Vec<T> {
    list.shrink_to_fit();
    list
}

fn read_run(r: &mut Reader<'_>) -> Result<Run, FormatError> {
    let run = Run {
        addr: r.u64()?,
        len_bytes: r.varint()?,
    };
    check_run(r, &run)?;
    Ok(run)
}

fn check_run(r: &Reader<'_>, run: &Run) -> Result<(), FormatError> {
    if run.len_bytes == 0 || run.addr.checked_add(run.len_bytes).is_none() {
        return Err(r.field("run", "a piece of the device", format!("{run:?}")));
    }
    Ok(())
}
