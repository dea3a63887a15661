//! Looking for versions that are newer than a moment, without reading values.

use super::Table;
use super::blocks::{BlockList, TableBlocks};
use super::direct::DirectBlocks;
use super::leaves::Reader;
use super::loader::{DataRef, Loader};
use crate::VtError;
use stitch_base::Seqno;
use stitch_kv::KeyRange;

impl Table {
    /// The newest version of a key, if it is newer than `since`. Range deletes are apart.
    ///
    /// # Cost
    /// Blocks without newer versions are not read.
    pub(crate) fn newest_of(&self, key: &[u8], since: Seqno) -> Result<Option<Seqno>, VtError> {
        let mut blocks = TableBlocks::new(self, Reader::Point);
        newest_in(&self.loader, &mut blocks, key, since)
    }

    /// Calls `visit` with the keys of a range that have a version newer than `since`, in order,
    /// until it returns false.
    pub(crate) fn newer_keys(
        &self,
        range: KeyRange<'_>,
        since: Seqno,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), VtError> {
        let mut blocks = TableBlocks::new(self, Reader::Walk);
        newer_in(&self.loader, &mut blocks, range, since, visit)
    }
}

impl DirectBlocks {
    /// As [`Table::newest_of`].
    pub(crate) fn newest_of(&self, key: &[u8], since: Seqno) -> Result<Option<Seqno>, VtError> {
        newest_in(self.loader(), &mut self.list(), key, since)
    }

    /// As [`Table::newer_keys`].
    pub(crate) fn newer_keys(
        &self,
        range: KeyRange<'_>,
        since: Seqno,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), VtError> {
        newer_in(self.loader(), &mut self.list(), range, since, visit)
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
    let damaged = |error| loader.damaged(data.block.addr, error);
    let mut entries = loader.entries(loader.data(data)?);
    entries.seek(key, Seqno(u64::MAX)).map_err(damaged)?;
    let found = entries.current().filter(|entry| entry.key == key);
    Ok(found.map(|entry| entry.seqno))
}

fn newer_in(
    loader: &Loader,
    blocks: &mut impl BlockList,
    range: KeyRange<'_>,
    since: Seqno,
    visit: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<(), VtError> {
    let is_before_end = |key: &[u8]| range.end.is_none_or(|end| key < end);
    blocks.seek(range.start)?;
    while let Some(entry) = blocks.current()?.filter(|entry| is_before_end(entry.first)) {
        if entry.max_seqno > since {
            let goes_on = match entry.is_value {
                true => visit(entry.last),
                false => newer_in_block(loader, &DataRef::of(&entry), range, since, visit)?,
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
fn newer_in_block(
    loader: &Loader,
    data: &DataRef,
    range: KeyRange<'_>,
    since: Seqno,
    visit: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<bool, VtError> {
    let damaged = |error| loader.damaged(data.block.addr, error);
    let mut entries = loader.entries(loader.data(data)?);
    let first = Seqno(u64::MAX);
    entries.seek(range.start, first).map_err(damaged)?;
    while let Some(entry) = entries.current()
        && range.end.is_none_or(|end| entry.key < end)
    {
        if entry.seqno > since && !visit(entry.key) {
            return Ok(false);
        }
        entries.next().map_err(damaged)?;
    }
    Ok(true)
}
