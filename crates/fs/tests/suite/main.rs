//! The file system on the model engine, without a mount.

mod allocated;
mod attributes;
mod clones;
mod common;
mod contents;
mod costs;
mod durability;
mod engine;
mod external;
mod external_faults;
mod handles;
mod hostile;
mod lent;
mod model;
mod names;
mod outcomes;
mod positions;
mod room;
mod snapshots;
mod takeover;
mod threads;
mod transactions;
mod trees;
mod twin;
mod views;
mod xattrs;
