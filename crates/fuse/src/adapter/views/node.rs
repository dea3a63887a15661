//! Node ids: which view of the file system an inode is in.
//!
//! ```text
//!   63            44 43                        0
//!  +----------------+---------------------------+
//!  |   view slot    |       inode number        |
//!  +----------------+---------------------------+
//!   0                mainline
//!   1 to 2^20 - 2    a snapshot; its slot follows from its number
//!   2^20 - 1         what `.stitchfs` has beside snapshots, which is in no file system
//! ```
//!
//! A composite number is the node id and `st_ino` as well, so that no two files of a mount have the
//! same numbers. Slots of snapshots are the same in each life of a store.

use stitch_base::{Ino, PinId};
use stitch_fs::VIEW_INO_BITS;

const SLOT_BITS: u32 = u64::BITS - VIEW_INO_BITS;
const CONTROL_SLOT: u32 = (1 << SLOT_BITS) - 1;
/// Slots that snapshots have.
const SNAPSHOT_SLOTS: u64 = CONTROL_SLOT as u64 - 1;
const INO_MASK: u64 = (1 << VIEW_INO_BITS) - 1;

/// Number of a view in node ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot(u32);

impl Slot {
    /// Returns the slot of a snapshot. The first 2^20 - 2 snapshots of a store have one each.
    pub(super) fn of(id: PinId) -> Self {
        let slot = 1 + id.0.wrapping_sub(1) % SNAPSHOT_SLOTS;
        Self(u32::try_from(slot).expect("20 bits"))
    }

    /// Returns the composite number of an inode of this view.
    pub(super) fn number(self, ino: Ino) -> Ino {
        debug_assert!(ino.0 <= INO_MASK, "the number has 44 bits");
        Ino(u64::from(self.0) << VIEW_INO_BITS | ino.0 & INO_MASK)
    }
}

/// A directory of the mount that is in no file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlDir {
    /// `.stitchfs` in the root directory.
    Top,
    /// `snap` in it, which has the snapshots.
    Snapshots,
}

impl ControlDir {
    /// Returns its composite number.
    pub(super) fn number(self) -> Ino {
        let ino = match self {
            Self::Top => Ino(1),
            Self::Snapshots => Ino(2),
        };
        Slot(CONTROL_SLOT).number(ino)
    }
}

/// Number of the link in `.stitchfs`, within the control slot.
const LINK_INO: Ino = Ino(3);

/// Returns the composite number of the link in `.stitchfs`.
pub(super) fn link_number() -> Ino {
    Slot(CONTROL_SLOT).number(LINK_INO)
}

/// What a node id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// An inode of the file system as it is.
    Mainline,
    /// A directory of `.stitchfs`.
    Control(ControlDir),
    /// The link in `.stitchfs`.
    Link,
    /// An inode of a snapshot.
    Past(Slot, Ino),
    /// Nothing: no such number was given out.
    Unknown,
}

impl Node {
    pub(super) fn of(number: Ino) -> Self {
        let slot = number.0 >> VIEW_INO_BITS;
        if slot == 0 {
            return Self::Mainline;
        }
        let slot = u32::try_from(slot).expect("20 bits");
        debug_assert!(slot <= CONTROL_SLOT, "the slot has 20 bits");
        let ino = Ino(number.0 & INO_MASK);
        match (slot, ino.0) {
            (CONTROL_SLOT, 1) => Self::Control(ControlDir::Top),
            (CONTROL_SLOT, 2) => Self::Control(ControlDir::Snapshots),
            (CONTROL_SLOT, 3) => Self::Link,
            (CONTROL_SLOT, _) | (_, 0) => Self::Unknown,
            _ => Self::Past(Slot(slot), ino),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_view_come_back_and_are_those_of_no_other() {
        let inos = [Ino::ROOT, Ino(16), Ino(INO_MASK)];
        for id in [1, 2, SNAPSHOT_SLOTS] {
            for ino in inos {
                let slot = Slot::of(PinId(id));
                assert_eq!(Node::of(slot.number(ino)), Node::Past(slot, ino));
                assert_eq!(Node::of(ino), Node::Mainline);
            }
        }
        let (first, second) = (Slot::of(PinId(1)), Slot::of(PinId(2)));
        assert_ne!(first.number(Ino::ROOT), second.number(Ino::ROOT));
    }

    #[test]
    fn slots_are_used_again_after_a_million_snapshots() {
        assert_eq!(Slot::of(PinId(SNAPSHOT_SLOTS + 1)), Slot::of(PinId(1)));
        assert_eq!(Slot::of(PinId(SNAPSHOT_SLOTS)), Slot(CONTROL_SLOT - 1));
    }

    #[test]
    fn the_control_directories_have_numbers_of_their_own() {
        for dir in [ControlDir::Top, ControlDir::Snapshots] {
            assert_eq!(Node::of(dir.number()), Node::Control(dir));
        }
        assert_eq!(Node::of(link_number()), Node::Link);
        assert_eq!(Node::of(Slot(CONTROL_SLOT).number(Ino(4))), Node::Unknown);
        assert_eq!(Node::of(Ino(7 << VIEW_INO_BITS)), Node::Unknown);
    }
}
