//! The VT-tree engine: a log-structured merge-tree whose compactions re-reference ("stitch") the
//! blocks that do not overlap in place of copying them.
//!
//! Paper: Shetty, Spillane, Malpani, Andrews, Seyster, Zadok, *Building Workload-Independent Storage
//! with VT-Trees*, FAST 2013.

#![expect(dead_code, reason = "the engine that uses these arrives next")]

mod cache;
mod entry;
mod error;
mod iter;
mod memtable;
mod range_delete;
mod table;

pub use error::VtError;
