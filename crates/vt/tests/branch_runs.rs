//! Random runs on branch trees: each tree holds what a copy of its parent and the writes to it say,
//! whatever is compacted, dropped, pinned and opened again.

mod common;

use common::{MIB, Setup, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::conformance::Ending;
use stitch_kv::conformance::functions::{APPEND, HASH, registry};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, Folded, Guards, KeyRange, KvError, NewBranch,
    Snapshot, TreeOptions, UpsertRegistry,
};
use stitch_vt::VtEngine;

const KIB: u64 = 1 << 10;
const TREES_MAX: usize = 12;
const KEYS: u64 = 120;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a tree holds, and what its parent held where it begins.
#[derive(Clone, Default)]
struct Tree {
    rows: Rows,
    start: Option<(TreeId, Rows)>,
    /// What was written to it since it was made, if it is a branch.
    written: Vec<Written>,
}

/// A message to a tree.
#[derive(Clone, Debug)]
enum Written {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    Upsert(Vec<u8>, u32, Vec<u8>),
}

impl Written {
    fn push(&self, batch: &mut Batch<'_>, tree: TreeId) {
        match self {
            Self::Put(key, value) => batch.put(tree, key, value),
            Self::Delete(key) => batch.delete(tree, key),
            Self::DeleteRange(start, end) => batch.delete_range(tree, start, end),
            Self::Upsert(key, function, delta) => batch.upsert(tree, key, *function, delta),
        }
    }

    fn apply(&self, rows: &mut Rows, upserts: &UpsertRegistry) {
        match self {
            Self::Put(key, value) => drop(rows.insert(key.clone(), value.clone())),
            Self::Delete(key) => drop(rows.remove(key)),
            Self::DeleteRange(start, end) => rows.retain(|k, _| !(k >= start && k < end)),
            Self::Upsert(key, function, delta) => {
                let found = upserts.get(*function).expect("it is registered");
                let mut out = Vec::new();
                let old = rows.get(key).map(Vec::as_slice);
                match found.fold(key, old, delta, &mut out) {
                    Folded::Value => drop(rows.insert(key.clone(), out)),
                    _ => drop(rows.remove(key)),
                }
            }
        }
    }
}

type Trees = BTreeMap<TreeId, Tree>;

/// Leaves the first range and the first message to each key, in the order of keys.
fn sort(messages: &mut Vec<Written>) {
    let place = |message: &Written| match message {
        Written::DeleteRange(..) => (false, Vec::new()),
        Written::Put(key, _) | Written::Delete(key) | Written::Upsert(key, ..) => {
            (true, key.clone())
        }
    };
    messages.sort_by_key(place);
    messages.dedup_by_key(|message| place(message));
}

struct Run {
    store: Store,
    upserts: UpsertRegistry,
    rng: Rng,
    trees: Trees,
    /// The parent of each branch that was ever made.
    parents: BTreeMap<TreeId, TreeId>,
    /// Branches that end with this life of the store, of all that were ever made.
    temporary: BTreeSet<TreeId>,
    names: u64,
    snapshots: Vec<(Snapshot, Trees)>,
    pins: Vec<(String, Trees)>,
    steps: u64,
    absorbed: u64,
    table_batches: u64,
    /// Tables that filters of whole tables have spared a read.
    filtered_tables: u64,
    /// Memtables that filters of keys have spared a read.
    filtered_memtables: u64,
    /// Work happens in calls alone: between two of them nothing is compacted.
    is_steady: bool,
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:04}").into_bytes()
}

impl Run {
    fn new(setup: &Setup, seed: u64) -> Self {
        let mut run = Self {
            store: Store::new(setup, 64 * MIB, Some(4 * MIB), registry()),
            upserts: registry(),
            rng: Rng::new(seed),
            trees: Trees::new(),
            parents: BTreeMap::new(),
            temporary: BTreeSet::new(),
            names: 0,
            snapshots: Vec::new(),
            pins: Vec::new(),
            steps: 0,
            absorbed: 0,
            table_batches: 0,
            filtered_tables: 0,
            filtered_memtables: 0,
            is_steady: !setup.options.background,
        };
        run.create();
        run
    }

    fn engine(&self) -> Arc<VtEngine> {
        Arc::clone(self.store.engine())
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).expect("a small number")
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("tree {}", self.names)
    }

    fn tree(&mut self) -> Option<TreeId> {
        let count = self.trees.len();
        let at = self.below(count.max(1));
        self.trees.keys().nth(at).copied()
    }

    fn create(&mut self) {
        let name = self.name();
        let made = self.engine().create_tree(&name, &TreeOptions::default());
        self.trees
            .insert(made.expect("it is made"), Tree::default());
    }

    fn message(&mut self) -> Written {
        let number = self.rng.below(KEYS);
        let key = key(number);
        let mut value = vec![0; self.below(300)];
        self.rng.fill(&mut value);
        let kind = self.rng.below(20);
        let end = self::key(number + 1 + self.rng.below(20));
        match kind {
            0..7 => Written::Put(key, value),
            7..12 => Written::Delete(key),
            12 => Written::DeleteRange(key, end),
            _ => {
                let function = if kind < 16 { APPEND } else { HASH };
                value.truncate(9);
                Written::Upsert(key, function, value)
            }
        }
    }

    /// Adds a message to a batch, and to the copy of its tree.
    fn note(&mut self, batch: &mut Batch<'_>, tree: TreeId, written: Written) {
        written.push(batch, tree);
        let upserts = self.upserts.clone();
        let copy = self.trees.get_mut(&tree).expect("it is living");
        written.apply(&mut copy.rows, &upserts);
        if copy.start.is_some() {
            copy.written.push(written);
        }
    }

    fn write(&mut self) {
        let Some(tree) = self.tree() else {
            return;
        };
        let mut batch = Batch::new();
        let is_sorted = self.temporary.contains(&tree) && self.rng.one_in(2);
        let mut messages: Vec<Written> = (0..=self.rng.below(30)).map(|_| self.message()).collect();
        if is_sorted {
            sort(&mut messages);
        }
        for message in messages {
            self.note(&mut batch, tree, message);
        }
        let done = self.engine().commit(&batch, CommitOptions::default());
        done.expect("there is space");
    }

    fn branch(&mut self) {
        if self.trees.len() >= TREES_MAX {
            return;
        }
        let count = self.snapshots.len();
        let at = (count > 0 && self.rng.one_in(3)).then(|| self.below(count));
        let count = 1 + self.below(2);
        let parents: Vec<TreeId> = (0..count).filter_map(|_| self.tree()).collect();
        let names: Vec<String> = parents.iter().map(|_| self.name()).collect();
        let then = at.map(|at| &self.snapshots[at]);
        let held = |parent: &TreeId| then.map_or(&self.trees, |(_, trees)| trees).get(parent);
        let starts: Option<Vec<Rows>> = parents
            .iter()
            .map(|parent| held(parent).map(|tree| tree.rows.clone()))
            .collect();
        let pairs = parents.iter().zip(&names);
        let are_temporary = self.rng.one_in(2);
        let new = pairs.map(|(parent, name)| match are_temporary {
            true => NewBranch::temporary(*parent, name),
            false => NewBranch::new(*parent, name),
        });
        let new: Vec<_> = new.collect();
        let made = self.engine().branch_trees(&new, then.map(|(at, _)| at));
        let Some(starts) = starts else {
            assert!(matches!(made, Err(KvError::NoTree(_))), "{made:?}");
            return;
        };
        let made = made.unwrap_or_else(|e| panic!("step {}: {e}", self.steps));
        for ((id, parent), rows) in made.into_iter().zip(parents).zip(starts) {
            let tree = Tree {
                rows: rows.clone(),
                start: Some((parent, rows)),
                written: Vec::new(),
            };
            self.trees.insert(id, tree);
            self.parents.insert(id, parent);
            if are_temporary || self.temporary.contains(&parent) {
                self.temporary.insert(id);
            }
        }
    }

    /// Trees that living ones read, also through parents that were dropped.
    fn read_by_branches(&self) -> BTreeSet<TreeId> {
        let mut read = BTreeSet::new();
        for tree in self.trees.keys() {
            let mut next = self.parents.get(tree);
            while let Some(parent) = next {
                read.insert(*parent);
                next = self.parents.get(parent);
            }
        }
        read
    }

    /// Absorbs one branch or two, with a few messages that come along.
    fn absorb(&mut self) {
        let count = 1 + self.below(2);
        let mut branches: Vec<TreeId> = (0..count).filter_map(|_| self.tree()).collect();
        branches.dedup();
        let parent = |tree: &TreeId| Some(self.trees.get(tree)?.start.as_ref()?.0);
        let parents: Option<Vec<TreeId>> = branches.iter().map(parent).collect();
        let read = self.read_by_branches();
        let may_go = parents.as_ref().is_some_and(|parents| {
            let living = parents.iter().all(|parent| self.trees.contains_key(parent));
            living && branches.iter().all(|branch| !read.contains(branch))
        });
        let at = self.engine().snapshot();
        let none = Guards::since(&at);
        drop(at);
        let options = CommitOptions::default();
        if !may_go {
            let done = self
                .engine()
                .absorb(&branches, &Batch::new(), &none, options);
            assert!(done.is_err(), "step {}: {branches:?}", self.steps);
            return;
        }
        for (branch, parent) in branches.iter().zip(parents.expect("they are branches")) {
            let written = self.trees.remove(branch).expect("it is living").written;
            let upserts = self.upserts.clone();
            let copy = self.trees.get_mut(&parent).expect("it is living");
            for message in &written {
                message.apply(&mut copy.rows, &upserts);
            }
            if copy.start.is_some() {
                copy.written.extend(written);
            }
        }
        let mut batch = Batch::new();
        for _ in 0..self.rng.below(6) {
            if let Some(tree) = self.tree() {
                let message = self.message();
                self.note(&mut batch, tree, message);
            }
        }
        let done = self.engine().absorb(&branches, &batch, &none, options);
        done.unwrap_or_else(|e| panic!("step {}: {e}", self.steps));
        self.absorbed += 1;
    }

    fn drop_some(&mut self) {
        let count = 1 + self.below(2);
        let mut gone: Vec<TreeId> = (0..count).filter_map(|_| self.tree()).collect();
        gone.sort_unstable();
        gone.dedup();
        self.engine().drop_trees(&gone).expect("they go");
        for tree in gone {
            self.trees.remove(&tree);
        }
        if self.trees.is_empty() {
            self.create();
        }
    }

    fn hold(&mut self) {
        match self.rng.below(6) {
            0 | 1 if self.snapshots.len() < 5 => {
                let at = self.engine().snapshot();
                self.snapshots.push((at, self.trees.clone()));
            }
            2 if self.pins.len() < 4 => {
                let name = self.name();
                self.engine().create_pin(&name, b"").expect("it is made");
                let mut held = self.trees.clone();
                held.retain(|tree, _| !self.temporary.contains(tree));
                self.pins.push((name, held));
            }
            3 if !self.pins.is_empty() => {
                let at = self.below(self.pins.len());
                let (name, _) = self.pins.swap_remove(at);
                self.engine().drop_pin(&name).expect("it goes");
            }
            _ if !self.snapshots.is_empty() => {
                let at = self.below(self.snapshots.len());
                self.snapshots.swap_remove(at);
            }
            _ => {}
        }
    }

    fn count(&mut self) {
        let counters = self.engine().counters();
        self.table_batches += counters.get("vt.table_batches");
        self.filtered_tables += counters.get("vt.filtered_tables");
        self.filtered_memtables += counters.get("vt.filtered_memtables");
    }

    fn reopen(&mut self) {
        self.count();
        self.snapshots.clear();
        let ending = match self.rng.below(3) {
            0 => Ending::Closed,
            1 => Ending::Killed,
            _ => {
                self.engine().sync().expect("it syncs");
                Ending::PowerCut
            }
        };
        self.store.next_life(ending);
        self.trees.retain(|tree, _| !self.temporary.contains(tree));
        if self.trees.is_empty() {
            self.create();
        }
    }

    fn compare(&self, id: TreeId, rows: &Rows, at: Option<&Snapshot>) {
        let engine = self.engine();
        let place = || format!("step {}, tree {id}, at {at:?}", self.steps);
        for direction in [Direction::Forward, Direction::Backward] {
            let mut scan = engine
                .scan(id, KeyRange::all(), direction, at)
                .unwrap_or_else(|e| panic!("{}: {e}", place()));
            let mut found = Vec::new();
            while let Some((key, value)) = scan.next().expect("it reads") {
                found.push((key.to_vec(), value.to_vec()));
            }
            if direction == Direction::Backward {
                found.reverse();
            }
            assert!(
                found == rows.clone().into_iter().collect::<Vec<_>>(),
                "{}",
                place()
            );
        }
        for number in 0..KEYS {
            let key = key(number);
            let found = engine.get(id, &key, at).expect("it reads");
            assert_eq!(
                found.as_deref(),
                rows.get(&key).map(Vec::as_slice),
                "{}",
                place()
            );
        }
    }

    fn compare_keys(&self, id: TreeId, tree: &Tree) {
        let engine = self.engine();
        let Some((parent, start)) = &tree.start else {
            let found = engine.branch_keys(id, None, 10);
            assert!(matches!(found, Err(KvError::Invalid(_))), "{found:?}");
            return;
        };
        let all = engine.branch_keys(id, None, usize::MAX).expect("it reads");
        assert!(all.is_sorted_by(|a, b| a < b), "in order, each once");
        let mut paged: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = paged.last().cloned();
            let page = engine
                .branch_keys(id, after.as_deref(), 7)
                .expect("it reads");
            paged.extend(page.iter().cloned());
            if page.len() < 7 {
                break;
            }
        }
        if self.is_steady {
            assert_eq!(all, paged);
        }
        // A compaction may forget a key that was written and then deleted with its range.
        for found in [&all, &paged] {
            let mut keys = start.keys().chain(tree.rows.keys());
            let missing = keys.find(|k| start.get(*k) != tree.rows.get(*k) && !found.contains(*k));
            assert_eq!(missing, None, "step {}, tree {id}", self.steps);
        }
        let moment = engine.branch_moment(id).expect("it is a branch");
        self.compare(*parent, start, Some(&moment));
    }

    fn compare_all(&self) {
        for (id, tree) in &self.trees {
            self.compare(*id, &tree.rows, None);
            self.compare_keys(*id, tree);
        }
        for (at, trees) in &self.snapshots {
            for (id, tree) in trees {
                match self.trees.contains_key(id) {
                    true => self.compare(*id, &tree.rows, Some(at)),
                    false => {
                        let found = self.engine().get(*id, b"key", Some(at));
                        assert!(matches!(found, Err(KvError::NoTree(_))), "{found:?}");
                    }
                }
            }
        }
        for (name, trees) in &self.pins {
            let at = self.engine().open_pin(name).expect("it opens");
            for (id, tree) in trees {
                self.compare(*id, &tree.rows, Some(&at));
            }
        }
        let listed = self.engine().trees();
        let ids: Vec<TreeId> = listed.iter().map(|info| info.id).collect();
        assert!(ids.iter().eq(self.trees.keys()));
        for info in listed {
            let start = self.trees[&info.id].start.as_ref();
            assert_eq!(
                info.branch.map(|point| point.parent),
                start.map(|start| start.0)
            );
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.rng.below(100) {
            0..60 => self.write(),
            60..70 => self.branch(),
            70..75 => self.drop_some(),
            75..80 => self.absorb(),
            80..88 => self.hold(),
            88..92 => self.engine().quiesce().expect("it settles"),
            92..95 => self.reopen(),
            _ => self.compare_all(),
        }
    }

    /// Drops everything: all space comes back.
    fn end(&mut self) {
        self.compare_all();
        let violations = self.engine().check(&mut |_, _| {}).expect("it ends");
        assert_eq!(violations, []);
        self.snapshots.clear();
        let trees: Vec<TreeId> = self.trees.keys().copied().collect();
        self.engine().drop_trees(&trees).expect("they go");
        for (name, _) in std::mem::take(&mut self.pins) {
            self.engine().drop_pin(&name).expect("it goes");
        }
        self.engine().quiesce().expect("it settles");
        assert_eq!(self.engine().holdings().owned_bytes(), 0);
    }
}

fn run(setup: &Setup, seeds: std::ops::Range<u64>) {
    let (mut absorbed, mut tables, mut filtered, mut memtables) = (0, 0, 0, 0);
    let mut setup = setup.clone();
    setup.options.batch_table_bytes_min = 400;
    let setup = &setup;
    for seed in seeds {
        println!("seed {seed}");
        let mut run = Run::new(setup, seed);
        for _ in 0..250 {
            run.step();
        }
        absorbed += run.absorbed;
        run.count();
        tables += run.table_batches;
        filtered += run.filtered_tables;
        memtables += run.filtered_memtables;
        run.end();
    }
    assert!(absorbed > 3, "branches are absorbed");
    assert!(tables > 3, "batches to temporary branches become tables");
    assert!(
        filtered > 1000,
        "{filtered} tables were denied by their filters"
    );
    assert!(
        memtables > 1000,
        "{memtables} memtables were denied by their filters"
    );
}

#[test]
fn tiny_memtables() {
    run(&Setup::sized(16 * KIB, 32 * KIB, false), 0..12);
}

#[test]
fn tiny_memtables_with_threads() {
    run(&Setup::sized(16 * KIB, 32 * KIB, true), 20..26);
}

#[test]
fn everything_in_memtables() {
    run(&Setup::default(), 40..44);
}

#[test]
fn from_no_copy_to_all_copies() {
    for bytes_min in [0, 4 * KIB, u64::MAX] {
        let setup = Setup::sized(16 * KIB, 32 * KIB, false).stitching(bytes_min);
        run(&setup, 60..64);
    }
}

#[test]
fn values_written_at_once() {
    run(&Setup::sized(16 * KIB, 32 * KIB, false).direct(150), 80..84);
}

#[test]
fn absorbs_that_move_tables() {
    run(&Setup::sized(16 * KIB, 32 * KIB, false).moving(), 100..124);
}

#[test]
fn absorbs_that_move_tables_with_threads() {
    run(&Setup::sized(16 * KIB, 32 * KIB, true).moving(), 130..136);
}

#[test]
fn absorbs_that_move_tables_of_values() {
    let setup = Setup::sized(16 * KIB, 32 * KIB, false).direct(150).moving();
    run(&setup, 140..148);
}

#[test]
fn absorbs_that_move_tables_and_stitch_all() {
    let setup = Setup::sized(16 * KIB, 32 * KIB, false)
        .stitching(0)
        .moving();
    run(&setup, 150..158);
}
