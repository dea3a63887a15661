//! The rows that the new branch trees of a rebased transaction get.
//!
//! Links of directories and counters are not merged: they follow from the rows of names and inodes,
//! by the difference to what the new branches hold before.

use super::super::own::BranchTrees;
use super::super::places::{Places, carried};
use crate::locator::{Locator, SysRow, Tree};
use crate::rows::is_readable;
use crate::{FsError, FsResult};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};
use stitch_format::fs_sys::{AllocatedRow, ExtentState, decode_number, encode_number};
use stitch_kv::{Batch, CommitOptions, SpaceClass};

/// A batch is committed when it has this share of the engine's limit.
const BATCH_SHARE: u64 = 2;
const _: () = assert!(BATCH_SHARE > 1, "a batch takes a row more than its share");

/// RowsByKey by key; `None` deletes one.
type RowsByKey = BTreeMap<Vec<u8>, Option<Bytes>>;

/// RowsByKey for the trees that the transaction is compared with.
pub(super) struct MergedRows<'a> {
    trees: &'a BranchTrees,
    keys: Locator,
    /// Inodes that the transaction made: the new branches do not have them.
    made: &'a BTreeSet<Ino>,
    pub(super) meta: RowsByKey,
    pub(super) sys: RowsByKey,
    /// Keys whose values are those of the transaction.
    pub(super) data: BTreeSet<Vec<u8>>,
    pub(super) xattr: BTreeSet<Vec<u8>>,
}

const fn is_dir(head: &InodeHead) -> bool {
    matches!(head.kind, FileKind::Directory)
}

impl<'a> MergedRows<'a> {
    pub(super) const fn new(
        trees: &'a BranchTrees,
        keys: Locator,
        made: &'a BTreeSet<Ino>,
    ) -> Self {
        Self {
            trees,
            keys,
            made,
            meta: RowsByKey::new(),
            sys: RowsByKey::new(),
            data: BTreeSet::new(),
            xattr: BTreeSet::new(),
        }
    }

    fn before(&self, tree: Tree, key: &[u8]) -> FsResult<Option<Bytes>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        self.trees.theirs(tree, key)
    }

    /// Deletes a row, if there is one.
    pub(super) fn delete_existing(&mut self, tree: Tree, key: &[u8]) -> FsResult<()> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        debug_assert!(
            matches!(tree, Tree::Meta | Tree::Sys),
            "others are put by their keys"
        );
        if self.before(tree, key)?.is_some() {
            let rows = match tree {
                Tree::Meta => &mut self.meta,
                _ => &mut self.sys,
            };
            rows.insert(key.to_vec(), None);
        }
        Ok(())
    }

    /// Puts links of directories and counters. `keeps_back_rows`: back rows as well.
    pub(super) fn settle(&mut self, places: &Places<'_>, keeps_back_rows: bool) -> FsResult<()> {
        self.settle_counts()?;
        self.settle_links(places)?;
        if keeps_back_rows {
            self.settle_back_rows()?;
        }
        debug_assert!(
            self.data
                .iter()
                .chain(&self.xattr)
                .all(|key| key.len() >= 8),
            "keys begin with an inode"
        );
        Ok(())
    }

    fn settle_counts(&mut self) -> FsResult<()> {
        let (mut inodes, mut unwritten) = (0_i64, 0_i64);
        for (key, row) in &self.meta {
            inodes -= i64::from(carried(self.before(Tree::Meta, key)?.as_deref())?.is_some());
            inodes += i64::from(carried(row.as_deref())?.is_some());
        }
        for (key, row) in &self.sys {
            if let Some(SysRow::Extent(_, end)) = Locator::sys_row(key) {
                unwritten -= unwritten_in(end, self.before(Tree::Sys, key)?.as_deref())?;
                unwritten += unwritten_in(end, row.as_deref())?;
            }
        }
        for (key, added) in [
            (self.keys.inode_count(), inodes),
            (self.keys.unwritten(), unwritten),
        ] {
            let row = self.before(Tree::Sys, &key)?;
            let count = row.as_deref().map_or(Ok(0), decode_number)?;
            let after = count.wrapping_add_signed(added);
            if after != count {
                let row = Bytes::copy_from_slice(&encode_number(after));
                self.sys.insert(key.to_vec(), Some(row));
            }
        }
        Ok(())
    }

    fn settle_links(&mut self, places: &Places<'_>) -> FsResult<()> {
        let mut added: BTreeMap<Ino, i64> = BTreeMap::new();
        let mut before = BTreeMap::new();
        for (key, row) in &self.meta {
            let old = carried(self.before(Tree::Meta, key)?.as_deref())?.filter(is_dir);
            let new = carried(row.as_deref())?.filter(is_dir);
            if let (Some(_), Some(parent)) = (Locator::name_of(key), Locator::ino_of(key)) {
                let links = i64::from(new.is_some()) - i64::from(old.is_some());
                *added.entry(parent).or_default() += links;
            }
            before.extend(old.map(|head| (head.ino, head)));
        }
        added.retain(|_, links| *links != 0);
        let mut is_settled = BTreeSet::new();
        for row in self.meta.values_mut() {
            let Some(mut head) = carried(row.as_deref())?.filter(is_dir) else {
                continue;
            };
            is_settled.insert(head.ino);
            let links = added.get(&head.ino).copied().unwrap_or(0);
            let old = match before.get(&head.ino) {
                Some(old) => Some(old.nlink),
                None if self.made.contains(&head.ino) => None,
                None => places.find(head.ino)?.map(|found| found.head.nlink),
            };
            head.nlink = with_links(old.unwrap_or(2), links)?;
            *row = Some(Bytes::copy_from_slice(&head.encode()));
        }
        for (dir, links) in added {
            if is_settled.contains(&dir) {
                continue;
            }
            // It is known by its names alone, or it goes.
            if let Some(found) = places.find(dir)?
                && !self.meta.contains_key(&found.key)
            {
                let mut head = found.head;
                head.nlink = with_links(head.nlink, links)?;
                let row = Bytes::copy_from_slice(&head.encode());
                self.meta.insert(found.key.clone(), Some(row));
            }
        }
        Ok(())
    }

    fn settle_back_rows(&mut self) -> FsResult<()> {
        let (mut places, mut inodes) = (BTreeMap::new(), BTreeSet::new());
        for (key, row) in &self.meta {
            let old = self.before(Tree::Meta, key)?;
            for row in [old.as_deref(), row.as_deref()].into_iter().flatten() {
                inodes.insert(MetaRow::decode(row)?.ino());
            }
            let carried = carried(row.as_deref())?;
            if let (Some(head), Some(place)) = (carried, Locator::place_of(key))
                && Locator::name_of(key).is_some()
            {
                places.insert(head.ino, place);
            }
        }
        debug_assert!(
            places.keys().all(|ino| inodes.contains(ino)),
            "a place is that of an inode in a row"
        );
        for ino in inodes {
            let key = self.keys.back(ino);
            let row = places.get(&ino).map(|place| place.encode());
            let row = row.map(|row| Bytes::copy_from_slice(&row));
            if row.is_some() || self.before(Tree::Sys, &key)?.is_some() {
                self.sys.insert(key.to_vec(), row);
            } else {
                self.sys.remove(&key[..]);
            }
        }
        Ok(())
    }

    /// Writes all rows.
    pub(super) fn write(&self) -> FsResult<()> {
        let engine = &self.trees.engine;
        let limit = engine.limits().batch_bytes_max / BATCH_SHARE;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let options = CommitOptions {
            sync: false,
            space: SpaceClass::Normal,
        };
        let mut batch = Batch::new();
        debug_assert!(limit > 0, "a batch has room");
        for tree in Tree::ALL {
            let to = self.trees.theirs_tree(tree);
            debug_assert_ne!(to, self.trees.own_tree(tree), "the new branches are others");
            let (rows, keys) = match tree {
                Tree::Meta => (Some(&self.meta), None),
                Tree::Sys => (Some(&self.sys), None),
                Tree::Data => (None, Some(&self.data)),
                Tree::Xattr => (None, Some(&self.xattr)),
            };
            let rows = rows.into_iter().flatten();
            let rows = rows.map(|(key, row)| FsResult::Ok((key, row.clone())));
            let keys = keys.into_iter().flatten();
            let keys = keys.map(|key| Ok((key, self.trees.ours(tree, key)?)));
            for row in rows.chain(keys) {
                let (key, row) = row?;
                debug_assert!(!key.is_empty(), "no row has an empty key");
                match row {
                    Some(row) => {
                        debug_assert!(
                            tree != Tree::Meta || is_readable(tree, key, &row),
                            "what is put is read again"
                        );
                        batch.put(to, key, &row);
                    }
                    None => batch.delete(to, key),
                }
                if batch.len_bytes() >= limit {
                    engine.commit(&batch, options)?;
                    batch.clear();
                }
            }
        }
        if !batch.is_empty() {
            engine.commit(&batch, options)?;
        }
        Ok(())
    }
}

fn with_links(links: u32, added: i64) -> FsResult<u32> {
    let links = i64::from(links) + added;
    u32::try_from(links).map_err(|_| FsError::Corrupt(format!("a directory with {links} links")))
}

/// Chunks without contents in an allocated extent.
fn unwritten_in(end: u64, row: Option<&[u8]>) -> FsResult<i64> {
    let row = row.map(AllocatedRow::decode).transpose()?;
    let row = row.filter(|row| row.state == ExtentState::Unwritten);
    Ok(row.map_or(0, |row| end.saturating_sub(row.start).cast_signed()))
}
