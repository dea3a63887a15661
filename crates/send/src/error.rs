//! Errors of both ends of a stream.

use rustix::io::Errno;
use std::path::PathBuf;
use stitch_format::FormatError;

/// The reason that a stream could not be written or applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// A system call about a file failed.
    #[error("{}: cannot {op}: {source}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The stream could not be read or written.
    #[error("the stream: cannot {op}: {source}")]
    Pipe {
        /// What was tried.
        op: &'static str,
        /// The error.
        source: std::io::Error,
    },
    /// The stream ends before its last record.
    #[error("the stream ends after {at} bytes, before its end")]
    Truncated {
        /// Bytes read.
        at: u64,
    },
    /// The stream is damaged, or of another version.
    #[error("the stream, at byte {at}: {source}")]
    Format {
        /// Offset of the record.
        at: u64,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The stream and the directory, or the snapshots, do not fit together.
    #[error("{0}")]
    Refused(String),
    /// A stream was applied in part.
    #[error("{cause}")]
    Interrupted {
        /// Where to go on.
        token: String,
        /// Why.
        cause: Box<Self>,
    },
}

impl SendError {
    pub(crate) fn io(op: &'static str, path: PathBuf, errno: Errno) -> Self {
        let source = errno.into();
        Self::Io { op, path, source }
    }

    pub(crate) fn pipe(op: &'static str, source: std::io::Error) -> Self {
        Self::Pipe { op, source }
    }

    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }

    /// Reports whether it says that the caller may not.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied)
    }
}
