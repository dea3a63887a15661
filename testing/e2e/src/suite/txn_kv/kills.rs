//! Daemons that are killed around a commit of a file and a key.

use std::time::Duration;

use stitch_base::random::Rng;

use super::*;

/// Daemons that are killed in CI. `--seeds N` kills N.
const KILLS: u64 = 100;
/// The steps in which the time of a kill is random.
const STEPS: u32 = 64;
/// What the time of the kills moves by, as a part of itself.
const CORRECTION: u32 = 10;

/// Where in a commit a kill came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hit {
    /// Nothing was committed.
    Before,
    /// It was committed, and the caller was not told.
    Within,
    /// The caller was told that it was committed.
    After,
}

/// The time between the start of a commit and its kill: random, around where commits are.
struct Aim {
    rng: Rng,
    middle: Duration,
    /// Kills before, within and after.
    counts: [u64; 3],
}

impl Aim {
    /// From half to one and a half times the middle.
    fn delay(&mut self) -> Duration {
        let step = u32::try_from(self.rng.below(u64::from(STEPS))).unwrap_or_default();
        self.middle / 2 + self.middle * step / STEPS
    }

    /// Moves the middle to where the next kill comes within a commit.
    fn correct(&mut self, hit: Hit) {
        let part = self.middle / CORRECTION;
        match hit {
            Hit::Before => self.middle += part,
            Hit::Within => {}
            Hit::After => self.middle -= part,
        }
        self.counts[hit as usize] += 1;
    }
}

pub(super) fn a_daemon_killed_in_the_commit_leaves_both_or_neither(
    context: &Context,
) -> Result<()> {
    let mut stage = KeyStage::new(context, "txn-kv-kill9")?;
    stage.begin_both("whole")?;
    let start = context.elapsed();
    stage.txn_ok(&["commit", "whole"])?;
    let mut aim = Aim {
        rng: Rng::new(context.seed.unwrap_or(1)),
        middle: context.elapsed() - start,
        counts: [0; 3],
    };
    for round in 0..context.seeds.unwrap_or(KILLS) {
        let name = format!("t{round}");
        let delay = aim.delay();
        let hit = kill_after(&mut stage, &name, delay);
        aim.correct(hit.with_context(|| format!("round {round}, after {delay:?}"))?);
    }
    let [before, within, after] = aim.counts;
    println!("      {before} kills before the commit, {within} within, {after} after");
    let count = within + after;
    let socket = stage.dir().join(".stitchfs/kv.sock");
    let said = super::command(&socket, &["DBSIZE"])?;
    ensure!(
        said == format!(":{}", count + 1),
        "{said}, and {count} were committed after the first"
    );
    ensure!(
        context.seeds.is_some() || !aim.counts.contains(&0),
        "kills all came before, or all after the commits"
    );
    stage.end()
}

/// Kills the daemon some time after the start of a commit, and mounts again. Expects that the file
/// and the key are both there, or neither and the transaction still open.
fn kill_after(stage: &mut KeyStage<'_>, name: &str, delay: Duration) -> Result<Hit> {
    stage.begin_both(name)?;
    let mount = text(stage.dir());
    let mut commit = Command::new(&stage.context.stitchfs)
        .args(["txn", "commit", name, &mount])
        .stderr(Stdio::null())
        .spawn()?;
    guardian::watch_process(commit.id())?;
    stage.context.sleep(delay);
    stage.mount.kill()?;
    let is_told = commit.wait()?.success();
    stage.mount.detach()?;
    stage.mount.mount_again()?;
    let has_file = stage.dir().join(name).exists();
    let has_key = stage.get(stage.dir(), name)?.is_some();
    ensure!(has_file == has_key, "file {has_file}, key {has_key}");
    ensure!(has_file || !is_told, "a commit was lost");
    let state = stage.txn_ok(&["status", name])?;
    ensure!(state.contains("committed") == has_file, "{state}");
    if has_file {
        return Ok(if is_told { Hit::After } else { Hit::Within });
    }
    ensure!(
        stage.get(&stage.place(name), name)?.is_some(),
        "the key of the transaction is gone"
    );
    stage.txn_ok(&["abort", name])?;
    Ok(Hit::Before)
}
