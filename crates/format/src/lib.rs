//! Every record that reaches the medium or crosses between layers as bytes: its layout, encoding,
//! decoding and checksum. No I/O, no state.
//!
//! Values are little-endian and of fixed width or varints; keys are big-endian, so that their byte
//! order is their order. A decoder never trusts its input: any bytes at all give a value or an
//! error, never a panic.

pub mod batch;
pub mod block;
pub mod codec;
pub mod db_names;
mod document;
mod error;
pub mod fs_back;
pub mod fs_chunk;
pub mod fs_inode;
pub mod fs_key;
pub mod fs_moment;
pub mod fs_policy;
pub mod fs_reads;
pub mod fs_resolution;
pub mod fs_shared;
pub mod fs_snapshot;
pub mod fs_sys;
pub mod fs_transaction;
pub mod fs_view;
pub mod instance;
pub mod log_record;
pub mod logged_commit;
pub mod redis;
pub mod rocks;
pub mod send_stream;
pub mod store_identity;
pub mod superblock;
pub mod table;
pub mod version_object;
pub mod vt_data;
pub mod vt_index;
pub mod vt_manifest;
pub mod vt_range_delete;
pub mod vt_root;

pub use document::{TABLES, document};
pub use error::FormatError;
