//! Rows of allocated extents against inodes, and their repair.

use super::scan::{Found, FoundInode};
use super::{Issue, Trees};
use crate::FsResult;
use crate::contents::Contents;
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_db::Changes;
use stitch_format::fs_inode::row_flag;
use stitch_format::fs_sys::{AllocatedRow, ExtentState};

/// What rows of extents of one inode add up to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    chunks: u64,
    unwritten: u64,
    /// Where the last one ends.
    end: u64,
    /// They are empty or overlap.
    is_bad: bool,
}

/// Sums of extents, by their inodes.
pub(super) type Sums = BTreeMap<Ino, Sum>;

impl Sum {
    /// Returns the number of chunks in sound extents.
    pub(super) const fn known_chunks(&self) -> u64 {
        debug_assert!(self.unwritten <= self.chunks, "unwritten chunks are chunks");
        if self.is_bad { 0 } else { self.chunks }
    }

    /// Adds a row. Rows come in the order of their ends.
    pub(super) fn add(&mut self, end: u64, row: &AllocatedRow) {
        debug_assert!(self.end <= end, "rows come in the order of their ends");
        debug_assert!(self.unwritten <= self.chunks, "unwritten chunks are chunks");
        self.is_bad |= row.start < self.end || row.start >= end;
        self.end = end;
        let chunks = end.saturating_sub(row.start);
        self.chunks = self.chunks.saturating_add(chunks);
        if row.state == ExtentState::Unwritten {
            self.unwritten = self.unwritten.saturating_add(chunks);
        }
    }
}

/// Compares rows of extents with inodes, the count of unwritten chunks and the header.
pub(super) fn rows(found: &Found) -> Vec<Issue> {
    let mut issues = Vec::new();
    let mut counted = 0_u64;
    for (&ino, sum) in &found.allocated {
        let has_extents = |inode: &&FoundInode| {
            let wanted = row_flag::ALLOCATED | row_flag::HOLES;
            let are_chunks = inode.contents().is_some_and(Contents::are_chunks);
            are_chunks && inode.flags & wanted == wanted
        };
        match found.inodes.get(&ino).filter(has_extents) {
            None => issues.push(Issue::LooseAllocated { ino }),
            Some(inode) if sum.is_bad => {
                let key = inode.key.to_vec();
                issues.push(Issue::BadAllocated { ino, key });
            }
            Some(_) => counted = counted.saturating_add(sum.unwritten),
        }
    }
    debug_assert!(issues.len() <= found.allocated.len(), "one for each inode");
    let stored = found.unwritten.unwrap_or(0);
    if stored != counted {
        issues.push(Issue::UnwrittenCount { stored, counted });
    }
    if !found.allocated.is_empty() && !found.has(|header| header.has_allocated) {
        issues.push(Issue::UnmarkedAllocated);
    }
    issues
}

/// Deletes all extents of an inode.
pub(super) fn delete(trees: &Trees, changes: &mut Changes, ino: Ino) {
    let all = trees.keys.extents_from(ino, 0);
    debug_assert!(all.start() < all.end(), "there may be extents");
    changes.delete_range(trees.sys, all.start(), all.end());
}

/// Returns the number of chunks of an inode that exist.
pub(super) fn chunks(trees: &Trees, ino: Ino) -> FsResult<u64> {
    debug_assert!(ino.0 > 0, "0 is no number");
    let view = trees.schema.now();
    let all = trees.keys.chunks_from(ino, 0);
    let mut rows = view.scan(trees.data, all.keys(), stitch_db::Direction::Forward)?;
    let mut count = 0;
    while rows.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}
