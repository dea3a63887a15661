//! Reading and deleting rows of allocated extents; see `allocated`.

use super::chunks_from;
use super::extent_maps::{EXTENTS_MAX, ExtentMaps, KnownExtents};
use super::extents::{Extent, are_apart, cleared_of, push, signed};
use crate::change::Change;
use crate::events::Event;
use crate::inode::Inode;
use crate::locator::{Locator, SysRow};
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_inode::row_flag;
use stitch_format::fs_sys::AllocatedRow;

/// Most extents that one batch changes.
const BATCH_EXTENTS_MAX: u64 = 4096;
/// Bytes of messages that an extent may take in a batch.
const EXTENT_BYTES: u64 = 128;
/// Rows up to which extents are deleted one by one.
const POINT_DELETES_MAX: usize = 16;
const _: () = assert!(
    EXTENTS_MAX as u64 <= BATCH_EXTENTS_MAX,
    "a map that is kept fits a batch"
);

/// The rows of allocated extents of files, read through the maps of those that were changed last.
///
/// Invariant: what a map says of a file is what its rows are, while its inode is locked. So rows
/// are staged only together with the event that tells the map.
#[derive(Clone, Copy)]
pub(crate) struct ExtentRows<'fs> {
    store: &'fs Store,
    pub(super) maps: &'fs ExtentMaps,
}

impl<'fs> ExtentRows<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self::new(&fs.store, &fs.extents)
    }

    pub(crate) const fn new(store: &'fs Store, maps: &'fs ExtentMaps) -> Self {
        Self { store, maps }
    }
}

impl ExtentRows<'_> {
    /// Returns an extent of a row, after those that end at `before`.
    fn extent_of(ino: Ino, before: u64, (key, row): (&[u8], &[u8])) -> FsResult<Extent> {
        let corrupt = || FsError::Corrupt(format!("extents of inode {ino} are damaged"));
        let Some(SysRow::Extent(_, end)) = Locator::sys_row(key) else {
            return Err(corrupt());
        };
        let AllocatedRow { start, state } = AllocatedRow::decode(row)?;
        if start < before || start >= end {
            return Err(corrupt());
        }
        Ok(Extent { start, end, state })
    }

    /// Calls `visit` with the extents that end at `range.start` or after it, up to those that start
    /// at its end, until it returns false.
    pub(super) fn visit(
        &self,
        ino: Ino,
        range: &Range<u64>,
        visit: impl FnMut(Extent) -> bool,
    ) -> FsResult<()> {
        debug_assert!(range.start <= range.end, "a range of chunks");
        match self.known(ino)? {
            KnownExtents::All(extents) => {
                let first = extents.partition_point(|extent| extent.end < range.start);
                let near = extents[first..].iter().copied();
                near.take_while(|extent| extent.start <= range.end)
                    .all(visit);
                Ok(())
            }
            KnownExtents::Many => self.scan(ino, range, visit),
        }
    }

    /// Returns what is known of the extents of a file, after reading its rows if nothing was.
    fn known(&self, ino: Ino) -> FsResult<KnownExtents> {
        if let Some(known) = self.maps.get(ino) {
            return Ok(known);
        }
        let mut extents = Vec::new();
        self.scan(ino, &chunks_from(0), |extent| {
            extents.push(extent);
            extents.len() <= EXTENTS_MAX
        })?;
        debug_assert!(extents.len() <= EXTENTS_MAX + 1, "too many are not kept");
        self.maps.set(ino, Some(extents));
        Ok(self.maps.get(ino).unwrap_or(KnownExtents::Many))
    }

    /// Does what [`Self::visit`] does, from the rows.
    fn scan(
        &self,
        ino: Ino,
        range: &Range<u64>,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> FsResult<()> {
        debug_assert!(range.start <= range.end, "a range of chunks");
        let rows = self.store.keys.extents_from(ino, range.start);
        let mut scan = self.store.scan(&rows)?;
        let mut before = 0;
        while let Some(entry) = scan.next()? {
            let extent = Self::extent_of(ino, before, entry)?;
            before = extent.end;
            debug_assert!(extent.end >= range.start, "rows begin at the range");
            // The scan ends with an extent that ends beyond the range: to find the next one it
            // would have to pass the deleted rows that sequential writes leave behind.
            if extent.start > range.end || !visit(extent) || extent.end > range.end {
                break;
            }
        }
        Ok(())
    }

    /// Returns the extents that overlap or touch `range`.
    pub(super) fn at(&self, ino: Ino, range: &Range<u64>) -> FsResult<Vec<Extent>> {
        let mut extents = Vec::new();
        self.visit(ino, range, |extent| {
            extents.push(extent);
            true
        })?;
        debug_assert!(are_apart(&extents), "rows are read in order");
        Ok(extents)
    }

    /// Returns where a change of the extents in `range` has to stop, so that it fits a batch of
    /// this many bytes.
    pub(super) fn stop(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        batch_bytes_max: u64,
    ) -> FsResult<u64> {
        debug_assert!(range.start <= range.end, "a range of chunks");
        let mut stop = range.end;
        let count_max = BATCH_EXTENTS_MAX.min(batch_bytes_max / 2 / EXTENT_BYTES);
        debug_assert!(count_max > 0, "a batch takes an extent");
        if inode.head.has(row_flag::ALLOCATED) {
            let mut count = 0_u64;
            self.visit(inode.head.ino, range, |extent| {
                count += 1;
                if count == count_max && extent.end > range.start {
                    stop = extent.end.min(range.end);
                }
                count < count_max
            })?;
        }
        debug_assert!(stop <= range.end, "it stops within the range");
        debug_assert!(
            stop > range.start || range.is_empty(),
            "each batch comes further"
        );
        Ok(stop)
    }

    /// Does what [`Self::at`] does, for a batch that may change all of them.
    pub(super) fn some_at(&self, ino: Ino, range: &Range<u64>) -> FsResult<Vec<Extent>> {
        let mut extents = Vec::new();
        self.visit(ino, range, |extent| {
            extents.push(extent);
            extents.len() as u64 <= BATCH_EXTENTS_MAX
        })?;
        debug_assert!(are_apart(&extents), "rows are read in order");
        match extents.len() as u64 <= BATCH_EXTENTS_MAX {
            true => Ok(extents),
            false => Err(FsError::FileTooBig),
        }
    }

    /// Adds that the extents of `range` go, up to what is left of the first and the last. Returns
    /// how many chunks were in them. After an error nothing was added.
    pub(crate) fn delete(
        &self,
        change: &mut Change<'_>,
        ino: Ino,
        range: &Range<u64>,
    ) -> FsResult<u64> {
        debug_assert!(range.start <= range.end, "a range of chunks");
        let (mut cleared, mut unwritten) = (0, 0);
        let mut ends = Vec::new();
        let mut count = 0;
        let mut left = Vec::new();
        self.visit(ino, range, |extent| {
            let within = Extent {
                start: extent.start.max(range.start),
                end: extent.end.min(range.end),
                ..extent
            };
            if within.start >= within.end {
                return true;
            }
            cleared += within.chunks();
            debug_assert!(extent.start <= within.start, "a part of it");
            debug_assert!(within.end <= extent.end, "a part of it");
            unwritten += within.unwritten();
            push(&mut left, extent.start, within.start, extent.state);
            push(&mut left, within.end, extent.end, extent.state);
            count += 1;
            if ends.len() < POINT_DELETES_MAX {
                ends.push(extent.end);
            }
            true
        })?;
        debug_assert!(unwritten <= cleared, "unwritten chunks are some of all");
        debug_assert!(
            left.len() <= 2,
            "the ends of the first and of the last extent"
        );
        debug_assert_eq!(ends.len(), count.min(POINT_DELETES_MAX), "the first ones");
        if count <= POINT_DELETES_MAX {
            for end in ends {
                change.delete_extent(ino, end);
            }
        } else {
            let rows = self.store.keys.extents_ending_in(ino, range);
            change.batch.delete_range(&rows);
        }
        for extent in left {
            change.put_extent(ino, extent.end, &extent.row());
        }
        debug_assert!(
            cleared <= range.end - range.start,
            "chunks of the range alone"
        );
        change.unwritten_added -= signed(unwritten);
        if let Some(KnownExtents::All(extents)) = self.maps.get(ino) {
            let left = cleared_of(&extents, range);
            change.events.push(Event::ExtentsChanged(ino, left));
        }
        Ok(cleared)
    }
}
