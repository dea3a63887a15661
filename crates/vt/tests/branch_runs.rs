//! Random runs on branch trees: each tree holds what a copy of its parent and the writes to it say,
//! whatever is compacted, dropped, pinned and opened again.

mod common;

use common::{MIB, Setup, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::conformance::Ending;
use stitch_kv::conformance::functions::{APPEND, HASH, registry};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, Folded, KeyRange, KvError, NewBranch, Snapshot,
    TreeOptions, UpsertRegistry,
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
}

type Trees = BTreeMap<TreeId, Tree>;

struct Run {
    store: Store,
    upserts: UpsertRegistry,
    rng: Rng,
    trees: Trees,
    names: u64,
    snapshots: Vec<(Snapshot, Trees)>,
    pins: Vec<(String, Trees)>,
    steps: u64,
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
            names: 0,
            snapshots: Vec::new(),
            pins: Vec::new(),
            steps: 0,
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

    fn write(&mut self) {
        let Some(tree) = self.tree() else {
            return;
        };
        let mut batch = Batch::new();
        let upserts = self.upserts.clone();
        for _ in 0..=self.rng.below(30) {
            let number = self.rng.below(KEYS);
            let key = key(number);
            let mut value = vec![0; self.below(300)];
            self.rng.fill(&mut value);
            let kind = self.rng.below(20);
            let end = self::key(number + 1 + self.rng.below(20));
            let rows = &mut self.trees.get_mut(&tree).expect("it is living").rows;
            match kind {
                0..7 => {
                    batch.put(tree, &key, &value);
                    rows.insert(key, value);
                }
                7..12 => {
                    batch.delete(tree, &key);
                    rows.remove(&key);
                }
                12 => {
                    batch.delete_range(tree, &key, &end);
                    rows.retain(|k, _| !(*k >= key && *k < end));
                }
                _ => {
                    let function = if kind < 16 { APPEND } else { HASH };
                    let delta = &value[..value.len().min(9)];
                    batch.upsert(tree, &key, function, delta);
                    let found = upserts.get(function).expect("it is registered");
                    let mut out = Vec::new();
                    let old = rows.get(&key).map(Vec::as_slice);
                    match found.fold(&key, old, delta, &mut out) {
                        Folded::Value => drop(rows.insert(key, out)),
                        _ => drop(rows.remove(&key)),
                    }
                }
            }
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
        let new: Vec<_> = pairs.map(|(p, n)| NewBranch::new(*p, n)).collect();
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
            };
            self.trees.insert(id, tree);
        }
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
                self.pins.push((name, self.trees.clone()));
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

    fn reopen(&mut self) {
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
            75..88 => self.hold(),
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
    for seed in seeds {
        println!("seed {seed}");
        let mut run = Run::new(setup, seed);
        for _ in 0..250 {
            run.step();
        }
        run.end();
    }
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
