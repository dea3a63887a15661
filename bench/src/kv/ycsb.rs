//! YCSB A to F: 1,000-byte values under 23-byte keys, loaded in random order, then mixes of
//! operations on keys of which few are popular.
//!
//! | phase | mix | keys |
//! |---|---|---|
//! | `a` | half reads, half updates | popular |
//! | `b` | 95 % reads, 5 % updates | popular |
//! | `c` | reads | popular |
//! | `f` | half reads, half read-modify-writes | popular |
//! | `d` | 95 % reads, 5 % inserts | newest |
//! | `e` | 95 % scans of 1 to 100 rows, 5 % inserts | popular |
//!
//! Paper: Cooper et al., *Benchmarking Cloud Serving Systems with YCSB*, SoCC 2010.

use super::Workload;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use crate::side::Write;
use crate::values::{Zipf, mix};
use anyhow::{Result, ensure};
use stitch_base::random::Rng;

const VALUE_BYTES: usize = 1000;
const KEY_BYTES: usize = 23;
const ROW_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;
const SCAN_ROWS_MAX: u64 = 100;
/// Operations of a mix, as a part of the rows.
const OPS_SHARE: u64 = 4;

pub(super) fn workload() -> Workload {
    Workload::new("ycsb", "YCSB A to F, 1 KB rows", run)
}

/// Shares in percent; the rest are reads.
#[derive(Clone, Copy, Debug)]
struct Mix {
    name: &'static str,
    update: u64,
    insert: u64,
    scan: u64,
    rmw: u64,
    is_newest: bool,
}

const READS: Mix = Mix {
    name: "c",
    update: 0,
    insert: 0,
    scan: 0,
    rmw: 0,
    is_newest: false,
};
const MIXES: [Mix; 6] = [
    Mix {
        name: "a",
        update: 50,
        ..READS
    },
    Mix {
        name: "b",
        update: 5,
        ..READS
    },
    READS,
    Mix {
        name: "f",
        rmw: 50,
        ..READS
    },
    Mix {
        name: "d",
        insert: 5,
        is_newest: true,
        ..READS
    },
    Mix {
        name: "e",
        insert: 5,
        scan: 95,
        ..READS
    },
];

fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let wanted = (context.scale().bytes / ROW_BYTES).max(16);
    context.open(wanted * ROW_BYTES * 3 / 2, ROW_BYTES)?;
    context.set_live_bytes(wanted * ROW_BYTES);
    let mut count = context.phase("load", Work::Load, wanted, |bench, record| {
        let mut number = 0;
        while number < wanted && !record.is_over() {
            record.time(Op::Put, (1, ROW_BYTES), || put(bench, number))?;
            number += 1;
        }
        Ok(number)
    })?;
    let zipf = Zipf::new(count.max(2));
    for mix in MIXES {
        let mut rng = Rng::new(context.seed() ^ u64::from(mix.name.as_bytes()[0]));
        let ops = (count / OPS_SHARE).max(1);
        let work = if mix.update + mix.insert + mix.rmw > 0 {
            Work::Write
        } else {
            Work::Read
        };
        context.set_live_bytes(count * ROW_BYTES);
        context.phase(mix.name, work, ops, |bench, record| {
            for _ in 0..ops {
                if record.is_over() {
                    break;
                }
                step(bench, record, &mix, &zipf, &mut rng, &mut count)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"user0000000000000000000";
    let mut rest = mix(number);
    for digit in key[4..].iter_mut().rev() {
        *digit += u8::try_from(rest % 10).expect("one digit");
        rest /= 10;
    }
    key
}

fn put(bench: &Bench<'_>, number: u64) -> Result<()> {
    let value = bench.values.value(number, VALUE_BYTES);
    bench.side.write(&[Write::Put(&key(number), value)], false)
}

fn get(bench: &Bench<'_>, number: u64) -> Result<()> {
    let mut is_right = false;
    let found = bench.side.get(&key(number), &mut |value| {
        is_right = bench.values.is_value(number, VALUE_BYTES, value);
    })?;
    ensure!(
        found && is_right,
        "row {number} is lost or has a wrong value"
    );
    Ok(())
}

fn step(
    bench: &Bench<'_>,
    record: &mut Recorder<'_>,
    mix_of: &Mix,
    zipf: &Zipf,
    rng: &mut Rng,
    count: &mut u64,
) -> Result<()> {
    let popular = zipf.draw(rng);
    let number = if mix_of.is_newest {
        (*count - 1).saturating_sub(popular)
    } else {
        mix(popular) % *count
    };
    let (one, mut dice) = ((1, ROW_BYTES), rng.below(100));
    let mut falls = |share: u64| {
        let is_hit = dice < share;
        dice = dice.wrapping_sub(share);
        is_hit
    };
    if falls(mix_of.update) {
        return record.time(Op::Put, one, || put(bench, number));
    }
    if falls(mix_of.insert) {
        record.time(Op::Put, one, || put(bench, *count))?;
        *count += 1;
        return Ok(());
    }
    if falls(mix_of.rmw) {
        return record.time(Op::Rmw, one, || {
            get(bench, number)?;
            put(bench, number)
        });
    }
    if falls(mix_of.scan) {
        let rows = 1 + rng.below(SCAN_ROWS_MAX);
        return record.time(Op::Scan, (1, rows * ROW_BYTES), || {
            scan(bench, number, rows)
        });
    }
    record.time(Op::Get, one, || get(bench, number))
}

fn scan(bench: &Bench<'_>, number: u64, rows: u64) -> Result<()> {
    let mut seen = 0;
    bench.side.scan(&key(number), &mut |_, value| {
        assert!(value.len() == VALUE_BYTES, "rows have one length");
        seen += 1;
        seen < rows
    })?;
    ensure!(seen > 0, "row {number} is not where it was");
    Ok(())
}
