//! Numbers of inodes that are the same in all snapshots of a store.
//!
//! ```text
//!   st_ino   63            44 43              0
//!            +----------------+------+---------+
//!            |     view       | part | number  |     part 0: of the directory's file system
//!            +----------------+------+---------+     part 1, ...: of the clones that lie in it
//! ```
//!
//! The view is another one in each snapshot, and which clone is which part may be.
//!
//! Of trees in two views, such as a clone and its source, the inodes are the same that both had
//! when they parted. From some number on each view has given out the numbers to its own:
//!
//! ```text
//!   old, a directory       3: in both    40: made after the clone was
//!   new, its clone         3: the same   40: another one, which is shown as OWN | 40
//! ```

/// Stands for inodes of the new tree alone, although the old one has their number. No number of
/// mainline or of a clone has this bit.
const OWN: u64 = 1 << 62;

/// A view in the new one of two trees that are compared, and its counterpart in the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinView {
    /// The bits that stand for it, 0 for the file system of the root.
    pub base: u64,
    /// The bits that stand for the counterpart.
    pub other: u64,
    /// The first number that inodes of their own have in both.
    pub first_own: u64,
}

/// How `st_ino` tells which inode it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InodeNumbers {
    /// Its bits that are the inode number, the same in all snapshots; 0 is for all. In a tree the
    /// others are those of its root, or part of the number.
    pub mask: u64,
    /// The low bits of the mask that are the number within a part of a snapshot.
    pub part_bits: u32,
    /// For each part, which the bits above count from 1, the bits that stand for it in all
    /// snapshots: none of them is in the mask. 0 for the file system of the root.
    pub parts: Vec<u64>,
    /// Of the new one of two trees: the views that both have.
    pub twins: Vec<TwinView>,
}

impl InodeNumbers {
    /// Returns the number of an inode, the same in all snapshots, and in two trees that are
    /// compared. `root` is `st_ino` of the root of the tree that it is in.
    #[must_use]
    pub fn of(&self, root: u64, number: u64) -> u64 {
        let number = self.in_store(root, number);
        if self.mask == 0 {
            return number;
        }
        let (base, within) = (number & !self.mask, number & self.mask);
        let Some(twin) = self.twins.iter().find(|twin| twin.base == base) else {
            return number;
        };
        debug_assert_eq!(twin.other & self.mask, 0, "it stands for a view");
        let own = if within >= twin.first_own { OWN } else { 0 };
        own | twin.other | within
    }

    /// Returns the number of an inode, the same in all snapshots of its view.
    fn in_store(&self, root: u64, number: u64) -> u64 {
        let mask = if self.mask == 0 { u64::MAX } else { self.mask };
        // What is of another view than the root, such as a clone in it, keeps all bits.
        if number & !mask != root & !mask {
            return number;
        }
        let within = number & mask;
        let part = within.checked_shr(self.part_bits).unwrap_or_default();
        let index = usize::try_from(part)
            .ok()
            .and_then(|part| part.checked_sub(1));
        match index.and_then(|index| self.parts.get(index)) {
            Some(base) => base | (within ^ part << self.part_bits),
            None => within,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = 5 << 44 | 7;

    fn numbers(parts: &[u64]) -> InodeNumbers {
        InodeNumbers {
            mask: (1 << 44) - 1,
            part_bits: 42,
            parts: parts.to_vec(),
            twins: Vec::new(),
        }
    }

    #[test]
    fn an_inode_has_one_number_whatever_part_its_clone_is() {
        let (clone, other) = (9 << 44, 8 << 44);
        let early = numbers(&[clone]);
        let late = numbers(&[other, clone]);
        assert_eq!(early.of(ROOT, 5 << 44 | 1 << 42 | 3), clone | 3);
        assert_eq!(late.of(ROOT, 5 << 44 | 2 << 42 | 3), clone | 3);
        assert_eq!(late.of(6 << 44, 6 << 44 | 1 << 42 | 3), other | 3);
        assert_eq!(early.of(ROOT, ROOT), 7);
    }

    #[test]
    fn of_two_views_the_inodes_of_before_they_parted_are_the_same() {
        let (old, new) = (9 << 44, 8 << 44);
        let mut numbers = numbers(&[new]);
        let twin = |base, other, first_own| TwinView {
            base,
            other,
            first_own,
        };
        numbers.twins = vec![twin(0, 0, 30), twin(new, old, 20)];
        assert_eq!(numbers.of(ROOT, ROOT), 7);
        assert_eq!(numbers.of(ROOT, 5 << 44 | 29), 29);
        assert_eq!(numbers.of(ROOT, 5 << 44 | 30), OWN | 30);
        assert_eq!(numbers.of(ROOT, 5 << 44 | 1 << 42 | 19), old | 19);
        assert_eq!(numbers.of(ROOT, 5 << 44 | 1 << 42 | 20), OWN | old | 20);
        let other = 7 << 44 | 3;
        assert_eq!(numbers.of(ROOT, other), other, "it has no counterpart");
    }

    #[test]
    fn without_parts_a_number_is_what_is_in_the_mask() {
        let none = numbers(&[]);
        assert_eq!(none.of(ROOT, 5 << 44 | 1 << 42 | 3), 1 << 42 | 3);
        let of_clone = 9 << 44 | 3;
        assert_eq!(none.of(ROOT, of_clone), of_clone, "it is of another view");
        assert_eq!(InodeNumbers::default().of(ROOT, of_clone), of_clone);
    }
}
