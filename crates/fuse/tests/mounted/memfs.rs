//! A file system that keeps everything in memory and does no other work: it shows the cost of FUSE
//! itself.
//!
//! One lock around one map. It serves the operations that the tests use, as a careful file system
//! would. The kernel checks permissions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::clock::{Clock, SystemClock, Timestamp};
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use stitch_fuse::handler::{Answer, Context, Deferred, Handler};
use stitch_fuse::wire::args::{
    CopyFileRange, Create, FSync, Fallocate, Fh, LSeek, Lock, LockKind, MkDir, MkNod, Open, Read,
    Rename, SetAttr, SetTime, SetXattr, Statx, Write,
};
use stitch_fuse::wire::codec::Sink;
use stitch_fuse::wire::flags::{OpenFlags, WriteFlags};
use stitch_fuse::wire::reply::{
    Attr, AttrReply, DirEntry, DirPlusSink, DirSink, Entry, FOREVER, FileKind, Lookup, Opened,
    StatFs, StatxReply,
};
use stitch_fuse::{Errno, Negotiated, Notifier};

/// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`
const PUNCH_HOLE: u32 = 3;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;

/// Options that decide which requests the kernel sends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemOptions {
    /// True to serve OPEN, CREATE and RELEASE; otherwise they are refused, and not sent again.
    pub(crate) serve_open: bool,
    /// True to refuse GETXATTR, which is then not sent again.
    pub(crate) no_xattrs: bool,
    /// LOOKUP of a name `panic` panics.
    pub(crate) panics: bool,
    /// LOOKUP of a name `wait-...` takes until [`MemFs::end_waits`].
    pub(crate) waits: bool,
}

pub(crate) struct MemFs {
    options: MemOptions,
    clock: SystemClock,
    state: Mutex<State>,
    waiting_count: AtomicUsize,
    has_waited: AtomicBool,
}

struct State {
    nodes: HashMap<Ino, Node>,
    next_ino: u64,
    next_cookie: u64,
    held: Vec<Held>,
    waiting: Vec<Waiting>,
    destroyed: u32,
}

struct Node {
    attr: Attr,
    parent: Ino,
    data: Vec<u8>,
    children: BTreeMap<Vec<u8>, (Ino, u64)>,
    order: BTreeMap<u64, Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
}

struct Held {
    ino: Ino,
    lock: Lock,
}

struct Waiting {
    ino: Ino,
    lock: Lock,
    reply: Deferred,
}

fn conflicts(held: &Held, ino: Ino, lock: &Lock) -> bool {
    held.ino == ino
        && held.lock.flock == lock.flock
        && held.lock.owner != lock.owner
        && held.lock.start <= lock.end
        && lock.start <= held.lock.end
        && (held.lock.kind == LockKind::Write || lock.kind == LockKind::Write)
}

impl State {
    fn node(&self, ino: Ino) -> Answer<&Node> {
        self.nodes.get(&ino).ok_or(Errno::ESTALE)
    }

    fn node_mut(&mut self, ino: Ino) -> Answer<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn child(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        Ok(self.node(parent)?.children.get(name).map(|&(ino, _)| ino))
    }

    fn add_node(&mut self, parent: Ino, attr: Attr) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let node = Node {
            attr: Attr { ino, ..attr },
            parent,
            data: Vec::new(),
            children: BTreeMap::new(),
            order: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            lookups: 0,
        };
        self.nodes.insert(ino, node);
        ino
    }

    fn attach(&mut self, parent: Ino, name: &[u8], child: Ino, now: Timestamp) -> Answer<()> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let is_dir = self.is_dir(child);
        let dir = self.node_mut(parent)?;
        dir.children.insert(name.to_vec(), (child, cookie));
        dir.order.insert(cookie, name.to_vec());
        dir.attr.nlink += u32::from(is_dir);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
        if is_dir {
            self.node_mut(child)?.parent = parent;
        }
        Ok(())
    }

    fn detach(&mut self, parent: Ino, name: &[u8], now: Timestamp) -> Answer<Ino> {
        let dir = self.node_mut(parent)?;
        let (child, cookie) = dir.children.remove(name).ok_or(Errno::ENOENT)?;
        dir.order.remove(&cookie);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
        if self.is_dir(child) {
            self.node_mut(parent)?.attr.nlink -= 1;
        }
        Ok(child)
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.nodes
            .get(&ino)
            .is_some_and(|node| FileKind::from_mode(node.attr.mode) == Some(FileKind::Directory))
    }

    /// Removes a link of `ino`.
    fn drop_link(&mut self, ino: Ino, now: Timestamp) {
        let is_dir = self.is_dir(ino);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.attr.nlink = if is_dir { 0 } else { node.attr.nlink - 1 };
            node.attr.ctime = now;
        }
        self.reap(ino);
    }

    fn reap(&mut self, ino: Ino) {
        let gone = self
            .nodes
            .get(&ino)
            .is_some_and(|n| n.attr.nlink == 0 && n.lookups == 0);
        if gone {
            self.nodes.remove(&ino);
        }
    }

    fn entry(&mut self, ino: Ino) -> Answer<Entry> {
        let node = self.node_mut(ino)?;
        node.lookups += 1;
        Ok(entry_of(node))
    }

    fn drop_lock(&mut self, ino: Ino, lock: &Lock) {
        // Whole locks only: what the tests take.
        self.held.retain(|held| {
            held.ino != ino || held.lock.owner != lock.owner || held.lock.flock != lock.flock
        });
        while let Some(at) = self.waiting.iter().position(|waiting| {
            !self
                .held
                .iter()
                .any(|held| conflicts(held, waiting.ino, &waiting.lock))
        }) {
            let waiting = self.waiting.remove(at);
            self.held.push(Held {
                ino: waiting.ino,
                lock: waiting.lock,
            });
            waiting.reply.reply(Ok(()));
        }
    }
}

fn entry_of(node: &Node) -> Entry {
    Entry {
        ino: node.attr.ino,
        generation: 0,
        attr: node.attr,
        entry_ttl: FOREVER,
        attr_ttl: FOREVER,
    }
}

fn resize(node: &mut Node, size: u64, now: Timestamp) -> Answer<()> {
    let len = usize::try_from(size).map_err(|_| Errno::EFBIG)?;
    if len > 1 << 30 {
        return Err(Errno::EFBIG);
    }
    node.data.resize(len, 0);
    node.attr.size = size;
    node.attr.blocks = size.div_ceil(512);
    (node.attr.mtime, node.attr.ctime) = (now, now);
    Ok(())
}

fn kill_suidgid(attr: &mut Attr) {
    attr.mode &= !S_ISUID;
    if attr.mode & 0o010 != 0 {
        attr.mode &= !S_ISGID;
    }
}

impl MemFs {
    pub(crate) fn new(options: MemOptions) -> Self {
        let clock = SystemClock::default();
        let now = clock.now();
        let mut state = State {
            nodes: HashMap::new(),
            next_ino: Ino::ROOT.0,
            next_cookie: 3,
            held: Vec::new(),
            waiting: Vec::new(),
            destroyed: 0,
        };
        let root = new_attr(FileKind::Directory.to_mode() | 0o755, (0, 0), 0, now);
        state.add_node(Ino::ROOT, root);
        Self {
            options,
            clock,
            state: Mutex::new(state),
            waiting_count: AtomicUsize::new(0),
            has_waited: AtomicBool::new(false),
        }
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting_count.load(Ordering::SeqCst)
    }

    /// Ends their waits.
    pub(crate) fn end_waits(&self) {
        self.has_waited.store(true, Ordering::SeqCst);
    }

    fn wait(&self) {
        self.waiting_count.fetch_add(1, Ordering::SeqCst);
        while !self.has_waited.load(Ordering::SeqCst) && self.clock.monotonic() < SOON {
            self.clock.sleep(Duration::from_millis(5));
        }
        self.waiting_count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the number of calls of `destroy`.
    pub(crate) fn destroyed(&self) -> u32 {
        self.state.lock().destroyed
    }

    /// Makes a directory with empty files in it, unseen by the kernel.
    pub(crate) fn populate(&self, name: &[u8], count: u32) {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let dir = new_attr(FileKind::Directory.to_mode() | 0o755, (0, 0), 0, now);
        let dir = state.add_node(Ino::ROOT, dir);
        state.attach(Ino::ROOT, name, dir, now).unwrap();
        for i in 0..count {
            let file = new_attr(FileKind::Regular.to_mode() | 0o644, (0, 0), 0, now);
            let file = state.add_node(dir, file);
            state
                .attach(dir, format!("file-{i}").as_bytes(), file, now)
                .unwrap();
        }
    }

    /// Changes a file behind the kernel's back.
    pub(crate) fn overwrite(&self, ino: Ino, data: &[u8]) {
        let mut state = self.state.lock();
        let node = state.node_mut(ino).unwrap();
        node.data = data.to_vec();
        node.attr.size = u64::try_from(data.len()).unwrap();
    }

    /// Moves a name behind the kernel's back.
    pub(crate) fn rename_in_root(&self, source: &[u8], target: &[u8]) {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let ino = state.detach(Ino::ROOT, source, now).unwrap();
        state.attach(Ino::ROOT, target, ino, now).unwrap();
    }

    fn make(
        &self,
        context: &Context<'_>,
        parent: Ino,
        name: &[u8],
        (mode, rdev): (u32, u32),
    ) -> Answer<Entry> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.child(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let attr = inherited(&state.node(parent)?.attr, mode, rdev, context, now);
        let ino = state.add_node(parent, attr);
        state.attach(parent, name, ino, now)?;
        state.entry(ino)
    }

    fn lock_now(&self, ino: Ino, lock: &Lock) -> bool {
        let mut state = self.state.lock();
        if state.held.iter().any(|held| conflicts(held, ino, lock)) {
            return false;
        }
        state.drop_lock(ino, lock);
        state.held.push(Held { ino, lock: *lock });
        true
    }
}

fn new_attr(mode: u32, (uid, gid): (u32, u32), rdev: u32, now: Timestamp) -> Attr {
    let is_dir = FileKind::from_mode(mode) == Some(FileKind::Directory);
    Attr {
        ino: Ino(0),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        mode,
        nlink: if is_dir { 2 } else { 1 },
        uid,
        gid,
        rdev,
        blksize: 4096,
    }
}

/// A new inode's attributes; in a set-group-id directory, the directory's group.
fn inherited(dir: &Attr, mode: u32, rdev: u32, context: &Context<'_>, now: Timestamp) -> Attr {
    let sticky_group = dir.mode & S_ISGID != 0;
    let gid = if sticky_group {
        dir.gid
    } else {
        context.caller.gid
    };
    let is_dir = FileKind::from_mode(mode) == Some(FileKind::Directory);
    let mode = if sticky_group && is_dir {
        mode | S_ISGID
    } else {
        mode
    };
    new_attr(mode, (context.caller.uid, gid), rdev, now)
}

impl Handler for MemFs {
    fn init(&self, negotiated: &Negotiated, _: &Notifier) {
        assert!(negotiated.minor >= 31);
    }

    fn destroy(&self) {
        self.state.lock().destroyed += 1;
    }

    fn lookup(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        assert!(
            !(self.options.panics && name == b"panic"),
            "a test asked for it"
        );
        if self.options.waits && name.starts_with(b"wait-") {
            self.wait();
        }
        let mut state = self.state.lock();
        let found = match name {
            b"." => Some(parent),
            b".." => Some(state.node(parent)?.parent),
            _ => state.child(parent, name)?,
        };
        match found {
            Some(ino) => state.entry(ino).map(Lookup::Found),
            None => Ok(Lookup::Missing { ttl: FOREVER }),
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.state.lock();
        if let Some(node) = state.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        state.reap(ino);
    }

    fn getattr(&self, _: &Context<'_>, ino: Ino) -> Answer<AttrReply> {
        Ok(AttrReply {
            attr: self.state.lock().node(ino)?.attr,
            ttl: FOREVER,
        })
    }

    fn statx(&self, _: &Context<'_>, ino: Ino, _: &Statx) -> Answer<StatxReply> {
        let attr = self.state.lock().node(ino)?.attr;
        Ok(StatxReply {
            attr,
            ttl: FOREVER,
            attributes: 0,
            attributes_mask: 0,
        })
    }

    fn setattr(&self, _: &Context<'_>, ino: Ino, args: &SetAttr) -> Answer<AttrReply> {
        let now = self.clock.now();
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let mut state = self.state.lock();
        let node = state.node_mut(ino)?;
        if let Some(size) = args.size {
            resize(node, size, now)?;
        }
        let attr = &mut node.attr;
        if args.kill_suidgid || args.uid.is_some() || args.gid.is_some() {
            kill_suidgid(attr);
        }
        let kind = attr.mode & !0o7777;
        attr.mode = args.mode.map_or(attr.mode, |mode| kind | mode & 0o7777);
        attr.uid = args.uid.unwrap_or(attr.uid);
        attr.gid = args.gid.unwrap_or(attr.gid);
        attr.atime = args.atime.map_or(attr.atime, time);
        attr.mtime = args.mtime.map_or(attr.mtime, time);
        attr.ctime = args.ctime.unwrap_or(now);
        Ok(AttrReply {
            attr: node.attr,
            ttl: FOREVER,
        })
    }

    fn readlink(&self, _: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        let state = self.state.lock();
        if out.put(&state.node(ino)?.data) {
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
        let mode = FileKind::Symlink.to_mode() | 0o777;
        let entry = self.make(context, parent, name, (mode, 0))?;
        let mut state = self.state.lock();
        let node = state.node_mut(entry.ino)?;
        node.data = target.to_vec();
        node.attr.size = u64::try_from(target.len()).expect("a path is short");
        Ok(entry_of(node))
    }

    fn mknod(&self, context: &Context<'_>, parent: Ino, args: &MkNod<'_>) -> Answer<Entry> {
        self.make(
            context,
            parent,
            args.name,
            (args.mode & !args.umask, args.rdev),
        )
    }

    fn mkdir(&self, context: &Context<'_>, parent: Ino, args: &MkDir<'_>) -> Answer<Entry> {
        let mode = FileKind::Directory.to_mode() | args.mode & 0o7777 & !args.umask;
        self.make(context, parent, args.name, (mode, 0))
    }

    fn unlink(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let child = state.detach(parent, name, now)?;
        state.drop_link(child, now);
        Ok(())
    }

    fn rmdir(&self, _: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let child = state.child(parent, name)?.ok_or(Errno::ENOENT)?;
        if !state.node(child)?.children.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        state.detach(parent, name, now)?;
        state.drop_link(child, now);
        Ok(())
    }

    fn rename(&self, _: &Context<'_>, parent: Ino, args: &Rename<'_>) -> Answer<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let source = state
            .child(parent, args.source_name)?
            .ok_or(Errno::ENOENT)?;
        let target = state.child(args.target_parent, args.target_name)?;
        match (args.flags, target) {
            (0, Some(target)) if target == source => return Ok(()),
            (0, Some(target)) => {
                if !state.node(target)?.children.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                state.detach(args.target_parent, args.target_name, now)?;
                state.drop_link(target, now);
            }
            (0 | libc::RENAME_NOREPLACE, None) => {}
            (libc::RENAME_NOREPLACE, Some(_)) => return Err(Errno::EEXIST),
            (libc::RENAME_EXCHANGE, Some(target)) => {
                state.detach(args.target_parent, args.target_name, now)?;
                state.detach(parent, args.source_name, now)?;
                state.attach(parent, args.source_name, target, now)?;
                return state.attach(args.target_parent, args.target_name, source, now);
            }
            (libc::RENAME_EXCHANGE, None) => return Err(Errno::ENOENT),
            _ => return Err(Errno::EINVAL),
        }
        state.detach(parent, args.source_name, now)?;
        state.attach(args.target_parent, args.target_name, source, now)
    }

    fn link(&self, _: &Context<'_>, source: Ino, parent: Ino, name: &[u8]) -> Answer<Entry> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.child(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let node = state.node_mut(source)?;
        node.attr.nlink += 1;
        node.attr.ctime = now;
        state.attach(parent, name, source, now)?;
        state.entry(source)
    }

    fn open(&self, _: &Context<'_>, _: Ino, _: &Open) -> Answer<Opened> {
        if self.options.serve_open {
            return Ok(Opened {
                fh: Fh(1),
                flags: OpenFlags::KEEP_CACHE,
                ..Opened::default()
            });
        }
        Err(Errno::ENOSYS)
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: Ino,
        args: &Create<'_>,
    ) -> Answer<(Entry, Opened)> {
        if !self.options.serve_open {
            return Err(Errno::ENOSYS);
        }
        let entry = self.make(context, parent, args.name, (args.mode & !args.umask, 0))?;
        Ok((
            entry,
            Opened {
                fh: Fh(1),
                flags: OpenFlags::KEEP_CACHE,
                ..Opened::default()
            },
        ))
    }

    fn tmpfile(
        &self,
        context: &Context<'_>,
        parent: Ino,
        args: &Create<'_>,
    ) -> Answer<(Entry, Opened)> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let dir = state.node(parent)?.attr;
        let mut attr = inherited(&dir, args.mode & !args.umask, 0, context, now);
        attr.nlink = 0;
        let ino = state.add_node(parent, attr);
        Ok((
            state.entry(ino)?,
            Opened {
                fh: Fh(0),
                flags: OpenFlags::KEEP_CACHE,
                ..Opened::default()
            },
        ))
    }

    fn read(&self, _: &Context<'_>, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        let state = self.state.lock();
        let data = &state.node(ino)?.data;
        let from = usize::try_from(args.offset)
            .unwrap_or(usize::MAX)
            .min(data.len());
        out.put_some(&data[from..]);
        Ok(())
    }

    fn write(&self, _: &Context<'_>, ino: Ino, args: &Write<'_>) -> Answer<u32> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let node = state.node_mut(ino)?;
        let len = u64::try_from(args.data.len()).expect("at most 1 MiB");
        let end = args.offset.checked_add(len).ok_or(Errno::EFBIG)?;
        resize(node, end.max(node.attr.size), now)?;
        let from = usize::try_from(args.offset).map_err(|_| Errno::EFBIG)?;
        node.data[from..from + args.data.len()].copy_from_slice(args.data);
        if args.write_flags.contains(WriteFlags::KILL_SUIDGID) {
            kill_suidgid(&mut node.attr);
        }
        Ok(u32::try_from(len).expect("at most 1 MiB"))
    }

    fn fsync(&self, _: &Context<'_>, _: Ino, _: &FSync) -> Answer<()> {
        Ok(())
    }

    fn readdir(&self, _: &Context<'_>, ino: Ino, args: &Read, out: &mut DirSink<'_>) -> Answer<()> {
        let state = self.state.lock();
        list(&state, ino, args.offset, |entry| out.push(entry)).map(|_| ())
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        let mut state = self.state.lock();
        let seen = list(&state, ino, args.offset, |entry| {
            let full = state.nodes.get(&entry.ino).map(entry_of);
            let is_dots = entry.name == b"." || entry.name == b"..";
            out.push(entry, full.as_ref().filter(|_| !is_dots))
        })?;
        for ino in seen {
            state.node_mut(ino)?.lookups += 1;
        }
        Ok(())
    }

    fn fsyncdir(&self, _: &Context<'_>, _: Ino, _: &FSync) -> Answer<()> {
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: Ino) -> Answer<StatFs> {
        let files = u64::try_from(self.state.lock().nodes.len()).expect("fits");
        Ok(StatFs {
            blocks: 1 << 20,
            blocks_free: 1 << 19,
            blocks_available: 1 << 18,
            files: files + (1 << 20),
            files_free: 1 << 20,
            block_size: 4096,
            name_len_max: 255,
            fragment_size: 4096,
        })
    }

    fn setxattr(&self, _: &Context<'_>, ino: Ino, args: &SetXattr<'_>) -> Answer<()> {
        let mut state = self.state.lock();
        state
            .node_mut(ino)?
            .xattrs
            .insert(args.name.to_vec(), args.value.to_vec());
        Ok(())
    }

    fn getxattr(&self, _: &Context<'_>, ino: Ino, name: &[u8], out: &mut Sink<'_>) -> Answer<()> {
        if self.options.no_xattrs {
            return Err(Errno::ENOSYS);
        }
        let state = self.state.lock();
        let value = state.node(ino)?.xattrs.get(name).ok_or(Errno::ENODATA)?;
        if out.put(value) {
            Ok(())
        } else {
            Err(Errno::E2BIG)
        }
    }

    fn listxattr(&self, _: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        let state = self.state.lock();
        let fits = state
            .node(ino)?
            .xattrs
            .keys()
            .all(|name| out.put(name) && out.put(b"\0"));
        if fits { Ok(()) } else { Err(Errno::E2BIG) }
    }

    fn removexattr(&self, _: &Context<'_>, ino: Ino, name: &[u8]) -> Answer<()> {
        let mut state = self.state.lock();
        state
            .node_mut(ino)?
            .xattrs
            .remove(name)
            .map(|_| ())
            .ok_or(Errno::ENODATA)
    }

    fn getlk(&self, _: &Context<'_>, ino: Ino, args: &Lock) -> Answer<Lock> {
        let state = self.state.lock();
        let held = state.held.iter().find(|held| conflicts(held, ino, args));
        Ok(held.map_or(
            Lock {
                kind: LockKind::Unlock,
                ..*args
            },
            |held| held.lock,
        ))
    }

    fn setlk(&self, _: &Context<'_>, ino: Ino, args: &Lock) -> Answer<()> {
        if args.kind == LockKind::Unlock {
            self.state.lock().drop_lock(ino, args);
            return Ok(());
        }
        if self.lock_now(ino, args) {
            Ok(())
        } else {
            Err(Errno::EAGAIN)
        }
    }

    fn setlkw(&self, _: &Context<'_>, ino: Ino, args: &Lock, reply: Deferred) {
        if self.lock_now(ino, args) {
            reply.reply(Ok(()));
        } else {
            self.state.lock().waiting.push(Waiting {
                ino,
                lock: *args,
                reply,
            });
        }
    }

    fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        let waiting = state
            .waiting
            .iter()
            .position(|waiting| waiting.reply.unique() == unique);
        if let Some(at) = waiting {
            state.waiting.remove(at).reply.reply(Err(Errno::EINTR));
        }
    }

    fn fallocate(&self, _: &Context<'_>, ino: Ino, args: &Fallocate) -> Answer<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let node = state.node_mut(ino)?;
        let end = args.offset.checked_add(args.length).ok_or(Errno::EFBIG)?;
        match args.mode {
            0 => resize(node, end.max(node.attr.size), now),
            PUNCH_HOLE => {
                let clamp = |at: u64| usize::try_from(at.min(node.attr.size)).expect("in memory");
                let (from, to) = (clamp(args.offset), clamp(end));
                node.data[from..to].fill(0);
                (node.attr.mtime, node.attr.ctime) = (now, now);
                Ok(())
            }
            _ => Err(Errno::ENOTSUP),
        }
    }

    fn lseek(&self, _: &Context<'_>, ino: Ino, args: &LSeek) -> Answer<u64> {
        let size = self.state.lock().node(ino)?.attr.size;
        let hole = u32::try_from(libc::SEEK_HOLE).expect("small");
        if args.offset >= size {
            return Err(Errno::ENXIO);
        }
        Ok(if args.whence == hole {
            size
        } else {
            args.offset
        })
    }

    fn copy_file_range(&self, _: &Context<'_>, ino: Ino, args: &CopyFileRange) -> Answer<u64> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let source = &state.node(ino)?.data;
        let from = usize::try_from(args.source_offset)
            .unwrap_or(usize::MAX)
            .min(source.len());
        let count = usize::try_from(args.length)
            .unwrap_or(usize::MAX)
            .min(source.len() - from);
        let piece = source[from..from + count].to_vec();
        let node = state.node_mut(args.target)?;
        let copied = u64::try_from(count).expect("fits");
        let end = args.target_offset.checked_add(copied).ok_or(Errno::EFBIG)?;
        resize(node, end.max(node.attr.size), now)?;
        let at = usize::try_from(args.target_offset).map_err(|_| Errno::EFBIG)?;
        node.data[at..at + count].copy_from_slice(&piece);
        Ok(copied)
    }
}

/// Lists the entries after `offset`. Returns the inodes that were listed, except the dots.
fn list(
    state: &State,
    ino: Ino,
    offset: u64,
    mut push: impl FnMut(&DirEntry<'_>) -> bool,
) -> Answer<Vec<Ino>> {
    let dir = state.node(ino)?;
    let mut taken = Vec::new();
    for (cookie, name, ino) in [(1, &b"."[..], ino), (2, b"..", dir.parent)] {
        let entry = DirEntry {
            ino,
            next_offset: cookie,
            kind: FileKind::Directory,
            name,
        };
        if offset < cookie && !push(&entry) {
            return Ok(taken);
        }
    }
    for (&cookie, name) in dir.order.range(offset + 1..) {
        let child = state.node(dir.children[name].0)?;
        let kind = FileKind::from_mode(child.attr.mode).ok_or(Errno::EIO)?;
        let entry = DirEntry {
            ino: child.attr.ino,
            next_offset: cookie,
            kind,
            name,
        };
        if !push(&entry) {
            break;
        }
        taken.push(entry.ino);
    }
    Ok(taken)
}

/// Short enough for tests that wait.
pub(crate) const SOON: Duration = Duration::from_secs(10);
