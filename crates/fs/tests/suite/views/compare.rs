//! Comparison of a view with its plain copy, and of what a branch says it has changed.

use super::ops::Walker;
use super::plain::Plain;
use crate::common::*;
use crate::twin::{self, Id};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_fs::{Attr, FileKind, FileSystem, FsError, PathChange};

type Found = Result<(), String>;

/// Compares all that a view shows with its plain copy.
pub(super) fn compare(fs: &FileSystem, root: Ino, plain: &Plain) -> Found {
    compare_below(fs, root, plain, plain.root, "")
}

fn compare_below(fs: &FileSystem, ino: Ino, plain: &Plain, id: Id, path: &str) -> Found {
    let node = plain.node(id);
    let attr = fs.get_attr(ino).map_err(|e| format!("{path:?}: {e}"))?;
    compare_attr(&attr, plain, id).map_err(|e| format!("{path:?} (node {id}, {ino}): {e}"))?;
    let is_same = match node.kind {
        FileKind::Regular => contents_of(fs, ino) == node.data,
        FileKind::Symlink => fs.read_link(ino).expect("a link") == node.data,
        _ => true,
    };
    if !is_same {
        return Err(format!("{path:?} (node {id}) has other contents"));
    }
    compare_xattrs(fs, ino, plain, id).map_err(|e| format!("{path:?}: {e}"))?;
    if node.kind != FileKind::Directory {
        return Ok(());
    }
    if matches!(fs.stat(at(ino, "a")), Err(FsError::Unsupported)) {
        // A clone lies there for the transaction: see `compare_shown`.
        return Ok(());
    }
    let found = names_in(fs, ino);
    if !found.iter().eq(node.entries.keys()) {
        let expected: Vec<&String> = node.entries.keys().collect();
        return Err(format!("{path:?} has {found:?}, not {expected:?}"));
    }
    for (name, child) in &node.entries {
        let below = format!("{path}/{name}");
        let found = fs.lookup(at(ino, name));
        let found = found.map_err(|e| format!("{below:?}: {e}"))?;
        let compared = compare_below(fs, found.ino, plain, *child, &below);
        fs.forget(found.ino, 1);
        compared?;
    }
    Ok(())
}

/// Compares attributes with those of a node.
pub(super) fn compare_attr(attr: &Attr, plain: &Plain, id: Id) -> Found {
    let node = plain.node(id);
    let found = (attr.kind, attr.perm, attr.uid, attr.gid, attr.nlink);
    let expected = (node.kind, node.perm, node.uid, node.gid, node.nlink);
    let is_same = found == expected && attr.size == node.data.len() as u64;
    if !is_same || (attr.mtime.0, attr.ctime.0) != (node.mtime, node.ctime) {
        let times = (node.mtime, node.ctime);
        let len = node.data.len();
        return Err(format!(
            "{attr:?}, not {expected:?}, {len} bytes, {times:?}"
        ));
    }
    Ok(())
}

fn compare_xattrs(fs: &FileSystem, ino: Ino, plain: &Plain, id: Id) -> Found {
    let list = fs.list_xattr(&SUPER, ino).expect("lists");
    let names = list.split(|&byte| byte == 0).filter(|n| !n.is_empty());
    let xattrs = &plain.node(id).xattrs;
    if names.count() != xattrs.len() {
        return Err(format!("attributes other than {:?}", xattrs.keys()));
    }
    for (name, value) in xattrs {
        match fs.get_xattr(&SUPER, ino, name.as_bytes()) {
            Ok(found) if found == value[..] => {}
            other => return Err(format!("{name} is {other:?}")),
        }
    }
    Ok(())
}

/// Compares what a branch says it has changed with what its plain copy has.
pub(super) fn compare_changes(walker: &Walker<'_>, base: &Plain) -> Found {
    let changes = walker.fs.changes_since_begin();
    let changes = changes.map_err(|e| e.to_string())?;
    let (old, new) = (base.at(twin::ROOT), walker.plain.at(twin::ROOT));
    let (old_names, new_names) = (named(&old), named(&new));
    let gone: BTreeMap<_, _> = only(&old_names, &new_names);
    let come: BTreeMap<_, _> = only(&new_names, &old_names);
    let (mut gone_found, mut come_found) = (BTreeSet::new(), BTreeSet::new());
    let mut modified = BTreeSet::new();
    for change in &changes {
        match change {
            PathChange::Added(path) => drop(come_found.insert(text(path))),
            PathChange::Removed(path) => drop(gone_found.insert(text(path))),
            PathChange::Renamed { from, to } => {
                let (from, to) = (text(from), text(to));
                if gone.get(&from).map(|(_, id)| id) != come.get(&to).map(|(_, id)| id) {
                    return Err(format!("{from} did not become {to}"));
                }
                gone_found.insert(from);
                come_found.insert(to);
            }
            PathChange::Modified(path) => {
                let id = id_at(&new_names, &text(path), new.root);
                modified.insert(id.ok_or_else(|| format!("{} is not there", text(path)))?);
            }
        }
    }
    if !gone.keys().eq(&gone_found) || !come.keys().eq(&come_found) {
        return Err(format!(
            "{changes:?}, but {:?} are gone and {:?} have come",
            gone.keys(),
            come.keys()
        ));
    }
    let changed = changed_nodes(&old, &new);
    match changed.difference(&modified).next() {
        Some(id) => Err(format!("node {id} is changed and not listed: {changes:?}")),
        None => Ok(()),
    }
}

/// Nodes on both sides with other bits, contents or attributes.
fn changed_nodes(old: &Plain, new: &Plain) -> BTreeSet<Id> {
    let was = old.paths();
    let both = new.paths().into_keys().filter(|id| was.contains_key(id));
    both.filter(|id| {
        let (one, two) = (old.node(*id), new.node(*id));
        one.perm != two.perm || one.data != two.data || one.xattrs != two.xattrs
    })
    .collect()
}

/// Names by their paths: the directory, and the node.
type Named = BTreeMap<String, (Id, Id)>;

fn named(plain: &Plain) -> Named {
    let paths = plain.paths();
    let of = |(dir, name, id): (Id, String, Id)| {
        let mut path = paths[&dir].clone();
        path.push(name);
        (path.join("/"), (dir, id))
    };
    plain.names().into_iter().map(of).collect()
}

/// Names of one side that the other does not have in the same directory for the same node.
fn only(one: &Named, other: &Named) -> Named {
    let key = |(path, (dir, id)): (&String, &(Id, Id))| {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        (*dir, name, *id)
    };
    let others: BTreeSet<_> = other.iter().map(key).collect();
    let of_one = one.iter().filter(|entry| !others.contains(&key(*entry)));
    of_one.map(|(path, ids)| (path.clone(), *ids)).collect()
}

fn id_at(names: &Named, path: &str, root: Id) -> Option<Id> {
    match path {
        "" => Some(root),
        _ => names.get(path).map(|(_, id)| *id),
    }
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
