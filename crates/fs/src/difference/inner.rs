//! Clones that lie below the directory that is compared: each is a view of its own.
//!
//! ```text
//!   old    dir/a = clone 1   dir/b = clone 2                        of mainline's rows
//!   new    dir/x = clone 1                     dir/c = clone 3
//!          compared as a     a name that       a name that
//!          view, below x     is gone           is new
//! ```
//!
//! The graft pairs both sides, the directory that a clone lies at. It is made with the clone. No
//! other clone ever lies at it, but one that a rollback makes again of a clone that was destroyed:
//!
//! ```text
//!   snapshot      graft 20 = clone 1
//!   rolled back   graft 20 = clone 4, of what clone 1 was at the moment of a snapshot
//! ```
//!
//! These are compared as two views. A copy of one view at two moments tells its clones apart by
//! their numbers: for that, the number pairs both sides ([`Pairing`]). A clone of the view has the
//! graft too, with a clone of the clone:
//!
//! ```text
//!   source   graft 20 = clone 1     graft 31 = clone 5     the clone of the source was made when
//!   clone    graft 20 = clone 3     graft 31 = clone 6     30 was the next inode number
//!            a pair                 none: both were made since
//! ```
//!
//! A clone without a counterpart is a name and nothing else.

use super::Moments;
use super::comparison::{Comparison, Reach};
use super::side::{Reached, Side};
use super::spans::Relation;
use super::views::ViewsAt;
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use stitch_base::Ino;
use stitch_format::fs_view::ViewRecord;

/// What pairs the clones of one view at two moments. Those of two views are paired by their grafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairing {
    /// The directory that they lie at.
    ByGraft,
    ByNumber,
}

/// A clone that one side shows, and where.
#[derive(Debug)]
pub(super) struct ShownClone {
    pub(super) view: u64,
    pub(super) root: Ino,
    pub(super) graft: Ino,
    pub(super) reached: Reached,
}

/// The clones in one view below the directory.
#[derive(Debug, Default)]
pub(super) struct InnerClones {
    /// Pairs of both sides.
    pub(super) both: Vec<Reach>,
    /// Those of the first side without a counterpart.
    pub(super) old: Vec<ShownClone>,
    /// Those of the second side without a counterpart.
    pub(super) new: Vec<ShownClone>,
    /// The directories at which they lie.
    pub(super) grafts: BTreeSet<Ino>,
}

impl InnerClones {
    /// Reports whether a clone without a counterpart lies at a directory.
    pub(super) fn is_alone(&self, graft: Ino) -> bool {
        let mut alone = self.old.iter().chain(&self.new);
        self.grafts.contains(&graft) && alone.any(|clone| clone.graft == graft)
    }

    fn add_pair(&mut self, old: ShownClone, new: ShownClone, relation: &Relation) {
        debug_assert!(old.view > 0, "mainline is no clone");
        debug_assert!(new.view > 0, "mainline is no clone");
        debug_assert!(
            old.graft == new.graft || old.view == new.view,
            "two clones are paired by their directory"
        );
        debug_assert_eq!(old.root, new.root, "clones of one directory");
        let name = &new.reached.name;
        let is_same_dir = name.as_ref().is_none_or(|name| relation.has_ino(name.dir));
        let has_moved = old.reached.name != *name || !is_same_dir;
        self.both.push(Reach {
            dir: old.root,
            views: (old.view, new.view),
            old: old.reached,
            new: new.reached,
            has_moved,
        });
    }
}

/// The clones of a view that lie below the directory on one side.
fn shown(side: &Side<'_>, views: &ViewsAt<'_>, view: u64) -> FsResult<BTreeMap<u64, ShownClone>> {
    let mut shown = BTreeMap::new();
    for (number, record) in views.clones_in(view) {
        if let Some(reached) = side.reach(record.graft)? {
            debug_assert!(number > 0, "mainline is no clone");
            debug_assert!(reached.name.is_some(), "a clone lies at a name");
            let clone = ShownClone {
                view: number,
                root: record.root,
                graft: record.graft,
                reached,
            };
            shown.insert(number, clone);
        }
    }
    Ok(shown)
}

impl Relation {
    /// Returns the clones of the second side by what pairs them with those of the first.
    fn counterparts<'c>(
        &self,
        pairing: Pairing,
        clones: impl Iterator<Item = (u64, &'c ViewRecord)>,
    ) -> Counterparts {
        let by_number = pairing == Pairing::ByNumber && self.is_one_view();
        let by_key = clones.filter_map(|(number, record)| match by_number {
            true => Some((number, number)),
            false => self
                .has_ino(record.graft)
                .then_some((record.graft.0, number)),
        });
        Counterparts {
            by_number,
            by_key: by_key.collect(),
        }
    }
}

/// Clones in the second of two views, or in one view at the later moment.
struct Counterparts {
    by_number: bool,
    /// By their grafts, or by their numbers.
    by_key: HashMap<u64, u64>,
}

impl Counterparts {
    /// Returns the counterpart of a clone of the first side.
    fn find(&self, number: u64, graft: Ino) -> Option<u64> {
        let key = if self.by_number { number } else { graft.0 };
        self.by_key.get(&key).copied()
    }
}

impl Moments<'_> {
    /// Reports whether two clones that lie at one directory are compared with each other. Of one
    /// view at two moments only those are that have trees in common: one that was made again has
    /// them with the one that it was made of; two that were made of one, and of which the first was
    /// destroyed, have none.
    fn are_pair(&self, relation: &Relation, old: u64, new: u64) -> FsResult<bool> {
        debug_assert!(old > 0 && new > 0, "mainline is no clone");
        if old == new || !relation.is_one_view() {
            return Ok(true);
        }
        match Relation::of(&self.old.moment(old)?, &self.new.moment(new)?) {
            Err(FsError::Unsupported) => Ok(false),
            related => related.map(|_| true),
        }
    }

    /// Returns the pairs of clones in two views, wherever they lie, and in these pairs.
    ///
    /// # Errors
    /// Those of [`Relation::of`].
    pub(super) fn clone_pairs(&self, views: (u64, u64)) -> FsResult<Vec<(u64, u64)>> {
        let mut pairs = Vec::new();
        // Damaged records may form a ring.
        let (mut waiting, mut seen) = (vec![views], BTreeSet::from([views]));
        while let Some((old, new)) = waiting.pop() {
            let relation = Relation::of(&self.old.moment(old)?, &self.new.moment(new)?)?;
            let counterparts = relation.counterparts(Pairing::ByGraft, self.new.clones_in(new));
            for (number, record) in self.old.clones_in(old) {
                let Some(other) = counterparts.find(number, record.graft) else {
                    continue;
                };
                let has_root = self.new.root(other) == Some(record.root);
                let is_pair = self.are_pair(&relation, number, other)?;
                if has_root && is_pair && seen.insert((number, other)) {
                    debug_assert!(other > 0, "mainline is no clone");
                    pairs.push((number, other));
                    waiting.push((number, other));
                }
            }
        }
        debug_assert_eq!(pairs.len() + 1, seen.len(), "each is found once");
        Ok(pairs)
    }
}

impl Comparison<'_> {
    /// Finds the clones below the directory.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] if two views show one clone; those of a read.
    pub(super) fn inner_clones(
        &self,
        moments: &Moments<'_>,
        pairing: Pairing,
    ) -> FsResult<InnerClones> {
        let (old, new) = (&moments.old, &moments.new);
        let views = self.reach.views;
        let before = shown(&self.old, old, views.0)?;
        let mut after = shown(&self.new, new, views.1)?;
        let is_shared = before.keys().any(|number| after.contains_key(number));
        let count = before.len() + after.len();
        if is_shared && !self.relation.is_one_view() {
            return Err(FsError::Unsupported);
        }
        let grafts = before.values().chain(after.values());
        let mut inner = InnerClones {
            grafts: grafts.map(|clone| clone.graft).collect(),
            ..InnerClones::default()
        };
        let counterparts = self.relation.counterparts(pairing, new.clones_in(views.1));
        for (number, clone) in before {
            let other = counterparts.find(number, clone.graft);
            let is_pair = match other {
                Some(other) => moments.are_pair(&self.relation, number, other)?,
                None => false,
            };
            match other.and_then(|other| after.remove(&other)) {
                Some(now) if is_pair && now.root == clone.root => {
                    inner.add_pair(clone, now, &self.relation);
                }
                now => {
                    inner.old.push(clone);
                    inner.new.extend(now);
                }
            }
        }
        inner.new.extend(after.into_values());
        debug_assert_eq!(
            2 * inner.both.len() + inner.old.len() + inner.new.len(),
            count,
            "each clone is in a pair or alone"
        );
        debug_assert!(
            inner.both.len() <= inner.grafts.len(),
            "each has a directory"
        );
        Ok(inner)
    }
}
