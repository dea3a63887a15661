//! Several instances on one volume: each runs a workload of its own, instances come and go, and the
//! power is cut or the process killed.
//!
//! What one instance has done is in order, and instances are not in one order with each other: so
//! after a crash each is, by itself, in a state after some prefix of its own operations, no shorter
//! than what was last acknowledged as durable for it (after a kill: acknowledged). An instance whose
//! creation was acknowledged is there, one whose removal was is not, and one that was being created or
//! removed may be either.

use crate::crash::Wrap;
use crate::kv::{Chore, KvSystem, LiveKv, Model, Shape, Trees, registry};
use crate::vt::VtHost;
use crate::{Ack, System};
use std::collections::BTreeMap;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{CrashDevice, CrashPlan, CrashPoint, Device, MemDevice};
use stitch_volume::{InstanceOptions, VolumeError};
use stitch_vt::{VtEngine, VtError};

/// Most instances besides the first.
const FURTHER_MAX: usize = 3;
/// Lives after the first.
const LIVES: usize = 2;

/// How far an instance had come at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Reach {
    /// Operations that a power cut leaves.
    synced: usize,
    /// Operations that were acknowledged.
    acked: usize,
    /// Operations that were begun.
    started: usize,
    /// It is being created or removed.
    is_in_doubt: bool,
}

/// How far each had come.
type Progress = BTreeMap<String, Reach>;

/// A moment of a life.
struct Frozen {
    point: CrashPoint,
    progress: Progress,
}

/// What an instance holds after each of its operations.
struct History {
    model: Model,
    states: Vec<Trees>,
}

impl History {
    fn new() -> Self {
        Self::of(Trees::new())
    }

    fn of(trees: Trees) -> Self {
        let mut model = Model::default();
        model.trees = trees.clone();
        Self {
            model,
            states: vec![trees],
        }
    }
}

/// What was done for one seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct BesideStats {
    /// Operations run.
    pub ops: u64,
    /// Of these, how many were refused for want of space.
    pub refused: u64,
    /// Instances made.
    pub created: u64,
    /// Instances removed.
    pub removed: u64,
    /// Images opened, compared and checked.
    pub images: u64,
}

/// A volume with several instances under test.
#[derive(Clone)]
pub struct Beside {
    system: KvSystem<VtHost>,
    ops_max: u64,
    points: usize,
    /// What stands between store and device.
    wrap: Wrap,
}

/// One open instance.
struct One {
    engine: Arc<VtEngine>,
    live: LiveKv,
}

struct Run<'a> {
    beside: &'a Beside,
    rng: Rng,
    stats: BesideStats,
    /// By name; names are never used again.
    histories: BTreeMap<String, History>,
    next: u64,
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

impl Beside {
    /// On volumes of this kind.
    #[must_use]
    pub const fn new(host: VtHost, shape: Shape, ops_max: u64, points: usize) -> Self {
        Self {
            system: KvSystem { host, shape },
            ops_max,
            points,
            wrap: |device| device,
        }
    }

    /// With something between store and device.
    #[must_use]
    pub fn with_wrap(mut self, wrap: Wrap) -> Self {
        self.wrap = wrap;
        self
    }

    /// Runs one seed.
    ///
    /// # Errors
    /// What went wrong.
    pub fn explore(&self, seed: u64) -> Result<BesideStats, String> {
        let histories = BTreeMap::from([("main".to_owned(), History::new())]);
        let mut run = Run {
            beside: self,
            rng: Rng::new(seed),
            stats: BesideStats::default(),
            histories,
            next: 0,
        };
        let mut image = self.system.image();
        for life in 0..=LIVES {
            let in_life = |message: String| format!("life {}: {message}", life + 1);
            image = run.live(&image).map_err(in_life)?;
        }
        Ok(run.stats)
    }

    /// Opens all instances.
    fn open(&self, device: Arc<dyn Device>) -> Result<BTreeMap<String, One>, String> {
        let first = self
            .system
            .host
            .open_engine(device, registry())
            .map_err(|e| format!("open failed: {e}"))?;
        let mut all = vec![Arc::clone(&first)];
        all.extend(first.further());
        let named = |engine: Arc<VtEngine>| (engine.name().to_owned(), self.one(engine));
        Ok(all.into_iter().map(named).collect())
    }

    fn one(&self, engine: Arc<VtEngine>) -> One {
        let live = LiveKv::new(VtHost::opened(Arc::clone(&engine), false));
        One { engine, live }
    }
}

impl Run<'_> {
    /// One life, and its deaths. Answers what the next begins with.
    fn live(&mut self, image: &MemDevice) -> Result<MemDevice, String> {
        let device = Arc::new(CrashDevice::from_image(image, CrashPlan::NEVER));
        let seen_by_store = (self.beside.wrap)(Arc::clone(&device) as Arc<dyn Device>);
        let mut all = self.beside.open(seen_by_store)?;
        let begin: Progress = all.keys().map(|n| (n.clone(), Reach::default())).collect();
        let progress = Arc::new(Mutex::new(begin));
        let sample = self.watch(&device, &progress);
        let count = 1 + self.rng.below(self.beside.ops_max);
        for _ in 0..count {
            match self.rng.below(24) {
                0 => self.create(&mut all, &progress)?,
                1 => self.remove(&mut all, &progress)?,
                2 => self.chore(&all)?,
                _ => self.step(&mut all, &progress)?,
            }
        }
        for (name, one) in &all {
            let state = self.state(one)?;
            let last = self.histories[name].states.last();
            if last != Some(&state) {
                return Err(format!("instance {name} does not hold what was written"));
            }
        }
        if self.rng.one_in(2) {
            let first = &all["main"].live;
            self.beside
                .close(first)
                .map_err(|e| format!("close failed: {e}"))?;
        }
        let end = Frozen {
            point: device.freeze(),
            progress: progress.lock().clone(),
        };
        drop(all);
        device.unwatch();
        let mut points = std::mem::take(&mut *sample.lock()).kept;
        points.push(end);
        let survivor = usize::try_from(self.rng.below(points.len() as u64)).unwrap_or(0);
        let mut next = None;
        for (index, frozen) in points.iter().enumerate() {
            let left = self.die(frozen)?;
            if index == survivor {
                next = Some(left);
            }
        }
        let (image, states) = next.expect("one of them survives");
        self.histories = states
            .into_iter()
            .map(|(name, trees)| (name, History::of(trees)))
            .collect();
        Ok(image)
    }

    /// Keeps moments of a life.
    fn watch(
        &mut self,
        device: &CrashDevice,
        progress: &Arc<Mutex<Progress>>,
    ) -> Arc<Mutex<Sample>> {
        let sample = Arc::new(Mutex::new(Sample {
            kept: Vec::new(),
            seen: 0,
            rng: Rng::new(self.rng.next_u64()),
        }));
        let (sink, progress) = (Arc::clone(&sample), Arc::clone(progress));
        let room = self.beside.points;
        device.watch(move |moment| {
            let mut sample = sink.lock();
            if !moment.is_sync && !sample.rng.one_in(4) {
                return;
            }
            sample.seen += 1;
            let seen = sample.seen;
            let slot = match sample.kept.len() < room {
                true => sample.kept.len(),
                false => usize::try_from(sample.rng.below(seen)).unwrap_or(room),
            };
            if slot >= room {
                return;
            }
            let frozen = Frozen {
                point: moment.freeze(),
                progress: progress.lock().clone(),
            };
            match slot == sample.kept.len() {
                true => sample.kept.push(frozen),
                false => sample.kept[slot] = frozen,
            }
        });
        sample
    }

    fn pick(&mut self, all: &BTreeMap<String, One>) -> String {
        let nth = usize::try_from(self.rng.below(all.len() as u64)).unwrap_or(0);
        all.keys().nth(nth).expect("fewer than there are").clone()
    }

    /// One operation on one instance.
    fn step(
        &mut self,
        all: &mut BTreeMap<String, One>,
        progress: &Mutex<Progress>,
    ) -> Result<(), String> {
        let name = self.pick(all);
        let history = self.histories.get_mut(&name).expect("it is known");
        let op = self.beside.system.generate(&history.model, &mut self.rng);
        let before = history.model.clone();
        let mut after = history.model.clone();
        self.beside.system.apply(&mut after, &op);
        // Known beforehand, for a crash in the middle.
        history.states.push(after.trees.clone());
        let reach = |change: &dyn Fn(&mut Reach)| {
            let mut progress = progress.lock();
            change(progress.get_mut(&name).expect("it is there"));
        };
        reach(&|reach| reach.started += 1);
        self.stats.ops += 1;
        let one = all.get_mut(&name).expect("it is there");
        let ack = self.beside.system.run(&mut one.live, &op, &before);
        let ack = ack.map_err(|e| format!("instance {name}: {op:?} failed: {e}"))?;
        if ack == Ack::Refused {
            self.stats.refused += 1;
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
        Ok(())
    }

    fn create(
        &mut self,
        all: &mut BTreeMap<String, One>,
        progress: &Mutex<Progress>,
    ) -> Result<(), String> {
        if all.len() > FURTHER_MAX {
            return Ok(());
        }
        let name = format!("i{}", self.next);
        self.next += 1;
        self.histories.insert(name.clone(), History::new());
        let doubt = Reach {
            is_in_doubt: true,
            ..Reach::default()
        };
        progress.lock().insert(name.clone(), doubt);
        let options = InstanceOptions::default();
        let made = all["main"].engine.create_instance(&name, &options);
        match made {
            Ok(engine) => {
                self.stats.created += 1;
                progress.lock().insert(name.clone(), Reach::default());
                all.insert(name, self.beside.one(engine));
                Ok(())
            }
            Err(VtError::Volume(e)) if e.kind() == ErrorKind::NoSpace => {
                progress.lock().remove(&name);
                Ok(())
            }
            Err(e) => Err(format!("an instance cannot be made: {e}")),
        }
    }

    fn remove(
        &mut self,
        all: &mut BTreeMap<String, One>,
        progress: &Mutex<Progress>,
    ) -> Result<(), String> {
        let name = self.pick(all);
        if name == "main" {
            return Ok(());
        }
        let doubt = |reach: &mut Reach| reach.is_in_doubt = true;
        doubt(progress.lock().get_mut(&name).expect("it is there"));
        let removed = all["main"].engine.remove_instance(&name);
        removed.map_err(|e| format!("instance {name} cannot be removed: {e}"))?;
        self.stats.removed += 1;
        progress.lock().remove(&name);
        all.remove(&name);
        Ok(())
    }

    /// Something about the space of all, by any of them.
    fn chore(&mut self, all: &BTreeMap<String, One>) -> Result<(), String> {
        let name = self.pick(all);
        let bytes = (1 + self.rng.below(12)) * (64 << 10);
        let chore = match self.rng.below(6) {
            0 | 1 => Chore::Defrag(1 + self.rng.below(20)),
            2 => Chore::Trim,
            3 => Chore::Grow(bytes),
            _ => Chore::Shrink(bytes),
        };
        match crate::vt::do_chore(&all[&name].engine, chore) {
            // One that was removed has data there until the volume is opened anew.
            Err(VtError::Volume(VolumeError::NoZones { .. }) | VtError::Unmovable { .. }) => Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Invalid) => Ok(()),
            other => other.map_err(|e| format!("{chore:?} by {name} failed: {e}")),
        }
    }

    fn state(&self, one: &One) -> Result<Trees, String> {
        let state = self.beside.system.state(&one.live);
        state.map_err(|e| format!("reading {} failed: {e}", one.engine.name()))
    }

    /// Power cut or kill at one moment. Answers what is left, and what each instance holds.
    fn die(&mut self, frozen: &Frozen) -> Result<(MemDevice, BTreeMap<String, Trees>), String> {
        let is_kill = self.rng.one_in(4);
        let image = match is_kill {
            true => frozen.point.kill_image(),
            false => frozen.point.crash_image(&mut self.rng),
        };
        self.stats.images += 1;
        let how = if is_kill { "killed" } else { "power cut" };
        let explain = |message: String| format!("{how}: {message}");
        let found = self.verify(&image, frozen, is_kill).map_err(explain)?;
        Ok((image, found))
    }

    fn verify(
        &self,
        image: &MemDevice,
        frozen: &Frozen,
        is_kill: bool,
    ) -> Result<BTreeMap<String, Trees>, String> {
        let device: Arc<dyn Device> = Arc::new(image.clone());
        let all = self.beside.open(Arc::clone(&device))?;
        for (name, reach) in &frozen.progress {
            if !all.contains_key(name) && !reach.is_in_doubt {
                return Err(format!("instance {name} is gone"));
            }
        }
        if !self.beside.system.host.has_threads() {
            audit(&all)?;
        }
        let mut found = BTreeMap::new();
        for (name, one) in &all {
            let Some(reach) = frozen.progress.get(name) else {
                return Err(format!("instance {name} should be gone"));
            };
            let low = if is_kill { reach.acked } else { reach.synced };
            let state = self.state(one)?;
            let allowed = &self.histories[name].states[low..=reach.started];
            if !allowed.contains(&state) {
                let last = allowed.last().expect("not empty");
                let difference = self.beside.system.difference(&state, last);
                return Err(format!(
                    "instance {name} is after none of operations {low} to {}: {difference}",
                    reach.started
                ));
            }
            let broken = self.beside.system.check(&one.live);
            let broken = broken.map_err(|e| format!("check of {name} failed: {e}"))?;
            if let Some(first) = broken.first() {
                return Err(format!("instance {name} breaks a rule: {first}"));
            }
            found.insert(name.clone(), state);
        }
        drop(all);
        let again = self.beside.open(device)?;
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
}

impl Beside {
    fn close(&self, first: &LiveKv) -> Result<(), String> {
        first.close_engine().map_err(|e| e.to_string())
    }
}

/// Compares the online-map and the promises with what all instances own.
fn audit(all: &BTreeMap<String, One>) -> Result<(), String> {
    let volume = all["main"].engine.volume();
    volume.zones().check();
    let held = all.values().map(|one| one.engine.holdings());
    let (owned, promised) = held.fold((0, 0), |(owned, promised), held| {
        (owned + held.owned_bytes, promised + held.promised_bytes)
    });
    let instances = volume.superblock().instances;
    let logs = instances.iter().map(|instance| instance.logs);
    let logs: u64 = logs.map(|l| l.version_log_bytes + l.backup_log_bytes).sum();
    let sums = [
        ("live bytes", volume.zones().usage().live, owned + logs),
        ("promised bytes", volume.space().promised_bytes(), promised),
    ];
    match sums.iter().find(|(_, found, owned)| found != owned) {
        Some((what, found, owned)) => {
            Err(format!("{found} {what} are counted, {owned} have an owner"))
        }
        None => Ok(()),
    }
}

/// A fair sample of the moments of a life.
struct Sample {
    kept: Vec<Frozen>,
    seen: u64,
    rng: Rng,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            seen: 0,
            rng: Rng::new(0),
        }
    }
}
