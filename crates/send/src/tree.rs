//! Names and attributes of a directory and all below it.

use crate::SendError;
use crate::beneath::Root;
use rustix::fs::{Access, AtFlags, Dir, FileType, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Directory in which a stream is received; it is not sent.
pub(crate) const STAGING: &str = ".stitchfs-receive";

/// How a tree is read.
#[derive(Clone, Debug, Default)]
pub struct TreeOptions {
    /// Bits of `st_ino` that are the inode number, the same in all snapshots; 0 is for all.
    pub ino_mask: u64,
    /// Leaves out files and directories that the caller cannot read, instead of failing.
    pub skip_unreadable: bool,
}

/// A name in the directory that has this inode number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) dir: u64,
    pub(crate) name: Vec<u8>,
}

/// Attributes of an inode. Times are in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) mode: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) size: u64,
    pub(crate) device: u64,
    pub(crate) accessed: i64,
    pub(crate) modified: i64,
    pub(crate) changed: i64,
}

impl Node {
    fn of(stat: &Stat) -> Self {
        let nanos = |seconds: i64, nanos: u64| {
            let nanos = i64::try_from(nanos).unwrap_or_default();
            seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
        };
        Self {
            mode: stat.st_mode,
            user: stat.st_uid,
            group: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            device: stat.st_rdev,
            accessed: nanos(stat.st_atime, stat.st_atime_nsec),
            modified: nanos(stat.st_mtime, stat.st_mtime_nsec),
            changed: nanos(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }
}

/// A directory and all below it, as it was read.
#[derive(Debug)]
pub struct Tree {
    pub(crate) root: Root,
    pub(crate) root_ino: u64,
    /// The other bits of the root's `st_ino`.
    root_view: u64,
    pub(crate) names: BTreeMap<Name, u64>,
    pub(crate) nodes: HashMap<u64, Node>,
    /// The name of each directory but the root.
    dirs: HashMap<u64, Name>,
    skipped: Vec<PathBuf>,
}

impl Tree {
    /// Reads a directory with all below it.
    ///
    /// # Errors
    /// [`SendError::Io`]: what could not be read; [`SendError::Refused`]: a mount point is in it,
    /// or it is one in which a stream is being received.
    pub fn read(place: &Path, options: &TreeOptions) -> Result<Self, SendError> {
        let root = Root::open(place)?;
        let stat = root
            .stat(b"")
            .map_err(|errno| root.error("stat", b"", errno))?;
        let mask = if options.ino_mask == 0 {
            u64::MAX
        } else {
            options.ino_mask
        };
        let mut tree = Self {
            root,
            root_ino: stat.st_ino & mask,
            root_view: stat.st_ino & !mask,
            names: BTreeMap::new(),
            nodes: HashMap::new(),
            dirs: HashMap::new(),
            skipped: Vec::new(),
        };
        tree.nodes.insert(tree.root_ino, Node::of(&stat));
        let mut waiting = vec![tree.root_ino];
        while let Some(dir) = waiting.pop() {
            let path = tree.dir_path(dir);
            tree.read_dir(dir, &path, (mask, stat.st_dev), options, &mut waiting)?;
        }
        Ok(tree)
    }

    /// Files and directories that were left out because the caller cannot read them.
    #[must_use]
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }

    /// Number of names.
    #[must_use]
    pub fn count(&self) -> usize {
        self.names.len()
    }

    fn read_dir(
        &mut self,
        ino: u64,
        path: &[u8],
        (mask, device): (u64, u64),
        options: &TreeOptions,
        waiting: &mut Vec<u64>,
    ) -> Result<(), SendError> {
        let fail = |root: &Root, errno| root.error("read", path, errno);
        let dir = self
            .root
            .open_dir(path)
            .map_err(|errno| fail(&self.root, errno))?;
        for entry in Dir::read_from(&dir).map_err(|errno| fail(&self.root, errno))? {
            let entry = entry.map_err(|errno| fail(&self.root, errno))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let below = join(path, name);
            if below == STAGING.as_bytes() {
                return Err(SendError::refused(format!(
                    "{}: holds a part of a stream that was received; finish that first",
                    self.root.shown(b"").display()
                )));
            }
            let stat = rustix::fs::statat(&dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat.map_err(|errno| self.root.error("stat", &below, errno))?;
            if stat.st_dev != device {
                let shown = self.root.shown(&below);
                return Err(SendError::refused(format!(
                    "{}: another file system is mounted there",
                    shown.display()
                )));
            }
            let node = Node::of(&stat);
            if options.skip_unreadable && !is_readable(&dir, OsStr::from_bytes(name), &node) {
                self.skipped.push(self.root.shown(&below));
                continue;
            }
            let (name, number) = (name.to_vec(), self.number(stat.st_ino, mask));
            let name = Name { dir: ino, name };
            if node.is_dir() {
                self.dirs.insert(number, name.clone());
                waiting.push(number);
            }
            self.names.insert(name, number);
            self.nodes.insert(number, node);
        }
        Ok(())
    }

    /// The number of an inode. What is of another view than the root, such as a clone in it, keeps
    /// all bits: the others are numbers of the root's view.
    const fn number(&self, ino: u64, mask: u64) -> u64 {
        if ino & !mask == self.root_view {
            return ino & mask;
        }
        ino
    }

    /// Path of a directory from the root on.
    pub(crate) fn dir_path(&self, ino: u64) -> Vec<u8> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while let Some(name) = self.dirs.get(&at) {
            names.push(&name.name);
            at = name.dir;
        }
        debug_assert_eq!(at, self.root_ino, "the directory is in the tree");
        names.reverse();
        names.join(&b'/')
    }

    pub(crate) fn path(&self, name: &Name) -> Vec<u8> {
        join(&self.dir_path(name.dir), &name.name)
    }

    /// All names, those of a directory after its own, in the order of bytes.
    pub(crate) fn preorder(&self) -> Vec<(&Name, u64)> {
        let mut out = Vec::with_capacity(self.names.len());
        let mut waiting: Vec<(&Name, u64)> = self.entries(self.root_ino).rev().collect();
        while let Some((name, ino)) = waiting.pop() {
            out.push((name, ino));
            if self.nodes[&ino].is_dir() {
                waiting.extend(self.entries(ino).rev());
            }
        }
        out
    }

    fn entries(&self, dir: u64) -> impl DoubleEndedIterator<Item = (&Name, u64)> {
        let of = |dir| Name {
            dir,
            name: Vec::new(),
        };
        let range = self.names.range(of(dir)..of(dir + 1));
        range.map(|(name, ino)| (name, *ino))
    }
}

fn is_readable(dir: &rustix::fd::OwnedFd, name: &OsStr, node: &Node) -> bool {
    let access = match node.kind() {
        FileType::Directory => Access::READ_OK | Access::EXEC_OK,
        FileType::RegularFile => Access::READ_OK,
        _ => return true,
    };
    let allowed = rustix::fs::accessat(dir, name, access, AtFlags::EACCESS);
    !matches!(allowed, Err(Errno::ACCESS | Errno::PERM))
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    [dir, b"/", name].concat()
}
