//! What people do with a source tree: unpack it, search it, pack it, copy it, remove it. By the
//! commands that they use (GNU tar, find, grep, cp, rm).
//!
//! Each step begins with nothing in memory. The tree is that of `--tree`, or one that is made (see
//! [`shape`]), once in a run.

mod shape;

use super::command::{self, phase};
use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::disk::output;
use crate::measure::Op;
use anyhow::{Result, ensure};
use rustix::fs::XattrFlags;
use std::fs;
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
    Caches::Cold,
];

pub(super) fn workload() -> FsWorkload {
    FsWorkload {
        why_not: command::why_not,
        ..FsWorkload::new(
            "source-tree",
            "a source tree: untar until sync; cold: find, grep -r, tar, mv of all directories and \
             back until sync, cp -a until sync, rm -rf until sync, and of the copy rmtree \
             (elsewhere rm -rf) until sync",
            STEPS,
            run,
        )
    }
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    stage.without_cap();
    let root = stage.root()?;
    let tree = root.join("tree");
    match step {
        0 => untar(stage, &tree),
        1 => find(stage, &tree),
        2 => grep(stage, &tree),
        3 => tar(stage, &tree),
        4 => move_all(stage, &tree),
        5 => copy(stage, &tree),
        6 => remove(stage, &tree),
        _ => remove_tree(stage, &tree),
    }
}

/// The tarball, made if need be.
pub(super) fn tarball(stage: &Stage<'_>) -> Result<PathBuf> {
    let scale = stage.fs_scale();
    match scale.tree {
        Some(path) => Ok(path.canonicalize()?),
        None => shape::tarball(stage.scratch(), scale.tree_files),
    }
}

/// Returns the tree itself, not on a side, unpacked if necessary. It is never changed.
pub(super) fn unpacked(stage: &Stage<'_>) -> Result<PathBuf> {
    made_once(stage, "unpacked", |begun| {
        let tarball = tarball(stage)?;
        fs::create_dir(begun)?;
        let mut run = Command::new("tar");
        output(run.arg("-xf").arg(&tarball).arg("-C").arg(begun)).map(drop)
    })
}

/// A copy of the tree, off the sides, with a change of one's own, made if need be.
pub(super) fn changed_copy(
    stage: &Stage<'_>,
    name: &str,
    change: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    made_once(stage, name, |begun| {
        let tree = unpacked(stage)?;
        output(Command::new("cp").arg("-a").arg(&tree).arg(begun))?;
        change(begun)
    })
}

/// Makes something that is not on a side, once for all sides. It gets its name when it is complete.
fn made_once(
    stage: &Stage<'_>,
    name: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let path = stage.scratch().join(name);
    if !path.exists() {
        let begun = stage.scratch().join(format!("{name}.begun"));
        make(&begun)?;
        fs::rename(&begun, &path)?;
    }
    Ok(path)
}

/// The plain files of a tree, by their paths within it, in order.
pub(super) fn files(tree: &Path) -> Result<Vec<PathBuf>> {
    let mut run = Command::new("find");
    let found = output(run.arg(tree).args(["-type", "f", "-printf", "%P\n"]))?;
    let mut files: Vec<PathBuf> = found.lines().map(PathBuf::from).collect();
    files.sort();
    Ok(files)
}

/// Every tenth of them.
pub(super) fn every_tenth(tree: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    Ok(files(tree)?.into_iter().step_by(10))
}

/// Fails if two trees are not the same. What git keeps of its own is left out.
pub(super) fn check_same(one: &Path, other: &Path) -> Result<()> {
    let mut run = Command::new("diff");
    run.args(["-r", "-q", "--no-dereference", "-x", ".git"]);
    output(run.arg(one).arg(other)).map(drop)
}

fn untar(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    let tarball = tarball(stage)?;
    // Read once, so that it is in memory whichever side is first.
    std::io::copy(&mut fs::File::open(&tarball)?, &mut std::io::sink())?;
    fs::create_dir(tree)?;
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
    output(&mut diff)?;
    keep_dirs(stage, tree)
}

/// Where the directories of the tree are kept for [`move_all`], the deepest first, each a line.
fn dirs_path(stage: &Stage<'_>) -> PathBuf {
    stage.scratch().join("tree.dirs")
}

fn keep_dirs(stage: &Stage<'_>, tree: &Path) -> Result<()> {
    let mut run = Command::new("find");
    run.arg(tree).args(["-mindepth", "1", "-depth"]);
    let found = output(run.args(["-type", "d", "-printf", "tree/%P\n"]))?;
    Ok(fs::write(dirs_path(stage), found)?)
}

/// Every directory gets another name, and then its own again.
fn move_all(stage: &mut Stage<'_>, tree: &Path) -> Result<()> {
    let text = fs::read_to_string(dirs_path(stage))?;
    let (target, count) = (stage.target(), text.lines().count() as u64);
    ensure!(count > 0, "the tree has no directories");
    let moved = |dir: &str| format!("{dir}.moved");
    stage.phase("mv-cold", count, Ends::Synced, |record| {
        text.lines()
            .try_for_each(|dir| record.time(Op::Rename, (1, 0), || target.rename(dir, &moved(dir))))
    })?;
    let left = text.lines().find(|dir| tree.with_file_name(dir).exists());
    ensure!(left.is_none(), "{left:?} is still there");
    // From the top: a parent has its name again before its children.
    stage.phase("mv-back", count, Ends::Synced, |record| {
        text.lines()
            .rev()
            .try_for_each(|dir| record.time(Op::Rename, (1, 0), || target.rename(&moved(dir), dir)))
    })?;
    let (found, expected) = (self::count(tree)?, stage.carry);
    ensure!(found == expected, "mv left {found} of {expected}");
    check_same(&unpacked(stage)?, tree)
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
                Ok(()) => Ok(fs::remove_dir(&copied)?),
                Err(_) => output(Command::new("rm").arg("-rf").arg(&copied)).map(drop),
            }
        })
    })?;
    ensure!(!copied.exists(), "a tree was left");
    Ok(())
}
