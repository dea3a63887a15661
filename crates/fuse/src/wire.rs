//! The FUSE kernel protocol, version 7.45, as bytes.
//!
//! [`request`] decodes a request without copying it, [`reply`] encodes replies into a reused
//! buffer, [`notice`] encodes notices to the kernel. Nothing here reads or writes a descriptor, and
//! no request, however malformed, causes a panic.
//!
//! Invariants:
//! - the byte order is the machine's (the kernel is on the same machine), and only [`codec`] knows;
//! - every length that the kernel names is checked against the bytes that came.
//!
//! The layouts are those of the kernel's `include/uapi/linux/fuse.h`.

pub mod args;
pub mod codec;
pub mod flags;
pub mod init;
pub mod notice;
pub mod opcode;
pub mod reply;
pub mod request;
pub mod ring;

#[cfg(test)]
mod tests;
