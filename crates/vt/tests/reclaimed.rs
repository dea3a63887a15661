//! Space comes back after drops: a store whose pins, branches and snapshots are all dropped takes
//! no more than one that never had any.

mod common;

use common::space::{GARBAGE_BYTES, Rows, SWEPT_BYTES, counter, garbage, owned, rows, slack};
use common::{MIB, Setup, open};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, Device};
use stitch_kv::{
    Batch, CommitOptions, Engine, Holder, KeyRange, KvError, NewBranch, Snapshot, TreeOptions,
};
use stitch_vt::{VtEngine, VtOptions};

const KIB: u64 = 1 << 10;
const ROWS: u64 = 2000;

fn options() -> VtOptions {
    Setup::sized(128 * KIB, 64 * KIB, false).options
}

fn device(len_bytes: u64) -> Arc<CrashDevice> {
    let device = CrashDevice::new(len_bytes, CrashPlan::default());
    common::format(&device, Some(4 * MIB));
    Arc::new(device)
}

/// Both stores show the same.
fn assert_same_rows(engines: &[Arc<VtEngine>; 2], trees: &[TreeId]) {
    for tree in trees {
        let [with, without] = engines.each_ref().map(|engine| rows(engine, *tree, None));
        assert!(with == without, "tree {tree} lost something");
    }
}

/// What a store takes after its holds were dropped is what one takes that never had any.
fn assert_came_back(with: u64, without: u64) {
    assert!(
        with <= without + slack(without),
        "{with} bytes left, {without} without holds"
    );
}

/// Drops a holder of the first versions of [`ROWS`] rows: what was told of it comes back.
fn assert_told(engine: &VtEngine, holder: Holder<'_>, end: impl FnOnce() -> Result<(), KvError>) {
    let held = owned(engine);
    let told = engine.exclusive_space(&[holder], &mut |_, _| true);
    let told = told.expect("it reads").expect("it is not cancelled")[0];
    end().expect("it goes");
    let came = held - owned(engine);
    println!("{held} held, {told} told, {came} came");
    assert!(came > ROWS * 200, "one version of each row");
    assert!(
        told.abs_diff(came) <= slack(came),
        "{told} told, {came} came"
    );
}

/// Bytes that a store with a hold of another tree owns, and its garbage, beside those of a store
/// without; the first may own `more` bytes more.
fn assert_keeps_nothing(left: &[(u64, u64)], more: impl FnOnce(u64) -> u64) {
    println!("{left:?} with a hold of another tree, and without");
    let [(with, its_garbage), (without, other_garbage)] = left[..] else {
        unreachable!("there are two stores");
    };
    assert!(with <= without + more(without), "{with} of {without}");
    assert!(
        its_garbage <= other_garbage + slack(0),
        "{its_garbage} of {other_garbage}"
    );
}

/// Two stores with the same writes: one with holds over them, and one without.
struct Pair {
    devices: [Arc<CrashDevice>; 2],
    engines: [Arc<VtEngine>; 2],
    /// Of small rows, and of values in blocks of their own.
    trees: [TreeId; 2],
    rng: Rng,
    holds: Vec<Hold>,
    made: u64,
}

/// Something that holds a moment, and the rows that it has to show.
struct Hold {
    kind: Kind,
    rows: [Rows; 2],
}

enum Kind {
    Pin(String),
    Branches(Vec<TreeId>),
    Snapshot(Snapshot),
}

impl Pair {
    fn new(seed: u64) -> Self {
        let devices = [device(256 * MIB), device(256 * MIB)];
        let engines = [0, 1].map(|n: usize| {
            let device: Arc<dyn Device> = Arc::clone(&devices[n]) as Arc<dyn Device>;
            open(device, options())
        });
        let mut trees = [TreeId(0); 2];
        for engine in &engines {
            trees = [("small", 0), ("large", 2 << 10)].map(|(name, value_block_bytes)| {
                let options = TreeOptions {
                    value_block_bytes,
                    ..TreeOptions::default()
                };
                engine.create_tree(name, &options).expect("it is made")
            });
        }
        Self {
            devices,
            engines,
            trees,
            rng: Rng::new(seed),
            holds: Vec::new(),
            made: 0,
        }
    }

    fn commit(&self, fill: impl FnOnce(&mut Batch<'static>)) {
        let mut batch = Batch::new();
        fill(&mut batch);
        for engine in &self.engines {
            let done = engine.commit(&batch, CommitOptions::default());
            done.expect("there is space");
        }
    }

    fn put(&mut self, which: usize, keys: std::ops::Range<u64>) {
        let tree = self.trees[which];
        let mut rng = self.rng.clone();
        self.commit(|batch| {
            for key in keys {
                let bytes = if which == 1 {
                    3000
                } else {
                    100 + rng.below(200)
                };
                let mut value = vec![0; usize::try_from(bytes).expect("short")];
                rng.fill(&mut value);
                batch.put(tree, &key.to_be_bytes(), &value);
            }
        });
        self.rng = rng;
    }

    fn write(&mut self) {
        let which = usize::from(self.rng.below(4) == 0);
        let tree = self.trees[which];
        let start = self.rng.below(ROWS);
        let keys = start..start + 1 + self.rng.below(100);
        match self.rng.below(10) {
            0..7 => self.put(which, keys),
            7..9 => self.commit(|batch| {
                keys.for_each(|key| batch.delete(tree, &key.to_be_bytes()));
            }),
            _ => self.commit(|batch| {
                let (start, end) = (keys.start.to_be_bytes(), keys.end.to_be_bytes());
                batch.delete_range(tree, &start, &end);
            }),
        }
    }

    fn hold(&mut self) {
        self.made += 1;
        let (engine, number) = (&self.engines[0], self.made);
        let kind = match self.rng.below(3) {
            0 => {
                let name = format!("pin {number}");
                engine.create_pin(&name, b"").expect("it is made");
                Kind::Pin(name)
            }
            1 => {
                let names = [0, 1].map(|which| format!("branch {number} {which}"));
                let new = [0, 1].map(|which| NewBranch::new(self.trees[which], &names[which]));
                let made = engine.branch_trees(&new, None);
                Kind::Branches(made.expect("they are made"))
            }
            _ => Kind::Snapshot(engine.snapshot()),
        };
        let rows = self.trees.map(|tree| rows(engine, tree, None));
        self.holds.push(Hold { kind, rows });
    }

    /// Compares what a hold shows with what it had to show at the beginning.
    fn check(&self, hold: &Hold) {
        let engine = &self.engines[0];
        for (which, expected) in hold.rows.iter().enumerate() {
            let tree = self.trees[which];
            let found = match &hold.kind {
                Kind::Pin(name) => {
                    let at = engine.open_pin(name).expect("it opens");
                    rows(engine, tree, Some(&at))
                }
                Kind::Branches(trees) => rows(engine, trees[which], None),
                Kind::Snapshot(at) => rows(engine, tree, Some(at)),
            };
            assert!(found == *expected, "tree {tree} changed");
        }
    }

    fn drop_one(&mut self) {
        let at = self.rng.below(self.holds.len() as u64);
        let hold = self.holds.swap_remove(usize::try_from(at).expect("few"));
        match hold.kind {
            Kind::Pin(name) => self.engines[0].drop_pin(&name).expect("it goes"),
            Kind::Branches(trees) => self.engines[0].drop_trees(&trees).expect("they go"),
            Kind::Snapshot(at) => drop(at),
        }
    }

    fn owned(&self) -> [u64; 2] {
        self.engines.each_ref().map(|engine| owned(engine))
    }

    fn fill(&mut self) {
        for which in [0, 1] {
            for first in (0..ROWS).step_by(50) {
                self.put(which, first..first + 50);
            }
        }
    }
}

#[test]
fn holds_dropped_in_any_order_leave_what_a_store_without_them_takes() {
    for seed in 0..4 {
        let mut pair = Pair::new(seed);
        pair.fill();
        for step in 0..500 {
            match pair.rng.below(25) {
                0 if pair.holds.len() < 12 => pair.hold(),
                1 if step % 2 == 0 => drop(pair.owned()),
                _ => pair.write(),
            }
        }
        assert!(pair.holds.len() >= 6, "there is something to drop");
        let held = owned(&pair.engines[0]);
        while !pair.holds.is_empty() {
            pair.drop_one();
            if pair.rng.below(2) == 0 {
                owned(&pair.engines[0]);
                pair.holds.iter().for_each(|hold| pair.check(hold));
            }
        }
        let [with, without] = pair.owned();
        let left = garbage(&pair.engines[0]);
        println!(
            "seed {seed}: {held} held, {with} left, {without} without, {left} garbage, \
             {} swept, {} found",
            counter(&pair.engines[0], SWEPT_BYTES),
            counter(&pair.engines[0], GARBAGE_BYTES),
        );
        assert_same_rows(&pair.engines, &pair.trees);
        assert_eq!(
            pair.engines[0].check(&mut |_, _| {}).expect("it goes on"),
            []
        );
        assert!(
            held > without + without / 2,
            "{held} bytes held of {without}"
        );
        assert_came_back(with, without);
    }
}

#[test]
fn a_sweep_is_made_up_for_after_an_open() {
    let mut pair = Pair::new(20);
    pair.fill();
    for round in 0..6 {
        pair.hold();
        (0..40).for_each(|_| pair.write());
        if round % 2 == 0 {
            pair.owned();
        }
    }
    let [held, _] = pair.owned();
    while !pair.holds.is_empty() {
        pair.drop_one();
    }
    // Killed before anything was compacted.
    let reopened = pair.devices.each_ref().map(|device| {
        let image: Arc<dyn Device> = Arc::new(device.kill_image());
        open(image, options())
    });
    let [with, without] = reopened.each_ref().map(|engine| owned(engine));
    println!("{held} held, {with} left, {without} without");
    assert!(
        held > without + without / 3,
        "{held} bytes held of {without}"
    );
    assert_came_back(with, without);
    assert_same_rows(&reopened, &pair.trees);
    assert_eq!(
        counter(&reopened[1], SWEPT_BYTES),
        0,
        "a store that never had holds is not swept"
    );
}

#[test]
fn snapshots_that_nothing_was_kept_for_are_not_swept_for() {
    let device = device(64 * MIB);
    let engine = open(device, options());
    let made = engine.create_tree("tree", &TreeOptions::default());
    let tree = made.expect("it is made");
    for round in 0..20_u64 {
        let at = engine.snapshot();
        for key in 0..400_u64 {
            let mut batch = Batch::new();
            batch.put(tree, &key.to_be_bytes(), &[7; 300]);
            let done = engine.commit(&batch, CommitOptions::default());
            done.expect("there is space");
            let at = engine.snapshot();
            assert!(engine.get(tree, &key.to_be_bytes(), Some(&at)).is_ok());
        }
        drop(at);
        if round % 5 == 0 {
            owned(&engine);
        }
    }
    let before = counter(&engine, SWEPT_BYTES);
    // Nothing is written out while they are open.
    (0..100).for_each(|_| drop(engine.snapshot()));
    owned(&engine);
    assert_eq!(counter(&engine, SWEPT_BYTES), before);
}

/// Overwrites all rows of a tree ten times, with compactions between.
fn overwrite(engine: &VtEngine, tree: TreeId, rng: &mut Rng) {
    for _ in 0..10 {
        for first in (0..ROWS).step_by(50) {
            let mut batch = Batch::new();
            for key in first..first + 50 {
                let mut value = vec![0; 200];
                rng.fill(&mut value);
                batch.put(tree, &key.to_be_bytes(), &value);
            }
            let done = engine.commit(&batch, CommitOptions::default());
            done.expect("there is space");
        }
        engine.quiesce().expect("background work succeeds");
    }
}

#[test]
fn a_branch_of_one_tree_keeps_nothing_of_another() {
    let devices = [device(128 * MIB), device(128 * MIB)];
    let mut left = Vec::new();
    for (device, has_branches) in devices.iter().zip([true, false]) {
        let engine = open(Arc::clone(device) as Arc<dyn Device>, options());
        let [branched, other] = ["branched", "other"].map(|name| {
            let made = engine.create_tree(name, &TreeOptions::default());
            made.expect("it is made")
        });
        let mut rng = Rng::new(5);
        overwrite(&engine, branched, &mut rng);
        overwrite(&engine, other, &mut rng);
        let first = rows(&engine, branched, None);
        let branch = has_branches.then(|| {
            let new = [NewBranch::new(branched, "branch")];
            engine.branch_trees(&new, None).expect("it is made")[0]
        });
        overwrite(&engine, other, &mut rng);
        let share = engine.range_space(other, &[KeyRange::all()], None);
        assert_eq!(share.expect("it reads").shared_bytes(), 0);
        // Also in a life that finds the branch in the version log.
        engine.close().expect("it closes");
        drop(engine);
        let image: Arc<dyn Device> = Arc::new(device.kill_image());
        let engine = open(image, options());
        overwrite(&engine, other, &mut rng);
        left.push((owned(&engine), garbage(&engine)));
        let Some(branch) = branch else {
            continue;
        };
        overwrite(&engine, branched, &mut rng);
        assert!(rows(&engine, branch, None) == first, "the branch changed");
        let holder = Holder::Trees(&[branch]);
        assert_told(&engine, holder, || engine.drop_tree(branch));
    }
    assert_keeps_nothing(&left, |_| slack(0));
}

#[test]
fn a_pin_of_one_tree_keeps_nothing_of_another() {
    let devices = [device(128 * MIB), device(128 * MIB)];
    let mut left = Vec::new();
    for (device, has_pin) in devices.iter().zip([true, false]) {
        let engine = open(Arc::clone(device) as Arc<dyn Device>, options());
        let [pinned, other] = ["pinned", "other"].map(|name| {
            let made = engine.create_tree(name, &TreeOptions::default());
            made.expect("it is made")
        });
        let mut rng = Rng::new(5);
        overwrite(&engine, pinned, &mut rng);
        let seen = rows(&engine, pinned, None);
        if has_pin {
            let made = engine.create_pin_of("pin", b"", &|tree| tree.id == pinned);
            assert_eq!(made.expect("it is made").scope.trees(), Some(&[pinned][..]));
        }
        // Ten times as large as the pinned tree.
        overwrite(&engine, other, &mut rng);
        let share = engine.range_space(other, &[KeyRange::all()], None);
        assert_eq!(share.expect("it reads").shared_bytes(), 0);
        // Also in a life that finds the pin in the version log.
        engine.close().expect("it closes");
        drop(engine);
        let image: Arc<dyn Device> = Arc::new(device.kill_image());
        let engine = open(image, options());
        overwrite(&engine, other, &mut rng);
        left.push((owned(&engine), garbage(&engine)));
        if !has_pin {
            continue;
        }
        overwrite(&engine, pinned, &mut rng);
        let at = engine.open_pin("pin").expect("it opens");
        assert!(rows(&engine, pinned, Some(&at)) == seen, "the pin changed");
        drop(at);
        assert_told(&engine, Holder::Pin("pin"), || engine.drop_pin("pin"));
    }
    assert_keeps_nothing(&left, |without| without / 5);
}

#[test]
fn the_moment_of_a_branch_is_that_of_its_parent_alone() {
    let engine = open(device(64 * MIB), options());
    let [older, parent, later] = ["older", "parent", "later"].map(|name| {
        let made = engine.create_tree(name, &TreeOptions::default());
        made.expect("it is made")
    });
    let put = |value: &[u8]| {
        let mut batch = Batch::new();
        [older, parent, later]
            .into_iter()
            .for_each(|tree| batch.put(tree, b"key", value));
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("there is space");
        engine.quiesce().expect("background work succeeds");
    };
    put(b"first");
    let branch = engine.branch_trees(&[NewBranch::new(parent, "branch")], None);
    let branch = branch.expect("it is made")[0];
    put(b"second");
    let moment = engine.branch_moment(branch).expect("a branch has one");
    for tree in [older, later] {
        let refused = engine.branch_trees(&[NewBranch::new(tree, "wrong")], Some(&moment));
        assert!(matches!(refused, Err(KvError::NoTree(id)) if id == tree));
    }
    let again = engine.branch_trees(&[NewBranch::new(parent, "again")], Some(&moment));
    let again = again.expect("it is made")[0];
    engine.drop_tree(branch).expect("it goes");
    drop(moment);
    put(b"third");
    let found = engine.get(again, b"key", None).expect("it reads");
    assert_eq!(found.as_deref(), Some(&b"first"[..]));
}
