//! The command as a user meets it. The tests that mount need root and `/dev/fuse`, and say so if
//! they are left out.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod busy;
mod chattr;
mod defrag;
mod fstrim;
mod idmapped;
mod info;
mod instances;
mod kv;
mod lines;
mod mounted;
mod not_utf8;
mod noxattr;
mod passthrough;
mod place;
mod rocksdb;
mod space;
mod startup;
#[path = "../../../fuse/tests/mounted/switch.rs"]
mod switch;
mod sync;
mod transport;
mod umount;
mod views;
