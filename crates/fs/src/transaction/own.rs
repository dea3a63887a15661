//! What a file system over branch trees has changed: the keys of its own, and their values on both
//! sides.
//!
//! A row of contents holds 4 KiB, so there may be millions: of these, and of extended attributes,
//! only the keys are kept, one after the other. A gigabyte of contents takes 7 MB.

mod contents;
mod pages;

use super::reads::{ReadTree, ReadTrees};
use super::resolve::Changed;
use crate::locator::Tree;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use bytes::Bytes;
use std::cell::OnceCell;
use stitch_base::TreeId;
use stitch_base::sync::Arc;
use stitch_kv::{Direction, Engine, Guards, KeyRange, Snapshot};

/// Keys that the engine is asked for at a time.
const PAGE: usize = pages::KEYS_PER_LIST;

/// A branch tree, and where it begins.
struct BranchTree {
    own: TreeId,
    parent: TreeId,
    moment: Snapshot,
    /// What the branch is compared with, in the place of the parent as it is now.
    onto: Option<TreeId>,
}

/// The branch trees of a file system.
pub(super) struct BranchTrees {
    pub(super) engine: Arc<dyn Engine>,
    /// In the order of [`Tree::ALL`].
    trees: Vec<BranchTree>,
}

impl BranchTrees {
    /// Reports whether these are the branches of all trees, and each is a tree of its own.
    fn holds(&self) -> bool {
        self.trees.len() == Tree::ALL.len() && self.trees.iter().all(|tree| tree.own != tree.parent)
    }

    /// The trees of a file system.
    ///
    /// # Errors
    /// [`FsError::Ended`] if they were dropped; [`FsError::Invalid`] if they are no branches.
    pub(super) fn of(fs: &FileSystem) -> FsResult<Self> {
        let engine = Arc::clone(fs.engine());
        let infos = engine.trees();
        let branch = |tree: Tree| {
            let own = fs.store.tree(tree);
            let info = infos.iter().find(|info| info.id == own);
            let info = info.ok_or(FsError::Ended)?;
            let point = info
                .branch
                .ok_or(FsError::Invalid("it has no branch trees"))?;
            let moment = engine.branch_moment(own)?;
            let parent = point.parent;
            Ok(BranchTree {
                own,
                parent,
                moment,
                onto: None,
            })
        };
        let trees: FsResult<Vec<BranchTree>> = Tree::ALL.into_iter().map(branch).collect();
        let trees = trees?;
        let trees = Self { engine, trees };
        debug_assert!(trees.holds());
        Ok(trees)
    }

    /// Compares with later branches of the same parents from now on, which are given in the order
    /// of [`Tree::ALL`].
    pub(super) fn onto(mut self, trees: &[TreeId]) -> Self {
        debug_assert_eq!(trees.len(), Tree::ALL.len(), "one for each");
        let parent_of = |id: TreeId| {
            let info = self.engine.trees().into_iter().find(|info| info.id == id)?;
            info.branch.map(|point| point.parent)
        };
        debug_assert!(
            self.trees
                .iter()
                .zip(trees)
                .all(|(branch, onto)| parent_of(*onto) == Some(branch.parent)),
            "branches of the same parents"
        );
        for (branch, onto) in self.trees.iter_mut().zip(trees) {
            debug_assert_ne!(branch.own, *onto, "another branch");
            branch.onto = Some(*onto);
        }
        debug_assert!(self.holds());
        debug_assert!(
            self.trees.iter().all(|tree| tree.onto.is_some()),
            "all of them"
        );
        self
    }

    fn find(&self, tree: Tree) -> &BranchTree {
        let index = Tree::ALL.iter().position(|other| *other == tree);
        let found = &self.trees[index.expect("all trees are there")];
        debug_assert_ne!(found.own, found.parent, "a branch is a tree of its own");
        found
    }

    /// The numbers of the branch trees.
    pub(super) fn ids(&self) -> Vec<TreeId> {
        debug_assert_eq!(self.trees.len(), Tree::ALL.len(), "all of them");
        self.trees.iter().map(|tree| tree.own).collect()
    }

    /// The number of the tree that a branch is of.
    pub(super) fn parent(&self, tree: Tree) -> TreeId {
        self.find(tree).parent
    }

    /// The value of a key where the branch begins.
    pub(super) fn base(&self, tree: Tree, key: &[u8]) -> FsResult<Option<Bytes>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        let tree = self.find(tree);
        Ok(self.engine.get(tree.parent, key, Some(&tree.moment))?)
    }

    /// The value of a key in the branch.
    pub(super) fn ours(&self, tree: Tree, key: &[u8]) -> FsResult<Option<Bytes>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        Ok(self.engine.get(self.find(tree).own, key, None)?)
    }

    /// The value of a key in the parent now, or in what the branch is compared with.
    pub(super) fn theirs(&self, tree: Tree, key: &[u8]) -> FsResult<Option<Bytes>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        Ok(self.engine.get(self.theirs_tree(tree), key, None)?)
    }

    /// The number of the tree that [`Self::theirs`] reads.
    pub(super) fn theirs_tree(&self, tree: Tree) -> TreeId {
        let branch = self.find(tree);
        let theirs = branch.onto.unwrap_or(branch.parent);
        debug_assert_ne!(theirs, branch.own, "the other side is another tree");
        theirs
    }

    /// Calls `visit` with each row of a range of a tree, as the parent or another side has it.
    pub(super) fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> FsResult<()>,
    ) -> FsResult<()> {
        let mut scan = self.engine.scan(tree, range, Direction::Forward, None)?;
        while let Some((key, value)) = scan.next()? {
            debug_assert!(range.start <= key, "a scan keeps to its range");
            debug_assert!(
                range.end.is_none_or(|end| key < end),
                "a scan keeps to its range"
            );
            visit(key, value)?;
        }
        Ok(())
    }

    /// Returns the trees that were branched, each with the moment at which the branches begin, as
    /// its branch holds it.
    pub(super) fn moments(&self) -> Vec<(TreeId, Snapshot)> {
        debug_assert!(self.holds());
        let trees = self.trees.iter();
        trees
            .map(|branch| (branch.parent, branch.moment.clone()))
            .collect()
    }

    /// The number of a branch tree.
    pub(super) fn own_tree(&self, tree: Tree) -> TreeId {
        self.find(tree).own
    }

    /// Returns the parents as they were where the branches begin, and the other side.
    pub(super) fn read(&self) -> ReadTrees {
        debug_assert!(self.holds());
        let trees = self.trees.iter().map(|branch| ReadTree {
            tree: branch.parent,
            moment: branch.moment.clone(),
            theirs: branch.onto.unwrap_or(branch.parent),
            until: None,
        });
        ReadTrees {
            engine: Arc::clone(&self.engine),
            trees: trees.collect(),
        }
    }

    /// Reports whether anything was written in the branches since a moment. They are frozen.
    pub(super) fn are_written_since(&self, moment: &Snapshot) -> FsResult<bool> {
        let mut guards = Guards::since(moment);
        for branch in &self.trees {
            guards.range(branch.own, KeyRange::all());
        }
        debug_assert_eq!(guards.count(), Tree::ALL.len(), "all of them");
        Ok(!self.engine.changed_keys(&guards, 1)?.is_empty())
    }

    /// Returns the first keys of a range that were written in the parent since a moment, or since
    /// the branch began, and whether these are all. A delete of a range counts with the first key
    /// that it covers.
    pub(super) fn changed_in(
        &self,
        tree: Tree,
        range: KeyRange<'_>,
        since: Option<&Snapshot>,
    ) -> FsResult<(Vec<Vec<u8>>, bool)> {
        let branch = self.find(tree);
        let mut guards = Guards::since(since.unwrap_or(&branch.moment));
        guards.range(branch.parent, range);
        let found = self.engine.changed_keys(&guards, PAGE)?;
        debug_assert!(found.len() <= PAGE, "no more than was asked for");
        debug_assert!(
            found.iter().all(|found| found.tree == branch.parent),
            "keys of the tree that was asked for"
        );
        let is_all = found.len() < PAGE;
        Ok((found.into_iter().map(|found| found.key).collect(), is_all))
    }

    fn has_keys(&self, tree: Tree) -> FsResult<bool> {
        let own = self.find(tree).own;
        Ok(!self.engine.branch_keys(own, None, 1)?.is_empty())
    }

    fn keys(&self, tree: Tree) -> FsResult<OwnKeys> {
        let own = self.find(tree).own;
        let mut keys = OwnKeys::default();
        each_page_of_keys(self.engine.as_ref(), own, PAGE, |page| {
            page.iter().for_each(|key| keys.push(key));
        })?;
        Ok(keys)
    }
}

/// Hands the keys that were written in a branch to `each`, in order, in pages of at most `count`.
pub(super) fn each_page_of_keys(
    engine: &dyn Engine,
    branch: TreeId,
    count: usize,
    mut each: impl FnMut(Vec<Vec<u8>>),
) -> FsResult<()> {
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = engine.branch_keys(branch, after.as_deref(), count)?;
        debug_assert!(page.len() <= count, "no more than was asked for");
        debug_assert!(
            page.first()
                .zip(after.as_ref())
                .is_none_or(|(first, after)| first > after),
            "each list goes on"
        );
        let last = page.last().filter(|_| page.len() == count).cloned();
        each(page);
        if last.is_none() {
            return Ok(());
        }
        after = last;
    }
}

/// Keys in order, one after the other in memory.
#[derive(Debug, Default)]
pub(super) struct OwnKeys {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
}

impl OwnKeys {
    fn push(&mut self, key: &[u8]) {
        debug_assert!(
            self.iter().next_back().is_none_or(|last| last < key),
            "in order"
        );
        self.bytes.extend_from_slice(key);
        debug_assert!(!key.is_empty(), "no row has an empty key");
        self.ends.push(self.bytes.len());
        debug_assert_eq!(
            self.ends.last(),
            Some(&self.bytes.len()),
            "the last key ends with the bytes"
        );
    }

    /// Reports whether there are none.
    pub(super) const fn is_empty(&self) -> bool {
        debug_assert!(
            self.ends.is_empty() == self.bytes.is_empty(),
            "no key is empty"
        );
        self.ends.is_empty()
    }

    fn at(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        debug_assert!(start < self.ends[index], "no row has an empty key");
        &self.bytes[start..self.ends[index]]
    }

    /// The keys.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        debug_assert!(
            self.ends.last().copied().unwrap_or(0) == self.bytes.len(),
            "the last key ends with the bytes"
        );
        (0..self.ends.len()).map(|index| self.at(index))
    }
}

/// A row that was written in a branch.
#[derive(Debug)]
pub(super) struct OwnRow {
    pub(super) key: Vec<u8>,
    pub(super) base: Option<Bytes>,
    pub(super) ours: Option<Bytes>,
}

/// All that was written in the branches of a file system. Values of contents and of extended
/// attributes stay where they are; keys of contents are listed when they are needed.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) meta: Vec<OwnRow>,
    pub(super) sys: Vec<OwnRow>,
    data: OnceCell<OwnKeys>,
    has_data: bool,
    pub(super) xattr: OwnKeys,
}

impl Own {
    /// Reads it. No operation of the file system is under way.
    pub(super) fn read(trees: &BranchTrees) -> FsResult<Self> {
        let rows = |tree| {
            let keys = trees.keys(tree)?;
            let keys: Vec<&[u8]> = keys.iter().collect();
            let bases = trees.bases(tree, &keys)?.into_iter();
            debug_assert_eq!(bases.len(), keys.len(), "one value for each key");
            let ours = trees.all_ours(tree, &keys)?.into_iter();
            let row = |((key, base), ours): ((&[u8], _), _)| {
                let key = key.to_vec();
                OwnRow { key, base, ours }
            };
            let rows = keys.iter().copied().zip(bases).zip(ours).map(row);
            FsResult::Ok(rows.collect::<Vec<OwnRow>>())
        };
        let (meta, sys) = (rows(Tree::Meta)?, rows(Tree::Sys)?);
        debug_assert!(
            meta.is_sorted_by(|one, next| one.key < next.key),
            "in the order of keys"
        );
        debug_assert!(
            sys.is_sorted_by(|one, next| one.key < next.key),
            "in the order of keys"
        );
        Ok(Self {
            meta,
            sys,
            data: OnceCell::new(),
            has_data: trees.has_keys(Tree::Data)?,
            xattr: trees.keys(Tree::Xattr)?,
        })
    }

    /// Reports whether nothing was written.
    pub(super) const fn is_empty(&self) -> bool {
        let has_rows = !self.meta.is_empty() || !self.sys.is_empty();
        !has_rows && !self.has_data && self.xattr.is_empty()
    }

    /// Those of its keys that mainline has written since a moment, or since the branches began.
    pub(super) fn changed(
        &self,
        trees: &BranchTrees,
        since: Option<&Snapshot>,
    ) -> FsResult<Changed<'_>> {
        let meta = self.meta.iter().map(|row| &row.key[..]);
        let changed = Changed {
            meta: trees.changed(Tree::Meta, meta, since)?,
            sys: trees.changed(Tree::Sys, self.sys_keys(), since)?,
            data: self.changed_data(trees, since)?,
            xattr: trees.changed(Tree::Xattr, self.xattr.iter(), since)?,
        };
        debug_assert!(
            changed.meta.len() <= self.meta.len(),
            "keys that were written"
        );
        debug_assert!(
            changed.sys.len() <= self.sys.len(),
            "keys that were written"
        );
        debug_assert!(
            self.has_data || changed.data.is_empty(),
            "keys that were written"
        );
        Ok(changed)
    }

    /// The keys of the `sys` tree, in order.
    pub(super) fn sys_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.sys.iter().map(|row| &row.key[..])
    }
}
