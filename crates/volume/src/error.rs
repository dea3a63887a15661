//! Errors of a volume.

use stitch_base::ErrorKind;
use stitch_device::DeviceError;
use stitch_format::FormatError;

/// A failure of a volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Stored bytes are not what was written.
    #[error("{what} at byte {at} is damaged: found {found}, expected {expected}")]
    Corrupt {
        /// The record that should stand there.
        what: String,
        /// Offset on the device, in bytes.
        at: u64,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The backup log ends before what was synced to it.
    #[error(
        "the backup log at byte {at} is damaged: what was synced there cannot be read, and with it \
         all that follows, {lost_bytes} bytes of log"
    )]
    LogDamaged {
        /// Offset on the device of the first record that cannot be read, in bytes.
        at: u64,
        /// Bytes of log from there to the last place that is known to have been written.
        lost_bytes: u64,
    },
    /// The device holds no volume.
    #[error("{name}: {}", no_volume(*.holds))]
    NotAVolume {
        /// The device.
        name: String,
        /// What it holds instead of a volume, if known.
        holds: Option<&'static str>,
    },
    /// The volume needs another version of the program.
    #[error("{name}: {reason}")]
    Unsupported {
        /// The device.
        name: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The request is invalid.
    #[error("{reason}")]
    Invalid {
        /// The reason, and what would be valid.
        reason: String,
    },
    /// No space for data is left.
    #[error("no space left: {wanted_bytes} bytes wanted, {free_bytes} free; delete something")]
    NoSpace {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes that were available to this caller.
        free_bytes: u64,
    },
    /// A volume cannot be shrunk to the requested length.
    #[error(
        "{wanted_bytes} bytes are too few for what is in it: {least_bytes} are the least now; \
         delete something, or give a larger size"
    )]
    TooSmall {
        /// Length asked for.
        wanted_bytes: u64,
        /// Shortest length that may suffice.
        least_bytes: u64,
    },
    /// The backup log has no room until a version with a later log start is committed.
    #[error(
        "the backup log is full: {used_bytes} of {capacity_bytes} bytes are live; \
         write the memtables out"
    )]
    LogFull {
        /// Bytes from the log start to the end.
        used_bytes: u64,
        /// Length of the ring.
        capacity_bytes: u64,
    },
    /// The version log has no room for this object.
    #[error(
        "the version log has no room for {wanted_bytes} bytes to list all trees, pins and \
         tables; {base_bytes_max} bytes always fit: drop trees or pins that are not needed"
    )]
    VersionLogFull {
        /// Bytes that the object takes.
        wanted_bytes: u64,
        /// Longest base that always fits.
        base_bytes_max: u64,
    },
    /// An instance of this name exists.
    #[error("instance {name} exists already; give another name")]
    InstanceExists {
        /// Its name.
        name: String,
    },
    /// There is no such instance.
    #[error("there is no instance {name}")]
    NoInstance {
        /// The name asked for.
        name: String,
    },
    /// There are not enough adjacent free zones.
    #[error(
        "no {count} free zones lie side by side, {wanted_bytes} bytes, as the logs of an instance \
         need: delete something, defragment, or grow the store"
    )]
    NoZones {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Zones that these are.
        count: u64,
    },
    /// An earlier write or sync failed, so nothing more is accepted.
    #[error("an earlier write or sync failed; close and reopen the store")]
    Poisoned,
    /// Open for reading only.
    #[error("the volume is open for reading only")]
    ReadOnly,
}

fn no_volume(holds: Option<&str>) -> String {
    match holds {
        Some(what) => format!("holds {what}, not StitchFS"),
        None => "is not a StitchFS volume".into(),
    }
}

/// Refuses a request.
pub(crate) fn invalid<T>(reason: impl Into<String>) -> Result<T, VolumeError> {
    let reason = reason.into();
    debug_assert!(!reason.is_empty(), "the user is told why");
    Err(VolumeError::Invalid { reason })
}

impl VolumeError {
    /// Returns the kind, which tells what a caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(source) => source.kind(),
            Self::Corrupt { .. } | Self::LogDamaged { .. } => ErrorKind::Corrupt,
            Self::NotAVolume { .. } | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::InstanceExists { .. } => ErrorKind::Exists,
            Self::NoInstance { .. } => ErrorKind::NotFound,
            Self::NoSpace { .. }
            | Self::NoZones { .. }
            | Self::TooSmall { .. }
            | Self::LogFull { .. }
            | Self::VersionLogFull { .. } => ErrorKind::NoSpace,
            Self::Poisoned => ErrorKind::Poisoned,
            Self::ReadOnly => ErrorKind::ReadOnly,
        }
    }

    /// Converts the error of a decoder for the bytes at an offset of the device.
    pub(crate) fn from_format(what: &str, at: u64, error: FormatError) -> Self {
        let what = what.to_owned();
        let (expected, found) = match error {
            FormatError::Truncated { needed, left, .. } => {
                (format!("{needed} bytes"), format!("{left} bytes"))
            }
            FormatError::Field {
                field,
                expected,
                found,
                ..
            } => (format!("{field} {expected}"), found),
            FormatError::Checksum {
                expected, found, ..
            } => (
                format!("checksum {found:#010x}"),
                format!("{expected:#010x}"),
            ),
            other => (
                "a version that this program knows".into(),
                other.to_string(),
            ),
        };
        Self::Corrupt {
            what,
            at,
            expected,
            found,
        }
    }
}
