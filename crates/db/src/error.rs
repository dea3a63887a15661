//! What goes wrong in a schema.

use stitch_base::ErrorKind;
use stitch_kv::KvError;

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
    /// The view is of a moment in the past.
    #[error("a snapshot cannot be written to")]
    ReadOnlyView,
    /// The engine's answer.
    #[error(transparent)]
    Kv(#[from] KvError),
}

impl DbError {
    /// What a caller can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSchema(_) | Self::NoDictionary { .. } => ErrorKind::NotFound,
            Self::SchemaExists(_) => ErrorKind::Exists,
            Self::BadName(_) => ErrorKind::Invalid,
            Self::ReadOnlyView => ErrorKind::ReadOnly,
            Self::Kv(error) => error.kind(),
        }
    }
}
