//! Pins of some trees: they keep what these held, and nothing of the others.

use super::{Ending, Factory, NOW, Store, functions, read_all};
use crate::{
    Batch, CommitOptions, Direction, Guards, Holder, KeyRange, KvError, NewBranch, PinInfo,
    PinScope, Snapshot, TreeInfo,
};
use stitch_base::TreeId;
use stitch_base::random::Rng;

const ENDINGS: [Ending; 3] = [Ending::Closed, Ending::Killed, Ending::PowerCut];

/// A store with two trees, of an engine that has pins of some trees.
fn with_scopes(factory: &dyn Factory) -> Option<(Store, TreeId, TreeId)> {
    let (store, tree) = Store::with_tree(factory);
    if !store.engine().capabilities().pins_of_trees {
        return None;
    }
    let other = store.tree("other");
    Some((store, tree, other))
}

impl Store {
    #[track_caller]
    fn pin_of(&self, name: &str, trees: &[TreeId]) -> PinInfo {
        let is_held = |tree: &TreeInfo| trees.contains(&tree.id);
        let made = self.engine().create_pin_of(name, b"user", &is_held);
        made.expect("the pin is made")
    }

    /// Asserts that every call at a snapshot refuses a tree that its pin does not hold.
    #[track_caller]
    fn assert_not_held(&self, tree: TreeId, at: &Snapshot) {
        let engine = self.engine();
        let all = KeyRange::all();
        let mut calls = vec![
            engine.get(tree, b"k", Some(at)).map(drop),
            engine.get_many(tree, &[b"k"], Some(at)).map(drop),
            engine
                .scan(tree, all, Direction::Forward, Some(at))
                .map(drop),
            engine
                .scan(tree, all, Direction::Backward, Some(at))
                .map(drop),
            engine.scan_whole(tree, all, Some(at)).map(drop),
        ];
        let capabilities = engine.capabilities();
        if capabilities.keys_between {
            calls.push(engine.keys_between(tree, all, (at, None), 9).map(drop));
            calls.push(engine.keys_between(tree, all, (at, Some(at)), 9).map(drop));
        }
        if capabilities.space_shares {
            calls.push(engine.range_space(tree, &[all], Some(at)).map(drop));
        }
        for call in calls {
            assert!(
                matches!(call, Err(KvError::NotHeld(refused)) if refused == tree),
                "{call:?}"
            );
        }
        let listed = engine.trees_at(at);
        assert!(listed.iter().all(|info| info.id != tree), "it is listed");
    }
}

/// What a pin holds is listed, read, and survives; what it does not hold is refused.
pub(super) fn listed(factory: &dyn Factory) {
    let Some((mut store, tree, other)) = with_scopes(factory) else {
        return;
    };
    for tree in [tree, other] {
        store.commit(|b| b.put(tree, b"k", b"old"));
    }
    let one = store.pin_of("one", &[tree]);
    let none = store.pin_of("none", &[]);
    let all = store.pin_of("all", &[tree, other]);
    assert_eq!(one.scope.trees(), Some(&[tree][..]));
    assert_eq!(none.scope.trees(), Some(&[][..]));
    assert_eq!(all.scope, PinScope::AllTrees);
    assert_eq!(store.pin("plain").scope, PinScope::AllTrees);
    assert_eq!((&one.user[..], one.seqno), (&b"user"[..], all.seqno));
    for tree in [tree, other] {
        store.commit(|b| b.put(tree, b"k", b"new"));
    }
    let later = store.tree("later");
    store.commit(|b| b.put(later, b"k", b"later"));
    for ending in ENDINGS {
        let pins = store.engine().pins().expect("the pins are listed");
        assert_eq!(pins[..3], [one.clone(), none.clone(), all.clone()]);
        let at = store.open_pin("one");
        assert_eq!(store.get_at(tree, b"k", Some(&at)), Some(b"old".to_vec()));
        store.assert_not_held(other, &at);
        assert_eq!(store.get_at(later, b"k", Some(&at)), None, "made later");
        let listed = store.engine().trees_at(&at);
        assert_eq!(listed.iter().map(|t| t.id).collect::<Vec<_>>(), [tree]);
        store.assert_not_held(tree, &store.open_pin("none"));
        let at = store.open_pin("all");
        for tree in [tree, other] {
            assert_eq!(store.get_at(tree, b"k", Some(&at)), Some(b"old".to_vec()));
        }
        drop(at);
        store.quiesce();
        store.reopen(ending);
    }
    let altered = store.engine().alter_pin("one", b"other");
    altered.expect("the pin takes other bytes");
    store.reopen(Ending::Killed);
    let pins = store.engine().pins().expect("the pins are listed");
    assert_eq!(
        (&pins[0].user[..], &pins[0].scope),
        (&b"other"[..], &one.scope)
    );
    store.finish();
}

/// A dropped tree stays for the pins that hold it, and for no others.
pub(super) fn hidden_trees(factory: &dyn Factory) {
    let Some((mut store, tree, other)) = with_scopes(factory) else {
        return;
    };
    for tree in [tree, other] {
        store.commit(|b| b.put(tree, b"k", b"v"));
    }
    store.pin_of("first", &[tree]);
    store.pin_of("second", &[other]);
    store.pin_of("third", &[tree]);
    let opened = store.open_pin("third");
    let trees = [tree, other];
    store.engine().drop_trees(&trees).expect("the trees go");
    let is_readable = |store: &Store, name: &str, tree| {
        let at = store.open_pin(name);
        match store.engine().get(tree, b"k", Some(&at)) {
            Ok(found) => found.is_some(),
            Err(KvError::NotHeld(_)) => false,
            Err(error) => panic!("a tree of the pin is there: {error}"),
        }
    };
    assert_eq!(store.get_at(tree, b"k", Some(&opened)), Some(b"v".to_vec()));
    drop(opened);
    for ending in ENDINGS {
        for (name, held) in [("first", tree), ("second", other), ("third", tree)] {
            for tree in trees {
                assert_eq!(is_readable(&store, name, tree), tree == held, "{name}");
            }
        }
        store.quiesce();
        store.reopen(ending);
    }
    // Neither the newest pin that holds a tree is the newest of all, nor the other way round.
    store.engine().drop_pin("third").expect("the pin goes");
    assert!(is_readable(&store, "first", tree) && is_readable(&store, "second", other));
    store.engine().drop_pin("first").expect("the pin goes");
    store.reopen(Ending::PowerCut);
    assert!(is_readable(&store, "second", other));
    let opened = store.open_pin("second");
    store.engine().drop_pin("second").expect("the pin goes");
    assert_eq!(
        store.get_at(other, b"k", Some(&opened)),
        Some(b"v".to_vec())
    );
    let refused = store.engine().get(tree, b"k", Some(&opened));
    assert!(matches!(refused, Err(KvError::NotHeld(of)) if of == tree));
    drop(opened);
    store.finish();
}

/// Branches and guards begin at a pin of their tree alone.
pub(super) fn branches(factory: &dyn Factory) {
    let Some((store, tree, other)) = with_scopes(factory) else {
        return;
    };
    let capabilities = store.engine().capabilities();
    if !capabilities.branches || !capabilities.guards {
        return;
    }
    for tree in [tree, other] {
        store.commit(|b| b.put(tree, b"k", b"old"));
    }
    let early = [NewBranch::new(other, "early")];
    let early = store.engine().branch_trees(&early, NOW);
    let early = early.expect("the branch is made")[0];
    store.pin_of("pin", &[tree, early]);
    let at = store.open_pin("pin");
    for tree in [tree, other, early] {
        store.commit(|b| b.put(tree, b"k", b"new"));
    }
    store.quiesce();
    // The branch reads its parent at its own moment, which it holds itself.
    assert_eq!(store.get_at(early, b"k", Some(&at)), Some(b"old".to_vec()));
    let made = |parents: &[(TreeId, &str)]| {
        let new: Vec<_> = parents.iter().map(|(p, n)| NewBranch::new(*p, n)).collect();
        store.engine().branch_trees(&new, Some(&at))
    };
    let refused = made(&[(tree, "a"), (other, "b")]);
    assert!(matches!(refused, Err(KvError::NotHeld(refused)) if refused == other));
    let made = made(&[(tree, "a")]).expect("the pin holds its parent")[0];
    store.engine().drop_pin("pin").expect("the pin goes");
    store.quiesce();
    store.assert_value(made, b"k", Some(b"old"));
    let later = [NewBranch::new(other, "later")];
    let later = store.engine().branch_trees(&later, NOW);
    store.assert_not_held(later.expect("the branch is made")[0], &at);
    for (of, is_refused) in [(tree, false), (other, true)] {
        let mut guards = Guards::since(&at);
        guards.key(of, b"k");
        let (batch, options) = (Batch::new(), CommitOptions::default());
        let done = store.engine().commit_guarded(&batch, &guards, options);
        match is_refused {
            true => assert!(matches!(done, Err(KvError::NotHeld(tree)) if tree == of)),
            false => assert!(matches!(done, Err(KvError::Conflict { .. }))),
        }
    }
    drop(at);
    store.finish();
}

const LEN_BYTES: u64 = 32 << 20;

fn put_rows(store: &Store, tree: TreeId, count: u32, round: u32) {
    for key in 0..count {
        let mut value = vec![0; 4000];
        Rng::new(u64::from(round) << 32 | u64::from(key)).fill(&mut value);
        let put = store.try_commit(|b| b.put(tree, &key.to_be_bytes(), &value));
        put.unwrap_or_else(|e| panic!("round {round}, key {key}: {e}"));
    }
}

/// Overwriting a tree beside a pin of another one takes no space; what a pin holds does.
pub(super) fn space(factory: &dyn Factory) {
    let Some(subject) = factory.create_small(functions::registry(), LEN_BYTES) else {
        return;
    };
    let mut store = Store::of(subject);
    if !store.engine().capabilities().pins_of_trees {
        return;
    }
    let (tree, other) = (store.tree("tree"), store.tree("other"));
    let free_at_first = store.engine().space().free_bytes;
    let tenth = u32::try_from(free_at_first / 10 / 4200).expect("a small store");
    put_rows(&store, tree, tenth / 2, 0);
    put_rows(&store, other, tenth, 0);
    store.pin_of("pin", &[tree]);
    let seen = read_all(store.engine(), tree, NOW);
    // Three times what the store has room for.
    for round in 1..=30 {
        put_rows(&store, other, tenth, round);
        if round % 3 == 0 {
            store.quiesce();
        }
        if round == 15 {
            store.reopen(Ending::Killed);
        }
    }
    store.quiesce();
    let free = store.engine().space().free_bytes;
    assert!(free > free_at_first / 2, "{free} of {free_at_first}");
    assert_eq!(
        read_all(store.engine(), tree, Some(&store.open_pin("pin"))),
        seen
    );
    // A dropped tree that no pin holds gives its space back.
    store.engine().drop_tree(other).expect("the tree goes");
    store.engine().drop_tree(tree).expect("the tree is hidden");
    store.quiesce();
    store.reopen(Ending::Closed);
    let free = store.engine().space().free_bytes;
    let least = free_at_first / 10 * 9;
    assert!(free > least, "{free} of {free_at_first}");
    assert_eq!(
        read_all(store.engine(), tree, Some(&store.open_pin("pin"))),
        seen
    );
    store.engine().drop_pin("pin").expect("the pin goes");
    store.quiesce();
    store.finish();
}

/// A pin owns what it alone keeps of its trees, and nothing of others.
pub(super) fn shares(factory: &dyn Factory) {
    let Some((mut store, tree, other)) = with_scopes(factory) else {
        return;
    };
    if !store.engine().capabilities().space_shares {
        return;
    }
    let rows = 100;
    for tree in [tree, other] {
        put_rows(&store, tree, rows, 0);
    }
    store.pin_of("a", &[tree]);
    store.pin_of("b", &[other]);
    for tree in [tree, other] {
        put_rows(&store, tree, rows, 1);
    }
    store.pin_of("c", &[other]);
    put_rows(&store, other, rows / 2, 2);
    let holders = ["a", "b", "c"].map(Holder::Pin);
    let is_about = |bytes: u64, rows: u64| (rows * 3900..=rows * 4500).contains(&bytes);
    for ending in ENDINGS {
        let found = store.engine().exclusive_space(&holders, &mut |_, _| true);
        let found = found
            .expect("the walk reads")
            .expect("the walk is not cancelled");
        let rows = u64::from(rows);
        assert!(is_about(found[0], rows), "{found:?}");
        assert!(is_about(found[1], rows), "{found:?}");
        assert!(is_about(found[2], rows / 2), "{found:?}");
        let share = |tree| {
            let share = store.engine().range_space(tree, &[KeyRange::all()], NOW);
            share.expect("the walk reads").exclusive_bytes
        };
        assert!(
            is_about(share(tree), rows),
            "no pin sees the second version"
        );
        assert!(is_about(share(other), rows / 2), "one pin sees half of it");
        store.quiesce();
        store.reopen(ending);
    }
    let gone = [tree];
    let gone = [Holder::Trees(&gone), Holder::Pin("b")];
    let found = store.engine().exclusive_space(&gone, &mut |_, _| true);
    let found = found
        .expect("the walk reads")
        .expect("the walk is not cancelled");
    assert_eq!(found[0], 0, "the pin keeps the tree");
    store.engine().drop_tree(tree).expect("the tree is hidden");
    let found = store.engine().exclusive_space(&holders, &mut |_, _| true);
    let found = found
        .expect("the walk reads")
        .expect("the walk is not cancelled");
    assert!(
        found[0] >= 2 * u64::from(rows) * 3900,
        "all of it: {found:?}"
    );
    store.finish();
}
