//! Pins in random runs. Trees of a pin are read through it also after they were dropped.

use super::super::keys_between::listed;
use super::{Run, first_rows};
use crate::{
    Direction, Engine, KeyRange, KeyRanges, KvError, PinInfo, PinRanges, Snapshot, TreeInfo,
};
use stitch_base::TreeId;

/// Most pins at the same time.
const PINS_MAX: usize = 6;

/// The pins of a run, and what was opened from them.
#[derive(Default)]
pub(super) struct RunPins {
    pins: Vec<RunPin>,
    /// Of the store and of the model, with the pin as it was then.
    pub(super) opened: Vec<(Snapshot, Snapshot, RunPin)>,
    /// Number of names given so far.
    names: u64,
}

#[derive(Clone)]
pub(super) struct RunPin {
    name: String,
    /// The trees that were there when it was created.
    trees: Vec<TreeId>,
    ranges: PinRanges,
}

/// Returns the keys in ranges that hold something else now than at a moment.
fn listed_within(
    engine: &dyn Engine,
    tree: TreeId,
    at: &Snapshot,
    ranges: &KeyRanges,
) -> Result<Vec<Vec<u8>>, KvError> {
    let mut keys = Vec::new();
    for range in ranges.iter() {
        keys.extend(engine.keys_between(tree, range, (at, None), usize::MAX)?);
    }
    Ok(keys)
}

impl Run {
    pub(super) fn pin_step(&mut self) {
        if !self.store.engine().capabilities().pins {
            return;
        }
        let choice = self.rng.below(100);
        let index = self.chosen(self.pins.pins.len());
        match (choice, index) {
            (0..35, _) | (_, None) => self.create_pin(),
            (35..55, Some(index)) => self.drop_pin(index),
            (55..60, Some(index)) => self.alter_pin(index),
            (60..72, Some(index)) => self.open_pin(index),
            (72..86, Some(index)) => self.narrow_pin(index),
            (_, Some(index)) => self.compare_pin(index),
        }
        if choice.is_multiple_of(4) {
            self.compare_opened();
        }
    }

    /// Chooses one of `count`.
    pub(super) fn chosen(&mut self, count: usize) -> Option<usize> {
        let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
        usize::try_from(self.rng.below(count)).ok()
    }

    fn create_pin(&mut self) {
        if self.pins.pins.len() == PINS_MAX {
            return;
        }
        let name = format!("pin {}", self.pins.names);
        self.pins.names += 1;
        let user = self.value();
        let user = &user[..user.len().min(crate::PIN_USER_BYTES_MAX)];
        // Half of them are pins of some trees.
        let chosen = match self.rng.one_in(2) {
            true => self.rng.next_u64(),
            false => u64::MAX,
        };
        let has_scopes = self.store.engine().capabilities().pins_of_trees;
        let is_held = |tree: &TreeInfo| !has_scopes || chosen >> (tree.id.0 % 64) & 1 == 1;
        let made = self.store.engine().create_pin_of(&name, user, &is_held);
        let made = made.unwrap_or_else(|e| panic!("{}: {e}", self.at()));
        let modelled = self.model.create_pin_of(&name, user, &is_held);
        let modelled = modelled.expect("the model makes pins");
        assert_eq!(made.user, modelled.user);
        assert_eq!(made.scope, modelled.scope, "{}", self.at());
        assert_eq!(made.seqno, self.store.engine().snapshot().seqno());
        let trees = self.trees.clone();
        let ranges = PinRanges::new();
        self.pins.pins.push(RunPin {
            name,
            trees,
            ranges,
        });
    }

    fn drop_pin(&mut self, index: usize) {
        let pin = self.pins.pins.remove(index);
        let dropped = self.store.engine().drop_pin(&pin.name);
        assert!(dropped.is_ok(), "{}: {dropped:?}", self.at());
        let modelled = self.model.drop_pin(&pin.name);
        modelled.expect("the model drops pins");
    }

    fn alter_pin(&mut self, index: usize) {
        let user = self.rng.next_u64().to_le_bytes();
        let name = &self.pins.pins[index].name;
        let altered = self.store.engine().alter_pin(name, &user);
        assert!(altered.is_ok(), "{}: {altered:?}", self.at());
        let modelled = self.model.alter_pin(name, &user);
        modelled.expect("the model alters pins");
    }

    /// A snapshot of a pin, of the store and of the model.
    fn pin_snapshots(&self, index: usize) -> (Snapshot, Snapshot) {
        let name = &self.pins.pins[index].name;
        let found = self.store.engine().open_pin(name);
        let found = found.unwrap_or_else(|e| panic!("{}: {e}", self.at()));
        (found, self.model.open_pin(name).expect("the model opens"))
    }

    /// A snapshot of a pin, if there is one.
    pub(super) fn any_pin(&mut self) -> Option<(Snapshot, Snapshot)> {
        let index = self.chosen(self.pins.pins.len())?;
        Some(self.pin_snapshots(index))
    }

    fn open_pin(&mut self, index: usize) {
        // Drawn in any case: how many are open depends on when the store was opened anew, and what
        // comes later must not.
        let closed = self.chosen(PINS_MAX).expect("some may be open");
        if self.pins.opened.len() < PINS_MAX {
            let (store, model) = self.pin_snapshots(index);
            let pin = self.pins.pins[index].clone();
            self.pins.opened.push((store, model, pin));
        } else {
            self.pins.opened.swap_remove(closed);
        }
    }

    /// Narrows a pin to some ranges of one of its trees, or within those that it has.
    fn narrow_pin(&mut self, index: usize) {
        // Drawn in any case: what an engine can must not change what comes later.
        let trees = self.pins.pins[index].trees.clone();
        let chosen = self.chosen(trees.len());
        let count = self.rng.below(4);
        let ends: Vec<_> = (0..count)
            .map(|_| (self.key(), Some(self.key()).filter(|_| !self.rng.one_in(8))))
            .collect();
        let is_within = self.rng.one_in(2);
        let Some(tree) = chosen.map(|chosen| trees[chosen]) else {
            return;
        };
        if !self.store.engine().capabilities().pins_of_ranges {
            return;
        }
        let pin = &self.pins.pins[index];
        let ranges = match pin.ranges.get(&tree) {
            Some(before) if is_within => before.as_slice().iter().skip(1).cloned().collect(),
            _ => ends,
        };
        let ranges = PinRanges::from([(tree, KeyRanges::new(ranges))]);
        let found = self.store.engine().narrow_pin(&pin.name, &ranges);
        match (found, self.model.narrow_pin(&pin.name, &ranges)) {
            (Ok(found), Ok(expected)) => {
                let of = |info: PinInfo| (info.name, info.scope, info.ranges, info.user);
                let ranges = found.ranges.clone();
                assert_eq!(of(found), of(expected), "{}", self.at());
                self.pins.pins[index].ranges = ranges;
            }
            // It does not hold the tree, or not all of these keys.
            (Err(KvError::NotHeld(found)), Err(KvError::NotHeld(expected))) => {
                assert_eq!(found, expected, "{}", self.at());
            }
            (Err(KvError::Invalid(found)), Err(KvError::Invalid(expected))) => {
                assert_eq!(found, expected, "{}", self.at());
            }
            (found, expected) => panic!("{}: {found:?}, {expected:?}", self.at()),
        }
    }

    fn compare_opened(&self) {
        for (store, model, pin) in &self.pins.opened {
            self.compare_at((store, model), &pin.trees, &pin.ranges);
            self.compare_between((store, model), pin);
        }
    }

    /// Every key that holds something else now than at a moment is listed.
    fn compare_between(&self, (store, model): (&Snapshot, &Snapshot), pin: &RunPin) {
        if !self.store.engine().capabilities().keys_between {
            return;
        }
        for tree in pin.trees.iter().filter(|tree| self.trees.contains(tree)) {
            let (found, expected) = match pin.ranges.get(tree) {
                None => (
                    listed(self.store.engine(), *tree, (store, None), 100),
                    listed(&self.model, *tree, (model, None), usize::MAX),
                ),
                Some(ranges) => (
                    listed_within(self.store.engine(), *tree, store, ranges),
                    listed_within(&self.model, *tree, model, ranges),
                ),
            };
            if matches!(expected, Err(KvError::NotHeld(_))) {
                self.assert_refused(*tree, found.map(drop));
                continue;
            }
            let found = found.unwrap_or_else(|e| panic!("{}: {e}", self.at()));
            for key in expected.expect("the model lists keys") {
                let is_listed = found.binary_search(&key).is_ok();
                assert!(is_listed, "{}: tree {tree}, key {key:?}", self.at());
            }
        }
    }

    /// The model refuses a tree that a pin does not hold, and so does the store.
    fn assert_refused(&self, tree: TreeId, found: Result<(), KvError>) {
        let is_refused = matches!(found, Err(KvError::NotHeld(refused)) if refused == tree);
        assert!(is_refused, "{}: tree {tree}: {found:?}", self.at());
    }

    fn compare_pin(&self, index: usize) {
        let (store, model) = self.pin_snapshots(index);
        let pin = &self.pins.pins[index];
        self.compare_at((&store, &model), &pin.trees, &pin.ranges);
    }

    /// Compares trees at a moment, of which it holds these ranges alone of some.
    pub(super) fn compare_at(
        &self,
        (store, model): (&Snapshot, &Snapshot),
        trees: &[TreeId],
        ranges: &PinRanges,
    ) {
        for (number, tree) in trees.iter().enumerate() {
            let direction = match number % 2 {
                0 => Direction::Forward,
                _ => Direction::Backward,
            };
            if let Some(ranges) = ranges.get(tree) {
                self.compare_ranges((store, model), *tree, ranges, direction);
                continue;
            }
            let refused = self.model.get(*tree, b"k", Some(model));
            if matches!(refused, Err(KvError::NotHeld(_))) {
                let found = self.store.engine().get(*tree, b"k", Some(store));
                self.assert_refused(*tree, found.map(drop));
                continue;
            }
            let of = |engine: &dyn Engine, at| match engine.get(*tree, b"k", Some(at)) {
                Err(KvError::NoTree(_)) => None,
                found => {
                    let found = found.expect("the read works");
                    let all = KeyRange::all();
                    let rows = first_rows(engine, *tree, all, direction, Some(at), usize::MAX);
                    Some((found, rows))
                }
            };
            let (found, expected) = (of(self.store.engine(), store), of(&self.model, model));
            assert!(found == expected, "{}: tree {tree} of a pin", self.at());
        }
    }

    /// Compares the ranges that a moment has of a tree. All else is refused.
    fn compare_ranges(
        &self,
        (store, model): (&Snapshot, &Snapshot),
        tree: TreeId,
        ranges: &KeyRanges,
        direction: Direction,
    ) {
        let engine = self.store.engine();
        for range in ranges.iter() {
            let of = |engine: &dyn Engine, at| match engine.get(tree, range.start, Some(at)) {
                Err(KvError::NoTree(_)) => None,
                found => {
                    let found = found.expect("the key is held");
                    let rows = first_rows(engine, tree, range, direction, Some(at), usize::MAX);
                    Some((found, rows))
                }
            };
            let (found, expected) = (of(engine, store), of(&self.model, model));
            assert!(found == expected, "{}: {range:?} of a pin", self.at());
        }
        if !ranges.contains(KeyRange::all()) {
            let scan = engine.scan(tree, KeyRange::all(), direction, Some(store));
            let refused = matches!(scan.map(drop), Err(KvError::KeysNotHeld(of)) if of == tree);
            assert!(refused, "{}: tree {tree} is scanned whole", self.at());
        }
        let got = engine.get(tree, b"k", Some(store));
        let is_refused = matches!(got, Err(KvError::KeysNotHeld(of)) if of == tree);
        assert_eq!(is_refused, !ranges.has(b"k"), "{}: {got:?}", self.at());
    }

    /// Compares the list of pins, and all that each of them sees.
    pub(super) fn compare_pins(&self) {
        if !self.store.engine().capabilities().pins {
            return;
        }
        let of = |engine: &dyn Engine| {
            let listed = engine.pins().expect("the pins are listed").into_iter();
            let parts = listed.map(
                |PinInfo {
                     name,
                     user,
                     scope,
                     ranges,
                     ..
                 }| (name, user, scope, ranges),
            );
            parts.collect::<Vec<_>>()
        };
        let (found, expected) = (of(self.store.engine()), of(&self.model));
        assert_eq!(found, expected, "{}: pins", self.at());
        (0..self.pins.pins.len()).for_each(|index| self.compare_pin(index));
    }
}
