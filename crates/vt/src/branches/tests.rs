use super::*;
use crate::version::VersionBuilder;
use stitch_format::vt_manifest::{BranchRecord, TreeRecord};

/// A version of trees 1 to n, each with the parent given (0: none), and some of them hidden.
fn version(parents: &[u32], hidden: &[u32]) -> Version {
    let mut edit = Version::empty().edit();
    for (id, parent) in (1..).zip(parents) {
        let branch = (*parent > 0).then_some(BranchRecord {
            parent: TreeId(*parent),
            seqno: Seqno(7),
        });
        edit.new_trees.push(TreeRecord {
            id: TreeId(id),
            name: id.to_string(),
            block_bytes: 4096,
            stitch_bytes: 0,
            compression: 0,
            value_block_bytes: 0,
            branch,
            branch_ranges: None,
        });
        edit.next_tree = TreeId(id + 1);
    }
    let hidden = hidden.iter().map(|id| (TreeId(*id), PinId(1)));
    edit.pins.hidden.extend(hidden);
    let mut builder = VersionBuilder::new(Version::empty());
    builder.apply(&edit).expect("it is sound");
    builder.finish().expect("it is sound")
}

/// What goes and what is hidden when these trees are dropped and no pin is there.
fn dropped(version: &Version, trees: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut edit = version.edit();
    let trees = trees.iter().map(|id| TreeId(*id)).collect();
    version.note_dropped(&mut edit, &trees, (&Pins::default(), &[]));
    let gone = edit.dropped_trees.iter().map(|tree| tree.0).collect();
    let hidden = edit.pins.hidden.iter().map(|(tree, _)| tree.0).collect();
    (gone, hidden)
}

#[test]
fn a_parent_is_hidden_while_a_branch_reads_it_and_goes_with_the_last() {
    let all = version(&[0, 1, 1, 0], &[]);
    assert_eq!(dropped(&all, &[1]), (vec![], vec![1]));
    assert_eq!(dropped(&all, &[2]), (vec![2], vec![]));
    assert_eq!(dropped(&all, &[4]), (vec![4], vec![]));
    assert_eq!(dropped(&all, &[1, 2, 3]), (vec![3, 2, 1], vec![]));
    let hidden = version(&[0, 1, 1, 0], &[1]);
    assert_eq!(dropped(&hidden, &[2]), (vec![2], vec![]));
    assert_eq!(dropped(&hidden, &[2, 3]), (vec![3, 2, 1], vec![]));
}

#[test]
fn a_chain_of_hidden_parents_goes_at_once() {
    let chain = version(&[0, 1, 2, 3], &[1, 3]);
    assert_eq!(chain.branch_depth(TreeId(4)), 3);
    assert_eq!(chain.branch_depth(TreeId(1)), 0);
    assert_eq!(dropped(&chain, &[2]), (vec![], vec![2]));
    assert_eq!(dropped(&chain, &[4]), (vec![4, 3], vec![]));
    assert_eq!(dropped(&chain, &[2, 4]), (vec![4, 3, 2, 1], vec![]));
}

#[test]
fn a_version_without_the_parent_of_a_branch_is_refused() {
    let version = version(&[0, 1], &[]);
    let mut edit = version.edit();
    edit.dropped_trees.push(TreeId(1));
    let mut builder = VersionBuilder::new(version);
    builder.apply(&edit).expect("the tree is there");
    let error = builder.finish().expect_err("tree 2 reads it");
    assert!(error.to_string().contains("tree 2"), "{error}");
}
