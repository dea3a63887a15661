//! The file system as a handler of requests.
//!
//! Each method converts the arguments, calls one operation, and converts the result. What the
//! adapter decides:
//!
//! - OPEN, OPENDIR, CREATE and FLUSH return `ENOSYS` (the trait's defaults), so that the kernel
//!   stops sending them and RELEASE. Files live by their lookup counts, which the file system
//!   keeps. See `docs/adr/0010-fuse-requests-avoided.md`. OPEN is served with passthrough and where
//!   files are immutable (`lent`), FLUSH with atomic writes (`atomic`).
//! - Names, negative entries and attributes never expire: every other change of them sends a
//!   notice.
//! - The kernel keeps all locks.
//! - An operation that a killed daemon may have completed is not done twice (`resent`).
//! - With `default_permissions` the kernel has checked every right before the request, with groups
//!   and mapped ids that are unknown here. So operations run as the superuser. Two exceptions: a
//!   creation carries its owner, and a list of attributes depends on the caller.
//!
//! Threads of their own release the space of forgotten files and ask the kernel to forget more, so
//! that no request waits for that.

mod alarm;
mod announced;
mod atomic;
mod chore;
mod convert;
mod flags;
mod grow;
mod handles;
mod lent;
mod listing;
mod notices;
mod opens;
mod pages;
mod process;
mod prune;
mod read;
mod reclaim;
mod report;
mod resent;
mod seek;
mod setid;
mod trees;
mod trim;
mod views;
mod write;
mod xattr;

use std::io;
use std::sync::OnceLock;

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::{DirName, FileKind, FileSystem, FsError, RenameMode, XattrMode};

use crate::backing::BackingFiles;
use crate::errno::Errno;
use crate::handler::{Answer, Context, Handler};
use crate::notify::Notifier;
use crate::session::Negotiated;
use crate::wire::args::{
    CopyFileRange, Create, FSync, Fallocate, Flush, ForgetList, Ioctl, LSeek, MkDir, MkNod, Open,
    Read, Release, Rename, SetAttr, SetXattr, Statx, Write,
};
use crate::wire::codec::Sink;
use crate::wire::reply::{
    AttrReply, DirPlusSink, DirSink, Entry, Lookup, Opened, StatFs, StatxReply,
};
use chore::Chore;
use convert::Owner;
use opens::Opens;
use pages::Pages;
pub use report::RootReport;
use resent::Resent;
use setid::AttrCache;
pub use trees::REMOVE_TREE_XATTR;
use trees::Trees;
use trim::Trims;
pub use trim::{Trim, TrimArgs};
pub use views::{
    CLONE_XATTR, CONTROL_DIR, ControlLink, HISTORY_DIR, SNAPSHOT_XATTR, SNAPSHOTS_DIR,
    TRANSACTION_ROOT, TRANSACTIONS_DIR, TellUsage, TransactionSockets, Views, is_control_number,
    is_number_in_transaction, number_in_clone, number_in_snapshot, number_of_source, number_within,
};

/// Most bytes of one COPY_FILE_RANGE: its short reply has 32 bits. The file system copies less at a
/// time, unless contents are shared.
const COPY_SIZE_MAX: u64 = (4 << 30) - (2 << 20);

/// How a file system is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterOptions {
    /// True if the mount has `default_permissions`: the kernel checks every right.
    pub kernel_checks: bool,
    /// True to serve extended attributes. If false, the kernel sends one request less for every
    /// file that is written. Stored attributes stay stored. Requests to the daemon that come as
    /// attributes are still accepted.
    pub xattrs: bool,
    /// True to serve the ioctls for atomic writes of files. The kernel then sends a FLUSH for each
    /// descriptor that is closed, and waits for it. Not in a mount that survives its daemon.
    pub atomic_writes: bool,
}

impl Default for AdapterOptions {
    fn default() -> Self {
        Self {
            kernel_checks: true,
            xattrs: true,
            atomic_writes: false,
        }
    }
}

/// A [`Handler`] that is a [`FileSystem`].
pub struct Adapter {
    fs: Arc<FileSystem>,
    options: AdapterOptions,
    reclaiming: Chore,
    pruning: Chore,
    trees: Trees,
    attr_cache: AttrCache,
    pages: Pages,
    /// Open files, with passthrough.
    opens: OnceLock<Opens>,
    reports: Vec<RootReport>,
    trims: Trims,
    /// Generation of all inodes except the root.
    generation: u64,
    /// What the kernel's numbers of inodes have beside those of the file system: 0 in mainline.
    base: u64,
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Maps an error to its errno. Logs errors of the store.
fn refused(error: &FsError) -> Errno {
    let errno = Errno::from(error);
    if errno == Errno::EIO {
        tracing::error!(%error, "a request failed");
    }
    errno
}

/// Maps the error of a result. Shorter than a closure at every call.
trait OrErrno<T> {
    fn or_errno(self) -> Answer<T>;
}

impl<T> OrErrno<T> for Result<T, FsError> {
    fn or_errno(self) -> Answer<T> {
        self.map_err(|error| refused(&error))
    }
}

impl Adapter {
    /// Serves `fs` in one mount. The kernel caches pages for each mount, and only the first one
    /// gets invalidations.
    #[must_use]
    pub fn new(fs: Arc<FileSystem>, options: AdapterOptions) -> Self {
        // The kernel keeps file contents in its page cache.
        fs.readers_keep_contents();
        let generation = handles::generation(&fs);
        Self {
            fs,
            generation,
            options,
            reclaiming: reclaim::chore(),
            pruning: prune::chore(),
            trees: Trees::new(),
            attr_cache: AttrCache::default(),
            pages: Pages::default(),
            opens: OnceLock::new(),
            reports: Vec::new(),
            trims: Trims::default(),
            base: 0,
        }
    }

    /// Makes it serve a view whose inodes have numbers from `base` on in the mount.
    #[must_use]
    const fn in_view(mut self, base: u64) -> Self {
        self.base = base;
        self
    }

    /// Returns the number of an inode in the mount.
    const fn number(&self, ino: Ino) -> Ino {
        debug_assert!(ino.0 & self.base == 0, "its own number");
        Ino(ino.0 | self.base)
    }

    /// Starts the threads.
    fn start(&self, notifier: &Notifier) {
        let notifier = &notifier.within(self.base);
        self.attr_cache.connect(notifier);
        reclaim::start(&self.reclaiming, &self.fs);
        prune::start(&self.pruning, &self.fs, notifier);
        if !self.fs.is_read_only() {
            self.pages.start(notifier);
            self.trees.start(&self.fs, notifier);
        }
    }

    /// Adds an attribute of the root directory that is computed on demand instead of stored.
    #[must_use]
    pub fn with_report(mut self, report: RootReport) -> Self {
        self.reports.push(report);
        self
    }

    fn report(&self, ino: Ino, name: &[u8]) -> Option<&RootReport> {
        self.reports
            .iter()
            .find(|report| report.is_asked(ino, name))
    }

    /// Serves a report by ioctl, which also works without attributes.
    fn read_report(
        &self,
        context: &Context<'_>,
        ino: Ino,
        input: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        if ino != Ino::ROOT {
            return Err(Errno::ENOTTY);
        }
        let name = crate::report::name_in(input).ok_or(Errno::EINVAL)?;
        let report = self.report(ino, name).ok_or(Errno::ENOTSUP)?;
        report.answer_framed(context, out)?;
        Ok(0)
    }

    /// The file system.
    #[must_use]
    pub const fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Returns the user to act as: the superuser if the kernel has checked the rights, else the
    /// caller.
    fn actor(&self, context: &Context<'_>) -> Owner {
        if self.options.kernel_checks {
            Owner::ROOT
        } else {
            Owner::new(context)
        }
    }

    /// Returns how to treat the request if it was sent before.
    fn resent(&self, context: &Context<'_>) -> Resent<'_> {
        Resent::new(&self.fs, context)
    }

    /// Converts an inode that the kernel knows from now on.
    fn entry(&self, attr: &stitch_fs::Attr) -> Entry {
        if self.fs.is_crowded() {
            self.pruning.note();
        }
        self.fs.note_flags(attr.iflags);
        self.timed(convert::entry(attr))
    }

    /// Refuses requests for attributes if they are not served; the kernel then stops sending them.
    fn check_xattrs(&self) -> Answer<()> {
        if self.options.xattrs {
            Ok(())
        } else {
            Err(Errno::ENOSYS)
        }
    }
}

impl Handler for Adapter {
    fn init(&self, _: &Negotiated, notifier: &Notifier) {
        self.start(notifier);
    }

    fn passthrough(&self, files: BackingFiles) -> io::Result<()> {
        self.serve_opens(files)
    }

    fn room_mark(&self) -> u64 {
        self.fs.room_mark()
    }

    fn makes_room(&self, mark: u64) -> bool {
        reclaim::make_room(&self.fs, mark)
    }

    fn destroy(&self) {
        self.trees.stop();
        self.pages.stop();
        self.pruning.stop();
        self.reclaiming.stop();
    }

    fn lookup(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        self.find(Ino::ROOT, parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.fs.forget(ino, count);
        self.forgotten(ino);
        self.reclaiming.note();
    }

    fn batch_forget(&self, list: ForgetList<'_>) {
        for (ino, count) in list.iter() {
            self.fs.forget(ino, count);
            self.forgotten(ino);
        }
        self.reclaiming.note();
    }

    fn getattr(&self, _: &Context<'_>, ino: Ino) -> Answer<AttrReply> {
        self.attr_now(ino)
            .map(|attr| self.attr_reply(&attr))
            .or_errno()
    }

    fn statx(&self, _: &Context<'_>, ino: Ino, _: &Statx) -> Answer<StatxReply> {
        let attr = self.attr_now(ino).or_errno()?;
        Ok(StatxReply {
            attr: self.attr_of(&attr),
            ttl: self.attr_ttl(ino),
            attributes: flags::statx_of(attr.iflags),
            attributes_mask: flags::statx_of(stitch_fs::inode_flag::ALL),
        })
    }

    fn setattr(&self, context: &Context<'_>, ino: Ino, args: &SetAttr) -> Answer<AttrReply> {
        self.set_attributes(context, ino, args)
    }

    fn access(&self, context: &Context<'_>, ino: Ino, mask: u32) -> Answer<()> {
        // The kernel sends ACCESS only if it does not check itself.
        self.fs
            .access(&Owner::new(context).caller(), ino, mask)
            .or_errno()
    }

    fn readlink(&self, _: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        let target = self.fs.read_link(ino).or_errno()?;
        if out.put(&target) {
            Ok(())
        } else {
            Err(Errno::ENAMETOOLONG)
        }
    }

    fn symlink(
        &self,
        context: &Context<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        let at = DirName::new(parent, name);
        let made = self
            .fs
            .make_symlink(&Owner::new(context).caller(), at, target);
        let made = self.resent(context).made(made, at, FileKind::Symlink);
        made.map(|attr| self.entry(&attr)).or_errno()
    }

    fn mknod(&self, context: &Context<'_>, parent: Ino, args: &MkNod<'_>) -> Answer<Entry> {
        let kind = convert::kind_of_mode(args.mode)?;
        let new = convert::new_node(args.mode, args.umask);
        let at = DirName::new(parent, args.name);
        let owner = Owner::new(context);
        let made = self
            .fs
            .make_node(&owner.caller(), at, kind, args.rdev, &new);
        let made = self.resent(context).made(made, at, kind);
        made.map(|attr| self.entry(&attr)).or_errno()
    }

    fn mkdir(&self, context: &Context<'_>, parent: Ino, args: &MkDir<'_>) -> Answer<Entry> {
        let new = convert::new_node(args.mode, args.umask);
        let at = DirName::new(parent, args.name);
        let made = self.fs.make_dir(&Owner::new(context).caller(), at, &new);
        let made = self.resent(context).made(made, at, FileKind::Directory);
        made.map(|attr| self.entry(&attr)).or_errno()
    }

    fn unlink(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        let at = DirName::new(parent, name);
        let removed = self.fs.unlink(&self.actor(context).caller(), at);
        self.resent(context).removed(removed).or_errno()
    }

    fn rmdir(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        let at = DirName::new(parent, name);
        let actor = self.actor(context);
        if let Some(announced) = self.trees.take(context) {
            match self.fs.remove_tree(&actor.caller(), at, Some(announced)) {
                // The name may belong to another directory by now.
                Err(FsError::NotFound) => {}
                removed => {
                    return self.trees.removed(context, announced, removed).or_errno();
                }
            }
        }
        let removed = self.fs.remove_dir(&actor.caller(), at);
        self.resent(context).removed(removed).or_errno()
    }

    fn rename(&self, context: &Context<'_>, parent: Ino, args: &Rename<'_>) -> Answer<()> {
        let mode = convert::rename_mode(args.flags)?;
        let source = DirName::new(parent, args.source_name);
        let target = DirName::new(args.target_parent, args.target_name);
        let actor = match mode {
            // Creates a whiteout, which belongs to the caller.
            RenameMode::Whiteout => Owner::new(context),
            _ => self.actor(context),
        };
        self.resent(context)
            .rename(&actor.caller(), source, target, mode)
            .or_errno()
    }

    fn link(&self, context: &Context<'_>, source: Ino, parent: Ino, name: &[u8]) -> Answer<Entry> {
        let (actor, at) = (self.actor(context), DirName::new(parent, name));
        let linked = self.fs.link(&actor.caller(), source, at);
        let linked = self.resent(context).linked(linked, at, source);
        linked.map(|attr| self.entry(&attr)).or_errno()
    }

    fn tmpfile(
        &self,
        context: &Context<'_>,
        parent: Ino,
        args: &Create<'_>,
    ) -> Answer<(Entry, Opened)> {
        let new = convert::new_node(args.mode, args.umask);
        let owner = Owner::new(context);
        let attr = self
            .fs
            .make_temp_file(&owner.caller(), parent, &new)
            .or_errno()?;
        if let Some(opens) = self.opens.get() {
            opens.add_cached(attr.ino);
        }
        Ok((self.entry(&attr), opens::CACHED))
    }

    fn open(&self, _: &Context<'_>, ino: Ino, args: &Open) -> Answer<Opened> {
        self.open_file(ino, args.flags)
    }

    fn flush(&self, context: &Context<'_>, ino: Ino, _: &Flush) -> Answer<()> {
        self.flush_request(context, ino)
    }

    fn release(&self, _: &Context<'_>, ino: Ino, _: &Release) -> Answer<()> {
        if let Some(opens) = self.opens.get() {
            opens.release(ino);
        }
        Ok(())
    }

    fn read(&self, _: &Context<'_>, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        self.read_request(ino, args, out)
    }

    fn write(&self, context: &Context<'_>, ino: Ino, args: &Write<'_>) -> Answer<u32> {
        self.write_request(context, ino, args)
    }

    fn fsync(&self, _: &Context<'_>, ino: Ino, _: &FSync) -> Answer<()> {
        self.fs.sync_inode(ino).or_errno()
    }

    fn fsyncdir(&self, _: &Context<'_>, ino: Ino, _: &FSync) -> Answer<()> {
        self.fs.sync_inode(ino).or_errno()
    }

    fn syncfs(&self, _: &Context<'_>) -> Answer<()> {
        self.fs.sync().or_errno()
    }

    fn readdir(&self, _: &Context<'_>, ino: Ino, args: &Read, out: &mut DirSink<'_>) -> Answer<()> {
        self.list(ino, args, out)
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        self.list_known(ino, args, out)
    }

    fn statfs(&self, _: &Context<'_>, _: Ino) -> Answer<StatFs> {
        self.fs
            .stat_fs()
            .map(|space| convert::stat_fs(&space))
            .or_errno()
    }

    fn setxattr(&self, context: &Context<'_>, ino: Ino, args: &SetXattr<'_>) -> Answer<()> {
        if let Some(report) = self.report(ino, args.name) {
            return report.request(context, args.value);
        }
        if args.name == REMOVE_TREE_XATTR.as_bytes() {
            return self.trees.announce(context, ino);
        }
        if !self.options.xattrs {
            // Not ENOSYS: the kernel would then send no more SETXATTR, by which requests to the
            // daemon come.
            return Err(Errno::ENOTSUP);
        }
        let mode = match args.flags {
            0 => XattrMode::Set,
            convert::XATTR_CREATE => XattrMode::Create,
            convert::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let actor = self.actor(context);
        let caller = actor.caller();
        let (name, value) = (args.name, args.value);
        match mode {
            XattrMode::Create => {
                let resent = self.resent(context);
                resent.make_xattr(&caller, ino, (name, value), args.kill_sgid)
            }
            _ => self
                .fs
                .set_xattr(&caller, ino, name, value, mode, args.kill_sgid),
        }
        .or_errno()
    }

    fn getxattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<()> {
        self.check_xattrs()?;
        if let Some(report) = self.report(ino, name) {
            return report.answer(context, out);
        }
        let actor = self.actor(context);
        let value = self.fs.get_xattr(&actor.caller(), ino, name).or_errno()?;
        if out.put(&value) {
            Ok(())
        } else {
            Err(Errno::E2BIG)
        }
    }

    fn listxattr(&self, context: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        self.check_xattrs()?;
        let names = xattr::names(&self.fs, context, ino)?;
        if out.put(&names) {
            Ok(())
        } else {
            Err(Errno::E2BIG)
        }
    }

    fn removexattr(&self, context: &Context<'_>, ino: Ino, name: &[u8]) -> Answer<()> {
        self.check_xattrs()?;
        let actor = self.actor(context);
        self.resent(context)
            .remove_xattr(&actor.caller(), ino, name)
            .or_errno()
    }

    fn interrupt(&self, unique: u64) {
        self.trims.interrupt(unique);
    }

    fn ioctl(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        match args.command {
            crate::report::READ => return self.read_report(context, ino, args.input, out),
            trim::FITRIM => return self.trims.serve(context, args.input, out),
            command if atomic::is_asked(command) => {
                return self.atomic_ioctl(context, ino, args, out);
            }
            _ => {}
        }
        self.flags_ioctl(context, ino, args, out)
    }

    fn fallocate(&self, context: &Context<'_>, ino: Ino, args: &Fallocate) -> Answer<()> {
        self.allocate(context, ino, args)
    }

    fn lseek(&self, _: &Context<'_>, ino: Ino, args: &LSeek) -> Answer<u64> {
        self.seek(ino, args)
    }

    fn copy_file_range(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &CopyFileRange,
    ) -> Answer<u64> {
        self.copy(context, ino, args)
    }
}
