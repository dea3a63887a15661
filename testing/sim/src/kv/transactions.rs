//! Transactions that have outgrown memory: their writes are in a temporary branch of a tree, which
//! is absorbed or dropped. Most batches are in the order of keys, so they become tables.
//!
//! No crash keeps a temporary branch. The model still has the transaction in the next life; there,
//! its operations are refused until it is aborted.

use super::model::{self, KvOp, Map, Message, Model, Shape};
use super::{LiveKv, error, read_tree, wrong};
use crate::{Ack, SystemError};
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::{Batch, CommitOptions, Guards, KvError, NewBranch};

/// Transactions at the same time.
const SLOTS: u64 = 2;
/// Most keys of one batch.
const KEYS_MAX: u64 = 40;
/// Names of temporary branches begin with this.
const PREFIX: &str = "temporary-";

/// A step of a transaction.
#[derive(Clone, Debug)]
pub enum TransactionOp {
    /// Makes the temporary branch, of this tree.
    Begin(String),
    /// Writes a batch to the branch.
    Spill(Vec<Message>, CommitOptions),
    /// Compares what the branch holds with what it must.
    Read,
    /// Gives the writes to the tree.
    Absorb(CommitOptions),
    /// Drops the branch.
    Abort,
}

/// A transaction of the model.
#[derive(Clone, Debug)]
pub struct Spilled {
    /// The tree that its branch is of.
    pub(super) tree: String,
    /// The rows that are read through the branch.
    seen: Map,
    /// What was written to it.
    messages: Vec<Message>,
}

/// Reports whether a tree is the branch of a transaction.
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The next operation on a transaction; a new one is of `tree`.
pub(super) fn generate(model: &Model, tree: String, shape: Shape, rng: &mut Rng) -> KvOp {
    let name = format!("{PREFIX}{}", rng.below(SLOTS));
    let options = CommitOptions {
        sync: rng.one_in(8),
        ..CommitOptions::default()
    };
    let op = match model.transactions.contains_key(&name) {
        false => TransactionOp::Begin(tree),
        true => match rng.below(12) {
            0 => TransactionOp::Abort,
            1 | 2 => TransactionOp::Absorb(options),
            3 => TransactionOp::Read,
            4 | 5 => TransactionOp::Spill(in_any_order(shape, rng), options),
            _ => TransactionOp::Spill(in_key_order(shape, rng), CommitOptions::default()),
        },
    };
    KvOp::Transaction(name, op)
}

fn in_any_order(shape: Shape, rng: &mut Rng) -> Vec<Message> {
    let count = 1 + rng.below(shape.messages_max);
    (0..count).map(|_| model::message(shape, rng)).collect()
}

/// A deleted range or none, then keys in order, each once.
fn in_key_order(shape: Shape, rng: &mut Rng) -> Vec<Message> {
    let number = |rng: &mut Rng| model::numbered(rng.below(shape.keys));
    let mut messages = Vec::new();
    if rng.one_in(3) {
        messages.push(Message::DeleteRange(number(rng), number(rng)));
    }
    let mut keys = BTreeMap::new();
    for _ in 0..1 + rng.below(KEYS_MAX) {
        let key = number(rng);
        let message = match rng.below(8) {
            0 => Message::Delete(key.clone()),
            _ => Message::Put(key.clone(), model::value(shape, rng)),
        };
        keys.insert(key, message);
    }
    messages.extend(keys.into_values());
    messages
}

/// What an operation does in the model.
pub(super) fn apply(model: &mut Model, name: &str, op: &TransactionOp) {
    let functions = Arc::clone(&model.functions);
    let open = "generated for a transaction that is open";
    match op {
        TransactionOp::Begin(tree) => {
            let spilled = Spilled {
                tree: tree.clone(),
                seen: model.trees[tree].clone(),
                messages: Vec::new(),
            };
            let before = model.transactions.insert(name.to_owned(), spilled);
            assert!(before.is_none(), "generated for a free name");
        }
        TransactionOp::Spill(messages, _) => {
            let spilled = model.transactions.get_mut(name).expect(open);
            for message in messages {
                model::apply(&mut spilled.seen, message, &functions);
            }
            spilled.messages.extend_from_slice(messages);
        }
        TransactionOp::Read => {}
        TransactionOp::Absorb(_) => {
            let spilled = model.transactions.remove(name).expect(open);
            let map = model.trees.get_mut(&spilled.tree);
            let map = map.expect("a tree that is dropped takes its transactions along");
            for message in &spilled.messages {
                model::apply(map, message, &functions);
            }
        }
        TransactionOp::Abort => {
            model.transactions.remove(name).expect(open);
        }
    }
}

impl LiveKv {
    /// Does something to a transaction; `model` is as before it. One that ended with an earlier
    /// life refuses all but its abort.
    pub(super) fn transaction(
        &mut self,
        name: &str,
        op: &TransactionOp,
        model: &Model,
    ) -> Result<Ack, SystemError> {
        let done = match op {
            TransactionOp::Begin(tree) => self.begin(name, tree),
            TransactionOp::Abort => self.abort(name),
            _ if !self.transactions.contains_key(name) => return Ok(Ack::Refused),
            TransactionOp::Read => return self.compare_spilled(name, &model.transactions[name]),
            TransactionOp::Spill(messages, options) => self.spill(name, messages, *options),
            TransactionOp::Absorb(options) => self.absorb(name, *options),
        };
        let ack = match done {
            Err(KvError::NoSpace { .. }) => Ack::Refused,
            done => done.map_err(error)?,
        };
        self.audited(ack)
    }

    fn begin(&mut self, name: &str, tree: &str) -> Result<Ack, KvError> {
        // One may be left of a tree that was dropped.
        self.abort(name)?;
        let new = [NewBranch::temporary(self.trees[tree], name)];
        let made = self.engine.branch_trees(&new, None)?;
        self.transactions.insert(name.to_owned(), made[0]);
        Ok(Ack::Done)
    }

    fn abort(&mut self, name: &str) -> Result<Ack, KvError> {
        if let Some(branch) = self.transactions.get(name) {
            self.engine.drop_tree(*branch)?;
            self.transactions.remove(name);
        }
        Ok(Ack::Done)
    }

    fn spill(
        &self,
        name: &str,
        messages: &[Message],
        options: CommitOptions,
    ) -> Result<Ack, KvError> {
        let batch = batch_of(self.transactions[name], messages);
        self.engine.commit(&batch, options).map(|_| ack(options))
    }

    fn absorb(&mut self, name: &str, options: CommitOptions) -> Result<Ack, KvError> {
        let branches = [self.transactions[name]];
        let guards = Guards::since(&self.engine.branch_moment(branches[0])?);
        let batch = Batch::new();
        self.engine.absorb(&branches, &batch, &guards, options)?;
        self.transactions.remove(name);
        Ok(ack(options))
    }

    /// Compares what a branch holds with what the model has.
    fn compare_spilled(&self, name: &str, expected: &Spilled) -> Result<Ack, SystemError> {
        let found = read_tree(&*self.engine, name, self.transactions[name])?;
        if found == expected.seen {
            return Ok(Ack::Done);
        }
        let [found, seen] =
            [&found, &expected.seen].map(|map| BTreeMap::from([(name.to_owned(), map.clone())]));
        let difference = model::difference(&found, &seen);
        Err(wrong(format!("a transaction reads wrongly: {difference}")))
    }
}

fn ack(options: CommitOptions) -> Ack {
    match options.sync {
        true => Ack::Durable,
        false => Ack::Done,
    }
}

fn batch_of(branch: TreeId, messages: &[Message]) -> Batch<'_> {
    let mut batch = Batch::new();
    for message in messages {
        match message {
            Message::Put(key, value) => batch.put(branch, key, value),
            Message::Delete(key) => batch.delete(branch, key),
            Message::DeleteRange(start, end) => batch.delete_range(branch, start, end),
            Message::Upsert(key, function, delta) => batch.upsert(branch, key, *function, delta),
        }
    }
    batch
}
