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
use crate::system::FileSystem;
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

/// Rows of contents and of their users that are looked at in one go.
const LOOK_ROWS: usize = 4096;
const _: () = assert!(LOOK_ROWS > 0, "each look comes further");

/// Contents that may have no user.
///
/// Those that a crash has left are found by a scan of all rows, in parts, after the file system was
/// opened:
///
/// ```text
///   rows     20: used  21: used  22: no user  23: ...
///            looked at           |-> numbers  ^ unseen
/// ```
#[derive(Debug, Default)]
pub(crate) struct LeftContents {
    /// Those that lost a user.
    numbers: Mutex<BTreeSet<Ino>>,
    /// The first ones that were not looked at since the open; `None` if all were.
    unseen: Mutex<Option<Ino>>,
}

impl LeftContents {
    pub(crate) fn add(&self, number: Ino) {
        debug_assert!(number.0 > 0, "0 is no number of contents");
        self.numbers.lock().insert(number);
    }

    /// Takes one of them. They are not locked when this returns.
    fn take(&self) -> Option<Ino> {
        let number = self.numbers.lock().pop_first();
        debug_assert!(number.is_none_or(|number| number.0 > 0), "it has chunks");
        number
    }

    fn has_unseen(&self) -> bool {
        self.unseen.lock().is_some()
    }

    fn is_empty(&self) -> bool {
        self.numbers.lock().is_empty() && !self.has_unseen()
    }
}

/// Reports whether extents are as a row has them: in order, not empty, and no two touch.
pub(crate) fn are_apart(extents: &[Range<u64>]) -> bool {
    let are_apart = extents.windows(2).all(|pair| pair[0].end < pair[1].start);
    are_apart && extents.iter().all(|extent| extent.start < extent.end)
}

/// Reports whether a chunk of a range is in an extent.
fn overlaps(extents: &[Range<u64>], range: &Range<u64>) -> bool {
    debug_assert!(are_apart(extents), "extents are in order and not empty");
    let meets = |extent: &Range<u64>| extent.start < range.end && range.start < extent.end;
    !range.is_empty() && extents.iter().any(meets)
}

/// Returns the chunks of a range that are in no extent of `taken`.
pub(crate) fn without(extents: &[Range<u64>], taken: &Range<u64>) -> Vec<Range<u64>> {
    debug_assert!(are_apart(extents), "extents are in order and not empty");
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
    debug_assert!(are_apart(&left), "what is left is in order");
    debug_assert!(!overlaps(&left, taken), "none of the range is left");
    left
}

/// Returns extents with a range more.
pub(crate) fn with(extents: &[Range<u64>], added: &Range<u64>) -> Vec<Range<u64>> {
    debug_assert!(are_apart(extents), "extents are in order and not empty");
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
    debug_assert!(joined.start <= added.start);
    debug_assert!(added.end <= joined.end);
    all.insert(at, joined);
    debug_assert!(are_apart(&all), "extents that touch are joined");
    all
}

/// Chunks of a file that are under one number.
pub(crate) type Piece = (Ino, Range<u64>);

/// Splits a range of chunks by the number under which they are.
fn pieces(row: &SharedRow, range: &Range<u64>) -> Vec<Piece> {
    debug_assert!(are_apart(&row.extents), "a reader takes no others");
    debug_assert_ne!(row.contents, Some(row.own), "own chunks are apart");
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
    debug_assert!(
        pieces
            .windows(2)
            .all(|pair| pair[0].1.end == pair[1].1.start),
        "in order, without gaps"
    );
    let chunks: u64 = pieces
        .iter()
        .map(|(_, piece)| piece.end - piece.start)
        .sum();
    debug_assert_eq!(
        chunks,
        range.end.saturating_sub(range.start),
        "every chunk is in one piece"
    );
    pieces
}

/// Reports whether a chunk is a shared one.
pub(crate) fn has(row: &SharedRow, chunk: u64) -> bool {
    debug_assert!(are_apart(&row.extents), "a reader takes no others");
    row.extents.iter().any(|extent| extent.contains(&chunk))
}

impl Store {
    /// Returns where the contents of an inode are that shares them.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] without a row.
    pub(crate) fn shared_row(&self, ino: Ino) -> FsResult<SharedRow> {
        self.find_shared_row(ino)?.ok_or_else(|| {
            FsError::Corrupt(format!(
                "inode {ino} shares contents, and no row says which"
            ))
        })
    }

    /// Returns the row of an inode that shares contents, or shared them when its row was put.
    pub(crate) fn find_shared_row(&self, ino: Ino) -> FsResult<Option<SharedRow>> {
        let row = self.get(&self.keys.shared(ino))?;
        Ok(row.map(|row| SharedRow::decode(&row)).transpose()?)
    }

    /// Returns the contents that an inode uses.
    ///
    /// # Errors
    /// As [`Self::shared_row`].
    pub(crate) fn used_contents(&self, head: &InodeHead) -> FsResult<Option<Ino>> {
        Ok(match Contents::of_inode(head) {
            Some(Contents::Shared) => self.shared_row(head.ino)?.contents,
            _ => None,
        })
    }

    /// Splits a range of chunks of an inode by the number under which they are.
    ///
    /// # Errors
    /// As [`Self::shared_row`].
    pub(crate) fn pieces_of(&self, head: &InodeHead, range: &Range<u64>) -> FsResult<Vec<Piece>> {
        debug_assert!(range.start <= range.end, "a range of chunks");
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
        debug_assert!(
            (1..=3).contains(&numbers.len()),
            "its own, and two of its row"
        );
        Ok(numbers)
    }

    /// Returns the contents from a number on that no inode uses, after a look at some rows, and
    /// from which number on there may be more.
    fn unused_contents(&self, from: Ino) -> FsResult<(BTreeSet<Ino>, Option<Ino>)> {
        let mut unused = BTreeSet::new();
        let mut scan = self.scan(&self.keys.contents_from(from))?;
        let mut rows = 0;
        while let Some((key, _)) = scan.next()? {
            rows += 1;
            let next = match Locator::sys_row(key) {
                // Its users come behind it.
                Some(SysRow::Contents(number)) if rows > LOOK_ROWS => number,
                Some(SysRow::Contents(number)) => {
                    unused.insert(number);
                    continue;
                }
                // One user is enough.
                Some(SysRow::ContentsUser(number, _)) => {
                    unused.remove(&number);
                    Ino(number.0 + 1)
                }
                _ => continue,
            };
            debug_assert!(next >= from, "the scan goes on");
            if rows >= LOOK_ROWS {
                return Ok((unused, Some(next)));
            }
        }
        Ok((unused, None))
    }
}

/// The shared contents of a file system: which files may begin to share, and which contents go.
///
/// Invariant: contents go only while no row of a user names them and no transaction is open. One
/// thread at a time deletes them.
#[derive(Clone, Copy)]
pub(crate) struct SharedContents<'fs> {
    store: &'fs Store,
    /// Knows the trees of transactions.
    engine: &'fs dyn Engine,
    left: &'fs LeftContents,
    /// Of a transaction's file system.
    branch: Option<BranchRules>,
    changes: Changes<'fs>,
}

impl<'fs> SharedContents<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            engine: fs.engine().as_ref(),
            left: &fs.left_contents,
            branch: fs.branch,
            changes: Changes::of(fs),
        }
    }
}

impl SharedContents<'_> {
    /// Deletes contents that no inode uses any more, and returns how many. One thread at a time.
    ///
    /// # Errors
    /// [`FsError::Storage`]; those that are left are tried again.
    pub(crate) fn reclaim(&self) -> FsResult<usize> {
        if self.left.is_empty() || self.keeps_left() {
            return Ok(0);
        }
        self.look()?;
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

    /// Has [`Self::reclaim`] look at all contents, from now on: a crash may have left some that no
    /// inode uses. In a transaction they are mainline's.
    pub(crate) fn look_at_all(&self) {
        if self.store.header.has_shared && self.branch.is_none() {
            *self.left.unseen.lock() = Some(Ino(0));
        }
    }

    /// Looks at the next contents, and queues those that no inode uses.
    fn look(&self) -> FsResult<()> {
        let Some(from) = *self.left.unseen.lock() else {
            return Ok(());
        };
        let (unused, next) = self.store.unused_contents(from)?;
        debug_assert!(
            next.is_none_or(|next| next > from),
            "each look comes further"
        );
        debug_assert!(unused.first().is_none_or(|first| *first >= from));
        self.left.numbers.lock().extend(unused);
        *self.left.unseen.lock() = next;
        Ok(())
    }

    /// Reports whether another [`Self::reclaim`] looks at more contents.
    pub(crate) fn has_unseen(&self) -> bool {
        self.left.has_unseen() && !self.keeps_left()
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
        debug_assert!(
            self.branch.is_none(),
            "a transaction leaves them to its commit"
        );
        let key = self.store.keys.contents(number);
        let Some(row) = self.store.get(&key)? else {
            return Ok(false);
        };
        let mut users = self.store.scan(&self.store.keys.contents_users(number))?;
        if users.next()?.is_some() {
            return Ok(false);
        }
        drop(users);
        let mut change = self.changes.begin_giving_back();
        change.delete_chunks(number, 0, decode_number(&row)?);
        change.batch.delete(&key);
        change.commit()?;
        Ok(true)
    }
}

#[cfg(test)]
mod extent_tests;
#[cfg(test)]
mod tests;
