//! The directories of `.stitchfs`: made up, and the same for all users but those of transactions.
//!
//! ```text
//! MNT/.stitchfs            found by its name, not listed in MNT
//! MNT/.stitchfs/kv.sock    a link to the socket on which keys are served, if they are
//! MNT/.stitchfs/snap       lists the snapshots
//! MNT/.stitchfs/snap/NAME  the directory of a snapshot
//! MNT/.stitchfs/txn/NAME   of a transaction; found by its name, not listed. Its mode is 0700, and
//!                          its owner the one who began the transaction
//! ROOT = MNT/.stitchfs/txn/NAME/root      the root of the transaction
//! ROOT/.stitchfs/txn/INNER/root           that of one that began in NAME; likewise
//! ROOT/.stitchfs/kv.sock   a link to the socket of the transaction's keys
//! MNT/.stitchfs/history/T  the root at a moment; `history` is found by its name, not listed
//! DIR/.stitchfs/snap       lists the snapshots of DIR, a directory below the root
//! ```
//!
//! mkdir(2) in `snap` creates a snapshot of the directory that it is of, rmdir(2) deletes one. The
//! daemon checks the caller's rights, so the mode of `snap` lets all users write to it, as in ZFS.
//!
//! A file of that name which the root directory has is found instead.

use std::time::Duration;

use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_fs::SnapshotInfo;

use super::node::{ControlDir, Slot, link_number};
use crate::wire::reply::{self, AttrReply, DirEntry, Entry, FOREVER, FileKind};

/// Name of the hidden directory in the root directory.
pub const CONTROL_DIR: &str = ".stitchfs";
/// Name of the directory of snapshots in [`CONTROL_DIR`].
pub const SNAPSHOTS_DIR: &str = "snap";
/// Name of the directory of transactions in [`CONTROL_DIR`]. Neither it nor what is in it is
/// listed: a program that walks the mount must not write to transactions.
pub const TRANSACTIONS_DIR: &str = "txn";

/// Name of the root of a transaction, in the directory that has the transaction's name.
pub const TRANSACTION_ROOT: &str = "root";

/// Name of the directory of moments of the history in [`CONTROL_DIR`].
pub const HISTORY_DIR: &str = "history";

/// A symbolic link in `.stitchfs`, to what the daemon serves beside files.
#[derive(Clone, Debug)]
pub struct ControlLink {
    /// Its name.
    pub name: Vec<u8>,
    /// Where it leads.
    pub target: Vec<u8>,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl ControlLink {
    pub(super) fn attr(&self, born: Timestamp) -> reply::Attr {
        self.attr_as(link_number(), born)
    }

    /// The attributes of a link that has this number.
    pub(super) fn attr_as(&self, ino: Ino, born: Timestamp) -> reply::Attr {
        reply::Attr {
            ino,
            size: self.target.len() as u64,
            mode: FileKind::Symlink.to_mode() | 0o777,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            ..ControlDir::Top.attr(born)
        }
    }

    pub(super) fn entry(&self, born: Timestamp, generation: u64) -> Entry {
        Entry {
            ino: link_number(),
            attr: self.attr(born),
            ..ControlDir::Top.entry(born, generation)
        }
    }

    /// Returns its entry in `.stitchfs`, which is the last one.
    pub(super) fn dir_entry(&self) -> DirEntry<'_> {
        DirEntry {
            ino: link_number(),
            next_offset: AFTER_SNAP + 1,
            kind: FileKind::Symlink,
            name: &self.name,
        }
    }
}

const MODE: u32 = FileKind::Directory.to_mode() | 0o555;
/// Of the directory of a transaction.
const OWNERS_MODE: u32 = FileKind::Directory.to_mode() | 0o700;
const WRITABLE_MODE: u32 = FileKind::Directory.to_mode() | 0o777;
/// Positions after `.` and `..`; a snapshot's is its number above the latter.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;
/// Position after `snap` in `.stitchfs`.
const AFTER_SNAP: u64 = AFTER_DOT_DOT + 1;

impl ControlDir {
    fn attr(self, born: Timestamp) -> reply::Attr {
        reply::Attr {
            ino: self.number(),
            size: 0,
            blocks: 0,
            atime: born,
            mtime: born,
            ctime: born,
            btime: born,
            mode: match self.of() {
                Some(_) => WRITABLE_MODE,
                None => MODE,
            },
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }

    /// The entry of the directory of a transaction that `owner` began. It stands for no time: names
    /// and slots are used again.
    pub(super) fn owners_entry(self, owner: u32, born: Timestamp, generation: u64) -> Entry {
        debug_assert!(
            matches!(self, Self::TransactionDir(_)),
            "others are for all users"
        );
        Entry {
            attr: reply::Attr {
                mode: OWNERS_MODE,
                uid: owner,
                ..self.attr(born)
            },
            entry_ttl: Duration::ZERO,
            attr_ttl: Duration::ZERO,
            ..self.entry(born, generation)
        }
    }

    pub(super) fn attr_reply(self, born: Timestamp) -> AttrReply {
        AttrReply {
            attr: self.attr(born),
            ttl: FOREVER,
        }
    }

    pub(super) fn entry(self, born: Timestamp, generation: u64) -> Entry {
        Entry {
            ino: self.number(),
            generation,
            attr: self.attr(born),
            entry_ttl: FOREVER,
            attr_ttl: FOREVER,
        }
    }

    /// Returns the number of the directory that it is in.
    pub(super) fn parent(self) -> Ino {
        match self {
            Self::Top => Ino::ROOT,
            Self::InTransaction(slot) => slot.number(Ino::ROOT),
            Self::TransactionDir(_) => Self::Transactions.number(),
            Self::TopOf(dir) => dir,
            Self::Snapshots
            | Self::Transactions
            | Self::TransactionsIn(_)
            | Self::History
            | Self::SnapshotsOf(_) => self.above().number(),
        }
    }

    /// Hands the entries after `offset` to `push`, until it returns `false`. `snapshots` are in the
    /// order of their numbers.
    pub(super) fn list(
        self,
        offset: u64,
        snapshots: &[SnapshotInfo],
        push: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) {
        let dots = [
            (".", AFTER_DOT, self.number()),
            ("..", AFTER_DOT_DOT, self.parent()),
        ];
        let children: Vec<(&str, u64, Ino)> = match self {
            Self::Top => vec![(SNAPSHOTS_DIR, AFTER_SNAP, Self::Snapshots.number())],
            Self::TopOf(dir) => {
                vec![(SNAPSHOTS_DIR, AFTER_SNAP, Self::SnapshotsOf(dir).number())]
            }
            Self::Snapshots | Self::SnapshotsOf(_) | Self::History => {
                snapshots.iter().map(snapshot_entry).collect()
            }
            Self::TransactionDir(slot) => {
                vec![(TRANSACTION_ROOT, AFTER_DOT_DOT + 1, slot.number(Ino::ROOT))]
            }
            Self::Transactions | Self::InTransaction(_) | Self::TransactionsIn(_) => Vec::new(),
        };
        for (name, at, ino) in dots.into_iter().chain(children) {
            let entry = DirEntry {
                ino,
                next_offset: at,
                kind: FileKind::Directory,
                name: name.as_bytes(),
            };
            if at > offset && !push(&entry) {
                return;
            }
        }
    }
}

/// Returns a snapshot's name, the position after it, and the number of its directory.
fn snapshot_entry(info: &SnapshotInfo) -> (&str, u64, Ino) {
    let ino = Slot::of(info.id).number(info.root);
    (&info.name, AFTER_DOT_DOT + info.id.0, ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::PinId;

    fn snapshot(id: u64) -> SnapshotInfo {
        SnapshotInfo {
            id: PinId(id),
            name: format!("s{id}"),
            root: Ino(16 + id),
            view: 0,
            path: Vec::new(),
            owner: 0,
            created: Timestamp(0),
            is_automatic: false,
            tags: Vec::new(),
        }
    }

    #[test]
    fn a_link_is_its_owners_and_comes_last() {
        let link = ControlLink {
            name: b"kv.sock".to_vec(),
            target: b"/run/x".to_vec(),
            uid: 7,
            gid: 8,
        };
        let attr = link.attr(Timestamp(5));
        assert_eq!((attr.mode, attr.nlink, attr.size), (0o120_777, 1, 6));
        assert_eq!((attr.uid, attr.gid, attr.ino), (7, 8, link_number()));
        let mut last = 0;
        ControlDir::Top.list(0, &[], &mut |entry| {
            last = entry.next_offset;
            true
        });
        assert!(link.dir_entry().next_offset > last);
    }

    fn names(
        dir: ControlDir,
        offset: u64,
        snapshots: &[SnapshotInfo],
        count: usize,
    ) -> Vec<String> {
        let mut names = Vec::new();
        dir.list(offset, snapshots, &mut |entry| {
            if names.len() == count {
                return false;
            }
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        });
        names
    }

    #[test]
    fn a_listing_goes_on_after_each_entry_whatever_is_deleted_meanwhile() {
        let all: Vec<_> = [1, 4, 9].map(snapshot).into();
        let dir = ControlDir::Snapshots;
        assert_eq!(names(dir, 0, &all, 9), [".", "..", "s1", "s4", "s9"]);
        assert_eq!(names(dir, AFTER_DOT, &all, 2), ["..", "s1"]);
        assert_eq!(names(dir, AFTER_DOT_DOT + 1, &all[1..], 9), ["s4", "s9"]);
        assert_eq!(names(dir, AFTER_DOT_DOT + 4, &all[2..], 9), ["s9"]);
        assert!(names(dir, AFTER_DOT_DOT + 9, &all, 9).is_empty());
        assert_eq!(names(ControlDir::Top, 0, &all, 9), [".", "..", "snap"]);
        assert_eq!(names(ControlDir::Transactions, 0, &all, 9), [".", ".."]);
        let dir = ControlDir::TransactionDir(Slot::of_transaction(7));
        assert_eq!(names(dir, 0, &all, 9), [".", "..", "root"]);
    }
}
