use super::*;

const TREE: TreeId = TreeId(1);

fn gap(start: &str, end: &str, seqno: u64) -> Gap {
    Gap::new(start.as_bytes(), Some(end.as_bytes()), Seqno(seqno))
}

fn add(gaps: &Gaps, gap: Gap) {
    gaps.confirm(gaps.announce(TREE, gap));
}

fn put(gaps: &Gaps, key: &str) {
    gaps.put([(TREE, key.as_bytes())].into_iter());
}

fn shown(gaps: &Gaps) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let all = gaps.of(TREE).unwrap_or_default();
    let each = all.iter().map(|gap| {
        let end = gap.end.as_deref().map(text).unwrap_or_default();
        format!("{}..{end}@{}", text(&gap.start), gap.seqno)
    });
    each.collect::<Vec<_>>().join(" ")
}

#[test]
fn gaps_that_touch_are_one() {
    let gaps = Gaps::new(GAP_BYTES_MIN);
    assert_eq!(shown(&gaps), "");
    add(&gaps, gap("f", "h", 5));
    add(&gaps, gap("b", "d", 7));
    assert_eq!(shown(&gaps), "b..d@7 f..h@5");
    add(&gaps, gap("d", "e", 6));
    assert_eq!(shown(&gaps), "b..e@7 f..h@5");
    add(&gaps, gap("c", "g", 3));
    assert_eq!(shown(&gaps), "b..h@7");
    add(&gaps, Gap::new(b"x", None, Seqno(1)));
    add(&gaps, gap("a", "z", 2));
    assert_eq!(shown(&gaps), "a..@7");
    assert_eq!(gaps.count(), 1);
}

#[test]
fn a_put_parts_a_gap_and_stops_one_that_is_not_confirmed() {
    let gaps = Gaps::new(GAP_BYTES_MIN);
    add(&gaps, gap("b", "h", 5));
    put(&gaps, "a");
    put(&gaps, "h");
    assert_eq!(shown(&gaps), "b..h@5");
    put(&gaps, "d");
    assert_eq!(shown(&gaps), "b..d@5 d\\x00..h@5");
    put(&gaps, "b");
    assert_eq!(shown(&gaps), "b\\x00..d@5 d\\x00..h@5");
    let (met, other) = (gap("k", "m", 9), gap("p", "q", 9));
    let (met, other) = (gaps.announce(TREE, met), gaps.announce(TREE, other));
    put(&gaps, "l");
    gaps.confirm(met);
    gaps.withdraw(other);
    gaps.confirm(other);
    assert_eq!(gaps.count(), 2);
    gaps.put([(TreeId(2), &b"c"[..])].into_iter());
    assert_eq!(gaps.count(), 2);
    gaps.forget(TREE);
    assert_eq!(shown(&gaps), "");
}

#[test]
fn a_range_that_is_filled_again_costs_little() {
    let gaps = Gaps::new(GAP_BYTES_MIN);
    add(&gaps, Gap::new(b"", None, Seqno(1)));
    for key in 0..100_000u32 {
        let key = key.wrapping_mul(0x9e37_79b1).to_be_bytes();
        gaps.put([(TREE, &key[..])].into_iter());
        assert!(gaps.count() <= 1 << PARTED_MAX);
    }
    assert!(gaps.count() < 10, "some places are never met");
    for n in 0..10 * u32::try_from(GAPS_MAX).unwrap() {
        let (tree, key) = (TreeId(n % 100), (n * 2).to_be_bytes());
        let end = (n * 2 + 1).to_be_bytes();
        gaps.confirm(gaps.announce(tree, Gap::new(&key, Some(&end), Seqno(1))));
        assert!(gaps.count() <= GAPS_MAX);
        assert!(gaps.of(tree).is_none_or(|of| of.len() <= TREE_GAPS_MAX));
    }
}

#[test]
fn a_gap_is_for_readers_of_its_time() {
    let all = [gap("b", "d", 7), gap("f", "h", 5)];
    let at = |key: &str, seqno| gap_at(&all, key.as_bytes(), Seqno(seqno)).map(|g| g.seqno.0);
    assert_eq!(at("a", 9), None);
    assert_eq!(at("b", 9), Some(7));
    assert_eq!(at("c", 7), Some(7));
    assert_eq!(at("c", 6), None);
    assert_eq!(at("d", 9), None);
    assert_eq!(at("g", 6), Some(5));
    assert_eq!(at("z", 6), None);
}

#[test]
fn rows_of_deletes_are_found_beside_each_other() {
    let mut runs = DeleteRuns::default();
    let mut found = Vec::new();
    for n in 0..40u8 {
        for first in [b'a', b'm', b'z'] {
            found.extend(runs.delete(TREE, &[first, n], 10));
        }
        found.extend(runs.delete(TreeId(2), &[255 - n], 10));
    }
    // The first of each row begins a key before the others end.
    let of = |first: u8| {
        let mut count = 0;
        for hint in found.iter().filter(|hint| hint.last[0] == first) {
            assert!(hint.first < hint.last);
            count += 1;
        }
        count
    };
    assert!(of(b'a') >= 3, "{found:?}");
    assert!(of(b'z') >= 3, "{found:?}");
    let gaps = Gaps::new(GAP_BYTES_MIN);
    let hint = |first: u8, last: u8| Hint {
        tree: TREE,
        first: vec![first],
        last: vec![last],
    };
    gaps.hint(hint(1, 5));
    gaps.hint(hint(20, 21));
    gaps.hint(hint(5, 9));
    assert_eq!(gaps.next_hint(), Some(hint(1, 9)));
    assert_eq!(gaps.next_hint(), Some(hint(20, 21)));
    assert_eq!(gaps.next_hint(), None);
}

#[test]
fn gaps_with_long_keys_are_not_kept() {
    let gaps = Gaps::new(GAP_BYTES_MIN);
    let long = "m".repeat(GAP_BYTES_MIN);
    add(&gaps, gap("b", "d", 5));
    add(&gaps, gap("l", &long, 5));
    assert_eq!(shown(&gaps), "b..d@5");
    add(&gaps, gap("k", "x", 5));
    put(&gaps, &long);
    assert_eq!(shown(&gaps), "b..d@5");
    assert!(Gaps::gap_bytes_max(0) == GAP_BYTES_MIN);
    assert!(Gaps::gap_bytes_max(16 << 20) > 7 << 10);
}
