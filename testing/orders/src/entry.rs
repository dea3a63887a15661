//! Entries, as far as the list knows them.

use crate::Seqno;

pub(crate) use stitch_format::vt_data::Op;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRef<'a> {
    /// Its key.
    pub(crate) key: &'a [u8],
    /// When it was written.
    pub(crate) seqno: Seqno,
    /// What it does.
    pub(crate) op: Op<'a>,
}
