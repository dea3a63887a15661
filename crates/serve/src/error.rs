//! What goes wrong.

use std::borrow::Cow;
use std::io;
use stitch_base::ErrorKind;
use stitch_db::DbError;
use stitch_format::FormatError;

/// An error of the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An error of the store.
    #[error(transparent)]
    Db(#[from] DbError),
    /// Rows that are not what was written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The host refuses a socket or a thread.
    #[error("{what}: {source}")]
    Host {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl ServeError {
    pub(crate) fn host(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        Self::Host { what, source }
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Db(error) => error.kind(),
            Self::Format(FormatError::Newer { .. }) => ErrorKind::Unsupported,
            Self::Format(_) => ErrorKind::Corrupt,
            Self::Host { .. } => ErrorKind::Io,
        }
    }
}

/// Why a command has no result.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// The client's mistake, as it is replied: `ERR syntax error`.
    Client(Cow<'static, str>),
    /// The store's failure.
    Store(ServeError),
}

impl CommandError {
    pub(crate) const SYNTAX: Self = Self::text("ERR syntax error");
    pub(crate) const NOT_AN_INTEGER: Self =
        Self::text("ERR value is not an integer or out of range");
    pub(crate) const NOT_A_FLOAT: Self = Self::text("ERR value is not a valid float");
    pub(crate) const OVERFLOW: Self = Self::text("ERR increment or decrement would overflow");
    pub(crate) const NOT_FINITE: Self = Self::text("ERR increment would produce NaN or Infinity");
    pub(crate) const WRONG_TYPE: Self =
        Self::text("WRONGTYPE Operation against a key holding the wrong kind of value");
    pub(crate) const TOO_LONG: Self = Self::text("ERR string exceeds maximum allowed size");
    pub(crate) const KEY_TOO_LONG: Self =
        Self::text("ERR key, field or member exceeds maximum allowed size");
    pub(crate) const READ_ONLY: Self = Self::text("READONLY the store is mounted for reading only");
    pub(crate) const NO_KEY: Self = Self::text("ERR no such key");

    pub(crate) const fn text(text: &'static str) -> Self {
        Self::Client(Cow::Borrowed(text))
    }

    /// The reply without its `-`.
    pub(crate) fn reply(&self) -> Cow<'static, str> {
        match self {
            Self::Client(text) => text.clone(),
            Self::Store(error) => store_reply(error).into(),
        }
    }
}

/// Returns the reply for a failure of the store: `OOM` if deletes help, `MISCONF` if the store
/// needs an operator.
pub(crate) fn store_reply(error: &ServeError) -> String {
    match error.kind() {
        ErrorKind::NoSpace => format!("OOM command not allowed: {error}"),
        ErrorKind::Invalid => format!("ERR {error}"),
        ErrorKind::ReadOnly => format!("READONLY {error}"),
        _ => format!("MISCONF {error}"),
    }
}

impl From<DbError> for CommandError {
    fn from(error: DbError) -> Self {
        Self::Store(error.into())
    }
}

impl From<FormatError> for CommandError {
    fn from(error: FormatError) -> Self {
        Self::Store(error.into())
    }
}
