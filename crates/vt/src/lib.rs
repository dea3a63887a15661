//! The VT-tree engine: a log-structured merge-tree whose compactions re-reference ("stitch") the
//! blocks that do not overlap in place of copying them.
//!
//! Paper: Shetty, Spillane, Malpani, Andrews, Seyster, Zadok, *Building Workload-Independent Storage
//! with VT-Trees*, FAST 2013.

mod entry;
mod error;

#[expect(unused_imports, reason = "the engine arrives next")]
pub(crate) use entry::{EntryIter, EntryRef, Op, RangeDelete};
pub use error::VtError;
