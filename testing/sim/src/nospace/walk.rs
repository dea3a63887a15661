//! Refuses every allocation and reservation of a workload once, in a run of its own.
//!
//! The rules are those of [`super`]. In addition, the power is cut and the process killed right
//! after the refusal: at the first write or sync that follows it, when the operation that met it
//! has returned, and at the end of the run, after some operations without space and some with
//! space.

use super::{Refused, Short};
use crate::timeline::Timeline;
use crate::{Ack, System, crash};
use stitch_base::random::Rng;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{CrashDevice, CrashPlan, CrashPoint, Device};
use stitch_volume::Refusals;

/// Operations after the one that was refused, with no more space and then with space.
const LATER: u64 = 20;

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct WalkStats {
    /// Runs of the workload, each with another allocation refused.
    pub runs: u64,
    /// Refusals that the store met.
    pub refused: u64,
    /// Operations that were told of it.
    pub told: u64,
    /// Images opened, compared and checked.
    pub images: u64,
    /// The operation of each run that met the refusal.
    pub met: Vec<String>,
}

/// Refuses one allocation after the other of the `ops` operations of a seed, until a run asks for
/// none of that number.
///
/// # Errors
/// What went wrong, and with which refusal.
pub fn each<S: System>(
    make: impl Fn(Arc<Refusals>) -> S,
    seed: u64,
    ops: u64,
    refused: Refused,
) -> Result<WalkStats, String> {
    let short = Short::new(make);
    let mut stats = WalkStats::default();
    for number in 0.. {
        *short.plan.lock() = refused.from(number);
        let walked = WalkRun::new(&short, seed).and_then(|run| run.walk(ops));
        let walked = walked.map_err(|e| format!("refused {number} ({refused:?}): {e}"))?;
        let Some((met, images)) = walked else {
            break;
        };
        stats.runs += 1;
        stats.images += images;
        stats.met.push(met);
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    (stats.refused, stats.told) = (count(&short.refused), count(&short.told));
    Ok(stats)
}

/// A moment after the refusal, and how many operations a power cut, a kill and either may leave
/// then.
struct Moment {
    point: CrashPoint,
    what: &'static str,
    synced: usize,
    acked: usize,
    started: usize,
}

/// One run.
struct WalkRun<'a, S: System> {
    short: &'a Short<S>,
    rng: Rng,
    device: Arc<CrashDevice>,
    live: S::Live,
    now: Timeline<Short<S>>,
    synced: usize,
    /// The device at the first write or sync after the refusal.
    written: Arc<Mutex<Option<CrashPoint>>>,
    moments: Vec<Moment>,
}

impl<'a, S: System> WalkRun<'a, S> {
    fn new(short: &'a Short<S>, seed: u64) -> Result<Self, String> {
        let device = CrashDevice::from_image(&short.image(), CrashPlan::NEVER);
        let device = Arc::new(device);
        let live = short.open(Arc::clone(&device) as Arc<dyn Device>);
        let run = Self {
            short,
            rng: Rng::new(seed),
            live: live.map_err(|e| format!("open failed: {e}"))?,
            now: Timeline::new(short),
            synced: 0,
            written: Arc::default(),
            moments: Vec::new(),
            device,
        };
        let (written, refusals) = (Arc::clone(&run.written), Arc::clone(&short.refusals));
        run.device.watch(move |moment| {
            let mut written = written.lock();
            if written.is_none() && refusals.refused() > 0 {
                *written = Some(moment.freeze());
            }
        });
        Ok(run)
    }

    /// Returns the operation that met the refusal, and the number of images opened; `None` if none
    /// met it.
    fn walk(mut self, ops: u64) -> Result<Option<(String, u64)>, String> {
        let mut left = ops;
        let met = loop {
            if left == 0 {
                return Ok(None);
            }
            left -= 1;
            let op = self.step()?;
            if self.short.refusals.refused() > 0 {
                break op;
            }
        };
        self.keep("when it was told");
        for _ in 0..LATER.min(left) {
            self.step()?;
        }
        self.holds()?;
        let again = self.short.goes_on(&self.live);
        again.map_err(|e| format!("after {met}, with space again: {e}"))?;
        for _ in 0..LATER {
            self.step()?;
        }
        self.holds()?;
        self.keep("at the end");
        self.device.unwatch();
        let images = self.die().map_err(|e| format!("after {met}: {e}"))?;
        Ok(Some((met, images)))
    }

    /// Runs one operation. Returns its name.
    fn step(&mut self) -> Result<String, String> {
        let was_written = self.written.lock().is_some();
        let (synced, acked) = (self.synced, self.now.len());
        let op = self.short.generate(self.now.model(), &mut self.rng);
        let text = format!("{op:?}");
        let ran = self.short.run(&mut self.live, &op, self.now.model());
        let ack = ran.map_err(|e| format!("{text} failed: {e}"))?;
        self.now.push(self.short, op, ack == Ack::Refused);
        let started = self.now.len();
        if ack == Ack::Durable {
            self.synced = started;
        }
        let written = self.written.lock().clone();
        if let Some(point) = written.filter(|_| !was_written) {
            self.moments.push(Moment {
                point,
                what: "at the next write",
                synced,
                acked,
                started,
            });
        }
        Ok(text)
    }

    fn keep(&mut self, what: &'static str) {
        let len = self.now.len();
        self.moments.push(Moment {
            point: self.device.freeze(),
            what,
            synced: self.synced,
            acked: len,
            started: len,
        });
    }

    fn holds(&self) -> Result<(), String> {
        let state = self.short.state(&self.live);
        let state = state.map_err(|e| format!("reading failed: {e}"))?;
        if state == *self.now.last() {
            return Ok(());
        }
        let difference = self.short.difference(&state, self.now.last());
        Err(format!("the state is not as expected: {difference}"))
    }

    /// Cuts the power and kills at each moment. Returns the number of images opened.
    fn die(&mut self) -> Result<u64, String> {
        // What is left is opened with space.
        *self.short.plan.lock() = 0..0;
        let mut images = 0;
        for moment in &self.moments {
            let Moment { point, started, .. } = moment;
            let left = [
                ("killed", moment.acked, point.kill_image()),
                ("power cut", moment.synced, point.crash_image(&mut self.rng)),
            ];
            for (how, low, image) in left {
                let found = crash::verify(self.short, &image, &self.now, (low, *started));
                found.map_err(|e| format!("{how} {}: {e}", moment.what))?;
                images += 1;
            }
        }
        Ok(images)
    }
}
