//! What compactions leave out: tables for which there was no space, unreadable blocks, and what
//! other compactions have claimed ([`super::claims`]).
//!
//! A data block that cannot be read keeps its place between what is newer and what is older:
//!
//! 1. The table that it is in is *parted*: the block gets a table of its own, by reference, and
//!    what is before and after it other tables.
//! 2. The block's table is an *unreadable table*: never merged, only moved. Compactions go around
//!    it. What is newer and lies in its range is *held* in the level above, in tables of its own;
//!    all else goes down.
//! 3. Unreadable tables *sink* as deep as they can, what is older going down before them. So what
//!    is held lies deep too, and the levels above keep their shape.
//! 4. One that a newer range delete hides whole is dropped unread.
//!
//! A table whose root, index or range deletes cannot be read is an unreadable table as it is.
//!
//! Nothing of this is stored: a store that is opened again finds it out again.

use super::claims::Claims;
use super::picker::end_of;
use crate::version::{TableHandle, TreeVersion, Version};
use std::collections::BTreeSet;
use stitch_base::TableId;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::{Run, TableMeta};

/// The tables and blocks that the next compactions must leave out, or treat in a special way.
#[derive(Debug, Default)]
pub(crate) struct Exclusions {
    /// Tables that a compaction has found no space for, or did nothing about.
    pub(crate) avoided: BTreeSet<TableId>,
    /// Tables that can only be moved.
    pub(crate) unreadable: BTreeSet<TableId>,
    /// Tables that have unreadable blocks among others.
    pub(crate) to_part: BTreeSet<TableId>,
    /// Unreadable data blocks: the table that each was written for, and its address.
    blocks: BTreeSet<(TableId, u64)>,
    /// Held tables that were found not to hide what they are held by.
    pub(crate) tried: BTreeSet<TableId>,
    /// Zones that were evacuated for space.
    pub(crate) evacuated: Evacuated,
    /// What compactions that run now have to themselves.
    pub(super) claims: Claims,
}

/// Zones that were chosen since the last write-out: what goes out of one makes holes in another, so
/// that choosing them again could go on for ever, and gain nothing.
#[derive(Debug, Default)]
pub(crate) struct Evacuated {
    zones: BTreeSet<u64>,
    /// Where it is under way.
    current: Option<u64>,
    /// Write-outs when the first was chosen.
    write_outs: u64,
}

impl Evacuated {
    /// Lets all be chosen again, if something was written out since.
    pub(crate) fn renew(&mut self, write_outs: u64) {
        if self.write_outs != write_outs {
            self.write_outs = write_outs;
            self.clear();
        }
    }

    /// True if a zone may be chosen.
    pub(crate) fn allows(&self, addr: u64) -> bool {
        self.current == Some(addr) || !self.zones.contains(&addr)
    }

    /// A zone is chosen, if any.
    pub(crate) fn note(&mut self, zones: &[Run]) {
        for zone in zones {
            self.current = Some(zone.addr);
            self.zones.insert(zone.addr);
        }
    }

    fn clear(&mut self) {
        self.zones.clear();
        self.current = None;
    }
}

impl Exclusions {
    /// Those of a store of which nothing is known yet.
    pub(crate) const fn new() -> Self {
        Self {
            avoided: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            to_part: BTreeSet::new(),
            blocks: BTreeSet::new(),
            tried: BTreeSet::new(),
            evacuated: Evacuated {
                zones: BTreeSet::new(),
                current: None,
                write_outs: 0,
            },
            claims: Claims::new(),
        }
    }

    /// Lets what failed be tried again, and forgets tables that are no more.
    pub(crate) fn forget(&mut self, version: &Version) {
        self.avoided.clear();
        self.tried.clear();
        self.evacuated.clear();
        if self.unreadable.is_empty() && self.to_part.is_empty() {
            return;
        }
        let living: BTreeSet<TableId> = version.tables().map(|(_, t)| t.meta().id).collect();
        self.unreadable.retain(|id| living.contains(id));
        self.to_part.retain(|id| living.contains(id));
    }

    /// Notes a data block that cannot be read. Returns false if it was known.
    pub(crate) fn add_block(&mut self, block: &IndexEntry) -> bool {
        self.blocks.insert((block.origin, block.block.addr))
    }

    /// True if this data block is known to be unreadable.
    pub(crate) fn has_block(&self, block: &IndexEntry) -> bool {
        self.blocks.contains(&(block.origin, block.block.addr))
    }

    /// True if a table must not go into a compaction that reads it.
    pub(crate) fn stops(&self, table: &TableHandle) -> bool {
        self.avoided.contains(&table.meta().id) || self.is_unreadable(table)
    }

    /// True if a table can only be moved.
    pub(crate) fn is_unreadable(&self, table: &TableHandle) -> bool {
        !self.unreadable.is_empty() && self.unreadable.contains(&table.meta().id)
    }

    /// True if something of a table is known to be unreadable.
    pub(crate) fn has_unreadable(&self, table: &TableHandle) -> bool {
        self.is_unreadable(table) || self.to_part.contains(&table.meta().id)
    }

    /// True if nothing of a table can go a level down: it lies in the range of an unreadable table
    /// that is older. One that may hide the unreadable table is not held, until it was tried.
    pub(crate) fn is_held(&self, tree: &TreeVersion, level: usize, table: &TableHandle) -> bool {
        if self.unreadable.is_empty() {
            return false;
        }
        let holder = holders(self, tree, level, table).find(|h| is_within(table, h));
        holder.is_some_and(|holder| {
            let is_as_wide = is_within(holder, table);
            let may_hide = is_as_wide && table.meta().range_delete_count > 0;
            !may_hide || self.tried.contains(&table.meta().id)
        })
    }
}

/// Unreadable tables that are older than a table of a level, which it cannot go past: those of the
/// next level, and of level 0 those after it.
fn holders<'a>(
    exclusions: &'a Exclusions,
    tree: &'a TreeVersion,
    level: usize,
    table: &TableHandle,
) -> impl Iterator<Item = &'a TableHandle> {
    let id = table.meta().id;
    let beside = match level {
        0 => &tree.levels[0].tables[..],
        _ => &[],
    };
    let after = beside.iter().skip_while(move |t| t.meta().id != id).skip(1);
    let next = tree.levels.get(level + 1);
    let end = end_of(table.meta());
    let below = next.map_or(&[][..], |next| {
        &next.tables[next.overlapping(&table.meta().smallest, Some(&end))]
    });
    let all = after.chain(below).map(|t| &**t);
    all.filter(|t| exclusions.is_unreadable(t))
}

/// True if the range of one table lies in that of another.
fn is_within(inner: &TableHandle, outer: &TableHandle) -> bool {
    let (inner, outer): (&TableMeta, &TableMeta) = (inner.meta(), outer.meta());
    outer.smallest <= inner.smallest && end_of(inner) <= end_of(outer)
}
