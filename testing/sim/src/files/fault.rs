//! Errors of plain files beside the store, alone and with errors of the device, and with a crash
//! after them.
//!
//! A workload runs again and again, with other calls failing each time. Unlike after errors of the
//! device, it continues after each: the error concerns one file.
//!
//! Rules:
//! - an error is returned by the operation that met it, or by one on a file whose sync has failed,
//!   and by no other; its kind is that of the failed call;
//! - a failed operation leaves the state before or after it, except for the contents of its own
//!   file, where each byte is as before or after it;
//! - a file whose sync failed takes no more writes until the store is opened again; of its contents
//!   what was not synced may be lost; all other files go on;
//! - an operation that is acknowledged although a call failed is done;
//! - after a kill everything is unchanged; after a power cut at least what was acknowledged as
//!   durable is there;
//! - unneeded plain files exist only where making or removing one has failed, and are removed at
//!   the next open; then `fsck` finds nothing, and `statfs` counts correctly;
//! - a plain file that is lent is as long as its file, unless cutting it has failed.

mod after;
mod judge;

use super::{FsOp, FsSystem, LiveFs, What, tree};
use crate::fault::FaultStats;
use crate::kv::Host;
use crate::timeline::{Progress, Span, Timeline};
use crate::{Ack, System, SystemError};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::atomic::Ordering;
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{CrashDevice, CrashPlan, CrashPoint, Device, Fault, FaultDevice, FaultOp};
use stitch_fs::{ExternalName, FileKind, MemFiles, MemFilesPoint, PlainFault, PlainHit};

/// Operations after the faults have ended.
const OPS_AFTER: u64 = 6;

/// How much is done for one seed, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainEffort {
    /// Most operations of a workload.
    pub(crate) ops_max: u64,
    /// Times that it is run, each with other faults.
    pub(crate) runs: u64,
    /// True if plain files hide their errors, for the canary.
    pub(crate) is_hidden: bool,
}

/// Runs one seeded workload again and again, with other calls failing each time.
///
/// # Errors
/// What went wrong, and with which faults.
pub(crate) fn explore<H: Host>(
    system: &FsSystem<H>,
    seed: u64,
    effort: PlainEffort,
) -> Result<FaultStats, String> {
    let mut rng = Rng::new(seed);
    let ops = 1 + rng.below(effort.ops_max);
    let workload = rng.next_u64();
    let mut stats = FaultStats::default();
    let mut dry = HostRun::new(system, &Plan::default(), workload);
    let ran = dry.live(ops);
    let is_well = ran.map_err(|e| format!("without any fault: {e}"))?;
    assert!(is_well, "nothing fails without a fault");
    let calls = Calls {
        plain: dry.files.calls(),
        device: dry.device.calls().total(),
        moments: dry.device.calls().writes + dry.device.calls().syncs,
    };
    for _ in 0..effort.runs {
        let plan = Plan::draw(&calls, effort.is_hidden, &mut rng);
        let mut run = HostRun::new(system, &plan, workload);
        let judged = run.live(ops).and_then(|goes_on| run.die(goes_on, &mut rng));
        judged.map_err(|e| format!("{plan:?}: {e}"))?;
        stats.add(FaultStats {
            runs: 1,
            hits: u64::from(run.met > 0),
            errors: u64::from(run.told > 0),
        });
    }
    Ok(stats)
}

/// Calls that a workload makes without faults.
struct Calls {
    plain: BTreeMap<&'static str, u64>,
    device: u64,
    /// Writes and syncs of the device.
    moments: u64,
}

/// The faults of one run, and the moment at which it is frozen.
#[derive(Clone, Debug, Default)]
struct Plan {
    plain: Vec<PlainFault>,
    device: Option<Fault>,
    /// The write or sync of the device at which all is frozen for a crash, from 1.
    moment: u64,
}

impl Plan {
    fn draw(calls: &Calls, is_hidden: bool, rng: &mut Rng) -> Self {
        let mut plan = Self {
            moment: 1 + rng.below(calls.moments.max(1)),
            ..Self::default()
        };
        let kinds: Vec<(&'static str, u64)> = calls.plain.iter().map(|(op, n)| (*op, *n)).collect();
        let all: u64 = kinds.iter().map(|(_, made)| made).sum();
        for _ in 0..1 + rng.below(3) {
            // One of any kind of call, or any call.
            let index = usize::try_from(rng.below(kinds.len() as u64 + 1)).expect("a few kinds");
            let (op, made) = match kinds.get(index) {
                Some((op, made)) => (Some(*op), *made),
                None => (None, all),
            };
            let takes_space = matches!(
                op,
                Some("create" | "write" | "cut" | "punch" | "allocate" | "sync")
            );
            plan.plain.push(PlainFault {
                op,
                nth: 1 + rng.below(made.max(1)),
                count: [1, 1, 2, 10][usize::try_from(rng.below(4)).expect("below 4")],
                kind: match takes_space && rng.one_in(2) {
                    true => ErrorKind::NoSpace,
                    false => ErrorKind::Io,
                },
                seed: rng.next_u64(),
                is_hidden,
            });
        }
        if rng.one_in(4) {
            let nth = 1 + rng.below(calls.device.max(1));
            plan.device = Some(match rng.one_in(2) {
                true => Fault::once(FaultOp::Any, nth),
                false => Fault::from(FaultOp::Any, nth),
            });
        }
        plan
    }
}

/// A moment of a run.
struct FrozenHost {
    point: CrashPoint,
    files: MemFilesPoint,
    span: Span,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Went {
    Done,
    Failed,
    /// An error of the device: later outcomes are undefined.
    Over,
}

/// A store with its plain files, through its lives.
struct HostRun<'a, H: Host> {
    system: &'a FsSystem<H>,
    medium: Arc<CrashDevice>,
    device: Arc<FaultDevice<Arc<CrashDevice>>>,
    files: MemFiles,
    timeline: Timeline<FsSystem<H>>,
    progress: Arc<Progress>,
    frozen: Arc<Mutex<Option<FrozenHost>>>,
    workload: Rng,
    /// Plain files of which a sync has failed in this life, or perhaps another call with the same
    /// effect.
    doubtful: BTreeSet<ExternalName>,
    met: usize,
    told: usize,
}

impl<'a, H: Host> HostRun<'a, H> {
    fn new(system: &'a FsSystem<H>, plan: &Plan, workload: u64) -> Self {
        let medium = Arc::new(CrashDevice::from_image(&system.image(), CrashPlan::NEVER));
        let device = Arc::new(FaultDevice::new(Arc::clone(&medium)));
        plan.device.into_iter().for_each(|fault| device.add(fault));
        let files = MemFiles::new();
        plan.plain.iter().for_each(|fault| files.add_fault(*fault));
        let run = Self {
            system,
            medium,
            device,
            files,
            timeline: Timeline::new(system),
            progress: Arc::default(),
            frozen: Arc::default(),
            workload: Rng::new(workload),
            doubtful: BTreeSet::new(),
            met: 0,
            told: 0,
        };
        run.watch(plan.moment);
        run
    }

    /// Freezes all at a write or sync of the device.
    fn watch(&self, at: u64) {
        let (files, progress) = (self.files.clone(), Arc::clone(&self.progress));
        let sink = Arc::clone(&self.frozen);
        let mut seen = 0;
        self.medium.watch(move |moment| {
            seen += 1;
            if seen == at {
                *sink.lock() = Some(FrozenHost {
                    point: moment.freeze(),
                    files: files.freeze(),
                    span: progress.span(),
                });
            }
        });
    }

    /// Opens and works. Returns whether the store is sound at the end.
    fn live(&mut self, ops: u64) -> Result<bool, String> {
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let mut live = match self.system.open_beside(device, &self.files) {
            Ok(live) => live,
            Err(error) => {
                self.expect_cause(&error, self.files.hits().len())?;
                return Ok(false);
            }
        };
        for _ in 0..ops {
            let op = self
                .system
                .generate(self.timeline.model(), &mut self.workload);
            if self.step(&mut live, op)? == Went::Over {
                return Ok(false);
            }
        }
        self.goes_on(&mut live)
    }

    /// Checks that operations without further faults succeed, as far as they can.
    fn goes_on(&mut self, live: &mut LiveFs) -> Result<bool, String> {
        self.files.clear_faults();
        self.device.clear();
        for _ in 0..OPS_AFTER {
            let op = self
                .system
                .generate(self.timeline.model(), &mut self.workload);
            if self.step(live, op)? == Went::Over {
                return Ok(false);
            }
        }
        let files = self.timeline.last().iter();
        let files = files.filter(|(_, node)| node.attr.kind == FileKind::Regular);
        let paths: Vec<String> = files.map(|(path, _)| path.clone()).collect();
        for path in paths {
            let refuses = self.refuses(live, &path)?;
            let what = What::Write {
                path: path.clone(),
                offset: 10,
                len: 100,
                seed: self.workload.next_u64(),
                append: false,
            };
            match self.step(live, self.next(what))? {
                Went::Over => return Ok(false),
                Went::Done if refuses => {
                    return Err(format!(
                        "{path:?} was written after a sync of it had failed"
                    ));
                }
                Went::Done | Went::Failed => {}
            }
        }
        if self.step(live, self.next(What::Sync))? == Went::Over {
            return Ok(false);
        }
        self.same(live, "at the end")?;
        self.counts(live)?;
        Ok(true)
    }

    fn next(&self, what: What) -> FsOp {
        let at = self.timeline.model().seconds + 1;
        FsOp { at, what }
    }

    /// Reports whether a file certainly refuses writes.
    fn refuses(&self, live: &LiveFs, path: &str) -> Result<bool, String> {
        let ino = tree::ino(&live.fs, path).map_err(|e| format!("{path:?}: {e}"))?;
        let is_external = tree::is_external(&live.fs, path).map_err(|e| e.to_string())?;
        let names = self.names()?;
        let mut of_it = names.keys().filter(|name| name.ino == ino);
        let only = of_it.next().filter(|_| of_it.next().is_none());
        let hits = self.files.hits();
        let has_failed = |name: &ExternalName| {
            hits.iter()
                .any(|hit| hit.op == "sync" && hit.name == Some(*name))
        };
        Ok(is_external && only.is_some_and(has_failed))
    }

    /// The plain files that are there.
    fn names(&self) -> Result<BTreeMap<ExternalName, u64>, String> {
        use stitch_fs::ExternalFiles;
        self.files.pause_faults(true);
        let list = self.files.list();
        self.files.pause_faults(false);
        Ok(list.map_err(|e| e.to_string())?.into_iter().collect())
    }

    /// One operation on the store and in the timeline.
    fn step(&mut self, live: &mut LiveFs, op: FsOp) -> Result<Went, String> {
        let met = self.files.hits().len();
        self.progress.start();
        live.clock.seconds.store(op.at, Ordering::SeqCst);
        if self.system.lends && op.at.is_multiple_of(3) {
            let lent = FsSystem::<H>::lend_one(live, self.timeline.model(), op.at);
            if let Err(error) = lent {
                // Opening the file takes another path.
                self.expect_cause(&error, self.files.hits().len() - met)?;
            }
        }
        let ran = FsSystem::<H>::do_one(live, &op);
        let hits = self.files.hits().split_off(met);
        self.met += hits.len();
        // The length of a plain file is unknown if it could not be read after an error.
        let doubted = hits
            .iter()
            .filter(|hit| hit.op == "sync" || hit.op == "open");
        self.doubtful.extend(doubted.filter_map(|hit| hit.name));
        let went = self.judge(live, &op, ran, &hits);
        went.map_err(|e| format!("{op:?}: {e}; before it:{}", self.timeline.tail(6)))
    }

    fn judge(
        &mut self,
        live: &mut LiveFs,
        op: &FsOp,
        ran: Result<Ack, SystemError>,
        hits: &[PlainHit],
    ) -> Result<Went, String> {
        if let Err(error) = &ran {
            self.told += 1;
            self.expect_cause(error, hits.len())?;
            if self.device.hits() > 0 {
                self.timeline.push(self.system, op.clone(), false);
                return Ok(Went::Over);
            }
            self.expect_owner(live, op, error)?;
        }
        let is_durable = ran == Ok(Ack::Durable);
        if hits.is_empty()
            && let Ok(ack) = ran
        {
            self.timeline
                .push(self.system, op.clone(), ack == Ack::Refused);
            self.note(is_durable);
            return Ok(match ack {
                Ack::Refused => Went::Failed,
                _ => Went::Done,
            });
        }
        self.files.pause_faults(true);
        let found = self.system.state(live);
        let found = match found {
            Ok(found) => found,
            Err(_) if self.device.hits() > 0 => {
                self.timeline.push(self.system, op.clone(), false);
                return Ok(Went::Over);
            }
            Err(error) => return Err(format!("it cannot be read after {ran:?}: {error}")),
        };
        let is_done = matches!(ran, Ok(Ack::Done | Ack::Durable));
        self.follow(live, op, is_done, &found)
            .map_err(|e| format!("after {ran:?} with {hits:?}: {e}"))?;
        self.lent_fit(live)?;
        self.files.pause_faults(false);
        if let (true, What::SyncFile { path }) = (is_durable, &op.what) {
            let ino = tree::ino(&live.fs, path).map_err(|e| e.to_string())?;
            let is_it = |hit: &PlainHit| hit.op == "sync" && hit.name.is_some_and(|n| n.ino == ino);
            if hits.iter().any(is_it) {
                return Err("its sync failed, and no error was returned".to_owned());
            }
        }
        self.note(is_durable);
        Ok(if is_done { Went::Done } else { Went::Failed })
    }

    /// Records that everything in the timeline was acknowledged or is known.
    fn note(&self, is_durable: bool) {
        let len = self.timeline.len();
        let span = self.progress.span();
        let synced = if is_durable { len } else { span.synced };
        self.progress.set(Span {
            synced,
            ..Span::at(len)
        });
        // What a failed operation left of contents was found after it.
        if let Some(frozen) = &mut *self.frozen.lock()
            && frozen.span.started == span.started
        {
            frozen.span.started = len;
        }
    }

    /// Checks that an error has a cause, and reports it correctly.
    fn expect_cause(&self, error: &SystemError, met: usize) -> Result<(), String> {
        if self.device.hits() > 0 {
            return match error.kind {
                ErrorKind::Io | ErrorKind::Poisoned | ErrorKind::NoSpace => Ok(()),
                _ => Err(format!("an error came out as something else: {error}")),
            };
        }
        let is_doubtful = plain_of(error).is_some_and(|name| self.doubtful.contains(&name));
        match error.kind {
            ErrorKind::Poisoned if is_doubtful => Ok(()),
            ErrorKind::Io | ErrorKind::NoSpace if met > 0 => Ok(()),
            _ => Err(format!("an error without a fault: {error}")),
        }
    }

    /// Checks that an error of a plain file belongs to the operation's file.
    fn expect_owner(&self, live: &LiveFs, op: &FsOp, error: &SystemError) -> Result<(), String> {
        let Some(name) = plain_of(error) else {
            return Err(format!("it does not say of which file: {error}"));
        };
        let paths = match &op.what {
            What::Write { path, .. }
            | What::Truncate { path, .. }
            | What::Fallocate { path, .. }
            | What::SyncFile { path } => vec![path],
            What::Copy { source, target, .. } => vec![source, target],
            What::Sync => return Ok(()),
            _ => Vec::new(),
        };
        let is_asked = name.ino.0 == 0;
        let is_its = paths
            .iter()
            .any(|path| tree::ino(&live.fs, path).is_ok_and(|ino| ino == name.ino));
        match is_its || (is_asked && !paths.is_empty()) {
            true => Ok(()),
            false => Err(format!("it was told of another file: {error}")),
        }
    }
}

/// The plain file that an error names.
fn plain_of(error: &SystemError) -> Option<ExternalName> {
    error.message.split(':').next()?.parse().ok()
}
