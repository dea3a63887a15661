//! Changes that no request of the kernel made, and the notices that follow from them.
//!
//! | change | names | inodes: pages, listing, attributes |
//! |---|---|---|
//! | of a file system: a commit, a rollback | as [`Notices`] has them | likewise |
//! | a view is gone: removed, ended, rebased | | all that are known in it |
//! | a view's mapped pages are to be written back, for a commit | | all that are known in it |
//! | a transaction ended | its name in `txn` | |
//! | a WRITE to a snapshot was refused | | the inode |
//! | snapshots of directories came or went | | `snap` of the root and of each |
//! | the history changed | | `history` |
//!
//! [`UnaskedChange::notices`] is that table and nothing else: it sends nothing and asks nothing. A
//! thread sends the notices ([`crate::adapter::notices`]).

use std::collections::BTreeSet;

use stitch_base::Ino;
use stitch_fs::Notices;

use super::node::{ControlDir, Slot};

/// A change of a mount that no request of the kernel made.
#[derive(Debug)]
pub(super) enum UnaskedChange {
    /// Of the file system whose inodes have numbers from `base` on in the mount.
    Files { base: u64, notices: Notices },
    /// A view is gone, or its mapped pages are to be written back: the numbers of its known inodes.
    View(Vec<Ino>),
    /// A transaction ended, which began in the one of the slot, if any.
    TransactionEnded { outer: Option<Slot>, name: String },
    /// A WRITE to this inode was refused, and the kernel has the bytes in its cache.
    WriteRefused(Ino),
    /// Snapshots of these directories were created or deleted.
    SnapshotLists(BTreeSet<Ino>),
    /// Moments of the history were added or dropped.
    History,
}

impl UnaskedChange {
    /// Returns what the kernel has to drop, by numbers of the mount.
    pub(super) fn notices(self) -> Notices {
        let mut notices = Notices::default();
        match self {
            Self::Files { base, notices } => return in_mount(base, notices),
            Self::View(numbers) => notices.inodes.extend(numbers),
            Self::TransactionEnded { outer, name } => {
                let dir = outer.map_or(ControlDir::Transactions, ControlDir::TransactionsIn);
                let name = name.into_bytes().into();
                notices.names.insert((dir.number(), name));
            }
            Self::WriteRefused(ino) => {
                notices.inodes.insert(ino);
            }
            Self::SnapshotLists(dirs) => {
                let dirs = dirs.into_iter().chain([Ino::ROOT]);
                let lists = dirs.map(|dir| ControlDir::snapshots_of(dir).number());
                notices.inodes.extend(lists);
            }
            Self::History => {
                notices.inodes.insert(ControlDir::History.number());
            }
        }
        notices
    }
}

/// Returns notices with the numbers that inodes have in the mount.
fn in_mount(base: u64, notices: Notices) -> Notices {
    if base == 0 {
        return notices;
    }
    let number = |ino: Ino| {
        debug_assert_eq!(
            ino.0 & base,
            0,
            "numbers of a file system are below those of views"
        );
        Ino(ino.0 | base)
    };
    let names = notices.names.into_iter();
    let removed = notices.removed_dirs.into_iter();
    Notices {
        removed_dirs: removed.map(|(dir, names)| (number(dir), names)).collect(),
        names: names.map(|(dir, name)| (number(dir), name)).collect(),
        inodes: notices.inodes.into_iter().map(number).collect(),
        attrs: notices.attrs.into_iter().map(number).collect(),
    }
}

#[cfg(test)]
mod tests;
