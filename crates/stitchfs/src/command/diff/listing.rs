//! A directory as `diff` sees it: names, and what stands for them.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_fs::VIEW_INO_BITS;

/// Bits of `st_ino` that say which inode it is, in any snapshot.
const INO_MASK: u64 = (1 << VIEW_INO_BITS) - 1;

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
    /// Names of clones, which are left out with all in them.
    pub(super) clones: BTreeSet<Name>,
}

impl Listing {
    /// Reads a directory with all below it, but not what is mounted in it, and not the clones that
    /// lie in it: their inodes have numbers of their own. In a snapshot these numbers do not tell
    /// which directory is a clone, so the names of clones are given.
    pub(super) fn read(place: &Path, clones: &BTreeSet<Name>) -> Result<Self> {
        let shown = || place.display().to_string();
        let root = place.symlink_metadata().with_context(shown)?;
        let mut tree = Self {
            root: root.ino() & INO_MASK,
            place: place.to_owned(),
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
                let is_other_view = metadata.ino() & !INO_MASK != root.ino() & !INO_MASK;
                if is_other_view || clones.contains(&name) {
                    tree.clones.insert(name);
                    continue;
                }
                let ino = tree.insert(name, Node::of(&metadata), metadata.ino());
                if metadata.is_dir() {
                    waiting.push((ino, path));
                }
            }
        }
        Ok(tree)
    }

    /// Adds a name, and returns the number of what it stands for.
    pub(super) fn insert(&mut self, name: Name, node: Node, number: u64) -> u64 {
        let ino = number & INO_MASK;
        if node.is_dir {
            self.dirs.insert(ino, name.clone());
        }
        self.names.insert(name, ino);
        self.nodes.insert(ino, node);
        ino
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
