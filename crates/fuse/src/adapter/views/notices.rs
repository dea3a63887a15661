//! The thread that sends notices of changes that a request has found: views that were removed, and
//! writes that were refused ([`UnaskedChange`]).
//!
//! The same thread asks the kernel to forget unused inodes, where a snapshot knows more than it is
//! to, and closes clones that are not used or were removed.
//!
//! A thread of its own sends the notices: the kernel may need an answer of a worker before it is
//! done with one.

use std::time::Duration;

use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::Notices;

use super::live::{OpenClone, OpenClones};
use super::table::{OpenSnapshots, Past};
use super::unasked::UnaskedChange;
use crate::adapter::chore::{Chore, Left, Round};
use crate::adapter::notices;
use crate::notify::Notifier;
use crate::wire::notice::PRUNE_COUNT_MAX;

/// Inodes that one round asks the kernel to forget.
const PRUNED_MAX: usize = 16 << 10;

/// Notices that are to be sent, each once, and the thread that sends them.
#[derive(Debug)]
pub(super) struct NoticeQueue {
    pending: Arc<Mutex<Notices>>,
    ended: Arc<Mutex<Vec<Arc<OpenClone>>>>,
    /// A snapshot knows more inodes than it is to. Else no snapshot is looked at: there may be
    /// thousands, and each that is deleted has notices.
    is_crowded: Arc<AtomicBool>,
    sending: Chore,
}

impl NoticeQueue {
    /// No thread runs yet.
    pub(super) fn new() -> Self {
        Self {
            pending: Arc::default(),
            ended: Arc::default(),
            is_crowded: Arc::default(),
            sending: Chore::new("fuse-views", Duration::ZERO),
        }
    }

    /// Starts the thread.
    pub(super) fn start(
        &self,
        table: &Arc<OpenSnapshots>,
        clones: &Arc<OpenClones>,
        notifier: &Notifier,
    ) {
        let (ended, clones) = (Arc::clone(&self.ended), Arc::clone(clones));
        let (pending, table) = (Arc::clone(&self.pending), Arc::clone(table));
        let is_crowded = Arc::clone(&self.is_crowded);
        let notifier = notifier.clone();
        self.sending.start(move |round| {
            for clone in std::mem::take(&mut *ended.lock()) {
                clone.stop();
            }
            if round == Round::Due {
                let due = std::mem::take(&mut *pending.lock());
                notices::send(&due, &notifier);
                if is_crowded.swap(false, Ordering::Relaxed) {
                    for past in table.all() {
                        prune(&past, &notifier);
                    }
                }
                clones.close_idle();
            }
            Left::Nothing
        });
    }

    pub(super) fn stop(&self) {
        self.sending.stop();
    }

    /// Sends the notices of a change, soon.
    pub(super) fn queue(&self, change: UnaskedChange) {
        self.pending.lock().extend(change.notices());
        self.sending.note();
    }

    /// Ends the threads of clones that were removed, soon.
    pub(super) fn end(&self, clones: Vec<Arc<OpenClone>>) {
        self.ended.lock().extend(clones);
        self.sending.note();
    }

    /// Closes clones that are not used, soon.
    pub(super) fn close_idle(&self) {
        self.sending.note();
    }

    /// Has the kernel forget what it does not use: a snapshot knows more inodes than it is to.
    pub(super) fn prune(&self) {
        self.is_crowded.store(true, Ordering::Relaxed);
        self.sending.note();
    }
}

fn prune(past: &Past, notifier: &Notifier) {
    if !notifier.can_prune() || !past.is_crowded() {
        return;
    }
    for part in past.unused(PRUNED_MAX).chunks(PRUNE_COUNT_MAX) {
        if let Err(error) = notifier.prune(part) {
            tracing::debug!(%error, "the kernel was not asked to forget");
        }
    }
}
