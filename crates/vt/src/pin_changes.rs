//! Making, changing, narrowing and dropping pins.

use crate::VtError;
use crate::install::{Install, Installer};
use crate::kept::KeptViews;
use crate::pins::Sight;
use crate::signals::Worker;
use crate::snapshots::Hold;
use crate::store::Store;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_format::superblock::{FEATURE_PIN_RANGES, FEATURE_PIN_SCOPES, FEATURE_PINS};
use stitch_format::vt_manifest::{NarrowedPin, PinRecord, VersionEdit};
use stitch_kv::{
    KvError, PinInfo, PinRanges, PinScope, TreeInfo, check_pin_name, check_pin_ranges,
    check_pin_user,
};

impl Store {
    /// Creates a pin of the living trees for which `is_held` returns true.
    pub(crate) fn create_pin(
        &self,
        name: &str,
        user: &[u8],
        is_held: &dyn Fn(&TreeInfo) -> bool,
    ) -> Result<PinInfo, KvError> {
        self.gate.check_writable()?;
        check_pin_name(name)?;
        check_pin_user(user)?;
        let mut installer = self.versions.lock();
        if self.pins.find(name).is_ok() {
            return Err(KvError::PinExists(name.to_owned()));
        }
        let version = self.version();
        let mut edit = version.edit();
        let id = version.last_pin.next();
        edit.pins.last = id;
        let living = version.living().map(|tree| &tree.info);
        let living = living.filter(|info| !version.is_temporary(info.id));
        let scope = PinScope::chosen(living, |tree| tree.id, |tree| is_held(tree));
        let trees = scope.trees().map(<[TreeId]>::to_vec);
        debug_assert!(
            trees.as_ref().is_none_or(|trees| trees.is_sorted()),
            "trees are in order"
        );
        // First of all: from now on compactions keep what the pin sees.
        let sight = Sight::new(id, version.next_tree, (scope, PinRanges::new()));
        let hold = self.snapshots.take_for_pin(&self.visible, sight);
        edit.pins.new.push(PinRecord {
            id,
            name: name.to_owned(),
            seqno: hold.seqno(),
            next_tree: version.next_tree,
            user: user.to_vec(),
            trees,
            ranges: Vec::new(),
        });
        drop(version);
        self.versions.check_trees_fit(&edit)?;
        // Every write that the pin sees is in the log: it is visible. The log is made durable
        // before the edit.
        self.install_pins(&mut installer, edit, Some(hold))?;
        let (made, _) = self.pins.find(name)?;
        debug_assert_eq!(made.id, id, "the name leads to the new pin");
        Ok(made)
    }

    pub(crate) fn alter_pin(&self, name: &str, user: &[u8]) -> Result<(), KvError> {
        self.gate.check_writable()?;
        check_pin_user(user)?;
        let mut installer = self.versions.lock();
        let (pin, _) = self.pins.find(name)?;
        if pin.user == user {
            return Ok(());
        }
        let mut edit = self.version().edit();
        edit.pins.altered.push((pin.id, user.to_vec()));
        self.versions.check_trees_fit(&edit)?;
        self.install_pins(&mut installer, edit, None)?;
        debug_assert!(
            self.pins.find(name).is_ok_and(|(pin, _)| pin.user == user),
            "the pin has what its user gave it"
        );
        Ok(())
    }

    /// Narrows a pin to ranges of the keys of some of its trees.
    pub(crate) fn narrow_pin(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError> {
        self.gate.check_writable()?;
        let mut installer = self.versions.lock();
        let (pin, hold) = self.pins.find(name)?;
        let version = self.version();
        let sight = hold.sight().expect("the hold of a pin has its sight");
        let trees = match pin.scope.trees() {
            Some(trees) => trees.to_vec(),
            None => sight.trees_in(&version),
        };
        let all = narrower(&pin, &trees, ranges)?;
        if all == pin.ranges {
            return Ok(pin);
        }
        let mut edit = version.edit();
        edit.pins.narrowed.push(NarrowedPin {
            id: pin.id,
            trees: trees.clone(),
            ranges: all
                .iter()
                .map(|(tree, ranges)| (*tree, ranges.as_slice().to_vec()))
                .collect(),
        });
        drop(version);
        self.versions.check_trees_fit(&edit)?;
        // The moment is held before as after.
        let scope = PinScope::Trees(trees.into());
        let narrow = Sight::new(pin.id, sight.next_tree(), (scope, all));
        let narrow = self.snapshots.take_again(pin.seqno, narrow);
        self.install_pins(&mut installer, edit, Some(narrow))?;
        drop(hold);
        // What it holds no more can be compacted away now.
        self.signals.wake(Worker::Compaction);
        let (narrowed, _) = self.pins.find(name)?;
        debug_assert!(
            narrowed.scope.trees().is_some(),
            "a pin that was narrowed lists its trees"
        );
        debug_assert_eq!(narrowed.seqno, pin.seqno, "its moment stays");
        Ok(narrowed)
    }

    pub(crate) fn drop_pin(&self, name: &str) -> Result<(), KvError> {
        self.gate.check_writable()?;
        let mut installer = self.versions.lock();
        let (pin, hold) = self.pins.find(name)?;
        let version = self.version();
        let mut edit = version.edit();
        edit.pins.dropped.push(pin.id);
        version.note_dropped(&mut edit, &BTreeSet::new(), (&self.pins, &[pin.id]));
        let mut readers = self.pins.lingering();
        readers.push(hold);
        // Those also that snapshots have from before it was narrowed.
        let is_own = |hold: &&Arc<Hold>| hold.sight().is_some_and(|sight| sight.is_of(pin.id));
        let own: Vec<_> = readers.iter().filter(is_own).map(Arc::clone).collect();
        debug_assert!(!own.is_empty(), "the pin has a hold");
        let kept = KeptViews::give(&self.views.get(), readers, &edit.dropped_trees);
        let installed = self.install_pins(&mut installer, edit, None);
        match &installed {
            Ok(()) => {
                let sights = own.iter().filter_map(|hold| hold.sight());
                sights.for_each(|sight| sight.end(&version));
                debug_assert!(self.pins.find(name).is_err(), "the name is free again");
            }
            Err(_) => kept.take_back(),
        }
        drop((kept, own, version));
        // What only the pin saw can be compacted away now.
        self.signals.wake(Worker::Compaction);
        installed
    }

    /// Installs an edit that changes pins, and trees that only dropped pins saw.
    fn install_pins(
        &self,
        installer: &mut Installer,
        edit: VersionEdit,
        new: Option<Arc<Hold>>,
    ) -> Result<(), KvError> {
        debug_assert!(edit.added.is_empty(), "no table changes with a pin");
        debug_assert!(edit.removed.is_empty(), "no table changes with a pin");
        let mut features = FEATURE_PINS;
        if edit.has_pin_scopes() {
            features |= FEATURE_PIN_SCOPES;
        }
        if edit.has_pin_ranges() {
            features |= FEATURE_PIN_RANGES;
        }
        let required = self.volume.require_feature(features);
        required.map_err(VtError::from)?;
        let changes = edit.pins.clone();
        let install = Install {
            edit,
            ..Install::default()
        };
        self.versions.install(installer, install)?;
        self.pins.change(&changes, new);
        Ok(())
    }
}

/// Returns all ranges of a pin of these trees after it was narrowed to some.
fn narrower(pin: &PinInfo, trees: &[TreeId], ranges: &PinRanges) -> Result<PinRanges, KvError> {
    debug_assert!(trees.is_sorted(), "trees are in order");
    let mut all = pin.ranges.clone();
    for (tree, ranges) in ranges {
        if trees.binary_search(tree).is_err() {
            return Err(KvError::NotHeld(*tree));
        }
        check_pin_ranges(*tree, pin.ranges.get(tree), ranges)?;
        all.insert(*tree, ranges.clone());
    }
    debug_assert!(
        all.len() >= pin.ranges.len(),
        "what was narrowed stays narrowed"
    );
    Ok(all)
}
