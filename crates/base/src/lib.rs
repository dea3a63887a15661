//! Types and shims that every layer shares: ids and units as newtypes, error kinds, and the only
//! way to start threads, read clocks, make randomness and take locks.
//!
//! This crate knows nothing about devices, trees or files.

pub mod calendar;
pub mod clock;
mod error_kind;
mod ids;
pub mod random;
pub mod sync;
pub mod thread;

pub use error_kind::ErrorKind;
pub use ids::{ByteLen, Generation, Ino, Lsn, PinId, Seqno, TableId, TreeId, ZoneId};
