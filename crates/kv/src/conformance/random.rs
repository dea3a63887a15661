//! Random operations on an engine and on the model, with every answer compared.

mod branches;
mod pins;

use super::functions::{self, ADD, APPEND, HASH, REMOVE_IF};
use super::{Ending, Factory, Rows, Store, drain, dump};
use crate::{
    Batch, CommitOptions, Compression, Direction, Engine, KeyRange, Message, ModelEngine, Priority,
    ReadHint, ReadOrder, Snapshot, StreamName, TreeOptions,
};
use pins::RunPins;
use stitch_base::TreeId;
use stitch_base::random::Rng;

/// What a random run does. The same parameters do the same on every engine.
///
/// `seed` chooses what is written and read, and `tuning_seed` what must make no difference to that:
/// options of trees and their changes, when background work is waited for, when the store is opened
/// anew and how it ended before. So runs with the same seed and different tuning must give the same
/// answers.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Seed of all choices.
    pub seed: u64,
    /// Seed of all that must make no difference.
    pub tuning_seed: u64,
    /// Number of operations.
    pub ops: u64,
    /// How many different keys there are.
    pub keys: u64,
    /// Trees at the same time.
    pub trees: usize,
    /// Most values are shorter than this.
    pub value_bytes: u64,
    /// One value in a hundred is up to this long.
    pub long_value_bytes: u64,
    /// One operation in so many waits for background work.
    pub settle_one_in: u64,
    /// One operation in so many closes or kills the store and opens it again.
    pub reopen_one_in: u64,
    /// One operation in so many gives a tree other options.
    pub alter_one_in: u64,
    /// One operation in so many is of a pin, if the engine has pins.
    pub pin_one_in: u64,
    /// One operation in so many is of a branch tree, if the engine has branch trees.
    pub branch_one_in: u64,
}

impl Params {
    /// A run that takes about a second in memory.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            tuning_seed: seed,
            ops: 4000,
            keys: 400,
            trees: 3,
            value_bytes: 120,
            long_value_bytes: 40_000,
            settle_one_in: 200,
            reopen_one_in: 700,
            alter_one_in: 250,
            pin_one_in: 50,
            branch_one_in: 50,
        }
    }
}

/// The suite's own runs.
pub(super) fn short(factory: &dyn Factory) {
    for seed in 0..4 {
        run(factory, Params::new(seed));
    }
    let many_keys = Params {
        keys: 20_000,
        value_bytes: 600,
        ..Params::new(100)
    };
    run(factory, many_keys);
    let few_keys = Params {
        keys: 12,
        ..Params::new(101)
    };
    run(factory, few_keys);
}

/// Runs one sequence. Answers a digest of all that was read of the present.
///
/// # Panics
/// At the first answer that differs from the model's; the message names the parameters and the
/// operation.
pub fn run(factory: &dyn Factory, params: Params) -> u64 {
    let mut run = Run {
        rng: Rng::new(params.seed),
        tuning: Rng::new(params.tuning_seed ^ 0x7e57),
        digest: 0,
        store: Store::new(factory),
        model: ModelEngine::new(functions::registry()),
        trees: Vec::new(),
        names: 0,
        snapshots: Vec::new(),
        pins: RunPins::default(),
        op: 0,
        params,
    };
    for _ in 0..params.trees {
        run.create_tree();
    }
    while run.op < params.ops {
        run.step();
        run.op += 1;
    }
    run.compare_all();
    run.snapshots.clear();
    run.pins.opened.clear();
    run.store.finish();
    run.digest
}

/// When something is read.
enum Moment {
    Now,
    /// Of the store and of the model.
    Then(Snapshot, Snapshot),
    /// A snapshot that the store has lost, or that is older than the tree.
    Lost,
}

impl Moment {
    /// What the store and the model are to be asked with; `None` if they cannot.
    fn both(&self) -> Option<(Option<&Snapshot>, Option<&Snapshot>)> {
        match self {
            Self::Now => Some((None, None)),
            Self::Then(store, model) => Some((Some(store), Some(model))),
            Self::Lost => None,
        }
    }
}

/// A snapshot of a run.
struct RunSnapshot {
    /// Of the store and of the model. `None` once the store was opened anew.
    both: Option<(Snapshot, Snapshot)>,
    /// The newest tree that was there. What a snapshot shows of a later branch is not defined.
    last_tree: TreeId,
}

struct Run {
    params: Params,
    rng: Rng,
    /// For what must make no difference.
    tuning: Rng,
    digest: u64,
    store: Store,
    model: ModelEngine,
    trees: Vec<TreeId>,
    names: u64,
    snapshots: Vec<RunSnapshot>,
    pins: RunPins,
    op: u64,
}

impl Run {
    fn at(&self) -> String {
        format!("operation {} of {:?}", self.op, self.params)
    }

    fn key(&mut self) -> Vec<u8> {
        key_of(self.rng.below(self.params.keys))
    }

    fn value(&mut self) -> Vec<u8> {
        let bound = if self.rng.one_in(100) {
            self.params.long_value_bytes
        } else {
            self.params.value_bytes
        };
        let len = usize::try_from(self.rng.below(bound + 1)).unwrap_or(0);
        let mut value = vec![0; len];
        if self.rng.one_in(2) {
            self.rng.fill(&mut value);
        } else {
            value.fill(u8::try_from(self.rng.below(256)).unwrap_or(0));
        }
        value
    }

    fn tree(&mut self) -> TreeId {
        let count = u64::try_from(self.trees.len()).unwrap_or(1);
        self.trees[usize::try_from(self.rng.below(count)).unwrap_or(0)]
    }

    fn step(&mut self) {
        if self.tuning.one_in(self.params.settle_one_in) {
            self.store.quiesce();
        }
        if self.tuning.one_in(self.params.reopen_one_in) {
            self.reopen();
        }
        if self.tuning.one_in(self.params.alter_one_in) {
            self.alter_tree();
        }
        if self.rng.one_in(self.params.pin_one_in) {
            self.pin_step();
        }
        if self.rng.one_in(self.params.branch_one_in) {
            self.branch_step();
        }
        match self.rng.below(1000) {
            0..500 => self.commit(),
            500..750 => self.get(),
            750..930 => self.scan(),
            930..960 => self.take_snapshot(),
            960..990 => self.release_snapshot(),
            990..994 => self.replace_tree(),
            994..997 => self.store.engine().sync().expect("the store syncs"),
            _ => self.compare_all(),
        }
    }

    fn commit(&mut self) {
        let mut batch = Batch::new();
        for _ in 0..=self.rng.below(6) {
            self.message(&mut batch);
        }
        let options = CommitOptions {
            sync: self.rng.one_in(20),
            ..CommitOptions::default()
        };
        let lent = self.lent(&batch);
        let done = self.store.engine().commit(&lent, options);
        assert!(done.is_ok(), "{}: {done:?}", self.at());
        let modelled = self.model.commit(&batch, options);
        modelled.expect("the model takes all");
    }

    /// Returns the same batch with some values borrowed, some of the others partial, and some puts
    /// in named write streams: few names, so that keys of a stream come in any order.
    fn lent<'a>(&mut self, batch: &'a Batch<'_>) -> Batch<'a> {
        let mut lent = Batch::new();
        for (tree, message) in batch.messages() {
            let Message::Put { key, value } = message else {
                lent.push(tree, message);
                continue;
            };
            if self.rng.one_in(2) {
                lent.put_borrowed(tree, key, value);
            } else if value.len() % 4 == 1 {
                lent.put_partial(tree, key, value);
            } else {
                lent.put(tree, key, value);
            }
            if self.tuning.one_in(2) {
                lent.name_stream(StreamName(self.tuning.below(3)));
            }
        }
        lent
    }

    fn message(&mut self, batch: &mut Batch<'_>) {
        let tree = self.tree();
        let key = self.key();
        match self.rng.below(100) {
            0..45 => batch.put(tree, &key, &self.value()),
            45..60 => batch.delete(tree, &key),
            60..70 => {
                let end = if self.rng.one_in(2) {
                    key_of(self.rng.below(self.params.keys))
                } else {
                    let mut end = key.clone();
                    end.push(u8::try_from(self.rng.below(256)).unwrap_or(0));
                    end
                };
                // A huge range now and then, small ones mostly.
                if self.rng.one_in(4) || common_prefix(&key, &end) > 0 {
                    batch.delete_range(tree, &key, &end);
                }
            }
            70..78 => {
                let delta = self.rng.below(1000).to_le_bytes();
                batch.upsert(tree, &key, APPEND, &delta[..3]);
            }
            78..86 => batch.upsert(tree, &key, ADD, &self.rng.next_u64().to_le_bytes()),
            86..94 => batch.upsert(tree, &key, HASH, &self.rng.next_u64().to_le_bytes()),
            _ => {
                let len = usize::from(!self.rng.one_in(4));
                let delta = [u8::try_from(self.rng.below(256)).unwrap_or(0)];
                batch.upsert(tree, &key, REMOVE_IF, &delta[..len]);
            }
        }
    }

    /// Now, or one of the snapshots that are not older than the tree.
    fn moment(&mut self, tree: TreeId) -> Moment {
        if self.snapshots.is_empty() || self.rng.one_in(2) {
            return Moment::Now;
        }
        let count = u64::try_from(self.snapshots.len()).unwrap_or(1);
        let index = usize::try_from(self.rng.below(count)).unwrap_or(0);
        let RunSnapshot { both, last_tree } = &self.snapshots[index];
        match both.clone().filter(|_| tree <= *last_tree) {
            Some((store, model)) => Moment::Then(store, model),
            None => Moment::Lost,
        }
    }

    /// Takes what was read into the digest, if it is of the present.
    fn note(&mut self, moment: &Moment, bytes: &[u8]) {
        if matches!(moment, Moment::Now) {
            let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            self.digest = (self.digest ^ len).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for byte in bytes {
                self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }

    fn get(&mut self) {
        let (tree, key) = (self.tree(), self.key());
        let moment = self.moment(tree);
        let Some((at, model_at)) = moment.both() else {
            return;
        };
        let got = self.store.engine().get(tree, &key, at);
        let got = got.unwrap_or_else(|e| panic!("{}: {e}", self.at()));
        let expected = self.model.get(tree, &key, model_at);
        let expected = expected.expect("the model reads");
        assert_eq!(got, expected, "{}: key {key:?}", self.at());
        self.note(&moment, got.as_deref().unwrap_or(b"none"));
    }

    fn scan(&mut self) {
        let tree = self.tree();
        let moment = self.moment(tree);
        let (start, end) = (self.key(), self.key());
        let range = match self.rng.below(4) {
            0 => KeyRange::all(),
            1 => KeyRange::from(&start),
            _ => KeyRange::new(&start, &end),
        };
        let direction = if self.rng.one_in(2) {
            Direction::Forward
        } else {
            Direction::Backward
        };
        let rows_max = usize::try_from(1 + self.rng.below(200)).unwrap_or(1);
        let Some((at, model_at)) = moment.both() else {
            return;
        };
        let of = |engine: &dyn Engine, at| first_rows(engine, tree, range, direction, at, rows_max);
        let got = of(self.store.engine(), at);
        let expected = of(&self.model, model_at);
        assert_eq!(got.len(), expected.len(), "{}: {range:?}", self.at());
        for (got, expected) in got.iter().zip(&expected) {
            assert_eq!(got, expected, "{}: {range:?} {direction:?}", self.at());
        }
        for (key, value) in &got {
            self.note(&moment, key);
            self.note(&moment, value);
        }
    }

    fn take_snapshot(&mut self) {
        if self.snapshots.len() < 8 {
            let both = Some((self.store.engine().snapshot(), self.model.snapshot()));
            let last_tree = self.trees.iter().max().copied().unwrap_or_default();
            self.snapshots.push(RunSnapshot { both, last_tree });
        }
    }

    fn release_snapshot(&mut self) {
        if let Some(count) = u64::try_from(self.snapshots.len()).ok().filter(|n| *n > 0) {
            let index = usize::try_from(self.rng.below(count)).unwrap_or(0);
            self.snapshots.swap_remove(index);
        }
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("tree {}", self.names)
    }

    fn create_tree(&mut self) {
        let name = self.name();
        let options = self.tree_options();
        let made = self.store.engine().create_tree(&name, &options);
        let made = made.unwrap_or_else(|e| panic!("{}: {e}", self.at()));
        let modelled = self.model.create_tree(&name, &options);
        let modelled = modelled.expect("the model makes trees");
        // So that one batch serves both.
        assert_eq!(made, modelled, "trees are numbered one after the other");
        self.trees.push(made);
    }

    fn tree_options(&mut self) -> TreeOptions {
        let mut choose = |count| usize::try_from(self.tuning.below(count)).unwrap_or(0);
        TreeOptions {
            block_bytes: [1 << 10, 4 << 10, 16 << 10, 64 << 10][choose(4)],
            stitch_bytes: [0, 4 << 10, 64 << 10, u64::MAX][choose(4)],
            compression: [Compression::None, Compression::Lz4, Compression::Zstd][choose(3)],
            value_block_bytes: [0, 64, 2 << 10][choose(3)],
        }
    }

    fn alter_tree(&mut self) {
        let options = self.tree_options();
        let count = u64::try_from(self.trees.len()).unwrap_or(1);
        let tree = self.trees[usize::try_from(self.tuning.below(count)).unwrap_or(0)];
        let altered = self.store.engine().alter_tree(tree, &options);
        assert!(altered.is_ok(), "{}: {altered:?}", self.at());
        let modelled = self.model.alter_tree(tree, &options);
        modelled.expect("the model alters trees");
    }

    fn replace_tree(&mut self) {
        let tree = self.tree();
        let is_branch = self.branches().iter().any(|(branch, _)| *branch == tree);
        self.drop_tree(tree);
        if !is_branch {
            self.create_tree();
        }
    }

    fn drop_tree(&mut self, tree: TreeId) {
        self.trees.retain(|other| *other != tree);
        let dropped = self.store.engine().drop_tree(tree);
        assert!(dropped.is_ok(), "{}: {dropped:?}", self.at());
        self.model.drop_tree(tree).expect("the model drops trees");
    }

    fn reopen(&mut self) {
        self.snapshots.iter_mut().for_each(|s| s.both = None);
        self.pins.opened.clear();
        let ending = match self.tuning.below(3) {
            0 => Ending::Closed,
            1 => Ending::Killed,
            _ => {
                self.store.engine().sync().expect("the store syncs");
                Ending::PowerCut
            }
        };
        if self.store.reopen(ending) {
            self.model = self.model.reopened();
        }
        self.compare_all();
    }

    fn compare_all(&mut self) {
        let (found, expected) = (dump(self.store.engine()), self.model.dump());
        for (name, rows) in &expected {
            let found = found.get(name);
            assert!(found == Some(rows), "{}: {name} differs", self.at());
        }
        assert_eq!(found.len(), expected.len(), "{}: trees", self.at());
        self.compare_pins();
    }
}

/// Keys of different lengths, dense enough for ranges to hold many, with zeros and 255s in them.
fn key_of(number: u64) -> Vec<u8> {
    let group = number % 16;
    let mut key =
        vec![[0, 1, b'a', b'b', 127, 128, 254, 255][usize::try_from(group / 2).unwrap_or(0)]];
    match number % 5 {
        0 => key.extend_from_slice(&number.to_be_bytes()),
        1 => key.extend_from_slice(&(number / 16).to_be_bytes()[6..]),
        2 => key.extend_from_slice(format!("{number:05}").as_bytes()),
        3 => {
            let len = usize::try_from(number / 16 % 12).unwrap_or(0);
            key.extend(std::iter::repeat_n(
                if group.is_multiple_of(2) { 0 } else { 255 },
                len,
            ));
        }
        _ if number < 16 => key.clear(),
        _ => key.extend_from_slice(&number.to_be_bytes()[5..]),
    }
    key
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Hints of every kind at a range.
pub(super) fn read_hints(range: KeyRange<'_>) -> Vec<ReadHint<'_>> {
    let kinds = [
        (ReadOrder::Sequential, Priority::Soon, None),
        (ReadOrder::Random, Priority::Soon, None),
        (ReadOrder::Random, Priority::Later, None),
        (ReadOrder::Random, Priority::Soon, Some(&b"\xff"[..])),
    ];
    let hint = |(order, priority, beyond), once| ReadHint {
        range,
        beyond,
        order,
        priority,
        once,
    };
    let both = kinds
        .into_iter()
        .flat_map(|kind| [(kind, true), (kind, false)]);
    both.map(|(kind, once)| hint(kind, once)).collect()
}

fn first_rows(
    engine: &dyn Engine,
    tree: TreeId,
    range: KeyRange<'_>,
    direction: Direction,
    at: Option<&Snapshot>,
    rows_max: usize,
) -> Rows {
    let is_bounded = direction == Direction::Forward && range.end.is_some();
    let begun = match is_bounded && rows_max.is_multiple_of(2) {
        true => {
            let hints = read_hints(range);
            engine.read_ahead(tree, &hints[rows_max / 2 % hints.len()]);
            engine.scan_whole(tree, range, at)
        }
        false => engine.scan(tree, range, direction, at),
    };
    let mut scan = begun.expect("the scan begins");
    let mut rows = Rows::new();
    while rows.len() < rows_max {
        let row = scan.next().expect("the scan reads");
        let Some((key, value)) = row else {
            return rows;
        };
        rows.push((key.to_vec(), value.to_vec()));
    }
    if rows_max.is_multiple_of(3) {
        rows.extend(drain(scan));
    }
    rows
}
