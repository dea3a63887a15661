use super::*;
use stitch_kv::conformance::functions::{ADD, APPEND, registry};

const TREE: TreeId = TreeId(1);

fn value(bytes: &'static [u8]) -> Own {
    Own::Value(Bytes::from_static(bytes))
}

fn messages(writes: &Writes) -> usize {
    let mut batch = Batch::new();
    writes.fill(&mut batch, |tree| tree);
    assert!(
        batch.len_bytes() <= writes.len_bytes(),
        "at most what was counted"
    );
    batch.count()
}

#[test]
fn only_the_newest_state_of_a_key_is_kept() {
    let mut writes = Writes::default();
    assert!(writes.is_empty());
    for _ in 0..10 {
        writes.set(TREE, b"a", value(b"1"));
        writes.set(TREE, b"b", Own::Absent);
    }
    assert_eq!((messages(&writes), writes.len_bytes()), (2, 2 * 24 + 3));
    writes.clear(TREE, b"a", b"c");
    assert_eq!(messages(&writes), 1, "the range delete has both");
    writes.set(TREE, b"a", Own::Absent);
    assert_eq!(messages(&writes), 1, "it is absent already");
    writes.set(TREE, b"a", value(b"2"));
    writes.clear(TREE, b"b", b"f");
    assert_eq!(messages(&writes), 2, "ranges that touch are one");
    assert_eq!(writes.len_bytes(), 24 + 2 + 24 + 2);
}

#[test]
fn upserts_fold_where_the_value_is_known() {
    let upserts = registry();
    let append = upserts.get(APPEND).unwrap();
    let mut writes = Writes::default();
    writes.upsert(TREE, b"a", append.as_ref(), b"1");
    writes.upsert(TREE, b"a", append.as_ref(), b"2");
    assert_eq!(messages(&writes), 2, "the store's value is not known");
    writes.set(TREE, b"b", value(b"x"));
    writes.upsert(TREE, b"b", append.as_ref(), b"y");
    let keys = &writes.tree(TREE).unwrap().keys;
    assert_eq!(keys[&b"b"[..]], value(b"xy"));
    writes.clear(TREE, b"a", b"z");
    writes.upsert(TREE, b"c", append.as_ref(), b"new");
    let keys = &writes.tree(TREE).unwrap().keys;
    assert_eq!(keys[&b"c"[..]], value(b"new"));
    assert_eq!(keys.len(), 1);
}

#[test]
fn deltas_that_commute_are_not_guarded() {
    let upserts = registry();
    let since = stitch_kv::Snapshot::new(stitch_base::Seqno(1), Arc::new(()));
    let mut writes = Writes::default();
    writes.upsert(TREE, b"sum", upserts.get(ADD).unwrap().as_ref(), b"1");
    writes.upsert(TREE, b"text", upserts.get(APPEND).unwrap().as_ref(), b"1");
    writes.clear(TREE, b"x", b"y");
    writes.set(TREE, b"x1", value(b"1"));
    let mut guards = Guards::since(&since);
    writes.guard(&mut guards, &upserts);
    let on: Vec<_> = guards.iter().map(|guard| guard.on).collect();
    let range = stitch_kv::Guarded::Range(KeyRange::new(b"x", b"y"));
    assert_eq!(on, [range, stitch_kv::Guarded::Key(b"text")]);
}

#[test]
fn what_savepoints_keep_is_counted_and_given_up() {
    let mut writes = Writes::default();
    writes.set(TREE, b"a", value(b"1"));
    assert_eq!(writes.undo_bytes(), 0);
    let (outer, inner) = (writes.save(), writes.save());
    writes.clear(TREE, b"a", b"b");
    writes.set(TREE, b"a", value(b"2"));
    assert!(writes.undo_bytes() > 0);
    writes.take_back(outer).unwrap();
    assert_eq!(writes.tree(TREE).unwrap().keys[&b"a"[..]], value(b"1"));
    assert!(matches!(writes.take_back(inner), Err(DbError::NoSavepoint)));
    assert_eq!((writes.undo_bytes(), writes.len_bytes()), (0, 24 + 2));
    writes.keep(outer).unwrap();
    assert!(matches!(writes.keep(outer), Err(DbError::NoSavepoint)));
}
