//! What a file system offers of external files. The work is that of [`ExternalContents`].

use super::ExternalName;
use super::inodes::ExternalContents;
#[cfg(doc)]
use crate::FsError;
use crate::FsResult;
use crate::contents::Contents;
use crate::system::FileSystem;
use std::os::fd::OwnedFd;
use stitch_base::Ino;

impl FileSystem {
    /// Lends the plain file of an external file: until [`Self::take_back`] it has the file's
    /// contents and length, and stays. `None` for other files, and for those whose plain file is
    /// longer at the moment, or damaged.
    ///
    /// # Errors
    /// `FsError::Stale`; `FsError::Corrupt` and `FsError::External` where the plain file is
    /// missing or shorter than it was.
    ///
    /// # Cost
    /// A file that ends in a hole is synced.
    pub fn lend(&self, ino: Ino) -> FsResult<Option<ExternalName>> {
        let name = ExternalContents::of(self).lend(ino)?;
        debug_assert!(
            name.is_none_or(|name| name.ino == ino),
            "the plain file of the inode"
        );
        Ok(name)
    }

    /// The plain file itself, open for reading.
    ///
    /// # Errors
    /// `FsError::External`.
    pub fn lent_file(&self, name: ExternalName) -> FsResult<OwnedFd> {
        debug_assert!(name.number > 0, "0 is the number of no plain file");
        Ok(self.externals.files()?.host_file(name)?)
    }

    /// A file of the host in the folder of plain files that is the contents of no inode.
    ///
    /// # Errors
    /// `FsError::External`; `FsError::Corrupt` without a folder.
    pub fn sample_file(&self) -> FsResult<OwnedFd> {
        Ok(self.externals.files()?.sample()?)
    }

    /// Notes that a lent file may be changed through mappings, until it is taken back.
    ///
    /// # Errors
    /// `FsError::External`.
    pub fn lend_to_writer(&self, ino: Ino) -> FsResult<()> {
        ExternalContents::of(self).lend_to_writer(ino)
    }

    /// Ends a loan: the kernel does not read or write the plain file any more.
    pub fn take_back(&self, ino: Ino) {
        ExternalContents::of(self).take_back(ino);
    }

    /// Reports whether this inode is known.
    #[must_use]
    pub fn knows(&self, ino: Ino) -> bool {
        self.residents.inodes.is_known(ino)
    }

    /// Sets the times of a file that was changed through mappings. Reports whether it was.
    ///
    /// # Errors
    /// `FsError::External`, `FsError::NoSpace`, `FsError::Stale`.
    pub fn note_mapped_writes(&self, ino: Ino) -> FsResult<bool> {
        ExternalContents::of(self).note_mapped_writes(ino)
    }

    /// Reports whether [`Self::sync`] would do something for external files. A caller that syncs in
    /// the background asks this now and then.
    #[must_use]
    pub fn has_unsettled_files(&self) -> bool {
        !self.options.read_only && self.externals.are_unsettled()
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
