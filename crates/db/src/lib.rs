//! Schemas of trees: the database between an engine and its users.
//!
//! A **schema** is a named set of **dictionaries**; a dictionary is a tree with a role. All reads
//! and writes go through a [`View`]: the present, or one moment held open. Transactions and
//! branches become views of their own later, so that whoever is written against a view runs in them
//! unchanged.
//!
//! Paper: Shetty et al., VT-tree, FAST 2013, section 4 (KVDB: schemas of dictionaries).

mod changes;
mod error;
mod schema;
mod view;

pub use changes::Changes;
pub use error::DbError;
pub use schema::{Dictionary, Schema};
pub use stitch_kv::{
    Caching, Coming, CommitOptions, Direction, Entry, KeyRange, Limits, Scan, SpaceClass,
    SpaceUsage, TreeOptions,
};
pub use view::View;
