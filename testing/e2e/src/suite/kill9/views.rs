//! `kill -9` of the daemon around snapshots, clones, rollbacks, removals of clones and commits of
//! transactions: each is whole or absent, and there if its command has said so.
//!
//! `--seeds N` kills N times instead of [`KILLS`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use stitch_base::random::Rng;

use crate::harness::context::Context;
use crate::harness::copies::{copy, expect_equal};
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::text;

/// Kills in CI.
const KILLS: u64 = 20;
/// A store is checked whole after so many kills.
const CHECK_EVERY: u64 = 5;
/// Files of the tree, and of one transaction.
const FILES: usize = 60;
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time between the start of a command and the kill: about twice what it takes.
const DELAY_MS_MAX: u64 = 120;
/// The same after the script of a transaction has ended.
const COMMIT_MS_MAX: u64 = 60;

/// A mount, and kills of its daemon at random moments.
struct Killer<'a> {
    context: &'a Context,
    mount: Mount<'a>,
    rng: Rng,
    kills: u64,
    /// Commands that had ended well before the kill.
    done: u64,
    /// Those that had not, and did all.
    whole: u64,
}

impl<'a> Killer<'a> {
    fn new(context: &'a Context, name: &str) -> Result<Self> {
        context.needs_stitch()?;
        let mount = Mount::create(context, &Spec::new(name, "512M"))?;
        Ok(Self {
            context,
            mount,
            rng: Rng::new(context.seed.unwrap_or(1)),
            kills: context.seeds.unwrap_or(KILLS),
            done: 0,
            whole: 0,
        })
    }

    fn start(&self, command: &mut Command) -> Result<Child> {
        let command = command.stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.with_context(|| format!("cannot run {command:?}"))?;
        guardian::watch_process(child.id())?;
        Ok(child)
    }

    /// Kills after up to `ms_max`, and mounts again. Returns whether the command had succeeded.
    fn kill(&mut self, mut child: Child, ms_max: u64) -> Result<bool> {
        self.context
            .sleep(Duration::from_millis(self.rng.below(ms_max)));
        let ended = child.try_wait()?;
        self.mount.kill_within(PATIENCE)?;
        child.wait()?;
        self.mount.mount_again()?;
        let is_done = ended.is_some_and(|status| status.success());
        self.done += u64::from(is_done);
        Ok(is_done)
    }

    /// Notes what became of a command.
    fn judge(&mut self, is_done: bool, is_there: bool) -> Result<()> {
        ensure!(is_there || !is_done, "its command said that it was done");
        self.whole += u64::from(is_there && !is_done);
        Ok(())
    }

    fn check(&mut self, kill: u64) -> Result<()> {
        if kill % CHECK_EVERY == CHECK_EVERY - 1 {
            self.mount.unmount()?;
            self.mount.fsck()?;
            self.mount.mount_again()?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        let Self {
            kills, done, whole, ..
        } = self;
        let absent = kills - done - whole;
        println!("      {kills} kills: {done} after the end, {whole} whole, {absent} absent");
        self.mount.unmount()?;
        self.mount.fsck()
    }
}

/// A tree of files in directories.
fn grow(top: &Path) -> Result<()> {
    fs::create_dir(top)?;
    for index in 0..FILES {
        let dir = top.join(format!("d{}", index % 6));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("f{index}")), format!("before {index}"))?;
    }
    fs::write(top.join("large"), vec![1; 4 << 20])?;
    Ok(())
}

fn change(top: &Path) -> Result<()> {
    for index in (0..FILES).step_by(2) {
        let file = top.join(format!("d{}/f{index}", index % 6));
        match index % 4 {
            0 => fs::write(&file, format!("after {index}"))?,
            _ => fs::remove_file(&file)?,
        }
    }
    fs::write(top.join("large"), vec![2; 3 << 20])?;
    fs::rename(top.join("d1"), top.join("moved"))?;
    fs::write(top.join("new"), "new")?;
    Ok(())
}

/// What the kills are about.
struct Trees {
    top: PathBuf,
    /// A copy of the tree as a snapshot has it.
    before: PathBuf,
    changed: PathBuf,
}

/// Snapshots, clones, rollbacks and removals of clones are whole or absent after a kill.
pub(super) fn killed_around_views(context: &Context) -> Result<()> {
    let mut killer = Killer::new(context, "kill-views")?;
    let top = killer.mount.dir().join("top");
    grow(&top)?;
    let before = copy(context, &top, "kill-views-before")?;
    let args = ["snapshot", "create", &text(&top), "first"];
    command_of(context, &args)?;
    change(&top)?;
    let changed = copy(context, &top, "kill-views-changed")?;
    let mut trees = Trees {
        top,
        before,
        changed,
    };
    for kill in 0..killer.kills {
        let killed = match kill % 4 {
            0 => kill_snapshot(&mut killer, &trees, kill),
            1 => kill_clone(&mut killer, &trees, kill),
            2 => kill_destroy(&mut killer, &trees, kill),
            _ => kill_rollback(&mut killer, &mut trees),
        };
        killed.with_context(|| format!("kill {kill}"))?;
        expect_equal(&trees.changed, &trees.top)
            .with_context(|| format!("kill {kill}: the tree"))?;
        killer.check(kill)?;
    }
    killer.end()
}

fn stitchfs(killer: &Killer<'_>, args: &[&str]) -> Result<Child> {
    killer.start(Command::new(&killer.context.stitchfs).args(args))
}

fn kill_snapshot(killer: &mut Killer<'_>, trees: &Trees, kill: u64) -> Result<()> {
    let name = format!("s{kill}");
    let child = stitchfs(killer, &["snapshot", "create", &text(&trees.top), &name])?;
    let is_done = killer.kill(child, DELAY_MS_MAX)?;
    let found = killer.mount.dir().join(".stitchfs/snap").join(name);
    let is_there = found.exists();
    if is_there {
        expect_equal(&trees.changed, &found).context("a snapshot")?;
    }
    killer.judge(is_done, is_there)
}

fn kill_clone(killer: &mut Killer<'_>, trees: &Trees, kill: u64) -> Result<()> {
    let twin = killer.mount.dir().join(format!("clone{kill}"));
    let child = stitchfs(killer, &["clone", &text(&trees.top), &text(&twin)])?;
    let is_done = killer.kill(child, DELAY_MS_MAX)?;
    let is_there = twin.exists();
    if is_there {
        expect_equal(&trees.changed, &twin).context("a clone")?;
    }
    killer.judge(is_done, is_there)
}

/// Removes the clone of the kill before this one, which was changed, or one that is made for this.
fn kill_destroy(killer: &mut Killer<'_>, trees: &Trees, kill: u64) -> Result<()> {
    let twin = killer.mount.dir().join(format!("clone{}", kill - 1));
    if !twin.exists() {
        let args = ["clone", &text(&trees.top), &text(&twin)];
        command_of(killer.context, &args)?;
    }
    fs::write(twin.join("own"), "of the clone")?;
    let child = stitchfs(killer, &["destroy", &text(&twin)])?;
    let is_done = killer.kill(child, DELAY_MS_MAX)?;
    let is_there = twin.exists();
    if is_there {
        ensure!(
            fs::read(twin.join("own"))? == b"of the clone",
            "a part of it"
        );
        fs::remove_file(twin.join("own"))?;
        expect_equal(&trees.changed, &twin).context("a clone that was to go")?;
    }
    killer.judge(is_done, !is_there)
}

/// Rolls the tree back to the first snapshot. If that was done the tree is changed again.
fn kill_rollback(killer: &mut Killer<'_>, trees: &mut Trees) -> Result<()> {
    let child = stitchfs(killer, &["rollback", "--yes", "first", &text(&trees.top)])?;
    // It creates a snapshot first.
    let is_done = killer.kill(child, 2 * DELAY_MS_MAX)?;
    let is_there = expect_equal(&trees.before, &trees.top).is_ok();
    killer.judge(is_done, is_there)?;
    if is_there {
        change(&trees.top)?;
    }
    Ok(())
}

/// All files of a run are there after a kill around its commit, or none.
pub(in crate::suite) fn killed_around_commits(context: &Context) -> Result<()> {
    let mut killer = Killer::new(context, "kill-txn")?;
    let top = killer.mount.dir().join("top");
    fs::create_dir(&top)?;
    fs::write(top.join("state"), "none\n")?;
    let marker = context.dir("kill-txn-outside")?.join("marker");
    let mut state = "none\n".to_owned();
    for kill in 0..killer.kills {
        let script = format!(
            "mkdir round{kill}; \
             for i in $(seq {FILES}); do echo {kill} $i > round{kill}/f$i; done; \
             rm -f last; echo {kill} > last; echo {kill} > state; echo {kill} > {}",
            text(&marker)
        );
        let mut command = Command::new(&context.stitchfs);
        command.args(["txn", "run", "--", "bash", "-euc", &script]);
        let child = killer.start(command.current_dir(&top))?;
        // Most kills come when the commit does.
        if !killer.rng.one_in(4) {
            wait_for(context, &marker, kill)?;
        }
        let is_done = killer.kill(child, COMMIT_MS_MAX)?;
        let is_there = judge_run(&top, kill, &state).with_context(|| format!("kill {kill}"))?;
        killer.judge(is_done, is_there)?;
        if is_there {
            state = format!("{kill}\n");
        }
        killer.check(kill)?;
    }
    killer.end()
}

fn wait_for(context: &Context, marker: &Path, kill: u64) -> Result<()> {
    let said = format!("{kill}\n");
    let is_marked = || Ok(fs::read_to_string(marker).is_ok_and(|found| found == said));
    ensure!(context.wait_until(PATIENCE, is_marked)?, "the script hangs");
    Ok(())
}

/// Reports whether all of a run is there. A part of it is an error.
fn judge_run(top: &Path, kill: u64, before: &str) -> Result<bool> {
    let (dir, state) = (top.join(format!("round{kill}")), top.join("state"));
    let found = fs::read_to_string(state)?;
    if !dir.exists() {
        ensure!(found == before, "the state is {found:?}, without the files");
        return Ok(false);
    }
    ensure!(found == format!("{kill}\n"), "the state is {found:?}");
    let last = fs::read_to_string(top.join("last"))?;
    ensure!(last == found, "the last is {last:?}");
    let count = fs::read_dir(&dir)?.count();
    ensure!(count == FILES, "{count} files");
    for index in 1..=FILES {
        let file = dir.join(format!("f{index}"));
        let found = fs::read_to_string(&file)?;
        ensure!(found == format!("{kill} {index}\n"), "file {index}");
    }
    Ok(true)
}
