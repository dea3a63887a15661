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
}

impl InodeNumbers {
    /// Returns the number of an inode, the same in all snapshots. `root` is `st_ino` of the root of
    /// the tree that it is in.
    #[must_use]
    pub fn of(&self, root: u64, number: u64) -> u64 {
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
    fn without_parts_a_number_is_what_is_in_the_mask() {
        let none = numbers(&[]);
        assert_eq!(none.of(ROOT, 5 << 44 | 1 << 42 | 3), 1 << 42 | 3);
        let of_clone = 9 << 44 | 3;
        assert_eq!(none.of(ROOT, of_clone), of_clone, "it is of another view");
        assert_eq!(InodeNumbers::default().of(ROOT, of_clone), of_clone);
    }
}
