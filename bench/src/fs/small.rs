//! Many files of 200 bytes by one, two or four threads, until all of it is durable (TokuBench of
//! the BetrFS paper, section 7.2); then a share of them is read, cold and from memory. Or as many
//! as the paper makes, and nothing else: of interest is how the rate holds while they become more.
//!
//! Directories have at most 128 entries.

use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::measure::{Op, by_threads};
use crate::values::mix;
use anyhow::{Result, ensure};

const LEN_BYTES: usize = 200;
const FANOUT: u64 = 128;
/// Threads that read from memory, at most.
const READERS: u64 = 2;
/// Threads of TokuBench.
const THREADS: u64 = 4;
/// Files of the sustained one for each of `--files`: 3 million where that is a million, as in the
/// paper.
const SUSTAINED: u64 = 3;
/// Files of it that are read to see that they are there.
const CHECKS: u64 = 1000;

pub(super) fn workloads() -> Vec<FsWorkload> {
    const STEPS: &[Caches] = &[Caches::Warm, Caches::Cold];
    vec![
        FsWorkload::new(
            "small-files",
            "files of 200 B by two threads until sync; read cold; open, read, close from memory",
            STEPS,
            |stage, step| run(stage, step, 2),
        ),
        FsWorkload::new(
            "small-files-1",
            "the same by one thread",
            STEPS,
            |stage, step| run(stage, step, 1),
        ),
        FsWorkload::new(
            "small-files-4",
            "the same by four threads, as in TokuBench",
            STEPS,
            |stage, step| run(stage, step, THREADS),
        ),
        FsWorkload {
            is_default: false,
            files_factor: SUSTAINED,
            ..FsWorkload::new(
                "small-files-sustained",
                "three times --files files of 200 B by four threads until sync, as many as \
                 TokuBench makes",
                STEPS,
                sustained,
            )
        },
    ]
}

fn path(thread: u64, number: u64) -> String {
    format!("{}/f{number}", dir(thread, number))
}

fn dir(thread: u64, number: u64) -> String {
    let upper = number / (FANOUT * FANOUT);
    format!("t{thread}/u{upper}/d{}", number / FANOUT)
}

fn run(stage: &mut Stage<'_>, step: u32, threads: u64) -> Result<()> {
    if step == 0 {
        let count = stage.fs_scale().files / 2;
        return write(stage, count, threads);
    }
    let written = stage.carry;
    // Cold, a share of them will do; the same ones are then in memory.
    let reads = (written / 10).max(written.min(1000));
    let each = written / threads;
    read(stage, "read-cold", (each, written, reads), 1)?;
    read(stage, "read-cached", (each, written, reads), 1)?;
    read(stage, "read-cached-2", (each, written, reads), READERS)
}

fn sustained(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    if step == 0 {
        let count = stage.fs_scale().files * SUSTAINED;
        return write(stage, count, THREADS);
    }
    check(stage, stage.carry)
}

/// Makes so many files, all threads together, or some more if they are few.
fn write(stage: &mut Stage<'_>, count: u64, threads: u64) -> Result<()> {
    stage.without_cap();
    let each = (count / threads).max(100);
    let (target, values) = (stage.target(), stage.values().clone());
    stage.phase("create", threads * each, Ends::Synced, |record| {
        by_threads(record, threads, |thread, record| {
            target.make_dir(&format!("t{thread}"))?;
            for number in 0..each {
                if number % (FANOUT * FANOUT) == 0 {
                    target.make_dir(&format!("t{thread}/u{}", number / (FANOUT * FANOUT)))?;
                }
                if number % FANOUT == 0 {
                    target.make_dir(&dir(thread, number))?;
                }
                let value = values.value(thread * each + number, LEN_BYTES);
                record.time(Op::Write, (1, LEN_BYTES as u64), || {
                    target.put(&path(thread, number), value)
                })?;
            }
            Ok(())
        })
    })?;
    stage.carry = threads * each;
    Ok(())
}

/// Opens, reads and closes files in random order.
fn read(
    stage: &mut Stage<'_>,
    name: &str,
    (each, written, reads): (u64, u64, u64),
    threads: u64,
) -> Result<()> {
    let (target, values, seed) = (stage.target(), stage.values().clone(), stage.seed());
    stage.phase(name, reads, Ends::Returned, |record| {
        by_threads(record, threads, |thread, record| {
            let mut found = Vec::new();
            let share = reads / threads;
            for read in thread * share..(thread + 1) * share {
                if record.is_over() {
                    break;
                }
                let id = mix(seed + read) % written;
                let path = path(id / each, id % each);
                record.time(Op::Read, (1, LEN_BYTES as u64), || {
                    target.read(&path, &mut found)
                })?;
                ensure!(
                    values.is_value(id, LEN_BYTES, &found),
                    "{path} is not what was written"
                );
            }
            Ok(())
        })
    })
}

/// Reads some of what was written, without measuring it.
fn check(stage: &Stage<'_>, written: u64) -> Result<()> {
    let (target, values) = (stage.target(), stage.values());
    let (each, mut found) = (written / THREADS, Vec::new());
    for read in 0..CHECKS.min(written) {
        let id = mix(stage.seed() + read) % written;
        let path = path(id / each, id % each);
        target.read(&path, &mut found)?;
        let is_it = values.is_value(id, LEN_BYTES, &found);
        ensure!(is_it, "{path} is not what was written");
    }
    Ok(())
}
