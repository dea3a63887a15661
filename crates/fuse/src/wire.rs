//! The FUSE kernel protocol, version 7.45, as bytes.
//!
//! [`request`] takes a request apart without copying it, [`reply`] writes answers into a buffer
//! that is used again and again, [`notice`] writes what the kernel is told unasked. Nothing here
//! reads or writes a descriptor, and no request, however malformed, makes it panic.
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
