//! Point reads from memory, by more and more threads: what readers cost each other. Then the same
//! while one thread puts rows at a steady rate, so that readers meet a writer and not a busy
//! processor.

use super::Workload;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder, by_threads};
use crate::side::Write;
use crate::values::mix;
use anyhow::{Result, ensure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::random::Rng;

const KEY_BYTES: u64 = 8;
const VALUE_BYTES: usize = 100;
const ROW_BYTES: u64 = KEY_BYTES + VALUE_BYTES as u64;
/// All rows are this part of the memory, so that every side has them in its cache.
const MEMORY_SHARE: u64 = 8;
const THREADS: [u64; 4] = [1, 2, 4, 8];
/// Gets of each thread in a phase, for each row.
const GETS_OF_ROW: u64 = 2;
/// The writer puts so many rows each millisecond.
const PUTS_PER_MS: u64 = 10;

pub(super) fn workload() -> Workload {
    Workload::new(
        "readers",
        "point reads from memory by 1, 2, 4 and 8 threads; the same beside a writer",
        run,
    )
}

fn run(context: &mut Context<'_>, _step: u32) -> Result<()> {
    let bytes = (context.scale().memory_bytes / MEMORY_SHARE).min(context.scale().small_bytes);
    let wanted = (bytes / ROW_BYTES).max(THREADS[3]);
    // Room for what the writer overwrites, too.
    context.open(4 * wanted * ROW_BYTES, ROW_BYTES)?;
    context.set_live_bytes(wanted * ROW_BYTES);
    let rows = context.phase("load", Work::Load, wanted, |bench, record| {
        load(bench, record, wanted)
    })?;
    context.set_live_bytes(rows * ROW_BYTES);
    context.last().live_bytes = rows * ROW_BYTES;
    // From here on all sides read what they have stored, not what they were just given.
    context.reopen_cold()?;
    context.phase("warm", Work::Read, rows, |bench, record| {
        for id in 0..rows {
            if record.is_over() {
                break;
            }
            get(bench, record, id)?;
        }
        Ok(())
    })?;
    let seed = context.seed();
    for threads in THREADS {
        let gets = GETS_OF_ROW * rows * threads;
        let name = format!("get-{threads}");
        context.phase(&name, Work::Read, gets, |bench, record| {
            get_all(bench, record, (threads, gets), (seed, rows))
        })?;
    }
    for threads in THREADS {
        let gets = GETS_OF_ROW * rows * threads;
        let name = format!("get-{threads}-writing");
        let puts = context.phase(&name, Work::Write, gets, |bench, record| {
            beside_writer(bench, rows, || {
                get_all(bench, record, (threads, gets), (seed, rows))
            })
        })?;
        let phase = context.last();
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let puts_per_s = puts as f64 / phase.seconds;
        phase.values.insert("puts_per_s".to_owned(), puts_per_s);
    }
    Ok(())
}

fn key(id: u64) -> [u8; 8] {
    mix(id).to_be_bytes()
}

/// Puts rows. Returns their number.
fn load(bench: &Bench<'_>, record: &mut Recorder<'_>, count: u64) -> Result<u64> {
    let mut done = 0;
    while done < count && !record.is_over() {
        let batch = bench.batch.min(count - done);
        let ids: Vec<u64> = (done..done + batch).collect();
        let keys: Vec<[u8; 8]> = ids.iter().map(|id| key(*id)).collect();
        let values = ids.iter().map(|id| bench.values.value(*id, VALUE_BYTES));
        let writes: Vec<Write<'_>> = keys
            .iter()
            .zip(values)
            .map(|(key, value)| Write::Put(key, value))
            .collect();
        let size = (batch, batch * ROW_BYTES);
        record.time(Op::Put, size, || bench.side.write(&writes, false))?;
        done += batch;
    }
    Ok(done)
}

/// Random rows, of each thread an equal part.
fn get_all(
    bench: &Bench<'_>,
    record: &mut Recorder<'_>,
    (threads, gets): (u64, u64),
    (seed, rows): (u64, u64),
) -> Result<()> {
    by_threads(record, threads, |thread, record| {
        let mut rng = Rng::new(seed ^ mix(threads << 8 | thread));
        for _ in 0..gets / threads {
            if record.is_over() {
                break;
            }
            get(bench, record, rng.below(rows))?;
        }
        Ok(())
    })
}

fn get(bench: &Bench<'_>, record: &mut Recorder<'_>, id: u64) -> Result<()> {
    let mut is_right = false;
    let found = record.time(Op::Get, (1, ROW_BYTES), || {
        bench.side.get(&key(id), &mut |value| {
            is_right = bench.values.is_value(id, VALUE_BYTES, value);
        })
    })?;
    ensure!(found && is_right, "row {id} is lost or has a wrong value");
    Ok(())
}

/// Stops the writer, also if a reader panics.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while another thread overwrites rows. Returns the number of puts.
fn beside_writer(bench: &Bench<'_>, rows: u64, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| put_until(bench, rows, &is_over));
        let ending = Ending(&is_over);
        let done = work();
        drop(ending);
        let puts = writer.join().expect("the writer does not panic");
        done.and(puts)
    })
}

fn put_until(bench: &Bench<'_>, rows: u64, is_over: &AtomicBool) -> Result<u64> {
    let clock = SystemClock::default();
    let (begin, mut puts) = (clock.monotonic(), 0);
    while !is_over.load(Ordering::Relaxed) {
        let id = mix(puts) % rows;
        let value = bench.values.value(id, VALUE_BYTES);
        bench.side.write(&[Write::Put(&key(id), value)], false)?;
        puts += 1;
        let due = begin + Duration::from_millis(puts / PUTS_PER_MS);
        clock.sleep(due.saturating_sub(clock.monotonic()));
    }
    Ok(puts)
}
