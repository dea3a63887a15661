//! Node ids: which view of the file system an inode is in.
//!
//! ```text
//!   63            44 43                        0
//!  +----------------+---------------------------+
//!  |   view slot    |       inode number        |
//!  +----------------+---------------------------+
//!   0                 mainline
//!   1 to 2^19 - 1     a snapshot; its slot follows from its number
//!   from 2^19 on      a clone; likewise
//!   from 3 * 2^18 on  a transaction; likewise
//!   2^20 - 3          `snap` in `.stitchfs` of the directory of this inode number
//!   2^20 - 2          `.stitchfs` of the directory of this inode number
//!   2^20 - 1          what `.stitchfs` of the root has beside snapshots
//! ```
//!
//! A composite number is the node id and `st_ino` as well, so that no two files of a mount have the
//! same numbers. Slots of snapshots are the same in each life of a store.

use stitch_base::{Ino, PinId};
use stitch_fs::SnapshotInfo;
use stitch_fs::VIEW_INO_BITS;

const SLOT_BITS: u32 = u64::BITS - VIEW_INO_BITS;
const CONTROL_SLOT: u32 = (1 << SLOT_BITS) - 1;
/// The slot of `.stitchfs` in directories below the root.
const TOP_OF_SLOT: u32 = CONTROL_SLOT - 1;
/// The slot of `snap` in those.
const SNAPSHOTS_OF_SLOT: u32 = CONTROL_SLOT - 2;
/// The first slot of a clone.
const FIRST_CLONE_SLOT: u32 = 1 << (SLOT_BITS - 1);
/// Slots that snapshots have.
const SNAPSHOT_SLOTS: u64 = FIRST_CLONE_SLOT as u64 - 1;
/// The first slot of a transaction.
const FIRST_TRANSACTION_SLOT: u32 = FIRST_CLONE_SLOT + (1 << (SLOT_BITS - 2));
/// Slots that clones have.
const CLONE_SLOTS: u64 = (FIRST_TRANSACTION_SLOT - FIRST_CLONE_SLOT) as u64;
/// Slots that transactions have.
const TRANSACTION_SLOTS: u64 = (SNAPSHOTS_OF_SLOT - FIRST_TRANSACTION_SLOT) as u64;
const INO_MASK: u64 = (1 << VIEW_INO_BITS) - 1;

/// Number of a view in node ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot(u32);

impl Slot {
    /// Returns the slot of a snapshot. The first 2^19 - 1 snapshots of a store have one each.
    pub(super) fn of(id: PinId) -> Self {
        let slot = 1 + id.0.wrapping_sub(1) % SNAPSHOT_SLOTS;
        Self(u32::try_from(slot).expect("20 bits"))
    }

    /// Returns the slot of a clone. The first 2^18 clones of a store have one each.
    pub(super) fn of_clone(number: u64) -> Self {
        let slot = number.wrapping_sub(1) % CLONE_SLOTS;
        Self(FIRST_CLONE_SLOT + u32::try_from(slot).expect("19 bits"))
    }

    /// Returns the slot of a transaction. Two that are open may have the same.
    pub(super) fn of_transaction(number: u64) -> Self {
        let slot = number % TRANSACTION_SLOTS;
        Self(FIRST_TRANSACTION_SLOT + u32::try_from(slot).expect("18 bits"))
    }

    /// Reports whether it is that of a transaction.
    pub(super) const fn is_transaction(self) -> bool {
        self.0 >= FIRST_TRANSACTION_SLOT && self.0 < SNAPSHOTS_OF_SLOT
    }

    /// Returns what composite numbers of this view have beside the inode's.
    pub(super) fn base(self) -> u64 {
        u64::from(self.0) << VIEW_INO_BITS
    }

    /// Returns the inode number in a composite number.
    pub(super) const fn within(number: Ino) -> Ino {
        Ino(number.0 & INO_MASK)
    }

    /// Returns the composite number of an inode of this view.
    pub(super) fn number(self, ino: Ino) -> Ino {
        debug_assert!(ino.0 <= INO_MASK, "the number has 44 bits");
        Ino(u64::from(self.0) << VIEW_INO_BITS | ino.0 & INO_MASK)
    }
}

/// Returns the number that an inode of a snapshot has in a mount.
#[must_use]
pub fn number_in_snapshot(id: PinId, ino: Ino) -> Ino {
    Slot::of(id).number(ino)
}

/// Returns the number that an inode of a clone has in a mount.
#[must_use]
pub fn number_in_clone(number: u64, ino: Ino) -> Ino {
    Slot::of_clone(number).number(ino)
}

/// Returns the number that the directory of a snapshot has in a mount, as it is now.
#[must_use]
pub fn number_of_source(info: &SnapshotInfo) -> Ino {
    match info.view {
        0 => info.root,
        view => number_in_clone(view, info.root),
    }
}

/// Reports whether a number in a mount is that of a directory of `.stitchfs`, or of a link in one:
/// nothing is stored there.
#[must_use]
pub const fn is_control_number(number: u64) -> bool {
    number >> VIEW_INO_BITS >= SNAPSHOTS_OF_SLOT as u64
}

/// Reports whether a number in a mount is that of an inode of a transaction.
#[must_use]
pub const fn is_number_in_transaction(number: u64) -> bool {
    let slot = number >> VIEW_INO_BITS;
    slot >= FIRST_TRANSACTION_SLOT as u64 && slot < SNAPSHOTS_OF_SLOT as u64
}

/// Returns the number that an inode has in its own file system, of one that it has in a mount.
#[must_use]
pub const fn number_within(number: Ino) -> Ino {
    Slot::within(number)
}

/// A directory of the mount that is in no file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlDir {
    /// `.stitchfs` in the root directory.
    Top,
    /// `snap` in it, which has the snapshots.
    Snapshots,
    /// `txn` in it, in which transactions are found.
    Transactions,
    /// `.stitchfs` in the root directory of the transaction in this slot.
    InTransaction(Slot),
    /// `txn` in it, in which transactions that began in this one are found.
    TransactionsIn(Slot),
    /// The name of the transaction in this slot, in either `txn`: it has the root alone, and only
    /// the one who began the transaction may enter it.
    TransactionDir(Slot),
    /// `history` in it, in which the moments of the history are.
    History,
    /// `.stitchfs` in a directory below the root.
    TopOf(Ino),
    /// `snap` in it, which has the snapshots of the directory.
    SnapshotsOf(Ino),
}

/// Numbers from here on, within the control slot, are of what `.stitchfs` has in transactions: two
/// for each slot.
const IN_TRANSACTIONS: u64 = 1 << 32;
/// Those from here on are of `txn` in it, one for each slot.
const TRANSACTIONS_IN: u64 = 1 << 33;
/// Those from here on are of the directories that have the roots, one for each slot.
const TRANSACTION_DIRS: u64 = 1 << 34;

impl ControlDir {
    /// Returns its composite number.
    pub(super) fn number(self) -> Ino {
        let (slot, ino) = match self {
            Self::Top => (CONTROL_SLOT, Ino(1)),
            Self::Snapshots => (CONTROL_SLOT, Ino(2)),
            Self::Transactions => (CONTROL_SLOT, Ino(4)),
            Self::InTransaction(slot) => {
                let at = IN_TRANSACTIONS + 2 * u64::from(slot.0);
                (CONTROL_SLOT, Ino(at))
            }
            Self::TransactionsIn(slot) => {
                let at = TRANSACTIONS_IN + u64::from(slot.0);
                (CONTROL_SLOT, Ino(at))
            }
            Self::TransactionDir(slot) => {
                let at = TRANSACTION_DIRS + u64::from(slot.0);
                (CONTROL_SLOT, Ino(at))
            }
            Self::History => (CONTROL_SLOT, Ino(5)),
            Self::TopOf(dir) => (TOP_OF_SLOT, dir),
            Self::SnapshotsOf(dir) => (SNAPSHOTS_OF_SLOT, dir),
        };
        Slot(slot).number(ino)
    }

    /// Returns the directory in which the snapshots of a directory alone are.
    pub(super) const fn snapshots_of(dir: Ino) -> Self {
        match dir {
            Ino::ROOT => Self::Snapshots,
            dir => Self::SnapshotsOf(dir),
        }
    }

    /// Returns the directory of which a snapshot is created here; `None` where none is.
    pub(super) const fn of(self) -> Option<Ino> {
        match self {
            Self::Snapshots => Some(Ino::ROOT),
            Self::SnapshotsOf(dir) => Some(dir),
            Self::Top
            | Self::TopOf(_)
            | Self::Transactions
            | Self::InTransaction(_)
            | Self::TransactionsIn(_)
            | Self::TransactionDir(_)
            | Self::History => None,
        }
    }

    /// Returns the `.stitchfs` that it is, or is in; of the directory of a transaction, that of
    /// mainline.
    pub(super) const fn above(self) -> Self {
        match self {
            Self::Top
            | Self::Snapshots
            | Self::Transactions
            | Self::TransactionDir(_)
            | Self::History => Self::Top,
            Self::TopOf(dir) | Self::SnapshotsOf(dir) => Self::TopOf(dir),
            Self::InTransaction(slot) | Self::TransactionsIn(slot) => Self::InTransaction(slot),
        }
    }
}

/// Number of the link in `.stitchfs`, within the control slot.
const LINK_INO: Ino = Ino(3);

/// Returns the composite number of the link in `.stitchfs`.
pub(super) fn link_number() -> Ino {
    Slot(CONTROL_SLOT).number(LINK_INO)
}

/// Returns the composite number of the link in `.stitchfs` of the transaction in a slot.
pub(super) fn transaction_link_number(slot: Slot) -> Ino {
    debug_assert!(slot.is_transaction(), "other views have none");
    let dir = ControlDir::InTransaction(slot).number();
    Ino(dir.0 + 1)
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
    /// The link in `.stitchfs` of the transaction in this slot.
    TransactionLink(Slot),
    /// An inode of a snapshot.
    Past(Slot, Ino),
    /// An inode of a clone or a transaction.
    Live(Slot, Ino),
    /// Nothing: no such number was given out.
    Unknown,
}

impl Node {
    /// Returns the slot of what the node is in: one of two nodes of a view can be moved into the
    /// other.
    pub(super) const fn view(self) -> u32 {
        match self {
            Self::Mainline => 0,
            Self::Past(Slot(slot), _) | Self::Live(Slot(slot), _) => slot,
            Self::Control(_) | Self::Link | Self::TransactionLink(_) | Self::Unknown => {
                CONTROL_SLOT
            }
        }
    }

    /// Returns the number of its inode in its view.
    pub(super) const fn within(self, number: Ino) -> Ino {
        match self {
            Self::Past(_, ino) | Self::Live(_, ino) => ino,
            Self::Mainline
            | Self::Control(_)
            | Self::Link
            | Self::TransactionLink(_)
            | Self::Unknown => number,
        }
    }

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
            (CONTROL_SLOT, 4) => Self::Control(ControlDir::Transactions),
            (CONTROL_SLOT, TRANSACTION_DIRS..) => {
                Self::of_slot(ino.0 - TRANSACTION_DIRS, ControlDir::TransactionDir)
            }
            (CONTROL_SLOT, TRANSACTIONS_IN..) => {
                Self::of_slot(ino.0 - TRANSACTIONS_IN, ControlDir::TransactionsIn)
            }
            (CONTROL_SLOT, IN_TRANSACTIONS..) => Self::in_transaction(ino.0 - IN_TRANSACTIONS),
            (CONTROL_SLOT, 5) => Self::Control(ControlDir::History),
            (CONTROL_SLOT, _) | (_, 0) => Self::Unknown,
            // The root has its own.
            (TOP_OF_SLOT | SNAPSHOTS_OF_SLOT, 1) => Self::Unknown,
            (TOP_OF_SLOT, _) => Self::Control(ControlDir::TopOf(ino)),
            (SNAPSHOTS_OF_SLOT, _) => Self::Control(ControlDir::SnapshotsOf(ino)),
            (FIRST_CLONE_SLOT.., _) => Self::Live(Slot(slot), ino),
            _ => Self::Past(Slot(slot), ino),
        }
    }

    /// A directory of which each slot of transactions has one.
    fn of_slot(index: u64, dir: fn(Slot) -> ControlDir) -> Self {
        match u32::try_from(index).map(Slot) {
            Ok(slot) if slot.is_transaction() => Self::Control(dir(slot)),
            _ => Self::Unknown,
        }
    }

    /// What `.stitchfs` has in a transaction.
    fn in_transaction(index: u64) -> Self {
        let slot = u32::try_from(index / 2).map(Slot);
        match slot {
            Ok(slot) if slot.is_transaction() && index.is_multiple_of(2) => {
                Self::Control(ControlDir::InTransaction(slot))
            }
            Ok(slot) if slot.is_transaction() => Self::TransactionLink(slot),
            _ => Self::Unknown,
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
    fn numbers_tell_made_up_directories_and_transactions() {
        let of_files = [
            Ino(INO_MASK),
            Slot::of(PinId(SNAPSHOT_SLOTS)).number(Ino(INO_MASK)),
            Slot::of_clone(CLONE_SLOTS).number(Ino(INO_MASK)),
        ];
        for number in of_files.map(|ino| ino.0) {
            assert!(!is_control_number(number) && !is_number_in_transaction(number));
        }
        for number in [0, 1, TRANSACTION_SLOTS - 1] {
            let slot = Slot::of_transaction(number);
            for ino in [Ino::ROOT, Ino(INO_MASK)].map(|ino| slot.number(ino).0) {
                assert!(is_number_in_transaction(ino) && !is_control_number(ino));
            }
            let control = ControlDir::InTransaction(slot).number().0;
            assert!(is_control_number(control));
        }
        for dir in [
            ControlDir::Top,
            ControlDir::Snapshots,
            ControlDir::Transactions,
            ControlDir::History,
            ControlDir::TopOf(Ino(16)),
            ControlDir::SnapshotsOf(Ino(INO_MASK)),
        ] {
            let number = dir.number().0;
            assert!(is_control_number(number) && !is_number_in_transaction(number));
        }
    }

    #[test]
    fn clones_have_slots_that_no_snapshot_has() {
        for number in [1, 2, CLONE_SLOTS] {
            let slot = Slot::of_clone(number);
            let composite = slot.number(Ino(16));
            assert_eq!(Node::of(composite), Node::Live(slot, Ino(16)));
            assert_eq!(Slot::within(composite), Ino(16));
            assert_eq!(composite.0, slot.base() | 16);
        }
    }

    #[test]
    fn transactions_have_slots_that_no_clone_has() {
        for number in [1, 2, TRANSACTION_SLOTS - 1, TRANSACTION_SLOTS, u64::MAX] {
            let slot = Slot::of_transaction(number);
            assert!(slot.is_transaction(), "{number}");
            let composite = slot.number(Ino::ROOT);
            assert_eq!(Node::of(composite), Node::Live(slot, Ino::ROOT));
        }
        assert!(!Slot::of_clone(CLONE_SLOTS).is_transaction());
        for slot in [CONTROL_SLOT, TOP_OF_SLOT, SNAPSHOTS_OF_SLOT] {
            assert!(!Slot(slot).is_transaction());
            assert_eq!(Node::of(Slot(slot).number(Ino(0))), Node::Unknown);
        }
        assert_eq!(Node::of(Slot(TOP_OF_SLOT).number(Ino::ROOT)), Node::Unknown);
    }

    #[test]
    fn slots_are_used_again_after_half_a_million_views() {
        assert_eq!(Slot::of(PinId(SNAPSHOT_SLOTS + 1)), Slot::of(PinId(1)));
        assert_eq!(Slot::of(PinId(SNAPSHOT_SLOTS)), Slot(FIRST_CLONE_SLOT - 1));
        assert_eq!(Slot::of_clone(1), Slot(FIRST_CLONE_SLOT));
        let last = Slot::of_clone(CLONE_SLOTS);
        assert_eq!(last, Slot(FIRST_TRANSACTION_SLOT - 1));
        assert_eq!(Slot::of_clone(CLONE_SLOTS + 1), Slot::of_clone(1));
    }

    #[test]
    fn the_control_directories_have_numbers_of_their_own() {
        for dir in [
            ControlDir::Top,
            ControlDir::Snapshots,
            ControlDir::Transactions,
            ControlDir::History,
            ControlDir::TopOf(Ino(2)),
            ControlDir::SnapshotsOf(Ino(INO_MASK)),
        ] {
            assert_eq!(Node::of(dir.number()), Node::Control(dir));
        }
        assert_eq!(Node::of(link_number()), Node::Link);
        for number in [1, TRANSACTION_SLOTS - 1] {
            let slot = Slot::of_transaction(number);
            for dir in [
                ControlDir::InTransaction(slot),
                ControlDir::TransactionsIn(slot),
            ] {
                assert_eq!(Node::of(dir.number()), Node::Control(dir));
            }
            let link = transaction_link_number(slot);
            assert_eq!(Node::of(link), Node::TransactionLink(slot));
        }
        let of_clone = ControlDir::InTransaction(Slot::of_clone(1)).number();
        assert_eq!(Node::of(of_clone), Node::Unknown);
        let of_clone = ControlDir::TransactionsIn(Slot::of_clone(1)).number();
        assert_eq!(Node::of(of_clone), Node::Unknown);
        assert_eq!(Node::of(Slot(CONTROL_SLOT).number(Ino(6))), Node::Unknown);
        assert_eq!(Node::of(Ino(7 << VIEW_INO_BITS)), Node::Unknown);
    }
}
