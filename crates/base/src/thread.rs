//! The one place that starts threads.

use std::io;
use std::thread::{Builder, JoinHandle};

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
