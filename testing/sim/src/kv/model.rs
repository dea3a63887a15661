//! The key-value store as maps, and the operations on it.

use super::functions::{ADD, APPEND, SHRINK, registry};
use super::pins;
use super::transactions::{self, Spilled, TransactionOp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use stitch_base::random::Rng;
use stitch_kv::{Folded, KeyRanges, UpsertRegistry};

/// Trees that may exist, by slot.
const SLOTS: u64 = 3;

/// Branch trees that may exist beside them, by slot.
const BRANCH_SLOTS: u64 = 4;

/// Number of the first key of a write stream.
const STREAMS_AT: u64 = 10_000;

/// One tree.
pub type Map = BTreeMap<Vec<u8>, Arc<[u8]>>;
/// All trees, by name.
pub type Trees = BTreeMap<String, Map>;

/// One message of a commit.
#[derive(Clone)]
pub enum Message {
    /// Sets a key.
    Put(Vec<u8>, Arc<[u8]>),
    /// Removes a key.
    Delete(Vec<u8>),
    /// Removes a range.
    DeleteRange(Vec<u8>, Vec<u8>),
    /// Folds into a key.
    Upsert(Vec<u8>, u32, Vec<u8>),
}

fn text(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(12).map(|b| format!("{b:02x}")).collect();
    if bytes.len() > 12 {
        format!("{shown}..({})", bytes.len())
    } else {
        shown
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(key, value) => write!(f, "put {}={}", text(key), text(value)),
            Self::Delete(key) => write!(f, "delete {}", text(key)),
            Self::DeleteRange(start, end) => write!(f, "delete {}..{}", text(start), text(end)),
            Self::Upsert(key, function, delta) => {
                write!(f, "upsert {} {function} {}", text(key), text(delta))
            }
        }
    }
}

/// One operation on a store.
#[derive(Clone, Debug)]
pub enum KvOp {
    /// A batch.
    Commit {
        /// Its messages with the names of their trees.
        messages: Vec<(String, Message)>,
        /// Durable when it returns.
        sync: bool,
        /// May use the space kept back for getting out of a full store.
        reserve: bool,
    },
    /// Makes everything durable.
    Sync,
    /// Makes a tree.
    CreateTree(String),
    /// Makes a branch of the first tree under the second name.
    BranchTree(String, String),
    /// Makes a branch of what a pin holds of a tree: the pin, the tree, and the branch.
    BranchPin(String, String, String),
    /// Removes a tree.
    DropTree(String),
    /// Gives a tree other options, chosen by the number.
    AlterTree(String, u64),
    /// Lets background work finish.
    Settle,
    /// Does one piece of background work.
    Step,
    /// Holds a snapshot, or compares and releases the one held.
    Snapshot,
    /// Does something to the space of the store.
    Chore(Chore),
    /// Makes a pin of some trees.
    CreatePin(String, BTreeSet<String>),
    /// Narrows a pin to ranges of a tree.
    NarrowPin(String, String, KeyRanges),
    /// Removes a pin.
    DropPin(String),
    /// Does something to a transaction whose writes are in a temporary branch, by its name.
    Transaction(String, TransactionOp),
}

/// What can be done to the space of a store. Nothing that it holds changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// Evacuates zones with holes, for so many steps.
    Defrag(u64),
    /// Tells the device of all that is free.
    Trim,
    /// Makes the store longer by so many bytes.
    Grow(u64),
    /// Makes the store shorter by so many bytes.
    Shrink(u64),
}

/// What the workload is like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of different keys of a tree.
    pub keys: u64,
    /// Largest value, in bytes.
    pub value_bytes_max: u64,
    /// Most messages of one commit.
    pub messages_max: u64,
    /// One of so many operations works on the space of the store, if any does.
    pub chores: Option<u64>,
    /// Half of all commits put the key after the last one of a tree.
    pub has_streams: bool,
    /// Some operations make and drop pins.
    pub has_pins: bool,
    /// Some operations make and drop branch trees.
    pub has_branches: bool,
    /// Some operations write to temporary branches, and absorb or drop them.
    pub has_transactions: bool,
}

/// The store in memory.
#[derive(Clone)]
pub struct Model {
    /// What it holds.
    pub trees: Trees,
    /// What its pins see, by name.
    pub(super) pins: BTreeMap<String, Trees>,
    /// Trees that pins hold ranges of alone: the name of the pin, and of the tree.
    pub(super) narrowed: BTreeSet<(String, String)>,
    /// Trees of pins that were not dropped since.
    pub(super) living: BTreeSet<(String, String)>,
    /// Transactions that are open, by name. No crash keeps them: they are not part of the state.
    pub(super) transactions: BTreeMap<String, Spilled>,
    pub(super) functions: Arc<UpsertRegistry>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("trees", &self.trees.len())
            .finish_non_exhaustive()
    }
}

impl Default for Model {
    fn default() -> Self {
        Self {
            trees: BTreeMap::new(),
            pins: BTreeMap::new(),
            narrowed: BTreeSet::new(),
            living: BTreeSet::new(),
            transactions: BTreeMap::new(),
            functions: Arc::new(registry()),
        }
    }
}

impl Model {
    pub(super) fn apply(&mut self, op: &KvOp) {
        match op {
            KvOp::Commit { messages, .. } => {
                for (tree, message) in messages {
                    let map = self
                        .trees
                        .get_mut(tree)
                        .expect("generated for a living tree");
                    apply(map, message, &self.functions);
                }
            }
            KvOp::CreateTree(name) => {
                let before = self.trees.insert(name.clone(), Map::new());
                assert!(before.is_none(), "generated for a free name");
            }
            KvOp::BranchTree(parent, name) => {
                let rows = self.trees[parent].clone();
                let before = self.trees.insert(name.clone(), rows);
                assert!(before.is_none(), "generated for a free name");
            }
            KvOp::BranchPin(pin, tree, name) => {
                assert!(self.living.contains(&(pin.clone(), tree.clone())));
                let rows = self.pins[pin][tree].clone();
                let before = self.trees.insert(name.clone(), rows);
                assert!(before.is_none(), "generated for a free name");
            }
            KvOp::DropTree(name) => {
                self.trees
                    .remove(name)
                    .expect("generated for a living tree");
                self.living.retain(|(_, tree)| tree != name);
                self.transactions.retain(|_, of| of.tree != *name);
            }
            KvOp::Transaction(name, op) => transactions::apply(self, name, op),
            KvOp::CreatePin(name, of) => {
                let mut seen = self.trees.clone();
                seen.retain(|tree, _| of.contains(tree));
                let held = seen.keys().map(|tree| (name.clone(), tree.clone()));
                self.living.extend(held);
                let before = self.pins.insert(name.clone(), seen);
                assert!(before.is_none(), "generated for a free name");
            }
            KvOp::DropPin(name) => {
                let gone = self.pins.remove(name);
                gone.expect("generated for a pin that is there");
                self.narrowed.retain(|(pin, _)| pin != name);
                self.living.retain(|(pin, _)| pin != name);
            }
            KvOp::NarrowPin(pin, tree, ranges) => {
                let trees = self.pins.get_mut(pin);
                let map = trees.and_then(|trees| trees.get_mut(tree));
                let map = map.expect("generated for a tree of a pin");
                map.retain(|key, _| ranges.has(key));
                self.narrowed.insert((pin.clone(), tree.clone()));
            }
            KvOp::AlterTree(..) | KvOp::Chore(_) => {}
            KvOp::Sync | KvOp::Settle | KvOp::Step | KvOp::Snapshot => {}
        }
    }
}

pub(super) fn apply(map: &mut Map, message: &Message, functions: &UpsertRegistry) {
    match message {
        Message::Put(key, value) => {
            map.insert(key.clone(), Arc::clone(value));
        }
        Message::Delete(key) => {
            map.remove(key);
        }
        Message::DeleteRange(start, end) if start < end => {
            let range = (Bound::Included(start.clone()), Bound::Excluded(end.clone()));
            let doomed: Vec<Vec<u8>> = map.range(range).map(|(key, _)| key.clone()).collect();
            for key in doomed {
                map.remove(&key);
            }
        }
        Message::DeleteRange(..) => {}
        Message::Upsert(key, function, delta) => {
            let function = functions.get(*function).expect("a registered function");
            let mut out = Vec::new();
            let old = map.get(key).map(|value| &value[..]);
            match function.fold(key, old, delta, &mut out) {
                Folded::Value => map.insert(key.clone(), out.into()),
                Folded::Absent => map.remove(key),
            };
        }
    }
}

/// A next operation.
pub(super) fn generate(model: &Model, shape: Shape, rng: &mut Rng) -> KvOp {
    let names: Vec<&String> = model.trees.keys().collect();
    let plain = names.iter().filter(|name| !is_branch(name)).count();
    if names.is_empty() || (plain < 3 && rng.one_in(16)) {
        let free = (0..SLOTS).map(|slot| format!("tree-{slot}"));
        let mut free = free.filter(|name| !model.trees.contains_key(name));
        return KvOp::CreateTree(free.next().expect("fewer trees than slots"));
    }
    let pick = |rng: &mut Rng| names[small(rng, names.len() as u64)].clone();
    if shape.has_branches && rng.one_in(10) {
        let tree = pick(rng);
        return branch_or_drop(model, tree, rng);
    }
    if shape.has_transactions && rng.one_in(3) {
        return transactions::generate(model, pick(rng), shape, rng);
    }
    if shape.has_pins && rng.one_in(8) {
        return pins::generate(model, rng);
    }
    if shape.chores.is_some_and(|count| rng.one_in(count)) {
        return KvOp::Chore(chore(rng));
    }
    if shape.has_streams && rng.one_in(2) {
        return next_of_stream(model, pick(rng), shape, rng);
    }
    match rng.below(32) {
        0..=2 => KvOp::Sync,
        3 => KvOp::Step,
        4 if rng.one_in(3) => KvOp::Settle,
        4 => KvOp::Step,
        5 | 6 => KvOp::Snapshot,
        7 if names.len() > 1 => KvOp::DropTree(pick(rng)),
        7 => KvOp::AlterTree(pick(rng), rng.next_u64()),
        8 if rng.one_in(2) => KvOp::AlterTree(pick(rng), rng.next_u64()),
        8 => delete_much(pick(rng), shape, rng),
        9..=11 => sequential(pick(rng), shape, rng),
        _ => {
            let count = if rng.one_in(4) {
                1 + rng.below(shape.messages_max)
            } else {
                1
            };
            let messages = (0..count)
                .map(|_| (pick(rng), message(shape, rng)))
                .collect();
            KvOp::Commit {
                messages,
                sync: rng.one_in(8),
                reserve: false,
            }
        }
    }
}

fn is_branch(name: &str) -> bool {
    name.starts_with("branch-")
}

/// Makes a branch of a tree, which may be one itself, or of what a pin holds of one; drops the tree
/// if there are enough.
fn branch_or_drop(model: &Model, tree: String, rng: &mut Rng) -> KvOp {
    let mut names = (0..BRANCH_SLOTS).map(|slot| format!("branch-{slot}"));
    let Some(name) = names.find(|name| !model.trees.contains_key(name)) else {
        return KvOp::DropTree(tree);
    };
    match pins::held_tree(model, rng).filter(|_| rng.one_in(2)) {
        Some((pin, tree)) => KvOp::BranchPin(pin, tree, name),
        None => KvOp::BranchTree(tree, name),
    }
}

/// Whole zones, and some pages more.
fn chore(rng: &mut Rng) -> Chore {
    let bytes = (1 + rng.below(12)) * (32 << 10) + rng.below(4) * 4096;
    match rng.below(8) {
        0 | 1 => Chore::Defrag(1 + rng.below(20)),
        2 => Chore::Trim,
        3 | 4 => Chore::Grow(bytes),
        _ => Chore::Shrink(bytes),
    }
}

/// Gives space back, so it must work on a full store too.
fn delete_much(tree: String, shape: Shape, rng: &mut Rng) -> KvOp {
    let (start, end) = (key(shape, rng), key(shape, rng));
    let (start, end) = if start < end {
        (start, end)
    } else {
        (end, start)
    };
    KvOp::Commit {
        messages: vec![(tree, Message::DeleteRange(start, end))],
        sync: rng.one_in(4),
        reserve: true,
    }
}

/// Neighbouring keys in order, as sequential writing makes them.
fn sequential(tree: String, shape: Shape, rng: &mut Rng) -> KvOp {
    let first = rng.below(shape.keys);
    let count = 1 + rng.below(shape.messages_max);
    let put = |i: u64, rng: &mut Rng| {
        (
            tree.clone(),
            Message::Put(numbered(first + i), value(shape, rng)),
        )
    };
    let messages = (0..count).map(|i| put(i, rng)).collect();
    KvOp::Commit {
        messages,
        sync: rng.one_in(8),
        reserve: false,
    }
}

/// Puts a few keys after the last one of a tree, beyond those that are written at random.
fn next_of_stream(model: &Model, tree: String, shape: Shape, rng: &mut Rng) -> KvOp {
    let last = model.trees[&tree].keys().next_back();
    let last = last.and_then(|key| key.first_chunk::<2>());
    let next = last.map_or(0, |number| u64::from(u16::from_be_bytes(*number)) + 1);
    let next = next.max(STREAMS_AT);
    let count = if rng.one_in(4) { 1 + rng.below(3) } else { 1 };
    let put = |number: u64, rng: &mut Rng| {
        let mut value = vec![0; 300 + small(rng, shape.value_bytes_max - 300)];
        rng.fill(&mut value);
        (tree.clone(), Message::Put(numbered(number), value.into()))
    };
    KvOp::Commit {
        messages: (next..next + count).map(|n| put(n, rng)).collect(),
        sync: rng.one_in(16),
        reserve: false,
    }
}

pub(super) fn message(shape: Shape, rng: &mut Rng) -> Message {
    let at = key(shape, rng);
    match rng.below(16) {
        0..=2 => Message::Delete(at),
        3 => {
            let end = key(shape, rng);
            Message::DeleteRange(at, end)
        }
        4 | 5 => Message::Upsert(at, ADD, rng.below(1000).to_le_bytes().to_vec()),
        6 => Message::Upsert(at, APPEND, bytes(rng, 40)),
        7 => Message::Upsert(at, SHRINK, Vec::new()),
        _ => Message::Put(at, value(shape, rng)),
    }
}

pub(super) fn numbered(number: u64) -> Vec<u8> {
    let mut key = u16::try_from(number)
        .expect("a small number of keys")
        .to_be_bytes()
        .to_vec();
    // Keys of different lengths, some of them the start of others.
    key.resize(2 + usize::from(key[1] % 4) * 9, b'.');
    key
}

fn key(shape: Shape, rng: &mut Rng) -> Vec<u8> {
    if shape.has_streams && rng.one_in(8) {
        return numbered(STREAMS_AT + rng.below(64));
    }
    numbered(rng.below(shape.keys))
}

pub(super) fn value(shape: Shape, rng: &mut Rng) -> Arc<[u8]> {
    let bound = match rng.below(8) {
        0 => 1,
        1..=4 => 64,
        5 | 6 => shape.value_bytes_max.min(1024),
        _ => shape.value_bytes_max,
    };
    bytes(rng, bound).into()
}

/// Up to `bound` bytes; some repeat, so that compression has something to do.
fn bytes(rng: &mut Rng, bound: u64) -> Vec<u8> {
    let mut out = vec![0; small(rng, bound)];
    if rng.one_in(2) {
        rng.fill(&mut out);
    } else {
        let byte = rng.next_u64().to_le_bytes()[0];
        out.fill(byte);
        let head = out.len().min(8);
        rng.fill(&mut out[..head]);
    }
    out
}

pub(super) fn small(rng: &mut Rng, bound: u64) -> usize {
    usize::try_from(rng.below(bound)).expect("a small number")
}

/// The first difference between two stores.
pub(super) fn difference(found: &Trees, expected: &Trees) -> String {
    if let Some(name) = found.keys().find(|name| !expected.contains_key(*name)) {
        return format!("there is a tree {name:?} too many");
    }
    for (name, wanted) in expected {
        let Some(map) = found.get(name) else {
            return format!("tree {name:?} is missing");
        };
        if let Some((key, _)) = map.iter().find(|(key, _)| !wanted.contains_key(*key)) {
            return format!("{name:?} has a key {} too many", text(key));
        }
        for (key, value) in wanted {
            match map.get(key) {
                None => return format!("{name:?} has no key {}", text(key)),
                Some(other) if other != value => {
                    let (other, value) = (text(other), text(value));
                    return format!("{name:?} has {}={other}, not {value}", text(key));
                }
                Some(_) => {}
            }
        }
    }
    "no difference".to_owned()
}
