//! Notices that no call has returned, until a front end takes them.
//!
//! | change | its notices |
//! |---|---|
//! | a batch of a rollback that failed later | no result has them |
//! | a rollback that was finished at open | the front end comes later |
//! | entries of a removed tree, removed in the background or to make room | a thread sends them |
//! | entries of a tree that is removed in a transaction | the request does not wait for them |
//!
//! One thread sends at a time. A rollback sends after its last batch, and then has an outcome: what
//! a thread that empties trees has taken of its first batches comes before.
//!
//! Invariant: without a cache above the file system nothing is kept. With one, what is kept is
//! about inodes that are known.

use super::Notices;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, Ordering};

/// The notices of changes that were made without a result.
#[derive(Debug)]
pub(crate) struct Untold {
    has_cache: AtomicBool,
    notices: Mutex<Notices>,
    /// Held while they are sent, by no request.
    sending: Mutex<()>,
}

impl Untold {
    pub(crate) fn new(has_cache: bool) -> Self {
        Self {
            has_cache: AtomicBool::new(has_cache),
            notices: Mutex::default(),
            sending: Mutex::default(),
        }
    }

    /// A cache is above the file system from now on.
    pub(crate) fn begin(&self) {
        self.has_cache.store(true, Ordering::Release);
    }

    pub(crate) fn keep(&self, notices: Notices) {
        if !notices.is_empty() && self.has_cache.load(Ordering::Acquire) {
            self.notices.lock().extend(notices);
        }
    }

    /// Keeps which attributes are to be dropped, and nothing else.
    pub(crate) fn keep_attrs(&self, notices: Notices) {
        self.keep(Notices {
            attrs: notices.attrs,
            ..Notices::default()
        });
    }

    /// Passes what is kept to `send`. What another thread has taken is sent before.
    pub(crate) fn send<T>(&self, send: impl FnOnce(Notices) -> T) -> T {
        let _one_at_a_time = self.sending.lock();
        let notices = std::mem::take(&mut *self.notices.lock());
        debug_assert!(
            notices.is_empty() || self.has_cache.load(Ordering::Acquire),
            "without a cache above nothing is kept"
        );
        send(notices)
    }
}
