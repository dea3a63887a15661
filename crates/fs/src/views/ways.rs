//! Places of directories above clones, in memory: the ways up from the directories at which clones
//! lie.
//!
//! Until there are back rows, nothing stored leads from a directory to the one that it is in. The
//! clones of a store are few, so the ways up from them are noted when they are seen:
//!
//! | noted | when |
//! |---|---|
//! | the directories above a new clone | it is made |
//! | those above a clone that a scan has found, or that was found by other means | then |
//! | the directories above a noted one | it is moved |
//!
//! A reader checks each place in the tree that it asks about ([`super::inner`]). So a place may be
//! missing or wrong, which costs time alone.

use std::collections::{BTreeSet, HashMap};
use stitch_base::Ino;
use stitch_base::sync::RwLock;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_format::fs_back::Place;

/// Most places that are noted. When one more comes, all others are forgotten.
const PLACES_MAX: usize = 1 << 16;
const _: () = assert!(
    PLACES_MAX >= crate::residents::WAY_DIRS_MAX,
    "the map takes a whole way"
);

/// Noted places of directories, of all views of a store.
///
/// Invariant: no more than [`PLACES_MAX`], and their number is right whenever the map is unlocked.
#[derive(Debug, Default)]
pub(crate) struct GraftWays {
    /// By view and directory.
    places: RwLock<HashMap<(u64, Ino), Place>>,
    /// Number of them, to be read without the lock.
    count: AtomicUsize,
}

impl GraftWays {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns where a directory of a view was when it was noted.
    pub(super) fn place_of(&self, view: u64, dir: Ino) -> Option<Place> {
        if self.is_empty() {
            return None;
        }
        let place = self.places.read().get(&(view, dir)).copied();
        debug_assert!(place.is_none_or(|place| place.parent != dir), "no ring");
        place
    }

    /// Notes places of directories of a view.
    pub(super) fn note(&self, view: u64, way: impl IntoIterator<Item = (Ino, Place)>) {
        let mut way = way.into_iter().peekable();
        if way.peek().is_none() {
            return;
        }
        let mut places = self.places.write();
        for (dir, place) in way {
            debug_assert_ne!(dir, Ino::ROOT, "the root is in no directory");
            debug_assert!(place.hash > 0, "the hash of a name");
            if places.len() >= PLACES_MAX && !places.contains_key(&(view, dir)) {
                places.clear();
            }
            places.insert((view, dir), place);
        }
        debug_assert!(places.len() <= PLACES_MAX, "the map is bounded");
        self.count.store(places.len(), Ordering::Release);
    }

    /// Notes that a directory of a view may have been moved, if its place was noted: its way up is
    /// another one.
    pub(crate) fn note_moved(&self, view: u64, dir: Ino, way: impl FnOnce() -> Vec<(Ino, Place)>) {
        if self.place_of(view, dir).is_some() {
            let way = way();
            debug_assert_eq!(way.first().map(|first| first.0), Some(dir), "it is first");
            self.note(view, way);
        }
    }

    /// Forgets the places in views that were removed, and those of the directories at which they
    /// lay.
    pub(super) fn forget(&self, views: &[u64], grafts: &BTreeSet<(u64, Ino)>) {
        if self.is_empty() {
            return;
        }
        let views: BTreeSet<u64> = views.iter().copied().collect();
        let mut places = self.places.write();
        let before = places.len();
        places.retain(|at, _| !views.contains(&at.0) && !grafts.contains(at));
        debug_assert!(places.len() <= before, "none comes");
        self.count.store(places.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn place(parent: u64) -> Place {
        Place {
            parent: Ino(parent),
            hash: 7,
        }
    }

    #[test]
    fn places_go_with_their_view_and_with_the_clone_at_them() {
        let ways = GraftWays::default();
        ways.note(0, [(Ino(20), place(16)), (Ino(16), place(1))]);
        ways.note(3, [(Ino(20), place(16))]);
        ways.forget(&[3], &BTreeSet::from([(0, Ino(20))]));
        assert_eq!(ways.place_of(0, Ino(16)), Some(place(1)));
        assert_eq!(ways.place_of(0, Ino(20)), None, "its clone went");
        assert_eq!(ways.place_of(3, Ino(20)), None, "its view went");
        ways.forget(&[0], &BTreeSet::new());
        assert!(ways.is_empty());
    }

    #[test]
    fn only_what_is_noted_is_moved() {
        let ways = GraftWays::default();
        ways.note_moved(0, Ino(20), || unreachable!("it is not noted"));
        ways.note(0, [(Ino(20), place(16))]);
        ways.note_moved(1, Ino(20), || unreachable!("it is of another view"));
        ways.note_moved(0, Ino(20), || {
            vec![(Ino(20), place(17)), (Ino(17), place(1))]
        });
        assert_eq!(ways.place_of(0, Ino(20)), Some(place(17)));
        assert_eq!(ways.place_of(0, Ino(17)), Some(place(1)), "above it, too");
    }

    #[test]
    fn one_more_than_fits_ends_the_others() {
        let ways = GraftWays::default();
        let all = 2..2 + PLACES_MAX as u64;
        ways.note(0, all.map(|dir| (Ino(dir), place(1))));
        ways.note(0, [(Ino(2), place(9))]);
        assert_eq!(ways.place_of(0, Ino(3)), Some(place(1)), "no more than fit");
        ways.note(1, [(Ino(2), place(1))]);
        assert_eq!(ways.place_of(0, Ino(3)), None);
        assert_eq!(ways.place_of(1, Ino(2)), Some(place(1)));
    }
}
