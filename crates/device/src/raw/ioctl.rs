//! The one request to a block device that no safe call covers.

use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};
use std::fs::File;

/// `BLKDISCARD` of `linux/fs.h`: the argument is an array of start and length in bytes.
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);

/// Discards `[offset, offset + len_bytes)` of a block device.
#[expect(
    unsafe_code,
    reason = "an ioctl's argument type is known only to the kernel"
)]
pub(super) fn discard(file: &File, offset: u64, len_bytes: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads two 64-bit values from the argument of `BLKDISCARD` and writes
    // nothing; `Setter` passes a pointer to exactly these, which lives through the call.
    unsafe {
        ioctl(
            file,
            Setter::<BLKDISCARD, [u64; 2]>::new([offset, len_bytes]),
        )
    }
}
