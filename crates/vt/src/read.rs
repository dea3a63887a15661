//! Reading: a view's memtables and tables as one ordered map.

mod concat;
mod folded;
mod gap_tracking;
mod get;
mod loading;
mod many;
mod path;
mod ranged;
mod scan;
mod source;
mod source_heap;

pub(crate) use folded::FoldedValues;
pub(crate) use gap_tracking::{EmptyRange, short_row_bytes};
pub(crate) use path::{ReadParts, ReadPath};
pub(crate) use scan::VtScan;

#[cfg(all(test, not(feature = "shuttle")))]
mod filtered_tests;
