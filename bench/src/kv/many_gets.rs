//! MANY-GETS: batches of keys, at random, each phase from a cold start. Beside a call for several
//! keys stand the same keys one by one.

use super::Workload;
use super::random::Random;
use super::tuples::{Pattern, Tuples};
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use anyhow::{Result, ensure};
use stitch_base::random::Rng;

const TUPLES: Tuples = Tuples { tuple_bytes: 1024 };
/// Keys of a batch: an object with a few parts, a page of a listing, a join.
const BATCHES: [usize; 3] = [10, 100, 1000];

pub(super) fn workload() -> Workload {
    Workload::new(
        "many-gets",
        "batches of 10, 100 and 1,000 random keys of 1 KiB, cold, by one call and one by one",
        |context, _| run(context),
    )
}

fn run(context: &mut Context<'_>) -> Result<()> {
    let mut pattern = Random::new(context.seed());
    context.open(
        TUPLES.count(context) * TUPLES.tuple_bytes,
        TUPLES.tuple_bytes,
    )?;
    let loaded = TUPLES.load_all(context, &mut pattern, "")?;
    let gets = context.scale().gets.min(loaded);
    for count in BATCHES {
        for is_alone in [true, false] {
            context.reopen_cold()?;
            let mut rng = Rng::new(context.seed() ^ 1);
            let name = match is_alone {
                true => format!("alone-{count}"),
                false => format!("batch-{count}"),
            };
            context.phase(&name, Work::Read, gets, |bench, record| {
                let mut left = usize::try_from(gets).unwrap_or(usize::MAX);
                while left > 0 && !record.is_over() {
                    let ids = (0..count.min(left)).map(|_| pattern.known(&mut rng));
                    let ids: Vec<u64> = ids.collect();
                    get(bench, record, &ids, is_alone)?;
                    left -= ids.len();
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// One batch, timed as a whole.
fn get(bench: &Bench<'_>, record: &mut Recorder<'_>, ids: &[u64], is_alone: bool) -> Result<()> {
    let names: Vec<[u8; 8]> = ids.iter().map(|id| id.to_be_bytes()).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let mut right = 0;
    let mut see = |at: usize, value: &[u8]| {
        right += usize::from(bench.values.is_value(ids[at], TUPLES.value_bytes(), value));
    };
    let count = ids.len() as u64;
    let found = record.time(Op::Get, (count, count * TUPLES.tuple_bytes), || {
        if !is_alone {
            return bench.side.get_many(&keys, &mut see);
        }
        let mut found = 0;
        for (at, key) in keys.iter().enumerate() {
            found += usize::from(bench.side.get(key, &mut |value| see(at, value))?);
        }
        Ok(found)
    })?;
    ensure!(found == ids.len(), "{} keys are lost", ids.len() - found);
    ensure!(right == found, "{} values are wrong", found - right);
    Ok(())
}
