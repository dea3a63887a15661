//! A walk through a file system, and the differences of two walks: as `stitchfs diff` finds them
//! where it has to.

use super::{Ino, PathChange, at};
use crate::transaction::is_changed;
use crate::{Attr, FileKind, FileSystem, Taken};
use std::collections::{BTreeMap, BTreeSet};
use stitch_format::fs_inode::InodeHead;

/// An inode, and its contents.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) bytes: Vec<u8>,
}

/// Names in directories, and what they lead to.
#[derive(Clone)]
pub(super) struct Listing {
    pub(super) root: Ino,
    pub(super) names: BTreeMap<(Ino, String), Ino>,
    pub(super) nodes: BTreeMap<Ino, Node>,
}

fn node(fs: &FileSystem, attr: Attr) -> Node {
    let mut bytes = Vec::new();
    if attr.kind == FileKind::Regular {
        let read = fs.read(attr.ino, 0, 1 << 20, &mut bytes);
        read.expect("it is known");
    }
    Node { attr, bytes }
}

impl Listing {
    pub(super) fn read(fs: &FileSystem) -> Self {
        let mut listing = Self {
            root: Ino::ROOT,
            names: BTreeMap::new(),
            nodes: BTreeMap::new(),
        };
        let root = fs.get_attr(Ino::ROOT).expect("it is there");
        listing.nodes.insert(Ino::ROOT, node(fs, root));
        let mut waiting = vec![Ino::ROOT];
        while let Some(dir) = waiting.pop() {
            let mut names = Vec::new();
            let listed = fs.read_dir(dir, 0, &mut |entry| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                Taken::More
            });
            listed.expect("it is known");
            names.retain(|name| name != "." && name != "..");
            for name in names {
                let attr = fs.lookup(at(dir, &name)).expect("it is listed");
                if attr.kind == FileKind::Directory {
                    waiting.push(attr.ino);
                }
                listing.names.insert((dir, name), attr.ino);
                listing.nodes.insert(attr.ino, node(fs, attr));
            }
        }
        listing
    }

    /// The directories, in order.
    pub(super) fn dirs(&self) -> Vec<Ino> {
        let is_dir = |ino: &&Ino| self.nodes[ino].attr.kind == FileKind::Directory;
        self.nodes.keys().filter(is_dir).copied().collect()
    }

    /// What a walk from a directory on finds.
    pub(super) fn below(&self, root: Ino) -> Self {
        let (mut found, mut waiting) = (BTreeSet::from([root]), vec![root]);
        let mut names = BTreeMap::new();
        while let Some(dir) = waiting.pop() {
            let inside = self.names.iter().filter(|((parent, _), _)| *parent == dir);
            for (name, ino) in inside {
                names.insert(name.clone(), *ino);
                if found.insert(*ino) {
                    waiting.push(*ino);
                }
            }
        }
        let nodes = found.iter().map(|ino| (*ino, self.nodes[ino].clone()));
        Self {
            root,
            names,
            nodes: nodes.collect(),
        }
    }

    pub(super) fn path(&self, (dir, name): &(Ino, String)) -> Vec<u8> {
        let mut path = name.clone();
        let mut at = *dir;
        while at != self.root {
            let mut names = self.names.iter();
            let (above, _) = names.find(|(_, ino)| **ino == at).expect("it has a name");
            path = format!("{}/{path}", above.1);
            at = above.0;
        }
        path.into_bytes()
    }
}

/// The fields of a head that are compared. A walk sees no flags.
pub(super) fn head(attr: &Attr) -> InodeHead {
    InodeHead {
        ino: attr.ino,
        kind: attr.kind,
        perm: attr.perm,
        flags: 0,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        size: attr.size,
        atime: 0,
        mtime: attr.mtime.0,
        ctime: attr.ctime.0,
        btime: 0,
        rdev: attr.rdev,
        iflags: 0,
        chunks: 0,
    }
}

/// The differences of two walks from one directory on.
pub(super) fn differences(old: &Listing, new: &Listing) -> Vec<PathChange> {
    assert_eq!(old.root, new.root, "of one directory");
    let mut changes = Vec::new();
    let mut gone: BTreeMap<Ino, Vec<&(Ino, String)>> = BTreeMap::new();
    for (name, ino) in &old.names {
        if new.names.get(name) != Some(ino) {
            gone.entry(*ino).or_default().push(name);
        }
    }
    let mut first_names: BTreeMap<Ino, &(Ino, String)> = BTreeMap::new();
    for (name, ino) in &new.names {
        first_names.entry(*ino).or_insert(name);
        if old.names.get(name) == Some(ino) {
            continue;
        }
        let to = new.path(name);
        let names = gone.get_mut(ino).filter(|names| !names.is_empty());
        changes.push(match names {
            Some(names) => PathChange::Renamed {
                from: old.path(names.remove(0)),
                to,
            },
            None => PathChange::Added(to),
        });
    }
    let removed = gone.values().flatten();
    changes.extend(removed.map(|name| PathChange::Removed(old.path(name))));
    for (ino, name) in first_names {
        let (Some(before), after) = (old.nodes.get(&ino), &new.nodes[&ino]) else {
            continue;
        };
        let has_moved = old.names.get(name) != Some(&ino);
        let is_other = is_changed(&head(&before.attr), &head(&after.attr), has_moved);
        if is_other || before.bytes != after.bytes {
            changes.push(PathChange::Modified(new.path(name)));
        }
    }
    let (before, after) = (&old.nodes[&old.root].attr, &new.nodes[&new.root].attr);
    if is_changed(&head(before), &head(after), false) {
        changes.push(PathChange::Modified(Vec::new()));
    }
    changes.sort_by(|a, b| (a.path(), a).cmp(&(b.path(), b)));
    changes
}
