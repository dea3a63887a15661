//! Passthrough files: plain files that the kernel reads itself, instead of asking for their
//! contents.
//!
//! From [`ExternalContents::lend`] to [`ExternalContents::take_back`] a plain file is as long as
//! its file whenever no operation on it is under way, and the file does not come back into the
//! store. So a program that has it open or mapped sees the file's contents and its end. A file that
//! is cut to nothing stays a plain file.
//!
//! A mapping of a lent file is one of the plain file. Writes through it send no request. So after
//! [`ExternalContents::lend_to_writer`] the contents always count as not synced, and the host's
//! time of change moves the file's.

use super::files::PlainFiles;
use super::inodes::ExternalContents;
use super::{ExternalName, Plain};
use crate::FsResult;
use crate::contents::Contents;
use stitch_base::Ino;

impl Plain {
    /// Reports whether the kernel may read it without us.
    pub(crate) fn is_lent(&self) -> bool {
        self.status.lock().is_lent
    }
}

impl PlainFiles<'_> {
    /// Reports whether the plain file of this inode is lent.
    pub(crate) fn is_lent(&self, ino: Ino) -> bool {
        self.externals
            .find(ino)
            .is_some_and(|plain| plain.is_lent())
    }
}

impl ExternalContents<'_> {
    /// Lends the plain file of an external file, as long as the file. `None` for other files, and
    /// for those whose plain file is longer at the moment, or damaged.
    pub(super) fn lend(&self, ino: Ino) -> FsResult<Option<ExternalName>> {
        if !Contents::are_external(&self.residents.inodes.head(ino)?) {
            return Ok(None);
        }
        let _inode = self.residents.locks.inode_write(ino);
        let head = self.residents.inodes.head(ino)?;
        debug_assert_eq!(head.ino, ino, "the inode of the number");
        if !Contents::are_external(&head) {
            return Ok(None);
        }
        loop {
            let plain = self.plain_files.open(ino, head.size)?;
            if plain.len() < head.size && !self.plain_files.read_only {
                self.plain_files.trim(&plain)?;
                self.plain_files.stretch(&plain, head.size)?;
            }
            let mut status = plain.status.lock();
            if status.is_gone {
                // It was forgotten at this moment: the next one is opened anew.
                continue;
            }
            debug_assert_eq!(plain.name.ino, ino, "the plain file of the inode");
            status.is_lent |= status.len == head.size && !status.is_failed;
            debug_assert!(status.holds(), "mappings are of lent files");
            return Ok(status.is_lent.then_some(plain.name));
        }
    }

    /// Notes that a lent file may be changed through mappings.
    pub(super) fn lend_to_writer(&self, ino: Ino) -> FsResult<()> {
        let _inode = self.residents.locks.inode_write(ino);
        let Some(plain) = self.plain_files.externals.find(ino) else {
            return Ok(());
        };
        let mut status = plain.status.lock();
        debug_assert!(status.is_lent, "it is lent to readers first");
        if status.mapped.is_none() && !self.plain_files.read_only {
            status.mapped = Some(self.plain_files.externals.files()?.modified(plain.name)?);
            status.is_dirty = true;
            debug_assert!(status.holds(), "mappings are of lent files");
        }
        Ok(())
    }

    /// Ends a loan.
    pub(super) fn take_back(&self, ino: Ino) {
        let externals = self.plain_files.externals;
        if let Some(plain) = externals.find(ino) {
            let mut status = plain.status.lock();
            status.is_lent = false;
            debug_assert_eq!(plain.name.ino, ino, "the plain file of the inode");
            status.is_dirty |= status.mapped.take().is_some();
            debug_assert!(status.mapped.is_none(), "only lent files are mapped");
        }
        if self.residents.inodes.find(ino).is_none() {
            externals.forget(ino);
        }
    }

    /// Sets the times of a file that was changed through mappings. Reports whether it was.
    pub(super) fn note_mapped_writes(&self, ino: Ino) -> FsResult<bool> {
        let externals = self.plain_files.externals;
        let Some(plain) = externals.find(ino) else {
            return Ok(false);
        };
        debug_assert_eq!(plain.name.ino, ino, "the plain file of the inode");
        if plain.status.lock().mapped.is_none() {
            return Ok(false);
        }
        let _inode = self.residents.locks.inode_write(ino);
        let modified = externals.files()?.modified(plain.name)?;
        let known = plain.status.lock().mapped;
        if known.is_none_or(|known| known == modified) {
            return Ok(false);
        }
        let inode = self.residents.inodes.get(ino)?;
        let mut head = inode.head;
        let now = self.changes.now();
        head.mtime = now;
        head.ctime = now;
        let mut change = self.changes.begin();
        change.attrs(&inode, &head)?;
        change.commit()?;
        let mut status = plain.status.lock();
        status.mapped = status.mapped.and(Some(modified));
        debug_assert!(status.holds(), "a mapped file is synced again");
        Ok(true)
    }
}
