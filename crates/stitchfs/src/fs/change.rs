//! A directory to start paths from: what is changed.

use super::dir::Dir;
use super::file::File;
use super::hold::{Hold, Last};
use crate::StoreError;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use stitch_fs::{Attr, Caller, FsError, NewNode, RenameMode, SetAttr, SetTime, XattrMode};

const FILE: NewNode = NewNode {
    perm: 0o644,
    umask: 0,
};
const DIR: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};

impl Dir {
    /// Makes an empty file with mode 0644 and opens it.
    ///
    /// # Errors
    /// [`Exists`](crate::ErrorKind::Exists), [`NotFound`](crate::ErrorKind::NotFound) where the
    /// directory is missing, [`NoSpace`](crate::ErrorKind::NoSpace).
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File, StoreError> {
        let open = self.hold.open();
        let end = self.hold.parent_of(path.as_ref())?;
        let attr = open.fs.create(&Caller::ROOT, end.at()?, &FILE)?;
        Ok(File::new(Hold::taken(open, attr.ino)))
    }

    /// Makes a file of these contents, or gives them to the one that is there.
    ///
    /// Two or three steps: a crash may leave a file without contents. To replace a file whole or
    /// not at all, write another one and [`Self::rename`] it.
    ///
    /// # Errors
    /// As [`Self::create`] and [`Self::open`].
    pub fn write(&self, path: impl AsRef<Path>, data: &[u8]) -> Result<(), StoreError> {
        let path = path.as_ref();
        let file = match self.create(path) {
            Ok(file) => file,
            Err(StoreError::Fs(FsError::Exists)) => {
                let file = self.open(path)?;
                file.set_len(0)?;
                file
            }
            Err(error) => return Err(error),
        };
        file.write_at(data, 0)
    }

    /// Makes a directory with mode 0755.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn make_dir(&self, path: impl AsRef<Path>) -> Result<(), StoreError> {
        let fs = &self.hold.open().fs;
        let end = self.hold.parent_of(path.as_ref())?;
        let attr = fs.make_dir(&Caller::ROOT, end.at()?, &DIR)?;
        fs.forget(attr.ino, 1);
        Ok(())
    }

    /// Makes a symbolic link that leads to `target`.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn make_symlink(
        &self,
        target: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> Result<(), StoreError> {
        let fs = &self.hold.open().fs;
        let end = self.hold.parent_of(path.as_ref())?;
        let target = target.as_ref().as_os_str().as_bytes();
        let attr = fs.make_symlink(&Caller::ROOT, end.at()?, target)?;
        fs.forget(attr.ino, 1);
        Ok(())
    }

    /// Gives a file a further name.
    ///
    /// # Errors
    /// As [`Self::create`]; [`NotFound`](crate::ErrorKind::NotFound) without `source`.
    pub fn link(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<(), StoreError> {
        let fs = &self.hold.open().fs;
        let end = self.hold.parent_of(target.as_ref())?;
        self.hold.with(source.as_ref(), Last::Itself, |attr| {
            let linked = fs.link(&Caller::ROOT, attr.ino, end.at()?)?;
            fs.forget(linked.ino, 1);
            Ok(())
        })
    }

    /// Moves a name; what has the new name already is replaced, in the same step.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Invalid`](crate::ErrorKind::Invalid) for a
    /// directory into itself or onto a file, [`Exists`](crate::ErrorKind::Exists) for a directory
    /// with entries that is in the way.
    pub fn rename(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<(), StoreError> {
        let fs = &self.hold.open().fs;
        let from = self.hold.parent_of(source.as_ref())?;
        let to = self.hold.parent_of(target.as_ref())?;
        Ok(fs.rename(&Caller::ROOT, from.at()?, to.at()?, RenameMode::Replace)?)
    }

    /// Removes the name of anything but a directory. What is open stays until its last [`File`] is
    /// dropped.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Invalid`](crate::ErrorKind::Invalid) for a
    /// directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), StoreError> {
        let end = self.hold.parent_of(path.as_ref())?;
        Ok(self.hold.open().fs.unlink(&Caller::ROOT, end.at()?)?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Invalid`](crate::ErrorKind::Invalid) for what is
    /// no directory, [`Exists`](crate::ErrorKind::Exists) for one that has entries.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), StoreError> {
        let end = self.hold.parent_of(path.as_ref())?;
        Ok(self.hold.open().fs.remove_dir(&Caller::ROOT, end.at()?)?)
    }

    /// Removes a directory with all that is in it.
    ///
    /// The name goes in one step, whatever the size; then what was below it is removed, which takes
    /// as long as the tree is large. If that ends early, by a crash or an error, the next
    /// [`Files::open`] or mount goes on with it.
    ///
    /// [`Files::open`]: super::Files::open
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Invalid`](crate::ErrorKind::Invalid) for what is
    /// no directory.
    pub fn remove_tree(&self, path: impl AsRef<Path>) -> Result<(), StoreError> {
        let fs = &self.hold.open().fs;
        let end = self.hold.parent_of(path.as_ref())?;
        fs.remove_tree(&Caller::ROOT, end.at()?, None)?;
        fs.empty_detached(u64::MAX)?;
        Ok(())
    }

    /// Sets permission bits.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    pub fn set_perm(&self, path: impl AsRef<Path>, perm: u32) -> Result<Attr, StoreError> {
        self.set_attr(path.as_ref(), |set| set.perm = Some(perm))
    }

    /// Sets user and group.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        (uid, gid): (u32, u32),
    ) -> Result<Attr, StoreError> {
        self.set_attr(path.as_ref(), |set| {
            set.uid = Some(uid);
            set.gid = Some(gid);
        })
    }

    /// Sets the times of access and of last change.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound).
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        atime: SetTime,
        mtime: SetTime,
    ) -> Result<Attr, StoreError> {
        self.set_attr(path.as_ref(), |set| {
            set.atime = Some(atime);
            set.mtime = Some(mtime);
        })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Unsupported`](crate::ErrorKind::Unsupported) for
    /// a name without a known prefix such as `user.`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        value: &[u8],
    ) -> Result<(), StoreError> {
        let fs = &self.hold.open().fs;
        self.hold.with(path.as_ref(), Last::Followed, |attr| {
            let mode = XattrMode::Set;
            Ok(fs.set_xattr(&Caller::ROOT, attr.ino, name.as_bytes(), value, mode, false)?)
        })
    }

    fn set_attr(&self, path: &Path, fill: impl FnOnce(&mut SetAttr)) -> Result<Attr, StoreError> {
        let mut set = SetAttr::default();
        fill(&mut set);
        self.hold.set_attr(path, &set)
    }
}
