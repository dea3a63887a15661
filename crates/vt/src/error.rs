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
}

impl VtError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Format { source, .. } => source.kind(),
            Self::Volume(source) => source.kind(),
        }
    }
}

impl From<VtError> for KvError {
    fn from(error: VtError) -> Self {
        Self::storage(error.kind(), error)
    }
}
