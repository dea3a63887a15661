//! Pins: moments of the store that its version log lists, so that they survive the process.
//!
//! - A pin holds its moment like a snapshot ([`crate::snapshots`]), from before its edit is logged
//!   until after the edit that drops it: compactions keep what it sees, and nothing else changes
//!   for them.
//! - A pin holds all trees or some, by their numbers. Of the others it sees nothing. Once it is
//!   narrowed, it holds ranges of the keys of some of these: it gets another hold, and snapshots
//!   that were opened before keep the one it had.
//! - A tree that is dropped while a pin sees it stays in the version, *hidden*: it takes no writes
//!   and is not listed. The edit that drops the last pin that sees it drops the tree, unless a
//!   branch reads it ([`crate::branches`]).
//! - A snapshot that was opened from a pin outlives it. What goes with the pin, such snapshots read
//!   in the last view that had it: see [`Sight`].
//!
//! Which pins see a hidden tree is a matter of numbers. Numbers of pins and trees rise, and a pin
//! knows the first tree that it does not see. One of some trees knows these as well:
//!
//! ```text
//!   time      tree 5 made | pin 1 | tree 5 dropped | pin 2
//!   tree 5    hidden, with 2 as the first pin that does not see it
//!   pin 1     next tree 6: sees tree 5, as 5 < 6 and 1 < 2
//! ```
//!
//! The records are changed by the holder of the installer's lock, after the log has the edit. They
//! are not part of the version: a change of one of ten thousand pins would copy all of them.

mod records;

pub(crate) use records::PinRecords;

use crate::VtError;
use crate::snapshots::{Hold, Snapshots};
use crate::version::Version;
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};
use stitch_base::sync::Mutex;
use stitch_base::{PinId, Seqno, TreeId};
use stitch_format::vt_manifest::{PinChanges, PinRecord, VersionEdit};
use stitch_kv::{KeyRanges, KvError, PinInfo, PinRanges, PinScope, TreeInfo};

/// The dropped trees that a pin sees.
pub(crate) struct Sight {
    id: PinId,
    /// Number of the first tree that it does not see.
    next_tree: TreeId,
    /// The trees that it holds, of those before.
    scope: PinScope,
    /// The trees of which it holds ranges of keys alone.
    ranges: PinRanges,
    /// Views of trees that went while a snapshot of this pin was open.
    kept: Mutex<Vec<Arc<View>>>,
    /// Of a pin that was dropped: the hidden trees that it saw then. It sees no further one.
    last: OnceLock<BTreeSet<TreeId>>,
}

impl std::fmt::Debug for Sight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sight of pin {} up to tree {}", self.id, self.next_tree)
    }
}

impl Sight {
    pub(crate) fn new(
        id: PinId,
        next_tree: TreeId,
        (scope, ranges): (PinScope, PinRanges),
    ) -> Self {
        debug_assert!(id.0 > 0, "pin 0 is never given out");
        debug_assert!(
            ranges.keys().all(|tree| scope.has(*tree)),
            "ranges are of trees that the pin holds"
        );
        debug_assert!(
            ranges.is_empty() || scope.trees().is_some(),
            "a pin that was narrowed lists its trees"
        );
        Self {
            id,
            next_tree,
            scope,
            ranges,
            kept: Mutex::new(Vec::new()),
            last: OnceLock::new(),
        }
    }

    /// Returns the number of the first tree that it does not see.
    pub(crate) const fn next_tree(&self) -> TreeId {
        self.next_tree
    }

    /// Returns the trees that it holds.
    pub(crate) const fn scope(&self) -> &PinScope {
        &self.scope
    }

    /// Returns the trees of which it holds ranges of keys alone, with these.
    pub(crate) const fn ranges(&self) -> &PinRanges {
        &self.ranges
    }

    /// Reports whether the pin was dropped.
    pub(crate) fn has_ended(&self) -> bool {
        self.last.get().is_some()
    }

    /// Reports whether it is of a pin.
    pub(crate) fn is_of(&self, pin: PinId) -> bool {
        self.id == pin
    }

    /// Returns the trees that it sees in a version, in ascending order, without temporary ones.
    pub(crate) fn trees_in(&self, version: &Version) -> Vec<TreeId> {
        debug_assert!(
            self.id <= version.last_pin,
            "the pin's number was given out"
        );
        let is_seen = |tree: &TreeId| match version.is_living(*tree) {
            true => *tree < self.next_tree && self.scope.has(*tree),
            false => self.sees_in(version, *tree),
        };
        let stored = |tree: &TreeId| !version.is_temporary(*tree);
        debug_assert!(self.next_tree <= version.next_tree, "numbers of trees rise");
        let trees = version.trees.keys().copied();
        trees.filter(|tree| stored(tree) && is_seen(tree)).collect()
    }

    /// Reports whether the pin sees a tree that was dropped before pin `unseen_by` was made.
    fn sees(&self, tree: TreeId, unseen_by: PinId) -> bool {
        debug_assert!(
            self.last
                .get()
                .and_then(|last| last.last())
                .is_none_or(|seen| *seen < self.next_tree),
            "a pin sees trees that were there when it was made"
        );
        let was_seen = || self.last.get().is_none_or(|last| last.contains(&tree));
        let is_held = tree < self.next_tree && self.scope.has(tree);
        self.id < unseen_by && is_held && was_seen()
    }

    /// Adds a view of trees that are about to go.
    pub(crate) fn keep(&self, view: Arc<View>) {
        debug_assert!(
            self.next_tree <= view.version.next_tree,
            "the view is not older than the pin"
        );
        self.kept.lock().push(view);
    }

    /// Removes the view that was added last: its trees did not go.
    pub(crate) fn take_back(&self) {
        let view = self.kept.lock().pop();
        debug_assert!(view.is_some(), "a view was added");
    }

    /// The pin is dropped: only trees that are hidden in this version stay visible.
    pub(crate) fn end(&self, version: &Version) {
        debug_assert!(
            self.id <= version.last_pin,
            "the pin's number was given out"
        );
        let hidden = version.hidden();
        let seen = hidden.filter(|(tree, unseen_by)| self.sees(*tree, *unseen_by));
        let is_first = self.last.set(seen.map(|(tree, _)| tree).collect()).is_ok();
        debug_assert!(is_first, "a pin is dropped once");
    }

    /// Adds the dropped trees of a version that the pin sees.
    fn note_seen(&self, version: &Version, found: &mut BTreeMap<TreeId, TreeInfo>) {
        for (id, tree) in &version.trees {
            if self.sees_in(version, *id) {
                found.insert(*id, tree.info.clone());
            }
        }
    }

    /// Reports whether the pin sees a dropped tree of this version.
    pub(crate) fn sees_in(&self, version: &Version, tree: TreeId) -> bool {
        let found = version.trees.get(&tree).and_then(|tree| tree.hidden);
        found.is_some_and(|unseen_by| self.sees(tree, unseen_by))
    }
}

impl Hold {
    /// Returns the view in which this moment of a tree is read, with the current one given; `None`
    /// if the tree cannot be seen.
    pub(crate) fn view_of(&self, current: Arc<View>, tree: TreeId) -> Option<Arc<View>> {
        if current.version.is_living(tree) {
            return Some(current);
        }
        if self.parent() == Some(tree) && current.version.trees.contains_key(&tree) {
            return Some(current);
        }
        let sight = self.sight()?;
        debug_assert!(
            self.parent().is_none(),
            "a branch holds no trees that a pin sees"
        );
        if sight.sees_in(&current.version, tree) {
            return Some(current);
        }
        let kept = sight.kept.lock();
        let found = kept.iter().find(|view| sight.sees_in(&view.version, tree));
        debug_assert!(
            found.is_none_or(|view| view.version.trees.contains_key(&tree)),
            "a kept view has its trees"
        );
        found.map(Arc::clone)
    }

    /// Returns the trees that are read at this moment, with the current version given.
    pub(crate) fn trees(&self, current: &Version) -> Vec<TreeInfo> {
        let mut found = BTreeMap::new();
        if let Some(sight) = self.sight() {
            sight.note_seen(current, &mut found);
            for view in sight.kept.lock().iter() {
                sight.note_seen(&view.version, &mut found);
            }
        }
        let living = current.living().map(|tree| &tree.info);
        let of_moment = living.filter(|info| self.has(info.id));
        found.extend(of_moment.map(|info| (info.id, info.clone())));
        debug_assert!(
            found.keys().all(|tree| self.saw(*tree)),
            "a tree that is read was made before the moment"
        );
        found.into_values().collect()
    }
}

/// The pins of a store.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    state: Mutex<PinsState>,
}

#[derive(Debug, Default)]
struct PinsState {
    records: PinRecords,
    /// One for each record.
    holds: BTreeMap<PinId, Arc<Hold>>,
    /// What snapshots hold of pins that were dropped or narrowed since.
    lingering: Vec<Weak<Hold>>,
}

fn scope(record: &PinRecord) -> PinScope {
    debug_assert!(
        record
            .trees
            .iter()
            .flatten()
            .all(|tree| *tree < record.next_tree),
        "a pin holds trees that it sees"
    );
    match &record.trees {
        Some(trees) => PinScope::Trees(trees.as_slice().into()),
        None => PinScope::AllTrees,
    }
}

fn ranges(record: &PinRecord) -> PinRanges {
    debug_assert!(
        record.ranges.is_empty() || record.trees.is_some(),
        "a pin that was narrowed lists its trees"
    );
    let of_trees = record.ranges.iter();
    let of_trees = of_trees.map(|(tree, ranges)| (*tree, KeyRanges::new(ranges.iter().cloned())));
    of_trees.collect()
}

fn info(record: &PinRecord) -> PinInfo {
    PinInfo {
        ranges: ranges(record),
        id: record.id,
        name: record.name.clone(),
        seqno: record.seqno,
        scope: scope(record),
        user: record.user.clone().into(),
    }
}

impl Pins {
    /// Takes over the pins of an earlier life, and holds their moments.
    pub(crate) fn restore(&self, records: PinRecords, snapshots: &Arc<Snapshots>) {
        let mut state = self.state.lock();
        debug_assert!(state.holds.is_empty(), "pins are restored once");
        for record in records.iter() {
            let of = (scope(record), ranges(record));
            let sight = Sight::new(record.id, record.next_tree, of);
            let hold = snapshots.take_again(record.seqno, sight);
            debug_assert_eq!(hold.seqno(), record.seqno, "its moment is held");
            state.holds.insert(record.id, hold);
        }
        debug_assert_eq!(state.holds.len(), records.len(), "one for each record");
        state.records = records;
    }

    /// Returns every pin, in the order of creation.
    pub(crate) fn list(&self) -> Vec<PinInfo> {
        let infos: Vec<PinInfo> = self.state.lock().records.iter().map(info).collect();
        debug_assert!(
            infos.is_sorted_by(|pin, next| pin.id < next.id),
            "numbers of pins rise"
        );
        infos
    }

    /// Returns the pin of this name, if there is one.
    pub(crate) fn by_name(&self, name: &str) -> Option<PinInfo> {
        let state = self.state.lock();
        let record = state.records.find(name);
        debug_assert!(
            record.is_none_or(|record| state.holds.contains_key(&record.id)),
            "a pin's moment is held"
        );
        record.map(info)
    }

    /// Returns the pin of this number, if there is one.
    pub(crate) fn by_id(&self, id: PinId) -> Option<PinInfo> {
        let state = self.state.lock();
        let record = state.records.get(id);
        debug_assert_eq!(
            record.is_some(),
            state.holds.contains_key(&id),
            "one for each record"
        );
        record.map(info)
    }

    /// Returns a pin and what holds its moment.
    ///
    /// # Errors
    /// [`KvError::PinNotFound`].
    pub(crate) fn find(&self, name: &str) -> Result<(PinInfo, Arc<Hold>), KvError> {
        let state = self.state.lock();
        let record = state.records.find(name);
        let record = record.ok_or_else(|| KvError::PinNotFound(name.to_owned()))?;
        let hold = &state.holds[&record.id];
        debug_assert_eq!(hold.seqno(), record.seqno, "its moment is held");
        debug_assert!(hold.sight().is_some(), "a pin has a sight");
        debug_assert!(
            hold.sight().is_none_or(|sight| sight.is_of(record.id)),
            "the hold is of the pin"
        );
        Ok((info(record), Arc::clone(hold)))
    }

    /// Returns the hold of every pin, by number.
    pub(crate) fn holds(&self) -> Vec<(PinId, Arc<Hold>)> {
        let state = self.state.lock();
        debug_assert_eq!(
            state.holds.len(),
            state.records.len(),
            "one for each record"
        );
        let holds = state.holds.iter();
        holds.map(|(id, hold)| (*id, Arc::clone(hold))).collect()
    }

    /// Returns the newest moment that a pin holds of every key of a tree, 0 without any; and newer
    /// ones that pins hold of ranges of it.
    pub(crate) fn newest_seqnos_of(&self, tree: TreeId) -> (Seqno, Vec<(Seqno, KeyRanges)>) {
        let state = self.state.lock();
        let mut ranged = Vec::new();
        for id in state.records.newest_first(tree) {
            let hold = &state.holds[&id];
            debug_assert!(
                ranged
                    .last()
                    .is_none_or(|(newer, _)| *newer >= hold.seqno()),
                "the newest pins come first"
            );
            match hold.ranges().and_then(|ranges| ranges.get(&tree)) {
                Some(ranges) => ranged.push((hold.seqno(), ranges.clone())),
                None => return (hold.seqno(), ranged),
            }
        }
        (Seqno(0), ranged)
    }

    /// Returns the newest moment that a pin sees; 0 without any pin.
    pub(crate) fn newest_seqno(&self) -> Seqno {
        let state = self.state.lock();
        let seqnos = state.records.iter().map(|record| record.seqno);
        let newest = seqnos.max().unwrap_or_default();
        debug_assert!(
            state
                .records
                .iter()
                .last()
                .is_none_or(|record| record.seqno == newest),
            "the newest pin sees most"
        );
        newest
    }

    /// Reports whether a pin sees a tree, which is dropped before pin `unseen_by` is made. The pins
    /// `but`, in order, do not count.
    pub(crate) fn has_seer(&self, tree: TreeId, unseen_by: PinId, but: &[PinId]) -> bool {
        let state = self.state.lock();
        state.records.newest_seer(tree, unseen_by, but).is_some()
    }

    /// Returns what a base takes for the pins after a change, in bytes.
    pub(crate) fn base_bytes_after(&self, changes: &PinChanges) -> u64 {
        self.state.lock().records.base_bytes_after(changes)
    }

    /// Reports whether any pin is one of some trees after a change.
    pub(crate) fn has_scopes_after(&self, changes: &PinChanges) -> bool {
        self.state.lock().records.has_scopes_after(changes)
    }

    /// Adds the pins, as they are after a change, to a base.
    ///
    /// # Panics
    /// Panics if the change does not belong to these pins.
    pub(crate) fn complete(&self, base: &mut VersionEdit, changes: &PinChanges) {
        debug_assert!(base.pins.new.is_empty(), "pins are added once");
        let mut records = self.state.lock().records.clone();
        let applied = records.apply(changes);
        applied.expect("a change is made from the pins that are there");
        base.pins.new = records.into_vec();
        debug_assert!(
            base.pins.new.iter().all(|pin| pin.id <= base.pins.last),
            "numbers of pins were given out"
        );
    }

    /// Takes over a change that is in the log, with what holds a new pin or one that was narrowed.
    ///
    /// # Panics
    /// Panics if the change does not belong to these pins.
    pub(crate) fn change(&self, changes: &PinChanges, new: Option<Arc<Hold>>) {
        debug_assert_eq!(
            changes.new.len() + changes.narrowed.len(),
            usize::from(new.is_some()),
            "a pin that is new or narrowed has a hold"
        );
        let mut state = self.state.lock();
        let applied = state.records.apply(changes);
        applied.expect("a change is made from the pins that are there");
        state.lingering.retain(|hold| hold.strong_count() > 0);
        let dropped = changes.dropped.iter();
        let mut gone: Vec<_> = dropped.filter_map(|id| state.holds.remove(id)).collect();
        debug_assert_eq!(
            gone.len(),
            changes.dropped.len(),
            "a dropped pin had a hold"
        );
        let narrowed = changes.narrowed.iter().map(|narrowed| narrowed.id);
        let ids = changes.new.iter().map(|record| record.id).chain(narrowed);
        for (id, hold) in ids.zip(new) {
            gone.extend(state.holds.insert(id, hold));
        }
        state.lingering.extend(gone.iter().map(Arc::downgrade));
        debug_assert_eq!(
            state.holds.len(),
            state.records.len(),
            "one for each record"
        );
        drop(state);
        // Their moments are let go without the lock.
        drop(gone);
    }

    /// Returns the holds of dropped pins, and of pins before they were narrowed, that snapshots
    /// still have.
    pub(crate) fn lingering(&self) -> Vec<Arc<Hold>> {
        let state = self.state.lock();
        let lingering = state.lingering.iter().filter_map(Weak::upgrade);
        let lingering: Vec<Arc<Hold>> = lingering.collect();
        debug_assert!(
            lingering.iter().all(|hold| hold.sight().is_some()),
            "snapshots of pins see what these saw"
        );
        lingering
    }

    /// Checks what holds between the pins and a version.
    ///
    /// # Errors
    /// [`VtError::Version`] if no pin sees and no branch reads a hidden tree, or a pin has a number
    /// not given out.
    pub(crate) fn check(&self, version: &Version) -> Result<(), VtError> {
        self.state.lock().records.check(version)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
