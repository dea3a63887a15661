//! Crashes: a workload is run once, and frozen at its syncs, at some of its writes and between
//! operations. At some of these points the power is cut or the process killed. The image is opened,
//! compared with the states that it may be in, and checked.
//!
//! Some images continue with a second workload (and a third), since most mistakes of recovery show
//! only when a later life builds on its result and crashes again. Recovery itself is watched too: a
//! crash within it is one of the points of the next life.
//!
//! Rules:
//! - after a power cut the state is that after some prefix of the operations: at least what was
//!   last acknowledged as durable, at most what had begun;
//! - after a kill, at least what was last acknowledged;
//! - a recovered state stays, whatever happens next;
//! - the checks of the store find no fault, and opening it again changes nothing.

use crate::timeline::{Progress, Span, Timeline};
use crate::{Ack, System, SystemError};
use stitch_base::random::Rng;
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{CrashDevice, CrashPlan, CrashPoint, Device, MemDevice};
use stitch_fs::{MemFiles, MemFilesPoint};

/// Wraps the device that a store sees. Canaries make it lie.
pub type Wrap = fn(Arc<dyn Device>) -> Arc<dyn Device>;

/// The amount of work for one seed.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Most operations of one life.
    pub ops_max: u64,
    /// Points of one life at which it crashes.
    pub points: usize,
    /// Lives after the first.
    pub depth_max: usize,
    /// The layer between store and device.
    pub wrap: Wrap,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            ops_max: 60,
            points: 6,
            depth_max: 2,
            wrap: |device| device,
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashStats {
    /// Operations run.
    pub ops: u64,
    /// Of these, how many were refused for want of space.
    pub refused: u64,
    /// Syncs that the device saw.
    pub syncs: u64,
    /// Images opened, compared and checked.
    pub images: u64,
    /// Lives after the first.
    pub lives: u64,
}

impl CrashStats {
    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.refused += other.refused;
        self.syncs += other.syncs;
        self.images += other.images;
        self.lives += other.lives;
    }
}

/// Runs the workload of one seed through its crashes.
///
/// # Errors
/// What went wrong, and where.
pub fn explore<S: System>(system: &S, seed: u64, effort: Effort) -> Result<CrashStats, String> {
    let mut explorer = Explorer {
        system,
        rng: Rng::new(seed),
        effort,
        stats: CrashStats::default(),
    };
    let device = CrashDevice::from_image(&system.image(), CrashPlan::NEVER);
    let start = Start {
        device,
        files: MemFiles::new(),
        timeline: Timeline::new(system),
        span: Span::default(),
        is_durable: true,
        depth: 0,
    };
    explorer.live(start)?;
    Ok(explorer.stats)
}

/// Opens the image of a crash twice. Its state must be that after `low` to `high` operations, and
/// pass all checks.
pub(crate) fn verify<S: System>(
    system: &S,
    image: &MemDevice,
    timeline: &Timeline<S>,
    (low, high): (usize, usize),
) -> Result<(), String> {
    let mut explorer = Explorer {
        system,
        rng: Rng::new(0),
        effort: Effort::default(),
        stats: CrashStats::default(),
    };
    let found = explorer.verify(image, &MemFiles::new(), timeline, low, high);
    found.map(drop)
}

/// The start of a life.
struct Start<S: System> {
    device: CrashDevice,
    files: MemFiles,
    timeline: Timeline<S>,
    /// The part of the timeline in which the device may be.
    span: Span,
    /// True if all bytes of the device are durable.
    is_durable: bool,
    depth: usize,
}

/// A moment of a run, and its progress.
struct Frozen {
    point: CrashPoint,
    files: MemFilesPoint,
    span: Span,
    what: &'static str,
}

/// A fair sample of the moments of one life.
struct Sample {
    files: MemFiles,
    kept: Vec<Frozen>,
    seen: u64,
    syncs: u64,
    rng: Rng,
    room: usize,
}

impl Sample {
    fn offer(&mut self, what: &'static str, span: Span, freeze: impl FnOnce() -> CrashPoint) {
        self.seen += 1;
        if self.kept.len() < self.room {
            self.kept.push(Frozen {
                files: self.files.freeze(),
                point: freeze(),
                span,
                what,
            });
            return;
        }
        let slot = usize::try_from(self.rng.below(self.seen)).expect("a small number");
        if let Some(kept) = self.kept.get_mut(slot) {
            *kept = Frozen {
                files: self.files.freeze(),
                point: freeze(),
                span,
                what,
            };
        }
    }
}

struct Explorer<'a, S> {
    system: &'a S,
    rng: Rng,
    effort: Effort,
    stats: CrashStats,
}

impl<S: System> Explorer<'_, S> {
    /// Runs one life: open, work, perhaps close; then crashes at some of its moments.
    fn live(&mut self, start: Start<S>) -> Result<(), String> {
        let Start {
            device,
            files,
            timeline,
            span,
            is_durable,
            depth,
        } = start;
        let device = Arc::new(device);
        let progress = Arc::new(Progress::default());
        progress.set(Span {
            is_recovery: true,
            ..span
        });
        let sample = self.watch(&device, &files, &progress);
        // The device before the sample, as the watcher locks them.
        let keep = |what| {
            let point = device.freeze();
            sample.lock().offer(what, progress.span(), || point);
        };
        let in_life = |message: String| format!("life {}: {message}", depth + 1);

        let seen_by_store = (self.effort.wrap)(Arc::clone(&device) as Arc<dyn Device>);
        let opened = self.system.open_beside(seen_by_store, &files);
        let mut live = opened.map_err(|e| in_life(format!("open failed: {e}")))?;
        let base = self
            .recovered(&live, &timeline, span, is_durable)
            .map_err(in_life)?;
        let synced = if is_durable {
            base
        } else {
            span.synced.min(base)
        };
        progress.set(Span {
            synced,
            ..Span::at(base)
        });
        let mut now = timeline.cut(self.system, base);

        let count = 1 + self.rng.below(self.effort.ops_max);
        for _ in 0..count {
            self.step(&mut live, &mut now, &progress).map_err(in_life)?;
            if self.rng.one_in(8) {
                keep("between operations");
            }
        }
        self.same(&live, now.last(), "before the end")
            .map_err(in_life)?;
        if self.rng.one_in(2) {
            self.system
                .close(live)
                .map_err(|e| in_life(format!("close failed: {e}")))?;
            progress.set(Span::at(now.len()));
            keep("after closing");
        } else {
            keep("at the end");
            drop(live);
        }
        device.unwatch();
        self.die_at_each(&sample, &timeline, &now, depth)
    }

    /// Crashes at each of the sampled moments of a life.
    fn die_at_each(
        &mut self,
        sample: &Mutex<Sample>,
        before: &Timeline<S>,
        now: &Timeline<S>,
        depth: usize,
    ) -> Result<(), String> {
        let (points, syncs) = {
            let mut sample = sample.lock();
            (std::mem::take(&mut sample.kept), sample.syncs)
        };
        self.stats.syncs += syncs;
        for frozen in points {
            let history = if frozen.span.is_recovery { before } else { now };
            self.die(&frozen, history, depth)?;
        }
        Ok(())
    }

    /// Samples moments of a device's life.
    fn watch(
        &mut self,
        device: &CrashDevice,
        files: &MemFiles,
        progress: &Arc<Progress>,
    ) -> Arc<Mutex<Sample>> {
        let sample = Arc::new(Mutex::new(Sample {
            files: files.clone(),
            kept: Vec::new(),
            seen: 0,
            syncs: 0,
            rng: Rng::new(self.rng.next_u64()),
            room: self.effort.points,
        }));
        let (sink, progress) = (Arc::clone(&sample), Arc::clone(progress));
        device.watch(move |moment| {
            let mut sample = sink.lock();
            if moment.is_sync {
                sample.syncs += 1;
                sample.offer("during a sync", progress.span(), || moment.freeze());
            } else if sample.rng.one_in(4) {
                sample.offer("after a write", progress.span(), || moment.freeze());
            }
        });
        sample
    }

    /// Runs one operation on the store and in the timeline.
    fn step(
        &mut self,
        live: &mut S::Live,
        now: &mut Timeline<S>,
        progress: &Progress,
    ) -> Result<(), String> {
        let op = self.system.generate(now.model(), &mut self.rng);
        progress.start();
        self.stats.ops += 1;
        match self.system.run(live, &op, now.model()) {
            Ok(ack) => {
                self.stats.refused += u64::from(ack == Ack::Refused);
                now.push(self.system, op, ack == Ack::Refused);
                progress.ack(ack == Ack::Durable);
                Ok(())
            }
            Err(e) => Err(format!("{op:?} failed: {e}; before it:{}", now.tail(3))),
        }
    }

    /// Returns the prefix that an opened store holds.
    fn recovered(
        &self,
        live: &S::Live,
        timeline: &Timeline<S>,
        span: Span,
        is_durable: bool,
    ) -> Result<usize, String> {
        let state = self.read(live)?;
        let low = if is_durable { span.synced } else { span.acked };
        timeline
            .find(&state, low, span.started)
            .ok_or_else(|| timeline.explain(self.system, &state, low, span.started))
    }

    /// Cuts the power or kills at one moment; then perhaps runs a next life.
    fn die(&mut self, frozen: &Frozen, timeline: &Timeline<S>, depth: usize) -> Result<(), String> {
        let is_kill = self.rng.one_in(4);
        let (image, files, low, how) = if is_kill {
            let image = frozen.point.kill_image();
            (image, frozen.files.kill(), frozen.span.acked, "killed")
        } else {
            (
                frozen.point.crash_image(&mut self.rng),
                frozen.files.cut(&mut self.rng),
                frozen.span.synced,
                "power cut",
            )
        };
        let high = frozen.span.started;
        let context =
            |message: String| format!("life {}, {how} {}: {message}", depth + 1, frozen.what);
        let left = files.freeze();
        let is_exact = self.verify(&image, &files, timeline, low, high);
        // A sync that a kill interrupted counts as an operation, and may have made nothing durable.
        let is_cut_off = is_kill && frozen.span.acked < high && self.system.ties_states();
        let is_exact = is_exact.map_err(context)? && !is_cut_off;
        if depth >= self.effort.depth_max || !is_exact || !self.rng.one_in(2) {
            return Ok(());
        }
        self.stats.lives += 1;
        let resumes = is_kill && self.rng.one_in(2);
        let device = if resumes {
            frozen.point.resume()
        } else {
            CrashDevice::from_image(&image, CrashPlan::NEVER)
        };
        let span = if resumes {
            frozen.span
        } else {
            Span::between(low, high)
        };
        self.live(Start {
            device,
            files: left.kill(),
            timeline: timeline.cut(self.system, high),
            span,
            is_durable: !resumes,
            depth: depth + 1,
        })
    }

    /// Opens an image twice, compares and checks it. Returns whether a next life can be compared
    /// too.
    fn verify(
        &mut self,
        image: &MemDevice,
        files: &MemFiles,
        timeline: &Timeline<S>,
        low: usize,
        high: usize,
    ) -> Result<bool, String> {
        self.stats.images += 1;
        let device = Arc::new(image.clone());
        let live = self.open(Arc::clone(&device) as Arc<dyn Device>, files)?;
        let span = Span::between(low, high);
        let prefix = self.recovered(&live, timeline, span, true)?;
        let broken = self
            .system
            .check(&live)
            .map_err(|e| format!("check failed: {e}"))?;
        if let Some(first) = broken.first() {
            return Err(format!(
                "check found {} broken rules; first: {first}",
                broken.len()
            ));
        }
        let expected = timeline.state(prefix);
        let is_exact = self.system.is_exact(&self.read(&live)?, expected);
        drop(live);
        let again = self.open(device, files)?;
        self.same(&again, expected, "when opened once more")?;
        Ok(is_exact)
    }

    fn open(&self, device: Arc<dyn Device>, files: &MemFiles) -> Result<S::Live, String> {
        self.system
            .open_beside(device, files)
            .map_err(|e| format!("open failed: {e}"))
    }

    fn read(&self, live: &S::Live) -> Result<S::State, String> {
        self.system
            .state(live)
            .map_err(|e: SystemError| format!("reading failed: {e}"))
    }

    fn same(&self, live: &S::Live, expected: &S::State, when: &str) -> Result<(), String> {
        let state = self.read(live)?;
        if state == *expected {
            return Ok(());
        }
        let difference = self.system.difference(&state, expected);
        Err(format!("state {when} is not as expected: {difference}"))
    }
}
