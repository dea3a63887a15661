//! What comes back when pins or some trees are dropped.
//!
//! 1. For each holder, the trees that go with it are those that the edit of the drop would list.
//!    All that they own comes back.
//! 2. Its moments are those of its pins, and of the branch trees among these.
//! 3. Of the trees that stay, a sweep finds the versions that only its moments need.

use super::moments::{HolderNumber, MomentHold, OwnedCursor, OwnedMoments, TreeHolds};
use super::sweep::{Sweep, all_of_one};
use super::{Kind, SweepSpan, SweepVisit, VersionCost};
use crate::VtError;
use crate::compaction::{Fragments, Hidden};
use crate::store::Store;
use crate::tables::Tables;
use crate::version::{TreeVersion, Version};
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::{PinId, Seqno, TreeId};
use stitch_kv::{Holder, KvError, check_holders};

/// What a drop of each holder alone would end.
struct Drops {
    view: Arc<View>,
    /// Moments that are held of all trees.
    of_store: TreeHolds,
    /// For each tree of which further moments are held, for its branches or by pins of some trees:
    /// all that are held of it.
    of_trees: BTreeMap<TreeId, TreeHolds>,
    /// Trees that go, each with the holder that they go with.
    trees: BTreeMap<TreeId, HolderNumber>,
    /// Counts what no moment and not the present needs.
    garbage: Option<HolderNumber>,
}

impl Store {
    pub(crate) fn exclusive_space(
        &self,
        holders: &[Holder<'_>],
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Vec<u64>>, KvError> {
        check_holders(holders)?;
        let drops = self.drops_of(holders)?;
        let mut bytes = vec![0; holders.len()];
        let version = &drops.view.version;
        let staying = version.trees.values().filter(|tree| drops.keeps(tree));
        let total = staying
            .flat_map(|t| t.tables())
            .map(|(_, t)| t.owned_bytes());
        let (mut done, total) = (0, total.sum());
        if !watch(done, total) {
            return Ok(None);
        }
        for (id, tree) in &version.trees {
            if let Some(holder) = drops.trees.get(id) {
                debug_assert!(!drops.keeps(tree), "the tree goes with its holder");
                bytes[*holder] += drops.bytes_of(tree, &self.tables)?;
                continue;
            }
            let mut passed = |bytes| {
                done += bytes;
                debug_assert!(done <= total, "each table is passed once");
                watch(done, total)
            };
            if !self.sweep_held(&drops, tree, (&mut bytes, &mut passed))? {
                return Ok(None);
            }
        }
        Ok(Some(bytes))
    }

    /// Finds out what goes with each holder. No pin and no tree changes meanwhile.
    fn drops_of(&self, holders: &[Holder<'_>]) -> Result<Drops, KvError> {
        let installer = self.versions.lock();
        let view = self.views.get();
        let mut pins = BTreeMap::new();
        let mut trees = BTreeMap::new();
        for (number, holder) in holders.iter().enumerate() {
            let gone = match holder {
                Holder::Garbage => Vec::new(),
                Holder::Pin(name) => {
                    let found = self.pins_of(&[*name])?;
                    pins.extend(found.iter().map(|id| (*id, number)));
                    self.gone_with(&view.version, &BTreeSet::new(), &found)
                }
                Holder::Pins(names) => {
                    let found = self.pins_of(names)?;
                    pins.extend(found.iter().map(|id| (*id, number)));
                    self.gone_with(&view.version, &BTreeSet::new(), &found)
                }
                Holder::Trees(dropped) => {
                    let is_living = |tree: &&TreeId| view.version.is_living(**tree);
                    if let Some(tree) = dropped.iter().find(|tree| !is_living(tree)) {
                        return Err(KvError::NoTree(*tree));
                    }
                    let dropped = dropped.iter().copied().collect();
                    self.gone_with(&view.version, &dropped, &[])
                }
            };
            let before = trees.len();
            trees.extend(gone.iter().map(|tree| (*tree, number)));
            debug_assert_eq!(
                trees.len(),
                before + gone.len(),
                "a tree goes with one holder"
            );
        }
        let (of_store, of_trees) = self.held_moments(&view.version, &pins, &trees);
        debug_assert!(
            of_store.ranged.is_empty(),
            "pins of the whole store hold all keys"
        );
        debug_assert!(
            trees.values().all(|number| *number < holders.len()),
            "a tree goes with a holder"
        );
        drop(installer);
        Ok(Drops {
            of_store,
            of_trees,
            view,
            trees,
            garbage: holders.iter().position(|holder| *holder == Holder::Garbage),
        })
    }

    /// The moments that pins and branches hold: of all trees; and, for each tree of which any more
    /// is held, all that are held of it.
    fn held_moments(
        &self,
        version: &Version,
        pins: &BTreeMap<PinId, HolderNumber>,
        trees: &BTreeMap<TreeId, HolderNumber>,
    ) -> (TreeHolds, BTreeMap<TreeId, TreeHolds>) {
        let mut of_store = TreeHolds::default();
        let mut of_trees: BTreeMap<TreeId, TreeHolds> = BTreeMap::new();
        for (id, pin) in self.pins.holds() {
            let (seqno, ended_by) = (pin.seqno(), pins.get(&id).copied());
            let hold = MomentHold { seqno, ended_by };
            match pin.each_tree() {
                None => of_store.whole.push(hold),
                Some(trees) => {
                    for tree in trees {
                        of_trees.entry(*tree).or_default().whole.push(hold);
                    }
                }
            }
            for (tree, ranges) in pin.ranges().into_iter().flatten() {
                let own = of_trees.entry(*tree).or_default();
                own.ranged.push((hold, ranges.clone()));
            }
        }
        for (id, tree) in &version.trees {
            if let Some(branch) = tree.info.branch {
                let own = of_trees.entry(branch.parent).or_default();
                let hold = MomentHold {
                    seqno: branch.seqno,
                    ended_by: trees.get(id).copied(),
                };
                match &tree.info.branch_ranges {
                    None => own.whole.push(hold),
                    Some(ranges) => own.ranged.push((hold, ranges.clone())),
                }
            }
        }
        let all = &of_store.whole;
        of_trees.values_mut().for_each(|own| own.whole.extend(all));
        (of_store, of_trees)
    }

    /// Returns the numbers of pins, in order.
    fn pins_of(&self, names: &[&str]) -> Result<Vec<PinId>, KvError> {
        let found = names.iter().map(|name| Ok(self.pins.find(name)?.0.id));
        let mut found = found.collect::<Result<Vec<PinId>, KvError>>()?;
        found.sort_unstable();
        Ok(found)
    }

    /// The trees that would go with pins or with these trees.
    fn gone_with(
        &self,
        version: &Version,
        trees: &BTreeSet<TreeId>,
        pins: &[PinId],
    ) -> Vec<TreeId> {
        // Pins take hidden trees alone along.
        if trees.is_empty() && version.hidden().next().is_none() {
            return Vec::new();
        }
        let mut edit = version.edit();
        version.note_dropped(&mut edit, trees, (&self.pins, pins));
        debug_assert!(
            edit.dropped_trees
                .iter()
                .all(|tree| version.trees.contains_key(tree)),
            "only trees that are there go"
        );
        edit.dropped_trees
    }

    /// Adds what of a tree that stays only the moments of one holder need. Returns false if
    /// `passed` did.
    fn sweep_held(
        &self,
        drops: &Drops,
        tree: &TreeVersion,
        (bytes, passed): (&mut [u64], &mut dyn FnMut(u64) -> bool),
    ) -> Result<bool, VtError> {
        debug_assert!(drops.keeps(tree), "a tree that goes is not swept");
        let oldest = tree.tables().map(|(_, table)| table.meta().min_seqno).min();
        let own = drops.of_trees.get(&tree.info.id);
        let holds = own.unwrap_or(&drops.of_store);
        let moments = holds.moments();
        let newest_moment = moments.all().last().copied();
        debug_assert_eq!(
            newest_moment.is_none(),
            holds.whole.is_empty() && holds.ranged.is_empty(),
            "what is held has a moment"
        );
        // All was written after the last moment: memtables are newer than tables.
        let is_newer =
            newest_moment.is_none_or(|newest| oldest.is_some_and(|oldest| oldest > newest));
        if is_newer && drops.garbage.is_none() {
            return Ok(true);
        }
        let mut sweep = Sweep::default();
        sweep.add((&drops.view, tree), &all_of_one(), &self.tables)?;
        let range_deletes = sweep.take_range_deletes();
        let mut visit = OfMoments {
            range_deletes: Fragments::new(&range_deletes, &moments),
            moments: OwnedCursor::new(holds, &moments),
            garbage: drops.garbage,
            bytes,
            costs: Vec::new(),
        };
        sweep.run(&self.tables, &mut visit, passed)
    }
}

impl Drops {
    fn keeps(&self, tree: &TreeVersion) -> bool {
        !self.trees.contains_key(&tree.info.id)
    }

    /// All that a tree takes.
    fn bytes_of(&self, tree: &TreeVersion, tables: &Tables) -> Result<u64, VtError> {
        let mut sweep = Sweep::default();
        sweep.add_memtables((&self.view, tree), &all_of_one())?;
        let mut all = All(0);
        sweep.run(tables, &mut all, &mut |_| true)?;
        let in_tables: u64 = tree.tables().map(|(_, table)| table.owned_bytes()).sum();
        debug_assert!(
            self.trees.contains_key(&tree.info.id),
            "only a tree that goes is counted whole"
        );
        Ok(in_tables + all.0)
    }
}

/// Adds up all versions.
struct All(u64);

impl SweepVisit for All {
    fn takes_whole(&mut self, span: &SweepSpan<'_>) -> bool {
        self.0 += span.bytes;
        true
    }

    fn key(&mut self, _: &[u8], versions: &[VersionCost]) {
        self.0 += versions.iter().map(|version| version.bytes).sum::<u64>();
    }
}

/// Adds versions to the holders that alone need them.
struct OfMoments<'a> {
    moments: OwnedCursor<'a>,
    range_deletes: Fragments,
    /// Gets what nothing needs.
    garbage: Option<HolderNumber>,
    /// For each holder.
    bytes: &'a mut [u64],
    /// What the versions of a key cost those that need them, in their order.
    costs: Vec<u64>,
}

impl OfMoments<'_> {
    /// Returns the moments of the current key.
    const fn owned(&self) -> &OwnedMoments {
        self.moments.owned()
    }

    /// Adds bytes that the moments from place `start` on before `end` need.
    fn charge(&mut self, start: usize, end: usize, bytes: u64) {
        let holder = match start < end {
            true => self.owned().owner_of(start, end),
            false => self.garbage,
        };
        if let Some(holder) = holder {
            debug_assert!(holder < self.bytes.len(), "a holder that is asked about");
            self.bytes[holder] += bytes;
        }
    }

    /// Returns the place of the first moment that sees a range delete over a version; one after
    /// all where there is none.
    fn deleted_at(&self, key: &[u8], seqno: Seqno) -> usize {
        let (from, own) = (self.owned().place(seqno), self.owned().seqnos());
        let hides = |place: &usize| {
            let newest = self.range_deletes.newest(own, key, *place);
            newest.is_some_and(|delete| delete > seqno)
        };
        let found = self.range_deletes.filled_from(own, from).find(hides);
        let place = found.unwrap_or_else(|| self.owned().after_present());
        debug_assert!(place >= from, "only newer range deletes hide it");
        place
    }
}

impl SweepVisit for OfMoments<'_> {
    fn takes_whole(&mut self, span: &SweepSpan<'_>) -> bool {
        if self.moments.differ(span.first, span.last) {
            return false;
        }
        self.moments.seek(span.first);
        let (start, newest) = (
            self.owned().place(span.min_seqno),
            self.owned().place(span.max_seqno),
        );
        // No moment tells its writes apart.
        let is_one = start == newest;
        debug_assert!(start <= newest, "later writes have later places");
        if span.has_versions && !(span.is_table && is_one) {
            return false;
        }
        let seqnos = (span.min_seqno, span.max_seqno);
        match self.range_deletes.hidden((span.first, span.last), seqnos) {
            Hidden::Nothing => true,
            Hidden::All(end) if is_one => {
                self.charge(start, end, span.bytes);
                true
            }
            Hidden::All(_) | Hidden::Some => false,
        }
    }

    fn key(&mut self, key: &[u8], versions: &[VersionCost]) {
        debug_assert!(!versions.is_empty(), "the key was there");
        let mut costs = std::mem::take(&mut self.costs);
        costs_of(versions, &mut costs);
        self.moments.seek(key);
        let mut end = self.owned().after_present();
        for (version, cost) in versions.iter().zip(&costs) {
            let start = self.owned().place(version.seqno);
            debug_assert!(start <= end, "older versions have earlier places");
            let deleted = match self.range_deletes.is_empty() {
                true => end,
                false => self.deleted_at(key, version.seqno),
            };
            self.charge(start, end.min(deleted), *cost);
            end = start;
        }
        self.costs = costs;
    }
}

/// What comes back with each version of a key, newest first.
///
/// - A delete goes with the version below it: it hides nothing else.
/// - An upsert is folded into what it stands on once no moment comes between. What comes back with
///   the lower one is the delta, as their sum is about as long as the base.
pub(super) fn costs_of(versions: &[VersionCost], costs: &mut Vec<u64>) {
    costs.clear();
    let mut deletes = 0;
    let mut chain: Option<usize> = None;
    for (at, version) in versions.iter().enumerate() {
        costs.push(version.bytes + std::mem::take(&mut deletes));
        match version.kind {
            Kind::Delete if at + 1 < versions.len() => {
                deletes = std::mem::take(&mut costs[at]);
                chain = None;
            }
            Kind::Upsert => {
                chain.get_or_insert(at);
            }
            Kind::Put | Kind::Delete => {
                if let Some(first) = chain.take() {
                    costs[first..=at].rotate_right(1);
                }
            }
        }
    }
    debug_assert_eq!(costs.len(), versions.len(), "one for each");
    debug_assert_eq!(
        costs.iter().sum::<u64>(),
        versions.iter().map(|version| version.bytes).sum::<u64>(),
        "costs move between versions"
    );
}

#[cfg(test)]
mod tests {
    use super::super::SweepPlace;
    use super::*;

    fn costs(versions: &[(Kind, u64)]) -> Vec<u64> {
        let sized = versions
            .iter()
            .zip((0..99).rev())
            .map(|(&(kind, bytes), seqno)| VersionCost {
                seqno: Seqno(seqno),
                kind,
                bytes,
                depth: 0,
                place: SweepPlace::default(),
            });
        let mut costs = vec![7];
        costs_of(&sized.collect::<Vec<_>>(), &mut costs);
        costs
    }

    #[test]
    fn a_delete_goes_with_what_it_hides() {
        let versions = [
            (Kind::Put, 50),
            (Kind::Delete, 5),
            (Kind::Delete, 6),
            (Kind::Put, 40),
        ];
        assert_eq!(costs(&versions), [50, 0, 0, 51]);
        assert_eq!(costs(&[(Kind::Delete, 5)]), [5]);
    }

    #[test]
    fn deltas_come_back_and_the_base_stays() {
        let versions = [
            (Kind::Upsert, 3),
            (Kind::Upsert, 4),
            (Kind::Put, 50),
            (Kind::Put, 60),
        ];
        assert_eq!(costs(&versions), [50, 3, 4, 60]);
        assert_eq!(costs(&[(Kind::Upsert, 3), (Kind::Upsert, 4)]), [3, 4]);
    }
}
