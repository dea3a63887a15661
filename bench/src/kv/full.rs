//! A store filled to nine tenths and overwritten there, then filled to its end: how steady it goes
//! on, how much of the volume held user data by the end, and space given back.
//!
//! Rows of a page, of several pages, and of a part of one. Phases: `fill-90` until nine tenths of
//! the space for user data are in use, once background work is done; `overwrite-90` puts as many
//! rows as there are, each one that is there; `fill` goes on until the store refuses; `thin`
//! deletes one row in eight; `empty` deletes everything by one range delete. Operations that the
//! store refuses for want of space are counted as `refused`. How steady a phase was:
//! `slowest_tenth` and `fastest_tenth` are rates in tenths of its time, over the rate of all of it.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, figure 18.

use super::Workload;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use crate::side::Write;
use crate::values::mix;
use anyhow::{Result, ensure};

/// Rows of these lengths, one after the other: of a page, of several, and of a part of one.
const ROWS_BYTES: [u64; 3] = [PAGE_BYTES, 20_000, 256];
const PAGE_BYTES: u64 = 4096;
const KEY_BYTES: usize = 8;
const VOLUME_BYTES_MIN: u64 = 32 << 20;
/// A phase ends after so many refusals: each takes the time of a wait for room.
const REFUSED_MAX: u64 = 3;
/// The share of the space at which rows are overwritten.
const FULL: f64 = 0.9;
/// Bytes of rows between two looks at the space.
const BYTES_AT_ONCE: u64 = 32 << 10;

pub(super) fn workload() -> Workload {
    Workload {
        is_ours_only: true,
        steps: |_| ROWS_BYTES.len() as u32,
        ..Workload::new(
            "full",
            "a volume filled to 90 %, overwritten, filled to its end, thinned, emptied",
            run,
        )
    }
}

fn run(context: &mut Context<'_>, step: u32) -> Result<()> {
    let rows = RowLength::new(ROWS_BYTES[step as usize]);
    let volume_bytes = context.scale().small_bytes.max(VOLUME_BYTES_MIN);
    let mut options = context.options(0, rows.bytes);
    options.volume_bytes = volume_bytes;
    context.open_with(options)?;
    context.without_cap();
    let most = volume_bytes / rows.bytes;
    let count = rows.phase(context, "fill-90", most * 9 / 10, |bench, record| {
        rows.fill_partly(bench, record)
    })?;
    rows.tell(context, count, 0)?;
    let refused = rows.phase(context, "overwrite-90", count, |bench, record| {
        rows.overwrite(bench, record, count)
    })?;
    rows.tell(context, count, refused)?;
    let left = most - count.min(most);
    let more = rows.phase(context, "fill", left, |bench, record| {
        rows.fill(bench, record, count)
    })?;
    rows.tell(context, count + more, 1)?;
    let share = share((count + more) * rows.bytes, volume_bytes);
    set(context, "utilisation", share);
    rows.empty_again(context, count + more)?;
    let left = context.last().space_bytes.unwrap_or(0);
    set(context, "space_left", self::share(left, volume_bytes));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// Adds a figure to the last phase.
fn set(context: &mut Context<'_>, name: &str, value: f64) {
    context.last().values.insert(name.to_owned(), value);
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

/// Rows of one length.
#[derive(Clone, Copy, Debug)]
struct RowLength {
    /// Of key and value.
    bytes: u64,
    value_bytes: usize,
}

impl RowLength {
    fn new(bytes: u64) -> Self {
        let value = usize::try_from(bytes).expect("a row is short") - KEY_BYTES;
        Self {
            bytes,
            value_bytes: value,
        }
    }

    /// A phase, named after the rows.
    fn phase(
        &self,
        context: &mut Context<'_>,
        name: &str,
        count: u64,
        body: impl FnOnce(&Bench<'_>, &mut Recorder<'_>) -> Result<u64>,
    ) -> Result<u64> {
        let name = match self.bytes {
            PAGE_BYTES => name.to_owned(),
            bytes => format!("{name} {bytes} B"),
        };
        context.phase(&name, Work::Load, count, body)
    }

    /// Adds to the last phase the number of rows after it, the fullness of the store, the number of
    /// refused puts, and how steady the rate was.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn tell(&self, context: &mut Context<'_>, count: u64, refused: u64) -> Result<()> {
        let full = context.side().fullness()?;
        context.last().live_bytes = count * self.bytes;
        set(context, "full", full);
        set(context, "refused", refused as f64);
        let rates: Vec<f64> = context.last().series.iter().map(|p| p.ops_per_s).collect();
        if let Some((slowest, fastest)) = tenths(&rates) {
            set(context, "slowest_tenth", slowest);
            set(context, "fastest_tenth", fastest);
        }
        Ok(())
    }

    /// Deletes a part of the rows, then all.
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    fn empty_again(&self, context: &mut Context<'_>, filled: u64) -> Result<()> {
        let thinned = filled.div_ceil(8);
        context.set_live_bytes((filled - thinned) * self.bytes);
        let refused = self.phase(context, "thin", thinned, |bench, record| {
            thin(bench, record, filled)
        })?;
        set(context, "refused", refused as f64);
        context.set_live_bytes(0);
        let refused = self.phase(context, "empty", 1, empty)?;
        set(context, "refused", refused as f64);
        Ok(())
    }

    /// Puts random rows until nine tenths of the space are in use. Returns their number.
    fn fill_partly(&self, bench: &Bench<'_>, record: &mut Recorder<'_>) -> Result<u64> {
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
            for _ in 0..BYTES_AT_ONCE.div_ceil(self.bytes) {
                ensure!(self.put(bench, record, number)?, "full at {share}");
                number += 1;
            }
        }
        Ok(number)
    }

    /// Puts random rows until the store is full, numbered from `first`. Returns their number.
    fn fill(&self, bench: &Bench<'_>, record: &mut Recorder<'_>, first: u64) -> Result<u64> {
        for number in first.. {
            if record.is_over() || !self.put(bench, record, number)? {
                return Ok(number - first);
            }
        }
        unreachable!("a volume is finite")
    }

    /// Overwrites as many rows as there are. Returns the number of refused puts.
    fn overwrite(&self, bench: &Bench<'_>, record: &mut Recorder<'_>, rows: u64) -> Result<u64> {
        let mut refused = 0;
        for turn in 0..rows {
            if refused == REFUSED_MAX || record.is_over() {
                break;
            }
            let number = mix(turn) % rows;
            refused += u64::from(!self.put(bench, record, number)?);
        }
        Ok(refused)
    }

    /// Returns false if the store is full.
    fn put(&self, bench: &Bench<'_>, record: &mut Recorder<'_>, number: u64) -> Result<bool> {
        let key = mix(number).to_be_bytes();
        let value = bench.values.value(number, self.value_bytes);
        write(
            bench,
            record,
            (Op::Put, self.bytes),
            &[Write::Put(&key, value)],
        )
    }
}

/// Deletes one row in eight. Returns the number of refused deletes.
fn thin(bench: &Bench<'_>, record: &mut Recorder<'_>, filled: u64) -> Result<u64> {
    let mut refused = 0;
    for number in (0..filled).step_by(8) {
        if refused == REFUSED_MAX || record.is_over() {
            break;
        }
        let key = mix(number).to_be_bytes();
        let writes = [Write::Delete(&key)];
        let is_done = write(bench, record, (Op::Delete, KEY_BYTES as u64), &writes)?;
        refused += u64::from(!is_done);
    }
    Ok(refused)
}

/// Deletes everything. Returns the number of refusals.
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

/// Returns false if the store is full.
fn write(
    bench: &Bench<'_>,
    record: &mut Recorder<'_>,
    (op, bytes): (Op, u64),
    writes: &[Write<'_>],
) -> Result<bool> {
    match record.time(op, (1, bytes), || bench.side.write(writes, false)) {
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
