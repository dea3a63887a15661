//! Errors of decoders.

use stitch_base::ErrorKind;

/// Stored bytes that cannot be what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The record ends before it is complete.
    #[error("{record}: cut short at byte {at}: {needed} bytes needed, {left} left")]
    Truncated {
        /// Which record.
        record: &'static str,
        /// Offset in the record.
        at: usize,
        /// Bytes needed there.
        needed: usize,
        /// Bytes left there.
        left: usize,
    },
    /// A field has an invalid value.
    #[error("{record}: field {field} is {found}, expected {expected}")]
    Field {
        /// Which record.
        record: &'static str,
        /// Which field.
        field: &'static str,
        /// The allowed values.
        expected: String,
        /// The value found.
        found: String,
    },
    /// The checksum does not match.
    #[error("{record}: checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Which record.
        record: &'static str,
        /// The checksum of the bytes.
        expected: u32,
        /// The stored checksum.
        found: u32,
    },
    /// Written by a newer version of this program.
    #[error("{record}: format version {found} is newer than {supported}: use a newer stitchfs")]
    Newer {
        /// Which record.
        record: &'static str,
        /// Version found.
        found: u32,
        /// Newest version that this program reads.
        supported: u32,
    },
}

impl FormatError {
    /// Returns the kind, which tells what a caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Newer { .. } => ErrorKind::Unsupported,
            Self::Truncated { .. } | Self::Field { .. } | Self::Checksum { .. } => {
                ErrorKind::Corrupt
            }
        }
    }
}
