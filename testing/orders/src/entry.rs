//! Entries, as far as the list knows them.

use crate::Seqno;

/// What an entry does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op<'a> {
    /// Sets it.
    Put(&'a [u8]),
    /// Removes it.
    Delete,
    /// Folds into it.
    Upsert {
        /// Number of the function.
        function: u32,
        /// What is folded in.
        delta: &'a [u8],
    },
}

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
