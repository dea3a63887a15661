//! A file system that hands every request on to a directory below, with system calls: what a FUSE
//! mount over a file system of the kernel's costs, as libfuse's example `passthrough_ll` has it.
//!
//! Each inode that the kernel knows is an `O_PATH` descriptor ([`inodes`]), each open file and
//! directory a descriptor more ([`handles`]). Names and attributes stand for a second, as there; a
//! missing name is asked for each time. All requests come from root: the mount is for root alone.

mod attributes;
mod convert;
mod handles;
mod inodes;
mod listing;
mod prune;
#[cfg(test)]
mod tests;

use convert::{TTL, attr_of, errno, statfs_of};
use handles::{Handles, OpenHandle};
use inodes::{Inode, Inodes};
use prune::Pruner;
use rustix::fs::{self as sys, AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use stitch_base::Ino;
use stitch_fuse::handler::{Answer, Context, Handler};
use stitch_fuse::wire::args::{
    CopyFileRange, Create, FSync, Fallocate, Flush, LSeek, MkDir, MkNod, Open, Read, Release,
    Rename, SetAttr, SetXattr, Write,
};
use stitch_fuse::wire::codec::Sink;
use stitch_fuse::wire::flags::{OpenFlags, WriteFlags};
use stitch_fuse::wire::reply::{AttrReply, DirPlusSink, DirSink, Entry, Lookup, Opened, StatFs};
use stitch_fuse::{Errno, MountOptions, Negotiated, Notifier, SessionConfig};

/// The file system.
pub(super) struct Passthrough {
    inodes: Arc<Inodes>,
    handles: Handles,
    pruner: Pruner,
}

/// What a session is to agree on: what libfuse asks for where its user asks for nothing.
pub(super) fn config(config: SessionConfig) -> SessionConfig {
    SessionConfig {
        readdirplus_auto: true,
        posix_acl: false,
        export_support: false,
        atomic_truncate: true,
        ..config
    }
}

/// How it is mounted: for root alone, and the kernel checks no rights.
pub(super) fn mount_options() -> MountOptions {
    MountOptions {
        source: "passthrough".into(),
        default_permissions: false,
        ..MountOptions::default()
    }
}

impl Passthrough {
    /// What is below `root`. From here on this process masks no permission bits: the requests say
    /// which.
    pub(super) fn new(root: &Path) -> anyhow::Result<Self> {
        rustix::process::umask(Mode::empty());
        Ok(Self {
            inodes: Arc::new(Inodes::new(root)?),
            handles: Handles::default(),
            pruner: Pruner::default(),
        })
    }

    /// What has this name now, counted as looked up.
    fn entry(&self, parent: &Inode, name: &[u8]) -> Answer<Entry> {
        let (ino, stat) = self.inodes.look_up(parent, name)?;
        Ok(Entry {
            ino,
            generation: 0,
            attr: attr_of(&stat)?,
            entry_ttl: TTL,
            attr_ttl: TTL,
        })
    }

    fn attr(&self, ino: Ino) -> Answer<AttrReply> {
        let inode = self.inodes.get(ino)?;
        let stat = sys::statat(&inode.fd, "", AtFlags::EMPTY_PATH).map_err(errno)?;
        let attr = attr_of(&stat)?;
        Ok(AttrReply { attr, ttl: TTL })
    }

    fn remove(&self, parent: Ino, name: &[u8], flags: AtFlags) -> Answer<()> {
        let parent = self.inodes.get(parent)?;
        sys::unlinkat(&parent.fd, name, flags).map_err(errno)
    }

    fn sync(&self, args: &FSync) -> Answer<()> {
        self.handles.get(args.fh)?.with_fd(|fd| {
            let synced = match args.data_only {
                true => sys::fdatasync(fd),
                false => sys::fsync(fd),
            };
            synced.map_err(errno)
        })
    }

    fn opened(&self, handle: OpenHandle) -> Opened {
        Opened {
            fh: self.handles.add(handle),
            flags: OpenFlags::empty(),
            ..Opened::default()
        }
    }
}

/// How a file below is opened. Direct I/O ends at the mount: our buffers are not aligned.
fn flags_of(raw: u32) -> OFlags {
    let asked = OFlags::from_bits_retain(raw);
    asked.difference(OFlags::NOFOLLOW | OFlags::DIRECT) | OFlags::CLOEXEC
}

/// Clears the set-id bits that the kernel clears after a write by a caller without privilege.
fn clear_set_id(fd: impl AsFd) -> Answer<()> {
    let mode = sys::fstat(&fd).map_err(errno)?.st_mode;
    let group = if mode & 0o010 == 0 { 0 } else { 0o2000 };
    let mode = Mode::from_raw_mode(mode & 0o7777 & !(0o4000 | group));
    sys::fchmod(&fd, mode).map_err(errno)
}

impl Handler for Passthrough {
    fn init(&self, _: &Negotiated, notifier: &Notifier) {
        self.pruner.start(&self.inodes, notifier);
    }

    fn destroy(&self) {
        self.pruner.stop();
    }

    fn lookup(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        let parent = self.inodes.get(parent)?;
        self.entry(&parent, name).map(Lookup::Found)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.inodes.forget(ino, count);
    }

    fn getattr(&self, _: &Context<'_>, ino: Ino) -> Answer<AttrReply> {
        self.attr(ino)
    }

    fn setattr(&self, _: &Context<'_>, ino: Ino, args: &SetAttr) -> Answer<AttrReply> {
        let inode = self.inodes.get(ino)?;
        if args.size.is_some() {
            let opened = args.fh.map(|fh| self.handles.get(fh)).transpose()?;
            attributes::set_size(&inode, opened.as_deref(), args)?;
        }
        attributes::set(&inode, args)?;
        self.attr(ino)
    }

    fn readlink(&self, _: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        let inode = self.inodes.get(ino)?;
        let target = sys::readlinkat(&inode.fd, "", Vec::new()).map_err(errno)?;
        out.put_some(target.as_bytes());
        Ok(())
    }

    fn symlink(&self, _: &Context<'_>, parent: Ino, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let parent = self.inodes.get(parent)?;
        sys::symlinkat(target, &parent.fd, name).map_err(errno)?;
        self.entry(&parent, name)
    }

    fn mknod(&self, _: &Context<'_>, parent: Ino, args: &MkNod<'_>) -> Answer<Entry> {
        let parent = self.inodes.get(parent)?;
        let kind = sys::FileType::from_raw_mode(args.mode);
        let mode = Mode::from_raw_mode(args.mode & 0o7777 & !args.umask);
        sys::mknodat(&parent.fd, args.name, kind, mode, args.rdev.into()).map_err(errno)?;
        self.entry(&parent, args.name)
    }

    fn mkdir(&self, _: &Context<'_>, parent: Ino, args: &MkDir<'_>) -> Answer<Entry> {
        let parent = self.inodes.get(parent)?;
        let mode = Mode::from_raw_mode(args.mode & 0o7777 & !args.umask);
        sys::mkdirat(&parent.fd, args.name, mode).map_err(errno)?;
        self.entry(&parent, args.name)
    }

    fn unlink(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        self.remove(parent, name, AtFlags::empty())
    }

    fn rmdir(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        self.remove(parent, name, AtFlags::REMOVEDIR)
    }

    fn rename(&self, _: &Context<'_>, parent: Ino, args: &Rename<'_>) -> Answer<()> {
        let source = self.inodes.get(parent)?;
        let target = self.inodes.get(args.target_parent)?;
        let flags = RenameFlags::from_bits_retain(args.flags);
        let names = (args.source_name, args.target_name);
        sys::renameat_with(&source.fd, names.0, &target.fd, names.1, flags).map_err(errno)
    }

    fn link(&self, _: &Context<'_>, source: Ino, parent: Ino, name: &[u8]) -> Answer<Entry> {
        let (source, parent) = (self.inodes.get(source)?, self.inodes.get(parent)?);
        sys::linkat(&source.fd, "", &parent.fd, name, AtFlags::EMPTY_PATH).map_err(errno)?;
        self.entry(&parent, name)
    }

    fn open(&self, _: &Context<'_>, ino: Ino, args: &Open) -> Answer<Opened> {
        let file = self.inodes.get(ino)?.open(flags_of(args.flags))?;
        if args.kill_suidgid {
            clear_set_id(&file)?;
        }
        Ok(self.opened(OpenHandle::File(file)))
    }

    fn create(&self, _: &Context<'_>, parent: Ino, args: &Create<'_>) -> Answer<(Entry, Opened)> {
        let parent = self.inodes.get(parent)?;
        let flags = (flags_of(args.flags) | OFlags::CREATE) & !OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(args.mode & 0o7777 & !args.umask);
        let fd = sys::openat(&parent.fd, args.name, flags, mode).map_err(errno)?;
        let file = File::from(fd);
        if args.kill_suidgid {
            clear_set_id(&file)?;
        }
        let entry = self.entry(&parent, args.name)?;
        Ok((entry, self.opened(OpenHandle::File(file))))
    }

    fn read(&self, _: &Context<'_>, _: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        let handle = self.handles.get(args.fh)?;
        let (file, room) = (handle.file()?, out.room());
        let len = out.append(|bytes| -> Answer<usize> {
            let start = bytes.len();
            bytes.resize(start + room, 0);
            let len = read_whole(file, &mut bytes[start..], args.offset);
            bytes.truncate(start + len.as_ref().copied().unwrap_or(0));
            len
        })?;
        debug_assert!(len <= room, "no more is read than is wanted");
        Ok(())
    }

    fn write(&self, _: &Context<'_>, _: Ino, args: &Write<'_>) -> Answer<u32> {
        let handle = self.handles.get(args.fh)?;
        let file = handle.file()?;
        let written = file.write_at(args.data, args.offset);
        if args.write_flags.contains(WriteFlags::KILL_SUIDGID) {
            clear_set_id(file)?;
        }
        let written = written.map_err(|error| Errno::from_io(&error))?;
        u32::try_from(written).map_err(|_| Errno::EFBIG)
    }

    fn flush(&self, _: &Context<'_>, _: Ino, args: &Flush) -> Answer<()> {
        // What a close says, before the last one.
        let handle = self.handles.get(args.fh)?;
        let closed = handle.file()?.try_clone().map(drop);
        closed.map_err(|error| Errno::from_io(&error))
    }

    fn release(&self, _: &Context<'_>, _: Ino, args: &Release) -> Answer<()> {
        self.handles.remove(args.fh);
        Ok(())
    }

    fn fsync(&self, _: &Context<'_>, _: Ino, args: &FSync) -> Answer<()> {
        self.sync(args)
    }

    fn opendir(&self, _: &Context<'_>, ino: Ino, _: &Open) -> Answer<Opened> {
        let inode = self.inodes.get(ino)?;
        Ok(self.opened(OpenHandle::Dir(listing::OpenDir::new(&inode)?)))
    }

    fn readdir(&self, _: &Context<'_>, _: Ino, args: &Read, out: &mut DirSink<'_>) -> Answer<()> {
        let handle = self.handles.get(args.fh)?;
        handle.dir()?.list(args.offset, |entry| Ok(out.push(entry)))
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        let (handle, parent) = (self.handles.get(args.fh)?, self.inodes.get(ino)?);
        handle.dir()?.list(args.offset, |entry| {
            if matches!(entry.name, b"." | b"..") {
                return Ok(out.push(entry, None));
            }
            let looked_up = match self.entry(&parent, entry.name) {
                Ok(looked_up) => looked_up,
                // It went meanwhile.
                Err(Errno::ENOENT) => return Ok(true),
                Err(error) => return Err(error),
            };
            let is_taken = out.push(entry, Some(&looked_up));
            if !is_taken {
                self.inodes.forget(looked_up.ino, 1);
            }
            Ok(is_taken)
        })
    }

    fn releasedir(&self, _: &Context<'_>, _: Ino, args: &Release) -> Answer<()> {
        self.handles.remove(args.fh);
        Ok(())
    }

    fn fsyncdir(&self, _: &Context<'_>, _: Ino, args: &FSync) -> Answer<()> {
        self.sync(args)
    }

    fn statfs(&self, _: &Context<'_>, ino: Ino) -> Answer<StatFs> {
        let inode = self.inodes.get(ino)?;
        let found = sys::fstatvfs(&inode.fd).map_err(errno)?;
        statfs_of(&found)
    }

    fn setxattr(&self, _: &Context<'_>, ino: Ino, args: &SetXattr<'_>) -> Answer<()> {
        let inode = self.inodes.get(ino)?;
        attributes::set_xattr(&inode, args)
    }

    fn getxattr(&self, _: &Context<'_>, ino: Ino, name: &[u8], out: &mut Sink<'_>) -> Answer<()> {
        let inode = self.inodes.get(ino)?;
        attributes::get_xattr(&inode, name, out)
    }

    fn listxattr(&self, _: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        let inode = self.inodes.get(ino)?;
        attributes::list_xattrs(&inode, out)
    }

    fn removexattr(&self, _: &Context<'_>, ino: Ino, name: &[u8]) -> Answer<()> {
        let inode = self.inodes.get(ino)?;
        sys::removexattr(inode.path(), name).map_err(errno)
    }

    fn fallocate(&self, _: &Context<'_>, _: Ino, args: &Fallocate) -> Answer<()> {
        let handle = self.handles.get(args.fh)?;
        let flags = FallocateFlags::from_bits_retain(args.mode);
        sys::fallocate(handle.file()?, flags, args.offset, args.length).map_err(errno)
    }

    fn lseek(&self, _: &Context<'_>, _: Ino, args: &LSeek) -> Answer<u64> {
        let handle = self.handles.get(args.fh)?;
        let to = match i32::try_from(args.whence) {
            Ok(libc::SEEK_DATA) => SeekFrom::Data(args.offset),
            Ok(libc::SEEK_HOLE) => SeekFrom::Hole(args.offset),
            _ => return Err(Errno::EINVAL),
        };
        sys::seek(handle.file()?, to).map_err(errno)
    }

    fn copy_file_range(&self, _: &Context<'_>, _: Ino, args: &CopyFileRange) -> Answer<u64> {
        let source = self.handles.get(args.source_fh)?;
        let target = self.handles.get(args.target_fh)?;
        let (mut from, mut to) = (args.source_offset, args.target_offset);
        let len = usize::try_from(args.length).unwrap_or(usize::MAX);
        let (source, target) = (source.file()?, target.file()?);
        let copied = sys::copy_file_range(source, Some(&mut from), target, Some(&mut to), len);
        copied.map(|count| count as u64).map_err(errno)
    }
}

/// Reads until `out` is full or the file ends.
fn read_whole(file: &File, out: &mut [u8], offset: u64) -> Answer<usize> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_io(&error)),
        }
    }
    Ok(done)
}
