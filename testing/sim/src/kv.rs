//! Any engine as a system under test.

mod functions;
mod model;
mod pins;
mod transactions;

pub use functions::registry;
pub use model::{Chore, KvOp, Map, Message, Model, Shape, Trees};
pub use transactions::{Spilled, TransactionOp};

use crate::{Ack, System, SystemError};
use std::collections::BTreeMap;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, TreeId};
use stitch_device::{Device, MemDevice};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, KvError, Snapshot, SpaceClass, StreamName,
    TreeInfo, TreeOptions, UpsertRegistry,
};

/// Runs one step of background work of an engine without threads. Returns whether there was any.
pub type Step = Box<dyn Fn() -> Result<bool, SystemError> + Send + Sync>;

/// Runs a chore on the space of a store. Its contents do not change.
pub type Chores = Box<dyn Fn(Chore) -> Result<(), SystemError> + Send + Sync>;

/// Returns the faults in the sums of an idle engine.
pub type Audit = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// An open engine.
pub struct OpenEngine {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// Runs its background work, if it has no threads.
    pub step: Step,
    /// Further requests to it.
    pub chores: Option<Chores>,
    /// Compares the allocated extents with those that the engine owns, while it is idle.
    pub audit: Option<Audit>,
}

impl std::fmt::Debug for OpenEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenEngine")
    }
}

/// Creates engines of one kind.
pub trait Host {
    /// Returns its name in reports.
    fn name(&self) -> &'static str;

    /// A freshly formatted medium, without trees.
    fn image(&self) -> MemDevice;

    /// Options of a new tree.
    fn tree_options(&self, name: &str) -> TreeOptions {
        let _ = name;
        TreeOptions::default()
    }

    /// Other options for a tree, by any number.
    fn other_options(&self, name: &str, number: u64) -> TreeOptions {
        let _ = number;
        self.tree_options(name)
    }

    /// Opens, with these upsert functions.
    ///
    /// # Errors
    /// The errors of the engine.
    fn open(
        &self,
        device: Arc<dyn Device>,
        functions: UpsertRegistry,
    ) -> Result<OpenEngine, SystemError>;
}

/// An engine with a workload.
#[derive(Clone, Debug)]
pub struct KvSystem<H> {
    /// Opens engines.
    pub host: H,
    /// What is done to them.
    pub shape: Shape,
}

/// An open engine, and the snapshots that the workload holds.
pub struct LiveKv {
    engine: Arc<dyn Engine>,
    step: Step,
    chores: Option<Chores>,
    audit: Option<Audit>,
    trees: BTreeMap<String, TreeId>,
    /// The branches of transactions that are open.
    transactions: BTreeMap<String, TreeId>,
    held: Option<Held>,
}

/// A snapshot, and what it must hold as long as its trees live.
#[derive(Debug)]
struct Held {
    snapshot: Snapshot,
    trees: BTreeMap<String, (TreeId, Map)>,
}

fn error(e: KvError) -> SystemError {
    SystemError::new(e.kind(), e)
}

fn wrong(message: String) -> SystemError {
    SystemError::new(ErrorKind::Bug, message)
}

impl LiveKv {
    /// An engine that was opened.
    pub(crate) fn new(opened: OpenEngine) -> Self {
        let OpenEngine {
            engine,
            step,
            chores,
            audit,
        } = opened;
        let trees = engine.trees().into_iter();
        let trees = trees.map(|tree| (tree.name, tree.id)).collect();
        Self {
            engine,
            step,
            chores,
            audit,
            trees,
            transactions: BTreeMap::new(),
            held: None,
        }
    }

    /// Closes the engine, which stays there for readers.
    pub(crate) fn close_engine(&self) -> Result<(), SystemError> {
        self.engine.close().map_err(error)
    }

    /// Makes a batch that borrows half of the values. A quarter are partial, and two of three puts
    /// name their write stream, rightly or not.
    fn batch<'a>(&self, messages: &'a [(String, Message)]) -> Batch<'a> {
        let mut batch = Batch::new();
        for (tree, message) in messages {
            let tree = self.trees[tree];
            match message {
                Message::Put(key, value) if value.len().is_multiple_of(2) => {
                    batch.put_borrowed(tree, key, value);
                }
                Message::Put(key, value) if value.len() % 4 == 1 => {
                    batch.put_partial(tree, key, value);
                }
                Message::Put(key, value) => batch.put(tree, key, value),
                Message::Delete(key) => batch.delete(tree, key),
                Message::DeleteRange(start, end) => batch.delete_range(tree, start, end),
                Message::Upsert(key, function, delta) => batch.upsert(tree, key, *function, delta),
            }
            if let Message::Put(key, value) = message
                && !value.len().is_multiple_of(3)
            {
                let name = key.first().map_or(0, |first| u64::from(first % 2));
                batch.name_stream(StreamName(name));
            }
        }
        batch
    }

    /// Does a chore, or is told that it cannot be done now.
    fn chore(&self, chore: Chore) -> Result<Ack, SystemError> {
        let Some(chores) = &self.chores else {
            return Ok(Ack::Refused);
        };
        match chores(chore) {
            Err(e) if matches!(e.kind, ErrorKind::NoSpace | ErrorKind::Invalid) => Ok(Ack::Refused),
            other => other.map(|()| Ack::Done),
        }
    }

    /// An answer, if all that is taken of the medium has an owner after it.
    fn audited(&self, ack: Ack) -> Result<Ack, SystemError> {
        let found = self
            .audit
            .as_ref()
            .and_then(|audit| audit().into_iter().next());
        found.map_or(Ok(ack), |found| Err(wrong(found)))
    }

    /// Takes a snapshot, or compares the one held with what it must hold.
    fn snapshot(&mut self, now: &Trees) -> Result<(), SystemError> {
        let Some(held) = self.held.take() else {
            let with_id =
                |(name, map): (&String, &Map)| (name.clone(), (self.trees[name], map.clone()));
            let trees = now.iter().map(with_id).collect();
            self.held = Some(Held {
                snapshot: self.engine.snapshot(),
                trees,
            });
            return Ok(());
        };
        for (name, (id, expected)) in held.trees {
            // A snapshot loses sight of a tree that was dropped.
            if self.trees.get(&name) != Some(&id) {
                continue;
            }
            let map = scan(
                &*self.engine,
                id,
                (KeyRange::all(), Direction::Forward),
                Some(&held.snapshot),
            )?;
            if map != expected {
                let found = Trees::from([(name.clone(), map)]);
                let difference = model::difference(&found, &Trees::from([(name, expected)]));
                return Err(wrong(format!("the snapshot changed: {difference}")));
            }
        }
        Ok(())
    }
}

/// A range of a tree.
fn scan(
    engine: &dyn Engine,
    tree: TreeId,
    (range, direction): (KeyRange<'_>, Direction),
    at: Option<&Snapshot>,
) -> Result<Map, SystemError> {
    let mut map = Map::new();
    let mut last: Option<Vec<u8>> = None;
    let mut scan = engine.scan(tree, range, direction, at).map_err(error)?;
    while let Some((key, value)) = scan.next().map_err(error)? {
        let is_in_order = last.as_deref().is_none_or(|last| match direction {
            Direction::Forward => last < key,
            Direction::Backward => last > key,
        });
        if !is_in_order {
            return Err(wrong(format!("a scan is out of order at {key:02x?}")));
        }
        last = Some(key.to_vec());
        map.insert(key.to_vec(), value.into());
    }
    Ok(map)
}

/// A tree, read in both directions and by single keys, which must agree.
fn read_tree(engine: &dyn Engine, name: &str, tree: TreeId) -> Result<Map, SystemError> {
    let map = scan(engine, tree, (KeyRange::all(), Direction::Forward), None)?;
    let back = scan(engine, tree, (KeyRange::all(), Direction::Backward), None)?;
    if map != back {
        let one = Trees::from([(name.to_owned(), back)]);
        let other = Trees::from([(name.to_owned(), map)]);
        let difference = model::difference(&one, &other);
        return Err(wrong(format!("a backward scan differs: {difference}")));
    }
    for (key, value) in &map {
        let got = engine.get(tree, key, None).map_err(error)?;
        if got.as_deref() != Some(&value[..]) {
            let got = got.map(|bytes| bytes.len());
            return Err(wrong(format!(
                "get of {key:02x?} differs from the scan: {got:?} bytes"
            )));
        }
        let mut absent = key.clone();
        absent.push(0);
        if !map.contains_key(&absent) && engine.get(tree, &absent, None).map_err(error)?.is_some() {
            return Err(wrong(format!(
                "get of {absent:02x?} finds what the scan does not"
            )));
        }
    }
    Ok(map)
}

impl<H: Host> System for KvSystem<H> {
    type Op = KvOp;
    type State = Trees;
    type Model = Model;
    type Live = LiveKv;

    fn name(&self) -> &'static str {
        self.host.name()
    }

    fn image(&self) -> MemDevice {
        self.host.image()
    }

    fn model(&self) -> Model {
        Model::default()
    }

    fn generate(&self, model: &Model, rng: &mut Rng) -> KvOp {
        model::generate(model, self.shape, rng)
    }

    fn apply(&self, model: &mut Model, op: &KvOp) {
        model.apply(op);
    }

    fn model_state(&self, model: &Model) -> Trees {
        pins::state(model)
    }

    fn open(&self, device: Arc<dyn Device>) -> Result<Self::Live, SystemError> {
        let live = LiveKv::new(self.host.open(device, registry())?);
        match live
            .trees
            .keys()
            .find(|name| transactions::is_temporary(name))
        {
            Some(name) => Err(wrong(format!("{name:?} has outlived its opening"))),
            None => Ok(live),
        }
    }

    fn run(&self, live: &mut Self::Live, op: &KvOp, model: &Model) -> Result<Ack, SystemError> {
        let done = match op {
            KvOp::Commit {
                messages,
                sync,
                reserve,
            } => {
                let space = if *reserve {
                    SpaceClass::Reserve
                } else {
                    SpaceClass::Normal
                };
                let options = CommitOptions { sync: *sync, space };
                let ack = if *sync { Ack::Durable } else { Ack::Done };
                live.engine
                    .commit(&live.batch(messages), options)
                    .map(|_| ack)
            }
            KvOp::Sync => live.engine.sync().map(|()| Ack::Durable),
            KvOp::CreateTree(name) => live
                .engine
                .create_tree(name, &self.host.tree_options(name))
                .map(|id| {
                    live.trees.insert(name.clone(), id);
                    Ack::Durable
                }),
            KvOp::BranchTree(parent, name) => live.branch_tree(parent, name).map(|()| Ack::Durable),
            KvOp::BranchPin(pin, tree, name) => {
                live.branch_pin(pin, (tree, name)).map(|()| Ack::Durable)
            }
            KvOp::DropTree(name) => {
                let id = live.trees[name];
                live.engine.drop_tree(id).map(|()| {
                    live.trees.remove(name);
                    Ack::Durable
                })
            }
            KvOp::AlterTree(name, number) => {
                let options = self.host.other_options(name, *number);
                let altered = live.engine.alter_tree(live.trees[name], &options);
                altered.map(|()| Ack::Done)
            }
            KvOp::CreatePin(name, of) => live.create_pin(name, of).map(|()| Ack::Durable),
            KvOp::NarrowPin(pin, tree, ranges) => {
                let narrowed = live.narrow_pin(pin, tree, ranges);
                narrowed.map(|()| Ack::Durable)
            }
            KvOp::DropPin(name) => live.engine.drop_pin(name).map(|()| Ack::Durable),
            KvOp::Settle => live.engine.quiesce().map(|()| Ack::Done),
            KvOp::Step => return (live.step)().and_then(|_| live.audited(Ack::Done)),
            KvOp::Transaction(name, op) => return live.transaction(name, op, model),
            KvOp::Snapshot => return live.snapshot(&model.trees).map(|()| Ack::Done),
            KvOp::Chore(chore) => return live.chore(*chore).and_then(|ack| live.audited(ack)),
        };
        let may_refuse = !matches!(
            op,
            KvOp::Commit { reserve: true, .. } | KvOp::Sync | KvOp::DropPin(_)
        );
        match done {
            Err(KvError::NoSpace { .. }) if may_refuse => live.audited(Ack::Refused),
            other => other.map_err(error).and_then(|ack| live.audited(ack)),
        }
    }

    fn is_write(&self, op: &KvOp) -> bool {
        match op {
            KvOp::Commit { messages, .. } => !messages.is_empty(),
            KvOp::CreateTree(_) | KvOp::BranchTree(..) | KvOp::DropTree(_) => true,
            KvOp::BranchPin(..) => true,
            KvOp::CreatePin(..) | KvOp::DropPin(_) | KvOp::NarrowPin(..) => true,
            KvOp::Transaction(_, op) => !matches!(op, TransactionOp::Read),
            // One that changes nothing writes nothing.
            KvOp::AlterTree(..) => false,
            KvOp::Sync | KvOp::Settle | KvOp::Step | KvOp::Snapshot | KvOp::Chore(_) => false,
        }
    }

    fn state(&self, live: &Self::Live) -> Result<Trees, SystemError> {
        let mut trees = Trees::new();
        for tree in lasting_trees(live) {
            let map = read_tree(&*live.engine, &tree.name, tree.id)?;
            trees.insert(tree.name, map);
        }
        pins::read(&*live.engine, &mut trees)?;
        Ok(trees)
    }

    fn compare_readable(&self, live: &Self::Live, expected: &Trees) -> Result<u64, String> {
        let mut errors = 0;
        let found = lasting_trees(live).map(|tree| (tree.name, tree.id));
        let found: BTreeMap<String, TreeId> = found.collect();
        let is_living = |name: &&String| !pins::is_pinned(name);
        if !found.keys().eq(expected.keys().filter(is_living)) {
            return Err(format!(
                "trees are {:?}, not {:?}",
                found.keys(),
                expected.keys()
            ));
        }
        errors += pins::compare_readable(&*live.engine, expected)?;
        for (name, map) in expected.iter().filter(|(name, _)| is_living(name)) {
            let tree = found[name];
            for (key, value) in map {
                match live.engine.get(tree, key, None) {
                    Ok(Some(got)) if got == value[..] => {}
                    Ok(_) => return Err(format!("get of {key:02x?} in {name:?} is wrong")),
                    Err(_) => errors += 1,
                }
            }
            errors += scan_readable(&*live.engine, tree, map)?;
        }
        Ok(errors)
    }

    fn check(&self, live: &Self::Live) -> Result<Vec<String>, SystemError> {
        let found = live.engine.check(&mut |_, _| {}).map_err(error)?;
        let broken = found
            .into_iter()
            .map(|v| format!("{}: {}", v.rule, v.detail));
        let sums = live.audit.as_ref().map(|audit| audit());
        Ok(broken.chain(sums.into_iter().flatten()).collect())
    }

    fn quiesce(&self, live: &Self::Live) -> Result<(), SystemError> {
        live.engine.quiesce().map_err(error)
    }

    fn close(&self, live: Self::Live) -> Result<(), SystemError> {
        live.engine.close().map_err(error)
    }

    fn difference(&self, found: &Trees, expected: &Trees) -> String {
        model::difference(found, expected)
    }
}

/// The trees of an engine, without the branches of transactions.
fn lasting_trees(live: &LiveKv) -> impl Iterator<Item = TreeInfo> {
    let trees = live.engine.trees().into_iter();
    trees.filter(|tree| !transactions::is_temporary(&tree.name))
}

/// What a scan gives before it fails is the start of `expected`, without a gap.
fn scan_readable(engine: &dyn Engine, tree: TreeId, expected: &Map) -> Result<u64, String> {
    let Ok(mut scan) = engine.scan(tree, KeyRange::all(), Direction::Forward, None) else {
        return Ok(1);
    };
    let mut wanted = expected.iter();
    loop {
        match (scan.next(), wanted.next()) {
            (Err(_), _) => return Ok(1),
            (Ok(None), None) => return Ok(0),
            (Ok(Some((key, value))), Some((k, v))) if key == k && *value == **v => {}
            (Ok(found), wanted) => {
                let found = found.map(|(key, _)| key.to_vec());
                let wanted = wanted.map(|(key, _)| key);
                return Err(format!(
                    "a scan gives {found:02x?} instead of {wanted:02x?}"
                ));
            }
        }
    }
}
