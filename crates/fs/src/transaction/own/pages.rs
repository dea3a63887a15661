//! Reads of what belongs to written keys, by pages of these keys.
//!
//! The keys that a branch has written are in order, and so is what they are compared with. So a
//! page costs one scan, not one search for each key:
//!
//! ```text
//! written keys          d1 d2 d3 d4        e1 e2
//! rows of the parent                d7 d9        e8       one scan: none of them has a value
//! keys that the parent
//! wrote since                       d9        e1          one list: e1 is in both
//! ```
//!
//! A scan that meets many more rows than it has found keys is given up, and another one begins at
//! the next key: between the keys of two directories there may be all rows of the others. After
//! some such gaps, the other keys of the page are looked up one by one. So are the keys after a
//! list that is full.
//!
//! ```text
//! written keys   root/new    gap    d1 d2 d3 ...
//! scans          |-------->         |----------->     not all rows between
//! ```
//!
//! A key counts that was written, even if it has the old value again: a directory whose row was
//! written has other names.

use super::{BranchTree, BranchTrees};
use crate::FsResult;
use crate::locator::Tree;
use bytes::Bytes;
use std::collections::HashSet;
use stitch_base::TreeId;
use stitch_kv::{Direction, Guards, KeyRange, Snapshot};

/// Most keys that are compared with one list of changed keys.
pub(super) const KEYS_PER_LIST: usize = 4096;
/// Most keys whose values are read by one scan.
const KEYS_PER_SCAN: usize = 256;
/// With fewer keys, each is looked up: a scan costs more to begin than a lookup.
const KEYS_PER_SCAN_MIN: usize = 8;
/// Most rows that a scan may meet for each key that it has decided on.
const ROWS_PER_KEY: usize = 4;
/// Rows that it may meet beside these.
const ROWS_BESIDE: usize = 16;
/// Most scans for one page.
const SCANS_PER_PAGE: usize = 4;
const _: () = assert!(KEYS_PER_SCAN_MIN <= KEYS_PER_SCAN, "a full page is scanned");

/// The first key after `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0][..]].concat()
}

impl BranchTrees {
    /// Returns the values of keys, which are in order, where the branch begins: one for each.
    pub(super) fn bases(&self, tree: Tree, keys: &[&[u8]]) -> FsResult<Vec<Option<Bytes>>> {
        let branch = self.find(tree);
        self.values(branch.parent, Some(&branch.moment), keys)
    }

    /// Returns the values of keys, which are in order, in the branch: one for each.
    pub(super) fn all_ours(&self, tree: Tree, keys: &[&[u8]]) -> FsResult<Vec<Option<Bytes>>> {
        self.values(self.find(tree).own, None, keys)
    }

    fn values(
        &self,
        tree: TreeId,
        at: Option<&Snapshot>,
        keys: &[&[u8]],
    ) -> FsResult<Vec<Option<Bytes>>> {
        debug_assert!(keys.is_sorted(), "they are in order");
        let mut values = Vec::with_capacity(keys.len());
        for page in keys.chunks(KEYS_PER_SCAN) {
            let mut rest = page;
            for _ in 0..SCANS_PER_PAGE {
                if rest.len() < KEYS_PER_SCAN_MIN {
                    break;
                }
                let known = values.len();
                self.scan_values(tree, at, rest, &mut values)?;
                debug_assert!(values.len() > known, "a scan decides on its first key");
                rest = &rest[values.len() - known..];
            }
            if !rest.is_empty() {
                values.extend(self.engine.get_many(tree, rest, at)?);
            }
        }
        debug_assert_eq!(values.len(), keys.len(), "one value for each key");
        Ok(values)
    }

    /// Adds the values of the first keys of a page: of all that one scan decides on.
    fn scan_values(
        &self,
        tree: TreeId,
        at: Option<&Snapshot>,
        page: &[&[u8]],
        values: &mut Vec<Option<Bytes>>,
    ) -> FsResult<()> {
        let (Some(first), Some(last)) = (page.first(), page.last()) else {
            return Ok(());
        };
        let end = after(last);
        let range = KeyRange::new(first, &end);
        let mut scan = self.engine.scan(tree, range, Direction::Forward, at)?;
        debug_assert!(first <= last, "one scan meets all of them");
        let known = values.len();
        let mut keys = page.iter().peekable();
        debug_assert!(page.len() <= KEYS_PER_SCAN, "a page is bounded");
        let mut rows = 0;
        while rows <= ROWS_BESIDE + ROWS_PER_KEY * (page.len() - keys.len()) {
            let Some((key, value)) = scan.next()? else {
                values.extend(keys.map(|_| None));
                return Ok(());
            };
            rows += 1;
            while keys.next_if(|next| **next < key).is_some() {
                values.push(None);
            }
            if keys.next_if(|next| **next == key).is_some() {
                values.push(Some(Bytes::copy_from_slice(value)));
            }
            debug_assert_eq!(
                values.len() - known,
                page.len() - keys.len(),
                "one value for each key that it has passed"
            );
        }
        Ok(())
    }

    /// Returns those of some keys, which are in order, that were written in the parent since a
    /// moment, or since the branch began. A key that a range delete covers may be missing, if the
    /// parent had no such key at the moment.
    pub(in crate::transaction) fn changed<'k>(
        &self,
        tree: Tree,
        mut keys: impl Iterator<Item = &'k [u8]>,
        since: Option<&Snapshot>,
    ) -> FsResult<HashSet<&'k [u8]>> {
        let branch = self.find(tree);
        let since = since.unwrap_or(&branch.moment);
        let mut changed = HashSet::new();
        loop {
            let page: Vec<&[u8]> = keys.by_ref().take(KEYS_PER_LIST).collect();
            debug_assert!(page.is_sorted(), "they are in order");
            let (Some(first), Some(last)) = (page.first(), page.last()) else {
                return Ok(changed);
            };
            let end = after(last);
            let (listed, is_all) =
                self.list_changed(branch.parent, KeyRange::new(first, &end), since)?;
            debug_assert!(is_all || !listed.is_empty(), "a full list has keys");
            debug_assert!(listed.is_sorted(), "they are in order");
            let places = listed.iter().map(|key| page.binary_search(&&key[..]));
            changed.extend(places.filter_map(Result::ok).map(|place| page[place]));
            if !is_all {
                let known = listed.last().expect("the list is full");
                let rest = &page[page.partition_point(|key| *key <= &known[..])..];
                self.check_each(branch, rest, since, &mut changed)?;
            }
        }
    }

    /// Returns the first keys of a range, in order, that were written since a moment or that a
    /// delete of a range has removed, and whether these are all.
    fn list_changed(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        since: &Snapshot,
    ) -> FsResult<(Vec<Vec<u8>>, bool)> {
        let mut guards = Guards::since(since);
        guards.range(tree, range);
        let written = self.engine.changed_keys(&guards, KEYS_PER_LIST)?;
        if written.is_empty() {
            return Ok((Vec::new(), true));
        }
        let mut written: Vec<Vec<u8>> = written.into_iter().map(|found| found.key).collect();
        // A delete of a range is listed with its first key alone: these are all that it removed.
        let window = (since, None);
        let mut others = self
            .engine
            .keys_between(tree, range, window, KEYS_PER_LIST)?;
        let mut is_all = true;
        for list in [&written, &others] {
            debug_assert!(list.is_sorted(), "they come in order");
            is_all &= list.len() < KEYS_PER_LIST;
        }
        if !is_all {
            // Up to here both have all.
            let ends = [&written, &others].map(|list| list.get(KEYS_PER_LIST - 1));
            let end = ends.into_iter().flatten().min().cloned();
            let is_known = |key: &Vec<u8>| end.as_ref().is_none_or(|end| key <= end);
            written.retain(is_known);
            others.retain(is_known);
        }
        written.append(&mut others);
        written.sort_unstable();
        written.dedup();
        debug_assert!(written.len() <= 2 * KEYS_PER_LIST, "two lists");
        Ok((written, is_all))
    }

    /// Adds those of some keys that were written in the parent since a moment.
    fn check_each<'k>(
        &self,
        branch: &BranchTree,
        keys: &[&'k [u8]],
        since: &Snapshot,
        changed: &mut HashSet<&'k [u8]>,
    ) -> FsResult<()> {
        debug_assert!(keys.is_sorted(), "they are in order");
        let mut guards = Guards::since(since);
        for key in keys {
            guards.key(branch.parent, key);
        }
        for found in self.engine.changed_keys(&guards, keys.len())? {
            debug_assert_eq!(
                found.tree, branch.parent,
                "keys of the tree that was asked for"
            );
            let place = keys.binary_search_by(|key| (*key).cmp(&found.key));
            changed.insert(keys[place.expect("the key is guarded")]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
