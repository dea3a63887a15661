//! Runs that are killed at random moments, by themselves or with the daemon.

use stitch_base::random::Rng;

use super::*;

/// Longest time between the start of a run and its kill, in parts of the time that one takes.
const DELAY_PARTS: u64 = 8;
/// The store is checked whole after so many kills.
const CHECK_EVERY: u64 = 10;

/// Kills of runs of one script, at moments that a seed gives.
pub(super) struct Kills {
    rng: Rng,
    /// Time that the script takes, in milliseconds.
    took: u64,
    count: u64,
}

/// A run that was killed.
pub(super) struct Killed {
    /// The run had succeeded before.
    pub(super) is_done: bool,
    /// The kill, for error messages.
    pub(super) what: String,
}

impl Kills {
    /// Runs the script once without a kill, to know how long it takes.
    pub(super) fn measure(stage: &TxnStage<'_>, script: &str) -> Result<Self> {
        let start = stage.context.elapsed();
        let (code, said) = stage.ran(&[], script)?;
        ensure!(code == 0, "{code} {said}");
        let took = u64::try_from((stage.context.elapsed() - start).as_millis())?;
        Ok(Self {
            rng: Rng::new(stage.context.seed.unwrap_or(1)),
            took: took.max(DELAY_PARTS),
            count: 0,
        })
    }

    /// Starts a run and kills it, or the daemon, which is mounted again then. No transaction is
    /// open afterwards.
    pub(super) fn kill(&mut self, stage: &mut TxnStage<'_>, script: &str) -> Result<Killed> {
        self.count += 1;
        let mut command = stage.command(&[], script);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::null()).spawn()?;
        guardian::watch_process(child.id())?;
        let delay = self.rng.below(self.took + self.took / DELAY_PARTS);
        stage.context.sleep(Duration::from_millis(delay));
        let of_daemon = self.rng.below(2) == 0;
        if of_daemon {
            stage.mount.kill()?;
        }
        let is_done = kill_run(&mut child)?;
        if of_daemon {
            stage.mount.detach()?;
            stage.mount.mount_again()?;
        }
        let number = self.count;
        let what = format!("kill {number} after {delay} ms, of the daemon: {of_daemon}");
        expect_ended(stage).with_context(|| what.clone())?;
        if self.count.is_multiple_of(CHECK_EVERY) {
            stage.mount.unmount()?;
            stage.mount.fsck().with_context(|| what.clone())?;
            stage.mount.mount_again()?;
        }
        Ok(Killed { is_done, what })
    }
}

/// Ends the run. What is left of its command ends with it: it is in the run's view.
fn kill_run(child: &mut Child) -> Result<bool> {
    let is_done = child.try_wait()?.is_some_and(|status| status.success());
    let _ = child.kill();
    child.wait()?;
    Ok(is_done)
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
