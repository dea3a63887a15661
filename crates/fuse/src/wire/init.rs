//! INIT: the first request and its answer.

use super::codec::{Fields, Reader, WireError};
use super::flags::InitFlags;

/// The only major version.
pub const MAJOR: u32 = 7;
/// The newest minor version that we speak.
pub const MINOR: u32 = 45;
/// The oldest that we accept: linux 5.4.
pub const MINOR_MIN: u32 = 31;

/// What the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// Major version of the protocol.
    pub major: u32,
    /// Minor version of the protocol.
    pub minor: u32,
    /// Bytes that the kernel would read ahead.
    pub max_readahead: u32,
    /// What it can do.
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

/// What we take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitReply {
    /// Minor version of the protocol.
    pub minor: u32,
    /// Bytes to read ahead at most.
    pub max_readahead: u32,
    /// What we want of what was offered.
    pub flags: InitFlags,
    /// Background requests at most.
    pub max_background: u16,
    /// Background requests from which the device counts as congested.
    pub congestion_threshold: u16,
    /// Bytes in a WRITE at most.
    pub max_write: u32,
    /// Steps of time stamps, in nanoseconds.
    pub time_gran: u32,
    /// Pages in a request at most.
    pub max_pages: u16,
    /// With `PASSTHROUGH`: how many file systems may lie one upon the other, less ours; else 0.
    pub max_stack_depth: u32,
}

impl InitReply {
    /// An answer to a newer major version: it names ours and nothing else.
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

    /// As the kernel wants it.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
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
