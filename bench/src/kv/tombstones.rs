//! Deletes of a contiguous range, one by one and in one range delete, and how soon a scan that
//! begins in front of them has its first row.
//!
//! Three rows in eight are deleted one by one, three by a range delete (one by one on sides that
//! have none: `emulated`), two stay. Scans are started right after the deletes and again after
//! background work had its time.

use super::Workload;
use super::walk::walk;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use crate::side::Write;
use crate::values::decimal_key;
use anyhow::{Result, ensure};
use std::ops::Range;

const VALUE_BYTES: usize = 100;
const ROW_BYTES: u64 = 16 + VALUE_BYTES as u64;
/// The data is this part of what other workloads of small rows load.
const SHARE: u64 = 4;
/// Scans started over each range.
const SCANS: u64 = 20;

pub(super) fn workload() -> Workload {
    Workload::new(
        "tombstones",
        "delete a range; scans that begin before it",
        run,
    )
}

fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let count = (context.scale().small_bytes / SHARE / ROW_BYTES).max(64);
    // Without a limit of time: what follows needs the whole range.
    context.without_cap();
    let (third, end) = (count * 3 / 8, count * 6 / 8);
    context.open(count * ROW_BYTES, ROW_BYTES)?;
    context.set_live_bytes(count * ROW_BYTES);
    context.phase("load", Work::Load, count, |bench, record| {
        each(bench, record, 0..count, Op::Put)
    })?;
    context.set_live_bytes((count - third) * ROW_BYTES);
    context.phase("delete-each", Work::Write, third, |bench, record| {
        each(bench, record, 0..third, Op::Delete)
    })?;
    context.phase("scan-start-each", Work::Read, SCANS, |bench, record| {
        first_rows(bench, record, 0, third)
    })?;
    context.set_live_bytes((count - end) * ROW_BYTES);
    let is_emulated = context.phase("delete-range", Work::Write, 1, |bench, record| {
        delete_range(bench, record, third..end)
    })?;
    if is_emulated {
        let values = &mut context.last().values;
        values.insert("emulated".to_owned(), 1.0);
    }
    context.phase("scan-start-range", Work::Read, SCANS, |bench, record| {
        first_rows(bench, record, third, end)
    })?;
    context.phase("settle", Work::Load, 0, |_, _| Ok(()))?;
    context.phase("scan-start-later", Work::Read, SCANS, |bench, record| {
        first_rows(bench, record, 0, end)
    })?;
    let left = count - end;
    context.phase("scan-rest", Work::Read, left, |bench, record| {
        walk(
            record,
            (left, ROW_BYTES),
            |rows| bench.side.scan(&[], rows),
            |_, _| true,
        )
    })
}

/// Puts or deletes these rows one by one, in order.
fn each(bench: &Bench<'_>, record: &mut Recorder<'_>, ids: Range<u64>, op: Op) -> Result<()> {
    for id in ids {
        if record.is_over() {
            break;
        }
        let key = decimal_key(id);
        let write = match op {
            Op::Put => Write::Put(&key, bench.values.value(id, VALUE_BYTES)),
            _ => Write::Delete(&key),
        };
        record.time(op, (1, ROW_BYTES), || bench.side.write(&[write], false))?;
    }
    Ok(())
}

/// Deletes a range. Returns whether that was done row by row.
fn delete_range(bench: &Bench<'_>, record: &mut Recorder<'_>, ids: Range<u64>) -> Result<bool> {
    let (start, end) = (decimal_key(ids.start), decimal_key(ids.end));
    let rows = ids.end - ids.start;
    record.time(Op::Delete, (rows, rows * ROW_BYTES), || {
        if bench.side.delete_range(&start, &end)? {
            return Ok(false);
        }
        for id in ids {
            bench
                .side
                .write(&[Write::Delete(&decimal_key(id))], false)?;
        }
        Ok(true)
    })
}

/// Starts scans at one key and waits for the first row, which must be that of another.
fn first_rows(bench: &Bench<'_>, record: &mut Recorder<'_>, from: u64, to: u64) -> Result<()> {
    for _ in 0..SCANS {
        let mut first = None;
        record.time(Op::Scan, (1, ROW_BYTES), || {
            bench.side.scan(&decimal_key(from), &mut |key, _| {
                first = Some(key.to_vec());
                false
            })
        })?;
        let wanted = decimal_key(to);
        ensure!(
            first.as_deref() == Some(&wanted[..]),
            "the scan began at the wrong row"
        );
    }
    Ok(())
}
