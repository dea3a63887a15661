//! The one place that starts threads.

use std::io;

#[cfg(feature = "shuttle")]
pub use shuttle::thread::JoinHandle;
#[cfg(not(feature = "shuttle"))]
pub use std::thread::JoinHandle;

#[cfg(feature = "shuttle")]
use shuttle::thread::Builder;
#[cfg(not(feature = "shuttle"))]
use std::thread::Builder;

/// Starts a thread with a name that shows in debuggers and in `/proc`.
///
/// # Errors
/// When the operating system has no thread to give.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    assert!(!name.is_empty(), "a thread has a name");
    Builder::new().name(name.to_owned()).spawn(body)
}

/// A number that the calling thread keeps. Threads get theirs in turn, from 0, when they ask first.
#[cfg(not(feature = "shuttle"))]
#[inline]
#[must_use]
pub fn number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    /// No thread has this one.
    const NONE: usize = usize::MAX;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(NONE) };
    }
    if OWN.get() == NONE {
        OWN.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    OWN.get()
}

/// The number that the model checker has for the calling thread.
#[cfg(feature = "shuttle")]
#[must_use]
pub fn number() -> usize {
    shuttle::current::me().into()
}

/// Processors that threads of this process may run on, as far as is known; at least 1.
#[must_use]
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
