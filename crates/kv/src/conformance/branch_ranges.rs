//! Branch trees that begin at a narrowed pin: with the keys of its ranges, and no other.

use super::functions::APPEND;
use super::{Ending, Factory, NOW, Store, functions};
use crate::{
    Batch, CommitOptions, Direction, Guards, KeyRange, KeyRanges, KvError, PinRanges, Snapshot,
};
use stitch_base::TreeId;

const KEYS: [&[u8]; 7] = [b"a", b"c", b"d", b"e", b"p", b"q", b"z"];

fn held() -> KeyRanges {
    let range = |start: &[u8], end: &[u8]| (start.to_vec(), Some(end.to_vec()));
    KeyRanges::new([range(b"c", b"e"), range(b"p", b"q")])
}

fn can_branch(store: &Store) -> bool {
    let capabilities = store.engine().capabilities();
    capabilities.pins_of_ranges && capabilities.branches
}

impl Store {
    fn narrow_to_held(&self, name: &str, tree: TreeId) {
        let ranges = PinRanges::from([(tree, held())]);
        let narrowed = self.engine().narrow_pin(name, &ranges);
        narrowed.expect("the pin is narrowed");
    }

    /// Asserts that a tree has these keys with these values, by every way to read it.
    #[track_caller]
    fn assert_rows(&self, tree: TreeId, rows: &[(&[u8], &[u8])], at: Option<&Snapshot>) {
        let found = self.keys(tree, at);
        let keys: Vec<&[u8]> = rows.iter().map(|(key, _)| *key).collect();
        assert_eq!(found, keys, "forward");
        let back = self
            .engine()
            .scan(tree, KeyRange::all(), Direction::Backward, at);
        let back = super::drain(back.expect("the scan begins"));
        let mut back: Vec<Vec<u8>> = back.into_iter().map(|(key, _)| key).collect();
        back.reverse();
        assert_eq!(back, keys, "backward");
        for key in KEYS {
            let value = rows.iter().find(|(of, _)| *of == key);
            let value = value.map(|(_, value)| value.to_vec());
            assert_eq!(self.get_at(tree, key, at), value, "key {key:?}");
        }
    }

    /// Overwrites every key of a tree.
    fn overwrite(&self, tree: TreeId, value: &[u8]) {
        self.commit(|b| KEYS.iter().for_each(|key| b.put(tree, key, value)));
    }
}

/// A store with one tree, a branch at a narrowed pin of it, and the parent overwritten since.
fn with_branch(factory: &dyn Factory) -> Option<(Store, TreeId, TreeId)> {
    let (store, tree) = Store::with_tree(factory);
    if !can_branch(&store) {
        return None;
    }
    store.overwrite(tree, b"old");
    store.pin("pin");
    store.narrow_to_held("pin", tree);
    store.overwrite(tree, b"new");
    store.quiesce();
    let branch = store.branch_at(tree, "branch", Some(&store.open_pin("pin")));
    Some((store, tree, branch))
}

/// A branch reads the ranges of its parent alone, also after the pin and the parent are gone.
pub(super) fn reads(factory: &dyn Factory) {
    let Some((mut store, tree, branch)) = with_branch(factory) else {
        return;
    };
    let old: [(&[u8], &[u8]); 3] = [(b"c", b"old"), (b"d", b"old"), (b"p", b"old")];
    let info = |store: &Store| {
        let mut trees = store.engine().trees().into_iter();
        trees.find(|info| info.id == branch).expect("it is living")
    };
    assert_eq!(info(&store).branch_ranges, Some(held()));
    store.assert_rows(branch, &old, NOW);
    let first = store.engine().snapshot();
    let inner = store.branch_at(branch, "inner", NOW);
    store.assert_rows(inner, &old, NOW);
    let moment = store
        .engine()
        .branch_moment(branch)
        .expect("a branch has one");
    assert_eq!(
        store.get_at(tree, b"d", Some(&moment)),
        Some(b"old".to_vec())
    );
    let refused = store.engine().get(tree, b"e", Some(&moment));
    assert!(matches!(refused, Err(KvError::KeysNotHeld(of)) if of == tree));
    drop((first, moment));
    store.engine().drop_pin("pin").expect("the pin goes");
    for ending in [Ending::Closed, Ending::Killed, Ending::PowerCut] {
        store.overwrite(tree, b"newer");
        store.quiesce();
        store.assert_rows(branch, &old, NOW);
        store.assert_rows(inner, &old, NOW);
        assert_eq!(info(&store).branch_ranges, Some(held()));
        store.reopen(ending);
    }
    store.engine().drop_tree(tree).expect("the parent goes");
    store.reopen(Ending::Killed);
    store.quiesce();
    store.assert_rows(branch, &old, NOW);
    store.assert_rows(inner, &old, NOW);
    store.finish();
}

/// A branch takes writes of all keys. Beside its ranges they find nothing of the parent.
pub(super) fn writes(factory: &dyn Factory) {
    let Some((mut store, tree, branch)) = with_branch(factory) else {
        return;
    };
    let append = |b: &mut Batch<'_>, key: &[u8]| b.upsert(branch, key, APPEND, b"+");
    store.commit(|b| {
        append(b, b"c");
        append(b, b"e");
        b.put(branch, b"z", b"own");
        b.delete(branch, b"a");
        b.delete_range(branch, b"d", b"dz");
    });
    let expected: [(&[u8], &[u8]); 4] = [
        (b"c", b"old+"),
        (b"e", b"+"),
        (b"p", b"old"),
        (b"z", b"own"),
    ];
    store.assert_rows(branch, &expected, NOW);
    for ending in [Ending::Killed, Ending::Closed] {
        store.quiesce();
        store.assert_rows(branch, &expected, NOW);
        store.reopen(ending);
    }
    let written = store.engine().branch_keys(branch, None, usize::MAX);
    let written = written.expect("the keys are listed");
    assert_eq!(written, [&b"a"[..], b"c", b"d", b"e", b"z"]);
    store.commit(|b| b.delete_range(branch, b"a", b"zz"));
    let written = store.engine().branch_keys(branch, None, usize::MAX);
    let written = written.expect("the keys are listed");
    let is_held = |key: &&Vec<u8>| !held().has(key);
    let beside: Vec<&Vec<u8>> = written.iter().filter(is_held).collect();
    let own: [&[u8]; 3] = [b"a", b"e", b"z"];
    assert!(
        beside.iter().all(|key| own.contains(&key.as_slice())),
        "{beside:?}"
    );
    store.assert_rows(branch, &[], NOW);
    if store.engine().capabilities().absorb {
        store.commit(|b| b.put(branch, b"q", b"own"));
        let options = CommitOptions::default();
        let (none, batch) = (Guards::since(&store.engine().snapshot()), Batch::new());
        let absorbed = store.engine().absorb(&[branch], &batch, &none, options);
        absorbed.expect("the branch is absorbed");
        store.assert_value(tree, b"q", Some(b"own"));
        store.assert_value(tree, b"d", None);
    }
    store.finish();
}

const LEN_BYTES: u64 = 32 << 20;
const VALUE: [u8; 4 << 10] = [7; 4 << 10];

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Overwriting keys beside the ranges of a branch takes no space. Its own keys do.
pub(super) fn space(factory: &dyn Factory) {
    let Some(subject) = factory.create_small(functions::registry(), LEN_BYTES) else {
        return;
    };
    let mut store = Store::of(subject);
    if !can_branch(&store) {
        return;
    }
    let tree = store.tree("tree");
    let free_at_first = store.engine().space().free_bytes;
    let tenth = u32::try_from(free_at_first / 10 / 4200).expect("a small store");
    let put = |store: &Store, round: u8| {
        for number in 0..tenth {
            let mut value = VALUE;
            value[0] = round;
            let done = store.try_commit(|b| b.put(tree, &key(number), &value));
            done.unwrap_or_else(|e| panic!("round {round}, key {number}: {e}"));
        }
    };
    put(&store, 0);
    store.pin("pin");
    let range = (key(tenth / 2).to_vec(), Some(key(tenth / 2 + 10).to_vec()));
    let ranges = PinRanges::from([(tree, KeyRanges::new([range]))]);
    let narrowed = store.engine().narrow_pin("pin", &ranges);
    narrowed.expect("the pin is narrowed");
    let branch = store.branch_at(tree, "branch", Some(&store.open_pin("pin")));
    store.engine().drop_pin("pin").expect("the pin goes");
    for round in 1..=20 {
        put(&store, round);
        if round % 5 == 0 {
            store.quiesce();
        }
        if round == 10 {
            store.reopen(Ending::Killed);
        }
    }
    store.quiesce();
    let free = store.engine().space().free_bytes;
    assert!(free > free_at_first / 100 * 80, "{free} of {free_at_first}");
    let rows = store.keys(branch, NOW);
    let expected: Vec<_> = (tenth / 2..tenth / 2 + 10)
        .map(|n| key(n).to_vec())
        .collect();
    assert_eq!(rows, expected);
    store.assert_value(branch, &key(tenth / 2), Some(&[&[0], &VALUE[1..]].concat()));
    store.finish();
}
