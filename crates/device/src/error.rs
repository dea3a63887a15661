//! Errors of devices.

use std::io;
use std::path::PathBuf;
use stitch_base::ErrorKind;

/// A failure of a device, with what was tried and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The medium or the operating system failed.
    #[error("{name}: {}", request(op, *at, *len_bytes))]
    Io {
        /// The device.
        name: String,
        /// `read`, `write`, `sync`, `discard`, `open`, `create`, `lock`, `grow`, `shrink`.
        op: &'static str,
        /// Offset in bytes.
        at: u64,
        /// Length of the request in bytes.
        len_bytes: u64,
        /// The error that the operating system reported.
        #[source]
        source: io::Error,
    },
    /// The request goes beyond the end.
    #[error(
        "{name}: {op} of {len_bytes} bytes at offset {at} goes beyond the end ({device_bytes} \
         bytes)"
    )]
    OutOfRange {
        /// The device.
        name: String,
        /// `read`, `write`, `discard`.
        op: &'static str,
        /// Offset in bytes.
        at: u64,
        /// Length of the request in bytes.
        len_bytes: u64,
        /// Size of the device.
        device_bytes: u64,
    },
    /// The path cannot be used as a device.
    #[error("{name}: {reason}")]
    Unsuitable {
        /// The path.
        name: String,
        /// Why, and what to do about it.
        reason: String,
    },
    /// The device is open already, in another process or in this one.
    #[error("{}: in use: another process has it open, or this one has it \
        already", path.display())]
    Busy {
        /// The path.
        path: PathBuf,
    },
}

/// Describes the failed request. Opening and locking have no offset and no length; creating has no
/// offset.
fn request(op: &str, at: u64, len_bytes: u64) -> String {
    match op {
        "open" | "lock" => format!("cannot {op}"),
        "create" => format!("cannot {op} with {len_bytes} bytes"),
        "grow" => format!("cannot {op} by {len_bytes} bytes"),
        "shrink" => format!("cannot {op} to {at} bytes"),
        _ => format!("{op} of {len_bytes} bytes at offset {at} failed"),
    }
}

impl DeviceError {
    /// Returns the kind, which tells what a caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::AlreadyExists => ErrorKind::Exists,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
                _ => ErrorKind::Io,
            },
            Self::OutOfRange { .. } => ErrorKind::Bug,
            Self::Unsuitable { .. } => ErrorKind::Invalid,
            Self::Busy { .. } => ErrorKind::Busy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_only_where_there_is_one() {
        let failed = |op| {
            let error = DeviceError::Io {
                name: "store".to_owned(),
                op,
                at: 0,
                len_bytes: 4096,
                source: io::ErrorKind::NotFound.into(),
            };
            error.to_string()
        };
        assert_eq!(failed("open"), "store: cannot open");
        assert_eq!(failed("create"), "store: cannot create with 4096 bytes");
        assert_eq!(
            failed("read"),
            "store: read of 4096 bytes at offset 0 failed"
        );
    }
}
