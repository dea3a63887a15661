use super::*;
use crate::conformance::functions::{APPEND, registry};
use stitch_base::ErrorKind;

fn commit(engine: &ModelEngine, build: impl FnOnce(&mut Batch)) -> Result<Seqno, KvError> {
    let mut batch = Batch::new();
    build(&mut batch);
    engine.commit(&batch, CommitOptions::default())
}

#[test]
fn versions_live_as_long_as_a_reader_sees_them() {
    let engine = ModelEngine::new(registry());
    let tree = engine.create_tree("t", &TreeOptions::default()).unwrap();
    let value = [1; 100];
    commit(&engine, |b| b.put(tree, b"k", &value)).unwrap();
    let one = engine.state.read().used();
    let snapshot = engine.snapshot();
    commit(&engine, |b| b.put(tree, b"k", &value)).unwrap();
    assert_eq!(engine.state.read().used(), 2 * one);
    commit(&engine, |b| b.put(tree, b"k", &value)).unwrap();
    assert_eq!(engine.state.read().used(), 2 * one);
    drop(snapshot);
    engine.quiesce().unwrap();
    assert_eq!(engine.state.read().used(), one);
    commit(&engine, |b| b.delete(tree, b"k")).unwrap();
    assert_eq!(engine.state.read().used(), 0);
}

#[test]
fn a_deleted_key_hides_older_versions_from_newer_snapshots_only() {
    let engine = ModelEngine::new(registry());
    let tree = engine.create_tree("t", &TreeOptions::default()).unwrap();
    commit(&engine, |b| b.put(tree, b"k", b"v")).unwrap();
    let before = engine.snapshot();
    commit(&engine, |b| b.delete(tree, b"k")).unwrap();
    let after = engine.snapshot();
    commit(&engine, |b| b.upsert(tree, b"k", APPEND, b"w")).unwrap();
    let at = |snapshot| engine.get(tree, b"k", snapshot).unwrap();
    assert_eq!(at(Some(&before)).as_deref(), Some(&b"v"[..]));
    assert_eq!(at(Some(&after)), None);
    assert_eq!(at(None).as_deref(), Some(&b"w"[..]));
}

#[test]
fn the_reserve_is_for_deletes() {
    let engine = ModelEngine::with_space(registry(), 16 << 10);
    let tree = engine.create_tree("t", &TreeOptions::default()).unwrap();
    let mut count = 0u32;
    let full = loop {
        match commit(&engine, |b| b.put(tree, &count.to_be_bytes(), &[0; 100])) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, KvError::NoSpace { .. }));
    let mut batch = Batch::new();
    batch.delete(tree, &[0; 4]);
    let options = CommitOptions {
        space: SpaceClass::Reserve,
        ..CommitOptions::default()
    };
    engine.commit(&batch, options).unwrap();
    commit(&engine, |b| b.put(tree, &[0; 4], &[0; 30])).unwrap();
}

#[test]
fn a_dump_has_what_is_there_now() {
    let engine = ModelEngine::new(registry());
    let tree = engine.create_tree("t", &TreeOptions::default()).unwrap();
    commit(&engine, |b| {
        b.put(tree, b"a", b"1");
        b.put(tree, b"b", b"2");
        b.delete(tree, b"a");
    })
    .unwrap();
    let rows = BTreeMap::from([(b"b".to_vec(), b"2".to_vec())]);
    assert_eq!(engine.dump(), Dump::from([("t".to_owned(), rows)]));
    assert_eq!(engine.reopened().dump(), engine.dump());
}

#[test]
fn commits_fail_as_they_are_told_to() {
    let engine = ModelEngine::new(registry());
    let tree = engine.create_tree("t", &TreeOptions::default()).unwrap();
    let put = |key: &[u8]| commit(&engine, |b| b.put(tree, key, b"v")).map_err(|e| e.kind());
    let has = |key: &[u8]| engine.get(tree, key, None).unwrap().is_some();
    for (fault, kind, is_done) in [
        (CommitFault::Refused, ErrorKind::Io, false),
        (CommitFault::Full, ErrorKind::NoSpace, false),
        (CommitFault::Done, ErrorKind::Io, true),
    ] {
        engine.fail_commits(fault, 2);
        for key in [&b"a"[..], b"b"] {
            assert_eq!(put(key), Err(kind));
            assert_eq!(has(key), is_done, "{fault:?}");
        }
        put(b"c").unwrap();
        assert!(has(b"c"));
        commit(&engine, |b| b.delete_range(tree, b"a", b"z")).unwrap();
    }
    engine.fail_commits(CommitFault::Full, u32::MAX);
    assert_eq!(put(b"a"), Err(ErrorKind::NoSpace));
    engine.mend_commits();
    engine.fail_commits_after(1, CommitFault::Full, 1);
    put(b"a").unwrap();
    assert_eq!(put(b"a"), Err(ErrorKind::NoSpace));
    put(b"a").unwrap();
}

#[test]
fn a_dropped_tree_takes_space_until_the_last_pin_that_sees_it_goes() {
    let engine = ModelEngine::new(registry());
    let tree = engine.create_tree("t", &TreeOptions::default()).unwrap();
    commit(&engine, |b| b.put(tree, b"k", &[1; 100])).unwrap();
    let rows = engine.state.read().used();
    engine.create_pin("a", b"").unwrap();
    engine.create_pin("b", b"").unwrap();
    let pins = engine.state.read().used() - rows;
    engine.drop_tree(tree).unwrap();
    engine.create_pin("c", b"").unwrap();
    assert_eq!(engine.state.read().used(), rows + pins / 2 * 3);
    let engine = engine.reopened();
    engine.drop_pin("a").unwrap();
    assert_eq!(engine.state.read().used(), rows + pins);
    engine.drop_pin("b").unwrap();
    assert_eq!(engine.state.read().used(), pins / 2);
}
