//! The records of pins, as edits of the version log change them.

use crate::VtError;
use crate::version::{Version, wrong};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::{PinId, TreeId};
use stitch_format::vt_manifest::{NarrowedPin, PinChanges, PinRecord};
use stitch_kv::{check_pin_name, check_pin_user};

/// Records by number and by name.
///
/// - Numbers and the trees that pins see rise together.
/// - Each pin is among those of all trees, or of some.
#[derive(Clone, Debug, Default)]
pub(crate) struct PinRecords {
    by_id: BTreeMap<PinId, PinRecord>,
    by_name: BTreeMap<String, PinId>,
    of_all_trees: BTreeSet<PinId>,
    /// For each tree that pins of some trees hold: these.
    of_trees: BTreeMap<TreeId, BTreeSet<PinId>>,
    /// What a base takes to list them.
    base_bytes: u64,
}

impl PinRecords {
    /// Every record, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PinRecord> {
        self.by_id.values()
    }

    /// Every record, by number.
    pub(super) fn into_vec(self) -> Vec<PinRecord> {
        self.by_id.into_values().collect()
    }

    /// Number of pins.
    pub(super) fn len(&self) -> usize {
        debug_assert_eq!(
            self.by_id.len(),
            self.by_name.len(),
            "a pin has a name of its own"
        );
        self.by_id.len()
    }

    /// Returns the record of a name.
    pub(super) fn find(&self, name: &str) -> Option<&PinRecord> {
        let found = self.by_id.get(self.by_name.get(name)?);
        debug_assert!(
            found.is_some_and(|record| record.name == name),
            "a name is that of its record"
        );
        found
    }

    /// Returns the record of a number.
    pub(super) fn get(&self, id: PinId) -> Option<&PinRecord> {
        self.by_id.get(&id)
    }

    /// Returns the newest pin that sees a tree, which is dropped before pin `unseen_by` is made,
    /// but for the pins `but`, which are in order. Looks at one more pin of each kind than these at
    /// most: of those of all trees, older ones see no more.
    pub(super) fn newest_seer(
        &self,
        tree: TreeId,
        unseen_by: PinId,
        but: &[PinId],
    ) -> Option<PinId> {
        debug_assert!(but.is_sorted(), "it is searched by halves");
        let newest = |pins: &BTreeSet<PinId>| {
            let mut older = pins.range(..unseen_by).rev();
            older.find(|id| but.binary_search(id).is_err()).copied()
        };
        let of_all = newest(&self.of_all_trees);
        let of_all = of_all.filter(|id| tree < self.by_id[id].next_tree);
        let of_tree = self.of_trees.get(&tree).and_then(newest);
        let found = of_all.max(of_tree);
        debug_assert!(
            found.is_none_or(|id| id < unseen_by),
            "it is older than the drop"
        );
        debug_assert!(found.is_none_or(|id| !but.contains(&id)), "another one");
        found
    }

    /// Returns the pins that hold a moment of a tree, newest first, up to the newest of all trees.
    pub(super) fn newest_first(&self, tree: TreeId) -> impl Iterator<Item = PinId> {
        let of_all = self.of_all_trees.last().copied();
        debug_assert!(
            of_all.is_none_or(|id| self.by_id.contains_key(&id)),
            "of pins that are there"
        );
        let of_tree = self.of_trees.get(&tree).into_iter().flatten().rev();
        let newer = of_tree.copied().take_while(move |id| Some(*id) > of_all);
        newer.chain(of_all)
    }

    /// Applies the changes of an edit. Edits come from the medium: nothing in them is trusted.
    ///
    /// # Errors
    /// [`VtError::Version`] for changes that do not belong to these pins.
    pub(crate) fn apply(&mut self, changes: &PinChanges) -> Result<(), VtError> {
        for id in &changes.dropped {
            let gone = self.by_id.remove(id);
            let gone = gone.ok_or_else(|| wrong(format!("pin {id} is dropped but not there")))?;
            self.by_name.remove(&gone.name);
            self.base_bytes -= gone.base_bytes();
            self.leave(&gone);
        }
        for record in &changes.new {
            self.add(record, changes.last)?;
        }
        for (id, user) in &changes.altered {
            let found = self.by_id.get_mut(id);
            let found = found.ok_or_else(|| wrong(format!("pin {id} is altered but not there")))?;
            check_user(user)?;
            self.base_bytes -= found.base_bytes();
            found.user.clone_from(user);
            self.base_bytes += found.base_bytes();
        }
        for narrowed in &changes.narrowed {
            self.narrow(narrowed)?;
        }
        self.assert_invariants();
        Ok(())
    }

    /// Asserts that sums and indexes agree with the records.
    fn assert_invariants(&self) {
        debug_assert_eq!(
            self.by_id.len(),
            self.by_name.len(),
            "a pin has a name of its own"
        );
        debug_assert!(
            self.of_all_trees.len() <= self.by_id.len(),
            "of pins that are there"
        );
        debug_assert_eq!(
            self.base_bytes,
            self.iter().map(PinRecord::base_bytes).sum::<u64>(),
            "each is counted"
        );
        debug_assert!(
            self.of_trees.values().all(|pins| !pins.is_empty()),
            "only trees that pins list"
        );
    }

    fn narrow(&mut self, narrowed: &NarrowedPin) -> Result<(), VtError> {
        let id = narrowed.id;
        let found = self.by_id.remove(&id);
        let found = found.ok_or_else(|| wrong(format!("pin {id} is narrowed but not there")))?;
        self.base_bytes -= found.base_bytes();
        self.leave(&found);
        self.enter(narrowed_record(&found, narrowed))
    }

    fn add(&mut self, record: &PinRecord, last: PinId) -> Result<(), VtError> {
        let id = record.id;
        let newest = self.by_id.last_key_value();
        let is_next = newest.is_none_or(|(newest, before)| {
            *newest < id && before.next_tree <= record.next_tree && before.seqno <= record.seqno
        });
        if !is_next || id > last {
            return Err(wrong(format!("pin {id} is out of order")));
        }
        check_pin_name(&record.name).map_err(|e| wrong(e.to_string()))?;
        check_user(&record.user)?;
        if self.by_name.insert(record.name.clone(), id).is_some() {
            return Err(wrong(format!("pin {id} has the name of another")));
        }
        self.enter(record.clone())
    }

    /// A pin holds its trees from now on.
    fn enter(&mut self, record: PinRecord) -> Result<(), VtError> {
        let id = record.id;
        let mut trees = record.trees.iter().flatten();
        if trees.any(|tree| *tree >= record.next_tree) {
            return Err(wrong(format!("pin {id} holds a tree that it does not see")));
        }
        self.base_bytes += record.base_bytes();
        match &record.trees {
            None => drop(self.of_all_trees.insert(id)),
            Some(trees) => {
                for tree in trees {
                    self.of_trees.entry(*tree).or_default().insert(id);
                }
            }
        }
        let before = self.by_id.insert(id, record);
        debug_assert!(before.is_none(), "a pin is entered once");
        Ok(())
    }

    /// A pin holds its trees no more.
    fn leave(&mut self, gone: &PinRecord) {
        let was_of_all = self.of_all_trees.remove(&gone.id);
        debug_assert_eq!(was_of_all, gone.trees.is_none(), "it was entered so");
        for tree in gone.trees.iter().flatten() {
            let pins = self.of_trees.get_mut(tree).expect("the tree of a pin");
            let was_of_tree = pins.remove(&gone.id);
            debug_assert!(was_of_tree, "it was entered for each of its trees");
            if pins.is_empty() {
                self.of_trees.remove(tree);
            }
        }
    }

    /// Reports whether any pin is one of some trees after a change.
    pub(super) fn has_scopes_after(&self, changes: &PinChanges) -> bool {
        let is_scoped = |id: &&PinId| self.by_id.get(id).is_some_and(|pin| pin.trees.is_some());
        let gone = changes.dropped.iter().filter(is_scoped).count();
        debug_assert!(
            self.of_all_trees.len() <= self.by_id.len(),
            "of pins that are there"
        );
        let scoped = self.by_id.len() - self.of_all_trees.len();
        let is_new = changes.new.iter().any(|pin| pin.trees.is_some());
        scoped > gone || is_new || !changes.narrowed.is_empty()
    }

    /// Returns what a base takes to list them after a change, in bytes.
    pub(super) fn base_bytes_after(&self, changes: &PinChanges) -> u64 {
        let of = |id: &PinId| self.by_id.get(id);
        let gone = changes.dropped.iter().filter_map(of);
        let gone: u64 = gone.map(PinRecord::base_bytes).sum();
        let new: u64 = changes.new.iter().map(PinRecord::base_bytes).sum();
        debug_assert!(gone <= self.base_bytes, "each is counted");
        let mut bytes = self.base_bytes - gone + new;
        for (id, user) in &changes.altered {
            let Some(record) = of(id) else {
                continue;
            };
            bytes += record.bytes_with_user(user.len());
            bytes -= record.base_bytes();
        }
        for narrowed in &changes.narrowed {
            let Some(record) = of(&narrowed.id) else {
                continue;
            };
            bytes += narrowed_record(record, narrowed).base_bytes();
            bytes -= record.base_bytes();
        }
        bytes
    }

    /// Checks what holds between the pins and a version.
    ///
    /// # Errors
    /// [`VtError::Version`] if no pin sees and no branch reads a hidden tree, or a pin has or sees
    /// a number that was not given out.
    pub(crate) fn check(&self, version: &Version) -> Result<(), VtError> {
        let branches = version.trees.values().filter_map(|tree| tree.info.branch);
        let parents: BTreeSet<TreeId> = branches.map(|branch| branch.parent).collect();
        for (tree, unseen_by) in version.hidden() {
            let is_seen = self.newest_seer(tree, unseen_by, &[]).is_some();
            if !is_seen && !parents.contains(&tree) {
                let what = format!("hidden tree {tree} is seen by no pin and read by no branch");
                return Err(wrong(what));
            }
        }
        for (tree, pins) in &self.of_trees {
            if !version.trees.contains_key(tree) {
                let what = format!("tree {tree} is dropped but pins {pins:?} hold it");
                return Err(wrong(what));
            }
        }
        let Some((id, newest)) = self.by_id.last_key_value() else {
            return Ok(());
        };
        if *id > version.last_pin || newest.next_tree > version.next_tree {
            return Err(wrong(format!("pin {id} has a number not given out yet")));
        }
        Ok(())
    }
}

/// Returns the record of a pin after it was narrowed.
fn narrowed_record(record: &PinRecord, narrowed: &NarrowedPin) -> PinRecord {
    debug_assert_eq!(record.id, narrowed.id, "the record of the pin");
    PinRecord {
        trees: Some(narrowed.trees.clone()),
        ranges: narrowed.ranges.clone(),
        ..record.clone()
    }
}

fn check_user(user: &[u8]) -> Result<(), VtError> {
    check_pin_user(user).map_err(|e| wrong(e.to_string()))
}
