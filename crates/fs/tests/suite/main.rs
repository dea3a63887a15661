//! The file system on the model engine, without a mount.

mod attributes;
mod common;
mod contents;
mod costs;
mod durability;
mod external;
mod external_faults;
mod lent;
mod model;
mod names;
mod positions;
mod takeover;
mod threads;
mod trees;
mod twin;
mod xattrs;
