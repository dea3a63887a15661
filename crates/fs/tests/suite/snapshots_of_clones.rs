//! Snapshots of directories in clones, and of directories that have clones in them.

use crate::common::*;
use std::time::Duration;
use stitch_base::Ino;
use stitch_fs::{
    CloneInfo, CloneSource, FileSystem, FsError, Keep, PolicyRule, RollbackRights, SnapshotPart,
    SnapshotView, WriteOptions,
};

/// `/src` with a file `f` that says `v1`, and `/d` with a clone of it, `copy`, in which there is
/// a clone of the same, `inner`.
struct Grown {
    setup: Setup,
    dir: Ino,
    src: Ino,
    copy: CloneInfo,
    inner: CloneInfo,
}

fn grown() -> Grown {
    let setup = setup();
    let (src, dir) = (setup.dir(ROOT, "src").ino, setup.dir(ROOT, "d").ino);
    setup.write(setup.file(src, "f").ino, 0, b"v1");
    let source = live(&setup.fs, src);
    let copy = setup.fs.make_clone(&SUPER, &source, at(dir, "copy"));
    let copy = copy.expect("makes a clone");
    let inner = {
        let home = setup.fs.open_clone(copy.number).expect("opens");
        let made = home
            .fs()
            .make_clone(&SUPER, &source, at(copy.root, "inner"));
        made.expect("makes a clone in it")
    };
    Grown {
        setup,
        dir,
        src,
        copy,
        inner,
    }
}

fn live(fs: &FileSystem, dir: Ino) -> CloneSource<'_> {
    CloneSource {
        fs,
        dir,
        snapshot: None,
    }
}

fn text(fs: &FileSystem, dir: Ino) -> Vec<u8> {
    let ino = fs.lookup(at(dir, "f")).expect("it is there").ino;
    let text = contents_of(fs, ino);
    fs.forget(ino, 1);
    text
}

fn put(fs: &FileSystem, dir: Ino, text: &[u8]) {
    let ino = fs.lookup(at(dir, "f")).expect("it is there").ino;
    let written = fs.write(ino, 0, text, WriteOptions::default());
    written.expect("writes");
    fs.forget(ino, 1);
}

impl Grown {
    fn put_in(&self, clone: &CloneInfo, bytes: &[u8]) {
        let view = self.setup.fs.open_clone(clone.number).expect("opens");
        put(view.fs(), clone.root, bytes);
    }

    fn destroy_copy(&self) {
        let fs = &self.setup.fs;
        let graft = Some(self.copy.graft);
        fs.remove_tree(&SUPER, at(self.dir, "copy"), graft)
            .expect("removes it");
        fs.reclaim().expect("drops its trees");
    }

    fn reopened(self) -> Self {
        let setup = self.setup.reopened();
        setup.fs.lookup(at(ROOT, "d")).expect("it is there");
        setup.fs.lookup(at(ROOT, "src")).expect("it is there");
        Self { setup, ..self }
    }
}

/// The clone at a name in a directory of a part.
fn enter(view: &SnapshotView, part: &SnapshotPart, dir: Ino, name: &str) -> SnapshotPart {
    let graft = part.fs().lookup(at(dir, name)).expect("it is there").ino;
    let clone = view.clone_in(part, graft).expect("there is room");
    part.fs().forget(graft, 1);
    clone.expect("a clone lies there")
}

/// The clones `copy` and `inner` of a snapshot of `/d`.
fn clones_in(view: &SnapshotView) -> [SnapshotPart; 2] {
    let (part, dir) = view.part(view.info().root).expect("it is known");
    let copy = enter(view, &part, dir, "copy");
    let inner = enter(view, &copy, copy.root(), "inner");
    [copy, inner]
}

#[test]
fn a_directory_that_a_clone_lies_at_has_no_snapshot() {
    let grown = grown();
    let setup = &grown.setup;
    let graft = setup
        .fs
        .lookup(at(grown.dir, "copy"))
        .expect("is there")
        .ino;
    let pins = setup.fs.engine().pins().expect("they are listed").len();
    let made = setup.fs.snapshots().create(graft, "at");
    assert!(matches!(made, Err(FsError::Stale(_))), "{made:?}");
    let left = setup.fs.engine().pins().expect("they are listed");
    assert_eq!(left.len(), pins, "no pin was left");
    assert!(
        setup
            .fs
            .snapshots()
            .list()
            .expect("they are listed")
            .is_empty()
    );
}

#[test]
fn a_snapshot_shows_the_clones_in_its_directory_as_they_were() {
    let grown = grown();
    grown.put_in(&grown.copy, b"v2");
    grown.put_in(&grown.inner, b"v3");
    let fs = &grown.setup.fs;
    fs.snapshots().create(grown.dir, "mon").expect("creates it");
    grown.put_in(&grown.copy, b"later");
    grown.put_in(&grown.inner, b"later");
    let view = fs.snapshots().open("mon").expect("opens");
    let [copy, inner] = clones_in(&view);
    assert_eq!(text(copy.fs(), copy.root()), b"v2");
    assert_eq!(text(inner.fs(), inner.root()), b"v3");
    // All three are of one directory, and their numbers are those of no other.
    let numbers = [&copy, &inner].map(|part| part.number(grown.src));
    assert_ne!(numbers[0], numbers[1]);
    assert!(!numbers.contains(&grown.src));
    let refused = copy.fs().unlink(&SUPER, at(copy.root(), "f"));
    assert!(matches!(refused, Err(FsError::ReadOnly)));
}

#[test]
fn it_shows_them_after_they_are_removed_and_in_the_next_life() {
    let grown = grown();
    grown.put_in(&grown.copy, b"v2");
    let fs = &grown.setup.fs;
    fs.snapshots().create(grown.dir, "mon").expect("creates it");
    let before = clones_in(&fs.snapshots().open("mon").expect("opens"));
    let before = before.map(|part| part.number(part.root()));
    grown.destroy_copy();
    assert!(fs.clones().is_empty());
    let grown = grown.reopened();
    let fs = &grown.setup.fs;
    // A number that a front end has from the life before.
    let view = fs.snapshots().open("mon").expect("opens");
    let (copy, root) = view.part(before[0]).expect("it is known");
    assert_eq!((copy.root(), root), (grown.copy.root, grown.copy.root));
    assert_eq!(text(copy.fs(), root), b"v2");
    let after = clones_in(&view).map(|part| part.number(part.root()));
    assert_eq!(after, before);
    drop(view);
    fs.snapshots().delete("mon").expect("deletes it");
    grown.setup.check();
}

#[test]
fn a_snapshot_of_a_directory_in_a_clone_has_the_path_through_it() {
    let grown = grown();
    let fs = &grown.setup.fs;
    let inner = fs.open_clone(grown.inner.number).expect("opens");
    let made = fs.snapshots().create_in(&inner, grown.src, "mon");
    let made = made.expect("creates it");
    assert_eq!(made.path, b"d/copy/inner");
    assert_eq!((made.view, made.root), (grown.inner.number, grown.src));
    put(inner.fs(), grown.src, b"later");
    drop(inner);
    grown.destroy_copy();
    let grown = grown.reopened();
    let view = grown.setup.fs.snapshots().open("mon").expect("opens");
    assert_eq!(view.info(), &made);
    assert_eq!(text(view.fs(), grown.src), b"v1");
    let (part, dir) = view.part(made.root).expect("it is known");
    assert_eq!((part.root(), dir, part.number(dir)), (dir, made.root, dir));
    assert!(!view.is_private());
}

#[test]
fn a_closed_directory_above_the_clone_makes_its_snapshot_private() {
    let grown = grown();
    let fs = &grown.setup.fs;
    let mode = stitch_fs::SetAttr {
        perm: Some(0o700),
        ..stitch_fs::SetAttr::default()
    };
    fs.set_attr(&SUPER, grown.dir, &mode).expect("sets it");
    let copy = fs.open_clone(grown.copy.number).expect("opens");
    fs.snapshots()
        .create_in(&copy, grown.copy.root, "mon")
        .expect("creates it");
    assert!(fs.snapshots().open("mon").expect("opens").is_private());
}

/// The library reaches what the directory of a clone holds in its own file system; a mount does
/// not.
#[test]
fn a_directory_of_a_clone_with_another_one_at_it_has_no_snapshot_for_a_moment() {
    let grown = grown();
    let fs = &grown.setup.fs;
    let pin = |name: &str| {
        fs.snapshots()
            .create(grown.src, name)
            .expect("creates it")
            .id
    };
    let before = pin("before");
    let copy = fs.open_clone(grown.copy.number).expect("opens");
    let look_up = copy.fs().look_up_number(grown.inner.graft);
    look_up.expect("is there");
    let refused = fs.snapshots().create_in(&copy, grown.inner.graft, "mon");
    assert!(matches!(refused, Err(FsError::Stale(_))), "{refused:?}");
    copy.fs().forget(grown.inner.graft, 1);
    assert_eq!(pin("after").0, before.0 + 1, "no pin came and went");
}

#[test]
fn what_is_made_of_such_snapshots_is_refused_or_right() {
    let grown = grown();
    let fs = &grown.setup.fs;
    grown.put_in(&grown.copy, b"v2");
    fs.snapshots().create(grown.dir, "mon").expect("creates it");
    grown.put_in(&grown.copy, b"later");
    let clone = |name: &str| {
        let view = fs.snapshots().open("mon").expect("opens");
        let [copy, _] = clones_in(&view);
        let source = CloneSource {
            fs: copy.fs(),
            dir: copy.root(),
            snapshot: Some("mon"),
        };
        fs.make_clone(&SUPER, &source, at(ROOT, name))
    };
    let made = clone("back").expect("clones what the snapshot shows");
    let back = fs.open_clone(made.number).expect("opens");
    assert_eq!(text(back.fs(), made.root), b"v2");
    fs.roll_back("mon", grown.dir, RollbackRights::default())
        .expect("the clone is there");
    let copy = fs.open_clone(grown.copy.number).expect("opens");
    assert_eq!(
        text(copy.fs(), grown.copy.root),
        b"later",
        "it stays as it is"
    );
    drop(copy);
    grown.destroy_copy();
    fs.roll_back("mon", grown.dir, RollbackRights::default())
        .expect("the snapshot has the clone");
    let back = fs.clone_at(grown.copy.graft).expect("it is there again");
    let back_fs = fs.open_clone(back.number).expect("opens");
    assert_eq!(text(back_fs.fs(), back.root), b"v2");
    drop(back_fs);
    let again = clone("again").expect("the snapshot has it");
    let again_fs = fs.open_clone(again.number).expect("opens");
    assert_eq!(text(again_fs.fs(), again.root), b"v2");
    drop(again_fs);
    grown.setup.check();
}

/// Before its trees are dropped and after, after a remount, and when the snapshot is gone.
#[test]
fn a_snapshot_of_a_removed_clone_is_cloned() {
    let grown = grown();
    let (ino, number) = (grown.copy.root, grown.copy.number);
    grown.put_in(&grown.copy, b"v2");
    let copy = grown.setup.fs.open_clone(number).expect("opens");
    let created = grown.setup.fs.snapshots().create_in(&copy, ino, "mon");
    created.expect("creates it");
    drop(copy);
    let clone = |grown: &Grown, name: &str| {
        let fs = &grown.setup.fs;
        let view = fs.snapshots().open("mon").expect("opens");
        let source = CloneSource {
            fs: view.fs(),
            dir: ino,
            snapshot: Some("mon"),
        };
        fs.make_clone(&SUPER, &source, at(ROOT, name))
    };
    let present = clone(&grown, "present").expect("it is there");
    let removed = grown.setup.fs.remove_tree(&SUPER, at(ROOT, "d"), None);
    removed.expect("removes it");
    while grown.setup.fs.detached_dirs() > 0 {
        grown.setup.fs.empty_detached(100).expect("goes");
    }
    let removed = clone(&grown, "removed").expect("its trees are not dropped");
    grown.setup.fs.reclaim().expect("drops them");
    let dropped = clone(&grown, "dropped").expect("the snapshot keeps them");
    let grown = Grown {
        setup: grown.setup.reopened(),
        ..grown
    };
    let remounted = clone(&grown, "remounted").expect("the snapshot keeps them");
    let fs = &grown.setup.fs;
    fs.snapshots().delete("mon").expect("deletes it");
    for made in [present, removed, dropped, remounted] {
        let view = fs.open_clone(made.number).expect("opens");
        assert_eq!(text(view.fs(), made.root), b"v2");
    }
    grown.setup.check();
}

#[test]
fn a_policy_notices_what_changes_in_a_clone() {
    let grown = grown();
    let fs = &grown.setup.fs;
    let rule = PolicyRule {
        every_s: 60,
        keep: Keep::default(),
        prefix: "auto".to_owned(),
    };
    fs.policies().set(grown.dir, &rule).expect("sets it");
    let round = || {
        grown.setup.clock.advance(Duration::from_secs(60));
        let round = fs.policies().run().expect("runs");
        round.created.len()
    };
    assert_eq!(round(), 1);
    put(fs, grown.src, b"elsewhere");
    assert_eq!(round(), 0, "nothing in the directory has changed");
    grown.put_in(&grown.inner, b"new");
    assert_eq!(round(), 1);
    assert_eq!(round(), 0);
    grown.destroy_copy();
    assert_eq!(round(), 1);
}
