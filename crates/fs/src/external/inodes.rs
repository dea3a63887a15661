//! Plain files with the inodes that have them: synced, trimmed, removed.

use super::Plain;
use super::files::PlainFiles;
use crate::change::Changes;
use crate::contents::Contents;
use crate::residents::Residents;
use crate::room::Room;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use stitch_base::{ErrorKind, Ino};

/// The plain files of a file system, and the inodes that have them. It takes the locks of inodes
/// itself.
///
/// Invariant: a plain file is synced while its inode is locked, and cut while it is locked
/// exclusively. One whose rows are gone is removed only after that is durable.
#[derive(Clone, Copy)]
pub(crate) struct ExternalContents<'fs> {
    pub(super) plain_files: PlainFiles<'fs>,
    pub(super) residents: &'fs Residents,
    /// Counts the plain files that were removed.
    pub(super) room: &'fs Room,
    /// Sets times of files that were changed through mappings.
    pub(super) changes: Changes<'fs>,
}

impl<'fs> ExternalContents<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            plain_files: PlainFiles::of(fs),
            residents: &fs.residents,
            room: &fs.room,
            changes: Changes::of(fs),
        }
    }
}

impl ExternalContents<'_> {
    /// Makes the plain file of an inode durable, if it has one.
    pub(crate) fn sync(&self, ino: Ino) -> FsResult<()> {
        debug_assert!(!self.plain_files.read_only, "there is nothing to sync");
        self.note_mapped_writes(ino)?;
        // As it is by now: its size may have changed, and it may be gone.
        let _inode = self.residents.locks.inode_read(ino);
        let head = self.residents.inodes.head(ino)?;
        if !Contents::are_external(&head) {
            return Ok(());
        }
        let plain = self.plain_files.open(ino, head.size)?;
        self.plain_files.sync_plain(&plain)
    }

    /// Makes all plain files durable, also those of inodes that are not known any more.
    pub(crate) fn sync_all(&self) -> FsResult<()> {
        debug_assert!(!self.plain_files.read_only, "there is nothing to sync");
        let mut first = Ok(());
        for (ino, plain) in self.plain_files.externals.all() {
            let settled = self.sync_one(ino, &plain);
            // One that failed long ago hides no other.
            let is_old = |e: &FsError| e.kind() == ErrorKind::Poisoned;
            if first.is_ok() || (first.as_ref().is_err_and(is_old) && settled.is_err()) {
                first = settled;
            }
        }
        first
    }

    /// Makes a plain file durable that is in use, and lets go of it if its inode is not known.
    fn sync_one(&self, ino: Ino, plain: &Plain) -> FsResult<()> {
        debug_assert_eq!(plain.name.ino, ino, "it is the inode's");
        if let Err(error) = self.note_mapped_writes(ino) {
            tracing::debug!(%error, ino = ino.0, "its time of change is set later");
        }
        let settled = {
            let _inode = self.residents.locks.inode_read(ino);
            self.plain_files.sync_plain(plain)
        };
        if self.residents.inodes.find(ino).is_none() {
            self.plain_files.externals.forget(ino);
        }
        settled
    }

    /// After the engine was synced: gives back what was cut off.
    pub(crate) fn trim_all(&self) {
        debug_assert!(!self.plain_files.read_only, "no file is cut");
        for (ino, plain) in self.plain_files.externals.all() {
            if !plain.status.lock().is_too_long() {
                continue;
            }
            let _inode = self.residents.locks.inode_write(ino);
            debug_assert_eq!(plain.name.ino, ino, "it is the inode's");
            let is_there = !plain.status.lock().is_gone;
            if is_there && let Err(error) = self.plain_files.trim(&plain) {
                tracing::debug!(%error, name = %plain.name, "it is cut later");
            }
        }
    }

    /// Removes plain files whose rows are gone, after that is durable. Returns their number.
    pub(crate) fn remove_retired(&self) -> FsResult<usize> {
        debug_assert!(!self.plain_files.read_only, "no file is removed");
        let externals = self.plain_files.externals;
        let _one_at_a_time = externals.removing.lock();
        let names = std::mem::take(&mut *externals.retired.lock());
        debug_assert!(
            names.iter().all(|name| name.number > 0),
            "0 is the number of no plain file"
        );
        if names.is_empty() {
            return Ok(0);
        }
        if let Err(error) = self.plain_files.engine.sync() {
            externals.retired.lock().extend(names);
            return Err(error.into());
        }
        let files = externals.files()?;
        for &name in &names {
            if let Err(error) = files.remove(name) {
                tracing::warn!(%error, "a plain file is left; the next open removes it");
            }
        }
        // Before another thread may find that none is retired.
        self.room.note_given_back(names.len());
        Ok(names.len())
    }
}
