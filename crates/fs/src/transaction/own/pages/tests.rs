//! Pages of written keys, beside a search for each key.

use super::*;
use std::collections::BTreeSet;
use stitch_base::sync::Arc;
use stitch_kv::{
    Batch, CommitOptions, Engine as _, ModelEngine, NewBranch, TreeOptions, UpsertRegistry,
    counters,
};

/// A branch of a tree, in which keys are numbers.
struct Setup {
    engine: Arc<ModelEngine>,
    trees: BranchTrees,
    seed: u64,
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl Setup {
    /// The parent holds some keys at first.
    fn new(first: impl Iterator<Item = u64>) -> Self {
        let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let parent = engine.create_tree("t", &TreeOptions::default()).unwrap();
        put(&engine, parent, first);
        let own = engine.branch_trees(&[NewBranch::new(parent, "own")], None);
        let own = own.unwrap()[0];
        let branch = BranchTree {
            own,
            parent,
            moment: engine.branch_moment(own).unwrap(),
            onto: None,
        };
        let trees = BranchTrees {
            engine: Arc::clone(&engine) as _,
            trees: vec![branch],
        };
        Self {
            engine,
            trees,
            seed: 7,
        }
    }

    fn parent(&self) -> TreeId {
        self.trees.parent(Tree::Meta)
    }

    fn random(&mut self, count: usize, end: u64) -> Vec<u64> {
        let mut next = || {
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            self.seed % end
        };
        (0..count).map(|_| next()).collect()
    }

    fn delete_in_parent(&self, start: u64, end: u64) {
        let mut batch = Batch::new();
        batch.delete_range(self.parent(), &key(start), &key(end));
        self.engine
            .commit(&batch, CommitOptions::default())
            .unwrap();
    }

    fn reads(&self) -> [u64; 2] {
        let names = [counters::GETS, counters::SCANS];
        names.map(|name| self.engine.counters().get(name))
    }

    /// The reads of values, which are those of a search for each key.
    fn check_values(&self, numbers: impl IntoIterator<Item = u64>) -> [u64; 2] {
        let numbers: BTreeSet<u64> = numbers.into_iter().collect();
        let keys: Vec<Vec<u8>> = numbers.into_iter().map(key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let before = self.reads();
        let bases = self.trees.bases(Tree::Meta, &keys).unwrap();
        let ours = self.trees.all_ours(Tree::Meta, &keys).unwrap();
        let after = self.reads();
        assert_eq!((bases.len(), ours.len()), (keys.len(), keys.len()));
        for ((key, base), ours) in keys.iter().zip(bases).zip(ours) {
            assert_eq!(base, self.trees.base(Tree::Meta, key).unwrap());
            assert_eq!(ours, self.trees.ours(Tree::Meta, key).unwrap());
        }
        [after[0] - before[0], after[1] - before[1]]
    }

    /// The keys that are changed, which are those of a guard on each key.
    fn check_changed(&self, numbers: impl IntoIterator<Item = u64>) -> usize {
        let numbers: BTreeSet<u64> = numbers.into_iter().collect();
        let keys: Vec<Vec<u8>> = numbers.into_iter().map(key).collect();
        let each = keys.iter().map(|key| &key[..]);
        let found = self.trees.changed(Tree::Meta, each.clone(), None).unwrap();
        for key in each {
            let mut guards = Guards::since(&self.trees.trees[0].moment);
            guards.key(self.parent(), key);
            let is_changed = !self.engine.changed_keys(&guards, 1).unwrap().is_empty();
            let holds = |value: Option<Bytes>| value.is_some();
            let is_other = holds(self.trees.base(Tree::Meta, key).unwrap())
                || holds(self.trees.theirs(Tree::Meta, key).unwrap());
            // Of what a delete of a range covers, only what was there counts.
            let is_found = found.contains(key);
            assert!(is_changed || !is_found, "{key:?}");
            assert!(is_found || !(is_changed && is_other), "{key:?}");
        }
        found.len()
    }
}

fn put(engine: &ModelEngine, tree: TreeId, numbers: impl IntoIterator<Item = u64>) {
    let mut batch = Batch::new();
    for number in numbers {
        let value = [&key(number)[..], &tree.0.to_be_bytes()[..]].concat();
        batch.put(tree, &key(number), &value);
    }
    if !batch.is_empty() {
        engine.commit(&batch, CommitOptions::default()).unwrap();
    }
}

#[test]
fn values_of_new_keys_are_read_by_scans() {
    let setup = Setup::new([1, 700_000].into_iter());
    let own = setup.trees.own_tree(Tree::Meta);
    put(&setup.engine, own, 1000..3000);
    // Eight pages, two scans each.
    assert_eq!(setup.check_values(1000..3000), [0, 16]);
    assert_eq!(setup.check_values(1000..1256), [0, 2]);
    let few = setup.check_values([1, 1500, 700_000]);
    assert_eq!(few, [6, 0], "a few keys are looked up");
    assert_eq!(setup.check_values([]), [0, 0]);
}

#[test]
fn a_scan_over_many_other_rows_is_given_up() {
    let setup = Setup::new(0..100_000);
    let own = setup.trees.own_tree(Tree::Meta);
    let spread = || (0..100).map(|n| n * 1000);
    put(&setup.engine, own, spread());
    let [gets, scans] = setup.check_values(spread());
    let most = u64::try_from(2 * SCANS_PER_PAGE).unwrap();
    assert_eq!(scans, most, "some each of the base and of the branch");
    assert!((190..200).contains(&gets), "{gets} of 200 were looked up");
}

#[test]
fn keys_on_both_sides_of_many_other_rows_are_scanned() {
    let setup = Setup::new(0..100_000);
    let own = setup.trees.own_tree(Tree::Meta);
    // A name in an old directory, and those in a new one.
    let written = || std::iter::once(7).chain(200_000..200_255);
    put(&setup.engine, own, written());
    let [gets, scans] = setup.check_values(written());
    // The branch shows the other rows, too.
    assert_eq!(
        [gets, scans],
        [0, 4],
        "before and after them, on both sides"
    );
}

#[test]
fn values_are_those_of_lookups_of_each_key() {
    for density in [50, 1000, 20_000] {
        let mut setup = Setup::new(std::iter::empty());
        let first = setup.random(600, density);
        let mut setup = Setup::new(first.into_iter());
        setup.seed = density;
        let own = setup.trees.own_tree(Tree::Meta);
        for round in 0..8 {
            let written = setup.random(150, density);
            put(&setup.engine, own, written.iter().copied());
            let start = setup.random(1, density)[0];
            let mut batch = Batch::new();
            batch.delete_range(own, &key(start), &key(start + density / 20));
            setup
                .engine
                .commit(&batch, CommitOptions::default())
                .unwrap();
            let theirs = setup.random(30, density);
            put(&setup.engine, setup.parent(), theirs);
            let asked = setup.random(100 * (round + 1), density);
            setup.check_values(asked);
        }
    }
}

#[test]
fn changed_keys_are_those_of_a_guard_on_each_key() {
    let mut setup = Setup::new((0..3000).filter(|n| n % 3 == 0));
    assert_eq!(setup.check_changed(0..3000), 0, "nothing was written");
    put(&setup.engine, setup.parent(), [5, 3001, 9000]);
    assert_eq!(setup.check_changed(0..3000), 1);
    assert_eq!(setup.check_changed([5]), 1);
    assert_eq!(setup.check_changed([4, 6]), 0, "it lies between");
    setup.delete_in_parent(90, 120);
    assert_eq!(setup.check_changed(80..130), 10, "what was there");
    let random = setup.random(300, 3000);
    // Some have the value that they had.
    put(&setup.engine, setup.parent(), random);
    let asked = setup.random(500, 3100);
    assert!(setup.check_changed(asked) > 20);
}

#[test]
fn keys_after_a_full_list_are_guarded_each() {
    let setup = Setup::new(std::iter::empty());
    let most = KEYS_PER_LIST as u64;
    put(&setup.engine, setup.parent(), 0..2 * most);
    let own = [
        3,
        most - 1,
        most,
        most + 7,
        2 * most - 1,
        2 * most,
        3 * most,
    ];
    assert_eq!(setup.check_changed(own), 5);
    assert_eq!(
        setup.check_changed(most - 2..2 * most + 2),
        own.len() + most as usize - 5
    );
}
