//! Real mounts of a file system in memory. They need root and `/dev/fuse`, and print the reason if
//! they are skipped.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod behind;
mod counts;
mod files;
mod fixture;
mod idle_poll;
mod lifecycle;
mod locks;
mod map;
mod memfs;
mod memory;
mod noxattr;
mod private;
mod prune;
mod ring;
mod snapshots;
mod store;
mod switch;
mod times;
mod trim;
mod write_back;
mod xattrs;
