//! Another program for a mount that is served.

use super::Holder;
use super::messages::Order;
use super::program::Program;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::process::ExitStatus;
use std::time::Duration;
use stitch_base::clock::Clock;

/// Where an upgrade stands.
#[derive(Debug)]
pub(super) struct Upgrade {
    token: Value,
    from: String,
    to: String,
    /// The program to go to, until the daemon has handed over; then the one to go back to.
    other: Program,
    /// For how long requests had waited at `since`.
    waited: Duration,
    since: Duration,
    is_handed_over: bool,
    has_swapped: bool,
    error: Option<String>,
}

impl Holder {
    /// Looks at the program on disk, and tells the daemon to hand over.
    pub(super) fn begin_upgrade(&mut self, token: Value) {
        match self.plan_upgrade(token.clone()) {
            Ok(upgrade) => {
                self.upgrade = Some(upgrade);
                self.order(&Order::HandOver);
            }
            Err(error) => {
                self.upgraded = json!({ "token": token, "error": format!("{error:#}") });
                let about = self.about();
                self.order(&Order::About(about));
            }
        }
    }

    fn plan_upgrade(&self, token: Value) -> Result<Upgrade> {
        ensure!(self.upgrade.is_none(), "another upgrade is under way");
        let other = self.program.on_disk()?;
        let mount = self.kept.as_ref().and_then(|(state, _)| {
            let part = |index: usize| u32::try_from(state["device"][index].as_u64()?).ok();
            part(0).zip(part(1))
        });
        let shown = other.path().display().to_string();
        ensure!(
            mount.is_none_or(|mount| other.device().is_ok_and(|device| device != mount)),
            "{shown} is in the mount itself, which is not served while the program starts"
        );
        Ok(Upgrade {
            token,
            from: self.program.version().context("the program that runs")?,
            to: other.version()?,
            other,
            waited: Duration::ZERO,
            since: Duration::ZERO,
            is_handed_over: false,
            has_swapped: false,
            error: None,
        })
    }

    /// The daemon has closed its store, so that another can go on.
    pub(super) fn is_handed_over(&self) -> bool {
        let upgrade = self.upgrade.as_ref();
        upgrade.is_some_and(|upgrade| upgrade.is_handed_over)
    }

    /// The daemon has closed its store; requests have waited for so long.
    pub(super) fn handed_over(&mut self, waited: Duration) {
        let now = self.clock.monotonic();
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.waited = waited;
            upgrade.since = now;
            upgrade.is_handed_over = true;
        }
    }

    /// The old daemon has ended: the new program is next. The new one has: back to the old.
    pub(super) fn swap_program(&mut self, status: ExitStatus) -> Result<()> {
        let Some(upgrade) = &mut self.upgrade else {
            return Ok(());
        };
        if upgrade.error.is_some() {
            // The old program does not serve either, any more: that is for the count of deaths.
            return self.note_death(status);
        }
        if upgrade.has_swapped {
            let to = &upgrade.to;
            let error = format!("version {to} cannot go on with the mount ({status}); see the log");
            tracing::error!("{error}");
            upgrade.error = Some(error);
        }
        upgrade.has_swapped = true;
        std::mem::swap(&mut self.program, &mut upgrade.other);
        Ok(())
    }

    /// A daemon has died that was to play a part in it.
    pub(super) fn fail_upgrade(&mut self) {
        if let Some(upgrade) = self.upgrade.take() {
            let error = upgrade.error;
            let error =
                error.unwrap_or_else(|| "the daemon died meanwhile; see the log".to_owned());
            self.upgraded = json!({ "token": upgrade.token, "error": error });
        }
    }

    /// The mount is served again.
    pub(super) fn finish_upgrade(&mut self) {
        let Some(upgrade) = self.upgrade.take() else {
            return;
        };
        let pause = upgrade.waited + (self.clock.monotonic() - upgrade.since);
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.upgraded = json!({
            "token": upgrade.token,
            "version_before": upgrade.from,
            "version": if upgrade.error.is_some() { &upgrade.from } else { &upgrade.to },
            "pause_ms": pause_ms,
            "error": upgrade.error,
        });
    }
}
