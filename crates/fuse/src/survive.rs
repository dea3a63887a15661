//! A mount that survives its daemon: the state that a second process holds, and how it gets there.
//!
//! ```text
//!   holder --- /dev/fuse and its clones, the ledger ---> daemon, and the next one
//!          <--- the same, once it is mounted ----------
//! ```
//!
//! The kernel aborts the requests read through a descriptor when its last copy is closed, so the
//! holder keeps each of them. The next daemon asks the kernel to resend requests in flight
//! ([`Resend`]); those have [`RESENT`] in their numbers.
//!
//! [`Resend`]: crate::wire::notice::Notice::Resend

pub mod ledger;
pub mod link;

/// Flag in the number of a request that was sent before, perhaps to a daemon that has died.
pub const RESENT: u64 = 1 << 63;

/// Returns the number that a request had at first.
#[must_use]
pub const fn first_unique(unique: u64) -> u64 {
    unique & !RESENT
}

/// Reports whether this request was sent before.
#[must_use]
pub const fn is_resent(unique: u64) -> bool {
    unique & RESENT != 0
}
