//! git in runs that are killed at random moments: all of its work is there, or nothing.

use super::kills::{Killed, Kills};
use super::*;

/// Kills in CI. `--seeds N` kills N times.
const KILLS: u64 = 4;
const SOURCES: usize = 40;

/// Makes a repository, commits twice and packs it.
fn work() -> String {
    format!(
        "export GIT_CONFIG_NOSYSTEM=1 HOME=$PWD
         git init -q repo; cd repo
         git config user.name tester; git config user.email tester@example.invalid
         for i in $(seq {SOURCES}); do seq $i 200 > source$i; done
         git add -A; git commit -q -m first
         echo more >> source1; git mv source2 renamed; git add -A; git commit -q -m second
         git gc -q"
    )
}

fn expect_whole(stage: &TxnStage<'_>) -> Result<()> {
    let git = |words: &[&str]| -> Result<String> {
        let mut command = Command::new("git");
        command.args(["-c", "safe.directory=*"]).args(words);
        let (code, said) = ended(command.current_dir(stage.top.join("repo")))?;
        ensure!(code == 0, "git {words:?}: {code} {said}");
        Ok(said)
    };
    git(&["fsck", "--no-progress", "--strict"])?;
    let said = git(&["status", "--porcelain"])?;
    ensure!(said.is_empty(), "{said}");
    let said = git(&["rev-list", "--count", "HEAD"])?;
    ensure!(said.trim() == "2", "{said}");
    Ok(())
}

/// The run, or the daemon, is killed at a random moment of `git init, add, commit, gc`.
pub(super) fn work_of_git_is_whole_or_absent(context: &Context) -> Result<()> {
    if output(Command::new("git").arg("--version")).is_err() {
        return Err(Skip("there is no git here".to_owned()).into());
    }
    let mut stage = TxnStage::new(context, "txn-git")?;
    let mut kills = Kills::measure(&stage, &work())?;
    expect_whole(&stage)?;
    for _ in 0..context.seeds.unwrap_or(KILLS) {
        run(Command::new("rm").arg("-rf").arg(stage.top.join("repo")))?;
        let Killed { is_done, what } = kills.kill(&mut stage, &work())?;
        let is_there = stage.top.join("repo").exists();
        ensure!(is_there || !is_done, "{what}: it is not there");
        if is_there {
            expect_whole(&stage).with_context(|| what)?;
        }
        ensure!(fs::read(stage.top.join("file"))? == b"before");
    }
    stage.end()
}
