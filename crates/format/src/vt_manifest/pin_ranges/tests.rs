use super::*;
use crate::vt_manifest::{PinChanges, PinRecord, VersionEdit};
use stitch_base::{Seqno, TableId};

fn sample() -> VersionEdit {
    let range = |start: &[u8], end: Option<&[u8]>| (start.to_vec(), end.map(<[u8]>::to_vec));
    VersionEdit {
        last_seqno: Seqno(7),
        next_table: TableId(1),
        next_tree: TreeId(4),
        pins: PinChanges {
            last: PinId(2),
            new: vec![PinRecord {
                id: PinId(2),
                name: "p".to_owned(),
                seqno: Seqno(9),
                next_tree: TreeId(4),
                user: Vec::new(),
                trees: Some(vec![TreeId(1), TreeId(3)]),
                ranges: vec![
                    (TreeId(1), vec![range(b"a", Some(b"c")), range(b"d", None)]),
                    (TreeId(3), Vec::new()),
                ],
            }],
            narrowed: vec![NarrowedPin {
                id: PinId(1),
                trees: vec![TreeId(2), TreeId(3)],
                ranges: vec![(TreeId(2), vec![range(b"", Some(b"b"))])],
            }],
            ..PinChanges::default()
        },
        ..VersionEdit::default()
    }
}

#[rustfmt::skip]
const GOLDEN: [u8; 47] = [
    7, // version
    7, 1, 4, // last seqno, next table, next tree
    0, 0, 0, // dropped, new and altered trees
    2, 0, 0, // last pin, dropped pins, hidden trees
    1, 2, 1, b'p', 9, 4, 0, // the new pin
    3, 1, 3, // its two trees
    2, // trees with ranges
    1, 2, 1, b'a', 2, b'c', 1, b'd', 0, // two of tree 1, the last without an end
    3, 0, // none of tree 3
    0, // altered pins
    1, 1, 3, 2, 3, // the narrowed pin and its trees
    1, 2, 1, 0, 2, b'b', // one range of tree 2
    0, 0, 0, // removed, moved and added tables
];

#[test]
fn bytes_of_pins_of_key_ranges_are_pinned() {
    assert_eq!(sample().encode(), GOLDEN);
    assert_eq!(VersionEdit::decode(&GOLDEN), Ok(sample()));
    assert!(sample().has_pin_ranges() && sample().has_pin_scopes());
}

#[test]
fn every_cut_and_every_bit_of_pins_of_key_ranges_means_something() {
    crate::vt_manifest::tests::expect_no_spare_bits(&GOLDEN, &sample());
}

#[test]
fn pins_without_ranges_stay_readable_for_older_programs() {
    let mut edit = sample();
    edit.pins.narrowed.clear();
    assert_eq!(edit.encode()[0], 7, "a base lists the ranges of a pin");
    edit.pins.new[0].ranges.clear();
    assert!(!edit.has_pin_ranges() && edit.encode()[0] == 6);
    // The layout of an edit is the lowest that it needs.
    let mut bytes = edit.encode();
    bytes[0] = 7;
    bytes.splice(20..20, [0]);
    let end = bytes.len() - 3;
    bytes.splice(end..end, [0]);
    let refused = VersionEdit::decode(&bytes);
    let refused = refused.expect_err("nothing in it needs version 7");
    assert!(refused.to_string().contains("lowest"), "{refused}");
}

#[test]
fn ranges_that_a_pin_cannot_hold_are_refused() {
    let range = |start: &str, end: &str| {
        let end = (!end.is_empty()).then(|| end.as_bytes().to_vec());
        (start.as_bytes().to_vec(), end)
    };
    let is_read = |ranges: Vec<TreeRanges>| {
        let mut edit = sample();
        edit.pins.new[0].ranges = ranges;
        VersionEdit::decode(&edit.encode()).is_ok()
    };
    let of_first = |ranges: &[(&str, &str)]| {
        let ranges = ranges.iter().map(|(start, end)| range(start, end));
        is_read(vec![(TreeId(1), ranges.collect())])
    };
    assert!(of_first(&[("a", "b"), ("c", "")]) && of_first(&[]));
    assert!(!of_first(&[("b", "b")]), "an empty range");
    assert!(!of_first(&[("a", "b"), ("b", "c")]), "they touch");
    assert!(!of_first(&[("a", "c"), ("b", "d")]), "they overlap");
    assert!(!of_first(&[("c", "d"), ("a", "b")]), "out of order");
    assert!(
        !of_first(&[("a", ""), ("c", "d")]),
        "after one without an end"
    );
    assert!(!is_read(vec![(TreeId(2), Vec::new())]), "not of the pin");
    let many = |count: u16| {
        let key = |number: u16| number.to_be_bytes().to_vec();
        let ranges = (0..count).map(|n| (key(2 * n), Some(key(2 * n + 1))));
        is_read(vec![(TreeId(1), ranges.collect())])
    };
    assert!(many(256) && !many(257));
}
