//! Pins in the workloads. What a pin sees is part of the state: `@pin/tree` beside the trees, and
//! an empty `@pin`; and an empty `@pin/tree!` where it holds ranges of a tree alone. Which number a
//! tree had then is in the pin's bytes of the user.

use super::model::{self, KvOp, Map, Model, Trees};
use super::{LiveKv, error, scan, wrong};
use crate::SystemError;
use std::collections::BTreeSet;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::{
    Direction, Engine, KeyRange, KeyRanges, KvError, NewBranch, PinInfo, PinRanges, Snapshot,
    TreeInfo,
};

/// Pins at the same time.
const SLOTS: u64 = 3;

/// Makes a pin, narrows one or drops it.
pub(super) fn generate(model: &Model, rng: &mut Rng) -> KvOp {
    let name = format!("@pin-{}", rng.below(SLOTS));
    match model.pins.contains_key(&name) {
        true if rng.one_in(2) => narrow(model, name, rng),
        true => KvOp::DropPin(name),
        false => {
            let trees = model.trees.keys().cloned();
            // Half of them are of all trees.
            let is_of_all = rng.one_in(2);
            let chosen = trees.filter(|_| is_of_all || rng.one_in(2)).collect();
            KvOp::CreatePin(name, chosen)
        }
    }
}

/// Narrows a pin to ranges of a tree that it holds whole; drops it if there is none.
fn narrow(model: &Model, pin: String, rng: &mut Rng) -> KvOp {
    let is_whole = |tree: &&String| !model.narrowed.contains(&(pin.clone(), (*tree).clone()));
    let whole: Vec<&String> = model.pins[&pin].keys().filter(is_whole).collect();
    let Some(last) = whole.len().checked_sub(1) else {
        return KvOp::DropPin(pin);
    };
    let tree = whole[model::small(rng, last as u64 + 1)].clone();
    // Keys that the tree has, so that the ranges hold something.
    let keys: Vec<&Vec<u8>> = model.pins[&pin][&tree].keys().collect();
    let key = |rng: &mut Rng| match keys.is_empty() {
        true => vec![0, u8::try_from(rng.below(256)).unwrap_or(0)],
        false => keys[model::small(rng, keys.len() as u64)].clone(),
    };
    let range = |_| (key(rng), Some(key(rng)).filter(|_| !rng.one_in(8)));
    let ranges = (0..3).map(range).collect::<Vec<_>>();
    KvOp::NarrowPin(pin, tree, KeyRanges::new(ranges))
}

/// Returns a pin and a tree of it that still lives; one of which it holds ranges, if there is any.
pub(super) fn held_tree(model: &Model, rng: &mut Rng) -> Option<(String, String)> {
    let living = model.living.iter();
    let narrowed = living.clone().filter(|held| model.narrowed.contains(*held));
    let mut held: Vec<_> = narrowed.collect();
    if held.is_empty() {
        held.extend(living);
    }
    let last = held.len().checked_sub(1)?;
    Some(held[model::small(rng, last as u64 + 1)].clone())
}

/// Reports whether a tree of a state is of a pin.
pub(super) fn is_pinned(name: &str) -> bool {
    name.starts_with('@')
}

/// All that a user of the model sees.
pub(super) fn state(model: &Model) -> Trees {
    let mut all = model.trees.clone();
    for (pin, trees) in &model.pins {
        all.insert(pin.clone(), Map::new());
        let named = |(name, map): (&String, &Map)| (format!("{pin}/{name}"), map.clone());
        all.extend(trees.iter().map(named));
    }
    let narrowed = model.narrowed.iter();
    all.extend(narrowed.map(|(pin, tree)| (format!("{pin}/{tree}!"), Map::new())));
    all
}

impl LiveKv {
    pub(super) fn create_pin(&self, name: &str, of: &BTreeSet<String>) -> Result<(), KvError> {
        let trees = self.trees.iter().filter(|(name, _)| of.contains(*name));
        let trees: Vec<String> = trees.map(|(name, id)| format!("{name}={id}")).collect();
        let (user, is_held) = (trees.join(" "), |tree: &TreeInfo| of.contains(&tree.name));
        let made = self.engine.create_pin_of(name, user.as_bytes(), &is_held);
        made.map(drop)
    }

    /// Makes a branch of a tree. Until the next open it gives up what it replaces.
    pub(super) fn branch_tree(&mut self, tree: &str, name: &str) -> Result<(), KvError> {
        let new = [NewBranch::new(self.trees[tree], name)];
        let made = self.engine.branch_trees(&new, None)?;
        debug_assert_eq!(made.len(), 1, "one is made");
        self.trees.insert(name.to_owned(), made[0]);
        self.engine.release_replaced(&made)
    }

    /// Makes a branch of what a pin holds of a tree that still lives.
    pub(super) fn branch_pin(
        &mut self,
        pin: &str,
        (tree, name): (&str, &str),
    ) -> Result<(), KvError> {
        let at = self.engine.open_pin(pin)?;
        let new = [NewBranch::new(self.trees[tree], name)];
        let made = self.engine.branch_trees(&new, Some(&at))?;
        debug_assert_eq!(made.len(), 1, "one is made");
        self.trees.insert(name.to_owned(), made[0]);
        self.engine.release_replaced(&made)
    }

    /// Narrows a pin to ranges of the tree that had this name when it was created.
    pub(super) fn narrow_pin(
        &self,
        name: &str,
        tree: &str,
        ranges: &KeyRanges,
    ) -> Result<(), KvError> {
        let pins = self.engine.pins()?;
        let pin = pins.iter().find(|pin| pin.name == name);
        let trees = pin.and_then(|pin| trees_of(pin).ok());
        let full_name = format!("{name}/{tree}");
        let mut trees = trees.into_iter().flatten();
        let found = trees.find(|(named, _)| *named == full_name);
        let (_, id) = found.ok_or_else(|| KvError::PinNotFound(full_name))?;
        let ranges = PinRanges::from([(id, ranges.clone())]);
        self.engine.narrow_pin(name, &ranges).map(drop)
    }
}

/// The trees of a pin, by the names that a state has for them.
fn trees_of(pin: &PinInfo) -> Result<Vec<(String, TreeId)>, SystemError> {
    let bad = || {
        wrong(format!(
            "pin {:?} has other bytes: {:?}",
            pin.name, pin.user
        ))
    };
    let text = std::str::from_utf8(&pin.user).map_err(|_| bad())?;
    let mut trees = Vec::new();
    for word in text.split_whitespace() {
        let (name, id) = word.split_once('=').ok_or_else(bad)?;
        let id = id.parse().map_err(|_| bad())?;
        trees.push((format!("{}/{name}", pin.name), TreeId(id)));
    }
    Ok(trees)
}

/// A pin holds its trees, and refuses to show any other of its moment.
fn check_scope(
    engine: &dyn Engine,
    pin: &PinInfo,
    held: &[(String, TreeId)],
) -> Result<(), SystemError> {
    let Some(trees) = pin.scope.trees() else {
        return Ok(());
    };
    let mut named: Vec<TreeId> = held.iter().map(|(_, tree)| *tree).collect();
    named.sort_unstable();
    if named != trees {
        return Err(wrong(format!(
            "pin {:?} holds {trees:?}, not {named:?}",
            pin.name
        )));
    }
    let last = named.last().copied().unwrap_or_default();
    let at = engine.open_pin(&pin.name).map_err(error)?;
    for tree in (1..last.0).map(TreeId).filter(|tree| !trees.contains(tree)) {
        match engine.get(tree, b"", Some(&at)) {
            Err(KvError::NotHeld(_)) => {}
            other => return Err(wrong(format!("pin {:?} shows {tree}: {other:?}", pin.name))),
        }
    }
    Ok(())
}

/// Adds what the pins of an engine see.
pub(super) fn read(engine: &dyn Engine, all: &mut Trees) -> Result<(), SystemError> {
    if !engine.capabilities().pins {
        return Ok(());
    }
    for pin in engine.pins().map_err(error)? {
        let at = engine.open_pin(&pin.name).map_err(error)?;
        let held = trees_of(&pin)?;
        check_scope(engine, &pin, &held)?;
        for (name, tree) in held {
            let map = scan_held(engine, (&pin, tree), Direction::Forward, &at)?;
            let back = scan_held(engine, (&pin, tree), Direction::Backward, &at)?;
            if map != back {
                let [found, other] = [map, back].map(|map| Trees::from([(name.clone(), map)]));
                let difference = model::difference(&other, &found);
                return Err(wrong(format!("a backward scan differs: {difference}")));
            }
            if pin.ranges.contains_key(&tree) {
                all.insert(format!("{name}!"), Map::new());
            }
            all.insert(name, map);
        }
        all.insert(pin.name, Map::new());
    }
    Ok(())
}

/// All that a pin holds of a tree. It refuses to show any other key.
fn scan_held(
    engine: &dyn Engine,
    (pin, tree): (&PinInfo, TreeId),
    direction: Direction,
    at: &Snapshot,
) -> Result<Map, SystemError> {
    let Some(ranges) = pin.ranges.get(&tree) else {
        return scan(engine, tree, (KeyRange::all(), direction), Some(at));
    };
    let mut map = Map::new();
    for range in ranges.iter() {
        map.extend(scan(engine, tree, (range, direction), Some(at))?);
    }
    let key: &[u8] = &[0xff; 40];
    match engine.get(tree, key, Some(at)) {
        Ok(None) if ranges.has(key) => Ok(map),
        Err(KvError::KeysNotHeld(_)) if !ranges.has(key) => Ok(map),
        other => Err(wrong(format!(
            "pin {:?} shows {key:02x?}: {other:?}",
            pin.name
        ))),
    }
}

/// Compares what can be read of pins with a state; returns the number of reads that failed.
pub(super) fn compare_readable(engine: &dyn Engine, expected: &Trees) -> Result<u64, String> {
    if !engine.capabilities().pins {
        return Ok(0);
    }
    let pins = engine.pins().map_err(|e| e.to_string())?;
    let mut found = Trees::new();
    let mut errors = 0;
    for pin in pins {
        let at = engine.open_pin(&pin.name).map_err(|e| e.to_string())?;
        for (name, tree) in trees_of(&pin).map_err(|e| e.to_string())? {
            let wanted = expected.get(&name).ok_or("a tree of a pin too many")?;
            for (key, value) in wanted {
                match engine.get(tree, key, Some(&at)) {
                    Ok(Some(got)) if got == value[..] => {}
                    Ok(_) => return Err(format!("get of {key:02x?} in {name:?} is wrong")),
                    Err(_) => errors += 1,
                }
            }
            if pin.ranges.contains_key(&tree) {
                found.insert(format!("{name}!"), Map::new());
            }
            found.insert(name, Map::new());
        }
        found.insert(pin.name, Map::new());
    }
    let wanted = expected.keys().filter(|name| is_pinned(name));
    match found.keys().eq(wanted.clone()) {
        true => Ok(errors),
        false => {
            let wanted: Vec<_> = wanted.collect();
            Err(format!("pins are {:?}, not {wanted:?}", found.keys()))
        }
    }
}
