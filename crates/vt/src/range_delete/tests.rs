use super::*;
use proptest::prelude::*;

fn delete(start: &str, end: &str, seqno: u64) -> RangeDelete {
    RangeDelete {
        start: start.as_bytes().to_vec(),
        end: end.as_bytes().to_vec(),
        seqno: Seqno(seqno),
    }
}

const NOW: Seqno = Seqno(u64::MAX);

#[test]
fn an_empty_set_covers_nothing() {
    let set = RangeDeletes::default();
    assert!(set.is_empty());
    assert_eq!(set.newest_covering(b"a", NOW), None);
    assert_eq!(set.cover(b"a", NOW).until, None);
}

#[test]
fn the_newest_that_is_not_too_new_counts() {
    let set = RangeDeletes::new(vec![delete("b", "f", 10), delete("d", "h", 20)]);
    assert_eq!(set.newest_covering(b"a", NOW), None);
    assert_eq!(set.newest_covering(b"b", NOW), Some(Seqno(10)));
    assert_eq!(set.newest_covering(b"d", NOW), Some(Seqno(20)));
    assert_eq!(set.newest_covering(b"d", Seqno(19)), Some(Seqno(10)));
    assert_eq!(set.newest_covering(b"f", Seqno(19)), None);
    assert_eq!(set.newest_covering(b"h", NOW), None);
    assert_eq!(set.cover(b"c", NOW).until, Some(&b"d"[..]));
}

#[test]
fn empty_ranges_are_left_out() {
    let set = RangeDeletes::new(vec![delete("b", "b", 1), delete("c", "a", 2)]);
    assert!(set.is_empty());
    assert!(set.with(delete("x", "x", 3)).is_empty());
}

#[test]
fn nested_ranges_take_little_memory() {
    let mut set = RangeDeletes::default();
    for n in 0..5000_u64 {
        set = set.with(RangeDelete {
            start: n.to_be_bytes().to_vec(),
            end: vec![0xff; 8],
            seqno: Seqno(n + 1),
        });
    }
    assert_eq!(set.len(), 5000);
    assert!(set.bytes() < 2 << 20, "{} bytes", set.bytes());
    let key = 3000_u64.to_be_bytes();
    assert_eq!(set.newest_covering(&key, NOW), Some(Seqno(3001)));
    assert_eq!(set.newest_covering(&key, Seqno(17)), Some(Seqno(17)));
}

fn sets() -> impl Strategy<Value = Vec<RangeDelete>> {
    let one = (0u8..20, 0u8..20, 1u64..40).prop_map(|(a, b, seqno)| RangeDelete {
        start: vec![a],
        end: vec![b],
        seqno: Seqno(seqno),
    });
    proptest::collection::vec(one, 0..40)
}

proptest! {
    #[test]
    fn answers_are_those_of_a_list(
        list in sets(), grown in any::<bool>(), key in 0u8..21, max in 0u64..42,
    ) {
        let set = if grown {
            list.iter().fold(RangeDeletes::default(), |set, d| set.with(d.clone()))
        } else {
            RangeDeletes::new(list.clone())
        };
        let list: Vec<_> = list.into_iter().filter(is_range).collect();
        let max = Seqno(max);
        let over = |d: &&RangeDelete| d.start <= vec![key] && vec![key] < d.end;
        let newest = list.iter().filter(over).map(|d| d.seqno).filter(|s| *s <= max).max();
        prop_assert_eq!(set.newest_covering(&[key], max), newest);
        prop_assert_eq!(set.len(), list.len());
    }
}
