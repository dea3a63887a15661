//! Pins: they see what was there when they were made, in every later life of the store.

use super::functions::APPEND;
use super::{Ending, Factory, NOW, Rows, Store, functions, read_all};
use crate::{
    CommitOptions, Direction, KeyRange, KvError, PIN_NAME_BYTES_MAX, PIN_USER_BYTES_MAX, PinInfo,
    Snapshot, SpaceClass, TreeOptions,
};
use stitch_base::random::Rng;
use stitch_base::thread::spawn;
use stitch_base::{ErrorKind, PinId, TreeId};

const ENDINGS: [Ending; 3] = [Ending::Closed, Ending::Killed, Ending::PowerCut];

/// A store with a tree, of an engine that has pins.
fn with_pins(factory: &dyn Factory) -> Option<(Store, TreeId)> {
    let (store, tree) = Store::with_tree(factory);
    let has_pins = store.engine().capabilities().pins;
    has_pins.then_some((store, tree))
}

impl Store {
    #[track_caller]
    pub(super) fn pin(&self, name: &str) -> PinInfo {
        let made = self.engine().create_pin(name, name.as_bytes());
        made.expect("the pin is made")
    }

    #[track_caller]
    pub(super) fn open_pin(&self, name: &str) -> Snapshot {
        self.engine().open_pin(name).expect("the pin opens")
    }

    #[track_caller]
    fn drop_pin(&self, name: &str) {
        self.engine().drop_pin(name).expect("the pin goes");
    }

    #[track_caller]
    fn pins(&self) -> Vec<PinInfo> {
        let engine = self.engine();
        let pins = engine.pins().expect("the pins are listed");
        for pin in &pins {
            let by_name = engine.pin_by_name(&pin.name).expect("a name is looked up");
            let by_id = engine.pin_by_id(pin.id).expect("a number is looked up");
            assert_eq!((by_name.as_ref(), by_id.as_ref()), (Some(pin), Some(pin)));
        }
        let missing = engine.pin_by_name("no such pin").expect("looked up");
        assert_eq!(missing, None);
        assert_eq!(engine.pin_by_id(PinId(1 << 40)).expect("looked up"), None);
        pins
    }

    #[track_caller]
    fn pinned_rows(&self, name: &str, tree: TreeId) -> Rows {
        read_all(self.engine(), tree, Some(&self.open_pin(name)))
    }

    /// Whether a tree can be read at a snapshot, by every call that reads.
    #[track_caller]
    fn is_readable(&self, tree: TreeId, at: Option<&Snapshot>) -> bool {
        let engine = self.engine();
        let (all, first) = (KeyRange::all(), KeyRange::new(b"", b"z"));
        let reads = [
            engine.get(tree, b"k", at).map(drop),
            engine.scan(tree, all, Direction::Forward, at).map(drop),
            engine.scan(tree, all, Direction::Backward, at).map(drop),
            engine.scan_whole(tree, first, at).map(drop),
        ];
        let is_readable = reads[0].is_ok();
        for read in reads {
            match read {
                Ok(()) => assert!(is_readable, "one read works and another does not"),
                Err(KvError::NoTree(gone)) => assert!(!is_readable && gone == tree),
                Err(other) => panic!("a tree that is gone is not found: {other}"),
            }
        }
        is_readable
    }
}

/// An engine without pins refuses each call and changes nothing.
pub(super) fn unsupported(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    if store.engine().capabilities().pins {
        return;
    }
    store.commit(|b| b.put(tree, b"k", b"v"));
    let calls = [
        store.engine().create_pin("p", b"").map(drop),
        store.engine().pins().map(drop),
        store.engine().open_pin("p").map(drop),
        store.engine().drop_pin("p"),
        store.engine().alter_pin("p", b""),
    ];
    for call in calls {
        assert_eq!(call.map_err(|e| e.kind()), Err(ErrorKind::Unsupported));
    }
    store.assert_keys(tree, &[b"k"]);
    store.finish();
}

/// Created, listed, changed, dropped and refused.
pub(super) fn listed(factory: &dyn Factory) {
    let Some((mut store, tree)) = with_pins(factory) else {
        return;
    };
    assert_eq!(store.pins(), []);
    store.commit(|b| b.put(tree, b"k", b"v"));
    let now = store.engine().snapshot().seqno();
    let longest = "n".repeat(PIN_NAME_BYTES_MAX);
    let user = vec![7; PIN_USER_BYTES_MAX];
    let first = store.engine().create_pin(&longest, &user);
    let first = first.expect("the pin is made");
    assert_eq!((&first.name, &first.user[..]), (&longest, &user[..]));
    assert_eq!(first.seqno, now);
    let second = store.pin("a second");
    assert!(first.id.0 > 0 && second.id > first.id);
    assert_eq!(second.seqno, now, "two pins of one moment");
    for ending in ENDINGS {
        assert_eq!(store.pins(), [first.clone(), second.clone()]);
        store.reopen(ending);
    }
    let twice = store.engine().create_pin("a second", b"");
    assert!(matches!(twice, Err(KvError::PinExists(name)) if name == "a second"));
    for wrong in [String::new(), format!("{longest}n")] {
        let made = store.engine().create_pin(&wrong, b"");
        assert!(matches!(made, Err(KvError::Invalid(why)) if why.contains("255 bytes")));
    }
    let too_long = vec![7; PIN_USER_BYTES_MAX + 1];
    for refused in [
        store.engine().create_pin("third", &too_long).map(drop),
        store.engine().alter_pin("a second", &too_long),
    ] {
        assert!(matches!(refused, Err(KvError::TooLarge { .. })));
    }
    for missing in [
        store.engine().open_pin("third").map(drop),
        store.engine().alter_pin("third", b""),
        store.engine().drop_pin("third"),
    ] {
        assert!(matches!(missing, Err(KvError::PinNotFound(name)) if name == "third"));
    }
    let altered = store.engine().alter_pin(&longest, b"held");
    altered.expect("the pin takes other bytes");
    for ending in ENDINGS {
        let pins = store.pins();
        assert_eq!((&pins[0].user[..], pins[0].seqno), (&b"held"[..], now));
        assert_eq!((pins[0].id, &pins[1..]), (first.id, &[second.clone()][..]));
        store.reopen(ending);
    }
    store.drop_pin(&longest);
    assert_eq!(store.pins(), std::slice::from_ref(&second));
    store.reopen(Ending::PowerCut);
    store.drop_pin("a second");
    store.reopen(Ending::PowerCut);
    assert_eq!(store.pins(), []);
    let again = store.pin("a second");
    assert!(again.id > second.id, "numbers of pins are not reused");
    store.engine().close().expect("the store closes");
    for late in [
        store.engine().create_pin("late", b"").map(drop),
        store.engine().alter_pin("a second", b""),
        store.engine().drop_pin("a second"),
    ] {
        assert_eq!(late.map_err(|e| e.kind()), Err(ErrorKind::Closed));
    }
}

/// Messages of every kind, some of them over what a pin sees.
fn change(store: &Store, tree: TreeId, round: u32) {
    for key in 0..60u32 {
        let key = (key * 7 + round).to_be_bytes();
        match round % 4 {
            0 => store.commit(|b| b.put(tree, &key, &round.to_le_bytes().repeat(50))),
            1 => store.commit(|b| b.upsert(tree, &key, APPEND, &round.to_le_bytes())),
            2 => store.commit(|b| b.delete(tree, &key)),
            _ if key[3].is_multiple_of(8) => {
                let end = u32::from_be_bytes(key) + 40;
                store.commit(|b| b.delete_range(tree, &key, &end.to_be_bytes()));
            }
            _ => {}
        }
    }
}

/// A pin keeps what it sees through compactions and every ending, without any other sync.
pub(super) fn survive(factory: &dyn Factory) {
    let Some((mut store, tree)) = with_pins(factory) else {
        return;
    };
    let mut taken: Vec<(PinInfo, Rows)> = Vec::new();
    for round in 0..18u32 {
        change(&store, tree, round);
        let pin = store.pin(&format!("round {round}"));
        let seen = read_all(store.engine(), tree, NOW);
        assert_eq!(pin.seqno, store.engine().snapshot().seqno());
        taken.push((pin, seen));
        // Not synced, and not seen by the pin.
        change(&store, tree, round + 1);
        if round % 2 == 0 {
            store.quiesce();
        }
        if round % 3 == 1 {
            store.reopen(ENDINGS[round as usize % 9 / 3]);
        }
        let infos: Vec<PinInfo> = taken.iter().map(|(pin, _)| pin.clone()).collect();
        assert_eq!(store.pins(), infos);
        for (pin, seen) in &taken {
            let at = store.open_pin(&pin.name);
            assert_eq!(at.seqno(), pin.seqno);
            let now = read_all(store.engine(), tree, Some(&at));
            assert!(&now == seen, "round {round}: {} changed", pin.name);
            for (key, value) in seen.iter().step_by(7) {
                let got = store.get_at(tree, key, Some(&at));
                assert_eq!(got.as_ref(), Some(value));
            }
        }
        if round % 5 == 4 {
            let (gone, _) = taken.remove(taken.len() / 2);
            store.drop_pin(&gone.name);
        }
    }
    store.quiesce();
    store.finish();
}

/// Returns the numbers of the trees that a snapshot reads.
fn trees_at(store: &Store, at: &Snapshot) -> Vec<TreeId> {
    let trees = store.engine().trees_at(at);
    trees.into_iter().map(|info| info.id).collect()
}

/// A snapshot that was opened from a pin outlives it.
pub(super) fn opened(factory: &dyn Factory) {
    let Some((store, tree)) = with_pins(factory) else {
        return;
    };
    let other = store.tree("other");
    store.commit(|b| {
        b.put(tree, b"k", b"old");
        b.put(other, b"k", b"other");
    });
    store.pin("p");
    let at = store.open_pin("p");
    store.engine().drop_tree(other).expect("the tree goes");
    store.commit(|b| b.put(tree, b"k", b"new"));
    store.drop_pin("p");
    for _ in 0..2 {
        assert_eq!(store.get_at(tree, b"k", Some(&at)), Some(b"old".to_vec()));
        assert_eq!(store.keys(other, Some(&at.clone())), [b"k"]);
        assert!(store.is_readable(other, Some(&at)));
        assert_eq!(trees_at(&store, &at), [tree, other]);
        store.assert_value(tree, b"k", Some(b"new"));
        store.quiesce();
        store.commit(|b| b.put(tree, b"j", &[1; 4000]));
        store.quiesce();
    }
    assert!(matches!(
        store.engine().open_pin("p"),
        Err(KvError::PinNotFound(_))
    ));
    // Only a pin keeps trees, and only for itself. A snapshot, of whatever, does not.
    store.pin("another");
    store.engine().drop_tree(tree).expect("the tree goes");
    assert!(store.is_readable(tree, Some(&store.open_pin("another"))));
    assert!(!store.is_readable(tree, Some(&at)));
    assert!(store.is_readable(other, Some(&at)));
    assert_eq!(trees_at(&store, &at), [other]);
    drop(at);
    store.quiesce();
    store.finish();
}

/// A tree that is dropped while a pin sees it is hidden, and readable through the pin.
pub(super) fn hidden_trees(factory: &dyn Factory) {
    let Some((mut store, tree)) = with_pins(factory) else {
        return;
    };
    for key in 0..100u8 {
        store.commit(|b| b.put(tree, &[key], &[1; 300]));
    }
    store.commit(|b| b.put(tree, b"k", b"seen"));
    let name = store.engine().trees()[0].name.clone();
    store.pin("before");
    store.commit(|b| b.put(tree, b"k", b"later"));
    store.pin("again");
    let later = store.tree("later");
    store.commit(|b| b.put(later, b"k", b"v"));
    store.commit(|b| b.put(tree, b"k", b"unseen"));
    store.engine().drop_tree(later).expect("the tree goes");
    store.engine().drop_trees(&[tree]).expect("the tree goes");
    store.pin("after");
    let options = TreeOptions::default();
    for life in 0..6 {
        assert_eq!(store.engine().trees(), []);
        let before = store.open_pin("before");
        assert_eq!(
            store.get_at(tree, b"k", Some(&before)),
            Some(b"seen".to_vec())
        );
        assert_eq!(store.keys(tree, Some(&before)).len(), 101);
        assert_eq!(trees_at(&store, &before), [tree]);
        let named = store.engine().trees_at(&before);
        assert_eq!(named.first().map(|info| &info.name), Some(&name));
        let again = store.pinned_rows("again", tree);
        assert!(again.contains(&(b"k".to_vec(), b"later".to_vec())));
        assert_eq!(trees_at(&store, &store.open_pin("again")), [tree]);
        assert_eq!(trees_at(&store, &store.open_pin("after")), []);
        let now = store.engine().snapshot();
        for at in [NOW, Some(&now), Some(&store.open_pin("after"))] {
            assert!(!store.is_readable(tree, at), "a dropped tree is hidden");
        }
        assert!(!store.is_readable(later, Some(&before)), "no pin saw it");
        let write = store.try_commit(|b| b.put(tree, b"k", b"v"));
        for refused in [
            write,
            store.engine().drop_tree(tree),
            store.engine().alter_tree(tree, &options),
        ] {
            assert!(matches!(refused, Err(KvError::NoTree(gone)) if gone == tree));
        }
        drop((before, now));
        if life % 2 == 0 {
            store.quiesce();
        }
        store.reopen(ENDINGS[life % 3]);
    }
    let new = store.tree("tree");
    assert!(new > tree, "its name is free and its number is not");
    store.commit(|b| b.put(new, b"k", b"new"));
    store.drop_pin("before");
    assert!(store.is_readable(tree, Some(&store.open_pin("again"))));
    store.drop_pin("again");
    assert!(!store.is_readable(tree, Some(&store.open_pin("after"))));
    store.assert_keys(new, &[b"k"]);
    store.reopen(Ending::PowerCut);
    assert!(!store.is_readable(tree, Some(&store.open_pin("after"))));
    store.finish();
}

const LEN_BYTES: u64 = 32 << 20;

fn noise(key: u32) -> Vec<u8> {
    let mut value = vec![0; 4000];
    Rng::new(u64::from(key)).fill(&mut value);
    value
}

/// Puts rows, `false` once the store has no space.
fn put_rows(store: &Store, tree: TreeId, keys: std::ops::Range<u32>) -> bool {
    for key in keys {
        match store.try_commit(|b| b.put(tree, &key.to_be_bytes(), &noise(key))) {
            Ok(()) => {}
            Err(KvError::NoSpace { .. }) => return false,
            Err(other) => panic!("a full store answers NoSpace: {other}"),
        }
    }
    true
}

/// What a pin keeps takes space, and a dropped pin gives all of it back.
pub(super) fn space(factory: &dyn Factory) {
    let Some(subject) = factory.create_small(functions::registry(), LEN_BYTES) else {
        return;
    };
    let mut store = Store::of(subject);
    if !store.engine().capabilities().pins {
        return;
    }
    let tree = store.tree("tree");
    let free_at_first = store.engine().space().free_bytes;
    let fifth = u32::try_from(free_at_first / 5 / 4200).expect("a small store");
    for round in 0..3 {
        let other = store.tree("other");
        assert!(put_rows(&store, tree, 0..fifth));
        assert!(put_rows(&store, other, 0..fifth));
        store.pin("p");
        store.engine().drop_tree(other).expect("the tree goes");
        assert!(put_rows(&store, tree, 0..fifth), "three fifths are taken");
        let mut end = fifth;
        while put_rows(&store, tree, end..end + 1) {
            end += 1;
            assert!(end < fifth * 4, "what the pin sees takes two fifths");
        }
        for kept in [tree, other] {
            assert_eq!(store.pinned_rows("p", kept).len(), fifth as usize);
        }
        if round % 2 == 0 {
            store.reopen(Ending::Killed);
        }
        store.drop_pin("p");
        store
            .try_commit_from(SpaceClass::Reserve, |b| {
                b.delete_range(tree, b"", &[255; 5])
            })
            .expect("a full store deletes ranges");
        store.quiesce();
        // A thread that looks at a table holds its space for that moment. None is left in the next
        // life.
        store.reopen(Ending::Closed);
        let free = store.engine().space().free_bytes;
        let least = free_at_first - free_at_first / 20;
        assert!(free >= least, "round {round}: {free} of {free_at_first}");
    }
    store.finish();
}

/// A store that lists no more pins refuses them, and takes one again when one was dropped.
pub(super) fn full_of_pins(factory: &dyn Factory) {
    let Some(subject) = factory.create_small(functions::registry(), LEN_BYTES) else {
        return;
    };
    let mut store = Store::of(subject);
    if !store.engine().capabilities().pins {
        return;
    }
    let tree = store.tree("tree");
    store.commit(|b| b.put(tree, b"k", b"v"));
    let user = vec![3; PIN_USER_BYTES_MAX];
    let mut count = 0u32;
    let full = loop {
        match store.engine().create_pin(&format!("{count}"), &user) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(u64::from(count) < LEN_BYTES / 1000, "a store has an end");
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(count > 4, "only {count} pins");
    for _ in 0..2 {
        assert_eq!(store.pins().len(), count as usize);
        store.commit(|b| b.put(tree, b"k", b"w"));
        store.quiesce();
        store.reopen(Ending::Killed);
    }
    for name in ["2", "0"] {
        store.drop_pin(name);
        let made = store.engine().create_pin(name, &user);
        made.expect("a dropped pin makes room");
    }
    for name in 0..count {
        store.drop_pin(&name.to_string());
    }
    assert_eq!(store.pins(), []);
    store.finish();
}

/// Pins that are created beside commits hold whole batches, and no later commit is lost.
pub(super) fn beside_commits(factory: &dyn Factory) {
    let Some((store, tree)) = with_pins(factory) else {
        return;
    };
    let engine = store.shared();
    let writer = spawn("writer", move || {
        for number in 0..300u32 {
            let mut batch = crate::Batch::new();
            for key in 0..4u8 {
                batch.put(tree, &[key], &number.to_be_bytes());
            }
            let done = engine.commit(&batch, CommitOptions::default());
            done.expect("the batch is committed");
        }
    });
    let writer = writer.expect("a thread starts");
    let mut last = None;
    for pin in 0..20 {
        let name = format!("{pin}");
        store.pin(&name);
        let rows = store.pinned_rows(&name, tree);
        assert!(rows.is_empty() || rows.len() == 4, "half a batch");
        assert!(rows.windows(2).all(|w| w[0].1 == w[1].1), "half a batch");
        let seen = rows.first().map(|(_, value)| value.clone());
        assert!(seen >= last, "a later pin sees less");
        last = seen;
    }
    writer.join().expect("the writer ends");
    store.finish();
}
