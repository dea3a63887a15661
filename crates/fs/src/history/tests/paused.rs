//! No moment shows a part of a rollback.

use super::*;
use crate::{CloneSource, FsResult, LiveView, Notices, RollbackRights};
use stitch_kv::CommitFault;

/// More than the batches that are committed before one fails.
const LARGE: usize = 12 << 20;
const CLONE: DirName<'static> = DirName {
    parent: Ino::ROOT,
    name: b"clone",
};

fn clone(tester: &Tester) -> Arc<LiveView> {
    let source = CloneSource {
        fs: &tester.fs,
        dir: tester.dir,
        snapshot: None,
    };
    let made = tester.fs.make_clone(&SUPER, &source, CLONE);
    let number = made.expect("it is made").number;
    tester.fs.open_clone(number).expect("it opens")
}

/// A moment, and changes since that a rollback takes several batches for.
fn changed(tester: &Tester, fs: &FileSystem, file: Ino) -> PinId {
    let write = |byte| {
        let written = fs.write(file, 0, &vec![byte; LARGE], WriteOptions::default());
        written.expect("it is written");
    };
    write(1);
    let first = tester.after(5).created.expect("it is due").id;
    write(2);
    first
}

/// A clone, and a moment before changes in it.
fn changed_clone(tester: &Tester) -> (Arc<LiveView>, PinId) {
    let live = clone(tester);
    let file = DirName::new(tester.dir, b"f");
    let file = live.fs().lookup(file).expect("it is there").ino;
    let first = changed(tester, live.fs(), file);
    (live, first)
}

fn roll_back_in(tester: &Tester, live: &LiveView, moment: PinId) -> FsResult<Notices> {
    let fs = &tester.fs;
    fs.roll_back_in_to_moment(live, moment, tester.dir, RollbackRights::default())
}

fn interrupt(tester: &Tester, commits: u32, roll_back: impl Fn() -> FsResult<Notices>) {
    tester
        .model
        .fail_commits_after(commits, CommitFault::Full, u32::MAX);
    let failed = roll_back();
    assert!(matches!(failed, Err(FsError::NoSpace)), "{failed:?}");
    tester.model.mend_commits();
}

/// No moment is created, and the reason is told, until `mend` is done.
fn assert_paused(tester: &Tester, mend: impl FnOnce()) {
    for _ in 0..2 {
        assert_eq!(tester.after(10).created, None, "it would show a part");
        let told = tester.fs.history().last_error();
        assert!(told.is_some_and(|error| error.contains("repeat it")));
    }
    mend();
    assert!(tester.after(10).created.is_some());
    assert_eq!(tester.fs.history().last_error(), None);
}

#[test]
fn of_a_directory() {
    let tester = tester();
    let first = changed(&tester, &tester.fs, tester.file);
    let roll_back = || {
        tester
            .fs
            .roll_back_to_moment(first, tester.dir, RollbackRights::default())
    };
    interrupt(&tester, 1, roll_back);
    assert_paused(&tester, || drop(roll_back().expect("there is room")));
}

#[test]
fn in_a_clone() {
    let tester = tester();
    let (live, first) = changed_clone(&tester);
    let roll_back = || roll_back_in(&tester, &live, first);
    interrupt(&tester, 2, roll_back);
    // Moments go by age all the same.
    let count = tester.fs.history().moments().unwrap().len();
    assert_paused(&tester, || drop(roll_back().expect("there is room")));
    assert_eq!(tester.fs.history().moments().unwrap().len(), count + 1);
    for moment in tester.fs.history().moments().unwrap() {
        let view = tester.fs.history().open(moment.id).unwrap();
        view.open_view(live.info().number)
            .expect("all show the clone whole");
    }
}

#[test]
fn in_a_clone_that_is_removed() {
    let tester = tester();
    let (live, first) = changed_clone(&tester);
    let roll_back = || roll_back_in(&tester, &live, first);
    interrupt(&tester, 2, roll_back);
    let graft = Some(live.info().graft);
    assert_paused(&tester, || {
        let removed = tester.fs.remove_tree(&SUPER, CLONE, graft);
        removed.expect("it is removed");
    });
}
