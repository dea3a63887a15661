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
use stitch_base::clock::Timestamp;
use stitch_base::sync::Mutex;
use stitch_base::{Ino, TreeId};
use stitch_kv::Snapshot;

/// How old a clone is when it is walked.
const AGE: Duration = Duration::from_secs(60);
/// How often a clone is walked in vain.
const TRIES: u8 = 3;
/// Time after a walk in vain: a snapshot or a transaction may have gone by then.
const PAUSE: Duration = Duration::from_secs(600);
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
    tries: BTreeMap<u64, Tries>,
    rounds: u32,
}

/// Walks of one clone.
#[derive(Clone, Copy, Debug)]
struct Tries {
    /// [`TRIES`] once it is narrowed.
    count: u8,
    last: Timestamp,
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
            narrowing.note_try(info.number, self.clock.now());
            *walk = Some(self.begin_clone(&info)?);
        }
        let under_way = walk.as_mut().expect("a walk was begun");
        narrowing.progress.lock().rounds += 1;
        let is_there = self.views.clone_of(under_way.number).is_some();
        match under_way.below.round(&self.views.commands) {
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

    fn next_clone(&self) -> Next {
        debug_assert!(self.is_mainline, "mainline knows all clones");
        let progress = self.views.clone_narrowing.progress.lock();
        if progress.rounds >= ROUNDS_MAX {
            return Next::None;
        }
        let now = self.clock.now();
        let mut soonest: Option<Duration> = None;
        for info in self.views.live() {
            let tries = progress.tries.get(&info.number);
            let is_over = tries.is_some_and(|tries| tries.count >= TRIES);
            if is_over || info.root == Ino::ROOT {
                continue;
            }
            let (since, wait) = tries.map_or((info.created, AGE), |tries| (tries.last, PAUSE));
            let passed = now.0.saturating_sub(since.0).max(0).unsigned_abs();
            match wait.saturating_sub(Duration::from_nanos(passed)) {
                Duration::ZERO => return Next::Due(info),
                left => soonest = Some(soonest.map_or(left, |least| least.min(left))),
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
    /// Ends a walk that is under way. The next one begins anew.
    pub(super) fn end(&self) {
        let walk = self.walk.lock().take();
        // Its moment is given up without the lock.
        drop(walk);
    }

    fn note_try(&self, number: u64, now: Timestamp) {
        debug_assert!(number > 0, "mainline is no clone");
        let mut progress = self.progress.lock();
        let count = progress.tries.get(&number).map_or(0, |tries| tries.count);
        debug_assert!(count < TRIES, "it is not walked again and again");
        let tries = Tries {
            count: count + 1,
            last: now,
        };
        progress.tries.insert(number, tries);
    }

    fn note_done(&self, number: u64) {
        let mut progress = self.progress.lock();
        let tries = progress.tries.get_mut(&number);
        tries.expect("it was walked").count = TRIES;
    }
}
