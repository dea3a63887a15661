use super::*;
use stitch_base::random::Rng;
use stitch_format::fs_key;

mod random;

fn key(dir: Ino, hash: u64, name: &str) -> Vec<u8> {
    let mut key = fs_key::dentry_start(dir, hash).to_vec();
    key.extend_from_slice(name.as_bytes());
    key
}

const DIR: Ino = Ino(20);

fn learned(hashes: &[u64]) -> Names {
    let names = Names::new(1 << 20);
    learn(&names, DIR, hashes);
    names
}

fn is_whole(names: &Names, dir: Ino) -> bool {
    names.mark(dir) == WHOLE
}

/// A walk over a whole directory.
fn learn(names: &Names, dir: Ino, hashes: &[u64]) {
    let mut page = Page::new(names, dir, 0);
    for &hash in hashes {
        page.add(hash);
    }
    page.end_whole(names, dir);
}

#[test]
fn only_what_a_whole_directory_does_not_have_is_missing() {
    let names = learned(&[1, 2, 3]);
    assert!(!names.is_missing(&key(DIR, 1, "a")));
    assert!(names.is_missing(&key(DIR, 4, "d")));
    assert!(
        !names.is_missing(&key(Ino(21), 4, "d")),
        "that is not whole"
    );
    names.add(parts(&key(DIR, 4, "d")));
    assert!(!names.is_missing(&key(DIR, 4, "d")));
    names.remove((DIR, 1));
    assert!(names.is_missing(&key(DIR, 1, "a")));
    assert_eq!(names.usage().answers, 2);
    names.give_up(DIR);
    assert!(!names.is_missing(&key(DIR, 5, "e")));
    assert_eq!(names.usage().bytes, 0);
}

#[test]
fn pages_that_follow_each_other_make_a_directory_whole() {
    let names = Names::new(1 << 20);
    let walk = |start: u64, hashes: &[u64], end: Option<u64>| {
        let mut page = Page::new(&names, DIR, start);
        for &hash in hashes {
            page.add(hash);
        }
        match end {
            Some(hash) => page.end_at(&names, DIR, hash),
            None => page.end_whole(&names, DIR),
        }
    };
    let is_missing = |hash: u64| names.is_missing(&key(DIR, hash, "x"));
    walk(30, &[30, 40], Some(50));
    assert_eq!(names.usage().bytes, 0, "nothing is known of the beginning");
    // The last name found no room, and was met nevertheless.
    walk(0, &[10, 20, 30], Some(30));
    assert!(!is_missing(10) && is_missing(11) && is_missing(29));
    assert!(!is_missing(30) && !is_missing(31), "beyond the mark");
    // Between the pages: up to the mark it is noted, beyond it the walk will meet what is there.
    names.add(parts(&key(DIR, 15, "x")));
    names.remove((DIR, 20));
    names.add(parts(&key(DIR, 35, "x")));
    names.remove((DIR, 40));
    assert!(!is_missing(15) && is_missing(20) && !is_missing(40));
    assert!(!is_whole(&names, DIR) && !names.is_empty(DIR));
    walk(45, &[45, 50], None);
    assert!(!is_whole(&names, DIR), "some were left out");
    walk(10, &[10, 15, 30, 35, 50], Some(60));
    walk(50, &[50, 60], None);
    assert!(is_whole(&names, DIR));
    let known = [10, 15, 30, 35, 50, 60];
    assert!((1..100).all(|hash| is_missing(hash) != known.contains(&hash)));
    for hash in known {
        names.remove((DIR, hash));
    }
    assert!(names.is_empty(DIR));
}

#[test]
fn a_directory_that_is_known_in_part_is_not_known_to_be_empty() {
    let names = Names::new(1 << 20);
    Page::new(&names, DIR, 0).end_at(&names, DIR, 9);
    assert!(names.is_missing(&key(DIR, 8, "x")));
    assert!(!names.is_empty(DIR));
    assert_eq!(names.usage().dirs, 0);
}

#[test]
fn a_directory_is_empty_if_all_its_names_went() {
    let names = learned(&[]);
    assert!(names.is_empty(DIR));
    names.add(parts(&key(DIR, 1, "a")));
    assert!(!names.is_empty(DIR));
    names.remove((DIR, 1));
    assert!(names.is_empty(DIR));
    assert!(!names.is_empty(Ino(21)), "nothing is known of that");
}

#[test]
fn a_hash_of_two_names_gives_the_directory_up() {
    let names = learned(&[1, 2]);
    // Another name of hash 1 is looked up before it is made.
    assert!(!names.is_missing(&key(DIR, 1, "b")));
    names.note_missing(&key(DIR, 1, "b"));
    assert!(!is_whole(&names, DIR));
    names.add(parts(&key(DIR, 1, "b")));
    names.remove((DIR, 1));
    assert!(!names.is_missing(&key(DIR, 1, "a")), "it is still there");
    let names = learned(&[1, 1, 2]);
    assert!(!is_whole(&names, DIR));
}

#[test]
fn a_name_that_was_missed_is_missing_until_it_is_put() {
    let names = Names::new(1 << 20);
    let missed = key(DIR, 7, "a");
    assert!(!names.is_missing(&missed));
    names.note_missing(&missed);
    assert!(names.is_missing(&missed));
    assert!(!names.is_missing(&key(DIR, 7, "b")), "of the same hash");
    assert!(!names.is_missing(&key(Ino(21), 7, "a")));
    names.add(parts(&missed));
    assert!(!names.is_missing(&missed));
    let long = key(DIR, 8, &"x".repeat(65));
    names.note_missing(&long);
    assert!(!names.is_missing(&long), "too long to be remembered");
    let longest = key(DIR, 8, &"x".repeat(64));
    names.note_missing(&longest);
    assert!(names.is_missing(&longest));
}

#[test]
fn nothing_is_known_without_memory() {
    let names = Names::new(0);
    learn(&names, DIR, &[]);
    names.note_missing(&key(DIR, 1, "a"));
    assert!(!names.is_missing(&key(DIR, 1, "a")));
    assert!(!is_whole(&names, DIR));
    assert_eq!(names.usage(), NamesUsage::default());
}

#[test]
fn directories_stay_within_their_bound_and_the_recent_stay() {
    let max = 64 << 10;
    let names = Names::new(max);
    learn(&names, DIR, &[1, 2, 3]);
    for ino in 100..5000 {
        learn(&names, Ino(ino), &[]);
        names.add(parts(&key(Ino(ino), ino, "a")));
        assert!(names.usage().bytes <= max);
        assert!(
            names.is_missing(&key(DIR, 4, "d")),
            "asked for all the time"
        );
    }
    let usage = names.usage();
    assert!(
        usage.dirs > 200 && usage.bytes > max / 2,
        "{usage:?} of {max}"
    );
    assert!(!is_whole(&names, Ino(100)), "long ago");
    for ino in 0..5000 {
        names.give_up(Ino(ino));
    }
    let usage = names.usage();
    assert_eq!((usage.dirs, usage.bytes), (0, 0));
}

#[test]
fn a_huge_directory_is_given_up_and_no_other() {
    let names = learned(&[1]);
    let huge = Ino(50);
    learn(&names, huge, &[]);
    let last = (1..).find(|&hash| {
        names.add(parts(&key(huge, hash, "a")));
        !is_whole(&names, huge)
    });
    // Three quarters of a megabyte at nine bytes, in powers of two.
    assert_eq!(last, Some((1 << 16) / 8 * 7 + 1));
    assert!(is_whole(&names, DIR));
    let hashes: Vec<u64> = (1..=1 << 16).collect();
    learn(&names, huge, &hashes);
    assert!(!is_whole(&names, huge));
    learn(&names, huge, &hashes[..(1 << 16) / 8 * 7]);
    assert!(is_whole(&names, huge));
}

#[test]
fn churn_takes_what_is_counted() {
    let names = learned(&[]);
    let mut rng = Rng::new(5);
    let mut there = std::collections::BTreeSet::new();
    // `Whole::insert` compares with the table at each step.
    for _ in 0..100_000 {
        let hash = 1 + rng.below(400);
        if rng.one_in(2) {
            names.add(parts(&key(DIR, hash, "a")));
            there.insert(hash);
        } else {
            names.remove((DIR, hash));
            there.remove(&hash);
        }
    }
    assert!((1..=400).all(|hash| names.is_missing(&key(DIR, hash, "a")) != there.contains(&hash)));
    assert!(
        names.usage().bytes <= bytes_for(1024),
        "{:?}",
        names.usage()
    );
    names.give_up(DIR);
    assert_eq!(names.usage().bytes, 0);
}
