//! Branches that are absorbed by their parents.

use super::{ENDINGS, branching};
use crate::conformance::functions::{ADD, APPEND};
use crate::conformance::{Ending, Factory, NOW, Store, read_all};
use crate::{Batch, CommitOptions, Guards, KvError};
use stitch_base::{ErrorKind, Seqno, TreeId};

const SYNCED: CommitOptions = CommitOptions {
    sync: true,
    space: crate::SpaceClass::Normal,
};

/// A store with a tree, of an engine that absorbs branches.
fn absorbing(factory: &dyn Factory) -> Option<(Store, TreeId)> {
    let found = branching(factory)?;
    found.0.engine().capabilities().absorb.then_some(found)
}

impl Store {
    fn try_absorb(
        &self,
        branches: &[TreeId],
        guards: Option<&Guards>,
        build: impl FnOnce(&mut Batch),
    ) -> Result<Seqno, KvError> {
        let mut batch = Batch::new();
        build(&mut batch);
        let none = Guards::since(&self.engine().snapshot());
        let guards = guards.unwrap_or(&none);
        let options = CommitOptions::default();
        self.engine().absorb(branches, &batch, guards, options)
    }

    #[track_caller]
    fn absorb(&self, branches: &[TreeId]) {
        let before = self.engine().snapshot().seqno();
        let seqno = self.try_absorb(branches, None, |_| {});
        let seqno = seqno.expect("the branches are absorbed");
        assert!(seqno >= before, "a commit has a later number");
        assert!(self.engine().snapshot().seqno() >= seqno);
        for tree in branches {
            let gone = self.engine().get(*tree, b"", NOW);
            assert!(matches!(gone, Err(KvError::NoTree(of)) if of == *tree));
        }
    }

    /// Guards on every key that was written to a branch, as of its moment.
    fn guards_of(&self, parent: TreeId, branch: TreeId) -> Guards {
        let moment = self.engine().branch_moment(branch);
        let mut guards = Guards::since(&moment.expect("a branch has a moment"));
        let keys = self.engine().branch_keys(branch, None, usize::MAX);
        let keys = keys.expect("the keys are listed");
        keys.iter().for_each(|key| guards.key(parent, key));
        guards
    }
}

/// What was written to a branch may be longer than any batch.
pub(in crate::conformance) fn large(factory: &dyn Factory) {
    let Some((mut store, tree)) = absorbing(factory) else {
        return;
    };
    let limits = store.engine().limits();
    let value_bytes = limits.value_bytes_max.min(64 << 10);
    let count = limits.batch_bytes_max.min(12 << 20) / value_bytes + 40;
    let value = |number: u64| {
        let len = usize::try_from(value_bytes).expect("a value fits memory");
        vec![number.to_le_bytes()[0]; len]
    };
    let key = |number: u64| number.to_be_bytes();
    store.commit(|b| {
        for number in (0..20).map(|n| n * count / 10) {
            b.put(tree, &key(number), b"before");
        }
    });
    let branch = store.branch(tree, "long");
    for number in 0..count {
        store.commit(|b| b.put(branch, &key(number), &value(number)));
    }
    store.commit(|b| b.upsert(branch, &key(3), APPEND, b"end"));
    store.commit(|b| b.delete_range(branch, &key(count + 1), &key(u64::MAX)));
    store.commit(|b| b.put(tree, &key(5), b"other"));
    let before = store.engine().snapshot();
    let keys = |store: &Store, at| read_all(store.engine(), tree, at).len() as u64;
    let seen = keys(&store, NOW);
    let last = key(count + 2);
    let done = store.try_absorb(&[branch], None, |b| b.put(tree, &last, b"batch"));
    done.expect("the branch is absorbed");
    for is_again in [false, true] {
        if !is_again {
            assert_eq!(keys(&store, Some(&before)), seen);
        }
        // And the row of before at `count`.
        assert_eq!(keys(&store, NOW), count + 2);
        for number in [0, 5, count / 2, count - 1] {
            store.assert_value(tree, &key(number), Some(&value(number)));
        }
        let three = [&value(3)[..], b"end"].concat();
        store.assert_value(tree, &key(3), Some(&three));
        store.assert_value(tree, &last, Some(b"batch"));
        store.quiesce();
        if !is_again {
            store.reopen(Ending::Killed);
        }
    }
}

/// Each message is applied to what the parent holds by then.
pub(in crate::conformance) fn messages(factory: &dyn Factory) {
    for settled in [false, true] {
        let Some((mut store, tree)) = absorbing(factory) else {
            return;
        };
        let other = store.tree("other");
        store.commit(|b| {
            for key in [b"a", b"b", b"c", b"d", b"e"] {
                b.put(tree, key, b"1");
            }
            b.put(other, b"o", b"1");
        });
        let branches = [store.branch(tree, "x"), store.branch(other, "y")];
        let [x, y] = branches;
        store.commit(|b| b.put(x, b"a", b"2"));
        store.commit(|b| {
            b.delete(x, b"b");
            b.upsert(x, b"c", APPEND, b"2");
            b.upsert(x, b"n", APPEND, b"2");
            b.delete_range(x, b"p", b"r");
            b.put(x, b"q", b"2");
        });
        store.commit(|b| b.upsert(x, b"c", APPEND, b"3"));
        store.commit(|b| b.upsert(y, b"o", APPEND, b"2"));
        store.commit(|b| {
            b.put(tree, b"a", b"parent");
            b.put(tree, b"b", b"parent");
            b.upsert(tree, b"c", APPEND, b"parent");
            b.put(tree, b"d", b"parent");
            b.put(tree, b"p", b"parent");
            b.put(tree, b"q", b"parent");
        });
        if settled {
            store.quiesce();
        }
        let before = store.engine().snapshot();
        let seen = [store.words(tree, NOW), store.words(other, NOW)];
        let done = store.try_absorb(&branches, None, |b| {
            b.put(tree, b"z", b"batch");
            b.upsert(other, b"o", APPEND, b"batch");
        });
        let seqno = done.expect("the branches are absorbed");
        assert!(seqno > before.seqno(), "a commit has a later number");
        for _ in 0..2 {
            let at = Some(&before);
            assert_eq!([store.words(tree, at), store.words(other, at)], seen);
            let now = "a=2 c=1parent23 d=parent e=1 n=2 q=2 z=batch";
            assert_eq!(store.words(tree, NOW), now);
            assert_eq!(store.words(other, NOW), "o=12batch");
            store.quiesce();
        }
        drop(before);
        assert_eq!(store.engine().trees().len(), 2, "the branches are gone");
        let again = store.branch(tree, "x");
        store.commit(|b| b.delete(again, b"a"));
        store.absorb(&[again]);
        store.assert_value(tree, b"a", None);
        store.reopen(Ending::Closed);
        store.assert_value(tree, b"a", None);
        store.finish();
    }
}

/// A conflict leaves parents and branches as they were.
pub(in crate::conformance) fn guarded(factory: &dyn Factory) {
    let Some((store, tree)) = absorbing(factory) else {
        return;
    };
    if !store.engine().capabilities().guards {
        return;
    }
    store.commit(|b| {
        b.put(tree, b"a", b"1");
        b.put(tree, b"b", b"1");
        b.put(tree, b"m", b"1");
    });
    let (branch, calm) = (store.branch(tree, "branch"), store.branch(tree, "calm"));
    store.commit(|b| {
        b.put(branch, b"b", b"2");
        b.delete_range(branch, b"m", b"n");
        b.put(calm, b"c", b"calm");
    });
    store.commit(|b| b.put(tree, b"a", b"parent"));
    let quiet = store.guards_of(tree, branch);
    store.commit(|b| b.put(tree, b"m", b"parent"));
    for _ in 0..2 {
        let done = store.try_absorb(&[calm, branch], Some(&quiet), |b| {
            b.put(tree, b"z", b"batch");
        });
        let error = done.expect_err("a conflict");
        let is_on = |of: TreeId, key: &[u8]| of == tree && key == b"m";
        assert!(
            matches!(&error, KvError::Conflict { tree, key } if is_on(*tree, key)),
            "{error}"
        );
        assert_eq!(store.words(tree, NOW), "a=parent b=1 m=parent");
        assert_eq!(store.words(branch, NOW), "a=1 b=2");
        assert_eq!(store.words(calm, NOW), "a=1 b=1 c=calm m=1");
        store.quiesce();
    }
    store.commit(|b| b.put(branch, b"k", b"goes on"));
    let calm_guards = store.guards_of(tree, calm);
    let done = store.try_absorb(&[calm], Some(&calm_guards), |_| {});
    done.expect("nothing changed");
    store.absorb(&[branch]);
    assert_eq!(store.words(tree, NOW), "a=parent b=2 c=calm k=goes on");
    store.finish();
}

/// What cannot be absorbed is refused, and nothing is changed.
pub(in crate::conformance) fn refused(factory: &dyn Factory) {
    let Some((store, tree)) = absorbing(factory) else {
        return;
    };
    store.commit(|b| b.put(tree, b"k", b"1"));
    let (branch, other) = (store.branch(tree, "branch"), store.branch(tree, "other"));
    let child = store.branch(branch, "child");
    store.commit(|b| {
        b.put(branch, b"k", b"2");
        b.put(other, b"k", b"3");
    });
    let gone = store.branch(tree, "gone");
    store.drop_tree(gone);
    let kind = |trees: &[TreeId]| {
        let done = store.try_absorb(trees, None, |b| b.put(tree, b"z", b"batch"));
        done.map_err(|error| error.kind()).expect_err("refused")
    };
    assert_eq!(kind(&[other, gone]), ErrorKind::NotFound);
    assert_eq!(kind(&[other, tree]), ErrorKind::Invalid, "no branch");
    assert_eq!(kind(&[other, other]), ErrorKind::Invalid, "twice");
    assert_eq!(kind(&[other, branch]), ErrorKind::Invalid, "has a branch");
    assert_eq!(kind(&[branch, child]), ErrorKind::Invalid, "has a branch");
    assert_eq!(kind(&[child, branch]), ErrorKind::Invalid, "has a branch");
    assert_eq!(store.words(tree, NOW), "k=1");
    assert_eq!(store.words(other, NOW), "k=3");
    assert_eq!(store.words(child, NOW), "k=1");
    let none = store.try_absorb(&[], None, |b| b.put(tree, b"k", b"no branch"));
    none.expect("no branch at all is a commit");
    store.assert_value(tree, b"k", Some(b"no branch"));
    store.drop_tree(branch);
    assert_eq!(kind(&[child]), ErrorKind::NotFound, "its parent is gone");
    store.drop_tree(child);
    store.engine().close().expect("the store closes");
    assert_eq!(kind(&[other]), ErrorKind::Closed);
}

/// A branch of a branch is absorbed by it, and that one by its own parent.
pub(in crate::conformance) fn nested(factory: &dyn Factory) {
    let Some((mut store, tree)) = absorbing(factory) else {
        return;
    };
    let number = |n: u64| n.to_le_bytes();
    store.commit(|b| b.put(tree, b"n", &number(1)));
    let outer = store.branch(tree, "outer");
    store.commit(|b| b.upsert(outer, b"n", ADD, &number(10)));
    let inner = store.branch(outer, "inner");
    store.commit(|b| b.upsert(inner, b"n", ADD, &number(100)));
    store.commit(|b| b.put(inner, b"inner", b"v"));
    store.commit(|b| b.delete_range(inner, b"o", b"p"));
    store.commit(|b| b.upsert(outer, b"n", ADD, &number(1000)));
    store.commit(|b| {
        b.upsert(tree, b"n", ADD, &number(10_000));
        b.put(tree, b"o", b"parent");
    });
    store.absorb(&[inner]);
    store.assert_value(outer, b"n", Some(&number(1111)));
    store.assert_value(outer, b"inner", Some(b"v"));
    store.assert_value(tree, b"n", Some(&number(10_001)));
    store.quiesce();
    store.reopen(Ending::Killed);
    assert_eq!(store.keys(outer, NOW), [&b"inner"[..], b"n"]);
    store.absorb(&[outer]);
    store.quiesce();
    store.assert_value(tree, b"n", Some(&number(11_111)));
    assert_eq!(store.keys(tree, NOW), [&b"inner"[..], b"n"]);
    store.finish();
}

/// What was absorbed survives every ending, and is not absorbed twice.
pub(in crate::conformance) fn survive(factory: &dyn Factory) {
    let Some((mut store, tree)) = absorbing(factory) else {
        return;
    };
    let mut expected = 0u64;
    for life in 0..9u64 {
        let branch = store.branch(tree, "branch");
        for key in 0..50u8 {
            store.commit(|b| {
                b.put(
                    branch,
                    &[key],
                    &[u8::try_from(life).expect("few lives"); 300],
                );
                b.upsert(branch, b"n", ADD, &(life + 1).to_le_bytes());
            });
        }
        expected += 50 * (life + 1);
        if life % 2 == 0 {
            store.quiesce();
        }
        let guards = Guards::since(&store.engine().snapshot());
        let batch = Batch::new();
        let done = store.engine().absorb(&[branch], &batch, &guards, SYNCED);
        done.expect("the branch is absorbed");
        drop(guards);
        if life % 3 != 2 {
            store.reopen(ENDINGS[usize::try_from(life % 3).expect("small")]);
        } else if !store.reopen(Ending::PowerCut) {
            continue;
        }
        store.assert_value(tree, b"n", Some(&expected.to_le_bytes()));
        let value = [u8::try_from(life).expect("few lives"); 300];
        store.assert_value(tree, &[49], Some(&value));
        assert_eq!(store.engine().trees().len(), 1, "the branch is gone");
    }
    store.finish();
}
