//! The directory lies in a clone.

use super::interrupted::lines;
use super::{ANY, LARGE, ROOT, SUPER, Seen, Tester, change_all, grow, open, tester};
use crate::{BeginOptions, CloneSource, DirName, FileSystem, FsError, FsOptions, LiveView};
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_kv::{CommitFault, Engine, ModelEngine};

/// Mainline, a clone in it, and a directory in the clone.
pub(super) struct Cloned {
    pub(super) main: Tester,
    pub(super) live: Arc<LiveView>,
    /// The same files, through the clone.
    pub(super) tester: Tester,
    pub(super) dir: Ino,
}

impl Cloned {
    fn of(main: Tester, number: u64, dir: Ino) -> Self {
        let live = main.fs.open_clone(number).expect("it opens");
        let tester = Tester {
            fs: Arc::clone(live.fs()),
            model: Arc::clone(&main.model),
        };
        let cloned = Self {
            main,
            live,
            tester,
            dir,
        };
        cloned.know(dir);
        cloned
    }

    /// Looks a directory of the clone up, which is its root or lies in that.
    fn know(&self, dir: Ino) {
        let root = self.live.info().root;
        if dir != root {
            let found = self.tester.fs.lookup(DirName::new(root, b"d"));
            assert_eq!(found.expect("it is there").ino, dir);
        }
    }

    /// Another life, which has nothing in memory.
    fn again(self) -> Self {
        let (number, dir) = (self.live.info().number, self.dir);
        let model = Arc::clone(&self.main.model);
        drop(self);
        Self::of(open(&model), number, dir)
    }

    pub(super) fn roll_back(&self, name: &str) -> crate::FsResult<crate::Notices> {
        self.main.fs.roll_back_in(&self.live, name, self.dir, ANY)
    }

    pub(super) fn snapshot(&self, name: &str) {
        let made = self
            .main
            .fs
            .snapshots()
            .create_in(&self.live, self.dir, name);
        made.expect("it is created");
    }

    pub(super) fn check(self) {
        self.tester.fs.close().expect("it closes");
        drop((self.tester, self.live));
        self.main.check();
    }
}

/// Files below `all/d`, and a clone of `all`; the directory in it, or its root.
pub(super) fn cloned(of_root: bool) -> Cloned {
    let main = tester();
    let all = main.dir(ROOT, "all");
    let source = match of_root {
        true => grow(&main),
        false => {
            let dir = grow(&main);
            main.rename((ROOT, "d"), (all, "d"));
            dir
        }
    };
    let top = if of_root { source } else { all };
    let at = DirName::new(ROOT, b"clone");
    let of = CloneSource {
        fs: &main.fs,
        dir: top,
        snapshot: None,
    };
    let made = main.fs.make_clone(&SUPER, &of, at).expect("it is made");
    Cloned::of(main, made.number, source)
}

fn is_marked(model: &Arc<ModelEngine>) -> bool {
    let engine: Arc<dyn Engine> = Arc::clone(model) as _;
    let store = crate::schema::Store::open(&engine, crate::schema::SCHEMA).expect("it opens");
    store.header.rolls_back_clone
}

#[test]
fn everything_below_is_as_it_was_and_the_source_stays() {
    for of_root in [false, true] {
        let cloned = cloned(of_root);
        let before = cloned.tester.listing(cloned.dir);
        cloned.snapshot("mon");
        change_all(&cloned.tester, cloned.dir);
        let source = cloned.main.listing(ROOT);
        let done = cloned.roll_back("mon").expect("it is rolled back");
        assert_eq!(cloned.tester.listing(cloned.dir), before);
        assert_eq!(cloned.main.listing(ROOT), source);
        assert!(done.names.contains(&(cloned.dir, Box::from(&b"gone"[..]))));
        assert!(!is_marked(&cloned.main.model));
        cloned.main.fs.sync().expect("it syncs");
        let again = cloned.again();
        assert_eq!(again.tester.listing(again.dir), before);
        again.check();
    }
}

#[test]
fn the_mainline_and_other_snapshots_are_not_taken_for_it() {
    let cloned = cloned(true);
    let (main, dir) = (&cloned.main.fs, cloned.dir);
    cloned.snapshot("mon");
    main.snapshots()
        .create(dir, "source")
        .expect("it is created");
    let refused = [
        (main.roll_back("mon", dir, ANY), "in mainline"),
        (cloned.roll_back("source"), "of the source"),
    ];
    for (refused, why) in refused {
        assert!(matches!(refused, Err(FsError::Invalid(_))), "{why}");
    }
    let direct = cloned.tester.fs.roll_back("mon", dir, ANY);
    assert!(matches!(direct, Err(FsError::Unsupported)), "{direct:?}");
    assert!(!is_marked(&cloned.main.model));
    cloned.check();
}

/// Changes in the clone that need several batches to be undone.
fn with_much_to_restore() -> (Cloned, BTreeMap<String, Seen>) {
    let cloned = cloned(true);
    let (tester, dir) = (&cloned.tester, cloned.dir);
    tester.file(dir, "huge", &vec![7; LARGE]);
    let before = tester.listing(dir);
    cloned.snapshot("mon");
    change_all(tester, dir);
    tester.overwrite(dir, "huge", &vec![8; LARGE]);
    (cloned, before)
}

/// Opens the store and the clone once more. The first batch of each fails after it was done.
fn open_clone_failing(model: &Arc<ModelEngine>, number: u64) -> bool {
    model.fail_commits(CommitFault::Done, 2);
    let engine: Arc<dyn Engine> = Arc::clone(model) as _;
    let opened = FileSystem::open(engine, FsOptions::default());
    let is_open = opened.is_ok_and(|fs| fs.open_clone(number).is_ok());
    model.mend_commits();
    is_open
}

#[test]
fn one_of_several_batches_is_finished_at_open_however_often_it_is_interrupted() {
    let (cloned, before) = with_much_to_restore();
    let model = Arc::clone(&cloned.main.model);
    let (number, dir) = (cloned.live.info().number, cloned.dir);
    // The first commit is the mark in mainline.
    model.fail_commits_after(1, CommitFault::Done, 1);
    assert!(cloned.roll_back("mon").is_err());
    model.mend_commits();
    drop(cloned);
    assert!(is_marked(&model));
    let reads = FsOptions {
        read_only: true,
        ..FsOptions::default()
    };
    let read_only = FileSystem::open(Arc::clone(&model) as _, reads).expect("mainline is whole");
    let half = read_only.open_clone(number);
    assert!(matches!(half, Err(FsError::Invalid(_))), "{half:?}");
    drop(read_only);
    let mut interruptions = 1;
    while !open_clone_failing(&model, number) {
        interruptions += 1;
        assert!(interruptions < 20, "it comes to an end");
    }
    assert!(
        interruptions > 1,
        "{interruptions}: it takes several batches"
    );
    let again = Cloned::of(open(&model), number, dir);
    assert!(!is_marked(&model));
    assert_eq!(again.tester.listing(dir), before);
    again.check();
}

/// A rollback in a clone of which a part is done.
fn interrupted() -> (Cloned, BTreeMap<String, Seen>) {
    let (cloned, before) = with_much_to_restore();
    // The first is the mark in mainline.
    cloned
        .main
        .model
        .fail_commits_after(2, CommitFault::Full, u32::MAX);
    let failed = cloned.roll_back("mon");
    assert!(matches!(failed, Err(FsError::NoSpace)), "{failed:?}");
    cloned.main.model.mend_commits();
    assert!(is_marked(&cloned.main.model));
    assert!(cloned.tester.fs.header.lock().rolls_back);
    (cloned, before)
}

#[test]
fn a_snapshot_is_opened_in_which_nothing_is_half_restored() {
    let (cloned, before) = interrupted();
    let (main, dir) = (&cloned.main.fs, cloned.dir);
    // The clone, and snapshots of it, would show a part.
    let refused = main.snapshots().create_in(&cloned.live, dir, "half");
    assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
    let source = CloneSource {
        fs: cloned.live.fs(),
        dir,
        snapshot: None,
    };
    let at = DirName::new(ROOT, b"of half");
    let refused = main.make_clone(&SUPER, &source, at);
    assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
    let whole = CloneSource {
        fs: main,
        dir: ROOT,
        snapshot: None,
    };
    let inner = main.make_clone(&SUPER, &whole, at);
    assert!(matches!(inner, Err(FsError::Invalid(_))), "{inner:?}");
    // What it is finished from stays.
    let kept = main.snapshots().delete("mon");
    assert!(matches!(kept, Err(FsError::Held(_))), "{kept:?}");
    cloned.roll_back("mon").expect("there is room again");
    assert_eq!(cloned.tester.listing(dir), before);
    assert!(!is_marked(&cloned.main.model));
    main.make_clone(&SUPER, &source, at).expect("it is whole");
    main.snapshots().delete("mon").expect("it is not needed");
    cloned.check();
}

#[test]
fn a_snapshot_with_a_clone_in_it_that_is_half_restored_is_refused() {
    let (cloned, before) = interrupted();
    let (main, other) = (&cloned.main, cloned.main.dir(ROOT, "other"));
    let refused = main.fs.snapshots().create(ROOT, "all");
    assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
    assert_eq!(main.fs.snapshots().list().expect("they are read").len(), 1);
    // It shows nothing of the clone.
    let made = main.fs.snapshots().create(other, "other");
    made.expect("nothing in it is half restored");
    main.rename((ROOT, "clone"), (other, "clone"));
    let refused = main.fs.snapshots().create(other, "moved");
    assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
    cloned.roll_back("mon").expect("there is room again");
    let made = main.fs.snapshots().create(ROOT, "all");
    made.expect("all is whole");
    let view = main.fs.snapshots().open("all").expect("it opens");
    let past = view.open_view(cloned.live.info().number);
    let past = Tester {
        fs: past.expect("it is whole"),
        model: Arc::clone(&main.model),
    };
    let names = |seen: &BTreeMap<String, Seen>| seen.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&past.listing(cloned.dir)), names(&before));
    drop((view, past));
    cloned.check();
}

#[test]
fn a_check_says_which_rollback_in_which_clone_is_to_be_finished() {
    let (cloned, _) = interrupted();
    let (number, dir) = (cloned.live.info().number, cloned.dir);
    let at = cloned.main.dir(ROOT, "deep");
    cloned.main.rename((ROOT, "clone"), (at, "moved"));
    let engine: Arc<dyn Engine> = Arc::clone(&cloned.main.model) as _;
    let model = Arc::clone(&cloned.main.model);
    drop(cloned);
    let expected = format!(
        "clone {number}: the rollback of directory {dir} to the snapshot \"mon\" was interrupted; \
         a mount finishes it, and so does a repair [\"/deep/moved\"]"
    );
    let found = lines(&engine);
    assert!(found.contains(&expected), "{found:?}");
    let issues = crate::fsck::check(&engine, &mut |_| ()).expect("it can be read");
    let finished = crate::fsck::finish_rollbacks(&engine, &issues);
    assert!(finished.expect("there is room"));
    assert!(!is_marked(&model));
    assert_eq!(lines(&engine), [""; 0]);
}

#[test]
fn an_open_that_others_wait_for_finishes_it() {
    let (cloned, before) = interrupted();
    let (number, dir) = (cloned.live.info().number, cloned.dir);
    let model = Arc::clone(&cloned.main.model);
    drop((cloned.tester, cloned.live));
    // As the creator of a snapshot or of a clone does it.
    let changing = cloned.main.fs.standing.views.snapshot_change.lock();
    let live = cloned.main.fs.open_clone(number).expect("it opens");
    assert!(!live.fs().header.lock().rolls_back);
    drop((changing, live));
    drop(cloned.main);
    let again = Cloned::of(open(&model), number, dir);
    assert_eq!(again.tester.listing(dir), before);
    again.check();
}

#[test]
fn a_transaction_shows_clones_once_it_is_finished() {
    let (cloned, _) = interrupted();
    let info = cloned.live.info().clone();
    let begin = |name: &str| {
        let begun = cloned
            .main
            .fs
            .transactions()
            .begin(name, &BeginOptions::default());
        begun.expect("it begins")
    };
    let half = begin("half");
    assert_eq!(half.fs().shown_clone_at(info.graft), None);
    drop((cloned.tester, cloned.live));
    cloned.main.fs.open_clone(info.number).expect("it opens");
    let whole = begin("whole");
    let shown = whole.fs().shown_clone_at(info.graft);
    let view = cloned
        .main
        .fs
        .history()
        .open_pinned(shown.expect("it is whole").pin);
    view.expect("it opens");
    assert_eq!(half.fs().shown_clone_at(info.graft), None);
}

#[test]
fn a_clone_that_is_removed_takes_its_rollback_along() {
    let (cloned, _) = interrupted();
    let model = Arc::clone(&cloned.main.model);
    let at = DirName::new(ROOT, b"clone");
    let graft = cloned.live.info().graft;
    let removed = cloned.main.fs.remove_tree(&SUPER, at, Some(graft));
    removed.expect("it is removed");
    drop(cloned);
    let again = open(&model);
    assert!(!is_marked(&model), "no clone is half restored");
    again
        .fs
        .snapshots()
        .delete("mon")
        .expect("nothing needs it");
    again.check();
}
