//! Reading: a view's memtables and tables as one ordered map.

mod concat;
mod folded;
mod get;
mod heads;
mod learn;
mod loading;
mod many;
mod path;
mod scan;
mod source;

pub(crate) use folded::FoldedValues;
pub(crate) use learn::{EmptyRange, short_row_bytes};
pub(crate) use path::{ReadParts, ReadPath};
pub(crate) use scan::VtScan;
