//! RocksDB behind the engine contract ([`stitch_kv::Engine`]).
//!
//! | contract | RocksDB |
//! |---|---|
//! | tree | column family `tN`; the default one has the catalog |
//! | batch | one write batch: atomic over column families |
//! | upsert | merge operand; the registered function is the merge operator |
//! | range delete | `DeleteRange` |
//! | commit survives a killed process | the WAL is written at each commit |
//! | `sync`, and every few seconds | `flush_wal` with a sync |
//! | snapshot | RocksDB's own, in memory |
//! | read of several keys | `MultiGet` |
//! | commit with guards | alone, after comparing values at the moment with those of now |
//!
//! A store is a directory. Its layout is in [`stitch_format::rocks`]. Space is that of the host's
//! file system: there is no reserve, so a full host fails deletes too.
//!
//! The crate is empty without the feature `rocksdb`. With it the system's library is loaded at run
//! time, by the first store that is opened (ADR 0205).
//!
//! Paper: vkFS, a key-value file system on RocksDB (see `docs/papers.md`).

#[cfg(feature = "rocksdb")]
mod c_api;
#[cfg(feature = "rocksdb")]
mod callbacks;
#[cfg(feature = "rocksdb")]
mod catalog;
#[cfg(feature = "rocksdb")]
mod database;
#[cfg(feature = "rocksdb")]
mod engine;
#[cfg(feature = "rocksdb")]
mod guards;
#[cfg(feature = "rocksdb")]
mod point;
#[cfg(feature = "rocksdb")]
mod scan;
#[cfg(feature = "rocksdb")]
mod syncer;
#[cfg(feature = "rocksdb")]
mod write;

#[cfg(feature = "rocksdb")]
pub use engine::{RocksEngine, RocksOptions, load_library};
