//! INIT: the first request and its answer.

use super::codec::{Fields, Reader, WireError};
use super::flags::InitFlags;

/// The only major version.
pub const MAJOR: u32 = 7;
/// The newest supported minor version.
pub const MINOR: u32 = 45;
/// The oldest supported minor version: Linux 5.4.
pub const MINOR_MIN: u32 = 31;

/// The kernel's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// Major version of the protocol.
    pub major: u32,
    /// Minor version of the protocol.
    pub minor: u32,
    /// Bytes that the kernel would read ahead.
    pub max_readahead: u32,
    /// The flags that it supports.
    pub flags: InitFlags,
}

impl InitRequest {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let (major, minor) = (body.u32()?, body.u32()?);
        if major != MAJOR {
            return Ok(Self {
                major,
                minor,
                max_readahead: 0,
                flags: InitFlags::empty(),
            });
        }
        let (max_readahead, low) = (body.u32()?, InitFlags(u64::from(body.u32()?)));
        let high = if low.contains(InitFlags::INIT_EXT) {
            u64::from(body.u32()?)
        } else {
            0
        };
        Ok(Self {
            major,
            minor,
            max_readahead,
            flags: InitFlags(low.0 | high << 32),
        })
    }
}

/// The daemon's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitReply {
    /// Minor version of the protocol.
    pub minor: u32,
    /// Most bytes of read-ahead.
    pub max_readahead: u32,
    /// The accepted flags.
    pub flags: InitFlags,
    /// Most background requests.
    pub max_background: u16,
    /// Background requests from which the device counts as congested.
    pub congestion_threshold: u16,
    /// Most bytes of a WRITE.
    pub max_write: u32,
    /// Resolution of time stamps, in nanoseconds.
    pub time_gran: u32,
    /// Most pages of a request.
    pub max_pages: u16,
    /// With `PASSTHROUGH`: depth of stacked file systems below this one; else 0.
    pub max_stack_depth: u32,
}

impl InitReply {
    /// Returns the reply to a newer major version, which names only the supported one.
    #[must_use]
    pub const fn version_only() -> Self {
        Self {
            minor: MINOR,
            max_readahead: 0,
            flags: InitFlags::empty(),
            max_background: 0,
            congestion_threshold: 0,
            max_write: 0,
            time_gran: 0,
            max_pages: 0,
            max_stack_depth: 0,
        }
    }

    /// Encodes the reply.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        debug_assert!(
            self.congestion_threshold <= self.max_background,
            "it is reached first"
        );
        debug_assert_eq!(
            self.max_stack_depth != 0,
            self.flags.contains(InitFlags::PASSTHROUGH),
            "only the files of passthrough are stacked upon"
        );
        let low = u32::try_from(self.flags.0 & u64::from(u32::MAX)).expect("masked");
        let high = u32::try_from(self.flags.0 >> 32).expect("the upper half");
        Fields::default()
            .u32(MAJOR)
            .u32(self.minor)
            .u32(self.max_readahead)
            .u32(low)
            .u16(self.max_background)
            .u16(self.congestion_threshold)
            .u32(self.max_write)
            .u32(self.time_gran)
            .u16(self.max_pages)
            .u16(0)
            .u32(high)
            .u32(self.max_stack_depth)
            .zeros(24)
            .done()
    }
}
