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

/// Processors that threads of this process may run on, as far as is known; at least 1.
#[must_use]
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
