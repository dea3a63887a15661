//! What listing keys between two moments costs, and its parts.

use super::*;
use crate::testing::{MIB, Small};
use stitch_kv::Engine;

#[test]
fn the_smallest_keys_are_kept() {
    let mut keys = SmallestKeys::new(2);
    assert!(keys.add(b"m") && keys.add(b"k") && keys.add(b"b"));
    assert!(!keys.add(b"l"), "no greater one is among the smallest");
    assert_eq!(keys.into_vec(), [b"b", b"k"]);
    assert!(!SmallestKeys::new(0).add(b"a"));
}

#[test]
fn a_window_holds_what_is_after_one_moment_and_not_after_the_other() {
    let window = SeqnoWindow {
        after: Seqno(4),
        up_to: Seqno(7),
    };
    let held: Vec<u64> = (0..10).filter(|n| window.holds(Seqno(*n))).collect();
    assert_eq!(held, [5, 6, 7]);
    assert!(window.meets(Seqno(1), Seqno(5)) && window.meets(Seqno(7), Seqno(9)));
    assert!(!window.meets(Seqno(1), Seqno(4)) && !window.meets(Seqno(8), Seqno(9)));
}

impl Small {
    /// Number of data blocks read by one list of all keys between two pins, or a pin and now. The
    /// cache is empty before.
    fn blocks_read(&mut self, from: &str, to: Option<&str>, expected: &[u64]) -> u64 {
        self.engine.quiesce().expect("it settles");
        self.reopen();
        let before = self.counter(crate::counters::DATA_BLOCKS_READ);
        let pin = |name: &str| self.engine.open_pin(name).expect("the pin is there");
        let (from, to) = (pin(from), to.map(pin));
        let moments = (&from, to.as_ref());
        let found = self
            .engine
            .keys_between(self.tree, KeyRange::all(), moments, usize::MAX);
        let expected: Vec<Vec<u8>> = expected.iter().map(|n| n.to_be_bytes().to_vec()).collect();
        assert_eq!(found.expect("it reads"), expected);
        self.counter(crate::counters::DATA_BLOCKS_READ) - before
    }
}

/// Some keys of many, spread over all of them.
fn spread(first: u64) -> Vec<u64> {
    (0..10).map(|n| first + n * 2_000).collect()
}

#[test]
fn only_blocks_with_changes_between_the_moments_are_read() {
    let mut small = Small::new(64 * MIB);
    let pin = |small: &Small, name| drop(small.engine.create_pin(name, b"").expect("it is made"));
    small.put(0, 20_000, 100);
    small.engine.quiesce().expect("it settles");
    pin(&small, "a");
    spread(5).iter().for_each(|key| small.put(*key, 1, 100));
    small.engine.quiesce().expect("it settles");
    pin(&small, "b");
    spread(1_005).iter().for_each(|key| small.put(*key, 1, 100));
    let mut both = [spread(5), spread(1_005)].concat();
    both.sort_unstable();
    // Each change is in one block, which may be in a table of its own and in one it was merged to.
    assert!(small.blocks_read("a", None, &both) <= 40);
    assert!(small.blocks_read("a", Some("b"), &spread(5)) <= 20);
    assert!(small.blocks_read("b", None, &spread(1_005)) <= 20);
    pin(&small, "c");
    assert_eq!(small.blocks_read("c", None, &[]), 0);
    small.check();
}

#[test]
fn a_deleted_range_is_read_where_it_was_and_nowhere_else() {
    let mut small = Small::new(64 * MIB);
    small.put(0, 20_000, 100);
    small.engine.create_pin("a", b"").expect("it is made");
    let mut batch = stitch_kv::Batch::new();
    let (start, end) = (7_000u64.to_be_bytes(), 7_300u64.to_be_bytes());
    batch.delete_range(small.tree, &start, &end);
    small.commit(&batch);
    small.rows.retain(|key, _| !(7_000..7_300).contains(key));
    let deleted: Vec<u64> = (7_000..7_300).collect();
    let blocks = small.blocks_read("a", None, &deleted);
    assert!(blocks <= 10, "{blocks} blocks for 300 rows of 100 bytes");
    small.check();
}
