//! Narrows what clones hold of their sources to the contents of their directories.
//!
//! The trees of a clone are branches of whole trees, so at first its source keeps all that is
//! replaced, in any directory. A walk of the clone finds the numbers under which contents are, as
//! of a snapshot. Then the engine is told
//! ([`stitch_kv::Engine::release_beside`]).
//!
//! - Files that are open without a name are in the list of orphans, and are walked, too.
//! - The clone can only lose what it took over from its source, so what the walk found is enough
//!   for all later readers. A snapshot of the clone from before the walk may have more: the engine
//!   refuses then.
//! - A clone is walked once it is a minute old: many do not get as old as that.
//! - Nothing is stored. After a mount the clones are walked again, up to a number of names in one
//!   life of the store.

use super::walk::NumberWalk;
use crate::locator::Tree;
use crate::schema::view_schema;
use crate::snapshot::Snapshots;
use crate::snapshot::view::views_of;
use crate::{CloneInfo, FsResult};
use std::collections::BTreeMap;
use std::time::Duration;
use stitch_base::sync::Mutex;
use stitch_base::{Ino, TreeId};
use stitch_kv::Snapshot;

/// How old a clone is when it is walked.
const AGE: Duration = Duration::from_secs(60);
/// How often a clone is walked in vain.
const TRIES: u8 = 3;
/// Most rounds of names that are read in one life of the store.
const ROUNDS_MAX: u32 = 1024;

/// Clones that are narrowed.
#[derive(Debug, Default)]
pub(crate) struct CloneNarrowing {
    walk: Mutex<Option<CloneWalk>>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// How often clones are not to be walked again: [`TRIES`] once they are narrowed.
    tries: BTreeMap<u64, u8>,
    rounds: u32,
}

/// A walk of a clone.
#[derive(Debug)]
struct CloneWalk {
    number: u64,
    at: Snapshot,
    below: NumberWalk,
}

/// The next clone to be narrowed.
enum Next {
    Due(CloneInfo),
    In(Duration),
    None,
}

impl Snapshots<'_> {
    /// Goes on with narrowing what clones hold of their sources to the contents of their
    /// directories. Returns when to call it again, if there is more to do. This file system is
    /// mainline. To be called in the background.
    ///
    /// # Errors
    /// Those of the walk: the clone holds all files, and the next call goes on with others.
    ///
    /// # Cost
    /// A scan of some thousand names.
    pub fn narrow_clones_ahead(&self) -> FsResult<Option<Duration>> {
        let has_ranges = self.pins.engine.capabilities().pins_of_ranges;
        if !self.is_mainline || self.is_read_only || !has_ranges {
            return Ok(None);
        }
        let narrowing = &self.views.clone_narrowing;
        let mut walk = narrowing.walk.lock();
        if walk.is_none() {
            let info = match self.next_clone() {
                Next::Due(info) => info,
                Next::In(time) => return Ok(Some(time)),
                Next::None => return Ok(None),
            };
            narrowing.note_try(info.number);
            *walk = Some(self.begin_clone(&info)?);
        }
        let under_way = walk.as_mut().expect("a walk was begun");
        narrowing.progress.lock().rounds += 1;
        let is_there = self.views.clone_of(under_way.number).is_some();
        match under_way.below.round() {
            Ok(false) if is_there => return Ok(Some(Duration::ZERO)),
            Ok(true) if is_there => {}
            other => {
                // It was destroyed, or cannot be walked.
                *walk = None;
                other?;
                return Ok(Some(Duration::ZERO));
            }
        }
        let done = walk.take().expect("a walk was begun");
        debug_assert!(done.number > 0, "mainline is no clone");
        drop(walk);
        if self.release_beside(&done)? {
            narrowing.note_done(done.number);
        }
        Ok(Some(Duration::ZERO))
    }

    /// Ends a walk of a clone that is under way. The next one begins anew.
    pub fn end_narrowing_clones(&self) {
        let walk = self.views.clone_narrowing.walk.lock().take();
        debug_assert!(walk.is_none() || self.is_mainline, "mainline narrows");
        drop(walk);
    }

    fn next_clone(&self) -> Next {
        debug_assert!(self.is_mainline, "mainline knows all clones");
        let progress = self.views.clone_narrowing.progress.lock();
        if progress.rounds >= ROUNDS_MAX {
            return Next::None;
        }
        let now = self.clock.now();
        let mut soonest: Option<Duration> = None;
        for info in self.views.live() {
            let tries = progress.tries.get(&info.number).copied();
            if tries.unwrap_or(0) >= TRIES || info.root == Ino::ROOT {
                continue;
            }
            let age =
                Duration::from_nanos(now.0.saturating_sub(info.created.0).max(0).unsigned_abs());
            match AGE.checked_sub(age).filter(|left| !left.is_zero()) {
                None => return Next::Due(info),
                Some(left) => soonest = Some(soonest.map_or(left, |least| least.min(left))),
            }
        }
        soonest.map_or(Next::None, Next::In)
    }

    fn begin_clone(&self, info: &CloneInfo) -> FsResult<CloneWalk> {
        let at = self.pins.engine.snapshot();
        let views = views_of(self.pins.engine, self.pins.options, at.clone())?;
        let fs = views.open(info.number)?;
        debug_assert_eq!(
            fs.view_number(),
            info.number,
            "the clone that was asked for"
        );
        debug_assert_ne!(info.root, Ino::ROOT, "a clone of all holds all");
        let mut below = NumberWalk::new(fs, info.root);
        below.add_orphans()?;
        Ok(CloneWalk {
            number: info.number,
            at,
            below,
        })
    }

    fn release_beside(&self, walk: &CloneWalk) -> FsResult<bool> {
        let name = Tree::Data.name_in(&view_schema(walk.number));
        let trees = self.pins.engine.trees();
        let found = trees.iter().find(|info| info.name == name);
        let Some(tree) = found.map(|info| info.id) else {
            // It was destroyed a moment ago.
            return Ok(true);
        };
        debug_assert!(tree > TreeId(0), "tree 0 is never given out");
        let ranges = walk.below.ranges();
        Ok(self.pins.engine.release_beside(tree, &ranges, &walk.at)?)
    }
}

impl CloneNarrowing {
    fn note_try(&self, number: u64) {
        debug_assert!(number > 0, "mainline is no clone");
        let mut progress = self.progress.lock();
        let tries = progress.tries.entry(number).or_default();
        *tries += 1;
        debug_assert!(*tries <= TRIES, "it is not walked again and again");
    }

    fn note_done(&self, number: u64) {
        let before = self.progress.lock().tries.insert(number, TRIES);
        debug_assert!(before.is_some(), "it was walked");
    }
}
