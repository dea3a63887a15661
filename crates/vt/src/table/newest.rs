//! Looking for versions that are newer than a moment, or between two, without reading values.

use super::Table;
use super::blocks::{BlockList, TableBlocks};
use super::direct::DirectBlocks;
use super::leaves::Reader;
use super::loader::{DataRef, Loader};
use crate::VtError;
use stitch_base::Seqno;
use stitch_kv::KeyRange;

/// Sequence numbers of the writes between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeqnoWindow {
    /// The last write that the first moment sees.
    pub(crate) after: Seqno,
    /// The last write that the second moment sees.
    pub(crate) up_to: Seqno,
}

impl SeqnoWindow {
    /// All writes that a moment does not see.
    pub(crate) const fn since(after: Seqno) -> Self {
        let up_to = Seqno(u64::MAX);
        Self { after, up_to }
    }

    /// Reports whether a write is between the moments.
    pub(crate) fn holds(self, seqno: Seqno) -> bool {
        debug_assert!(self.after <= self.up_to, "the later moment is the second");
        self.after < seqno && seqno <= self.up_to
    }

    /// Reports whether one of several writes may be between the moments, by the oldest and the
    /// newest of them.
    pub(crate) fn meets(self, oldest: Seqno, newest: Seqno) -> bool {
        debug_assert!(self.after <= self.up_to, "the later moment is the second");
        debug_assert!(oldest <= newest, "the newest is not older");
        self.after < newest && oldest <= self.up_to
    }
}

impl Table {
    /// The newest version of a key, if it is newer than `since`. Range deletes are apart.
    ///
    /// # Cost
    /// Blocks without newer versions are not read.
    pub(crate) fn newest_of(&self, key: &[u8], since: Seqno) -> Result<Option<Seqno>, VtError> {
        let mut blocks = TableBlocks::new(self, Reader::Point);
        newest_in(&self.loader, &mut blocks, key, since)
    }

    /// Calls `visit` with the keys of a range that have a version in the window, in order, until it
    /// returns false.
    ///
    /// # Cost
    /// Blocks without such versions are not read; of long values no block is.
    pub(crate) fn keys_in_window(
        &self,
        range: KeyRange<'_>,
        window: SeqnoWindow,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), VtError> {
        let mut blocks = TableBlocks::new(self, Reader::Walk);
        keys_in(&self.loader, &mut blocks, range, window, visit)
    }
}

impl DirectBlocks {
    /// As [`Table::newest_of`].
    pub(crate) fn newest_of(&self, key: &[u8], since: Seqno) -> Result<Option<Seqno>, VtError> {
        newest_in(self.loader(), &mut self.list(), key, since)
    }

    /// As [`Table::keys_in_window`].
    pub(crate) fn keys_in_window(
        &self,
        range: KeyRange<'_>,
        window: SeqnoWindow,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), VtError> {
        keys_in(self.loader(), &mut self.list(), range, window, visit)
    }
}

fn newest_in(
    loader: &Loader,
    blocks: &mut impl BlockList,
    key: &[u8],
    since: Seqno,
) -> Result<Option<Seqno>, VtError> {
    blocks.seek(key)?;
    // The newest version is in the first block that has any; others may span the blocks after it.
    while let Some(entry) = blocks.current()?.filter(|entry| entry.first <= key) {
        debug_assert!(
            entry.min_seqno <= entry.max_seqno,
            "the newest is not older"
        );
        let goes_on = entry.last == key;
        if entry.max_seqno > since {
            let newest = match entry.is_value {
                true => (entry.last == key).then_some(entry.max_seqno),
                false => newest_in_block(loader, &DataRef::of(&entry), key)?,
            };
            if newest.is_some() {
                return Ok(newest.filter(|newest| *newest > since));
            }
        }
        if !goes_on {
            break;
        }
        blocks.next()?;
    }
    Ok(None)
}

fn newest_in_block(loader: &Loader, data: &DataRef, key: &[u8]) -> Result<Option<Seqno>, VtError> {
    debug_assert!(!data.is_value, "a value block is not searched");
    let damaged = |error| loader.damaged(data.block.addr, error);
    let mut entries = loader.entries(loader.data(data)?);
    entries.seek(key, Seqno(u64::MAX)).map_err(damaged)?;
    debug_assert!(
        entries.current().is_none_or(|entry| entry.key >= key),
        "keys before the wanted one are left out"
    );
    let found = entries.current().filter(|entry| entry.key == key);
    Ok(found.map(|entry| entry.seqno))
}

fn keys_in(
    loader: &Loader,
    blocks: &mut impl BlockList,
    range: KeyRange<'_>,
    window: SeqnoWindow,
    visit: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<(), VtError> {
    debug_assert!(
        window.after <= window.up_to,
        "the later moment is the second"
    );
    let is_before_end = |key: &[u8]| range.end.is_none_or(|end| key < end);
    blocks.seek(range.start)?;
    while let Some(entry) = blocks.current()?.filter(|entry| is_before_end(entry.first)) {
        debug_assert!(
            entry.min_seqno <= entry.max_seqno,
            "the newest is not older"
        );
        if window.meets(entry.min_seqno, entry.max_seqno) {
            let goes_on = match entry.is_value {
                true => visit(entry.last),
                false => keys_in_block(loader, &DataRef::of(&entry), range, window, visit)?,
            };
            if !goes_on {
                return Ok(());
            }
        }
        blocks.next()?;
    }
    Ok(())
}

/// Returns false if `visit` did.
fn keys_in_block(
    loader: &Loader,
    data: &DataRef,
    range: KeyRange<'_>,
    window: SeqnoWindow,
    visit: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<bool, VtError> {
    debug_assert!(!data.is_value, "the key of a value block is in the index");
    let damaged = |error| loader.damaged(data.block.addr, error);
    let mut entries = loader.entries(loader.data(data)?);
    let first = Seqno(u64::MAX);
    entries.seek(range.start, first).map_err(damaged)?;
    debug_assert!(
        entries
            .current()
            .is_none_or(|entry| entry.key >= range.start),
        "keys before the range are left out"
    );
    while let Some(entry) = entries.current()
        && range.end.is_none_or(|end| entry.key < end)
    {
        if window.holds(entry.seqno) && !visit(entry.key) {
            return Ok(false);
        }
        entries.next().map_err(damaged)?;
    }
    Ok(true)
}
