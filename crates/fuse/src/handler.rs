//! The trait that a file system implements: one method per request.
//!
//! Every method has a default. Most return `ENOSYS`, after which the kernel stops sending many
//! requests and does without. Several workers may call methods at once.

use std::io;

use stitch_base::Ino;
use stitch_base::sync::Arc;

use crate::backing::BackingFiles;
use crate::errno::Errno;
use crate::notify::Notifier;
use crate::session::Negotiated;
use crate::transport::ReplySender;
use crate::wire::args::{
    CopyFileRange, Create, FSync, Fallocate, Flush, ForgetList, Groups, Ioctl, LSeek, Lock, MkDir,
    MkNod, Open, Read, Release, Rename, SetAttr, SetXattr, Statx, Write,
};
use crate::wire::codec::Sink;
use crate::wire::reply::{
    AttrReply, DirPlusSink, DirSink, Entry, Lookup, Opened, StatFs, StatxReply, encode_header,
};

/// Result of a method.
pub type Answer<T> = Result<T, Errno>;

/// The caller. With `id_mapped_mounts`, user and group are `u32::MAX` except for creations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process; 0 if the kernel itself is the caller.
    pub pid: u32,
}

/// Information that every request carries.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The caller.
    pub caller: Caller,
    /// Number of the request; [`Handler::interrupt`] names it.
    pub unique: u64,
    /// For creations: the caller's group that is also the parent directory's, if any.
    pub groups: Groups<'a>,
}

/// A reply that is sent later, from any thread. If it is dropped unsent, the reply is `EIO`.
#[derive(Debug)]
pub struct Deferred {
    unique: u64,
    sender: Option<Arc<dyn ReplySender>>,
}

impl Deferred {
    pub(crate) fn new(unique: u64, sender: Arc<dyn ReplySender>) -> Self {
        Self {
            unique,
            sender: Some(sender),
        }
    }

    /// Number of the request.
    #[must_use]
    pub const fn unique(&self) -> u64 {
        self.unique
    }

    /// Replies with success or an error.
    pub fn reply(mut self, answer: Answer<()>) {
        self.send(answer);
    }

    fn send(&mut self, answer: Answer<()>) {
        if let Some(sender) = self.sender.take() {
            let message = encode_header(16, answer.err(), self.unique);
            if let Err(error) = sender.send(&message) {
                // The caller or the whole mount is gone: no process waits for the reply.
                tracing::debug!(req = self.unique, %error, "a late answer was not taken");
            }
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.send(Err(Errno::EIO));
    }
}

/// A file system, seen from the kernel. See the module.
#[expect(
    unused_variables,
    reason = "default methods name their arguments for the reader"
)]
pub trait Handler: Send + Sync {
    /// The protocol is negotiated; requests follow. `notifier` tells the kernel about changes that
    /// its own requests did not make.
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) {}

    /// The kernel offers passthrough: [`BackingFiles`] registers files, and the reply to OPEN names
    /// one. Called before [`Self::init`], if [`SessionConfig::passthrough`] is set.
    ///
    /// # Errors
    /// The reason to refuse: the session does not start.
    ///
    /// [`SessionConfig::passthrough`]: crate::session::SessionConfig::passthrough
    fn passthrough(&self, files: BackingFiles) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns a mark of the space freed so far, for [`Self::makes_room`].
    fn room_mark(&self) -> u64 {
        0
    }

    /// Frees space that is about to be released, after a request that began at `mark` found none.
    /// Returns true if any was freed since then; the request is then served again.
    fn makes_room(&self, mark: u64) -> bool {
        false
    }

    /// No more requests come. Called once.
    fn destroy(&self) {}

    /// Finds `name` in `parent`. Each [`Lookup::Found`] counts as one lookup.
    ///
    /// `.` and `..` are looked up when a file handle is opened, with any inode as `parent`.
    fn lookup(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<Lookup>;

    /// Subtracts `count` lookups of `ino`. At 0 the kernel has forgotten it.
    fn forget(&self, ino: Ino, count: u64) {}

    /// Many [`Self::forget`].
    fn batch_forget(&self, list: ForgetList<'_>) {
        for (ino, count) in list.iter() {
            self.forget(ino, count);
        }
    }

    /// Returns attributes.
    fn getattr(&self, context: &Context<'_>, ino: Ino) -> Answer<AttrReply>;

    /// Changes attributes. With `kill_suidgid`, or a new owner, set-id bits are cleared.
    fn setattr(&self, context: &Context<'_>, ino: Ino, args: &SetAttr) -> Answer<AttrReply> {
        Err(Errno::ENOSYS)
    }

    /// Returns attributes with the birth time. After `ENOSYS` the kernel does without.
    fn statx(&self, context: &Context<'_>, ino: Ino, args: &Statx) -> Answer<StatxReply> {
        Err(Errno::ENOSYS)
    }

    /// Reads the target of a symbolic link.
    fn readlink(&self, context: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(
        &self,
        context: &Context<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    /// Makes a file, device, pipe or socket. Applies the umask, or the default ACL.
    fn mknod(&self, context: &Context<'_>, parent: Ino, args: &MkNod<'_>) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Makes a directory. Applies the umask, or the default ACL.
    fn mkdir(&self, context: &Context<'_>, parent: Ino, args: &MkDir<'_>) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Removes a name that is not a directory.
    fn unlink(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Moves a name. Returns `ENOSYS` or `EINVAL` for unsupported flags.
    fn rename(&self, context: &Context<'_>, parent: Ino, args: &Rename<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Gives `source` a further name.
    fn link(&self, context: &Context<'_>, source: Ino, parent: Ino, name: &[u8]) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    /// Opens a file. After `ENOSYS` the kernel sends neither this nor RELEASE again, and every
    /// request has [`crate::wire::args::Fh`] 0.
    fn open(&self, context: &Context<'_>, ino: Ino, args: &Open) -> Answer<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Makes and opens a file. After `ENOSYS` the kernel sends MKNOD and OPEN instead, and so no
    /// RELEASE either if OPEN is not served.
    fn create(
        &self,
        context: &Context<'_>,
        parent: Ino,
        args: &Create<'_>,
    ) -> Answer<(Entry, Opened)> {
        Err(Errno::ENOSYS)
    }

    /// Makes and opens a file without a name in the file system of `parent`.
    fn tmpfile(
        &self,
        context: &Context<'_>,
        parent: Ino,
        args: &Create<'_>,
    ) -> Answer<(Entry, Opened)> {
        Err(Errno::ENOSYS)
    }

    /// Reads. Fewer bytes than `out` has room for mean the end of the file.
    fn read(&self, context: &Context<'_>, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Writes, and returns the number of bytes. With `KILL_SUIDGID` set-id bits are cleared.
    fn write(&self, context: &Context<'_>, ino: Ino, args: &Write<'_>) -> Answer<u32> {
        Err(Errno::ENOSYS)
    }

    /// A descriptor was closed. Not sent again after `ENOSYS`.
    fn flush(&self, context: &Context<'_>, ino: Ino, args: &Flush) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// An open file was closed for good. The kernel does not wait for the reply.
    fn release(&self, context: &Context<'_>, ino: Ino, args: &Release) -> Answer<()> {
        Ok(())
    }

    /// Makes a file durable. After `ENOSYS` the kernel reports success and does not send it again.
    fn fsync(&self, context: &Context<'_>, ino: Ino, args: &FSync) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Opens a directory. After `ENOSYS` the kernel does not send it again, and caches listings.
    fn opendir(&self, context: &Context<'_>, ino: Ino, args: &Open) -> Answer<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Lists a directory from `args.offset` on, `.` and `..` included.
    fn readdir(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirSink<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Lists a directory with attributes; entries that carry them count as looked up.
    fn readdirplus(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// An open directory was closed for good.
    fn releasedir(&self, context: &Context<'_>, ino: Ino, args: &Release) -> Answer<()> {
        Ok(())
    }

    /// Makes a directory durable. After `ENOSYS` the kernel reports success and does not send it
    /// again.
    fn fsyncdir(&self, context: &Context<'_>, ino: Ino, args: &FSync) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Returns space and limits.
    fn statfs(&self, context: &Context<'_>, ino: Ino) -> Answer<StatFs>;

    /// Sets an extended attribute. `ENOSYS`: not supported, not sent again.
    fn setxattr(&self, context: &Context<'_>, ino: Ino, args: &SetXattr<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Returns the size to answer where the size of an attribute alone is asked for; `None` for
    /// that of the value.
    fn probed_xattr_size(&self, ino: Ino, name: &[u8]) -> Option<u32> {
        None
    }

    /// Reads a whole extended attribute. `ENOSYS`: not supported, not sent again.
    fn getxattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Lists extended attributes: names, each with a zero byte after it.
    fn listxattr(&self, context: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, context: &Context<'_>, ino: Ino, name: &[u8]) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Checks the caller's rights. Sent only without `default_permissions`. After `ENOSYS`
    /// everything is permitted, and it is not sent again.
    fn access(&self, context: &Context<'_>, ino: Ino, mask: u32) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Returns the lock that conflicts with `args`, or `args` with [`LockKind::Unlock`].
    ///
    /// [`LockKind::Unlock`]: crate::wire::args::LockKind::Unlock
    fn getlk(&self, context: &Context<'_>, ino: Ino, args: &Lock) -> Answer<Lock> {
        Err(Errno::ENOSYS)
    }

    /// Takes or drops a lock, or returns `EAGAIN`.
    fn setlk(&self, context: &Context<'_>, ino: Ino, args: &Lock) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Takes a lock, possibly later through `reply`. Must not block.
    fn setlkw(&self, context: &Context<'_>, ino: Ino, args: &Lock, reply: Deferred) {
        reply.reply(Err(Errno::ENOSYS));
    }

    /// The caller of request `unique` received a signal. An operation that waits should return
    /// `EINTR`; others may ignore it. May arrive after the reply.
    fn interrupt(&self, unique: u64) {}

    /// Device control: writes data to `out`, and returns the result of ioctl(2).
    fn ioctl(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        Err(Errno::ENOSYS)
    }

    /// Allocates, punches or zeroes. `ENOSYS`: not supported, not sent again.
    fn fallocate(&self, context: &Context<'_>, ino: Ino, args: &Fallocate) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Finds data or a hole. After `ENOSYS` all is data, and it is not sent again.
    fn lseek(&self, context: &Context<'_>, ino: Ino, args: &LSeek) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Copies from `ino` to `args.target`, and returns the number of bytes.
    fn copy_file_range(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &CopyFileRange,
    ) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Makes everything durable. Kernels send it only to some kinds of mounts.
    fn syncfs(&self, context: &Context<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }
}
