//! The context of a file system workload: a side, and measured phases.

use super::side::{FsSide, SideKind};
use super::target::{Kernel, Library, Target};
use crate::cgroup::Cgroup;
use crate::measure::{Limits, Recorder};
use crate::process::{Meter, Traffic};
use crate::report::{FsScale, Phase, Scale};
use crate::values::Values;
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::SystemClock;

/// The task of a child process: one step of a workload on one side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StageSpec {
    /// The workload.
    pub(crate) workload: String,
    /// Its step, from 0.
    pub(crate) step: u32,
    /// The side.
    pub(crate) side: String,
    /// Where it is mounted, or its device.
    pub(crate) at: PathBuf,
    /// A folder that is not on any side, for what a run keeps between steps and sides.
    pub(crate) scratch: PathBuf,
    /// The file system that keeps what the mount is given, if that is another.
    pub(crate) below: Option<PathBuf>,
    /// Counters of the side's disk, if it has one.
    pub(crate) disk_counters: Option<PathBuf>,
    /// The amounts to run.
    pub(crate) scale: Scale,
    /// Seed of all that is random; another one in each repetition.
    pub(crate) seed: u64,
    /// Control group to enter first.
    pub(crate) cgroup: Option<PathBuf>,
    /// The value passed on by the step before.
    pub(crate) carry: u64,
}

/// The event that ends a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// With its last operation.
    Returned,
    /// When all of it is durable.
    Synced,
}

/// Called with the phase, operations done, and operations to do.
pub(crate) type StageProgress<'a> = dyn Fn(&str, u64, u64) + Sync + 'a;

/// The state of a child process.
pub(crate) struct Stage<'a> {
    spec: &'a StageSpec,
    clock: Arc<SystemClock>,
    values: Arc<Values>,
    progress: &'a StageProgress<'a>,
    target: Arc<dyn Target>,
    meter: Option<Meter>,
    cap: Option<Duration>,
    phases: Vec<Phase>,
    /// Passed to the next step.
    pub(crate) carry: u64,
}

impl<'a> Stage<'a> {
    /// Opens the side.
    pub(crate) fn open(spec: &'a StageSpec, progress: &'a StageProgress<'a>) -> Result<Self> {
        if let Some(group) = &spec.cgroup {
            Cgroup::enter(group)?;
        }
        let side = FsSide::find(&spec.side).with_context(|| format!("no side `{}`", spec.side))?;
        Ok(Self {
            spec,
            clock: Arc::new(SystemClock::default()),
            values: Arc::new(Values::new(spec.seed)),
            progress,
            target: open_target(&side, spec)?,
            meter: spec.disk_counters.clone().map(Meter::Device),
            cap: spec.scale.cap_s.map(Duration::from_secs_f64),
            phases: Vec::new(),
            carry: spec.carry,
        })
    }

    /// The amounts to run.
    pub(crate) const fn scale(&self) -> &Scale {
        &self.spec.scale
    }

    /// How much of what only file systems are given.
    pub(crate) fn fs_scale(&self) -> FsScale {
        self.spec.scale.fs.clone().unwrap_or_default()
    }

    /// The seed.
    pub(crate) const fn seed(&self) -> u64 {
        self.spec.seed
    }

    /// Returns the name of the side.
    pub(crate) fn side(&self) -> &str {
        &self.spec.side
    }

    /// The side.
    pub(crate) fn target(&self) -> Arc<dyn Target> {
        Arc::clone(&self.target)
    }

    /// Where the side is mounted, for programs.
    pub(crate) fn root(&self) -> Result<PathBuf> {
        ensure!(self.spec.at.is_dir(), "{} has no mount", self.spec.side);
        Ok(self.spec.at.clone())
    }

    /// A folder that is not on any side.
    pub(crate) fn scratch(&self) -> &Path {
        &self.spec.scratch
    }

    /// Contents.
    pub(crate) fn values(&self) -> Arc<Values> {
        Arc::clone(&self.values)
    }

    /// Phases take the time that they need from now on: what comes later counts on what they do.
    pub(crate) const fn without_cap(&mut self) {
        self.cap = None;
    }

    /// Runs and measures one phase of `total` operations.
    pub(crate) fn phase<T>(
        &mut self,
        name: &str,
        total: u64,
        ends: Ends,
        body: impl FnOnce(&mut Recorder<'_>) -> Result<T>,
    ) -> Result<T> {
        let progress = |done: u64| (self.progress)(name, done, total);
        progress(0);
        let limits = Limits {
            cap: self.cap,
            progress: &progress,
        };
        let before = self.traffic()?;
        let mut record = Recorder::new(&self.clock, &limits);
        let done = body(&mut record).with_context(|| format!("phase {name}"))?;
        if ends == Ends::Synced {
            self.target.sync()?;
        }
        let seconds = record.elapsed().as_secs_f64();
        let traffic = self.traffic()?.since(before);
        self.phases.push(Phase {
            name: name.to_owned(),
            ops: record.ops(),
            user_bytes: record.user_bytes(),
            seconds,
            is_cut: record.is_over(),
            device_write_bytes: traffic.write_bytes,
            device_read_bytes: traffic.read_bytes,
            latencies: record.latencies(),
            series: record.series(),
            values: figures(traffic),
            ..Phase::default()
        });
        Ok(done)
    }

    /// Adds a figure in bytes to the last phase, in megabytes.
    #[expect(clippy::cast_precision_loss, reason = "megabytes for people")]
    pub(crate) fn add_figure(&mut self, name: &str, bytes: u64) {
        let phase = self.phases.last_mut().expect("a phase was measured");
        phase.values.insert(name.to_owned(), bytes as f64 / 1e6);
    }

    fn traffic(&self) -> Result<Traffic> {
        self.meter
            .as_ref()
            .map_or_else(|| Ok(Traffic::default()), Meter::read)
    }

    /// Ends the use of the side; what was measured, and what the next step is told.
    pub(crate) fn finish(self) -> Result<(Vec<Phase>, u64)> {
        self.target.close()?;
        Ok((self.phases, self.carry))
    }
}

#[expect(clippy::cast_precision_loss, reason = "megabytes for people")]
fn figures(traffic: Traffic) -> BTreeMap<String, f64> {
    let pairs = [
        ("MB written", traffic.write_bytes),
        ("MB read", traffic.read_bytes),
    ];
    let moved = pairs.into_iter().filter(|(_, bytes)| *bytes > 0);
    let mut figures: BTreeMap<String, f64> = moved
        .map(|(name, bytes)| (name.to_owned(), bytes as f64 / 1e6))
        .collect();
    if traffic.reads > 0 {
        figures.insert("device reads".to_owned(), traffic.reads as f64);
    }
    figures
}

fn open_target(side: &FsSide, spec: &StageSpec) -> Result<Arc<dyn Target>> {
    Ok(match side.kind {
        SideKind::Library | SideKind::RocksLibrary(_) => {
            Arc::new(Library::open(&spec.at, spec.scale.budget_bytes())?)
        }
        _ => Arc::new(Kernel::open(&spec.at, spec.below.as_deref())?),
    })
}
