use super::*;

#[test]
fn what_is_expected_may_come_one_after_what_is_in_it() {
    let mut place = Place::default();
    assert!(!place.note(Ino(1), 7), "nothing was expected");
    assert_eq!(place.path, [(Ino(1), 8)]);
    place.coming.extend((2..6).map(|ino| (Ino(ino), 100)));
    assert!(place.note(Ino(3), 1));
    assert!(place.note(Ino(2), 1));
    assert!(place.note(Ino(5), 1));
    assert_eq!(place.coming, [(Ino(4), 100)]);
    assert_eq!(place.path, [(Ino(1), 8)], "the search goes on");
    assert!(!place.note(Ino(9), 1));
    assert_eq!((place.path, place.coming.len()), (vec![(Ino(9), 2)], 0));
}

#[test]
fn no_more_are_expected_than_are_read_soon() {
    let mut place = Place::default();
    assert!(!place.has_enough(1));
    place.coming.push_back((Ino(2), 100));
    assert!(place.has_enough(1) && !place.has_enough(DIRS_MAX));
    place.coming.push_back((Ino(3), BYTES_ENOUGH));
    assert!(place.has_enough(DIRS_MAX));
}

#[test]
fn where_directories_come_as_expected_the_walk_is_known() {
    let walk = Walk::default();
    let mut place = Place::default();
    for number in 0..8 {
        assert_eq!(walk.is_known(), number > HISTORY_MIN.into(), "{number}");
        place.coming.push_back((Ino(number + 11), 1));
        walk.note(&mut place, Ino(number + 10), 1);
        place.coming.push_back((Ino(number + 11), 1));
    }
    for number in 0..4 {
        walk.note(&mut place, Ino(100 - number), 1);
    }
    assert!(!walk.is_known(), "another order");
}
