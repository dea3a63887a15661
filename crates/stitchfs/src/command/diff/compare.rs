//! The differences of two trees.
//!
//! A name is a directory's number and the name in it. So what is below a directory that was renamed
//! has the same names as before, and only the directory itself is shown.

use super::super::txn::path_of;
use super::attributes;
use super::listing::{Listing, Name, Node};
use anyhow::Result;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use stitch_fuse::transactions::ListedChange;

/// The kernel's clock ticks that slowly at most. Two writes within a tick leave the same times.
const TICK_NS: i64 = 20_000_000;
const BUFFER_BYTES: usize = 64 << 10;

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::command) enum Change {
    Removed(PathBuf),
    Renamed { from: PathBuf, to: PathBuf },
    Added(PathBuf),
    Modified(PathBuf),
}

impl Change {
    /// Returns a change that a daemon tells of; `None` if it makes no sense.
    pub(in crate::command) fn of(told: &ListedChange) -> Option<Self> {
        let path = path_of(&told.path);
        Some(match &*told.sign {
            "M" => Self::Modified(path),
            "+" => Self::Added(path),
            "-" => Self::Removed(path),
            "R" => Self::Renamed {
                from: path_of(&told.from),
                to: path,
            },
            _ => return None,
        })
    }

    /// The order of a list: by paths.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        (self.path(), self).cmp(&(other.path(), other))
    }

    /// Where it is in a list.
    fn path(&self) -> &Path {
        match self {
            Self::Removed(path) | Self::Added(path) | Self::Modified(path) => path,
            Self::Renamed { to, .. } => to,
        }
    }
}

/// Returns what is different in `new`, in the order of paths. `created` is when `old` was taken.
pub(super) fn compare(old: &Listing, new: &Listing, created: i64) -> Result<Vec<Change>> {
    let mut gone: HashMap<u64, Vec<&Name>> = HashMap::new();
    for (name, ino) in &old.names {
        if new.names.get(name) != Some(ino) {
            gone.entry(*ino).or_default().push(name);
        }
    }
    let mut changes = Vec::new();
    for (name, ino) in &new.names {
        if old.names.get(name) == Some(ino) {
            continue;
        }
        let to = new.path(name);
        match gone.get_mut(ino).filter(|names| !names.is_empty()) {
            Some(names) => {
                let from = old.path(names.remove(0));
                changes.push(Change::Renamed { from, to });
            }
            None => changes.push(Change::Added(to)),
        }
    }
    let removed = gone.values().flatten();
    changes.extend(removed.map(|name| Change::Removed(old.path(name))));
    changes.extend(modified(old, new, created)?);
    changes.sort_by(Change::order);
    Ok(changes)
}

/// Returns the first name of each inode.
fn first_names(tree: &Listing) -> HashMap<u64, &Name> {
    let mut names = HashMap::new();
    for (name, ino) in &tree.names {
        names.entry(*ino).or_insert(name);
    }
    names
}

/// Returns the inodes of both trees that are other ones now, each once.
fn modified(old: &Listing, new: &Listing, created: i64) -> Result<Vec<Change>> {
    let (old_names, first_names) = (first_names(old), first_names(new));
    let mut changes = Vec::new();
    for (ino, name) in first_names {
        let (Some(before), Some(after)) = (old.nodes.get(&ino), new.nodes.get(&ino)) else {
            continue;
        };
        let path = new.path(name);
        let pair = Pair {
            nodes: (before, after),
            has_moved: old.names.get(name) != Some(&ino),
            old: old_names
                .get(&ino)
                .map(|name| old.place.join(old.path(name))),
            new: new.place.join(&path),
        };
        if pair.is_modified(created)? {
            changes.push(Change::Modified(path));
        }
    }
    if let (Some(before), Some(after)) = (old.nodes.get(&old.root), new.nodes.get(&new.root))
        && old.root == new.root
    {
        let pair = Pair {
            nodes: (before, after),
            has_moved: false,
            old: Some(old.place.clone()),
            new: new.place.clone(),
        };
        if pair.is_modified(created)? {
            changes.push(Change::Modified(PathBuf::from(".")));
        }
    }
    Ok(changes)
}

/// An inode of both trees.
struct Pair<'t> {
    nodes: (&'t Node, &'t Node),
    /// Its first name is another one.
    has_moved: bool,
    /// Where it is read; `None` without a name on that side.
    old: Option<PathBuf>,
    new: PathBuf,
}

impl Pair<'_> {
    /// Reports whether the inode is another one. Contents are compared where times tell nothing of
    /// them, and extended attributes where the time of change may have another reason.
    fn is_modified(&self, created: i64) -> Result<bool> {
        let (before, after) = self.nodes;
        if is_changed(before, after, self.has_moved) {
            return Ok(true);
        }
        let Some(old) = &self.old else {
            return Ok(false);
        };
        let is_recent = before.ctime >= created.saturating_sub(TICK_NS);
        if is_recent && after.is_file && !is_same_content(old, &self.new)? {
            return Ok(true);
        }
        let may_differ = is_recent || before.ctime != after.ctime;
        Ok(may_differ && !attributes::are_same(old, &self.new)?)
    }
}

/// Reports whether an inode is another one by its attributes. A name that came or went changes the
/// time of change alone; entries of a directory change both times.
fn is_changed(before: &Node, after: &Node, has_moved: bool) -> bool {
    let is_other =
        (before.mode, before.owner, before.rdev) != (after.mode, after.owner, after.rdev);
    let has_times = before.mtime != after.mtime;
    if before.is_dir {
        let only_attributes = !has_moved && before.ctime != after.ctime && !has_times;
        return is_other || only_attributes;
    }
    let has_moved = has_moved || before.nlink != after.nlink;
    is_other
        || has_times
        || before.size != after.size
        || (!has_moved && before.ctime != after.ctime)
}

fn is_same_content(old: &Path, new: &Path) -> Result<bool> {
    let (mut old, mut new) = (File::open(old)?, File::open(new)?);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    loop {
        a.clear();
        b.clear();
        let limit = BUFFER_BYTES as u64;
        (&mut old).take(limit).read_to_end(&mut a)?;
        (&mut new).take(limit).read_to_end(&mut b)?;
        if a != b {
            return Ok(false);
        }
        if a.is_empty() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ROOT: u64 = 1;

    fn node(is_dir: bool, time: i64) -> Node {
        Node {
            mode: 0o644,
            owner: (0, 0),
            size: 1,
            rdev: 0,
            mtime: time,
            ctime: time,
            born: None,
            nlink: 1,
            is_dir,
            is_file: !is_dir,
        }
    }

    fn named(dir: u64, name: &str) -> Name {
        let name = name.into();
        Name { dir, name }
    }

    fn tree() -> Listing {
        let mut tree = Listing {
            root: ROOT,
            ..Listing::default()
        };
        tree.nodes.insert(ROOT, node(true, 0));
        tree
    }

    /// A directory `d` (2) with the file `f` (3), and the file `g` (4).
    fn before() -> Listing {
        let mut tree = tree();
        tree.insert(named(ROOT, "d"), node(true, 0), 2);
        tree.insert(named(2, "f"), node(false, 0), 3);
        tree.insert(named(ROOT, "g"), node(false, 0), 4);
        tree
    }

    fn changes(new: &Listing) -> Vec<Change> {
        compare(&before(), new, i64::MAX).unwrap()
    }

    fn renamed(from: &str, to: &str) -> Change {
        let (from, to) = (from.into(), to.into());
        Change::Renamed { from, to }
    }

    #[test]
    fn equal_trees_have_no_differences() {
        assert_eq!(changes(&before()), []);
    }

    /// A clone and its source have both made something of the number 4.
    #[test]
    fn inodes_that_were_made_apart_are_others() {
        let born = |second| Some(std::time::UNIX_EPOCH + std::time::Duration::from_secs(second));
        let (mut old, mut new) = (before(), before());
        new.set_apart(&old);
        assert_eq!(compare(&old, &new, i64::MAX).unwrap(), []);
        for (tree, second) in [(&mut old, 1), (&mut new, 2)] {
            tree.nodes.get_mut(&4).unwrap().born = born(second);
        }
        new.set_apart(&old);
        let (removed, added) = (Change::Removed("g".into()), Change::Added("g".into()));
        assert_eq!(compare(&old, &new, i64::MAX).unwrap(), [removed, added]);
    }

    /// A clone, and its copy in another clone, have both made something of the number 4.
    #[test]
    fn inodes_that_were_made_apart_in_inner_clones_are_others() {
        let (clone, mut sides) = (1 << 63 | 9 << 44, [before(), before()]);
        for (side, second) in sides.iter_mut().zip([1, 2]) {
            let born = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
            let mut made = node(false, 0);
            made.born = Some(born);
            side.insert(named(2, "clone"), node(true, 0), clone | 2);
            side.insert(named(clone | 2, "x"), made, clone | 4);
        }
        let [old, mut new] = sides;
        new.set_apart(&old);
        let path = PathBuf::from("d/clone/x");
        let changes = compare(&old, &new, i64::MAX).unwrap();
        assert_eq!(
            changes,
            [Change::Removed(path.clone()), Change::Added(path)]
        );
    }

    #[test]
    fn what_is_in_a_clone_is_compared_if_both_sides_have_it() {
        let clone = 9 << 44;
        let (mut old, mut new) = (before(), before());
        for tree in [&mut old, &mut new] {
            tree.insert(named(2, "clone"), node(true, 0), clone | 2);
        }
        new.insert(named(clone | 2, "x"), node(false, 0), clone | 3);
        let added = Change::Added("d/clone/x".into());
        assert_eq!(compare(&old, &new, i64::MAX).unwrap(), [added]);
        new.leave_out_views(&BTreeSet::from([0]));
        assert_eq!(compare(&old, &new, i64::MAX).unwrap(), []);
    }

    #[test]
    fn names_come_go_and_move() {
        let mut new = tree();
        new.insert(named(ROOT, "e"), node(true, 7), 2);
        new.insert(named(2, "f"), node(false, 0), 3);
        new.insert(named(2, "g"), node(false, 0), 5);
        let added = Change::Added("e/g".into());
        let removed = Change::Removed("g".into());
        assert_eq!(changes(&new), [renamed("d", "e"), added, removed]);
    }

    #[test]
    fn a_file_that_was_replaced_is_another_one() {
        let mut new = before();
        new.insert(named(ROOT, "g"), node(false, 0), 9);
        let (removed, added) = (Change::Removed("g".into()), Change::Added("g".into()));
        assert_eq!(changes(&new), [removed, added]);
    }

    #[test]
    fn contents_and_attributes_are_modified_and_moves_are_not() {
        let mut new = before();
        new.insert(named(2, "f"), node(false, 7), 3);
        assert_eq!(changes(&new), [Change::Modified("d/f".into())]);

        let mut new = tree();
        new.insert(named(ROOT, "d"), node(true, 7), 2);
        let mut moved = node(false, 0);
        moved.ctime = 7;
        new.insert(named(2, "f"), moved.clone(), 3);
        assert_eq!(changes(&new).last(), Some(&Change::Removed("g".into())));
        let modified = Change::Modified("d/f".into());
        assert!(changes(&new).contains(&modified), "an attribute");
        let mut new = tree();
        new.insert(named(ROOT, "d"), node(true, 7), 2);
        new.insert(named(ROOT, "f"), moved, 3);
        new.insert(named(ROOT, "g"), node(false, 0), 4);
        assert_eq!(changes(&new), [renamed("d/f", "f")]);
    }

    /// The time of change has two reasons then, a name and an attribute.
    #[test]
    fn attributes_of_what_was_moved_linked_or_has_new_entries_are_modified() {
        let places = tempfile::tempdir().unwrap();
        let [mut old, mut new] = [("old", before()), ("new", tree())].map(|(side, mut tree)| {
            tree.place = places.path().join(side);
            std::fs::create_dir_all(tree.place.join("d")).unwrap();
            std::fs::write(tree.place.join("g"), b"").unwrap();
            tree
        });
        for path in ["old/d/f", "new/f"] {
            std::fs::write(places.path().join(path), b"").unwrap();
        }
        let mut at_seven = node(false, 0);
        at_seven.ctime = 7;
        new.insert(named(ROOT, "d"), node(true, 7), 2);
        new.insert(named(ROOT, "f"), at_seven.clone(), 3);
        at_seven.nlink = 2;
        new.insert(named(ROOT, "g"), at_seven.clone(), 4);
        new.insert(named(ROOT, "h"), at_seven, 4);
        let moves = [renamed("d/f", "f"), Change::Added("h".into())];
        assert_eq!(compare(&old, &new, i64::MAX).unwrap(), moves);

        for name in ["", "d", "f", "g"] {
            let path = new.place.join(name);
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(path, "user.note", b"1", flags).unwrap();
        }
        for tree in [&mut old, &mut new] {
            tree.nodes.get_mut(&ROOT).unwrap().ctime += 1;
        }
        new.nodes.get_mut(&ROOT).unwrap().mtime = 7;
        new.nodes.get_mut(&ROOT).unwrap().ctime = 7;
        let found = compare(&old, &new, i64::MAX).unwrap();
        for path in [".", "d", "f", "g"] {
            assert!(found.contains(&Change::Modified(path.into())), "{path}");
        }
        assert_eq!(found.len(), 2 + 4);
    }

    #[test]
    fn a_second_name_is_added_and_the_file_is_the_same() {
        let mut new = before();
        let mut linked = node(false, 0);
        (linked.ctime, linked.nlink) = (7, 2);
        new.insert(named(ROOT, "g"), linked.clone(), 4);
        new.insert(named(ROOT, "h"), linked, 4);
        assert_eq!(changes(&new), [Change::Added("h".into())]);
    }

    #[test]
    fn what_a_daemon_tells_is_a_change() {
        let told = |sign: &str, path: &[u8]| {
            Change::of(&ListedChange {
                sign: sign.to_owned(),
                path: path.to_vec(),
                from: b"old".to_vec(),
            })
        };
        assert_eq!(told("R", b"new"), Some(renamed("old", "new")));
        assert_eq!(told("+", b"new"), Some(Change::Added("new".into())));
        assert_eq!(told("M", b""), Some(Change::Modified(".".into())));
        assert_eq!(told("?", b"new"), None);
    }

    #[test]
    fn a_clone_of_one_side_is_a_name_and_nothing_else() {
        let (mut old, mut new) = (before(), before());
        new.insert(named(2, "clone"), node(true, 0), 9 << 44 | 2);
        let added = Change::Added(PathBuf::from("d/clone"));
        let told = compare(&old, &new, i64::MAX).unwrap();
        assert_eq!(told, std::slice::from_ref(&added));
        // Another clone has the name.
        old.insert(named(2, "clone"), node(true, 0), 8 << 44 | 2);
        let removed = Change::Removed(PathBuf::from("d/clone"));
        assert_eq!(compare(&old, &new, i64::MAX).unwrap(), [removed, added]);
    }
}
