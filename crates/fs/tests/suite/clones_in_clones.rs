//! Clones of directories that have clones in them.

use crate::common::*;
use stitch_base::Ino;
use stitch_fs::{CloneInfo, CloneSource, FileSystem, FsError, FsResult, RenameMode, WriteOptions};
use stitch_kv::Engine as _;

/// `/src` with a file `f` that says `v1`, and `/d/deep` with a clone of it, `copy`, in which there
/// is a clone of the same, `inner`.
struct Grown {
    setup: Setup,
    dir: Ino,
    deep: Ino,
    src: Ino,
    copy: CloneInfo,
    inner: CloneInfo,
}

fn live(fs: &FileSystem, dir: Ino) -> CloneSource<'_> {
    CloneSource {
        fs,
        dir,
        snapshot: None,
    }
}

fn put(fs: &FileSystem, dir: Ino, name: &str, text: &[u8]) {
    let ino = match fs.lookup(at(dir, name)) {
        Ok(attr) => attr.ino,
        Err(_) => {
            let made = fs.create(&SUPER, at(dir, name), &new(0o644));
            made.expect("is made").ino
        }
    };
    fs.write(ino, 0, text, WriteOptions::default())
        .expect("writes");
    fs.forget(ino, 1);
}

fn grown() -> Grown {
    let setup = setup();
    let (src, dir) = (setup.dir(ROOT, "src").ino, setup.dir(ROOT, "d").ino);
    let deep = setup.dir(dir, "deep").ino;
    put(&setup.fs, src, "f", b"v1");
    let copy = make(&setup.fs, &live(&setup.fs, src), at(deep, "copy")).expect("is made");
    let inner = {
        let home = setup.fs.open_clone(copy.number).expect("opens");
        let source = live(&setup.fs, src);
        make(home.fs(), &source, at(copy.root, "inner")).expect("is made")
    };
    let grown = Grown {
        setup,
        dir,
        deep,
        src,
        copy,
        inner,
    };
    grown.put_in(&grown.copy, "f", b"v2");
    grown.put_in(&grown.inner, "f", b"v3");
    grown
}

fn make(
    fs: &FileSystem,
    source: &CloneSource<'_>,
    to: stitch_fs::DirName<'_>,
) -> FsResult<CloneInfo> {
    fs.make_clone(&SUPER, source, to)
}

impl Grown {
    /// As another process finds it, which knows the directories in mainline.
    fn reopened(self) -> Self {
        let setup = self.setup.reopened();
        let know = |dir, name| setup.fs.lookup(at(dir, name)).expect("it is there").ino;
        let (src, dir) = (know(ROOT, "src"), know(ROOT, "d"));
        assert_eq!((src, know(dir, "deep")), (self.src, self.deep));
        Self { setup, ..self }
    }

    fn put_in(&self, clone: &CloneInfo, name: &str, bytes: &[u8]) {
        let view = self.setup.fs.open_clone(clone.number).expect("opens");
        put(view.fs(), clone.root, name, bytes);
    }

    /// Clones `/d` to `/NAME`.
    fn clone_all(&self, name: &str) -> FsResult<CloneInfo> {
        make(
            &self.setup.fs,
            &live(&self.setup.fs, self.dir),
            at(ROOT, name),
        )
    }

    fn destroy(&self, home: Option<&CloneInfo>, place: (Ino, &str), clone: &CloneInfo) {
        let live = home.map(|home| self.setup.fs.open_clone(home.number).expect("opens"));
        let fs = live.as_ref().map_or(&self.setup.fs, |view| view.fs());
        fs.remove_tree(&SUPER, at(place.0, place.1), Some(clone.graft))
            .expect("removes it");
        drop(live);
        self.setup.fs.reclaim().expect("drops its trees");
    }

    fn clone_trees(&self) -> usize {
        let trees = self.setup.engine.trees();
        let theirs = trees.iter().filter(|info| info.name.starts_with("fs~"));
        theirs.count()
    }

    /// The clone at a path of a clone, or of mainline for `None`.
    fn at(&self, home: Option<&CloneInfo>, path: &[&str]) -> Option<CloneInfo> {
        let live = home.map(|home| self.setup.fs.open_clone(home.number).expect("opens"));
        let fs = live.as_ref().map_or(&self.setup.fs, |view| view.fs());
        let mut dir = home.map_or(ROOT, |home| home.root);
        for name in path {
            dir = fs.lookup(at(dir, name)).expect("it is there").ino;
        }
        fs.clone_at(dir)
    }

    fn text(&self, clone: &CloneInfo) -> Vec<u8> {
        let view = self.setup.fs.open_clone(clone.number).expect("opens");
        let ino = view.fs().lookup(at(clone.root, "f")).expect("is there").ino;
        let text = contents_of(view.fs(), ino);
        view.fs().forget(ino, 1);
        text
    }

    /// The clones of `copy` and `inner` in a clone of `/d`.
    fn inner_of(&self, all: &CloneInfo) -> [CloneInfo; 2] {
        let copy = self.at(Some(all), &["deep", "copy"]).expect("lies there");
        let inner = self.at(Some(&copy), &["inner"]).expect("lies there");
        [copy, inner]
    }
}

/// The library reaches the directory of a clone in its own file system; a mount does not.
#[test]
fn no_clone_is_made_behind_another_one_with_or_without_back_rows() {
    let grown = grown();
    let fs = &grown.setup.fs;
    let graft = fs.lookup(at(grown.deep, "copy")).expect("is there").ino;
    let refused = make(fs, &live(fs, grown.src), at(graft, "hidden"));
    assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
    let count = |name: &str| {
        let before = fs.clones().len();
        grown.clone_all(name).expect("clones");
        fs.clones().len() - before
    };
    assert_eq!(count("by-ways"), 3, "the clone, `copy` and `inner`");
    let grown = grown.reopened();
    let fs = &grown.setup.fs;
    let count = |name: &str| {
        let before = fs.clones().len();
        grown.clone_all(name).expect("clones");
        fs.clones().len() - before
    };
    assert_eq!(count("by-names"), 3, "the same");
    while fs.put_back_rows_ahead().expect("puts them") {}
    assert_eq!(count("by-back-rows"), 3, "the same");
}

#[test]
fn clones_in_the_source_are_clones_in_the_clone() {
    let grown = grown();
    let all = grown.clone_all("all").expect("is made");
    let [copy, inner] = grown.inner_of(&all);
    assert_eq!(
        (all.home, copy.home, inner.home),
        (0, all.number, copy.number)
    );
    assert_eq!((copy.root, inner.root), (grown.src, grown.src));
    assert_eq!(
        (copy.number, inner.number),
        (all.number + 1, all.number + 2)
    );
    assert_eq!(grown.setup.fs.clones().len(), 5);
    for (clone, text) in [(&copy, b"v2"), (&inner, b"v3")] {
        assert_eq!(grown.text(clone), text);
    }
    // Each side changes apart.
    grown.put_in(&copy, "f", b"theirs");
    grown.put_in(&grown.inner, "f", b"ours");
    assert_eq!(grown.text(&grown.copy), b"v2");
    assert_eq!(grown.text(&inner), b"v3");
    grown.setup.check();
    let setup = grown.setup.reopened();
    for dir in ["d", "src"] {
        setup.fs.lookup(at(ROOT, dir)).expect("it is there");
    }
    let grown = Grown { setup, ..grown };
    assert_eq!(grown.inner_of(&all), [copy.clone(), inner.clone()]);
    assert_eq!(grown.text(&copy), b"theirs");
    assert_eq!(grown.text(&inner), b"v3");
    grown.setup.check();
}

#[test]
fn clones_beside_the_source_are_not_cloned() {
    let grown = grown();
    let setup = &grown.setup;
    let beside = setup.dir(grown.dir, "beside").ino;
    let alone = make(&setup.fs, &live(&setup.fs, beside), at(ROOT, "alone"));
    assert_eq!(alone.expect("is made").number, grown.inner.number + 1);
    assert_eq!(setup.fs.clones().len(), 3);
    // It was below the directory, and is not any more.
    let (from, to) = (at(grown.deep, "copy"), at(ROOT, "moved"));
    let moved = setup.fs.rename(&SUPER, from, to, RenameMode::Replace);
    moved.expect("it moves");
    grown.clone_all("all").expect("is made");
    assert_eq!(setup.fs.clones().len(), 4);
    // One that is below a directory that was removed with all in it.
    let (from, to) = (at(ROOT, "moved"), at(grown.deep, "copy"));
    let moved = setup.fs.rename(&SUPER, from, to, RenameMode::Replace);
    moved.expect("it moves");
    setup
        .fs
        .remove_tree(&SUPER, at(grown.dir, "deep"), None)
        .expect("goes");
    grown.clone_all("last").expect("is made");
    assert_eq!(setup.fs.clones().len(), 5, "no clone lies in it");
}

#[test]
fn a_clone_of_a_clone_takes_those_in_it_along() {
    let grown = grown();
    let setup = &grown.setup;
    let view = setup.fs.open_clone(grown.copy.number).expect("opens");
    let made = make(
        &setup.fs,
        &live(view.fs(), grown.copy.root),
        at(ROOT, "two"),
    );
    let two = made.expect("is made");
    drop(view);
    let inner = grown.at(Some(&two), &["inner"]).expect("lies there");
    assert_eq!(
        (grown.text(&two), grown.text(&inner)),
        (b"v2".into(), b"v3".into())
    );
    setup.check();
}

#[test]
fn those_of_a_snapshot_begin_at_its_moment_with_back_rows_and_without() {
    for has_back_rows in [false, true] {
        // What was noted of the clones in it is gone.
        let grown = grown().reopened();
        let fs = &grown.setup.fs;
        if has_back_rows {
            // The first one has the place of every inode noted.
            grown.clone_all("first").expect("is made");
            while fs.put_back_rows_ahead().expect("they are put") {}
        }
        fs.snapshots().create(grown.dir, "mon").expect("creates it");
        grown.put_in(&grown.copy, "f", b"later");
        grown.put_in(&grown.inner, "f", b"later");
        let past = fs.snapshots().open("mon").expect("opens");
        let source = CloneSource {
            fs: past.fs(),
            dir: grown.dir,
            snapshot: Some("mon"),
        };
        let all = make(fs, &source, at(ROOT, "old")).expect("is made");
        let [copy, inner] = grown.inner_of(&all);
        assert_eq!(
            (grown.text(&copy), grown.text(&inner)),
            (b"v2".into(), b"v3".into())
        );
        grown.setup.check();
        // The snapshot shows one that was removed since.
        let home = Some(&grown.copy);
        grown.destroy(home, (grown.copy.root, "inner"), &grown.inner);
        let all = make(fs, &source, at(ROOT, "older")).expect("is made");
        let [_, older] = grown.inner_of(&all);
        assert_eq!(
            (grown.text(&older), grown.text(&inner)),
            (b"v3".into(), b"v3".into())
        );
        grown.setup.check();
    }
}

#[test]
fn they_are_destroyed_in_any_order() {
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]];
    for order in orders {
        let grown = grown();
        let all = grown.clone_all("all").expect("is made");
        let [copy, inner] = grown.inner_of(&all);
        assert_eq!(grown.clone_trees(), 20);
        for index in order {
            // Some go with those that they lie in.
            match index {
                0 => grown.destroy(None, (ROOT, "all"), &all),
                1 => grown.destroy(None, (grown.deep, "copy"), &grown.copy),
                2 if grown.setup.fs.clone_of(inner.number).is_ok() => {
                    grown.destroy(Some(&copy), (copy.root, "inner"), &inner);
                }
                3 if grown.setup.fs.clone_of(grown.inner.number).is_ok() => {
                    let home = Some(&grown.copy);
                    grown.destroy(home, (grown.copy.root, "inner"), &grown.inner);
                }
                _ => {}
            }
            for (clone, text) in [(&inner, b"v3"), (&copy, b"v2"), (&grown.inner, b"v3")] {
                if grown.setup.fs.clone_of(clone.number).is_ok() {
                    assert_eq!(grown.text(clone), text, "{order:?}, {index}");
                }
            }
            grown.setup.check();
        }
        assert_eq!(grown.clone_trees(), 0, "{order:?}");
    }
}

#[test]
fn one_that_is_too_deep_refuses_all_and_leaves_nothing() {
    let grown = grown();
    let setup = &grown.setup;
    let mut last = grown.inner.clone();
    let mut depth = 1;
    // Each is a clone of the one before, and lies in `/d`.
    loop {
        let view = setup.fs.open_clone(last.number).expect("opens");
        let name = format!("c{depth}");
        let made = make(&setup.fs, &live(view.fs(), last.root), at(grown.dir, &name));
        match made {
            Ok(info) => last = info,
            Err(FsError::TooDeep) => break,
            Err(other) => panic!("{other}"),
        }
        depth += 1;
        assert!(depth < 100, "there is a bound");
    }
    let (trees, clones) = (grown.clone_trees(), setup.fs.clones());
    let refused = grown.clone_all("all");
    assert!(matches!(refused, Err(FsError::TooDeep)), "{refused:?}");
    assert_eq!((grown.clone_trees(), setup.fs.clones()), (trees, clones));
    assert!(matches!(setup.fs.peek(at(ROOT, "all")), Ok(None)));
    setup.check();
}
