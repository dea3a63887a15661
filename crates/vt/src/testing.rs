//! For tests: versions and scripts written as text.

use crate::engine::VtEngine;
use crate::options::VtOptions;
use crate::version::{Version, VersionBuilder};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use stitch_base::clock::{Clock, ManualClock};
use stitch_base::random::Rng;
use stitch_base::{Seqno, TableId, TreeId};
use stitch_device::{Device, MemDevice};
use stitch_format::vt_manifest::{Run, TableMeta, TreeRecord, VersionEdit};
use stitch_kv::{Batch, CommitOptions, Direction, Engine, KeyRange, SpaceClass, TreeOptions};
use stitch_volume::{FormatOptions, OpenOptions, Volume};

thread_local! {
    static WALKS: Cell<u64> = const { Cell::new(0) };
    static DELETE_STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a walk over the tables of a version, or a plan that is picked.
pub(crate) fn note_walk() {
    WALKS.set(WALKS.get() + 1);
}

/// How often that was done by this thread.
pub(crate) fn walks() -> u64 {
    WALKS.get()
}

/// Counts steps of a loop over range deletes.
pub(crate) fn note_delete_steps(count: usize) {
    DELETE_STEPS.set(DELETE_STEPS.get() + count);
}

/// Returns how many such steps this thread has made.
pub(crate) fn delete_steps() -> usize {
    DELETE_STEPS.get()
}

/// A table of 100 bytes.
pub(crate) fn meta(tree: TreeId, id: u64, smallest: &str, largest: &str) -> TableMeta {
    assert!(smallest <= largest, "a table has keys");
    TableMeta {
        id: TableId(id),
        tree,
        smallest: smallest.as_bytes().to_vec(),
        largest: largest.as_bytes().to_vec(),
        largest_excluded: false,
        entry_count: 100,
        delete_count: 0,
        range_delete_count: 0,
        data_bytes: 100,
        value_bytes: 0,
        min_seqno: Seqno(1),
        max_seqno: Seqno(id),
        shift: 0,
        root_addr: id * 1_000_000,
        root_bytes: 1,
        runs: vec![Run {
            addr: id * 1_000_000,
            len_bytes: 100,
        }],
    }
}

/// A version from lines `tree N` and `L<level> <table> <smallest>..<largest> <bytes>` with, at
/// their end, `d<deletes of 100 entries>`, `r<range deletes>`, `v<bytes of value blocks>`,
/// `s<largest seqno>`.
pub(crate) fn text_version(text: &str) -> Version {
    let mut edit = VersionEdit {
        last_seqno: Seqno(1000),
        next_table: TableId(1000),
        next_tree: TreeId(100),
        ..VersionEdit::default()
    };
    edit.added.clear();
    let mut tree = TreeId(0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if first == "tree" {
            tree = TreeId(words.next().expect("a number").parse().expect("a number"));
            edit.new_trees.push(TreeRecord {
                branch: None,
                branch_ranges: None,
                id: tree,
                name: format!("t{tree}"),
                block_bytes: 4096,
                stitch_bytes: 0,
                compression: 0,
                value_block_bytes: 0,
            });
            continue;
        }
        let level: u8 = first[1..].parse().expect("a level");
        assert!(tree.0 > 0, "a table comes after its tree");
        let id: u64 = words.next().expect("a table").parse().expect("a table");
        let (smallest, largest) = words.next().expect("keys").split_once("..").expect("keys");
        let mut table = meta(tree, id, smallest, largest);
        let bytes: u64 = words.next().expect("bytes").parse().expect("bytes");
        table.data_bytes = bytes;
        table.runs[0].len_bytes = bytes;
        for word in words {
            let number: u64 = word[1..].parse().expect("a number");
            match &word[..1] {
                "d" => table.delete_count = number,
                "r" => table.range_delete_count = number,
                "v" => table.value_bytes = number,
                "s" => table.max_seqno = Seqno(number),
                other => panic!("no such word: {other}"),
            }
        }
        edit.added.push((level, Arc::new(table)));
    }
    let mut builder = VersionBuilder::new(Version::empty());
    builder.apply(&edit).expect("the text is a version");
    builder.finish().expect("the text is a version")
}

/// Runs a script of cases, each `input`, a line `----`, and the expected output, with an empty line
/// between cases. With `UPDATE=1` in the environment, writes what came out instead of comparing.
pub(crate) fn run_script(path: &str, run: impl Fn(&str) -> String) {
    let file = format!("{}/testdata/{path}", env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(&file).expect("the script is there");
    let mut out = String::new();
    let mut cases = 0;
    for case in script.trim_end().split("\n\n") {
        let (input, expected) = case.split_once("\n----").expect("a case has a line ----");
        let mut result = run(input);
        if result.is_empty() {
            result.push_str("nothing");
        }
        let infallible = "a string takes what is written to it";
        write!(out, "{input}\n----\n{}\n\n", result.trim_end()).expect(infallible);
        if std::env::var_os("UPDATE").is_none() {
            assert_eq!(result.trim_end(), expected.trim(), "case:\n{input}");
        }
        cases += 1;
    }
    assert!(cases > 0, "a script has cases");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, out.trim_end().to_owned() + "\n").expect("the script is writable");
    }
}

pub(crate) const MIB: u64 = 1 << 20;

/// A store in memory without threads, whose time stands still, and what it must hold.
pub(crate) struct Small {
    pub(crate) device: Arc<MemDevice>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) engine: Arc<VtEngine>,
    pub(crate) tree: TreeId,
    pub(crate) rows: BTreeMap<u64, Vec<u8>>,
    pub(crate) rng: Rng,
}

impl Small {
    /// An empty store of this length. Blocks that do not overlap are always stitched.
    pub(crate) fn new(len_bytes: u64) -> Self {
        assert!(len_bytes >= MIB, "a store has some length");
        let device = Arc::new(MemDevice::new(len_bytes));
        let options = FormatOptions::default();
        Volume::format(&*device, &options, &mut |_, _| {}).expect("the device is large enough");
        let clock = Arc::new(ManualClock::default());
        let engine = Self::open(&device, Self::options(Arc::clone(&clock) as Arc<dyn Clock>));
        let options = TreeOptions {
            stitch_bytes: 0,
            ..TreeOptions::default()
        };
        Self {
            tree: engine.create_tree("tree", &options).expect("it is made"),
            device,
            clock,
            engine,
            rows: BTreeMap::new(),
            rng: Rng::new(len_bytes),
        }
    }

    fn options(clock: Arc<dyn Clock>) -> VtOptions {
        VtOptions {
            background: false,
            clock,
            ..VtOptions::default()
        }
    }

    fn open(device: &Arc<MemDevice>, options: VtOptions) -> Arc<VtEngine> {
        let volume = OpenOptions {
            discard: true,
            ..OpenOptions::default()
        };
        let device = Arc::clone(device) as Arc<dyn Device>;
        let opened = Volume::open(device, &volume).expect("the volume opens");
        VtEngine::open(opened, options).expect("the store opens")
    }

    pub(crate) fn reopen(&mut self) {
        self.reopen_with(Arc::clone(&self.clock) as Arc<dyn Clock>);
    }

    pub(crate) fn reopen_with(&mut self, clock: Arc<dyn Clock>) {
        self.engine.close().expect("it closes");
        assert!(self.engine.is_closed(), "it takes no more writes");
        self.engine = Self::open(&self.device, Self::options(clock));
    }

    pub(crate) fn reopen_as(&mut self, change: impl FnOnce(&mut VtOptions)) {
        self.engine.close().expect("it closes");
        assert!(self.engine.is_closed(), "it takes no more writes");
        let mut options = Self::options(Arc::clone(&self.clock) as Arc<dyn Clock>);
        change(&mut options);
        self.engine = Self::open(&self.device, options);
    }

    pub(crate) fn commit(&self, batch: &Batch) {
        let options = CommitOptions {
            space: SpaceClass::Reserve,
            ..CommitOptions::default()
        };
        self.engine.commit(batch, options).expect("there is room");
    }

    /// Writes `count` rows from `first` on, some at a time.
    pub(crate) fn put(&mut self, first: u64, count: u64, value_bytes: usize) {
        assert!(count > 0, "rows are written");
        let mut batch = Batch::new();
        for (number, key) in (first..first + count).enumerate() {
            let mut value = vec![0; value_bytes];
            self.rng.fill(&mut value);
            batch.put(self.tree, &key.to_be_bytes(), &value);
            self.rows.insert(key, value);
            if number % 64 == 63 {
                self.commit(&std::mem::take(&mut batch));
            }
        }
        self.commit(&batch);
    }

    /// Writes single rows with keys below `keys`, in random order.
    pub(crate) fn scatter(&mut self, count: u64, keys: u64, value_bytes: usize) {
        assert!(keys > 0, "a row has a key");
        for _ in 0..count {
            let key = self.rng.below(keys);
            self.put(key, 1, value_bytes);
        }
    }

    pub(crate) fn delete(&mut self, keys: impl Iterator<Item = u64>) {
        for key in keys {
            let mut batch = Batch::new();
            batch.delete(self.tree, &key.to_be_bytes());
            self.commit(&batch);
            self.rows.remove(&key);
        }
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.engine.volume().zones().usage().live
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.engine.counters().get(name)
    }

    /// It holds what it must, breaks no rule, and every live byte of the zones has an owner.
    pub(crate) fn check(&self) {
        let found = self
            .engine
            .check(&mut |_, _| {})
            .expect("the check goes on");
        assert_eq!(found, []);
        let mut scan = self
            .engine
            .scan(self.tree, KeyRange::all(), Direction::Forward, None)
            .expect("it scans");
        for (key, value) in &self.rows {
            let row = scan.next().expect("it is read");
            assert_eq!(row, Some((&key.to_be_bytes()[..], &value[..])));
        }
        assert_eq!(scan.next().expect("it is read"), None);
        drop(scan);
        self.check_live_bytes();
    }

    /// The live bytes of each zone are those that tables and runs of values own there.
    pub(crate) fn check_live_bytes(&self) {
        let zones = self.engine.volume().zones();
        zones.check();
        let view = self.engine.store.views.get();
        let tables = view.version.tables();
        let mut owned: Vec<Run> = tables.flat_map(|(_, t)| t.meta().runs.clone()).collect();
        let direct = view
            .buffers
            .iter()
            .flat_map(|buffer| buffer.direct.extents());
        owned.extend(direct);
        let committer = self.engine.store.committer.lock();
        owned.extend(committer.streams.append_extents().map(|extent| Run {
            addr: extent.addr,
            len_bytes: extent.len,
        }));
        drop(committer);
        for zone in 0..zones.count() {
            let zone = stitch_base::ZoneId(zone);
            let extent = zones.extent_of(zone);
            let within = |run: &Run| {
                let end = run.end().min(extent.end());
                end.saturating_sub(run.addr.max(extent.addr))
            };
            let expected: u64 = owned.iter().map(within).sum();
            assert_eq!(zones.live_bytes(zone), expected, "{zone:?}");
        }
    }
}
