//! A store filled to nine tenths and overwritten there, then filled to its end: how steady it goes on,
//! how much of the volume held user data by the end, and space given back.
//!
//! Phases: `fill-90` until nine tenths of the space for user data are in use, once background work is
//! done; `overwrite-90` puts as many rows as there are, each one that is there; `fill` goes on until the
//! store refuses; `thin` deletes one row in eight; `empty` deletes everything by one range delete.
//! Operations that the store refuses for want of space are counted as `refused`. How steady a phase
//! was: `slowest_tenth` and `fastest_tenth` are rates in tenths of its time, over the rate of all of it.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, figure 18.

use super::Workload;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use crate::side::Write;
use crate::values::mix;
use anyhow::{Result, ensure};

const ROW_BYTES: u64 = 4096;
const VALUE_BYTES: usize = ROW_BYTES as usize - 8;
const VOLUME_BYTES_MIN: u64 = 32 << 20;
/// A phase ends after so many refusals: each takes the time of a wait for room.
const REFUSED_MAX: u64 = 3;
/// The share of the space at which rows are overwritten.
const FULL: f64 = 0.9;
/// Rows between two looks at the space.
const ROWS_AT_ONCE: u64 = 8;

pub(super) fn workload() -> Workload {
    Workload {
        is_ours_only: true,
        ..Workload::new(
            "full",
            "a volume filled to 90 %, overwritten, filled to its end, thinned, emptied",
            run,
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "shares")]
fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let volume_bytes = context.scale().small_bytes.max(VOLUME_BYTES_MIN);
    let mut options = context.options(0, ROW_BYTES);
    options.volume_bytes = volume_bytes;
    context.open_with(options)?;
    context.without_cap();
    let most = volume_bytes / ROW_BYTES;
    let rows = context.phase("fill-90", Work::Load, most * 9 / 10, fill_partly)?;
    let share = context.side().fullness()?;
    steadiness(context, rows, 0);
    set(context, "full", share);
    let refused = context.phase("overwrite-90", Work::Load, rows, |bench, record| {
        overwrite(bench, record, rows)
    })?;
    let share = context.side().fullness()?;
    steadiness(context, rows, refused);
    set(context, "full", share);
    let more = context.phase(
        "fill",
        Work::Load,
        most - rows.min(most),
        |bench, record| fill(bench, record, rows),
    )?;
    let filled = rows + more;
    let share = (filled * ROW_BYTES) as f64 / volume_bytes as f64;
    steadiness(context, filled, 1);
    set(context, "utilisation", share);
    empty_again(context, filled)?;
    let left = context.last().space_bytes.unwrap_or(0) as f64 / volume_bytes as f64;
    set(context, "space_left", left);
    Ok(())
}

/// Deletes a part of the rows, then all.
#[expect(clippy::cast_precision_loss, reason = "a small number")]
fn empty_again(context: &mut Context<'_>, filled: u64) -> Result<()> {
    context.set_live_bytes((filled - filled.div_ceil(8)) * ROW_BYTES);
    let refused = context.phase("thin", Work::Load, filled.div_ceil(8), |bench, record| {
        thin(bench, record, filled)
    })?;
    set(context, "refused", refused as f64);
    context.set_live_bytes(0);
    let refused = context.phase("empty", Work::Load, 1, empty)?;
    set(context, "refused", refused as f64);
    Ok(())
}

/// Adds a figure to the last phase.
fn set(context: &mut Context<'_>, name: &str, value: f64) {
    context.last().values.insert(name.to_owned(), value);
}

/// Says of the last phase how many rows there are after it, how many puts were refused, and how steady
/// the rate was.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn steadiness(context: &mut Context<'_>, rows: u64, refused: u64) {
    context.last().live_bytes = rows * ROW_BYTES;
    set(context, "refused", refused as f64);
    let rates: Vec<f64> = context.last().series.iter().map(|p| p.ops_per_s).collect();
    if let Some((slowest, fastest)) = tenths(&rates) {
        set(context, "slowest_tenth", slowest);
        set(context, "fastest_tenth", fastest);
    }
}

/// The least and the highest mean of ten parts, over that of all. Nothing of what is too short.
#[expect(clippy::cast_precision_loss, reason = "few points")]
fn tenths(rates: &[f64]) -> Option<(f64, f64)> {
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let len = rates.len();
    let all = mean(rates);
    if len < 10 || all <= 0.0 {
        return None;
    }
    let parts = (0..10).map(|n| mean(&rates[n * len / 10..(n + 1) * len / 10]) / all);
    let parts: Vec<f64> = parts.collect();
    let slowest = parts.iter().copied().fold(f64::INFINITY, f64::min);
    Some((slowest, parts.iter().copied().fold(0.0, f64::max)))
}

/// Puts random rows until nine tenths of the space are in use; answers how many.
fn fill_partly(bench: &Bench<'_>, record: &mut Recorder<'_>) -> Result<u64> {
    let mut number = 0;
    while !record.is_over() {
        // What background work has yet to give back is no use.
        let mut share = bench.side.fullness()?;
        if share >= FULL {
            bench.side.settle()?;
            share = bench.side.fullness()?;
        }
        if share >= FULL {
            break;
        }
        for _ in 0..ROWS_AT_ONCE {
            ensure!(put(bench, record, number)?, "full at {share}");
            number += 1;
        }
    }
    Ok(number)
}

/// Puts random rows until the store is full, numbered from `first`; answers how many went in.
fn fill(bench: &Bench<'_>, record: &mut Recorder<'_>, first: u64) -> Result<u64> {
    for number in first.. {
        if record.is_over() || !put(bench, record, number)? {
            return Ok(number - first);
        }
    }
    unreachable!("a volume is finite")
}

/// Deletes one row in eight; answers how many deletes were refused.
fn thin(bench: &Bench<'_>, record: &mut Recorder<'_>, filled: u64) -> Result<u64> {
    let mut refused = 0;
    for number in (0..filled).step_by(8) {
        if refused == REFUSED_MAX || record.is_over() {
            break;
        }
        let key = mix(number).to_be_bytes();
        let writes = [Write::Delete(&key)];
        refused += u64::from(!write(bench, record, Op::Delete, &writes)?);
    }
    Ok(refused)
}

/// Puts rows again that are there, as many as there are; answers how many were refused.
fn overwrite(bench: &Bench<'_>, record: &mut Recorder<'_>, rows: u64) -> Result<u64> {
    let mut refused = 0;
    for turn in 0..rows {
        if refused == REFUSED_MAX || record.is_over() {
            break;
        }
        let number = mix(turn) % rows;
        refused += u64::from(!put(bench, record, number)?);
    }
    Ok(refused)
}

/// Deletes everything; answers how often that was refused.
fn empty(bench: &Bench<'_>, record: &mut Recorder<'_>) -> Result<u64> {
    for refused in 0..REFUSED_MAX {
        let delete = || bench.side.delete_range(&[], &[0xff; 9]);
        match record.time(Op::Delete, (1, 0), delete) {
            Ok(is_offered) => {
                ensure!(is_offered, "a range delete is needed");
                return Ok(refused);
            }
            Err(error) if bench.side.is_full(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(REFUSED_MAX)
}

/// Answers false if the store is full.
fn put(bench: &Bench<'_>, record: &mut Recorder<'_>, number: u64) -> Result<bool> {
    let key = mix(number).to_be_bytes();
    let value = bench.values.value(number, VALUE_BYTES);
    write(bench, record, Op::Put, &[Write::Put(&key, value)])
}

/// Answers false if the store is full.
fn write(
    bench: &Bench<'_>,
    record: &mut Recorder<'_>,
    op: Op,
    writes: &[Write<'_>],
) -> Result<bool> {
    match record.time(op, (1, ROW_BYTES), || bench.side.write(writes, false)) {
        Ok(()) => Ok(true),
        Err(error) if bench.side.is_full(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenths_are_of_the_mean() {
        assert_eq!(tenths(&[5.0; 9]), None);
        assert_eq!(tenths(&[0.0; 20]), None);
        assert_eq!(tenths(&[5.0; 23]), Some((1.0, 1.0)));
        let mut rates = [10.0; 20];
        (rates[4], rates[5]) = (0.0, 10.0);
        let (slowest, fastest) = tenths(&rates).unwrap();
        assert!((slowest - 5.0 / 9.5).abs() < 1e-9, "{slowest}");
        assert!((fastest - 10.0 / 9.5).abs() < 1e-9, "{fastest}");
    }
}
