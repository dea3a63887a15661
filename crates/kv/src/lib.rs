//! The engine contract: what every ordered store of this house offers to what is above it.
//!
//! A store holds **trees** of byte keys and byte values. It is changed by [`Batch`]es of messages
//! (`put`, `delete`, `delete_range`, `upsert`), each applied whole or not at all, over any trees;
//! it is read by `get` and by ordered scans in both directions, now or at a [`Snapshot`]. A commit
//! with [`Guards`] is applied only if what they name has not changed. A *pin* is a snapshot that
//! the
//! store itself keeps, also while no process has it open. A *branch tree* begins with what another
//! tree held at a moment, and goes its own way.
//!
//! Nothing here knows how an engine works inside, and nothing above may know more than this.

mod batch;
mod branch;
mod capabilities;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod counters;
mod engine;
mod error;
mod guards;
mod key_ranges;
mod limits;
mod model;
mod pin;
mod snapshot;
mod snapshot_engine;
mod space_share;
mod tree;
mod uncommitted;
mod upsert;
mod wrapped_engine;

pub use batch::{Batch, HintedMessage, StreamName};
pub use branch::{
    BRANCH_DEPTH_MAX, BranchPoint, DeletedRange, NewBranch, check_branch_depth, check_branch_of,
    join_ranges,
};
pub use capabilities::Capabilities;
pub use counters::Counters;
pub use engine::{
    CommitOptions, Direction, Engine, Entry, KeyRange, LostKeys, Priority, ReadHint, ReadOrder,
    Scan, SpaceClass, SpaceUsage, Violation, kept_from_uncommitted, prefix_end,
};
pub use error::KvError;
pub use guards::{ChangedKey, Guard, Guarded, Guards};
pub use key_ranges::{KeyRanges, OwnedKeyRange};
pub use limits::{
    Limits, PIN_NAME_BYTES_MAX, PIN_RANGES_BYTES_MAX, PIN_RANGES_MAX, PIN_USER_BYTES_MAX,
    TREE_NAME_BYTES_MAX, check_free, check_pin_name, check_pin_ranges, check_pin_user,
    check_tree_name,
};
pub use model::{CommitFault, Dump, ModelEngine};
pub use pin::{PinInfo, PinRanges, PinScope};
pub use snapshot::Snapshot;
pub use snapshot_engine::SnapshotEngine;
pub use space_share::{Holder, SpaceShare, check_holders};
pub use stitch_format::batch::{Message, Messages, Position, Stretch};
pub use tree::{Compression, TreeInfo, TreeOptions};
pub use uncommitted::UncommittedEngine;
pub use upsert::{Folded, UpsertFn, UpsertRegistry, upsert_fn};
pub use wrapped_engine::WrappedEngine;
