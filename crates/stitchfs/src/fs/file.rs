//! An open file.

use super::hold::Hold;
use crate::StoreError;
use stitch_fs::{Attr, Caller, ClearSetId, SetAttr, WriteOptions};

/// An open file, to be shared by threads. It is there as long as this is, whatever becomes of its
/// name.
pub struct File {
    hold: Hold,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("ino", &self.hold.ino())
            .finish_non_exhaustive()
    }
}

impl File {
    pub(super) const fn new(hold: Hold) -> Self {
        Self { hold }
    }

    /// Appends up to `len` bytes from `offset` on to `out`; fewer only at the end of the file.
    /// Answers how many.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt), [`Io`](crate::ErrorKind::Io): `out` may have grown
    /// by a part.
    pub fn read_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<usize, StoreError> {
        let fs = &self.hold.open().fs;
        Ok(fs.read(self.hold.ino(), offset, len, out)?)
    }

    /// Writes all of `data`; a gap before it reads as zeros. Reads nothing.
    ///
    /// # Errors
    /// [`NoSpace`](crate::ErrorKind::NoSpace): of more than 2 MiB, a beginning may be written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), StoreError> {
        self.write(data, offset, WriteOptions::default())
    }

    /// Writes all of `data` at the end, wherever that is by then.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub fn append(&self, data: &[u8]) -> Result<(), StoreError> {
        let options = WriteOptions {
            append: true,
            clear_setid: ClearSetId::None,
        };
        self.write(data, 0, options)
    }

    fn write(&self, data: &[u8], offset: u64, options: WriteOptions) -> Result<(), StoreError> {
        let fs = &self.hold.open().fs;
        fs.write(self.hold.ino(), offset, data, options)?;
        Ok(())
    }

    /// Cuts the file, or adds a hole.
    ///
    /// # Errors
    /// [`NoSpace`](crate::ErrorKind::NoSpace).
    pub fn set_len(&self, len_bytes: u64) -> Result<(), StoreError> {
        let set = SetAttr {
            size: Some(len_bytes),
            ..SetAttr::default()
        };
        let fs = &self.hold.open().fs;
        fs.set_attr(&Caller::ROOT, self.hold.ino(), &set)?;
        Ok(())
    }

    /// Attributes.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn stat(&self) -> Result<Attr, StoreError> {
        Ok(self.hold.open().fs.get_attr(self.hold.ino())?)
    }

    /// Makes the file durable, and with it everything that returned before. Threads that do so at
    /// the same time share syncs.
    ///
    /// # Errors
    /// As [`Files::sync`](super::Files::sync).
    pub fn sync(&self) -> Result<(), StoreError> {
        Ok(self.hold.open().fs.sync_inode(self.hold.ino())?)
    }
}
