use super::*;
use crate::testing::{meta, text_version};

#[test]
fn a_base_makes_the_same_version() {
    let version = text_version(
        "tree 1\nL0 9 a..f 100 s9\nL0 8 b..c 100 s8\nL1 3 a..b 100\nL1 4 c..d 100 r1\n\
         tree 2\nL2 5 x..y 7",
    );
    let mut builder = VersionBuilder::new(Version::empty());
    builder.apply(&version.base()).expect("a base applies");
    let again = builder.finish().expect("valid");
    assert_eq!(
        format!("{:?}", again.base()),
        format!("{:?}", version.base())
    );
    assert_eq!(
        again.trees[&TreeId(1)].levels[0].tables[0].meta().id,
        TableId(9)
    );
    assert!(again.trees[&TreeId(1)].levels[1].has_range_deletes);
}

#[test]
fn edits_that_do_not_belong_are_refused() {
    let version = text_version("tree 1\nL1 3 a..c 100\nL1 4 d..e 100");
    let refused = |change: &dyn Fn(&mut VersionEdit)| {
        let mut edit = version.edit();
        change(&mut edit);
        let mut builder = VersionBuilder::new(version.clone());
        let result = builder
            .apply(&edit)
            .and_then(|()| builder.finish().map(|_| ()));
        assert!(result.is_err());
    };
    refused(&|e| e.removed.push(TableId(7)));
    refused(&|e| e.dropped_trees.push(TreeId(9)));
    refused(&|e| e.altered_trees.push(record(9, "t9")));
    refused(&|e| e.altered_trees.push(record(1, "another")));
    refused(&|e| e.next_table = TableId(0));
    refused(&|e| e.added.push((1, Arc::new(meta(TreeId(1), 3, "f", "g")))));
    refused(&|e| e.added.push((1, Arc::new(meta(TreeId(9), 2, "f", "g")))));
    refused(&|e| e.added.push((1, Arc::new(meta(TreeId(1), 2, "b", "g")))));
    refused(&|e| e.added.push((1, Arc::new(meta(TreeId(1), 2000, "f", "g")))));
    refused(&|e| e.moved.push((TableId(8), 2)));
}

fn record(id: u32, name: &str) -> TreeRecord {
    TreeRecord {
        branch: None,
        branch_ranges: None,
        id: TreeId(id),
        name: name.to_owned(),
        block_bytes: 8192,
        stitch_bytes: 7,
        compression: 2,
        value_block_bytes: 0,
    }
}

#[test]
fn an_altered_tree_keeps_its_tables() {
    let version = text_version("tree 1\nL1 3 a..c 100\ntree 2\nL1 4 d..e 100");
    let mut edit = version.edit();
    edit.altered_trees.push(record(1, "t1"));
    let mut builder = VersionBuilder::new(version);
    builder.apply(&edit).expect("belongs");
    let version = builder.finish().expect("valid");
    assert_eq!(version.tables().count(), 2);
    let options = |tree| &version.trees[&TreeId(tree)].info.options;
    assert_eq!(options(1).stitch_bytes, 7);
    assert_eq!(options(1).compression, Compression::Zstd);
    assert_eq!(options(2).stitch_bytes, 0);
}

#[test]
fn dropping_a_tree_takes_its_tables() {
    let version = text_version("tree 1\nL1 3 a..c 100\ntree 2\nL1 4 d..e 100");
    let mut edit = version.edit();
    edit.dropped_trees.push(TreeId(1));
    let mut builder = VersionBuilder::new(version);
    builder.apply(&edit).expect("belongs");
    let version = builder.finish().expect("valid");
    assert_eq!(version.tables().count(), 1);
    assert!(!version.trees.contains_key(&TreeId(1)));
}

#[test]
fn overlaps_are_found_by_key() {
    let version = text_version("tree 1\nL1 3 b..c 1\nL1 4 e..g 1\nL1 5 i..k 1");
    let level = &version.trees[&TreeId(1)].levels[1];
    assert_eq!(level.overlapping(b"c", Some(b"f")), 0..2);
    assert_eq!(level.overlapping(b"ca", Some(b"e")), 1..1);
    assert_eq!(level.overlapping(b"j", None), 2..3);
    assert_eq!(level.holding(b"f").map(|t| t.meta().id), Some(TableId(4)));
    assert!(level.holding(b"h").is_none());
    assert!(level.holding(b"z").is_none());
}
