//! The file system as rows of ordered trees.
//!
//! Every operation is a plain function of [`FileSystem`]: read what it needs, build one batch,
//! commit it. So each operation happens whole or not at all, and nothing here knows of FUSE, of
//! devices or of how an engine works.
//!
//! Paper: Ren, Gibson, `TableFS`, USENIX ATC 2013, section 3 (inode rows under parent and name,
//! small files in their rows, a row of their own for inodes with several names). Differs: contents
//! larger than a row are chunks in a second tree, as in Shetty et al., VT-trees, FAST 2013, section
//! 5; changes of times, link counts, sizes and parts of chunks are upserts that read nothing;
//! unlinked files live until they are forgotten.
//!
//! Locks: the tree, then directories, then inodes; see `lock`.

mod access;
mod acl;
mod aside;
mod atomic;
mod attr;
mod back;
mod change;
mod contents;
mod data;
mod detach;
mod difference;
mod dir;
mod error;
mod events;
mod external;
mod fixed;
pub mod fsck;
mod hints;
mod history;
mod inode;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleavings;
mod ledger;
mod locator;
mod lock;
mod names;
mod namespace;
mod numbers;
mod outcome;
mod pins;
mod policy;
mod prefetch;
mod recent;
mod reclaim;
mod residents;
mod rollback;
mod room;
mod rows;
mod schema;
mod shared;
mod snapshot;
mod spread;
mod statfs;
mod steps;
mod system;
mod takeover;
#[cfg(test)]
mod testing;
mod transaction;
mod types;
mod unchanged;
mod upsert;
mod usage;
mod views;
mod xattr;

pub use atomic::{AtomicWriter, Writer};
pub use data::{FILE_BYTES_MAX, INLINE_BYTES_MAX};
pub use difference::{DirAt, TouchedPaths, TwinView};
pub use error::{FsError, FsResult};
pub use events::Notices;
pub use external::{
    EXTERNAL_FROM_BYTES, External, ExternalError, ExternalFiles, ExternalName, ExternalResult,
    MemFiles, MemFilesPoint, PLAIN_OPS, PlainFault, PlainHit,
};
pub use history::{HISTORY_S_MAX, History, HistoryRound, MomentInfo};
pub use inode::{CachedPages, INODE_BYTES};
pub use ledger::{LEDGER_LOGS, Ledger};
pub use names::NamesUsage;
pub use namespace::SYMLINK_BYTES_MAX;
pub use policy::{
    Keep, POLICY_EVERY_S_MAX, POLICY_PREFIX_BYTES_MAX, Policies, PolicyInfo, PolicyRound,
    PolicyRule,
};
pub use rollback::{KeptClones, LaterClones, RollbackRights};
pub use schema::{CompressOptions, has_external_files, set_compression};
pub use snapshot::{SNAPSHOT_NAME_BYTES_MAX, SnapshotInfo, SnapshotPart, SnapshotView, Snapshots};
pub use stitch_kv::SpaceShare;
pub use system::FileSystem;
pub use transaction::{
    BeginOptions, CommitAhead, Conflict, ConflictKind, LOCKED_PATHS_MAX, LockTicket,
    NESTED_DEPTH_MAX, PathChange, PathLock, PathLocks, PausedRecords, PinnedClone, ReadKind,
    RecordKey, RecordRules, RecordSides, Side, TRANSACTION_NAME_BYTES_MAX, TransactionInfo,
    TransactionIsolation, TransactionLife, TransactionRecords, TransactionState, TransactionView,
    Transactions, is_file_system_tree,
};
pub use types::{
    AtimePolicy, Attr, Caller, ClearSetId, DirEntry, DirName, FallocateMode, FileKind, FsOptions,
    NewNode, RenameMode, SeekFor, SetAttr, SetTime, StatFs, Taken, WriteOptions, XattrMode,
    access_mask, inode_flag,
};
pub use upsert::register_upserts;
pub use usage::{HistoryUsage, Usage};
pub use views::{CloneInfo, CloneSource, INNER_CLONES_MAX, LiveView, VIEW_INO_BITS};
pub use xattr::XATTR_VALUE_BYTES_MAX;
