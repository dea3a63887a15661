//! What all suites share: mounts, processes, trees, counters, and cleaning up after them.

pub(crate) mod context;
pub(crate) mod copies;
pub(crate) mod disk;
pub(crate) mod file_handle;
pub(crate) mod guardian;
pub(crate) mod helper;
pub(crate) mod host;
pub(crate) mod map;
pub(crate) mod mount;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod stats;
pub(crate) mod transport;
pub(crate) mod tree;
pub(crate) mod user;
pub(crate) mod views;
