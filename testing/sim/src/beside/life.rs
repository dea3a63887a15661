//! A life of a volume with several instances, and the states that it may leave.

use super::{Beside, InstanceHistory, InstanceProgress, Reach, audit};
use crate::kv::{Chore, KvOp, LiveKv, Trees};
use crate::vt::{VtHost, do_chore};
use crate::{Ack, System, SystemError};
use std::collections::BTreeMap;
use std::fmt;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{Device, MemDevice};
use stitch_volume::InstanceOptions;
use stitch_vt::VtEngine;

/// Most instances besides the first.
const FURTHER_MAX: usize = 3;

/// One open instance.
pub(super) struct One {
    pub(super) engine: Arc<VtEngine>,
    pub(super) live: LiveKv,
}

impl One {
    pub(super) fn named(engine: Arc<VtEngine>) -> (String, Self) {
        let name = engine.name().to_owned();
        let live = LiveKv::new(VtHost::opened(Arc::clone(&engine), false));
        (name, Self { engine, live })
    }
}

/// All open instances.
pub(super) type All = BTreeMap<String, One>;

/// A failed operation and its instance.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    /// The instance that got the error.
    pub(super) name: String,
    /// The operation.
    pub(super) what: String,
    pub(super) error: SystemError,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, what, error } = self;
        write!(f, "instance {name}: {what} failed: {error}")
    }
}

impl Failed {
    /// Returns the instance whose error it is. The error names another instance, unless that was
    /// not created.
    pub(super) fn whose(&self, all: &All) -> String {
        let named = self.error.message.strip_prefix("instance ");
        let named = named.and_then(|rest| rest.split_once(": "));
        let named = named.filter(|(name, _)| all.contains_key(*name));
        named.map_or(&*self.name, |(name, _)| name).to_owned()
    }
}

/// What was done for one seed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Operations run.
    pub(super) ops: u64,
    /// Of these, how many were refused for want of space.
    pub(super) refused: u64,
    /// Instances made.
    pub(super) created: u64,
    /// Instances removed.
    pub(super) removed: u64,
}

/// The instances of a volume through its lives.
#[derive(Clone)]
pub(super) struct VolumeRun<'a> {
    pub(super) beside: &'a Beside,
    pub(super) rng: Rng,
    pub(super) tally: Tally,
    /// By name; names are never used again.
    pub(super) histories: BTreeMap<String, InstanceHistory>,
    /// Of this life.
    pub(super) progress: Arc<Mutex<InstanceProgress>>,
    next: u64,
}

impl<'a> VolumeRun<'a> {
    pub(super) fn new(beside: &'a Beside, seed: u64) -> Self {
        let main = ("main".to_owned(), InstanceHistory::new());
        Self {
            beside,
            rng: Rng::new(seed),
            tally: Tally::default(),
            histories: BTreeMap::from([main]),
            progress: Arc::default(),
            next: 0,
        }
    }

    /// Copies the instances in their current state, with another random future.
    pub(super) fn fork(&self, seed: u64) -> Self {
        let now = self.histories.iter();
        Self {
            rng: Rng::new(seed),
            tally: Tally::default(),
            histories: now
                .map(|(name, history)| (name.clone(), InstanceHistory::of(history.last().clone())))
                .collect(),
            progress: Arc::default(),
            ..self.clone()
        }
    }

    /// Starts a life: the current contents are durable.
    pub(super) fn enter(&mut self, all: &All) {
        let begin = all.keys().map(|n| (n.clone(), Reach::default()));
        *self.progress.lock() = begin.collect();
        self.histories.retain(|name, _| all.contains_key(name));
        for history in self.histories.values_mut() {
            history.states.drain(..history.states.len() - 1);
        }
    }

    /// Sets the contents that the life before has left.
    pub(super) fn found(&mut self, left: BTreeMap<String, Trees>) {
        let left = left.into_iter();
        self.histories = left
            .map(|(name, trees)| (name, InstanceHistory::of(trees)))
            .collect();
    }

    /// Records that everything acknowledged is durable.
    pub(super) fn note_closed(&self) {
        for reach in self.progress.lock().values_mut() {
            reach.synced = reach.acked;
        }
    }

    pub(super) fn pick(&mut self, all: &All) -> String {
        let nth = usize::try_from(self.rng.below(all.len() as u64)).unwrap_or(0);
        all.keys().nth(nth).expect("fewer than there are").clone()
    }

    /// Runs an operation of any instance, and checks that all allocated extents have an owner.
    /// Returns false if it was refused for lack of space.
    pub(super) fn turn(&mut self, all: &mut All) -> Result<bool, Failed> {
        let is_done = self.something(all)?;
        if self.beside.system.host.has_threads() {
            return Ok(is_done);
        }
        let found = audit(all).map(|()| is_done);
        found.map_err(|e| Failed {
            name: "main".to_owned(),
            what: "the audit".to_owned(),
            error: SystemError::new(ErrorKind::Bug, e),
        })
    }

    fn something(&mut self, all: &mut All) -> Result<bool, Failed> {
        match self.rng.below(24) {
            0 => self.create(all),
            1 => self.remove(all),
            2 => self.chore(all),
            _ => {
                let name = self.pick(all);
                self.step(all, &name)
            }
        }
    }

    /// Runs a random operation on one instance.
    pub(super) fn step(&mut self, all: &mut All, name: &str) -> Result<bool, Failed> {
        let model = &self.histories[name].model;
        let op = self.beside.system.generate(model, &mut self.rng);
        self.run(all, name, &op)
    }

    /// Runs `op` on one instance.
    pub(super) fn run(&mut self, all: &mut All, name: &str, op: &KvOp) -> Result<bool, Failed> {
        let history = self.histories.get_mut(name).expect("it is known");
        let before = history.model.clone();
        let mut after = history.model.clone();
        self.beside.system.apply(&mut after, op);
        // Recorded before the operation, for a crash in the middle.
        history.states.push(after.trees.clone());
        let reach = |change: &dyn Fn(&mut Reach)| {
            let mut progress = self.progress.lock();
            change(progress.get_mut(name).expect("it is there"));
        };
        reach(&|reach| reach.started += 1);
        self.tally.ops += 1;
        let one = all.get_mut(name).expect("it is there");
        let ack = self.beside.system.run(&mut one.live, op, &before);
        let ack = ack.map_err(|error| Failed {
            name: name.to_owned(),
            what: format!("{op:?}"),
            error,
        })?;
        if ack == Ack::Refused {
            self.tally.refused += 1;
            *history.states.last_mut().expect("just added") = before.trees;
        } else {
            history.model = after;
        }
        let is_durable = ack == Ack::Durable;
        reach(&|reach| {
            reach.acked = reach.started;
            if is_durable {
                reach.synced = reach.acked;
            }
        });
        Ok(ack != Ack::Refused)
    }

    /// Removes a failed operation of an instance from its history.
    pub(super) fn forgive(&mut self, name: &str) {
        let history = self.histories.get_mut(name).expect("it is known");
        let before = history.model.trees.clone();
        let mut progress = self.progress.lock();
        let reach = progress.get_mut(name).expect("it is there");
        if reach.acked < reach.started {
            *history.states.last_mut().expect("it was begun") = before;
            reach.acked = reach.started;
        }
        reach.is_in_doubt = false;
    }

    /// Creates another instance, if there are few. Returns false if there is no space for it.
    pub(super) fn create(&mut self, all: &mut All) -> Result<bool, Failed> {
        if all.len() > FURTHER_MAX {
            return Ok(true);
        }
        let name = format!("i{}", self.next);
        self.next += 1;
        self.histories.insert(name.clone(), InstanceHistory::new());
        let doubt = Reach {
            is_in_doubt: true,
            ..Reach::default()
        };
        self.progress.lock().insert(name.clone(), doubt);
        let options = InstanceOptions::default();
        match all["main"].engine.create_instance(&name, &options) {
            Ok(engine) => {
                self.tally.created += 1;
                self.progress.lock().insert(name, Reach::default());
                all.extend([One::named(engine)]);
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                self.progress.lock().remove(&name);
                Ok(false)
            }
            Err(e) => Err(Failed {
                what: {
                    // It must not exist, unless the state of the medium is unknown.
                    if !all["main"].engine.volume().is_poisoned() {
                        self.progress.lock().remove(&name);
                    }
                    format!("making {name}")
                },
                name: "main".to_owned(),
                error: SystemError::new(e.kind(), e),
            }),
        }
    }

    /// Removes any of them, but for the first.
    fn remove(&mut self, all: &mut All) -> Result<bool, Failed> {
        let name = self.pick(all);
        match name.as_str() {
            "main" => Ok(true),
            _ => self.remove_named(all, &name),
        }
    }

    pub(super) fn remove_named(&mut self, all: &mut All, name: &str) -> Result<bool, Failed> {
        let doubt = |reach: &mut Reach| reach.is_in_doubt = true;
        doubt(self.progress.lock().get_mut(name).expect("it is there"));
        let removed = all["main"].engine.remove_instance(name);
        removed.map_err(|e| Failed {
            what: format!("removing {name}"),
            name: "main".to_owned(),
            error: SystemError::new(e.kind(), e),
        })?;
        self.tally.removed += 1;
        self.progress.lock().remove(name);
        all.remove(name);
        Ok(true)
    }

    /// Runs a chore on the shared space, by any instance.
    pub(super) fn chore(&mut self, all: &All) -> Result<bool, Failed> {
        let name = self.pick(all);
        let bytes = (1 + self.rng.below(12)) * (64 << 10);
        let chore = match self.rng.below(6) {
            0 | 1 => Chore::Defrag(1 + self.rng.below(20)),
            2 => Chore::Trim,
            3 => Chore::Grow(bytes),
            _ => Chore::Shrink(bytes),
        };
        match do_chore(&all[&name].engine, chore) {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Invalid) => Ok(false),
            Err(e) => Err(Failed {
                name,
                what: format!("{chore:?}"),
                error: SystemError::new(e.kind(), e),
            }),
        }
    }

    pub(super) fn state(&self, one: &One) -> Result<Trees, String> {
        let state = self.beside.system.state(&one.live);
        state.map_err(|e| format!("reading {} failed: {e}", one.engine.name()))
    }

    /// Checks that every instance except `but` has its acknowledged contents.
    pub(super) fn hold_all(&self, all: &All, but: Option<&str>) -> Result<(), String> {
        for (name, one) in all {
            if but == Some(name) {
                continue;
            }
            let (state, expected) = (self.state(one)?, self.histories[name].last());
            if state != *expected {
                let difference = self.beside.system.difference(&state, expected);
                return Err(format!(
                    "instance {name} does not hold what was written: {difference}"
                ));
            }
        }
        Ok(())
    }

    /// Runs the checks of every instance.
    pub(super) fn check_all(&self, all: &All) -> Result<(), String> {
        for (name, one) in all {
            let broken = self.beside.system.check(&one.live);
            let broken = broken.map_err(|e| format!("check of {name} failed: {e}"))?;
            if let Some(first) = broken.first() {
                return Err(format!("instance {name} breaks a rule: {first}"));
            }
        }
        match self.beside.system.host.has_threads() {
            true => Ok(()),
            false => audit(all),
        }
    }

    /// Opens the image of a crash twice. Returns the contents of each instance.
    pub(super) fn verify(
        &self,
        image: &MemDevice,
        progress: &InstanceProgress,
        is_kill: bool,
    ) -> Result<BTreeMap<String, Trees>, String> {
        let device: Arc<dyn Device> = Arc::new(image.clone());
        let fail = |e: SystemError| format!("open failed: {e}");
        let all = self.beside.open(Arc::clone(&device)).map_err(fail)?;
        for (name, reach) in progress {
            if !all.contains_key(name) && !reach.is_in_doubt {
                return Err(format!("instance {name} is gone"));
            }
        }
        if !self.beside.system.host.has_threads() {
            audit(&all)?;
        }
        let mut found = BTreeMap::new();
        for (name, one) in &all {
            let Some(reach) = progress.get(name) else {
                return Err(format!("instance {name} should be gone"));
            };
            let low = if is_kill { reach.acked } else { reach.synced };
            let state = self.state(one)?;
            self.is_after(name, &state, (low, reach.started))?;
            found.insert(name.clone(), state);
        }
        self.check_all(&all)?;
        drop(all);
        let again = self.beside.open(device).map_err(fail)?;
        let names: Vec<_> = again.keys().collect();
        if names != found.keys().collect::<Vec<_>>() {
            return Err(format!("opened once more, there are {names:?}"));
        }
        for (name, one) in &again {
            if self.state(one)? != found[name] {
                return Err(format!("instance {name} differs when opened once more"));
            }
        }
        Ok(found)
    }

    /// An instance is in a state after so many of its operations.
    pub(super) fn is_after(
        &self,
        name: &str,
        state: &Trees,
        (low, high): (usize, usize),
    ) -> Result<(), String> {
        let allowed = &self.histories[name].states[low..=high];
        if allowed.contains(state) {
            return Ok(());
        }
        let last = allowed.last().expect("not empty");
        let difference = self.beside.system.difference(state, last);
        Err(format!(
            "instance {name} is after none of operations {low} to {high}: {difference}"
        ))
    }
}
