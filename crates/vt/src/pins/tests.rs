use super::*;
use crate::testing::{Small, walks};
use stitch_format::vt_manifest::NarrowedPin;
use stitch_kv::{Engine, Snapshot, TreeOptions};

fn record(id: u64, name: &str, next_tree: u32) -> PinRecord {
    PinRecord {
        id: PinId(id),
        name: name.to_owned(),
        seqno: Seqno(id * 10),
        next_tree: TreeId(next_tree),
        user: vec![1; 7],
        trees: None,
        ranges: Vec::new(),
    }
}

fn changes(new: Vec<PinRecord>) -> PinChanges {
    PinChanges {
        last: PinId(9),
        new,
        ..PinChanges::default()
    }
}

fn three() -> PinRecords {
    let mut records = PinRecords::default();
    let new = vec![record(2, "a", 4), record(3, "b", 6), record(7, "c", 6)];
    records.apply(&changes(new)).expect("they are in order");
    records
}

#[test]
fn changes_that_do_not_belong_are_refused() {
    let refused = |changes: PinChanges| {
        let refused = three().apply(&changes);
        assert!(
            matches!(refused, Err(VtError::Version { .. })),
            "{changes:?}"
        );
    };
    refused(changes(vec![record(7, "d", 6)]));
    refused(changes(vec![record(6, "d", 6)]));
    refused(changes(vec![record(8, "a", 6)]));
    refused(changes(vec![record(8, "d", 5)]));
    refused(changes(vec![record(10, "d", 6)]));
    refused(changes(vec![record(8, "", 6)]));
    refused(changes(vec![record(8, &"n".repeat(256), 6)]));
    let mut long = record(8, "d", 6);
    long.user = vec![0; 4097];
    refused(changes(vec![long]));
    let mut early = record(8, "d", 6);
    early.seqno = Seqno(69);
    refused(changes(vec![early]));
    let mut unknown = changes(Vec::new());
    unknown.dropped = vec![PinId(4)];
    refused(unknown.clone());
    unknown.dropped.clear();
    unknown.altered = vec![(PinId(4), Vec::new())];
    refused(unknown.clone());
    unknown.altered = vec![(PinId(3), vec![0; 4097])];
    refused(unknown);
}

#[test]
fn the_length_in_a_base_is_that_of_the_records_left() {
    let mut records = three();
    let mut change = changes(vec![record(8, "the eighth", 7)]);
    change.dropped = vec![PinId(3)];
    change.altered = vec![(PinId(2), vec![0; 900])];
    let expected = records.base_bytes_after(&change);
    records.apply(&change).expect("they belong");
    let none = PinChanges::default();
    assert_eq!(records.base_bytes_after(&none), expected);
    let sum: u64 = records.iter().map(PinRecord::base_bytes).sum();
    assert_eq!(sum, expected);
    let ids: Vec<u64> = records.iter().map(|record| record.id.0).collect();
    assert_eq!(ids, [2, 7, 8]);
    assert!(records.find("b").is_none());
    assert_eq!(records.find("a").expect("it stays").user.len(), 900);
}

#[test]
fn a_tree_is_seen_by_pins_between_its_making_and_its_drop() {
    let records = three();
    let seer = |tree, unseen_by, but: Option<u64>| {
        let found = records.newest_seer(TreeId(tree), PinId(unseen_by), but.map(PinId).as_slice());
        found.map(|id| id.0)
    };
    assert_eq!(seer(3, 8, None), Some(7));
    assert_eq!(seer(3, 7, None), Some(3));
    assert_eq!(seer(3, 7, Some(3)), Some(2));
    assert_eq!(seer(3, 3, Some(2)), None);
    assert_eq!(seer(5, 7, Some(3)), None, "pin 2 is older than tree 5");
    assert_eq!(seer(6, 8, None), None);
    let sight = Sight::new(PinId(3), TreeId(6), (PinScope::AllTrees, PinRanges::new()));
    assert!(sight.sees(TreeId(5), PinId(4)));
    assert!(!sight.sees(TreeId(5), PinId(3)) && !sight.sees(TreeId(6), PinId(4)));
}

fn of_trees(record: PinRecord, trees: &[u32]) -> PinRecord {
    let trees = trees.iter().map(|tree| TreeId(*tree)).collect();
    PinRecord {
        trees: Some(trees),
        ..record
    }
}

#[test]
fn a_tree_is_seen_by_the_pins_that_hold_it() {
    let mut records = PinRecords::default();
    let new = vec![
        of_trees(record(2, "a", 4), &[1, 3]),
        record(3, "b", 4),
        of_trees(record(5, "c", 6), &[1]),
        of_trees(record(7, "d", 8), &[3, 7]),
    ];
    records.apply(&changes(new)).expect("they are in order");
    let seer = |tree, unseen_by, but: Option<u64>| {
        let found = records.newest_seer(TreeId(tree), PinId(unseen_by), but.map(PinId).as_slice());
        found.map(|id| id.0)
    };
    assert_eq!(seer(1, 9, None), Some(5));
    assert_eq!(seer(1, 9, Some(5)), Some(3));
    assert_eq!(seer(1, 3, None), Some(2));
    assert_eq!(seer(3, 9, None), Some(7));
    assert_eq!(seer(3, 7, None), Some(3));
    assert_eq!(seer(7, 9, None), Some(7));
    assert_eq!(seer(7, 9, Some(7)), None);
    assert_eq!(
        seer(5, 9, None),
        None,
        "no pin of it, and no older one of all"
    );
    let newest = |records: &PinRecords, tree| {
        let ids = records.newest_first(TreeId(tree));
        ids.map(|id| id.0).collect::<Vec<_>>()
    };
    assert_eq!(newest(&records, 1), [5, 3]);
    assert_eq!(newest(&records, 3), [7, 3]);
    assert_eq!(newest(&records, 5), [3]);
    let mut dropped = changes(Vec::new());
    dropped.dropped = vec![PinId(2), PinId(5)];
    assert!(records.has_scopes_after(&dropped));
    records.apply(&dropped).expect("they are there");
    assert_eq!(newest(&records, 1), [3]);
    dropped.dropped = vec![PinId(7)];
    assert!(!records.has_scopes_after(&dropped));
    records.apply(&dropped).expect("it is there");
    assert_eq!(records.newest_seer(TreeId(7), PinId(9), &[]), None);
    let wrong = changes(vec![of_trees(record(8, "e", 8), &[8])]);
    assert!(matches!(
        records.apply(&wrong),
        Err(VtError::Version { .. })
    ));
}

fn narrowed(id: u64, trees: &[u32], ranges_of: &[u32]) -> PinChanges {
    let ids = |trees: &[u32]| -> Vec<TreeId> { trees.iter().map(|tree| TreeId(*tree)).collect() };
    let range = (b"b".to_vec(), Some(b"c".to_vec()));
    let with_range = |tree: TreeId| (tree, vec![range.clone()]);
    let mut changes = changes(Vec::new());
    changes.narrowed = vec![NarrowedPin {
        id: PinId(id),
        trees: ids(trees),
        ranges: ids(ranges_of).into_iter().map(with_range).collect(),
    }];
    changes
}

#[test]
fn a_narrowed_pin_is_one_of_its_trees() {
    let mut records = three();
    let narrow = narrowed(3, &[1, 5], &[5]);
    let bytes = records.base_bytes_after(&narrow);
    assert!(!records.has_scopes_after(&PinChanges::default()) && records.has_scopes_after(&narrow));
    records.apply(&narrow).expect("it is there");
    assert_eq!(records.base_bytes_after(&PinChanges::default()), bytes);
    let found = records.find("b").expect("it keeps its name");
    assert_eq!(found.trees, Some(vec![TreeId(1), TreeId(5)]));
    assert_eq!(found.ranges, narrow.narrowed[0].ranges);
    let seer = |tree| records.newest_seer(TreeId(tree), PinId(7), &[]);
    assert_eq!([seer(5), seer(2)], [Some(PinId(3)), Some(PinId(2))]);
    let again = narrowed(3, &[1, 5], &[1, 5]);
    records.apply(&again).expect("it is there");
    let mut dropped = changes(Vec::new());
    dropped.dropped = vec![PinId(3)];
    assert!(!records.has_scopes_after(&dropped));
    records.apply(&dropped).expect("it is there");
    assert_eq!(records.newest_seer(TreeId(5), PinId(7), &[]), None);
    for wrong in [narrowed(4, &[1], &[1]), narrowed(2, &[4], &[4])] {
        let refused = records.clone().apply(&wrong);
        assert!(matches!(refused, Err(VtError::Version { .. })), "{wrong:?}");
    }
}

#[test]
fn no_change_of_a_pin_walks_over_the_tables() {
    let mut store = Small::new(64 << 20);
    store.reopen_as(|options| {
        options.memtable_bytes = Some(32 << 10);
        options.table_bytes = Some(32 << 10);
    });
    store.put(0, 4096, 1000);
    store.engine.quiesce().expect("background work succeeds");
    let tables = store.engine.store.version().tables().count();
    assert!(tables > 50, "{tables} tables");
    let before = walks();
    for number in 0..50 {
        let name = number.to_string();
        store.engine.create_pin(&name, b"user").expect("it is made");
        store.engine.alter_pin(&name, b"other").expect("it changes");
        store.engine.open_pin(&name).expect("it opens");
    }
    for number in 0..50 {
        let dropped = store.engine.drop_pin(&number.to_string());
        dropped.expect("it goes");
    }
    assert_eq!(walks(), before);
    store.check();
}

#[test]
fn a_dropped_pin_lingers_as_long_as_its_snapshots() {
    let mut store = Small::new(64 << 20);
    let make = |name| store.engine.create_tree(name, &TreeOptions::default());
    let [early, late] = ["early", "late"].map(|name| make(name).expect("it is made"));
    store.put(0, 64, 1000);
    let engine = &store.engine;
    for name in ["a", "b"] {
        engine.create_pin(name, b"").expect("it is made");
    }
    let at = engine.open_pin("a").expect("it opens");
    engine.drop_tree(early).expect("it is hidden");
    engine.drop_pin("a").expect("it goes");
    engine.drop_tree(late).expect("it is hidden");
    let has = |tree, at: &Snapshot| engine.get(tree, b"k", Some(at)).is_ok();
    let of_b = engine.open_pin("b").expect("it opens");
    assert!(has(early, &of_b) && has(late, &of_b));
    assert!(has(early, &at) && !has(late, &at), "pin a was gone before");
    engine.drop_pin("b").expect("it goes");
    assert!(has(early, &of_b) && has(late, &of_b));
    assert!(has(early, &at) && !has(late, &at));
    assert_eq!(engine.store.pins.lingering().len(), 2);
    drop((at, of_b));
    assert_eq!(engine.store.pins.lingering().len(), 0);
    engine.create_pin("c", b"").expect("it is made");
    assert!(!has(early, &engine.open_pin("c").expect("it opens")));
}
