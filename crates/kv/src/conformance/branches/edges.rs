//! Branch trees: what is refused, chains, parents that are dropped, space, and threads.

use super::{ENDINGS, branching};
use crate::conformance::functions::{APPEND, registry};
use crate::conformance::{Ending, Factory, NOW, Store};
use crate::{
    BRANCH_DEPTH_MAX, Batch, BranchPoint, CommitOptions, Engine, Guards, KeyRanges, KvError,
    NewBranch, SpaceClass, TREE_NAME_BYTES_MAX, TreeInfo, TreeOptions,
};
use stitch_base::random::Rng;
use stitch_base::thread::spawn;
use stitch_base::{ErrorKind, TreeId};

/// An engine without branch trees refuses each call, and one without `absorb` that one.
pub(in crate::conformance) fn unsupported(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    let has = store.engine().capabilities();
    assert!(has.branches || !has.absorb, "only branches are absorbed");
    let engine = store.engine();
    let guards = Guards::since(&engine.snapshot());
    let options = CommitOptions::default();
    let mut calls = Vec::new();
    if !has.branches {
        let new = [NewBranch::new(tree, "branch")];
        calls.push(engine.branch_trees(&new, None).map(drop));
        calls.push(engine.branch_keys(tree, None, 1).map(drop));
        calls.push(engine.branch_deleted_ranges(tree).map(drop));
        calls.push(engine.branch_moment(tree).map(drop));
    }
    if !has.absorb {
        let absorbed = engine.absorb(&[tree], &Batch::new(), &guards, options);
        calls.push(absorbed.map(drop));
    }
    for call in calls {
        assert_eq!(call.map_err(|e| e.kind()), Err(ErrorKind::Unsupported));
    }
    assert_eq!(store.engine().trees().len(), 1);
    store.finish();
}

fn info(store: &Store, tree: TreeId) -> TreeInfo {
    let mut trees = store.engine().trees().into_iter();
    trees.find(|info| info.id == tree).expect("a living tree")
}

/// Several branches are made in one step and of one moment, or none of them.
pub(in crate::conformance) fn together(factory: &dyn Factory) {
    let Some((mut store, left)) = branching(factory) else {
        return;
    };
    let options = TreeOptions {
        block_bytes: 4 << 10,
        ..TreeOptions::default()
    };
    let right = store.engine().create_tree("right", &options);
    let right = right.expect("the tree is made");
    store.commit(|b| {
        b.put(left, b"k", b"left");
        b.put(right, b"k", b"right");
    });
    let moment = store.engine().snapshot();
    let gone = store.tree("gone");
    store.drop_tree(gone);
    let longest = "n".repeat(TREE_NAME_BYTES_MAX);
    let long = format!("{longest}n");
    let kind = |parent, name: &str, other: &str| {
        let new = [NewBranch::new(left, other), NewBranch::new(parent, name)];
        let made = store.engine().branch_trees(&new, None);
        made.expect_err("it is refused").kind()
    };
    assert_eq!(kind(right, "right", "one"), ErrorKind::Exists);
    assert_eq!(kind(right, "one", "one"), ErrorKind::Exists);
    assert_eq!(kind(right, &long, "one"), ErrorKind::Invalid);
    assert_eq!(kind(gone, "two", "one"), ErrorKind::NotFound);
    assert_eq!(store.engine().trees().len(), 2, "none is made");
    store.commit(|b| b.put(left, b"new", b"new"));
    let young = store.tree("young");
    let new = [NewBranch::new(young, "of young")];
    let made = store.engine().branch_trees(&new, Some(&moment));
    assert!(
        matches!(made, Err(KvError::NoTree(tree)) if tree == young),
        "{made:?}: it was not there"
    );
    assert_eq!(store.engine().branch_trees(&[], None).ok(), Some(vec![]));
    let new = [NewBranch::new(right, "b"), NewBranch::new(left, &longest)];
    let made = store.engine().branch_trees(&new, Some(&moment));
    let made = made.expect("the branches are made");
    let seqno = moment.seqno();
    drop(moment);
    for ending in ENDINGS {
        for (tree, parent, word) in [(made[0], right, "k=right"), (made[1], left, "k=left")] {
            let info = info(&store, tree);
            assert_eq!(info.branch, Some(BranchPoint { parent, seqno }));
            assert_eq!(store.words(tree, NOW), word);
        }
        assert_eq!(info(&store, made[0]).options, options, "as its parent");
        assert_eq!(info(&store, made[1]).name, longest);
        assert_eq!(info(&store, left).branch, None);
        store.reopen(ending);
    }
    store.drop_tree(made[0]);
    store.branch(made[1], "b");
    store.finish();
}

/// Each tree of a chain has what was written to it and to its parents before the next began.
pub(in crate::conformance) fn chains(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    let mut chain = vec![tree];
    for depth in 0..=BRANCH_DEPTH_MAX {
        let last = chain[depth];
        let byte = [u8::try_from(depth).expect("a chain is short")];
        store.commit(|b| {
            b.upsert(last, b"path", APPEND, &byte);
            b.put(last, &byte, b"own");
            b.put(last, b"last", &byte);
        });
        if depth > 2 {
            store.commit(|b| b.delete(last, &[byte[0] - 2]));
        }
        if depth < BRANCH_DEPTH_MAX {
            chain.push(store.branch(last, &format!("branch {depth}")));
        }
        store.commit(|b| b.put(last, b"last", b"after"));
        if depth % 8 == 5 {
            store.quiesce();
        }
    }
    let new = [NewBranch::new(chain[BRANCH_DEPTH_MAX], "too deep")];
    let deep = store.engine().branch_trees(&new, None);
    assert!(matches!(deep, Err(KvError::TooDeep)), "{deep:?}");
    // A parent that is dropped counts as well.
    store.drop_tree(chain[7]);
    let deep = store.engine().branch_trees(&new, None);
    assert!(matches!(deep, Err(KvError::TooDeep)), "{deep:?}");
    for ending in ENDINGS {
        for (depth, tree) in chain.iter().enumerate().filter(|(depth, _)| *depth != 7) {
            let path: Vec<u8> = (0..=u8::try_from(depth).expect("short")).collect();
            store.assert_value(*tree, b"path", Some(&path));
            store.assert_value(*tree, b"last", Some(b"after"));
            let own: Vec<u8> = path
                .iter()
                .copied()
                .filter(|key| {
                    // The trees of depth 3 and more delete the key of two before.
                    *key == 0 || usize::from(*key) + 2 > depth
                })
                .collect();
            let keys = store.keys(*tree, NOW);
            let keys: Vec<u8> = keys.iter().filter(|k| k.len() == 1).map(|k| k[0]).collect();
            assert_eq!(keys, own, "depth {depth}");
        }
        store.quiesce();
        store.reopen(ending);
    }
    store.finish();
}

/// A branch reads parents that were dropped. They go with it.
pub(in crate::conformance) fn dropped_parents(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    store.commit(|b| b.put(tree, b"a", b"tree"));
    let child = store.branch(tree, "child");
    store.commit(|b| b.put(tree, b"a", b"unseen"));
    store.commit(|b| b.put(child, b"b", b"child"));
    let grandchild = store.branch(child, "grandchild");
    store.commit(|b| b.put(child, b"b", b"unseen"));
    store.commit(|b| b.put(grandchild, b"c", b"grandchild"));
    store.engine().drop_trees(&[tree, child]).expect("both go");
    let options = TreeOptions::default();
    for life in 0..6 {
        let ids: Vec<TreeId> = store.engine().trees().iter().map(|t| t.id).collect();
        assert_eq!(ids, [grandchild], "dropped trees are not listed");
        assert_eq!(store.words(grandchild, NOW), "a=tree b=child c=grandchild");
        let moment = store.engine().branch_moment(grandchild);
        let moment = moment.expect("a branch has a moment");
        assert_eq!(store.words(child, Some(&moment)), "a=tree b=child");
        drop(moment);
        let new = [NewBranch::new(child, "of a dropped tree")];
        for refused in [
            store.engine().get(child, b"a", NOW).map(drop),
            store.try_commit(|b| b.put(child, b"a", b"v")),
            store.engine().drop_tree(child),
            store.engine().alter_tree(child, &options),
            store.engine().branch_trees(&new, None).map(drop),
        ] {
            assert!(matches!(refused, Err(KvError::NoTree(gone)) if gone == child));
        }
        match life % 2 {
            0 => store.quiesce(),
            _ => drop(store.reopen(ENDINGS[life / 2])),
        }
    }
    let again = store.tree("tree");
    assert!(again > grandchild, "its name is free and its number is not");
    store.commit(|b| b.put(again, b"a", b"again"));
    assert_eq!(store.words(grandchild, NOW), "a=tree b=child c=grandchild");
    store.drop_tree(grandchild);
    store.quiesce();
    store.reopen(Ending::Killed);
    assert_eq!(store.words(again, NOW), "a=again");
    store.finish();
}

/// A tree that a pin sees after it was dropped is the parent of new branches, which keep it.
pub(in crate::conformance) fn of_dropped_trees(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    if !store.engine().capabilities().pins {
        return;
    }
    store.commit(|b| b.put(tree, b"a", b"tree"));
    let child = store.branch(tree, "child");
    store.commit(|b| b.put(child, b"b", b"child"));
    let pinned = store.engine().create_pin("pin", b"");
    pinned.expect("the pin is made");
    store.commit(|b| b.put(child, b"b", b"unseen"));
    let unnamed = store.engine().snapshot();
    store.engine().drop_trees(&[child]).expect("it goes");
    let new = [NewBranch::new(child, "of a dropped tree")];
    let made = store.engine().branch_trees(&new, Some(&unnamed));
    assert!(matches!(made, Err(KvError::NoTree(gone)) if gone == child));
    drop(unnamed);
    store.quiesce();
    store.reopen(Ending::Killed);
    let moment = store.engine().open_pin("pin").expect("the pin is there");
    let made = store.engine().branch_trees(&new, Some(&moment));
    let branch = made.expect("the pin sees its parent")[0];
    store.engine().drop_pin("pin").expect("the pin goes");
    let later = [NewBranch::new(child, "later")];
    let made = store.engine().branch_trees(&later, Some(&moment));
    assert!(matches!(made, Err(KvError::NoTree(gone)) if gone == child));
    drop(moment);
    store.commit(|b| b.put(branch, b"c", b"branch"));
    for ending in ENDINGS {
        assert_eq!(store.words(branch, NOW), "a=tree b=child c=branch");
        store.quiesce();
        store.reopen(ending);
    }
    store.drop_tree(branch);
    store.finish();
}

/// A branch that gives up what it replaces, and one that gives up what it never reads, read as
/// before.
pub(in crate::conformance) fn released(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    for key in 0..60u8 {
        store.commit(|b| b.put(tree, &[key], &[key]));
    }
    let (one, two) = (store.branch(tree, "one"), store.branch(tree, "two"));
    let at = store.engine().snapshot();
    let ranges = KeyRanges::new([(vec![40], None)]);
    let engine = store.engine();
    engine.release_replaced(&[one]).expect("it is a branch");
    let beside = engine.release_beside(two, &ranges, &at);
    assert!(beside.expect("it is a branch"), "no reader is older");
    drop(at);
    store.commit(|b| {
        b.delete_range(one, &[10], &[20]);
        b.delete(one, &[30]);
        b.upsert(one, &[31], APPEND, b"x");
        b.delete_range(two, &[0], &[40]);
        b.delete_range(tree, &[0], &[60]);
    });
    for ending in ENDINGS {
        for key in (0..10).chain(20..30).chain(32..60u8) {
            store.assert_value(one, &[key], Some(&[key]));
        }
        store.assert_value(one, &[15], None);
        store.assert_value(one, &[30], None);
        store.assert_value(one, &[31], Some(&[31, b'x']));
        let left: Vec<Vec<u8>> = (40..60u8).map(|key| vec![key]).collect();
        assert_eq!(store.keys(two, NOW), left);
        store.quiesce();
        store.reopen(ending);
        store
            .engine()
            .release_replaced(&[one])
            .expect("it is a branch");
    }
    store.finish();
}

/// The keys of a branch are those that were written to it.
pub(in crate::conformance) fn keys_written(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    for key in 0..40u8 {
        store.commit(|b| b.put(tree, &[key], b"1"));
    }
    let branch = store.branch(tree, "branch");
    let keys = |store: &Store, after, count| {
        let keys = store.engine().branch_keys(branch, after, count);
        keys.expect("the keys are listed")
    };
    assert_eq!(keys(&store, None, usize::MAX), Vec::<Vec<u8>>::new());
    store.commit(|b| {
        b.put(tree, &[3], b"in the parent alone");
        b.delete_range(tree, &[30], &[40]);
    });
    store.commit(|b| b.put(branch, &[5], b"2"));
    store.commit(|b| b.delete(branch, &[6]));
    store.commit(|b| b.upsert(branch, &[8], APPEND, b"2"));
    store.commit(|b| b.put(branch, &[100], b"new"));
    store.commit(|b| b.delete_range(branch, &[20], &[23]));
    store.commit(|b| b.delete_range(branch, &[38], &[90]));
    store.commit(|b| b.put(branch, &[21], b"again"));
    store.commit(|b| b.delete_range(branch, &[85], &[95]));
    let written = [5, 6, 8, 20, 21, 22, 38, 39, 100].map(|key| vec![key]);
    let deleted = [(20, 23), (38, 95)].map(|(start, end)| (vec![start], vec![end]));
    for life in 0..6 {
        let ranges = store.engine().branch_deleted_ranges(branch);
        assert_eq!(ranges.expect("the ranges are listed"), deleted);
        assert_eq!(keys(&store, None, usize::MAX), written);
        assert_eq!(keys(&store, None, 4), written[..4]);
        assert_eq!(keys(&store, None, 0), Vec::<Vec<u8>>::new());
        for (from, key) in written.iter().enumerate() {
            assert_eq!(
                keys(&store, Some(key), 3),
                written[from + 1..][..3.min(8 - from)]
            );
        }
        assert_eq!(keys(&store, Some(&[20, 0]), 1), written[4..5]);
        match life % 2 {
            0 => store.quiesce(),
            _ => drop(store.reopen(ENDINGS[life / 2])),
        }
    }
    let of_no_branch = [
        store.engine().branch_keys(tree, None, 1).map(drop),
        store.engine().branch_deleted_ranges(tree).map(drop),
        store.engine().branch_moment(tree).map(drop),
    ];
    for refused in of_no_branch {
        assert!(matches!(refused, Err(KvError::Invalid(_))), "{refused:?}");
    }
    store.drop_tree(branch);
    let of_a_dropped_one = [
        store.engine().branch_keys(branch, None, 1).map(drop),
        store.engine().branch_deleted_ranges(branch).map(drop),
        store.engine().branch_moment(branch).map(drop),
    ];
    for refused in of_a_dropped_one {
        assert!(matches!(refused, Err(KvError::NoTree(gone)) if gone == branch));
    }
    store.finish();
}

const LEN_BYTES: u64 = 32 << 20;

/// Puts rows that cannot be compressed.
fn fill(store: &Store, tree: TreeId, keys: std::ops::Range<u32>) {
    let mut value = vec![0; 4000];
    for key in keys {
        Rng::new(u64::from(key)).fill(&mut value);
        store.commit(|b| b.put(tree, &key.to_be_bytes(), &value));
    }
}

/// A branch copies nothing, and gives back what only it kept.
pub(in crate::conformance) fn space(factory: &dyn Factory) {
    let Some(subject) = factory.create_small(registry(), LEN_BYTES) else {
        return;
    };
    let mut store = Store::of(subject);
    if !store.engine().capabilities().branches {
        return;
    }
    let free_at_first = store.engine().space().free_bytes;
    let third = u32::try_from(free_at_first / 3 / 4200).expect("a small store");
    for round in 0..3 {
        let tree = store.tree("tree");
        fill(&store, tree, 0..third);
        let branches: Vec<TreeId> = (0..4)
            .map(|number| store.branch(tree, &format!("branch {number}")))
            .collect();
        store.drop_tree(tree);
        store.quiesce();
        // A thread that looks at a table holds its space for that moment. None is left in the next
        // life.
        store.reopen(Ending::Closed);
        let free = store.engine().space().free_bytes;
        assert!(free > free_at_first / 2, "four branches share their rows");
        assert!(free < free_at_first / 4 * 3, "the branches need the rows");
        fill(&store, branches[0], 0..third / 4);
        if round == 1 {
            store.reopen(Ending::Killed);
        }
        assert_eq!(store.rows(branches[3]).len(), third as usize);
        store
            .try_commit_from(SpaceClass::Reserve, |b| {
                b.delete_range(branches[1], b"", &[255; 5]);
            })
            .expect("a range is deleted in the branch");
        assert_eq!(store.rows(branches[1]), []);
        assert_eq!(store.rows(branches[0]).len(), third as usize);
        store.engine().drop_trees(&branches).expect("they go");
        store.quiesce();
        store.reopen(Ending::Closed);
        let free = store.engine().space().free_bytes;
        let least = free_at_first - free_at_first / 20;
        assert!(free >= least, "round {round}: {free} of {free_at_first}");
    }
    store.finish();
}

fn write_pairs(engine: &dyn Engine, trees: [TreeId; 2]) {
    for number in 0..300u32 {
        let mut batch = Batch::new();
        for tree in trees {
            batch.put(tree, b"n", &number.to_be_bytes());
        }
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("the batch is committed");
    }
}

/// Branches that are made beside commits begin with whole batches, and with no older ones than
/// those before them.
pub(in crate::conformance) fn beside_commits(factory: &dyn Factory) {
    let Some((store, left)) = branching(factory) else {
        return;
    };
    let right = store.tree("right");
    let engine = store.shared();
    let writer = spawn("writer", move || {
        write_pairs(engine.as_ref(), [left, right])
    });
    let writer = writer.expect("a thread starts");
    let mut last = None;
    for round in 0..20 {
        let names = [format!("left {round}"), format!("right {round}")];
        let new = [
            NewBranch::new(left, &names[0]),
            NewBranch::new(right, &names[1]),
        ];
        let made = store.engine().branch_trees(&new, None);
        let made = made.expect("the branches are made");
        let seen = store.get(made[0], b"n");
        assert_eq!(store.get(made[1], b"n"), seen, "half a batch");
        assert!(seen >= last, "a later branch sees less");
        last = seen;
    }
    writer.join().expect("the writer ends");
    store.finish();
}
