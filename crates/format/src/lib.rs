//! Every record that reaches the medium or crosses between layers as bytes: its layout, encoding,
//! decoding and checksum. No I/O, no state.
//!
//! Values are little-endian and of fixed width or varints; keys are big-endian, so that their byte
//! order is their order. A decoder never trusts its input: any bytes at all give a value or an
//! error, never a panic.

pub mod batch;
pub mod codec;
mod error;
pub mod vt_manifest;

pub use error::FormatError;
