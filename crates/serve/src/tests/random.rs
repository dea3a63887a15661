//! Random commands: the ends of rounds change nothing, and the rows fit together after each of
//! them.

use super::{Desk, rounds, run};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::sync::Arc;
use stitch_format::redis::{self, Collection, HEAD_BYTES, KeyHead, Kind, Totals};
use stitch_kv::{ModelEngine, UpsertRegistry};

#[derive(Clone, Debug)]
enum Step {
    Command(String),
    /// The round ends.
    Commit,
    /// Time passes, and the background works.
    Advance(u64),
}

pub(super) const KEYS: [&str; 4] = ["a", "b", "c", "aa"];

fn key() -> impl Strategy<Value = &'static str> {
    prop::sample::select(KEYS.to_vec())
}

pub(super) fn command() -> impl Strategy<Value = String> {
    let ops = prop::sample::select(vec![
        "SET @ v",
        "SET @ w PX 30",
        "SET @ x KEEPTTL",
        "APPEND @ y",
        "INCR @",
        "DEL @",
        "GET @",
        "HSET @ f 1",
        "HSET @ g 2 h 3",
        "HDEL @ f",
        "HDEL @ g h",
        "HGETALL @",
        "HSCAN @ 0",
        "ZADD @ 1 m 2 n",
        "ZADD @ 3 m",
        "ZREM @ m",
        "ZPOPMIN @",
        "ZRANGE @ 0 -1 WITHSCORES",
        "ZRANGEBYSCORE @ 2 3",
        "ZREVRANGE @ 0 0",
        "PEXPIRE @ 20",
        "PERSIST @",
        "PTTL @",
        "TYPE @",
        "RENAME @ #",
        "COPY @ # REPLACE",
        "COPY @ #",
        "DBSIZE",
        "KEYS *",
        "SCAN 0",
        "FLUSHDB",
        "MSET @ 1 # 2",
        "MGET @ #",
        "MULTI",
        "EXEC",
        "DISCARD",
        "EXISTS @ #",
    ]);
    (ops, key(), key()).prop_map(|(op, one, other)| op.replace('@', one).replace('#', other))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => command().prop_map(Step::Command),
        2 => Just(Step::Commit),
        1 => (1u64..40).prop_map(Step::Advance),
    ]
}

/// Checks what [`crate::keyspace`] promises of the rows.
fn check_rows(desk: &Desk) {
    check_row_map(&rounds::rows(desk).into_iter().collect());
}

/// The same of the rows of any branch.
pub(super) fn check_row_map(rows: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let totals = rows.get(&redis::totals_key()[..]);
    let totals = totals.map_or(Totals::EMPTY, |bytes| Totals::decode(bytes).unwrap());
    let (mut keys, mut expiries, mut members) = (0, BTreeSet::new(), BTreeMap::new());
    for (row, value) in rows {
        let Some(key) = redis::user_key(row) else {
            continue;
        };
        keys += 1;
        let head = KeyHead::decode(value).unwrap();
        if head.expiry_ms > 0 {
            expiries.insert(redis::expiry_row(head.expiry_ms, key));
        }
        if head.kind != Kind::String {
            let collection = Collection::decode(&value[HEAD_BYTES..]).unwrap();
            assert!(collection.number < totals.next_collection);
            let rows_each = if head.kind == Kind::Hash { 1 } else { 2 };
            let count = collection.count * rows_each;
            assert_eq!(
                members.insert(collection.number, count),
                None,
                "one key each"
            );
        }
    }
    assert_eq!(
        (totals.keys, totals.expiries),
        (keys, expiries.len() as u64)
    );
    let of = |first: u8| rows.keys().filter(move |row| row[0] == first);
    assert_eq!(
        of(redis::EXPIRIES).cloned().collect::<BTreeSet<_>>(),
        expiries
    );
    let mut found: BTreeMap<u64, u64> = BTreeMap::new();
    for row in of(redis::MEMBERS) {
        let number = u64::from_be_bytes(row[2..10].try_into().unwrap());
        *found.entry(number).or_default() += 1;
    }
    assert_eq!(found, members);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn where_rounds_end_changes_nothing(
        steps in prop::collection::vec(step(), 1..80),
        recent_bytes in prop::sample::select(vec![0, 400, 1 << 20]),
    ) {
        let engine = || Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let mut single = Desk::with_recent(engine(), 0);
        let mut joint = Desk::with_recent(engine(), recent_bytes);
        joint.service.begin_round();
        for step in steps {
            match step {
                Step::Command(line) => {
                    let expected = single.run(&line);
                    let reply = run(&mut joint.service, &mut joint.client, &line);
                    prop_assert_eq!(reply, expected, "{}", line);
                    check_rows(&single);
                }
                Step::Commit => {
                    joint.service.commit().unwrap();
                    prop_assert_eq!(rounds::rows(&joint), rounds::rows(&single));
                }
                Step::Advance(millis) => {
                    for desk in [&mut single, &mut joint] {
                        desk.service.commit().unwrap();
                        desk.advance(millis);
                        desk.service.begin_round();
                        desk.service.reclaim();
                    }
                    single.service.commit().unwrap();
                    check_rows(&single);
                }
            }
        }
        joint.service.commit().unwrap();
        prop_assert_eq!(rounds::rows(&joint), rounds::rows(&single));
    }
}
