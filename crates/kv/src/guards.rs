//! Guards: what must not have changed for a commit to be applied.
//!
//! A program that reads, decides and writes takes a [`Snapshot`], reads at it, and commits with
//! guards on what it has read. The engine checks them and applies the batch in one step:
//!
//! ```text
//! snapshot s          other commits                  commit with guards since s
//!     |-- get a, scan [c, f) --|-- put b --|-- put d --|--> Conflict { key: d }
//! ```
//!
//! - A guarded key changed if a put, a delete, an upsert or a range delete that is newer than the
//!   guard's moment hits it.
//! - A guarded range changed if a key in it did, or a newer range delete overlaps it.
//! - A guard on what was written to a branch tree stands for a guard on each of its keys, and on
//!   each range that was deleted in it, as they are when the guard is checked. The tree of the
//!   guard is the branch's parent.
//! - An engine may pass over messages that left a key as it was at the moment, such as the delete
//!   of an absent key.

use crate::{KeyRange, KvError, Snapshot};
use std::collections::BTreeSet;
use std::ops::Range;
use stitch_base::TreeId;

/// What a guard costs beside its keys, in bytes.
const GUARD_BYTES: usize = 32;

/// A list of keys and ranges, each with the moment since which it must not have changed. Holds the
/// moments open.
#[derive(Clone, Debug)]
pub struct Guards {
    /// Moments, each with the number of guards before the first of its own.
    moments: Vec<(Snapshot, usize)>,
    entries: Vec<Entry>,
    keys: Vec<u8>,
}

/// One guard; its keys are in the list's `keys`.
#[derive(Clone, Debug)]
struct Entry {
    tree: TreeId,
    start: Range<usize>,
    end: End,
}

#[derive(Clone, Debug)]
enum End {
    /// The guard is of the single key `start`.
    Key,
    Before(Range<usize>),
    Open,
    /// The guard is of the keys of this branch tree.
    Written(TreeId),
}

/// What a guard is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded<'a> {
    /// One key.
    Key(&'a [u8]),
    /// Every key of a range, present or not.
    Range(KeyRange<'a>),
    /// Every key that was written to this branch tree of the guard's tree, and every key in the
    /// ranges that were deleted in it, present or not.
    Written(TreeId),
}

/// One guard of a list.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// The moment since which nothing may have changed.
    pub since: &'a Snapshot,
    /// The tree.
    pub tree: TreeId,
    /// The key or the range.
    pub on: Guarded<'a>,
}

/// A key that a guard is on and that changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangedKey {
    /// The tree.
    pub tree: TreeId,
    /// The key. Of a range delete: the first key of the guarded range that it covers.
    pub key: Vec<u8>,
}

impl Guards {
    /// An empty list; what is added must not have changed since `snapshot`.
    #[must_use]
    pub fn since(snapshot: &Snapshot) -> Self {
        Self {
            moments: vec![(snapshot.clone(), 0)],
            entries: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// What is added from now on must not have changed since `snapshot`. The guards added before
    /// keep their moment.
    pub fn move_to(&mut self, snapshot: &Snapshot) {
        let count = self.entries.len();
        let last = self.moments.last_mut().expect("a list has a moment");
        debug_assert!(last.1 <= count, "a moment begins with a guard of its own");
        if last.0.seqno() == snapshot.seqno() {
            return;
        }
        if last.1 == count {
            *last = (snapshot.clone(), count);
        } else {
            self.moments.push((snapshot.clone(), count));
        }
    }

    /// Adds a guard on a key, present or not.
    pub fn key(&mut self, tree: impl Into<TreeId>, key: &[u8]) {
        self.push(tree.into(), key, |_| End::Key);
    }

    /// Adds a guard on every key of a range, present or not. An empty range guards nothing.
    pub fn range(&mut self, tree: impl Into<TreeId>, range: KeyRange<'_>) {
        if range.end.is_some_and(|end| end <= range.start) {
            return;
        }
        self.push(tree.into(), range.start, |keys| match range.end {
            Some(end) => End::Before(append(keys, end)),
            None => End::Open,
        });
    }

    /// Adds a guard on all that was written to a branch tree of `parent`, for engines with branch
    /// trees. It takes no more room than one on a key, and costs a search in the branch for each
    /// key of the parent that changed.
    pub fn written(&mut self, parent: impl Into<TreeId>, branch: impl Into<TreeId>) {
        let branch = branch.into();
        assert!(branch.0 > 0, "tree 0 is never given out");
        self.push(parent.into(), b"", |_| End::Written(branch));
    }

    fn push(&mut self, tree: TreeId, start: &[u8], end: impl FnOnce(&mut Vec<u8>) -> End) {
        assert!(tree.0 > 0, "tree 0 is never given out");
        let start = append(&mut self.keys, start);
        let end = end(&mut self.keys);
        debug_assert!(start.end <= self.keys.len(), "keys are only added");
        self.entries.push(Entry { tree, start, end });
    }

    /// Number of guards.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.entries.len()
    }

    /// True without guards.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Its size as [`Limits::check_guards`](crate::Limits::check_guards) counts it.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.keys.len() + self.entries.len() * GUARD_BYTES
    }

    /// The guards in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Guard<'_>> {
        let ends = self.moments.iter().skip(1).map(|(_, first)| *first);
        let ends = ends.chain([self.entries.len()]);
        let groups = self.moments.iter().zip(ends);
        groups.flat_map(move |((since, first), end)| {
            let entries = self.entries[*first..end].iter();
            entries.map(move |entry| Guard {
                since,
                tree: entry.tree,
                on: self.on(entry),
            })
        })
    }

    fn on(&self, entry: &Entry) -> Guarded<'_> {
        debug_assert!(
            entry.start.end <= self.keys.len(),
            "an entry's key is in the list"
        );
        let start = &self.keys[entry.start.clone()];
        match &entry.end {
            End::Key => Guarded::Key(start),
            End::Before(end) => Guarded::Range(KeyRange::new(start, &self.keys[end.clone()])),
            End::Open => Guarded::Range(KeyRange::from(start)),
            End::Written(branch) => Guarded::Written(*branch),
        }
    }

    /// For engines: checks each guard. `changed` returns the first key of a guard that changed.
    ///
    /// # Errors
    /// [`KvError::Conflict`] with the first key of the first guard that changed; those of
    /// `changed`.
    pub fn check(
        &self,
        mut changed: impl FnMut(&Guard<'_>) -> Result<Option<Vec<u8>>, KvError>,
    ) -> Result<(), KvError> {
        for guard in self.iter() {
            if let Some(key) = changed(&guard)? {
                debug_assert!(guard.on.holds(&key), "the key is guarded");
                let tree = guard.tree;
                return Err(KvError::Conflict { tree, key });
            }
        }
        Ok(())
    }
}

impl Guards {
    /// For engines: returns the keys that changed, by tree and key, at most `count_max`. `changed`
    /// returns those of one guard.
    ///
    /// # Errors
    /// Those of `changed`.
    pub fn changed_keys(
        &self,
        count_max: usize,
        mut changed: impl FnMut(&Guard<'_>) -> Result<Vec<Vec<u8>>, KvError>,
    ) -> Result<Vec<ChangedKey>, KvError> {
        let mut found = BTreeSet::new();
        for guard in self.iter() {
            let tree = guard.tree;
            let keys = changed(&guard)?;
            debug_assert!(
                keys.iter().all(|key| guard.on.holds(key)),
                "each is guarded"
            );
            found.extend(keys.into_iter().map(|key| ChangedKey { tree, key }));
        }
        Ok(found.into_iter().take(count_max).collect())
    }
}

impl<'a> Guarded<'a> {
    /// Reports whether the guard is on `key`, or may be if it is on what a branch tree has.
    #[must_use]
    pub fn holds(&self, key: &[u8]) -> bool {
        match self {
            Self::Key(guarded) => *guarded == key,
            Self::Range(range) => range.start <= key && range.end.is_none_or(|end| key < end),
            Self::Written(_) => true,
        }
    }

    /// The first key that the guard is on.
    #[must_use]
    pub const fn start(&self) -> &'a [u8] {
        match self {
            Self::Key(key) => key,
            Self::Range(range) => range.start,
            Self::Written(_) => &[],
        }
    }
}

fn append(keys: &mut Vec<u8>, key: &[u8]) -> Range<usize> {
    let start = keys.len();
    keys.extend_from_slice(key);
    start..keys.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stitch_base::Seqno;

    const TREE: TreeId = TreeId(3);

    fn at(seqno: u64) -> Snapshot {
        Snapshot::new(Seqno(seqno), Arc::new(()))
    }

    #[test]
    fn guards_keep_their_order_their_moment_and_their_keys() {
        let mut guards = Guards::since(&at(7));
        assert!(guards.is_empty());
        guards.key(TREE, b"");
        guards.range(TREE, KeyRange::new(b"a", b"c"));
        guards.range(TREE, KeyRange::new(b"c", b"c"));
        guards.move_to(&at(7));
        guards.move_to(&at(8));
        guards.move_to(&at(9));
        guards.range(TreeId(4), KeyRange::from(b"x"));
        guards.written(TREE, TreeId(5));
        let all: Vec<_> = guards
            .iter()
            .map(|guard| (guard.since.seqno().0, guard.tree.0, guard.on))
            .collect();
        let expected = [
            (7, 3, Guarded::Key(b"")),
            (7, 3, Guarded::Range(KeyRange::new(b"a", b"c"))),
            (9, 4, Guarded::Range(KeyRange::from(b"x"))),
            (9, 3, Guarded::Written(TreeId(5))),
        ];
        assert_eq!(all, expected);
        assert_eq!((guards.count(), guards.len_bytes()), (4, 3 + 4 * 32));
    }

    #[test]
    fn a_check_names_the_first_key_that_changed() {
        let mut guards = Guards::since(&at(1));
        guards.key(TREE, b"a");
        guards.range(TREE, KeyRange::new(b"b", b"d"));
        let none = guards.check(|_| Ok(None));
        assert!(none.is_ok());
        let changed = |guard: &Guard<'_>| Ok(guard.on.holds(b"c").then(|| b"c".to_vec()));
        let found = guards.check(changed).expect_err("a key changed");
        assert!(matches!(found, KvError::Conflict { tree: TREE, key } if key == b"c"));
        assert_eq!(Guarded::Key(b"k").start(), b"k");
        assert!(!Guarded::Range(KeyRange::new(b"b", b"d")).holds(b"d"));
    }
}
