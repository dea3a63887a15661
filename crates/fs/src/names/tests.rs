use super::*;
use stitch_base::random::Rng;

mod random;

fn key(dir: Ino, hash: u64, name: &str) -> Vec<u8> {
    let mut key = fs_key::dentry_start(dir, hash).to_vec();
    key.extend_from_slice(name.as_bytes());
    key
}

const DIR: Ino = Ino(20);

fn learned(hashes: &[u64]) -> Names {
    let names = Names::new(1 << 20);
    names.learn(DIR, hashes);
    names
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
    names.add(&key(DIR, 4, "d"));
    assert!(!names.is_missing(&key(DIR, 4, "d")));
    names.remove((DIR, 1));
    assert!(names.is_missing(&key(DIR, 1, "a")));
    assert_eq!(names.usage().answers, 2);
    names.give_up(DIR);
    assert!(!names.is_missing(&key(DIR, 5, "e")));
    assert_eq!(names.usage().bytes, 0);
}

#[test]
fn a_directory_is_empty_if_all_its_names_went() {
    let names = learned(&[]);
    assert!(names.is_empty(DIR));
    names.add(&key(DIR, 1, "a"));
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
    assert!(!names.is_whole(DIR));
    names.add(&key(DIR, 1, "b"));
    names.remove((DIR, 1));
    assert!(!names.is_missing(&key(DIR, 1, "a")), "it is still there");
    let names = learned(&[1, 2, 1]);
    assert!(!names.is_whole(DIR));
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
    names.add(&missed);
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
    names.learn(DIR, &[]);
    names.note_missing(&key(DIR, 1, "a"));
    assert!(!names.is_missing(&key(DIR, 1, "a")));
    assert!(!names.is_whole(DIR));
    assert_eq!(names.usage(), NamesUsage::default());
}

#[test]
fn directories_stay_within_their_bound_and_the_recent_stay() {
    let max = 64 << 10;
    let names = Names::new(max);
    names.learn(DIR, &[1, 2, 3]);
    for ino in 100..5000 {
        names.learn(Ino(ino), &[]);
        names.add(&key(Ino(ino), ino, "a"));
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
    assert!(!names.is_whole(Ino(100)), "long ago");
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
    names.learn(huge, &[]);
    let last = (1..).find(|&hash| {
        names.add(&key(huge, hash, "a"));
        !names.is_whole(huge)
    });
    // Three quarters of a megabyte at nine bytes, in powers of two.
    assert_eq!(last, Some((1 << 16) / 8 * 7 + 1));
    assert!(names.is_whole(DIR));
    let hashes: Vec<u64> = (1..=1 << 16).collect();
    names.learn(huge, &hashes);
    assert!(!names.is_whole(huge));
    names.learn(huge, &hashes[..(1 << 16) / 8 * 7]);
    assert!(names.is_whole(huge));
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
            names.add(&key(DIR, hash, "a"));
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
