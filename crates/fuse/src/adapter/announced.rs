//! Announcements: what the next request of a thread means.

use std::collections::VecDeque;

use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};

use super::process::Process;
use crate::handler::Context;

/// Most announcements that are kept.
pub(super) const ANNOUNCED_MAX: usize = 64;

/// An announcement: thread, user, and what is announced.
#[derive(Clone, Debug)]
struct Announced<T> {
    uid: Option<u32>,
    thread: u32,
    what: T,
}

/// What threads have announced, one thing each.
#[derive(Debug)]
pub(super) struct Announcements<T> {
    kept: Mutex<VecDeque<Announced<T>>>,
    /// To be read without the lock.
    count: AtomicUsize,
}

impl<T> Announcements<T> {
    /// Nothing is announced.
    pub(super) fn new() -> Self {
        Self {
            kept: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// Keeps an announcement of this caller instead of an earlier one.
    pub(super) fn remember(&self, context: &Context<'_>, what: T) {
        let new = Announced {
            uid: Process::of(context).uid(),
            thread: context.caller.pid,
            what,
        };
        let mut kept = self.kept.lock();
        kept.retain(|old| (old.uid, old.thread) != (new.uid, new.thread));
        if kept.len() == ANNOUNCED_MAX {
            kept.pop_front();
        }
        kept.push_back(new);
        debug_assert!(kept.len() <= ANNOUNCED_MAX, "they are bounded");
        self.count.store(kept.len(), Ordering::Release);
    }

    /// Takes the announcement of this caller.
    pub(super) fn take(&self, context: &Context<'_>) -> Option<T> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let thread = context.caller.pid;
        if !self.kept.lock().iter().any(|old| old.thread == thread) {
            return None;
        }
        // This may read the status of a later thread with the same number.
        let uid = Process::of(context).uid();
        let mut kept = self.kept.lock();
        let found = kept
            .iter()
            .position(|old| (old.uid, old.thread) == (uid, thread))?;
        let taken = kept.remove(found).map(|found| found.what);
        self.count.store(kept.len(), Ordering::Release);
        taken
    }

    /// Number of announcements.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.kept.lock().len()
    }
}
