//! One test for each issue: it is planted, found, and repaired.

use super::{Issue, Trees, check, repair};
use crate::schema::SCHEMA;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_db::{Changes, CommitOptions, Schema, TreeOptions};
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow, encode_link, row_flag};
use stitch_format::fs_key::{self, FsKey};
use stitch_format::fs_policy::{Keep, PolicyRow};
use stitch_format::fs_sys::{AllocatedRow, ExtentState, ExternalRow, FsHeader, encode_number};
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

pub(super) mod shared;

const SEED: u64 = 7;

pub(super) struct Sample {
    pub(super) engine: Arc<dyn Engine>,
    trees: Trees,
}

fn head(ino: u64, kind: FileKind, nlink: u32) -> InodeHead {
    InodeHead {
        nlink,
        ..crate::testing::head(Ino(ino), kind)
    }
}

pub(super) fn name(parent: u64, name: &str) -> FsKey {
    fs_key::dentry(SEED, Ino(parent), name.as_bytes())
}

impl Sample {
    /// Root with directory 2 (`d`), in it file 3 (`f`) of two chunks with an attribute, file 4 with
    /// names `d/a` and `b`, and orphan 5.
    pub(super) fn new() -> Self {
        let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let names = ["meta", "data", "xattr", "sys"].map(|n| (n, TreeOptions::default()));
        Schema::create(Arc::clone(&engine), "fs", &names).unwrap();
        let trees = Trees::open(&engine, SCHEMA).unwrap();
        let sample = Self { engine, trees };
        let header = FsHeader::new(SEED, 0);
        let chunked = InodeHead {
            size: 5000,
            flags: row_flag::XATTRS,
            ..head(3, FileKind::Regular, 1)
        };
        sample.put(&fs_key::own(Ino(1)), &head(1, FileKind::Directory, 3));
        sample.put(&name(1, "d"), &head(2, FileKind::Directory, 2));
        sample.put(&name(2, "f"), &chunked);
        sample.put(&fs_key::own(Ino(4)), &head(4, FileKind::Regular, 2));
        sample.put(&fs_key::own(Ino(5)), &head(5, FileKind::Regular, 0));
        sample.edit(|trees, changes| {
            let link = encode_link(Ino(4), FileKind::Regular);
            changes.put(trees.meta, &name(2, "a"), &link);
            changes.put(trees.meta, &name(1, "b"), &link);
            changes.put(trees.data, &fs_key::chunk(Ino(3), 0), &[1; 4096]);
            changes.put(trees.data, &fs_key::chunk(Ino(3), 1), &[1; 904]);
            changes.put(trees.xattr, &fs_key::xattr(Ino(3), b"user.x"), b"v");
            changes.put(trees.sys, fs_key::SYS_HEADER, &header.encode());
            changes.put(trees.sys, fs_key::SYS_NEXT_INO, &encode_number(100));
            changes.put(trees.sys, fs_key::SYS_INODE_COUNT, &encode_number(4));
            changes.put(trees.sys, &fs_key::orphan(Ino(5)), b"");
        });
        assert_eq!(sample.check(), [], "the sample is sound");
        sample
    }

    fn edit(&self, change: impl FnOnce(&Trees, &mut Changes)) {
        let mut changes = Changes::new();
        change(&self.trees, &mut changes);
        self.trees
            .schema
            .now()
            .commit(&changes, CommitOptions::default())
            .unwrap();
    }

    fn put(&self, key: &[u8], head: &InodeHead) {
        self.edit(|trees, changes| changes.put(trees.meta, key, &head.encode()));
    }

    fn delete(&self, key: &[u8]) {
        self.edit(|trees, changes| changes.delete(trees.meta, key));
    }

    fn check(&self) -> Vec<Issue> {
        check(&self.engine, &mut |_| {}).unwrap()
    }

    fn row(&self, key: &[u8]) -> Option<InodeHead> {
        let row = self.trees.schema.now().get(self.trees.meta, key).unwrap()?;
        match MetaRow::decode(&row).unwrap() {
            MetaRow::Inode(head, _) => Some(head),
            MetaRow::Link { .. } => None,
        }
    }

    /// Expects `planted` among the issues, and a sound file system after a few rounds of repair.
    fn expect(&self, planted: impl Fn(&Issue) -> bool) {
        let mut issues = self.check();
        assert!(issues.iter().any(planted), "not found: {issues:?}");
        for _ in 0..4 {
            repair(&self.engine, &issues).unwrap();
            issues = self.check();
            if issues.is_empty() {
                return;
            }
        }
        panic!("not repaired: {issues:?}");
    }
}

#[test]
fn no_header_is_found_and_left_alone() {
    let sample = Sample::new();
    sample.edit(|trees, changes| changes.put(trees.sys, fs_key::SYS_HEADER, b"junk"));
    let issues = sample.check();
    assert!(matches!(issues[..], [Issue::NoHeader { .. }]), "{issues:?}");
    assert_eq!(repair(&sample.engine, &issues).unwrap(), 0);
}

/// Puts the header of a file system with back rows, how far they go, and those of directory 2 and
/// file 3.
pub(super) fn keep_back_rows(sample: &Sample, progress: Place) {
    let header = FsHeader {
        has_back_rows: true,
        ..FsHeader::new(SEED, 0)
    };
    sample.edit(|trees, changes| {
        changes.put(trees.sys, fs_key::SYS_HEADER, &header.encode());
        changes.put(trees.sys, fs_key::SYS_BACK_PROGRESS, &progress.encode());
        for (ino, key) in [(2, name(1, "d")), (3, name(2, "f"))] {
            let place = Place::of_key(&key).unwrap();
            changes.put(trees.sys, &fs_key::back(Ino(ino)), &place.encode());
        }
    });
    assert_eq!(sample.check(), []);
}

#[test]
fn a_missing_back_row_is_put_unless_the_pass_is_still_to_come_there() {
    for (progress, is_issue) in [
        (Place::END, true),
        (Place::of_key(&name(2, "f")).unwrap(), false),
        (Place::FIRST, false),
    ] {
        let sample = Sample::new();
        keep_back_rows(&sample, progress);
        sample.edit(|trees, changes| changes.delete(trees.sys, &fs_key::back(Ino(3))));
        let place = Place::of_key(&name(2, "f")).unwrap();
        let place = Some((place.parent, place.hash));
        let missing = Issue::BackRow { ino: Ino(3), place };
        let expected = if is_issue { vec![missing] } else { vec![] };
        assert_eq!(sample.check(), expected);
        assert_eq!(
            repair(&sample.engine, &expected).unwrap(),
            u64::from(is_issue)
        );
        assert_eq!(sample.check(), []);
    }
}

#[test]
fn a_back_row_that_leads_elsewhere_is_put_right_and_one_of_nothing_goes() {
    // A file of another name, one under its number, an orphan, the root, none.
    for ino in [3, 4, 5, 1, 50] {
        for progress in [Place::END, Place::FIRST] {
            let sample = Sample::new();
            keep_back_rows(&sample, progress);
            let place = Place {
                parent: Ino(1),
                hash: 5,
            };
            sample.edit(|trees, changes| {
                changes.put(trees.sys, &fs_key::back(Ino(ino)), &place.encode());
            });
            sample.expect(|issue| matches!(issue, Issue::BackRow { ino: at, .. } if at.0 == ino));
        }
    }
}

#[test]
fn what_a_repair_names_anew_gets_a_back_row() {
    let sample = Sample::new();
    keep_back_rows(&sample, Place::END);
    sample.delete(&name(1, "d"));
    sample.expect(|issue| matches!(issue, Issue::MissingDirectory { .. }));
}

#[test]
fn back_rows_without_the_feature_go() {
    let sample = Sample::new();
    let place = Place::of_key(&name(2, "f")).unwrap();
    sample.edit(|trees, changes| {
        changes.put(trees.sys, &fs_key::back(Ino(3)), &place.encode());
    });
    sample.expect(|issue| matches!(issue, Issue::BadRow { tree: "sys", .. }));
}

#[test]
fn a_damaged_meta_row_goes() {
    let sample = Sample::new();
    sample.edit(|trees, changes| changes.put(trees.meta, &name(1, "x"), b"junk"));
    sample.edit(|trees, changes| changes.put(trees.meta, b"k", b"junk"));
    sample.expect(|issue| matches!(issue, Issue::BadMetaRow { key, .. } if key == b"k"));
}

#[test]
fn a_name_under_the_wrong_hash_is_moved() {
    let sample = Sample::new();
    let key = fs_key::dentry(SEED + 1, Ino(2), b"x");
    sample.edit(|trees, changes| {
        changes.put(trees.meta, &key, &head(6, FileKind::Fifo, 1).encode());
        changes.put(trees.sys, fs_key::SYS_INODE_COUNT, &encode_number(5));
    });
    sample.expect(|issue| matches!(issue, Issue::WrongHash { name, .. } if name == b"x"));
    assert!(sample.row(&name(2, "x")).is_some());
}

#[test]
fn damaged_rows_of_other_trees_go() {
    for tree in ["data", "xattr", "sys"] {
        let sample = Sample::new();
        sample.edit(|trees, changes| {
            let dictionary = match tree {
                "data" => trees.data,
                "xattr" => trees.xattr,
                _ => trees.sys,
            };
            changes.put(dictionary, b"?", b"junk");
        });
        sample.expect(|issue| matches!(issue, Issue::BadRow { tree: t, .. } if *t == tree));
    }
}

#[test]
fn a_lost_root_is_made_again() {
    let sample = Sample::new();
    sample.delete(&fs_key::own(Ino(1)));
    sample.expect(|issue| *issue == Issue::NoRoot);
    assert!(sample.row(&name(1, "d")).is_some());
}

#[test]
fn a_name_without_inode_goes() {
    let sample = Sample::new();
    sample.delete(&fs_key::own(Ino(4)));
    sample.expect(|issue| matches!(issue, Issue::DanglingName { ino: Ino(4), .. }));
}

#[test]
fn a_name_of_the_wrong_type_is_corrected() {
    let sample = Sample::new();
    sample.edit(|trees, changes| {
        changes.put(
            trees.meta,
            &name(1, "b"),
            &encode_link(Ino(4), FileKind::Fifo),
        );
    });
    sample.expect(|issue| matches!(issue, Issue::WrongType { ino: Ino(4), .. }));
}

#[test]
fn a_second_row_of_an_inode_goes() {
    let sample = Sample::new();
    sample.put(&name(1, "x"), &head(4, FileKind::Regular, 1));
    sample.expect(|issue| matches!(issue, Issue::TwoRows { ino: Ino(4), .. }));
    assert_eq!(
        sample.row(&fs_key::own(Ino(4))).map(|head| head.nlink),
        Some(2)
    );
}

#[test]
fn wrong_link_counts_are_corrected() {
    let sample = Sample::new();
    sample.put(&name(1, "d"), &head(2, FileKind::Directory, 9));
    sample.put(&fs_key::own(Ino(4)), &head(4, FileKind::Regular, 1));
    let is_wrong = |issue: &&Issue| matches!(issue, Issue::LinkCount { .. });
    assert_eq!(sample.check().iter().filter(is_wrong).count(), 2);
    sample.expect(|issue| {
        matches!(
            issue,
            Issue::LinkCount {
                ino: Ino(2),
                counted: 2,
                ..
            }
        )
    });
}

#[test]
fn an_inode_without_a_name_gets_one() {
    let sample = Sample::new();
    sample.put(&fs_key::own(Ino(6)), &head(6, FileKind::Regular, 1));
    sample.expect(|issue| *issue == Issue::Nameless { ino: Ino(6) });
    let lost = sample.row(&name(1, "lost+found")).expect("made");
    let key = fs_key::dentry(SEED, lost.ino, b"#6");
    assert!(
        sample
            .trees
            .schema
            .now()
            .get(sample.trees.meta, &key)
            .unwrap()
            .is_some()
    );
}

#[test]
fn an_orphan_that_is_not_listed_is_listed() {
    let sample = Sample::new();
    sample.edit(|trees, changes| changes.delete(trees.sys, &fs_key::orphan(Ino(5))));
    sample.expect(|issue| *issue == Issue::UnlistedOrphan { ino: Ino(5) });
}

#[test]
fn a_false_orphan_is_struck_off() {
    let sample = Sample::new();
    sample.edit(|trees, changes| {
        changes.put(trees.sys, &fs_key::orphan(Ino(3)), b"");
        changes.put(trees.sys, &fs_key::orphan(Ino(50)), b"");
    });
    sample.expect(|issue| *issue == Issue::FalseOrphan { ino: Ino(3) });
    assert!(sample.row(&name(2, "f")).is_some());
}

#[test]
fn a_missing_directory_is_made_again_with_its_entries() {
    let sample = Sample::new();
    sample.delete(&name(1, "d"));
    sample.expect(|issue| *issue == Issue::MissingDirectory { ino: Ino(2) });
    let lost = sample.row(&name(1, "lost+found")).expect("made");
    let key = fs_key::dentry(SEED, lost.ino, b"#2");
    assert_eq!(sample.row(&key).map(|head| head.ino), Some(Ino(2)));
    assert!(sample.row(&name(2, "f")).is_some());
}

#[test]
fn entries_of_a_file_get_a_directory_of_their_own() {
    let sample = Sample::new();
    sample.put(&name(1, "d"), &head(2, FileKind::Regular, 1));
    sample.expect(|issue| *issue == Issue::NotADirectory { ino: Ino(2) });
    let lost = sample.row(&name(1, "lost+found")).unwrap();
    let home = sample.row(&name(lost.ino.0, "#2")).unwrap();
    assert_eq!(home.kind, FileKind::Directory);
    assert_eq!(sample.row(&name(home.ino.0, "f")).unwrap().ino, Ino(3));
    assert_eq!(sample.row(&name(1, "d")).unwrap().kind, FileKind::Regular);
}

#[test]
fn the_root_under_a_name_goes() {
    let sample = Sample::new();
    sample.put(&name(2, "f"), &head(1, FileKind::Directory, 3));
    sample.delete(&fs_key::own(Ino(1)));
    sample.expect(|issue| matches!(issue, Issue::BadMetaRow { .. }));
    assert_eq!(sample.row(&fs_key::own(Ino(1))).unwrap().ino, Ino(1));
}

#[test]
fn a_file_named_lost_and_found_is_left_alone() {
    let sample = Sample::new();
    sample.put(&name(1, "lost+found"), &head(8, FileKind::Regular, 1));
    sample.delete(&name(1, "d"));
    sample.expect(|issue| *issue == Issue::MissingDirectory { ino: Ino(2) });
    assert_eq!(sample.row(&name(1, "lost+found")).unwrap().ino, Ino(8));
    let lost = sample.row(&name(1, "lost+found+")).unwrap();
    assert!(sample.row(&name(lost.ino.0, "#2")).is_some());
}

#[test]
fn a_ring_of_directories_is_opened() {
    let sample = Sample::new();
    sample.delete(&name(1, "d"));
    sample.put(&name(6, "x"), &head(2, FileKind::Directory, 3));
    sample.put(&name(2, "y"), &head(6, FileKind::Directory, 3));
    sample.expect(|issue| matches!(issue, Issue::Unreachable { .. }));
    assert!(sample.row(&name(2, "f")).is_some());
}

#[test]
fn contents_of_nothing_go() {
    let sample = Sample::new();
    sample.edit(|trees, changes| {
        changes.put(trees.data, &fs_key::chunk(Ino(60), 3), b"x");
        changes.put(trees.data, &fs_key::chunk(Ino(2), 0), b"x");
    });
    assert_eq!(sample.check().len(), 2);
    sample.expect(|issue| *issue == Issue::LooseData { ino: Ino(60) });
}

#[test]
fn contents_beyond_the_end_go() {
    let sample = Sample::new();
    sample.edit(|trees, changes| changes.put(trees.data, &fs_key::chunk(Ino(3), 2), b"x"));
    sample.expect(|issue| {
        *issue
            == Issue::DataBeyondEnd {
                ino: Ino(3),
                chunk: 2,
            }
    });
}

#[test]
fn a_last_chunk_that_is_too_long_is_cut() {
    let sample = Sample::new();
    sample.edit(|trees, changes| changes.put(trees.data, &fs_key::chunk(Ino(3), 1), &[1; 905]));
    sample.expect(|issue| {
        *issue
            == Issue::LongChunk {
                ino: Ino(3),
                chunk: 1,
                len_bytes: 904,
            }
    });
}

#[test]
fn holes_that_a_row_does_not_know_of_are_noted() {
    let sample = Sample::new();
    sample.edit(|trees, changes| changes.delete(trees.data, &fs_key::chunk(Ino(3), 0)));
    let is_planted = |issue: &Issue| matches!(issue, Issue::ChunkCount { counted: 1, .. });
    sample.expect(is_planted);
    let head = sample.row(&name(2, "f")).unwrap();
    assert!(head.has(row_flag::HOLES) && head.chunks == 1);
}

#[test]
fn attributes_of_nothing_go_and_others_are_found_again() {
    let sample = Sample::new();
    sample.edit(|trees, changes| {
        changes.put(trees.xattr, &fs_key::xattr(Ino(70), b"user.x"), b"v");
        changes.put(trees.xattr, &fs_key::xattr(Ino(4), b"user.x"), b"v");
    });
    assert_eq!(sample.check().len(), 2);
    sample.expect(|issue| {
        matches!(
            issue,
            Issue::LooseXattr {
                ino: Ino(4),
                key: Some(_)
            }
        )
    });
    let kept = sample.row(&fs_key::own(Ino(4))).expect("it is there");
    assert!(kept.has(row_flag::XATTRS));
}

#[test]
fn inline_contents_beyond_the_size_are_cut() {
    let sample = Sample::new();
    let inline = InodeHead {
        flags: row_flag::INLINE,
        size: 2,
        ..head(4, FileKind::Regular, 2)
    };
    let mut row = inline.encode().to_vec();
    row.extend_from_slice(b"long");
    sample.edit(|trees, changes| changes.put(trees.meta, &fs_key::own(Ino(4)), &row));
    sample.expect(|issue| matches!(issue, Issue::LongInline { ino: Ino(4), .. }));
}

#[test]
fn the_next_number_is_raised() {
    let sample = Sample::new();
    sample.edit(|trees, changes| changes.put(trees.sys, fs_key::SYS_NEXT_INO, &encode_number(5)));
    sample.expect(|issue| {
        *issue
            == Issue::NextIno {
                stored: 5,
                needed: 6,
            }
    });
}

#[test]
fn the_count_of_inodes_is_corrected() {
    let sample = Sample::new();
    sample.edit(|trees, changes| {
        changes.put(trees.sys, fs_key::SYS_INODE_COUNT, &encode_number(40));
    });
    sample.expect(|issue| {
        *issue
            == Issue::InodeCount {
                stored: 40,
                counted: 4,
            }
    });
}

fn external_row(sample: &Sample, ino: u64, settled: u64) {
    let row = ExternalRow {
        number: 50,
        settled,
    };
    let key = fs_key::external(Ino(ino));
    sample.edit(|trees, changes| changes.put(trees.sys, &key, &row.encode()));
}

/// Inode 4 of the sample is an external file of 9,000 bytes.
fn with_external(settled: u64) -> Sample {
    let sample = Sample::new();
    let large = InodeHead {
        size: 9000,
        flags: row_flag::EXTERNAL,
        ..head(4, FileKind::Regular, 2)
    };
    sample.put(&fs_key::own(Ino(4)), &large);
    external_row(&sample, 4, settled);
    sample
}

#[test]
fn a_header_that_does_not_know_of_external_files_is_written_anew() {
    with_external(9000).expect(|issue| matches!(issue, Issue::Unmarked));
}

#[test]
fn a_row_of_an_external_file_without_one_goes() {
    let sample = Sample::new();
    external_row(&sample, 3, 0);
    sample.expect(|issue| matches!(issue, Issue::LooseExternal { ino: Ino(3) }));
}

#[test]
fn no_more_is_settled_than_there_is() {
    let sample = with_external(9001);
    let size = 9000;
    sample.expect(|issue| *issue == Issue::SettledBeyondEnd { ino: Ino(4), size });
}

#[test]
fn an_external_file_without_its_row_is_found_and_left_alone() {
    let sample = with_external(9000);
    let key = fs_key::external(Ino(4));
    sample.edit(|trees, changes| changes.delete(trees.sys, &key));
    let issues = sample.check();
    assert_eq!(issues, [Issue::NoPlainFile { ino: Ino(4) }]);
    assert_eq!(repair(&sample.engine, &issues).unwrap(), 0);
}

/// Numbers that no inode can have made the check or the repair overflow.
#[test]
fn rows_of_impossible_inode_numbers_go() {
    for ino in [Ino(fs_key::INO_MAX + 1), Ino(u64::MAX)] {
        let sample = Sample::new();
        sample.edit(|trees, changes| {
            let link = encode_link(Ino(4), FileKind::Regular);
            changes.put(trees.meta, &fs_key::dentry(SEED, ino, b"x"), &link);
            changes.put(trees.meta, &fs_key::own(ino), &link);
            let row = head(ino.0, FileKind::Regular, 1).encode();
            changes.put(trees.meta, &name(1, "y"), &row);
            changes.put(trees.data, &fs_key::chunk(ino, u64::MAX), b"x");
            changes.put(trees.xattr, &fs_key::xattr(ino, b"user.x"), b"v");
            let (number, settled) = (ino.0, 0);
            let row = ExternalRow { number, settled }.encode();
            changes.put(trees.sys, &fs_key::external(Ino(3)), &row);
            changes.put(trees.sys, &fs_key::orphan(ino), b"");
            changes.put(trees.sys, &fs_key::external(ino), &[0; 16]);
        });
        sample.expect(|issue| matches!(issue, Issue::BadRow { tree: "data", .. }));
    }
}

#[test]
fn a_next_inode_number_that_is_too_large_is_corrected() {
    for stored in [fs_key::INO_MAX + 1, u64::MAX] {
        let sample = Sample::new();
        sample.edit(|trees, changes| {
            changes.put(trees.sys, fs_key::SYS_NEXT_INO, &encode_number(stored));
        });
        sample.expect(|issue| *issue == Issue::NextIno { stored, needed: 6 });
    }
}

/// The inode with the largest number left none for `lost+found`.
#[test]
fn a_repair_without_inode_numbers_skips_what_needs_one() {
    let sample = Sample::new();
    let last = fs_key::INO_MAX;
    sample.put(&name(2, "x"), &head(last, FileKind::Fifo, 7));
    sample.put(&fs_key::own(Ino(8)), &head(8, FileKind::Fifo, 1));
    for _ in 0..4 {
        repair(&sample.engine, &sample.check()).unwrap();
    }
    let left = sample.check();
    assert!(
        matches!(left[..], [Issue::Nameless { ino: Ino(8) }]),
        "{left:?}"
    );
}

const ALLOCATED: u8 = row_flag::HOLES | row_flag::ALLOCATED;

/// Puts an allocated extent of an inode.
fn extent(sample: &Sample, ino: u64, start: u64, end: u64, state: ExtentState) {
    let row = AllocatedRow { start, state };
    sample.edit(|trees, changes| {
        changes.put(trees.sys, &fs_key::allocated(Ino(ino), end), &row.encode());
    });
}

/// The sample, with file 3 allocated up to chunk 10.
fn with_allocated() -> Sample {
    let sample = Sample::new();
    let allocated = InodeHead {
        size: 5000,
        flags: row_flag::XATTRS | ALLOCATED,
        chunks: 10,
        ..head(3, FileKind::Regular, 1)
    };
    sample.put(&name(2, "f"), &allocated);
    extent(&sample, 3, 0, 2, ExtentState::Written);
    extent(&sample, 3, 2, 10, ExtentState::Unwritten);
    sample.edit(|trees, changes| {
        let header = FsHeader {
            has_allocated: true,
            ..FsHeader::new(SEED, 0)
        };
        changes.put(trees.sys, fs_key::SYS_HEADER, &header.encode());
        changes.put(trees.sys, fs_key::SYS_UNWRITTEN, &encode_number(8));
    });
    assert_eq!(sample.check(), [], "the extents are sound");
    sample
}

#[test]
fn extents_of_no_file_go() {
    let sample = with_allocated();
    extent(&sample, 70, 0, 5, ExtentState::Unwritten);
    // A file without the flag.
    extent(&sample, 4, 0, 5, ExtentState::Unwritten);
    let loose = |ino| Issue::LooseAllocated { ino: Ino(ino) };
    assert_eq!(sample.check(), [loose(4), loose(70)]);
    sample.expect(|issue| *issue == loose(70));
}

#[test]
fn extents_that_overlap_are_taken_from_their_file() {
    for (start, end) in [(1, 11), (30, 30), (40, 35)] {
        let sample = with_allocated();
        extent(&sample, 3, start, end, ExtentState::Written);
        sample.expect(|issue| matches!(issue, Issue::BadAllocated { ino: Ino(3), .. }));
        let head = sample.row(&name(2, "f")).expect("it is there");
        assert_eq!((head.flags & ALLOCATED, head.chunks), (row_flag::HOLES, 2));
    }
}

#[test]
fn a_row_that_counts_less_than_is_allocated_is_mended() {
    let sample = with_allocated();
    extent(&sample, 3, 20, 30, ExtentState::Written);
    sample.expect(|issue| matches!(issue, Issue::ChunkCount { counted: 22, .. }));
}

#[test]
fn a_wrong_number_of_unwritten_chunks_is_mended() {
    let sample = with_allocated();
    sample.edit(|trees, changes| {
        changes.put(trees.sys, fs_key::SYS_UNWRITTEN, &encode_number(9));
    });
    sample.expect(|issue| {
        *issue
            == Issue::UnwrittenCount {
                stored: 9,
                counted: 8,
            }
    });
}

#[test]
fn a_header_that_does_not_know_of_extents_is_written_anew() {
    let sample = with_allocated();
    sample.edit(|trees, changes| {
        let header = FsHeader::new(SEED, 0);
        changes.put(trees.sys, fs_key::SYS_HEADER, &header.encode());
    });
    sample.expect(|issue| matches!(issue, Issue::UnmarkedAllocated));
}

#[test]
fn damaged_rows_of_extents_go() {
    let sample = with_allocated();
    sample.edit(|trees, changes| {
        changes.put(trees.sys, &fs_key::allocated(Ino(3), 20), b"short");
    });
    sample.expect(|issue| matches!(issue, Issue::BadRow { tree: "sys", .. }));
}

#[test]
fn policies_of_what_is_no_directory_and_damaged_ones_go() {
    let planted = |dir: u64, row: &[u8]| {
        let sample = Sample::new();
        sample.edit(|trees, changes| {
            let header = FsHeader {
                has_policies: true,
                ..FsHeader::new(SEED, 0)
            };
            changes.put(trees.sys, fs_key::SYS_HEADER, &header.encode());
            changes.put(trees.sys, &fs_key::policy(Ino(dir)), row);
        });
        sample
    };
    let row = PolicyRow {
        every_s: 900,
        keep: Keep::default(),
        owner: 0,
        prefix: "auto".to_owned(),
        path: b"d".to_vec(),
    };
    let row = row.encode();
    assert_eq!(planted(2, &row).check(), [], "a directory has one");
    assert_eq!(planted(50, &row).check(), [], "it was removed a moment ago");
    for dir in [3, 100] {
        planted(dir, &row).expect(|issue| *issue == Issue::FalsePolicy { ino: Ino(dir) });
    }
    planted(2, b"short").expect(|issue| matches!(issue, Issue::BadRow { tree: "sys", .. }));
    let sample = Sample::new();
    sample.edit(|trees, changes| {
        changes.put(trees.sys, &fs_key::policy(Ino(2)), &row);
    });
    sample.expect(|issue| matches!(issue, Issue::BadRow { tree: "sys", .. }));
}
