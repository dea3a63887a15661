//! What a file system does for each request.
//!
//! Every method has a meaning when it is not written: most answer `ENOSYS`, which for many
//! operations the kernel takes as "never ask again" and does without. Methods may be called from
//! several workers at once.

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

/// What a method answers.
pub type Answer<T> = Result<T, Errno>;

/// Who asks. With `id_mapped_mounts`, user and group are `u32::MAX` except for creations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process, 0 if the kernel asks by itself.
    pub pid: u32,
}

/// What comes with every request.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Who asks.
    pub caller: Caller,
    /// Number of the request; [`Handler::interrupt`] names it.
    pub unique: u64,
    /// For creations: that group of the caller's which is the parent directory's, if any.
    pub groups: Groups<'a>,
}

/// The duty to answer a request later, from any thread. Dropped unanswered, it answers `EIO`.
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

    /// Answers with success or an error.
    pub fn reply(mut self, answer: Answer<()>) {
        self.send(answer);
    }

    fn send(&mut self, answer: Answer<()>) {
        if let Some(sender) = self.sender.take() {
            let message = encode_header(16, answer.err(), self.unique);
            if let Err(error) = sender.send(&message) {
                // The caller is gone, or the whole mount: nobody is left to be told.
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
    /// The protocol is agreed on; requests come from now on. `notifier` tells the kernel what
    /// changes other than by its requests.
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) {}

    /// The kernel can read files of the host in our place: [`BackingFiles`] takes them, and the answer to OPEN
    /// names one. Called before [`Self::init`], if [`SessionConfig::passthrough`] wants it.
    ///
    /// # Errors
    /// Why it is not to be: the session does not begin.
    ///
    /// [`SessionConfig::passthrough`]: crate::session::SessionConfig::passthrough
    fn passthrough(&self, files: BackingFiles) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns a mark of the space that was given back so far, for [`Self::makes_room`].
    fn room_mark(&self) -> u64 {
        0
    }

    /// A request that began at `mark` found no space: gives back what is on its way. Returns true
    /// if any was given back since then. The request is served again then.
    fn makes_room(&self, mark: u64) -> bool {
        false
    }

    /// No more requests come. Called once.
    fn destroy(&self) {}

    /// Finds `name` in `parent`. Each [`Lookup::Found`] counts as one lookup.
    ///
    /// `.` and `..` are asked for when a file handle is opened, with any inode as `parent`.
    fn lookup(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<Lookup>;

    /// Takes `count` lookups of `ino` back. At 0 the kernel has forgotten it.
    fn forget(&self, ino: Ino, count: u64) {}

    /// Many [`Self::forget`].
    fn batch_forget(&self, list: ForgetList<'_>) {
        for (ino, count) in list.iter() {
            self.forget(ino, count);
        }
    }

    /// Attributes.
    fn getattr(&self, context: &Context<'_>, ino: Ino) -> Answer<AttrReply>;

    /// Changes attributes. With `kill_suidgid`, or a new owner, set-id bits go.
    fn setattr(&self, context: &Context<'_>, ino: Ino, args: &SetAttr) -> Answer<AttrReply> {
        Err(Errno::ENOSYS)
    }

    /// Attributes with the birth time. `ENOSYS`: the kernel does without from then on.
    fn statx(&self, context: &Context<'_>, ino: Ino, args: &Statx) -> Answer<StatxReply> {
        Err(Errno::ENOSYS)
    }

    /// Target of a symbolic link.
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

    /// Makes a file, device, pipe or socket. The umask is to be applied, or the default ACL.
    fn mknod(&self, context: &Context<'_>, parent: Ino, args: &MkNod<'_>) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Makes a directory. The umask is to be applied, or the default ACL.
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

    /// Moves a name. `ENOSYS` or `EINVAL` to flags that are not offered.
    fn rename(&self, context: &Context<'_>, parent: Ino, args: &Rename<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Gives `source` a further name.
    fn link(&self, context: &Context<'_>, source: Ino, parent: Ino, name: &[u8]) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    /// Opens a file. `ENOSYS`: the kernel never asks again, neither this nor RELEASE, and every
    /// request has [`crate::wire::args::Fh`] 0.
    fn open(&self, context: &Context<'_>, ino: Ino, args: &Open) -> Answer<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Makes and opens a file. `ENOSYS`: the kernel uses MKNOD and OPEN from then on, and so sends
    /// no RELEASE either if OPEN is not asked.
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

    /// Writes and says how many bytes; with `KILL_SUIDGID` set-id bits go.
    fn write(&self, context: &Context<'_>, ino: Ino, args: &Write<'_>) -> Answer<u32> {
        Err(Errno::ENOSYS)
    }

    /// A descriptor was closed. `ENOSYS`: never asked again.
    fn flush(&self, context: &Context<'_>, ino: Ino, args: &Flush) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// An open file is closed for good. The answer is not waited for.
    fn release(&self, context: &Context<'_>, ino: Ino, args: &Release) -> Answer<()> {
        Ok(())
    }

    /// Makes a file durable. `ENOSYS`: taken as done and never asked again.
    fn fsync(&self, context: &Context<'_>, ino: Ino, args: &FSync) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Opens a directory. `ENOSYS`: never asked again, and listings are cached.
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

    /// Lists with attributes; what comes with them counts as looked up.
    fn readdirplus(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// An open directory is closed for good.
    fn releasedir(&self, context: &Context<'_>, ino: Ino, args: &Release) -> Answer<()> {
        Ok(())
    }

    /// Makes a directory durable. `ENOSYS`: taken as done and never asked again.
    fn fsyncdir(&self, context: &Context<'_>, ino: Ino, args: &FSync) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Space and limits.
    fn statfs(&self, context: &Context<'_>, ino: Ino) -> Answer<StatFs>;

    /// Sets an extended attribute. `ENOSYS`: not supported, never asked again.
    fn setxattr(&self, context: &Context<'_>, ino: Ino, args: &SetXattr<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Reads an extended attribute, whole. `ENOSYS`: not supported, never asked again.
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

    /// May the caller? Asked only without `default_permissions`. `ENOSYS`: never asked again, yes.
    fn access(&self, context: &Context<'_>, ino: Ino, mask: u32) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// The lock that stands in the way of `args`, or `args` with [`LockKind::Unlock`].
    ///
    /// [`LockKind::Unlock`]: crate::wire::args::LockKind::Unlock
    fn getlk(&self, context: &Context<'_>, ino: Ino, args: &Lock) -> Answer<Lock> {
        Err(Errno::ENOSYS)
    }

    /// Takes or drops a lock, or says `EAGAIN`.
    fn setlk(&self, context: &Context<'_>, ino: Ino, args: &Lock) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Takes a lock, however long it takes: `reply` may be kept. Must not block.
    fn setlkw(&self, context: &Context<'_>, ino: Ino, args: &Lock, reply: Deferred) {
        reply.reply(Err(Errno::ENOSYS));
    }

    /// The caller of request `unique` got a signal. What waits should answer `EINTR`; what does not
    /// need do nothing. May come after the answer.
    fn interrupt(&self, unique: u64) {}

    /// Device control; the data goes into `out`, the result is what ioctl(2) returns.
    fn ioctl(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        Err(Errno::ENOSYS)
    }

    /// Allocates, punches or zeroes. `ENOSYS`: not supported, never asked again.
    fn fallocate(&self, context: &Context<'_>, ino: Ino, args: &Fallocate) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Finds data or a hole. `ENOSYS`: all is data, never asked again.
    fn lseek(&self, context: &Context<'_>, ino: Ino, args: &LSeek) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Copies from `ino` to `args.target` and says how many bytes.
    fn copy_file_range(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &CopyFileRange,
    ) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Makes everything durable. Kernels send it to few kinds of mount.
    fn syncfs(&self, context: &Context<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }
}
