//! Pins of the model engine.

use super::holds::{Hold, Holds};
use super::rows::{ROW_BYTES, Rows};
use super::{AllRows, ModelEngine, State};
use crate::{
    Guarded, KvError, PinInfo, PinRanges, PinScope, Snapshot, TreeInfo, check_free, check_pin_name,
    check_pin_ranges, check_pin_user,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use stitch_base::sync::{Arc, RwLock};
use stitch_base::{PinId, TreeId};

/// The pins of a store, in the order of their creation.
#[derive(Debug, Default)]
pub(super) struct Pins {
    by_id: BTreeMap<PinId, Pin>,
    last: PinId,
}

#[derive(Debug)]
struct Pin {
    info: PinInfo,
    /// The newest tree that it sees.
    last_tree: TreeId,
    kept: Arc<KeptTrees>,
    hold: Arc<Hold>,
}

/// Trees that were dropped while a pin saw them. Pins that see the same tree share its rows.
#[derive(Debug, Default)]
pub(super) struct KeptTrees(RwLock<BTreeMap<TreeId, KeptTree>>);

#[derive(Debug)]
struct KeptTree {
    rows: Arc<RwLock<Rows>>,
    /// As it was listed; `None` of the parent of a branch tree.
    info: Option<TreeInfo>,
}

impl KeptTrees {
    /// Keeps one tree, the parent of a branch tree.
    pub(super) fn of(tree: TreeId, rows: &Arc<RwLock<Rows>>) -> Self {
        let rows = Arc::clone(rows);
        let kept = KeptTree { rows, info: None };
        Self(RwLock::new(BTreeMap::from([(tree, kept)])))
    }

    /// Returns the rows of a tree, if it is kept.
    pub(super) fn get(&self, tree: TreeId) -> Option<Arc<RwLock<Rows>>> {
        self.0.read().get(&tree).map(|kept| Arc::clone(&kept.rows))
    }

    /// Returns the trees that a pin sees and that are dropped.
    pub(super) fn infos(&self) -> Vec<TreeInfo> {
        let kept = self.0.read();
        kept.values().filter_map(|kept| kept.info.clone()).collect()
    }
}

fn pin_bytes(name: &str, user: &[u8]) -> u64 {
    ROW_BYTES + (name.len() + user.len()) as u64
}

impl Pin {
    fn new(info: PinInfo, last_tree: TreeId, kept: Arc<KeptTrees>, holds: &Arc<Holds>) -> Self {
        let moment = (info.seqno, last_tree);
        let of = (info.scope.clone(), info.ranges.clone());
        Self {
            hold: holds.hold_of(moment, Some(Arc::clone(&kept)), of),
            info,
            last_tree,
            kept,
        }
    }
}

impl Pins {
    /// Returns every pin.
    pub(super) fn list(&self) -> Vec<PinInfo> {
        self.by_id.values().map(|pin| pin.info.clone()).collect()
    }

    pub(super) fn by_name(&self, name: &str) -> Option<PinInfo> {
        let found = self.by_id(self.find(name).ok()?);
        debug_assert!(found.is_some(), "a name is of a pin");
        found
    }

    pub(super) fn by_id(&self, id: PinId) -> Option<PinInfo> {
        let found = self.by_id.get(&id).map(|pin| pin.info.clone());
        debug_assert!(
            found.as_ref().is_none_or(|info| info.id == id),
            "a pin is kept under its number"
        );
        debug_assert!(
            id <= self.last || found.is_none(),
            "its number was given out"
        );
        found
    }

    /// Returns a snapshot of a pin's moment.
    ///
    /// # Errors
    /// [`KvError::PinNotFound`].
    pub(super) fn open(&self, name: &str) -> Result<Snapshot, KvError> {
        let pin = self.by_id.get(&self.find(name)?);
        let pin = pin.expect("a pin that was found");
        let snapshot = pin.hold.snapshot();
        debug_assert_eq!(snapshot.seqno(), pin.info.seqno, "a pin holds its moment");
        Ok(snapshot)
    }

    /// Returns what the pins take, without the dropped trees that they see.
    pub(super) fn bytes(&self) -> u64 {
        let infos = self.by_id.values().map(|pin| &pin.info);
        infos.map(|info| pin_bytes(&info.name, &info.user)).sum()
    }

    /// Keeps a tree that is dropped, for the pins that see it.
    pub(super) fn keep_tree(&self, info: &TreeInfo, rows: &Arc<RwLock<Rows>>) {
        for pin in self.by_id.values().filter(|pin| pin.hold.has(info.id)) {
            let kept = KeptTree {
                rows: Arc::clone(rows),
                info: Some(info.clone()),
            };
            let before = pin.kept.0.write().insert(info.id, kept);
            debug_assert!(before.is_none(), "a tree is dropped once");
        }
    }

    /// Returns the same pins in a store that was opened anew, which has `copies` of all rows.
    pub(super) fn reopened(&self, copies: &AllRows, holds: &Arc<Holds>) -> Self {
        debug_assert!(
            self.by_id.keys().all(|id| *id <= self.last),
            "each pin has a number that was given out"
        );
        let reopen = |(id, pin): (&PinId, &Pin)| {
            let kept = pin.kept.0.read();
            let kept = kept.iter().map(|(tree, kept)| {
                let rows = Arc::clone(&copies[tree]);
                let info = kept.info.clone();
                (*tree, KeptTree { rows, info })
            });
            let kept = Arc::new(KeptTrees(RwLock::new(kept.collect())));
            (*id, Pin::new(pin.info.clone(), pin.last_tree, kept, holds))
        };
        Self {
            by_id: self.by_id.iter().map(reopen).collect(),
            last: self.last,
        }
    }

    /// Returns every kept tree once.
    pub(super) fn trees(&self) -> AllRows {
        let mut all = AllRows::new();
        for pin in self.by_id.values() {
            let kept = pin.kept.0.read();
            let rows = |(tree, kept): (&TreeId, &KeptTree)| (*tree, Arc::clone(&kept.rows));
            all.extend(kept.iter().map(rows));
        }
        all
    }

    /// Returns a dropped tree as it was listed, and its rows, if `hold` is of a pin that sees it.
    pub(super) fn dropped_tree(
        &self,
        hold: &Hold,
        tree: TreeId,
    ) -> Option<(TreeInfo, Arc<RwLock<Rows>>)> {
        let is_of = |pin: &&Pin| hold.keeps_in(&pin.kept);
        let pin = self.by_id.values().find(is_of)?;
        let kept = pin.kept.0.read();
        let found = kept.get(&tree)?;
        debug_assert!(tree <= pin.last_tree, "a pin sees trees of its moment");
        debug_assert!(hold.has(tree), "what it keeps it holds");
        Some((found.info.clone()?, Arc::clone(&found.rows)))
    }

    fn find(&self, name: &str) -> Result<PinId, KvError> {
        let mut pins = self.by_id.values().map(|pin| &pin.info);
        let found = pins.find(|info| info.name == name).map(|info| info.id);
        found.ok_or_else(|| KvError::PinNotFound(name.to_owned()))
    }
}

impl State {
    pub(super) const fn check_open(&self) -> Result<(), KvError> {
        match self.is_closed {
            true => Err(KvError::Closed),
            false => Ok(()),
        }
    }
}

impl ModelEngine {
    pub(super) fn pin(
        &self,
        name: &str,
        user: &[u8],
        is_held: &dyn Fn(&TreeInfo) -> bool,
    ) -> Result<PinInfo, KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        check_pin_name(name)?;
        check_pin_user(user)?;
        if state.pins.find(name).is_ok() {
            return Err(KvError::PinExists(name.to_owned()));
        }
        check_free(pin_bytes(name, user), state.space().free_bytes)?;
        let id = state.pins.last.next();
        let living = state.trees.iter().map(|(id, tree)| tree.info(*id));
        let scope = PinScope::chosen(living, |tree| tree.id, is_held);
        let info = PinInfo {
            id,
            name: name.to_owned(),
            seqno: state.seqno,
            scope,
            ranges: PinRanges::new(),
            user: Bytes::copy_from_slice(user),
        };
        let kept = Arc::default();
        let pin = Pin::new(info.clone(), state.last_tree, kept, &self.holds);
        state.pins.last = id;
        let before = state.pins.by_id.insert(id, pin);
        debug_assert!(before.is_none(), "no number is given out twice");
        Ok(info)
    }

    pub(super) fn unpin(&self, name: &str) -> Result<(), KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        let id = state.pins.find(name)?;
        let gone = state.pins.by_id.remove(&id);
        debug_assert!(
            gone.is_some_and(|pin| pin.info.name == name),
            "a pin that was found"
        );
        Ok(())
    }

    pub(super) fn narrow(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        let id = state.pins.find(name)?;
        let pin = &state.pins.by_id[&id];
        if ranges.is_empty() {
            return Ok(pin.info.clone());
        }
        let mut info = pin.info.clone();
        let trees = match pin.info.scope.trees() {
            Some(trees) => trees.to_vec(),
            None => state.trees_of(pin),
        };
        for (tree, ranges) in ranges {
            if !trees.contains(tree) {
                return Err(KvError::NotHeld(*tree));
            }
            check_pin_ranges(*tree, info.ranges.get(tree), ranges)?;
            info.ranges.insert(*tree, ranges.clone());
        }
        info.scope = PinScope::Trees(trees.into());
        let (last_tree, kept) = (pin.last_tree, Arc::clone(&pin.kept));
        let narrowed = Pin::new(info.clone(), last_tree, kept, &self.holds);
        let before = state.pins.by_id.insert(id, narrowed);
        debug_assert!(before.is_some(), "a pin that was found");
        Ok(info)
    }

    pub(super) fn set_pin_user(&self, name: &str, user: &[u8]) -> Result<(), KvError> {
        let mut state = self.state.write();
        state.check_open()?;
        check_pin_user(user)?;
        let id = state.pins.find(name)?;
        let old_bytes = state.pins.by_id[&id].info.user.len() as u64;
        let more_bytes = (user.len() as u64).saturating_sub(old_bytes);
        check_free(more_bytes, state.space().free_bytes)?;
        let pin = state.pins.by_id.get_mut(&id).expect("a pin that was found");
        debug_assert_eq!(pin.info.name, name, "the pin of this name");
        pin.info.user = Bytes::copy_from_slice(user);
        Ok(())
    }
}

impl super::State {
    /// Drops a tree. Pins that see it keep it, and so do its branches.
    pub(super) fn remove(&mut self, tree: TreeId) -> Result<(), KvError> {
        let removed = self.trees.remove(&tree);
        let removed = removed.ok_or(KvError::NoTree(tree))?;
        self.pins.keep_tree(&removed.info(tree), &removed.rows);
        Ok(())
    }

    /// Returns the trees that a pin of all trees sees, in ascending order.
    fn trees_of(&self, pin: &Pin) -> Vec<TreeId> {
        debug_assert_eq!(pin.info.scope, PinScope::AllTrees);
        let living = self.trees.range(..=pin.last_tree).map(|(id, _)| *id);
        let kept = pin.kept.infos().into_iter().map(|info| info.id);
        let mut trees: Vec<TreeId> = living.chain(kept).collect();
        trees.sort_unstable();
        trees
    }

    /// Refuses keys of which the pin of a hold does not hold the moment: those of a tree that it
    /// does not hold, or beside the ranges that it holds; and those of a later branch of the tree.
    pub(super) fn check_held(
        &self,
        hold: &Hold,
        (tree, on): (TreeId, Guarded<'_>),
    ) -> Result<(), KvError> {
        let (_, last_tree) = hold.moment();
        let of_moment = match self.trees.get(&tree) {
            Some(found) => super::branches::first_of(tree, &found.rows, last_tree),
            None => Some(tree).filter(|tree| *tree <= last_tree),
        };
        if of_moment.is_some_and(|tree| !hold.has(tree)) {
            return Err(KvError::NotHeld(tree));
        }
        match of_moment.is_none_or(|of| hold.covers(of, on)) {
            true => Ok(()),
            false => Err(KvError::KeysNotHeld(tree)),
        }
    }
}
