//! Reads of several keys at one moment.

use super::functions::APPEND;
use super::{Ending, Factory, NOW, Store};
use crate::{KvError, Snapshot};
use stitch_base::TreeId;
use stitch_base::random::Rng;

#[track_caller]
fn assert_as_single_reads(store: &Store, tree: TreeId, keys: &[&[u8]], at: Option<&Snapshot>) {
    let values = store.engine().get_many(tree, keys, at);
    let values = values.expect("the keys are read");
    assert_eq!(values.len(), keys.len(), "one value for each key");
    for (key, value) in keys.iter().zip(values) {
        let value = value.map(|value| value.to_vec());
        assert_eq!(value, store.get_at(tree, key, at), "key {key:?}");
    }
}

/// Several keys are read as each of them alone, in the order in which they were named.
pub(super) fn read(factory: &dyn Factory) {
    let (mut store, tree) = Store::with_tree(factory);
    let mut rng = Rng::new(41);
    for key in (0..=240u8).step_by(3) {
        store.commit(|b| b.put(tree, &[key], &[key; 300]));
    }
    let before = store.engine().snapshot();
    store.commit(|b| b.delete_range(tree, &[30], &[60]));
    store.commit(|b| b.upsert(tree, &[90], APPEND, b"more"));
    store.commit(|b| b.put(tree, &[31], b"again"));
    for at in [NOW, Some(&before)] {
        for count in [0, 1, 7, 200] {
            let keys: Vec<[u8; 1]> = (0..count)
                .map(|_| [rng.next_u64().to_le_bytes()[0]])
                .collect();
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            assert_as_single_reads(&store, tree, &keys, at);
        }
        let named_twice: [&[u8]; 6] = [&[90], &[3], &[], &[31], &[3], &[90]];
        assert_as_single_reads(&store, tree, &named_twice, at);
    }
    drop(before);
    for ending in [Ending::Closed, Ending::Killed] {
        store.quiesce();
        store.reopen(ending);
        let keys: [&[u8]; 4] = [&[31], &[30], &[0], &[90]];
        assert_as_single_reads(&store, tree, &keys, NOW);
    }
    let gone = store.tree("gone");
    store.engine().drop_tree(gone).expect("the tree goes");
    let refused = store.engine().get_many(gone, &[b"k"], NOW);
    assert!(matches!(refused, Err(KvError::NoTree(tree)) if tree == gone));
    store.finish();
}
