//! Error kinds: every error of every layer maps to one of them.

use std::fmt;

/// What a caller can do about an error. Every error enum of the workspace maps to these kinds.
///
/// A new kind needs an architecture decision record and a caller that would act differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The named thing does not exist.
    NotFound,
    /// The named thing exists already.
    Exists,
    /// The request makes no sense: fix the caller.
    Invalid,
    /// Another writer changed what this one depends on: run the transaction again.
    Conflict,
    /// No space is left: delete something or grow the volume.
    NoSpace,
    /// The store is open for reading only.
    ReadOnly,
    /// Not offered by this version or this engine.
    Unsupported,
    /// Stored bytes are not what was written: run `fsck`, restore from a backup.
    Corrupt,
    /// The device failed.
    Io,
    /// Another process has the store open or uses it: wait until it is closed, then try again.
    Busy,
    /// The caller closed or removed the object earlier: open it again.
    Closed,
    /// An earlier write or sync failed, so nothing more is accepted: reopen the store.
    Poisoned,
    /// A mistake in this program.
    Bug,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::Exists => "exists already",
            Self::Invalid => "invalid request",
            Self::Conflict => "conflict",
            Self::NoSpace => "no space left",
            Self::ReadOnly => "read-only",
            Self::Unsupported => "not supported",
            Self::Corrupt => "corrupt",
            Self::Io => "device error",
            Self::Busy => "in use",
            Self::Closed => "closed",
            Self::Poisoned => "poisoned by an earlier failure",
            Self::Bug => "internal error",
        })
    }
}
