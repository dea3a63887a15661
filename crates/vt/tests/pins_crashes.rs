//! A crash at every sync and at many writes of a life that makes, narrows and drops pins beside
//! compactions.

mod common;

use common::{MIB, format, open};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, MemDevice};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, KeyRanges, KvError, PinInfo, PinRanges,
    Snapshot, TreeInfo, TreeOptions,
};
use stitch_vt::{VtEngine, VtOptions};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> VtOptions {
    VtOptions {
        memory_bytes: 16 * MIB,
        memtable_bytes: Some(32 << 10),
        table_bytes: Some(16 << 10),
        level1_bytes: Some(32 << 10),
        background: false,
        level0_tables_max: 4,
        ..VtOptions::default()
    }
}

fn put(engine: &VtEngine, tree: TreeId, seed: u64) -> Result<(), KvError> {
    let mut rng = Rng::new(seed);
    for _ in 0..6 {
        let mut batch = Batch::new();
        for _ in 0..8 {
            let mut value = vec![0; 600];
            rng.fill(&mut value);
            batch.put(tree, &rng.below(120).to_be_bytes(), &value);
        }
        let from = rng.below(120);
        batch.delete_range(tree, &from.to_be_bytes(), &(from + 3).to_be_bytes());
        engine.commit(&batch, CommitOptions::default())?;
    }
    Ok(())
}

fn rows(engine: &VtEngine, tree: TreeId, at: Option<&Snapshot>) -> Result<Rows, KvError> {
    let mut scan = engine.scan(tree, KeyRange::all(), Direction::Forward, at)?;
    let mut rows = Rows::new();
    while let Some((key, value)) = scan.next()? {
        rows.insert(key.to_vec(), value.to_vec());
    }
    Ok(rows)
}

/// The rows that a pin holds of a tree.
fn held_rows(engine: &VtEngine, tree: TreeId, pin: &PinInfo) -> Result<Rows, KvError> {
    let at = engine.open_pin(&pin.name)?;
    let Some(ranges) = pin.ranges.get(&tree) else {
        return rows(engine, tree, Some(&at));
    };
    let mut rows = Rows::new();
    for range in ranges.iter() {
        let mut scan = engine.scan(tree, range, Direction::Forward, Some(&at))?;
        while let Some((key, value)) = scan.next()? {
            rows.insert(key.to_vec(), value.to_vec());
        }
    }
    Ok(rows)
}

/// The name of a pin without the star that it has here once it was narrowed.
fn plain(name: &str) -> &str {
    name.trim_end_matches('*')
}

/// What each pin sees, by its name: the rows of trees.
type Seen = BTreeMap<&'static str, BTreeMap<TreeId, Rows>>;

/// The life: one step after the other, with what every pin saw when it was made.
struct Life<'a> {
    engine: &'a VtEngine,
    trees: [TreeId; 2],
    seen: Seen,
    /// Names of pins after each change that was begun.
    pins: Vec<Vec<&'static str>>,
    /// Number of the last change that returned.
    done: usize,
}

/// The key whose value is the number of the last change that was begun.
const MARK: &[u8] = b"mark";

impl Life<'_> {
    /// Notes the pins after a change that begins, and commits its number: without a sync.
    fn begin(&mut self, pins: Vec<&'static str>) -> Result<(), KvError> {
        let number = [u8::try_from(self.pins.len()).expect("few changes")];
        self.pins.push(pins);
        let mut batch = Batch::new();
        batch.put(self.trees[0], MARK, &number);
        self.engine.commit(&batch, CommitOptions::default())?;
        Ok(())
    }

    fn create(&mut self, name: &'static str) -> Result<(), KvError> {
        self.create_of(name, &|_| true)
    }

    /// Creates a pin of some trees.
    fn create_of(
        &mut self,
        name: &'static str,
        is_held: &dyn Fn(&TreeInfo) -> bool,
    ) -> Result<(), KvError> {
        let listed = self.engine.trees().into_iter().filter(is_held);
        let listed: Vec<TreeId> = listed.map(|tree| tree.id).collect();
        let mut next = self.pins.last().cloned().unwrap_or_default();
        next.push(name);
        self.begin(next)?;
        let mut sees = BTreeMap::new();
        for tree in listed {
            sees.insert(tree, rows(self.engine, tree, None)?);
        }
        self.seen.insert(name, sees);
        self.engine.create_pin_of(name, name.as_bytes(), is_held)?;
        self.done += 1;
        Ok(())
    }

    fn drop_pin(&mut self, name: &'static str) -> Result<(), KvError> {
        let mut next = self.pins.last().cloned().unwrap_or_default();
        next.retain(|other| *other != name);
        self.begin(next)?;
        self.engine.drop_pin(plain(name))?;
        self.done += 1;
        Ok(())
    }

    /// Narrows a pin to some keys of a tree. From then on it has the second name.
    fn narrow(
        &mut self,
        (name, narrowed): (&'static str, &'static str),
        tree: TreeId,
        keys: std::ops::Range<u64>,
    ) -> Result<(), KvError> {
        let [start, end] = [keys.start, keys.end].map(|key| key.to_be_bytes().to_vec());
        let ranges = KeyRanges::new([(start, Some(end))]);
        let mut sees = self.seen[name].clone();
        let rows = sees.get_mut(&tree).expect("a tree of the pin");
        rows.retain(|key, _| ranges.has(key));
        self.seen.insert(narrowed, sees);
        let mut next = self.pins.last().cloned().unwrap_or_default();
        let is_it = |other: &&mut &'static str| **other == name;
        *next.iter_mut().find(is_it).expect("it is there") = narrowed;
        self.begin(next)?;
        let ranges = PinRanges::from([(tree, ranges)]);
        self.engine.narrow_pin(name, &ranges)?;
        self.done += 1;
        Ok(())
    }

    fn work(&mut self) -> Result<(), KvError> {
        let [tree, other] = self.trees;
        self.create("first")?;
        self.create_of("of other", &|info| info.id == other)?;
        put(self.engine, tree, 10)?;
        put(self.engine, other, 11)?;
        self.engine.quiesce()?;
        self.create("second")?;
        put(self.engine, other, 12)?;
        self.narrow(("second", "second*"), other, 30..60)?;
        self.engine.quiesce()?;
        self.engine.drop_tree(other)?;
        put(self.engine, tree, 13)?;
        self.engine.quiesce()?;
        self.drop_pin("first")?;
        put(self.engine, tree, 14)?;
        self.engine.alter_pin("second", b"altered")?;
        self.engine.quiesce()?;
        self.create("third")?;
        let more = self.engine.create_tree("more", &TreeOptions::default())?;
        put(self.engine, more, 16)?;
        self.create_of("of tree", &|info| info.id == tree)?;
        self.drop_pin("of other")?;
        put(self.engine, tree, 17)?;
        self.engine.drop_tree(more)?;
        self.drop_pin("second*")?;
        put(self.engine, tree, 15)?;
        self.engine.quiesce()?;
        self.drop_pin("third")?;
        self.narrow(("of tree", "of tree*"), tree, 0..40)?;
        put(self.engine, tree, 18)?;
        self.engine.quiesce()?;
        self.drop_pin("of tree*")?;
        self.engine.quiesce()
    }
}

/// A store with rows in tables and in the log, killed.
fn image() -> (MemDevice, [TreeId; 2]) {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let engine = open(device.clone(), options());
    let trees = ["tree", "other"].map(|name| {
        let made = engine.create_tree(name, &TreeOptions::default());
        made.expect("it is made")
    });
    for (seed, tree) in trees.iter().enumerate() {
        put(&engine, *tree, seed as u64).expect("there is room");
        engine.quiesce().expect("background work succeeds");
        put(&engine, *tree, 5 + seed as u64).expect("there is room");
    }
    engine.sync().expect("the device syncs");
    drop(engine);
    (MemDevice::clone(&device), trees)
}

/// Opens what a crash left: the pins are those before or after the last step, and see what they
/// saw. What was committed before a change is there where the change is.
fn check(image: MemDevice, tree: TreeId, seen: &Seen, (done, pins): (usize, &[Vec<&'static str>])) {
    let device = Arc::new(image);
    for is_again in [false, true] {
        let engine = open(device.clone(), options());
        let listed = engine.pins().expect("they are listed");
        let name = |pin: &PinInfo| match pin.ranges.is_empty() {
            true => pin.name.clone(),
            false => format!("{}*", pin.name),
        };
        let found: Vec<String> = listed.iter().map(name).collect();
        let change = pins.iter().position(|names| *names == found);
        let Some(change) = change else {
            panic!("{found:?} is not of {pins:?}");
        };
        let mark = engine.get(tree, MARK, None).expect("it reads");
        let mark = mark.map_or(0, |mark| usize::from(mark[0]));
        assert!(
            mark >= done + change,
            "a commit before change {done} + {change} is lost"
        );
        for (name, pin) in found.iter().zip(&listed) {
            for (tree, expected) in &seen[name.as_str()] {
                let now = held_rows(&engine, *tree, pin).expect("it reads");
                assert!(now == *expected, "tree {tree} of pin {name:?} changed");
            }
        }
        assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
        if is_again {
            drop_all(&engine, &found);
        }
        engine.quiesce().expect("background work succeeds");
    }
}

/// Nothing but the newest rows is left when the pins are gone.
fn drop_all(engine: &VtEngine, pins: &[String]) {
    for name in pins {
        engine.drop_pin(plain(name)).expect("it goes");
    }
    let trees: Vec<TreeId> = engine.trees().iter().map(|tree| tree.id).collect();
    for tree in trees {
        let mut batch = Batch::new();
        batch.delete_range(tree, b"", &[255; 9]);
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("there is room");
    }
    engine.quiesce().expect("background work succeeds");
    assert_eq!(
        engine.holdings().owned_bytes(),
        0,
        "what is owned is of no tree"
    );
    assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
}

fn crash(plan: fn(u64) -> CrashPlan, step: usize) -> usize {
    let (image, trees) = image();
    let mut rng = Rng::new(3);
    let mut states = std::collections::BTreeSet::new();
    for nth in (1..).step_by(step) {
        let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        let engine = open(device.clone(), options());
        device.set_plan(plan(nth));
        let mut life = Life {
            engine: &engine,
            trees,
            seen: Seen::new(),
            pins: vec![Vec::new()],
            done: 0,
        };
        let worked = life.work();
        assert!(worked.is_ok() || device.is_stopped(), "{worked:?}");
        let Life {
            seen, pins, done, ..
        } = life;
        // A change that was begun and did not return may have come about.
        let possible = &pins[done..];
        assert!(possible.len() <= 2, "no change follows one that failed");
        states.extend(possible.iter().cloned());
        drop(engine);
        for _ in 0..2 {
            check(
                device.crash_image(&mut rng),
                trees[0],
                &seen,
                (done, possible),
            );
        }
        check(device.kill_image(), trees[0], &seen, (done, possible));
        if !device.is_stopped() {
            break;
        }
    }
    states.len()
}

/// None, and after each of twelve changes, the last of which leaves none.
const STATES: usize = 12;

#[test]
fn at_every_sync() {
    assert_eq!(crash(CrashPlan::at_sync, 1), STATES);
}

#[test]
fn at_many_writes() {
    assert_eq!(crash(CrashPlan::at_write, 5), STATES);
}
