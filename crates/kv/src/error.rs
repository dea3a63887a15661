//! What an engine answers when it cannot do what it was asked.

use std::sync::Arc;
use stitch_base::{ErrorKind, TreeId};

/// An error of an engine.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// No tree has this number.
    #[error("there is no tree {0}")]
    NoTree(TreeId),
    /// A tree of this name exists already.
    #[error("a tree named {0:?} exists already")]
    TreeExists(String),
    /// No pin has this name.
    #[error("there is no pin named {0:?}")]
    PinNotFound(String),
    /// A pin of this name exists already.
    #[error("a pin named {0:?} exists already")]
    PinExists(String),
    /// The pin of a snapshot does not hold this tree: see [`crate::Engine::create_pin_of`].
    #[error("the snapshot does not hold tree {0}: its pin was created for other trees")]
    NotHeld(TreeId),
    /// The pin of a snapshot does not hold these keys of a tree: see
    /// [`crate::Engine::narrow_pin`].
    #[error("the snapshot does not hold these keys of tree {0}: its pin was narrowed to others")]
    KeysNotHeld(TreeId),
    /// The engine lacks this part of the contract: see [`crate::Capabilities`].
    #[error("this engine does not support {0}")]
    Unsupported(&'static str),
    /// A key, value or batch is larger than the engine takes.
    #[error("{what} of {len_bytes} bytes is over the limit of {limit_bytes}")]
    TooLarge {
        /// `key`, `value`, `delta`, `batch`, `user bytes of a pin`.
        what: &'static str,
        /// Its size.
        len_bytes: u64,
        /// The engine's limit.
        limit_bytes: u64,
    },
    /// A branch tree would have more parents than [`crate::BRANCH_DEPTH_MAX`].
    #[error("a branch tree has at most {} parents", crate::BRANCH_DEPTH_MAX)]
    TooDeep,
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The store is full: delete something or grow it.
    #[error("no space left in the store: {needed_bytes} bytes needed, {free_bytes} free")]
    NoSpace {
        /// Bytes that the request needs.
        needed_bytes: u64,
        /// Bytes that are left for it.
        free_bytes: u64,
    },
    /// The store is open for reading only.
    #[error("the store is open for reading only")]
    ReadOnly,
    /// Another writer changed what this batch depends on: run the operation again.
    #[error("another writer changed key \"{}\" of tree {tree}", key.escape_ascii())]
    Conflict {
        /// The tree.
        tree: TreeId,
        /// The first key that changed, in the order of the guards.
        key: Vec<u8>,
    },
    /// It is unknown whether the batch was applied: read before running it again.
    #[error("the outcome of the commit is unknown")]
    Unknown,
    /// The store was closed, or its instance removed: open it anew.
    #[error("the store was closed; it takes no more writes")]
    Closed,
    /// An earlier write or sync failed, so nothing more is accepted: reopen the store.
    #[error("an earlier write or sync of the store failed; it must be reopened")]
    Poisoned,
    /// Stored bytes are not what was written, or the device failed: the cause says where.
    #[error("{message}")]
    Storage {
        /// [`ErrorKind::Corrupt`], [`ErrorKind::Io`] or [`ErrorKind::Bug`].
        kind: ErrorKind,
        /// What failed.
        message: String,
        /// The cause, where there is one.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
}

impl KvError {
    /// A storage failure with its cause.
    pub fn storage(
        kind: ErrorKind,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self::Storage {
            kind,
            message: source.to_string(),
            source: Some(Arc::new(source)),
        }
    }

    /// What a caller can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoTree(_) | Self::PinNotFound(_) => ErrorKind::NotFound,
            Self::TreeExists(_) | Self::PinExists(_) => ErrorKind::Exists,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::TooLarge { .. }
            | Self::TooDeep
            | Self::NotHeld(_)
            | Self::KeysNotHeld(_)
            | Self::Invalid(_) => ErrorKind::Invalid,
            Self::NoSpace { .. } => ErrorKind::NoSpace,
            Self::ReadOnly => ErrorKind::ReadOnly,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Unknown => ErrorKind::Io,
            Self::Closed => ErrorKind::Closed,
            Self::Poisoned => ErrorKind::Poisoned,
            Self::Storage { kind, .. } => *kind,
        }
    }
}
