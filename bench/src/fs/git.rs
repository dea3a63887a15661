//! Version control over a source tree, by git: a clone, and what is asked of it cold.
//!
//! The repository is made once in a run, off the sides, of the tree of `source-tree`.

use super::command::{self, phase};
use super::source_tree::{self, changed_copy, every_tenth, unpacked};
use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::disk::output;
use anyhow::{Result, ensure};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const CHANGE: &[u8] = b"\n/* changed */\n";

pub(super) fn workload() -> FsWorkload {
    FsWorkload {
        why_not: |side| command::why_not(side).or_else(|| command::why_missing("git")),
        ..FsWorkload::new(
            "git",
            "a clone of a local repository until sync; cold: status; after changes of every tenth \
             file: status, diff",
            &[Caches::Warm, Caches::Cold, Caches::Cold, Caches::Cold],
            run,
        )
    }
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    stage.without_cap();
    let clone = stage.root()?.join("clone");
    match step {
        0 => make_clone(stage, &clone),
        1 => unchanged(stage, &clone),
        2 => status(stage, &clone),
        _ => diff(stage, &clone),
    }
}

/// Returns git in a folder, without the user's configuration.
pub(super) fn git(folder: &Path) -> Command {
    let mut run = Command::new("git");
    run.arg("-C").arg(folder);
    for (name, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "bench"),
        ("GIT_AUTHOR_EMAIL", "bench@localhost"),
        ("GIT_COMMITTER_NAME", "bench"),
        ("GIT_COMMITTER_EMAIL", "bench@localhost"),
    ] {
        run.env(name, value);
    }
    // Without background work.
    run.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"]);
    run
}

/// The repository, made if need be.
fn repository(stage: &Stage<'_>) -> Result<PathBuf> {
    changed_copy(stage, "repository", |begun| {
        output(git(begun).args(["init", "-q"]))?;
        output(git(begun).args(["add", "-A", "-f"]))?;
        output(git(begun).args(["commit", "-q", "-m", "all of it"])).map(drop)
    })
}

fn make_clone(stage: &mut Stage<'_>, clone: &Path) -> Result<()> {
    let repository = repository(stage)?;
    let mut run = git(stage.scratch());
    run.args(["clone", "-q", "--no-hardlinks"]);
    phase(
        stage,
        "clone",
        Ends::Synced,
        run.arg(&repository).arg(clone),
    )?;
    source_tree::check_same(&repository, clone)
}

/// What changed, a file a line, is as long as what was changed.
fn status_phase(stage: &mut Stage<'_>, clone: &Path, name: &str, expected: u64) -> Result<()> {
    let mut run = git(clone);
    let run = run.args(["status", "--porcelain"]);
    let found = phase(stage, name, Ends::Returned, run)?;
    let count = found.lines().count() as u64;
    ensure!(
        count == expected,
        "git tells of {count} changes of {expected}"
    );
    Ok(())
}

fn unchanged(stage: &mut Stage<'_>, clone: &Path) -> Result<()> {
    status_phase(stage, clone, "status-cold", 0)?;
    stage.carry = 0;
    for path in every_tenth(&unpacked(stage)?)? {
        let file = fs::File::options().append(true).open(clone.join(path));
        file?.write_all(CHANGE)?;
        stage.carry += 1;
    }
    ensure!(stage.carry > 0, "the tree has no files");
    stage.target().sync()
}

fn status(stage: &mut Stage<'_>, clone: &Path) -> Result<()> {
    status_phase(stage, clone, "status-changed-cold", stage.carry)
}

fn diff(stage: &mut Stage<'_>, clone: &Path) -> Result<()> {
    let mut run = git(clone);
    let found = phase(stage, "diff-cold", Ends::Returned, run.arg("diff"))?;
    let line = std::str::from_utf8(CHANGE.trim_ascii())?;
    let added = found
        .lines()
        .filter(|found| found.strip_prefix('+') == Some(line));
    let (count, expected) = (added.count() as u64, stage.carry);
    ensure!(count == expected, "git shows {count} changes of {expected}");
    Ok(())
}
