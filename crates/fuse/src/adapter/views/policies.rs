//! The thread that keeps the policies of snapshots, and the history.
//!
//! It sleeps until the next snapshot is due by the wall clock, and for [`ROUND_MAX`] at most: a
//! clock that is set, or a suspended machine, delays a snapshot by that. A policy that is set wakes
//! it. The rounds themselves are the file system's, by its own clock.

use std::time::Duration;

use stitch_base::sync::Arc;
use stitch_fs::{FileSystem, PolicyRound, SnapshotInfo};

use super::node::ControlDir;
use super::notices::Notices;
use super::table::OpenSnapshots;
use crate::notify::Notifier;

/// Longest time between two rounds.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// What a round needs.
#[derive(Clone, Debug)]
pub(super) struct PolicyRunner {
    pub(super) fs: Arc<FileSystem>,
    pub(super) table: Arc<OpenSnapshots>,
    pub(super) notices: Arc<Notices>,
    pub(super) notifier: Notifier,
}

impl PolicyRunner {
    /// Runs a round of both. Returns the time until the next one; `None` if there is nothing to do.
    pub(super) fn run(&self) -> Option<Duration> {
        let next = [self.run_policies(), self.run_history()];
        for past in self.table.take_gone() {
            self.notices.drop_all(past.numbers());
        }
        next.into_iter().flatten().min()
    }

    fn run_history(&self) -> Option<Duration> {
        let round = match self.fs.run_history() {
            Ok(round) => round,
            // It is told by the file system.
            Err(_) => return Some(ROUND_MAX),
        };
        let is_changed = round.created.is_some() || !round.dropped.is_empty();
        let list = ControlDir::History.number();
        if is_changed && let Err(error) = self.notifier.invalidate_data(list, 0, 0) {
            tracing::debug!(%error, "the kernel may list moments as they were");
        }
        let next = round.next_s.map(Duration::from_secs);
        next.map(|next| next.min(ROUND_MAX))
    }

    fn run_policies(&self) -> Option<Duration> {
        let round = match self.fs.run_policies() {
            Ok(round) => round,
            Err(error) => {
                tracing::warn!(%error, "the policies of snapshots cannot be read");
                return Some(ROUND_MAX);
            }
        };
        self.tell(&round);
        let next = round.next_s.map(Duration::from_secs);
        next.map(|next| next.min(ROUND_MAX))
    }

    /// Has the kernel drop what it has of deleted snapshots, and its list of them.
    pub(super) fn tell(&self, round: &PolicyRound) {
        for info in &round.deleted {
            tracing::debug!(name = info.name, "a policy deleted a snapshot");
            if let Some(past) = self.table.take_deleted(info) {
                self.notices.drop_all(past.numbers());
            }
        }
        for info in &round.created {
            tracing::debug!(name = info.name, "a policy created a snapshot");
        }
        let mut lists = vec![ControlDir::Snapshots];
        let all = round.created.iter().chain(&round.deleted);
        // A directory in a clone has no list of its own.
        let listed = |info: &SnapshotInfo| match info.view {
            0 => ControlDir::snapshots_of(info.root),
            _ => ControlDir::Snapshots,
        };
        lists.extend(all.map(listed));
        let is_changed = lists.len() > 1;
        for list in lists.into_iter().filter(|_| is_changed) {
            if let Err(error) = self.notifier.invalidate_data(list.number(), 0, 0) {
                tracing::debug!(%error, "the kernel may list snapshots as they were");
            }
        }
    }
}
