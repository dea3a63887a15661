use super::*;
use crate::vt_manifest::{PinChanges, TreeRecord, VersionEdit};
use stitch_base::{PinId, TableId};

fn tree(id: u32, branch: Option<BranchRecord>) -> TreeRecord {
    TreeRecord {
        id: TreeId(id),
        name: "b".to_owned(),
        block_bytes: 0x1000,
        stitch_bytes: 0,
        compression: 0,
        value_block_bytes: 0,
        branch,
        branch_ranges: None,
    }
}

pub(super) fn sample() -> VersionEdit {
    let branch = BranchRecord {
        parent: TreeId(2),
        seqno: Seqno(0x81),
    };
    VersionEdit {
        last_seqno: Seqno(7),
        next_table: TableId(1),
        next_tree: TreeId(6),
        new_trees: vec![tree(4, None), tree(5, Some(branch))],
        pins: PinChanges {
            hidden: vec![(TreeId(2), PinId(1))],
            ..PinChanges::default()
        },
        ..VersionEdit::default()
    }
}

#[rustfmt::skip]
const GOLDEN: [u8; 37] = [
    4, // version
    7, 1, 6, // last seqno, next table, next tree
    0, // dropped trees
    2, // new trees
    4, 1, b'b', 0x80, 0x20, 0, 0, 0, 0, // without a parent
    5, 1, b'b', 0x80, 0x20, 0, 0, 0, 2, 0x81, 0x01, // parent, seqno
    0, // altered trees
    0, 0, 1, 2, 1, 0, 0, // pins: last, dropped, hidden trees, new, altered
    0, 0, 0, // removed, moved and added tables
];

#[test]
fn bytes_of_branch_trees_are_pinned() {
    assert_eq!(sample().encode(), GOLDEN);
    assert_eq!(VersionEdit::decode(&GOLDEN), Ok(sample()));
}

#[test]
fn every_cut_is_an_error_and_every_bit_means_something() {
    crate::vt_manifest::tests::expect_no_spare_bits(&GOLDEN, &sample());
}

#[test]
fn a_store_without_branch_trees_stays_readable_for_older_programs() {
    let mut edit = sample();
    assert!(edit.has_branches() && !edit.is_of_version_1());
    edit.new_trees.pop();
    // A tree is hidden without any pin: older programs do not know how.
    assert!(edit.has_branches());
    edit.pins.last = PinId(1);
    assert!(!edit.has_branches() && edit.has_pins());
    assert_eq!(edit.encode()[0], 3);
    edit.pins = PinChanges::default();
    assert_eq!(edit.encode()[0], 1);
}

#[test]
fn an_altered_branch_tree_keeps_its_parent() {
    let mut edit = sample();
    edit.altered_trees = edit.new_trees.split_off(1);
    edit.pins = PinChanges::default();
    assert!(edit.has_branches());
    assert_eq!(VersionEdit::decode(&edit.encode()), Ok(edit));
}

#[test]
fn parents_that_cannot_be_are_refused() {
    let refused = |parent: u32, seqno: u64| {
        let mut edit = sample();
        edit.new_trees[1].branch = Some(BranchRecord {
            parent: TreeId(parent),
            seqno: Seqno(seqno),
        });
        VersionEdit::decode(&edit.encode()).is_err()
    };
    assert!(refused(5, 1), "its own parent");
    assert!(refused(6, 1), "a parent made after it");
    assert!(refused(2, u64::MAX), "a write that never was");
    assert!(!refused(4, 1));
}

#[test]
fn the_length_of_a_parent_in_a_base_is_bounded() {
    let most = BranchRecord {
        parent: TreeId(u32::MAX - 1),
        seqno: Seqno(1 << 62),
    };
    for (branch, bytes_max) in [
        (Some(most), BranchRecord::BYTES_MAX),
        (None, BranchRecord::NONE_BYTES),
    ] {
        let mut out = Vec::new();
        put_branch(&mut out, branch);
        assert!(out.len() as u64 <= bytes_max, "{branch:?}");
    }
}
