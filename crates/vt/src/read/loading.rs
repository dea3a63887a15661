//! A cursor that reads the values which the cursor below it carries unread.

use crate::VtError;
use crate::entry::{BoxIter, EntryIter, EntryRef, Op};
use crate::table::{Bounds, ValueReader};
use bytes::Bytes;
use std::sync::Arc;
use stitch_base::Seqno;

/// A cursor over entries whose values are all there. It ends at its bounds: no value beyond them is
/// read.
pub(super) struct Loading {
    inner: BoxIter,
    values: ValueReader,
    bounds: Arc<Bounds>,
    /// The value of the entry that it stands on, if the cursor below carries it.
    value: Option<Bytes>,
}

impl Loading {
    pub(super) fn new(inner: BoxIter, values: ValueReader, bounds: Arc<Bounds>) -> Self {
        debug_assert!(!bounds.is_of_keys, "a scan of keys alone loads no values");
        Self {
            inner,
            values,
            bounds,
            value: None,
        }
    }

    fn is_wanted(&self, key: &[u8]) -> bool {
        let end = self.bounds.end.as_deref();
        self.bounds.start.as_slice() <= key && end.is_none_or(|end| key < end)
    }

    fn arrive(&mut self) -> Result<(), VtError> {
        debug_assert!(
            self.inner.carried().is_none_or(|block| block.is_value),
            "value blocks are carried"
        );
        self.value = match self.inner.carried() {
            Some(block) if self.is_wanted(&block.last) => Some(self.values.get(block)?),
            _ => None,
        };
        debug_assert!(
            self.inner
                .carried()
                .is_none_or(|block| block.first == block.last),
            "a value block has one key"
        );
        Ok(())
    }
}

impl EntryIter for Loading {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError> {
        self.inner.seek(key, seqno)?;
        self.arrive()
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        self.inner.seek_before(key)?;
        self.arrive()
    }

    fn next(&mut self) -> Result<(), VtError> {
        self.inner.next()?;
        self.arrive()
    }

    fn prev(&mut self) -> Result<(), VtError> {
        self.inner.prev()?;
        self.arrive()
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        debug_assert!(
            self.value.is_none() || self.inner.carried().is_some(),
            "a value is loaded for a carried block"
        );
        let entry = self.inner.current()?;
        match (&self.value, self.inner.carried()) {
            (Some(value), _) => {
                let op = Op::Put(value);
                Some(EntryRef { op, ..entry })
            }
            (None, Some(_)) => None,
            (None, None) => Some(entry),
        }
    }
}
