//! Snapshots of mainline and of clones, with the clones that lie in them.

use super::clones::look_up;
use super::compare::compare;
use super::ops::{Walker, pick};
use super::plain::Plain;
use super::world::{MAINLINE, SNAPSHOTS, World};
use crate::common::ROOT;
use crate::twin::Id;
use std::collections::BTreeMap;
use std::rc::Rc;
use stitch_base::Ino;
use stitch_fs::{FileSystem, FsError, SnapshotPart, SnapshotView};

/// The plain copy of a snapshot, or of the moment at which a transaction began.
#[derive(Clone)]
pub(super) struct SnapshotTwin {
    /// The clone that its directory is in, or mainline.
    pub(super) view: u64,
    pub(super) plain: Plain,
    /// Every clone of the moment.
    pub(super) clones: BTreeMap<u64, ShownClone>,
}

/// A clone at a moment.
#[derive(Clone)]
pub(super) struct ShownClone {
    pub(super) home: u64,
    pub(super) graft: Id,
    pub(super) plain: Plain,
}

impl SnapshotTwin {
    /// Returns the clones that lie in a directory tree of a view.
    fn within(&self, view: u64, plain: &Plain) -> Vec<(u64, Vec<String>)> {
        let paths = plain.paths();
        let here = self.clones.iter().filter(|(_, clone)| clone.home == view);
        here.filter_map(|(number, clone)| Some((*number, paths.get(&clone.graft)?.clone())))
            .collect()
    }

    /// Returns the clones that lie in its directory, not those in them.
    pub(super) fn shown(&self) -> Vec<u64> {
        let shown = self.within(self.view, &self.plain).into_iter();
        shown.map(|(number, _)| number).collect()
    }
}

impl World {
    /// Creates or deletes a snapshot of a directory of mainline or of a clone.
    pub(super) fn snapshot(&mut self) {
        let name = pick(&SNAPSHOTS, &mut self.rng);
        if self.snapshots.contains_key(name) && self.rng.one_in(2) {
            self.note(format!("delete snapshot {name}"));
            self.fs().snapshots().delete(name).expect("it is there");
            self.snapshots.remove(name);
            return;
        }
        let view = match self.rng.one_in(3) {
            true => self.any_clone().unwrap_or(MAINLINE),
            false => MAINLINE,
        };
        let dir = self.any_dir(view);
        self.note(format!("snapshot {name} of {dir} in {view}"));
        let live = (view != MAINLINE).then(|| self.open_clone(view));
        let setup = Rc::clone(&self.setup);
        let made = self.on(view, |walker| {
            walker.with(dir, |ino| match &live {
                None => setup.fs.snapshots().create(ino, name),
                Some(live) => setup.fs.snapshots().create_in(live, ino, name),
            })
        });
        let expected = match self.snapshots.contains_key(name) {
            true => Err(FsError::Exists),
            false => Ok(()),
        };
        self.same(&made, &expected);
        if expected.is_err() {
            return;
        }
        let twin = SnapshotTwin {
            view,
            plain: self.plain(view).at(dir),
            clones: self.shown_clones(),
        };
        self.snapshots.insert(name, twin);
        self.counts.snapshots += 1;
        self.counts.inner_snapshots += u64::from(view != MAINLINE);
        if self.rng.one_in(2) {
            self.narrow();
        }
    }

    /// The clones as they are.
    pub(super) fn shown_clones(&self) -> BTreeMap<u64, ShownClone> {
        let clones = self.clones.iter().map(|(number, clone)| {
            let shown = ShownClone {
                home: clone.home,
                graft: clone.graft,
                plain: clone.plain.clone(),
            };
            (*number, shown)
        });
        clones.collect()
    }

    pub(super) fn compare_snapshots(&mut self) {
        let mut shown = 0;
        for (name, twin) in &self.snapshots {
            let view = self.fs().snapshots().open(name).expect("it is there");
            let compared = compare_past(&view, twin, &mut shown);
            self.expect(compared, &format!("snapshot {name}"));
        }
        self.counts.shown_clones += shown;
    }
}

fn compare_past(view: &SnapshotView, twin: &SnapshotTwin, shown: &mut u64) -> Result<(), String> {
    let root = view.info().root;
    assert_eq!(view.info().view, twin.view);
    let (part, dir) = view.part(root).expect("it is known");
    assert_eq!((part.root(), part.number(dir)), (dir, root));
    compare_part(view, (&part, twin.view, &twin.plain), twin, shown)
}

/// Compares one file system of a snapshot, and the clones that lie in it.
fn compare_part(
    view: &SnapshotView,
    (part, number, plain): (&SnapshotPart, u64, &Plain),
    twin: &SnapshotTwin,
    shown: &mut u64,
) -> Result<(), String> {
    compare(part.fs(), part.root(), plain)?;
    for (inner, path) in twin.within(number, plain) {
        let inos = look_up(part.fs(), part.root(), &path);
        let graft = *inos.last().unwrap_or(&ROOT);
        inos.iter().for_each(|ino| part.fs().forget(*ino, 1));
        let compared = compare_clone(view, (part, graft), (twin, inner), shown);
        compared.map_err(|e| format!("clone {inner} at {path:?}: {e}"))?;
    }
    Ok(())
}

/// Compares the clone that lies at a directory of a part.
fn compare_clone(
    view: &SnapshotView,
    (part, graft): (&SnapshotPart, Ino),
    (twin, number): (&SnapshotTwin, u64),
    shown: &mut u64,
) -> Result<(), String> {
    let clone = view.clone_in(part, graft).map_err(|e| format!("{e}"))?;
    let clone = clone.ok_or_else(|| "no clone lies there".to_owned())?;
    check_number(view, &clone, view.number_of_clone(part, graft));
    *shown += 1;
    let plain = &twin.clones[&number].plain;
    compare_part(view, (&clone, number, plain), twin, shown)
}

/// Compares the clones that a transaction shows with those of the moment at which it began.
pub(super) fn compare_shown(
    (mainline, walker): (&FileSystem, &Walker<'_>),
    then: &SnapshotTwin,
    shown: &mut u64,
) -> Result<(), String> {
    for (number, path) in then.within(MAINLINE, walker.plain) {
        let inos = look_up(walker.fs, walker.root, &path);
        let graft = *inos.last().expect("a clone has a name");
        inos.iter().for_each(|ino| walker.fs.forget(*ino, 1));
        let clone = walker.fs.shown_clone_at(graft);
        let clone = clone.ok_or_else(|| format!("no clone is shown at {path:?}"))?;
        let view = mainline.history().open_pinned(clone.pin);
        let view = view.map_err(|e| format!("{e}"))?;
        let (part, _) = view.part(ROOT).expect("it is known");
        assert_eq!(clone.number, view.number_of_clone(&part, graft));
        let compared = compare_clone(&view, (&part, graft), (then, number), shown);
        compared.map_err(|e| format!("clone {number} at {path:?}: {e}"))?;
    }
    Ok(())
}

/// The number of a clone's directory leads to it.
fn check_number(view: &SnapshotView, clone: &SnapshotPart, told: Option<Ino>) {
    let number = clone.number(clone.root());
    assert_eq!(told, Some(number));
    let (found, dir) = view.part(number).expect("it was given out");
    assert_eq!((found.root(), dir), (clone.root(), clone.root()));
}
