//! What can go wrong inside the engine.

use stitch_base::ErrorKind;
use stitch_format::FormatError;
use stitch_kv::KvError;
use stitch_volume::VolumeError;

/// An error of the VT-tree engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VtError {
    /// A stored record cannot be what was written.
    #[error("{context}: {source}")]
    Format {
        /// Which record of which tree or table.
        context: String,
        /// What is wrong with it.
        #[source]
        source: FormatError,
    },
    /// The volume failed, or is full.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The stored versions contradict themselves.
    #[error("the stored version is damaged: {what}")]
    Version {
        /// What contradicts what.
        what: String,
    },
    /// A stored upsert is of a function that this program does not know.
    #[error("no upsert function has number {function}: the store was written by another program")]
    UnknownUpsert {
        /// Number of the function.
        function: u32,
    },
    /// What went wrong with an instance other than the volume's first.
    #[error("instance {name}: {source}")]
    Instance {
        /// Its name.
        name: String,
        /// What went wrong.
        #[source]
        source: Box<VtError>,
    },
    /// Background work failed before: the store takes no more writes.
    #[error("an earlier write or sync failed; close and reopen the store")]
    Poisoned,
    /// The operating system gave no thread.
    #[error("cannot start a thread")]
    Thread {
        /// What it said.
        #[source]
        source: std::io::Error,
    },
    /// What is at the volume's end cannot be moved, so that it cannot be cut off.
    #[error("{what}")]
    Unmovable {
        /// What is in the way, and what to do.
        what: String,
        /// What a caller can do about it.
        kind: ErrorKind,
    },
    /// The store was closed, or its instance removed: it takes no more writes, and background work
    /// is given up.
    #[error("the store was closed; it takes no more writes")]
    Closed,
}

impl VtError {
    /// Returns an error with the name of its instance.
    pub(crate) fn in_instance(name: &str, error: Self) -> Self {
        Self::Instance {
            name: name.to_owned(),
            source: Box::new(error),
        }
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Format { source, .. } => source.kind(),
            Self::Volume(source) => source.kind(),
            Self::Version { .. } => ErrorKind::Corrupt,
            Self::UnknownUpsert { .. } => ErrorKind::Unsupported,
            Self::Closed => ErrorKind::Closed,
            Self::Poisoned => ErrorKind::Poisoned,
            Self::Thread { .. } => ErrorKind::Io,
            Self::Unmovable { kind, .. } => *kind,
            Self::Instance { source, .. } => source.kind(),
        }
    }
}

impl From<VtError> for KvError {
    fn from(error: VtError) -> Self {
        match error {
            VtError::Closed => Self::Closed,
            VtError::Poisoned | VtError::Volume(VolumeError::Poisoned) => Self::Poisoned,
            VtError::Volume(VolumeError::ReadOnly) => Self::ReadOnly,
            VtError::Volume(VolumeError::NoSpace {
                wanted_bytes,
                free_bytes,
            }) => Self::NoSpace {
                needed_bytes: wanted_bytes,
                free_bytes,
            },
            VtError::Volume(VolumeError::VersionLogFull {
                wanted_bytes,
                base_bytes_max,
            }) => Self::NoSpace {
                needed_bytes: wanted_bytes,
                free_bytes: base_bytes_max,
            },
            other => Self::storage(other.kind(), other),
        }
    }
}
