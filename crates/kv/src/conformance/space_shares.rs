//! Shares of space: what pins, branch trees and ranges of keys take.

use super::{Ending, Factory, NOW, Store};
use crate::{Holder, KeyRange, KvError, NewBranch, SpaceShare};
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};

/// Rows that a check writes at a time.
const ROWS: u32 = 400;
const VALUE_BYTES: usize = 1000;
/// What an engine may take for a row of this suite: its value, and at most a quarter beside it.
const ROW_BYTES: std::ops::RangeInclusive<u64> = 950..=1250;

fn with_shares(factory: &dyn Factory) -> Option<(Store, TreeId)> {
    let (store, tree) = Store::with_tree(factory);
    let capabilities = store.engine().capabilities();
    let has_all = capabilities.space_shares && capabilities.pins && capabilities.branches;
    has_all.then_some((store, tree))
}

impl Store {
    /// Puts rows whose values no engine can compress.
    fn put_rows(&self, tree: TreeId, rows: std::ops::Range<u32>, round: u64) {
        self.commit(|batch| {
            for row in rows {
                let mut value = vec![0; VALUE_BYTES];
                Rng::new(u64::from(row) << 8 | round).fill(&mut value);
                batch.put(tree, &row.to_be_bytes(), &value);
            }
        });
    }

    #[track_caller]
    fn exclusive(&self, holders: &[Holder<'_>]) -> Vec<u64> {
        let found = self.engine().exclusive_space(holders, &mut |_, _| true);
        let found = found.expect("the walk reads");
        found.expect("the walk is not cancelled")
    }

    #[track_caller]
    fn share(&self, tree: TreeId, rows: std::ops::Range<u32>) -> SpaceShare {
        let (start, end) = (rows.start.to_be_bytes(), rows.end.to_be_bytes());
        let ranges = [KeyRange::new(&start, &end)];
        let share = self.engine().range_space(tree, &ranges, NOW);
        share.expect("the walk reads")
    }

    #[track_caller]
    fn branch_of(&self, parent: TreeId, name: &str) -> TreeId {
        let new = [NewBranch::new(parent, name)];
        let made = self.engine().branch_trees(&new, NOW);
        made.expect("the branch is made")[0]
    }
}

#[track_caller]
fn assert_rows(bytes: u64, rows: u32) {
    let rows = u64::from(rows);
    let range = rows * ROW_BYTES.start()..=rows * ROW_BYTES.end();
    assert!(range.contains(&bytes), "{bytes} bytes for {rows} rows");
}

/// An engine without shares refuses each call.
pub(super) fn unsupported(factory: &dyn Factory) {
    let (store, tree) = Store::with_tree(factory);
    if store.engine().capabilities().space_shares {
        return;
    }
    let calls = [
        store
            .engine()
            .exclusive_space(&[], &mut |_, _| true)
            .map(drop),
        store.engine().range_space(tree, &[], NOW).map(drop),
    ];
    for call in calls {
        assert_eq!(call.map_err(|e| e.kind()), Err(ErrorKind::Unsupported));
    }
    store.finish();
}

/// What one pin alone keeps is its own; what two keep is neither's.
pub(super) fn pins(factory: &dyn Factory) {
    let Some((mut store, tree)) = with_shares(factory) else {
        return;
    };
    store.put_rows(tree, 0..ROWS, 0);
    store.pin("a");
    let (a, b) = (Holder::Pin("a"), Holder::Pin("b"));
    assert_eq!(store.exclusive(&[a]), [0], "all of it is in the present");
    store.put_rows(tree, 0..ROWS / 4, 1);
    store.pin("b");
    store.put_rows(tree, ROWS / 8..ROWS / 2, 2);
    for ending in [None, Some(Ending::Closed), Some(Ending::Killed)] {
        if let Some(ending) = ending {
            store.reopen(ending);
        }
        let found = store.exclusive(&[b, a]);
        // Of rows from a quarter to a half both keep the first version.
        assert_rows(found[0], ROWS / 8);
        assert_rows(found[1], ROWS / 4);
        // Together they alone keep that and what both keep.
        let both = store.exclusive(&[Holder::Pins(&["a", "b"])]);
        assert_rows(both[0], ROWS / 8 + ROWS / 2);
        store.quiesce();
    }
    assert_eq!(store.exclusive(&[Holder::Pins(&[])]), [0]);
    store.engine().drop_pin("b").expect("the pin goes");
    assert_rows(store.exclusive(&[a])[0], ROWS / 2);
    let gone = store.engine().exclusive_space(&[b], &mut |_, _| true);
    assert!(matches!(gone, Err(KvError::PinNotFound(name)) if name == "b"));
    let all = store.exclusive(&[Holder::Garbage, a]);
    assert_rows(all[1], ROWS / 2);
    let twice = store.engine().exclusive_space(&[a, a], &mut |_, _| true);
    assert!(matches!(twice, Err(KvError::Invalid(_))));
    let ended = store.engine().exclusive_space(&[a], &mut |_, _| false);
    assert!(matches!(ended, Ok(None)), "it was told to end");
    store.finish();
}

/// Deleted rows and dropped trees belong to the pin that sees them.
pub(super) fn deleted(factory: &dyn Factory) {
    let Some((store, tree)) = with_shares(factory) else {
        return;
    };
    let other = store.tree("other");
    store.put_rows(tree, 0..ROWS, 0);
    store.put_rows(other, 0..ROWS, 1);
    store.pin("a");
    let a = Holder::Pin("a");
    let (start, end) = (0u32.to_be_bytes(), (ROWS / 4).to_be_bytes());
    store.commit(|b| b.delete_range(tree, &start, &end));
    store.commit(|b| (ROWS / 4..ROWS / 2).for_each(|row| b.delete(tree, &row.to_be_bytes())));
    assert_rows(store.exclusive(&[a])[0], ROWS / 2);
    store.engine().drop_tree(other).expect("the tree goes");
    for _ in 0..2 {
        assert_rows(store.exclusive(&[a])[0], ROWS / 2 + ROWS);
        store.quiesce();
    }
    store.finish();
}

/// A branch tree owns what was written to it, and what only its moment keeps.
pub(super) fn branches(factory: &dyn Factory) {
    let Some((store, tree)) = with_shares(factory) else {
        return;
    };
    store.put_rows(tree, 0..ROWS, 0);
    let branch = store.branch_of(tree, "branch");
    store.put_rows(branch, 0..ROWS / 4, 1);
    let own = [branch];
    let own = Holder::Trees(&own);
    assert_rows(store.exclusive(&[own])[0], ROWS / 4);
    store.put_rows(tree, ROWS / 2..ROWS, 2);
    assert_rows(store.exclusive(&[own])[0], ROWS / 4 + ROWS / 2);
    // The parent is hidden then, and nothing of it comes back.
    let parent = [tree];
    assert_eq!(store.exclusive(&[Holder::Trees(&parent)]), [0]);
    let second = store.branch_of(branch, "second");
    store.put_rows(second, 0..ROWS / 4, 3);
    let (second, gone) = ([second], TreeId(u32::MAX));
    let found = store.exclusive(&[own, Holder::Trees(&second)]);
    assert_eq!(found[0], 0, "the second reads it");
    assert_rows(found[1], ROWS / 4);
    // With the second goes the first, which nothing else needs then.
    store.engine().drop_tree(branch).expect("the branch goes");
    for _ in 0..2 {
        let found = store.exclusive(&[Holder::Trees(&second)]);
        assert_rows(found[0], 2 * (ROWS / 4) + ROWS / 2);
        store.quiesce();
    }
    let gone = [gone];
    let call = store
        .engine()
        .exclusive_space(&[Holder::Trees(&gone)], &mut |_, _| true);
    assert!(matches!(call, Err(KvError::NoTree(tree)) if tree == gone[0]));
    store.finish();
}

/// Rows of a range are exclusive until something else keeps them.
pub(super) fn ranges(factory: &dyn Factory) {
    let Some((store, tree)) = with_shares(factory) else {
        return;
    };
    store.put_rows(tree, 0..ROWS, 0);
    let all = store.share(tree, 0..ROWS);
    assert_rows(all.referenced_bytes, ROWS);
    assert_eq!(all.shared_bytes(), 0);
    store.pin("a");
    store.put_rows(tree, 0..ROWS / 4, 1);
    store.commit(|b| (ROWS / 2..ROWS).for_each(|row| b.delete(tree, &row.to_be_bytes())));
    for _ in 0..2 {
        let (first, second) = (
            store.share(tree, 0..ROWS / 4),
            store.share(tree, ROWS / 4..ROWS),
        );
        assert_rows(first.exclusive_bytes, ROWS / 4);
        assert_eq!(first.shared_bytes(), 0);
        assert_rows(second.shared_bytes(), ROWS / 4);
        assert_eq!(second.exclusive_bytes, 0);
        let then = store.open_pin("a");
        let then = store
            .engine()
            .range_space(tree, &[KeyRange::all()], Some(&then));
        let then = then.expect("the walk reads");
        assert_rows(then.referenced_bytes, ROWS);
        assert_eq!(then.exclusive_bytes, 0, "rows of a pin cannot be deleted");
        store.quiesce();
    }
    let branch = store.branch_of(tree, "branch");
    store.put_rows(branch, 0..ROWS / 8, 2);
    let seen = store.share(branch, 0..ROWS);
    assert_rows(seen.referenced_bytes, ROWS / 2);
    assert_rows(seen.exclusive_bytes, ROWS / 8);
    assert_eq!(store.share(tree, 0..ROWS / 4).exclusive_bytes, 0);
    let gone = store.engine().range_space(TreeId(u32::MAX), &[], NOW);
    assert!(matches!(gone, Err(KvError::NoTree(_))));
    store.finish();
}
