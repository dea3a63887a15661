//! Contents that several files share: which of their chunks a file uses, and when they go.
//!
//! ```text
//!   chunk           0        10        20        30
//!   contents 20     |sssssssss|sssssssss|sssssssss|       put before the copy, never after it
//!   extents of b    |=========|    |====|                 [0, 10) and [15, 20)
//!   own of b                  |bbbb|    |bbbbbbbbbbbbbb|  put since, under the own number
//!   b reads         |sssssssss|bbbb|ssss|bbbbbbbbbbbbbb|
//! ```
//!
//! A write takes the chunks that it touches out of the extents, in the batch that puts them under
//! the own number. So all that puts and deletes chunks works on own chunks alone.
//!
//! Invariants:
//! - an inode with a row flag of its own ([`Contents::Shared`](crate::contents::Contents)) has a
//!   row [`SharedRow`], and no other inode has one;
//! - a row says that the inode uses the contents, as long as its [`SharedRow`] names them;
//! - no chunk is put under the number of contents;
//! - contents without users stay without users, so they can be deleted at any later time. While
//!   there are transactions they stay: one may have copied a file that mainline has removed since.

use crate::change::Changes;
use crate::contents::Contents;
use crate::locator::{Locator, SysRow, Tree};
use crate::schema::{Store, view_of_tree};
use crate::transaction::BranchRules;
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use std::ops::Range;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_format::fs_inode::InodeHead;
use stitch_format::fs_shared::SharedRow;
use stitch_format::fs_sys::decode_number;
use stitch_kv::{Engine, TreeInfo};

/// Numbers of contents that lost a user, and may have none.
#[derive(Debug, Default)]
pub(crate) struct LeftContents(Mutex<BTreeSet<Ino>>);

impl LeftContents {
    pub(crate) fn add(&self, number: Ino) {
        self.0.lock().insert(number);
    }

    /// Takes one of them. They are not locked when this returns.
    fn take(&self) -> Option<Ino> {
        self.0.lock().pop_first()
    }
}

/// Returns the chunks of a range that are in no extent of `taken`.
pub(crate) fn without(extents: &[Range<u64>], taken: &Range<u64>) -> Vec<Range<u64>> {
    let mut left = Vec::with_capacity(extents.len() + 1);
    for extent in extents {
        let (before, after) = (
            extent.start..extent.end.min(taken.start),
            extent.start.max(taken.end)..extent.end,
        );
        match taken.is_empty() {
            true => left.push(extent.clone()),
            false => left.extend([before, after].into_iter().filter(|part| !part.is_empty())),
        }
    }
    left
}

/// Returns extents with a range more.
pub(crate) fn with(extents: &[Range<u64>], added: &Range<u64>) -> Vec<Range<u64>> {
    if added.is_empty() {
        return extents.to_vec();
    }
    let mut joined = added.clone();
    let mut all = Vec::with_capacity(extents.len() + 1);
    for extent in extents {
        if extent.end < joined.start || extent.start > joined.end {
            all.push(extent.clone());
        } else {
            joined = joined.start.min(extent.start)..joined.end.max(extent.end);
        }
    }
    let at = all.partition_point(|extent| extent.start < joined.start);
    all.insert(at, joined);
    all
}

/// Chunks of a file that are under one number.
pub(crate) type Piece = (Ino, Range<u64>);

/// Splits a range of chunks by the number under which they are.
fn pieces(row: &SharedRow, range: &Range<u64>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut push = |number, piece: Range<u64>| {
        if !piece.is_empty() {
            pieces.push((number, piece));
        }
    };
    let mut at = range.start;
    for (extent, contents) in row.extents.iter().zip(std::iter::repeat(row.contents)) {
        let (start, end) = (extent.start.max(at), extent.end.min(range.end));
        if let Some(contents) = contents.filter(|_| start < end) {
            push(row.own, at..start);
            push(contents, start..end);
            at = end;
        }
    }
    push(row.own, at..range.end);
    pieces
}

/// Reports whether a chunk is a shared one.
pub(crate) fn has(row: &SharedRow, chunk: u64) -> bool {
    row.extents.iter().any(|extent| extent.contains(&chunk))
}

impl Store {
    /// Returns where the contents of an inode are that shares them.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] without a row.
    pub(crate) fn shared_row(&self, ino: Ino) -> FsResult<SharedRow> {
        let row = self.get(&self.keys.shared(ino))?;
        let row = row.ok_or_else(|| {
            FsError::Corrupt(format!(
                "inode {ino} shares contents, and no row says which"
            ))
        })?;
        Ok(SharedRow::decode(&row)?)
    }

    /// Splits a range of chunks of an inode by the number under which they are.
    ///
    /// # Errors
    /// As [`Self::shared_row`].
    pub(crate) fn pieces_of(&self, head: &InodeHead, range: &Range<u64>) -> FsResult<Vec<Piece>> {
        Ok(match Contents::of_inode(head) {
            Some(Contents::Shared) => pieces(&self.shared_row(head.ino)?, range),
            _ => vec![(head.ino, range.clone())],
        })
    }

    /// Returns the numbers under which contents of an inode may be: its own, and of one that shares
    /// contents those that its row names.
    ///
    /// # Errors
    /// As [`Self::shared_row`].
    pub(crate) fn content_numbers(&self, head: &InodeHead) -> FsResult<Vec<Ino>> {
        let mut numbers = vec![head.ino];
        if Contents::of_inode(head) == Some(Contents::Shared) {
            let row = self.shared_row(head.ino)?;
            numbers.push(row.own);
            numbers.extend(row.contents);
        }
        Ok(numbers)
    }

    /// Reports whether some inode uses contents.
    pub(crate) fn are_used(&self, contents: Ino) -> FsResult<bool> {
        let mut users = self.scan(&self.keys.contents_users(contents))?;
        Ok(users.next()?.is_some())
    }

    /// Returns the contents that no inode uses.
    fn unused_contents(&self) -> FsResult<BTreeSet<Ino>> {
        let mut unused = BTreeSet::new();
        let mut scan = self.scan(&self.keys.all_contents())?;
        while let Some((key, _)) = scan.next()? {
            match Locator::sys_row(key) {
                Some(SysRow::Contents(number)) => unused.insert(number),
                Some(SysRow::ContentsUser(number, _)) => unused.remove(&number),
                _ => false,
            };
        }
        Ok(unused)
    }
}

/// The shared contents of a file system: which files may begin to share, and which contents go.
///
/// Invariant: contents go only while no row of a user names them and no transaction is open. One
/// thread at a time deletes them.
#[derive(Clone, Copy)]
pub(crate) struct SharedContents<'fs> {
    pub(crate) store: &'fs Store,
    /// Knows the trees of transactions.
    pub(crate) engine: &'fs dyn Engine,
    pub(crate) left: &'fs LeftContents,
    /// Of a transaction's file system.
    pub(crate) branch: Option<BranchRules>,
    pub(crate) changes: Changes<'fs>,
}

impl SharedContents<'_> {
    /// Deletes contents that no inode uses any more, and returns how many. One thread at a time.
    ///
    /// # Errors
    /// [`FsError::Storage`]; those that are left are tried again.
    pub(crate) fn reclaim(&self) -> FsResult<usize> {
        if self.left.0.lock().is_empty() || self.keeps_left() {
            return Ok(0);
        }
        let mut count = 0;
        while let Some(number) = self.left.take() {
            match self.delete_unused(number) {
                Ok(is_deleted) => count += usize::from(is_deleted),
                Err(error) => {
                    self.left.add(number);
                    return Err(error);
                }
            }
        }
        Ok(count)
    }

    /// Queues all contents that no inode uses: those that a crash has left.
    pub(crate) fn queue_unused(&self) -> FsResult<()> {
        if self.store.header.has_shared {
            let unused = self.store.unused_contents()?;
            self.left.0.lock().extend(unused);
        }
        Ok(())
    }

    /// Reports whether contents without users have to stay: a transaction leaves them to its
    /// commit, and others wait for the transactions that there are.
    fn keeps_left(&self) -> bool {
        self.branch.is_some() || self.has_transactions()
    }

    /// Reports whether a transaction has branches of these trees.
    fn has_transactions(&self) -> bool {
        let data = self.store.tree(Tree::Data);
        let is_transaction = |tree: &TreeInfo| {
            let is_branch = tree.branch.as_ref().is_some_and(|at| at.parent == data);
            is_branch && view_of_tree(&tree.name).is_none()
        };
        self.engine.trees().iter().any(is_transaction)
    }

    /// Reports whether a file may begin to share its contents. That writes its row, so where
    /// transactions compare rows it would be a conflict with all writers of the file: in a
    /// transaction only files begin that it has made, and beside one none does.
    pub(crate) fn may_begin(&self, ino: Ino) -> bool {
        let is_own = self.branch.is_none_or(|rules| rules.owns(ino));
        is_own && !self.has_transactions()
    }

    /// Deletes contents, unless some inode uses them.
    fn delete_unused(&self, number: Ino) -> FsResult<bool> {
        let key = self.store.keys.contents(number);
        let Some(row) = self.store.get(&key)? else {
            return Ok(false);
        };
        if self.store.are_used(number)? {
            return Ok(false);
        }
        let mut change = self.changes.begin_giving_back();
        change.delete_chunks(number, 0, decode_number(&row)?);
        change.batch.delete(&key);
        change.commit()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNKS: u64 = 24;

    fn row(extents: Vec<Range<u64>>) -> SharedRow {
        SharedRow {
            own: Ino(7),
            contents: Some(Ino(5)),
            extents,
        }
    }

    fn shared_chunks(extents: &[Range<u64>]) -> BTreeSet<u64> {
        extents.iter().cloned().flatten().collect()
    }

    proptest! {
        #[test]
        fn extents_are_sets_of_chunks(edits: Vec<(bool, u8, u8)>) {
            let (mut extents, mut expected) = (Vec::new(), BTreeSet::new());
            for (is_added, a, b) in edits {
                let (a, b) = (u64::from(a) % CHUNKS, u64::from(b) % CHUNKS);
                let range = a.min(b)..a.max(b);
                if is_added {
                    extents = with(&extents, &range);
                    expected.extend(range);
                } else {
                    extents = without(&extents, &range);
                    expected.retain(|chunk| !range.contains(chunk));
                }
                prop_assert_eq!(shared_chunks(&extents), expected.clone());
                let bytes = row(extents.clone()).encode();
                prop_assert_eq!(SharedRow::decode(&bytes), Ok(row(extents.clone())));
            }
        }

        #[test]
        fn pieces_are_the_range_in_order(edits: Vec<(u8, u8)>, a in 0..CHUNKS, b in 0..CHUNKS) {
            let mut extents = Vec::new();
            for (a, b) in edits {
                let (a, b) = (u64::from(a) % CHUNKS, u64::from(b) % CHUNKS);
                extents = with(&extents, &(a.min(b)..a.max(b)));
            }
            let (row, range) = (row(extents), a.min(b)..a.max(b));
            let mut at = range.start;
            for (number, piece) in pieces(&row, &range) {
                prop_assert!(piece.start == at && !piece.is_empty());
                at = piece.end;
                for chunk in piece {
                    prop_assert_eq!(number == Ino(5), has(&row, chunk));
                }
            }
            prop_assert_eq!(at, range.end);
        }
    }
}
