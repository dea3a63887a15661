//! Validation of a read set: what mainline has changed of it since the transaction began.
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
use super::super::own::BranchTrees;
use super::super::path::{NameSource, SidePaths};
use super::super::records::{BranchRecords, RecordRules};
use super::{ReadSet, RecordReads};
use crate::FsResult;
use crate::locator::{Locator, RowRange, Tree};
use crate::transaction::conflict::{Conflict, ConflictKind, ReadKind};
use bytes::Bytes;
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, MetaRow};
use stitch_format::fs_reads::{ReadEntry, read_of};
use stitch_kv::{KeyRange, Snapshot};

/// Most changes that are reported.
const REPORTED_MAX: usize = 1024;
/// Ranges that the engine is asked about together.
const ASKED_TOGETHER: usize = 256;

/// A change of something that was read: where its path is found, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChangedRead {
    /// Key of a name whose path is that of the change; `None`: that of the inode.
    name: Option<Vec<u8>>,
    ino: Ino,
    kind: ConflictKind,
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

/// The read set of a transaction that is about to be committed.
pub(in crate::transaction) struct Validation<'t> {
    trees: &'t BranchTrees,
    ranges: Vec<ReadRange>,
    records: RecordReads,
    is_unknown: bool,
}

impl<'t> Validation<'t> {
    pub(in crate::transaction) fn new(reads: &ReadSet, trees: &'t BranchTrees) -> Self {
        let entries = reads.entries();
        let keys = Locator::default();
        let ranges = entries.iter().flat_map(|entry| ranges_of(&keys, entry));
        Self {
            trees,
            ranges: ranges.collect(),
            records: reads.record_reads(),
            is_unknown: reads.is_unknown,
        }
    }

    /// Returns what was read of records.
    pub(in crate::transaction) const fn records(&self) -> &RecordReads {
        &self.records
    }

    /// Returns what was read and mainline has changed since a moment, or since the transaction
    /// began; at most [`REPORTED_MAX`].
    fn changed(&self, since: Option<&Snapshot>) -> FsResult<BTreeSet<ChangedRead>> {
        let mut found = BTreeSet::new();
        for tree in [Tree::Meta, Tree::Data, Tree::Xattr] {
            if !self.trees.is_changed(tree, [KeyRange::all()], since)? {
                continue;
            }
            let ranges = self.ranges.iter().filter(|read| read.tree == tree);
            let ranges: Vec<&ReadRange> = ranges.collect();
            for together in ranges.chunks(ASKED_TOGETHER) {
                let asked = together.iter().map(|read| read.keys());
                if !self.trees.is_changed(tree, asked, since)? {
                    continue;
                }
                for read in together {
                    self.look_at(read, since, &mut found)?;
                    if found.len() >= REPORTED_MAX {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Adds what was read of files and of records and is changed since a moment, or since the
    /// transaction began, to conflicts that are known. A path or a record is told of once.
    pub(in crate::transaction) fn add_all_conflicts(
        &self,
        (names, records): (NameSource<'_>, &BranchRecords),
        since: Option<&Snapshot>,
        rules: &dyn RecordRules,
        conflicts: &mut Vec<Conflict>,
    ) -> FsResult<()> {
        self.add_conflicts(names, since, conflicts)?;
        let mut changed = records.changed_reads(&self.records, since, rules)?;
        changed.retain(|read| !conflicts.iter().any(|known| known.record == read.record));
        debug_assert!(
            changed.iter().all(|read| read.record.is_some()),
            "reads of files are added before"
        );
        conflicts.extend(changed);
        Ok(())
    }

    /// Adds what was read of files and is changed. A path is told of once.
    fn add_conflicts(
        &self,
        names: NameSource<'_>,
        since: Option<&Snapshot>,
        conflicts: &mut Vec<Conflict>,
    ) -> FsResult<()> {
        let changed = self.changed(since)?;
        if changed.is_empty() {
            return Ok(());
        }
        let paths = SidePaths::new(names, [])?;
        let known = conflicts.iter().filter(|known| known.record.is_none());
        let known: BTreeSet<Vec<u8>> = known.map(|known| known.path.clone()).collect();
        let mut added = BTreeSet::new();
        for read in changed {
            let path = match &read.name {
                Some(key) => paths.of_key(key)?,
                None => paths.of(read.ino)?,
            };
            let path = path.unwrap_or_default();
            if !known.contains(&path) {
                debug_assert!(
                    matches!(read.kind, ConflictKind::Read(_)),
                    "something that was read"
                );
                let (kind, ino) = (read.kind, read.ino);
                added.insert(Conflict {
                    path,
                    kind,
                    ino,
                    record: None,
                });
            }
        }
        debug_assert!(
            !conflicts.is_empty() || !added.is_empty(),
            "something is changed"
        );
        conflicts.extend(added);
        conflicts.sort_unstable();
        Ok(())
    }

    fn look_at(
        &self,
        read: &ReadRange,
        since: Option<&Snapshot>,
        found: &mut BTreeSet<ChangedRead>,
    ) -> FsResult<()> {
        debug_assert!(read.start < read.end, "something was read");
        let tree = read.tree;
        let mut from = read.start.clone();
        while from < read.end {
            let (keys, is_all) = self.trees.changed_in(tree, read.keys_from(&from), since)?;
            for key in &keys {
                debug_assert!(*key >= from && *key < read.end, "keys of the range");
                match (tree, self.is_unknown) {
                    (Tree::Meta, false) => self.look_at_row(read, key, since, found)?,
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
        since: Option<&Snapshot>,
        found: &mut BTreeSet<ChangedRead>,
    ) -> FsResult<()> {
        debug_assert_eq!(read.tree, Tree::Meta, "contents have no rows of inodes");
        found.extend(self.judge(read, key)?);
        // One change is enough to refuse: the others are for the report.
        let is_gone = found.is_empty() && self.trees.theirs(Tree::Meta, key)?.is_none();
        match is_gone {
            true => self.look_after(read, key, since, found),
            false => Ok(()),
        }
    }

    /// Looks at the rows after a key that is gone: one delete may have covered them too.
    fn look_after(
        &self,
        read: &ReadRange,
        gone: &[u8],
        since: Option<&Snapshot>,
        found: &mut BTreeSet<ChangedRead>,
    ) -> FsResult<()> {
        let rest = read.keys_from(gone);
        debug_assert!(
            gone >= &read.start[..] && gone < &read.end[..],
            "a key of the range"
        );
        let mut base = self.trees.scan_base(Tree::Meta, rest)?;
        while let Some((key, _)) = base.next()? {
            let changed = self.trees.changed(Tree::Meta, [key].into_iter(), since)?;
            if changed.is_empty() {
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
        debug_assert!(
            key >= &read.start[..] && key < &read.end[..],
            "a key of the range"
        );
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
