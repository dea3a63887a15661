//! Where rows are: in which tree, and under which key. Layout of keys: `stitch_format::fs_key`.
//!
//! | tree | rows |
//! |---|---|
//! | `meta` | inode rows under their names or under their numbers, links |
//! | `data` | chunks of contents |
//! | `xattr` | extended attributes |
//! | `sys` | header, counters, orphans, external files, allocated extents, back rows, views,
//! transactions and what they have read, policies of snapshots, shared contents |
//!
//! Invariants:
//! - keys are built and taken apart here and nowhere else in this crate: another layout is another
//!   [`Locator`];
//! - a range is of one tree, and not empty unless it is asked for so;
//! - what a key is built from comes back from it.

use crate::inode::{Inode, Location};
use std::ops::{Deref, Range};
use stitch_base::Ino;
use stitch_db::KeyRange;
use stitch_format::fs_back::Place;
use stitch_format::fs_key::{self, FsKey};
use stitch_format::fs_sys::FsHeader;

/// A tree of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    Meta,
    Data,
    Xattr,
    Sys,
}

const _: () = assert!(
    Tree::ALL.len() == Tree::Sys as usize + 1,
    "the last tree is listed"
);

impl Tree {
    /// All of them: the trees of every view.
    pub(crate) const ALL: [Self; 4] = [Self::Meta, Self::Data, Self::Xattr, Self::Sys];

    /// Returns the name of the tree of a schema in the engine.
    pub(crate) fn name_in(self, schema: &str) -> String {
        debug_assert!(!schema.is_empty(), "a schema has a name");
        debug_assert!(!schema.contains('/'), "it ends at the first slash");
        format!("{schema}/{}", self.name())
    }

    /// The name of its dictionary.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Data => "data",
            Self::Xattr => "xattr",
            Self::Sys => "sys",
        }
    }
}

/// The key of a row, and its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowKey {
    tree: Tree,
    bytes: FsKey,
}

impl RowKey {
    pub(crate) const fn tree(&self) -> Tree {
        self.tree
    }
}

impl Deref for RowKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The keys `[start, end)` of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowRange {
    tree: Tree,
    start: FsKey,
    end: FsKey,
}

impl RowRange {
    fn new(tree: Tree, start: FsKey, end: FsKey) -> Self {
        debug_assert!(start <= end, "a range does not end before it starts");
        Self { tree, start, end }
    }

    pub(crate) const fn tree(&self) -> Tree {
        self.tree
    }

    pub(crate) fn start(&self) -> &[u8] {
        &self.start
    }

    pub(crate) fn end(&self) -> &[u8] {
        &self.end
    }

    /// Reports whether a key is in the range.
    fn contains(&self, key: &[u8]) -> bool {
        self.start() <= key && key < self.end()
    }

    pub(crate) fn keys(&self) -> KeyRange<'_> {
        KeyRange::new(&self.start, &self.end)
    }
}

/// What a row of the `sys` tree is, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SysRow {
    Header,
    NextIno,
    InodeCount,
    Fixed,
    Unwritten,
    BackProgress,
    Rollback,
    Orphan(Ino),
    External(Ino),
    Back(Ino),
    /// An allocated extent that ends before this chunk.
    Extent(Ino, u64),
    NextView,
    View(u64),
    /// The transaction of this number.
    Transaction(Ino),
    /// A part of what the transaction of this number has read.
    Reads(Ino, u64),
    /// The policy of a directory: the clone that it is in, 0 for mainline, and its number there.
    Policy(u64, Ino),
    /// Where the contents of an inode are that shares them.
    Shared(Ino),
    /// Shared contents.
    Contents(Ino),
    /// A user of shared contents: the contents, and the inode.
    ContentsUser(Ino, Ino),
}

/// Maps what rows are about to their keys.
///
/// The default has no seed of names. It serves a check of a store without a header, which looks at
/// no names.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Locator {
    name_seed: u64,
}

/// Returns the key of a row of the `sys` tree. A number that no reader takes leads nowhere.
fn sys_key(row: SysRow, bytes: FsKey) -> RowKey {
    debug_assert!(
        Locator::sys_row(&bytes).is_none_or(|found| found == row),
        "a key leads back to its row"
    );
    in_tree(Tree::Sys, bytes)
}

/// All rows of a kind that has one inode in its key.
fn sys_rows(kind: u8) -> RowRange {
    debug_assert!(kind < u8::MAX, "there is a kind after it");
    RowRange::new(
        Tree::Sys,
        fs_key::single(&[kind]),
        fs_key::single(&[kind + 1]),
    )
}

fn in_tree(tree: Tree, bytes: FsKey) -> RowKey {
    debug_assert!(!bytes.is_empty(), "a row has a key");
    RowKey { tree, bytes }
}

/// Names and inodes: the `meta` tree.
impl Locator {
    pub(crate) const fn new(header: &FsHeader) -> Self {
        Self {
            name_seed: header.name_seed,
        }
    }

    /// Returns where a name is in the order of its directory.
    pub(crate) fn name_hash(&self, name: &[u8]) -> u64 {
        let hash = fs_key::name_hash(self.name_seed, name);
        debug_assert!(
            (1..=fs_key::NAME_HASH_MAX).contains(&hash),
            "0 is the row of the directory itself"
        );
        hash
    }

    /// The row of a name.
    ///
    /// # Panics
    /// If the name is empty or longer than a name can be.
    pub(crate) fn dentry(&self, parent: Ino, name: &[u8]) -> RowKey {
        let key = fs_key::dentry(self.name_seed, parent, name);
        debug_assert!(parent.0 <= fs_key::INO_MAX, "the directory can be listed");
        debug_assert!(
            Self::name_of(&key).is_some_and(|(_, found)| found == name),
            "a key leads back to its name"
        );
        debug_assert!(self.dentries(parent).contains(&key), "a listing finds it");
        in_tree(Tree::Meta, key)
    }

    /// The rows of all names in a directory.
    pub(crate) fn dentries(&self, dir: Ino) -> RowRange {
        let rows = self.dentries_from(dir, 0);
        debug_assert!(!rows.contains(&fs_key::own(dir)), "names alone");
        rows
    }

    /// The rows of names in a directory, from a hash on.
    pub(crate) fn dentries_from(&self, dir: Ino, hash: u64) -> RowRange {
        let start = fs_key::dentry_start(dir, hash);
        debug_assert!(
            dir.0 <= fs_key::INO_MAX,
            "a key comes after those of the directory"
        );
        let rows = RowRange::new(Tree::Meta, start, fs_key::after(dir));
        debug_assert!(
            hash > fs_key::NAME_HASH_MAX
                || rows.contains(&fs_key::dentry_start(dir, fs_key::NAME_HASH_MAX)),
            "names of the largest hash"
        );
        rows
    }

    /// The rows of all names at a place: those of one directory and one hash.
    pub(crate) fn dentries_at(&self, place: Place) -> RowRange {
        let start = fs_key::dentry_start(place.parent, place.hash);
        let end = fs_key::dentry_start(place.parent, place.hash.saturating_add(1));
        debug_assert!(fs_key::own(place.parent) < start, "names alone");
        RowRange::new(Tree::Meta, start, end)
    }

    /// All rows of the tree from a place on.
    pub(crate) fn meta_from(&self, place: Place) -> RowRange {
        let start = fs_key::dentry_start(place.parent, place.hash);
        // The largest number is never handed out.
        let end = fs_key::own(Ino(u64::MAX));
        RowRange {
            tree: Tree::Meta,
            start,
            end,
        }
    }

    /// The row of an inode under its own number.
    pub(crate) fn own(&self, ino: Ino) -> RowKey {
        let key = fs_key::own(ino);
        debug_assert!(
            Self::ino_of(&key).is_none_or(|found| found == ino),
            "a key leads back to its inode"
        );
        in_tree(Tree::Meta, key)
    }

    /// The range of the row of an inode under its own number.
    pub(crate) fn own_row(&self, ino: Ino) -> RowRange {
        debug_assert!(
            fs_key::own(ino) < fs_key::dentry_start(ino, 0),
            "the own row is before the names"
        );
        let end = fs_key::dentry_start(ino, 0);
        RowRange::new(Tree::Meta, fs_key::own(ino), end)
    }

    /// The row of an inode; `None` for one that is in memory alone.
    pub(crate) fn inode(&self, inode: &Inode) -> Option<RowKey> {
        match &inode.location {
            Location::Entry { parent, name } => Some(self.dentry(*parent, name)),
            Location::Own => Some(self.own(inode.head.ino)),
            Location::Memory(_) => None,
        }
    }

    /// The rows of a directory under its own number, and of all names in it.
    pub(crate) fn directory(&self, dir: Ino) -> RowRange {
        let (start, end) = (fs_key::own(dir), fs_key::after(dir));
        debug_assert!(start < end, "its own row is there");
        let rows = RowRange::new(Tree::Meta, start, end);
        debug_assert!(
            rows.contains(&fs_key::dentry_start(dir, fs_key::NAME_HASH_MAX)),
            "names of the largest hash"
        );
        rows
    }
}

/// Contents and extended attributes: the `data` and the `xattr` tree.
impl Locator {
    pub(crate) fn chunk(&self, ino: Ino, number: u64) -> RowKey {
        let key = fs_key::chunk(ino, number);
        debug_assert_eq!(
            Self::chunk_of(&key),
            Some(number),
            "a key leads back to its chunk"
        );
        in_tree(Tree::Data, key)
    }

    /// The chunks of an inode with these numbers.
    pub(crate) fn chunks(&self, ino: Ino, numbers: &Range<u64>) -> RowRange {
        let (start, end) = (
            fs_key::chunk(ino, numbers.start),
            fs_key::chunk(ino, numbers.end),
        );
        RowRange::new(Tree::Data, start, end)
    }

    /// The chunks of an inode from a number on.
    pub(crate) fn chunks_from(&self, ino: Ino, number: u64) -> RowRange {
        let start = fs_key::chunk(ino, number);
        debug_assert!(
            ino.0 <= fs_key::INO_MAX,
            "a key comes after those of the file"
        );
        let rows = RowRange::new(Tree::Data, start, fs_key::after(ino));
        debug_assert!(
            rows.contains(&fs_key::chunk(ino, u64::MAX)),
            "chunks up to any size"
        );
        rows
    }

    /// All chunks of the inodes `[first, end)`.
    pub(crate) fn chunks_of(&self, first: Ino, end: Ino) -> RowRange {
        debug_assert!(first <= end, "a range of inodes");
        let rows = RowRange::new(Tree::Data, fs_key::chunk(first, 0), fs_key::chunk(end, 0));
        debug_assert!(
            first == end || rows.contains(&fs_key::chunk(Ino(end.0 - 1), u64::MAX)),
            "all chunks of the last inode"
        );
        rows
    }

    /// All rows in a tree, which is not `sys`, that are about the inodes `[first, end)`.
    pub(crate) fn inodes(&self, tree: Tree, first: Ino, end: Ino) -> RowRange {
        debug_assert!(tree != Tree::Sys, "its keys do not begin with a number");
        let rows = RowRange::new(tree, fs_key::own(first), fs_key::own(end));
        debug_assert!(
            first == end || rows.contains(&fs_key::chunk(Ino(end.0 - 1), u64::MAX)),
            "all rows of the last inode"
        );
        rows
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> RowKey {
        let key = fs_key::xattr(ino, name);
        debug_assert_eq!(
            Self::xattr_of(&key),
            Some(name),
            "a key leads back to its attribute"
        );
        debug_assert!(self.xattrs(ino).contains(&key), "a listing finds it");
        in_tree(Tree::Xattr, key)
    }

    /// All extended attributes of an inode.
    pub(crate) fn xattrs(&self, ino: Ino) -> RowRange {
        let (start, end) = (fs_key::own(ino), fs_key::after(ino));
        debug_assert!(start < end, "attributes of one inode");
        RowRange::new(Tree::Xattr, start, end)
    }
}

/// The `sys` tree.
impl Locator {
    pub(crate) fn header(&self) -> RowKey {
        sys_key(SysRow::Header, fs_key::single(fs_key::SYS_HEADER))
    }

    /// The first inode number that was never handed out.
    pub(crate) fn next_ino(&self) -> RowKey {
        sys_key(SysRow::NextIno, fs_key::single(fs_key::SYS_NEXT_INO))
    }

    /// The number of inodes that have a name.
    pub(crate) fn inode_count(&self) -> RowKey {
        sys_key(SysRow::InodeCount, fs_key::single(fs_key::SYS_INODE_COUNT))
    }

    /// The mark that some file was immutable or append-only.
    pub(crate) fn fixed(&self) -> RowKey {
        sys_key(SysRow::Fixed, fs_key::single(fs_key::SYS_FIXED))
    }

    /// The number of chunks in unwritten extents.
    pub(crate) fn unwritten(&self) -> RowKey {
        sys_key(SysRow::Unwritten, fs_key::single(fs_key::SYS_UNWRITTEN))
    }

    /// The place up to which back rows are complete.
    pub(crate) fn back_progress(&self) -> RowKey {
        sys_key(
            SysRow::BackProgress,
            fs_key::single(fs_key::SYS_BACK_PROGRESS),
        )
    }

    /// The rollback that is under way.
    pub(crate) fn rollback(&self) -> RowKey {
        sys_key(SysRow::Rollback, fs_key::single(fs_key::SYS_ROLLBACK))
    }

    /// All back rows, and how far they are complete.
    pub(crate) fn back_rows(&self) -> RowRange {
        let rows = sys_rows(fs_key::SYS_BACK);
        debug_assert!(
            rows.contains(&fs_key::back(Ino(u64::MAX))),
            "those of any inode"
        );
        debug_assert!(
            rows.contains(&self.back_progress()),
            "the progress goes with them"
        );
        rows
    }

    /// The back row of an inode.
    pub(crate) fn back(&self, ino: Ino) -> RowKey {
        let key = sys_key(SysRow::Back(ino), fs_key::back(ino));
        debug_assert!(self.back_rows().contains(&key), "a listing finds it");
        key
    }

    pub(crate) fn orphan(&self, ino: Ino) -> RowKey {
        let key = sys_key(SysRow::Orphan(ino), fs_key::orphan(ino));
        debug_assert!(self.orphans().contains(&key), "a listing finds it");
        key
    }

    /// The record of a transaction.
    pub(crate) fn transaction(&self, number: Ino) -> RowKey {
        let key = sys_key(SysRow::Transaction(number), fs_key::transaction(number));
        debug_assert!(self.transactions().contains(&key), "a listing finds it");
        key
    }

    pub(crate) fn transactions(&self) -> RowRange {
        let rows = sys_rows(fs_key::SYS_TRANSACTION);
        debug_assert!(
            rows.contains(&fs_key::transaction(Ino(u64::MAX))),
            "those of any number"
        );
        rows
    }

    /// A part of what a transaction has read.
    pub(crate) fn reads(&self, number: Ino, part: u64) -> RowKey {
        let key = sys_key(SysRow::Reads(number, part), fs_key::reads(number, part));
        debug_assert!(self.reads_of(number).contains(&key), "a listing finds it");
        key
    }

    /// All parts of what a transaction has read.
    pub(crate) fn reads_of(&self, number: Ino) -> RowRange {
        let start = fs_key::reads(number, 0);
        let rows = RowRange::new(Tree::Sys, start, fs_key::reads(Ino(number.0 + 1), 0));
        debug_assert!(
            rows.contains(&fs_key::reads(number, u64::MAX)),
            "all of its parts"
        );
        rows
    }

    pub(crate) fn orphans(&self) -> RowRange {
        let rows = sys_rows(fs_key::SYS_ORPHAN);
        debug_assert!(
            rows.contains(&fs_key::orphan(Ino(u64::MAX))),
            "those of any inode"
        );
        rows
    }

    /// The plain file of an inode.
    pub(crate) fn external(&self, ino: Ino) -> RowKey {
        let key = sys_key(SysRow::External(ino), fs_key::external(ino));
        debug_assert!(self.externals().contains(&key), "a listing finds it");
        key
    }

    pub(crate) fn externals(&self) -> RowRange {
        let rows = sys_rows(fs_key::SYS_EXTERNAL);
        debug_assert!(
            rows.contains(&fs_key::external(Ino(u64::MAX))),
            "those of any inode"
        );
        rows
    }

    /// The number of the next writable view.
    pub(crate) fn next_view(&self) -> RowKey {
        sys_key(SysRow::NextView, fs_key::single(fs_key::SYS_NEXT_VIEW))
    }

    /// A writable view.
    pub(crate) fn view(&self, number: u64) -> RowKey {
        let key = sys_key(SysRow::View(number), fs_key::view(number));
        debug_assert!(self.views().contains(&key), "a listing finds it");
        key
    }

    /// All writable views, and the number of the next one.
    pub(crate) fn views(&self) -> RowRange {
        let rows = sys_rows(fs_key::SYS_VIEW);
        debug_assert!(
            rows.contains(&fs_key::view(u64::MAX)),
            "those of any number"
        );
        debug_assert!(
            rows.contains(&self.next_view()),
            "the next number goes with them"
        );
        rows
    }

    /// The allocated extent of an inode that ends before this chunk.
    pub(crate) fn extent(&self, ino: Ino, end: u64) -> RowKey {
        let key = sys_key(SysRow::Extent(ino, end), fs_key::allocated(ino, end));
        debug_assert!(
            self.extents_from(ino, end).contains(&key),
            "a listing finds it"
        );
        key
    }

    /// The allocated extents of an inode that end at this chunk or later.
    pub(crate) fn extents_from(&self, ino: Ino, chunk: u64) -> RowRange {
        let rows = RowRange::new(
            Tree::Sys,
            fs_key::allocated(ino, chunk),
            fs_key::after_allocated(ino),
        );
        debug_assert!(
            rows.contains(&fs_key::allocated(ino, u64::MAX)),
            "extents up to any end"
        );
        rows
    }

    /// The allocated extents of an inode that end after the first chunk of a range, and not after
    /// its end.
    pub(crate) fn extents_ending_in(&self, ino: Ino, range: &Range<u64>) -> RowRange {
        debug_assert!(range.start < u64::MAX, "a chunk comes after the first");
        let end = match range.end.checked_add(1) {
            Some(after) => fs_key::allocated(ino, after),
            None => fs_key::after_allocated(ino),
        };
        let rows = RowRange::new(Tree::Sys, fs_key::allocated(ino, range.start + 1), end);
        debug_assert!(
            range.is_empty() || rows.contains(&fs_key::allocated(ino, range.end)),
            "an extent may end where the range ends"
        );
        debug_assert!(
            !rows.contains(&fs_key::allocated(ino, range.start)),
            "an extent that ends where the range starts is not in it"
        );
        rows
    }
}

/// From keys to what they are about. `None`: the key is none of these rows.
impl Locator {
    /// The inode number at the start of a key of any tree but `sys`.
    pub(crate) fn ino_of(key: &[u8]) -> Option<Ino> {
        let ino = fs_key::ino_of(key);
        debug_assert!(
            ino.is_none_or(|ino| ino.0 <= fs_key::INO_MAX),
            "a key comes after those of the inode"
        );
        ino
    }

    /// Hash and name.
    pub(crate) fn name_of(key: &[u8]) -> Option<(u64, &[u8])> {
        fs_key::name_of(key)
    }

    /// Directory and hash of a name.
    pub(crate) fn place_of(key: &[u8]) -> Option<Place> {
        let place = Place::of_key(key);
        debug_assert!(
            place.is_none_or(|place| Self::ino_of(key) == Some(place.parent)),
            "a place is in the directory of its key"
        );
        place
    }

    /// Number of a chunk.
    pub(crate) fn chunk_of(key: &[u8]) -> Option<u64> {
        fs_key::chunk_of(key)
    }

    /// Number of the chunk that a key is of, or comes after by some bytes.
    pub(crate) fn chunk_before(key: &[u8]) -> Option<u64> {
        let chunk = key.get(..16).unwrap_or(key);
        let number = fs_key::chunk_of(chunk);
        debug_assert!(
            Self::chunk_of(key).is_none_or(|own| number == Some(own)),
            "the key of a chunk is that of the chunk"
        );
        number
    }

    /// Name of an extended attribute.
    pub(crate) fn xattr_of(key: &[u8]) -> Option<&[u8]> {
        key.get(8..)
    }

    /// What a row of the `sys` tree is.
    pub(crate) fn sys_row(key: &[u8]) -> Option<SysRow> {
        Some(match key {
            fs_key::SYS_HEADER => SysRow::Header,
            fs_key::SYS_NEXT_INO => SysRow::NextIno,
            fs_key::SYS_INODE_COUNT => SysRow::InodeCount,
            fs_key::SYS_FIXED => SysRow::Fixed,
            fs_key::SYS_UNWRITTEN => SysRow::Unwritten,
            fs_key::SYS_BACK_PROGRESS => SysRow::BackProgress,
            fs_key::SYS_ROLLBACK => SysRow::Rollback,
            fs_key::SYS_NEXT_VIEW => SysRow::NextView,
            [fs_key::SYS_VIEW, ..] => SysRow::View(fs_key::view_of(key)?),
            [fs_key::SYS_ORPHAN, ..] => SysRow::Orphan(fs_key::orphan_of(key)?),
            [fs_key::SYS_EXTERNAL, ..] => SysRow::External(fs_key::external_of(key)?),
            [fs_key::SYS_BACK, ..] => SysRow::Back(fs_key::back_of(key)?),
            [fs_key::SYS_TRANSACTION, ..] => SysRow::Transaction(fs_key::transaction_of(key)?),
            [fs_key::SYS_READS, ..] => {
                let (number, part) = fs_key::reads_of(key)?;
                SysRow::Reads(number, part)
            }
            [fs_key::SYS_POLICY, ..] => match fs_key::policy_of(key) {
                Some(dir) => SysRow::Policy(0, dir),
                None => {
                    let (view, dir) = fs_key::clone_policy_of(key)?;
                    SysRow::Policy(view, dir)
                }
            },
            [fs_key::SYS_SHARED, ..] => SysRow::Shared(fs_key::shared_of(key)?),
            [fs_key::SYS_CONTENTS, ..] => match fs_key::contents_of(key) {
                Some(number) => SysRow::Contents(number),
                None => {
                    let (number, ino) = fs_key::contents_user_of(key)?;
                    SysRow::ContentsUser(number, ino)
                }
            },
            [fs_key::SYS_ALLOCATED, ..] => {
                let (ino, end) = fs_key::allocated_of(key)?;
                SysRow::Extent(ino, end)
            }
            _ => return None,
        })
    }
}

mod policy;
mod shared;
#[cfg(test)]
mod tests;
