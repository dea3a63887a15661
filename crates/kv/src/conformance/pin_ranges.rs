//! Pins of key ranges: once narrowed, they keep what the ranges held, and nothing beside them.

use super::functions::{ADD, APPEND};
use super::{Ending, Factory, NOW, Rows, Store, drain, functions, read_all};
use crate::{
    Batch, CommitOptions, Direction, Guards, Holder, KeyRange, KeyRanges, KvError, NewBranch,
    PIN_RANGES_BYTES_MAX, PIN_RANGES_MAX, PinInfo, PinRanges, PinScope, Snapshot,
};
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};

const ENDINGS: [Ending; 3] = [Ending::Closed, Ending::Killed, Ending::PowerCut];

/// A store with two trees, of an engine that narrows pins.
fn with_ranges(factory: &dyn Factory) -> Option<(Store, TreeId, TreeId)> {
    let (store, tree) = Store::with_tree(factory);
    if !store.engine().capabilities().pins_of_ranges {
        return None;
    }
    let other = store.tree("other");
    Some((store, tree, other))
}

fn ranges(of: &[(&[u8], &[u8])]) -> KeyRanges {
    let range = |(start, end): &(&[u8], &[u8])| (start.to_vec(), Some(end.to_vec()));
    KeyRanges::new(of.iter().map(range))
}

impl Store {
    #[track_caller]
    fn narrow(&self, name: &str, tree: TreeId, to: KeyRanges) -> PinInfo {
        let narrowed = self.try_narrow(name, tree, to);
        narrowed.expect("the pin is narrowed")
    }

    fn try_narrow(&self, name: &str, tree: TreeId, to: KeyRanges) -> Result<PinInfo, KvError> {
        let ranges = PinRanges::from([(tree, to)]);
        self.engine().narrow_pin(name, &ranges)
    }

    #[track_caller]
    fn rows_of(&self, tree: TreeId, range: KeyRange<'_>, at: &Snapshot) -> Rows {
        let scan = self
            .engine()
            .scan(tree, range, Direction::Forward, Some(at));
        let rows = drain(scan.expect("the scan begins"));
        let back = self
            .engine()
            .scan(tree, range, Direction::Backward, Some(at));
        let mut back = drain(back.expect("the scan begins"));
        back.reverse();
        assert_eq!(rows, back, "both ways show the same");
        rows
    }

    /// Asserts that every call at a snapshot refuses a key, and a range around it.
    #[track_caller]
    fn assert_keys_not_held(&self, tree: TreeId, key: &[u8], at: &Snapshot) {
        let engine = self.engine();
        let from = KeyRange::from(key);
        let scan = |direction| engine.scan(tree, from, direction, Some(at)).map(drop);
        let mut calls = vec![
            engine.get(tree, key, Some(at)).map(drop),
            engine.get_many(tree, &[key], Some(at)).map(drop),
            scan(Direction::Forward),
            scan(Direction::Backward),
            engine.scan_whole(tree, from, Some(at)).map(drop),
        ];
        let capabilities = engine.capabilities();
        if capabilities.keys_between {
            calls.push(engine.keys_between(tree, from, (at, None), 9).map(drop));
            calls.push(engine.keys_between(tree, from, (at, Some(at)), 9).map(drop));
        }
        if capabilities.space_shares {
            calls.push(engine.range_space(tree, &[from], Some(at)).map(drop));
        }
        for (number, call) in calls.into_iter().enumerate() {
            let is_refused = matches!(call, Err(KvError::KeysNotHeld(of)) if of == tree);
            assert!(is_refused, "call {number}: {call:?}");
        }
    }
}

const KEYS: [&[u8]; 6] = [b"a", b"c", b"d", b"e", b"p", b"z"];

fn put_keys(store: &Store, trees: [TreeId; 2], value: &[u8]) {
    for tree in trees {
        store.commit(|b| KEYS.iter().for_each(|key| b.put(tree, key, value)));
    }
}

#[track_caller]
fn assert_old(store: &Store, tree: TreeId, keys: &[&[u8]], at: &Snapshot) {
    for key in keys {
        assert_eq!(store.get_at(tree, key, Some(at)), Some(b"old".to_vec()));
    }
}

/// What a narrowed pin holds is listed, read, and survives; what was opened before reads all.
pub(super) fn listed(factory: &dyn Factory) {
    let Some((mut store, tree, other)) = with_ranges(factory) else {
        return;
    };
    let trees = [tree, other];
    put_keys(&store, trees, b"old");
    let whole = store.pin("pin");
    store.pin("beside");
    assert_eq!((&whole.scope, whole.ranges.len()), (&PinScope::AllTrees, 0));
    put_keys(&store, trees, b"new");
    let before = store.open_pin("pin");
    let held = ranges(&[(b"c", b"e"), (b"p", b"q")]);
    let pin = store.narrow("pin", tree, held.clone());
    assert_eq!(pin.scope.trees(), Some(&trees[..]));
    assert_eq!(pin.ranges, PinRanges::from([(tree, held)]));
    let same = |info: &PinInfo| (info.id, info.seqno, info.user.clone());
    assert_eq!(same(&pin), same(&whole));
    store.quiesce();
    assert_old(&store, tree, &KEYS, &before);
    drop(before);
    put_keys(&store, trees, b"newer");
    for ending in ENDINGS {
        store.quiesce();
        let pins = store.engine().pins().expect("the pins are listed");
        assert_eq!(pins[0], pin);
        let at = store.open_pin("pin");
        assert_old(&store, tree, &[b"c", b"d", b"p"], &at);
        let old = |key: &[u8]| (key.to_vec(), b"old".to_vec());
        let rows = store.rows_of(tree, KeyRange::new(b"c", b"e"), &at);
        assert_eq!(rows, [old(b"c"), old(b"d")]);
        let none = store.rows_of(tree, KeyRange::new(b"x", b"x"), &at);
        assert_eq!(none, [], "an empty range");
        assert_old(&store, other, &KEYS, &at);
        store.assert_keys_not_held(tree, b"a", &at);
        assert_old(&store, tree, &KEYS, &store.open_pin("beside"));
        drop(at);
        store.reopen(ending);
    }
    let altered = store.engine().alter_pin("pin", b"other");
    altered.expect("the pin takes other bytes");
    store.reopen(Ending::Killed);
    let pins = store.engine().pins().expect("the pins are listed");
    assert_eq!(&pins[0].user[..], b"other");
    assert_eq!(pins[0].ranges, pin.ranges);
    store.finish();
}

/// Narrowing that cannot be is refused, and so is each call for keys that are not held.
pub(super) fn refused(factory: &dyn Factory) {
    let Some((store, tree, other)) = with_ranges(factory) else {
        return;
    };
    store.commit(|b| b.put(tree, b"k", b"old"));
    let only = |info: &crate::TreeInfo| info.id == tree;
    let made = store.engine().create_pin_of("pin", b"", &only);
    made.expect("the pin is made");
    let held = ranges(&[(b"c", b"e"), (b"p", b"q")]);
    let unknown = store.try_narrow("missing", tree, held.clone());
    assert!(
        matches!(unknown, Err(KvError::PinNotFound(_))),
        "{unknown:?}"
    );
    let later = store.tree("later");
    for not_held in [other, later] {
        let refused = store.try_narrow("pin", not_held, held.clone());
        assert!(matches!(refused, Err(KvError::NotHeld(of)) if of == not_held));
    }
    let key = |number: usize| u32::try_from(number).expect("small").to_be_bytes().to_vec();
    let many = |count: usize| {
        let range = |number| (key(2 * number), Some(key(2 * number + 1)));
        KeyRanges::new((0..count).map(range))
    };
    let too_many = store.try_narrow("pin", tree, many(PIN_RANGES_MAX + 1));
    assert_eq!(too_many.map_err(|e| e.kind()), Err(ErrorKind::Invalid));
    let long = KeyRanges::new([(vec![1; PIN_RANGES_BYTES_MAX], Some(vec![2]))]);
    let too_long = store.try_narrow("pin", tree, long);
    assert!(
        matches!(too_long, Err(KvError::TooLarge { .. })),
        "{too_long:?}"
    );
    assert_eq!(
        store.engine().pins().expect("listed")[0].ranges,
        PinRanges::new()
    );
    let none = store.engine().narrow_pin("pin", &PinRanges::new());
    assert_eq!(none.expect("nothing changes").ranges, PinRanges::new());

    store.narrow("pin", tree, held.clone());
    let wider = store.try_narrow("pin", tree, ranges(&[(b"c", b"f")]));
    assert_eq!(wider.map_err(|e| e.kind()), Err(ErrorKind::Invalid));
    let at = store.open_pin("pin");
    for key in [b"a", b"e", b"q"] {
        store.assert_keys_not_held(tree, key, &at);
    }
    let across = KeyRange::new(b"d", b"p");
    let scan = store
        .engine()
        .scan(tree, across, Direction::Forward, Some(&at));
    assert!(matches!(scan.map(drop), Err(KvError::KeysNotHeld(of)) if of == tree));
    let narrower = store.narrow("pin", tree, ranges(&[(b"p", b"q")]));
    assert_eq!(narrower.ranges[&tree], ranges(&[(b"p", b"q")]));
    assert_eq!(
        store.get_at(tree, b"d", Some(&at)),
        None,
        "it was opened before"
    );
    store.assert_keys_not_held(tree, b"d", &store.open_pin("pin"));
    store.narrow("pin", tree, KeyRanges::default());
    store.assert_keys_not_held(tree, b"p", &store.open_pin("pin"));
    let most = store.engine().create_pin("most", b"");
    most.expect("the pin is made");
    store.narrow("most", tree, many(PIN_RANGES_MAX));
    store.finish();
}

/// Writes messages of all kinds to rows on both sides of a range.
fn write_messages(store: &Store, tree: TreeId, round: u64) {
    let key = |number: u32| number.to_be_bytes();
    let mut rng = Rng::new(round);
    for first in (0..240).step_by(30) {
        store.commit(|batch| {
            for number in first..first + 30 {
                match rng.below(8) {
                    0 => batch.delete(tree, &key(number)),
                    1 => batch.upsert(tree, &key(number), APPEND, b"+"),
                    2 => batch.upsert(tree, &key(number), ADD, &round.to_le_bytes()),
                    3 => {
                        let len = u32::try_from(rng.below(30)).expect("small");
                        batch.delete_range(tree, &key(number), &key(number + len));
                    }
                    _ => {
                        let len = usize::try_from(rng.below(3000)).expect("small");
                        batch.put(tree, &key(number), &vec![round.to_le_bytes()[0]; len]);
                    }
                }
            }
        });
    }
}

/// Whatever is written across the ends of a range, the range shows what it held.
pub(super) fn messages(factory: &dyn Factory) {
    let Some((mut store, tree, _)) = with_ranges(factory) else {
        return;
    };
    write_messages(&store, tree, 1);
    let (start, end) = (100u32.to_be_bytes(), 140u32.to_be_bytes());
    let held = KeyRange::new(&start, &end);
    let mut seen = Vec::new();
    for round in 2..12 {
        let name = format!("pin {round}");
        store.pin(&name);
        let rows = store.rows_of(tree, held, &store.open_pin(&name));
        seen.push((name.clone(), rows));
        write_messages(&store, tree, 2 * round);
        if round % 3 == 0 {
            store.quiesce();
        }
        store.narrow(&name, tree, ranges(&[(&start, &end)]));
        write_messages(&store, tree, 2 * round + 1);
        let now = read_all(store.engine(), tree, NOW);
        match round % 4 {
            0 => drop(store.reopen(Ending::Killed)),
            1 => store.quiesce(),
            _ => {}
        }
        let after = read_all(store.engine(), tree, NOW);
        assert!(after == now, "round {round} changed the present");
        for (name, rows) in &seen {
            let found = store.rows_of(tree, held, &store.open_pin(name));
            assert!(found == *rows, "round {round}: {name} changed");
        }
    }
    for (name, _) in &seen {
        store.engine().drop_pin(name).expect("the pin goes");
    }
    let now = read_all(store.engine(), tree, NOW);
    store.quiesce();
    let after = read_all(store.engine(), tree, NOW);
    assert!(after == now, "the present changed");
    store.finish();
}

/// A dropped tree stays for a narrowed pin, and for what was opened before, until the pin goes.
pub(super) fn hidden_trees(factory: &dyn Factory) {
    let Some((mut store, tree, other)) = with_ranges(factory) else {
        return;
    };
    for tree in [tree, other] {
        store.commit(|b| b.put(tree, b"k", b"v"));
    }
    store.pin("pin");
    store.engine().drop_tree(other).expect("the tree is hidden");
    let before = store.open_pin("pin");
    let narrowed = store.narrow("pin", other, ranges(&[(b"k", b"l")]));
    assert_eq!(narrowed.scope.trees(), Some(&[tree, other][..]));
    store.narrow("pin", tree, ranges(&[(b"a", b"b")]));
    store.engine().drop_tree(tree).expect("the tree is hidden");
    let both = |store: &Store, at: &Snapshot| {
        assert_eq!(store.get_at(other, b"k", Some(at)), Some(b"v".to_vec()));
        assert_eq!(store.engine().trees_at(at).len(), 2);
    };
    both(&store, &before);
    both(&store, &store.open_pin("pin"));
    let opened = store.open_pin("pin");
    store.engine().drop_pin("pin").expect("the pin goes");
    both(&store, &before);
    both(&store, &opened);
    assert_eq!(store.get_at(tree, b"k", Some(&before)), Some(b"v".to_vec()));
    let refused = store.engine().get(other, b"a", Some(&opened));
    assert!(matches!(refused, Err(KvError::KeysNotHeld(of)) if of == other));
    drop((before, opened));
    store.reopen(Ending::PowerCut);
    store.pin("later");
    let refused = store
        .engine()
        .get(other, b"k", Some(&store.open_pin("later")));
    assert!(matches!(refused, Err(KvError::NoTree(of)) if of == other));
    store.finish();
}

/// Guards are on held keys; later branches of a tree read them at the pin.
pub(super) fn branches(factory: &dyn Factory) {
    let Some((store, tree, other)) = with_ranges(factory) else {
        return;
    };
    let capabilities = store.engine().capabilities();
    if !capabilities.branches || !capabilities.guards {
        return;
    }
    for tree in [tree, other] {
        store.commit(|b| b.put(tree, b"k", b"old"));
    }
    let branch = |parent, name, at: Option<&Snapshot>| {
        let made = store
            .engine()
            .branch_trees(&[NewBranch::new(parent, name)], at);
        made.map(|made| made[0])
    };
    let early = branch(tree, "early", NOW).expect("the branch is made");
    store.pin("pin");
    store.narrow("pin", tree, ranges(&[(b"a", b"c"), (b"k", b"l")]));
    store.narrow("pin", early, ranges(&[(b"k", b"l")]));
    let at = store.open_pin("pin");
    for tree in [tree, other, early] {
        store.commit(|b| b.put(tree, b"k", b"new"));
    }
    store.quiesce();
    assert_eq!(store.get_at(early, b"k", Some(&at)), Some(b"old".to_vec()));
    let of_whole = branch(other, "of whole", Some(&at)).expect("its parent is held whole");
    store.assert_value(of_whole, b"k", Some(b"old"));
    // A later branch reads its parent, at the moment of the pin.
    let later = branch(tree, "later", NOW).expect("the branch is made");
    assert_eq!(store.get_at(later, b"k", Some(&at)), Some(b"old".to_vec()));
    let refused = store.engine().get(later, b"d", Some(&at));
    assert!(matches!(refused, Err(KvError::KeysNotHeld(of)) if of == later));
    let guarded = |key: &[u8]| {
        let mut guards = Guards::since(&at);
        guards.key(tree, key);
        let (batch, options) = (Batch::new(), CommitOptions::default());
        store.engine().commit_guarded(&batch, &guards, options)
    };
    assert!(matches!(guarded(b"k"), Err(KvError::Conflict { .. })));
    assert!(guarded(b"b").is_ok());
    assert!(matches!(guarded(b"d"), Err(KvError::KeysNotHeld(of)) if of == tree));
    drop(at);
    store.finish();
}

const LEN_BYTES: u64 = 32 << 20;

fn put_rows(store: &Store, tree: TreeId, keys: std::ops::Range<u32>, round: u32) {
    for key in keys {
        let mut value = vec![0; 4000];
        Rng::new(u64::from(round) << 32 | u64::from(key)).fill(&mut value);
        let put = store.try_commit(|b| b.put(tree, &key.to_be_bytes(), &value));
        put.unwrap_or_else(|e| panic!("round {round}, key {key}: {e}"));
    }
}

/// Overwriting keys beside the ranges of a pin takes no space; what the ranges held does.
pub(super) fn space(factory: &dyn Factory) {
    let Some(subject) = factory.create_small(functions::registry(), LEN_BYTES) else {
        return;
    };
    let mut store = Store::of(subject);
    if !store.engine().capabilities().pins_of_ranges {
        return;
    }
    let tree = store.tree("tree");
    let free_at_first = store.engine().space().free_bytes;
    let tenth = u32::try_from(free_at_first / 10 / 4200).expect("a small store");
    put_rows(&store, tree, 0..tenth, 0);
    let (start, end) = (tenth / 4, tenth / 2);
    let (first, last) = (start.to_be_bytes(), end.to_be_bytes());
    let held = KeyRange::new(&first, &last);
    let mut seen = Vec::new();
    // Three times what the store has room for.
    for round in 1..=30 {
        let name = (round % 6 == 1).then(|| format!("pin {round}"));
        if let Some(name) = &name {
            store.pin(name);
            seen.push((
                name.clone(),
                store.rows_of(tree, held, &store.open_pin(name)),
            ));
        }
        put_rows(&store, tree, 0..tenth, round);
        if round % 3 == 0 {
            store.quiesce();
        }
        // By then the rest was replaced, and kept.
        if let Some(name) = &name {
            store.narrow(name, tree, ranges(&[(&first, &last)]));
        }
        if round == 15 {
            store.reopen(Ending::Killed);
        }
    }
    store.quiesce();
    // A tenth for the present, and a quarter of it for each of five pins.
    let free = store.engine().space().free_bytes;
    assert!(free > free_at_first / 10 * 7, "{free} of {free_at_first}");
    for (name, rows) in seen {
        assert_eq!(rows.len(), usize::try_from(end - start).expect("small"));
        let found = store.rows_of(tree, held, &store.open_pin(&name));
        assert!(found == rows, "{name} changed");
        store.engine().drop_pin(&name).expect("the pin goes");
    }
    store.quiesce();
    let free = store.engine().space().free_bytes;
    assert!(free > free_at_first / 100 * 85, "{free} of {free_at_first}");
    store.finish();
}

/// A narrowed pin owns what it alone keeps of its ranges.
pub(super) fn shares(factory: &dyn Factory) {
    let Some((mut store, tree, _)) = with_ranges(factory) else {
        return;
    };
    if !store.engine().capabilities().space_shares {
        return;
    }
    let rows = 100;
    put_rows(&store, tree, 0..rows, 0);
    store.pin("a");
    store.pin("b");
    put_rows(&store, tree, 0..rows, 1);
    let key = |number: u32| number.to_be_bytes();
    let of = |rows: std::ops::Range<u32>| ranges(&[(&key(rows.start), &key(rows.end))]);
    store.narrow("a", tree, of(0..60));
    store.narrow("b", tree, of(40..80));
    let is_about = |bytes: u64, rows: u64| (rows * 3900..=rows * 4500).contains(&bytes);
    let exclusive = |store: &Store| {
        let holders = ["a", "b"].map(Holder::Pin);
        let found = store.engine().exclusive_space(&holders, &mut |_, _| true);
        found
            .expect("the walk reads")
            .expect("the walk is not cancelled")
    };
    for ending in ENDINGS {
        let found = exclusive(&store);
        assert!(is_about(found[0], 40), "{found:?}");
        assert!(is_about(found[1], 20), "{found:?}");
        store.quiesce();
        store.reopen(ending);
    }
    store.engine().drop_pin("a").expect("the pin goes");
    assert!(is_about(exclusive_of(&store, "b"), 40));
    // What was not overwritten since is seen by a pin only within its ranges.
    store.pin("c");
    store.narrow("c", tree, of(90..100));
    let share = |rows: std::ops::Range<u32>| {
        let (start, end) = (key(rows.start), key(rows.end));
        let range = [KeyRange::new(&start, &end)];
        let share = store.engine().range_space(tree, &range, NOW);
        share.expect("the walk reads")
    };
    for is_settled in [false, true] {
        assert!(is_about(share(0..100).referenced_bytes, 100));
        assert!(
            is_about(share(0..100).exclusive_bytes, 90),
            "{:?}",
            share(0..100)
        );
        assert_eq!(share(90..100).exclusive_bytes, 0);
        if !is_settled {
            store.quiesce();
        }
    }
    store.finish();
}

fn exclusive_of(store: &Store, name: &str) -> u64 {
    let holders = [Holder::Pin(name)];
    let found = store.engine().exclusive_space(&holders, &mut |_, _| true);
    found
        .expect("the walk reads")
        .expect("the walk is not cancelled")[0]
}
