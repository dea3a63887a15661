//! Makes commits durable a second after the first of them ([`crate::SyncPolicy::EverySecond`]).

use crate::ServeError;
use std::fmt;
use std::time::Duration;
use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_base::thread::{self, JoinHandle};
use stitch_kv::Engine;

const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    /// There are commits that no sync covers.
    is_due: bool,
    is_ending: bool,
}

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

/// Notes commits for the syncer.
#[derive(Clone, Debug)]
pub(super) struct Marker(Arc<Signal>);

impl Marker {
    /// Notes that there was a commit.
    pub(super) fn mark(&self) {
        let mut state = self.0.state.lock();
        if !state.is_due {
            state.is_due = true;
            self.0.changed.notify_one();
        }
    }
}

/// A thread that syncs. Dropped, it ends without a last sync.
pub(super) struct Syncer {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Syncer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Syncer").finish_non_exhaustive()
    }
}

impl Syncer {
    pub(super) fn start(engine: Arc<dyn Engine>) -> Result<Self, ServeError> {
        let signal = Arc::new(Signal::default());
        let own = Arc::clone(&signal);
        let thread = thread::spawn("serve-sync", move || own.sync_until_end(&*engine));
        let thread = thread.map_err(|error| ServeError::host("cannot start a thread", error))?;
        Ok(Self {
            signal,
            thread: Some(thread),
        })
    }

    pub(super) fn marker(&self) -> Marker {
        Marker(Arc::clone(&self.signal))
    }
}

impl Signal {
    fn sync_until_end(&self, engine: &dyn Engine) {
        loop {
            let mut state = self.state.lock();
            while !state.is_due && !state.is_ending {
                self.changed.wait(&mut state);
            }
            if !state.is_ending {
                // Woken early only by the end: nothing else is told while a sync is due.
                self.changed.wait_for(&mut state, INTERVAL);
            }
            if state.is_ending {
                return;
            }
            state.is_due = false;
            drop(state);
            if let Err(error) = engine.sync() {
                tracing::error!(%error, "a sync failed: what was replied may be lost");
            }
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.signal.state.lock().is_ending = true;
        self.signal.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the syncer has panicked");
        }
    }
}
