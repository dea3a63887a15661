//! Random histories of four transactions and mainline over files, from a seed.
//!
//! What each one reads and writes are *objects*: which file a name stands for, contents, owners. A
//! plain map holds their values as mainline has them. Checked are:
//!
//! - every read: a transaction sees what there was when it began, and its own writes;
//! - every commit, also with snapshot isolation: what it writes was not changed since the begin
//!   (first committer wins), and mainline is what the map says afterwards;
//! - of serializable ones: what was read is as at the commit, and the graph of dependencies of all
//!   that was committed has no cycle (see [`checker`]).
//!
//! A transaction is rebased now and then: what it has read holds at that moment, or it is refused.
//!
//! In half of the histories all of it happens in a transaction, instead of mainline. In the others
//! there is a clone, which mainline writes to and transactions read: one more directory.

mod checker;

use super::clones::shown;
use super::*;
use checker::{Committed, Object, Value, find_cycle, stale_reads};
use std::collections::{BTreeMap, BTreeSet};
use stitch_fs::{CloneSource, LiveView, TransactionIsolation};

const DIRS: usize = 3;
/// Index of the directory of the clone.
const CLONE: usize = DIRS;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const WORKERS: usize = 4;
const STEPS: usize = 160;

type State = BTreeMap<Object, Value>;

/// A small generator of numbers (xorshift64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).expect("an index")
    }
}

/// An open transaction, or mainline during one operation.
struct Work {
    /// Number of commits before it began.
    begun: usize,
    /// What it began with, and its writes.
    state: State,
    reads: State,
    written: BTreeSet<Object>,
}

impl Work {
    fn new(begun: usize, state: &State) -> Self {
        Self {
            begun,
            state: state.clone(),
            reads: State::new(),
            written: BTreeSet::new(),
        }
    }

    /// Takes a read: it must be what the state says.
    fn read(&mut self, object: Object, value: Value) {
        let expected = self.state.get(&object).copied().unwrap_or_default();
        assert_eq!(value, expected, "{object:?}");
        if !self.written.contains(&object) {
            self.reads.insert(object, value);
        }
    }

    fn write(&mut self, object: Object, value: Value) {
        self.state.insert(object, value);
        self.written.insert(object);
    }

    /// What is other than at the beginning.
    fn changes(&self, began_with: &State) -> State {
        let old = |object: &Object| began_with.get(object).copied().unwrap_or_default();
        let written = self
            .written
            .iter()
            .map(|object| (*object, self.state[object]));
        written
            .filter(|(object, value)| old(object) != *value)
            .collect()
    }
}

struct History {
    rng: Rng,
    setup: Arc<Setup>,
    /// The transaction in which all of it happens, instead of mainline.
    outer: Option<Arc<TransactionView>>,
    isolation: TransactionIsolation,
    dirs: Vec<Ino>,
    clone: Option<Arc<LiveView>>,
    /// Numbers of files, by inode, of the clone or not.
    ids: BTreeMap<(bool, Ino), Value>,
    next: Value,
    /// As mainline is, and as it was before each commit.
    state: State,
    before: Vec<State>,
    committed: Vec<Committed>,
    conflicts: usize,
    rebases: usize,
}

type Slot = (usize, usize);

impl History {
    fn new(seed: u64, isolation: TransactionIsolation) -> Self {
        let setup = setup();
        let names = ["x", "y", "z"];
        let mut dirs = names.map(|name| dir(&setup.fs, ROOT, name)).to_vec();
        assert_eq!(dirs.len(), DIRS);
        let clone = (!seed.is_multiple_of(2)).then(|| make_clone(&setup, dirs[0]));
        dirs.extend(clone.iter().map(|clone| clone.info().root));
        let outer = seed.is_multiple_of(2).then(|| {
            let outer = begin(&setup, "outer");
            // Its directories are known.
            for name in names {
                ino(outer.fs(), name);
            }
            outer
        });
        Self {
            rng: Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            setup: Arc::new(setup),
            outer,
            isolation,
            dirs,
            clone,
            ids: BTreeMap::new(),
            next: 0,
            state: State::new(),
            before: Vec::new(),
            committed: Vec::new(),
            conflicts: 0,
            rebases: 0,
        }
    }

    fn fresh(&mut self) -> Value {
        self.next += 1;
        self.next
    }

    fn slot(&mut self) -> Slot {
        (self.rng.below(DIRS), self.rng.below(NAMES.len()))
    }

    fn at(&self, slot: Slot) -> stitch_fs::DirName<'static> {
        at(self.dirs[slot.0], NAMES[slot.1])
    }

    /// A name in the directory of another one, or in any but that of the clone.
    fn slot_beside(&mut self, slot: Slot) -> Slot {
        let (dir, name) = self.slot();
        match slot.0 {
            CLONE => (CLONE, name),
            _ => (dir, name),
        }
    }

    /// Looks a name up: which file it stands for, and the owner of that.
    fn look(&self, fs: &FileSystem, work: &mut Work, slot: Slot) -> Option<(Ino, Value)> {
        let object = Object::Name(slot.0, slot.1);
        match fs.lookup(self.at(slot)) {
            Ok(attr) => {
                let id = self.ids[&(slot.0 == CLONE, attr.ino)];
                work.read(object, id);
                work.read(Object::Owner(id), Value::from(attr.uid));
                Some((attr.ino, id))
            }
            Err(FsError::NotFound) => {
                work.read(object, 0);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn list(&self, fs: &FileSystem, work: &mut Work, dir: usize) {
        let listed = names_in(fs, self.dirs[dir]);
        for (index, name) in NAMES.iter().enumerate() {
            let object = Object::Name(dir, index);
            let is_there = work.state.get(&object).copied().unwrap_or_default() != 0;
            assert_eq!(
                listed.iter().any(|listed| listed == name),
                is_there,
                "{object:?}"
            );
            let value = work.state.get(&object).copied().unwrap_or_default();
            work.read(object, value);
        }
    }

    fn make(&mut self, fs: &FileSystem, work: &mut Work, slot: Slot) {
        let (id, byte) = (self.fresh(), self.fresh());
        let made = fs.create(&SUPER, self.at(slot), &new(0o644));
        let ino = made.expect("it is missing").ino;
        self.ids.insert((slot.0 == CLONE, ino), id);
        write(fs, ino, &byte.to_le_bytes());
        work.write(Object::Name(slot.0, slot.1), id);
        work.write(Object::Data(id), byte);
        work.write(Object::Owner(id), 0);
    }

    fn chown(&mut self, fs: &FileSystem, work: &mut Work, (ino, id): (Ino, Value)) {
        let owner = self.fresh();
        let set = SetAttr {
            uid: Some(u32::try_from(owner).expect("small")),
            ..SetAttr::default()
        };
        fs.set_attr(&SUPER, ino, &set).expect("it is known");
        work.write(Object::Owner(id), owner);
    }

    /// One operation on a file that a name may stand for.
    fn step_on_file(&mut self, fs: &FileSystem, work: &mut Work, slot: Slot) {
        let found = self.look(fs, work, slot);
        let what = self.rng.below(8);
        let Some((ino, id)) = found else {
            if what < 5 {
                self.make(fs, work, slot);
            }
            return;
        };
        match what {
            0..3 => {
                let data = contents_of(fs, ino).try_into().expect("eight bytes");
                work.read(Object::Data(id), Value::from_le_bytes(data));
            }
            3..5 => {
                let value = self.fresh();
                write(fs, ino, &value.to_le_bytes());
                work.write(Object::Data(id), value);
            }
            5 => self.chown(fs, work, (ino, id)),
            6 => {
                fs.unlink(&SUPER, self.at(slot)).expect("it is there");
                work.write(Object::Name(slot.0, slot.1), 0);
            }
            _ => {
                let target = self.slot_beside(slot);
                self.look(fs, work, target);
                let (from, to) = (self.at(slot), self.at(target));
                let moved = fs.rename(&SUPER, from, to, RenameMode::Replace);
                moved.expect("both are files");
                work.write(Object::Name(slot.0, slot.1), 0);
                work.write(Object::Name(target.0, target.1), id);
            }
        }
        if self.rng.below(4) == 0 {
            fs.forget(ino, u64::MAX);
        }
    }

    fn step(&mut self, fs: &FileSystem, work: &mut Work) {
        if self.rng.below(8) == 0 {
            let dir = self.rng.below(DIRS);
            return self.list(fs, work, dir);
        }
        let slot = self.slot();
        self.step_on_file(fs, work, slot);
    }

    /// Reads something in the clone that a transaction shows.
    fn step_in_clone(&mut self, view: &TransactionView, work: &mut Work) {
        let (_past, part) = shown(&self.setup, view, "c");
        if self.rng.below(4) == 0 {
            return self.list(part.fs(), work, CLONE);
        }
        let slot = (CLONE, self.rng.below(NAMES.len()));
        let found = self.look(part.fs(), work, slot);
        if let Some((ino, id)) = found.filter(|_| self.rng.below(3) > 0) {
            let data = contents_of(part.fs(), ino).try_into().expect("eight bytes");
            work.read(Object::Data(id), Value::from_le_bytes(data));
        }
    }

    /// Decides whether the next step is in the clone, if there is one.
    fn is_in_clone(&mut self) -> bool {
        self.clone.is_some() && self.rng.below(4) == 0
    }

    fn step_mainline(&mut self) {
        let mut work = Work::new(self.committed.len(), &self.state);
        if self.is_in_clone() {
            let clone = self.clone.clone().expect("there is one");
            let slot = (CLONE, self.rng.below(NAMES.len()));
            self.step_on_file(clone.fs(), &mut work, slot);
            return self.note_commit(&work);
        }
        let slot = self.slot();
        let (setup, outer) = (Arc::clone(&self.setup), self.outer.clone());
        let fs = outer.as_ref().map_or(&setup.fs, |outer| outer.fs());
        self.step_on_file(fs, &mut work, slot);
        self.note_commit(&work);
    }

    fn note_commit(&mut self, work: &Work) {
        let began_with = self.state_at(work.begun).clone();
        let writes = work.changes(&began_with);
        for object in writes.keys() {
            let value = |state: &State| state.get(object).copied().unwrap_or_default();
            let same = value(&began_with) == value(&self.state);
            assert!(same, "{object:?}: the first committer wins");
        }
        self.before.push(self.state.clone());
        self.state.extend(&writes);
        self.committed.push(Committed {
            begun: work.begun,
            reads: work.reads.clone(),
            writes,
        });
    }

    fn state_at(&self, commits: usize) -> &State {
        self.before.get(commits).unwrap_or(&self.state)
    }
}

/// An open transaction.
struct Open {
    view: Arc<TransactionView>,
    work: Work,
    left: usize,
}

impl History {
    fn begin(&mut self, number: usize) -> Open {
        let options = BeginOptions {
            isolation: self.isolation,
            outer: self.outer.as_ref().map(|outer| outer.info().number),
            ..BeginOptions::default()
        };
        let name = format!("work{number}");
        let view = self.setup.fs.transactions().begin(&name, &options);
        let view = view.expect("it begins");
        look_up_dirs(&view);
        Open {
            view,
            work: Work::new(self.committed.len(), &self.state),
            left: 1 + self.rng.below(6),
        }
    }

    /// Has a transaction go on from now, unless it conflicts.
    fn rebase(&mut self, open: &mut Open) {
        let rebased = match self.setup.fs.transactions().rebase(&open.view) {
            Ok(rebased) => rebased,
            Err(FsError::Conflict(_)) => return,
            Err(error) => panic!("{error}"),
        };
        look_up_dirs(&rebased);
        let (view, work) = (rebased, &mut open.work);
        open.view = view;
        for (object, value) in &work.reads {
            let now = self.state.get(object).copied().unwrap_or_default();
            assert_eq!(now, *value, "{object:?} was read");
        }
        let began_with = self.before.get(work.begun).unwrap_or(&self.state);
        let writes = work.changes(began_with);
        work.begun = self.committed.len();
        work.written = writes.keys().copied().collect();
        work.state = self.state.clone();
        work.state.extend(&writes);
        self.rebases += 1;
    }

    fn end(&mut self, open: &Open) {
        match self.setup.fs.transactions().commit(&open.view) {
            Ok(_) => {
                self.note_commit(&open.work);
                self.compare();
            }
            Err(FsError::Conflict(_)) => {
                self.conflicts += 1;
                let number = open.view.info().number;
                let aborted = self.setup.fs.transactions().abort_number(number);
                aborted.expect("it is open");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Mainline is what the map says.
    fn compare(&self) {
        let mut work = Work::new(self.committed.len(), &self.state);
        let outer = self.outer.as_ref();
        let fs = outer.map_or(&self.setup.fs, |outer| outer.fs());
        for slot in (0..DIRS).flat_map(|dir| (0..NAMES.len()).map(move |name| (dir, name))) {
            self.compare_file(fs, &mut work, slot);
        }
        for name in (0..NAMES.len()).filter(|_| self.clone.is_some()) {
            let clone = self.clone.as_ref().expect("there is one");
            self.compare_file(clone.fs(), &mut work, (CLONE, name));
        }
    }

    fn compare_file(&self, fs: &FileSystem, work: &mut Work, slot: Slot) {
        if let Some((ino, id)) = self.look(fs, work, slot) {
            let data = contents_of(fs, ino).try_into().expect("eight bytes");
            work.read(Object::Data(id), Value::from_le_bytes(data));
        }
    }

    fn run(&mut self) {
        let mut open: Vec<Open> = (0..WORKERS).map(|number| self.begin(number)).collect();
        for number in WORKERS..STEPS {
            let index = self.rng.below(WORKERS + 1);
            let Some(chosen) = open.get_mut(index) else {
                self.step_mainline();
                continue;
            };
            // With snapshot isolation what was read before a rebase need not hold after it.
            let may_rebase = self.isolation == TransactionIsolation::Serializable;
            if may_rebase && self.rng.below(6) == 0 {
                self.rebase(chosen);
            }
            let view = Arc::clone(&chosen.view);
            match self.is_in_clone() {
                true => self.step_in_clone(&view, &mut chosen.work),
                false => self.step(view.fs(), &mut chosen.work),
            }
            chosen.left -= 1;
            if chosen.left == 0 {
                self.end(&open[index]);
                open[index] = self.begin(number);
            }
        }
        self.setup.check();
        let Some(outer) = self.outer.take() else {
            return;
        };
        for open in open {
            let number = open.view.info().number;
            let aborted = self.setup.fs.transactions().abort_number(number);
            aborted.expect("it is open");
        }
        commit(&self.setup, &outer);
        self.compare();
    }
}

/// Makes an empty clone of a directory, `c`.
fn make_clone(setup: &Setup, dir: Ino) -> Arc<LiveView> {
    let source = CloneSource {
        fs: &setup.fs,
        dir,
        snapshot: None,
    };
    let made = setup.fs.make_clone(&SUPER, &source, at(ROOT, "c"));
    let made = made.expect("a clone is made");
    setup.fs.open_clone(made.number).expect("it opens")
}

fn look_up_dirs(view: &TransactionView) {
    for name in ["x", "y", "z"] {
        view.fs().lookup(at(ROOT, name)).expect("it is there");
    }
}

/// Number of histories: fewer on an engine that writes to a device.
fn seeds() -> u64 {
    let engine = std::any::type_name::<crate::engine::TestEngine>();
    if engine.ends_with("ModelEngine") {
        60
    } else {
        12
    }
}

fn histories(isolation: TransactionIsolation, seeds: u64) -> Vec<History> {
    let run = |seed| {
        println!("seed {seed}, {isolation:?}");
        let mut history = History::new(seed, isolation);
        history.run();
        history
    };
    (1..=seeds).map(run).collect()
}

#[test]
fn serializable_histories_have_a_serial_order() {
    let all = histories(TransactionIsolation::Serializable, seeds());
    for (index, history) in all.iter().enumerate() {
        let (committed, before) = (&history.committed, &history.before);
        assert_eq!(stale_reads(committed, before), [], "history {index}");
        assert_eq!(find_cycle(committed, before), None, "history {index}");
    }
    let sum = |of: fn(&History) -> usize| all.iter().map(of).sum::<usize>();
    let (commits, conflicts) = (sum(|it| it.committed.len()), sum(|it| it.conflicts));
    let least = all.len();
    assert!(commits > 16 * least, "{commits} commits");
    assert!(conflicts > 3 * least, "{conflicts} conflicts");
    let rebases = sum(|it| it.rebases);
    assert!(rebases > 3 * least, "{rebases} rebases");
}

/// Snapshot isolation is serializability without the validation of reads: the checks find what it
/// allows.
#[test]
fn histories_without_validation_are_found_not_to_be_serializable() {
    let all = histories(TransactionIsolation::Snapshot, seeds());
    let has_cycle = |it: &&History| find_cycle(&it.committed, &it.before).is_some();
    let cycles = all.iter().filter(has_cycle).count();
    let first = all.iter().take(12).filter(has_cycle).count();
    assert!(first > 0, "{cycles} of {} have a cycle", all.len());
    let is_stale = |it: &&History| !stale_reads(&it.committed, &it.before).is_empty();
    assert!(all.iter().filter(is_stale).count() >= cycles);
}
