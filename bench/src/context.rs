//! The context of a workload: a side, opened on request, and measured phases.

use crate::measure::{Limits, Recorder};
use crate::process::{self, Meter};
use crate::report::{Phase, Scale};
use crate::shares::{Cut, Deadlines};
use crate::side::{self, OpenOptions, Ours, Side};
use crate::values::Values;
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};

/// Our volume is at least this many times the memory, so that its size bounds no buffer.
const MEMORY_ROOM: u64 = 16;

/// The task of a child process: one step of a workload on one side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The workload.
    pub(crate) workload: String,
    /// Its step, from 0.
    pub(crate) step: u32,
    /// The side.
    pub(crate) side: String,
    /// The folder of its store, or the device that is its store.
    pub(crate) dir: PathBuf,
    /// True if there is no store yet.
    pub(crate) is_fresh: bool,
    /// Counters of the disk, where the side has one of its own.
    pub(crate) disk_counters: Option<PathBuf>,
    /// The amounts to run.
    pub(crate) scale: Scale,
    /// Seed of all that is random; another one in each repetition.
    pub(crate) seed: u64,
    /// Control group to enter first.
    pub(crate) cgroup: Option<PathBuf>,
    /// Its deadlines, if any.
    pub(crate) ends: Option<Deadlines>,
}

/// What a phase does to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Writes; ends with a sync, and waits for background work afterwards.
    Load,
    /// Writes; ends with a sync, and does not wait.
    Write,
    /// Reads.
    Read,
}

/// Called with the phase, operations done, and operations to do.
pub(crate) type Progress<'a> = dyn Fn(&str, u64, u64) + Sync + 'a;

/// The body of a phase.
pub(crate) struct Bench<'a> {
    /// The side, open.
    pub(crate) side: &'a dyn Side,
    /// Values.
    pub(crate) values: &'a Values,
    /// Puts in one batch.
    pub(crate) batch: u64,
}

/// The state of a child process.
pub(crate) struct Context<'a> {
    spec: &'a Spec,
    clock: Arc<SystemClock>,
    values: Values,
    progress: &'a Progress<'a>,
    side: Option<Arc<dyn Side>>,
    opened: Option<OpenOptions>,
    phases: Vec<Phase>,
    live_bytes: u64,
    open_time: Duration,
    is_whole: bool,
    meter: Meter,
}

impl<'a> Context<'a> {
    /// Nothing is open yet.
    pub(crate) fn new(spec: &'a Spec, progress: &'a Progress<'a>) -> Self {
        Self {
            spec,
            clock: Arc::new(SystemClock::default()),
            values: Values::new(spec.seed),
            progress,
            side: None,
            opened: None,
            phases: Vec::new(),
            live_bytes: 0,
            open_time: Duration::ZERO,
            is_whole: false,
            meter: match &spec.disk_counters {
                Some(stat) => Meter::Disk(stat.clone(), spec.dir.clone()),
                None => Meter::Process,
            },
        }
    }

    /// The amounts to run.
    pub(crate) const fn scale(&self) -> &'a Scale {
        &self.spec.scale
    }

    /// The seed.
    pub(crate) const fn seed(&self) -> u64 {
        self.spec.seed
    }

    /// Opens or makes the store, for this much user data in rows of this size.
    pub(crate) fn open(&mut self, data_bytes: u64, row_bytes: u64) -> Result<()> {
        self.open_with(self.options(data_bytes, row_bytes))
    }

    /// What [`Self::open`] opens with.
    pub(crate) fn options(&self, data_bytes: u64, row_bytes: u64) -> OpenOptions {
        // Room for twice the data, small rows with their headers, and the logs.
        let overhead = if row_bytes < 256 { 2 } else { 1 };
        let data_room = (3 * overhead * data_bytes + (64 << 20)).next_multiple_of(1 << 20);
        OpenOptions {
            dir: self.spec.dir.clone(),
            scale: self.scale().clone(),
            volume_bytes: data_room.max(MEMORY_ROOM * self.scale().memory_bytes),
            is_fresh: self.spec.is_fresh,
            ours: Ours::default(),
            is_synced: false,
            has_large_values: row_bytes >= 1 << 10,
        }
    }

    /// Opens or makes the store.
    pub(crate) fn open_with(&mut self, options: OpenOptions) -> Result<()> {
        assert!(self.side.is_none(), "one store at a time");
        let before = self.clock.monotonic();
        self.side = Some(side::open(&self.spec.side, &options).context("cannot open the store")?);
        self.open_time = self.clock.monotonic().saturating_sub(before);
        self.opened = Some(options);
        Ok(())
    }

    /// Closes the store, drops its files from the page cache, and opens it again.
    pub(crate) fn reopen_cold(&mut self) -> Result<()> {
        let options = self.opened.clone().expect("a store was opened");
        self.close()?;
        process::evict(&self.spec.dir)?;
        self.open_with(OpenOptions {
            is_fresh: false,
            ..options
        })
    }

    /// Closes the store.
    pub(crate) fn close(&mut self) -> Result<()> {
        let Some(side) = self.side.take() else {
            return Ok(());
        };
        side.close().context("cannot close the store")?;
        ensure!(Arc::strong_count(&side) == 1, "the store is still in use");
        Ok(())
    }

    /// The open store.
    pub(crate) fn side(&self) -> Arc<dyn Side> {
        Arc::clone(self.side.as_ref().expect("a store is open"))
    }

    /// How long it took to open the store.
    pub(crate) const fn open_time(&self) -> Duration {
        self.open_time
    }

    /// Sets how much user data is live from now on.
    pub(crate) const fn set_live_bytes(&mut self, bytes: u64) {
        self.live_bytes = bytes;
    }

    /// Removes the time limit of phases from now on, since later ones need all that they do. If the
    /// step must end earlier, its rest is left out.
    pub(crate) const fn without_cap(&mut self) {
        self.is_whole = true;
    }

    /// Returns the time limit of the next phase.
    fn cap(&self) -> Option<Duration> {
        let cap = self.scale().cap_s.map(Duration::from_secs_f64);
        let cap = cap.filter(|_| !self.is_whole);
        let ends = self.spec.ends.as_ref();
        let left = ends.map(|ends| ends.left(self.clock.monotonic(), self.is_whole));
        cap.into_iter().chain(left).min()
    }

    /// # Errors
    /// The time of the step is over.
    fn check_time(&self) -> Result<()> {
        let now = self.clock.monotonic();
        let is_over = self.spec.ends.is_some_and(|ends| ends.is_over(now));
        if is_over { Err(Cut.into()) } else { Ok(()) }
    }

    /// Adds a figure to all phases so far.
    pub(crate) fn set_on_all(&mut self, name: &str, value: f64) {
        for phase in &mut self.phases {
            phase.values.insert(name.to_owned(), value);
        }
    }

    /// The last phase.
    pub(crate) fn last(&mut self) -> &mut Phase {
        self.phases.last_mut().expect("a phase was run")
    }

    /// Runs and measures one phase of `total` operations.
    ///
    /// # Errors
    /// [`Cut`]: the time of the step was over before the phase began, or before all was done that
    /// later ones need. What was measured is kept.
    pub(crate) fn phase<T>(
        &mut self,
        name: &str,
        work: Work,
        total: u64,
        body: impl FnOnce(&Bench<'_>, &mut Recorder<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check_time()?;
        let side = self.side();
        let progress = |done: u64| (self.progress)(name, done, total);
        progress(0);
        let limits = Limits {
            cap: self.cap(),
            progress: &progress,
        };
        let bench = Bench {
            side: side.as_ref(),
            values: &self.values,
            batch: self.scale().batch,
        };
        let (traffic, counters) = (self.meter.read()?, side.counters());
        let mut recorder = Recorder::new(&self.clock, &limits);
        let done = body(&bench, &mut recorder).with_context(|| format!("phase {name}"))?;
        if work != Work::Read {
            side.sync()?;
        }
        let seconds = recorder.elapsed().as_secs_f64();
        let is_over = recorder.is_over();
        let (settle_s, is_settled) = self.settle(work)?;
        let traffic = self.meter.read()?.since(traffic);
        let space_bytes = match work {
            Work::Read => None,
            Work::Load | Work::Write => Some(side.space_bytes()?),
        };
        self.phases.push(Phase {
            name: name.to_owned(),
            ops: recorder.ops(),
            user_bytes: recorder.user_bytes(),
            seconds,
            settle_s,
            is_cut: is_over || !is_settled,
            device_write_bytes: traffic.write_bytes,
            device_read_bytes: traffic.read_bytes,
            space_bytes,
            live_bytes: self.live_bytes,
            latencies: recorder.latencies(),
            series: recorder.series(),
            counters: grown(&counters, side.counters()),
            values: BTreeMap::from([("open_s".to_owned(), self.open_time.as_secs_f64())]),
        });
        if self.is_whole && is_over {
            return Err(Cut.into());
        }
        Ok(done)
    }

    fn settle(&self, work: Work) -> Result<(f64, bool)> {
        if work != Work::Load || self.scale().settle_s == 0.0 {
            return Ok((0.0, true));
        }
        let asked = Duration::from_secs_f64(self.scale().settle_s);
        let ends = self.spec.ends.as_ref();
        let left = ends.map(|ends| ends.left(self.clock.monotonic(), self.is_whole));
        let most = asked.min(left.unwrap_or(asked));
        let (busy, is_settled) = process::settle(&self.clock, most)?;
        Ok((busy.as_secs_f64(), is_settled))
    }

    /// Closes the store and returns the measurements.
    pub(crate) fn finish(mut self) -> Result<Vec<Phase>> {
        self.close()?;
        Ok(self.phases)
    }

    /// Returns the measurements and leaves the store open, as a killed process does.
    pub(crate) fn leave(mut self) -> Vec<Phase> {
        if let Some(side) = self.side.take() {
            std::mem::forget(side);
        }
        self.phases
    }
}

fn grown(before: &BTreeMap<String, u64>, after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let growth = |(name, value): (String, u64)| {
        let earlier = before.get(&name).copied().unwrap_or(0);
        (name, value.saturating_sub(earlier))
    };
    after.into_iter().map(growth).collect()
}
