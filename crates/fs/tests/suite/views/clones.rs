//! Clones of mainline, of snapshots and of clones.

use super::ops::{NAMES, pick};
use super::pasts::ShownClone;
use super::plain::Plain;
use super::world::{CLONES_MAX, CloneTwin, MAINLINE, World};
use crate::common::*;
use crate::twin::Id;
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_fs::{CloneInfo, CloneSource, FileKind, FileSystem, FsError, FsResult};

/// Where a clone is to be made.
type Target = (u64, (Id, &'static str));

impl World {
    /// Clones a directory of mainline, of a clone or of a snapshot, into mainline or a clone.
    pub(super) fn clone(&mut self) {
        if self.clones.len() >= CLONES_MAX {
            return;
        }
        let home = match self.rng.one_in(3) {
            true => self.any_clone().unwrap_or(MAINLINE),
            false => MAINLINE,
        };
        let target = (home, (self.any_dir(home), pick(&NAMES, &mut self.rng)));
        let names: Vec<&'static str> = self.snapshots.keys().copied().collect();
        if self.rng.one_in(3) && !names.is_empty() {
            let name = pick(&names, &mut self.rng);
            self.clone_of_snapshot(target, name);
        } else {
            self.clone_of_view(target);
        }
    }

    fn clone_of_snapshot(&mut self, target: Target, name: &'static str) {
        self.note(format!("clone snapshot {name} to {target:?}"));
        let past = self.fs().snapshots().open(name).expect("it is there");
        let source = CloneSource {
            fs: past.fs(),
            dir: past.info().root,
            snapshot: Some(name),
        };
        let twin = self.snapshots[name].clone();
        let (inner, base) = (inner_of(twin.view, &twin.plain, &twin.clones), twin.plain);
        if self.has_no_room_for(&inner) {
            return;
        }
        let made = self.make_clone(target, &source);
        self.note_clones(target, base, inner, &made);
    }

    fn clone_of_view(&mut self, target: Target) {
        let of = match self.rng.one_in(2) {
            true => self.any_clone().unwrap_or(MAINLINE),
            false => MAINLINE,
        };
        let dir = self.any_dir(of);
        self.note(format!("clone {dir} of {of} to {target:?}"));
        let base = self.plain(of).at(dir);
        let inner = inner_of(of, &base, &self.shown_clones());
        if self.has_no_room_for(&inner) {
            return;
        }
        let path = self.plain(of).paths().remove(&dir).expect("it is there");
        let setup = std::rc::Rc::clone(&self.setup);
        let live = (of != MAINLINE).then(|| self.open_clone(of));
        let (fs, root) = match &live {
            Some(live) => (live.fs().as_ref(), live.info().root),
            None => (&setup.fs, ROOT),
        };
        let inos = look_up(fs, root, &path);
        let source = CloneSource {
            fs,
            dir: *inos.last().unwrap_or(&root),
            snapshot: None,
        };
        let made = self.make_clone(target, &source);
        inos.iter().for_each(|ino| fs.forget(*ino, 1));
        self.counts.inner_clones += u64::from(made.is_ok() && (target.0, of) != (0, 0));
        self.note_clones(target, base, inner, &made);
    }

    fn has_no_room_for(&self, inner: &[InnerTwin]) -> bool {
        self.clones.len() + inner.len() > 2 * CLONES_MAX
    }

    /// Enters a clone that was made, and those in it.
    fn note_clones(
        &mut self,
        target: Target,
        base: Plain,
        inner: Vec<InnerTwin>,
        made: &FsResult<CloneInfo>,
    ) {
        self.note_clone(target, base, made);
        let Ok(CloneInfo { number: first, .. }) = made else {
            return;
        };
        self.counts.cloned_clones += inner.len() as u64;
        self.note_inner(*first, inner);
    }

    /// Enters the clones in one that was made with the number `first`.
    pub(super) fn note_inner(&mut self, first: u64, inner: Vec<InnerTwin>) {
        for (number, inner) in (first + 1..).zip(inner) {
            let twin = CloneTwin {
                home: first + inner.above,
                graft: inner.graft,
                plain: inner.plain,
                view: None,
            };
            let before = self.clones.insert(number, twin);
            assert!(before.is_none(), "a number is used twice");
        }
    }

    fn make_clone(
        &mut self,
        (home, place): Target,
        source: &CloneSource<'_>,
    ) -> FsResult<CloneInfo> {
        self.on(home, |walker| {
            walker.with(place.0, |dir| {
                walker.fs.make_clone(&SUPER, source, at(dir, place.1))
            })
        })
    }

    /// Enters a clone that was made, and its directory in the home.
    fn note_clone(&mut self, (home, place): Target, base: Plain, made: &FsResult<CloneInfo>) {
        let (next, now) = (self.take_next(), self.main.twin.now);
        let perm = base.node(base.root).perm;
        self.version += u64::from(home == MAINLINE);
        let plain = self.plain_mut(home);
        (plain.twin.now, plain.twin.next) = (now, next);
        let graft = plain
            .twin
            .make(place.0, place.1, FileKind::Directory, perm, b"");
        self.same(made, &graft);
        let (Ok(info), Ok(graft)) = (made, graft) else {
            return;
        };
        self.counts.clones += 1;
        let twin = CloneTwin {
            home,
            graft,
            plain: base,
            view: None,
        };
        let before = self.clones.insert(info.number, twin);
        assert!(before.is_none(), "a number is used twice");
    }

    /// Removes a clone with all that is in it.
    pub(super) fn destroy(&mut self) {
        if let Some(number) = self.any_clone() {
            self.destroy_one(number);
        }
    }

    pub(super) fn destroy_one(&mut self, number: u64) {
        let (home, graft) = (self.clones[&number].home, self.clones[&number].graft);
        self.note(format!("destroy clone {number}"));
        let names = self.plain(home).names().into_iter();
        let mut found = names.filter(|(_, _, id)| *id == graft);
        let (dir, name, _) = found.next().expect("it has a name");
        let done = self.on(home, |walker| {
            walker.with(dir, |ino| {
                let place = at(ino, &name);
                let graft = walker.fs.clones().into_iter();
                let mut graft = graft.filter(|info| info.number == number);
                let graft = graft.next().ok_or(FsError::NotFound)?.graft;
                walker.fs.remove_tree(&SUPER, place, Some(graft))
            })
        });
        done.expect("it is there");
        let now = self.main.twin.now;
        let plain = self.plain_mut(home);
        plain.twin.now = now;
        assert!(plain.remove_tree(dir, &name), "its directory is there");
        self.version += u64::from(home == MAINLINE);
        self.counts.destroyed += 1;
        self.forget_clone(number);
        if self.rng.one_in(2) {
            self.fs().reclaim().expect("there is room");
        }
    }
}

/// A clone that is cloned because it lies in the source.
pub(super) struct InnerTwin {
    /// In which of those that are made it lies: 0 is the outermost.
    above: u64,
    graft: Id,
    plain: Plain,
}

/// The clones that lie below a directory of a view, and those in them: each view's in the order of
/// their numbers, after those of the views before.
pub(super) fn inner_of(
    view: u64,
    plain: &Plain,
    clones: &BTreeMap<u64, ShownClone>,
) -> Vec<InnerTwin> {
    let mut found: Vec<InnerTwin> = Vec::new();
    let mut homes = vec![(view, plain.clone())];
    let mut above = 0;
    while let Some((home, plain)) = homes.get(above).cloned() {
        let paths = plain.paths();
        for (number, clone) in clones {
            let is_root = clone.graft == plain.root;
            if clone.home == home && !is_root && paths.contains_key(&clone.graft) {
                homes.push((*number, clone.plain.clone()));
                found.push(InnerTwin {
                    above: above as u64,
                    graft: clone.graft,
                    plain: clone.plain.clone(),
                });
            }
        }
        above += 1;
    }
    found
}

/// Looks a path up from a directory. Returns all that was found on the way.
pub(super) fn look_up(fs: &FileSystem, root: Ino, path: &[String]) -> Vec<Ino> {
    let (mut above, mut inos) = (root, Vec::new());
    for name in path {
        above = fs.lookup(at(above, name)).expect("it is there").ino;
        inos.push(above);
    }
    inos
}
