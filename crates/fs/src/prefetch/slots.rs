//! ReadOrder history of the last few inodes: of those that share a slot, the last one.

use stitch_base::Ino;

/// Number of inodes with a history. A power of two.
const SLOTS: usize = 64;

const _: () = assert!(
    SLOTS.is_power_of_two(),
    "low bits of a number choose a slot"
);

#[derive(Debug)]
pub(super) struct Slots<T>(Vec<T>);

impl<T: Default> Default for Slots<T> {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| T::default()).collect())
    }
}

impl<T> Slots<T> {
    /// The slot of an inode, which may hold the history of another one.
    pub(super) fn of(&mut self, ino: Ino) -> &mut T {
        let index = usize::try_from(ino.0 % SLOTS as u64).expect("a small number");
        debug_assert_eq!(self.0.len(), SLOTS, "all slots are there");
        &mut self.0[index]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}
