//! Clones of the snapshot that do not lie in the directory any more.

use super::super::in_clone::Cloned;
use super::super::interrupted::{lines, open_in_rows};
use super::super::{ANY, ROOT, SUPER, Tester, names_in, open, owned_by, tester};
use crate::{Caller, CloneInfo, CloneSource, DirName, FileSystem, FsError};
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_kv::{CommitFault, Engine};

/// Contents of files by their paths, through clones.
type Texts = BTreeMap<String, Vec<u8>>;

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

/// Everything below a directory, also in clones: inode numbers and times of directories and files
/// with their contents.
fn texts(fs: &FileSystem, top: Ino) -> Texts {
    let mut out = Texts::new();
    for name in names_in(fs, top) {
        let attr = fs.lookup(DirName::new(top, &name)).expect("it is listed");
        let shown = String::from_utf8_lossy(&name).into_owned();
        let mut bytes = format!("{} {:?} ", attr.ino, attr.mtime).into_bytes();
        if attr.kind == crate::FileKind::Regular {
            fs.read(attr.ino, 0, 1000, &mut bytes).expect("it is read");
        }
        let below = match fs.clone_at(attr.ino) {
            Some(clone) => {
                let live = fs.open_clone(clone.number).expect("it opens");
                texts(live.fs(), clone.root)
            }
            None if attr.kind == crate::FileKind::Directory => texts(fs, attr.ino),
            None => Texts::new(),
        };
        fs.forget(attr.ino, 1);
        out.insert(shown.clone(), bytes);
        out.extend(
            below
                .into_iter()
                .map(|(path, text)| (format!("{shown}/{path}"), text)),
        );
    }
    out
}

fn put(fs: &FileSystem, dir: Ino, name: &str, bytes: &[u8]) {
    let ino = match fs.peek(at(dir, name)).expect("it is read") {
        Some(_) => fs.lookup(at(dir, name)).expect("it is there").ino,
        None => {
            fs.create(&SUPER, at(dir, name), &super::super::NEW)
                .expect("it is made")
                .ino
        }
    };
    let written = fs.write(ino, 0, bytes, crate::WriteOptions::default());
    written.expect("it is written");
    fs.forget(ino, 1);
}

fn put_in(fs: &FileSystem, clone: &CloneInfo, name: &str, bytes: &[u8]) {
    let live = fs.open_clone(clone.number).expect("it opens");
    put(live.fs(), clone.root, name, bytes);
}

/// Destroys the clone at a name, drops its trees, and gives their space back.
fn destroy(fs: &FileSystem, dir: Ino, name: &str) {
    let graft = fs.peek(at(dir, name)).expect("it is read");
    fs.remove_tree(&SUPER, at(dir, name), graft)
        .expect("it is removed");
    while fs.detached_dirs() > 0 {
        fs.empty_detached(100).expect("it goes");
    }
    fs.reclaim().expect("it is reclaimed");
}

fn find(fs: &FileSystem, dir: Ino, name: &str) -> CloneInfo {
    let graft = fs.peek(at(dir, name)).expect("it is read");
    fs.clone_at(graft.expect("it is there"))
        .expect("a clone lies there")
}

/// `d` with a file, with the clones `d/one` and `d/deep/two` of `source`, and a clone `inner` in
/// the first of them; and a snapshot `mon` of it.
fn with_clones(tester: &Tester) -> (Ino, Texts) {
    let fs = &tester.fs;
    let (dir, source) = (tester.dir(ROOT, "d"), tester.dir(ROOT, "source"));
    let deep = tester.dir(dir, "deep");
    tester.file(dir, "file", b"before");
    tester.file(source, "file", b"of the source");
    let one = tester.clone(source, (dir, "one"), 7);
    let two = tester.clone(source, (deep, "two"), 0);
    put_in(fs, &one, "file", b"of one");
    put_in(fs, &one, "new", b"new in one");
    put_in(fs, &two, "file", b"of two");
    let home = fs.open_clone(one.number).expect("it opens");
    let of = CloneSource {
        fs,
        dir: source,
        snapshot: None,
    };
    let made = home.fs().make_clone(&SUPER, &of, at(one.root, "inner"));
    drop(home);
    put_in(fs, &made.expect("it is made"), "file", b"of inner");
    let before = texts(fs, dir);
    fs.snapshots().create(dir, "mon").expect("it is created");
    (dir, before)
}

/// Destroys all clones, one of them with its directory.
fn lose_clones(fs: &FileSystem, dir: Ino) {
    destroy(fs, dir, "one");
    let deep = fs.peek(at(dir, "deep")).expect("it is read");
    fs.remove_tree(&SUPER, at(dir, "deep"), deep)
        .expect("it is removed");
    while fs.detached_dirs() > 0 {
        fs.empty_detached(100).expect("it goes");
    }
    fs.reclaim().expect("it is reclaimed");
    assert_eq!(fs.clones(), []);
}

#[test]
fn destroyed_ones_come_back_with_those_in_them_as_often_as_asked() {
    let tester = tester();
    let (dir, before) = with_clones(&tester);
    let fs = &tester.fs;
    let old = fs.clones();
    for round in 0..3 {
        lose_clones(fs, dir);
        tester.overwrite(dir, "file", b"AFTER!");
        fs.roll_back("mon", dir, ANY).expect("it is rolled back");
        assert_eq!(texts(fs, dir), before, "round {round}");
        let made = fs.clones();
        assert_eq!(made.len(), 3, "round {round}");
        let one = find(fs, dir, "one");
        let then = old
            .iter()
            .find(|info| info.graft == one.graft)
            .expect("it was there");
        assert!(one.number > then.number, "it is another one");
        assert_eq!((one.owner, one.created), (7, then.created));
        assert_eq!((one.root, one.home), (then.root, 0));
        // They are no part of the snapshot.
        put_in(fs, &one, "file", b"later");
        assert_ne!(texts(fs, dir), before);
        fs.roll_back("mon", dir, ANY)
            .expect("nothing is to be done");
        assert_eq!(fs.clones(), made, "those that are there stay");
        assert_ne!(texts(fs, dir), before, "with what is in them");
    }
    tester.check();
}

#[test]
fn they_need_no_snapshot_any_more_and_go_with_their_trees() {
    let tester = tester();
    let (dir, before) = with_clones(&tester);
    lose_clones(&tester.fs, dir);
    tester
        .fs
        .roll_back("mon", dir, ANY)
        .expect("it is rolled back");
    tester.fs.snapshots().delete("mon").expect("it is deleted");
    let again = open(&tester.model);
    drop(tester);
    let found = again.fs.lookup(at(ROOT, "d")).expect("it is there").ino;
    assert_eq!((found, texts(&again.fs, found)), (dir, before));
    assert_eq!(trees(&again.fs), 3 * 4);
    lose_clones(&again.fs, dir);
    assert_eq!(trees(&again.fs), 0);
    again.check();
}

#[test]
fn one_that_was_moved_out_stays_there_and_the_directory_gets_another_one() {
    let tester = tester();
    let (dir, before) = with_clones(&tester);
    let fs = &tester.fs;
    let moved = find(fs, dir, "one");
    tester.rename((dir, "one"), (ROOT, "outside"));
    put_in(fs, &moved, "file", b"written outside");
    fs.roll_back("mon", dir, ANY).expect("it is rolled back");
    let made = find(fs, dir, "one");
    assert_ne!((made.number, made.graft), (moved.number, moved.graft));
    assert_eq!(find(fs, ROOT, "outside"), moved);
    let without_graft = |mut all: Texts| {
        all.remove("one").expect("it is listed");
        all
    };
    assert_eq!(without_graft(texts(fs, dir)), without_graft(before));
    let live = fs.open_clone(moved.number).expect("it opens");
    let kept = texts(live.fs(), moved.root);
    assert!(kept["file"].ends_with(b"written outside"), "{kept:?}");
    drop(live);
    // Another one is at its directory now: that is not destroyed.
    destroy(fs, dir, "one");
    tester.rename((ROOT, "outside"), (dir, "elsewhere"));
    fs.roll_back("mon", dir, ANY).expect("it is rolled back");
    assert_eq!(find(fs, dir, "one"), moved, "it has its name again");
    tester.check();
}

#[test]
fn a_user_gets_no_clone_of_another_one_back() {
    let tester = tester();
    let (dir, _) = with_clones(&tester);
    let fs = &tester.fs;
    // All but the clone is of user 0, also the directory that it lies at.
    let graft = fs.lookup(at(dir, "one")).expect("it is there").ino;
    let owner = crate::SetAttr {
        uid: Some(0),
        ..crate::SetAttr::default()
    };
    fs.set_attr(&SUPER, graft, &owner).expect("it is set");
    fs.forget(graft, 1);
    fs.snapshots().create(dir, "tue").expect("it is created");
    lose_clones(fs, dir);
    let changed = texts(fs, dir);
    let refused = fs.roll_back("tue", dir, owned_by(0));
    assert!(matches!(refused, Err(FsError::Perm)), "{refused:?}");
    assert_eq!((texts(fs, dir), fs.clones()), (changed, Vec::new()));
    fs.roll_back("tue", dir, owned_by(7))
        .expect_err("files are of others");
    fs.roll_back("tue", dir, ANY).expect("root may");
    assert_eq!(find(fs, dir, "one").owner, 7);
    tester.check();
}

#[test]
fn a_user_gets_the_own_clone_back() {
    let tester = tester();
    let fs = &tester.fs;
    let (dir, source) = (tester.dir(ROOT, "d"), tester.dir(ROOT, "source"));
    tester.file(source, "file", b"of the source");
    tester.clone(source, (dir, "one"), 0);
    let before = texts(fs, dir);
    fs.snapshots().create(dir, "mon").expect("it is created");
    destroy(fs, dir, "one");
    fs.roll_back("mon", dir, owned_by(0))
        .expect("all is of the user");
    assert_eq!(texts(fs, dir), before);
    tester.check();
}

/// Nothing is done if one of them cannot be made.
#[test]
fn it_is_refused_where_clones_would_be_too_deep() {
    let tester = tester();
    let fs = &tester.fs;
    let (dir, mut source) = (tester.dir(ROOT, "d"), tester.dir(ROOT, "source"));
    tester.file(source, "file", b"of the source");
    let mut live = None;
    for depth in 0..stitch_kv::BRANCH_DEPTH_MAX {
        let of = CloneSource {
            fs: live
                .as_ref()
                .map_or(fs, |live: &Arc<crate::LiveView>| live.fs()),
            dir: source,
            snapshot: None,
        };
        let name = format!("clone {depth:02}");
        let made = fs.make_clone(&Caller::ROOT, &of, at(dir, &name));
        let made = made.expect("it is made");
        source = made.root;
        live = Some(fs.open_clone(made.number).expect("it opens"));
    }
    drop(live);
    fs.snapshots().create(dir, "mon").expect("it is created");
    let last = format!("clone {:02}", stitch_kv::BRANCH_DEPTH_MAX - 1);
    destroy(fs, dir, &last);
    put(fs, dir, "later", b"later");
    let (changed, clones) = (texts(fs, dir), fs.clones());
    let refused = fs.roll_back("mon", dir, ANY);
    assert!(matches!(refused, Err(FsError::TooDeep)), "{refused:?}");
    assert_eq!((texts(fs, dir), fs.clones()), (changed, clones));
    tester.check();
}

/// Rolls back in batches of one row, of which so many are committed. Returns what was before, and
/// whether all of it was done.
fn interrupted_after(batches: u32, fault: CommitFault) -> (Tester, Texts, bool) {
    let tester = tester();
    let (dir, before) = with_clones(&tester);
    lose_clones(&tester.fs, dir);
    tester.overwrite(dir, "file", b"AFTER!");
    let small = open_in_rows(&tester);
    let top = small.lookup(at(ROOT, "d")).expect("it is there").ino;
    let count = if fault == CommitFault::Full {
        u32::MAX
    } else {
        1
    };
    tester.model.fail_commits_after(batches, fault, count);
    let is_done = small.roll_back("mon", top, ANY).is_ok();
    tester.model.mend_commits();
    if is_done {
        assert_eq!(texts(&small, top), before, "{batches} batches");
    }
    drop(small);
    (tester, before, is_done)
}

/// Returns the number of trees of clones.
fn trees(fs: &FileSystem) -> usize {
    let all = fs.engine().trees();
    let of_clones = all.iter().filter(|tree| tree.name.starts_with("fs~"));
    of_clones.count()
}

/// None, or all of it: the names are put with the clones that lie there, or by the next open.
#[test]
fn they_are_there_after_any_batch_once_the_store_is_open() {
    for fault in [CommitFault::Full, CommitFault::Done] {
        let (mut finished, mut is_done) = (0, false);
        for batches in 0.. {
            if is_done {
                break;
            }
            let (tester, before, done) = interrupted_after(batches, fault);
            is_done = done;
            let again = open(&tester.model);
            drop(tester);
            let top = again.fs.lookup(at(ROOT, "d")).expect("it is there").ino;
            let found = texts(&again.fs, top);
            let is_back = found == before;
            let is_untouched = found.len() == 1 && found["file"].ends_with(b"AFTER!");
            assert!(is_back || is_untouched, "{batches} batches: {found:?}");
            let count = if is_back { 3 } else { 0 };
            assert_eq!(again.fs.clones().len(), count, "{batches} batches");
            assert_eq!(trees(&again.fs), 4 * count, "{batches} batches");
            finished += u32::from(is_back && !done);
            again.check();
        }
        assert!(finished > 3, "{finished} were finished");
    }
}

#[test]
fn they_are_there_after_it_was_repeated_in_the_same_life() {
    let mut interruptions = 0;
    for batches in 1..20 {
        let tester = tester();
        let (dir, before) = with_clones(&tester);
        lose_clones(&tester.fs, dir);
        let small = open_in_rows(&tester);
        let top = small.lookup(at(ROOT, "d")).expect("it is there").ino;
        let model = &tester.model;
        model.fail_commits_after(batches, CommitFault::Full, u32::MAX);
        let done = small.roll_back("mon", top, ANY);
        model.mend_commits();
        if done.is_err() {
            assert_eq!(trees(&small), 4 * small.clones().len(), "{batches} batches");
            interruptions += 1;
        }
        small.roll_back("mon", top, ANY).expect("there is room");
        let found = (texts(&small, top), small.clones().len());
        assert_eq!(found, (before, 3), "{batches} batches");
        // The next one that is made gets a number of its own.
        let of = CloneSource {
            fs: &small,
            dir: top,
            snapshot: None,
        };
        let made = small.make_clone(&SUPER, &of, at(ROOT, "of all"));
        let made = made.expect("it is made");
        assert_eq!(
            (made.root, small.clones().len()),
            (dir, 7),
            "{batches} batches"
        );
        drop(small);
        open(model).check();
    }
    assert!(interruptions > 3, "{interruptions} interruptions");
}

/// A repair finishes it, as an open does.
#[test]
fn a_repair_brings_them_back_after_any_batch() {
    let mut count = 0;
    for batches in 1..20 {
        let (tester, before, _) = interrupted_after(batches, CommitFault::Full);
        let model = Arc::clone(&tester.model);
        drop(tester);
        let engine: Arc<dyn Engine> = Arc::clone(&model) as _;
        let issues = crate::fsck::check(&engine, &mut |_| ()).expect("it can be read");
        let finished = crate::fsck::finish_rollbacks(&engine, &issues);
        if !finished.expect("there is room") {
            continue;
        }
        count += 1;
        assert_eq!(lines(&engine), [""; 0], "{batches} batches");
        let again = open(&model);
        let top = again.fs.lookup(at(ROOT, "d")).expect("it is there").ino;
        assert_eq!(texts(&again.fs, top), before, "{batches} batches");
    }
    assert!(count > 3, "{count} were finished");
}

/// `/clone`, a clone of all, with the clone `one` of its directory `sub` in it.
fn clone_with_lost_one() -> (Cloned, Texts) {
    let cloned = super::super::in_clone::cloned(true);
    let (fs, dir) = (Arc::clone(&cloned.tester.fs), cloned.dir);
    let sub = cloned.tester.dir(dir, "sub");
    cloned.tester.file(sub, "file", b"of sub");
    let of = CloneSource {
        fs: &fs,
        dir: sub,
        snapshot: None,
    };
    let made = fs.make_clone(&SUPER, &of, at(dir, "one"));
    put_in(&fs, &made.expect("it is made"), "file", b"of one");
    let before = texts(&fs, dir);
    cloned.snapshot("mon");
    destroy(&fs, dir, "one");
    cloned.tester.overwrite(sub, "file", b"AFTER!");
    (cloned, before)
}

#[test]
fn one_in_a_clone_comes_back_in_it() {
    let (cloned, before) = clone_with_lost_one();
    cloned.roll_back("mon").expect("it is rolled back");
    let fs = &cloned.tester.fs;
    assert_eq!(texts(fs, cloned.dir), before);
    let one = find(fs, cloned.dir, "one");
    assert_eq!(one.home, cloned.live.info().number);
    cloned.check();
}

/// A clone of all opens the clone, which finishes its rollback, which makes a clone.
#[test]
fn one_in_a_clone_comes_back_where_another_one_is_made_of_both() {
    let mut interruptions = 0;
    for batches in 2..12 {
        let (cloned, before) = clone_with_lost_one();
        let (number, dir) = (cloned.live.info().number, cloned.dir);
        let model = Arc::clone(&cloned.main.model);
        drop(cloned);
        let main = Tester {
            fs: Arc::new(open_in_rows(&open(&model))),
            model: Arc::clone(&model),
        };
        let live = main.fs.open_clone(number).expect("it opens");
        model.fail_commits_after(batches, CommitFault::Full, u32::MAX);
        let done = main.fs.roll_back_in(&live, "mon", dir, ANY);
        interruptions += u32::from(done.is_err());
        model.mend_commits();
        drop(live);
        let of = CloneSource {
            fs: &main.fs,
            dir: ROOT,
            snapshot: None,
        };
        let made = main.fs.make_clone(&SUPER, &of, at(ROOT, "of all"));
        let made = made.expect("all of it is whole");
        let live = main.fs.open_clone(number).expect("it opens");
        assert_eq!(texts(live.fs(), dir), before, "{batches} batches");
        let all = main.fs.open_clone(made.number).expect("it opens");
        let copied = texts(all.fs(), made.root);
        assert!(
            copied["clone/one/file"].ends_with(b"of one"),
            "{batches} batches"
        );
        drop((live, all));
        main.check();
    }
    assert!(interruptions > 1, "{interruptions} interruptions");
}
