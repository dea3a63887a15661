//! The inodes and names of the file system that does nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_base::sync::Mutex;
use stitch_fuse::Errno;
use stitch_fuse::handler::Answer;
use stitch_fuse::wire::reply::{Attr, DirEntry, Entry, FOREVER, FileKind};

/// Cookies of `.` and `..`.
const COOKIES_OF_DOTS: u64 = 2;

/// All inodes.
pub(super) struct Nodes {
    nodes: HashMap<Ino, Node>,
    next_ino: u64,
    next_cookie: u64,
}

/// An inode.
pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) parent: Ino,
    pub(super) lookups: u64,
    pub(super) data: Arc<Mutex<Vec<u8>>>,
    children: HashMap<Box<[u8]>, (Ino, u64)>,
    order: BTreeMap<u64, Box<[u8]>>,
}

impl Node {
    /// After a write or a change of length.
    pub(super) const fn set_size(&mut self, size: u64, now: Timestamp) {
        self.attr.size = size;
        self.attr.blocks = size.div_ceil(512);
        self.attr.mtime = now;
        self.attr.ctime = now;
    }
}

pub(super) fn entry_of(node: &Node) -> Entry {
    Entry {
        ino: node.attr.ino,
        generation: 0,
        attr: node.attr,
        entry_ttl: FOREVER,
        attr_ttl: FOREVER,
    }
}

pub(super) fn new_attr(mode: u32, (uid, gid): (u32, u32), now: Timestamp) -> Attr {
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
        rdev: 0,
        blksize: 4096,
    }
}

impl Nodes {
    /// A root directory.
    pub(super) fn new(now: Timestamp) -> Self {
        let mut nodes = Self {
            nodes: HashMap::new(),
            next_ino: Ino::ROOT.0,
            next_cookie: COOKIES_OF_DOTS + 1,
        };
        let mode = FileKind::Directory.to_mode() | 0o755;
        let root = nodes.add(Ino::ROOT, new_attr(mode, (0, 0), now));
        assert_eq!(root, Ino::ROOT, "the root comes first");
        nodes
    }

    pub(super) fn get(&self, ino: Ino) -> Answer<&Node> {
        self.nodes.get(&ino).ok_or(Errno::ESTALE)
    }

    pub(super) fn get_mut(&mut self, ino: Ino) -> Answer<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    pub(super) fn child(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        Ok(self.get(parent)?.children.get(name).map(|&(ino, _)| ino))
    }

    pub(super) fn is_empty(&self, ino: Ino) -> Answer<bool> {
        Ok(self.get(ino)?.children.is_empty())
    }

    /// A new inode, without a name.
    pub(super) fn add(&mut self, parent: Ino, attr: Attr) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let node = Node {
            attr: Attr { ino, ..attr },
            parent,
            lookups: 0,
            data: Arc::default(),
            children: HashMap::new(),
            order: BTreeMap::new(),
        };
        self.nodes.insert(ino, node);
        ino
    }

    /// Gives an inode a name.
    pub(super) fn attach(
        &mut self,
        parent: Ino,
        name: &[u8],
        child: Ino,
        now: Timestamp,
    ) -> Answer<()> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let is_dir = self.is_dir(child);
        let dir = self.get_mut(parent)?;
        dir.children.insert(name.into(), (child, cookie));
        dir.order.insert(cookie, name.into());
        dir.attr.nlink += u32::from(is_dir);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
        if is_dir {
            self.get_mut(child)?.parent = parent;
        }
        Ok(())
    }

    /// Takes a name away.
    pub(super) fn detach(&mut self, parent: Ino, name: &[u8], now: Timestamp) -> Answer<()> {
        let dir = self.get_mut(parent)?;
        let (child, cookie) = dir.children.remove(name).ok_or(Errno::ENOENT)?;
        dir.order.remove(&cookie);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
        if self.is_dir(child) {
            self.get_mut(parent)?.attr.nlink -= 1;
        }
        Ok(())
    }

    fn is_dir(&self, ino: Ino) -> bool {
        let node = self.nodes.get(&ino);
        node.is_some_and(|n| FileKind::from_mode(n.attr.mode) == Some(FileKind::Directory))
    }

    /// Removes a link of `ino`.
    pub(super) fn drop_link(&mut self, ino: Ino, now: Timestamp) {
        let is_dir = self.is_dir(ino);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.attr.nlink = if is_dir { 0 } else { node.attr.nlink - 1 };
            node.attr.ctime = now;
        }
        self.forget(ino, 0);
    }

    /// Subtracts lookups. Removes the inode if it has neither lookups nor names.
    pub(super) fn forget(&mut self, ino: Ino, count: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(count);
            if node.attr.nlink == 0 && node.lookups == 0 {
                self.nodes.remove(&ino);
            }
        }
    }

    /// What a lookup answers; it is counted.
    pub(super) fn entry(&mut self, ino: Ino) -> Answer<Entry> {
        let node = self.get_mut(ino)?;
        node.lookups += 1;
        Ok(entry_of(node))
    }

    /// Lists the entries after `offset`, with the inodes of all but the dots. Returns the inodes
    /// that were listed.
    pub(super) fn list(
        &self,
        ino: Ino,
        offset: u64,
        mut push: impl FnMut(&DirEntry<'_>, Option<&Node>) -> bool,
    ) -> Answer<Vec<Ino>> {
        let dir = self.get(ino)?;
        let mut taken = Vec::new();
        for (cookie, name, ino) in [(1, &b"."[..], ino), (COOKIES_OF_DOTS, b"..", dir.parent)] {
            let entry = DirEntry {
                ino,
                next_offset: cookie,
                kind: FileKind::Directory,
                name,
            };
            if offset < cookie && !push(&entry, None) {
                return Ok(taken);
            }
        }
        for (&cookie, name) in dir.order.range(offset.max(COOKIES_OF_DOTS) + 1..) {
            let child = self.get(dir.children[name].0)?;
            let entry = DirEntry {
                ino: child.attr.ino,
                next_offset: cookie,
                kind: FileKind::from_mode(child.attr.mode).ok_or(Errno::EIO)?,
                name,
            };
            if !push(&entry, Some(child)) {
                break;
            }
            taken.push(entry.ino);
        }
        Ok(taken)
    }
}
