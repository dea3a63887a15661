//! A file that is overwritten at random while snapshots come and go: one after each hundredth of
//! the file, the newest hundred kept. Space and latencies are to stay as they are once the first
//! snapshots go.

use super::commands::{self, SnapshotCommands};
use crate::disk::output;
use crate::fs::command;
use crate::fs::stage::{Ends, Stage};
use crate::fs::{Caches, FsWorkload};
use crate::measure::{Op, Recorder};
use crate::values::mix;
use anyhow::{Result, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const PAGE_BYTES: usize = 4096;
/// Snapshots that are made: one each 20 s would take an hour.
const SNAPSHOTS_MAX: u32 = 180;
/// Snapshots that are kept, of nine that are made.
const KEPT_OF_NINE: u32 = 5;
/// Phases, each with as many snapshots.
const PHASES: u32 = 6;
/// Pages of the file for each that is overwritten before a snapshot.
const PAGES_PER_OVERWRITE: u64 = 100;
/// A small file has so many pages for each snapshot.
const PAGES_PER_SNAPSHOT: u64 = 128;

pub(in crate::fs) fn workload() -> FsWorkload {
    FsWorkload {
        why_not: |side| command::why_not(side).or_else(|| commands::why_no_snapshots(side)),
        is_default: false,
        ..FsWorkload::new(
            "snapshots-kept",
            "a quarter of --bytes overwritten at random by 4 KiB, 180 snapshots, 100 kept; by \
             sixths",
            &[Caches::Warm],
            run,
        )
    }
}

/// The numbers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    pages: u64,
    snapshots: u32,
    kept: u32,
    overwrites: u64,
}

impl Plan {
    fn of(bytes: u64) -> Self {
        let pages = (bytes / 4 / PAGE_BYTES as u64).max(1);
        let fit = u32::try_from(pages / PAGES_PER_SNAPSHOT).unwrap_or(u32::MAX);
        // Whole phases, and at least one snapshot that goes.
        let snapshots = (fit.clamp(PHASES * 3, SNAPSHOTS_MAX) / PHASES) * PHASES;
        Self {
            pages,
            snapshots,
            kept: snapshots * KEPT_OF_NINE / 9,
            overwrites: (pages / PAGES_PER_OVERWRITE).max(1),
        }
    }
}

fn run(stage: &mut Stage<'_>, _step: u32) -> Result<()> {
    stage.without_cap();
    let plan = Plan::of(stage.scale().bytes);
    let commands = SnapshotCommands::of(stage.side(), stage.root()?)?;
    commands.make_source()?;
    let path = commands.source().join("file");
    let file = File::create(&path)?;
    let values = stage.values();
    stage.phase("write", plan.pages, Ends::Synced, |record| {
        for page in 0..plan.pages {
            let value = values.value(page, PAGE_BYTES);
            record.time(Op::Write, (1, PAGE_BYTES as u64), || {
                Ok(file.write_all_at(value, page * PAGE_BYTES as u64)?)
            })?;
        }
        Ok(())
    })?;
    let each = plan.snapshots / PHASES;
    for phase in 0..PHASES {
        let snapshots = phase * each..(phase + 1) * each;
        overwrite(stage, (&commands, &file), plan, snapshots)?;
        let stat = rustix::fs::statvfs(stage.root()?)?;
        let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
        stage.add_figure("MB used", used);
    }
    check(&commands, plan)
}

/// Makes these snapshots, each after its overwrites, and removes as many old ones.
fn overwrite(
    stage: &mut Stage<'_>,
    (commands, file): (&SnapshotCommands, &File),
    plan: Plan,
    snapshots: std::ops::Range<u32>,
) -> Result<()> {
    let (values, seed) = (stage.values(), stage.seed());
    let name = format!("overwrite-{}", snapshots.end);
    let total = u64::from(snapshots.end - snapshots.start) * plan.overwrites;
    stage.phase(&name, total, Ends::Synced, |record| {
        for snapshot in snapshots {
            let first = u64::from(snapshot) * plan.overwrites;
            for number in first..first + plan.overwrites {
                let page = mix(seed + number) % plan.pages;
                let value = values.value(plan.pages + number, PAGE_BYTES);
                record.time(Op::Write, (1, PAGE_BYTES as u64), || {
                    Ok(file.write_all_at(value, page * PAGE_BYTES as u64)?)
                })?;
            }
            record.time(Op::Sync, (0, 0), || Ok(file.sync_all()?))?;
            turn(record, commands, plan, snapshot)?;
        }
        Ok(())
    })
}

/// Makes a snapshot, and removes the one that is too many.
fn turn(
    record: &mut Recorder<'_>,
    commands: &SnapshotCommands,
    plan: Plan,
    snapshot: u32,
) -> Result<()> {
    record.time(Op::Command, (0, 0), || {
        output(&mut commands.snapshot(snapshot)).map(drop)
    })?;
    let Some(old) = snapshot.checked_sub(plan.kept) else {
        return Ok(());
    };
    record.time(Op::Command, (0, 0), || {
        output(&mut commands.delete(old)).map(drop)
    })
}

/// Fails unless the snapshots that are kept, and no others, are there, each with the whole file.
fn check(commands: &SnapshotCommands, plan: Plan) -> Result<()> {
    for snapshot in 0..plan.snapshots {
        let is_kept = snapshot + plan.kept >= plan.snapshots;
        let found = commands.snapshot_path(snapshot).join("file").metadata();
        let bytes = found.map(|file| file.len()).unwrap_or_default();
        let expected = if is_kept {
            plan.pages * PAGE_BYTES as u64
        } else {
            0
        };
        ensure!(
            bytes == expected,
            "snapshot {snapshot}: {bytes} bytes, expected {expected}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_has_fewer_snapshots() {
        let large = Plan::of(1 << 30);
        assert_eq!((large.snapshots, large.kept), (180, 100));
        assert_eq!(large.overwrites, 65_536 / 100);
        let small = Plan::of(1 << 20);
        assert_eq!((small.snapshots, small.kept), (18, 10));
        assert_eq!((small.pages, small.overwrites), (64, 1));
    }
}
