use super::*;
use crate::key_moments::tests::{moments, of_range};
use proptest::prelude::*;

fn set(deletes: &[(&str, &str, u64)]) -> Vec<RangeDelete> {
    let delete = |&(start, end, seqno): &(&str, &str, u64)| RangeDelete {
        start: start.into(),
        end: end.into(),
        seqno: Seqno(seqno),
    };
    deletes.iter().map(delete).collect()
}

fn left(all: &[RangeDelete], snapshots: &[u64], bottom: bool) -> Vec<u64> {
    let snapshots: Vec<Seqno> = snapshots.iter().map(|s| Seqno(*s)).collect();
    left_for(all, &KeyMoments::of_every_key(&snapshots), bottom)
}

fn left_for(all: &[RangeDelete], moments: &KeyMoments, bottom: bool) -> Vec<u64> {
    let fragments = Fragments::new(all, moments).sorted();
    let kept = surviving(fragments, moments, &|_, _| bottom);
    kept.iter().map(|d| d.seqno.0).collect()
}

#[test]
fn at_the_bottom_only_snapshots_keep_range_deletes() {
    let all = set(&[("a", "c", 5), ("x", "z", 9)]);
    assert_eq!(left(&all, &[], false), [5, 9]);
    assert_eq!(left(&all, &[], true), Vec::<u64>::new());
    assert_eq!(left(&all, &[5], true), [9]);
    assert_eq!(left(&all, &[4], true), [5, 9]);
}

#[test]
fn what_newer_ones_cover_together_goes() {
    let all = set(&[("a", "e", 5), ("a", "c", 7), ("c", "f", 8)]);
    assert_eq!(left(&all, &[], false), [7, 8]);
    assert_eq!(left(&all, &[6], false), [7, 5, 8]);
    let gap = set(&[("a", "e", 5), ("a", "b", 7), ("c", "f", 8)]);
    assert_eq!(left(&gap, &[], false), [7, 5, 8]);
}

#[test]
fn fragments_of_one_range_delete_are_joined() {
    let all = set(&[("a", "f", 9), ("b", "c", 5), ("d", "h", 4)]);
    let cut = Fragments::new(&all, &KeyMoments::default()).sorted();
    assert_eq!(cut, set(&[("a", "f", 9), ("f", "h", 4)]));
}

#[test]
fn at_the_bottom_a_moment_of_a_range_keeps_what_it_meets() {
    let all = set(&[("a", "c", 5), ("c", "e", 6), ("e", "z", 9)]);
    let moments = |at| KeyMoments::new(Vec::new(), vec![of_range(at, ("c", "d"))]);
    assert_eq!(left_for(&all, &moments("4"), true), [6]);
    assert_eq!(left_for(&all, &moments("4"), false), [5, 6, 9]);
    assert_eq!(left_for(&all, &moments("6"), true), Vec::<u64>::new());
}

/// Ranges that are nested, staggered, random up to one end, and random.
fn shapes(n: u32) -> [Vec<RangeDelete>; 4] {
    let mut rng = stitch_base::random::Rng::new(1);
    let mut random = || u32::try_from(rng.below(1 << 20)).expect("small");
    let delete = |seqno: u32, start: u32, end: u32| RangeDelete {
        start: start.to_be_bytes().to_vec(),
        end: end.to_be_bytes().to_vec(),
        seqno: Seqno(u64::from(seqno) + 1),
    };
    let end = 1 << 21;
    let of = |range: &mut dyn FnMut(u32) -> (u32, u32)| -> Vec<RangeDelete> {
        let each = (0..n).map(|i| {
            let (start, end) = range(i);
            delete(i, start.min(end), start.max(end) + 1)
        });
        each.collect()
    };
    [
        of(&mut |i| (i, end - i)),
        of(&mut |i| (i, i + 1000)),
        of(&mut |_| (random(), end)),
        of(&mut |_| (random(), random())),
    ]
}

#[test]
fn four_times_as_many_range_deletes_take_less_than_five_times_the_steps() {
    let snapshots = KeyMoments::of_every_key(&[Seqno(100), Seqno(700)]);
    let mut steps = [[0; 4]; 2];
    for (size, n) in [1000, 4000].into_iter().enumerate() {
        for (shape, deletes) in shapes(n).iter().enumerate() {
            let before = crate::testing::delete_steps();
            let fragments = Fragments::new(deletes, &snapshots);
            let all = fragments.sorted();
            assert!(all.len() < 2 * deletes.len(), "{} fragments", all.len());
            for block in 0..n {
                let at = |i: u32| (i * ((2 << 20) / n)).to_be_bytes();
                let keys = (at(block), at(block + 1));
                let seqnos = (Seqno(1), Seqno(2));
                fragments.hide_all((&keys.0, &keys.1), seqnos);
                fragments.hide_any((&keys.0, &keys.1), (Seqno(9000), Seqno(9000)));
            }
            steps[size][shape] = crate::testing::delete_steps() - before;
        }
    }
    for (few, many) in steps[0].into_iter().zip(steps[1]) {
        assert!(few >= 1000 && many < 5 * few, "{steps:?}");
    }
}

fn deletes() -> impl Strategy<Value = Vec<RangeDelete>> {
    let one = (0u8..20, 1u8..9, 1u64..40).prop_map(|(start, len, seqno)| RangeDelete {
        start: vec![start],
        end: vec![start + len],
        seqno: Seqno(seqno),
    });
    proptest::collection::vec(one, 0..40)
}

proptest! {
    #[test]
    fn answers_are_those_of_a_list(
        list in deletes(),
        snapshots in proptest::collection::btree_set(1u64..42, 0..4),
        (key, len) in (0u8..30, 0u8..6),
        (min, more) in (1u64..42, 0u64..6),
    ) {
        let snapshots: Vec<Seqno> = snapshots.into_iter().map(Seqno).collect();
        let fragments = Fragments::new(&list, &KeyMoments::of_every_key(&snapshots));
        let (last, max) = (key + len, min + more);
        let over = |key: u8| {
            let over = move |d: &&RangeDelete| d.start <= vec![key] && vec![key] < d.end;
            list.iter().filter(over).map(|d| d.seqno)
        };
        let newest = |key: u8, reader: Seqno| over(key).filter(|s| *s <= reader).max();
        for stripe in 0..=snapshots.len() {
            let of_stripe = over(key).filter(|s| stripe_of(&snapshots, *s) == stripe);
            prop_assert_eq!(fragments.newest(&snapshots, &[key], stripe), of_stripe.max());
        }
        // Every reader that could see any entry has all of them hidden.
        let mut readers = snapshots.clone();
        readers.push(Seqno(u64::MAX));
        let mut readers = readers.into_iter().filter(|reader| reader.0 >= min);
        let hides = |reader| (key..=last).all(|key| newest(key, reader) > Some(Seqno(max)));
        let all = readers.all(hides);
        let keys = ([key], [last]);
        let seqnos = (Seqno(min), Seqno(max));
        prop_assert_eq!(fragments.hide_all((&keys.0, &keys.1), seqnos), all);
        // Some entry may have an older sequence number of the same stripe as a range delete.
        let stripe = |seqno: Seqno| stripe_of(&snapshots, seqno);
        let any = (key..=last).flat_map(over).any(|by| {
            (min..=max).any(|s| s < by.0 && stripe(Seqno(s)) == stripe(by))
        });
        prop_assert_eq!(fragments.hide_any((&keys.0, &keys.1), seqnos), any);
        let cut = fragments.sorted();
        prop_assert!(cut.iter().all(|f| f.start < f.end));
        prop_assert!(cut.is_sorted_by_key(|f| &f.start));
    }

    #[test]
    fn answers_for_ranges_are_those_of_each_key(
        list in deletes(),
        whole in proptest::collection::vec(1u64..42, 0..3),
        ranged in proptest::collection::vec((1u64..42, 0u8..30, 0u8..30), 0..4),
        (key, len) in (0u8..30, 0u8..6),
        (min, more) in (1u64..42, 0u64..6),
    ) {
        let moments = moments(&whole, &ranged);
        let fragments = Fragments::new(&list, &moments);
        let (last, max) = (key + len, min + more);
        let over = |key: u8| {
            let over = move |d: &&RangeDelete| d.start <= vec![key] && vec![key] < d.end;
            list.iter().filter(over).map(|d| d.seqno)
        };
        let newest = |key: u8, reader: Seqno| over(key).filter(|s| *s <= reader).max();
        let own = moments.of(&[key]);
        for stripe in 0..=own.len() {
            let of_stripe = over(key).filter(|s| stripe_of(&own, *s) == stripe);
            prop_assert_eq!(fragments.newest(&own, &[key], stripe), of_stripe.max());
            let filled = list.iter().map(|d| stripe_of(&own, d.seqno));
            let next = filled.filter(|filled| *filled >= stripe).min();
            prop_assert_eq!(fragments.next_filled(&own, stripe), next);
        }
        // What is dropped is hidden from every reader of its key.
        let keys = ([key], [last]);
        let seqnos = (Seqno(min), Seqno(max));
        let is_hidden = |key: u8| {
            let own = moments.of(&[key]).into_owned();
            let readers = own.into_iter().chain([Seqno(u64::MAX)]);
            let mut readers = readers.filter(|reader| reader.0 >= min);
            readers.all(|reader| newest(key, reader) > Some(Seqno(max)))
        };
        let all = (key..=last).all(is_hidden);
        prop_assert!(!fragments.hide_all((&keys.0, &keys.1), seqnos) || all);
        // What is stitched has no entry that a range delete hides from all readers of a stripe.
        let any = (key..=last).any(|key| {
            let own = moments.of(&[key]);
            let hides = |by: Seqno| {
                let is_one = |s: u64| stripe_of(&own, Seqno(s)) == stripe_of(&own, by);
                (min..=max).any(|s| s < by.0 && is_one(s))
            };
            over(key).any(hides)
        });
        prop_assert!(fragments.hide_any((&keys.0, &keys.1), seqnos) || !any);
        if !moments.differ(&keys.0, &keys.1) {
            prop_assert_eq!(fragments.hide_any((&keys.0, &keys.1), seqnos), any);
        }
    }
}
