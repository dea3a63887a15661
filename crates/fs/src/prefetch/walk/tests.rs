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

/// Returns the number of directories, and of bytes, that a search of a new walk asks for.
fn asked(walk: &mut Walk, name: HashedName) -> Option<(usize, u64)> {
    let need = walk.begin(name)?;
    let Need::NextDirs { order, dirs, bytes } = need else {
        panic!("directories");
    };
    walk.found(order, &[]);
    Some((dirs, bytes))
}

#[test]
fn few_directories_and_bytes_are_expected() {
    let mut walk = Walk::default();
    let one = Some((1, BYTES_ENOUGH));
    assert_eq!(asked(&mut walk, name(1, 1)), one, "no walk is known");
    (0..7).for_each(|_| {
        walk.habit.begin();
        walk.habit.confirm();
    });
    walk.coming.extend((2..6).map(|ino| (Ino(ino), 100)));
    let left = Some((1, BYTES_ENOUGH - 300));
    assert_eq!(asked(&mut walk, name(2, 1)), left, "four of them");
    walk.coming.push_back((Ino(6), 100));
    assert_eq!(asked(&mut walk, name(6, 1)), Some((3, BYTES_ENOUGH - 100)));
    walk.coming.push_back((Ino(7), BYTES_ENOUGH));
    assert_eq!(asked(&mut walk, name(5, 1)), None, "they are long");
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

/// If two went on at once, each would find the directories of the other.
#[test]
fn one_search_is_under_way() {
    let mut walk = Walk::default();
    let Some(Need::NextDirs { order, .. }) = walk.begin(name(1, 1)) else {
        panic!("it begins");
    };
    assert_eq!(walk.begin(name(50, 1)), None, "another one is under way");
    walk.found(order, &[(Ino(101), Listing::default())]);
    assert_eq!(walk.coming, [(Ino(101), 0)]);
    assert!(walk.begin(name(50, 1)).is_some(), "it has ended");
}
