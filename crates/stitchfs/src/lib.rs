//! The stitchfs library: stores from the device up to the file system, in one piece.
//!
//! The command `stitchfs` is made of it.

mod error;
mod host;
mod identity;
mod make;
pub mod memory;
mod store;

pub use error::StoreError;
pub use host::Host;
pub use identity::identity;
pub use make::{MakeOptions, RootOwner, store_path};
pub use stitch_fs::AtimePolicy;
pub use stitch_volume::Durability;
pub use store::{Checked, Finding, Made, Store, StoreOptions, make};

/// Name of the extended attribute of a mount's root directory that its daemon answers with what it
/// has done so far, as JSON. To be read by root and by whoever mounted.
pub const STATS_XATTR: &str = "stitchfs.stats";
