//! Something else happens after a rollback was interrupted, in the same life.

use super::{ANY, LARGE, ROOT, SUPER, Seen, Tester, open, tester, with_much_to_restore};
use crate::snapshot::know_dir;
use crate::{DirName, FileSystem, FsError, FsOptions, FsResult, Notices, RenameMode, fsck};
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_kv::{CommitFault, Engine};

/// A directory of which a part is restored, and what it was.
fn interrupted() -> (Tester, Ino, BTreeMap<String, Seen>) {
    let tester = tester();
    let (dir, before) = with_much_to_restore(&tester);
    tester
        .model
        .fail_commits_after(1, CommitFault::Full, u32::MAX);
    let failed = tester.fs.roll_back("mon", dir, ANY);
    assert!(matches!(failed, Err(FsError::NoSpace)), "{failed:?}");
    tester.model.mend_commits();
    (tester, dir, before)
}

#[test]
fn its_snapshot_cannot_be_deleted_until_it_is_finished() {
    let (tester, dir, before) = interrupted();
    let kept = tester.fs.snapshots().delete("mon");
    assert!(matches!(kept, Err(FsError::Held(_))), "{kept:?}");
    let again = open(&tester.model);
    drop(tester);
    let found = again.fs.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
    assert_eq!((found, again.listing(found)), (dir, before));
    again
        .fs
        .snapshots()
        .delete("mon")
        .expect("it is not needed");
    again.check();
}

#[test]
fn a_rollback_of_another_directory_finishes_it() {
    let (tester, dir, before) = interrupted();
    let other = tester.dir(ROOT, "other");
    tester.file(other, "file", b"before");
    tester
        .fs
        .snapshots()
        .create(other, "of other")
        .expect_err("a part would be shown");
    tester.fs.roll_back("mon", dir, ANY).expect("there is room");
    tester
        .fs
        .snapshots()
        .create(other, "of other")
        .expect("all is whole");
    tester.overwrite(other, "file", b"AFTER!");
    tester.overwrite(dir, "huge", &vec![9; LARGE]);
    tester
        .model
        .fail_commits_after(1, CommitFault::Full, u32::MAX);
    tester
        .fs
        .roll_back("mon", dir, ANY)
        .expect_err("it is interrupted");
    tester.model.mend_commits();
    let done = tester
        .fs
        .roll_back("of other", other, ANY)
        .expect("both are done");
    let huge = before["/huge"].0.ino;
    assert!(done.inodes.contains(&huge), "of the first one, too");
    assert_eq!(tester.listing(dir), before);
    let again = open(&tester.model);
    drop(tester);
    let find = |name: &str| {
        again
            .fs
            .lookup(DirName::new(ROOT, name.as_bytes()))
            .unwrap()
            .ino
    };
    assert_eq!(again.listing(find("d")), before);
    assert_eq!(again.listing(find("other"))["/file"].1, b"before");
    again.check();
}

#[test]
fn it_is_finished_where_the_directory_was_renamed() {
    let (tester, dir, before) = interrupted();
    tester.rename((ROOT, "d"), (ROOT, "renamed"));
    let again = open(&tester.model);
    drop(tester);
    let found = again.fs.lookup(DirName::new(ROOT, b"renamed")).unwrap().ino;
    assert_eq!((found, again.listing(found)), (dir, before));
    again.check();
}

#[test]
fn it_goes_with_the_directory() {
    let (tester, dir, _) = interrupted();
    let at = DirName::new(ROOT, b"d");
    let removed = tester.fs.remove_tree(&SUPER, at, Some(dir));
    removed.expect("it is removed");
    tester.fs.forget(dir, 1);
    while tester.fs.detached_dirs() > 0 {
        tester.fs.empty_detached(100).expect("it goes");
    }
    tester.fs.reclaim().expect("it is reclaimed");
    let model = Arc::clone(&tester.model);
    drop(tester);
    let again = open(&model);
    assert_eq!(again.find(ROOT, "d"), None);
    again
        .fs
        .snapshots()
        .delete("mon")
        .expect("nothing needs it");
    again.check();
}

#[test]
fn inodes_that_lose_their_names_to_each_other_are_found_and_counted_once() {
    for batches in 0..8 {
        let tester = tester();
        let dir = tester.dir(ROOT, "d");
        tester.file(dir, "a", b"first");
        tester.file(dir, "b", &[2; 10_000]);
        tester.dir(dir, "c");
        let before = tester.listing(dir);
        let made = tester.fs.snapshots().create(dir, "mon");
        made.expect("it is made");
        exchange(&tester, (dir, "a"), (dir, "b"));
        exchange(&tester, (dir, "b"), (dir, "c"));
        let again = rolled_back_after(tester, batches);
        let found = again.fs.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
        if batches > 0 {
            assert_eq!(again.listing(found), before, "{batches} batches");
        }
        again.check();
    }
}

/// A row says where the chunks of a file are as long as its head says that it shares contents.
#[test]
fn a_file_that_shares_contents_since_is_restored_after_any_batch() {
    for batches in 1..12 {
        let tester = tester();
        let dir = tester.dir(ROOT, "d");
        tester.file(dir, "plain", b"");
        tester.file(dir, "source", &[2; LARGE]);
        tester.file(dir, "linked", b"");
        tester.link((dir, "linked"), (dir, "again"));
        let before = tester.listing(dir);
        let made = tester.fs.snapshots().create(dir, "mon");
        made.expect("it is made");
        tester.copy(dir, "source", "plain");
        tester.copy(dir, "source", "linked");
        tester.overwrite(dir, "source", &[4; LARGE]);
        let (small, done) = roll_back_in_rows(&tester, batches);
        done.expect_err("there is no room for all batches");
        let top = small.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
        for name in [&b"plain"[..], b"source", b"linked"] {
            let ino = small.lookup(DirName::new(top, name)).unwrap().ino;
            let read = small.read(ino, 0, 2 * LARGE, &mut Vec::new());
            read.unwrap_or_else(|error| panic!("{batches} batches: {error}"));
        }
        drop(small);
        let again = open(&tester.model);
        let found = again.fs.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
        assert_eq!(again.listing(found), before, "{batches} batches");
        again.check();
    }
}

/// Closes the file system, and opens one that rolls back in batches of one row.
pub(super) fn open_in_rows(tester: &Tester) -> FileSystem {
    tester.fs.close().expect("it closes");
    let options = FsOptions {
        rollback_batch_bytes: Some(1),
        ..FsOptions::default()
    };
    let engine = Arc::clone(&tester.model) as Arc<dyn Engine>;
    FileSystem::open(engine, options).expect("it opens")
}

/// Rolls `d` back in batches of one row, of which `batches` are committed. The last of them may
/// have room for all.
fn roll_back_in_rows(tester: &Tester, batches: u32) -> (FileSystem, FsResult<Notices>) {
    let small = open_in_rows(tester);
    let top = small.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
    tester
        .model
        .fail_commits_after(batches, CommitFault::Full, u32::MAX);
    let done = small.roll_back("mon", top, ANY);
    tester.model.mend_commits();
    (small, done)
}

/// The same. Then opens the file system again.
fn rolled_back_after(tester: Tester, batches: u32) -> Tester {
    drop(roll_back_in_rows(&tester, batches));
    open(&tester.model)
}

/// Expects what was after [`rolled_back_after`].
fn assert_restored_after(tester: Tester, batches: u32, before: &BTreeMap<String, Seen>) {
    let again = rolled_back_after(tester, batches);
    let found = again.fs.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
    assert_eq!(again.listing(found), *before, "{batches} batches");
    again.check();
}

/// As [`assert_restored_after`], for what gets other inode numbers.
fn assert_named_again_after(tester: Tester, batches: u32, before: &BTreeMap<String, Seen>) {
    let again = rolled_back_after(tester, batches);
    let issues = lines(&(Arc::clone(&again.model) as Arc<dyn Engine>));
    assert!(issues.is_empty(), "{batches} batches: {issues:?}");
    let found = again.fs.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
    // The first batches set numbers aside: then nothing was begun.
    let done = again.fs.roll_back("mon", found, ANY);
    done.expect("there is room");
    let shown = |all: &BTreeMap<String, Seen>| -> Vec<(String, Vec<u8>)> {
        let contents = all
            .iter()
            .map(|(path, seen)| (path.clone(), seen.1.clone()));
        contents.collect()
    };
    let listed = shown(&again.listing(found));
    assert!(listed == shown(before), "{batches} batches");
    again.check();
}

fn exchange(tester: &Tester, (from, one): (Ino, &str), (to, other): (Ino, &str)) {
    let one = DirName::new(from, one.as_bytes());
    let other = DirName::new(to, other.as_bytes());
    let exchanged = tester.fs.rename(&SUPER, one, other, RenameMode::Exchange);
    exchanged.expect("both are there");
}

/// Meanwhile each of two directories may be in the other one.
#[test]
fn directories_that_were_exchanged_with_what_is_in_them_are_restored_after_any_batch() {
    for batches in 1..20 {
        let tester = tester();
        let dir = tester.dir(ROOT, "d");
        let outer = tester.dir(dir, "outer");
        let inner = tester.dir(outer, "inner");
        tester.dir(inner, "innermost");
        tester.dir(dir, "other");
        // A name that a directory might have meanwhile.
        tester.file(dir, &format!(".rollback-{inner}-0"), b"of a user");
        let before = tester.listing(dir);
        let made = tester.fs.snapshots().create(dir, "mon");
        made.expect("it is made");
        exchange(&tester, (dir, "other"), (outer, "inner"));
        exchange(&tester, (inner, "innermost"), (dir, "outer"));
        assert_restored_after(tester, batches, &before);
    }
}

/// A directory that goes is emptied later, also after a crash: of nothing that is restored.
#[test]
fn what_was_moved_into_a_new_directory_is_restored_after_any_batch() {
    for batches in 1..20 {
        let tester = tester();
        let dir = tester.dir(ROOT, "d");
        let outer = tester.dir(dir, "outer");
        let inner = tester.dir(outer, "inner");
        tester.file(inner, "file", &[1; 10_000]);
        tester.file(outer, "small", b"small");
        let before = tester.listing(dir);
        let made = tester.fs.snapshots().create(dir, "mon");
        made.expect("it is made");
        let new = tester.dir(dir, "new");
        let deep = tester.dir(new, "deep");
        tester.file(deep, "more", &[2; 10_000]);
        tester.rename((outer, "small"), (new, "small"));
        tester.rename((inner, "file"), (deep, "file"));
        tester.rename((outer, "inner"), (deep, "inner"));
        assert_restored_after(tester, batches, &before);
    }
}

/// A directory that is in use elsewhere is restored under a new number. When the rollback is
/// finished later it gets another one, and what was put into the first one is taken out of that.
#[test]
fn a_directory_that_was_moved_out_is_restored_with_what_was_moved_back_after_any_batch() {
    for batches in 1..20 {
        let tester = tester();
        let dir = tester.dir(ROOT, "d");
        let inner = tester.dir(dir, "inner");
        tester.file(inner, "file", &[1; 10_000]);
        tester.file(inner, "small", b"small");
        let before = tester.listing(dir);
        let made = tester.fs.snapshots().create(dir, "mon");
        made.expect("it is made");
        tester.rename((dir, "inner"), (ROOT, "elsewhere"));
        let other = tester.dir(dir, "inner");
        tester.rename((inner, "file"), (other, "moved"));
        tester.rename((inner, "small"), (dir, "small"));
        assert_named_again_after(tester, batches, &before);
    }
}

/// The issues of the engine, as lines with the paths of what they are about.
pub(super) fn lines(engine: &Arc<dyn Engine>) -> Vec<String> {
    let issues = fsck::check(engine, &mut |_| ()).expect("it can be read");
    let line = |issue: &fsck::Issue| {
        let paths = issue.owners().iter().filter_map(|owner| owner.path.clone());
        format!("{issue} {:?}", paths.collect::<Vec<_>>())
    };
    issues.iter().map(line).collect()
}

#[test]
fn a_check_says_which_rollback_is_to_be_finished() {
    let (tester, dir, _) = interrupted();
    tester.rename((ROOT, "d"), (ROOT, "renamed"));
    let engine: Arc<dyn Engine> = Arc::clone(&tester.model) as _;
    drop(tester);
    let found = lines(&engine);
    let expected = format!(
        "the rollback of directory {dir} to the snapshot \"mon\" was interrupted; a mount finishes \
         it, and so does a repair [\"/renamed\"]"
    );
    assert!(found.contains(&expected), "{found:?}");
}

/// What the rest of a rollback puts right is not repaired in another way before.
#[test]
fn a_repair_finishes_it() {
    let mut count = 0;
    for batches in 1..20 {
        let tester = tester();
        let (dir, before) = with_much_to_restore(&tester);
        let engine: Arc<dyn Engine> = Arc::clone(&tester.model) as _;
        let small = open_in_rows(&tester);
        know_dir(&small, dir, b"d").expect("it is there");
        tester
            .model
            .fail_commits_after(batches, CommitFault::Full, u32::MAX);
        let is_done = small.roll_back("mon", dir, ANY).is_ok();
        tester.model.mend_commits();
        drop(small);
        let issues = fsck::check(&engine, &mut |_| ()).expect("it can be read");
        let finished = fsck::finish_rollbacks(&engine, &issues).expect("there is room");
        if is_done || !finished {
            continue;
        }
        count += 1;
        assert_eq!(lines(&engine), [""; 0], "{batches}");
        let again = open(&tester.model);
        let found = again.fs.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
        assert_eq!(again.listing(found), before, "{batches}");
        again.check();
    }
    assert!(count > 5, "{count} interruptions");
}

#[test]
fn a_repair_ends_one_that_cannot_be_finished() {
    let (tester, _, _) = interrupted();
    let model = Arc::clone(&tester.model);
    drop(tester);
    let engine: Arc<dyn Engine> = Arc::clone(&model) as _;
    let pins = engine.pins().expect("it has some");
    engine.drop_pin(&pins[0].name).expect("it is dropped");
    let opened = FileSystem::open(Arc::clone(&engine), FsOptions::default());
    assert!(matches!(opened, Err(FsError::Corrupt(_))), "{opened:?}");
    let mut issues = fsck::check(&engine, &mut |_| ()).expect("it can be read");
    let is_broken = |issue: &fsck::Issue| matches!(issue, fsck::Issue::BrokenRollback { .. });
    assert!(issues.iter().any(is_broken), "{issues:?}");
    for _ in 0..4 {
        fsck::repair(&engine, &issues).expect("it is repaired");
        issues = fsck::check(&engine, &mut |_| ()).expect("it can be read");
    }
    assert!(issues.is_empty(), "{issues:?}");
    let again = open(&model);
    assert!(again.find(ROOT, "d").is_some(), "a part is restored");
    again.check();
}
