use super::*;

#[test]
fn an_expected_directory_may_be_read_after_those_in_it() {
    let mut search = Search::default();
    assert!(!search.note(Ino(1), 7), "nothing was expected");
    assert_eq!(search.path, [(Ino(1), 8)]);
    search.coming.extend((2..6).map(|ino| (Ino(ino), 100)));
    assert!(search.note(Ino(3), 1));
    assert!(search.note(Ino(2), 1));
    assert!(search.note(Ino(5), 1));
    assert_eq!(search.coming, [(Ino(4), 100)]);
    assert_eq!(search.path, [(Ino(1), 8)], "the search goes on");
    assert!(!search.note(Ino(9), 1));
    assert_eq!((search.path, search.coming.len()), (vec![(Ino(9), 2)], 0));
}

#[test]
fn few_directories_and_bytes_are_expected() {
    let mut search = Search::default();
    assert!(!search.has_enough(1));
    search.coming.push_back((Ino(2), 100));
    assert!(search.has_enough(1) && !search.has_enough(DIRS_MAX));
    search.coming.push_back((Ino(3), BYTES_ENOUGH));
    assert!(search.has_enough(DIRS_MAX));
}

#[test]
fn a_walk_is_known_by_its_order() {
    let walk = Walk::default();
    let mut search = Search::default();
    for number in 0..8 {
        assert_eq!(walk.is_known(), number > HISTORY_MIN.into(), "{number}");
        search.coming.push_back((Ino(number + 11), 1));
        walk.note(&mut search, Ino(number + 10), 1);
        search.coming.push_back((Ino(number + 11), 1));
    }
    for number in 0..4 {
        walk.note(&mut search, Ino(100 - number), 1);
    }
    assert!(!walk.is_known(), "another order");
}
