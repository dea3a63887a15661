//! The suite on the model, and the suite on engines that are broken on purpose.

use super::*;
use crate::{
    Counters, DeletedRange, Guarded, Guards, Holder, KeyRanges, Message, ModelEngine, NewBranch,
    PinInfo, PinRanges, SpaceShare, WrappedEngine,
};
use bytes::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use stitch_base::Seqno;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::Mutex;

struct Models;

struct ModelSubject(Arc<ModelEngine>);

impl Factory for Models {
    fn create(&self, registry: UpsertRegistry) -> Box<dyn Subject> {
        Box::new(ModelSubject(Arc::new(ModelEngine::new(registry))))
    }

    fn create_small(&self, registry: UpsertRegistry, bytes: u64) -> Option<Box<dyn Subject>> {
        let engine = ModelEngine::with_space(registry, bytes);
        Some(Box::new(ModelSubject(Arc::new(engine))))
    }
}

impl Subject for ModelSubject {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.0) as Arc<dyn Engine>
    }

    fn reopen(&mut self, _ending: Ending) -> bool {
        self.0 = Arc::new(self.0.reopened());
        true
    }
}

#[test]
fn the_model_conforms() {
    run(&Models);
}

#[test]
fn every_check_can_be_run_by_its_name() {
    run_one(&Models, "trees");
    assert!(catch_unwind(|| run_one(&Models, "no such check")).is_err());
}

/// What a canary does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    IgnoresRangeDeletes,
    RangeDeletesTakeTheEnd,
    UpsertsOnNothingAreLost,
    SecondMessageIsLost,
    SnapshotsSeeNow,
    BackwardIsForward,
    ScansMissTheLast,
    WholeScansMissTheLast,
    DroppedTreesStay,
    TreesShareRows,
    BatchesAreTorn,
    ForgetsOnReopen,
    ForgetsSyncedOnPowerCut,
    LosesTheMiddleOnPowerCut,
    TakesLongKeys,
    RefusedInPart,
    EmptyValuesAreAbsent,
    CountsNothing,
    FullLosesRows,
    NothingIsSetAside,
    NothingIsExclusive,
    SharedSpaceIsExclusive,
    GuardsAreIgnored,
    GuardsOfRangesAreIgnored,
    GuardsOfBranchesAreIgnored,
    GuardedCommitsLeaveTheirFirst,
    GuardsTakeTheLastMoment,
    PinsSeeNow,
    PinsLoseTrees,
    PinsEndWithTheProcess,
    PinsHoldAllTrees,
    PinsReadAllTrees,
    NarrowedPinsHoldAll,
    NarrowedPinsReadAll,
    NarrowedPinsKeepNothing,
    BranchesBeginNow,
    BranchesEndWithTheirParent,
    BranchesMissDeletes,
    BranchesAreMadeOneByOne,
    BranchKeysAreThoseOfNow,
    AbsorbedBranchesStay,
    AbsorbIgnoresGuards,
    AbsorbLosesTheBatch,
    AbsorbWritesValues,
    DeletedRangesAreNotListed,
    ManyKeysComeInTheirOrder,
    ManyKeysMissTheSnapshot,
    KeysBetweenMissDeletes,
    KeysBetweenGoOnUntilNow,
    KeysBetweenEndWithTheirPage,
}

const FAULTS: [(Fault, &str); 62] = [
    (Fault::IgnoresRangeDeletes, "random"),
    (Fault::RangeDeletesTakeTheEnd, "random"),
    (Fault::UpsertsOnNothingAreLost, "random"),
    (Fault::SecondMessageIsLost, "messages_in_order"),
    (Fault::SnapshotsSeeNow, "snapshots"),
    (Fault::BackwardIsForward, "scans"),
    (Fault::ScansMissTheLast, "scans_ranges"),
    (Fault::WholeScansMissTheLast, "scans"),
    (Fault::DroppedTreesStay, "trees"),
    (Fault::TreesShareRows, "trees_apart"),
    (Fault::BatchesAreTorn, "threads_whole_batches"),
    (Fault::ForgetsOnReopen, "reopen_killed"),
    (Fault::ForgetsSyncedOnPowerCut, "reopen_power_cut"),
    (Fault::LosesTheMiddleOnPowerCut, "reopen_power_cut"),
    (Fault::TakesLongKeys, "limits"),
    (Fault::RefusedInPart, "messages_refused_whole"),
    (Fault::EmptyValuesAreAbsent, "messages_edges"),
    (Fault::CountsNothing, "counters"),
    (Fault::FullLosesRows, "space"),
    (Fault::NothingIsSetAside, "space_set_aside"),
    (Fault::NothingIsExclusive, "shares_of_pins"),
    (Fault::SharedSpaceIsExclusive, "shares_of_ranges"),
    (Fault::GuardsAreIgnored, "guards_random"),
    (Fault::GuardsOfRangesAreIgnored, "guards_ranges"),
    (Fault::GuardsAreIgnored, "branches_guards"),
    (Fault::GuardsOfBranchesAreIgnored, "absorb_guards"),
    (Fault::GuardsOfBranchesAreIgnored, "absorb_guards_random"),
    (Fault::GuardedCommitsLeaveTheirFirst, "guards_keys"),
    (Fault::GuardsTakeTheLastMoment, "guards_moments"),
    (Fault::PinsSeeNow, "pins_survive"),
    (Fault::PinsLoseTrees, "pins_hidden_trees"),
    (Fault::PinsEndWithTheProcess, "pins"),
    (Fault::PinsHoldAllTrees, "pins_of_trees"),
    (Fault::PinsHoldAllTrees, "pins_of_trees_space"),
    (Fault::PinsHoldAllTrees, "pins_of_trees_shares"),
    (Fault::PinsReadAllTrees, "pins_of_trees"),
    (Fault::NarrowedPinsHoldAll, "pins_of_ranges"),
    (Fault::NarrowedPinsHoldAll, "pins_of_ranges_space"),
    (Fault::NarrowedPinsHoldAll, "pins_of_ranges_shares"),
    (Fault::NarrowedPinsReadAll, "pins_of_ranges_refused"),
    (Fault::NarrowedPinsKeepNothing, "pins_of_ranges"),
    (Fault::NarrowedPinsKeepNothing, "random"),
    (Fault::NarrowedPinsHoldAll, "branches_of_ranges"),
    (Fault::NarrowedPinsHoldAll, "branches_of_ranges_space"),
    (Fault::NarrowedPinsKeepNothing, "branches_of_ranges_written"),
    (Fault::BranchesBeginNow, "branches_moments"),
    (
        Fault::BranchesEndWithTheirParent,
        "branches_dropped_parents",
    ),
    (Fault::BranchesMissDeletes, "branches_deletes"),
    (Fault::BranchesAreMadeOneByOne, "branches_together"),
    (Fault::BranchKeysAreThoseOfNow, "branches_keys"),
    (Fault::AbsorbedBranchesStay, "absorb"),
    (Fault::AbsorbIgnoresGuards, "absorb_guarded"),
    (Fault::AbsorbLosesTheBatch, "absorb"),
    (Fault::AbsorbLosesTheBatch, "absorb_large"),
    (Fault::AbsorbWritesValues, "absorb_nested"),
    (Fault::DeletedRangesAreNotListed, "branches_keys"),
    (Fault::ManyKeysComeInTheirOrder, "many_keys"),
    (Fault::ManyKeysMissTheSnapshot, "many_keys_random"),
    (Fault::KeysBetweenMissDeletes, "keys_between"),
    (Fault::KeysBetweenMissDeletes, "keys_between_random"),
    (Fault::KeysBetweenGoOnUntilNow, "keys_between_moments"),
    (Fault::KeysBetweenEndWithTheirPage, "keys_between_pages"),
];

#[test]
fn every_canary_is_caught() {
    for (fault, check) in FAULTS {
        let caught = catch_unwind(AssertUnwindSafe(|| run_one(&Canaries(fault), check)));
        assert!(caught.is_err(), "{fault:?} passed {check}");
    }
}

struct Canaries(Fault);

struct CanarySubject {
    canary: Arc<Canary>,
}

impl Factory for Canaries {
    fn create(&self, registry: UpsertRegistry) -> Box<dyn Subject> {
        Box::new(CanarySubject {
            canary: Arc::new(Canary::new(self.0, ModelEngine::new(registry))),
        })
    }

    fn create_small(&self, registry: UpsertRegistry, bytes: u64) -> Option<Box<dyn Subject>> {
        let model = ModelEngine::with_space(registry, bytes);
        Some(Box::new(CanarySubject {
            canary: Arc::new(Canary::new(self.0, model)),
        }))
    }
}

impl Subject for CanarySubject {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.canary) as Arc<dyn Engine>
    }

    fn reopen(&mut self, ending: Ending) -> bool {
        let old = &self.canary;
        let lost = match (old.fault, ending) {
            (Fault::ForgetsOnReopen, Ending::Killed) => 1,
            (Fault::ForgetsSyncedOnPowerCut, Ending::PowerCut) => 100,
            (Fault::LosesTheMiddleOnPowerCut, Ending::PowerCut) => 3,
            _ => 0,
        };
        let model = if lost == 0 {
            old.inner.reopened()
        } else {
            old.replayed(lost)
        };
        if old.fault == Fault::PinsEndWithTheProcess {
            for pin in model.pins().unwrap() {
                model.drop_pin(&pin.name).unwrap();
            }
        }
        self.canary = Arc::new(Canary::new(old.fault, model));
        true
    }
}

/// The model with one fault. Keeps the batches of its life, to be able to forget some.
struct Canary {
    fault: Fault,
    inner: ModelEngine,
    birth: ModelEngine,
    batches: Mutex<Vec<Batch<'static>>>,
}

impl Canary {
    fn new(fault: Fault, inner: ModelEngine) -> Self {
        Self {
            fault,
            birth: inner.reopened(),
            inner,
            batches: Mutex::default(),
        }
    }

    fn replayed(&self, lost: usize) -> ModelEngine {
        for tree in self.inner.trees() {
            // Trees are made before anything else in the checks that forget.
            let known = self.birth.trees().iter().any(|t| t.name == tree.name);
            if !known {
                let made = self.birth.create_tree(&tree.name, &tree.options);
                assert_eq!(made.unwrap(), tree.id);
            }
        }
        let batches = self.batches.lock();
        let middle = self.fault == Fault::LosesTheMiddleOnPowerCut;
        for (index, batch) in batches.iter().enumerate() {
            let age = batches.len() - index;
            let is_lost = if middle { age == lost } else { age <= lost };
            if !is_lost {
                self.birth.commit(batch, CommitOptions::default()).unwrap();
            }
        }
        self.birth.reopened()
    }

    /// The guards as this canary checks them.
    fn changed_guards(&self, guards: &Guards) -> Guards {
        let mut moments = guards.iter().map(|guard| guard.since);
        let first = moments
            .next()
            .expect("the checks that it is for have guards");
        let last = moments.last().unwrap_or(first);
        let mut out = Guards::since(match self.fault {
            Fault::GuardsTakeTheLastMoment => last,
            _ => first,
        });
        for guard in guards.iter() {
            if self.fault != Fault::GuardsTakeTheLastMoment {
                out.move_to(guard.since);
            }
            match guard.on {
                Guarded::Key(key) => out.key(guard.tree, key),
                Guarded::Range(_) if self.fault == Fault::GuardsOfRangesAreIgnored => {}
                Guarded::Range(range) => out.range(guard.tree, range),
                Guarded::Written(_) if self.fault == Fault::GuardsOfBranchesAreIgnored => {}
                Guarded::Written(branch) => out.written(guard.tree, branch),
            }
        }
        out
    }

    /// Puts what a branch holds where its messages belong.
    fn absorb_values(&self, branches: &[TreeId]) -> Result<Seqno, KvError> {
        let mut batch = Batch::new();
        for branch in branches {
            let trees = self.inner.trees();
            let info = trees.iter().find(|info| info.id == *branch);
            let parent = info.and_then(|info| info.branch).expect("a branch").parent;
            for key in self.inner.branch_keys(*branch, None, usize::MAX)? {
                match self.inner.get(*branch, &key, None)? {
                    Some(value) => batch.put(parent, &key, &value),
                    None => batch.delete(parent, &key),
                }
            }
            self.inner.drop_tree(*branch)?;
        }
        self.inner.commit(&batch, CommitOptions::default())
    }

    fn changed(&self, batch: &Batch<'_>) -> Batch<'static> {
        let mut out = Batch::new();
        let mut at = 0;
        for (tree, message) in batch.messages() {
            at += 1;
            let tree = match self.fault {
                Fault::TreesShareRows => TreeId(1),
                _ => tree,
            };
            match (self.fault, message) {
                (Fault::IgnoresRangeDeletes, Message::DeleteRange { .. }) => {}
                (Fault::RangeDeletesTakeTheEnd, Message::DeleteRange { start, end }) => {
                    let mut end = end.to_vec();
                    end.push(0);
                    out.delete_range(tree, start, &end);
                }
                (Fault::UpsertsOnNothingAreLost, Message::Upsert { key, .. })
                    if self.inner.get(tree, key, None).is_ok_and(|v| v.is_none()) => {}
                (Fault::SecondMessageIsLost, _) if at == 2 => {}
                (Fault::BranchesMissDeletes, Message::Delete { key })
                    if self.inner.get(tree, key, None).is_ok_and(|v| v.is_some())
                        && self.inner.branch_moment(tree).is_ok() => {}
                (Fault::EmptyValuesAreAbsent, Message::Put { key, value: b"" }) => {
                    out.delete(tree, key);
                }
                (Fault::TakesLongKeys, message) if message.key().len() > 4096 => {}
                (_, message) => out.push(tree, message),
            }
        }
        out
    }
}

struct ShortScan<'a>(
    std::iter::Peekable<std::vec::IntoIter<(Vec<u8>, Vec<u8>)>>,
    Option<(Vec<u8>, Vec<u8>)>,
    std::marker::PhantomData<&'a ()>,
);

impl Scan for ShortScan<'_> {
    fn next(&mut self) -> Result<Option<crate::Entry<'_>>, KvError> {
        self.1 = self.0.next();
        if self.0.peek().is_none() {
            return Ok(None);
        }
        Ok(self.1.as_ref().map(|(k, v)| (k.as_slice(), v.as_slice())))
    }
}

impl WrappedEngine for Canary {
    fn inner(&self) -> &dyn Engine {
        &self.inner
    }

    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError> {
        match self.fault {
            Fault::DroppedTreesStay => Ok(()),
            Fault::BranchesEndWithTheirParent => {
                self.inner.drop_tree(tree)?;
                let is_child = |info: &TreeInfo| info.branch.is_some_and(|b| b.parent == tree);
                let children = self.inner.trees().into_iter().filter(is_child);
                children
                    .map(|info| info.id)
                    .try_for_each(|child| Engine::drop_tree(self, child))
            }
            _ => self.inner.drop_tree(tree),
        }
    }

    fn drop_trees(&self, trees: &[TreeId]) -> Result<(), KvError> {
        trees
            .iter()
            .try_for_each(|tree| Engine::drop_tree(self, *tree))
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        let batch = self.changed(batch);
        if matches!(self.fault, Fault::BatchesAreTorn | Fault::RefusedInPart) {
            let mut last = Ok(self.inner.snapshot().seqno());
            for (tree, message) in batch.messages() {
                let mut single = Batch::new();
                single.push(tree, message);
                last = self.inner.commit(&single, options);
                if last.is_err() {
                    break;
                }
                // Others get to see it so, also where they have to wait for a processor.
                if self.fault == Fault::BatchesAreTorn {
                    SystemClock::default().sleep(Duration::from_micros(20));
                }
            }
            return last;
        }
        let done = self.inner.commit(&batch, options);
        if done.is_ok() {
            self.batches.lock().push(batch);
        } else if self.fault == Fault::FullLosesRows {
            let mut losing = Batch::new();
            losing.delete(TreeId(1), &5u32.to_be_bytes());
            let reserve = CommitOptions {
                sync: false,
                space: SpaceClass::Reserve,
            };
            self.inner.commit(&losing, reserve)?;
        }
        done
    }

    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        if guards.is_empty() || self.fault == Fault::GuardsAreIgnored {
            return Engine::commit(self, batch, options);
        }
        if self.fault == Fault::GuardedCommitsLeaveTheirFirst
            && let Some((tree, message)) = batch.messages().next()
        {
            let mut first = Batch::new();
            first.push(tree, message);
            self.inner.commit(&first, options)?;
        }
        let guards = self.changed_guards(guards);
        self.inner.commit_guarded(batch, &guards, options)
    }

    fn keys_between(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        (from, to): (&Snapshot, Option<&Snapshot>),
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let to = to.filter(|_| self.fault != Fault::KeysBetweenGoOnUntilNow);
        let moments = (from, to);
        let mut keys = self.inner.keys_between(tree, range, moments, count_max)?;
        if self.fault == Fault::KeysBetweenMissDeletes {
            keys.retain(|key| self.inner.get(tree, key, to).is_ok_and(|v| v.is_some()));
        }
        if self.fault == Fault::KeysBetweenEndWithTheirPage && keys.len() == count_max {
            keys.pop();
        }
        Ok(keys)
    }

    fn create_pin_of(
        &self,
        name: &str,
        user: &[u8],
        is_held: &dyn Fn(&TreeInfo) -> bool,
    ) -> Result<PinInfo, KvError> {
        match self.fault {
            Fault::PinsHoldAllTrees => self.inner.create_pin(name, user),
            _ => self.inner.create_pin_of(name, user, is_held),
        }
    }

    fn narrow_pin(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError> {
        let none = ranges.keys().map(|tree| (*tree, KeyRanges::default()));
        match self.fault {
            Fault::NarrowedPinsHoldAll => self.inner.narrow_pin(name, &PinRanges::new()),
            Fault::NarrowedPinsKeepNothing => self.inner.narrow_pin(name, &none.collect()),
            _ => self.inner.narrow_pin(name, ranges),
        }
    }

    fn open_pin(&self, name: &str) -> Result<Snapshot, KvError> {
        let pin = self.inner.open_pin(name)?;
        let now = self.inner.snapshot();
        match self.fault {
            Fault::PinsSeeNow => Ok(now),
            Fault::PinsLoseTrees | Fault::PinsReadAllTrees | Fault::NarrowedPinsReadAll => {
                Ok(Snapshot::new(pin.seqno(), Arc::clone(now.hold())))
            }
            _ => Ok(pin),
        }
    }

    fn branch_trees(
        &self,
        branches: &[NewBranch<'_>],
        at: Option<&Snapshot>,
    ) -> Result<Vec<TreeId>, KvError> {
        match self.fault {
            Fault::BranchesBeginNow => self.inner.branch_trees(branches, None),
            Fault::BranchesAreMadeOneByOne => {
                let each = branches
                    .chunks(1)
                    .map(|one| self.inner.branch_trees(one, at));
                each.collect::<Result<Vec<_>, _>>().map(|all| all.concat())
            }
            _ => self.inner.branch_trees(branches, at),
        }
    }

    fn branch_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let mut keys = self.inner.branch_keys(branch, after, count_max)?;
        if self.fault == Fault::BranchKeysAreThoseOfNow {
            keys.retain(|key| self.inner.get(branch, key, None).is_ok_and(|v| v.is_some()));
        }
        Ok(keys)
    }

    fn branch_deleted_ranges(&self, branch: TreeId) -> Result<Vec<DeletedRange>, KvError> {
        let mut ranges = self.inner.branch_deleted_ranges(branch)?;
        if self.fault == Fault::DeletedRangesAreNotListed {
            ranges.clear();
        }
        Ok(ranges)
    }

    fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let (none, empty) = (Guards::since(&self.inner.snapshot()), Batch::new());
        match self.fault {
            Fault::AbsorbIgnoresGuards => self.inner.absorb(branches, batch, &none, options),
            Fault::AbsorbLosesTheBatch => self.inner.absorb(branches, &empty, guards, options),
            Fault::AbsorbWritesValues => self.absorb_values(branches),
            Fault::AbsorbedBranchesStay => {
                let done = self.inner.absorb(branches, batch, guards, options)?;
                let made = self.inner.create_tree("branch", &TreeOptions::default());
                made.map(|_| done)
            }
            _ => self.inner.absorb(branches, batch, guards, options),
        }
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        let at = at.filter(|_| self.fault != Fault::SnapshotsSeeNow);
        self.inner.get(tree, key, at)
    }

    fn get_many(
        &self,
        tree: TreeId,
        keys: &[&[u8]],
        at: Option<&Snapshot>,
    ) -> Result<Vec<Option<Bytes>>, KvError> {
        let mut keys = keys.to_vec();
        if self.fault == Fault::ManyKeysComeInTheirOrder {
            keys.sort_unstable();
        }
        let at = at.filter(|_| self.fault != Fault::ManyKeysMissTheSnapshot);
        self.inner.get_many(tree, &keys, at)
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        let direction = match self.fault {
            Fault::BackwardIsForward => Direction::Forward,
            _ => direction,
        };
        let scan = self.inner.scan(tree, range, direction, at)?;
        if self.fault == Fault::ScansMissTheLast {
            let rows = drain(scan).into_iter().peekable();
            return Ok(Box::new(ShortScan(rows, None, std::marker::PhantomData)));
        }
        Ok(scan)
    }

    fn scan_whole(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        let scan = Engine::scan(self, tree, range, Direction::Forward, at)?;
        if self.fault == Fault::WholeScansMissTheLast {
            let rows = drain(scan).into_iter().peekable();
            return Ok(Box::new(ShortScan(rows, None, std::marker::PhantomData)));
        }
        Ok(scan)
    }

    fn counters(&self) -> Counters {
        match self.fault {
            Fault::CountsNothing => Counters::default(),
            _ => self.inner.counters(),
        }
    }

    fn exclusive_space(
        &self,
        holders: &[Holder<'_>],
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Vec<u64>>, KvError> {
        let found = self.inner.exclusive_space(holders, watch)?;
        Ok(match self.fault {
            Fault::NothingIsExclusive => found.map(|all| vec![0; all.len()]),
            _ => found,
        })
    }

    fn range_space(
        &self,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        at: Option<&Snapshot>,
    ) -> Result<SpaceShare, KvError> {
        let mut share = self.inner.range_space(tree, ranges, at)?;
        if self.fault == Fault::SharedSpaceIsExclusive {
            share.exclusive_bytes = share.referenced_bytes;
        }
        Ok(share)
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        match self.fault {
            Fault::NothingIsSetAside => Ok(()),
            _ => self.inner.set_aside(bytes),
        }
    }
}
