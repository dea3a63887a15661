//! Reads an area of the device front to back in large requests.

use crate::VolumeError;
use stitch_device::Device;

const READ_BYTES: u64 = 256 << 10;

/// A sliding buffer over one area of the device.
pub(crate) struct Window<'a> {
    device: &'a dyn Device,
    area_at: u64,
    area_bytes: u64,
    start: u64,
    buffer: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(crate) fn new(device: &'a dyn Device, area_at: u64, area_bytes: u64) -> Self {
        Self {
            device,
            area_at,
            area_bytes,
            start: 0,
            buffer: Vec::new(),
        }
    }

    /// The bytes `[offset, offset + len)` of the area, which must lie in it.
    pub(crate) fn bytes(&mut self, offset: u64, len: u64) -> Result<&[u8], VolumeError> {
        assert!(offset <= self.area_bytes, "within the area");
        assert!(len <= self.area_bytes - offset, "within the area");
        let held = self.start..self.start + self.buffer.len() as u64;
        if offset < held.start || offset + len > held.end {
            let wanted = len.max(READ_BYTES).min(self.area_bytes - offset);
            self.buffer.resize(usize_from(wanted), 0);
            self.start = offset;
            let read = self.device.read_at(self.area_at + offset, &mut self.buffer);
            if let Err(error) = read {
                self.buffer.clear();
                return Err(error.into());
            }
        }
        debug_assert!(self.start <= offset, "the buffer holds the bytes");
        let from = usize_from(offset - self.start);
        debug_assert!(from + usize_from(len) <= self.buffer.len(), "to their end");
        Ok(&self.buffer[from..from + usize_from(len)])
    }
}

/// Converts a length that was checked against something in memory or a small bound.
pub(crate) fn usize_from(len: u64) -> usize {
    usize::try_from(len).expect("lengths in memory fit")
}
