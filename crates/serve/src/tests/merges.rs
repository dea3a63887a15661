//! Keys of a branch in a later one, where sides were chosen.

use super::branches::Sides;
use super::random::{KEYS, check_row_map, command};
use super::{Desk, run};
use crate::merged::{merge_keys, rows_of_key};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::TreeId;
use stitch_db::{BranchMerge, MergedTrees};
use stitch_format::redis;
use stitch_kv::{Direction, Engine, KeyRange};

fn rows(engine: &dyn Engine, tree: TreeId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None);
    let (mut scan, mut rows) = (scan.unwrap(), BTreeMap::new());
    while let Some((key, value)) = scan.next().unwrap() {
        rows.insert(key.to_vec(), value.to_vec());
    }
    rows
}

/// Merges a branch into a later one, but for keys that are left to mainline.
fn merge(sides: &Sides, own: TreeId, left: &[&str]) -> (Desk, TreeId) {
    let engine: &dyn Engine = &*sides.engine;
    let target = sides.branch_tree("later");
    let keys = engine.branch_keys(own, None, 10_000).unwrap();
    let ranges = engine.branch_deleted_ranges(own).unwrap();
    let trees = MergedTrees {
        own,
        parent: sides.rows,
        target,
        moment: &engine.branch_moment(target).unwrap(),
    };
    let left: BTreeSet<Vec<u8>> = left.iter().map(|key| key.as_bytes().to_vec()).collect();
    let mut merge = BranchMerge::new(engine, trees, (&keys, &ranges), left);
    merge_keys(&mut merge).unwrap();
    merge.finish().unwrap();
    check_row_map(&rows(engine, target));
    (sides.desk_of(target), target)
}

#[test]
fn a_key_is_what_one_side_has_of_it_whatever_became_of_its_collection() {
    for (left, of_h, of_r) in [
        (&[][..], "[f 1 g 2]", "[f 1]"),
        (&["h"][..], "[]", "[f 1]"),
        (&["h", "s"][..], "[]", "[f 1]"),
    ] {
        let mut sides = Sides::new(&["HSET h f 1", "SET s begins EX 100", "SET t begins"]);
        let own = sides.branch_tree("own");
        let mut ours = sides.desk_of(own);
        ours.check(&[
            ("HSET h g 2", "(1)"),
            ("SET s ours", "OK"),
            ("HSET n x 1", "(1)"),
        ]);
        sides
            .mainline
            .check(&[("RENAME h r", "OK"), ("SET s theirs EX 50", "OK")]);
        let (mut merged, target) = merge(&sides, own, left);
        let s = if left.contains(&"s") {
            "theirs"
        } else {
            "ours"
        };
        merged.check(&[
            ("HGETALL h", of_h),
            ("HGETALL r", of_r),
            ("GET s", s),
            ("HGETALL n", "[x 1]"),
            // Its numbers of collections go on.
            ("HSET later f 1", "(1)"),
            ("HGETALL n", "[x 1]"),
        ]);
        sides.absorb(target);
        sides.mainline.check(&[
            ("HGETALL h", of_h),
            ("HGETALL r", of_r),
            ("GET t", "begins"),
        ]);
        check_row_map_of_mainline(&sides);
    }
}

/// Numbers of collections that came from a branch are larger than mainline's next one.
fn check_row_map_of_mainline(sides: &Sides) {
    let mut rows = rows(&*sides.engine, sides.rows);
    let key = redis::totals_key().to_vec();
    let totals = redis::Totals::decode(&rows[&key]).unwrap();
    let totals = redis::Totals {
        next_collection: u64::MAX,
        ..totals
    };
    rows.insert(key, totals.encode().to_vec());
    check_row_map(&rows);
}

#[test]
fn after_a_flush_the_keys_that_are_left_stay_and_new_ones_are_in_conflict() {
    let mut sides = Sides::new(&["HSET h f 1", "SET a 1", "SET b 1 EX 50"]);
    let own = sides.branch_tree("own");
    let mut ours = sides.desk_of(own);
    ours.check(&[("FLUSHALL", "OK"), ("SET b ours", "OK")]);
    sides
        .mainline
        .check(&[("HSET h g 2", "(1)"), ("SET c theirs", "OK")]);
    let (mut merged, target) = merge(&sides, own, &["h"]);
    merged.check(&[
        ("KEYS *", "[b h]"),
        ("HGETALL h", "[f 1 g 2]"),
        ("TTL b", "(-1)"),
        ("DBSIZE", "(2)"),
    ]);
    let ranges = sides.engine.branch_deleted_ranges(target).unwrap();
    let is_guarded = |key: &str| {
        let row = redis::key_row(key.as_bytes());
        ranges
            .iter()
            .any(|(start, end)| *start <= row && row < *end)
    };
    assert!(is_guarded("new") && is_guarded("a") && !is_guarded("h"));
}

#[test]
fn a_collection_belongs_to_the_row_of_its_key() {
    let sides = Sides::new(&["HSET h f 1", "SET s 1"]);
    let all = rows(&*sides.engine, sides.rows);
    let of = |key: &str| {
        let row = redis::key_row(key.as_bytes());
        rows_of_key(redis::TREE, &row, &all[&row]).unwrap()
    };
    let (start, end) = of("h").expect("a hash has fields");
    assert_eq!(all.range(start..end).count(), 1);
    assert_eq!(of("s"), None);
    assert_eq!(rows_of_key("stock", b"k\0h", b"any").unwrap(), None);
    assert_eq!(rows_of_key(redis::TREE, b"c\0", b"any").unwrap(), None);
    assert!(rows_of_key(redis::TREE, b"k\0h", b"any").is_err());
}

/// Runs commands, none of which is held back by a MULTI.
fn run_all(desk: &mut Desk, lines: &[String]) {
    for line in lines {
        if !matches!(&**line, "MULTI" | "EXEC" | "DISCARD") {
            desk.run(line);
        }
    }
}

/// All that can be seen of a key.
fn shown(desk: &mut Desk, key: &str) -> Vec<String> {
    let lines = ["TYPE", "GET", "HGETALL", "PTTL"].map(|verb| format!("{verb} {key}"));
    let scores = format!("ZRANGE {key} 0 -1 WITHSCORES");
    desk.service.begin_round();
    let mut said: Vec<String> = Vec::new();
    for line in lines.iter().chain([&scores]) {
        said.push(run(&mut desk.service, &mut desk.client, line));
    }
    desk.service.commit().unwrap();
    said
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn each_key_is_one_sides_and_the_rows_fit_together(
        begins in prop::collection::vec(command(), 0..12),
        ours in prop::collection::vec(command(), 1..12),
        theirs in prop::collection::vec(command(), 0..12),
        left in prop::sample::subsequence(KEYS.to_vec(), 0..=KEYS.len()),
    ) {
        let mut sides = Sides::new(&[]);
        run_all(&mut sides.mainline, &begins);
        let own = sides.branch_tree("own");
        let mut branch = sides.desk_of(own);
        run_all(&mut branch, &ours);
        run_all(&mut sides.mainline, &theirs);
        let engine: &dyn Engine = &*sides.engine;
        let keys = engine.branch_keys(own, None, 10_000).unwrap();
        let ranges = engine.branch_deleted_ranges(own).unwrap();
        let (mut merged, target) = merge(&sides, own, &left);
        for key in KEYS {
            let row = redis::key_row(key.as_bytes());
            let is_cleared = ranges.iter().any(|(start, end)| *start <= row && row < *end);
            let is_ours = (is_cleared || keys.contains(&row)) && !left.contains(&key);
            let side = if is_ours { &mut branch } else { &mut sides.mainline };
            prop_assert_eq!(shown(&mut merged, key), shown(side, key), "{}", key);
        }
        sides.absorb(target);
        if rows(&*sides.engine, sides.rows).contains_key(&redis::totals_key()[..]) {
            check_row_map_of_mainline(&sides);
        }
    }
}
