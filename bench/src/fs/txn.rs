//! Commands in transactions (KVFS, VT-tree paper, sections 4.2.3 and 4.2.4), beside what people do
//! without them: a command sees the tree below an overlay, and what it changed is copied up when it
//! is wanted, as the tool `try` does.

use super::command::{self, phase};
use super::side::{FsSide, SideKind};
use super::source_tree::{check_same, tarball, unpacked};
use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload, tool};
use crate::disk::output;
use crate::measure::Op;
use anyhow::{Context as _, Result, ensure};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Runs of a command that does nothing.
const EMPTY_RUNS: u64 = 20;
/// Trees that are unpacked after one another, and at once.
const TOGETHER: u32 = 4;
const NAME: &str = "bench";

pub(super) fn workload() -> FsWorkload {
    FsWorkload {
        why_not: |side| command::why_not(side).or_else(|| why_not(side)),
        ..FsWorkload::new(
            "transactions",
            "untar and rm -rf of a source tree, plain and in a run, all until sync; a run of \
             `true`; a commit; four runs after one another and at once. Elsewhere: in an overlay, \
             copied up",
            &[Caches::Warm, Caches::Warm, Caches::Warm],
            run,
        )
    }
}

fn why_not(side: &FsSide) -> Option<String> {
    match side.kind {
        SideKind::Store(..) => tool::why_missing(),
        SideKind::Kernel(_) => None,
        _ => Some("it has no transactions".to_owned()),
    }
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    stage.without_cap();
    let side = FsSide::find(stage.side()).context("no such side")?;
    let commands = RunCommands::of(&side, stage.root()?)?;
    match step {
        0 => one_command(stage, &commands),
        1 => see_and_keep(stage, &commands),
        _ => four(stage, &commands),
    }
}

/// The commands that run a command apart from the rest.
struct RunCommands {
    has_transactions: bool,
    root: PathBuf,
}

impl RunCommands {
    fn of(side: &FsSide, root: PathBuf) -> Result<Self> {
        let has_transactions = matches!(side.kind, SideKind::Store(..));
        if !has_transactions {
            fs::create_dir_all(root.join("lower"))?;
        }
        Ok(Self {
            has_transactions,
            root,
        })
    }

    /// The directory that commands change.
    fn place(&self) -> PathBuf {
        match self.has_transactions {
            true => self.root.clone(),
            false => self.root.join("lower"),
        }
    }

    /// A shell command in a run of its own, whose changes are kept. `$0` is a directory of `place`.
    fn run(&self, script: &str, directory: &str, options: &[&str], more: &[&OsStr]) -> Command {
        if self.has_transactions {
            let mut run = tool::stitchfs(&["txn", "run"]);
            run.args(options)
                .arg(&self.root)
                .args(["--", "sh", "-c", script]);
            run.arg(self.place().join(directory)).args(more);
            return run;
        }
        // The overlay is mounted over the place, so that paths in it are the same.
        let kept = "mount -t overlay overlay -o lowerdir=\"$0\",upperdir=\"$1\",workdir=\"$2\" \
                    \"$0\" && shift 2 && exec sh -c \"$@\"";
        let copied = "unshare -m sh -c \"$0\" \"$@\" && upper=\"$2\" && cd \"$upper\" && find . \
                      -type c -exec sh -c 'rm -rf \"$0/$1\" && rm \"$1\"' \"$1\" {} \\; && \
                      cp -a . \"$1\" && rm -rf \"$upper\" \"$3\"";
        let (upper, work) = self.layers(directory);
        let mut run = Command::new("sh");
        run.args(["-c", copied, kept])
            .arg(self.place())
            .arg(upper)
            .arg(work);
        run.arg(script).arg(self.place().join(directory)).args(more);
        run
    }

    /// The layers of an overlay of its own.
    fn layers(&self, name: &str) -> (PathBuf, PathBuf) {
        let named = |kind: &str| self.root.join(format!("{kind}-{name}"));
        let (upper, work) = (named("upper"), named("work"));
        for layer in [&upper, &work] {
            // Those of the run before were removed; if not, the mount says so.
            let _ = fs::create_dir(layer);
        }
        (upper, work)
    }
}

const UNTAR: &str = "mkdir \"$0\" && tar -xf \"$1\" -C \"$0\"";
const REMOVE: &str = "rm -rf \"$0\"";

/// One command, plain and in a run.
fn one_command(stage: &mut Stage<'_>, commands: &RunCommands) -> Result<()> {
    let tarball = tarball(stage)?;
    std::io::copy(&mut fs::File::open(&tarball)?, &mut std::io::sink())?;
    empty_runs(stage, commands)?;
    let more = [tarball.as_os_str()];
    let mut plain = shell(UNTAR, &commands.place().join("plain"), &more);
    phase(stage, "untar", Ends::Synced, &mut plain)?;
    let mut run = commands.run(UNTAR, "run", &[], &more);
    phase(stage, "untar-run", Ends::Synced, &mut run)?;
    check_same(&unpacked(stage)?, &commands.place().join("run"))?;
    if commands.has_transactions {
        let mut run = commands.run(UNTAR, "serializable", &["--isolation", "ser"], &more);
        phase(stage, "untar-run-ser", Ends::Synced, &mut run)?;
    }
    let mut plain = shell(REMOVE, &commands.place().join("plain"), &[]);
    phase(stage, "rm-rf", Ends::Synced, &mut plain)?;
    let mut run = commands.run(REMOVE, "run", &[], &[]);
    phase(stage, "rm-rf-run", Ends::Synced, &mut run)?;
    ensure!(!commands.place().join("run").exists(), "a tree was left");
    Ok(())
}

fn shell(script: &str, directory: &Path, more: &[&OsStr]) -> Command {
    let mut run = Command::new("sh");
    run.args(["-c", script]).arg(directory).args(more);
    run
}

/// Runs `true` many times. What must be done without us: a mount namespace and a bind mount.
fn empty_runs(stage: &mut Stage<'_>, commands: &RunCommands) -> Result<()> {
    let apart = "mount --bind \"$0\" \"$0\" && exec true";
    let empty = || match commands.has_transactions {
        true => {
            let mut run = tool::stitchfs(&["txn", "run"]);
            run.arg(&commands.root).args(["--", "true"]);
            run
        }
        false => {
            let mut run = Command::new("unshare");
            run.args(["-m", "sh", "-c", apart]).arg(&commands.root);
            run
        }
    };
    stage.phase("run-true", EMPTY_RUNS, Ends::Returned, |record| {
        (0..EMPTY_RUNS)
            .try_for_each(|_| record.time(Op::Command, (1, 0), || output(&mut empty()).map(drop)))
    })
}

/// A tree is unpacked in a transaction that stays open, then kept.
fn see_and_keep(stage: &mut Stage<'_>, commands: &RunCommands) -> Result<()> {
    let tarball = tarball(stage)?;
    let kept = commands.place().join("kept");
    if commands.has_transactions {
        output(tool::stitchfs(&["txn", "begin", NAME]).arg(&commands.root))?;
        let mut enter = tool::stitchfs(&["txn", "enter", NAME]);
        enter
            .arg(&commands.root)
            .args(["--", "sh", "-c", UNTAR])
            .arg(&kept)
            .arg(&tarball);
        phase(stage, "untar-apart", Ends::Returned, &mut enter)?;
        let mut see = tool::stitchfs(&["txn", "diff", NAME]);
        phase(stage, "see", Ends::Returned, see.arg(&commands.root))?;
        ensure!(!kept.exists(), "the transaction leaks");
        let mut commit = tool::stitchfs(&["txn", "commit", NAME]);
        phase(stage, "commit", Ends::Synced, commit.arg(&commands.root))?;
    } else {
        let (upper, _) = commands.layers("kept");
        let inside = upper.join("kept");
        let mut untar = shell(UNTAR, &inside, &[tarball.as_os_str()]);
        phase(stage, "untar-apart", Ends::Returned, &mut untar)?;
        phase(
            stage,
            "see",
            Ends::Returned,
            Command::new("find").arg(&upper),
        )?;
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(&inside).arg(commands.place());
        phase(stage, "commit", Ends::Synced, &mut copy)?;
    }
    check_same(&unpacked(stage)?, &kept)
}

/// Four trees in four runs: after one another, then at once (paper, table 4).
fn four(stage: &mut Stage<'_>, commands: &RunCommands) -> Result<()> {
    let tarball = tarball(stage)?;
    let more = [tarball.as_os_str()];
    let runs = |name: &str| -> Vec<Command> {
        (0..TOGETHER)
            .map(|number| commands.run(UNTAR, &format!("{name}-{number}"), &[], &more))
            .collect()
    };
    let count = u64::from(TOGETHER);
    let mut turns = runs("turn");
    stage.phase("four-in-turn", count, Ends::Synced, |record| {
        turns
            .iter_mut()
            .try_for_each(|run| record.time(Op::Command, (1, 0), || output(run).map(drop)))
    })?;
    let mut at_once = runs("once");
    stage.phase("four-at-once", count, Ends::Synced, |record| {
        record.time(Op::Command, (count, 0), || together(&mut at_once))
    })?;
    check_same(&unpacked(stage)?, &commands.place().join("once-3"))
}

/// Runs commands at once; all of them must succeed.
fn together(runs: &mut [Command]) -> Result<()> {
    let started: Result<Vec<Child>, _> = runs
        .iter_mut()
        .map(|run| run.stdout(Stdio::null()).spawn())
        .collect();
    for mut child in started? {
        let status = child.wait()?;
        ensure!(status.success(), "a run ended with {status}");
    }
    Ok(())
}
