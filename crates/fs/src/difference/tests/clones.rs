//! Differences where clones lie below the directory, and between a clone and its source.

mod twins;

use super::walk::Listing;
use super::*;
use crate::CloneInfo;
use crate::back::BackRowPass;

impl Changer {
    fn clone_dir(&self, dir: Ino, to: DirName<'_>) -> CloneInfo {
        let source = CloneSource {
            fs: &self.fs,
            dir,
            snapshot: None,
        };
        let made = self.fs.make_clone(&SUPER, &source, to);
        made.expect("it is made")
    }

    /// Runs `body` in the file system of a clone, or of mainline for 0.
    fn within<T>(&mut self, view: u64, body: impl FnOnce(&mut Self) -> T) -> T {
        if view == 0 {
            return body(self);
        }
        let live = self.fs.open_clone(view).expect("it opens");
        let (fs, top) = (Arc::clone(live.fs()), live.info().root);
        let fs = std::mem::replace(&mut self.fs, fs);
        let top = std::mem::replace(&mut self.top, top);
        let done = body(self);
        (self.fs, self.top) = (fs, top);
        done
    }

    /// Mainline, for 0, or one of its clones.
    fn any_view(&mut self) -> u64 {
        let clones = self.fs.clones();
        let index = self.below(clones.len() + 1);
        clones.get(index).map_or(0, |info| info.number)
    }

    /// Clones a directory of some view to a name in some view, if there are fewer clones than
    /// `count_max`. Many fail, and change nothing.
    fn clone_any(&mut self, count_max: usize) {
        if self.fs.clones().len() >= count_max {
            return;
        }
        let (from, home) = (self.any_view(), self.any_view());
        let any_dir = |changer: &mut Self| {
            let dirs = Listing::read(&changer.fs, changer.top).dirs();
            let dir = dirs[changer.below(dirs.len())];
            (Arc::clone(&changer.fs), dir)
        };
        let (fs, dir) = self.within(from, any_dir);
        let (home, to) = self.within(home, any_dir);
        let source = CloneSource {
            fs: &fs,
            dir,
            snapshot: None,
        };
        let name = NAMES[self.below(6)];
        drop(home.make_clone(&SUPER, &source, at(to, name)));
    }

    /// Removes the clone that lies at a name.
    fn remove_clone(&self, (dir, name): (Ino, &str)) {
        let graft = self.fs.lookup(at(dir, name)).expect("it is there").ino;
        let removed = self.fs.remove_tree(&SUPER, at(dir, name), Some(graft));
        removed.expect("a clone lies there");
    }

    /// Returns the number of the clone that lies at a name in a view.
    fn clone_in(&mut self, view: u64, dir: Ino, name: &str) -> u64 {
        let find = |home: &mut Self| {
            let graft = home.fs.lookup(at(dir, name)).expect("it is there").ino;
            home.fs.clone_at(graft).expect("a clone lies there").number
        };
        match self.fs.view_number() == view {
            true => find(self),
            false => self.within(view, find),
        }
    }

    /// Compares a directory in two views as they are.
    fn between_views(&self, dir: Ino, old: u64, new: u64) -> String {
        let at = |view| DirAt {
            view,
            dir,
            pin: None,
        };
        let asked = Asked {
            names_min: 0,
            ..Asked::new(at(old), at(new), None)
        };
        let found = self.fs.comparer().differences(&asked);
        text(&found.expect("it is read"))
    }

    fn step_anywhere(&mut self) {
        match self.below(14) {
            0 => self.clone_any(5),
            1 => drop(self.fs.reclaim()),
            _ => {
                let view = self.any_view();
                self.within(view, Self::step);
            }
        }
    }
}

/// Random lives of mainline and of clones in it, and in each other.
#[test]
fn rows_of_all_views_tell_what_a_walk_through_them_finds() {
    let (mut clones, mut both) = (0, 0);
    for seed in 0..24 {
        let mut changer = Changer::new(1_000 + seed);
        if seed % 3 == 0 {
            BackRowPass::of(&changer.fs)
                .complete()
                .expect("there is room");
        }
        for round in 0..10 {
            for _ in 0..14 {
                changer.step_anywhere();
            }
            if round % 2 == 0 {
                changer.keep();
            }
            if round > 2 {
                let count = changer.moments.len();
                let from = changer.below(count);
                let to = from + changer.below(count - from);
                changer.compare(from, Some(to));
                changer.compare(from, None);
                let shown = |index: usize| changer.moments[index].1.views();
                both += shown(from).intersection(&shown(to)).count() - 1;
                clones += changer.fs.clones().len();
            }
        }
    }
    assert!(
        clones > 100 && both > 30,
        "{clones} clones, {both} at both moments"
    );
}

#[test]
fn what_changed_in_a_clone_is_told_below_its_name() {
    let mut changer = Changer::new(10);
    let dir = changer.make_dir(ROOT, "dir");
    let source = changer.make_dir(ROOT, "source");
    changer.make_file(source, "x");
    let inner = changer.clone_dir(source, at(dir, "inner"));
    changer.keep();
    changer.clock.set(2_000);
    changer.within(inner.number, |clone| {
        clone.make_file(clone.top, "y");
        let file = clone.fs.lookup(at(clone.top, "x")).expect("it is there");
        clone.write(file.ino, b"written");
    });
    let from = changer.moments[0].0;
    assert_eq!(text(&changer.by_rows(dir, from, None)), "Minner/x +inner/y");
    let paths = changer.touched(dir, from, None);
    let shown = |paths: &BTreeSet<Vec<u8>>| {
        let paths = paths.iter().map(|path| String::from_utf8_lossy(path));
        paths.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(&paths.old), "inner inner/x");
    assert_eq!(shown(&paths.new), "inner inner/x inner/y");

    changer.rename((dir, "inner"), (dir, "moved"));
    let late = changer.clone_dir(source, at(dir, "late"));
    let found = changer.by_rows(dir, from, None);
    assert_eq!(text(&found), "+late inner>moved Mmoved/x +moved/y");
    let paths = changer.touched(dir, from, None);
    assert_eq!(shown(&paths.new), "late late/x moved moved/x moved/y");
    let removed = changer
        .fs
        .remove_tree(&SUPER, at(dir, "moved"), Some(inner.graft));
    removed.expect("it is there");
    assert_eq!(text(&changer.by_rows(dir, from, None)), "-inner +late");
    assert_eq!(
        shown(&changer.touched(dir, from, None).old),
        "inner inner/x"
    );
    changer.compare(0, None);
    assert_eq!(changer.fs.clone_of(late.number).expect("it is there"), late);
}

#[test]
fn a_clone_of_another_user_is_told_to_root_alone() {
    let mut changer = Changer::new(11);
    let own = |changer: &Changer, ino, uid| {
        let set = SetAttr {
            uid: Some(uid),
            ..SetAttr::default()
        };
        changer.fs.set_attr(&SUPER, ino, &set).expect("it is known");
    };
    let dir = changer.make_dir(ROOT, "dir");
    let source = changer.make_dir(ROOT, "source");
    own(&changer, dir, 7);
    own(&changer, source, 8);
    let inner = changer.clone_dir(source, at(dir, "inner"));
    changer.keep();
    changer.within(inner.number, |clone| clone.make_file(clone.top, "y"));
    let asked = small(dir, changer.moments[0].0, None);
    let ask = |owner| changer.fs.comparer().differences(&Asked { owner, ..asked });
    assert!(matches!(ask(Some(7)), Err(FsError::Perm)), "it is of 8");
    assert_eq!(text(&ask(None).expect("root may")), "+inner/y");
    let late = changer.clone_dir(source, at(dir, "late"));
    assert_eq!(late.home, 0);
    let paths = changer.fs.comparer().touched_paths(&Asked {
        owner: Some(7),
        ..asked
    });
    assert!(
        matches!(paths, Err(FsError::Perm)),
        "all in it would be told"
    );
}

/// The moment that the clone was made from may be before it.
#[test]
fn a_clone_of_a_snapshot_is_compared_with_it_and_with_later_ones() {
    let mut changer = Changer::new(12);
    let dir = changer.make_dir(ROOT, "dir");
    changer.make_file(dir, "x");
    changer.keep();
    let from = changer.moments[0].0;
    changer.clock.set(2_000);
    changer.make_file(dir, "later");
    let past = changer.fs.snapshots().open("m0").expect("it opens");
    let found = past.fs().lookup(at(ROOT, "dir"));
    assert_eq!(found.expect("it is there").ino, dir);
    let source = CloneSource {
        fs: past.fs(),
        dir,
        snapshot: Some("m0"),
    };
    let made = changer.fs.make_clone(&SUPER, &source, at(ROOT, "clone"));
    let clone = made.expect("it is made");
    let at = |view, pin| DirAt { view, dir, pin };
    let ask = |changer: &Changer, old, new| {
        let asked = Asked {
            names_min: 0,
            ..Asked::new(old, new, None)
        };
        text(
            &changer
                .fs
                .comparer()
                .differences(&asked)
                .expect("it is read"),
        )
    };
    let (past, now, copy) = (at(0, Some(from)), at(0, None), at(clone.number, None));
    assert_eq!(ask(&changer, past, copy), "");
    assert_eq!(ask(&changer, now, copy), "-later");
    changer.within(clone.number, |clone| {
        let file = clone.fs.lookup(super::at(dir, "x")).expect("it is there");
        clone.write(file.ino, b"written");
        clone.make_file(dir, "new");
    });
    assert_eq!(ask(&changer, past, copy), "+new Mx");
    assert_eq!(ask(&changer, copy, now), "+later -new Mx");
}

/// Both have made an inode of the same number, with the same name.
#[test]
fn inodes_that_were_made_in_both_are_others() {
    let mut changer = Changer::new(13);
    let dir = changer.make_dir(ROOT, "dir");
    let file = changer.make_file(dir, "x");
    let clone = changer.clone_dir(dir, at(ROOT, "clone"));
    let second = changer.clone_dir(dir, at(ROOT, "second"));
    let make = |changer: &mut Changer| {
        let made = changer.make_dir(dir, "made");
        changer.rename((dir, "x"), (made, "x"));
        made
    };
    let one = changer.within(clone.number, make);
    let other = changer.within(second.number, make);
    assert_eq!(one, other, "numbers go on in each");
    let found = changer.between_views(dir, clone.number, second.number);
    assert_eq!(found, "-made +made made/x>made/x");
    assert!(changer.fs.get_attr(file).is_ok());
}

#[test]
fn clones_that_one_of_two_views_has_are_told() {
    let changer = Changer::new(14);
    let dir = changer.make_dir(ROOT, "dir");
    let inner = changer.clone_dir(dir, at(dir, "inner"));
    let clone = changer.clone_dir(dir, at(ROOT, "clone"));
    let at = |view, dir| DirAt {
        view,
        dir,
        pin: None,
    };
    let ask = |old, new| {
        let asked = Asked {
            names_min: 0,
            ..Asked::new(old, new, None)
        };
        changer.fs.comparer().differences(&asked)
    };
    let found = ask(at(0, dir), at(clone.number, dir));
    assert_eq!(found.expect("it is read"), [], "a clone in both");
    let found = ask(at(0, ROOT), at(clone.number, dir));
    assert!(
        matches!(found, Err(FsError::Invalid(_))),
        "another directory"
    );
    let found = ask(at(0, dir), at(99, dir));
    assert!(matches!(found, Err(FsError::NotFound)), "no such clone");
    let removed = changer
        .fs
        .remove_tree(&SUPER, super::at(dir, "inner"), Some(inner.graft));
    removed.expect("it is there");
    // The clone has its own copy of it.
    let found = ask(at(0, dir), at(clone.number, dir));
    assert_eq!(
        text(&found.expect("it is read")),
        "+inner",
        "a clone in one"
    );
    let found = ask(at(clone.number, dir), at(0, dir));
    assert_eq!(
        text(&found.expect("it is read")),
        "-inner",
        "a clone in one"
    );
}

/// Clones in two views are one clone if they were made with the outer one.
#[test]
fn clones_in_two_views_are_paired_by_the_directories_that_they_lie_at() {
    let mut changer = Changer::new(16);
    let dir = changer.make_dir(ROOT, "dir");
    let (sub, source) = (changer.make_dir(dir, "sub"), changer.make_dir(ROOT, "src"));
    for name in ["same", "moved", "replaced"] {
        changer.clone_dir(source, at(dir, name));
    }
    let clone = changer.clone_dir(dir, at(ROOT, "clone"));
    changer.within(clone.number, |changer| {
        for name in ["sub", "moved"] {
            changer.fs.lookup(at(dir, name)).expect("it is there");
        }
        changer.rename((dir, "moved"), (sub, "there"));
        changer.clone_dir(sub, at(dir, "both"));
    });
    changer.clone_dir(source, at(dir, "both"));
    changer.remove_clone((dir, "replaced"));
    changer.clone_dir(source, at(dir, "replaced"));
    let found = changer.between_views(dir, 0, clone.number);
    assert_eq!(found, "-both +both -replaced +replaced moved>sub/there");
}

/// A source with a clone in it, and one in that, of which a clone is made.
#[test]
fn what_changed_in_clones_in_two_views_is_told() {
    let mut changer = Changer::new(17);
    let dir = changer.make_dir(ROOT, "dir");
    let (apart, deep) = (
        changer.make_dir(ROOT, "apart"),
        changer.make_dir(ROOT, "deep"),
    );
    for name in ["written", "renamed", "removed"] {
        changer.make_file(apart, name);
    }
    changer.clone_dir(deep, at(apart, "deep"));
    changer.clone_dir(apart, at(dir, "inner"));
    changer.keep();
    let clone = changer.clone_dir(dir, at(ROOT, "clone"));
    assert_eq!(changer.between_views(dir, 0, clone.number), "");
    changer.clock.set(2_000);
    let inner = changer.clone_in(clone.number, dir, "inner");
    let innermost = changer.within(inner, |inner| {
        let top = inner.top;
        let file = inner.fs.lookup(at(top, "written")).expect("it is there");
        inner.write(file.ino, b"written");
        inner
            .fs
            .unlink(&SUPER, at(top, "removed"))
            .expect("it goes");
        inner.rename((top, "renamed"), (top, "moved"));
        inner.clone_in(inner.fs.view_number(), top, "deep")
    });
    changer.within(innermost, |deep| deep.make_file(deep.top, "made"));
    let text_of = |old, new| changer.between_views(dir, old, new);
    let forth = "+inner/deep/made inner/renamed>inner/moved -inner/removed Minner/written";
    assert_eq!(text_of(0, clone.number), forth);
    let back = "-inner/deep/made +inner/removed inner/moved>inner/renamed Minner/written";
    assert_eq!(text_of(clone.number, 0), back);
    // The snapshot was created before the clone was made.
    let at = |view, pin| DirAt { view, dir, pin };
    let asked = Asked {
        names_min: 0,
        ..Asked::new(
            at(0, Some(changer.moments[0].0)),
            at(clone.number, None),
            None,
        )
    };
    let found = changer.fs.comparer().differences(&asked);
    assert_eq!(text(&found.expect("it is read")), forth);
}

/// Another clone of the same name is another one, also of the same source.
#[test]
fn a_clone_that_was_replaced_since_a_snapshot_went_and_came() {
    let mut changer = Changer::new(18);
    let dir = changer.make_dir(ROOT, "dir");
    let source = changer.make_dir(ROOT, "source");
    changer.make_file(source, "x");
    changer.clone_dir(source, at(dir, "inner"));
    changer.keep();
    changer.remove_clone((dir, "inner"));
    changer.clone_dir(source, at(dir, "inner"));
    let from = changer.moments[0].0;
    assert_eq!(text(&changer.by_rows(dir, from, None)), "-inner +inner");
    let paths = changer.touched(dir, from, None);
    assert_eq!((paths.old.len(), paths.new.len()), (2, 2), "all of both");
    changer.compare(0, None);
}
