//! Transactions: begun, worked in, committed or aborted, beside all else.

use super::compare::{compare, compare_changes};
use super::ops::{Op, Place, Walker, apply, draw, pick};
use super::pasts::{SnapshotTwin, compare_shown};
use super::plain::Plain;
use super::world::{Done, MAINLINE, TRANSACTIONS, Work, World};
use crate::common::*;
use crate::twin::Id;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use stitch_fs::{
    BeginOptions, FileKind, FsError, FsResult, RenameMode, TransactionLife, TransactionView,
};

impl World {
    fn any_work(&mut self) -> Option<&'static str> {
        let names: Vec<&'static str> = self.works.keys().copied().collect();
        (!names.is_empty()).then(|| pick(&names, &mut self.rng))
    }

    pub(super) fn begin(&mut self) {
        let name = pick(&TRANSACTIONS, &mut self.rng);
        let life = match self.rng.one_in(2) {
            true => TransactionLife::Run,
            false => TransactionLife::Named,
        };
        self.note(format!("begin {name} {life:?}"));
        let options = BeginOptions {
            life,
            ..BeginOptions::default()
        };
        let begun = self.fs().transactions().begin(name, &options);
        let expected = match self.works.contains_key(name) {
            true => Err(FsError::Exists),
            false => Ok(()),
        };
        self.same(&begun, &expected);
        let Ok(view) = begun else {
            return;
        };
        let work = Work {
            base: self.main.clone(),
            plain: self.main.clone(),
            grafts: self.grafts(MAINLINE),
            then: SnapshotTwin {
                view: MAINLINE,
                plain: self.main.clone(),
                clones: self.shown_clones(),
            },
            done: Vec::new(),
            life,
            version: self.version,
            view: self.rng.one_in(2).then_some(view),
        };
        self.works.insert(name, work);
    }

    fn open_work(&mut self, name: &'static str) -> Arc<TransactionView> {
        let keeps = self.rng.one_in(3);
        let fs = &self.setup.fs;
        let work = self.works.get_mut(name).expect("it is open");
        let view = work.view.take();
        let view = view.unwrap_or_else(|| fs.transactions().open(name).expect("it is open"));
        work.view = keeps.then(|| Arc::clone(&view));
        view
    }

    /// Runs `body` with a transaction.
    fn in_work<T>(&mut self, name: &'static str, body: impl FnOnce(&Walker<'_>) -> T) -> T {
        let view = self.open_work(name);
        body(&Walker {
            fs: view.fs(),
            root: ROOT,
            plain: &self.works[name].plain,
        })
    }

    pub(super) fn change_work(&mut self) {
        let Some(name) = self.any_work() else {
            return;
        };
        let next = self.take_next();
        let unique = u16::try_from(next % 60_000).expect("small");
        let work = &self.works[name];
        let op = draw(&work.plain, &work.grafts, unique, &mut self.rng);
        self.note(format!("in {name}: {op:?}"));
        let done = self.in_work(name, |walker| walker.run(&op));
        let now = self.main.twin.now;
        let work = self.works.get_mut(name).expect("it is open");
        if work.refuses(&op) {
            return self.same(&done, &FsResult::<()>::Err(FsError::Unsupported));
        }
        let is_same = op.renames_to_itself(&work.plain.twin);
        (work.plain.twin.now, work.plain.twin.next) = (now, next);
        let applied = apply(&mut work.plain.twin, &op);
        if applied.is_ok() && !is_same {
            work.done.push(Done { op, now, next });
        }
        self.same(&done, &applied);
    }

    pub(super) fn end_work(&mut self) {
        let Some(name) = self.any_work() else {
            return;
        };
        match self.rng.one_in(4) {
            true => self.abort(name),
            false => self.commit(name),
        }
    }

    fn abort(&mut self, name: &'static str) {
        self.note(format!("abort {name}"));
        self.fs().transactions().abort(name).expect("it is open");
        self.works.remove(name);
        self.counts.aborts += 1;
        self.compare_main();
    }

    fn commit(&mut self, name: &'static str) {
        self.note(format!("commit {name}"));
        let view = self.open_work(name);
        let is_alone = self.works[name].version == self.version && !self.moves_a_clone(name);
        match self.setup.fs.transactions().commit(&view) {
            Ok(_) => {
                drop(view);
                let work = self.works.remove(name).expect("it is open");
                self.counts.commits += u64::from(!work.done.is_empty());
                self.version += 1;
                self.apply_work(&work);
                self.compare_main();
            }
            Err(FsError::Conflict(conflicts)) if !is_alone && !conflicts.is_empty() => {
                drop(view);
                self.counts.conflicts += 1;
                self.compare_main();
                self.compare_work(name);
                if self.rng.one_in(2) {
                    self.abort(name);
                }
            }
            Err(error) => self.fail(&format!("commit of {name}: {error:?}")),
        }
    }

    /// Reports whether a transaction has removed a directory that is a clone outside, or has put it
    /// elsewhere.
    fn moves_a_clone(&self, name: &'static str) -> bool {
        let work = &self.works[name];
        let of_grafts = |plain: &Plain| {
            let mut names = plain.names();
            names.retain(|(_, _, id)| work.grafts.contains(id));
            names
        };
        of_grafts(&work.base) != of_grafts(&work.plain)
    }

    /// Does again on mainline what a transaction did. A time of a directory is that of the side
    /// that changed it, or the later one.
    fn apply_work(&mut self, work: &Work) {
        let (base, theirs) = (dir_times(&work.base), dir_times(&self.main));
        let present = self.main.twin.now;
        for Done { op, now, next } in &work.done {
            let twin = &mut self.main.twin;
            (twin.now, twin.next) = (*now, *next);
            if let Err(error) = apply(twin, op) {
                self.fail(&format!("{op:?} of what was committed: {error:?}"));
            }
        }
        self.main.twin.now = present;
        for (id, theirs) in theirs {
            let (Some(base), Some(ours)) = (base.get(&id), work.plain.twin.nodes.get(&id)) else {
                continue;
            };
            let node = self.main.twin.nodes.get_mut(&id).expect("it stays");
            node.mtime = join(base.0, ours.mtime, theirs.0);
            node.ctime = join(base.1, ours.ctime, theirs.1);
        }
    }

    pub(super) fn compare_work(&mut self, name: &'static str) {
        let Some(work) = self.works.get(name) else {
            return;
        };
        let (then, setup, mut shown) = (work.then.clone(), Rc::clone(&self.setup), 0);
        let compared = self.in_work(name, |walker| {
            compare(walker.fs, ROOT, walker.plain)?;
            compare_shown((&setup.fs, walker), &then, &mut shown)
        });
        self.expect(compared, &format!("transaction {name}"));
        self.counts.clones_in_works += shown;
    }

    /// Compares the pins of transactions with those that began beside clones and are open.
    pub(super) fn compare_pins(&self) {
        let pins = self.fs().engine().pins().expect("the pins are listed");
        let pins = pins.iter().filter(|pin| pin.name.starts_with("txn/"));
        let works = self.works.values();
        let works = works.filter(|work| !work.then.clones.is_empty());
        let (found, expected) = (pins.count(), works.count());
        if found != expected {
            self.fail(&format!("{found} pins of transactions, not {expected}"));
        }
    }

    pub(super) fn look_at_changes_of_work(&mut self) {
        if let Some(name) = self.any_work() {
            let base = self.works[name].base.clone();
            let compared = self.in_work(name, |walker| compare_changes(walker, &base));
            self.expect(compared, &format!("changes of {name}"));
        }
    }
}

impl Work {
    /// Reports whether an operation would remove or replace a directory that is a clone outside.
    fn refuses(&self, op: &Op) -> bool {
        let twin = &self.plain.twin;
        let is_graft = |place: Place| {
            let found = twin.lookup(place.0, place.1);
            found.is_ok_and(|id| self.grafts.contains(&id))
        };
        match *op {
            Op::RemoveDir { at } => is_graft(at),
            Op::Rename {
                from,
                to,
                mode: RenameMode::Replace,
            } => {
                let replaced = apply(&mut twin.clone(), op).is_ok();
                replaced && is_graft(to) && !op.renames_to_itself(twin) && from != to
            }
            _ => false,
        }
    }
}

/// Times of content and attributes of all directories.
fn dir_times(plain: &Plain) -> BTreeMap<Id, (i64, i64)> {
    let nodes = plain.twin.nodes.iter();
    let dirs = nodes.filter(|(_, node)| node.kind == FileKind::Directory);
    dirs.map(|(id, node)| (*id, (node.mtime, node.ctime)))
        .collect()
}

fn join(base: i64, ours: i64, theirs: i64) -> i64 {
    match (ours == base, theirs == base) {
        (true, _) => theirs,
        (_, true) => ours,
        _ => ours.max(theirs),
    }
}
