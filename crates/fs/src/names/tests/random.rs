//! Random operations, some of whose commits fail: what is known of names is what the trees say.

use crate::namespace::Namespace;
use crate::{Caller, DirName, FileSystem, FsOptions, NewNode, RenameMode, Taken};
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_kv::{CommitFault, Engine, ModelEngine};

const NAMES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
const CALLER: Caller<'static> = Caller::ROOT;

struct Test {
    engine: Arc<ModelEngine>,
    fs: FileSystem,
    rng: Rng,
    bytes_max: usize,
    mask: u64,
    /// Looked up, and never forgotten.
    dirs: BTreeSet<Ino>,
    files: Vec<Ino>,
    /// Walks under way: the directory, and where they go on.
    walks: Vec<(Ino, u64)>,
    answers: u64,
}

fn open(engine: &Arc<ModelEngine>, bytes_max: usize, mask: u64) -> FileSystem {
    let options = FsOptions {
        names_bytes: bytes_max,
        // It is the test that compares.
        confirm_names: false,
        ..FsOptions::default()
    };
    let dynamic: Arc<dyn Engine> = Arc::clone(engine) as _;
    let mut fs = FileSystem::open(dynamic, options).expect("opens");
    fs.residents.names.mask = mask;
    fs
}

impl Test {
    fn new(seed: u64, bytes_max: usize, mask: u64) -> Self {
        let options = FsOptions {
            name_seed: Some(seed),
            ..FsOptions::default()
        };
        let engine = crate::testing::formatted(&options);
        Self {
            fs: open(&engine, bytes_max, mask),
            engine,
            rng: Rng::new(seed),
            bytes_max,
            mask,
            dirs: BTreeSet::from([Ino::ROOT]),
            files: Vec::new(),
            walks: Vec::new(),
            answers: 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).expect("small")
    }

    fn place(&mut self) -> DirName<'static> {
        let index = self.below(self.dirs.len());
        let dir = *self.dirs.iter().nth(index).expect("the root is there");
        DirName::new(dir, NAMES[self.below(NAMES.len())].as_bytes())
    }

    fn step(&mut self) {
        if self.rng.one_in(8) {
            self.engine.fail_commits(CommitFault::Refused, 1);
        }
        let (one, two) = (self.place(), self.place());
        let new = NewNode {
            perm: 0o755,
            umask: 0,
        };
        match self.rng.below(20) {
            0..4 => {
                let made = self.fs.create(&CALLER, one, &new);
                self.files.extend(made.map(|attr| attr.ino));
            }
            4..6 => {
                let made = self.fs.make_dir(&CALLER, one, &new);
                self.dirs.extend(made.map(|attr| attr.ino));
            }
            6 => {
                let made = self.fs.make_temp_file(&CALLER, one.parent, &new);
                self.files.extend(made.map(|attr| attr.ino));
            }
            7..9 if !self.files.is_empty() => {
                let index = self.below(self.files.len());
                drop(self.fs.link(&CALLER, self.files[index], one));
            }
            9..12 => drop(self.fs.unlink(&CALLER, one)),
            12 => drop(self.fs.remove_dir(&CALLER, one)),
            13..16 => self.rename(one, two),
            16..19 => self.walk(one.parent),
            _ => self.remove_tree(one),
        }
        self.engine.mend_commits();
    }

    fn rename(&mut self, source: DirName<'_>, target: DirName<'_>) {
        let mode = match self.rng.below(5) {
            0 => RenameMode::Exchange,
            1 => RenameMode::Whiteout,
            2 => RenameMode::NoReplace,
            _ => RenameMode::Replace,
        };
        drop(self.fs.rename(&CALLER, source, target, mode));
    }

    /// Begins a walk, or goes on with one, for a few names.
    fn walk(&mut self, dir: Ino) {
        let old = self.walks.iter().position(|walk| walk.0 == dir);
        let from = old.map_or(0, |index| self.walks.swap_remove(index).1);
        let mut room = self.below(6);
        let (mut is_full, mut last) = (false, from);
        let mut take = |entry: &crate::DirEntry<'_>| {
            is_full = room == 0;
            if is_full {
                return Taken::Full;
            }
            room -= 1;
            last = entry.offset;
            Taken::More
        };
        drop(self.fs.read_dir(dir, from, &mut take));
        if is_full {
            self.walks.push((dir, last));
        }
    }

    fn remove_tree(&mut self, at: DirName<'_>) {
        if self.rng.one_in(4) {
            drop(self.fs.remove_tree(&CALLER, at, None));
        }
        drop(self.fs.empty_detached(3));
    }

    /// What is said of a name is what the trees say.
    fn compare(&self, at: DirName<'_>) {
        let key = self.fs.store.keys.dentry(at.parent, at.name);
        let row = self.fs.store.get(&key).expect("reads");
        let said = self.fs.peek(at).expect("reads");
        assert_eq!(said.is_some(), row.is_some(), "{at:?}");
    }

    /// On the way along a path, a name leads to where its row says.
    fn compare_step(&self, at: DirName<'_>) {
        if let Ok(attr) = self.fs.step(at) {
            let said = self.fs.peek(at).expect("reads");
            assert_eq!(said, Some(attr.ino), "{at:?}");
            self.fs.forget(attr.ino, 1);
        }
    }

    fn compare_all(&self) {
        for &dir in &self.dirs {
            for name in NAMES {
                self.compare(DirName::new(dir, name.as_bytes()));
            }
            let is_empty = Namespace::of(&self.fs).check_no_rows(dir).is_ok();
            assert!(is_empty || !self.fs.residents.names.is_empty(dir), "{dir}");
        }
        assert!(self.fs.residents.names.usage().bytes <= self.bytes_max);
    }

    /// A commit that failed and has an effect. The store is to be opened again after that.
    fn lie(&mut self) {
        self.engine.fail_commits(CommitFault::Done, 1);
        let (one, two) = (self.place(), self.place());
        let new = NewNode {
            perm: 0o755,
            umask: 0,
        };
        match self.rng.below(3) {
            0 => drop(self.fs.create(&CALLER, one, &new)),
            1 => drop(self.fs.make_dir(&CALLER, one, &new)),
            _ => self.rename(one, two),
        }
        self.engine.mend_commits();
        self.compare_all();
        self.answers += self.fs.names_usage().answers;
        self.fs = open(&self.engine, self.bytes_max, self.mask);
        self.dirs = BTreeSet::from([Ino::ROOT]);
        self.files.clear();
        // Some may go on: positions outlive the process.
        self.walks.retain(|walk| walk.0 == Ino::ROOT);
    }

    fn run(mut self, steps: usize) -> u64 {
        for step in 1..=steps {
            self.step();
            for _ in 0..3 {
                let at = self.place();
                self.compare(at);
                self.compare_step(at);
            }
            if step % 20 == 0 {
                self.compare_all();
            }
            if step % 150 == 0 {
                self.lie();
            }
        }
        self.answers + self.fs.names_usage().answers
    }
}

#[test]
fn what_is_known_of_names_is_what_the_trees_say() {
    for seed in 0..60 {
        let answers = Test::new(seed, 1 << 20, u64::MAX).run(600);
        assert!(answers > 500, "{answers} of seed {seed}");
    }
}

#[test]
fn so_it_is_where_directories_are_given_up() {
    for seed in 100..160 {
        let answers = Test::new(seed, 3000, u64::MAX).run(600);
        assert!(answers > 100, "{answers} of seed {seed}");
    }
}

#[test]
fn so_it_is_where_names_share_their_hashes() {
    for seed in 200..260 {
        let answers = Test::new(seed, 1 << 20, 15).run(600);
        assert!(answers > 100, "{answers} of seed {seed}");
    }
}
