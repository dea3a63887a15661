//! Schemas of trees: the database between an engine and its users.
//!
//! A **schema** is a named set of **dictionaries**; a dictionary is a tree with a role. All reads
//! and writes go through a [`View`]: the present, or one moment held open. What is read, decided
//! and written as one step goes through a [`Transaction`]. [`Schema::branch`] makes a schema that
//! begins with what another one holds, and goes its own way.
//!
//! Paper: Shetty et al., VT-tree, FAST 2013, section 3.2 (transactions) and section 4 (KVDB:
//! schemas of dictionaries).

mod branch_merge;
mod changes;
mod error;
mod lock;
mod schema;
mod transaction;
mod transactions;
mod view;

pub use branch_merge::{BranchMerge, MergedTrees};
pub use changes::Changes;
pub use error::DbError;
pub use lock::Access;
pub use schema::{Dictionary, DictionaryBranch, Schema};
pub use stitch_kv::{
    ChangedKey, CommitOptions, Direction, Entry, KeyRange, Limits, Priority, ReadHint, ReadOrder,
    Scan, SpaceClass, SpaceUsage, TreeOptions,
};
pub use transaction::{
    Clash, ConflictPolicy, Isolation, LockWait, Nested, Resolution, Resolver, Savepoint,
    Transaction, TransactionOptions, TransactionScan, absorb_branches, drop_abandoned,
};
pub use transactions::{Attempts, Transactions};
pub use view::View;
