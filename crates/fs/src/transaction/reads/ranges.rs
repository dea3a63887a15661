//! What was read of trees, and which of it is changed.
//!
//! Which keys were written is asked of the engine, range by range; their values then decide:
//! - a name is changed if it stands for another inode, or for none;
//! - a directory's attributes are changed, but not by its times and its link count: names that come
//!   and go change these;
//! - another inode is changed if anything in its row is, but the time of access;
//! - contents and extended attributes are changed if they were written.
//!
//! A delete of a range is reported with its first key only. So the rows after a key that is gone
//! are looked at, up to the first that was not written.

use super::super::merge::{attributes, is_read};
use crate::FsResult;
use crate::locator::{Locator, RowRange, Tree};
use crate::transaction::conflict::{ConflictKind, ReadKind};
use crate::transaction::path::{NameSource, SidePaths};
use bytes::Bytes;
use std::collections::BTreeSet;
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, MetaRow};
use stitch_format::fs_reads::{ReadEntry, read_of};
use stitch_kv::{Direction, Engine, Guards, KeyRange, Scan, Snapshot};

/// Most changes that are reported.
pub(super) const REPORTED_MAX: usize = 1024;
/// Ranges that the engine is asked about together.
const ASKED_TOGETHER: usize = 256;
/// Keys that the engine is asked for at a time.
const PAGE: usize = 4096;
const _: () = assert!(REPORTED_MAX <= PAGE, "one list is enough for a report");

/// A tree that was read, and the other side.
pub(in crate::transaction) struct ReadTree {
    /// What was read, as it was at `moment`.
    pub(in crate::transaction) tree: TreeId,
    pub(in crate::transaction) moment: Snapshot,
    /// What others have now, or had at `until`.
    pub(in crate::transaction) theirs: TreeId,
    pub(in crate::transaction) until: Option<Snapshot>,
}

/// The trees of a file system that was read, in the order of [`Tree::ALL`].
pub(in crate::transaction) struct ReadTrees {
    pub(in crate::transaction) engine: Arc<dyn Engine>,
    pub(in crate::transaction) trees: Vec<ReadTree>,
}

impl ReadTrees {
    fn find(&self, tree: Tree) -> &ReadTree {
        let index = Tree::ALL.iter().position(|other| *other == tree);
        debug_assert_eq!(self.trees.len(), Tree::ALL.len(), "all of them");
        &self.trees[index.expect("all trees are there")]
    }

    /// Returns the number of a tree.
    pub(super) fn id(&self, tree: Tree) -> TreeId {
        self.find(tree).tree
    }

    fn base(&self, tree: Tree, key: &[u8]) -> FsResult<Option<Bytes>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        let tree = self.find(tree);
        Ok(self.engine.get(tree.tree, key, Some(&tree.moment))?)
    }

    fn theirs(&self, tree: Tree, key: &[u8]) -> FsResult<Option<Bytes>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        let tree = self.find(tree);
        Ok(self.engine.get(tree.theirs, key, tree.until.as_ref())?)
    }

    fn scan_base(&self, tree: Tree, range: KeyRange<'_>) -> FsResult<Box<dyn Scan + '_>> {
        let tree = self.find(tree);
        let (forward, moment) = (Direction::Forward, Some(&tree.moment));
        Ok(self.engine.scan(tree.tree, range, forward, moment)?)
    }

    /// Reports whether anything in some ranges was written since a moment, or since the reads.
    fn is_changed<'k>(
        &self,
        tree: Tree,
        ranges: impl IntoIterator<Item = KeyRange<'k>>,
        since: Option<&Snapshot>,
    ) -> FsResult<bool> {
        let read = self.find(tree);
        let mut guards = Guards::since(since.unwrap_or(&read.moment));
        for range in ranges {
            guards.range(read.tree, range);
        }
        debug_assert!(
            since.is_none_or(|since| since.seqno() >= read.moment.seqno()),
            "not before the reads"
        );
        Ok(!self.engine.changed_keys(&guards, 1)?.is_empty())
    }

    /// Returns the first keys of a range that were written since a moment, or since the reads, and
    /// whether these are all. A delete of a range may count with the first key that it covers.
    fn changed_in(
        &self,
        tree: Tree,
        range: KeyRange<'_>,
        since: Option<&Snapshot>,
    ) -> FsResult<(Vec<Vec<u8>>, bool)> {
        let read = self.find(tree);
        let since = since.unwrap_or(&read.moment);
        let keys = match &read.until {
            Some(until) => {
                let moments = (since, Some(until));
                self.engine.keys_between(read.tree, range, moments, PAGE)?
            }
            None => {
                let mut guards = Guards::since(since);
                guards.range(read.tree, range);
                let found = self.engine.changed_keys(&guards, PAGE)?;
                found.into_iter().map(|found| found.key).collect()
            }
        };
        debug_assert!(keys.len() <= PAGE, "no more than was asked for");
        debug_assert!(
            keys.iter().all(|key| range.start <= &key[..]),
            "keys of the range"
        );
        let is_all = keys.len() < PAGE;
        Ok((keys, is_all))
    }

    /// Reports whether a key was written since a moment, or since the reads.
    fn is_key_changed(&self, tree: Tree, key: &[u8], since: Option<&Snapshot>) -> FsResult<bool> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        let after = [key, &[0][..]].concat();
        let (keys, _) = self.changed_in(tree, KeyRange::new(key, &after), since)?;
        debug_assert!(keys.len() <= 1, "the range has one key");
        Ok(!keys.is_empty())
    }
}

/// A change of something that was read: where its path is found, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChangedRead {
    /// Key of a name whose path is that of the change; `None`: that of the inode.
    pub(super) name: Option<Vec<u8>>,
    pub(super) ino: Ino,
    pub(super) kind: ConflictKind,
}

impl ChangedRead {
    /// Returns its path, by those of the file system that it is in; empty if it has none there.
    pub(super) fn path(&self, paths: &SidePaths<'_>) -> FsResult<Vec<u8>> {
        debug_assert!(
            matches!(self.kind, ConflictKind::Read(_)),
            "something that was read"
        );
        let path = match &self.name {
            Some(key) => paths.of_key(key)?,
            None => paths.of(self.ino)?,
        };
        Ok(path.unwrap_or_default())
    }
}

/// Returns the paths of a file system in which something is changed that was read.
pub(super) fn paths_of<'a>(
    names: NameSource<'a>,
    changed: &BTreeSet<ChangedRead>,
) -> FsResult<SidePaths<'a>> {
    debug_assert!(!changed.is_empty(), "something is changed");
    let unnamed = changed.iter().filter(|read| read.name.is_none());
    Ok(SidePaths::new(names, [])?.with_files(unnamed.map(|read| read.ino)))
}

/// A range of keys that was read, and what of it.
struct ReadRange {
    tree: Tree,
    start: Vec<u8>,
    end: Vec<u8>,
    what: u8,
    /// All names of directories, not one.
    is_list: bool,
}

impl ReadRange {
    fn new(range: &RowRange, what: u8, is_list: bool) -> Self {
        debug_assert!(range.start() < range.end(), "something was read");
        Self {
            tree: range.tree(),
            start: range.start().to_vec(),
            end: range.end().to_vec(),
            what,
            is_list,
        }
    }

    fn keys(&self) -> KeyRange<'_> {
        self.keys_from(&self.start)
    }

    fn keys_from<'a>(&'a self, start: &'a [u8]) -> KeyRange<'a> {
        debug_assert!(
            *start <= self.end[..],
            "a range does not end before it starts"
        );
        KeyRange::new(start, &self.end)
    }
}

/// All that was read of a file system.
pub(in crate::transaction) struct ReadRanges {
    ranges: Vec<ReadRange>,
    /// It is not known what was read: any change counts.
    is_unknown: bool,
}

impl ReadRanges {
    pub(super) fn new(entries: &[ReadEntry], is_unknown: bool) -> Self {
        debug_assert!(
            entries.iter().all(|entry| entry.what != 0),
            "something was read"
        );
        let keys = Locator::default();
        let ranges = entries.iter().flat_map(|entry| ranges_of(&keys, entry));
        Self {
            ranges: ranges.collect(),
            is_unknown,
        }
    }

    /// Returns what others have changed since a moment, or since the reads; at most
    /// [`REPORTED_MAX`].
    pub(super) fn changed(
        &self,
        trees: &ReadTrees,
        since: Option<&Snapshot>,
    ) -> FsResult<BTreeSet<ChangedRead>> {
        let mut found = BTreeSet::new();
        for tree in [Tree::Meta, Tree::Data, Tree::Xattr] {
            if !trees.is_changed(tree, [KeyRange::all()], since)? {
                continue;
            }
            let ranges = self.ranges.iter().filter(|read| read.tree == tree);
            let ranges: Vec<&ReadRange> = ranges.collect();
            for together in ranges.chunks(ASKED_TOGETHER) {
                let asked = together.iter().map(|read| read.keys());
                if !trees.is_changed(tree, asked, since)? {
                    continue;
                }
                for read in together {
                    Look {
                        trees,
                        since,
                        is_unknown: self.is_unknown,
                    }
                    .look_at(read, &mut found)?;
                    if found.len() >= REPORTED_MAX {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(found)
    }
}

/// Looks for changes of what was read of a file system.
struct Look<'t> {
    trees: &'t ReadTrees,
    since: Option<&'t Snapshot>,
    is_unknown: bool,
}

impl Look<'_> {
    fn look_at(&self, read: &ReadRange, found: &mut BTreeSet<ChangedRead>) -> FsResult<()> {
        debug_assert!(read.start < read.end, "something was read");
        let tree = read.tree;
        let mut from = read.start.clone();
        while from < read.end {
            let (keys, is_all) = self
                .trees
                .changed_in(tree, read.keys_from(&from), self.since)?;
            for key in &keys {
                debug_assert!(*key >= from, "each list goes on");
                debug_assert!(*key < read.end, "a key of the range");
                match (tree, self.is_unknown) {
                    (Tree::Meta, false) => self.look_at_row(read, key, found)?,
                    _ => found.extend(written(tree, key, self.is_unknown)),
                }
                if found.len() >= REPORTED_MAX {
                    return Ok(());
                }
            }
            match keys.last() {
                Some(last) if !is_all => {
                    debug_assert!(*last >= from, "each list goes on");
                    from = [last, &[0][..]].concat();
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn look_at_row(
        &self,
        read: &ReadRange,
        key: &[u8],
        found: &mut BTreeSet<ChangedRead>,
    ) -> FsResult<()> {
        debug_assert_eq!(read.tree, Tree::Meta, "contents have no rows of inodes");
        found.extend(self.judge(read, key)?);
        // One change is enough to refuse: the others are for the report.
        let is_gone = found.is_empty() && self.trees.theirs(Tree::Meta, key)?.is_none();
        match is_gone {
            true => self.look_after(read, key, found),
            false => Ok(()),
        }
    }

    /// Looks at the rows after a key that is gone: one delete may have covered them too.
    fn look_after(
        &self,
        read: &ReadRange,
        gone: &[u8],
        found: &mut BTreeSet<ChangedRead>,
    ) -> FsResult<()> {
        let rest = read.keys_from(gone);
        debug_assert!(gone >= &read.start[..], "a key of the range");
        debug_assert!(gone < &read.end[..], "a key of the range");
        let mut base = self.trees.scan_base(Tree::Meta, rest)?;
        while let Some((key, _)) = base.next()? {
            if !self.trees.is_key_changed(Tree::Meta, key, self.since)? {
                return Ok(());
            }
            found.extend(self.judge(read, key)?);
            if !found.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Decides whether a row of the meta tree that was written is changed.
    fn judge(&self, read: &ReadRange, key: &[u8]) -> FsResult<Option<ChangedRead>> {
        debug_assert_eq!(read.tree, Tree::Meta, "contents are compared by their keys");
        debug_assert!(key >= &read.start[..], "a key of the range");
        debug_assert!(key < &read.end[..], "a key of the range");
        let base = self.trees.base(Tree::Meta, key)?;
        let theirs = self.trees.theirs(Tree::Meta, key)?;
        if base == theirs {
            return Ok(None);
        }
        let ino = |row: &Option<Bytes>| FsResult::Ok(decode(row)?.map(|row| row.ino()));
        let (old, new) = (ino(&base)?, ino(&theirs)?);
        let is_name = Locator::name_of(key).is_some();
        let kind = match is_name {
            true if read.what & read_of::NAMES != 0 && old != new => match read.is_list {
                true => ReadKind::List,
                false => ReadKind::Name,
            },
            true if read.what & read_of::NAMED_INODES != 0 && is_changed(&base, &theirs)? => {
                ReadKind::Inode
            }
            false if read.what & read_of::OWN_INODE != 0 && is_changed(&base, &theirs)? => {
                ReadKind::Inode
            }
            _ => return Ok(None),
        };
        let dir = Locator::ino_of(key).unwrap_or(Ino::ROOT);
        let of_dir = matches!(kind, ReadKind::List);
        Ok(Some(ChangedRead {
            name: (is_name && !of_dir).then(|| key.to_vec()),
            ino: match of_dir {
                true => dir,
                false => old.or(new).unwrap_or(dir),
            },
            kind: ConflictKind::Read(kind),
        }))
    }
}

fn decode(row: &Option<Bytes>) -> FsResult<Option<MetaRow<'_>>> {
    Ok(row.as_ref().map(|row| MetaRow::decode(row)).transpose()?)
}

/// Reports whether the attributes of an inode whose row was here are others, or elsewhere.
fn is_changed(base: &Option<Bytes>, theirs: &Option<Bytes>) -> FsResult<bool> {
    let (base, theirs) = (decode(base)?, decode(theirs)?);
    Ok(match (base, theirs) {
        (Some(MetaRow::Inode(old, old_tail)), Some(MetaRow::Inode(new, new_tail))) => {
            let is_same = match old.kind {
                FileKind::Directory => attributes(&old) == attributes(&new),
                _ => is_read(&old, &new) && old_tail == new_tail,
            };
            !is_same
        }
        (Some(MetaRow::Inode(..)), _) => true,
        // There was no inode to read.
        _ => false,
    })
}

/// Contents or extended attributes that were written; or anything, where it is not known what was
/// read.
fn written(tree: Tree, key: &[u8], is_unknown: bool) -> Option<ChangedRead> {
    let kind = match tree {
        _ if is_unknown => ReadKind::Unknown,
        Tree::Xattr => ReadKind::Xattr,
        _ => ReadKind::Inode,
    };
    let is_name = tree == Tree::Meta && Locator::name_of(key).is_some();
    Some(ChangedRead {
        name: is_name.then(|| key.to_vec()),
        ino: Locator::ino_of(key)?,
        kind: ConflictKind::Read(kind),
    })
}

fn ranges_of(keys: &Locator, entry: &ReadEntry) -> Vec<ReadRange> {
    debug_assert!(entry.what != 0, "something was read");
    let what = entry.what;
    if entry.hash != 0 {
        let range = keys.dentries_at(Place {
            parent: Ino(entry.number),
            hash: entry.hash,
        });
        return vec![ReadRange::new(&range, what, false)];
    }
    let (first, end) = entry.numbers();
    let meta = read_of::NAMES | read_of::NAMED_INODES | read_of::OWN_INODE;
    let what = match entry.shift {
        0 => what,
        // Of a group it is not known which of them were read: all rows count.
        _ if what & meta != 0 => what | meta,
        _ => what,
    };
    debug_assert!(first < end, "some inodes");
    let parts = [
        (Tree::Meta, meta),
        (Tree::Data, read_of::CONTENTS),
        (Tree::Xattr, read_of::XATTRS),
    ];
    let parts = parts.into_iter().filter(|(_, of)| what & of != 0);
    let range = |tree| match what & meta {
        read_of::OWN_INODE if tree == Tree::Meta => keys.own_row(Ino(first)),
        _ => keys.inodes(tree, Ino(first), Ino(end)),
    };
    parts
        .map(|(tree, _)| ReadRange::new(&range(tree), what, true))
        .collect()
}
