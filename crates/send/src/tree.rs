//! Names and attributes of a directory and all below it.

use crate::beneath::{FileStat, Root};
use crate::{InodeNumbers, SendError};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Directory in which a stream is received; it is not sent.
pub(crate) const STAGING: &str = ".stitchfs-receive";

/// How a tree is read.
#[derive(Clone, Debug, Default)]
pub struct TreeOptions {
    /// How inodes are numbered.
    pub numbers: InodeNumbers,
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
pub struct Node {
    /// Kind and permissions, as `st_mode` has them.
    pub mode: u32,
    /// Number of the user who owns it.
    pub user: u32,
    /// Number of the group.
    pub group: u32,
    /// Length in bytes.
    pub size: u64,
    /// Of a device node: the number of the device.
    pub device: u64,
    /// Time of the last access.
    pub accessed: i64,
    /// Time of the last change of contents.
    pub modified: i64,
    /// Time of the last change of contents or attributes.
    pub changed: i64,
}

impl Node {
    /// Returns the kind of the file.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }
}

/// What is the same for all names of a tree that is read.
struct Reading<'o> {
    /// `st_ino` of the root.
    root: u64,
    device: u64,
    options: &'o TreeOptions,
}

/// A directory and what is below it, as it was read.
#[derive(Debug)]
pub struct Tree {
    pub(crate) root: Root,
    pub(crate) root_ino: u64,
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
        Self::read_at(Root::open(place)?, options)
    }

    /// Reads the same of a directory that is open.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_at(root: Root, options: &TreeOptions) -> Result<Self, SendError> {
        let (mut tree, reading) = Self::begin(root, options)?;
        let mut waiting = vec![tree.root_ino];
        while let Some(dir) = waiting.pop() {
            let path = tree.dir_path(dir);
            tree.read_dir(dir, &path, &reading, &mut waiting)?;
        }
        Ok(tree)
    }

    /// Reads some paths below a directory, and the directory itself. The directories above each
    /// path are among the paths.
    ///
    /// # Errors
    /// Those of [`Self::read`]; [`SendError::Refused`] also for a path without its directory.
    pub fn read_paths(
        place: &Path,
        options: &TreeOptions,
        paths: &BTreeSet<Vec<u8>>,
    ) -> Result<Self, SendError> {
        let (mut tree, reading) = Self::begin(Root::open(place)?, options)?;
        tree.check_staging()?;
        // A path is behind that of its directory.
        let mut dirs = HashMap::from([(&b""[..], tree.root_ino)]);
        for path in paths {
            let fail = |tree: &Self, errno| tree.root.error("stat", path, errno);
            let (above, last) = split(path);
            let Some(dir) = dirs.get(above) else {
                let shown = tree.root.shown(path);
                let text = format!("{}: its directory is not listed", shown.display());
                return Err(SendError::refused(text));
            };
            let stat = tree.root.stat(path).map_err(|errno| fail(&tree, errno))?;
            tree.check_device(path, &stat, &reading)?;
            let name = last.to_vec();
            let name = Name { dir: *dir, name };
            if let Some(dir) = tree.insert(name, &stat, &reading) {
                dirs.insert(path, dir);
            }
        }
        debug_assert!(tree.names.len() <= paths.len(), "one name a path");
        Ok(tree)
    }

    fn begin(root: Root, options: &TreeOptions) -> Result<(Self, Reading<'_>), SendError> {
        let stat = root
            .stat(b"")
            .map_err(|errno| root.error("stat", b"", errno))?;
        let mut tree = Self {
            root,
            root_ino: options.numbers.of(stat.ino, stat.ino),
            names: BTreeMap::new(),
            nodes: HashMap::new(),
            dirs: HashMap::new(),
            skipped: Vec::new(),
        };
        tree.nodes.insert(tree.root_ino, stat.node);
        let (root, device) = (stat.ino, stat.file_system);
        let reading = Reading {
            root,
            device,
            options,
        };
        Ok((tree, reading))
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
        reading: &Reading<'_>,
        waiting: &mut Vec<u64>,
    ) -> Result<(), SendError> {
        let entries = self.root.entries(path);
        for (name, stat) in entries.map_err(|errno| self.root.error("read", path, errno))? {
            let below = join(path, &name);
            if below == STAGING.as_bytes() {
                return Err(self.has_staging());
            }
            self.check_device(&below, &stat, reading)?;
            let skips = reading.options.skip_unreadable;
            if skips && !self.root.is_readable(&below, &stat.node) {
                self.skipped.push(self.root.shown(&below));
                continue;
            }
            let name = Name { dir: ino, name };
            waiting.extend(self.insert(name, &stat, reading));
        }
        Ok(())
    }

    /// Adds a name. Returns the number of its inode if that is a directory.
    fn insert(&mut self, name: Name, stat: &FileStat, reading: &Reading<'_>) -> Option<u64> {
        let number = reading.options.numbers.of(reading.root, stat.ino);
        let node = stat.node.clone();
        let is_dir = node.is_dir();
        debug_assert!(!name.name.contains(&b'/'), "a name is of one directory");
        debug_assert!(
            self.nodes.contains_key(&name.dir),
            "a directory comes before its names"
        );
        if is_dir {
            self.dirs.insert(number, name.clone());
        }
        self.names.insert(name, number);
        self.nodes.insert(number, node);
        is_dir.then_some(number)
    }

    fn check_device(
        &self,
        path: &[u8],
        stat: &FileStat,
        reading: &Reading<'_>,
    ) -> Result<(), SendError> {
        if stat.file_system == reading.device {
            return Ok(());
        }
        let shown = self.root.shown(path);
        Err(SendError::refused(format!(
            "{}: another file system is mounted there",
            shown.display()
        )))
    }

    fn check_staging(&self) -> Result<(), SendError> {
        match self.root.stat(STAGING.as_bytes()) {
            Ok(_) => Err(self.has_staging()),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.root.error("stat", STAGING.as_bytes(), errno)),
        }
    }

    fn has_staging(&self) -> SendError {
        SendError::refused(format!(
            "{}: holds a part of a stream that was received; finish that first",
            self.root.shown(b"").display()
        ))
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

#[cfg(test)]
impl Tree {
    /// The same directory, as if these paths alone had been read.
    pub(crate) fn with_paths(&self, paths: &BTreeSet<Vec<u8>>) -> Self {
        let names = self
            .names
            .iter()
            .filter(|(name, _)| paths.contains(&self.path(name)));
        let names: BTreeMap<Name, u64> = names.map(|(name, ino)| (name.clone(), *ino)).collect();
        assert_eq!(names.len(), paths.len(), "each path is a name");
        let is_named = |ino: &u64| names.values().any(|other| other == ino);
        let nodes = self
            .nodes
            .iter()
            .filter(|(ino, _)| **ino == self.root_ino || is_named(ino));
        let nodes = nodes.map(|(ino, node)| (*ino, node.clone())).collect();
        let dirs = self.dirs.iter().filter(|(ino, _)| is_named(ino));
        let dirs = dirs.map(|(ino, name)| (*ino, name.clone())).collect();
        Self {
            root: Root::open(&self.root.shown(b"")).expect("it is there"),
            root_ino: self.root_ino,
            names,
            nodes,
            dirs,
            skipped: Vec::new(),
        }
    }
}

/// The directory of a path, and the last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&path[..0], path),
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    debug_assert!(!name.contains(&b'/'), "a name is of one directory");
    if dir.is_empty() {
        return name.to_vec();
    }
    [dir, b"/", name].concat()
}
