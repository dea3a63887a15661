//! StitchFS as a library: an embedded, ordered, transactional key-value store, and a POSIX file
//! system, in one file or device.
//!
//! - [`Database`]: trees of records. Begin there.
//! - [`fs::Files`]: files and directories, by calls instead of a mount.
//! - [`Store`]: a file system with its checks, which [`Host`] mounts; [`Store::database`] gives the
//!   records beside it.
//!
//! What is promised, what it costs and what goes wrong is on one page, with examples that run as
//! tests: `docs/library.md`. The command `stitchfs` is made of this library; `default-features =
//! false` leaves out what only the command needs.
//!
//! ```
//! use stitchfs::{Batch, Database, Direction, KeyRange, StoreOptions, TreeOptions};
//!
//! # fn main() -> Result<(), stitchfs::StoreError> {
//! let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
//! let people = db.create_tree("people", &TreeOptions::default())?;
//! let by_city = db.create_tree("people by city", &TreeOptions::default())?;
//!
//! let mut batch = Batch::new();
//! batch.put(&people, b"7", b"Ada, London");
//! batch.put(&by_city, b"London/7", b"");
//! db.commit(&batch)?;
//!
//! for row in by_city.scan(KeyRange::new(b"London/", b"London0"), Direction::Forward)? {
//!     let (key, _) = row?;
//!     assert_eq!(key, b"London/7");
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "allocator")]
pub mod allocator;
mod database;
mod engine;
mod error;
mod external;
pub mod fs;
mod host;
mod identity;
mod instances;
mod jobs;
mod keys;
mod make;
pub mod memory;
mod owner;
mod paths;
mod records;
mod snapshots;
mod store;
mod task;
mod usage;

pub use bytes::Bytes;
pub use database::{
    Batch, Branch, BranchedTree, Conflict, Database, NamedSnapshot, Rows, Snapshot, Transaction,
    Tree,
};
pub use engine::{EngineKind, Resized};
pub use error::StoreError;
pub use external::{count as large_files_of, folder_path as large_files_path};
pub use host::{Asked, Host, Keep, Keeper, KeeperNote};
pub use identity::{Identified, identify, pid_namespace, sees_all_processes};
pub use keys::KeyServer;
pub use make::{MakeOptions, RootOwner, store_path};
pub use paths::{path_in, path_text, set_path, set_paths};
pub use records::{KEYS_TREE, RoundGates};
pub use snapshots::{POLICIES_XATTR, policies_json, snapshot_json};
pub use stitch_base::{ErrorKind, Seqno, TreeId};
pub use stitch_db::{
    Access, Clash, ConflictPolicy, DbError, Isolation, LockWait, Resolution, Resolver, Savepoint,
    TransactionOptions,
};
pub use stitch_device::IoMode;
pub use stitch_fs::{AtimePolicy, CompressOptions, EXTERNAL_FROM_BYTES};
pub use stitch_kv::{
    CommitOptions, Compression, Counters, Direction, Entry, Folded, KeyRange, KvError, Limits,
    SpaceClass, SpaceUsage, TreeInfo, TreeOptions, UpsertFn, UpsertRegistry, Violation, prefix_end,
    upsert_fn,
};
pub use stitch_volume::{Durability, InstanceOptions};
pub use stitch_vt::{Defragged, StitchByKey, Watch};
pub use store::{
    Checked, Finding, LARGE_FILES_MAX, LARGE_FILES_MIN, LargeFiles, Made, Store, StoreOptions, make,
};
pub use task::Task;
pub use usage::{ROWS_AT_ONCE, UsageOf};

/// Names of counters: those of any engine, and those of a VT-tree.
pub mod counters {
    pub use stitch_kv::counters::*;
    pub use stitch_vt::counters::*;
}

/// Name of the extended attribute of a mount's root directory that its daemon answers with what it
/// has done so far, as JSON. Root and the user who mounted may read it.
pub const STATS_XATTR: &str = "stitchfs.stats";

/// The examples of the library's page run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
pub struct LibraryPage;

/// Name of the extended attribute of a mount's root directory that takes requests to work on the
/// space of the store, as JSON, and answers how the last one goes. For the same callers.
pub const JOB_XATTR: &str = "stitchfs.job";

/// Name of the extended attribute of a mount's root directory that makes everything durable when it
/// is set, to any value. For the same callers.
pub const SYNC_XATTR: &str = "stitchfs.sync";

/// Name of the extended attribute of a mount's root directory that takes requests to the process
/// that keeps the mount when its daemon dies, as JSON. For the same callers; not there without such
/// a process.
pub const RESTART_XATTR: &str = "stitchfs.restart";

/// Counter of a daemon: directories of removed trees that are not empty yet, as far as they are
/// known. With 0, the space of all removed trees was given back.
pub const DETACHED_DIRS: &str = "fs.detached_dirs";
/// Counter of a daemon: entries of removed trees that are gone since the store was mounted.
pub const DETACHED_REMOVED: &str = "fs.detached_removed";
