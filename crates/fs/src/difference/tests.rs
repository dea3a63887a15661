//! Differences by rows, against those of a walk.

mod clones;
mod touched;
mod walk;

use super::*;
use crate::FileSystem;
use crate::back::BackRowPass;
use crate::testing::{SetClock, formatted};
use crate::{
    Attr, Caller, CloneSource, DirName, FileKind, FsOptions, NewNode, RenameMode, SetAttr,
    VIEW_INO_BITS, WriteOptions, XattrMode,
};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_kv::Engine;
use walk::Listing;

const ROOT: Ino = Ino::ROOT;
const SUPER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A file system that is changed at random. Everything that it knows stays known.
struct Changer {
    fs: Arc<FileSystem>,
    /// Where the operations are.
    top: Ino,
    clock: Arc<SetClock>,
    rng: Rng,
    /// Moments, with what a walk saw then.
    moments: Vec<(PinId, Listing)>,
}

impl Changer {
    fn new(seed: u64) -> Self {
        let clock = Arc::new(SetClock::default());
        clock.set(1_000);
        let options = FsOptions {
            clock: Arc::clone(&clock) as _,
            ..FsOptions::default()
        };
        let engine: Arc<dyn Engine> = formatted(&options) as _;
        let fs = Arc::new(FileSystem::open(engine, options).expect("it opens"));
        let rng = Rng::new(seed);
        let moments = Vec::new();
        Self {
            fs,
            top: ROOT,
            clock,
            rng,
            moments,
        }
    }

    fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).expect("it is small");
        usize::try_from(self.rng.below(count)).expect("it is small")
    }

    /// Time passes, mostly.
    fn tick(&mut self) {
        if !self.rng.one_in(4) {
            self.clock.set(self.clock.second() + 1);
        }
    }

    fn make_dir(&self, parent: Ino, name: &str) -> Ino {
        let made = self.fs.make_dir(&SUPER, at(parent, name), &NEW);
        made.expect("it is made").ino
    }

    fn make_file(&self, parent: Ino, name: &str) -> Ino {
        let made = self.fs.create(&SUPER, at(parent, name), &NEW);
        made.expect("it is made").ino
    }

    fn link(&self, ino: Ino, parent: Ino, name: &str) {
        let linked = self.fs.link(&SUPER, ino, at(parent, name));
        linked.expect("it is linked");
    }

    fn write(&self, ino: Ino, bytes: &[u8]) {
        let written = self.fs.write(ino, 0, bytes, WriteOptions::default());
        written.expect("it is written");
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str)) {
        let (from, to) = (at(from.0, from.1), at(to.0, to.1));
        let renamed = self.fs.rename(&SUPER, from, to, RenameMode::Replace);
        renamed.expect("it is there");
    }

    /// One operation on random names. Many fail, and change nothing.
    fn step(&mut self) {
        self.tick();
        let listing = Listing::read(&self.fs, self.top);
        let dirs: Vec<Ino> = listing.dirs();
        let (dir, other) = (dirs[self.below(dirs.len())], dirs[self.below(dirs.len())]);
        let (name, to) = (NAMES[self.below(6)], NAMES[self.below(6)]);
        let found = self.fs.lookup(at(dir, name)).ok();
        match self.below(20) {
            0..3 => drop(self.fs.create(&SUPER, at(dir, name), &NEW)),
            3..5 => drop(self.fs.make_dir(&SUPER, at(dir, name), &NEW)),
            5..7 => drop(self.fs.unlink(&SUPER, at(dir, name))),
            7 => drop(self.fs.remove_dir(&SUPER, at(dir, name))),
            8..11 => {
                let mode = match self.rng.one_in(4) {
                    true => RenameMode::Exchange,
                    false => RenameMode::Replace,
                };
                let moved = self.fs.rename(&SUPER, at(dir, name), at(other, to), mode);
                drop(moved);
            }
            11 => self.remove_tree(dir, name),
            12 => {
                // The same name, another file.
                drop(self.fs.unlink(&SUPER, at(dir, name)));
                drop(self.fs.create(&SUPER, at(dir, name), &NEW));
            }
            choice => {
                if let Some(found) = found.filter(|found| self.fs.clone_at(found.ino).is_none()) {
                    self.change(choice, &found, at(other, to));
                }
            }
        }
    }

    fn remove_tree(&mut self, dir: Ino, name: &str) {
        if self.fs.remove_tree(&SUPER, at(dir, name), None).is_ok() && self.rng.one_in(2) {
            let count = self.rng.below(9);
            self.fs.empty_detached(count).expect("it goes");
        }
    }

    fn change(&mut self, choice: usize, found: &Attr, to: DirName<'_>) {
        let is_file = found.kind == FileKind::Regular;
        match choice {
            13 | 14 if is_file => {
                let mut bytes = vec![0; [100, 100, 9_000, 70_000][self.below(4)]];
                self.rng.fill(&mut bytes);
                self.write(found.ino, &bytes);
            }
            18 if is_file => {
                if let Ok(made) = self.fs.create(&SUPER, to, &NEW) {
                    let (from, to) = ((found.ino, 0), (made.ino, 0));
                    let copied = self.fs.copy_range(from, to, 1 << 30);
                    copied.expect("it is copied");
                }
            }
            15 if is_file => drop(self.fs.link(&SUPER, found.ino, to)),
            16 if is_file => {
                let set = SetAttr {
                    size: Some(self.rng.below(12_000)),
                    ..SetAttr::default()
                };
                drop(self.fs.set_attr(&SUPER, found.ino, &set));
            }
            17 => {
                let set = SetAttr {
                    perm: Some(if self.rng.one_in(2) { 0o700 } else { 0o755 }),
                    ..SetAttr::default()
                };
                drop(self.fs.set_attr(&SUPER, found.ino, &set));
            }
            _ => {
                let value = self.rng.below(99).to_le_bytes();
                let (name, mode) = (walk::XATTR, XattrMode::Set);
                let set = self
                    .fs
                    .set_xattr(&SUPER, found.ino, name, &value, mode, false);
                drop(set);
            }
        }
    }

    /// Keeps the present as a moment.
    fn keep(&mut self) {
        let name = format!("m{}", self.moments.len());
        let info = self
            .fs
            .snapshots()
            .create(ROOT, &name)
            .expect("it is created");
        // What is written at once has the same times.
        self.moments.push((info.id, Listing::read_views(&self.fs)));
    }

    fn by_rows(&self, dir: Ino, from: PinId, to: Option<PinId>) -> Vec<PathChange> {
        let asked = small(dir, from, to);
        self.fs.comparer().differences(&asked).expect("it is read")
    }

    fn touched(&self, dir: Ino, from: PinId, to: Option<PinId>) -> TouchedPaths {
        let asked = small(dir, from, to);
        self.fs
            .comparer()
            .touched_paths(&asked)
            .expect("it is read")
    }

    /// Compares the differences of each directory between two moments.
    fn compare(&self, from: usize, to: Option<usize>) {
        let now;
        let (old, new) = (
            &self.moments[from].1,
            match to {
                Some(to) => &self.moments[to].1,
                None => {
                    now = Listing::read_views(&self.fs);
                    &now
                }
            },
        );
        let both = old
            .dirs()
            .into_iter()
            .filter(|dir| new.dirs().contains(dir));
        for dir in both {
            let (before, after) = (old.below(dir), new.below(dir));
            let views = before.views();
            let views = views.intersection(&after.views()).copied().collect();
            let shown = |listing: &Listing| listing.clone().in_views(&views);
            let expected = walk::differences(&shown(&before), &shown(&after));
            let to = to.map(|to| self.moments[to].0);
            let asked = small(dir, self.moments[from].0, to);
            let found = self.fs.comparer().differences(&asked);
            // No back rows are put in a clone that was removed since.
            if matches!(found, Err(FsError::Unsupported)) && self.has_removed(&views) {
                continue;
            }
            let found = found.expect("it is read");
            assert_eq!(found, expected, "below {dir}, {from} to {to:?}");
            self.compare_sameness((&before, &after), self.moments[from].0, to);
            let found = self
                .fs
                .comparer()
                .touched_paths(&asked)
                .expect("it is read");
            touched::check(&before, &after, &found);
        }
    }

    /// Reports whether one of some views was removed since.
    fn has_removed(&self, views: &BTreeSet<u64>) -> bool {
        let is_removed = |view: &u64| *view > 0 && self.fs.clone_of(*view).is_err();
        views.iter().any(is_removed)
    }

    /// Rows and a walk agree on whether anything is different.
    fn compare_sameness(
        &self,
        (before, after): (&Listing, &Listing),
        from: PinId,
        to: Option<PinId>,
    ) {
        let dir = before.root;
        if dir.0 >> VIEW_INO_BITS > 0 {
            return;
        }
        let open = |id| self.fs.history().open_pinned(id).expect("it is there");
        let (then, later) = (open(from), to.map(open));
        before.know_top(then.fs());
        if let Some(later) = &later {
            after.know_top(later.fs());
        }
        let now = later
            .as_ref()
            .map_or(TreeState::Now(&self.fs), TreeState::Past);
        let comparer = self.fs.comparer();
        let walked = comparer.walk_same_tree(dir, (from, to), (&then, now));
        let found = comparer.is_same_of(&small(dir, from, to));
        let (walked, found) = (walked.expect("it is read"), found.expect("it is read"));
        assert_eq!(found, walked, "below {dir}");
        assert!(!walked || before.is_same(after), "below {dir}");
    }
}

/// A directory at two moments. One of a clone has the clone's number above [`VIEW_INO_BITS`].
fn sides(dir: Ino, from: PinId, to: Option<PinId>) -> (DirAt, DirAt) {
    let (view, dir) = (
        dir.0 >> VIEW_INO_BITS,
        Ino(dir.0 & ((1 << VIEW_INO_BITS) - 1)),
    );
    let at = |pin| DirAt { view, dir, pin };
    (at(Some(from)), at(to))
}

/// A comparison by rows, however few names there are.
fn small(dir: Ino, from: PinId, to: Option<PinId>) -> Asked {
    let (old, new) = sides(dir, from, to);
    Asked {
        names_min: 0,
        ..Asked::new(old, new, None)
    }
}

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

/// Random lives. In some of them the first moments have no back rows.
#[test]
fn rows_tell_what_a_walk_finds() {
    for seed in 0..24 {
        let mut changer = Changer::new(seed);
        if seed % 3 == 0 {
            BackRowPass::of(&changer.fs)
                .complete()
                .expect("there is room");
        }
        changer.keep();
        for round in 0..12 {
            for _ in 0..12 {
                changer.step();
            }
            if round % 2 == 0 {
                changer.keep();
            }
            // In others the first call comes late, and is of the past.
            if round > 3 || seed % 3 == 1 {
                let count = changer.moments.len();
                let from = changer.below(count);
                let to = from + changer.below(count - from);
                changer.compare(from, Some(to));
                changer.compare(from, None);
            }
        }
    }
}

/// Text of changes, one a word.
fn text(changes: &[PathChange]) -> String {
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let word = |change: &PathChange| match change {
        PathChange::Removed(path) => format!("-{}", shown(path)),
        PathChange::Added(path) => format!("+{}", shown(path)),
        PathChange::Modified(path) => format!("M{}", shown(path)),
        PathChange::Renamed { from, to } => format!("{}>{}", shown(from), shown(to)),
    };
    changes.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A directory with what is moved in and out of it. Nothing below was written.
#[test]
fn what_is_moved_across_the_edge_is_listed_with_all_below() {
    let mut changer = Changer::new(1);
    let dir = changer.make_dir(ROOT, "dir");
    let (stays, goes) = (
        changer.make_dir(dir, "stays"),
        changer.make_dir(dir, "goes"),
    );
    changer.make_file(goes, "x");
    let inner = changer.make_dir(goes, "inner");
    changer.make_file(inner, "y");
    let comes = changer.make_dir(ROOT, "comes");
    changer.make_file(comes, "z");
    changer.keep();
    changer.rename((dir, "goes"), (ROOT, "gone"));
    changer.rename((goes, "inner"), (stays, "kept"));
    changer.rename((ROOT, "comes"), (stays, "come"));
    let found = changer.by_rows(dir, changer.moments[0].0, None);
    let expected = "-goes -goes/x +stays/come +stays/come/z goes/inner>stays/kept";
    assert_eq!(text(&found), expected);
    changer.compare(0, None);
}

/// Each name of a file leads to the same rows; only names below the directory count.
#[test]
fn a_file_with_several_names_is_listed_by_its_first_one() {
    let mut changer = Changer::new(2);
    let dir = changer.make_dir(ROOT, "dir");
    let file = changer.make_file(dir, "b");
    changer.link(file, dir, "a");
    changer.link(file, ROOT, "out");
    let other = changer.make_file(ROOT, "other");
    changer.link(other, ROOT, "again");
    changer.keep();
    changer.clock.set(2_000);
    changer.write(file, b"written");
    changer.write(other, b"written");
    let found = changer.by_rows(dir, changer.moments[0].0, None);
    assert_eq!(text(&found), "Ma");
    changer.compare(0, None);
}

/// Contents that were written within a tick of the clock are found by their chunks.
#[test]
fn contents_are_compared_where_times_are_the_same() {
    let mut changer = Changer::new(3);
    let (small, large) = (
        changer.make_file(ROOT, "small"),
        changer.make_file(ROOT, "large"),
    );
    let same = changer.make_file(ROOT, "same");
    changer.write(small, b"1");
    changer.write(large, &[1; 9_000]);
    changer.write(same, &[1; 9_000]);
    changer.keep();
    changer.write(small, b"2");
    changer.write(large, &[2; 9_000]);
    changer.write(same, &[1; 9_000]);
    let found = changer.by_rows(ROOT, changer.moments[0].0, None);
    assert_eq!(text(&found), "Mlarge Msmall");
}

/// A hole in shared contents is in the row of the file's extents alone.
#[test]
fn holes_in_shared_contents_are_found_where_times_are_the_same() {
    let mut changer = Changer::new(6);
    let source = changer.make_file(ROOT, "source");
    changer.write(source, &vec![1; 300 << 10]);
    let copies = ["hole", "zeros", "same"].map(|name| {
        let copy = changer.make_file(ROOT, name);
        let copied = changer.fs.copy_range((source, 0), (copy, 0), 300 << 10);
        assert_eq!(copied.expect("it is copied"), 300 << 10);
        copy
    });
    changer.keep();
    let punched = changer
        .fs
        .fallocate(copies[0], crate::FallocateMode::PunchHole, 0, 4096);
    punched.expect("it is punched");
    changer.write(copies[1], &[0; 4096]);
    changer.write(copies[2], &[1; 4096]);
    let found = changer.by_rows(ROOT, changer.moments[0].0, None);
    assert_eq!(text(&found), "Mhole Mzeros");
}

#[test]
fn directories_of_others_are_told_to_root_alone() {
    let mut changer = Changer::new(4);
    let own = |ino, uid, perm| {
        let set = SetAttr {
            uid: Some(uid),
            perm: Some(perm),
            ..SetAttr::default()
        };
        let set = changer.fs.set_attr(&SUPER, ino, &set);
        set.expect("it is known");
    };
    let dir = changer.make_dir(ROOT, "dir");
    let (theirs, closed) = (
        changer.make_dir(dir, "theirs"),
        changer.make_dir(dir, "closed"),
    );
    own(dir, 7, 0o755);
    own(theirs, 8, 0o755);
    own(closed, 7, 0o300);
    changer.keep();
    changer.make_file(dir, "f");
    let from = changer.moments[0].0;
    let ask = |owner| {
        let asked = small(dir, from, None);
        changer.fs.comparer().differences(&Asked { owner, ..asked })
    };
    assert_eq!(text(&ask(Some(7)).expect("it is theirs")), "+f");
    assert!(matches!(ask(Some(8)), Err(FsError::Perm)));
    changer.make_file(theirs, "g");
    assert!(matches!(ask(Some(7)), Err(FsError::Perm)));
    assert_eq!(text(&ask(None).expect("root may")), "+f +theirs/g");
    changer.fs.unlink(&SUPER, at(theirs, "g")).expect("it goes");
    assert!(ask(Some(7)).is_ok());
    changer.make_file(closed, "h");
    assert!(matches!(ask(Some(7)), Err(FsError::Perm)));
}

#[test]
fn what_a_walk_does_better_is_left_to_it() {
    let mut changer = Changer::new(5);
    let dir = changer.make_dir(ROOT, "dir");
    changer.keep();
    let id = changer.moments[0].0;
    let ask = |dir, to| changer.fs.differences(sides(dir, id, to), None);
    assert!(
        matches!(ask(dir, None), Err(FsError::Unsupported)),
        "few names"
    );
    for number in 0..NAMES_MIN {
        changer.make_file(dir, &number.to_string());
    }
    assert_eq!(ask(dir, None).expect("it is large").len(), NAMES_MIN);
    let gone = changer.fs.differences(sides(dir, PinId(999), None), None);
    assert!(matches!(gone, Err(FsError::NotFound)));
    let later = changer
        .fs
        .snapshots()
        .create(ROOT, "later")
        .expect("it is created");
    let turned = changer.fs.differences(sides(dir, later.id, Some(id)), None);
    assert!(turned.is_err(), "the first moment is the later one");
    assert_eq!(
        changer
            .fs
            .differences(sides(dir, later.id, None), None)
            .expect("it is read"),
        []
    );

    for number in 0..=rows::ROWS_MAX {
        let made = changer.make_file(ROOT, &number.to_string());
        changer.fs.forget(made, 1);
    }
    assert!(
        matches!(ask(dir, None), Err(FsError::Unsupported)),
        "too many changes"
    );
    let few = changer.fs.differences(sides(dir, id, Some(later.id)), None);
    assert_eq!(few.expect("they came later").len(), NAMES_MIN);
    let id = changer
        .fs
        .snapshots()
        .create(ROOT, "last")
        .expect("it is created")
        .id;
    let ask = |dir, to| changer.fs.differences(sides(dir, id, to), None);
    let source = CloneSource {
        fs: &changer.fs,
        dir,
        snapshot: None,
    };
    let made = changer.fs.make_clone(&SUPER, &source, at(ROOT, "clone"));
    made.expect("it is made");
    assert_eq!(
        ask(dir, None).expect("it is read"),
        [],
        "the clone lies elsewhere"
    );
    changer.rename((ROOT, "clone"), (dir, "clone"));
    let moved = ask(dir, None).expect("it is read");
    assert_eq!(text(&moved), "+clone", "a clone is a name");
    let before = changer.fs.differences(sides(dir, later.id, Some(id)), None);
    assert!(
        matches!(before, Err(FsError::Unsupported)),
        "too many changes"
    );
}
