//! Gives back the space of forgotten files, a little after they are forgotten, in a thread of its
//! own: removing a file's contents can take long, and whoever removed its name is not to wait.

use std::thread::JoinHandle;
use std::time::Duration;

use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_fs::FileSystem;

/// Forgotten files are gathered for so long.
const GATHER: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct State {
    /// Something was forgotten since the last round.
    is_due: bool,
    is_stopped: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

pub(super) struct Reclaimer {
    fs: Arc<FileSystem>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Reclaimer {
    pub(super) fn new(fs: Arc<FileSystem>) -> Self {
        Self {
            fs,
            shared: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    pub(super) fn start(&self) {
        let (fs, shared) = (Arc::clone(&self.fs), Arc::clone(&self.shared));
        let started = stitch_base::thread::spawn("fuse-reclaim", move || run(&fs, &shared));
        match started {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => tracing::warn!(%error, "space is given back only at unmount"),
        }
    }

    /// Something was forgotten.
    pub(super) fn note(&self) {
        let mut state = self.shared.state.lock();
        if !state.is_due {
            state.is_due = true;
            self.shared.changed.notify_one();
        }
    }

    /// Ends the thread, after a last round.
    pub(super) fn stop(&self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the reclaiming thread panicked");
        }
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(fs: &FileSystem, shared: &Shared) {
    while wait(shared) {
        reclaim(fs);
    }
    reclaim(fs);
}

/// Waits until a round is due; `false` if it is the last.
fn wait(shared: &Shared) -> bool {
    let mut state = shared.state.lock();
    while !(state.is_due || state.is_stopped) {
        shared.changed.wait(&mut state);
    }
    if !state.is_stopped {
        shared.changed.wait_for(&mut state, GATHER);
    }
    state.is_due = false;
    !state.is_stopped
}

fn reclaim(fs: &FileSystem) {
    match fs.reclaim() {
        Ok(0) => {}
        Ok(count) => tracing::debug!(count, "forgotten files were removed"),
        Err(error) => tracing::warn!(%error, "forgotten files were not removed; tried again later"),
    }
}
