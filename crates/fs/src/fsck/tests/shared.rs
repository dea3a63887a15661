//! Shared contents.

use super::*;
use stitch_format::fs_shared::SharedRow;

fn row(own: u64, contents: u64, end: u64) -> SharedRow {
    let extent = 0..end;
    SharedRow {
        own: Ino(own),
        contents: Some(Ino(contents)),
        extents: vec![extent],
    }
}

fn put_row(sample: &Sample, ino: u64, row: &SharedRow) {
    sample.edit(|trees, changes| {
        changes.put(trees.sys, &fs_key::shared(Ino(ino)), &row.encode());
    });
}

/// The sample, with file 3 and its copy 6 (`d/copy`), which has written chunk 1 since. The own
/// number of file 3 is 7.
pub(in crate::fsck) fn with_shared() -> Sample {
    let sample = Sample::new();
    let shared = InodeHead {
        size: 5000,
        flags: row_flag::SHARED,
        ..head(6, FileKind::Regular, 1)
    };
    let source = InodeHead {
        flags: row_flag::SHARED | row_flag::XATTRS,
        ..InodeHead {
            ino: Ino(3),
            ..shared
        }
    };
    sample.put(&name(2, "f"), &source);
    sample.put(&name(2, "copy"), &shared);
    put_row(&sample, 3, &row(7, 3, 2));
    put_row(&sample, 6, &row(6, 3, 1));
    sample.edit(|trees, changes| {
        let header = FsHeader {
            has_shared: true,
            ..FsHeader::new(SEED, 0)
        };
        changes.put(trees.sys, fs_key::SYS_HEADER, &header.encode());
        changes.put(trees.sys, &fs_key::contents(Ino(3)), &encode_number(2));
        for ino in [3, 6] {
            changes.put(trees.sys, &fs_key::contents_user(Ino(3), Ino(ino)), b"");
        }
        changes.put(trees.sys, fs_key::SYS_INODE_COUNT, &encode_number(5));
        changes.put(trees.data, &fs_key::chunk(Ino(6), 1), &[2; 904]);
    });
    assert_eq!(sample.check(), [], "the contents are sound");
    sample
}

fn delete_sys(sample: &Sample, key: &[u8]) {
    sample.edit(|trees, changes| changes.delete(trees.sys, key));
}

#[test]
fn users_that_are_not_listed_are() {
    let (number, ino) = (Ino(3), Ino(6));
    for key in [fs_key::contents_user(number, ino), fs_key::contents(number)] {
        let sample = with_shared();
        delete_sys(&sample, &key);
        sample.expect(|issue| *issue == Issue::MissingUser { number, ino });
        let view = sample.trees.schema.now();
        assert!(view.get(sample.trees.sys, &key).unwrap().is_some());
    }
}

#[test]
fn listed_users_that_are_none_go() {
    let sample = with_shared();
    for (number, ino) in [(3, 70), (3, 4), (71, 6)] {
        let (number, ino) = (Ino(number), Ino(ino));
        sample.edit(|trees, changes| {
            changes.put(trees.sys, &fs_key::contents_user(number, ino), b"");
        });
        sample.expect(|issue| *issue == Issue::FalseUser { number, ino });
    }
}

#[test]
fn rows_of_files_that_share_nothing_go() {
    let sample = with_shared();
    for ino in [4, 2, 70] {
        put_row(&sample, ino, &row(90, 3, 1));
        sample.expect(|issue| *issue == Issue::LooseSharedRow { ino: Ino(ino) });
    }
}

#[test]
fn a_file_without_a_row_gets_one() {
    for ino in [3, 6] {
        let sample = with_shared();
        delete_sys(&sample, &fs_key::shared(Ino(ino)));
        let is_it = |issue: &Issue| match issue {
            Issue::NoSharedRow { ino: found, .. } => *found == Ino(ino),
            _ => false,
        };
        sample.expect(is_it);
        let found = found_row(&sample, Ino(ino));
        let extent = 0..2;
        assert_eq!(
            (found.contents, found.extents),
            (Some(Ino(3)), vec![extent])
        );
        assert_eq!(
            found.own == Ino(6),
            ino == 6,
            "number 3 is that of the contents"
        );
    }
}

/// Returns the row that says which contents a file shares.
fn found_row(sample: &Sample, ino: Ino) -> SharedRow {
    let key = fs_key::shared(ino);
    let found = sample.trees.schema.now().get(sample.trees.sys, &key);
    SharedRow::decode(&found.unwrap().expect("it was put")).unwrap()
}

/// The row got the number of the contents for own chunks as well, which no reader takes.
#[test]
fn a_file_whose_number_the_contents_have_gets_another_one_for_its_own_chunks() {
    let (number, ino) = (Ino(3), Ino(3));
    let sample = with_shared();
    delete_sys(&sample, &fs_key::shared(ino));
    delete_sys(&sample, &fs_key::contents(number));
    sample.expect(|issue| matches!(issue, Issue::NoSharedRow { ino: Ino(3), .. }));
    let found = found_row(&sample, ino);
    assert_eq!((found.contents, found.own != ino), (Some(number), true));
}

/// The damaged row of a user hid the contents that the file has.
#[test]
fn a_file_uses_contents_that_have_a_row_before_others() {
    let (number, ino) = (Ino(6), Ino(6));
    let sample = with_shared();
    delete_sys(&sample, &fs_key::shared(ino));
    sample.edit(|trees, changes| {
        changes.put(trees.sys, &fs_key::contents_user(number, ino), b"");
    });
    sample.expect(|issue| *issue == Issue::FalseUser { number, ino });
    let found = found_row(&sample, ino);
    assert_eq!((found.own, found.contents), (ino, Some(Ino(3))));
}

/// The row got extents of contents without a number, which no reader takes.
#[test]
fn a_file_uses_no_contents_without_a_number() {
    let (number, ino) = (Ino(0), Ino(6));
    let sample = with_shared();
    delete_sys(&sample, &fs_key::shared(ino));
    delete_sys(&sample, &fs_key::contents_user(Ino(3), ino));
    sample.edit(|trees, changes| {
        changes.put(trees.sys, &fs_key::contents_user(number, ino), b"");
    });
    sample.expect(|issue| *issue == Issue::FalseUser { number, ino });
    let found = found_row(&sample, ino);
    assert_eq!((found.own, found.contents), (ino, None));
}

#[test]
fn contents_that_are_gone_are_holes() {
    let sample = with_shared();
    sample.edit(|trees, changes| changes.delete(trees.data, &fs_key::chunk(Ino(3), 0)));
    let counted = |wanted| {
        move |issue: &Issue| match issue {
            Issue::ChunkCount { ino, counted, .. } => (*ino, *counted) == (Ino(wanted), 1),
            _ => false,
        }
    };
    let issues = sample.check();
    assert!(
        issues.iter().any(counted(3)) && issues.iter().any(counted(6)),
        "{issues:?}"
    );
    sample.expect(counted(6));
    let head = sample.row(&name(2, "copy")).expect("it is there");
    assert_eq!(head.flags & row_flag::HOLES, row_flag::HOLES);
}

#[test]
fn contents_that_no_file_uses_go() {
    let sample = with_shared();
    // Not those that are listed: a mount deletes them.
    sample.edit(|trees, changes| {
        changes.put(trees.data, &fs_key::chunk(Ino(8), 0), b"left");
        changes.put(trees.sys, &fs_key::contents(Ino(8)), &encode_number(1));
    });
    assert_eq!(sample.check(), []);
    delete_sys(&sample, &fs_key::contents(Ino(8)));
    sample.expect(|issue| *issue == Issue::LooseData { ino: Ino(8) });
}

#[test]
fn what_is_shared_beyond_the_end_is_cut() {
    let sample = with_shared();
    put_row(&sample, 6, &row(6, 3, 3));
    let (ino, size) = (Ino(6), 5000);
    sample.expect(|issue| *issue == Issue::SharedBeyondEnd { ino, size });
}

#[test]
fn a_header_without_the_feature_gets_it() {
    let sample = with_shared();
    let bytes = sample.trees.schema.now();
    let bytes = bytes.get(sample.trees.sys, fs_key::SYS_HEADER).unwrap();
    let mut header = FsHeader::decode(&bytes.unwrap()).unwrap();
    header.has_shared = false;
    sample.edit(|trees, changes| changes.put(trees.sys, fs_key::SYS_HEADER, &header.encode()));
    sample.expect(|issue| *issue == Issue::UnmarkedShared);
}

#[test]
fn own_chunks_beyond_the_end_are_those_of_their_file() {
    let sample = with_shared();
    sample.edit(|trees, changes| {
        changes.put(trees.data, &fs_key::chunk(Ino(7), 5), b"beyond");
    });
    let (ino, chunk) = (Ino(7), 5);
    sample.expect(|issue| *issue == Issue::DataBeyondEnd { ino, chunk });
}
