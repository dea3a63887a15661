//! The plain copy of a view: all nodes of its file system, and the directory that it shows.

use crate::twin::{self, Id, Node, Twin};
use std::collections::{BTreeMap, BTreeSet};
use stitch_fs::FileKind;

#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) twin: Twin,
    /// The directory of the view.
    pub(super) root: Id,
}

impl Plain {
    pub(super) fn new(now: i64) -> Self {
        Self {
            twin: Twin::new(now),
            root: twin::ROOT,
        }
    }

    /// The same nodes, of which another directory is shown.
    pub(super) fn at(&self, root: Id) -> Self {
        let twin = self.twin.clone();
        Self { twin, root }
    }

    /// Returns one path, as names from the view's directory, of each node below it.
    pub(super) fn paths(&self) -> BTreeMap<Id, Vec<String>> {
        paths_below(&self.twin, self.root)
    }

    /// Returns the same from the root of the file system.
    pub(super) fn whole_paths(&self) -> BTreeMap<Id, Vec<String>> {
        paths_below(&self.twin, twin::ROOT)
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.twin.nodes[&id]
    }

    pub(super) fn is_dir(&self, id: Id) -> bool {
        self.node(id).kind == FileKind::Directory
    }

    /// Every name below the view's directory: its directory, itself, and its node.
    pub(super) fn names(&self) -> BTreeSet<(Id, String, Id)> {
        let mut names = BTreeSet::new();
        for dir in self.paths().into_keys() {
            let entries = self.node(dir).entries.iter();
            names.extend(entries.map(|(name, id)| (dir, name.clone(), *id)));
        }
        names
    }

    /// Removes a name and all below it; `true` if there is a directory of this name.
    pub(super) fn remove_tree(&mut self, dir: Id, name: &str) -> bool {
        let found = self.twin.lookup(dir, name).ok();
        let Some(top) = found.filter(|id| self.is_dir(*id)) else {
            return false;
        };
        let now = self.twin.now;
        let mut waiting = vec![top];
        while let Some(id) = waiting.pop() {
            let node = self.twin.nodes.get_mut(&id).expect("it is there");
            node.ctime = now;
            if node.kind != FileKind::Directory {
                node.nlink -= 1;
                continue;
            }
            node.nlink = 0;
            waiting.extend(std::mem::take(&mut node.entries).into_values());
        }
        let parent = self.twin.nodes.get_mut(&dir).expect("it is there");
        parent.entries.remove(name);
        parent.nlink -= 1;
        (parent.mtime, parent.ctime) = (now, now);
        true
    }

    /// Rolls the directory of a snapshot back. `next` numbers copies. Returns what each node of the
    /// snapshot is afterwards.
    pub(super) fn roll_back(&mut self, snapshot: &Self, next: &mut Id) -> BTreeMap<Id, Id> {
        let (was, now) = (snapshot.at(snapshot.root), self.at(snapshot.root));
        let (were, are) = (was.paths(), now.paths());
        let everywhere = self.whole_paths();
        let mut becomes = BTreeMap::new();
        for id in were.keys() {
            let is_elsewhere = everywhere.contains_key(id) && !are.contains_key(id);
            if is_elsewhere {
                *next += 1;
            }
            becomes.insert(*id, if is_elsewhere { *next } else { *id });
        }
        let top_name = self.node(was.root).parent;
        self.drop_all(&now);
        for (id, new) in &becomes {
            let mut node = was.node(*id).clone();
            for child in node.entries.values_mut() {
                *child = becomes[child];
            }
            node.parent = becomes.get(&node.parent).copied().unwrap_or(node.parent);
            if node.kind != FileKind::Directory {
                let outside = if id == new { self.links(*id) } else { 0 };
                node.nlink = outside;
            }
            self.twin.nodes.insert(*new, node);
        }
        self.twin.nodes.get_mut(&was.root).expect("the top").parent = top_name;
        for (_, _, id) in was.names() {
            let node = self.twin.nodes.get_mut(&becomes[&id]).expect("just put");
            node.nlink += u32::from(node.kind != FileKind::Directory);
        }
        becomes
    }

    /// Drops the names below a directory.
    fn drop_all(&mut self, below: &Self) {
        let now = self.twin.now;
        for (dir, name, id) in below.names() {
            let parent = self.twin.nodes.get_mut(&dir).expect("it is there");
            parent.entries.remove(&name);
            let node = self.twin.nodes.get_mut(&id).expect("it is there");
            node.ctime = now;
            match node.kind {
                FileKind::Directory => node.nlink = 0,
                _ => node.nlink -= 1,
            }
        }
    }

    fn links(&self, id: Id) -> u32 {
        self.twin.nodes.get(&id).map_or(0, |node| node.nlink)
    }
}

fn paths_below(twin: &Twin, root: Id) -> BTreeMap<Id, Vec<String>> {
    let mut paths = BTreeMap::from([(root, Vec::new())]);
    let mut waiting = vec![root];
    while let Some(dir) = waiting.pop() {
        for (name, id) in &twin.nodes[&dir].entries {
            if paths.contains_key(id) {
                continue;
            }
            let mut path: Vec<String> = paths[&dir].clone();
            path.push(name.clone());
            paths.insert(*id, path);
            waiting.push(*id);
        }
    }
    paths
}
