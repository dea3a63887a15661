//! Guards: a commit is applied only if what its guards name has not changed.

use super::functions::{APPEND, number};
use super::{Factory, Store};
use crate::{Batch, ChangedKey, CommitOptions, Engine, Guards, KeyRange, KvError, Snapshot};
use std::collections::BTreeSet;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::thread::spawn;
use stitch_base::{ErrorKind, Seqno, TreeId};

/// What guards of one moment name.
#[derive(Clone, Copy, Debug)]
enum On<'a> {
    Key(&'a [u8]),
    Range(&'a [u8], Option<&'a [u8]>),
}

fn guards(since: &Snapshot, tree: TreeId, on: &[On<'_>]) -> Guards {
    let mut guards = Guards::since(since);
    for on in on {
        match *on {
            On::Key(key) => guards.key(tree, key),
            On::Range(start, end) => guards.range(tree, KeyRange { start, end }),
        }
    }
    guards
}

/// An engine that does not claim to check guards refuses them, and takes lists without any.
pub(super) fn unsupported(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    if store.engine().capabilities().guards {
        return;
    }
    let since = store.engine().snapshot();
    let refused = store.mark(tree, &guards(&since, tree, &[On::Key(b"a")]), b"1");
    assert_eq!(refused.map_err(|e| e.kind()), Err(ErrorKind::Unsupported));
    store.assert_value(tree, b"~mark", None);
    store.assert_marked(tree, &Guards::since(&since), b"1");
    store.finish();
}

/// A fresh store with a tree, of an engine that checks guards; `None` of another.
fn guarded(factory: &dyn Factory) -> Option<(Store, TreeId)> {
    let (store, tree) = Store::with_tree(factory);
    store
        .engine()
        .capabilities()
        .guards
        .then_some((store, tree))
}

impl Store {
    /// Commits a put of `mark` under guards.
    fn mark(&self, tree: TreeId, guards: &Guards, mark: &[u8]) -> Result<Seqno, KvError> {
        let mut batch = Batch::new();
        batch.put(tree, b"~mark", mark);
        let options = CommitOptions::default();
        self.engine().commit_guarded(&batch, guards, options)
    }

    #[track_caller]
    fn assert_marked(&self, tree: TreeId, guards: &Guards, mark: &[u8]) {
        let before = self.engine().snapshot().seqno();
        let seqno = self.mark(tree, guards, mark).expect("nothing changed");
        assert!(seqno > before, "a commit has the next number");
        self.assert_value(tree, b"~mark", Some(mark));
    }

    #[track_caller]
    fn assert_conflict(&self, tree: TreeId, guards: &Guards, key: &[u8]) {
        let before = self.get(tree, b"~mark");
        let error = self.mark(tree, guards, b"refused").expect_err("a conflict");
        let KvError::Conflict {
            tree: of,
            key: found,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((of, found.as_slice()), (tree, key));
        assert_eq!(self.get(tree, b"~mark"), before, "nothing is applied");
    }
}

pub(super) fn keys(factory: &dyn Factory) {
    let Some((store, tree)) = guarded(factory) else {
        return;
    };
    let other = store.tree("other");
    let changed: [&[u8]; 5] = [b"put", b"deleted", b"upserted", b"range", b"new"];
    store.commit(|b| {
        for key in &changed[..4] {
            b.put(tree, key, b"1");
        }
        b.put(tree, b"kept", b"1");
    });
    store.quiesce();
    let since = store.engine().snapshot();
    for settled in [false, true] {
        let mark = if settled { b"settled" } else { b"at once" };
        if settled {
            store.commit(|b| {
                b.put(tree, b"put", b"2");
                b.delete(tree, b"deleted");
                b.upsert(tree, b"upserted", APPEND, b"2");
                b.delete_range(tree, b"r", b"s");
                b.put(tree, b"new", b"2");
                b.put(other, b"kept", b"2");
            });
            for key in changed {
                store.assert_conflict(tree, &guards(&since, tree, &[On::Key(key)]), key);
            }
            store.quiesce();
        }
        let kept = guards(&since, tree, &[On::Key(b"kept"), On::Key(b"never")]);
        store.assert_marked(tree, &kept, mark);
    }
    for key in changed {
        store.assert_conflict(tree, &guards(&since, tree, &[On::Key(key)]), key);
    }
    let two = [On::Key(b"kept"), On::Key(b"put"), On::Key(b"deleted")];
    store.assert_conflict(tree, &guards(&since, tree, &two), b"put");
    let now = store.engine().snapshot();
    store.assert_marked(tree, &guards(&now, tree, &two), b"now");
    store.finish();
}

pub(super) fn ranges(factory: &dyn Factory) {
    let Some((store, tree)) = guarded(factory) else {
        return;
    };
    store.commit(|b| {
        for key in [b"b", b"d", b"f", b"h"] {
            b.put(tree, key, b"1");
        }
    });
    let since = store.engine().snapshot();
    store.commit(|b| b.put(tree, b"e", b"2"));
    store.commit(|b| b.delete_range(tree, b"h", b"i"));
    for _ in 0..2 {
        let untouched = [
            On::Range(b"a", Some(b"e")),
            On::Range(b"e\0", Some(b"h")),
            On::Range(b"e", Some(b"e")),
            On::Range(b"i", Some(b"z")),
        ];
        store.assert_marked(tree, &guards(&since, tree, &untouched), b"beside");
        for (range, key) in [
            (On::Range(b"e", Some(b"f")), b"e"),
            (On::Range(b"a", Some(b"e\0")), b"e"),
            (On::Range(b"", None), b"e"),
            (On::Range(b"f", None), b"h"),
            (On::Range(b"h", Some(b"h\0")), b"h"),
        ] {
            store.assert_conflict(tree, &guards(&since, tree, &[range]), key);
        }
        store.quiesce();
    }
    store.finish();
}

/// Guards that were added later have a later moment.
pub(super) fn moments(factory: &dyn Factory) {
    let Some((store, tree)) = guarded(factory) else {
        return;
    };
    store.commit(|b| b.put(tree, b"a", b"1"));
    let first = store.engine().snapshot();
    store.commit(|b| b.put(tree, b"a", b"2"));
    let second = store.engine().snapshot();
    let mut reads = guards(&first, tree, &[On::Key(b"b")]);
    reads.move_to(&second);
    reads.key(tree, b"a");
    store.assert_marked(tree, &reads, b"read");
    let mut stale = guards(&first, tree, &[On::Key(b"a")]);
    stale.move_to(&second);
    stale.key(tree, b"b");
    store.assert_conflict(tree, &stale, b"a");
    store.commit(|b| b.put(tree, b"b", b"2"));
    store.assert_conflict(tree, &reads, b"b");
    store.finish();
}

/// Guards alone, guards that are too long, and guards on trees that are gone.
pub(super) fn edges(factory: &dyn Factory) {
    let Some((store, tree)) = guarded(factory) else {
        return;
    };
    let gone = store.tree("gone");
    store.commit(|b| b.put(tree, b"a", b"1"));
    let since = store.engine().snapshot();
    let read = guards(&since, tree, &[On::Key(b"a")]);
    let only_check = |guards: &Guards| {
        let (batch, options) = (Batch::new(), CommitOptions::default());
        store.engine().commit_guarded(&batch, guards, options)
    };
    only_check(&read).expect("nothing changed");
    store.commit(|b| b.put(tree, b"a", b"2"));
    let conflict = only_check(&read).expect_err("a conflict");
    assert!(matches!(conflict, KvError::Conflict { .. }), "{conflict}");
    only_check(&Guards::since(&since)).expect("no guard is no condition");

    let limits = store.engine().limits();
    let key = vec![7; usize::try_from(limits.key_bytes_max).expect("a key fits in memory")];
    let mut long = Guards::since(&since);
    while long.len_bytes() as u64 <= limits.batch_bytes_max {
        long.key(tree, &key);
    }
    let refused = store
        .mark(tree, &long, b"long")
        .expect_err("too many guards");
    assert!(
        matches!(refused, KvError::TooLarge { what: "guards", .. }),
        "{refused}"
    );

    let on_gone = guards(&since, gone, &[On::Key(b"a")]);
    store.engine().drop_tree(gone).expect("the tree is dropped");
    let refused = store.mark(tree, &on_gone, b"gone").expect_err("no tree");
    assert!(
        matches!(refused, KvError::NoTree(of) if of == gone),
        "{refused}"
    );
    store.assert_value(tree, b"~mark", None);
    store.finish();
}

const KEYS: u8 = 48;

/// Keys that messages may have changed.
#[derive(Clone, Debug, Default)]
struct Touched {
    all: BTreeSet<u8>,
    /// By range deletes.
    in_ranges: BTreeSet<u8>,
}

impl Touched {
    fn extend(&mut self, other: &Self) {
        self.all.extend(&other.all);
        self.in_ranges.extend(&other.in_ranges);
    }
}

/// Messages on random keys. Returns the keys that they may have changed.
fn scatter(batch: &mut Batch, tree: TreeId, rng: &mut Rng, round: u64) -> Touched {
    let mut touched = Touched::default();
    for at in 0..=rng.below(5) {
        let key = u8::try_from(rng.below(KEYS.into())).expect("a key is a byte");
        let value = (round * 8 + at).to_le_bytes();
        match rng.below(8) {
            0 => {
                let end = (key + 6).min(KEYS);
                batch.delete_range(tree, &[key], &[end]);
                touched.all.extend(key..end);
                touched.in_ranges.extend(key..end);
                continue;
            }
            1 | 2 => batch.delete(tree, &[key]),
            3 => batch.upsert(tree, &[key], APPEND, &value),
            _ => batch.put(tree, &[key], &value),
        }
        touched.all.insert(key);
    }
    touched
}

/// Guards on random keys and ranges agree with what reads at both moments see.
pub(super) fn random(factory: &dyn Factory) {
    let Some((store, tree)) = guarded(factory) else {
        return;
    };
    let mut rng = Rng::new(26);
    let mut held: Vec<(Snapshot, Touched)> = Vec::new();
    for round in 0..400 {
        let mut touched = Touched::default();
        store.commit(|b| touched = scatter(b, tree, &mut rng, round));
        for (_, all) in &mut held {
            all.extend(&touched);
        }
        if rng.one_in(4) {
            held.push((store.engine().snapshot(), Touched::default()));
        }
        if held.len() > 6 {
            held.remove(0);
        }
        if rng.one_in(40) {
            store.quiesce();
        }
        for (since, touched) in &held {
            assert_agrees(&store, tree, since, touched, &mut rng);
        }
    }
    store.finish();
}

fn assert_agrees(store: &Store, tree: TreeId, since: &Snapshot, touched: &Touched, rng: &mut Rng) {
    let start = u8::try_from(rng.below(KEYS.into())).expect("a key is a byte");
    let end = start.saturating_add(u8::try_from(rng.below(5)).expect("it is small"));
    let (mut list, guarded) = (Guards::since(since), start..end.max(start + 1));
    match end == start {
        true => list.key(tree, &[start]),
        false => list.range(tree, KeyRange::new(&[start], &[end])),
    }
    let differs = |key: &u8| store.get(tree, &[*key]) != store.get_at(tree, &[*key], Some(since));
    let differing: BTreeSet<u8> = guarded.clone().filter(differs).collect();
    let may_differ: BTreeSet<u8> = guarded.filter(|key| touched.all.contains(key)).collect();
    let listed = store.engine().changed_keys(&list, usize::MAX);
    let listed: BTreeSet<u8> = listed
        .expect("the keys are listed")
        .into_iter()
        .map(|ChangedKey { tree: of, key }| {
            assert_eq!((of, key.len()), (tree, 1));
            key[0]
        })
        .collect();
    // Of a range delete one key is listed.
    let is_listed = |key: &u8| listed.contains(key) || touched.in_ranges.contains(key);
    assert!(differing.iter().all(is_listed), "{listed:?}, {differing:?}");
    assert!(
        listed.is_empty() <= differing.is_empty(),
        "{differing:?} changed"
    );
    assert!(listed.is_subset(&may_differ), "{listed:?}, {may_differ:?}");
    let (batch, options) = (Batch::new(), CommitOptions::default());
    match store.engine().commit_guarded(&batch, &list, options) {
        Ok(_) => assert!(listed.is_empty(), "{listed:?} changed"),
        Err(KvError::Conflict { key, .. }) => {
            assert_eq!(listed.first(), key.first(), "the first of {listed:?}");
        }
        Err(error) => panic!("{error}"),
    }
}

const WRITERS: usize = 3;
const ROUNDS: u64 = 150;

/// Adds one to a number that it reads, and tries again after a conflict.
fn count_up(engine: &dyn Engine, tree: TreeId) {
    loop {
        let now = engine.snapshot();
        let value = engine.get(tree, b"n", Some(&now)).expect("the read works");
        let next = value.map_or(0, |value| number(&value)) + 1;
        let mut batch = Batch::new();
        batch.put(tree, b"n", &next.to_le_bytes());
        let read = guards(&now, tree, &[On::Key(b"n")]);
        match engine.commit_guarded(&batch, &read, CommitOptions::default()) {
            Ok(_) => return,
            Err(KvError::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// No update is lost that was decided on what a guard names.
pub(super) fn threads(factory: &dyn Factory) {
    let Some((store, tree)) = guarded(factory) else {
        return;
    };
    let start = Arc::new(std::sync::Barrier::new(WRITERS));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (engine, start) = (store.shared(), Arc::clone(&start));
            let body = move || {
                start.wait();
                (0..ROUNDS).for_each(|_| count_up(engine.as_ref(), tree));
            };
            spawn("writer", body).expect("a thread starts")
        })
        .collect();
    for writer in writers {
        assert!(writer.join().is_ok(), "a writer failed");
    }
    let count = store.get(tree, b"n").unwrap_or_default();
    assert_eq!(number(&count), WRITERS as u64 * ROUNDS, "no update is lost");
    store.finish();
}
