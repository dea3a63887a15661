//! Plain files as a whole: synced, trimmed, removed.

use super::Plain;
use super::files::PlainFiles;
use crate::contents::Contents;
use crate::room::unless_full;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, Ino};

impl FileSystem {
    pub(crate) fn plain_files(&self) -> PlainFiles<'_> {
        let engine = &**self.engine();
        PlainFiles::new(&self.externals, &self.store, engine, self.options.read_only)
    }

    /// Makes all plain files durable, also those of inodes that are not known any more.
    pub(crate) fn sync_all_plain(&self) -> FsResult<()> {
        let mut first = Ok(());
        for (ino, plain) in self.externals.all() {
            if let Err(error) = self.note_mapped_writes(ino) {
                tracing::debug!(%error, ino = ino.0, "its time of change is set later");
            }
            let settled = {
                let _inode = self.residents.locks.inode_read(ino);
                self.plain_files().sync_plain(&plain)
            };
            if self.residents.inodes.find(ino).is_none() {
                self.externals.forget(ino);
            }
            // One that failed long ago hides no other.
            let is_old = |e: &FsError| e.kind() == ErrorKind::Poisoned;
            if first.is_ok() || (first.as_ref().is_err_and(is_old) && settled.is_err()) {
                first = settled;
            }
        }
        first
    }

    /// After the engine was synced: gives back what was cut off.
    pub(crate) fn trim_all(&self) {
        for (ino, plain) in self.externals.all() {
            if !plain.status.lock().is_too_long() {
                continue;
            }
            let _inode = self.residents.locks.inode_write(ino);
            let is_there = !plain.status.lock().is_gone;
            if is_there && let Err(error) = self.plain_files().trim(&plain) {
                tracing::debug!(%error, name = %plain.name, "it is cut later");
            }
        }
    }

    /// Removes plain files whose rows are gone, after that is durable. Returns their number.
    pub(crate) fn remove_retired(&self) -> FsResult<usize> {
        let _one_at_a_time = self.externals.removing.lock();
        let names = std::mem::take(&mut *self.externals.retired.lock());
        if names.is_empty() {
            return Ok(0);
        }
        if let Err(error) = self.engine().sync() {
            self.externals.retired.lock().extend(names);
            return Err(error.into());
        }
        let files = self.externals.files()?;
        for &name in &names {
            if let Err(error) = files.remove(name) {
                tracing::warn!(%error, "a plain file is left; the next open removes it");
            }
        }
        self.room.note_given_back(names.len());
        Ok(names.len())
    }

    /// Removes plain files of forgotten files at once, since the host is full. Reports whether
    /// there were any. The caller may have an inode locked.
    pub(crate) fn makes_room_beside(&self) -> FsResult<bool> {
        let mark = self.room_mark();
        // The store may be full itself, and other plain files be retired already.
        unless_full(self.reclaim())?;
        // Another thread may have removed some meanwhile.
        Ok(self.remove_retired()? > 0 || self.room_mark() != mark)
    }

    /// Reports whether [`Self::sync`] would do something for external files. A caller that syncs in
    /// the background asks this now and then.
    #[must_use]
    pub fn has_unsettled_files(&self) -> bool {
        if self.options.read_only || !self.externals.is_there() {
            return false;
        }
        // One that is locked is being written or settled.
        let is_open = |plain: &Arc<Plain>| plain.status.try_lock().is_none_or(|s| s.is_unsettled());
        let has_retired = !self.externals.retired.lock().is_empty();
        has_retired || self.externals.known.lock().values().any(is_open)
    }

    /// Reports whether there is a folder of external files.
    #[must_use]
    pub fn has_large_files(&self) -> bool {
        self.externals.is_there()
    }

    /// Reports whether the contents of a file are a plain file.
    ///
    /// # Errors
    /// As [`Self::get_attr`].
    pub fn is_external(&self, ino: Ino) -> FsResult<bool> {
        Ok(Contents::are_external(&self.residents.inodes.head(ino)?))
    }

    /// Returns the number of external files, and of their bytes.
    #[must_use]
    pub fn external_usage(&self) -> (u64, u64) {
        (self.externals.count(), self.externals.bytes())
    }
}
