//! Narrows snapshots to what their directories need, in the background.
//!
//! A snapshot of a directory is created in constant time, so its pin holds all files at first. A
//! walk below the directory, at the pin's moment, finds the numbers under which contents are. Then
//! the pin is narrowed to these ([`stitch_kv::Engine::narrow_pin`]), and what is replaced in other
//! directories takes no space for its sake any more.
//!
//! ```text
//! create            pin holds      data: all keys
//! walk, in rounds                  numbers 17..90, 300..310, 512
//! narrow_pin        pin holds      data: 17..90, 300..310, 512.., and numbers given out later
//! ```
//!
//! - Rows of names, attributes and the `sys` tree stay whole: paths, back rows and the records of
//!   clones are read there, and they are short.
//! - Contents of clones that do not lie in the directory are not held at all.
//! - A snapshot of the root holds all, and is not walked.
//! - A walk makes way for commands on snapshots and clones ([`ViewCommands`]): a round ends at the
//!   next name while one is under way. [`Snapshots::narrowing_wait`] tells when the next round may
//!   begin.
//! - Nothing is stored of a walk. After a crash it begins anew; which snapshots are to be narrowed
//!   is what the list of pins says.
//!
//! Locks: `walk` is taken by the background alone. `names` after `snapshot_change`; the edit that
//! narrows a pin is made under `names` alone, so creating a snapshot or a clone waits for that edit
//! in the engine at most.

mod clones;
mod numbers;
mod walk;

use super::scope::Homes;
use super::{SnapshotInfo, SnapshotView, Snapshots};
use crate::FsResult;
use crate::locator::Tree;
use crate::schema::{SCHEMA, view_schema};
#[cfg(doc)]
use crate::views::ViewCommands;
pub(crate) use clones::CloneNarrowing;
use std::collections::BTreeSet;
use std::time::Duration;
use stitch_base::sync::{Arc, Mutex, MutexGuard};
use stitch_base::{Ino, PinId, TreeId};
use stitch_kv::{KeyRanges, KvError, PinInfo, PinRanges};
use walk::NumberWalk;

/// Snapshots that are narrowed, of all views of a store.
#[derive(Debug, Default)]
pub(crate) struct Narrowing {
    walk: Mutex<Option<NarrowWalk>>,
    /// Held while a pin of a snapshot is narrowed or dropped: a name is of the same pin meanwhile.
    names: Mutex<()>,
    /// Snapshots that could not be narrowed in this life. They hold all.
    given_up: Mutex<BTreeSet<PinId>>,
}

/// A walk below the directory of a snapshot.
#[derive(Debug)]
struct NarrowWalk {
    view: SnapshotView,
    below: NumberWalk,
}

impl Snapshots<'_> {
    /// Goes on with narrowing snapshots to what their directories need, oldest first. Returns
    /// whether there is more to do. This file system is mainline. To be called in the background.
    ///
    /// # Errors
    /// Those of the walk and of [`stitch_kv::Engine::narrow_pin`]: that snapshot holds all files in
    /// this life, and the next call goes on with others.
    ///
    /// # Durability
    /// What was narrowed is on the medium when this returns.
    ///
    /// # Cost
    /// A scan of some thousand names, fewer while a snapshot or a clone is created or removed; for
    /// the last ones of a snapshot a record in the engine's list of pins, of at most 256 ranges.
    pub fn narrow_ahead(&self) -> FsResult<bool> {
        let has_ranges = self.pins.engine.capabilities().pins_of_ranges;
        if !self.is_mainline || self.is_read_only || !has_ranges {
            return Ok(false);
        }
        let narrowing = &self.views.narrowing;
        let mut walk = narrowing.walk.lock();
        if walk.is_none() {
            let Some(info) = self.next_to_narrow()? else {
                return Ok(false);
            };
            let id = info.id;
            let view = SnapshotView::open(self.pins.engine, self.pins.options, info);
            *walk = Some(NarrowWalk::new(
                view.inspect_err(|_| narrowing.give_up(id))?,
            ));
        }
        let under_way = walk.as_mut().expect("a walk was begun");
        let id = under_way.view.info().id;
        let is_there = self.pins.engine.pin_by_id(id)?.is_some();
        match under_way.below.round(&self.views.commands) {
            Ok(false) if is_there => return Ok(true),
            // The edit keeps others from being made.
            Ok(true) if is_there && self.makes_way() => return Ok(true),
            Ok(true) if is_there => {}
            other => {
                // It was deleted, or cannot be walked.
                *walk = None;
                drop(walk);
                other.inspect_err(|_| narrowing.give_up(id))?;
                return Ok(true);
            }
        }
        let ranges = under_way.ranges();
        // Its snapshot goes, which holds all.
        *walk = None;
        drop(walk);
        debug_assert!(!ranges.is_empty(), "the contents of the directory are held");
        let narrowed = self.narrow_to(id, &ranges);
        narrowed.inspect_err(|_| narrowing.give_up(id))?;
        Ok(true)
    }

    /// Returns how long the next round of [`Self::narrow_ahead`] and of
    /// [`Self::narrow_clones_ahead`] is to wait, since snapshots or clones were created or removed
    /// a moment ago: the next ones are not slowed down then.
    #[must_use]
    pub fn narrowing_wait(&self) -> Duration {
        self.views.commands.wait_at(self.clock.monotonic())
    }

    /// Reports whether a pin is not to be narrowed at the moment: a command is under way, and
    /// commands have not held it up for long.
    fn makes_way(&self) -> bool {
        self.views.commands.are_under_way() && !self.narrowing_wait().is_zero()
    }

    /// Ends walks that are under way, of a snapshot and of a clone, and gives up the moments that
    /// they hold. The next ones begin anew.
    pub fn end_narrowing(&self) {
        let walk = self.views.narrowing.walk.lock().take();
        debug_assert!(
            walk.is_none() || !self.pins.is_in_clone(),
            "mainline narrows"
        );
        drop(walk);
        self.views.clone_narrowing.end();
    }

    /// Returns the oldest snapshot whose pin was not narrowed yet.
    fn next_to_narrow(&self) -> FsResult<Option<SnapshotInfo>> {
        debug_assert!(self.is_mainline, "mainline narrows");
        let given_up = self.views.narrowing.given_up.lock();
        let is_due = |info: &SnapshotInfo| {
            let is_of_root = info.view == 0 && info.root == Ino::ROOT;
            !is_of_root && !given_up.contains(&info.id)
        };
        let pins = self.pins.engine.pins()?;
        let whole = pins.iter().filter(|pin| pin.ranges.is_empty());
        Ok(whole.filter_map(SnapshotInfo::of).find(is_due))
    }

    /// Narrows the pin of a snapshot, unless it was deleted.
    fn narrow_to(&self, id: PinId, ranges: &PinRanges) -> FsResult<()> {
        let _named = self.views.narrowing.hold_names();
        debug_assert!(self.is_mainline, "mainline narrows");
        debug_assert!(!self.is_read_only, "it may be narrowed");
        let Some(PinInfo { name, .. }) = self.pins.engine.pin_by_id(id)? else {
            return Ok(());
        };
        match self.pins.engine.narrow_pin(&name, ranges) {
            Ok(pin) => {
                debug_assert_eq!(pin.id, id, "the pin of this name");
                Ok(())
            }
            Err(KvError::PinNotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Narrowing {
    /// Keeps the names of snapshots from being given to other pins.
    pub(crate) fn hold_names(&self) -> MutexGuard<'_, ()> {
        self.names.lock()
    }

    fn give_up(&self, id: PinId) {
        self.given_up.lock().insert(id);
    }
}

impl NarrowWalk {
    fn new(view: SnapshotView) -> Self {
        debug_assert!(view.fs().is_read_only(), "the past does not change");
        Self {
            below: NumberWalk::new(Arc::clone(view.fs()), view.info().root),
            view,
        }
    }

    /// Returns what the pin is to hold of the trees with contents.
    fn ranges(&self) -> PinRanges {
        let (fs, info) = (self.view.fs(), self.view.info());
        let own = fs.store.tree(Tree::Data);
        let mut ranges = PinRanges::from([(own, self.below.ranges())]);
        debug_assert_eq!(fs.view_number(), info.view, "it has the directory");
        for tree in self.unneeded(info.view) {
            debug_assert_ne!(tree, own, "the view of the directory is needed");
            ranges.insert(tree, KeyRanges::default());
        }
        ranges
    }

    /// Returns the trees with contents of views that the snapshot does not show: its path may lead
    /// through them.
    fn unneeded(&self, view: u64) -> Vec<TreeId> {
        let mainline = &self.view.views.mainline;
        let clones = mainline.clones();
        let homes = Homes::of(&clones);
        let is_shown = |number: u64| {
            let mut shown = self.below.clones.iter();
            number == view || shown.any(|clone| homes.lies_in(number, *clone))
        };
        let numbers = std::iter::once(0).chain(clones.iter().map(|info| info.number));
        let names: BTreeSet<String> = numbers
            .filter(|number| !is_shown(*number))
            .map(|number| match number {
                0 => Tree::Data.name_in(SCHEMA),
                number => Tree::Data.name_in(&view_schema(number)),
            })
            .collect();
        let trees = mainline.engine().trees().into_iter();
        let named = trees.filter(|info| names.contains(&info.name));
        let unneeded: Vec<TreeId> = named.map(|info| info.id).collect();
        debug_assert!(unneeded.len() <= names.len(), "a name is of one tree");
        unneeded
    }
}

#[cfg(test)]
mod tests;
