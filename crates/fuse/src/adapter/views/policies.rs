//! The thread that keeps the policies of snapshots, and the history.
//!
//! It sleeps until the next snapshot is due by the wall clock, and for [`ROUND_MAX`] at most: a
//! clock that is set, or a suspended machine, delays a snapshot by that. A policy that is set wakes
//! it. The rounds themselves are the file system's, by its own clock. There is none while the mount
//! is read-only.

use std::collections::BTreeSet;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::{FileSystem, PolicyRound};

use super::changes::listed_in;
use super::notices::NoticeQueue;
use super::table::OpenSnapshots;
use super::unasked::UnaskedChange;
use crate::adapter::chore::Chore;
use crate::adapter::notices;
use crate::mount::MountMode;
use crate::notify::Notifier;

/// Longest time between two rounds.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// What a round needs.
#[derive(Clone, Debug)]
pub(super) struct PolicyRunner {
    pub(super) fs: Arc<FileSystem>,
    pub(super) table: Arc<OpenSnapshots>,
    pub(super) notices: Arc<NoticeQueue>,
    /// Narrows the snapshots that were created.
    pub(super) places: Arc<Chore>,
    /// Whether the mount is read-only at the moment.
    pub(super) mode: Arc<MountMode>,
    pub(super) notifier: Notifier,
}

impl PolicyRunner {
    /// Runs a round of both. Returns the time until the next one; `None` if there is nothing to do.
    pub(super) fn run(&self) -> Option<Duration> {
        if self.mode.look() {
            return Some(ROUND_MAX);
        }
        let next = [self.run_policies(), self.run_history()];
        for past in self.table.take_gone() {
            self.notices.queue(UnaskedChange::View(past.numbers()));
        }
        next.into_iter().flatten().min()
    }

    fn run_history(&self) -> Option<Duration> {
        let round = match self.fs.history().run() {
            Ok(round) => round,
            // It is told by the file system.
            Err(_) => return Some(ROUND_MAX),
        };
        let is_changed = round.created.is_some() || !round.dropped.is_empty();
        if is_changed {
            notices::send(&UnaskedChange::History.notices(), &self.notifier);
        }
        let next = round.next_s.map(Duration::from_secs);
        next.map(|next| next.min(ROUND_MAX))
    }

    fn run_policies(&self) -> Option<Duration> {
        let round = match self.fs.policies().run() {
            Ok(round) => round,
            Err(error) => {
                tracing::warn!(%error, "the policies of snapshots cannot be read");
                return Some(ROUND_MAX);
            }
        };
        self.tell(&round);
        self.places.note();
        let next = round.next_s.map(Duration::from_secs);
        next.map(|next| next.min(ROUND_MAX))
    }

    /// Has the kernel drop what it has of deleted snapshots, and its list of them.
    pub(super) fn tell(&self, round: &PolicyRound) {
        for info in &round.deleted {
            tracing::debug!(name = info.name, "a policy deleted a snapshot");
            if let Some(past) = self.table.take_deleted(info) {
                self.notices.queue(UnaskedChange::View(past.numbers()));
            }
        }
        for info in &round.created {
            tracing::debug!(name = info.name, "a policy created a snapshot");
        }
        let all = round.created.iter().chain(&round.deleted);
        let dirs: BTreeSet<Ino> = all.map(listed_in).collect();
        if !dirs.is_empty() {
            notices::send(
                &UnaskedChange::SnapshotLists(dirs).notices(),
                &self.notifier,
            );
        }
    }
}
