//! A git working tree that ages: a clone of a history, brought up to date commit after commit,
//! searched cold; against a fresh copy of it on the same file system (Conway et al., FAST 2017).

use super::command::{self, phase};
use super::git::git;
use super::source_tree::{changed_copy, files};
use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::disk::output;
use crate::measure::Op;
use crate::values::mix;
use anyhow::{Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Commits of the history that are pulled, one at a time; of a small tree fewer.
const COMMITS: u64 = 50;
const FILES_PER_COMMIT: u64 = 40;
/// Each changes one file in this many.
const CHANGED_PART: u64 = 20;
/// Looked for and nowhere found, so that all is read.
const PATTERN: &str = "no-such-word-anywhere";

const STEPS: &[Caches] = &[Caches::Warm, Caches::Cold, Caches::Warm, Caches::Cold];

pub(super) fn workload() -> FsWorkload {
    FsWorkload {
        why_not: |side| command::why_not(side).or_else(|| command::why_missing("git")),
        is_default: false,
        ..FsWorkload::new(
            "aging",
            "a git history of 50 commits pulled one at a time until sync; cold grep -r, aged and \
             of \
             a fresh copy",
            STEPS,
            run,
        )
    }
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    stage.without_cap();
    let root = stage.root()?;
    let (aged, fresh) = (root.join("aged"), root.join("fresh"));
    match step {
        0 => age(stage, &aged),
        1 => grep(stage, "grep-aged-cold", &aged),
        2 => copy(stage, &aged, &fresh),
        _ => grep(stage, "grep-fresh-cold", &fresh),
    }
}

/// Returns the number of commits that are pulled.
fn commits(stage: &Stage<'_>) -> u64 {
    let scale = stage.fs_scale();
    let fit = scale.tree_files / FILES_PER_COMMIT;
    if scale.tree.is_some() {
        COMMITS
    } else {
        fit.clamp(1, COMMITS)
    }
}

/// The history, made if need be: tags `step-0`, `step-1` and so on.
fn history(stage: &Stage<'_>) -> Result<PathBuf> {
    changed_copy(stage, "history", |begun| {
        output(git(begun).args(["init", "-q"]))?;
        commit(begun, 0)?;
        let files = files(begun)?;
        let files: Vec<_> = files.iter().filter(|f| !f.starts_with(".git")).collect();
        for step in 1..=commits(stage) {
            for (number, file) in (0u64..).zip(&files) {
                if mix(number ^ mix(step)).is_multiple_of(CHANGED_PART) {
                    edit(&begun.join(file), step)?;
                }
            }
            commit(begun, step)?;
        }
        Ok(())
    })
}

fn commit(repository: &Path, step: u64) -> Result<()> {
    output(git(repository).args(["add", "-A", "-f"]))?;
    let message = format!("step {step}");
    output(git(repository).args(["commit", "-q", "--allow-empty", "-m", &message]))?;
    output(git(repository).args(["tag", &format!("step-{step}")])).map(drop)
}

/// Adds a line in the middle of a file.
fn edit(file: &Path, step: u64) -> Result<()> {
    let mut bytes = fs::read(file)?;
    let middle = bytes.len() / 2;
    let line = bytes[middle..].iter().position(|byte| *byte == b'\n');
    let at = line.map_or(bytes.len(), |line| middle + line + 1);
    let added = format!("/* changed in step {step} */\n");
    bytes.splice(at..at, added.into_bytes());
    Ok(fs::write(file, bytes)?)
}

fn age(stage: &mut Stage<'_>, aged: &Path) -> Result<()> {
    let repository = history(stage)?;
    let mut run = git(stage.scratch());
    run.args(["clone", "-q", "--no-hardlinks", "--single-branch"]);
    run.args(["--branch", "step-0"]).arg(&repository).arg(aged);
    phase(stage, "clone", Ends::Synced, &mut run)?;
    let (target, commits) = (stage.target(), commits(stage));
    stage.phase("pull", commits, Ends::Synced, |record| {
        for step in 1..=commits {
            let mut run = git(aged);
            run.args(["pull", "-q", "--ff-only"]).arg(&repository);
            run.arg(format!("step-{step}"));
            record.time(Op::Command, (1, 0), || output(&mut run).map(drop))?;
            target.sync()?;
        }
        Ok(())
    })?;
    super::source_tree::check_same(&repository, aged)
}

fn grep(stage: &mut Stage<'_>, name: &str, tree: &Path) -> Result<()> {
    let mut run = Command::new("grep");
    run.args(["-r", "-c", "-F", "--exclude-dir=.git", PATTERN]);
    run.arg(tree);
    // It ends with 1 where it finds nothing.
    stage.phase(name, 1, Ends::Returned, |record| {
        let output = record.time(Op::Command, (1, 0), || Ok(run.output()?))?;
        ensure!(output.status.code() == Some(1), "grep: {}", output.status);
        Ok(())
    })
}

fn copy(stage: &mut Stage<'_>, aged: &Path, fresh: &Path) -> Result<()> {
    let mut run = Command::new("cp");
    run.arg("-a").arg(aged).arg(fresh);
    phase(stage, "cp-a", Ends::Synced, &mut run)?;
    super::source_tree::check_same(aged, fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_adds_a_line_behind_the_middle() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "one\ntwo\nthree\n").unwrap();
        edit(&file, 7).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text, "one\ntwo\n/* changed in step 7 */\nthree\n");
        fs::write(&file, "").unwrap();
        edit(&file, 8).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"/* changed in step 8 */\n");
    }
}
