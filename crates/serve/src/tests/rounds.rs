//! Batches: what they hold, and what happens when one fails.

use super::{Desk, run};
use stitch_base::sync::Arc;
use stitch_db::{Direction, KeyRange};
use stitch_kv::{CommitFault, Engine as _, ModelEngine, UpsertRegistry};

/// All rows of the store.
pub(super) fn rows(desk: &Desk) -> Vec<(Vec<u8>, Vec<u8>)> {
    let engine = &desk.engine;
    let trees = engine.trees();
    let tree = trees.iter().find(|tree| tree.name == "redis/rows").unwrap();
    let mut scan = engine
        .scan(tree.id, KeyRange::all(), Direction::Forward, None)
        .unwrap();
    let mut found = Vec::new();
    while let Some((key, value)) = scan.next().unwrap() {
        found.push((key.to_vec(), value.to_vec()));
    }
    found
}

/// A row in short: its key without the byte of the database, and its value.
fn shown(desk: &Desk) -> Vec<String> {
    let shown = |(key, value): &(Vec<u8>, Vec<u8>)| {
        format!("{} = {}", key.escape_ascii(), value.escape_ascii())
    };
    rows(desk).iter().map(shown).collect()
}

#[test]
fn rows_are_laid_out_as_they_are_described() {
    let mut desk = Desk::new();
    desk.check(&[
        ("SET a x PXAT 16909060", "OK"),
        ("HSET h f v", "(1)"),
        ("ZADD z 1 m", "(1)"),
    ]);
    let number = |number: u64| number.to_le_bytes().escape_ascii().to_string();
    let (one, two, none) = (number(1), number(2), number(0));
    let expected = [
        format!(r"c\x00 = {}{one}{}", number(3), number(3)),
        r"k\x00a = \x01\x04\x03\x02\x01\x00\x00\x00\x00x".to_owned(),
        format!(r"k\x00h = \x02{none}{one}{one}"),
        format!(r"k\x00z = \x03{none}{two}{one}"),
        r"m\x00\x00\x00\x00\x00\x00\x00\x00\x01ff = v".to_owned(),
        r"m\x00\x00\x00\x00\x00\x00\x00\x00\x02mm = \x00\x00\x00\x00\x00\x00\xf0?".to_owned(),
        r"m\x00\x00\x00\x00\x00\x00\x00\x00\x02s\xbf\xf0\x00\x00\x00\x00\x00\x00m = ".to_owned(),
        r"v = \x01\x00\x00\x00".to_owned(),
        r"x\x00\x00\x00\x00\x00\x01\x02\x03\x04a = ".to_owned(),
    ];
    assert_eq!(shown(&desk), expected);
}

#[test]
fn a_flush_leaves_what_a_fresh_store_has() {
    let mut desk = Desk::new();
    let fresh = shown(&desk);
    desk.check(&[("FLUSHDB", "OK")]);
    assert_eq!(shown(&desk), fresh, "of an empty database");
    desk.check(&[
        ("MSET a 1 b 2", "OK"),
        ("HSET h f v", "(1)"),
        ("EXPIRE h 10", "(1)"),
        ("FLUSHALL", "OK"),
        ("DBSIZE", "(0)"),
        ("FLUSHDB", "OK"),
    ]);
    assert_eq!(shown(&desk), fresh);
    desk.check(&[("SET a 1", "OK"), ("DBSIZE", "(1)"), ("DEL a", "(1)")]);
    assert_eq!(desk.run("DBSIZE"), "(0)");
}

#[test]
fn keys_are_there_when_the_store_is_opened_again() {
    let mut desk = Desk::new();
    desk.check(&[
        ("SET a 1 EX 10", "OK"),
        ("HSET h f v", "(1)"),
        ("DEL h", "(1)"),
    ]);
    let mut again = Desk::on(Arc::new(desk.engine.reopened()));
    again.check(&[
        ("GET a", "1"),
        ("TTL a", "(10)"),
        ("DBSIZE", "(1)"),
        ("HSET g f v", "(1)"),
        ("HGETALL g", "[f v]"),
        ("DBSIZE", "(2)"),
    ]);
}

#[test]
fn a_layout_of_a_newer_program_is_refused() {
    let desk = Desk::new();
    let tree = desk.engine.trees()[0].id;
    let mut batch = stitch_kv::Batch::new();
    batch.put(tree, b"v", &2u32.to_le_bytes());
    desk.engine
        .commit(&batch, stitch_kv::CommitOptions::default())
        .unwrap();
    let refused = crate::keyspace::Keyspace::open(desk.engine.clone(), None, 0)
        .err()
        .unwrap();
    assert_eq!(refused.kind(), stitch_base::ErrorKind::Unsupported);
}

#[test]
fn a_round_whose_commit_fails_has_not_happened() {
    let mut desk = Desk::new();
    desk.check(&[("SET a 1", "OK"), ("SET t 1 EX 10", "OK")]);
    let before = shown(&desk);
    for fault in [CommitFault::Full, CommitFault::Refused] {
        desk.engine.fail_commits(fault, 1);
        desk.service.begin_round();
        for line in [
            "SET a 2",
            "SET b 1 EX 5",
            "HSET h f v",
            "FLUSHDB",
            "SET c 1",
        ] {
            let reply = run(&mut desk.service, &mut desk.client, line);
            assert!(!reply.starts_with('!'), "{line}: {reply}");
        }
        let text = desk.service.commit().unwrap_err();
        let code = if fault == CommitFault::Full {
            "OOM"
        } else {
            "MISCONF"
        };
        assert!(text.starts_with(code), "{text}");
        if fault == CommitFault::Full {
            assert_eq!(shown(&desk), before);
            desk.check(&[
                ("GET a", "1"),
                ("DBSIZE", "(2)"),
                ("SET b 1", "OK"),
                ("DEL b", "(1)"),
            ]);
        }
    }
}

#[test]
fn a_store_without_space_can_be_emptied() {
    let engine = ModelEngine::with_space(UpsertRegistry::default(), 64 << 10);
    let mut desk = Desk::on(Arc::new(engine));
    let value = "v".repeat(1000);
    let mut count = 0;
    let text = loop {
        desk.service.begin_round();
        let line = format!("SET k{count} {value}");
        run(&mut desk.service, &mut desk.client, &line);
        match desk.service.commit() {
            Ok(_) => count += 1,
            Err(text) => break text,
        }
        assert!(count < 1000, "64 KiB are never full");
    };
    assert!(text.starts_with("OOM"), "{text}");
    assert_eq!(desk.run("DBSIZE"), format!("({count})"));
    assert_eq!(desk.run("DEL k0"), "(1)");
    assert_eq!(desk.run("FLUSHDB"), "OK");
    assert_eq!(desk.run(&format!("SET k0 {value}")), "OK");
}

#[test]
fn commands_of_a_round_are_one_batch() {
    let mut desk = Desk::new();
    let before = desk.engine.snapshot().seqno();
    desk.service.begin_round();
    for _ in 0..1000 {
        run(&mut desk.service, &mut desk.client, "INCR a");
    }
    assert_eq!(desk.service.commit(), Ok(true));
    assert_eq!(desk.service.commit(), Ok(false));
    // The key's row and the totals: each is put once.
    assert_eq!(desk.engine.snapshot().seqno().0 - before.0, 2);
    assert_eq!(desk.run("GET a"), "1000");
}
