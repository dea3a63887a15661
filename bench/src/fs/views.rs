//! Snapshots and clones of a directory with many small files: made, read cold, compared, sent and
//! removed. Btrfs does the same with a subvolume, XFS with a copy that shares extents.

mod commands;
pub(super) mod kept;

use super::command::{self, phase};
use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::disk::output;
use crate::measure::Op;
use crate::values::mix;
use anyhow::{Result, ensure};
use commands::SnapshotCommands;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

const LEN_BYTES: usize = 200;
const FANOUT: u64 = 128;
/// One file is made for so many of `--files`: 100,000 of a million.
const SHARE: u64 = 10;
/// Snapshots, and clones, that are made.
const VIEWS: u32 = 5;
/// Files that are changed before `diff`.
const CHANGES: u64 = 100;
/// One file in this many is changed before `send`.
const SENT_PART: u64 = 100;

const STEPS: &[Caches] = &[Caches::Warm, Caches::Cold, Caches::Cold, Caches::Cold];

pub(super) fn workload() -> FsWorkload {
    FsWorkload {
        why_not: |side| command::why_not(side).or_else(|| commands::why_not(side)),
        ..FsWorkload::new(
            "snapshots",
            "a directory of --files/10 files of 200 B: 5 snapshots, 5 clones; cold: tar of it, tar \
             of a clone; diff of 100 changes; send of one file in 100; all removed until sync",
            STEPS,
            run,
        )
    }
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    stage.without_cap();
    let commands = SnapshotCommands::of(stage.side(), stage.root()?)?;
    match step {
        0 => make(stage, &commands),
        1 => tar(stage, "tar-source-cold", &commands.source()),
        2 => tar(stage, "tar-clone-cold", &commands.clone_path(0)),
        _ => change_and_remove(stage, &commands),
    }
}

/// Returns the path of a file within the directory.
fn path(number: u64) -> String {
    format!("d{}/f{number}", number / FANOUT)
}

/// Writes the files, then makes the snapshots and clones.
fn make(stage: &mut Stage<'_>, commands: &SnapshotCommands) -> Result<()> {
    let count = (stage.fs_scale().files / SHARE).max(CHANGES);
    commands.make_source()?;
    let (source, values) = (commands.source(), stage.values());
    stage.phase("create", count, Ends::Synced, |record| {
        for number in 0..count {
            if number.is_multiple_of(FANOUT) {
                fs::create_dir(source.join(format!("d{}", number / FANOUT)))?;
            }
            let value = values.value(number, LEN_BYTES);
            record.time(Op::Write, (1, LEN_BYTES as u64), || {
                Ok(fs::write(source.join(path(number)), value)?)
            })?;
        }
        Ok(())
    })?;
    stage.carry = count;
    if commands.has_snapshots() {
        for_each_view(stage, "snapshot", &|number| commands.snapshot(number))?;
    }
    for_each_view(stage, "clone", &|number| commands.clone(number))?;
    check_files(&commands.clone_path(0), count)
}

/// Runs a command for each view, as a phase.
fn for_each_view(stage: &mut Stage<'_>, name: &str, make: &dyn Fn(u32) -> Command) -> Result<()> {
    stage.phase(name, u64::from(VIEWS), Ends::Synced, |record| {
        (0..VIEWS).try_for_each(|number| {
            record.time(Op::Command, (1, 0), || output(&mut make(number)).map(drop))
        })
    })
}

/// Fails unless a tree has this many files.
fn check_files(tree: &Path, expected: u64) -> Result<()> {
    let found = output(Command::new("find").arg(tree).args(["-type", "f"]))?;
    let count = found.lines().count() as u64;
    ensure!(count == expected, "{count} files of {expected} are there");
    Ok(())
}

/// Reads all of a tree.
fn tar(stage: &mut Stage<'_>, name: &str, tree: &Path) -> Result<()> {
    let mut run = Command::new("sh");
    // Into a pipe: into /dev/null tar would read nothing.
    run.args(["-c", "tar -cf - -C \"$0\" . | wc -c"]).arg(tree);
    let read = phase(stage, name, Ends::Returned, &mut run)?;
    let (bytes, least): (u64, u64) = (read.trim().parse()?, stage.carry * LEN_BYTES as u64);
    ensure!(bytes > least, "tar read {bytes} bytes");
    Ok(())
}

/// Changes a hundred files and asks which; changes more and sends them; removes all views.
fn change_and_remove(stage: &mut Stage<'_>, commands: &SnapshotCommands) -> Result<()> {
    let count = stage.carry;
    if commands.has_snapshots() {
        change(stage, &commands.source(), CHANGES)?;
        diff(stage, commands)?;
        change(stage, &commands.source(), (count / SENT_PART).max(1))?;
        send(stage, commands)?;
    }
    if commands.has_snapshots() {
        for_each_view(stage, "delete", &|number| commands.delete(number))?;
    }
    for_each_view(stage, "destroy", &|number| commands.destroy(number))?;
    check_files(&commands.source(), count)
}

/// Adds a line to this many files, until sync.
fn change(stage: &Stage<'_>, source: &Path, changes: u64) -> Result<()> {
    let step = (stage.carry / changes).max(1);
    let first = mix(stage.seed() ^ changes) % step;
    for number in (0..stage.carry)
        .skip(usize::try_from(first)?)
        .step_by(usize::try_from(step)?)
    {
        let file = fs::File::options()
            .append(true)
            .open(source.join(path(number)));
        file?.write_all(b"changed\n")?;
    }
    stage.target().sync()
}

fn diff(stage: &mut Stage<'_>, commands: &SnapshotCommands) -> Result<()> {
    let shown = phase(stage, "diff", Ends::Returned, &mut commands.diff())?;
    let bytes = shown.len() as u64;
    ensure!(bytes >= CHANGES, "{bytes} bytes tell of {CHANGES} changes");
    Ok(())
}

fn send(stage: &mut Stage<'_>, commands: &SnapshotCommands) -> Result<()> {
    output(&mut commands.snapshot(VIEWS))?;
    let sent = phase(stage, "send", Ends::Returned, &mut commands.send(VIEWS))?;
    let bytes: u64 = sent.trim().parse()?;
    ensure!(bytes > 100, "{bytes} bytes were sent");
    output(&mut commands.delete(VIEWS)).map(drop)
}
