//! git in runs that are killed at random moments: all of its work is there, or nothing.

use stitch_base::random::Rng;

use super::*;

/// Kills in CI. `--seeds N` kills N times.
const KILLS: u64 = 4;
/// Longest time between the start of a run and its kill, in parts of the time that one takes.
const DELAY_PARTS: u64 = 8;
/// The store is checked whole after so many kills.
const CHECK_EVERY: u64 = 10;
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

/// Ends the run. What is left of its command ends with it: it is in the run's view.
fn kill_run(child: &mut Child) -> Result<bool> {
    let is_done = child.try_wait()?.is_some_and(|status| status.success());
    let _ = child.kill();
    child.wait()?;
    Ok(is_done)
}

/// The run, or the daemon, is killed at a random moment of `git init, add, commit, gc`.
pub(super) fn work_of_git_is_whole_or_absent(context: &Context) -> Result<()> {
    if output(Command::new("git").arg("--version")).is_err() {
        return Err(Skip("there is no git here".to_owned()).into());
    }
    let mut stage = TxnStage::new(context, "txn-git")?;
    let start = context.elapsed();
    let (code, said) = stage.ran(&[], &work())?;
    ensure!(code == 0, "{code} {said}");
    let took = u64::try_from((context.elapsed() - start).as_millis())?.max(DELAY_PARTS);
    expect_whole(&stage)?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    for kill in 1..=context.seeds.unwrap_or(KILLS) {
        run(Command::new("rm").arg("-rf").arg(stage.top.join("repo")))?;
        let mut command = stage.command(&[], &work());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::null()).spawn()?;
        guardian::watch_process(child.id())?;
        let delay = rng.below(took + took / DELAY_PARTS);
        context.sleep(Duration::from_millis(delay));
        let of_daemon = rng.below(2) == 0;
        if of_daemon {
            stage.mount.kill()?;
        }
        let is_done = kill_run(&mut child)?;
        if of_daemon {
            stage.mount.detach()?;
            stage.mount.mount_again()?;
        }
        let what = || format!("kill {kill} after {delay} ms, of the daemon: {of_daemon}");
        expect_ended(&stage).with_context(what)?;
        let is_there = stage.top.join("repo").exists();
        ensure!(is_there || !is_done, "{}: it is not there", what());
        if is_there {
            expect_whole(&stage).with_context(what)?;
        }
        ensure!(fs::read(stage.top.join("file"))? == b"before");
        if kill.is_multiple_of(CHECK_EVERY) {
            stage.mount.unmount()?;
            stage.mount.fsck().with_context(what)?;
            stage.mount.mount_again()?;
        }
    }
    stage.end()
}

/// Expects that no transaction is open, soon.
fn expect_ended(stage: &TxnStage<'_>) -> Result<()> {
    let is_over = || Ok(!stage.txn(&["list"])?.contains("running"));
    ensure!(
        stage.context.wait_until(PATIENCE, is_over)?,
        "left: {}",
        stage.txn(&["list"])?
    );
    Ok(())
}
