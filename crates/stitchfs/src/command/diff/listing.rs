//! A directory as `diff` sees it: names, and what stands for them.

use super::super::numbers::{DirNumbers, INO_MASK};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Stands for inodes that one side alone has, although the other has their number. No number of
/// mainline or of a clone has this bit.
const OWN: u64 = 1 << 62;

/// A name in a directory that has this inode number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) dir: u64,
    pub(super) name: OsString,
}

/// What an inode is, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) size: u64,
    pub(super) rdev: u64,
    /// Nanoseconds since 1970.
    pub(super) mtime: i64,
    pub(super) ctime: i64,
    /// When it was made; `None` if that is not told.
    pub(super) born: Option<SystemTime>,
    /// Number of names.
    pub(super) nlink: u64,
    pub(super) is_dir: bool,
    pub(super) is_file: bool,
}

impl Node {
    fn of(metadata: &Metadata) -> Self {
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000) + nanos;
        Self {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            size: metadata.size(),
            rdev: metadata.rdev(),
            mtime: nanos(metadata.mtime(), metadata.mtime_nsec()),
            ctime: nanos(metadata.ctime(), metadata.ctime_nsec()),
            born: metadata.created().ok(),
            nlink: metadata.nlink(),
            is_dir: metadata.is_dir(),
            is_file: metadata.is_file(),
        }
    }
}

/// All names below a directory, by the directory that they are in.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) root: u64,
    /// Where it was read.
    pub(super) place: PathBuf,
    pub(super) names: BTreeMap<Name, u64>,
    pub(super) nodes: HashMap<u64, Node>,
    /// The name of each directory but the root.
    pub(super) dirs: HashMap<u64, Name>,
    /// Bits that stand for the views that were walked through, 0 for that of the root.
    pub(super) views: BTreeSet<u64>,
}

impl Listing {
    /// Reads a directory with all below it, but not what is mounted in it. Of clones that lie there
    /// it reads all, or those for which one of `inner` stands.
    pub(super) fn read(
        place: &Path,
        numbers: &DirNumbers,
        inner: Option<&BTreeSet<u64>>,
    ) -> Result<Self> {
        let shown = || place.display().to_string();
        let root = place.symlink_metadata().with_context(shown)?;
        let mut tree = Self {
            root: numbers.of(root.ino(), root.ino()),
            place: place.to_owned(),
            views: BTreeSet::from([0]),
            ..Self::default()
        };
        tree.nodes.insert(tree.root, Node::of(&root));
        let mut waiting = vec![(tree.root, place.to_owned())];
        while let Some((dir, path)) = waiting.pop() {
            let entries = match std::fs::read_dir(&path) {
                // It was removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.with_context(|| path.display().to_string())?,
            };
            for entry in entries {
                let entry = entry.with_context(|| path.display().to_string())?;
                let path = entry.path();
                let metadata = match path.symlink_metadata() {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    other => other.with_context(|| path.display().to_string())?,
                };
                if metadata.dev() != root.dev() {
                    continue;
                }
                let name = Name {
                    dir,
                    name: entry.file_name(),
                };
                let ino = numbers.of(root.ino(), metadata.ino());
                if tree.take(name, (ino, &metadata), inner) {
                    waiting.push((ino, path));
                }
            }
        }
        Ok(tree)
    }

    /// Adds a name that was read. Reports whether it is that of a directory to be read.
    fn take(
        &mut self,
        name: Name,
        (ino, metadata): (u64, &Metadata),
        inner: Option<&BTreeSet<u64>>,
    ) -> bool {
        let view = ino & !INO_MASK;
        let is_here = view == name.dir & !INO_MASK;
        let is_entered = is_here || inner.is_none_or(|views| views.contains(&view));
        self.insert(name, Node::of(metadata), ino);
        if is_entered {
            self.views.insert(view);
        }
        is_entered && metadata.is_dir()
    }

    /// Leaves out what is in clones other than these.
    pub(super) fn leave_out_views(&mut self, but: &BTreeSet<u64>) {
        self.names
            .retain(|name, _| but.contains(&(name.dir & !INO_MASK)));
    }

    /// Gives other numbers to inodes that were made in this directory's view alone: `other`, which
    /// is a directory of another view, has the number for what was made at another time.
    pub(super) fn set_apart(&mut self, other: &Self) {
        let is_own = |ino: &u64| match (self.nodes.get(ino), other.nodes.get(ino)) {
            (Some(node), Some(other)) => node.born != other.born,
            _ => false,
        };
        let own: BTreeSet<u64> = self
            .nodes
            .keys()
            .filter(|ino| is_own(ino))
            .copied()
            .collect();
        let number = |ino: u64| if own.contains(&ino) { ino | OWN } else { ino };
        let name = |name: &Name| Name {
            dir: number(name.dir),
            name: name.name.clone(),
        };
        self.names = self
            .names
            .iter()
            .map(|(of, ino)| (name(of), number(*ino)))
            .collect();
        self.dirs = self
            .dirs
            .iter()
            .map(|(ino, of)| (number(*ino), name(of)))
            .collect();
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes = nodes
            .into_iter()
            .map(|(ino, node)| (number(ino), node))
            .collect();
    }

    /// Adds a name of an inode.
    pub(super) fn insert(&mut self, name: Name, node: Node, ino: u64) {
        if node.is_dir {
            self.dirs.insert(ino, name.clone());
        }
        self.names.insert(name, ino);
        self.nodes.insert(ino, node);
    }

    /// Path of a name from the root on.
    pub(super) fn path(&self, name: &Name) -> PathBuf {
        let mut parts: Vec<&OsStr> = vec![&name.name];
        let mut dir = name.dir;
        while let Some(above) = self.dirs.get(&dir) {
            parts.push(&above.name);
            dir = above.dir;
        }
        parts.iter().rev().collect()
    }
}
