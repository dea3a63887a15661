use super::*;
use crate::prefetch::listing::FIRST_HASH;

fn name(dir: u64, hash: u64) -> HashedName {
    let dir = Ino(dir);
    HashedName { dir, hash }
}

#[test]
fn an_expected_directory_may_be_read_after_those_in_it() {
    let mut walk = Walk::default();
    walk.note(name(1, 7));
    assert_eq!(walk.order, ListingOrder(vec![name(1, 8)]));
    walk.coming.extend((2..6).map(|ino| (Ino(ino), 100)));
    for dir in [3, 2, 5] {
        walk.note(name(dir, 1));
    }
    assert_eq!(walk.coming, [(Ino(4), 100)]);
    assert_eq!(walk.order, ListingOrder(vec![name(1, 8)]), "it goes on");
    walk.note(name(9, FIRST_HASH));
    assert_eq!(walk.order, ListingOrder(vec![name(9, 2)]), "not expected");
    assert!(walk.coming.is_empty());
}

#[test]
fn few_directories_and_bytes_are_expected() {
    let mut walk = Walk::default();
    assert!(!walk.has_enough());
    walk.coming.push_back((Ino(2), 100));
    assert!(walk.has_enough(), "one, as long as no walk is known");
    (0..5).for_each(|_| {
        walk.habit.begin();
        walk.habit.confirm();
    });
    assert!(!walk.has_enough());
    walk.coming.push_back((Ino(3), BYTES_ENOUGH));
    assert!(walk.has_enough());
}

#[test]
fn a_walk_is_known_by_its_order() {
    let mut walk = Walk::default();
    for number in 0..8 {
        assert_eq!(walk.is_known(), number > 5, "{number}");
        walk.note(name(number + 10, 1));
        walk.coming.push_back((Ino(number + 11), 1));
    }
    for number in 0..4 {
        walk.note(name(100 - number, 1));
    }
    assert!(!walk.is_known(), "another order");
}

#[test]
fn one_search_is_under_way_and_ends() {
    let mut walk = Walk::default();
    let mut need = walk.begin(name(1, 1));
    assert_eq!(walk.begin(name(50, 1)), None, "another one is under way");
    let mut found = 0;
    while let Some(Need::NextDir(order)) = need {
        found += 1;
        // A directory without files.
        let next = (Ino(100 + found), Listing::default());
        assert!(walk.found(order, Some(next)).is_none(), "no files");
        need = walk.search();
    }
    assert_eq!(found as usize, FOUND_MAX);
    let need = walk.begin(name(50, 1));
    assert_eq!(need, Some(Need::NextDir(ListingOrder(vec![name(50, 2)]))));
    let failed = walk.found(ListingOrder::default(), None);
    assert!(failed.is_none() && walk.search().is_none());
    assert!(walk.begin(name(51, 1)).is_some(), "the last one has ended");
}

/// If it ended at once, another reader could begin a search, and both would go on.
#[test]
fn a_search_that_gives_up_ends_with_its_last_need() {
    let mut walk = Walk::default();
    let Some(Need::NextDir(order)) = walk.begin(name(1, 1)) else {
        panic!("it begins");
    };
    walk.give_up();
    assert_eq!(walk.begin(name(50, 1)), None, "it is under way");
    let next = (Ino(101), Listing::default());
    assert!(walk.found(order, Some(next)).is_none() && walk.search().is_none());
    assert!(walk.coming.is_empty());
    assert!(walk.begin(name(50, 1)).is_some(), "it has ended");
}
