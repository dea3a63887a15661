use super::*;
use crate::testing::{MIB, Small, meta};
use crate::version::{VersionBuilder, tree_record};
use std::collections::BTreeMap;
use stitch_base::PinId;
use stitch_format::vt_manifest::{BranchRecord, TreeRecord, VersionEdit};
use stitch_kv::{Batch, CommitOptions, Direction, Engine as _, Guards, KeyRange, NewBranch};
use stitch_kv::{TreeInfo, TreeOptions};

fn record(id: u32, branch: Option<(u32, u64)>) -> TreeRecord {
    let branch = branch.map(|(parent, seqno)| BranchRecord {
        parent: TreeId(parent),
        seqno: Seqno(seqno),
    });
    let info = TreeInfo {
        id: TreeId(id),
        name: id.to_string(),
        options: TreeOptions::default(),
        branch: None,
        branch_ranges: None,
    };
    TreeRecord {
        branch,
        ..tree_record(&info)
    }
}

/// A version of tree 1, a branch 2 of it that sees it up to 80, and a branch 3 of that one, with
/// these tables.
fn version(tables: &[(u8, TableMetaText)]) -> Version {
    let mut edit = VersionEdit {
        last_seqno: Seqno(1000),
        next_table: stitch_base::TableId(100),
        next_tree: TreeId(4),
        ..VersionEdit::default()
    };
    edit.pins.last = PinId(0);
    edit.new_trees = vec![
        record(1, None),
        record(2, Some((1, 80))),
        record(3, Some((2, 120))),
    ];
    let tables = tables.iter().zip(1..);
    let added = tables.map(|((level, (tree, from, to)), id)| {
        let table = meta(TreeId(*tree), id, from, to);
        (*level, Arc::new(table))
    });
    edit.added = added.collect();
    let mut builder = VersionBuilder::new(Version::empty());
    builder.apply(&edit).expect("it is sound");
    builder.finish().expect("it is sound")
}

/// The tree of a table, its smallest key and its largest one.
type TableMetaText = (u32, &'static str, &'static str);

/// The trees and levels that a get of a key in tree 3 searches.
fn searched(version: &Version, key: &str) -> Vec<(u32, usize)> {
    let chain = version.chain(&version.trees[&TreeId(3)]);
    let head = first_bytes(key.as_bytes());
    let levels = chain.trees().iter().flat_map(|tree| {
        let levels = tree.levels_with(head);
        levels.map(|found| (tree.tree.info.id.0, found.number))
    });
    levels.collect()
}

#[test]
fn a_chain_has_the_levels_with_tables_around_a_key() {
    let version = version(&[
        (1, (3, "c", "f")),
        (0, (1, "k", "m")),
        (0, (1, "a", "b")),
        (3, (1, "a", "h")),
        (3, (1, "m", "y")),
    ]);
    assert_eq!(searched(&version, "d"), [(3, 1), (1, 0), (1, 3)]);
    assert_eq!(searched(&version, "f"), [(3, 1), (1, 0), (1, 3)]);
    assert_eq!(searched(&version, "m"), [(1, 0), (1, 3)]);
    assert_eq!(searched(&version, "x"), [(1, 3)]);
    assert_eq!(searched(&version, "z"), []);
    let chain = version.chain(&version.trees[&TreeId(3)]);
    let seqnos: Vec<u64> = chain.trees().iter().map(|tree| tree.seqno.0).collect();
    assert_eq!(seqnos, [u64::MAX, 120, 80], "each sees its parent to here");
}

#[test]
fn keys_with_the_same_first_bytes_are_not_left_out() {
    let version = version(&[(1, (3, "0123456789abcdefm", "0123456789abcdefn"))]);
    for key in ["0123456789abcdef", "0123456789abcdefm", "0123456789abcdefz"] {
        assert_eq!(searched(&version, key), [(3, 1)], "{key}");
    }
    assert_eq!(searched(&version, "0123456789abcdeg"), []);
    assert_eq!(searched(&version, "0123456789abcde"), []);
}

#[test]
fn a_chain_is_made_once_for_a_version_and_not_copied_with_it() {
    let version = version(&[(1, (3, "c", "f"))]);
    let branch = &version.trees[&TreeId(3)];
    let chain = std::ptr::from_ref(version.chain(branch));
    assert!(std::ptr::eq(chain, version.chain(branch)), "made once");
    let mut copy = version.clone();
    let levels = copy.trees[&TreeId(3)].levels.iter();
    let empty = TreeVersion {
        levels: levels.map(|_| Level::default()).collect(),
        ..TreeVersion::clone(branch)
    };
    copy.trees.insert(TreeId(3), Arc::new(empty));
    assert_eq!(searched(&version, "d"), [(3, 1)]);
    assert_eq!(searched(&copy, "d"), [], "it has its own tables");
}

/// Rows that a reader of a tree finds.
type Rows = BTreeMap<u64, Vec<u8>>;

fn check_reads(small: &Small, tree: TreeId, rows: &Rows, after: &str) {
    let engine = &small.engine;
    let keys: Vec<[u8; 8]> = (0..120u64).map(u64::to_be_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let many = engine.get_many(tree, &keys, None).expect("it reads");
    for (number, found) in (0..).zip(many) {
        let key: &[u8] = keys[usize::try_from(number).expect("a small number")];
        let single = engine.get(tree, key, None).expect("it reads");
        assert_eq!(single, found, "key {number} after {after}");
        let expected = rows.get(&number).map(Vec::as_slice);
        assert_eq!(found.as_deref(), expected, "key {number} after {after}");
    }
    let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None);
    let mut scan = scan.expect("it begins");
    for (key, value) in rows {
        let entry = scan.next().expect("it reads");
        assert_eq!(entry, Some((&key.to_be_bytes()[..], &value[..])), "{after}");
    }
    assert_eq!(scan.next().expect("it reads"), None, "after {after}");
    let version = small.engine.store.version();
    let chain = version.chain(&version.trees[&tree]);
    let lineage = version.lineage(tree);
    for (link, own) in chain.trees().iter().zip(lineage) {
        assert!(Arc::ptr_eq(&link.tree, own), "the tables after {after}");
        let filled = own.levels.iter().filter(|level| !level.tables.is_empty());
        assert_eq!(link.levels.len(), filled.count(), "levels after {after}");
    }
}

fn branch(small: &Small, parent: TreeId, name: &str) -> TreeId {
    let new = [NewBranch::new(parent, name)];
    let made = small.engine.branch_trees(&new, None);
    made.expect("the branch is made")[0]
}

/// Puts a value for some keys of a tree, and into `rows`.
fn put(small: &Small, tree: TreeId, rows: &mut Rows, (keys, value): (std::ops::Range<u64>, &[u8])) {
    let mut batch = Batch::new();
    for key in keys {
        batch.put(tree, &key.to_be_bytes(), value);
        rows.insert(key, value.to_vec());
    }
    small.commit(&batch);
}

#[test]
fn reads_follow_every_change_of_tables_and_memtables() {
    let mut small = Small::new(64 * MIB);
    small.reopen_as(|options| {
        options.memtable_bytes = Some(64 << 10);
        options.absorb_copy_bytes_max = 0;
    });
    small.put(0, 100, 40);
    let (tree, engine) = (small.tree, Arc::clone(&small.engine));
    let mut of_tree = small.rows.clone();
    let outer = branch(&small, tree, "outer");
    let mut rows = of_tree.clone();
    check_reads(&small, outer, &rows, "the branch");
    put(
        &small,
        tree,
        &mut of_tree,
        (0..120, b"newer than the branch"),
    );
    check_reads(&small, outer, &rows, "a put to the parent");
    engine.quiesce().expect("it is written out");
    check_reads(&small, outer, &rows, "a write-out of the parent");
    put(&small, outer, &mut rows, (10..30, b"outer"));
    check_reads(&small, outer, &rows, "a put to the branch");
    engine.quiesce().expect("it is written out");
    check_reads(&small, outer, &rows, "a write-out of the branch");
    let inner = branch(&small, outer, "inner");
    let mut of_inner = rows.clone();
    put(&small, inner, &mut of_inner, (25..35, b"inner"));
    let mut batch = Batch::new();
    batch.delete_range(inner, &12u64.to_be_bytes(), &26u64.to_be_bytes());
    batch.delete(inner, &40u64.to_be_bytes());
    small.commit(&batch);
    of_inner.retain(|key, _| !(12..26).contains(key) && *key != 40);
    check_reads(&small, inner, &of_inner, "deletes in a memtable");
    engine.quiesce().expect("it is written out");
    check_reads(&small, inner, &of_inner, "deletes in tables");
    check_reads(&small, outer, &rows, "deletes in its branch");
    let sealed = |small: &Small| small.engine.store.views.get().sealed_count();
    let before = small.counter("vt.write_outs");
    for number in 0.. {
        put(&small, inner, &mut of_inner, (50..60, &[7; 1000]));
        check_reads(&small, inner, &of_inner, "a put to a short memtable");
        if sealed(&small) > 0 || small.counter("vt.write_outs") > before {
            break;
        }
        assert!(number < 100, "a memtable is sealed");
    }
    put(
        &small,
        inner,
        &mut of_inner,
        (58..62, b"in the new memtable"),
    );
    check_reads(&small, inner, &of_inner, "a new memtable");
    let moment = engine.branch_moment(inner).expect("it is a branch");
    let guards = Guards::since(&moment);
    let absorbed = engine.absorb(&[inner], &Batch::new(), &guards, CommitOptions::default());
    absorbed.expect("nothing else was written");
    check_reads(&small, outer, &of_inner, "an absorb");
    let sibling = branch(&small, tree, "sibling");
    engine.drop_tree(sibling).expect("it is dropped");
    check_reads(&small, outer, &of_inner, "the drop of a sibling");
    engine.drop_tree(tree).expect("it is hidden");
    check_reads(&small, outer, &of_inner, "the drop of its parent");
    engine.quiesce().expect("background work succeeds");
    check_reads(&small, outer, &of_inner, "compactions");
}
