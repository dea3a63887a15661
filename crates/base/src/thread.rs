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
/// If the operating system cannot start a thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    assert!(!name.is_empty(), "a thread has a name");
    Builder::new().name(name.to_owned()).spawn(body)
}

/// Returns the number of the calling thread. Threads are numbered from 0, in the order of their
/// first call.
#[cfg(not(feature = "shuttle"))]
#[inline]
#[must_use]
pub fn number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    /// The value of a thread that has no number yet.
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

/// Returns the model checker's number of the calling thread.
#[cfg(feature = "shuttle")]
#[must_use]
pub fn number() -> usize {
    shuttle::current::me().into()
}

/// Returns the number of processors that threads of this process may run on, at least 1. It is 1 if
/// the operating system does not report a number.
#[must_use]
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
