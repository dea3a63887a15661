//! A file system as plainly as it can be said: nodes in a map, contents as bytes.

use std::collections::{BTreeMap, BTreeSet};
use stitch_fs::{
    ClearSetId, FallocateMode, FileKind, FsError, FsResult, RenameMode, SetAttr, SetTime,
};

pub(crate) type Id = usize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) data: Vec<u8>,
    /// Blocks of 4 KiB that were written or allocated.
    pub(crate) blocks: BTreeSet<usize>,
    /// The contents are in the inode's row, and so never have a hole.
    is_small: bool,
    pub(crate) entries: BTreeMap<String, Id>,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    pub(crate) parent: Id,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) is_temp: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Twin {
    pub(crate) nodes: BTreeMap<Id, Node>,
    pub(crate) now: i64,
    /// The number that the next node gets.
    pub(crate) next: Id,
}

pub(crate) const ROOT: Id = 1;
const BLOCK: usize = 4096;

impl Node {
    fn take_blocks(&mut self, offset: usize, end: usize) {
        self.blocks.extend(offset / BLOCK..end.div_ceil(BLOCK));
        self.is_small &= self.data.len() <= BLOCK;
    }
}

fn node(kind: FileKind, perm: u16, now: i64) -> Node {
    Node {
        kind,
        perm,
        uid: 0,
        gid: 0,
        nlink: if kind == FileKind::Directory { 2 } else { 1 },
        data: Vec::new(),
        blocks: BTreeSet::new(),
        is_small: true,
        entries: BTreeMap::new(),
        xattrs: BTreeMap::new(),
        parent: ROOT,
        mtime: now,
        ctime: now,
        is_temp: false,
    }
}

impl Twin {
    pub(crate) fn new(now: i64) -> Self {
        let root = node(FileKind::Directory, 0o755, now);
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            now,
            next: ROOT + 1,
        }
    }

    fn node(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("the test holds it")
    }

    fn is_dir(&self, id: Id) -> bool {
        self.nodes[&id].kind == FileKind::Directory
    }

    fn dir(&self, id: Id) -> FsResult<&Node> {
        let node = &self.nodes[&id];
        if node.kind == FileKind::Directory {
            Ok(node)
        } else {
            Err(FsError::NotDir)
        }
    }

    fn inherit(&self, dir: Id, made: &mut Node) {
        if self.nodes[&dir].perm & 0o2000 != 0 {
            made.gid = self.nodes[&dir].gid;
            if made.kind == FileKind::Directory {
                made.perm |= 0o2000;
            }
        }
    }

    fn touch(&mut self, id: Id) {
        let now = self.now;
        let node = self.node(id);
        (node.mtime, node.ctime) = (now, now);
    }

    fn change(&mut self, id: Id) {
        let now = self.now;
        self.node(id).ctime = now;
    }

    pub(crate) fn lookup(&self, dir: Id, name: &str) -> FsResult<Id> {
        let found = self.dir(dir)?.entries.get(name);
        found.copied().ok_or(FsError::NotFound)
    }

    pub(crate) fn make(
        &mut self,
        dir: Id,
        name: &str,
        kind: FileKind,
        perm: u16,
        target: &[u8],
    ) -> FsResult<Id> {
        self.dir(dir)?;
        if self.nodes[&dir].nlink == 0 {
            return Err(FsError::NotFound);
        }
        if self.lookup(dir, name).is_ok() {
            return Err(FsError::Exists);
        }
        let id = self.next;
        self.next += 1;
        let mut made = node(kind, perm, self.now);
        made.parent = dir;
        made.data = target.to_vec();
        self.inherit(dir, &mut made);
        self.nodes.insert(id, made);
        self.node(dir).entries.insert(name.to_owned(), id);
        self.node(dir).nlink += u32::from(kind == FileKind::Directory);
        self.touch(dir);
        Ok(id)
    }

    pub(crate) fn make_temp(&mut self, dir: Id, perm: u16) -> FsResult<Id> {
        self.dir(dir)?;
        if self.nodes[&dir].nlink == 0 {
            return Err(FsError::NotFound);
        }
        let id = self.next;
        self.next += 1;
        let mut made = node(FileKind::Regular, perm, self.now);
        made.nlink = 0;
        made.is_temp = true;
        self.inherit(dir, &mut made);
        self.nodes.insert(id, made);
        Ok(id)
    }

    pub(crate) fn link(&mut self, id: Id, dir: Id, name: &str) -> FsResult<()> {
        self.dir(dir)?;
        if self.nodes[&dir].nlink == 0 {
            return Err(FsError::NotFound);
        }
        if self.is_dir(id) {
            return Err(FsError::Perm);
        }
        if self.nodes[&id].nlink == 0 && !self.nodes[&id].is_temp {
            return Err(FsError::NotFound);
        }
        if self.lookup(dir, name).is_ok() {
            return Err(FsError::Exists);
        }
        self.node(id).nlink += 1;
        self.node(id).is_temp = false;
        self.change(id);
        self.node(dir).entries.insert(name.to_owned(), id);
        self.touch(dir);
        Ok(())
    }

    fn drop_name(&mut self, id: Id) {
        let is_dir = self.is_dir(id);
        let node = self.node(id);
        node.nlink = if is_dir { 0 } else { node.nlink - 1 };
        self.change(id);
    }

    pub(crate) fn unlink(&mut self, dir: Id, name: &str) -> FsResult<()> {
        let id = self.lookup(dir, name)?;
        if self.is_dir(id) {
            return Err(FsError::IsDir);
        }
        self.node(dir).entries.remove(name);
        self.drop_name(id);
        self.touch(dir);
        Ok(())
    }

    pub(crate) fn remove_dir(&mut self, dir: Id, name: &str) -> FsResult<()> {
        let id = self.lookup(dir, name)?;
        if !self.dir(id)?.entries.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.node(dir).entries.remove(name);
        self.node(dir).nlink -= 1;
        self.drop_name(id);
        self.touch(dir);
        Ok(())
    }

    fn is_inside(&self, mut at: Id, top: Id) -> bool {
        while at != ROOT {
            if at == top {
                return true;
            }
            at = self.nodes[&at].parent;
        }
        top == ROOT
    }

    pub(crate) fn rename(
        &mut self,
        source: (Id, &str),
        target: (Id, &str),
        mode: RenameMode,
    ) -> FsResult<()> {
        self.dir(source.0)?;
        self.dir(target.0)?;
        let id = self.lookup(source.0, source.1)?;
        let old = self.lookup(target.0, target.1).ok();
        match (mode, old) {
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (_, Some(old)) if old == id => return Ok(()),
            _ => {}
        }
        if self.nodes[&target.0].nlink == 0 {
            return Err(FsError::NotFound);
        }
        if mode == RenameMode::Exchange {
            return self.exchange(source, target, id, old.expect("checked above"));
        }
        if let Some(old) = old {
            match (self.is_dir(id), self.is_dir(old)) {
                (false, true) => return Err(FsError::IsDir),
                (true, false) => return Err(FsError::NotDir),
                _ => {}
            }
        }
        if self.is_dir(id) && self.is_inside(target.0, id) {
            return Err(FsError::Invalid(""));
        }
        if let Some(old) = old {
            if !self.nodes[&old].entries.is_empty() {
                return Err(FsError::NotEmpty);
            }
            if self.is_dir(old) {
                self.node(target.0).nlink -= 1;
            }
            self.drop_name(old);
        }
        self.node(source.0).entries.remove(source.1);
        self.place(id, source.0, target);
        if mode == RenameMode::Whiteout {
            let white = self.next;
            self.next += 1;
            let mut made = node(FileKind::CharDevice, 0, self.now);
            self.inherit(source.0, &mut made);
            self.nodes.insert(white, made);
            let name = source.1.to_owned();
            self.node(source.0).entries.insert(name, white);
        }
        self.touch(source.0);
        self.touch(target.0);
        Ok(())
    }

    fn place(&mut self, id: Id, from: Id, target: (Id, &str)) {
        if self.is_dir(id) {
            self.node(from).nlink -= 1;
            self.node(target.0).nlink += 1;
            self.node(id).parent = target.0;
        }
        self.node(target.0).entries.insert(target.1.to_owned(), id);
        self.change(id);
    }

    fn exchange(
        &mut self,
        source: (Id, &str),
        target: (Id, &str),
        id: Id,
        old: Id,
    ) -> FsResult<()> {
        let into_itself = (self.is_dir(id) && self.is_inside(target.0, id))
            || (self.is_dir(old) && self.is_inside(source.0, old));
        if into_itself {
            return Err(FsError::Invalid(""));
        }
        self.place(id, source.0, target);
        self.place(old, target.0, source);
        self.touch(source.0);
        self.touch(target.0);
        Ok(())
    }

    fn file(&self, id: Id) -> FsResult<&Node> {
        let node = &self.nodes[&id];
        match node.kind {
            FileKind::Regular => Ok(node),
            FileKind::Directory => Err(FsError::IsDir),
            _ => Err(FsError::Invalid("")),
        }
    }

    pub(crate) fn read(&self, id: Id, offset: usize, len: usize) -> FsResult<Vec<u8>> {
        let data = &self.file(id)?.data;
        let start = offset.min(data.len());
        let end = (offset + len).min(data.len());
        Ok(data[start..end].to_vec())
    }

    pub(crate) fn write(
        &mut self,
        id: Id,
        offset: usize,
        bytes: &[u8],
        clear: ClearSetId,
    ) -> FsResult<()> {
        self.file(id)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let node = self.node(id);
        let end = offset + bytes.len();
        node.data.resize(node.data.len().max(end), 0);
        node.data[offset..end].copy_from_slice(bytes);
        node.take_blocks(offset, end);
        node.perm = cleared(node.perm, clear);
        self.touch(id);
        Ok(())
    }

    pub(crate) fn fallocate(
        &mut self,
        id: Id,
        mode: FallocateMode,
        offset: usize,
        len: usize,
    ) -> FsResult<()> {
        if len == 0 {
            return Err(FsError::Invalid(""));
        }
        self.file(id)?;
        let node = self.node(id);
        let end = offset + len;
        let keeps = match mode {
            FallocateMode::Allocate { keep_size } | FallocateMode::ZeroRange { keep_size } => {
                keep_size
            }
            FallocateMode::PunchHole => true,
        };
        let is_zeroing = !matches!(mode, FallocateMode::Allocate { .. });
        let grows = !keeps && end > node.data.len();
        let size = node.data.len();
        match mode {
            FallocateMode::PunchHole if node.is_small => {}
            FallocateMode::PunchHole => {
                let is_last = end >= size;
                let after = if is_last { size.div_ceil(BLOCK) } else { 0 };
                let punched = offset.div_ceil(BLOCK)..after.max(end / BLOCK);
                node.blocks.retain(|block| !punched.contains(block));
            }
            _ => {
                node.is_small &= is_zeroing && end <= size;
                node.take_blocks(offset, end);
            }
        }
        if is_zeroing {
            let stop = end.min(node.data.len());
            let start = offset.min(stop);
            node.data[start..stop].fill(0);
        }
        if grows {
            node.data.resize(end, 0);
        }
        self.touch(id);
        Ok(())
    }

    pub(crate) fn set_attr(&mut self, id: Id, set: &SetAttr) -> FsResult<()> {
        if *set == SetAttr::default() {
            return Ok(());
        }
        let now = self.now;
        if let Some(size) = set.size {
            self.file(id)?;
            let node = self.node(id);
            let size = usize::try_from(size).expect("small");
            if size <= node.data.len() {
                node.blocks.retain(|&block| block < size.div_ceil(BLOCK));
            }
            node.data.resize(size, 0);
            node.is_small = size == 0 || (node.is_small && size <= BLOCK);
            node.mtime = now;
            node.perm = cleared(node.perm, set.clear_setid);
        }
        let node = self.node(id);
        if (set.uid.is_some() || set.gid.is_some()) && node.kind != FileKind::Directory {
            node.perm = cleared(node.perm, ClearSetId::Executable);
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(perm) = set.perm {
            node.perm = u16::try_from(perm & 0o7777).expect("twelve bits");
        }
        match set.mtime {
            Some(SetTime::Now) => node.mtime = now,
            Some(SetTime::At(at)) => node.mtime = at.0,
            None => {}
        }
        node.ctime = now;
        Ok(())
    }

    pub(crate) fn set_xattr(&mut self, id: Id, name: &str, value: &[u8]) -> FsResult<()> {
        let kind = self.nodes[&id].kind;
        if !matches!(kind, FileKind::Regular | FileKind::Directory) {
            return Err(FsError::Perm);
        }
        self.node(id).xattrs.insert(name.to_owned(), value.to_vec());
        self.change(id);
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, id: Id, name: &str) -> FsResult<()> {
        let kind = self.nodes[&id].kind;
        if !matches!(kind, FileKind::Regular | FileKind::Directory) {
            return Err(FsError::Perm);
        }
        let removed = self.node(id).xattrs.remove(name);
        removed.ok_or(FsError::NoData)?;
        self.change(id);
        Ok(())
    }
}

fn cleared(perm: u16, clear: ClearSetId) -> u16 {
    let may_execute = perm & 0o010 != 0;
    match clear {
        ClearSetId::None => perm,
        ClearSetId::Executable if !may_execute => perm & 0o3777,
        ClearSetId::Executable | ClearSetId::All => perm & 0o1777,
    }
}
