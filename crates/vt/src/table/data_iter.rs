//! A cursor over the entries of one data block.

use super::block::DataBlock;
use super::loader::contradiction;
use crate::entry::EntryRef;
use crate::iter::cmp_entries;
use bytes::Bytes;
use std::cmp::Ordering;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_format::FormatError;
use stitch_format::vt_data::{Op, RawEntry};

/// A cursor over the entries of one data block.
#[derive(Debug)]
pub(super) struct DataIter {
    block: Arc<DataBlock>,
    /// What is added to each sequence number.
    shift: u64,
    key: Vec<u8>,
    /// The entry that it stands on, and where that begins.
    entry: Option<(usize, RawEntry)>,
}

impl DataIter {
    /// A cursor that stands nowhere yet. `shift` is added to each sequence number.
    pub(super) const fn new(block: Arc<DataBlock>, shift: u64) -> Self {
        Self {
            block,
            shift,
            key: Vec::new(),
            entry: None,
        }
    }

    #[inline]
    pub(super) fn current(&self) -> Option<EntryRef<'_>> {
        let (_, raw) = self.entry.as_ref()?;
        debug_assert!(
            raw.value.end <= self.block.layout().entries_end(),
            "a value lies among the entries"
        );
        debug_assert_eq!(
            self.key.len(),
            raw.shared + raw.suffix.len(),
            "the key is the entry's"
        );
        Some(EntryRef {
            key: &self.key,
            seqno: self.shifted(raw.seqno),
            op: raw.op(self.block.payload()),
        })
    }

    #[inline]
    const fn shifted(&self, stored: Seqno) -> Seqno {
        // What is damaged may be any number.
        Seqno(stored.0.saturating_add(self.shift))
    }

    #[inline]
    pub(super) const fn is_on(&self) -> bool {
        self.entry.is_some()
    }

    pub(super) fn owner(&self) -> &Bytes {
        self.block.payload()
    }

    /// Goes to the entry at an offset; `self.key` is the key before it.
    #[inline]
    fn read(&mut self, at: usize) -> Result<(), FormatError> {
        self.entry = None;
        if at >= self.block.layout().entries_end() {
            return Ok(());
        }
        let raw = self.block.layout().entry(self.block.payload(), at)?;
        debug_assert!(raw.next > at, "entries have a length");
        debug_assert!(
            raw.next <= self.block.layout().entries_end(),
            "entries end before the restarts"
        );
        if raw.shared > self.key.len() {
            return Err(shares_too_much(raw.shared, self.key.len()));
        }
        self.key.truncate(raw.shared);
        self.key
            .extend_from_slice(&self.block.payload()[raw.suffix.clone()]);
        debug_assert_eq!(self.key.len(), raw.shared + raw.suffix.len());
        self.entry = Some((at, raw));
        Ok(())
    }

    fn read_restart(&mut self, index: usize) -> Result<(), FormatError> {
        debug_assert!(
            index < self.block.layout().restart_count(),
            "a block has that many restarts"
        );
        self.key.clear();
        let at = self.block.layout().restart(self.block.payload(), index)?;
        debug_assert!(
            at < self.block.layout().entries_end(),
            "a restart is an entry"
        );
        self.read(at)?;
        debug_assert!(self.is_on(), "it stands on the restart's entry");
        Ok(())
    }

    pub(super) fn seek_first(&mut self) -> Result<(), FormatError> {
        self.read_restart(0)
    }

    pub(super) fn seek_last(&mut self) -> Result<(), FormatError> {
        let last = self.block.layout().restart_count() - 1;
        self.read_last(last, |_| true)?;
        debug_assert!(self.is_on(), "a block holds an entry");
        Ok(())
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<(), FormatError> {
        let Some((_, raw)) = &self.entry else {
            return Ok(());
        };
        let next = raw.next;
        debug_assert!(
            next <= self.block.layout().entries_end(),
            "an entry or the end behind the last one"
        );
        self.read(next)
    }

    pub(super) fn prev(&mut self) -> Result<(), FormatError> {
        let Some((at, _)) = self.entry.take() else {
            return Ok(());
        };
        let block = Arc::clone(&self.block);
        let after = partition(block.layout().restart_count(), |index| {
            Ok(block.layout().restart(block.payload(), index)? < at)
        })?;
        let Some(restart) = after.checked_sub(1) else {
            return Ok(());
        };
        self.read_restart(restart)?;
        while let Some((_, raw)) = &self.entry
            && raw.next < at
        {
            let next = raw.next;
            self.read(next)?;
        }
        debug_assert!(
            self.entry.as_ref().is_none_or(|(before, _)| *before < at),
            "it goes back"
        );
        match &self.entry {
            Some((_, raw)) if raw.next == at => Ok(()),
            _ => Err(contradiction(
                "restart",
                "offset of an entry".to_owned(),
                "another".to_owned(),
            )),
        }
    }

    /// Goes to the first entry at or after `(key, seqno)`.
    pub(super) fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), FormatError> {
        let op = Op::Delete;
        let target = EntryRef { key, seqno, op };
        let is_before = |key: &[u8], seqno| {
            cmp_entries(&EntryRef { key, seqno, op }, &target) == Ordering::Less
        };
        let after = self.restarts_where(is_before)?;
        self.read_restart(after.saturating_sub(1))?;
        debug_assert!(
            after == 0
                || self
                    .current()
                    .is_some_and(|entry| is_before(entry.key, entry.seqno)),
            "the search goes on from before the target"
        );
        while let Some((_, raw)) = &self.entry
            && is_before(&self.key, self.shifted(raw.seqno))
        {
            let next = raw.next;
            self.read(next)?;
        }
        Ok(())
    }

    /// Goes to the last entry before every version of `key`.
    pub(super) fn seek_before(&mut self, key: &[u8]) -> Result<(), FormatError> {
        let after = self.restarts_where(|found, _| found < key)?;
        let Some(restart) = after.checked_sub(1) else {
            self.entry = None;
            return Ok(());
        };
        self.read_last(restart, |found| found < key)
    }

    /// Goes to the last entry whose key, and that of every entry before it from the restart's on,
    /// is as wanted. The restart's own is.
    fn read_last(
        &mut self,
        restart: usize,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<(), FormatError> {
        self.read_restart(restart)?;
        debug_assert!(is_wanted(&self.key), "the restart's own key is wanted");
        let mut last = 0;
        while let Some((at, raw)) = &self.entry
            && is_wanted(&self.key)
        {
            last = *at;
            let next = raw.next;
            self.read(next)?;
        }
        // Keys cannot be unread, so walk again.
        self.read_restart(restart)?;
        while let Some((at, raw)) = &self.entry
            && *at < last
        {
            let next = raw.next;
            self.read(next)?;
        }
        debug_assert!(
            self.entry.as_ref().is_some_and(|(at, _)| *at == last),
            "the second walk ends where the first has seen the last"
        );
        Ok(())
    }

    /// Number of restarts, from the first on, whose entry is as wanted.
    fn restarts_where(
        &self,
        is_wanted: impl Fn(&[u8], Seqno) -> bool,
    ) -> Result<usize, FormatError> {
        let (layout, payload) = (self.block.layout(), self.block.payload());
        partition(layout.restart_count(), |index| {
            let (key, seqno) = layout.restart_key(payload, index)?;
            Ok(is_wanted(key, self.shifted(seqno)))
        })
    }
}

#[cold]
fn shares_too_much(shared: usize, key_len: usize) -> FormatError {
    debug_assert!(shared > key_len, "it shares more than there is");
    let expected = format!("at most {key_len}");
    contradiction("shared prefix", expected, shared.to_string())
}

/// The number of indices, from 0 on, for which `is_low` holds.
fn partition(
    count: usize,
    is_low: impl Fn(usize) -> Result<bool, FormatError>,
) -> Result<usize, FormatError> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_low(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    debug_assert!(low <= count);
    Ok(low)
}
