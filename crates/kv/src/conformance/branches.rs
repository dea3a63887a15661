//! Branch trees: they begin with what their parent held at a moment, and go their own way.

mod absorb;
mod edges;
mod guards;

pub(super) use absorb::{
    guarded, large, messages, nested, refused as absorb_refused, survive as absorb_survives,
};
pub(super) use edges::{
    beside_commits, chains, dropped_parents, keys_written, of_dropped_trees, released, space,
    together, unsupported,
};

pub(super) use guards::{own_guards, random_written_guards, written_guards};

use super::functions::{ADD, APPEND, REMOVE_IF};
use super::{Ending, Factory, NOW, Rows, Store, drain, read_all};
use crate::{Direction, KeyRange, NewBranch, Snapshot};
use stitch_base::TreeId;

const ENDINGS: [Ending; 3] = [Ending::Closed, Ending::Killed, Ending::PowerCut];

/// A store with a tree, of an engine that has branch trees.
fn branching(factory: &dyn Factory) -> Option<(Store, TreeId)> {
    let (store, tree) = Store::with_tree(factory);
    let has_branches = store.engine().capabilities().branches;
    has_branches.then_some((store, tree))
}

impl Store {
    #[track_caller]
    fn branch(&self, parent: TreeId, name: &str) -> TreeId {
        self.branch_at(parent, name, None)
    }

    #[track_caller]
    pub(super) fn branch_at(&self, parent: TreeId, name: &str, at: Option<&Snapshot>) -> TreeId {
        let new = [NewBranch::new(parent, name)];
        let made = self.engine().branch_trees(&new, at);
        let made = made.expect("the branch is made");
        assert_eq!(made.len(), 1, "one number for each");
        made[0]
    }

    #[track_caller]
    fn drop_tree(&self, tree: TreeId) {
        self.engine().drop_tree(tree).expect("the tree goes");
    }

    #[track_caller]
    fn rows(&self, tree: TreeId) -> Rows {
        read_all(self.engine(), tree, NOW)
    }

    /// Values of keys, as `key=value` words in their order, by every way to read them.
    #[track_caller]
    fn words(&self, tree: TreeId, at: Option<&Snapshot>) -> String {
        let rows = read_all(self.engine(), tree, at);
        let scan = |direction| self.engine().scan(tree, KeyRange::all(), direction, at);
        let mut back = drain(scan(Direction::Backward).expect("the scan begins"));
        back.reverse();
        assert_eq!(back, rows, "both directions see the same");
        for (key, value) in &rows {
            let got = self.get_at(tree, key, at);
            assert_eq!(got.as_ref(), Some(value), "key {key:?}");
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let word = |(key, value): &(Vec<u8>, Vec<u8>)| format!("{}={}", text(key), text(value));
        rows.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

/// Neither parent nor branch sees what was written to the other one after the moment.
pub(super) fn isolation(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    store.commit(|b| {
        for key in [b"a", b"b", b"c", b"d", b"e"] {
            b.put(tree, key, b"1");
        }
    });
    let branch = store.branch(tree, "branch");
    assert_eq!(store.words(branch, NOW), "a=1 b=1 c=1 d=1 e=1");
    store.commit(|b| {
        b.put(tree, b"a", b"parent");
        b.delete(tree, b"b");
        b.put(tree, b"f", b"parent");
    });
    let between = store.engine().snapshot();
    store.commit(|b| {
        b.put(branch, b"c", b"branch");
        b.delete(branch, b"d");
        b.put(branch, b"g", b"branch");
    });
    store.commit(|b| b.delete_range(tree, b"c", b"e"));
    assert_eq!(
        store.words(branch, Some(&between)),
        "a=1 b=1 c=1 d=1 e=1",
        "a snapshot of a branch does not see later writes to it"
    );
    drop(between);
    for life in 0..6 {
        assert_eq!(store.words(tree, NOW), "a=parent e=1 f=parent");
        assert_eq!(store.words(branch, NOW), "a=1 b=1 c=branch e=1 g=branch");
        for key in [b"d", b"f"] {
            store.assert_value(branch, key, None);
        }
        if life % 2 == 0 {
            store.quiesce();
        } else {
            store.reopen(ENDINGS[life / 2]);
        }
    }
    store.finish();
}

/// What is deleted in a branch stays so, also when nothing is left of it but the deletion.
pub(super) fn deletes(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    for key in 0..200u8 {
        store.commit(|b| b.put(tree, &[key], &[key; 40]));
    }
    let branch = store.branch(tree, "branch");
    store.commit(|b| b.delete_range(branch, &[50], &[150]));
    store.commit(|b| b.put(branch, &[100], b"again"));
    store.commit(|b| b.delete(branch, &[200]));
    store.commit(|b| b.delete(branch, &[10]));
    store.commit(|b| b.delete_range(branch, &[100], &[101]));
    store.commit(|b| b.put(branch, &[120], b"again"));
    let left: Vec<Vec<u8>> = (0..200)
        .filter(|key| *key != 10 && (!(50..150).contains(key) || *key == 120))
        .map(|key| vec![key])
        .collect();
    for life in 0..6 {
        assert_eq!(store.keys(branch, NOW), left);
        assert_eq!(store.rows(tree).len(), 200);
        for gone in [10, 50, 100, 119, 121, 149] {
            store.assert_value(branch, &[gone], None);
        }
        store.assert_value(branch, &[120], Some(b"again"));
        store.assert_value(branch, &[150], Some(&[150; 40]));
        if life % 2 == 0 {
            store.quiesce();
        } else {
            store.reopen(ENDINGS[life / 2]);
        }
    }
    store.finish();
}

/// A delta in a branch is folded over the parent's value of the branch's moment.
pub(super) fn upserts(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    let number = |n: u64| n.to_le_bytes();
    store.commit(|b| {
        b.put(tree, b"add", &number(40));
        b.put(tree, b"append", b"p");
        b.put(tree, b"kept", b"x");
        b.put(tree, b"removed", b"yes");
        b.upsert(tree, b"open", APPEND, b"delta");
    });
    let branch = store.branch(tree, "branch");
    store.commit(|b| {
        b.put(tree, b"add", &number(1000));
        b.upsert(tree, b"append", APPEND, b"parent");
        b.delete(tree, b"open");
    });
    for _ in 0..2 {
        store.commit(|b| b.upsert(branch, b"add", ADD, &number(1)));
        store.commit(|b| b.upsert(branch, b"append", APPEND, b"b"));
        store.quiesce();
    }
    store.commit(|b| {
        b.upsert(branch, b"open", APPEND, b"+");
        b.upsert(branch, b"new", APPEND, b"n");
        b.upsert(branch, b"kept", REMOVE_IF, b"y");
        b.upsert(branch, b"removed", REMOVE_IF, b"y");
    });
    store.commit(|b| b.delete(branch, b"append"));
    store.commit(|b| b.upsert(branch, b"append", APPEND, b"anew"));
    for ending in ENDINGS {
        store.assert_value(branch, b"add", Some(&number(42)));
        store.assert_value(branch, b"append", Some(b"anew"));
        store.assert_value(branch, b"open", Some(b"delta+"));
        store.assert_value(branch, b"new", Some(b"n"));
        store.assert_value(branch, b"kept", Some(b"x"));
        store.assert_value(branch, b"removed", None);
        store.assert_keys(branch, &[b"add", b"append", b"kept", b"new", b"open"]);
        store.assert_value(tree, b"append", Some(b"pparent"));
        store.assert_value(tree, b"add", Some(&number(1000)));
        store.quiesce();
        store.reopen(ending);
    }
    store.finish();
}

/// Bounded scans in both directions over rows of both, which alternate in several patterns.
pub(super) fn scans(factory: &dyn Factory) {
    let Some((store, tree)) = branching(factory) else {
        return;
    };
    for key in (0..120u8).filter(|key| key % 3 != 0) {
        store.commit(|b| b.put(tree, &[key], b"parent"));
    }
    let branch = store.branch(tree, "branch");
    for key in 0..120u8 {
        match key % 5 {
            0 => store.commit(|b| b.put(branch, &[key], b"branch")),
            1 if key < 60 => store.commit(|b| b.delete(branch, &[key])),
            _ => {}
        }
    }
    store.commit(|b| b.delete_range(branch, &[70], &[90]));
    store.commit(|b| b.delete_range(tree, &[0], &[120]));
    let value = |key: u8| match key {
        70..90 => None,
        _ if key.is_multiple_of(5) => Some(&b"branch"[..]),
        _ if key % 5 == 1 && key < 60 => None,
        _ => (!key.is_multiple_of(3)).then_some(&b"parent"[..]),
    };
    for _ in 0..2 {
        for (start, end) in [
            (0, 120),
            (0, 0),
            (7, 8),
            (30, 75),
            (69, 91),
            (71, 89),
            (100, 255),
        ] {
            let row = |key: u8| value(key).map(|value| (vec![key], value.to_vec()));
            let mut expected: Rows = (start..end.min(120)).filter_map(row).collect();
            let (first, last) = ([start], [end]);
            let range = KeyRange::new(&first, &last);
            let whole = store.engine().scan_whole(branch, range, NOW);
            assert_eq!(drain(whole.expect("the scan begins")), expected);
            for direction in [Direction::Forward, Direction::Backward] {
                let scan = store.engine().scan(branch, range, direction, NOW);
                let found = drain(scan.expect("the scan begins"));
                assert_eq!(found, expected, "{start}..{end} {direction:?}");
                expected.reverse();
            }
        }
        store.quiesce();
    }
    assert_eq!(store.rows(tree), []);
    store.finish();
}

/// A branch begins at a snapshot or at a pin, and keeps that moment after both are gone.
pub(super) fn moments(factory: &dyn Factory) {
    let Some((mut store, tree)) = branching(factory) else {
        return;
    };
    let has_pins = store.engine().capabilities().pins;
    store.commit(|b| b.put(tree, b"k", b"pinned"));
    if has_pins {
        store.pin("pin");
    }
    store.commit(|b| b.upsert(tree, b"k", APPEND, b", held"));
    let held = store.engine().snapshot();
    store.commit(|b| b.put(tree, b"k", b"now"));
    let now = store.branch(tree, "now");
    let past = store.branch_at(tree, "past", Some(&held));
    let mut branches = vec![(now, "k=now"), (past, "k=pinned, held")];
    let moment = |store: &Store, branch| store.engine().branch_moment(branch);
    let of_past = moment(&store, past).expect("a branch has a moment");
    assert_eq!(of_past.seqno(), held.seqno());
    assert_eq!(store.words(tree, Some(&of_past)), "k=pinned, held");
    if has_pins {
        let pin = store.open_pin("pin");
        let pinned = store.branch_at(tree, "pinned", Some(&pin));
        branches.push((pinned, "k=pinned"));
        store.engine().drop_pin("pin").expect("the pin goes");
    }
    drop((held, of_past));
    store.commit(|b| b.put(tree, b"k", b"later"));
    for life in 0..6 {
        for (branch, words) in &branches {
            assert_eq!(store.words(*branch, NOW), *words);
            let at = moment(&store, *branch).expect("a branch has a moment");
            assert_eq!(store.words(tree, Some(&at)), *words);
        }
        store.assert_value(tree, b"k", Some(b"later"));
        match life % 2 {
            0 => store.quiesce(),
            _ => drop(store.reopen(ENDINGS[life / 2])),
        }
    }
    store.finish();
}
