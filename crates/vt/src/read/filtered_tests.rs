//! Reads through branches whose tables and memtables have filters of their keys, against a model.

use crate::testing::{MIB, Small};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::conformance::functions::{APPEND, registry};
use stitch_kv::{Batch, Engine as _, NewBranch};

const KEYS: u64 = 300;

type Rows = BTreeMap<u64, Vec<u8>>;

/// Trees, each a branch of the one before it, and the rows that a reader of each finds.
struct BranchedStore {
    small: Small,
    trees: Vec<(TreeId, Rows)>,
    rng: Rng,
}

impl BranchedStore {
    fn new(seed: u64) -> Self {
        let mut small = Small::new(64 * MIB);
        small.reopen_as(|options| {
            options.memtable_bytes = Some(64 << 10);
            options.direct_bytes_min = 2 << 10;
            options.upserts = registry();
        });
        let trees = vec![(small.tree, Rows::new())];
        let rng = Rng::new(seed);
        Self { small, trees, rng }
    }

    fn branch(&mut self) {
        let (parent, rows) = &self.trees[self.trees.len() - 1];
        let name = format!("branch {}", self.trees.len());
        let new = [NewBranch::new(*parent, &name)];
        let made = self.small.engine.branch_trees(&new, None);
        let made = made.expect("the branch is made")[0];
        self.trees.push((made, rows.clone()));
    }

    /// Writes to one of the trees: puts, deletes, upserts and a range delete.
    fn write(&mut self) {
        let rng = &mut self.rng;
        let at = usize::try_from(rng.below(self.trees.len() as u64)).expect("small");
        let (tree, rows) = &mut self.trees[at];
        let mut batch = Batch::new();
        for _ in 0..20 {
            let key = rng.below(KEYS);
            let value = rng.below(1 << 20).to_be_bytes();
            match rng.below(8) {
                0 => {
                    batch.delete(*tree, &key.to_be_bytes());
                    rows.remove(&key);
                }
                1 => {
                    batch.upsert(*tree, &key.to_be_bytes(), APPEND, &value);
                    rows.entry(key).or_default().extend_from_slice(&value);
                }
                _ => {
                    batch.put(*tree, &key.to_be_bytes(), &value);
                    rows.insert(key, value.to_vec());
                }
            }
        }
        if rng.below(3) == 0 {
            let start = rng.below(KEYS);
            let end = start + 1 + rng.below(20);
            batch.delete_range(*tree, &start.to_be_bytes(), &end.to_be_bytes());
            rows.retain(|key, _| !(start..end).contains(key));
        }
        if rng.below(3) == 0 {
            // Long enough to go to their zone at once: some as a run, some as puts with a place.
            let (start, count) = (rng.below(KEYS - 40), 4 + 36 * rng.below(2));
            for key in start..start + count {
                let value = [key.to_be_bytes(); 100].concat();
                batch.put(*tree, &key.to_be_bytes(), &value);
                rows.insert(key, value);
            }
        }
        self.small.commit(&batch);
    }

    /// Reads all keys of each tree, one by one and at once.
    fn check(&self) {
        let engine = &self.small.engine;
        let keys: Vec<[u8; 8]> = (0..KEYS).map(u64::to_be_bytes).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for (tree, rows) in &self.trees {
            let many = engine.get_many(*tree, &keys, None).expect("it reads");
            for (number, key) in (0..KEYS).zip(&keys) {
                let expected = rows.get(&number).map(Vec::as_slice);
                let single = engine.get(*tree, key, None).expect("it reads");
                assert_eq!(single.as_deref(), expected, "key {number} of {tree}");
                let at = usize::try_from(number).expect("small");
                assert_eq!(many[at].as_deref(), expected, "key {number} of {tree}");
            }
        }
    }
}

#[test]
fn reads_through_filters_are_those_of_a_model() {
    for seed in 0..4 {
        let mut chain = BranchedStore::new(seed);
        for depth in 0..6 {
            for round in 0..4 {
                chain.write();
                if round % 2 == 0 {
                    let engine = Arc::clone(&chain.small.engine);
                    engine.quiesce().expect("background work succeeds");
                }
                chain.check();
            }
            if depth < 5 {
                chain.branch();
            }
        }
        let denied = chain.small.counter("vt.filtered_tables");
        assert!(denied > 10_000, "{denied} tables were denied");
        assert!(chain.small.counter("vt.filter_memory_bytes") > 0);
        let denied = chain.small.counter("vt.filtered_memtables");
        assert!(denied > 1000, "{denied} memtables were denied");
        assert!(chain.small.counter("vt.direct_bytes") > 0, "runs are read");
        chain
            .small
            .reopen_as(|options| options.upserts = registry());
        chain.check();
        assert!(
            chain.small.counter("vt.filter_memory_bytes") > 0,
            "made anew"
        );
    }
}

/// Gets of keys that no tree of the chain but the first has written lately.
#[test]
fn memtables_without_the_key_are_not_searched_through_branches() {
    let mut chain = BranchedStore::new(5);
    for _ in 0..8 {
        chain.branch();
    }
    for (number, (tree, rows)) in (0u64..).zip(&mut chain.trees) {
        let mut batch = Batch::new();
        let keys = [number, 100 + number];
        for key in keys {
            batch.put(*tree, &key.to_be_bytes(), b"its own");
        }
        chain.small.commit(&batch);
        rows.extend(keys.map(|key| (key, b"its own".to_vec())));
    }
    let trees: Vec<(TreeId, Rows)> = chain.trees.clone();
    let inherited = &trees[0].1;
    let reads = |chain: &BranchedStore, (tree, rows): &(TreeId, Rows), keys: &[u64]| {
        let before = chain.small.counter("vt.filtered_memtables");
        for key in keys {
            let found = chain.small.engine.get(*tree, &key.to_be_bytes(), None);
            let found = found.expect("it reads");
            assert_eq!(found.as_deref(), rows.get(key).map(Vec::as_slice), "{key}");
        }
        chain.small.counter("vt.filtered_memtables") - before
    };
    assert!(!inherited.is_empty(), "the first tree was written to");
    let absent: Vec<u64> = (200..250).collect();
    let (first, last) = (&trees[0], &trees[8]);
    assert_eq!(reads(&chain, first, &absent), 0, "it is no branch");
    let denied = reads(&chain, last, &absent);
    assert!((380..=400).contains(&denied), "{denied} of 400");
    assert_eq!(reads(&chain, last, &[8, 108]), 0, "its own keys");
}
