use super::*;

const DIR: Ino = Ino(70);
const ALL: Option<u64> = Some(FIRST_HASH);

fn note(siblings: &mut Siblings, dir: Ino, hash: u64) -> (Option<u64>, bool) {
    siblings.note(HashedName { dir, hash })
}

fn parts(siblings: &mut Siblings, dir: Ino, hashes: &[u64]) -> Vec<Option<u64>> {
    hashes
        .iter()
        .map(|hash| note(siblings, dir, *hash).0)
        .collect()
}

#[test]
fn the_second_file_prefetches_all_and_no_other_one_does() {
    let mut siblings = Siblings::default();
    assert_eq!(parts(&mut siblings, DIR, &[5, 3]), [None, ALL]);
    siblings.mark_prefetched(DIR, 4);
    assert_eq!(parts(&mut siblings, DIR, &[9, 1]), [None; 2]);
    // All were read: the next read begins anew.
    assert_eq!(parts(&mut siblings, DIR, &[5, 3]), [None, ALL]);
}

#[test]
fn directories_of_which_one_file_is_read_prefetch_nothing() {
    let mut siblings = Siblings::default();
    let mut at = 1u64;
    let mut asked = 0;
    for _ in 0..10_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // A million directories, in random order.
        let (part, _) = note(&mut siblings, Ino(100 + (at >> 20) % 1_000_003), at);
        asked += usize::from(part.is_some());
    }
    assert!(asked < 8, "{asked}");
}

#[test]
fn in_a_walk_the_first_file_prefetches_all() {
    let mut siblings = Siblings::default();
    for dir in 100..108 {
        let second = parts(&mut siblings, Ino(dir), &[1, 2]);
        assert!(second.contains(&ALL), "{second:?}");
        siblings.mark_prefetched(Ino(dir), 2);
    }
    assert_eq!(note(&mut siblings, Ino(200), 1), (ALL, true));
    // Until most of them are not.
    for dir in 201..205 {
        note(&mut siblings, Ino(dir), 1);
    }
    assert_eq!(note(&mut siblings, Ino(210), 1), (None, true));
}

#[test]
fn a_long_directory_read_in_order_is_prefetched_part_by_part() {
    let mut siblings = Siblings::default();
    parts(&mut siblings, DIR, &[1, 2]);
    siblings.mark_part(DIR, 0, 0);
    let hashes: Vec<u64> = (3..20).collect();
    let first = parts(&mut siblings, DIR, &hashes)
        .into_iter()
        .position(|part| part.is_some());
    assert!(first.is_some_and(|at| at < 10), "{first:?}");
    siblings.mark_part(DIR, 100, 60);
    assert_eq!(parts(&mut siblings, DIR, &[30, 59]), [None; 2]);
    assert_eq!(note(&mut siblings, DIR, 61), (Some(100), false));
    siblings.mark_part(DIR, u64::MAX, u64::MAX);
    assert_eq!(parts(&mut siblings, DIR, &[70, 200, 300]), [None; 3]);
}

#[test]
fn a_long_directory_read_in_no_order_prefetches_nothing() {
    let mut siblings = Siblings::default();
    parts(&mut siblings, DIR, &[1, 2]);
    siblings.mark_part(DIR, 0, 0);
    for round in 0..1000u64 {
        let hashes = [round * 7919 % 1000, round * 104_729 % 500];
        let asked = parts(&mut siblings, DIR, &hashes);
        assert_eq!(asked, [None; 2], "{round}");
    }
}

/// Regression: a directory prefetched with its first file never counted as one with a second.
#[test]
fn a_directory_prefetched_with_its_first_file_counts_for_the_walk() {
    let mut siblings = Siblings::default();
    for dir in 100..200 {
        let parts = parts(&mut siblings, Ino(dir), &[1]);
        let is_asked = parts[0].is_some();
        assert_eq!(is_asked, dir >= 105, "{dir}");
        if is_asked {
            siblings.mark_prefetched(Ino(dir), 3);
        }
        note(&mut siblings, Ino(dir), 2);
        note(&mut siblings, Ino(dir), 3);
    }
}

#[test]
fn an_expected_directory_is_not_scanned() {
    let mut siblings = Siblings::default();
    siblings.expect_dir(DIR, 3);
    assert_eq!(note(&mut siblings, DIR, 5), (None, true));
    siblings.expect_dir(DIR, 3);
    assert_eq!(parts(&mut siblings, DIR, &[6, 7]), [None; 2]);
    // All were read.
    assert_eq!(note(&mut siblings, DIR, 5), (None, true));
    assert_eq!(note(&mut siblings, DIR, 6).0, ALL);
}
