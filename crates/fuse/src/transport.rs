//! How requests come and answers go. Now by `/dev/fuse`; the seam is [`Queue`] and
//! [`ReplySender`], behind which FUSE over `io_uring` fits: it too hands a worker one request after
//! the other, and takes an answer for each.

pub mod dev;

use std::fmt;
use std::io;

use crate::dispatch::Dispatcher;

/// Sends whole answers, from any thread.
pub trait ReplySender: Send + Sync + fmt::Debug {
    /// Sends one.
    ///
    /// # Errors
    /// When the kernel does not take it: the request is gone (`ENOENT`), the mount is
    /// (`ENODEV`), or the answer is malformed (`EINVAL`).
    fn send(&self, message: &[u8]) -> io::Result<()>;
}

/// Why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file system was unmounted, or its connection aborted.
    Unmounted,
    /// The handler panicked.
    Poisoned,
}

/// One worker's stream of requests.
pub trait Queue: Send {
    /// Serves requests until there are no more.
    ///
    /// # Errors
    /// When the kernel's side fails in a way that it should not.
    fn serve(&mut self, dispatcher: &Dispatcher) -> io::Result<End>;
}
