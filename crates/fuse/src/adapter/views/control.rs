//! The directories of `.stitchfs`: made up, read-only, and the same for everybody.
//!
//! ```text
//! MNT/.stitchfs            found by its name, not listed in MNT
//! MNT/.stitchfs/snap       lists the snapshots
//! MNT/.stitchfs/snap/NAME  the directory of a snapshot
//! ```
//!
//! A file of that name which the root directory has is found instead.

use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_fs::SnapshotInfo;

use super::node::{ControlDir, Slot};
use crate::wire::reply::{self, AttrReply, DirEntry, Entry, FOREVER, FileKind};

/// Name of the hidden directory in the root directory.
pub const CONTROL_DIR: &str = ".stitchfs";
/// Name of the directory of snapshots in [`CONTROL_DIR`].
pub const SNAPSHOTS_DIR: &str = "snap";

const MODE: u32 = FileKind::Directory.to_mode() | 0o555;
/// Positions after `.` and `..`; a snapshot's is its number above the latter.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

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
            mode: MODE,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
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

    fn parent(self) -> Ino {
        match self {
            Self::Top => Ino::ROOT,
            Self::Snapshots => Self::Top.number(),
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
            Self::Top => vec![(SNAPSHOTS_DIR, AFTER_DOT_DOT + 1, Self::Snapshots.number())],
            Self::Snapshots => snapshots.iter().map(snapshot_entry).collect(),
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
            path: Vec::new(),
            owner: 0,
            created: Timestamp(0),
        }
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
    }
}
