use super::tests::sample;
use super::*;
use crate::vt_manifest::VersionEdit;

fn with_ranges() -> VersionEdit {
    let mut edit = sample();
    edit.pins = crate::vt_manifest::PinChanges::default();
    let range = |start: &[u8], end: Option<&[u8]>| (start.to_vec(), end.map(<[u8]>::to_vec));
    edit.new_trees[1].branch_ranges = Some(vec![range(b"a", Some(b"c")), range(b"d", None)]);
    edit
}

#[rustfmt::skip]
const GOLDEN: [u8; 45] = [
    8, // version
    7, 1, 6, // last seqno, next table, next tree
    0, // dropped trees
    2, // new trees
    4, 1, b'b', 0x80, 0x20, 0, 0, 0, 0, // without a parent
    5, 1, b'b', 0x80, 0x20, 0, 0, 0, 2, 0x81, 0x01, // parent, seqno
    1, 2, 1, b'a', 2, b'c', 1, b'd', 0, // two ranges, the last without an end
    0, // altered trees
    0, 0, 0, 0, 0, 0, // pins: last, dropped, hidden trees, new, altered, narrowed
    0, 0, 0, // removed, moved and added tables
];

#[test]
fn bytes_of_branch_trees_of_key_ranges_are_pinned() {
    assert_eq!(with_ranges().encode(), GOLDEN);
    assert_eq!(VersionEdit::decode(&GOLDEN), Ok(with_ranges()));
    assert!(with_ranges().has_branch_ranges() && with_ranges().has_branches());
}

#[test]
fn every_cut_is_an_error_and_every_bit_means_something() {
    crate::vt_manifest::tests::expect_no_spare_bits(&GOLDEN, &with_ranges());
}

#[test]
fn branch_trees_of_all_keys_stay_readable_for_older_programs() {
    let mut edit = with_ranges();
    edit.new_trees[1].branch_ranges = None;
    assert!(!edit.has_branch_ranges());
    assert_eq!(edit.encode()[0], 4);
    let mut bytes = edit.encode();
    bytes[0] = 8;
    assert!(VersionEdit::decode(&bytes).is_err());
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let refused = |ranges: &[(&[u8], &[u8])]| {
        let mut edit = with_ranges();
        let owned = ranges.iter();
        let owned = owned.map(|(start, end)| (start.to_vec(), Some(end.to_vec())));
        edit.new_trees[1].branch_ranges = Some(owned.collect());
        VersionEdit::decode(&edit.encode()).is_err()
    };
    assert!(!refused(&[(b"a", b"b"), (b"c", b"d")]));
    assert!(!refused(&[]), "a branch that begins with nothing");
    assert!(refused(&[(b"a", b"a")]), "an empty range");
    assert!(refused(&[(b"a", b"c"), (b"c", b"d")]), "two that touch");
}

#[test]
fn the_length_of_ranges_is_counted() {
    let edit = with_ranges();
    let ranges = edit.new_trees[1].branch_ranges.as_deref();
    let ranges_bytes = BranchRecord::ranges_bytes(ranges.expect("it has ranges"));
    let mut other = edit.clone();
    other.new_trees[1].branch_ranges = Some(Vec::new());
    let none_bytes = BranchRecord::ranges_bytes(&[]);
    let differ = edit.encode().len() - other.encode().len();
    assert_eq!(ranges_bytes - none_bytes, differ as u64);
    for len in [0, 1, 126, 127, 128, 129, 4096] {
        let ranges = [(vec![0; len], Some(vec![1; len])), (vec![2; len], None)];
        let mut out = Vec::new();
        put_branch_ranges(&mut out, Some(&ranges));
        assert_eq!(BranchRecord::ranges_bytes(&ranges), out.len() as u64);
    }
    assert_eq!(BranchRecord::ALL_KEYS_BYTES, 1);
}
