//! What a branch tree has written goes into a later branch of the same parent.
//!
//! ```text
//!            begins    writes     parent since   later branch
//! range      a..f      deleted    c written      a..f deleted, but c if it is left
//! key        1         2          1              2
//! ```

use crate::DbError;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::fmt;
use stitch_base::TreeId;
use stitch_kv::{
    Batch, CommitOptions, DeletedRange, Direction, Engine, KeyRange, Snapshot, SpaceClass,
};

/// Part of the largest batch at which a copy is committed.
const COPY_SHARE: u64 = 2;
/// A copy is made durable with the record of its transaction.
const COPIED: CommitOptions = CommitOptions {
    sync: false,
    space: SpaceClass::Normal,
};

/// The trees of a [`BranchMerge`].
#[derive(Clone, Debug)]
pub struct MergedTrees<'m> {
    /// The branch whose writes are merged.
    pub own: TreeId,
    /// Its parent.
    pub parent: TreeId,
    /// A later branch of that parent, which has written nothing.
    pub target: TreeId,
    /// The moment at which the later branch begins.
    pub moment: &'m Snapshot,
}

/// A merge of what a branch has written into a later branch, which begins with what the parent
/// holds. It is committed in several batches.
pub struct BranchMerge<'m> {
    engine: &'m dyn Engine,
    trees: MergedTrees<'m>,
    /// In order.
    keys: &'m [Vec<u8>],
    ranges: &'m [DeletedRange],
    left: BTreeSet<Vec<u8>>,
    batch: Batch<'static>,
}

impl fmt::Debug for BranchMerge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BranchMerge")
            .field("trees", &self.trees)
            .finish_non_exhaustive()
    }
}

impl<'m> BranchMerge<'m> {
    /// Begins a merge of the keys that a branch has written, in order, and of the ranges that it
    /// has deleted, without what is `left` as the parent has it. The user of the merge knows what
    /// that names.
    #[must_use]
    pub fn new(
        engine: &'m dyn Engine,
        trees: MergedTrees<'m>,
        (keys, ranges): (&'m [Vec<u8>], &'m [DeletedRange]),
        left: BTreeSet<Vec<u8>>,
    ) -> Self {
        debug_assert!(keys.is_sorted(), "they are in order");
        debug_assert_ne!(trees.own, trees.target, "two branches");
        Self {
            engine,
            trees,
            keys,
            ranges,
            left,
            batch: Batch::new(),
        }
    }

    /// Returns the branch that gets the writes.
    #[must_use]
    pub const fn target(&self) -> TreeId {
        self.trees.target
    }

    /// Returns the keys that the branch has written, in order.
    #[must_use]
    pub const fn keys(&self) -> &'m [Vec<u8>] {
        self.keys
    }

    /// Returns the ranges that the branch has deleted.
    #[must_use]
    pub const fn ranges(&self) -> &'m [DeletedRange] {
        self.ranges
    }

    /// Returns what is left as the parent has it.
    #[must_use]
    pub const fn left(&self) -> &BTreeSet<Vec<u8>> {
        &self.left
    }

    /// Returns the value of a key in the branch.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn ours(&self, key: &[u8]) -> Result<Option<Bytes>, DbError> {
        Ok(self.engine.get(self.trees.own, key, None)?)
    }

    /// Returns the value of a key in the parent where the later branch begins, whatever was put
    /// meanwhile.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn theirs(&self, key: &[u8]) -> Result<Option<Bytes>, DbError> {
        let at = Some(self.trees.moment);
        Ok(self.engine.get(self.trees.parent, key, at)?)
    }

    /// Returns the keys of a range of the parent where the later branch begins, in order.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn keys_of_theirs(&self, range: KeyRange<'_>) -> Result<Vec<Vec<u8>>, DbError> {
        let (tree, moment) = (self.trees.parent, self.trees.moment);
        let scan = self
            .engine
            .scan(tree, range, Direction::Forward, Some(moment));
        let (mut scan, mut keys) = (scan?, Vec::new());
        while let Some((key, _)) = scan.next()? {
            keys.push(key.to_vec());
        }
        debug_assert!(keys.is_sorted(), "they come in order");
        Ok(keys)
    }

    /// Puts the entries of a range of the branch under other keys.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn copy_ours(
        &mut self,
        range: KeyRange<'_>,
        mut key_of: impl FnMut(&[u8]) -> Vec<u8>,
    ) -> Result<(), DbError> {
        let engine = self.engine;
        let mut scan = engine.scan(self.trees.own, range, Direction::Forward, None)?;
        while let Some((key, value)) = scan.next()? {
            self.put(&key_of(key), value)?;
        }
        Ok(())
    }

    /// Puts an entry.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DbError> {
        self.batch.put(self.trees.target, key, value);
        self.commit_if_long()
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn delete(&mut self, key: &[u8]) -> Result<(), DbError> {
        self.batch.delete(self.trees.target, key);
        self.commit_if_long()
    }

    /// Deletes all keys of `[start, end)`; none if that is empty.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<(), DbError> {
        self.batch.delete_range(self.trees.target, start, end);
        debug_assert!(start >= end || self.batch.count() > 0, "it is in the batch");
        self.commit_if_long()
    }

    fn commit_if_long(&mut self) -> Result<(), DbError> {
        let limit = self.engine.limits().batch_bytes_max / COPY_SHARE;
        match self.batch.len_bytes() as u64 >= limit {
            true => self.finish(),
            false => Ok(()),
        }
    }

    /// Commits what was put. Not synced.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn finish(&mut self) -> Result<(), DbError> {
        if !self.batch.is_empty() {
            self.engine.commit(&self.batch, COPIED)?;
            self.batch.clear();
        }
        Ok(())
    }

    /// Deletes ranges without some keys.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn delete_ranges_without(
        &mut self,
        ranges: &[DeletedRange],
        kept: &BTreeSet<Vec<u8>>,
    ) -> Result<(), DbError> {
        for (start, end) in ranges.iter().filter(|(start, end)| start < end) {
            let mut from = start.clone();
            for key in kept.range(start.clone()..end.clone()) {
                if from < *key {
                    self.delete_range(&from, key)?;
                }
                from = [key, &[0][..]].concat();
            }
            if from < *end {
                self.delete_range(&from, end)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stitch_kv::{ModelEngine, NewBranch, TreeOptions, UpsertRegistry};

    fn rows(engine: &dyn Engine, tree: TreeId) -> Vec<String> {
        let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None);
        let (mut scan, mut rows) = (scan.unwrap(), Vec::new());
        while let Some((key, value)) = scan.next().unwrap() {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            rows.push(format!("{}={}", text(key), text(value)));
        }
        rows
    }

    fn branch(engine: &dyn Engine, parent: TreeId, name: &str) -> TreeId {
        engine
            .branch_trees(&[NewBranch::new(parent, name)], None)
            .unwrap()[0]
    }

    #[test]
    fn what_is_left_keeps_its_place_in_deleted_ranges() {
        let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let engine: &dyn Engine = &*engine;
        let parent = engine.create_tree("t", &TreeOptions::default()).unwrap();
        let commit = |batch: &Batch<'_>| engine.commit(batch, CommitOptions::default()).unwrap();
        let mut batch = Batch::new();
        "abcdefg"
            .bytes()
            .for_each(|key| batch.put(parent, &[key], b"1"));
        commit(&batch);
        let own = branch(engine, parent, "own");
        let mut batch = Batch::new();
        batch.put(parent, b"c", b"2");
        batch.put(parent, b"cc", b"2");
        commit(&batch);
        let target = branch(engine, parent, "target");
        let trees = MergedTrees {
            own,
            parent,
            target,
            moment: &engine.branch_moment(target).unwrap(),
        };
        // Mainline's later writes are not seen.
        let mut batch = Batch::new();
        batch.put(parent, b"c", b"3");
        commit(&batch);
        let ranges = [(b"b".to_vec(), b"f".to_vec())];
        let mut merge = BranchMerge::new(engine, trees, (&[], &ranges), BTreeSet::new());
        assert_eq!(merge.theirs(b"c").unwrap().as_deref(), Some(&b"2"[..]));
        assert_eq!(merge.ours(b"c").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(
            merge
                .keys_of_theirs(KeyRange::new(b"c", b"d"))
                .unwrap()
                .len(),
            2
        );
        let kept = BTreeSet::from([b"b".to_vec(), b"c".to_vec(), b"x".to_vec()]);
        merge.delete_ranges_without(&ranges, &kept).unwrap();
        // Empty ranges have no keys.
        let empty = [(b"g".to_vec(), b"a".to_vec())];
        merge.delete_ranges_without(&empty, &kept).unwrap();
        merge.delete_range(b"g", b"a").unwrap();
        merge
            .copy_ours(KeyRange::new(b"a", b"b"), |key| [key, b"!"].concat())
            .unwrap();
        merge.finish().unwrap();
        assert_eq!(
            rows(engine, target),
            ["a=1", "a!=1", "b=1", "c=2", "f=1", "g=1"]
        );
        assert_eq!(rows(engine, own).len(), 7, "it is as it was");
    }
}
