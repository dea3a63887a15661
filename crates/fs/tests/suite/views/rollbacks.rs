//! Rollbacks in mainline and in clones, with the clones that lie in the directory.

use super::clones::{inner_of, look_up};
use super::ops::pick;
use super::pasts::SnapshotTwin;
use super::world::{CloneTwin, MAINLINE, World};
use crate::common::ROOT;
use crate::twin::Id;
use std::collections::BTreeMap;
use stitch_fs::{FsError, RollbackRights};

impl World {
    /// Rolls the directory of a snapshot back, if it is still there.
    pub(super) fn roll_back(&mut self) {
        let names: Vec<&'static str> = self.snapshots.keys().copied().collect();
        if names.is_empty() {
            return;
        }
        let is_inner = |name: &&str| self.snapshots[*name].view != MAINLINE;
        let inner: Vec<&'static str> = names.iter().copied().filter(is_inner).collect();
        let is_rare = !inner.is_empty() && self.rng.one_in(2);
        let name = pick(if is_rare { &inner } else { &names }, &mut self.rng);
        let (view, dir) = (self.snapshots[name].view, self.snapshots[name].plain.root);
        let is_there = view == MAINLINE || self.clones.contains_key(&view);
        if !is_there
            || !self.plain(view).paths().contains_key(&dir)
            || self.grafts(view).contains(&dir)
        {
            return;
        }
        self.note(format!("roll {dir} in {view} back to {name}"));
        let live = (view != MAINLINE).then(|| self.open_clone(view));
        let setup = std::rc::Rc::clone(&self.setup);
        let roll_back = |world: &mut Self, rights| {
            world.on(view, |walker| {
                walker.with(dir, |ino| match &live {
                    None => setup.fs.roll_back(name, ino, rights),
                    Some(live) => setup.fs.roll_back_in(live, name, ino, rights),
                })
            })
        };
        let mut done = roll_back(self, RollbackRights::default());
        let is_kept = matches!(done, Err(FsError::LaterClones(_)));
        assert_eq!(is_kept, self.has_later_clones(name), "{done:?}");
        if is_kept {
            self.compare_all();
            done = roll_back(self, RollbackRights::ALL);
        }
        self.same(&done, &Ok(()));
        self.counts.rollbacks += 1;
        self.counts.inner_rollbacks += u64::from(view != MAINLINE);
        self.version += u64::from(view == MAINLINE);
        self.note_rollback(name);
        if let Some(live) = &live {
            while live.fs().detached_dirs() > 0 {
                live.fs().empty_detached(u64::MAX).expect("there is room");
            }
        }
        self.empty();
        self.compare_all();
    }

    /// The clones of a view that lie below a directory, with their grafts.
    fn clones_below(&self, view: u64, dir: Id) -> Vec<(u64, Id)> {
        let below = self.plain(view).at(dir).paths();
        let here = self.clones.iter().filter(|(_, clone)| clone.home == view);
        here.map(|(number, clone)| (*number, clone.graft))
            .filter(|(_, graft)| below.contains_key(graft))
            .collect()
    }

    /// Reports whether a clone lies in the directory that the snapshot does not have there.
    fn has_later_clones(&self, name: &str) -> bool {
        let twin = &self.snapshots[name];
        let there = twin.plain.paths();
        let below = self.clones_below(twin.view, twin.plain.root);
        below.iter().any(|(_, graft)| !there.contains_key(graft))
    }

    /// Does the same with the plain copy, and forgets the clones that the snapshot has not.
    fn note_rollback(&mut self, name: &str) {
        let twin = self.snapshots[name].clone();
        let below = self.clones_below(twin.view, twin.plain.root);
        self.counts.rolled_back_clones += twin.shown().len() as u64;
        let mut next = self.next;
        let now = self.main.twin.now;
        let plain = self.plain_mut(twin.view);
        plain.twin.now = now;
        let becomes = plain.roll_back(&twin.plain, &mut next);
        self.next = next;
        let there = twin.plain.paths();
        for (number, graft) in below {
            if !there.contains_key(&graft) {
                self.forget_clone(number);
            }
        }
        self.note_restored(&twin, &becomes);
    }

    /// Enters the clones of a snapshot that did not lie in the directory any more: they were made
    /// again, with those in them.
    fn note_restored(&mut self, twin: &SnapshotTwin, becomes: &BTreeMap<Id, Id>) {
        let there = self.grafts(twin.view);
        for shown in twin.shown() {
            let then = &twin.clones[&shown];
            let graft = becomes[&then.graft];
            if there.contains(&graft) {
                continue;
            }
            let number = self.number_at(twin.view, graft);
            let clone = CloneTwin {
                home: twin.view,
                graft,
                plain: then.plain.clone(),
                view: None,
            };
            let before = self.clones.insert(number, clone);
            assert!(before.is_none(), "a number is used twice");
            self.note_inner(number, inner_of(shown, &then.plain, &twin.clones));
            self.counts.restored_clones += 1;
        }
    }

    /// Returns the number of the clone that lies at a directory of a view.
    fn number_at(&mut self, view: u64, graft: Id) -> u64 {
        let path = self.plain(view).paths().remove(&graft);
        let path = path.expect("it is there");
        let live = (view != MAINLINE).then(|| self.open_clone(view));
        let (fs, root) = match &live {
            Some(live) => (live.fs().as_ref(), live.info().root),
            None => (&self.setup.fs, ROOT),
        };
        let inos = look_up(fs, root, &path);
        let found = inos.last().and_then(|graft| fs.clone_at(*graft));
        inos.iter().for_each(|ino| fs.forget(*ino, 1));
        found.expect("a clone lies there").number
    }
}
