use super::*;
use proptest::prelude::*;
use stitch_base::random::Rng;

/// Finds each of `wanted` in sorted keys, and compares with a plain search.
fn check(mut keys: Vec<Vec<u8>>, wanted: &[Vec<u8>]) {
    keys.sort();
    let heads = KeyHeads::of(keys.len(), |index| &keys[index]);
    assert_eq!(heads.len(), keys.len());
    assert!(heads.memory_bytes() >= 8 * keys.len());
    for key in wanted.iter().chain(&keys) {
        let expected = keys.partition_point(|other| other < key);
        let found = heads.find_in(key, |index| &keys[index]);
        assert_eq!(found, expected, "{key:?} in {keys:?}");
    }
}

fn owned(keys: &[&[u8]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}

#[test]
fn keys_that_begin_alike_are_told_apart() {
    let wanted = owned(&[
        b"",
        b"\0",
        b"a",
        b"abcdefg",
        b"abcdefgh",
        b"abcdefgh\0",
        b"abcdefghi",
        b"abcdefghijklmnopqrstuvwx",
        b"abcdefghijklmnopqrstuvwxyz",
        b"abcdefgi",
        b"b",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ]);
    // Every choice of these, so that what they have in common has every length.
    for choice in 0..1_u32 << wanted.len() {
        let is_chosen = |at: &usize| choice >> at & 1 == 1;
        let keys = (0..wanted.len()).filter(is_chosen);
        check(keys.map(|at| wanted[at].clone()).collect(), &wanted);
    }
}

#[test]
fn what_all_have_may_end_where_the_inline_part_does() {
    for shared in 0..40_usize {
        let long = vec![7; shared];
        let with = |end: &[u8]| [&long[..], end].concat();
        let keys = vec![
            with(b""),
            with(b"\0"),
            with(b"\0\0"),
            with(b"x"),
            with(b"x"),
        ];
        let mut wanted = vec![with(b"\0x"), with(b"w"), with(b"xx"), with(b"z")];
        for len in 0..shared {
            // Ends early, or is smaller or larger early.
            wanted.push(long[..len].to_vec());
            wanted.push([&long[..len], &[0; 50]].concat());
            wanted.push([&long[..len], &[8]].concat());
            wanted.push([&long[..len], &[0]].concat());
        }
        check(keys.clone(), &wanted);
        check(keys[3..].to_vec(), &wanted);
        check(vec![with(b"\0\0\0\0\0\0\0\0\0\0\0\0")], &wanted);
    }
}

#[test]
fn no_key_is_found_among_none() {
    let heads = KeyHeads::of(0, |_| unreachable!("there is none"));
    assert_eq!(heads.find_in(b"", |_| unreachable!("there is none")), 0);
    assert_eq!(heads.find_in(b"key", |_| unreachable!("there is none")), 0);
}

#[test]
fn whole_keys_are_looked_at_only_where_heads_are_the_same() {
    let mut rng = Rng::new(3);
    let mut keys: Vec<[u8; 16]> = (0..1000).map(|_| [0; 16]).collect();
    for key in &mut keys {
        rng.fill(key);
    }
    keys.sort_unstable();
    let heads = KeyHeads::of(keys.len(), |index| &keys[index]);
    let looks = std::cell::Cell::new(0);
    for key in &keys {
        heads.find_in(key, |index| {
            looks.set(looks.get() + 1);
            &keys[index]
        });
    }
    assert!(looks.get() <= 1010, "{} looks", looks.get());
    looks.set(0);
    for _ in 0..1000 {
        let mut key = [0; 16];
        rng.fill(&mut key);
        heads.find_in(&key, |index| {
            looks.set(looks.get() + 1);
            &keys[index]
        });
    }
    assert_eq!(looks.get(), 0, "keys that are not there");
}

#[test]
fn a_key_that_cannot_be_had_is_an_error() {
    assert_eq!(
        KeyHeads::new(3, |index| if index == 2 { Err(5) } else { Ok(b"k") }),
        Err(5)
    );
    let heads = KeyHeads::of(3, |_| b"same");
    assert_eq!(heads.find(b"same", |_| Err::<&[u8], _>(6)), Err(6));
}

#[test]
fn keys_out_of_order_find_something_and_never_panic() {
    let mut rng = Rng::new(4);
    for _ in 0..2000 {
        let keys: Vec<[u8; 2]> = (0..20)
            .map(|_| [0, 1].map(|_: u8| u8::try_from(rng.below(3)).expect("small")))
            .collect();
        let heads = KeyHeads::of(keys.len(), |index| &keys[index]);
        assert!(heads.find_in(&keys[0], |index| &keys[index]) <= keys.len());
    }
}

/// Keys with much in common.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let start = prop::sample::select(vec![
        Vec::new(),
        vec![0; 7],
        b"directory".to_vec(),
        vec![255; 9],
        vec![1; 17],
    ]);
    let end = prop::collection::vec(prop::sample::select(vec![0_u8, 1, 255]), 0..20);
    (start, end).prop_map(|(start, end)| [start, end].concat())
}

proptest! {
    #[test]
    fn it_finds_what_a_plain_search_finds(
        keys in prop::collection::vec(key(), 0..60),
        shared in prop::collection::vec(any::<u8>(), 0..30),
        wanted in prop::collection::vec(key(), 1..60),
    ) {
        check(keys.clone(), &wanted);
        let with = |key: Vec<u8>| [&shared[..], &key].concat();
        let keys = keys.into_iter().map(with).collect();
        let mut all: Vec<Vec<u8>> = wanted.iter().cloned().map(with).collect();
        all.extend(wanted);
        check(keys, &all);
    }
}
