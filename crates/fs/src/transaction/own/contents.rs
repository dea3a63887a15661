//! Contents that a branch has written: keys of the `data` tree.
//!
//! Short chunks lie beside their keys, so a list of the keys reads much of what was written. A
//! commit needs the list only if mainline has written contents of the same inodes meanwhile.
//!
//! Invariant: a write of contents puts the row of the inode, too. So the rows that the branch has
//! written name every inode with other contents, unless inodes share contents: these have numbers
//! of their own.

use super::super::places::about;
use super::{BranchTrees, Own, OwnKeys};
use crate::FsResult;
use crate::locator::{Locator, SysRow, Tree};
use std::collections::{BTreeSet, HashSet};
use stitch_base::Ino;
use stitch_kv::{KeyRange, Snapshot};

impl Own {
    /// Returns the keys of the contents, in order.
    pub(in crate::transaction) fn data(&self, trees: &BranchTrees) -> FsResult<&OwnKeys> {
        if let Some(keys) = self.data.get() {
            return Ok(keys);
        }
        let keys = trees.keys(Tree::Data)?;
        debug_assert_eq!(keys.is_empty(), !self.has_data, "the branch is frozen");
        Ok(self.data.get_or_init(|| keys))
    }

    /// Those keys of contents that mainline has written since a moment, or since the branch began.
    pub(super) fn changed_data(
        &self,
        trees: &BranchTrees,
        since: Option<&Snapshot>,
    ) -> FsResult<HashSet<&[u8]>> {
        if !self.has_data {
            return Ok(HashSet::new());
        }
        let (theirs, is_all) = trees.changed_in(Tree::Data, KeyRange::all(), since)?;
        if theirs.is_empty() {
            return Ok(HashSet::new());
        }
        if is_all && !self.shares_contents() && self.is_apart(&theirs)? {
            return Ok(HashSet::new());
        }
        trees.changed(Tree::Data, self.data(trees)?.iter(), since)
    }

    /// Reports whether keys of contents are of inodes without a row of this branch.
    fn is_apart(&self, keys: &[Vec<u8>]) -> FsResult<bool> {
        debug_assert!(!keys.is_empty(), "mainline has written contents");
        let inodes = self.inodes()?;
        let number = |key: &Vec<u8>| Locator::ino_of(key);
        Ok(keys
            .iter()
            .all(|key| number(key).is_some_and(|ino| !inodes.contains(&ino))))
    }

    /// The inodes that the rows of names and attributes are about, on either side.
    fn inodes(&self) -> FsResult<BTreeSet<Ino>> {
        let mut inodes = Vec::with_capacity(self.meta.len());
        for row in &self.meta {
            for side in [&row.base, &row.ours] {
                inodes.extend(about(side.as_deref())?);
            }
        }
        debug_assert!(
            inodes.len() <= 2 * self.meta.len(),
            "a row is about an inode on each side"
        );
        Ok(inodes.into_iter().collect())
    }

    fn shares_contents(&self) -> bool {
        let mut rows = self.sys.iter().filter_map(|row| Locator::sys_row(&row.key));
        rows.any(|row| {
            matches!(
                row,
                SysRow::Shared(_) | SysRow::Contents(_) | SysRow::ContentsUser(..)
            )
        })
    }

    /// Reports whether the rows name all inodes with contents of this branch, but those that were
    /// made and removed in it.
    pub(in crate::transaction) fn names_contents(&self, trees: &BranchTrees) -> FsResult<bool> {
        if self.shares_contents() {
            return Ok(true);
        }
        let inodes = self.inodes()?;
        for key in trees.keys(Tree::Data)?.iter() {
            debug_assert!(self.has_data, "the branch is frozen");
            let is_named = Locator::ino_of(key).is_some_and(|ino| inodes.contains(&ino));
            if !is_named && trees.ours(Tree::Data, key)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::formatted;
    use crate::transaction::{BeginOptions, TransactionView};
    use crate::{Caller, DirName, FileSystem, FsOptions, NewNode, WriteOptions};
    use stitch_base::sync::Arc;
    use stitch_kv::Engine;

    /// More than a row holds.
    const LONG_BYTES: usize = 30_000;

    fn write(fs: &FileSystem, name: &str, byte: u8) -> Ino {
        let at = DirName::new(Ino::ROOT, name.as_bytes());
        let new = NewNode {
            perm: 0o644,
            umask: 0,
        };
        let ino = match fs.lookup(at) {
            Ok(found) => found.ino,
            Err(_) => fs.create(&Caller::ROOT, at, &new).unwrap().ino,
        };
        let contents = vec![byte; LONG_BYTES];
        fs.write(ino, 0, &contents, WriteOptions::default())
            .unwrap();
        ino
    }

    fn begun() -> (FileSystem, Arc<TransactionView>) {
        let options = FsOptions::default();
        let engine: Arc<dyn Engine> = formatted(&options) as _;
        let fs = FileSystem::open(engine, options).unwrap();
        write(&fs, "a", 1);
        write(&fs, "b", 1);
        let view = fs
            .transactions()
            .begin("t", &BeginOptions::default())
            .unwrap();
        (fs, view)
    }

    /// The number of changed keys of contents, and whether all keys were listed for that.
    fn changed(view: &TransactionView) -> (usize, bool) {
        let trees = BranchTrees::of(view.fs()).unwrap();
        let own = Own::read(&trees).unwrap();
        assert!(own.names_contents(&trees).unwrap());
        let count = own.changed_data(&trees, None).unwrap().len();
        (count, own.data.get().is_some())
    }

    #[test]
    fn keys_are_listed_if_mainline_wrote_contents_of_the_same_inodes() {
        let (fs, view) = begun();
        assert_eq!(changed(&view), (0, false), "nothing was written");
        write(view.fs(), "a", 2);
        write(view.fs(), "new", 2);
        assert_eq!(changed(&view), (0, false), "mainline wrote nothing");
        write(&fs, "b", 3);
        write(&fs, "others", 3);
        assert_eq!(changed(&view), (0, false), "other inodes");
        write(&fs, "a", 3);
        let chunks = LONG_BYTES.div_ceil(4096);
        assert_eq!(changed(&view), (chunks, true));
    }

    #[test]
    fn a_file_that_mainline_cuts_or_removes_is_changed() {
        let (fs, view) = begun();
        let ino = write(view.fs(), "a", 2);
        let cut = crate::SetAttr {
            size: Some(0),
            ..crate::SetAttr::default()
        };
        fs.set_attr(&Caller::ROOT, ino, &cut).unwrap();
        let (count, is_listed) = changed(&view);
        assert!(count > 0 && is_listed, "{count} keys");
    }
}
