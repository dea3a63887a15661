//! One large file: written in order until all of it is durable, read cold; then small writes at
//! random places of it while it is cold, until they are durable (BetrFS paper, section 7.1).

use super::stage::{Ends, Stage};
use super::target::OpenFile;
use super::{Caches, FsWorkload};
use crate::measure::Op;
use crate::values::{Values, mix};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;

const PIECE_BYTES: usize = 1 << 20;
const MICRO_BYTES: u64 = 4;
const MICRO_COUNT: u64 = 1000;
const PATH: &str = "large";

pub(super) fn workload() -> FsWorkload {
    FsWorkload::new(
        "large-file",
        "sequential write until sync; cold read; 1,000 writes of 4 B in the cold file, then fsync",
        &[Caches::Warm, Caches::Cold, Caches::Cold, Caches::Cold],
        run,
    )
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    stage.without_cap();
    let pieces = stage.scale().bytes / PIECE_BYTES as u64;
    let target = stage.target();
    let file = match step {
        0 | 2 => target.open(PATH, step == 0)?,
        _ => target.open_to_read(PATH)?,
    };
    match step {
        0 => write(stage, &*file, pieces),
        1 => read(stage, &*file, pieces),
        2 => micro_writes(stage, &*file, pieces),
        _ => check(stage, &*file, pieces),
    }
}

fn write(stage: &mut Stage<'_>, file: &dyn OpenFile, pieces: u64) -> Result<()> {
    let values = stage.values().clone();
    stage.phase("write", pieces, Ends::Synced, |record| {
        for piece in 0..pieces {
            let data = values.value(piece, PIECE_BYTES);
            record.time(Op::Write, (1, PIECE_BYTES as u64), || {
                file.write_at(data, piece * PIECE_BYTES as u64)
            })?;
        }
        Ok(())
    })
}

fn read(stage: &mut Stage<'_>, file: &dyn OpenFile, pieces: u64) -> Result<()> {
    let values = stage.values().clone();
    stage.phase("read-cold", pieces, Ends::Returned, |record| {
        let mut found = Vec::new();
        for piece in 0..pieces {
            let offset = piece * PIECE_BYTES as u64;
            record.time(Op::Read, (1, PIECE_BYTES as u64), || {
                file.read_at(&mut found, PIECE_BYTES, offset)
            })?;
            let is_it = values.is_value(piece, PIECE_BYTES, &found);
            ensure!(is_it, "piece {piece} is not what was written");
        }
        Ok(())
    })
}

/// Where the small writes go, and what they write. A later one may lie over an earlier one.
fn micro(seed: u64, pieces: u64) -> impl Iterator<Item = (u64, [u8; 4])> {
    let len_bytes = pieces * PIECE_BYTES as u64;
    (0..MICRO_COUNT).map(move |number| {
        let drawn = mix(seed + number);
        let offset = drawn % (len_bytes - MICRO_BYTES);
        let [a, b, c, d, ..] = drawn.to_le_bytes();
        (offset, [a, b, c, d])
    })
}

fn micro_writes(stage: &mut Stage<'_>, file: &dyn OpenFile, pieces: u64) -> Result<()> {
    let writes = micro(stage.seed(), pieces);
    stage.phase("micro-writes-cold", MICRO_COUNT, Ends::Returned, |record| {
        for (offset, data) in writes {
            record.time(Op::Write, (1, MICRO_BYTES), || file.write_at(&data, offset))?;
        }
        record.time(Op::Sync, (0, 0), || file.sync())
    })
}

/// What is read is what was written, the small writes too.
fn check(stage: &Stage<'_>, file: &dyn OpenFile, pieces: u64) -> Result<()> {
    let values = stage.values();
    let mut bytes: BTreeMap<u64, u8> = BTreeMap::new();
    for (offset, data) in micro(stage.seed(), pieces) {
        bytes.extend((offset..).zip(data));
    }
    for piece in 0..pieces {
        check_piece(file, &values, (piece, &bytes))?;
    }
    Ok(())
}

fn check_piece(
    file: &dyn OpenFile,
    values: &Values,
    (piece, bytes): (u64, &BTreeMap<u64, u8>),
) -> Result<()> {
    let start = piece * PIECE_BYTES as u64;
    let mut expected = values.value(piece, PIECE_BYTES).to_vec();
    for (offset, byte) in bytes.range(start..start + PIECE_BYTES as u64) {
        expected[usize::try_from(offset - start)?] = *byte;
    }
    let mut found = Vec::new();
    file.read_at(&mut found, PIECE_BYTES, start)?;
    ensure!(found == expected, "piece {piece} is not what was written");
    Ok(())
}
