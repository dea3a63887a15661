//! Guards on the keys of branch trees, and on the keys of their parents that were written in them.

use super::branching;
use crate::conformance::functions::APPEND;
use crate::conformance::{Ending, Factory, Store};
use crate::{Batch, CommitOptions, Guards, KeyRange, KvError, Snapshot};
use stitch_base::TreeId;
use stitch_base::random::Rng;

/// A store with a tree, of an engine that has branches and checks guards.
fn guarding(factory: &dyn Factory) -> Option<(Store, TreeId)> {
    let found = branching(factory)?;
    found.0.engine().capabilities().guards.then_some(found)
}

impl Store {
    /// The keys that changed under guards. A commit under them finds the first one.
    #[track_caller]
    fn changed(&self, guards: &Guards) -> Vec<Vec<u8>> {
        let listed = self.engine().changed_keys(guards, usize::MAX);
        let listed: Vec<_> = listed.expect("the keys are listed").into_iter().collect();
        let (batch, options) = (Batch::new(), CommitOptions::default());
        match self.engine().commit_guarded(&batch, guards, options) {
            Ok(_) => assert!(listed.is_empty(), "{listed:?} changed"),
            Err(KvError::Conflict { tree, key }) => {
                let first = listed.first().expect("the conflict is listed");
                assert_eq!((tree, &key), (first.tree, &first.key));
            }
            Err(error) => panic!("{error}"),
        }
        listed.into_iter().map(|changed| changed.key).collect()
    }

    /// The keys of a tree that changed, of those that were written to a branch of it.
    #[track_caller]
    fn changed_of(&self, parent: TreeId, branch: TreeId) -> Vec<Vec<u8>> {
        let moment = self.engine().branch_moment(branch);
        let mut guards = Guards::since(&moment.expect("a branch has a moment"));
        guards.written(parent, branch);
        self.changed(&guards)
    }
}

fn on_key(since: &Snapshot, tree: TreeId, key: &[u8]) -> Guards {
    let mut guards = Guards::since(since);
    guards.key(tree, key);
    guards
}

/// Guards on keys of a branch see what was written to the branch after their moment, and nothing of
/// its parent.
pub(in crate::conformance) fn own_guards(factory: &dyn Factory) {
    let Some((mut store, tree)) = guarding(factory) else {
        return;
    };
    store.commit(|b| {
        for key in [b"a", b"b", b"c", b"d"] {
            b.put(tree, key, b"1");
        }
    });
    let branch = store.branch(tree, "branch");
    store.commit(|b| b.put(branch, b"a", b"2"));
    let since = store.engine().snapshot();
    store.commit(|b| {
        b.put(tree, b"a", b"parent");
        b.delete_range(tree, b"b", b"z");
    });
    let all = |store: &Store, since: &Snapshot| {
        let mut guards = Guards::since(since);
        guards.range(branch, KeyRange::all());
        store.changed(&guards)
    };
    // Once in memory, once in tables.
    for _ in 0..2 {
        assert!(all(&store, &since).is_empty(), "only the parent changed");
        store.quiesce();
    }
    store.commit(|b| {
        b.upsert(branch, b"a", APPEND, b"3");
        b.delete(branch, b"c");
    });
    for _ in 0..2 {
        for (key, is_changed) in [(b"a", true), (b"b", false), (b"c", true), (b"d", false)] {
            let found = store.changed(&on_key(&since, branch, key));
            assert_eq!(!found.is_empty(), is_changed, "key {key:?}");
        }
        assert_eq!(all(&store, &since), [b"a", b"c"]);
        let now = store.engine().snapshot();
        assert!(all(&store, &now).is_empty(), "nothing is newer");
        store.quiesce();
    }
    store.commit(|b| b.delete_range(branch, b"d", b"e"));
    assert_eq!(store.changed(&on_key(&since, branch, b"d")), [b"d"]);
    drop(since);
    store.reopen(Ending::Closed);
    let since = store.engine().snapshot();
    assert!(all(&store, &since).is_empty());
    store.commit(|b| b.put(branch, b"e", b"4"));
    assert_eq!(all(&store, &since), [b"e"]);
    // Of a branch that the branch absorbs, all counts as written then.
    if store.engine().capabilities().absorb {
        let child = store.branch(branch, "child");
        store.commit(|b| b.put(child, b"f", b"5"));
        let since = store.engine().snapshot();
        let none = Guards::since(&since);
        let (batch, options) = (Batch::new(), CommitOptions::default());
        let done = store.engine().absorb(&[child], &batch, &none, options);
        done.expect("the branch is absorbed");
        assert_eq!(all(&store, &since), [b"f"]);
    }
    store.finish();
}

/// A guard on what was written to a branch is one on each of its keys and deleted ranges.
pub(in crate::conformance) fn written_guards(factory: &dyn Factory) {
    let Some((store, tree)) = guarding(factory) else {
        return;
    };
    store.commit(|b| {
        for key in [b"a", b"b", b"m", b"n", b"x"] {
            b.put(tree, key, b"1");
        }
    });
    let (branch, other) = (store.branch(tree, "branch"), store.branch(tree, "other"));
    store.commit(|b| {
        b.put(branch, b"b", b"2");
        b.upsert(branch, b"c", APPEND, b"2");
        b.delete_range(branch, b"m", b"o");
        b.put(other, b"x", b"other");
    });
    store.commit(|b| {
        b.put(tree, b"a", b"parent");
        b.put(tree, b"d", b"parent");
    });
    assert!(store.changed_of(tree, branch).is_empty(), "of no key of it");
    // Newer keys of the branch count, too.
    store.commit(|b| b.put(branch, b"d", b"3"));
    assert_eq!(store.changed_of(tree, branch), [b"d"]);
    store.commit(|b| {
        // Not there before, in the deleted range.
        b.put(tree, b"mm", b"parent");
        b.delete(tree, b"b");
    });
    for _ in 0..2 {
        let changed = store.changed_of(tree, branch);
        assert_eq!(changed, [&b"b"[..], b"d", b"mm"]);
        assert!(store.changed_of(tree, other).is_empty());
        store.quiesce();
    }
    // Of a range delete at least one key is listed.
    store.commit(|b| b.delete_range(tree, b"w", b"y"));
    for _ in 0..2 {
        assert_eq!(store.changed_of(tree, other), [b"x"]);
        store.quiesce();
    }
    let since = store.engine().snapshot();
    let refused = |tree: TreeId, branch: TreeId| {
        let mut guards = Guards::since(&since);
        guards.written(tree, branch);
        let (batch, options) = (Batch::new(), CommitOptions::default());
        let done = store.engine().commit_guarded(&batch, &guards, options);
        done.expect_err("it is refused")
    };
    assert!(matches!(refused(tree, tree), KvError::Invalid(_)));
    assert!(matches!(refused(other, branch), KvError::Invalid(_)));
    store.drop_tree(other);
    assert!(matches!(refused(tree, other), KvError::NoTree(of) if of == other));
    if store.engine().capabilities().absorb {
        absorb_under(&store, tree, branch);
    }
    store.finish();
}

/// Absorbs a branch under a guard on what it has: refused while the parent changed one of its keys.
fn absorb_under(store: &Store, tree: TreeId, branch: TreeId) {
    let absorb = |since: &Snapshot| {
        let mut guards = Guards::since(since);
        guards.written(tree, branch);
        let (batch, options) = (Batch::new(), CommitOptions::default());
        store.engine().absorb(&[branch], &batch, &guards, options)
    };
    let moment = store.engine().branch_moment(branch);
    let refused = absorb(&moment.expect("a branch has a moment"));
    let refused = refused.expect_err("the parent changed keys of it");
    let is_first = |of: TreeId, key: &[u8]| of == tree && key == b"b";
    assert!(
        matches!(&refused, KvError::Conflict { tree, key } if is_first(*tree, key)),
        "{refused}"
    );
    let since = store.engine().snapshot();
    store.commit(|b| b.put(tree, b"a", b"again"));
    absorb(&since).expect("no key of the branch changed since");
    store.assert_value(tree, b"d", Some(b"3"));
    store.assert_value(tree, b"mm", None);
}

const KEYS: u64 = 24;

/// Writes to a random key or range of a tree.
fn write(batch: &mut Batch, tree: TreeId, rng: &mut Rng) {
    let key = u8::try_from(rng.below(KEYS)).expect("a key is a byte");
    match rng.below(6) {
        0 => batch.delete_range(tree, &[key], &[key + 3]),
        1 => batch.delete(tree, &[key]),
        2 => batch.upsert(tree, &[key], APPEND, b"x"),
        _ => batch.put(tree, &[key], &rng.below(1 << 20).to_le_bytes()),
    }
}

/// A guard on what was written to a branch finds a change if, and only if, guards on its keys and
/// its deleted ranges do.
pub(in crate::conformance) fn random_written_guards(factory: &dyn Factory) {
    let Some((store, tree)) = guarding(factory) else {
        return;
    };
    let mut rng = Rng::new(229);
    let (mut changed_count, mut quiet_count) = (0, 0);
    for round in 0..60 {
        store.commit(|b| (0..4).for_each(|_| write(b, tree, &mut rng)));
        let branch = store.branch(tree, &format!("branch {round}"));
        for _ in 0..rng.below(12) {
            let of = if rng.one_in(2) { tree } else { branch };
            store.commit(|b| write(b, of, &mut rng));
            if rng.one_in(8) {
                store.quiesce();
            }
        }
        let moment = store.engine().branch_moment(branch);
        let mut by_key = Guards::since(&moment.expect("a branch has a moment"));
        let keys = store.engine().branch_keys(branch, None, usize::MAX);
        let keys = keys.expect("the keys are listed");
        keys.iter().for_each(|key| by_key.key(tree, key));
        let ranges = store.engine().branch_deleted_ranges(branch);
        for (start, end) in &ranges.expect("the ranges are listed") {
            by_key.range(tree, KeyRange::new(start, end));
        }
        let expected = store.changed(&by_key);
        let found = store.changed_of(tree, branch);
        assert_eq!(found.is_empty(), expected.is_empty(), "round {round}");
        let is_expected = |key: &Vec<u8>| expected.contains(key);
        assert!(found.iter().all(is_expected), "{found:?} of {expected:?}");
        changed_count += u64::from(!found.is_empty());
        quiet_count += u64::from(found.is_empty());
        store.drop_tree(branch);
    }
    assert!(changed_count > 5 && quiet_count > 5, "both happen");
    store.finish();
}
