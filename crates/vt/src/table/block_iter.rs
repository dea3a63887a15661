//! A cursor over the entries of one block, of whatever kind.

use super::block::DataBlock;
use super::data_iter::DataIter;
use crate::entry::{EntryRef, Op};
use crate::iter::cmp_entries;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_format::FormatError;
use stitch_format::vt_index::IndexEntry;

/// A cursor over the entries of one block.
#[derive(Debug)]
pub(super) enum BlockIter {
    /// A block of entries.
    Entries(DataIter),
    /// A value block.
    Value(ValueIter),
}

/// A cursor over the one entry of a value block.
#[derive(Debug)]
pub(super) struct ValueIter {
    put: Put,
    /// False beyond either end.
    is_here: bool,
}

#[derive(Debug)]
enum Put {
    Read {
        key: Vec<u8>,
        seqno: Seqno,
        block: Arc<DataBlock>,
    },
    Carried(IndexEntry),
}

impl BlockIter {
    /// A cursor over a value block that was read; stands nowhere yet.
    pub(super) const fn value(key: Vec<u8>, seqno: Seqno, block: Arc<DataBlock>) -> Self {
        Self::Value(ValueIter {
            put: Put::Read { key, seqno, block },
            is_here: false,
        })
    }

    /// A cursor over a value block that is not read.
    pub(super) const fn carried(entry: IndexEntry) -> Self {
        debug_assert!(entry.is_value, "a value block");
        debug_assert!(
            entry.min_seqno.0 == entry.max_seqno.0,
            "a value block holds one version"
        );
        Self::Value(ValueIter {
            put: Put::Carried(entry),
            is_here: false,
        })
    }

    #[inline]
    pub(super) fn current(&self) -> Option<EntryRef<'_>> {
        match self {
            Self::Entries(iter) => iter.current(),
            Self::Value(iter) => iter.is_here.then(|| iter.entry()),
        }
    }

    #[inline]
    pub(super) const fn is_on(&self) -> bool {
        match self {
            Self::Entries(iter) => iter.is_on(),
            Self::Value(iter) => iter.is_here,
        }
    }

    /// The block, if it is a value block that was not read and the cursor stands on its entry.
    pub(super) fn carried_block(&self) -> Option<&IndexEntry> {
        match self {
            Self::Value(ValueIter {
                put: Put::Carried(entry),
                is_here: true,
            }) => {
                debug_assert!(entry.is_value, "only value blocks are carried over");
                Some(entry)
            }
            _ => None,
        }
    }

    pub(super) fn seek_first(&mut self) -> Result<(), FormatError> {
        match self {
            Self::Entries(iter) => iter.seek_first()?,
            Self::Value(iter) => iter.is_here = true,
        }
        debug_assert!(self.is_on(), "a block holds an entry");
        Ok(())
    }

    pub(super) fn seek_last(&mut self) -> Result<(), FormatError> {
        match self {
            Self::Entries(iter) => iter.seek_last()?,
            Self::Value(iter) => iter.is_here = true,
        }
        debug_assert!(self.is_on(), "a block holds an entry");
        Ok(())
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<(), FormatError> {
        match self {
            Self::Entries(iter) => iter.next()?,
            Self::Value(iter) => iter.is_here = false,
        }
        debug_assert_eq!(self.is_on(), self.current().is_some());
        Ok(())
    }

    pub(super) fn prev(&mut self) -> Result<(), FormatError> {
        match self {
            Self::Entries(iter) => iter.prev()?,
            Self::Value(iter) => iter.is_here = false,
        }
        debug_assert_eq!(self.is_on(), self.current().is_some());
        Ok(())
    }

    /// Goes to the first entry at or after `(key, seqno)`.
    pub(super) fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), FormatError> {
        let op = Op::Delete;
        let target = EntryRef { key, seqno, op };
        match self {
            Self::Entries(iter) => iter.seek(key, seqno)?,
            Self::Value(iter) => iter.is_here = cmp_entries(&iter.entry(), &target).is_ge(),
        }
        debug_assert!(
            self.current()
                .is_none_or(|entry| cmp_entries(&entry, &target).is_ge()),
            "not before the target"
        );
        Ok(())
    }

    /// Goes to the last entry before every version of `key`.
    pub(super) fn seek_before(&mut self, key: &[u8]) -> Result<(), FormatError> {
        match self {
            Self::Entries(iter) => iter.seek_before(key)?,
            Self::Value(iter) => iter.is_here = iter.entry().key < key,
        }
        debug_assert!(
            self.current().is_none_or(|entry| entry.key < key),
            "before the key"
        );
        Ok(())
    }
}

impl ValueIter {
    fn entry(&self) -> EntryRef<'_> {
        let (key, seqno, value): (&[u8], _, &[u8]) = match &self.put {
            Put::Read { key, seqno, block } => (key, *seqno, block.payload()),
            Put::Carried(entry) => {
                debug_assert_eq!(entry.first, entry.last, "a value block holds one key");
                debug_assert_eq!(entry.entry_count, 1, "a value block holds one entry");
                (&entry.last, entry.max_seqno, &[])
            }
        };
        let op = Op::Put(value);
        EntryRef { key, seqno, op }
    }
}
