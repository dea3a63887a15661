//! Rows of contents: chunks of 4 KiB of files of 128 to 508 KiB.
//!
//! | phase | what |
//! |---|---|
//! | `write` | files in random order, each in order, 256 KiB at a time |
//! | `overwrite` | 4 KiB at a random offset of a random file: half a `put`, half two upserts |
//! | `read` | whole files in random order, cold |
//! | `delete` | a third of the files, each by one range delete |
//! | `rest` | background work that was put off |
//!
//! A `put` overwrites a whole chunk; the upserts write across the border of two chunks.

use super::{Policy, Put, by_operation};
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use crate::side::{Fold, Write};
use crate::values::{Values, mix};
use anyhow::{Result, ensure};
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_format::fs_chunk::ChunkDelta;
use stitch_format::fs_key::{self, CHUNK_BYTES};
use stitch_format::fs_sys::UPSERT_CHUNK;
use stitch_kv::TreeOptions;

const ROW_BYTES: u64 = 16 + CHUNK_BYTES;
const CHUNK: usize = CHUNK_BYTES as usize;
/// Chunks of the shortest file: more than `fs` deletes one by one.
const CHUNKS_MIN: u64 = 32;
/// A file has so many more at most, less one.
const CHUNKS_MORE: u64 = 96;
/// Chunks of a file, on average.
const CHUNKS_MEAN: u64 = CHUNKS_MIN + CHUNKS_MORE / 2;
/// Chunks written at once.
const PIECE: usize = 64;
/// A patch across two chunks leaves at least so much of each.
const KEPT_BYTES: u16 = 512;
/// What is compared of a chunk, at each of its ends.
const ENDS_BYTES: usize = 16;
/// One file in so many is deleted.
const DELETED: usize = 3;
/// Number of the first file.
const FIRST_INO: u64 = 16;

pub(super) fn run(context: &mut Context<'_>, policy: Policy) -> Result<()> {
    let wanted = (context.scale().bytes / (CHUNKS_MEAN * ROW_BYTES)).max(4);
    let mut files = Files::new(wanted, context.seed());
    let bytes = files.order.iter().map(|file| chunks_of(*file) * ROW_BYTES);
    let bytes: u64 = bytes.sum();
    super::open(context, policy, tree_options(), (bytes, ROW_BYTES))?;
    let mut put = Put::default();
    let name = |phase: &str| format!("{phase} {}", policy.name);
    let chunks = bytes / ROW_BYTES;
    context.phase(&name("write"), Work::Load, chunks, |bench, record| {
        files.write_all(bench, record)
    })?;
    let live = files.count() * ROW_BYTES;
    context.last().live_bytes = live;
    context.set_live_bytes(live);
    put.note(context);
    let ops = files.count() / 2;
    context.phase(&name("overwrite"), Work::Load, ops, |bench, record| {
        for _ in 0..ops {
            if record.is_over() {
                break;
            }
            files.overwrite(bench, record)?;
        }
        Ok(())
    })?;
    put.note(context);
    by_operation(context);
    context.reopen_cold()?;
    files.shuffle();
    context.phase(&name("read"), Work::Read, files.count(), |bench, record| {
        let mut order = files.order.iter();
        order.try_for_each(|file| files.read(bench, record, *file))
    })?;
    let gone = files.order.len() / DELETED;
    context.phase(&name("delete"), Work::Load, gone as u64, |bench, record| {
        files.delete(bench, record, gone)
    })?;
    let live = files.count() * ROW_BYTES;
    context.last().live_bytes = live;
    context.set_live_bytes(live);
    put.rest(context, policy)
}

/// As `fs` makes the tree of contents.
fn tree_options() -> TreeOptions {
    TreeOptions {
        block_bytes: 64 << 10,
        ..TreeOptions::default()
    }
}

const fn chunks_of(file: u64) -> u64 {
    CHUNKS_MIN + mix(file) % CHUNKS_MORE
}

const fn ino(file: u64) -> Ino {
    Ino(FIRST_INO + file)
}

/// The writes that a chunk's first and last bytes are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WriteNumbers {
    first: u8,
    last: u8,
}

/// What there is.
struct Files {
    rng: Rng,
    /// Files in the order in which they are written, read and deleted.
    order: Vec<u64>,
    /// Of each file, its chunks; none before it is written.
    chunks: Vec<Vec<WriteNumbers>>,
}

impl Files {
    fn new(count: u64, seed: u64) -> Self {
        let mut files = Self {
            rng: Rng::new(seed),
            order: (0..count).collect(),
            chunks: vec![Vec::new(); index(count)],
        };
        files.shuffle();
        files
    }

    fn shuffle(&mut self) {
        for last in (1..self.order.len()).rev() {
            let other = index(self.rng.below(last as u64 + 1));
            self.order.swap(last, other);
        }
    }

    /// Chunks that can be read.
    fn count(&self) -> u64 {
        let files = self.order.iter();
        files
            .map(|file| self.chunks[index(*file)].len() as u64)
            .sum()
    }

    /// Writes files until the time is over; forgets the others.
    fn write_all(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>) -> Result<()> {
        for n in 0..self.order.len() {
            if record.is_over() && n > 0 {
                self.order.truncate(n);
                break;
            }
            self.write(bench, record, self.order[n])?;
        }
        Ok(())
    }

    fn write(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>, file: u64) -> Result<()> {
        let numbers: Vec<u64> = (0..chunks_of(file)).collect();
        for piece in numbers.chunks(PIECE) {
            let keys: Vec<_> = piece.iter().map(|n| fs_key::chunk(ino(file), *n)).collect();
            let pairs = keys.iter().zip(piece);
            let puts = pairs.map(|(key, n)| Write::Put(key, written(bench.values, (file, *n), 0)));
            let puts: Vec<Write<'_>> = puts.collect();
            let size = (piece.len() as u64, piece.len() as u64 * ROW_BYTES);
            record.time(Op::Write, size, || bench.side.write(&puts, false))?;
        }
        self.chunks[index(file)] = vec![WriteNumbers::default(); numbers.len()];
        Ok(())
    }

    fn overwrite(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>) -> Result<()> {
        let file = self.order[index(self.rng.below(self.order.len() as u64))];
        let number = self.rng.below(chunks_of(file) - 1);
        if self.rng.one_in(2) {
            return self.put(bench, record, (file, number));
        }
        let room = CHUNK_BYTES - 2 * u64::from(KEPT_BYTES);
        let skip = u16::try_from(self.rng.below(room)).expect("within a chunk") + KEPT_BYTES;
        self.patch(bench, record, (file, number), skip)
    }

    /// Puts a whole chunk.
    fn put(
        &mut self,
        bench: &Bench<'_>,
        record: &mut Recorder<'_>,
        (file, number): (u64, u64),
    ) -> Result<()> {
        let ends = &mut self.chunks[index(file)][index(number)];
        let write = ends.next();
        *ends = WriteNumbers {
            first: write,
            last: write,
        };
        let key = fs_key::chunk(ino(file), number);
        let put = [Write::Put(
            &key,
            written(bench.values, (file, number), write),
        )];
        record.time(Op::Put, (1, ROW_BYTES), || bench.side.write(&put, false))
    }

    /// Changes the end of a chunk, from `skip` on, and the beginning of the next one, up to there.
    fn patch(
        &mut self,
        bench: &Bench<'_>,
        record: &mut Recorder<'_>,
        (file, number): (u64, u64),
        skip: u16,
    ) -> Result<()> {
        let chunks = &mut self.chunks[index(file)][index(number)..];
        let writes = [chunks[0].next(), chunks[1].next()];
        chunks[0].last = writes[0];
        chunks[1].first = writes[1];
        let at = usize::from(skip);
        let values = bench.values;
        let end = &written(values, (file, number), writes[0])[at..];
        let beginning = &written(values, (file, number + 1), writes[1])[..at];
        let deltas = [delta(skip, end), delta(0, beginning)];
        let keys = [0, 1].map(|n| fs_key::chunk(ino(file), number + n));
        let folds = [0, 1].map(|n: usize| Fold {
            key: &keys[n],
            function: UPSERT_CHUNK,
            delta: &deltas[n],
        });
        record.time(Op::Write, (1, ROW_BYTES), || {
            bench.side.write_and_fold(&[], &folds)
        })
    }

    /// Reads a file and compares both ends of each chunk.
    fn read(&self, bench: &Bench<'_>, record: &mut Recorder<'_>, file: u64) -> Result<()> {
        if record.is_over() {
            return Ok(());
        }
        let chunks = &self.chunks[index(file)];
        let count = chunks.len() as u64;
        let (start, end) = (fs_key::chunk(ino(file), 0), fs_key::chunk(ino(file), count));
        let mut seen = 0;
        let mut wrong = 0u64;
        record.time(Op::Read, (count, count * ROW_BYTES), || {
            bench.side.scan_whole(&start, &end, &mut |_, value| {
                let ends = chunks.get(index(seen)).copied().unwrap_or_default();
                wrong += u64::from(!ends.are_of(bench.values, (file, seen), value));
                seen += 1;
                true
            })
        })?;
        ensure!(seen == count, "file {file} shows {seen} chunks of {count}");
        ensure!(wrong == 0, "{wrong} chunks of file {file} are wrong");
        Ok(())
    }

    /// Deletes the first so many files.
    fn delete(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>, count: usize) -> Result<()> {
        for n in 0..count {
            if record.is_over() {
                break;
            }
            let file = self.order[n];
            let chunks = chunks_of(file);
            let (start, end) = (
                fs_key::chunk(ino(file), 0),
                fs_key::chunk(ino(file), chunks),
            );
            let is_offered = record.time(Op::Delete, (1, chunks * ROW_BYTES), || {
                bench.side.delete_range(&start, &end)
            })?;
            ensure!(is_offered, "a range delete is needed");
            self.chunks[index(file)].clear();
        }
        Ok(())
    }
}

impl WriteNumbers {
    /// The number of the next write.
    fn next(self) -> u8 {
        self.first.max(self.last).wrapping_add(1)
    }

    /// Whether a chunk begins and ends so.
    fn are_of(self, values: &Values, chunk: (u64, u64), found: &[u8]) -> bool {
        let first = written(values, chunk, self.first);
        let last = written(values, chunk, self.last);
        found.len() == CHUNK
            && found[..ENDS_BYTES] == first[..ENDS_BYTES]
            && found[CHUNK - ENDS_BYTES..] == last[CHUNK - ENDS_BYTES..]
    }
}

/// What a write of a chunk holds.
fn written(values: &Values, (file, number): (u64, u64), write: u8) -> &[u8] {
    values.value(mix(file) ^ (number << 8) ^ u64::from(write), CHUNK)
}

fn delta(offset: u16, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 3);
    ChunkDelta::Patch { offset, bytes }.encode(&mut out);
    out
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_file_is_written_once() {
        let files = Files::new(100, 1);
        let set: BTreeSet<u64> = files.order.iter().copied().collect();
        assert_eq!(set.len(), 100);
        assert!(!files.order.is_sorted());
        let chunks = files.order.iter().map(|file| chunks_of(*file)).sum::<u64>();
        assert!((70..90).contains(&(chunks / 100)), "{chunks}");
    }

    #[test]
    fn a_chunk_is_told_by_both_of_its_ends() {
        let values = Values::new(1);
        let ends = WriteNumbers { first: 1, last: 2 };
        assert_eq!(ends.next(), 3);
        let mut found = written(&values, (5, 6), 1).to_vec();
        assert!(!ends.are_of(&values, (5, 6), &found));
        found[2000..].copy_from_slice(&written(&values, (5, 6), 2)[2000..]);
        assert!(ends.are_of(&values, (5, 6), &found));
        assert!(!ends.are_of(&values, (5, 7), &found));
    }
}
