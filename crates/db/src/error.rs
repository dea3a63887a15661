//! What goes wrong in a schema.

use stitch_base::{ErrorKind, TreeId};
use stitch_kv::{ChangedKey, Engine, Guards, KvError};

/// The most keys that a refused commit lists.
pub(crate) const LISTED_COUNT_MAX: usize = 1000;

/// An error of the database.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DbError {
    /// The store has no such schema.
    #[error("the store has no schema named {0:?}")]
    NoSchema(String),
    /// The store has a schema of this name.
    #[error("the store has a schema named {0:?} already")]
    SchemaExists(String),
    /// The schema has no such dictionary.
    #[error("schema {schema:?} has no dictionary named {dictionary:?}")]
    NoDictionary {
        /// Name of the schema.
        schema: String,
        /// Name that was asked for.
        dictionary: String,
    },
    /// A name that cannot be.
    #[error("{0:?} is no name: it is empty or has a slash in it")]
    BadName(String),
    /// The dictionary is none of a branch, or none of the schema that was asked for it.
    #[error("schema {schema:?} has no such branch of a dictionary")]
    NoBranch {
        /// Name of the schema.
        schema: String,
    },
    /// The view is of a moment in the past.
    #[error("a snapshot cannot be written to")]
    ReadOnlyView,
    /// Others have changed what the transaction depends on: run it again.
    #[error("{}", conflict_text(keys))]
    Conflict {
        /// The keys, by tree: at least one, and at most 1000.
        keys: Vec<ChangedKey>,
    },
    /// A transaction of higher rank needed a lock of this one, which is over: run it again.
    #[error(
        "a transaction of higher rank took the lock on key \"{}\" of tree {tree}",
        key.escape_ascii()
    )]
    Wounded {
        /// The tree.
        tree: TreeId,
        /// The first key of the lock.
        key: Vec<u8>,
    },
    /// A transaction of higher rank holds the lock, and this one does not wait.
    #[error("another transaction has locked key \"{}\" of tree {tree}", key.escape_ascii())]
    Locked {
        /// The tree.
        tree: TreeId,
        /// The first key that is locked.
        key: Vec<u8>,
    },
    /// A transaction has grown over what one commit takes: make it smaller.
    #[error("{what}: {len_bytes} bytes, over the limit of {limit_bytes} (batch_bytes_max)")]
    TooLarge {
        /// What has grown: `transaction`, `reads of a transaction`, ...
        what: &'static str,
        /// Its size.
        len_bytes: u64,
        /// The limit of the engine on batches.
        limit_bytes: u64,
    },
    /// The savepoint was released, or taken back with an earlier one, or is of another transaction.
    #[error("the transaction has no such savepoint: it is gone, or another transaction's")]
    NoSavepoint,
    /// The engine's answer.
    #[error(transparent)]
    Kv(#[from] KvError),
}

impl DbError {
    pub(crate) fn too_large(what: &'static str, len_bytes: usize, limit_bytes: usize) -> Self {
        Self::TooLarge {
            what,
            len_bytes: len_bytes as u64,
            limit_bytes: limit_bytes as u64,
        }
    }

    /// The error that lists the keys under `guards` that have changed, of which one is known.
    pub(crate) fn conflict(engine: &dyn Engine, guards: &Guards, first: ChangedKey) -> Self {
        let changed = engine.changed_keys(guards, LISTED_COUNT_MAX);
        let mut keys = changed.unwrap_or_default();
        if !keys.contains(&first) {
            keys.insert(0, first);
        }
        debug_assert!(!keys.is_empty(), "a conflict has a key");
        Self::Conflict { keys }
    }

    /// What a caller can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSchema(_) | Self::NoDictionary { .. } | Self::NoBranch { .. } => {
                ErrorKind::NotFound
            }
            Self::SchemaExists(_) => ErrorKind::Exists,
            Self::BadName(_) => ErrorKind::Invalid,
            Self::ReadOnlyView => ErrorKind::ReadOnly,
            Self::Conflict { .. } | Self::Wounded { .. } => ErrorKind::Conflict,
            Self::Locked { .. } => ErrorKind::Busy,
            Self::TooLarge { .. } | Self::NoSavepoint => ErrorKind::Invalid,
            Self::Kv(error) => error.kind(),
        }
    }
}

fn conflict_text(keys: &[ChangedKey]) -> String {
    let Some(ChangedKey { tree, key }) = keys.first() else {
        return "others changed keys of the transaction".to_owned();
    };
    let key = key.escape_ascii();
    match keys.len() - 1 {
        0 => format!("another writer changed key \"{key}\" of tree {tree}"),
        more => format!("others changed key \"{key}\" of tree {tree} and {more} more"),
    }
}
