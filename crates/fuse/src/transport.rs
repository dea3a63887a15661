//! How requests come and answers go: by `/dev/fuse` ([`dev`]) or by `io_uring` ([`uring`]). Either hands
//! a worker one request after the other, and takes an answer for each.
//!
//! Which one is decided when a session begins: what the user wants, what the machine has, and what the
//! kernel then does (`choose`).

pub mod dev;
pub mod gate;
pub mod idle_poll;
pub mod uring;

use std::fmt;
use std::io;

use crate::dispatch::Dispatcher;
use uring::Refusal;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By `/dev/fuse`.
    Dev,
    /// By `io_uring`.
    Uring,
}

impl Transport {
    /// As options and reports name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Uring => "uring",
        }
    }
}

/// What is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// `io_uring` where it can be had, else `/dev/fuse`.
    #[default]
    Auto,
    /// This one or none.
    Only(Transport),
}

/// Settles how requests are to come; `probe` says whether the machine has `io_uring` for us. With
/// [`Transport::Dev`] comes why it is not the other, if that was wanted.
///
/// # Errors
/// Why what is wanted cannot be had.
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

/// What a refusal means for who wanted `choice`.
pub(crate) fn fall_back(
    choice: TransportChoice,
    refusal: Refusal,
) -> Result<(Transport, Option<Refusal>), Refusal> {
    match choice {
        TransportChoice::Auto => Ok((Transport::Dev, Some(refusal))),
        TransportChoice::Only(_) => Err(refusal),
    }
}

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
    fn who_wants_the_device_is_not_asked() {
        let wanted = TransportChoice::Only(Transport::Dev);
        let (transport, refusal) = choose(wanted, || panic!("nobody asks")).unwrap();
        assert_eq!(transport, Transport::Dev);
        assert!(refusal.is_none());
    }
}
