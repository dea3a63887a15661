//! A file system in memory that does nothing else: it shows the cost of FUSE itself.
//!
//! One lock around the names and inodes, one for the contents of each file. It asks the kernel for
//! as little as our real file system does (no OPEN, no RELEASE, no FLUSH, caches for ever), and has
//! no extended attributes at all.

mod nodes;

use nodes::{Node, Nodes, entry_of, new_attr};
use std::sync::Arc;
use stitch_base::Ino;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::Mutex;
use stitch_fuse::Errno;
use stitch_fuse::handler::{Answer, Context, Handler};
use stitch_fuse::wire::args::{FSync, MkDir, MkNod, Read, Rename, SetAttr, SetTime, Write};
use stitch_fuse::wire::codec::Sink;
use stitch_fuse::wire::reply::{
    AttrReply, DirPlusSink, DirSink, Entry, FOREVER, FileKind, Lookup, StatFs,
};

/// The file system.
pub(super) struct NullFs {
    clock: SystemClock,
    nodes: Mutex<Nodes>,
}

impl NullFs {
    /// An empty one.
    pub(super) fn new() -> Self {
        let clock = SystemClock::default();
        let nodes = Mutex::new(Nodes::new(clock.now()));
        Self { clock, nodes }
    }

    fn make(&self, context: &Context<'_>, parent: Ino, name: &[u8], mode: u32) -> Answer<Entry> {
        let now = self.clock.now();
        let caller = context.caller;
        let attr = new_attr(mode, (caller.uid, caller.gid), now);
        let mut nodes = self.nodes.lock();
        if nodes.child(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let ino = nodes.add(parent, attr);
        nodes.attach(parent, name, ino, now)?;
        nodes.entry(ino)
    }

    fn remove(&self, parent: Ino, name: &[u8], is_dir: bool) -> Answer<()> {
        let now = self.clock.now();
        let mut nodes = self.nodes.lock();
        let child = nodes.child(parent, name)?.ok_or(Errno::ENOENT)?;
        if is_dir && !nodes.is_empty(child)? {
            return Err(Errno::ENOTEMPTY);
        }
        nodes.detach(parent, name, now)?;
        nodes.drop_link(child, now);
        Ok(())
    }
}

impl Handler for NullFs {
    fn lookup(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        let mut nodes = self.nodes.lock();
        let found = match name {
            b"." => Some(parent),
            b".." => Some(nodes.get(parent)?.parent),
            _ => nodes.child(parent, name)?,
        };
        match found {
            Some(ino) => nodes.entry(ino).map(Lookup::Found),
            None => Ok(Lookup::Missing { ttl: FOREVER }),
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.nodes.lock().forget(ino, count);
    }

    fn getattr(&self, _: &Context<'_>, ino: Ino) -> Answer<AttrReply> {
        let attr = self.nodes.lock().get(ino)?.attr;
        Ok(AttrReply { attr, ttl: FOREVER })
    }

    fn setattr(&self, _: &Context<'_>, ino: Ino, args: &SetAttr) -> Answer<AttrReply> {
        let now = self.clock.now();
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let mut nodes = self.nodes.lock();
        let node = nodes.get_mut(ino)?;
        if let Some(size) = args.size {
            let len = usize::try_from(size).map_err(|_| Errno::EFBIG)?;
            node.data.lock().resize(len, 0);
            node.set_size(size, now);
        }
        let attr = &mut node.attr;
        let kind = attr.mode & !0o7777;
        attr.mode = args.mode.map_or(attr.mode, |mode| kind | mode & 0o7777);
        attr.uid = args.uid.unwrap_or(attr.uid);
        attr.gid = args.gid.unwrap_or(attr.gid);
        attr.atime = args.atime.map_or(attr.atime, time);
        attr.mtime = args.mtime.map_or(attr.mtime, time);
        attr.ctime = args.ctime.unwrap_or(now);
        let attr = node.attr;
        Ok(AttrReply { attr, ttl: FOREVER })
    }

    fn readlink(&self, _: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        let data = Arc::clone(&self.nodes.lock().get(ino)?.data);
        out.put_some(&data.lock());
        Ok(())
    }

    fn symlink(
        &self,
        context: &Context<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        let mode = FileKind::Symlink.to_mode() | 0o777;
        let entry = self.make(context, parent, name, mode)?;
        let mut nodes = self.nodes.lock();
        let node = nodes.get_mut(entry.ino)?;
        node.data.lock().extend_from_slice(target);
        node.attr.size = target.len() as u64;
        Ok(entry_of(node))
    }

    fn mknod(&self, context: &Context<'_>, parent: Ino, args: &MkNod<'_>) -> Answer<Entry> {
        self.make(context, parent, args.name, args.mode & !args.umask)
    }

    fn mkdir(&self, context: &Context<'_>, parent: Ino, args: &MkDir<'_>) -> Answer<Entry> {
        let mode = FileKind::Directory.to_mode() | args.mode & 0o7777 & !args.umask;
        self.make(context, parent, args.name, mode)
    }

    fn unlink(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        self.remove(parent, name, false)
    }

    fn rmdir(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        self.remove(parent, name, true)
    }

    fn rename(&self, _: &Context<'_>, parent: Ino, args: &Rename<'_>) -> Answer<()> {
        let now = self.clock.now();
        let mut nodes = self.nodes.lock();
        let found = nodes.child(parent, args.source_name)?;
        let source = found.ok_or(Errno::ENOENT)?;
        match nodes.child(args.target_parent, args.target_name)? {
            _ if args.flags & !libc::RENAME_NOREPLACE != 0 => return Err(Errno::EINVAL),
            Some(_) if args.flags != 0 => return Err(Errno::EEXIST),
            Some(target) if target == source => return Ok(()),
            Some(target) if !nodes.is_empty(target)? => return Err(Errno::ENOTEMPTY),
            Some(target) => {
                nodes.detach(args.target_parent, args.target_name, now)?;
                nodes.drop_link(target, now);
            }
            None => {}
        }
        nodes.detach(parent, args.source_name, now)?;
        nodes.attach(args.target_parent, args.target_name, source, now)
    }

    fn link(&self, _: &Context<'_>, source: Ino, parent: Ino, name: &[u8]) -> Answer<Entry> {
        let now = self.clock.now();
        let mut nodes = self.nodes.lock();
        if nodes.child(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        nodes.get_mut(source)?.attr.nlink += 1;
        nodes.attach(parent, name, source, now)?;
        nodes.entry(source)
    }

    fn read(&self, _: &Context<'_>, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        let data = Arc::clone(&self.nodes.lock().get(ino)?.data);
        let data = data.lock();
        let from = usize::try_from(args.offset).unwrap_or(usize::MAX);
        out.put_some(&data[from.min(data.len())..]);
        Ok(())
    }

    fn write(&self, _: &Context<'_>, ino: Ino, args: &Write<'_>) -> Answer<u32> {
        let from = usize::try_from(args.offset).map_err(|_| Errno::EFBIG)?;
        let end = from.checked_add(args.data.len()).ok_or(Errno::EFBIG)?;
        let data = Arc::clone(&self.nodes.lock().get(ino)?.data);
        let len = {
            let mut data = data.lock();
            let kept = data.len().saturating_sub(from).min(args.data.len());
            if data.len() < from {
                data.resize(from, 0);
            }
            data[from..from + kept].copy_from_slice(&args.data[..kept]);
            data.extend_from_slice(&args.data[kept..]);
            data.len()
        };
        debug_assert!(len >= end, "all of it was written");
        let now = self.clock.now();
        let mut nodes = self.nodes.lock();
        nodes.get_mut(ino)?.set_size(len as u64, now);
        u32::try_from(args.data.len()).map_err(|_| Errno::EFBIG)
    }

    fn fsync(&self, _: &Context<'_>, _: Ino, _: &FSync) -> Answer<()> {
        Ok(())
    }

    fn fsyncdir(&self, _: &Context<'_>, _: Ino, _: &FSync) -> Answer<()> {
        Ok(())
    }

    fn readdir(&self, _: &Context<'_>, ino: Ino, args: &Read, out: &mut DirSink<'_>) -> Answer<()> {
        let nodes = self.nodes.lock();
        nodes.list(ino, args.offset, |entry, _| out.push(entry))?;
        Ok(())
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        let mut nodes = self.nodes.lock();
        let taken = nodes.list(ino, args.offset, |entry, node: Option<&Node>| {
            out.push(entry, node.map(entry_of).as_ref())
        })?;
        for ino in taken {
            nodes.get_mut(ino)?.lookups += 1;
        }
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: Ino) -> Answer<StatFs> {
        Ok(StatFs {
            blocks: 1 << 24,
            blocks_free: 1 << 23,
            blocks_available: 1 << 23,
            files: 1 << 24,
            files_free: 1 << 23,
            block_size: 4096,
            name_len_max: 255,
            fragment_size: 4096,
        })
    }
}
