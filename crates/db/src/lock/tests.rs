use super::*;
use std::collections::BTreeSet;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;

const TREE: TreeId = TreeId(1);

fn rank(priority: i32, age: u64) -> Rank {
    Rank { priority, age }
}

fn key(key: u8) -> [u8; 1] {
    [key]
}

/// Segments agree with a table of the holders of each key.
#[test]
fn segments_agree_with_a_model() {
    let mut rng = Rng::new(163);
    for _ in 0..60 {
        let mut segments = Segments::default();
        let mut model: BTreeMap<u8, (Access, BTreeSet<u64>)> = BTreeMap::new();
        let mut held: Vec<(u64, u8, u8)> = Vec::new();
        for _ in 0..60 {
            let owner = rng.below(4);
            let start = u8::try_from(rng.below(30)).unwrap();
            let end = start + 1 + u8::try_from(rng.below(8)).unwrap();
            let (first, after) = (key(start), key(end));
            let range = KeyRange::new(&first, &after);
            if rng.one_in(3) && !held.is_empty() {
                let (owner, start, end) =
                    held.swap_remove(usize::try_from(rng.below(held.len() as u64)).unwrap());
                let (first, after) = (key(start), key(end));
                segments.release(Owner(owner), KeyRange::new(&first, &after));
                for key in start..end {
                    if let Some((_, holders)) = model.get_mut(&key) {
                        holders.remove(&owner);
                    }
                }
                // What a second lock of the owner holds as well goes, too.
                model.retain(|_, (_, holders)| !holders.is_empty());
                segments.check();
                continue;
            }
            let access = if rng.one_in(3) {
                Access::Write
            } else {
                Access::Read
            };
            let blocks = |key: &u8| {
                let (has, holders) = model.get(key)?;
                let is_shared = *has == Access::Read && access == Access::Read;
                let others = holders.iter().filter(|holder| **holder != owner);
                let others: Vec<u64> = others.copied().collect();
                (!is_shared && !others.is_empty()).then_some(others)
            };
            let expected: BTreeSet<u64> =
                (start..end).filter_map(|k| blocks(&k)).flatten().collect();
            let others = segments.others(Owner(owner), range, access);
            let found: BTreeSet<u64> = others.keys().map(|owner| owner.0).collect();
            assert_eq!(found, expected);
            if expected.is_empty() {
                segments.take(Owner(owner), range, access);
                segments.check();
                assert!(segments.is_held(Owner(owner), range, access));
                held.push((owner, start, end));
                for key in start..end {
                    let entry = model.entry(key).or_insert((access, BTreeSet::new()));
                    entry.1.insert(owner);
                    if access == Access::Write {
                        entry.0 = access;
                    }
                }
            }
        }
        for (owner, start, end) in held {
            segments.release(Owner(owner), KeyRange::new(&key(start), &key(end)));
        }
        assert!(segments.is_empty(), "nothing is left");
    }
}

#[test]
fn ranges_without_an_end_are_locked_to_the_last_key() {
    let mut segments = Segments::default();
    segments.take(Owner(1), KeyRange::from(b"m"), Access::Write);
    segments.check();
    let other = |range| segments.others(Owner(2), range, Access::Read).len();
    assert_eq!(other(KeyRange::new(b"a", b"m")), 0);
    assert_eq!(other(KeyRange::new(b"a", b"n")), 1);
    assert_eq!(other(KeyRange::all()), 1);
    assert!(segments.is_held(Owner(1), KeyRange::from(b"x"), Access::Read));
    assert!(!segments.is_held(Owner(1), KeyRange::all(), Access::Read));
    segments.take(Owner(1), KeyRange::all(), Access::Read);
    segments.check();
    assert!(segments.is_held(Owner(1), KeyRange::all(), Access::Read));
    segments.release(Owner(1), KeyRange::all());
    assert!(segments.is_empty());
}

#[test]
fn readers_share_and_writers_do_not() {
    let table = Arc::new(LockTable::default());
    let (old, young) = (
        table.begin(rank(0, 1), 1 << 20, false),
        table.begin(rank(0, 2), 1 << 20, false),
    );
    let range = KeyRange::new(b"a", b"f");
    old.take(TREE, range, Access::Read).unwrap();
    young
        .take(TREE, KeyRange::new(b"e", b"z"), Access::Read)
        .unwrap();
    young.take(TreeId(2), range, Access::Write).unwrap();
    let refused = young.take(TREE, KeyRange::new(b"e", b"g"), Access::Write);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(matches!(refused, DbError::Locked { tree: TREE, key } if key == b"e"));
    young
        .take(TREE, KeyRange::new(b"f", b"g"), Access::Write)
        .unwrap();
    drop(old);
    young
        .take(TREE, KeyRange::new(b"e", b"g"), Access::Write)
        .unwrap();
    drop(young);
    let state = table.state.lock();
    assert!(
        state.trees.is_empty() && state.holders.is_empty(),
        "all is given back"
    );
}

#[test]
fn the_higher_rank_takes_the_lock_and_the_lower_is_ended() {
    let table = Arc::new(LockTable::default());
    let begin = |priority, age| table.begin(rank(priority, age), 1 << 20, false);
    let (old, young, urgent) = (begin(0, 1), begin(0, 2), begin(1, 3));
    let range = KeyRange::new(b"a", b"b");
    young.take(TREE, range, Access::Write).unwrap();
    old.take(TREE, range, Access::Read).unwrap();
    assert!(young.is_ended() && !old.is_ended());
    let ended = young.take(TREE, KeyRange::new(b"x", b"y"), Access::Read);
    let ended = ended.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Conflict);
    assert!(matches!(ended, DbError::Wounded { tree: TREE, key } if key == b"a"));
    assert!(young.begin_commit().is_err());
    // Priority counts more than age.
    urgent.take(TREE, range, Access::Write).unwrap();
    assert!(old.is_ended());
    // A commit keeps its locks.
    urgent.begin_commit().unwrap();
    let most = begin(9, 4);
    assert!(matches!(
        most.take(TREE, range, Access::Read),
        Err(DbError::Locked { .. })
    ));
    assert!(!urgent.is_ended());
    drop(urgent);
    most.take(TREE, range, Access::Write).unwrap();
}

#[test]
fn locks_have_a_bound_and_are_counted_once() {
    let table = Arc::new(LockTable::default());
    let locks = table.begin(rank(0, 1), 3 * (LOCK_BYTES + 2), false);
    for _ in 0..10 {
        locks
            .take(TREE, KeyRange::new(b"a", b"b"), Access::Read)
            .unwrap();
    }
    locks
        .take(TREE, KeyRange::new(b"a", b"b"), Access::Write)
        .unwrap();
    locks
        .take(TREE, KeyRange::new(b"c", b"d"), Access::Read)
        .unwrap();
    let refused = locks
        .take(TREE, KeyRange::new(b"e", b"f"), Access::Read)
        .unwrap_err();
    assert!(matches!(refused, DbError::TooLarge { .. }), "{refused}");
}

/// The younger one waits until the older one is done; nothing but the lock makes it wait.
#[test]
fn a_waiting_transaction_goes_on_when_the_lock_is_free() {
    let table = Arc::new(LockTable::default());
    let old = table.begin(rank(0, 1), 1 << 20, true);
    let range = KeyRange::new(b"a", b"b");
    old.take(TREE, range, Access::Write).unwrap();
    let done = Arc::new(Mutex::new(Vec::new()));
    let (young, log) = (table.begin(rank(0, 2), 1 << 20, true), Arc::clone(&done));
    let waiter = stitch_base::thread::spawn("waiter", move || {
        let got = young.take(TREE, KeyRange::new(b"a", b"b"), Access::Read);
        log.lock().push("young");
        got.is_ok()
    });
    let waiter = waiter.unwrap();
    done.lock().push("old");
    drop(old);
    assert!(waiter.join().unwrap(), "it got the lock");
    assert_eq!(*done.lock(), ["old", "young"]);
}
