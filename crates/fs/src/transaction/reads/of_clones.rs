//! Validation of what a transaction has read of clones.
//!
//! ```text
//! clone 7       |-- read at the pin "txn/N" --|------ written by others ------|
//! commit        keys that were read and written since the pin: as in mainline
//! rebase        the same, up to the pin of the new number
//! ```
//!
//! | of a clone that was read | result |
//! |---|---|
//! | something that was read is changed in it | a conflict with the path in the clone |
//! | its source is changed, which it does not see | none |
//! | it was destroyed | a conflict with the path of its directory |
//!
//! From the last check to the commit nothing is written in these clones: their file systems are
//! locked, and the commit guards their trees.

use super::super::clone_pins::ClonePins;
use super::super::path::{NameSource, SidePaths};
use super::ReadSet;
use super::ranges::{ChangedRead, ReadRanges, ReadTree, ReadTrees, paths_of};
use crate::locator::Tree;
use crate::schema::{Store, view_schema};
use crate::snapshot::SnapshotView;
use crate::transaction::conflict::{Conflict, ConflictKind, ReadKind};
use crate::views::{CloneInfo, LiveView, ViewSet};
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_kv::{Guards, KeyRange, KvError, Snapshot};

/// Moment with which clones are compared.
#[derive(Clone, Copy, Debug)]
pub(in crate::transaction) enum CloneSide {
    Now,
    /// That of the pin of the transaction of a number.
    Pin(Ino),
}

/// A clone that was read.
struct ReadClone {
    info: CloneInfo,
    ranges: ReadRanges,
    /// `None` if what it holds on either side cannot be read: all of it counts as changed.
    trees: Option<ReadTrees>,
}

/// What a transaction has read of clones.
pub(in crate::transaction) struct CloneChecks<'t> {
    pins: ClonePins<'t>,
    /// The transaction with the pin.
    number: Ino,
    /// In the order of their numbers.
    clones: Vec<ReadClone>,
}

impl<'t> CloneChecks<'t> {
    /// Takes what the transaction of `number` has read of clones. `store` has its branch trees.
    pub(in crate::transaction) fn new(
        pins: ClonePins<'t>,
        (number, store): (Ino, &Store),
        reads: &ReadSet,
        side: CloneSide,
    ) -> FsResult<Self> {
        debug_assert!(number.0 > 0, "0 is no number");
        let read = reads.clone_reads();
        let mut checks = Self {
            pins,
            number,
            clones: Vec::new(),
        };
        if read.is_empty() {
            return Ok(checks);
        }
        let moment = pins.moment(number)?;
        let until = match side {
            CloneSide::Now => Some(None),
            CloneSide::Pin(later) => pins.moment(later)?.map(Some),
        };
        let sides = moment.zip(until);
        let ids = sides.as_ref().map(|(moment, _)| pins.trees_at(moment));
        let all = ViewSet::read_live(store)?;
        for (view, entries) in read {
            let info = all.iter().find(|info| info.number == view);
            let info = info.ok_or_else(|| {
                FsError::Corrupt(format!("clone {view}, which was read, has no record"))
            })?;
            let trees = sides.as_ref().zip(ids.as_ref());
            checks.clones.push(ReadClone {
                info: info.clone(),
                ranges: ReadRanges::new(&entries, reads.is_unknown),
                trees: trees.and_then(|(sides, ids)| pins.read_trees(view, ids, sides)),
            });
        }
        debug_assert!(
            checks.clones.is_sorted_by_key(|clone| clone.info.number),
            "as they are noted"
        );
        Ok(checks)
    }

    /// Returns those that are open, each after those that lie in it: the order of locks.
    pub(in crate::transaction) fn opened(&self) -> Vec<Arc<LiveView>> {
        if self.clones.is_empty() {
            return Vec::new();
        }
        let mut opened = self.pins.views.opened();
        debug_assert!(
            self.clones.iter().all(|clone| clone.info.number > 0),
            "mainline is no clone"
        );
        opened.retain(|view| self.find(view.info().number).is_some());
        opened.sort_unstable_by_key(|view| std::cmp::Reverse(view.info().number));
        debug_assert!(
            opened
                .iter()
                .all(|view| view.info().home < view.info().number),
            "a clone is made after the one that it lies in"
        );
        opened
    }

    /// Has nothing be written in the clones between the check and the commit.
    pub(in crate::transaction) fn guard(&self, guards: &mut Guards) {
        for trees in self.clones.iter().filter_map(|clone| clone.trees.as_ref()) {
            for tree in [Tree::Meta, Tree::Data, Tree::Xattr] {
                guards.range(trees.id(tree), KeyRange::all());
            }
        }
    }

    fn find(&self, number: u64) -> Option<&ReadClone> {
        let place = self
            .clones
            .binary_search_by_key(&number, |clone| clone.info.number);
        let found = &self.clones[place.ok()?];
        debug_assert_eq!(found.info.number, number, "the clone of the number");
        Some(found)
    }

    /// Adds what was read of clones and is changed since a moment, or since the transaction began.
    /// A path is told of once.
    pub(super) fn add_conflicts(
        &self,
        names: NameSource<'_>,
        since: Option<&Snapshot>,
        conflicts: &mut Vec<Conflict>,
    ) -> FsResult<()> {
        let mut paths = None;
        let mut known: BTreeSet<Vec<u8>> =
            conflicts.iter().map(|known| known.path.clone()).collect();
        for clone in &self.clones {
            let changed = self.changed(clone, since)?;
            if changed.is_empty() {
                continue;
            }
            if paths.is_none() {
                paths = Some(ClonePaths::new(self, names)?);
            }
            let paths = paths.as_ref().expect("they were just made");
            for (read, path) in changed.iter().zip(paths.of(&clone.info, &changed)?) {
                if known.insert(path.clone()) {
                    conflicts.push(Conflict {
                        path,
                        kind: read.kind,
                        ino: paths.number(clone.info.number, read.ino),
                        record: None,
                    });
                }
            }
        }
        conflicts.sort_unstable();
        Ok(())
    }

    fn changed(
        &self,
        clone: &ReadClone,
        since: Option<&Snapshot>,
    ) -> FsResult<BTreeSet<ChangedRead>> {
        debug_assert!(clone.info.number > 0, "mainline is no clone");
        let whole = |kind| {
            BTreeSet::from([ChangedRead {
                name: None,
                ino: clone.info.root,
                kind: ConflictKind::Read(kind),
            }])
        };
        if self.pins.views.record(clone.info.number).is_none() {
            return Ok(whole(ReadKind::Name));
        }
        let Some(trees) = &clone.trees else {
            return Ok(whole(ReadKind::Unknown));
        };
        match clone.ranges.changed(trees, since) {
            // It was removed meanwhile.
            Err(FsError::Storage(KvError::NoTree(_))) => Ok(whole(ReadKind::Name)),
            changed => changed,
        }
    }
}

impl<'t> ClonePins<'t> {
    /// Returns the trees of a clone as they were read, and as they are at `until` or now; `None` if
    /// it was not there.
    fn read_trees(
        &self,
        view: u64,
        ids: &BTreeMap<String, TreeId>,
        (moment, until): &(Snapshot, Option<Snapshot>),
    ) -> Option<ReadTrees> {
        debug_assert!(view > 0, "mainline is no clone");
        debug_assert!(
            until
                .as_ref()
                .is_none_or(|until| until.seqno() >= moment.seqno()),
            "a later moment"
        );
        let schema = view_schema(view);
        let tree = |tree: Tree| {
            let id = *ids.get(&tree.name_in(&schema))?;
            Some(ReadTree {
                tree: id,
                moment: moment.clone(),
                theirs: id,
                until: until.clone(),
            })
        };
        Some(ReadTrees {
            engine: Arc::clone(self.engine),
            trees: Tree::ALL.into_iter().map(tree).collect::<Option<_>>()?,
        })
    }
}

/// Paths of what is in clones, as a transaction has them.
struct ClonePaths<'c, 't> {
    checks: &'c CloneChecks<'t>,
    outside: SidePaths<'c>,
    /// The clones at the moment at which the transaction began; `None` without its pin.
    past: Option<SnapshotView>,
}

impl<'c, 't> ClonePaths<'c, 't> {
    fn new(checks: &'c CloneChecks<'t>, names: NameSource<'c>) -> FsResult<Self> {
        debug_assert!(!checks.clones.is_empty(), "a clone was read");
        Ok(Self {
            checks,
            outside: SidePaths::new(names, [])?,
            past: checks.pins.open(checks.number)?,
        })
    }

    /// Returns the paths of what was read of a clone, one for each.
    fn of(&self, clone: &CloneInfo, changed: &BTreeSet<ChangedRead>) -> FsResult<Vec<Vec<u8>>> {
        debug_assert!(!changed.is_empty(), "something is changed");
        let top = self.of_clone(clone)?;
        let Some(past) = &self.past else {
            return Ok(changed.iter().map(|_| top.clone()).collect());
        };
        let fs = past.open_view(clone.number)?;
        let paths = paths_of(NameSource::of(&fs), changed)?;
        let all = changed.iter().map(|read| {
            let below = below(&read.path(&paths)?, &paths, clone.root)?;
            Ok(join(&top, &below))
        });
        all.collect()
    }

    /// Returns the path of the directory of a clone.
    fn of_clone(&self, clone: &CloneInfo) -> FsResult<Vec<u8>> {
        // A clone that was read lies in clones that were read, too.
        let home = self.checks.find(clone.home).map(|home| &home.info);
        let Some(home) = home else {
            return Ok(self.outside.of(clone.graft)?.unwrap_or_default());
        };
        debug_assert!(home.number < clone.number, "it was made before");
        let graft = ChangedRead {
            name: None,
            ino: clone.graft,
            kind: ConflictKind::Read(ReadKind::Name),
        };
        let path = self.of(home, &BTreeSet::from([graft]))?.pop();
        Ok(path.unwrap_or_default())
    }

    /// Returns the number that the transaction shows of an inode of a clone, or that of the clone's
    /// directory.
    fn number(&self, clone: u64, ino: Ino) -> Ino {
        debug_assert!(clone > 0, "mainline is no clone");
        let first = self.past.as_ref().and_then(|past| past.first_number(clone));
        first.map_or(ino, |first| Ino(first | ino.0))
    }
}

/// Returns what a path of a clone's file system is below the clone's directory.
fn below(path: &[u8], paths: &SidePaths<'_>, root: Ino) -> FsResult<Vec<u8>> {
    let top = paths.of(root)?.unwrap_or_default();
    let below = path.strip_prefix(&top[..]).unwrap_or_default();
    Ok(below.strip_prefix(b"/").unwrap_or(below).to_vec())
}

fn join(above: &[u8], below: &[u8]) -> Vec<u8> {
    debug_assert!(!above.ends_with(b"/"), "no slash at either end");
    debug_assert!(!below.starts_with(b"/"), "no slash at either end");
    match (above, below) {
        (_, b"") => above.to_vec(),
        (b"", _) => below.to_vec(),
        _ => [above, b"/", below].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_with_one_slash() {
        assert_eq!(join(b"w/c", b"a/b"), b"w/c/a/b");
        assert_eq!(join(b"w/c", b""), b"w/c");
        assert_eq!(join(b"", b"a"), b"a");
    }
}
