//! A walk through a file system, and the differences of two walks: as `stitchfs diff` finds them
//! where it has to.

use super::{Ino, PathChange, at};
use crate::transaction::is_changed;
use crate::{Attr, Caller, FileKind, FileSystem, Taken, VIEW_INO_BITS};
use std::collections::{BTreeMap, BTreeSet};
use stitch_format::fs_inode::InodeHead;

/// The extended attribute that files may have.
pub(super) const XATTR: &[u8] = b"user.x";

/// An inode, and its contents.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) bytes: Vec<u8>,
    /// Value of its extended attribute.
    xattr: Option<Vec<u8>>,
}

/// Names in directories, and what they lead to.
#[derive(Clone)]
pub(super) struct Listing {
    pub(super) root: Ino,
    /// Path of the root in what was walked first.
    top: String,
    pub(super) names: BTreeMap<(Ino, String), Ino>,
    pub(super) nodes: BTreeMap<Ino, Node>,
}

fn node(fs: &FileSystem, attr: Attr) -> Node {
    let mut bytes = Vec::new();
    if attr.kind == FileKind::Regular {
        let read = fs.read(attr.ino, 0, 1 << 20, &mut bytes);
        read.expect("it is known");
    }
    let xattr = fs.get_xattr(&Caller::ROOT, attr.ino, XATTR).ok();
    let xattr = xattr.map(|value| value.to_vec());
    Node { attr, bytes, xattr }
}

fn names_in(fs: &FileSystem, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    let listed = fs.read_dir(dir, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        Taken::More
    });
    listed.expect("it is known");
    names.retain(|name| name != "." && name != "..");
    names
}

impl Listing {
    /// Reads a directory of one file system. Clones that lie in it are left out.
    pub(super) fn read(fs: &FileSystem, root: Ino) -> Self {
        Self::read_one(fs, root, false)
    }

    /// Reads a directory of one file system, with the names of clones that lie in it.
    pub(super) fn read_with_grafts(fs: &FileSystem, root: Ino) -> Self {
        Self::read_one(fs, root, true)
    }

    fn read_one(fs: &FileSystem, root: Ino, with_grafts: bool) -> Self {
        let mut listing = Self {
            root,
            top: String::new(),
            names: BTreeMap::new(),
            nodes: BTreeMap::new(),
        };
        let top = fs.get_attr(root).expect("it is there");
        listing.nodes.insert(root, node(fs, top));
        let mut waiting = vec![root];
        while let Some(dir) = waiting.pop() {
            for name in names_in(fs, dir) {
                let attr = fs.lookup(at(dir, &name)).expect("it is listed");
                if fs.clone_at(attr.ino).is_some() {
                    if with_grafts {
                        listing.names.insert((dir, name), attr.ino);
                    }
                    continue;
                }
                if attr.kind == FileKind::Directory {
                    waiting.push(attr.ino);
                }
                listing.names.insert((dir, name), attr.ino);
                listing.nodes.insert(attr.ino, node(fs, attr));
            }
        }
        listing
    }

    /// Reads all from the root of mainline, through clones. An inode of a clone has the clone's
    /// number above [`VIEW_INO_BITS`].
    pub(super) fn read_views(mainline: &FileSystem) -> Self {
        Self::read_through(mainline, (0, Ino::ROOT))
    }

    /// Reads all from a directory of a view on, in the same way.
    pub(super) fn read_through(fs: &FileSystem, (view, root): (u64, Ino)) -> Self {
        let mut listing = Self {
            root: Ino(view << VIEW_INO_BITS | root.0),
            top: String::new(),
            names: BTreeMap::new(),
            nodes: BTreeMap::new(),
        };
        listing.read_view(fs, (view, root));
        listing
    }

    fn read_view(&mut self, fs: &FileSystem, (view, root): (u64, Ino)) {
        let number = |ino: Ino| Ino(view << VIEW_INO_BITS | ino.0);
        let node = |mut attr: Attr| {
            let Node { bytes, xattr, .. } = node(fs, attr);
            attr.ino = number(attr.ino);
            Node { attr, bytes, xattr }
        };
        let top = fs.get_attr(root).expect("it is there");
        self.nodes.insert(number(root), node(top));
        let mut waiting = vec![root];
        while let Some(dir) = waiting.pop() {
            for name in names_in(fs, dir) {
                let attr = fs.lookup(at(dir, &name)).expect("it is listed");
                if let Some(info) = fs.clone_at(attr.ino) {
                    let inner = fs.open_clone(info.number).expect("it opens");
                    let leads_to = Ino(info.number << VIEW_INO_BITS | info.root.0);
                    self.names.insert((number(dir), name), leads_to);
                    self.read_view(inner.fs(), (info.number, info.root));
                    continue;
                }
                if attr.kind == FileKind::Directory {
                    waiting.push(attr.ino);
                }
                self.names.insert((number(dir), name), number(attr.ino));
                self.nodes.insert(number(attr.ino), node(attr));
            }
        }
    }

    /// Looks up the directories from the root of a file system to the one that was walked from.
    pub(super) fn know_top(&self, fs: &FileSystem) {
        let mut dir = Ino::ROOT;
        let names = self.top.split('/').filter(|name| !name.is_empty());
        for name in names {
            dir = fs.lookup(at(dir, name)).expect("it is there").ino;
        }
        assert_eq!(dir, self.root, "it is found");
    }

    /// Reports whether names, attributes and contents are the same, but for times of access.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same = |node: &Node| (head(&node.attr), node.bytes.clone(), node.xattr.clone());
        let mut nodes = self.nodes.iter().zip(&other.nodes);
        self.names == other.names && nodes.all(|(a, b)| a.0 == b.0 && same(a.1) == same(b.1))
    }

    /// The views that are reached, by their numbers.
    pub(super) fn views(&self) -> BTreeSet<u64> {
        self.nodes
            .keys()
            .map(|ino| ino.0 >> VIEW_INO_BITS)
            .collect()
    }

    /// Leaves out what is in other views than these.
    pub(super) fn in_views(mut self, views: &BTreeSet<u64>) -> Self {
        let in_views = |(dir, _): &(Ino, String)| views.contains(&(dir.0 >> VIEW_INO_BITS));
        self.names.retain(|name, _| in_views(name));
        self
    }

    /// Gives other numbers to inodes.
    pub(super) fn renumbered(&self, number: impl Fn(Ino) -> Ino) -> Self {
        let names = self.names.iter();
        let names = names.map(|((dir, name), ino)| ((number(*dir), name.clone()), number(*ino)));
        let node = |(ino, node): (&Ino, &Node)| {
            let mut node = node.clone();
            node.attr.ino = number(*ino);
            (number(*ino), node)
        };
        Self {
            root: number(self.root),
            top: self.top.clone(),
            names: names.collect(),
            nodes: self.nodes.iter().map(node).collect(),
        }
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
            top: self.path_of_dir(root),
            names,
            nodes: nodes.collect(),
        }
    }

    pub(super) fn path(&self, (dir, name): &(Ino, String)) -> Vec<u8> {
        let above = self.path_of_dir(*dir);
        let path = match above.is_empty() {
            true => name.clone(),
            false => format!("{above}/{name}"),
        };
        path.into_bytes()
    }

    fn path_of_dir(&self, dir: Ino) -> String {
        let (mut path, mut at) = (Vec::new(), dir);
        while at != self.root {
            let mut names = self.names.iter();
            let (above, _) = names.find(|(_, ino)| **ino == at).expect("it has a name");
            path.insert(0, above.1.clone());
            at = above.0;
        }
        path.join("/")
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
        if is_other || before.bytes != after.bytes || before.xattr != after.xattr {
            changes.push(PathChange::Modified(new.path(name)));
        }
    }
    let (before, after) = (&old.nodes[&old.root], &new.nodes[&new.root]);
    let is_other = is_changed(&head(&before.attr), &head(&after.attr), false);
    if is_other || before.xattr != after.xattr {
        changes.push(PathChange::Modified(Vec::new()));
    }
    changes.sort_by(|a, b| (a.path(), a).cmp(&(b.path(), b)));
    changes
}
