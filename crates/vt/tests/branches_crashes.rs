//! A crash at every sync and at many writes of a life that makes, writes, absorbs and drops branch
//! trees.

mod common;

use common::{MIB, format, open};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, MemDevice};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, Guards, KeyRange, KvError, NewBranch, TreeOptions,
};
use stitch_vt::{VtEngine, VtOptions};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
/// The rows of each tree, by its name.
type State = BTreeMap<String, Rows>;

/// What is written to branches is moved to their parents if it takes more bytes than this.
fn options(copied_bytes: u64) -> VtOptions {
    VtOptions {
        absorb_copy_bytes_max: copied_bytes,
        memory_bytes: 16 * MIB,
        memtable_bytes: Some(32 << 10),
        table_bytes: Some(16 << 10),
        level1_bytes: Some(32 << 10),
        background: false,
        level0_tables_max: 4,
        ..VtOptions::default()
    }
}

/// Some rows, and a deleted range.
fn batch(tree: TreeId, seed: u64) -> Batch<'static> {
    let mut rng = Rng::new(seed);
    let mut batch = Batch::new();
    for _ in 0..25 {
        let mut value = vec![0; 600];
        rng.fill(&mut value);
        batch.put(tree, &rng.below(60).to_be_bytes(), &value);
    }
    let from = rng.below(60);
    batch.delete_range(tree, &from.to_be_bytes(), &(from + 3).to_be_bytes());
    batch
}

fn state(engine: &VtEngine) -> State {
    let mut state = State::new();
    for info in engine.trees() {
        let scan = engine.scan(info.id, KeyRange::all(), Direction::Forward, None);
        let mut scan = scan.expect("a scan begins");
        let mut rows = Rows::new();
        while let Some((key, value)) = scan.next().expect("it reads") {
            rows.insert(key.to_vec(), value.to_vec());
        }
        state.insert(info.name, rows);
    }
    state
}

/// The life: one durable step after the other.
struct Life<'a> {
    engine: &'a VtEngine,
    /// The state before the first step and after each that returned.
    states: Vec<State>,
}

impl Life<'_> {
    fn done(&mut self) {
        self.states.push(state(self.engine));
    }

    fn id(&self, name: &str) -> TreeId {
        let trees = self.engine.trees();
        let found = trees.iter().find(|tree| tree.name == name);
        found.expect("it is there").id
    }

    fn branch(&mut self, of: &[(&str, &str)]) -> Result<(), KvError> {
        let new = of
            .iter()
            .map(|(parent, name)| NewBranch::new(self.id(parent), name));
        let new: Vec<_> = new.collect();
        self.engine.branch_trees(&new, None)?;
        self.done();
        Ok(())
    }

    fn write(&mut self, name: &str, seed: u64) -> Result<(), KvError> {
        let synced = CommitOptions {
            sync: true,
            ..CommitOptions::default()
        };
        self.engine.commit(&batch(self.id(name), seed), synced)?;
        self.done();
        Ok(())
    }

    /// Gives what was written to branches to their parents, and a row more to the tree "two".
    fn absorb(&mut self, names: &[&str]) -> Result<(), KvError> {
        let trees: Vec<TreeId> = names.iter().map(|name| self.id(name)).collect();
        let none = Guards::since(&self.engine.snapshot());
        let mut batch = Batch::new();
        batch.put(self.id("two"), b"absorbed", names[0].as_bytes());
        let options = CommitOptions::default();
        self.engine.absorb(&trees, &batch, &none, options)?;
        self.done();
        Ok(())
    }

    fn drop_trees(&mut self, names: &[&str]) -> Result<(), KvError> {
        let trees: Vec<TreeId> = names.iter().map(|name| self.id(name)).collect();
        self.engine.drop_trees(&trees)?;
        self.done();
        Ok(())
    }

    fn work(&mut self) -> Result<(), KvError> {
        self.branch(&[("one", "child of one"), ("two", "child of two")])?;
        self.write("one", 20)?;
        self.write("child of one", 21)?;
        self.engine.quiesce()?;
        self.write("child of two", 22)?;
        self.branch(&[("child of one", "grandchild")])?;
        self.write("child of one", 23)?;
        self.write("grandchild", 24)?;
        self.drop_trees(&["one", "child of one"])?;
        self.engine.quiesce()?;
        self.write("grandchild", 25)?;
        self.drop_trees(&["grandchild"])?;
        self.engine.quiesce()?;
        self.branch(&[("two", "absorbed"), ("child of two", "absorbed too")])?;
        self.write("absorbed", 27)?;
        self.write("two", 28)?;
        self.engine.quiesce()?;
        self.write("absorbed", 29)?;
        self.absorb(&["absorbed"])?;
        self.write("absorbed too", 30)?;
        self.absorb(&["absorbed too"])?;
        self.engine.quiesce()?;
        self.drop_trees(&["two"])?;
        self.write("child of two", 26)?;
        self.engine.quiesce()
    }
}

/// A store with rows in tables and in the log, killed.
fn image() -> MemDevice {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options(u64::MAX));
    for (seed, name) in (1..).zip(["one", "two"]) {
        let made = engine.create_tree(name, &TreeOptions::default());
        let tree = made.expect("it is made");
        for seed in [seed, seed + 10] {
            let done = engine.commit(&batch(tree, seed), CommitOptions::default());
            done.expect("there is room");
            engine.quiesce().expect("background work succeeds");
        }
        let done = engine.commit(&batch(tree, seed + 5), CommitOptions::default());
        done.expect("there is room");
    }
    engine.sync().expect("the device syncs");
    drop(engine);
    MemDevice::clone(&device)
}

/// Opens what a crash left: it is as it was after the last step that returned, or after the one
/// that was begun. Returns it.
fn check(image: MemDevice, possible: &[State]) -> State {
    let device = Arc::new(image);
    let mut found = State::new();
    for is_again in [false, true] {
        let engine = open(device.clone(), options(u64::MAX));
        found = state(&engine);
        let names: Vec<&String> = found.keys().collect();
        assert!(possible.contains(&found), "{names:?} hold something else");
        assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
        engine.quiesce().expect("background work succeeds");
        assert!(state(&engine) == found, "a compaction changed {names:?}");
        if is_again {
            let trees: Vec<TreeId> = engine.trees().iter().map(|tree| tree.id).collect();
            engine.drop_trees(&trees).expect("they go");
            engine.quiesce().expect("background work succeeds");
            assert_eq!(engine.holdings().owned_bytes(), 0, "no tree owns anything");
        }
    }
    found
}

/// Returns the states of a life without a crash.
fn whole_life(image: &MemDevice, copied_bytes: u64) -> Vec<State> {
    let device = Arc::new(CrashDevice::from_image(image, CrashPlan::NEVER));
    let engine = open(device, options(copied_bytes));
    let mut life = Life {
        states: vec![state(&engine)],
        engine: &engine,
    };
    life.work().expect("nothing fails");
    life.states
}

/// Returns how many states crashes left, and how many there are.
fn crash(plan: fn(u64) -> CrashPlan, step: usize, copied_bytes: u64) -> (usize, usize) {
    let image = image();
    let all = whole_life(&image, copied_bytes);
    let mut rng = Rng::new(3);
    let mut met = BTreeSet::new();
    for nth in (1..).step_by(step) {
        let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        let engine = open(device.clone(), options(copied_bytes));
        device.set_plan(plan(nth));
        let mut life = Life {
            states: vec![state(&engine)],
            engine: &engine,
        };
        let worked = life.work();
        assert!(worked.is_ok() || device.is_stopped(), "{worked:?}");
        let done = life.states.len() - 1;
        assert!(life.states == all[..=done], "each life does the same");
        // A step that was begun and did not return may have come about.
        let possible = &all[done..(done + 2).min(all.len())];
        drop(engine);
        let images = [device.crash_image(&mut rng), device.kill_image()];
        for image in images {
            let found = check(image, possible);
            met.extend(all.iter().position(|state| *state == found));
        }
        if !device.is_stopped() {
            break;
        }
    }
    (met.len(), all.len())
}

#[test]
fn at_every_sync() {
    let (met, all) = crash(CrashPlan::at_sync, 1, u64::MAX);
    assert_eq!(met, all, "a crash left each of the states");
}

#[test]
fn at_many_writes() {
    let (met, all) = crash(CrashPlan::at_write, 5, u64::MAX);
    assert!(met > all / 2, "{met} of {all} states");
}

#[test]
fn at_every_sync_where_tables_are_moved() {
    let (met, all) = crash(CrashPlan::at_sync, 1, 0);
    assert_eq!(met, all, "a crash left each of the states");
}

#[test]
fn at_many_writes_where_tables_are_moved() {
    let (met, all) = crash(CrashPlan::at_write, 5, 0);
    assert!(met > all / 2, "{met} of {all} states");
}
