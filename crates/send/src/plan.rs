//! The steps that make one tree of another.
//!
//! 1. Names that are gone are taken away, deepest first: objects that live on under other names are
//!    moved aside. Paths are those of the old tree.
//! 2. Directories are created or moved to their places, highest first.
//! 3. Other objects get their names, contents and attributes.
//! 4. Directories get their attributes, deepest first: what is done in one changes its times.
//!
//! An object whose time of change is within a clock tick of the old tree may have changed without
//! another time: it is compared here. So the steps are the same for two trees of which all names
//! were read, and for two of which the names were left out that lead to the same.

use crate::SendError;
use crate::same::is_same;
use crate::tree::{Name, Node, Tree};
use rustix::fs::FileType;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The kernel's clock ticks that slowly at most. Two changes within a tick have the same time.
const TICK_NS: i64 = 20_000_000;

/// A step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Detach {
        path: Vec<u8>,
        ino: u64,
    },
    Remove {
        path: Vec<u8>,
    },
    RemoveDir {
        path: Vec<u8>,
    },
    Detached,
    MakeDir {
        path: Vec<u8>,
    },
    PlaceDir {
        path: Vec<u8>,
        ino: u64,
    },
    Object(Object),
    DirAttrs {
        path: Vec<u8>,
        ino: u64,
        before: Option<Vec<u8>>,
    },
}

/// A file, link or node that is new or other than before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) ino: u64,
    /// Names that it is to get.
    pub(crate) names: Vec<Vec<u8>>,
    /// A name that it has and keeps.
    pub(crate) kept: Option<Vec<u8>>,
    /// A name in the old tree.
    pub(crate) before: Option<Vec<u8>>,
}

/// The old tree, and since when the new one may be different.
pub(crate) type Base<'a> = Option<(&'a Tree, i64)>;

/// Returns all steps from the old tree, or from nothing, to the new one.
///
/// # Errors
/// Those of reading what may have changed within a clock tick.
pub(crate) fn plan(old: Base<'_>, new: &Tree) -> Result<Vec<Task>, SendError> {
    let mut planner = Planner {
        old,
        new,
        touched: HashSet::new(),
        tasks: Vec::new(),
    };
    planner.detach();
    planner.place_dirs();
    planner.objects()?;
    planner.dir_attrs()?;
    planner.check_order();
    Ok(planner.tasks)
}

struct Planner<'a> {
    old: Base<'a>,
    new: &'a Tree,
    /// Directories in which names change, or which move.
    touched: HashSet<u64>,
    tasks: Vec<Task>,
}

impl<'a> Planner<'a> {
    /// The inode in the old tree, if it is the same object. Links and nodes never become others, so
    /// one that changed may as well be a new one with a number that was free.
    fn before(&self, ino: u64) -> Option<&'a Node> {
        let before = self.old?.0.nodes.get(&ino)?;
        let after = self.new.nodes.get(&ino)?;
        let can_change = matches!(before.kind(), FileType::Directory | FileType::RegularFile);
        let is_same = can_change || before.changed == after.changed;
        (before.kind() == after.kind() && is_same).then_some(before)
    }

    /// Reports whether the name stands for the same object in both trees.
    fn is_kept(&self, name: &Name, ino: u64) -> bool {
        let in_both = |tree: &Tree| tree.names.get(name) == Some(&ino);
        self.before(ino).is_some()
            && self.old.is_some_and(|(old, _)| in_both(old))
            && in_both(self.new)
    }

    /// Checks the order of the steps, on which the other end relies.
    fn check_order(&self) {
        let is_end = |task: &Task| *task == Task::Detached;
        let ends = self.tasks.iter().filter(|task| is_end(task)).count();
        debug_assert_eq!(ends, usize::from(self.old.is_some()), "one end of removals");
        let root = self.new.root_ino;
        let last = self.tasks.last();
        let is_root = |task: &Task| matches!(task, Task::DirAttrs { ino, .. } if *ino == root);
        debug_assert!(
            last.is_some_and(is_root),
            "attributes of the root come last"
        );
    }

    fn detach(&mut self) {
        debug_assert!(self.tasks.is_empty(), "removals come first");
        let Some((old, _)) = self.old else {
            return;
        };
        let names = old.preorder();
        let kept = names.iter().filter(|(name, ino)| self.is_kept(name, *ino));
        // Those that need not be moved aside.
        let mut safe: HashSet<u64> = kept.map(|(_, ino)| *ino).collect();
        for (name, ino) in names.into_iter().rev() {
            if self.is_kept(name, ino) {
                continue;
            }
            self.touched.insert(name.dir);
            let path = old.path(name);
            let lives = self.before(ino).is_some();
            let task = if lives && safe.insert(ino) {
                Task::Detach { path, ino }
            } else if old.nodes[&ino].is_dir() {
                Task::RemoveDir { path }
            } else {
                Task::Remove { path }
            };
            self.tasks.push(task);
        }
        self.tasks.push(Task::Detached);
    }

    fn place_dirs(&mut self) {
        for (name, ino) in self.new.preorder() {
            if !self.new.nodes[&ino].is_dir() || self.is_kept(name, ino) {
                continue;
            }
            self.touched.extend([name.dir, ino]);
            let path = self.new.path(name);
            self.tasks.push(match self.before(ino) {
                Some(_) => Task::PlaceDir { path, ino },
                None => Task::MakeDir { path },
            });
        }
    }

    /// Reports whether an inode is another one than it was: by its time of change, or by all that
    /// is sent of it. The paths are those in the old and the new tree.
    fn differs(&self, ino: u64, from: Option<&[u8]>, to: &[u8]) -> Result<bool, SendError> {
        let (Some((old, since)), Some(before), Some(from)) = (self.old, self.before(ino), from)
        else {
            return Ok(true);
        };
        let after = &self.new.nodes[&ino];
        if before.changed != after.changed {
            return Ok(true);
        }
        let is_recent = before.changed >= since.saturating_sub(TICK_NS);
        Ok(is_recent && !is_same((old, before, from), (self.new, after, to))?)
    }

    fn objects(&mut self) -> Result<(), SendError> {
        let first_names = self
            .old
            .map(|(old, _)| first_names(old))
            .unwrap_or_default();
        let mut objects: BTreeMap<usize, Object> = BTreeMap::new();
        let mut places: HashMap<u64, usize> = HashMap::new();
        for (index, (name, ino)) in self.new.preorder().into_iter().enumerate() {
            if self.new.nodes[&ino].is_dir() {
                continue;
            }
            let place = *places.entry(ino).or_insert(index);
            let object = objects.entry(place).or_default();
            object.ino = ino;
            let path = self.new.path(name);
            if self.is_kept(name, ino) {
                object.kept.get_or_insert(path);
            } else {
                self.touched.insert(name.dir);
                object.names.push(path);
            }
        }
        for mut object in objects.into_values() {
            let names = object.names.len() + usize::from(object.kept.is_some());
            debug_assert!(names > 0, "an object of the new tree has a name there");
            if let (Some(_), Some((old, _))) = (self.before(object.ino), self.old) {
                object.before = first_names.get(&object.ino).map(|name| old.path(name));
            }
            let stays = object.kept.as_deref().filter(|_| object.names.is_empty());
            if let Some(path) = stays
                && !self.differs(object.ino, object.before.as_deref(), path)?
            {
                continue;
            }
            self.tasks.push(Task::Object(object));
        }
        Ok(())
    }

    /// The root's come always, and last.
    fn dir_attrs(&mut self) -> Result<(), SendError> {
        let dirs = self
            .new
            .preorder()
            .into_iter()
            .filter(|(_, ino)| self.new.nodes[ino].is_dir());
        let mut dirs: Vec<u64> = dirs.map(|(_, ino)| ino).collect();
        dirs.reverse();
        for ino in dirs {
            let (from, to) = self.dir_paths(ino);
            if self.touched.contains(&ino) || self.differs(ino, from.as_deref(), &to)? {
                self.push_dir_attrs(ino, from, to);
            }
        }
        let (from, to) = self.dir_paths(self.new.root_ino);
        self.push_dir_attrs(self.new.root_ino, from, to);
        Ok(())
    }

    /// The paths of a directory in the old tree, if it is there, and in the new one.
    fn dir_paths(&self, ino: u64) -> (Option<Vec<u8>>, Vec<u8>) {
        let old = self.before(ino).and(self.old);
        (
            old.map(|(old, _)| old.dir_path(ino)),
            self.new.dir_path(ino),
        )
    }

    fn push_dir_attrs(&mut self, ino: u64, before: Option<Vec<u8>>, path: Vec<u8>) {
        self.tasks.push(Task::DirAttrs { path, ino, before });
    }
}

/// One name of each inode.
fn first_names(tree: &Tree) -> HashMap<u64, &Name> {
    let mut names = HashMap::new();
    for (name, ino) in &tree.names {
        names.entry(*ino).or_insert(name);
    }
    names
}
