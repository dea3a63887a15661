//! One formatted device: superblock, version log, backup log, zones, space; and further instances
//! with logs of their own in the same zones.
//!
//! ```text
//! superblock A | superblock B | version log (ring) | backup log (ring) | zones 0..N
//! ```
//!
//! A volume knows nothing of keys: versions, log records and blocks are bytes that belong to the
//! engine. It guarantees: a commit is atomic and durable; the backup log is recovered as a prefix
//! that holds everything synced; a block is what was written or an error; live space is never
//! allocated.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019.

mod backup_log;
mod core;
#[cfg(test)]
mod crash_tests;
mod error;
mod instances;
#[cfg(test)]
mod instances_tests;
mod mkfs;
mod resize;
#[cfg(test)]
mod resize_tests;
mod signature;
mod space;
mod superblocks;
#[cfg(test)]
mod testing;
mod trim;
mod version_log;
mod volume;
#[cfg(test)]
mod volume_tests;
mod window;
mod zones;

pub use backup_log::{BackupLog, Durability, LogLoss, Replay, Visit};
pub use error::VolumeError;
pub use instances::InstanceOptions;
pub use mkfs::{FormatOptions, VOLUME_BYTES_MIN};
pub use resize::{Shrinking, device_bytes_max};
pub use signature::Signature;
pub use space::{Class, Reservation, Space};
pub use stitch_device::Wanted;
pub use stitch_format::block::{BlockHeader, BlockKind};
pub use trim::TrimRange;
pub use version_log::VersionChange;
pub use volume::{Block, OpenOptions, Opened, Volume};
pub use zones::{Candidate, Extent, GRANULE_BYTES, PAGE_BYTES, Refusals, Stream, Usage, Zones};
