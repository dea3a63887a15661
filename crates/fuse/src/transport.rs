//! Transports of requests and replies: `/dev/fuse` ([`dev`]) or `io_uring` ([`uring`]). Either
//! gives a worker one request after the other, and takes a reply for each.
//!
//! The transport is chosen when a session begins: by what the user wants, what the machine
//! supports, and what the kernel then accepts (`choose`).

pub mod dev;
pub mod gate;
pub mod idle_poll;
pub mod uring;

use std::fmt;
use std::io;

use crate::dispatch::Dispatcher;
use uring::Refusal;

/// A transport of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By `/dev/fuse`.
    Dev,
    /// By `io_uring`.
    Uring,
}

impl Transport {
    /// Returns its name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Uring => "uring",
        }
    }
}

/// The wanted transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// `io_uring` if it is available, else `/dev/fuse`.
    #[default]
    Auto,
    /// This one, or the mount fails.
    Only(Transport),
}

/// Chooses the transport; `probe` checks whether `io_uring` is available. If [`Transport::Dev`] is
/// the fallback, returns the reason too.
///
/// # Errors
/// The reason that the required transport is not available.
pub(crate) fn choose(
    choice: TransportChoice,
    probe: impl FnOnce() -> Result<(), Refusal>,
) -> Result<(Transport, Option<Refusal>), Refusal> {
    if choice == TransportChoice::Only(Transport::Dev) {
        return Ok((Transport::Dev, None));
    }
    match probe() {
        Ok(()) => Ok((Transport::Uring, None)),
        Err(refusal) => fall_back(choice, refusal),
    }
}

/// Converts a refusal of io_uring into a fallback or an error, by `choice`.
pub(crate) fn fall_back(
    choice: TransportChoice,
    refusal: Refusal,
) -> Result<(Transport, Option<Refusal>), Refusal> {
    match choice {
        TransportChoice::Auto => Ok((Transport::Dev, Some(refusal))),
        TransportChoice::Only(_) => Err(refusal),
    }
}

/// Sends whole replies, from any thread.
pub trait ReplySender: Send + Sync + fmt::Debug {
    /// Sends a reply.
    ///
    /// # Errors
    /// If the kernel refuses it: the request is gone (`ENOENT`), the mount is gone (`ENODEV`), or
    /// the reply is malformed (`EINVAL`).
    fn send(&self, message: &[u8]) -> io::Result<()>;
}

/// The reason that a worker ended.
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
    /// If the kernel fails in an unexpected way.
    fn serve(&mut self, dispatcher: &Dispatcher) -> io::Result<End>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse() -> Result<(), Refusal> {
        Err(Refusal::Off)
    }

    #[test]
    fn the_ring_is_taken_where_it_is_to_be_had() {
        for choice in [
            TransportChoice::Auto,
            TransportChoice::Only(Transport::Uring),
        ] {
            let (transport, refusal) = choose(choice, || Ok(())).unwrap();
            assert_eq!(transport, Transport::Uring);
            assert!(refusal.is_none());
        }
    }

    #[test]
    fn what_refuses_is_named_with_the_line_that_helps() {
        let (transport, refusal) = choose(TransportChoice::Auto, refuse).unwrap();
        assert_eq!(transport, Transport::Dev);
        let line = "echo 1 > /sys/module/fuse/parameters/enable_uring";
        assert!(refusal.unwrap().to_string().ends_with(line));
        let wanted = TransportChoice::Only(Transport::Uring);
        let refusal = choose(wanted, refuse).unwrap_err();
        assert!(refusal.to_string().ends_with(line));
    }

    #[test]
    fn with_the_device_chosen_io_uring_is_not_tried() {
        let wanted = TransportChoice::Only(Transport::Dev);
        let (transport, refusal) = choose(wanted, || panic!("io_uring is not tried")).unwrap();
        assert_eq!(transport, Transport::Dev);
        assert!(refusal.is_none());
    }
}
