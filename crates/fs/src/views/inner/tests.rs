//! Ways up against scans, while directories and clones are moved and forgotten.

use super::*;
use crate::testing::formatted;
use crate::{Caller, DirName, FsOptions, NewNode, RenameMode};
use stitch_base::random::Rng;
use stitch_kv::Engine;

const SUPER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
const DIRS: usize = 8;
const CLONES: usize = 5;

/// A directory, or one at which a clone lies.
#[derive(Clone, Copy)]
struct Node {
    ino: Ino,
    /// Index of the directory that it is in.
    parent: usize,
    is_clone: bool,
}

/// The root is node 0, then come other directories, then clones. Each keeps its name.
struct Sample {
    fs: FileSystem,
    nodes: Vec<Node>,
    rng: Rng,
}

fn name(index: usize) -> Vec<u8> {
    format!("n{index}").into_bytes()
}

impl Sample {
    fn new(seed: u64) -> Self {
        let options = FsOptions::default();
        let engine: Arc<dyn Engine> = formatted(&options) as _;
        let fs = FileSystem::open(engine, options).expect("it opens");
        let root = Node {
            ino: Ino::ROOT,
            parent: 0,
            is_clone: false,
        };
        let mut sample = Self {
            fs,
            nodes: vec![root],
            rng: Rng::new(seed),
        };
        for index in 1..DIRS + CLONES {
            sample.make(index);
        }
        sample
    }

    fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.rng.below(count as u64)).expect("small")
    }

    /// Makes a directory, or a clone of the root's first one.
    fn make(&mut self, index: usize) {
        let parent = if index == 1 {
            0
        } else {
            self.pick(index.min(DIRS))
        };
        let is_clone = index >= DIRS;
        let (used, name) = (self.know(parent), name(index));
        let at = DirName::new(self.nodes[parent].ino, &name);
        let ino = if is_clone {
            let empty = self.fs.make_dir(
                &SUPER,
                DirName::new(Ino::ROOT, &name_of_source(index)),
                &NEW,
            );
            let dir = empty.expect("is made").ino;
            let source = CloneSource {
                fs: &self.fs,
                dir,
                snapshot: None,
            };
            let made = self.fs.make_clone(&SUPER, &source, at).expect("is made");
            self.fs.forget(dir, 1);
            made.graft
        } else {
            let made = self.fs.make_dir(&SUPER, at, &NEW).expect("is made");
            self.fs.forget(made.ino, 1);
            made.ino
        };
        self.forget(used);
        self.nodes.push(Node {
            ino,
            parent,
            is_clone,
        });
    }

    /// Looks up a directory. Returns the lookups.
    fn know(&self, index: usize) -> Vec<Ino> {
        if index == 0 {
            return Vec::new();
        }
        let node = self.nodes[index];
        let mut used = self.know(node.parent);
        let at = self.nodes[node.parent].ino;
        let found = self.fs.lookup(DirName::new(at, &name(index)));
        assert_eq!(found.expect("it is there").ino, node.ino);
        used.push(node.ino);
        used
    }

    fn forget(&self, used: Vec<Ino>) {
        for ino in used.into_iter().rev() {
            self.fs.forget(ino, 1);
        }
    }

    fn is_below(&self, mut index: usize, top: usize) -> bool {
        while index != top && index != 0 {
            index = self.nodes[index].parent;
        }
        index == top
    }

    /// Moves a directory or a clone.
    fn rename(&mut self) {
        let (index, to) = (1 + self.pick(DIRS + CLONES - 1), self.pick(DIRS));
        if self.is_below(to, index) {
            return;
        }
        let from = self.nodes[index].parent;
        let used = [self.know(from), self.know(to)].concat();
        let name = name(index);
        let at = |parent: usize| DirName::new(self.nodes[parent].ino, &name);
        let renamed = self
            .fs
            .rename(&SUPER, at(from), at(to), RenameMode::Replace);
        self.forget(used);
        if from != to {
            renamed.expect("it moves");
        }
        self.nodes[index].parent = to;
    }

    fn reopen(&mut self) {
        let engine = Arc::clone(self.fs.engine());
        self.fs = FileSystem::open(engine, FsOptions::default()).expect("it opens");
    }

    /// Compares ways up, a scan and the model, for some directory.
    fn check(&mut self) {
        let top = self.pick(DIRS);
        let top_ino = self.nodes[top].ino;
        let clones = self.fs.clones();
        let grafts: BTreeSet<Ino> = clones.iter().map(|info| info.graft).collect();
        let nodes = self.nodes.iter().enumerate();
        let expected: BTreeSet<Ino> = nodes
            .filter(|(index, node)| node.is_clone && self.is_below(*index, top))
            .map(|(_, node)| node.ino)
            .collect();
        let views = &self.fs.standing.views;
        let finder = GraftFinder::of(&self.fs, &views.ways, 0);
        let mut scanned = WaysUp::default();
        let found = finder.find_by_scan(top_ino, (&grafts, &grafts), &mut scanned);
        found.expect("scans");
        assert_eq!(scanned.below, expected);
        let found = finder.below(top_ino, &clones).expect("finds");
        assert_eq!(found, expected);
    }

    fn asks_for_back_rows(&self) -> bool {
        self.fs.standing.views.wanted_back_rows().is_some()
    }
}

fn name_of_source(index: usize) -> Vec<u8> {
    format!("source{index}").into_bytes()
}

#[test]
fn ways_up_find_what_a_scan_finds_and_renames_need_no_scan() {
    for seed in 0..60 {
        let mut sample = Sample::new(seed);
        for _ in 0..40 {
            sample.rename();
            sample.check();
        }
        assert!(!sample.asks_for_back_rows(), "all ways are known");
        let mut asked = 0;
        for _ in 0..6 {
            sample.reopen();
            for _ in 0..6 {
                sample.rename();
                sample.check();
            }
            asked += u32::from(sample.asks_for_back_rows());
            if sample.pick(3) == 0 {
                while sample.fs.put_back_rows_ahead().expect("puts them") {}
            }
        }
        assert!(asked > 0, "a new process knows no ways");
    }
}
