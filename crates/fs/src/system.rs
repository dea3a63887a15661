//! The file system as a whole.

use crate::{
    Attr, Caller, DirEntry, DirName, FallocateMode, FsError, FsOptions, FsResult, NewNode,
    RenameMode, SeekFor, SetAttr, StatFs, Taken, WriteOptions, XattrMode,
};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::FileKind;
use stitch_kv::{Engine, UpsertRegistry};

/// Registers the upsert functions that the rows of a file system need. Every engine that is to hold
/// one is opened with them.
pub fn register_upserts(registry: &mut UpsertRegistry) {
    let _ = registry;
}

/// A file system on an engine. Shared by threads.
///
/// An inode number is good from the lookup (or creation) that gave it until as many lookups were
/// forgotten as were counted; anything else is [`FsError::Stale`]. The root is always good.
pub struct FileSystem {
    engine: Arc<dyn Engine>,
    options: FsOptions,
}

impl FileSystem {
    /// Makes an empty file system in an engine: its trees, and a root directory owned by `owner`
    /// (user, group) with mode 0755.
    ///
    /// # Errors
    /// [`FsError::Exists`] if the engine holds one already.
    pub fn format(
        engine: &Arc<dyn Engine>,
        options: &FsOptions,
        owner: (u32, u32),
    ) -> FsResult<()> {
        let _ = (engine, options, owner);
        Err(FsError::Unsupported)
    }

    /// Opens the file system in an engine and removes what unlinked files a crash left behind.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the engine holds none; [`FsError::Format`] if it is damaged or newer.
    pub fn open(engine: Arc<dyn Engine>, options: FsOptions) -> FsResult<Self> {
        Ok(Self { engine, options })
    }

    /// The engine below.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// True if nothing can be changed.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Makes everything durable that was acknowledged.
    pub fn sync(&self) -> FsResult<()> {
        Err(FsError::Unsupported)
    }

    /// Makes an inode durable, and with it everything acknowledged before.
    pub fn sync_inode(&self, ino: Ino) -> FsResult<()> {
        let _ = ino;
        Err(FsError::Unsupported)
    }

    /// Reclaims what is left to reclaim and writes everything out. The engine stays open.
    pub fn close(&self) -> FsResult<()> {
        Err(FsError::Unsupported)
    }

    /// Gives back the space of forgotten unlinked files; `forget` leaves that to this. Called now and
    /// then (with `sync`, every second, when idle). Answers how many were reclaimed.
    pub fn reclaim(&self) -> FsResult<usize> {
        Err(FsError::Unsupported)
    }

    /// Space and inodes.
    pub fn stat_fs(&self) -> FsResult<StatFs> {
        Err(FsError::Unsupported)
    }

    /// The inode of a name (`.` and `..` too). Counts a lookup.
    pub fn lookup(&self, at: DirName<'_>) -> FsResult<Attr> {
        let _ = at;
        Err(FsError::Unsupported)
    }

    /// Takes back `count` lookups of an inode. With the last one, and without open handles, the
    /// number is good no more, and a file without names is queued for [`Self::reclaim`].
    pub fn forget(&self, ino: Ino, count: u64) {
        let _ = (ino, count);
    }

    /// Counts an open handle, which keeps an inode as a lookup does.
    pub fn open_handle(&self, ino: Ino) -> FsResult<()> {
        let _ = ino;
        Err(FsError::Unsupported)
    }

    /// Takes back an open handle.
    pub fn close_handle(&self, ino: Ino) {
        let _ = ino;
    }

    /// Attributes.
    pub fn get_attr(&self, ino: Ino) -> FsResult<Attr> {
        let _ = ino;
        Err(FsError::Unsupported)
    }

    /// Changes attributes. Permission is the caller's business (see [`Self::access`]), except the
    /// set-id rules.
    pub fn set_attr(&self, caller: &Caller<'_>, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
        let _ = (caller, ino, set);
        Err(FsError::Unsupported)
    }

    /// Whether the caller has all rights of `mask` (see [`crate::access_mask`]) by mode and ACL.
    pub fn access(&self, caller: &Caller<'_>, ino: Ino, mask: u32) -> FsResult<()> {
        let _ = (caller, ino, mask);
        Err(FsError::Unsupported)
    }

    /// Makes a regular file; counts a lookup. An existing name is [`FsError::Exists`].
    pub fn create(&self, caller: &Caller<'_>, at: DirName<'_>, new: &NewNode) -> FsResult<Attr> {
        let _ = (caller, at, new);
        Err(FsError::Unsupported)
    }

    /// Makes a directory; counts a lookup.
    pub fn make_dir(&self, caller: &Caller<'_>, at: DirName<'_>, new: &NewNode) -> FsResult<Attr> {
        let _ = (caller, at, new);
        Err(FsError::Unsupported)
    }

    /// Makes a regular file, fifo, socket or device; counts a lookup.
    pub fn make_node(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        kind: FileKind,
        rdev: u32,
        new: &NewNode,
    ) -> FsResult<Attr> {
        let _ = (caller, at, kind, rdev, new);
        Err(FsError::Unsupported)
    }

    /// Makes a symbolic link to `target` (1 to 4095 bytes); counts a lookup.
    pub fn make_symlink(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        target: &[u8],
    ) -> FsResult<Attr> {
        let _ = (caller, at, target);
        Err(FsError::Unsupported)
    }

    /// Makes a regular file without a name, as of `O_TMPFILE`; counts a lookup. `link` can name it.
    pub fn make_temp_file(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        new: &NewNode,
    ) -> FsResult<Attr> {
        let _ = (caller, parent, new);
        Err(FsError::Unsupported)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, ino: Ino) -> FsResult<bytes::Bytes> {
        let _ = ino;
        Err(FsError::Unsupported)
    }

    /// Gives an inode that is no directory another name; counts a lookup.
    pub fn link(&self, ino: Ino, at: DirName<'_>) -> FsResult<Attr> {
        let _ = (ino, at);
        Err(FsError::Unsupported)
    }

    /// Removes a name of what is no directory.
    pub fn unlink(&self, caller: &Caller<'_>, at: DirName<'_>) -> FsResult<()> {
        let _ = (caller, at);
        Err(FsError::Unsupported)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, caller: &Caller<'_>, at: DirName<'_>) -> FsResult<()> {
        let _ = (caller, at);
        Err(FsError::Unsupported)
    }

    /// Moves a name.
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        source: DirName<'_>,
        target: DirName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        let _ = (caller, source, target, mode);
        Err(FsError::Unsupported)
    }

    /// Hands the entries of a directory after `offset` (0: from the start) to `take`.
    pub fn read_dir(
        &self,
        ino: Ino,
        offset: u64,
        take: &mut dyn FnMut(&DirEntry<'_>) -> Taken,
    ) -> FsResult<()> {
        let _ = (ino, offset, take);
        Err(FsError::Unsupported)
    }

    /// As [`Self::read_dir`], with attributes and a lookup counted for each entry taken but `.` and `..`.
    pub fn read_dir_plus(
        &self,
        ino: Ino,
        offset: u64,
        take: &mut dyn FnMut(&DirEntry<'_>) -> Taken,
    ) -> FsResult<()> {
        let _ = (ino, offset, take);
        Err(FsError::Unsupported)
    }

    /// Appends up to `len` bytes from `offset` on to `out`; fewer only at the end of the file. Answers
    /// how many.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> FsResult<usize> {
        let _ = (ino, offset, len, out);
        Err(FsError::Unsupported)
    }

    /// Writes all of `data`. Answers the attributes afterwards.
    pub fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> FsResult<Attr> {
        let _ = (ino, offset, data, options);
        Err(FsError::Unsupported)
    }

    /// Makes, removes or zeroes a range of a file.
    pub fn fallocate(
        &self,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<Attr> {
        let _ = (ino, mode, offset, len);
        Err(FsError::Unsupported)
    }

    /// The next data or hole at or after `offset`.
    pub fn seek(&self, ino: Ino, offset: u64, what: SeekFor) -> FsResult<u64> {
        let _ = (ino, offset, what);
        Err(FsError::Unsupported)
    }

    /// Copies bytes between files (or within one, where the ranges do not meet). Answers how many,
    /// fewer only at the end of the source.
    pub fn copy_range(&self, source: (Ino, u64), target: (Ino, u64), len: u64) -> FsResult<u64> {
        let _ = (source, target, len);
        Err(FsError::Unsupported)
    }

    /// The value of an extended attribute; [`FsError::NoData`] if there is none.
    pub fn get_xattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> FsResult<bytes::Bytes> {
        let _ = (caller, ino, name);
        Err(FsError::Unsupported)
    }

    /// Sets an extended attribute. `kill_setgid`: setting an access ACL also clears set-gid.
    pub fn set_xattr(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_setgid: bool,
    ) -> FsResult<()> {
        let _ = (caller, ino, name, value, mode, kill_setgid);
        Err(FsError::Unsupported)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> FsResult<()> {
        let _ = (caller, ino, name);
        Err(FsError::Unsupported)
    }

    /// The names of the extended attributes, each with a zero byte after it.
    pub fn list_xattr(&self, caller: &Caller<'_>, ino: Ino) -> FsResult<Vec<u8>> {
        let _ = (caller, ino);
        Err(FsError::Unsupported)
    }

    /// Flags as of `chattr`, see [`crate::inode_flag`].
    pub fn set_inode_flags(&self, caller: &Caller<'_>, ino: Ino, flags: u32) -> FsResult<Attr> {
        let _ = (caller, ino, flags);
        Err(FsError::Unsupported)
    }
}
