//! The views of a store and their plain copies, and what happens to them.

use super::compare::{compare, compare_attr};
use super::ops::{NAMES, Op, Walker, apply, draw, pick};
use super::pasts::SnapshotTwin;
use super::plain::Plain;
use crate::common::*;
use crate::twin::{Id, ROOT as TOP};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::Clock as _;
use stitch_base::random::Rng;
use stitch_fs::{
    FileSystem, FsError, FsResult, LiveView, RenameMode, TransactionLife, TransactionView,
};

pub(super) const SNAPSHOTS: [&str; 4] = ["mon", "tue", "wed", "thu"];
pub(super) const TRANSACTIONS: [&str; 3] = ["one", "two", "three"];
pub(super) const CLONES_MAX: usize = 6;
const HELD_MAX: usize = 6;
/// Mainline, where a home or a clone is named by its number.
pub(super) const MAINLINE: u64 = 0;

/// How often what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) snapshots: u64,
    pub(super) inner_snapshots: u64,
    pub(super) narrowed: u64,
    pub(super) shown_clones: u64,
    pub(super) clones: u64,
    pub(super) inner_clones: u64,
    pub(super) cloned_clones: u64,
    pub(super) destroyed: u64,
    pub(super) rollbacks: u64,
    pub(super) inner_rollbacks: u64,
    pub(super) rolled_back_clones: u64,
    pub(super) restored_clones: u64,
    pub(super) commits: u64,
    pub(super) conflicts: u64,
    pub(super) aborts: u64,
    pub(super) clones_in_works: u64,
    pub(super) reopens: u64,
    pub(super) refused: u64,
}

impl Counts {
    pub(super) fn list(&mut self) -> [&mut u64; 18] {
        [
            &mut self.snapshots,
            &mut self.inner_snapshots,
            &mut self.narrowed,
            &mut self.shown_clones,
            &mut self.clones,
            &mut self.inner_clones,
            &mut self.cloned_clones,
            &mut self.destroyed,
            &mut self.rollbacks,
            &mut self.inner_rollbacks,
            &mut self.rolled_back_clones,
            &mut self.restored_clones,
            &mut self.commits,
            &mut self.conflicts,
            &mut self.aborts,
            &mut self.clones_in_works,
            &mut self.reopens,
            &mut self.refused,
        ]
    }

    pub(super) fn add(&mut self, mut other: Self) {
        for (sum, count) in self.list().into_iter().zip(other.list()) {
            *sum += *count;
        }
    }

    /// The count of what happened least often.
    pub(super) fn least(mut self) -> u64 {
        self.list()
            .into_iter()
            .map(|count| *count)
            .min()
            .unwrap_or(0)
    }
}

pub(super) struct CloneTwin {
    pub(super) home: u64,
    /// Its directory in the home.
    pub(super) graft: Id,
    pub(super) plain: Plain,
    /// Kept open for a while.
    pub(super) view: Option<Arc<LiveView>>,
}

/// An operation that a transaction did, when, and the number that a node would get.
pub(super) struct Done {
    pub(super) op: Op,
    pub(super) now: i64,
    pub(super) next: Id,
}

pub(super) struct Work {
    pub(super) base: Plain,
    pub(super) plain: Plain,
    /// Directories that are clones outside.
    pub(super) grafts: Vec<Id>,
    /// The clones that it shows.
    pub(super) then: SnapshotTwin,
    pub(super) done: Vec<Done>,
    pub(super) life: TransactionLife,
    /// Changes of mainline when it began.
    pub(super) version: u64,
    pub(super) view: Option<Arc<TransactionView>>,
}

pub(super) struct World {
    pub(super) setup: Rc<Setup>,
    pub(super) rng: Rng,
    pub(super) main: Plain,
    /// Changes of mainline.
    pub(super) version: u64,
    pub(super) snapshots: BTreeMap<&'static str, SnapshotTwin>,
    pub(super) clones: BTreeMap<u64, CloneTwin>,
    pub(super) works: BTreeMap<&'static str, Work>,
    /// Nodes of mainline that a program has open, with all that was looked up for it.
    pub(super) held: Vec<(Id, Vec<Ino>)>,
    pub(super) next: Id,
    pub(super) counts: Counts,
    pub(super) log: Vec<String>,
}

impl World {
    pub(super) fn new(seed: u64, setup: Setup) -> Self {
        let now = setup.clock.now().0;
        Self {
            setup: Rc::new(setup),
            rng: Rng::new(seed),
            main: Plain::new(now),
            version: 0,
            snapshots: BTreeMap::new(),
            clones: BTreeMap::new(),
            works: BTreeMap::new(),
            held: Vec::new(),
            next: TOP + 1,
            counts: Counts::default(),
            log: vec![format!("seed {seed}")],
        }
    }

    pub(super) fn fs(&self) -> &FileSystem {
        &self.setup.fs
    }

    pub(super) fn note(&mut self, what: String) {
        self.log.push(what);
    }

    #[track_caller]
    pub(super) fn fail(&self, what: &str) -> ! {
        let from = self.log.len().saturating_sub(40);
        panic!("{}: {what} after {:#?}", self.log[0], &self.log[from..]);
    }

    #[track_caller]
    pub(super) fn expect(&self, found: Result<(), String>, what: &str) {
        if let Err(error) = found {
            self.fail(&format!("{what}: {error}"));
        }
    }

    #[track_caller]
    pub(super) fn same<T, U>(&mut self, fs: &FsResult<T>, plain: &FsResult<U>) {
        let kind = std::mem::discriminant::<FsError>;
        let is_same = match (fs, plain) {
            (Ok(_), Ok(_)) => true,
            (Err(one), Err(two)) => kind(one) == kind(two),
            _ => false,
        };
        self.counts.refused += u64::from(fs.is_err());
        if !is_same {
            let (fs, plain) = (fs.as_ref().err(), plain.as_ref().err());
            self.fail(&format!("an error of {fs:?}, not {plain:?}"));
        }
    }

    pub(super) fn step(&mut self) {
        self.setup.tick();
        let now = self.setup.clock.now().0;
        self.main.twin.now = now;
        match self.rng.below(100) {
            0..36 => self.change_main(),
            36..52 => self.change_clone(),
            52..66 => self.change_work(),
            69..74 => self.snapshot(),
            74..79 => self.clone(),
            79..81 => self.destroy(),
            81..85 => self.roll_back(),
            85..89 => self.begin(),
            89..94 => self.end_work(),
            66..69 => self.hold(),
            94 => self.remove_tree(),
            95 => self.look_at_changes(),
            96..98 => self.compare_all(),
            98 => self.reopen(),
            _ => self.background(),
        }
    }

    /// Compares all once more, before and after the last reopening.
    pub(super) fn end(mut self) -> Counts {
        self.compare_all();
        self.reopen();
        let clones: Vec<u64> = self.clones.keys().copied().collect();
        for number in clones {
            if self.clones.contains_key(&number) {
                self.destroy_one(number);
            }
        }
        self.empty();
        let trees = self.fs().engine().trees();
        let mut left = trees.iter().map(|tree| tree.name.as_str());
        let left = left.find(|name| name.starts_with("fs~"));
        assert_eq!(left, None, "a tree of a clone is left");
        self.compare_all();
        self.counts
    }

    pub(super) fn take_next(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    pub(super) fn grafts(&self, home: u64) -> Vec<Id> {
        let all = self.clones.values();
        let here = all.filter(|clone| clone.home == home);
        here.map(|clone| clone.graft).collect()
    }

    pub(super) fn plain(&self, view: u64) -> &Plain {
        match view {
            MAINLINE => &self.main,
            number => &self.clones[&number].plain,
        }
    }

    pub(super) fn plain_mut(&mut self, view: u64) -> &mut Plain {
        match view {
            MAINLINE => &mut self.main,
            number => &mut self.clones.get_mut(&number).expect("it is there").plain,
        }
    }

    /// The clone that a name of a view leads to.
    pub(super) fn clone_named(&self, home: u64, place: (Id, &str)) -> Option<u64> {
        let id = self.plain(home).twin.lookup(place.0, place.1).ok()?;
        let mut all = self.clones.iter();
        let found = all.find(|(_, clone)| clone.home == home && clone.graft == id);
        found.map(|(number, _)| *number)
    }

    pub(super) fn open_clone(&mut self, number: u64) -> Arc<LiveView> {
        let keeps = self.rng.one_in(3);
        let clone = self.clones.get_mut(&number).expect("it is there");
        if let Some(view) = clone.view.take() {
            clone.view = keeps.then(|| Arc::clone(&view));
            return view;
        }
        let view = self.setup.fs.open_clone(number).expect("a clone opens");
        clone.view = keeps.then(|| Arc::clone(&view));
        view
    }

    /// Runs `body` with a view of clones or mainline.
    pub(super) fn on<T>(&mut self, view: u64, body: impl FnOnce(&Walker<'_>) -> T) -> T {
        if view == MAINLINE {
            return body(&Walker {
                fs: self.fs(),
                root: ROOT,
                plain: &self.main,
            });
        }
        let live = self.open_clone(view);
        body(&Walker {
            fs: live.fs(),
            root: live.info().root,
            plain: &self.clones[&view].plain,
        })
    }

    pub(super) fn change_main(&mut self) {
        self.change(MAINLINE);
        self.version += 1;
    }

    pub(super) fn change_clone(&mut self) {
        if let Some(number) = self.any_clone() {
            self.change(number);
        }
    }

    pub(super) fn any_clone(&mut self) -> Option<u64> {
        let numbers: Vec<u64> = self.clones.keys().copied().collect();
        (!numbers.is_empty()).then(|| pick(&numbers, &mut self.rng))
    }

    /// Does an operation in mainline or in a clone.
    pub(super) fn change(&mut self, view: u64) {
        let (grafts, next) = (self.grafts(view), self.take_next());
        let unique = u16::try_from(next % 60_000).expect("small");
        let mut rng = self.rng.clone();
        let op = draw(self.plain(view), &grafts, unique, &mut rng);
        self.rng = rng;
        self.note(format!("in {view}: {op:?}"));
        let done = self.on(view, |walker| walker.run(&op));
        let now = self.main.twin.now;
        let expected = self.expected_of_clones(view, &op).unwrap_or_else(|| {
            let removed = match &op {
                Op::RemoveDir { at } => self.clone_named(view, *at),
                _ => None,
            };
            let plain = self.plain_mut(view);
            (plain.twin.now, plain.twin.next) = (now, next);
            let applied = apply(&mut plain.twin, &op);
            if let (Ok(()), Some(number)) = (&applied, removed) {
                self.forget_clone(number);
            }
            applied
        });
        self.same(&done, &expected);
    }

    /// What a name that leads to a clone makes of an operation that a plain copy would do.
    pub(super) fn expected_of_clones(&self, view: u64, op: &Op) -> Option<FsResult<()>> {
        match op {
            Op::RemoveDir { at } => {
                let plain = &self.clones[&self.clone_named(view, *at)?].plain;
                let is_empty = plain.node(plain.root).entries.is_empty();
                (!is_empty).then_some(Err(FsError::NotEmpty))
            }
            Op::Rename {
                from,
                to,
                mode: RenameMode::Replace,
            } => {
                let target = self.clones[&self.clone_named(view, *to)?].graft;
                let plain = self.plain(view);
                let source = plain.twin.lookup(from.0, from.1).ok()?;
                let is_refused = source != target && plain.is_dir(source);
                is_refused.then_some(Err(FsError::NotEmpty))
            }
            _ => None,
        }
    }

    /// A clone is removed, and with it those that lie in it.
    pub(super) fn forget_clone(&mut self, number: u64) {
        self.clones.remove(&number);
        let inner = self.clones.iter();
        let inner = inner.filter(|(_, clone)| clone.home == number);
        let inner: Vec<u64> = inner.map(|(number, _)| *number).collect();
        for number in inner {
            self.forget_clone(number);
        }
    }

    /// A directory of a view that is no clone; often the topmost.
    pub(super) fn any_dir(&mut self, view: u64) -> Id {
        let (plain, grafts) = (self.plain(view), self.grafts(view));
        let mut dirs: Vec<Id> = plain.paths().into_keys().collect();
        dirs.retain(|id| plain.is_dir(*id) && !grafts.contains(id));
        match self.rng.one_in(3) {
            true => self.plain(view).root,
            false => pick(&dirs, &mut self.rng),
        }
    }

    /// A program opens a file or directory of mainline, or closes one.
    fn hold(&mut self) {
        if self.held.len() >= HELD_MAX || (self.rng.one_in(3) && !self.held.is_empty()) {
            let index = self.rng.below(self.held.len() as u64);
            let (_, inos) = self.held.remove(usize::try_from(index).expect("small"));
            inos.iter().for_each(|ino| self.fs().forget(*ino, 1));
            return;
        }
        let grafts = self.grafts(MAINLINE);
        let mut paths: Vec<(Id, Vec<String>)> = self.main.paths().into_iter().collect();
        paths.retain(|(id, path)| !path.is_empty() && !grafts.contains(id));
        if paths.is_empty() {
            return;
        }
        let index = self.rng.below(paths.len() as u64);
        let (id, path) = paths.swap_remove(usize::try_from(index).expect("small"));
        self.note(format!("open {id}"));
        let mut inos = vec![ROOT];
        for name in &path {
            let above = *inos.last().expect("the root");
            let found = self.fs().lookup(at(above, name));
            inos.push(found.expect("it is there").ino);
        }
        inos.remove(0);
        self.held.push((id, inos));
    }

    fn remove_tree(&mut self) {
        let place = (self.any_dir(MAINLINE), pick(&NAMES, &mut self.rng));
        let is_tree = self.main.twin.lookup(place.0, place.1);
        let is_tree = is_tree.is_ok_and(|id| self.main.is_dir(id));
        if !is_tree {
            return;
        }
        if let Some(number) = self.clone_named(MAINLINE, place) {
            return self.destroy_one(number);
        }
        self.note(format!("remove tree {place:?}"));
        let done = self.on(MAINLINE, |walker| {
            walker.with(place.0, |dir| {
                walker.fs.remove_tree(&SUPER, at(dir, place.1), None)
            })
        });
        done.expect("it is a tree");
        self.version += 1;
        self.main.remove_tree(place.0, place.1);
        self.empty();
        let there = self.main.paths();
        let gone = self
            .clones
            .iter()
            .filter(|(_, clone)| clone.home == MAINLINE && !there.contains_key(&clone.graft));
        let gone: Vec<u64> = gone.map(|(number, _)| *number).collect();
        for number in gone {
            self.forget_clone(number);
        }
    }

    /// Empties removed trees, and drops those of removed clones.
    pub(super) fn empty(&self) {
        let fs = self.fs();
        while fs.detached_dirs() > 0 {
            fs.empty_detached(u64::MAX).expect("there is room");
        }
        fs.reclaim().expect("there is room");
    }

    pub(super) fn compare_main(&self) {
        let compared = compare(self.fs(), ROOT, &self.main);
        self.expect(compared, "mainline");
        for (id, inos) in &self.held {
            let ino = *inos.last().expect("it was looked up");
            let attr = self.fs().get_attr(ino).expect("it is known");
            let compared = compare_attr(&attr, &self.main, *id);
            self.expect(compared, &format!("node {id}, open"));
        }
    }

    pub(super) fn compare_all(&mut self) {
        self.compare_main();
        self.compare_snapshots();
        assert_eq!(
            self.fs().clones().len(),
            self.clones.len(),
            "{:?}",
            self.log
        );
        let numbers: Vec<u64> = self.clones.keys().copied().collect();
        for number in numbers {
            let compared = self.on(number, |walker| {
                compare(walker.fs, walker.root, walker.plain)
            });
            self.expect(compared, &format!("clone {number}"));
        }
        for name in TRANSACTIONS {
            self.compare_work(name);
        }
        self.compare_pins();
        let issues = self.setup.issues();
        if !issues.is_empty() {
            self.fail(&format!("a check finds {issues:?}"));
        }
    }

    /// Compares what transactions say they have changed. Clones do not keep what they began with.
    fn look_at_changes(&mut self) {
        if let Some(number) = self.any_clone() {
            let asked = self.on(number, |walker| walker.fs.changes_since_begin().is_err());
            assert!(asked, "clone {number}: {:?}", self.log);
        }
        self.look_at_changes_of_work();
    }

    fn reopen(&mut self) {
        self.note("reopen".to_owned());
        if self.rng.one_in(2) {
            self.fs().close().expect("closes");
        }
        for clone in self.clones.values_mut() {
            clone.view = None;
        }
        self.works
            .retain(|_, work| work.life == TransactionLife::Named);
        for work in self.works.values_mut() {
            work.view = None;
        }
        self.held.clear();
        let now = self.setup.clock.now();
        let other = Rc::new(setup());
        let old = Rc::try_unwrap(std::mem::replace(&mut self.setup, other));
        let old = old.unwrap_or_else(|_| panic!("there is another reference to it"));
        self.setup = Rc::new(old.reopened());
        let ahead = now.0 - self.setup.clock.now().0;
        let ahead = std::time::Duration::from_nanos(ahead.unsigned_abs());
        self.setup.clock.advance(ahead);
        self.counts.reopens += 1;
        self.compare_all();
    }

    /// Has an engine without threads work for a while.
    fn background(&mut self) {
        self.narrow();
        let engine = self.fs().engine();
        engine.quiesce().expect("background work succeeds");
    }

    /// Narrows the snapshots to their directories.
    pub(super) fn narrow(&mut self) {
        self.note("narrow snapshots".to_owned());
        while self
            .fs()
            .snapshots()
            .narrow_ahead()
            .expect("all can be walked")
        {}
        let narrow_clones = || self.fs().snapshots().narrow_clones_ahead();
        while narrow_clones().expect("all can be walked") == Some(Duration::ZERO) {}
        let pins = self.fs().engine().pins().expect("the pins are listed");
        let narrowed = pins.iter().filter(|pin| !pin.ranges.is_empty()).count();
        self.counts.narrowed += narrowed as u64;
    }
}
