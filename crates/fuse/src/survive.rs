//! A mount that survives its daemon: what a second process keeps of it, and how it gets there.
//!
//! ```text
//!   holder --- /dev/fuse and its clones, the ledger ---> daemon, and the next one
//!          <--- the same, once it is mounted ----------
//! ```
//!
//! The kernel ends the requests that were read through a descriptor when that is closed for good, so the
//! holder keeps each of them. The next daemon asks for what was under way ([`Resend`]); such requests come
//! with [`RESENT`] in their numbers.
//!
//! [`Resend`]: crate::wire::notice::Notice::Resend

pub mod ledger;
pub mod link;

/// In the number of a request that was sent before, perhaps to a daemon that has died since.
pub const RESENT: u64 = 1 << 63;

/// The number that a request had when it first came.
#[must_use]
pub const fn first_unique(unique: u64) -> u64 {
    unique & !RESENT
}

/// Was this request sent before?
#[must_use]
pub const fn is_resent(unique: u64) -> bool {
    unique & RESENT != 0
}
