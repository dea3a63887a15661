//! Plain files that the kernel reads itself, in place of asking for their contents.
//!
//! From [`FileSystem::lend`] to [`FileSystem::take_back`] a plain file is as long as its file says whenever no
//! operation on it is under way, and the file does not come back into the store: who has the plain file open
//! or mapped goes on to see the file's contents and its end. A file that is cut to nothing stays a plain file.
//!
//! A mapping of a lent file is one of the plain file, and if it can be written through, nobody tells us. So
//! after [`FileSystem::lend_to_writer`] what it holds always counts as not synced, and the host's time of change
//! is looked at to move ours.

use super::{ExternalName, Externals, Plain, Status};
use crate::change::Change;
use crate::contents::Contents;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use std::os::fd::OwnedFd;
use stitch_base::Ino;

impl Plain {
    /// The kernel may read it without us.
    pub(crate) fn is_lent(&self) -> bool {
        self.status.lock().is_lent
    }
}

impl Externals {
    /// Whether the plain file of this inode is lent.
    pub(crate) fn is_lent(&self, ino: Ino) -> bool {
        self.find(ino).is_some_and(|plain| plain.is_lent())
    }
}

impl FileSystem {
    /// Lends the plain file of an external file: until [`Self::take_back`] it has the file's contents and length,
    /// and stays. `None` for other files, and for those whose plain file is longer at the moment, or damaged.
    ///
    /// # Errors
    /// [`FsError::Stale`]; [`FsError::Corrupt`] and [`FsError::External`] where the plain file is missing or lacks
    /// what it had.
    ///
    /// # Cost
    /// A file that ends in a hole is synced.
    pub fn lend(&self, ino: Ino) -> FsResult<Option<ExternalName>> {
        if !Contents::are_external(&self.residents.inodes.head(ino)?) {
            return Ok(None);
        }
        let _inode = self.residents.locks.inode_write(ino);
        let head = self.residents.inodes.head(ino)?;
        if !Contents::are_external(&head) {
            return Ok(None);
        }
        loop {
            let plain = self.plain(ino, head.size)?;
            if plain.len() < head.size && !self.options.read_only {
                self.trim(&plain)?;
                self.stretch(&plain, head.size)?;
            }
            let mut status = plain.status.lock();
            if status.is_gone {
                // It was forgotten at this moment; the next one is another's.
                continue;
            }
            status.is_lent |= status.len == head.size && !status.is_failed;
            return Ok(status.is_lent.then_some(plain.name));
        }
    }

    /// The plain file itself, open for reading.
    ///
    /// # Errors
    /// [`FsError::External`].
    pub fn lent_file(&self, name: ExternalName) -> FsResult<OwnedFd> {
        Ok(self.externals.files()?.host_file(name)?)
    }

    /// A file of the host in the folder of plain files that is nobody's contents.
    ///
    /// # Errors
    /// [`FsError::External`]; [`FsError::Corrupt`] without a folder.
    pub fn sample_file(&self) -> FsResult<OwnedFd> {
        Ok(self.externals.files()?.sample()?)
    }

    /// A lent file may be changed through mappings from now on, until it is taken back.
    ///
    /// # Errors
    /// [`FsError::External`].
    pub fn lend_to_writer(&self, ino: Ino) -> FsResult<()> {
        let _inode = self.residents.locks.inode_write(ino);
        let Some(plain) = self.externals.find(ino) else {
            return Ok(());
        };
        let mut status = plain.status.lock();
        debug_assert!(status.is_lent, "it is lent to readers first");
        if status.mapped.is_none() && !self.options.read_only {
            status.mapped = Some(self.externals.files()?.modified(plain.name)?);
            status.is_dirty = true;
        }
        Ok(())
    }

    /// Nobody but us reads and writes the plain file any more.
    pub fn take_back(&self, ino: Ino) {
        if let Some(plain) = self.externals.find(ino) {
            let mut status = plain.status.lock();
            status.is_lent = false;
            status.is_dirty |= status.mapped.take().is_some();
        }
        if !self.knows(ino) {
            self.externals.forget(ino);
        }
    }

    /// Whether somebody holds this inode.
    #[must_use]
    pub fn knows(&self, ino: Ino) -> bool {
        self.residents.inodes.find(ino).is_some()
    }

    /// Sets the times of a file that was changed through mappings. Answers whether it was.
    ///
    /// # Errors
    /// [`FsError::External`], [`FsError::NoSpace`], [`FsError::Stale`].
    pub fn note_mapped_writes(&self, ino: Ino) -> FsResult<bool> {
        let Some(plain) = self.externals.find(ino) else {
            return Ok(false);
        };
        if plain.status.lock().mapped.is_none() {
            return Ok(false);
        }
        let _inode = self.residents.locks.inode_write(ino);
        let modified = self.externals.files()?.modified(plain.name)?;
        let known = plain.status.lock().mapped;
        if known.is_none_or(|known| known == modified) {
            return Ok(false);
        }
        let inode = self.residents.inodes.get(ino)?;
        let mut head = inode.head;
        let now = self.now();
        head.mtime = now;
        head.ctime = now;
        let mut change = Change::new(self);
        change.attrs(&inode, &head)?;
        change.commit()?;
        let mut status = plain.status.lock();
        status.mapped = status.mapped.and(Some(modified));
        Ok(true)
    }

    /// What we do to a plain file is not taken for what mappings do.
    pub(super) fn note_own_change(&self, name: ExternalName, status: &mut Status) {
        if status.mapped.is_none() {
            return;
        }
        let files = self.externals.files();
        match files.and_then(|files| files.modified(name).map_err(FsError::from)) {
            Ok(modified) => status.mapped = Some(modified),
            Err(error) => tracing::debug!(%error, "its time of change moves once more"),
        }
    }

    /// Lets a plain file grow by a hole. Nothing that was cut may come back: it is trimmed.
    pub(crate) fn stretch(&self, plain: &Plain, size: u64) -> FsResult<()> {
        let mut status = plain.status.lock();
        debug_assert!(!status.needs_trim(), "it was trimmed");
        if status.len >= size {
            return Ok(());
        }
        status.is_dirty = true;
        self.externals.set_len(&mut status, size);
        if let Err(error) = self.externals.files()?.set_len(plain.name, size) {
            self.learn_len(plain.name, &mut status);
            drop(status);
            self.fit(plain);
            return Err(error.into());
        }
        self.note_own_change(plain.name, &mut status);
        Ok(())
    }

    /// Cuts off what a lent file has behind its size. The inode is locked.
    pub(crate) fn fit(&self, plain: &Plain) {
        let mut status = plain.status.lock();
        if !status.is_lent {
            return;
        }
        status.is_dirty |= status.is_too_long();
        if let Err(error) = self.cut_off(plain.name, &mut status) {
            tracing::warn!(%error, name = %plain.name, "readers may see more than there is until it is cut");
        }
    }

    /// As [`Self::fit`], of the plain file of an inode, if it has one.
    pub(crate) fn fit_again(&self, ino: Ino) {
        if let Some(plain) = self.externals.find(ino) {
            self.fit(&plain);
        }
    }
}
