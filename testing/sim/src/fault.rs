//! Device errors: a workload runs until a chosen read, write or sync of the device fails.
//!
//! Rules:
//! - nothing panics, and the operation returns an error of the device's kind, not a wrong result;
//! - once a sync has failed (or a write, which leaves the store in doubt), the store refuses
//!   further writes as soon as it has reported the error: it could keep nothing that it
//!   acknowledges later;
//! - a store that is reopened without faults has every acknowledged operation, perhaps the failed
//!   one, and nothing else, and passes its checks. After a power cut it has at least what was
//!   acknowledged as durable.

use crate::timeline::{Span, Timeline};
use crate::{Ack, System, SystemError};
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device, Fault, FaultDevice, FaultOp, MemDevice};

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultStats {
    /// Workloads run.
    pub runs: u64,
    /// Runs in which the fault was met.
    pub hits: u64,
    /// Runs in which a user saw an error.
    pub errors: u64,
}

impl FaultStats {
    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.hits += other.hits;
        self.errors += other.errors;
    }
}

/// Runs one seeded workload again and again, with another call failing each time: `runs` calls
/// spread over all that the workload makes, of all kinds.
///
/// # Errors
/// What went wrong, and with which fault.
pub fn explore<S: System>(
    system: &S,
    seed: u64,
    ops_max: u64,
    runs: u64,
) -> Result<FaultStats, String> {
    let mut rng = Rng::new(seed);
    let ops = 1 + rng.below(ops_max);
    let workload_seed = rng.next_u64();
    let mut stats = FaultStats::default();
    let dry = Run::new(system, None);
    let calls = dry.device.clone();
    dry.work(ops, &mut Rng::new(workload_seed))?
        .expect_no_error()?;
    for _ in 0..runs {
        let op = [FaultOp::Read, FaultOp::Write, FaultOp::Sync, FaultOp::Any]
            [usize::try_from(rng.below(4)).expect("below 4")];
        let made = match op {
            FaultOp::Read => calls.calls().reads,
            FaultOp::Write => calls.calls().writes,
            FaultOp::Sync => calls.calls().syncs,
            FaultOp::Any => calls.calls().total(),
        };
        let nth = 1 + rng.below(made.max(1));
        let fault = if rng.one_in(2) {
            Fault::once(op, nth)
        } else {
            Fault::from(op, nth)
        };
        let run = Run::new(system, Some(fault));
        let ended = run
            .work(ops, &mut Rng::new(workload_seed))
            .and_then(|ended| ended.judge(&mut rng))
            .map_err(|e| format!("{fault:?}: {e}"))?;
        stats.add(ended);
    }
    Ok(stats)
}

struct Run<'a, S: System> {
    system: &'a S,
    medium: Arc<CrashDevice>,
    device: Arc<FaultDevice<Arc<CrashDevice>>>,
    timeline: Timeline<S>,
}

/// A finished run.
struct Ended<'a, S: System> {
    run: Run<'a, S>,
    span: Span,
    error: Option<SystemError>,
}

impl<'a, S: System> Run<'a, S> {
    fn new(system: &'a S, fault: Option<Fault>) -> Self {
        let medium = Arc::new(CrashDevice::from_image(&system.image(), CrashPlan::NEVER));
        let device = Arc::new(FaultDevice::new(Arc::clone(&medium)));
        if let Some(fault) = fault {
            device.add(fault);
        }
        Self {
            system,
            medium,
            device,
            timeline: Timeline::new(system),
        }
    }

    /// Opens, works until the first error, and tries to continue.
    fn work(mut self, ops: u64, rng: &mut Rng) -> Result<Ended<'a, S>, String> {
        let mut span = Span::default();
        let mut live = match self
            .system
            .open(Arc::clone(&self.device) as Arc<dyn Device>)
        {
            Ok(live) => live,
            Err(error) => {
                return Ok(Ended {
                    run: self,
                    span,
                    error: Some(error),
                });
            }
        };
        for _ in 0..ops {
            let op = self.system.generate(self.timeline.model(), rng);
            let ran = self.system.run(&mut live, &op, self.timeline.model());
            if let Err(error) = &ran {
                self.refuses_more(&mut live, rng)
                    .map_err(|e| format!("after {op:?} failed with {error}: {e}"))?;
            }
            self.timeline.push(self.system, op, ran == Ok(Ack::Refused));
            span.started = self.timeline.len();
            match ran {
                Ok(ack) => {
                    span.acked = span.started;
                    span.synced = if ack == Ack::Durable {
                        span.started
                    } else {
                        span.synced
                    };
                }
                Err(error) => {
                    return Ok(Ended {
                        run: self,
                        span,
                        error: Some(error),
                    });
                }
            }
        }
        let error = self.system.close(live).err();
        if error.is_none() {
            span = Span::at(self.timeline.len());
        }
        Ok(Ended {
            run: self,
            span,
            error,
        })
    }

    /// Checks that a store that met a failed write or sync, and reported it, refuses writes.
    fn refuses_more(&self, live: &mut S::Live, rng: &mut Rng) -> Result<(), String> {
        let calls = self.device.calls();
        let was_durability =
            self.device.hits() > 0 && self.device.last_hit() == Some(FaultOp::Sync);
        if !was_durability {
            return Ok(());
        }
        self.device.clear();
        // Refused writes leave it as it is.
        let before = self.system.state(live);
        for _ in 0..8 {
            let op = self.system.generate(self.timeline.model(), rng);
            if !self.system.is_write(&op) {
                continue;
            }
            match self.system.run(live, &op, self.timeline.model()) {
                Ok(Ack::Refused) => {}
                Err(error) if error.kind == ErrorKind::Bug => {
                    return Err(format!("{op:?}: {error}"));
                }
                Err(_) => {}
                // What the model has may be missing here: an operation that failed did a part.
                Ok(_) if !self.has_changed(live, &before) => {}
                Ok(ack) => {
                    return Err(format!(
                        "{op:?} was accepted ({ack:?}, calls before: {calls:?})"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Reports whether a store holds something else than before. One that cannot be read may.
    fn has_changed(&self, live: &S::Live, before: &Result<S::State, SystemError>) -> bool {
        match (before, self.system.state(live)) {
            (Ok(before), Ok(now)) => *before != now,
            _ => true,
        }
    }
}

impl<S: System> Ended<'_, S> {
    fn expect_no_error(self) -> Result<(), String> {
        match self.error {
            Some(error) => Err(format!("without any fault: {error}")),
            None => Ok(()),
        }
    }

    fn judge(self, rng: &mut Rng) -> Result<FaultStats, String> {
        let hits = self.run.device.hits();
        if let Some(error) = &self.error {
            if hits == 0 {
                return Err(format!("an error without a fault: {error}"));
            }
            let is_honest = matches!(error.kind, ErrorKind::Io | ErrorKind::Poisoned);
            if !is_honest {
                return Err(format!(
                    "a device error came out as something else: {error}"
                ));
            }
        }
        let low = self.span.acked;
        self.reopens(&self.run.medium.kill_image(), low, "reopened")?;
        let low = self.span.synced;
        self.reopens(&self.run.medium.crash_image(rng), low, "after a power cut")?;
        Ok(FaultStats {
            runs: 1,
            hits: u64::from(hits > 0),
            errors: u64::from(self.error.is_some()),
        })
    }

    fn reopens(&self, image: &MemDevice, low: usize, when: &str) -> Result<(), String> {
        let system = self.run.system;
        let timeline = &self.run.timeline;
        let fail = |e: String| format!("{when}: {e}");
        let live = system
            .open(Arc::new(image.clone()))
            .map_err(|e| fail(format!("open failed: {e}")))?;
        let state = system
            .state(&live)
            .map_err(|e| fail(format!("reading failed: {e}")))?;
        let high = self.span.started;
        if timeline.find(&state, low, high).is_none() {
            return Err(fail(timeline.explain(system, &state, low, high)));
        }
        let broken = system
            .check(&live)
            .map_err(|e| fail(format!("check failed: {e}")))?;
        match broken.first() {
            Some(first) => Err(fail(format!(
                "{} broken rules; first: {first}",
                broken.len()
            ))),
            None => Ok(()),
        }
    }
}
