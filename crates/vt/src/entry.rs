//! Entries: versions of keys, as memtables and tables hold them.
//!
//! Order of entries: by key, ascending; versions of one key by sequence number, newest first.

use crate::error::VtError;
use crate::prefix::prefix_of;
use bytes::Bytes;
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntry;

pub(crate) use stitch_format::vt_data::Op;

/// One version of one key, borrowed from a memtable or a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRef<'a> {
    /// The user's key (without tree number).
    pub(crate) key: &'a [u8],
    /// When it was written.
    pub(crate) seqno: Seqno,
    /// What it does.
    pub(crate) op: Op<'a>,
}

/// Removes every version in `[start, end)` that is older than `seqno`. Kept beside the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeDelete {
    /// First key of the range.
    pub(crate) start: Vec<u8>,
    /// First key after the range.
    pub(crate) end: Vec<u8>,
    /// When it was written.
    pub(crate) seqno: Seqno,
}

/// A cursor over entries in order. After a seek or a step it stands on an entry or beyond the end.
pub(crate) trait EntryIter {
    /// Goes to the first entry at or after `(key, seqno)` in entry order: the newest version of
    /// `key` not newer than `seqno`, else the first version of the next key.
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError>;

    /// Goes to the last entry before every version of `key`; with `None`, to the last entry.
    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError>;

    /// One entry on. Must stand on an entry.
    fn next(&mut self) -> Result<(), VtError>;

    /// Moves as [`Self::next`] and returns the prefix of the key on which it stands then
    /// ([`crate::prefix`]), `None` beyond the end. A merge needs only one call through a box.
    fn next_prefix(&mut self) -> Result<Option<u64>, VtError> {
        debug_assert!(self.is_on(), "it steps from an entry");
        self.next()?;
        Ok(self.current().map(|entry| prefix_of(entry.key)))
    }

    /// One entry back. Must stand on an entry.
    fn prev(&mut self) -> Result<(), VtError>;

    /// The entry it stands on; `None` beyond either end.
    fn current(&self) -> Option<EntryRef<'_>>;

    /// True if it stands on an entry.
    fn is_on(&self) -> bool {
        self.current().is_some()
    }

    /// Goes on to the first entry at or after `key`, unless it is there already.
    fn seek_on(&mut self, key: &[u8]) -> Result<(), VtError> {
        debug_assert_eq!(self.is_on(), self.current().is_some());
        if self.current().is_some_and(|entry| entry.key < key) {
            self.seek(key, Seqno(u64::MAX))?;
        }
        Ok(())
    }

    /// Goes back to the last entry before every version of `key`, unless it is there already.
    fn seek_back(&mut self, key: &[u8]) -> Result<(), VtError> {
        debug_assert_eq!(self.is_on(), self.current().is_some());
        if self.current().is_some_and(|entry| entry.key >= key) {
            self.seek_before(Some(key))?;
        }
        Ok(())
    }

    /// Goes on over entries before `end` that are older than `seqno`, as far as it knows that they
    /// are without a look at each. Answers whether it has moved.
    fn skip_older(&mut self, _seqno: Seqno, _end: &[u8]) -> Result<bool, VtError> {
        Ok(false)
    }

    /// The same backward, over entries at or after `start`.
    fn skip_older_back(&mut self, _seqno: Seqno, _start: &[u8]) -> Result<bool, VtError> {
        Ok(false)
    }

    /// The value block of the entry it stands on, of a cursor that carries such blocks over unread:
    /// the entry is a put then, and its value is not the one in [`Self::current`].
    fn carried(&self) -> Option<&IndexEntry> {
        None
    }
}

/// A boxed cursor. Moves between threads, and holds all that it needs.
pub(crate) type BoxIter = Box<dyn EntryIter + Send>;

impl<T: EntryIter + ?Sized> EntryIter for Box<T> {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError> {
        (**self).seek(key, seqno)
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        (**self).seek_before(key)
    }

    fn next(&mut self) -> Result<(), VtError> {
        debug_assert!((**self).is_on(), "it steps from an entry");
        (**self).next()
    }

    fn next_prefix(&mut self) -> Result<Option<u64>, VtError> {
        let prefix = (**self).next_prefix()?;
        debug_assert_eq!(
            prefix,
            self.current().map(|entry| prefix_of(entry.key)),
            "the prefix is that of the key on which it stands"
        );
        Ok(prefix)
    }

    fn prev(&mut self) -> Result<(), VtError> {
        debug_assert!((**self).is_on(), "it steps from an entry");
        (**self).prev()
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        (**self).current()
    }

    fn is_on(&self) -> bool {
        debug_assert_eq!((**self).is_on(), (**self).current().is_some());
        (**self).is_on()
    }

    fn skip_older(&mut self, seqno: Seqno, end: &[u8]) -> Result<bool, VtError> {
        (**self).skip_older(seqno, end)
    }

    fn skip_older_back(&mut self, seqno: Seqno, start: &[u8]) -> Result<bool, VtError> {
        (**self).skip_older_back(seqno, start)
    }

    fn carried(&self) -> Option<&IndexEntry> {
        let carried = (**self).carried();
        debug_assert!(
            carried.is_none() || (**self).is_on(),
            "the value block is that of an entry"
        );
        debug_assert!(
            carried.is_none_or(|block| block.is_value),
            "value blocks are carried"
        );
        carried
    }
}

/// A value to keep: a slice of its buffer, or a copy where sharing would hold on to much for
/// little.
pub(crate) fn to_bytes(value: &[u8], owner: Option<&Bytes>) -> Bytes {
    debug_assert!(
        owner.is_none_or(|owner| value.len() <= owner.len()),
        "a value is a part of its buffer"
    );
    match owner {
        Some(owner) if value.len() >= owner.len() / 4 => owner.slice_ref(value),
        _ => Bytes::copy_from_slice(value),
    }
}
