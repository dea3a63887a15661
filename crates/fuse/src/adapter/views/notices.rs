//! What the kernel has to drop of snapshots, and is asked to forget.
//!
//! - All of a snapshot that was deleted: what the kernel has cached would be read on.
//! - Pages that a program wrote to in spite of it all, through a mapping or without OPEN. Their
//!   WRITE was refused, and the kernel has them still.
//! - Inodes that are not used, where a snapshot knows more than it is to.
//! - All of a clone that was removed.
//!
//! The same thread closes clones that are not used or were removed.
//!
//! A thread of its own sends the notices: the kernel may need an answer of a worker before it is
//! done with one.

use std::collections::BTreeSet;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};

use super::live::{OpenClone, OpenClones};
use super::table::{OpenSnapshots, Past};
use crate::adapter::chore::{Chore, Left, Round};
use crate::notify::Notifier;
use crate::wire::notice::PRUNE_COUNT_MAX;

/// Inodes that one round asks the kernel to forget.
const PRUNED_MAX: usize = 16 << 10;

/// Numbers of inodes whose pages and attributes the kernel is to drop, and the thread that says so.
#[derive(Debug)]
pub(super) struct Notices {
    dropped: Arc<Mutex<BTreeSet<Ino>>>,
    ended: Arc<Mutex<Vec<Arc<OpenClone>>>>,
    sending: Chore,
}

impl Notices {
    /// No thread runs yet.
    pub(super) fn new() -> Self {
        Self {
            dropped: Arc::default(),
            ended: Arc::default(),
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
        let (dropped, table) = (Arc::clone(&self.dropped), Arc::clone(table));
        let notifier = notifier.clone();
        self.sending.start(move |round| {
            for clone in std::mem::take(&mut *ended.lock()) {
                clone.stop();
            }
            if round == Round::Due {
                drop_pages(&dropped, &notifier);
                for past in table.all() {
                    prune(&past, &notifier);
                }
                clones.close_idle();
            }
            Left::Nothing
        });
    }

    pub(super) fn stop(&self) {
        self.sending.stop();
    }

    /// Has the kernel drop all that it has of these inodes, soon.
    pub(super) fn drop_all(&self, numbers: impl IntoIterator<Item = Ino>) {
        self.dropped.lock().extend(numbers);
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

    /// Has the kernel forget what it does not use, if a snapshot knows more inodes than it is to.
    pub(super) fn prune(&self) {
        self.sending.note();
    }
}

fn drop_pages(dropped: &Mutex<BTreeSet<Ino>>, notifier: &Notifier) {
    let numbers = std::mem::take(&mut *dropped.lock());
    for number in numbers {
        if let Err(error) = notifier.invalidate_data(number, 0, 0) {
            tracing::debug!(%error, ino = number.0, "pages of a snapshot stay cached");
        }
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
