//! Rollbacks in mainline and in clones, with the clones that lie in the directory.

use super::ops::pick;
use super::world::{MAINLINE, World};
use crate::twin::Id;
use stitch_fs::{FsError, RollbackRights};

impl World {
    /// Rolls the directory of a snapshot back, if it is still there.
    pub(super) fn roll_back(&mut self) {
        let names: Vec<&'static str> = self.snapshots.keys().copied().collect();
        if names.is_empty() {
            return;
        }
        let name = pick(&names, &mut self.rng);
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
        let lost = self.has_lost_clones(name);
        let mut done = roll_back(self, RollbackRights::default());
        let is_kept = matches!(done, Err(FsError::LaterClones(_)));
        assert_eq!(is_kept, !lost && self.has_later_clones(name), "{done:?}");
        if is_kept {
            self.compare_all();
            done = roll_back(self, RollbackRights::ALL);
        }
        let expected = match lost {
            true => Err(FsError::Unsupported),
            false => Ok(()),
        };
        self.same(&done, &expected);
        if lost {
            return;
        }
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

    /// Reports whether a clone of a snapshot does not lie in the directory any more.
    fn has_lost_clones(&self, name: &str) -> bool {
        let twin = &self.snapshots[name];
        let below = self.clones_below(twin.view, twin.plain.root);
        let is_there = |number: &u64| below.iter().any(|(there, _)| there == number);
        !twin.shown().iter().all(is_there)
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
        plain.roll_back(&twin.plain, &mut next);
        self.next = next;
        let there = twin.plain.paths();
        for (number, graft) in below {
            if !there.contains_key(&graft) {
                self.forget_clone(number);
            }
        }
    }
}
