//! What becomes of each row that a transaction has written: it is absorbed as it is, joined with
//! what mainline made of it, or in conflict.

use super::conflict::{Conflict, ConflictKind};
use super::merge::Sides;
use super::own::{BranchTrees, Own, OwnRow};
use super::path::{NameSource, SidePaths};
use super::shared::ChunkInodes;
use crate::FsResult;
use crate::locator::{Locator, SysRow, Tree};
use crate::rows::is_readable;
use crate::views::Standing;
use bytes::Bytes;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, MetaRow};
use stitch_kv::Batch;

/// Keys of each tree that mainline has written since the transaction began.
#[derive(Default)]
pub(super) struct Changed<'o> {
    pub(super) meta: HashSet<&'o [u8]>,
    pub(super) sys: HashSet<&'o [u8]>,
    pub(super) data: HashSet<&'o [u8]>,
    pub(super) xattr: HashSet<&'o [u8]>,
}

impl<'o> Changed<'o> {
    pub(super) fn add(&mut self, others: &Self) {
        self.meta.extend(&others.meta);
        self.sys.extend(&others.sys);
        self.data.extend(&others.data);
        self.xattr.extend(&others.xattr);
        debug_assert!(self.meta.len() >= others.meta.len(), "nothing is taken out");
        debug_assert!(self.sys.len() >= others.sys.len(), "nothing is taken out");
        debug_assert!(self.data.len() >= others.data.len(), "nothing is taken out");
        debug_assert!(
            self.xattr.len() >= others.xattr.len(),
            "nothing is taken out"
        );
    }

    pub(super) fn is_empty(&self) -> bool {
        let has_rows = !self.meta.is_empty() || !self.sys.is_empty();
        !has_rows && self.data.is_empty() && self.xattr.is_empty()
    }
}

/// A row with what mainline holds, and what it will hold.
pub(super) struct Settled<'o> {
    pub(super) row: &'o OwnRow,
    pub(super) theirs: Option<Bytes>,
    pub(super) last: Option<Bytes>,
    /// Mainline gets `last` whatever the transaction has.
    is_joined: bool,
}

/// A row that both sides have changed.
pub(super) struct ConflictingRow<'o> {
    pub(super) tree: Tree,
    pub(super) key: &'o [u8],
    pub(super) conflict: Conflict,
    /// It is in a directory that is a clone, or removes one.
    pub(super) is_in_clone: bool,
}

impl ConflictingRow<'_> {
    /// Reports whether it follows from other rows.
    pub(super) fn is_sys(&self) -> bool {
        self.tree == Tree::Sys
    }
}

/// What a commit does with each row.
#[derive(Default)]
pub(super) struct Plan<'o> {
    pub(super) meta: Vec<Settled<'o>>,
    pub(super) sys: Vec<Settled<'o>>,
    conflicts: Vec<(Tree, &'o [u8], ConflictKind)>,
    /// Conflicts that have to do with clones.
    in_clones: Range<usize>,
}

impl<'o> Plan<'o> {
    /// Decides on every row of `own`.
    pub(super) fn new(trees: &BranchTrees, own: &'o Own, changed: &Changed<'o>) -> FsResult<Self> {
        let mut plan = Self::default();
        for (tree, rows, changed) in [
            (Tree::Meta, &own.meta, &changed.meta),
            (Tree::Sys, &own.sys, &changed.sys),
        ] {
            for row in rows {
                let is_changed = changed.contains(&row.key[..]);
                debug_assert!(!row.key.is_empty(), "no row has an empty key");
                let settled = match is_changed {
                    true => plan.join(tree, row, trees.theirs(tree, &row.key)?)?,
                    false => Settled {
                        row,
                        theirs: row.base.clone(),
                        last: row.ours.clone(),
                        is_joined: false,
                    },
                };
                match tree {
                    Tree::Meta => plan.meta.push(settled),
                    _ => plan.sys.push(settled),
                }
            }
        }
        for (tree, changed) in [(Tree::Data, &changed.data), (Tree::Xattr, &changed.xattr)] {
            for key in changed {
                plan.compare(trees, tree, key)?;
            }
        }
        debug_assert_eq!(plan.meta.len(), own.meta.len(), "each row is decided on");
        debug_assert_eq!(plan.sys.len(), own.sys.len(), "each row is decided on");
        Ok(plan)
    }

    fn join(
        &mut self,
        tree: Tree,
        row: &'o OwnRow,
        theirs: Option<Bytes>,
    ) -> FsResult<Settled<'o>> {
        debug_assert!(
            matches!(tree, Tree::Meta | Tree::Sys),
            "contents are not joined"
        );
        let mut settled = Settled {
            row,
            theirs,
            last: row.ours.clone(),
            is_joined: true,
        };
        if settled.theirs == row.base && !(tree == Tree::Meta && removes_dir(row)?) {
            return Ok(settled);
        }
        let sides = Sides {
            base: row.base.as_deref(),
            ours: row.ours.as_deref(),
            theirs: settled.theirs.as_deref(),
        };
        let joined = match tree {
            Tree::Meta => sides.join_meta()?,
            _ => join_sys(&row.key, &sides)?,
        };
        match joined {
            Some(joined) => settled.last = Some(joined.into()),
            None => {
                let kind = kind_of(tree, &row.key, &sides);
                self.conflicts.push((tree, &row.key, kind));
            }
        }
        Ok(settled)
    }

    /// Contents and extended attributes: rows that mainline has changed are in conflict.
    fn compare(&mut self, trees: &BranchTrees, tree: Tree, key: &'o [u8]) -> FsResult<()> {
        debug_assert!(matches!(tree, Tree::Data | Tree::Xattr), "rows are joined");
        if trees.theirs(tree, key)? != trees.base(tree, key)? {
            let kind = match tree {
                Tree::Xattr => ConflictKind::Xattr,
                _ => ConflictKind::Inode,
            };
            self.conflicts.push((tree, key, kind));
        }
        Ok(())
    }

    /// Refuses what a transaction did to the directory of a clone, which is empty for it: names in
    /// it, and its removal.
    pub(super) fn check_clones(&mut self, mainline: &Standing) -> FsResult<()> {
        debug_assert!(self.in_clones.is_empty(), "clones are looked at once");
        let is_clone = |ino: Ino| mainline.views.at(mainline.number, ino).is_some();
        let mut found = Vec::new();
        for settled in &self.meta {
            let key = &settled.row.key[..];
            let theirs = settled.theirs.as_deref().map(MetaRow::decode).transpose()?;
            let last = settled.last.as_deref().map(MetaRow::decode).transpose()?;
            let is_in_one = Locator::name_of(key).is_some()
                && Locator::ino_of(key).is_some_and(is_clone)
                && last.is_some();
            let is_removed = match last {
                Some(MetaRow::Inode(head, _)) => head.nlink == 0 && is_clone(head.ino),
                _ => false,
            };
            let is_dropped = last.is_none()
                && theirs.is_some_and(|row| is_clone(row.ino()) && !self.has_row_of(row.ino()));
            if is_in_one || is_removed || is_dropped {
                found.push((Tree::Meta, key, ConflictKind::Name));
            }
        }
        let first = self.conflicts.len();
        self.conflicts.extend(found);
        self.in_clones = first..self.conflicts.len();
        Ok(())
    }

    /// Reports whether an inode has one of these rows afterwards.
    fn has_row_of(&self, ino: Ino) -> bool {
        let rows = self.meta.iter().filter_map(|settled| settled.last.as_ref());
        rows.filter_map(|row| MetaRow::decode(row).ok())
            .any(|row| row.ino() == ino)
    }

    pub(super) fn has_conflicts(&self) -> bool {
        !self.conflicts.is_empty()
    }

    /// The conflicts with their paths by `names`, in the order of paths.
    pub(super) fn conflicts(&self, names: NameSource<'_>, own: &Own) -> FsResult<Vec<Conflict>> {
        let found = self.conflicting_rows(names, own)?;
        // Rows of the sys tree follow from others: they are listed if nothing else is.
        let only_sys = found.iter().all(ConflictingRow::is_sys);
        let listed = found.into_iter().filter(|row| only_sys || !row.is_sys());
        let listed: BTreeSet<Conflict> = listed.map(|row| row.conflict).collect();
        debug_assert!(!listed.is_empty(), "there is one");
        Ok(listed.into_iter().collect())
    }

    /// The rows in conflict, each with its conflict. Paths are those by `names`.
    pub(super) fn conflicting_rows(
        &self,
        names: NameSource<'_>,
        own: &Own,
    ) -> FsResult<Vec<ConflictingRow<'o>>> {
        let ours = SidePaths::new(names, own.meta.iter().map(|row| (row, row.ours.as_ref())))?;
        let base = SidePaths::new(names, own.meta.iter().map(|row| (row, row.base.as_ref())))?;
        let chunks_of = self.inodes_of_chunks();
        let mut found = Vec::new();
        for (index, &(tree, key, kind)) in self.conflicts.iter().enumerate() {
            debug_assert!(!key.is_empty(), "no row has an empty key");
            let ino = self.ino_of(tree, key, &chunks_of);
            let path_in = |paths: &SidePaths<'_>| match (tree, Locator::name_of(key)) {
                (Tree::Meta, Some(_)) => paths.of_key(key),
                _ => paths.of(ino),
            };
            let path = match path_in(&ours)? {
                Some(path) => path,
                None => path_in(&base)?.unwrap_or_default(),
            };
            let conflict = Conflict {
                path,
                kind,
                ino,
                record: None,
            };
            found.push(ConflictingRow {
                tree,
                key,
                conflict,
                is_in_clone: self.in_clones.contains(&index),
            });
        }
        debug_assert!(
            self.in_clones.end <= found.len(),
            "those of clones are the last"
        );
        debug_assert_eq!(found.len(), self.conflicts.len(), "one for each");
        Ok(found)
    }

    fn ino_of(&self, tree: Tree, key: &[u8], chunks_of: &ChunkInodes) -> Ino {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        let of_sys = || match Locator::sys_row(key)? {
            SysRow::Orphan(ino) | SysRow::External(ino) | SysRow::Back(ino) => Some(ino),
            SysRow::Extent(ino, _) => Some(ino),
            SysRow::Shared(ino) | SysRow::ContentsUser(_, ino) | SysRow::Contents(ino) => Some(ino),
            _ => None,
        };
        let of_name = || {
            let settled = self.meta.iter().find(|settled| settled.row.key == key)?;
            let row = settled.row.ours.as_ref().or(settled.row.base.as_ref());
            let row = row.or(settled.theirs.as_ref())?;
            MetaRow::decode(row).ok().map(|row| row.ino())
        };
        let ino = match tree {
            Tree::Sys => of_sys(),
            Tree::Meta if Locator::name_of(key).is_some() => of_name(),
            Tree::Data => Locator::ino_of(key).map(|number| chunks_of.find(number)),
            _ => Locator::ino_of(key),
        };
        ino.unwrap_or(Ino::ROOT)
    }

    /// The rows that mainline gets beside those of the branches.
    pub(super) fn put_joined(&self, trees: &BranchTrees, batch: &mut Batch<'_>) {
        for (kind, rows) in [(Tree::Meta, &self.meta), (Tree::Sys, &self.sys)] {
            let tree = trees.parent(kind);
            debug_assert_ne!(tree, trees.own_tree(kind), "the tree that absorbs");
            for settled in rows.iter().filter(|settled| settled.is_joined) {
                let key = &settled.row.key;
                match &settled.last {
                    Some(last) => {
                        debug_assert!(is_readable(kind, key, last), "joined rows are read again");
                        batch.put(tree, key, last);
                    }
                    None => batch.delete(tree, key),
                }
            }
        }
    }
}

fn join_sys(key: &[u8], sides: &Sides<'_>) -> FsResult<Option<Vec<u8>>> {
    debug_assert!(!key.is_empty(), "no row has an empty key");
    let theirs = || sides.theirs.map(<[u8]>::to_vec);
    let ours = || sides.ours.map(<[u8]>::to_vec);
    Ok(match Locator::sys_row(key) {
        Some(SysRow::Header) => sides.join_headers()?,
        Some(SysRow::InodeCount | SysRow::Unwritten) => Some(sides.join_counts()?),
        Some(SysRow::NextIno | SysRow::BackProgress | SysRow::Transaction(_)) => theirs(),
        Some(SysRow::Reads(..)) => theirs(),
        Some(SysRow::NextView | SysRow::View(_) | SysRow::Rollback) => theirs(),
        Some(SysRow::Fixed) => theirs().or_else(ours),
        Some(SysRow::Orphan(_) | SysRow::External(_) | SysRow::Back(_) | SysRow::Extent(..))
        | Some(SysRow::Policy(..))
        | Some(SysRow::Shared(_) | SysRow::Contents(_) | SysRow::ContentsUser(..))
        | None => None,
    })
}

/// Reports whether a directory lost its place in the transaction. Then any write to its row in
/// mainline counts: names came or went in it.
fn removes_dir(row: &OwnRow) -> FsResult<bool> {
    let dir = |row: Option<&Bytes>| match row.map(|row| MetaRow::decode(row)).transpose()? {
        Some(MetaRow::Inode(head, _)) if head.kind == FileKind::Directory => {
            FsResult::Ok(Some(head.ino))
        }
        _ => Ok(None),
    };
    let (base, ours) = (dir(row.base.as_ref())?, dir(row.ours.as_ref())?);
    Ok(base.is_some() && base != ours)
}

/// What a conflict about a row is about.
fn kind_of(tree: Tree, key: &[u8], sides: &Sides<'_>) -> ConflictKind {
    if tree != Tree::Meta || Locator::name_of(key).is_none() {
        return ConflictKind::Inode;
    }
    let ino = |row: Option<&[u8]>| Some(MetaRow::decode(row?).ok()?.ino());
    let (base, ours, theirs) = (ino(sides.base), ino(sides.ours), ino(sides.theirs));
    match base.is_some() && base == ours && base == theirs {
        true => ConflictKind::Inode,
        false => ConflictKind::Name,
    }
}
