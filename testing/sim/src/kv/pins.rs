//! Pins in the workloads. What a pin sees is part of the state: `@pin/tree` beside the trees, and
//! an empty `@pin`. Which number a tree had then is in the pin's bytes of the user.

use super::model::{self, KvOp, Map, Model, Trees};
use super::{LiveKv, error, scan, wrong};
use crate::SystemError;
use std::collections::BTreeSet;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::{Direction, Engine, KvError, PinInfo, TreeInfo};

/// Pins at the same time.
const SLOTS: u64 = 3;

/// Makes a pin or drops one.
pub(super) fn generate(model: &Model, rng: &mut Rng) -> KvOp {
    let name = format!("@pin-{}", rng.below(SLOTS));
    match model.pins.contains_key(&name) {
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
            let map = scan(engine, tree, Direction::Forward, Some(&at))?;
            let back = scan(engine, tree, Direction::Backward, Some(&at))?;
            if map != back {
                let [found, other] = [map, back].map(|map| Trees::from([(name.clone(), map)]));
                let difference = model::difference(&other, &found);
                return Err(wrong(format!("a backward scan differs: {difference}")));
            }
            all.insert(name, map);
        }
        all.insert(pin.name, Map::new());
    }
    Ok(())
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
