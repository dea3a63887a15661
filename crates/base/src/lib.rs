//! What every layer shares: ids and units as newtypes, error kinds, and the shims through which
//! alone the house starts threads, reads clocks, makes randomness and takes locks.
//!
//! Nothing here knows of devices, trees or files.

pub mod clock;
mod error_kind;
mod ids;
pub mod random;
pub mod sync;
pub mod thread;

pub use error_kind::ErrorKind;
pub use ids::{ByteLen, Generation, Ino, Lsn, PinId, Seqno, TableId, TreeId, ZoneId};
