use super::*;
use crate::fsck::tests::shared::with_shared;
use crate::fsck::tests::{Sample, keep_back_rows, name};
use crate::fsck::{check_around, repair};
use bytes::Bytes;
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, TreeId};
use stitch_format::fs_back::Place;
use stitch_format::fs_key;
use stitch_kv::{Engine, KvError, Scan, Snapshot, WrappedEngine};

/// An engine some of whose rows cannot be read.
struct Holed {
    inner: Arc<dyn Engine>,
    lost: Vec<LostKeys>,
}

fn unreadable() -> KvError {
    KvError::storage(ErrorKind::Corrupt, std::io::Error::other("a hole"))
}

impl Holed {
    /// Refuses a read of a range with a key that cannot be read.
    fn refuse(&self, tree: TreeId, range: KeyRange<'_>) -> Result<(), KvError> {
        let meets = |l: &LostKeys| {
            let begins_before = range.end.is_none_or(|end| *l.first < *end);
            l.tree == tree && begins_before && *range.start <= *l.last
        };
        match self.lost.iter().any(meets) {
            true => Err(unreadable()),
            false => Ok(()),
        }
    }
}

impl WrappedEngine for Holed {
    fn inner(&self) -> &dyn Engine {
        &*self.inner
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        let is_in = |l: &LostKeys| l.tree == tree && *l.first <= *key && *key <= *l.last;
        if self.lost.iter().any(is_in) {
            return Err(unreadable());
        }
        self.inner.get(tree, key, at)
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.refuse(tree, range)?;
        self.inner.scan(tree, range, direction, at)
    }

    fn scan_whole(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.refuse(tree, range)?;
        self.inner.scan_whole(tree, range, at)
    }
}

/// The sample of the other tests, of which these rows of a tree cannot be read.
fn holed(tree: &str, first: &[u8], last: &[u8]) -> (Arc<dyn Engine>, Vec<LostKeys>) {
    holed_in(&Sample::new(), tree, first, last)
}

fn holed_in(
    sample: &Sample,
    tree: &str,
    first: &[u8],
    last: &[u8],
) -> (Arc<dyn Engine>, Vec<LostKeys>) {
    let all = sample.engine.trees();
    let tree = all.iter().find(|t| t.name == format!("fs/{tree}"));
    let lost = vec![LostKeys {
        tree: tree.expect("there is such a tree").id,
        first: first.to_vec(),
        last: last.to_vec(),
    }];
    let holed = Holed {
        inner: Arc::clone(&sample.engine),
        lost: lost.clone(),
    };
    (Arc::new(holed), lost)
}

fn found(tree: &str, first: &[u8], last: &[u8]) -> Vec<Issue> {
    let (engine, lost) = holed(tree, first, last);
    let issues = check_around(&engine, &lost, &mut |_| {}).expect("all else can be read");
    let repaired = repair(&engine, &issues).expect("nothing else fails");
    assert_eq!(repaired, 0, "nothing is repaired of {issues:?}");
    let again = check_around(&engine, &lost, &mut |_| {}).expect("all else can be read");
    assert_eq!(again, issues, "nor made worse");
    assert!(issues.iter().all(|issue| !issue.is_repairable()));
    issues
}

fn owners_of(issue: &Issue) -> Vec<(u64, Option<&str>)> {
    let Issue::Lost { owners, .. } = issue else {
        panic!("not a lost range: {issue:?}");
    };
    let owners = owners.iter();
    owners
        .map(|o| (o.ino.0, o.path.as_ref().map(|path| path.to_str().unwrap())))
        .collect()
}

#[test]
fn lost_contents_are_those_of_a_file() {
    let (first, last) = (fs_key::chunk(Ino(3), 1), fs_key::chunk(Ino(9), 0));
    let issues = found("data", &first, &last);
    let [lost] = issues.as_slice() else {
        panic!("more than what is lost: {issues:?}");
    };
    assert_eq!(owners_of(lost), [(3, Some("/d/f"))]);
    let text = lost.to_string();
    assert!(text.contains("of a file cannot be read"), "{text}");
    assert!(!text.contains("/d/f"), "paths are apart: {text}");
}

#[test]
fn lost_entries_are_those_of_a_directory() {
    let (first, last) = (fs_key::own(Ino(2)), name(2, "a"));
    let low = first.as_ref().min(last.as_ref());
    let high = fs_key::after(Ino(2));
    let issues = found("meta", low, &high);
    assert_eq!(owners_of(&issues[0]), [(2, Some("/d"))]);
    assert!(matches!(issues[1], Issue::Unchecked { .. }), "{issues:?}");
    assert_eq!(issues.len(), 2, "{issues:?}");
}

#[test]
fn a_lost_row_makes_no_orphans() {
    let own = fs_key::own(Ino(4));
    let issues = found("meta", &own, &own);
    assert_eq!(owners_of(&issues[0]), [], "of no directory");
    assert!(
        matches!(issues[1], Issue::Unchecked { count: 3.. }),
        "{issues:?}"
    );
    assert_eq!(issues.len(), 2, "{issues:?}");
}

#[test]
fn lost_attributes_and_counters_are_told() {
    let key = fs_key::xattr(Ino(3), b"user.x");
    let issues = found("xattr", &key, &key);
    assert_eq!(owners_of(&issues[0]), [(3, Some("/d/f"))]);
    assert_eq!(issues.len(), 1, "{issues:?}");
    let issues = found("sys", fs_key::SYS_NEXT_INO, fs_key::SYS_INODE_COUNT);
    assert_eq!(owners_of(&issues[0]), []);
    assert!(
        matches!(issues[1], Issue::Unchecked { count: 2 }),
        "{issues:?}"
    );
    assert_eq!(issues.len(), 2, "{issues:?}");
    let issues = found("sys", fs_key::SYS_HEADER, fs_key::SYS_HEADER);
    assert!(matches!(issues[1], Issue::NoHeader { .. }), "{issues:?}");
}

#[test]
fn lost_back_rows_cost_nothing() {
    let sample = Sample::new();
    keep_back_rows(&sample, Place::END);
    let (first, last) = (fs_key::back(Ino(2)), fs_key::back(Ino(3)));
    let (engine, lost) = holed_in(&sample, "sys", &first, &last);
    let issues = check_around(&engine, &lost, &mut |_| {}).expect("all else can be read");
    let text = issues[0].to_string();
    assert!(
        text.contains("the first file handle in it puts them anew"),
        "{text}"
    );
    assert_eq!(issues[1..], [Issue::Unchecked { count: 2 }]);
    // With what is behind them it is more than that.
    let (engine, lost) = holed_in(&sample, "sys", &first, fs_key::SYS_NEXT_INO);
    let issues = check_around(&engine, &lost, &mut |_| {}).expect("all else can be read");
    let text = issues[0].to_string();
    assert!(text.contains("restore the store from a copy"), "{text}");
}

#[test]
fn a_block_that_nothing_is_left_in_is_told_as_such() {
    let sample = Sample::new();
    let tree = sample.engine.trees()[0].id;
    let lost = [LostKeys {
        tree,
        first: b"a".to_vec(),
        last: b"b".to_vec(),
    }];
    let issues = check_around(&sample.engine, &lost, &mut |_| {}).expect("all can be read");
    assert!(
        matches!(issues.as_slice(), [Issue::LostUnused { .. }]),
        "{issues:?}"
    );
}

#[test]
fn the_last_chunk_number_can_be_lost() {
    let (first, last) = (fs_key::chunk(Ino(3), 1), fs_key::chunk(Ino(3), u64::MAX));
    let issues = found("data", &first, &last);
    assert_eq!(owners_of(&issues[0]), [(3, Some("/d/f"))]);
}

#[test]
fn lost_contents_that_are_shared_are_those_of_all_files_that_use_them() {
    let lost_of = |first: &[u8], last: &[u8]| {
        let (engine, lost) = holed_in(&with_shared(), "data", first, last);
        let issues = check_around(&engine, &lost, &mut |_| {}).expect("all else can be read");
        let [lost] = issues.as_slice() else {
            panic!("more than what is lost: {issues:?}");
        };
        owners_of(lost)
            .iter()
            .map(|(ino, _)| *ino)
            .collect::<Vec<_>>()
    };
    let chunk = |number: u64, chunk: u64| fs_key::chunk(Ino(number), chunk);
    assert_eq!(lost_of(&chunk(3, 0), &chunk(3, 0)), [3, 6]);
    assert_eq!(lost_of(&chunk(3, 1), &chunk(3, 1)), [3], "6 has its own");
    assert_eq!(lost_of(&chunk(6, 0), &chunk(6, 1)), [6], "its own");
    assert_eq!(lost_of(&chunk(3, 1), &chunk(6, 1)), [3, 6]);
}
