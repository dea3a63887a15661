//! What people do with a source tree: unpack it, search it, pack it, copy it, remove it. By the
//! commands that they use (GNU tar, find, grep, cp, rm).
//!
//! Each step begins with nothing in memory. The tree is that of `--tree`, or one that is made (see
//! [`shape`]), once in a run.

mod shape;

use super::stage::{Ends, Stage};
use super::{Caches, Workload, command};
use crate::disk::output;
use crate::measure::Op;
use anyhow::{Result, ensure};
use rustix::fs::XattrFlags;
use std::path::{Path, PathBuf};
use std::process::Command;
use stitch_fuse::adapter::REMOVE_TREE_XATTR;

/// What `grep` looks for: it is nowhere, so everything is read.
const PATTERN: &str = "no-such-word-anywhere";
const STEPS: &[Caches] = &[
    Caches::Warm,
    Caches::Cold,
    Caches::Cold,
    Caches::Cold,
    Caches::Cold,
    Caches::Cold,
    Caches::Cold,
];

pub(super) fn workload() -> Workload {
    Workload {
        why_not: command::why_not,
        ..Workload::new(
            "source-tree",
            "a source tree: untar until sync; cold: find, grep -r, tar, cp -a until sync, rm -rf until sync, and of the copy rmtree (elsewhere rm -rf) until sync",
            STEPS,
            run,
        )
    }
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    let root = stage.root()?;
    let tree = root.join("tree");
    match step {
        0 => untar(stage, &tree),
        1 => find(stage, &tree),
        2 => grep(stage, &tree),
        3 => tar(stage, &tree),
        4 => copy(stage, &tree),
        5 => remove(stage, &tree),
        _ => remove_tree(stage, &tree),
    }
}

/// The tarball, made if need be.
fn tarball(stage: &Stage<'_>) -> Result<PathBuf> {
    let scale = stage.fs_scale();
    match scale.tree {
        Some(path) => Ok(path.canonicalize()?),
        None => shape::tarball(stage.scratch(), scale.tree_files),
    }
}

/// One command as a phase; an operation is a run of it.
fn phase(stage: &mut Stage<'_>, name: &str, ends: Ends, run: &mut Command) -> Result<String> {
    stage.phase(name, 1, ends, |record| {
        record.time(Op::Command, (1, 0), || output(run))
    })
}

fn untar(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    let tarball = tarball(stage)?;
    // Read once, so that it is in memory whichever side is first.
    std::io::copy(&mut std::fs::File::open(&tarball)?, &mut std::io::sink())?;
    std::fs::create_dir(tree)?;
    let mut run = Command::new("tar");
    run.arg("-xf").arg(&tarball).arg("-C").arg(tree);
    phase(stage, "untar", Ends::Synced, &mut run)?;
    // Counted once by a command that is not timed; the other steps must find as many.
    stage.carry = count(tree)?;
    ensure!(stage.carry > 1, "the tarball is empty");
    let mut diff = Command::new("tar");
    diff.arg("--diff")
        .arg("-f")
        .arg(&tarball)
        .arg("-C")
        .arg(tree);
    output(&mut diff).map(drop)
}

fn count(tree: &Path) -> Result<u64> {
    let found = output(Command::new("find").arg(tree))?;
    Ok(found.lines().count() as u64)
}

fn find(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    let mut run = Command::new("find");
    // With a size, each file is looked at.
    run.arg(tree).args(["-size", "-1000000k"]);
    let found = phase(stage, "find-cold", Ends::Returned, &mut run)?;
    let (found, expected) = (found.lines().count() as u64, stage.carry);
    ensure!(found == expected, "find found {found} of {expected}");
    Ok(())
}

fn grep(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    let mut run = Command::new("grep");
    run.args(["-r", "-c", "-F", PATTERN]).arg(tree);
    // It ends with 1 where it finds nothing.
    stage.phase("grep-cold", 1, Ends::Returned, |record| {
        let output = record.time(Op::Command, (1, 0), || Ok(run.output()?))?;
        ensure!(output.status.code() == Some(1), "grep: {}", output.status);
        Ok(())
    })
}

fn tar(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    // Into a pipe: into /dev/null it would read nothing.
    let mut run = Command::new("sh");
    run.args(["-c", "tar -cf - -C \"$0\" . | cat > /dev/null"])
        .arg(tree);
    phase(stage, "tar-cold", Ends::Returned, &mut run).map(drop)
}

fn copy(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    let copied = tree.with_file_name("copy");
    let mut run = Command::new("cp");
    run.arg("-a").arg(tree).arg(&copied);
    phase(stage, "cp-a-cold", Ends::Synced, &mut run)?;
    ensure!(count(&copied)? == stage.carry, "cp lost files");
    Ok(())
}

fn remove(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    let mut run = Command::new("rm");
    run.arg("-rf").arg(tree);
    phase(stage, "rm-rf-cold", Ends::Synced, &mut run)?;
    ensure!(!tree.exists(), "rm left something");
    Ok(())
}

/// As `stitchfs rmtree` does it; where there is no such thing, by `rm -rf`.
fn remove_tree(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    let copied = tree.with_file_name("copy");
    stage.phase("rmtree-cold", 1, Ends::Synced, |record| {
        record.time(Op::Command, (1, 0), || {
            let flags = XattrFlags::empty();
            match rustix::fs::lsetxattr(&copied, REMOVE_TREE_XATTR, b"1", flags) {
                Ok(()) => Ok(std::fs::remove_dir(&copied)?),
                Err(_) => output(Command::new("rm").arg("-rf").arg(&copied)).map(drop),
            }
        })
    })?;
    ensure!(!copied.exists(), "a tree was left");
    Ok(())
}
