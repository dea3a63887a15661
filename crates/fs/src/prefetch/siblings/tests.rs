use super::*;

const DIR: Ino = Ino(70);

fn parts(siblings: &Siblings, dir: Ino, hashes: &[u64]) -> Vec<Part> {
    hashes
        .iter()
        .map(|hash| siblings.note(dir, *hash).0)
        .collect()
}

#[test]
fn the_second_file_prefetches_all_and_no_other_one_does() {
    let siblings = Siblings::default();
    assert_eq!(
        parts(&siblings, DIR, &[5, 3]),
        [Part::Nothing, Part::All { around: false }]
    );
    siblings.mark_prefetched(DIR, 4);
    assert_eq!(parts(&siblings, DIR, &[9, 1]), [Part::Nothing; 2]);
    // All were read: the next read begins anew.
    assert_eq!(
        parts(&siblings, DIR, &[5, 3]),
        [Part::Nothing, Part::All { around: false }]
    );
}

#[test]
fn directories_of_which_one_file_is_read_prefetch_nothing() {
    let siblings = Siblings::default();
    let mut at = 1u64;
    let mut asked = 0;
    for _ in 0..10_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // A million directories, in random order.
        let (part, _) = siblings.note(Ino(100 + (at >> 20) % 1_000_003), at);
        asked += usize::from(part != Part::Nothing);
    }
    assert!(asked < 8, "{asked}");
}

#[test]
fn in_a_walk_the_first_file_prefetches_all() {
    let siblings = Siblings::default();
    for dir in 100..108 {
        let second = parts(&siblings, Ino(dir), &[1, 2]);
        assert!(
            second.iter().any(|part| matches!(part, Part::All { .. })),
            "{second:?}"
        );
        siblings.mark_prefetched(Ino(dir), 2);
    }
    assert_eq!(
        siblings.note(Ino(200), 1),
        (Part::All { around: true }, true)
    );
    // Until most of them are not.
    for dir in 201..205 {
        siblings.note(Ino(dir), 1);
    }
    assert_eq!(siblings.note(Ino(210), 1), (Part::Nothing, true));
}

#[test]
fn a_long_directory_read_in_order_is_prefetched_part_by_part() {
    let siblings = Siblings::default();
    parts(&siblings, DIR, &[1, 2]);
    siblings.mark_part(DIR, 0, 0);
    let hashes: Vec<u64> = (3..20).collect();
    let first = parts(&siblings, DIR, &hashes)
        .into_iter()
        .position(|part| part != Part::Nothing);
    assert!(first.is_some_and(|at| at < 10), "{first:?}");
    siblings.mark_part(DIR, 100, 60);
    assert_eq!(parts(&siblings, DIR, &[30, 59]), [Part::Nothing; 2]);
    assert_eq!(siblings.note(DIR, 61), (Part::From(100), false));
    siblings.mark_part(DIR, u64::MAX, u64::MAX);
    assert_eq!(parts(&siblings, DIR, &[70, 200, 300]), [Part::Nothing; 3]);
}

#[test]
fn a_long_directory_read_in_no_order_prefetches_nothing() {
    let siblings = Siblings::default();
    parts(&siblings, DIR, &[1, 2]);
    siblings.mark_part(DIR, 0, 0);
    for round in 0..1000u64 {
        let hashes = [round * 7919 % 1000, round * 104_729 % 500];
        let asked = parts(&siblings, DIR, &hashes);
        assert_eq!(asked, [Part::Nothing; 2], "{round}");
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

/// Regression: a directory prefetched with its first file never counted as one with a second.
#[test]
fn a_directory_prefetched_with_its_first_file_counts_for_the_walk() {
    let siblings = Siblings::default();
    for dir in 100..200 {
        let parts = parts(&siblings, Ino(dir), &[1]);
        let is_asked = parts[0] != Part::Nothing;
        assert_eq!(is_asked, dir >= 105, "{dir}");
        if is_asked {
            siblings.mark_prefetched(Ino(dir), 3);
        }
        siblings.note(Ino(dir), 2);
        siblings.note(Ino(dir), 3);
    }
}

#[test]
fn an_expected_directory_is_not_scanned() {
    let siblings = Siblings::default();
    siblings.expect_dir(DIR, 3);
    assert_eq!(siblings.note(DIR, 5), (Part::Nothing, true));
    siblings.expect_dir(DIR, 3);
    assert_eq!(parts(&siblings, DIR, &[6, 7]), [Part::Nothing; 2]);
    // All were read.
    assert_eq!(siblings.note(DIR, 5), (Part::Nothing, true));
    assert_eq!(siblings.note(DIR, 6).0, Part::All { around: false });
}

/// Regression: two rows of one inode number subtracted with overflow.
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
