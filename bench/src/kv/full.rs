//! A store filled to its end: how much of the volume held user data by then, overwriting at a high
//! fill, and space given back.
//!
//! Phases: `fill` until the store refuses; `thin` deletes one row in eight; `overwrite` puts rows
//! that are there again; `empty` deletes everything by one range delete. Operations that the store
//! refuses for want of space are counted as `refused`.
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

pub(super) fn workload() -> Workload {
    Workload {
        is_ours_only: true,
        ..Workload::new(
            "full",
            "a volume filled to its end, thinned, overwritten, emptied",
            run,
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let volume_bytes = context.scale().small_bytes.max(VOLUME_BYTES_MIN);
    let mut options = context.options(0, ROW_BYTES);
    options.volume_bytes = volume_bytes;
    context.open_with(options)?;
    context.without_cap();
    let most = volume_bytes / ROW_BYTES;
    let filled = context.phase("fill", Work::Load, most, fill)?;
    let last = context.last();
    last.live_bytes = filled * ROW_BYTES;
    let share = (filled * ROW_BYTES) as f64 / volume_bytes as f64;
    last.values.insert("utilisation".to_owned(), share);
    context.set_live_bytes((filled - filled.div_ceil(8)) * ROW_BYTES);
    let refused = context.phase("thin", Work::Load, filled.div_ceil(8), |bench, record| {
        thin(bench, record, filled)
    })?;
    context
        .last()
        .values
        .insert("refused".to_owned(), refused as f64);
    let refused = context.phase("overwrite", Work::Load, filled, |bench, record| {
        overwrite(bench, record, filled)
    })?;
    context
        .last()
        .values
        .insert("refused".to_owned(), refused as f64);
    context.set_live_bytes(0);
    let refused = context.phase("empty", Work::Load, 1, empty)?;
    let last = context.last();
    last.values.insert("refused".to_owned(), refused as f64);
    let left = last.space_bytes.unwrap_or(0) as f64 / volume_bytes as f64;
    last.values.insert("space_left".to_owned(), left);
    Ok(())
}

/// Puts random rows until the store is full; answers how many went in.
fn fill(bench: &Bench<'_>, record: &mut Recorder<'_>) -> Result<u64> {
    for number in 0.. {
        if !put(bench, record, number)? {
            return Ok(number);
        }
    }
    unreachable!("a volume is finite")
}

/// Deletes one row in eight; answers how many deletes were refused.
fn thin(bench: &Bench<'_>, record: &mut Recorder<'_>, filled: u64) -> Result<u64> {
    let mut refused = 0;
    for number in (0..filled).step_by(8) {
        if refused == REFUSED_MAX {
            break;
        }
        let key = mix(number).to_be_bytes();
        let writes = [Write::Delete(&key)];
        refused += u64::from(!write(bench, record, Op::Delete, &writes)?);
    }
    Ok(refused)
}

/// Puts rows again that are there; answers how many were refused.
fn overwrite(bench: &Bench<'_>, record: &mut Recorder<'_>, filled: u64) -> Result<u64> {
    let mut refused = 0;
    for turn in 0..filled {
        if refused == REFUSED_MAX {
            break;
        }
        let number = mix(turn) % filled;
        if !number.is_multiple_of(8) {
            refused += u64::from(!put(bench, record, number)?);
        }
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
