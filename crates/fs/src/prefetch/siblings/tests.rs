use super::*;

const DIR: Ino = Ino(70);

fn looks(siblings: &Siblings, dir: Ino, hashes: &[u64]) -> Vec<Look> {
    hashes
        .iter()
        .map(|hash| siblings.note(dir, *hash).0)
        .collect()
}

#[test]
fn the_second_file_asks_for_all_and_no_other_one_does() {
    let siblings = Siblings::default();
    assert_eq!(
        looks(&siblings, DIR, &[5, 3]),
        [Look::Nothing, Look::All { around: false }]
    );
    siblings.told_all(DIR, 4);
    assert_eq!(looks(&siblings, DIR, &[9, 1]), [Look::Nothing; 2]);
    // All were read: whoever comes now reads them again.
    assert_eq!(
        looks(&siblings, DIR, &[5, 3]),
        [Look::Nothing, Look::All { around: false }]
    );
}

#[test]
fn directories_of_which_one_file_is_read_ask_for_nothing() {
    let siblings = Siblings::default();
    let mut at = 1u64;
    let mut asked = 0;
    for _ in 0..10_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // A million directories, in random order.
        let (look, _) = siblings.note(Ino(100 + (at >> 20) % 1_000_003), at);
        asked += usize::from(look != Look::Nothing);
    }
    assert!(asked < 8, "{asked}");
}

#[test]
fn where_most_are_read_on_the_first_file_asks_for_all() {
    let siblings = Siblings::default();
    for dir in 100..108 {
        let second = looks(&siblings, Ino(dir), &[1, 2]);
        assert!(
            second.iter().any(|look| matches!(look, Look::All { .. })),
            "{second:?}"
        );
        siblings.told_all(Ino(dir), 2);
    }
    assert_eq!(
        siblings.note(Ino(200), 1),
        (Look::All { around: true }, true)
    );
    // Until most of them are not.
    for dir in 201..205 {
        siblings.note(Ino(dir), 1);
    }
    assert_eq!(siblings.note(Ino(210), 1), (Look::Nothing, true));
}

#[test]
fn of_a_long_one_what_comes_next_is_asked_for_where_it_is_read_in_order() {
    let siblings = Siblings::default();
    looks(&siblings, DIR, &[1, 2]);
    siblings.told_part(DIR, 0, 0);
    let hashes: Vec<u64> = (3..20).collect();
    let first = looks(&siblings, DIR, &hashes)
        .into_iter()
        .position(|look| look != Look::Nothing);
    assert!(first.is_some_and(|at| at < 10), "{first:?}");
    siblings.told_part(DIR, 100, 60);
    assert_eq!(looks(&siblings, DIR, &[30, 59]), [Look::Nothing; 2]);
    assert_eq!(siblings.note(DIR, 61), (Look::From(100), false));
    siblings.told_part(DIR, u64::MAX, u64::MAX);
    assert_eq!(looks(&siblings, DIR, &[70, 200, 300]), [Look::Nothing; 3]);
}

#[test]
fn of_a_long_one_that_is_read_in_no_order_nothing_is_asked_for() {
    let siblings = Siblings::default();
    looks(&siblings, DIR, &[1, 2]);
    siblings.told_part(DIR, 0, 0);
    for round in 0..1000u64 {
        let hashes = [round * 7919 % 1000, round * 104_729 % 500];
        let asked = looks(&siblings, DIR, &hashes);
        assert_eq!(asked, [Look::Nothing; 2], "{round}");
    }
}

#[test]
fn ranges_are_short_and_leave_out_what_lies_elsewhere() {
    let kib = |count: u64| count << 10;
    // In any order, with numbers between that are directories' or short files'.
    let files = vec![(12, kib(8)), (10, kib(8)), (15, kib(8))];
    assert_eq!(ranges(&files), [(10, 16)]);
    let files = vec![(10, kib(8)), (500, kib(8))];
    assert_eq!(ranges(&files), [(10, 11), (500, 501)]);
    let files: Vec<_> = (0..8).map(|ino| (ino, kib(400))).collect();
    assert_eq!(ranges(&files), [(0, 2), (2, 4), (4, 6), (6, 8)]);
    let files: Vec<_> = (0..1000).map(|ino| (ino * 100, kib(8))).collect();
    assert_eq!(ranges(&files).len(), RANGES_MAX);
}

/// Whoever was asked for with the first file never counted as one that came to a second.
#[test]
fn what_was_asked_for_with_the_first_file_counts_as_read_on() {
    let siblings = Siblings::default();
    for dir in 100..200 {
        let looks = looks(&siblings, Ino(dir), &[1]);
        let is_asked = looks[0] != Look::Nothing;
        assert_eq!(is_asked, dir >= 105, "{dir}");
        if is_asked {
            siblings.told_all(Ino(dir), 3);
        }
        siblings.note(Ino(dir), 2);
        siblings.note(Ino(dir), 3);
    }
}

#[test]
fn what_was_foretold_is_not_looked_at() {
    let siblings = Siblings::default();
    siblings.foretell(DIR, 3);
    assert_eq!(siblings.note(DIR, 5), (Look::Nothing, true));
    siblings.foretell(DIR, 3);
    assert_eq!(looks(&siblings, DIR, &[6, 7]), [Look::Nothing; 2]);
    // All were read.
    assert_eq!(siblings.note(DIR, 5), (Look::Nothing, true));
    assert_eq!(siblings.note(DIR, 6).0, Look::All { around: false });
}

/// Two names of one inode number subtracted with overflow.
#[test]
fn rows_of_one_number_are_one_range() {
    let files = vec![(10, 8 << 10), (10, 8 << 10), (11, 8 << 10)];
    assert_eq!(ranges(&files), [(10, 12)]);
}

#[test]
fn hashes_and_numbers_at_their_end_do_not_overflow() {
    let seen = Seen {
        files: vec![(1, 5), (u64::MAX - 1, 5)],
        bytes: 10,
        hashes: vec![u64::MAX],
        is_part: true,
    };
    assert_eq!(seen.limits(), (u64::MAX, u64::MAX));
    assert!(seen.beyond(Locator::default()).is_some());
}
