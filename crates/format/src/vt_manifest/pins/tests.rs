use super::*;
use crate::vt_manifest::VersionEdit;
use stitch_base::TableId;

fn sample() -> VersionEdit {
    VersionEdit {
        last_seqno: Seqno(7),
        next_table: TableId(0x82),
        next_tree: TreeId(4),
        pins: PinChanges {
            last: PinId(0x81),
            dropped: vec![PinId(3)],
            hidden: vec![(TreeId(2), PinId(0x80))],
            new: vec![PinRecord {
                id: PinId(0x81),
                name: "eve".to_owned(),
                seqno: Seqno(9),
                next_tree: TreeId(4),
                user: vec![1, 2],
                trees: None,
                ranges: Vec::new(),
            }],
            altered: vec![(PinId(5), vec![6])],
            narrowed: Vec::new(),
        },
        ..VersionEdit::default()
    }
}

#[rustfmt::skip]
const GOLDEN: [u8; 35] = [
    3, // version
    7, 0x82, 0x01, 4, // last seqno, next table, next tree
    0, 0, 0, // dropped, new and altered trees
    0x81, 0x01, // last pin
    1, 3, // dropped pins
    1, 2, 0x80, 0x01, // hidden trees
    1, 0x81, 0x01, 3, b'e', b'v', b'e', 9, 4, 2, 1, 2, // new pins
    1, 5, 1, 6, // altered pins
    0, 0, 0, // removed, moved and added tables
];

#[test]
fn bytes_of_pins_are_pinned() {
    assert_eq!(sample().encode(), GOLDEN);
    assert_eq!(VersionEdit::decode(&GOLDEN), Ok(sample()));
}

#[test]
fn a_store_that_never_had_a_pin_stays_readable_for_older_programs() {
    let mut edit = sample();
    assert!(edit.has_pins() && !edit.is_of_version_1());
    edit.pins = PinChanges::default();
    assert!(!edit.has_pins() && edit.is_of_version_1());
    assert_eq!(edit.encode()[0], 1);
    // The number of the last pin alone keeps it from being reused.
    edit.pins.last = PinId(1);
    assert_eq!(edit.encode()[0], 3);
    assert_eq!(VersionEdit::decode(&edit.encode()), Ok(edit));
}

fn scoped_sample() -> VersionEdit {
    let mut edit = sample();
    edit.pins.new[0].trees = Some(vec![TreeId(1), TreeId(3)]);
    edit.pins.new.push(PinRecord {
        id: PinId(0x82),
        name: "all".to_owned(),
        trees: None,
        ..edit.pins.new[0].clone()
    });
    edit.pins.new.push(PinRecord {
        id: PinId(0x83),
        name: "no".to_owned(),
        trees: Some(Vec::new()),
        ..edit.pins.new[0].clone()
    });
    edit.pins.last = PinId(0x83);
    edit
}

#[rustfmt::skip]
const GOLDEN_SCOPES: [u8; 61] = [
    6, // version
    7, 0x82, 0x01, 4, // last seqno, next table, next tree
    0, 0, 0, // dropped, new and altered trees
    0x83, 0x01, // last pin
    1, 3, // dropped pins
    1, 2, 0x80, 0x01, // hidden trees
    3, // new pins
    0x81, 0x01, 3, b'e', b'v', b'e', 9, 4, 2, 1, 2, // the first
    3, 1, 3, // its two trees
    0x82, 0x01, 3, b'a', b'l', b'l', 9, 4, 2, 1, 2, // the second
    0, // all trees
    0x83, 0x01, 2, b'n', b'o', 9, 4, 2, 1, 2, // the third
    1, // no tree
    1, 5, 1, 6, // altered pins
    0, 0, 0, // removed, moved and added tables
];

#[test]
fn bytes_of_pins_of_some_trees_are_pinned() {
    assert_eq!(scoped_sample().encode(), GOLDEN_SCOPES);
    assert_eq!(VersionEdit::decode(&GOLDEN_SCOPES), Ok(scoped_sample()));
    assert!(scoped_sample().has_pin_scopes() && !sample().has_pin_scopes());
}

#[test]
fn every_cut_and_every_bit_of_pins_of_some_trees_means_something() {
    crate::vt_manifest::tests::expect_no_spare_bits(&GOLDEN_SCOPES, &scoped_sample());
}

#[test]
fn trees_that_a_pin_cannot_hold_are_refused() {
    for trees in [[3, 3], [0, 1], [1, 4]] {
        let mut bytes = GOLDEN_SCOPES;
        assert_eq!(bytes[28..31], [3, 1, 3]);
        bytes[29..31].copy_from_slice(&trees);
        assert!(VersionEdit::decode(&bytes).is_err(), "{trees:?}");
    }
    // The layout of an edit is the lowest that it needs.
    let mut bytes = GOLDEN.to_vec();
    bytes[0] = 6;
    bytes.insert(28, 0);
    assert!(VersionEdit::decode(&bytes).is_err());
}

#[test]
fn every_cut_is_an_error_and_every_bit_means_something() {
    crate::vt_manifest::tests::expect_no_spare_bits(&GOLDEN, &sample());
}

#[test]
fn pins_that_cannot_be_are_refused() {
    let refused = |change: fn(&mut PinChanges)| {
        let mut edit = sample();
        change(&mut edit.pins);
        assert!(VersionEdit::decode(&edit.encode()).is_err());
    };
    refused(|pins| pins.last = PinId(0));
    refused(|pins| pins.new[0].id = PinId(0));
    refused(|pins| pins.new[0].seqno = Seqno(u64::MAX));
    refused(|pins| pins.altered[0].0 = PinId(u64::MAX));
}

#[test]
fn the_length_of_pins_in_a_base_is_known_without_encoding_it() {
    let mut edit = VersionEdit::default();
    edit.pins.last = PinId(1 << 60);
    let before = edit.encode().len() as u64;
    for number in 0..60u64 {
        let record = PinRecord {
            id: PinId(1 << number),
            name: "n".repeat(1 + 4 * usize::try_from(number).unwrap()),
            seqno: Seqno(1 << (60 - number)),
            next_tree: TreeId(1 << (number % 32)),
            user: vec![0; 60 * usize::try_from(number).unwrap()],
            trees: None,
            ranges: Vec::new(),
        };
        let most = record.base_bytes();
        edit.pins.new = vec![record];
        edit.pins.hidden.clear();
        let bytes = edit.encode().len() as u64 - before;
        assert!((bytes..bytes + 25).contains(&most), "{most} for {bytes}");
        edit.pins.hidden.push((TreeId(u32::MAX), PinId(1 << 62)));
        let hidden = edit.encode().len() as u64 - before - bytes;
        assert!(hidden <= HIDDEN_TREE_BYTES_MAX);
    }
    assert!(before <= 1 + 3 * 10 + 6 * 10 + PinChanges::HEAD_BYTES_MAX);
}
