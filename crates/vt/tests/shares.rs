//! Shares of space: what a walk says a drop gives back is what the drop gives back.

mod common;

use common::{MIB, Setup, open};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{CrashDevice, CrashPlan, Device};
use stitch_kv::conformance::functions::{APPEND, registry};
use stitch_kv::{
    Batch, CommitOptions, Engine, Holder, KeyRange, KeyRanges, NewBranch, PinRanges, TreeOptions,
};
use stitch_vt::{VtEngine, VtOptions};

const KIB: u64 = 1 << 10;
/// What tables take beside their entries, and what rounding loses.
const SLACK_BYTES: u64 = 96 * KIB;

fn options() -> VtOptions {
    let mut options = Setup::sized(256 * KIB, 128 * KIB, false).options;
    options.upserts = registry();
    options
}

fn device(len_bytes: u64) -> Arc<CrashDevice> {
    let device = CrashDevice::new(len_bytes, CrashPlan::default());
    common::format(&device, Some(4 * MIB));
    Arc::new(device)
}

/// A store as it is when it was closed and opened again, on a copy of the medium.
fn copy(device: &CrashDevice) -> Arc<VtEngine> {
    let image: Arc<dyn Device> = Arc::new(device.kill_image());
    open(image, options())
}

fn tree(engine: &VtEngine, name: &str, value_block_bytes: u32) -> TreeId {
    let options = TreeOptions {
        value_block_bytes,
        ..TreeOptions::default()
    };
    engine.create_tree(name, &options).expect("it is made")
}

fn owned(engine: &VtEngine) -> u64 {
    engine.quiesce().expect("background work succeeds");
    engine.holdings().owned_bytes()
}

fn exclusive(engine: &VtEngine, holders: &[Holder<'_>]) -> Vec<u64> {
    let found = engine.exclusive_space(holders, &mut |done, total| {
        assert!(done <= total, "{done} of {total}");
        true
    });
    found.expect("it reads").expect("it is not cancelled")
}

fn commit(engine: &VtEngine, fill: impl FnOnce(&mut Batch<'static>)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    engine
        .commit(&batch, CommitOptions::default())
        .expect("there is space");
}

/// A store with a random history: pins and clones of two trees.
struct History {
    engine: Arc<VtEngine>,
    rng: Rng,
    /// Of small rows, and of values in blocks of their own.
    sources: [TreeId; 2],
    pins: Vec<String>,
    clones: BTreeMap<u64, Vec<TreeId>>,
    made: u64,
    /// Number of times that a pin was narrowed.
    narrowed: u64,
}

const ROWS: u64 = 3000;

impl History {
    fn new(device: &Arc<CrashDevice>, seed: u64) -> Self {
        let engine = open(Arc::clone(device) as Arc<dyn Device>, options());
        let sources = [tree(&engine, "small", 0), tree(&engine, "large", 2 << 10)];
        let mut history = Self {
            engine,
            rng: Rng::new(seed),
            sources,
            pins: Vec::new(),
            clones: BTreeMap::new(),
            made: 0,
            narrowed: 0,
        };
        for (source, is_large) in sources.into_iter().zip([false, true]) {
            for first in (0..ROWS).step_by(50) {
                history.put(source, is_large, first..first + 50);
            }
        }
        history
    }

    fn put(&mut self, tree: TreeId, is_large: bool, rows: std::ops::Range<u64>) {
        let rng = &mut self.rng;
        commit(&self.engine, |batch| {
            for row in rows {
                let bytes = if is_large { 3000 } else { 100 + rng.below(200) };
                let mut value = vec![0; usize::try_from(bytes).expect("short")];
                rng.fill(&mut value);
                batch.put(tree, &row.to_be_bytes(), &value);
            }
        });
    }

    /// A tree to write to, and whether its values are large.
    fn some_tree(&mut self) -> (TreeId, bool) {
        let which = usize::from(self.rng.below(3) == 0);
        let clone = self.rng.below(1 + self.clones.len() as u64);
        let clones = self.clones.values().map(|trees| trees[which]);
        let all: Vec<TreeId> = std::iter::once(self.sources[which]).chain(clones).collect();
        (all[usize::try_from(clone).expect("few")], which == 1)
    }

    fn write(&mut self) {
        let (tree, is_large) = self.some_tree();
        let start = self.rng.below(ROWS);
        let rows = start..start + 1 + self.rng.below(120);
        match self.rng.below(10) {
            0..6 => self.put(tree, is_large, rows),
            6..8 => commit(&self.engine, |batch| {
                rows.for_each(|row| batch.delete(tree, &row.to_be_bytes()));
            }),
            8 => commit(&self.engine, |batch| {
                let (start, end) = (rows.start.to_be_bytes(), rows.end.to_be_bytes());
                batch.delete_range(tree, &start, &end);
            }),
            _ if is_large => {}
            _ => commit(&self.engine, |batch| {
                rows.for_each(|row| batch.upsert(tree, &row.to_be_bytes(), APPEND, b"abc"));
            }),
        }
    }

    fn step(&mut self) {
        match self.rng.below(40) {
            0 if self.pins.len() < 5 => {
                self.made += 1;
                let name = format!("pin {}", self.made);
                // A third of them do not hold one of the sources, and a third not the other.
                let chosen = usize::try_from(self.rng.below(3)).expect("small");
                let but = self.sources.get(chosen).copied();
                let made = self
                    .engine
                    .create_pin_of(&name, b"", &|t| Some(t.id) != but);
                made.expect("it is made");
                self.pins.push(name);
            }
            1 if self.clones.len() < 4 => self.branch(),
            2 => drop(owned(&self.engine)),
            3 => self.narrow(),
            _ => self.write(),
        }
    }

    /// Narrows a pin to some rows of a source, if it holds these.
    fn narrow(&mut self) {
        let (which, start) = (self.rng.below(5), self.rng.below(ROWS));
        let source = self.sources[usize::try_from(self.rng.below(2)).expect("small")];
        let ranges = [start, start + 1200].map(|start| {
            let [start, end] = [start, start + 800].map(|row| row.to_be_bytes().to_vec());
            (start, Some(end))
        });
        let ranges = PinRanges::from([(source, KeyRanges::new(ranges))]);
        let which = usize::try_from(which).expect("small");
        let Some(name) = self.pins.get(which) else {
            return;
        };
        match self.engine.narrow_pin(name, &ranges) {
            Ok(_) => self.narrowed += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
        }
    }

    fn branch(&mut self) {
        self.made += 1;
        let of_clone = self.rng.below(1 + self.clones.len() as u64);
        let chosen = of_clone.checked_sub(1);
        let chosen = chosen.and_then(|at| self.clones.values().nth(usize::try_from(at).ok()?));
        let parents = chosen.map_or(self.sources.to_vec(), Clone::clone);
        let names = [0, 1].map(|which| format!("clone {} {which}", self.made));
        let new = [0, 1].map(|which| NewBranch::new(parents[which], &names[which]));
        let made = self.engine.branch_trees(&new, None).expect("they are made");
        // As a file system does with its clones.
        self.engine.release_replaced(&made).expect("they are there");
        self.clones.insert(self.made, made);
    }

    fn holders(&self) -> Vec<Holder<'_>> {
        let pins = self.pins.iter().map(|name| Holder::Pin(name));
        pins.chain(self.clones.values().map(|trees| Holder::Trees(trees)))
            .collect()
    }
}

fn drop_it(engine: &VtEngine, holder: &Holder<'_>) {
    match holder {
        Holder::Pin(name) => engine.drop_pin(name).expect("it goes"),
        Holder::Pins(names) => {
            let mut left = names.iter();
            left.try_for_each(|name| engine.drop_pin(name))
                .expect("they go");
        }
        Holder::Trees(trees) => engine.drop_trees(trees).expect("they go"),
        Holder::Garbage => unreachable!("nothing holds it"),
    }
}

/// Compares with what the drop of each holder alone gives back. What it makes garbage that is not
/// worth a compaction is told apart.
fn assert_exact(device: &CrashDevice, holders: &[Holder<'_>], seed: u64) -> u64 {
    let engine = copy(device);
    let whole = owned(&engine);
    let mut all = vec![Holder::Garbage];
    all.extend_from_slice(holders);
    let said = exclusive(&engine, &all);
    drop(engine);
    let mut sum = 0;
    for (holder, said_of_it) in holders.iter().zip(&said[1..]) {
        let engine = copy(device);
        drop_it(&engine, holder);
        let came = whole.saturating_sub(owned(&engine));
        let garbage = exclusive(&engine, &[Holder::Garbage])[0];
        // The compactions of a drop bring back what was garbage before, too.
        let all = (came + garbage).saturating_sub(said[0]);
        let (came, garbage) = (came.min(all), garbage.saturating_sub(said[0]));
        println!("seed {seed}: {holder:?}: {said_of_it} said, {came} came, {garbage} will");
        assert!(
            said_of_it.abs_diff(all) <= all / 10 + SLACK_BYTES,
            "seed {seed}: {holder:?}: {said_of_it} said, {came} came of {whole}, {garbage} will"
        );
        assert!(
            came + SLACK_BYTES >= all - all / 10,
            "seed {seed}: {came} came back of {all}"
        );
        sum += all;
    }
    sum
}

#[test]
fn a_drop_gives_back_what_was_said() {
    let (mut sum, mut narrowed) = (0, 0);
    for seed in 0..6 {
        let device = device(256 * MIB);
        let mut history = History::new(&device, seed);
        for _ in 0..400 {
            history.step();
        }
        narrowed += history.narrowed;
        assert!(
            history.holders().len() >= 3,
            "there is something to compare"
        );
        owned(&history.engine);
        history.engine.close().expect("it closes");
        sum += assert_exact(&device, &history.holders(), seed);
        let pins: Vec<&str> = history.pins.iter().map(|name| &**name).collect();
        assert_exact(&device, &[Holder::Pins(&pins)], seed);
    }
    assert!(narrowed > 5, "pins were narrowed {narrowed} times");
    assert!(
        sum > 8 * MIB,
        "{sum} bytes are more than what the comparison lets pass"
    );
}

#[test]
fn a_thousand_clones_dropped_in_any_order_leave_nothing() {
    const CLONES: u64 = 1000;
    let (with, without) = (device(128 * MIB), device(128 * MIB));
    let engines = [&with, &without].map(|device| {
        let engine = open(Arc::clone(device) as Arc<dyn Device>, options());
        let source = tree(&engine, "source", 0);
        (engine, source)
    });
    let [(engine, source), (twin, twin_source)] = &engines;
    let mut rng = Rng::new(7);
    let mut clones = Vec::new();
    let row = |batch: &mut Batch<'static>, rng: &mut Rng, tree| {
        let mut value = vec![0; 400];
        rng.fill(&mut value);
        batch.put(tree, &rng.below(2000).to_be_bytes(), &value);
    };
    for number in 0..CLONES {
        let seed = rng.below(u64::MAX);
        for (engine, tree) in [(engine, *source), (twin, *twin_source)] {
            let mut rng = Rng::new(seed);
            commit(engine, |batch| {
                (0..10).for_each(|_| row(batch, &mut rng, tree))
            });
        }
        let name = format!("clone {number}");
        let made = engine.branch_trees(&[NewBranch::new(*source, &name)], None);
        let made = made.expect("it is made")[0];
        commit(engine, |batch| {
            (0..3).for_each(|_| row(batch, &mut rng, made))
        });
        clones.push([made]);
    }
    let holders: Vec<_> = clones.iter().map(|trees| Holder::Trees(trees)).collect();
    let full = owned(engine);
    let said: u64 = exclusive(engine, &holders).iter().sum();
    assert!(
        said > CLONES * 3 * 400 && said < full,
        "{said} of {full} bytes"
    );
    for at in (1..clones.len()).rev() {
        clones.swap(at, usize::try_from(rng.below(at as u64 + 1)).expect("few"));
    }
    for (number, trees) in clones.iter().enumerate() {
        let is_checked = number % 250 == 100;
        let said = is_checked.then(|| exclusive(engine, &[Holder::Trees(trees)])[0]);
        let before = is_checked.then(|| owned(engine));
        engine.drop_trees(trees).expect("they go");
        if let (Some(said), Some(before)) = (said, before) {
            let came = before.saturating_sub(owned(engine));
            println!("{number}: {said} said, {came} came");
            assert!(
                said.abs_diff(came) <= came / 20 + 16 * KIB,
                "{said} said, {came} came back"
            );
        }
    }
    let left = [engine, twin].map(|engine| {
        let owned = owned(engine);
        engine.close().expect("it closes");
        owned
    });
    drop(engines);
    let closed = [&with, &without].map(|device| owned(&copy(device)));
    println!("left {left:?}, closed {closed:?}");
    assert!(
        closed[0] <= closed[1] + closed[1] / 50,
        "{closed:?} bytes with and without clones"
    );
    assert!(
        left[0] <= left[1] + left[1] / 50,
        "{left:?} bytes with and without clones"
    );
}

#[test]
fn a_source_and_then_its_only_clone_leave_nothing() {
    let device = device(64 * MIB);
    let engine = open(Arc::clone(&device) as Arc<dyn Device>, options());
    let source = tree(&engine, "source", 0);
    let put = |tree, seed| {
        let mut rng = Rng::new(seed);
        for row in 0..4000_u64 {
            let mut value = vec![0; 500];
            rng.fill(&mut value);
            commit(&engine, |batch| batch.put(tree, &row.to_be_bytes(), &value));
        }
    };
    put(source, 1);
    let clone = engine.branch_trees(&[NewBranch::new(source, "clone")], None);
    let clone = clone.expect("it is made")[0];
    put(source, 2);
    engine.drop_tree(source).expect("it is hidden");
    let held = owned(&engine);
    let said = exclusive(&engine, &[Holder::Trees(&[clone])])[0];
    engine.drop_tree(clone).expect("both go");
    let left = owned(&engine);
    assert!(held > 4000 * 1000, "{held} bytes of two versions");
    assert!(
        said.abs_diff(held) <= held / 20,
        "{said} said, {held} came back"
    );
    assert_eq!(left, 0);
    engine.close().expect("it closes");
    drop(engine);
    assert_eq!(owned(&copy(&device)), 0);
}

#[test]
fn one_walk_tells_the_shares_of_ten_thousand_pins() {
    const PINS: u64 = 10_000;
    let device = CrashDevice::new(128 * MIB, CrashPlan::default());
    let format = stitch_volume::FormatOptions {
        uuid: [7; 16],
        version_log_bytes: Some(16 * MIB),
        backup_log_bytes: Some(4 * MIB),
        ..stitch_volume::FormatOptions::default()
    };
    stitch_volume::Volume::format(&device, &format, &mut |_, _| {}).expect("it is large enough");
    let device = Arc::new(device);
    let engine = open(Arc::clone(&device) as Arc<dyn Device>, options());
    let tree = tree(&engine, "tree", 2 << 10);
    let mut rng = Rng::new(3);
    let mut put = |row: u64| {
        let mut value = vec![0; 2500];
        rng.fill(&mut value);
        commit(&engine, |batch| batch.put(tree, &row.to_be_bytes(), &value));
    };
    (0..2000).for_each(&mut put);
    let names: Vec<String> = (0..PINS).map(|number| format!("pin {number}")).collect();
    for (number, name) in (0..).zip(&names) {
        put(number % 2000);
        engine.create_pin(name, b"").expect("it is made");
    }
    let held = owned(&engine);
    engine.close().expect("it closes");
    drop(engine);
    let engine = copy(&device);
    let holders: Vec<_> = names.iter().map(|name| Holder::Pin(name)).collect();
    let read = || {
        let device = engine.volume().device().counters();
        device.read_bytes
    };
    let before = read();
    let one = exclusive(&engine, &holders[..1]);
    let for_one = read() - before;
    let before = read();
    let said = exclusive(&engine, &holders);
    let for_all = read() - before;
    println!("{held} held, {for_one} read for one, {for_all} for all");
    assert_eq!(one[0], said[0], "the same beside other holders");
    // Long values are not read.
    assert!(for_one < held / 10, "{for_one} bytes read of {held}");
    assert!(
        for_all <= for_one,
        "{for_all} bytes read, {for_one} for one"
    );
    // Each version was seen by about two thousand pins.
    assert!(
        (2500..2700).contains(&said[0]),
        "row 1, which the next pin sees replaced"
    );
    assert_eq!(said[1..1999], [0; 1998]);
    let live = 2000 * 2600;
    for name in names {
        engine.drop_pin(&name).expect("it goes");
    }
    let left = owned(&engine);
    println!("{left} left");
    assert!(left <= live + live / 5, "{left} bytes left of {held}");
}

#[test]
fn ranges_of_a_quiet_tree_add_up_to_all_of_it() {
    let device = device(64 * MIB);
    let mut history = History::new(&device, 11);
    for _ in 0..100 {
        history.write();
    }
    let engine = &history.engine;
    let whole = owned(engine);
    for tree in history.sources {
        let of =
            |ranges: &[KeyRange<'_>]| engine.range_space(tree, ranges, None).expect("it reads");
        let all = of(&[KeyRange::all()]);
        let ends: Vec<_> = (0..=ROWS + 200).step_by(50).map(u64::to_be_bytes).collect();
        let ranges = ends
            .windows(2)
            .map(|pair| KeyRange::new(&pair[0], &pair[1]));
        let parts = of(&ranges.collect::<Vec<_>>());
        assert_eq!(all.shared_bytes(), 0);
        // Blocks at the ends of ranges are divided among their rows.
        let difference = all.referenced_bytes.abs_diff(parts.referenced_bytes);
        assert!(
            difference <= all.referenced_bytes / 100,
            "{all:?}, {parts:?}"
        );
    }
    let sum: u64 = history
        .sources
        .map(|tree| {
            engine
                .range_space(tree, &[KeyRange::all()], None)
                .expect("it reads")
        })
        .iter()
        .map(|share| share.referenced_bytes)
        .sum();
    println!("{sum} of {whole}");
    assert!(
        sum.abs_diff(whole) <= whole / 20 + SLACK_BYTES,
        "{sum} of {whole} bytes"
    );
}
