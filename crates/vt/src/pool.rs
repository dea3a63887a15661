//! The pool of one volume: the stores that share its zones, its space and its evacuation.
//!
//! Each store has its version, its memtables, its log and its threads; zones and space are one. So
//! a pool holds what is one: the list of its members, the turn to evacuate zones, and the ledgers
//! of their space. What it means to work in another member is the stores' business; a pool knows no
//! more of a member than that it can be listed.
//!
//! Invariants:
//! - members are in the order in which they were opened, the volume's first instance first;
//! - a member that was removed or dropped is in no list.
//!
//! Locks: [`Pool::evacuation`] stands first in the order of `store`; the list is a leaf.

use crate::space::Ledgers;
use std::sync::{Arc, Weak};
use stitch_base::sync::Mutex;

/// The stores of one volume.
pub(crate) struct Pool<S> {
    /// One evacuation of many zones at a time.
    pub(crate) evacuation: Mutex<()>,
    /// What the members keep of the volume's space.
    pub(crate) ledgers: Arc<Ledgers>,
    members: Mutex<Vec<Weak<S>>>,
}

impl<S> Default for Pool<S> {
    fn default() -> Self {
        Self {
            evacuation: Mutex::new(()),
            ledgers: Arc::default(),
            members: Mutex::new(Vec::new()),
        }
    }
}

impl<S> Pool<S> {
    /// Returns all members that are open, the first one first.
    pub(crate) fn all(&self) -> Vec<Arc<S>> {
        let members = self.members.lock();
        members.iter().filter_map(Weak::upgrade).collect()
    }

    /// Adds a member after all others.
    pub(crate) fn add(&self, member: &Arc<S>) {
        let mut members = self.members.lock();
        let is_it = |other: &Weak<S>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(member));
        debug_assert!(!members.iter().any(is_it), "a member is listed once");
        members.push(Arc::downgrade(member));
    }

    /// Removes a member.
    pub(crate) fn remove(&self, member: &Arc<S>) {
        let is_other = |other: &Weak<S>| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(member));
        let mut members = self.members.lock();
        let before = members.len();
        members.retain(is_other);
        debug_assert_eq!(members.len() + 1, before, "a member leaves once");
    }

    /// Returns the sum over all members.
    pub(crate) fn sum_of(&self, of: impl Fn(&S) -> u64) -> u64 {
        self.all().iter().map(|member| of(member)).sum()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn members_are_listed_in_order_until_removed_or_dropped() {
        let pool: Pool<u64> = Pool::default();
        let members = [1, 2, 4].map(Arc::new);
        members.iter().for_each(|member| pool.add(member));
        assert_eq!(pool.all(), members);
        assert_eq!(pool.sum_of(|member| *member), 7);
        pool.remove(&members[1]);
        assert_eq!(pool.sum_of(|member| *member), 5);
        let [first, _, last] = members;
        drop(first);
        assert_eq!(pool.all(), [last]);
    }
}
