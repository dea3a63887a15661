//! Directories of mainline and of clones, which snapshots, rollbacks and policies are of.

use stitch_base::sync::Arc;
use stitch_base::{Ino, PinId};
use stitch_fs::{FileSystem, FsResult, Notices, PolicyRule, RollbackRights, SnapshotInfo};

use super::Views;
use super::live::OpenClone;
use super::node::{Node, Slot};
use crate::adapter::Adapter;
use crate::errno::Errno;
use crate::handler::Answer;

/// A directory that can change, by its number in its own file system.
#[derive(Clone, Debug)]
pub(super) enum WritableDir {
    /// In mainline.
    Main(Arc<FileSystem>, Ino),
    /// In a clone, which stays open as long as this.
    InClone(Arc<FileSystem>, Arc<OpenClone>, Ino),
}

impl Views {
    /// Returns the directory that a number of the mount names; transactions and the past have none.
    pub(super) fn writable_dir(&self, number: Ino) -> Answer<WritableDir> {
        let mainline = Arc::clone(self.mainline.fs());
        match self.node(number) {
            Node::Mainline => Ok(WritableDir::Main(mainline, number)),
            Node::Live(slot, dir) if !slot.is_transaction() => {
                let clone = self.clones.by_slot(slot)?;
                Ok(WritableDir::InClone(mainline, clone, dir))
            }
            Node::Live(..) => Err(Errno::ENOTSUP),
            _ => Err(Errno::EROFS),
        }
    }
}

impl WritableDir {
    /// Returns the file system that has the directory.
    pub(super) fn fs(&self) -> &FileSystem {
        match self {
            Self::Main(fs, _) => fs,
            Self::InClone(_, clone, _) => clone.adapter().fs(),
        }
    }

    /// Returns its number in that file system.
    pub(super) const fn ino(&self) -> Ino {
        match self {
            Self::Main(_, dir) | Self::InClone(_, _, dir) => *dir,
        }
    }

    /// Returns the number in the mount from which its file system's inodes have theirs.
    pub(super) fn base(&self) -> u64 {
        match self {
            Self::Main(..) => 0,
            Self::InClone(_, clone, _) => Slot::of_clone(clone.info().number).base(),
        }
    }

    /// Returns the directory of mainline whose list of snapshots its snapshots are in, beside that
    /// of all.
    pub(super) const fn list(&self) -> Ino {
        match self {
            Self::Main(_, dir) => *dir,
            Self::InClone(..) => Ino::ROOT,
        }
    }

    pub(super) fn create_snapshot(&self, name: &str) -> FsResult<SnapshotInfo> {
        match self {
            Self::Main(fs, dir) => fs.snapshots().create(*dir, name),
            Self::InClone(fs, clone, dir) => fs.snapshots().create_in(clone.view(), *dir, name),
        }
    }

    pub(super) fn roll_back(&self, name: &str, rights: RollbackRights) -> FsResult<Notices> {
        match self {
            Self::Main(fs, dir) => fs.roll_back(name, *dir, rights),
            Self::InClone(fs, clone, dir) => fs.roll_back_in(clone.view(), name, *dir, rights),
        }
    }

    pub(super) fn roll_back_to_moment(
        &self,
        id: PinId,
        rights: RollbackRights,
    ) -> FsResult<Notices> {
        match self {
            Self::Main(fs, dir) => fs.roll_back_to_moment(id, *dir, rights),
            Self::InClone(fs, clone, dir) => {
                fs.roll_back_in_to_moment(clone.view(), id, *dir, rights)
            }
        }
    }

    pub(super) fn set_policy(&self, rule: &PolicyRule) -> FsResult<()> {
        match self {
            Self::Main(fs, dir) => fs.policies().set(*dir, rule),
            Self::InClone(fs, clone, dir) => fs.policies().set_in(clone.view(), *dir, rule),
        }
    }

    pub(super) fn delete_policy(&self) -> FsResult<()> {
        match self {
            Self::Main(fs, dir) => fs.policies().delete(*dir),
            Self::InClone(fs, clone, dir) => fs.policies().delete_in(clone.info().number, *dir),
        }
    }

    /// Has removed trees of a clone emptied, and what was forgotten reclaimed, in the background.
    /// Mainline's are noted when the outcome is told.
    pub(super) fn note_removed(&self) {
        if let Self::InClone(_, clone, _) = self {
            let adapter: &Adapter = clone.adapter();
            adapter.trees.note();
            adapter.reclaiming.note();
        }
    }
}
