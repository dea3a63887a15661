//! A crash at every sync and at every write of a life whose temporary branches get batches that
//! become tables: of a branch that was not absorbed nothing is left, of the others all of it.

mod common;

use common::{MIB, format, open};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, Guards, KeyRange, KvError, NewBranch, TreeOptions,
};
use stitch_vt::{VtEngine, VtOptions};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
/// The rows of each tree that lasts, by its name.
type State = BTreeMap<String, Rows>;

const NAMES: [&str; 2] = ["one", "two"];

fn options() -> VtOptions {
    VtOptions {
        absorb_copy_bytes_max: 0,
        batch_table_bytes_min: 4 << 10,
        memory_bytes: 16 * MIB,
        memtable_bytes: Some(32 << 10),
        table_bytes: Some(16 << 10),
        level1_bytes: Some(32 << 10),
        background: false,
        level0_tables_max: 4,
        is_paranoid: true,
        ..VtOptions::default()
    }
}

fn rows_of(engine: &VtEngine, tree: TreeId) -> Result<Rows, KvError> {
    let mut scan = engine.scan(tree, KeyRange::all(), Direction::Forward, None)?;
    let mut rows = Rows::new();
    while let Some((key, value)) = scan.next()? {
        rows.insert(key.to_vec(), value.to_vec());
    }
    Ok(rows)
}

fn state(engine: &VtEngine) -> State {
    let trees = engine.trees().into_iter();
    let lasting = trees.filter(|info| !info.name.starts_with("temporary"));
    lasting
        .map(|info| (info.name, rows_of(engine, info.id).expect("it reads")))
        .collect()
}

/// Rows in the order of their keys, behind a deleted range.
fn batch(tree: TreeId, seed: u64) -> Batch<'static> {
    let mut rng = Rng::new(seed);
    let mut batch = Batch::new();
    let from = rng.below(60);
    batch.delete_range(tree, &from.to_be_bytes(), &(from + 3).to_be_bytes());
    for key in 0..60u64 {
        if rng.one_in(2) {
            let mut value = vec![0; 600];
            rng.fill(&mut value);
            batch.put(tree, &key.to_be_bytes(), &value);
        }
    }
    batch
}

/// The life: one durable step after the other.
struct Life<'a> {
    engine: &'a VtEngine,
    /// The state before the first step and after each that returned.
    states: Vec<State>,
}

impl Life<'_> {
    fn id(&self, name: &str) -> TreeId {
        let trees = self.engine.trees();
        let found = trees.iter().find(|tree| tree.name == name);
        found.expect("it is there").id
    }

    fn branch(&self, parent: &str, name: &str) -> Result<TreeId, KvError> {
        let new = [NewBranch::temporary(self.id(parent), name)];
        Ok(self.engine.branch_trees(&new, None)?[0])
    }

    /// Batches that become tables. Then the branch holds what was written to it.
    fn fill(&self, tree: TreeId, seeds: std::ops::Range<u64>) -> Result<(), KvError> {
        let mut expected = rows_of(self.engine, tree)?;
        for seed in seeds {
            let batch = batch(tree, seed);
            self.engine.commit(&batch, CommitOptions::default())?;
            for (_, message) in batch.messages() {
                match message {
                    stitch_kv::Message::Put { key, value } => {
                        expected.insert(key.to_vec(), value.to_vec());
                    }
                    stitch_kv::Message::DeleteRange { start, end } => {
                        expected.retain(|key, _| **key < *start || **key >= *end);
                    }
                    _ => unreachable!("there are no others"),
                }
            }
        }
        assert!(
            rows_of(self.engine, tree)? == expected,
            "the branch has all"
        );
        Ok(())
    }

    /// Writes to a tree that lasts, synced.
    fn write(&mut self, name: &str, seed: u64) -> Result<(), KvError> {
        let synced = CommitOptions {
            sync: true,
            ..CommitOptions::default()
        };
        self.engine.commit(&batch(self.id(name), seed), synced)?;
        self.states.push(state(self.engine));
        Ok(())
    }

    fn absorb(&mut self, branches: &[TreeId]) -> Result<(), KvError> {
        let none = Guards::since(&self.engine.snapshot());
        let mut batch = Batch::new();
        batch.put(self.id("two"), b"absorbed", &branches[0].0.to_be_bytes());
        let options = CommitOptions::default();
        self.engine.absorb(branches, &batch, &none, options)?;
        self.states.push(state(self.engine));
        Ok(())
    }

    fn work(&mut self) -> Result<(), KvError> {
        let first = self.branch("one", "temporary 1")?;
        self.fill(first, 10..14)?;
        // Write-outs and edits of others meanwhile.
        self.write("one", 50)?;
        self.engine.quiesce()?;
        self.fill(first, 14..16)?;
        self.absorb(&[first])?;
        let aborted = self.branch("two", "temporary 2")?;
        self.fill(aborted, 20..23)?;
        self.engine.create_pin("pin", b"")?;
        let second = self.branch("one", "temporary 3")?;
        self.fill(second, 23..34)?;
        self.engine.drop_tree(aborted)?;
        self.write("two", 51)?;
        let nested = self.branch("temporary 3", "temporary 4")?;
        self.fill(nested, 34..36)?;
        let none = Guards::since(&self.engine.snapshot());
        let options = CommitOptions::default();
        self.engine
            .absorb(&[nested], &Batch::new(), &none, options)?;
        self.engine.quiesce()?;
        let third = self.branch("two", "temporary 5")?;
        self.fill(third, 36..37)?;
        self.absorb(&[second, third])?;
        self.engine.drop_pin("pin")?;
        self.engine.quiesce()?;
        // A parent that only a temporary branch reads is gone with a crash.
        let left = self.branch("two", "temporary 6")?;
        self.fill(left, 37..39)?;
        self.engine.drop_tree(self.id("two"))?;
        self.states.push(state(self.engine));
        self.write("one", 52)?;
        self.engine.quiesce()?;
        self.fill(left, 39..40)
    }
}

/// A store with two trees of some rows, killed.
fn image() -> MemDevice {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options());
    for (name, seed) in NAMES.into_iter().zip(1..) {
        let made = engine.create_tree(name, &TreeOptions::default());
        let tree = made.expect("it is made");
        let done = engine.commit(&batch(tree, seed), CommitOptions::default());
        done.expect("there is room");
    }
    engine.sync().expect("the device syncs");
    drop(engine);
    MemDevice::clone(&device)
}

/// Opens what a crash left, twice: it is one of the possible states, no branch is there, and no
/// space is lost. Returns it.
fn check(image: MemDevice, possible: &[State]) -> State {
    let device = Arc::new(image);
    let engine = open(device.clone(), options());
    let found = state(&engine);
    assert!(
        possible.contains(&found),
        "{:?} hold something else",
        found.keys()
    );
    assert_eq!(engine.trees().len(), found.len(), "no branch is left");
    assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
    let owned_bytes = engine.holdings().owned_bytes();
    assert_eq!(engine.volume().zones().usage().live, owned_bytes);
    drop(engine);
    let engine = open(device, options());
    engine.quiesce().expect("background work succeeds");
    assert!(state(&engine) == found, "the next life sees the same");
    let trees: Vec<TreeId> = engine.trees().iter().map(|tree| tree.id).collect();
    engine.drop_trees(&trees).expect("they go");
    let pins = engine.pins().expect("they are listed");
    pins.iter()
        .for_each(|pin| engine.drop_pin(&pin.name).expect("it goes"));
    engine.quiesce().expect("background work succeeds");
    assert_eq!(engine.holdings().owned_bytes(), 0, "no tree owns anything");
    found
}

/// Lives, with a crash by this plan. Returns what the life knew, and whether it ended early.
fn live(device: &Arc<CrashDevice>, plan: CrashPlan) -> Vec<State> {
    let engine = open(Arc::clone(device) as Arc<dyn Device>, options());
    let mut life = Life {
        states: vec![state(&engine)],
        engine: &engine,
    };
    device.set_plan(plan);
    let worked = life.work();
    assert!(worked.is_ok() || device.is_stopped(), "{worked:?}");
    let tables = engine.counters().get("vt.table_batches");
    assert!(device.is_stopped() || tables > 25, "{tables} batches");
    life.states
}

/// Returns how many states crashes left, and how many there are.
fn crash(plan: fn(u64) -> CrashPlan) -> (usize, usize) {
    let image = image();
    let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
    let all = live(&device, CrashPlan::NEVER);
    let mut rng = Rng::new(3);
    let mut met = BTreeSet::new();
    for nth in 1.. {
        let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        let states = live(&device, plan(nth));
        let done = states.len() - 1;
        assert!(states == all[..=done], "each life does the same");
        // A step that was begun and did not return may have come about.
        let possible = &all[done..(done + 2).min(all.len())];
        for image in [device.crash_image(&mut rng), device.kill_image()] {
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
    let (met, all) = crash(CrashPlan::at_sync);
    assert_eq!(met, all, "a crash left each of the states");
}

#[test]
fn at_every_write() {
    let (met, all) = crash(CrashPlan::at_write);
    assert!(met > all / 2, "{met} of {all} states");
}
