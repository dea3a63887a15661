//! The crash after the errors, and the life after it.

use super::judge::{counts_all, exactly, paths_of};
use super::{FrozenHost, HostRun};
use crate::System;
use crate::files::{LiveFs, Tree, What};
use crate::kv::Host;
use crate::timeline::Span;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{Device, FaultDevice, MemDevice};
use stitch_fs::{MemFiles, PlainFault};

impl<H: Host> HostRun<'_, H> {
    /// Dies at the end and at a moment before it, and lives on.
    pub(super) fn die(&mut self, is_well: bool, rng: &mut Rng) -> Result<(), String> {
        self.medium.unwatch();
        let last = FrozenHost {
            point: self.medium.freeze(),
            files: self.files.freeze(),
            span: self.progress.span(),
        };
        if let Some(frozen) = self.frozen.lock().take() {
            let found = match rng.one_in(4) {
                true => self.killed(&frozen),
                false => self.cut(&frozen, rng),
            };
            found.map_err(|e| format!("within it: {e}"))?;
        }
        self.cut(&last, rng)
            .map_err(|e| format!("at the end: {e}"))?;
        if !is_well {
            return self.killed(&last).map_err(|e| format!("at the end: {e}"));
        }
        self.again(&last, rng)
            .map_err(|e| format!("in the next life: {e}"))
    }

    fn cut(&self, frozen: &FrozenHost, rng: &mut Rng) -> Result<(), String> {
        let (image, files) = (frozen.point.crash_image(rng), frozen.files.cut(rng));
        let judged = self.reopens(&image, &files, frozen.span.synced, frozen.span);
        judged.map_err(|e| format!("after a power cut: {e}"))
    }

    fn killed(&self, frozen: &FrozenHost) -> Result<(), String> {
        let (image, files) = (frozen.point.kill_image(), frozen.files.kill());
        let judged = self.reopens(&image, &files, frozen.span.acked, frozen.span);
        judged.map_err(|e| format!("after a kill: {e}"))
    }

    fn reopens(
        &self,
        image: &MemDevice,
        files: &MemFiles,
        low: usize,
        span: Span,
    ) -> Result<(), String> {
        let device = Arc::new(image.clone());
        let opened = self.system.open_beside(device, files);
        let live = opened.map_err(|e| format!("open failed: {e}"))?;
        let state = self.read(&live)?;
        let high = span.started.min(self.timeline.len());
        if self.timeline.find(&state, low, high).is_none() {
            return Err(self.timeline.explain(self.system, &state, low, high));
        }
        self.in_order(&live, &state, files)
    }

    fn read(&self, live: &LiveFs) -> Result<Tree, String> {
        let state = self.system.state(live);
        state.map_err(|e| format!("reading failed: {e}"))
    }

    /// All checks of a store that has just been opened find nothing, and what it counts is there.
    fn in_order(&self, live: &LiveFs, state: &Tree, files: &MemFiles) -> Result<(), String> {
        use stitch_fs::ExternalFiles;
        let broken = self.system.check(live);
        let broken = broken.map_err(|e| format!("check failed: {e}"))?;
        if let Some(first) = broken.first() {
            return Err(format!("{} broken rules; first: {first}", broken.len()));
        }
        let list = files.list().map_err(|e| e.to_string())?;
        counts_all(live, state, &list.into_iter().collect())
    }

    /// After a kill all is as it was, every file takes writes again, and what is synced then stays.
    fn again(&mut self, last: &FrozenHost, rng: &mut Rng) -> Result<(), String> {
        self.medium = Arc::new(last.point.resume());
        self.device = Arc::new(FaultDevice::new(Arc::clone(&self.medium)));
        self.files = last.files.kill();
        self.doubtful.clear();
        let mut live = self.reopened(rng)?;
        self.same(&live, "after a kill")?;
        self.in_order(&live, self.timeline.last(), &self.files)?;
        self.frozen.lock().take();
        if !self.goes_on(&mut live)? {
            return Err("it does not go on".to_owned());
        }
        // No store can bring back what a failed sync lost without an error.
        for path in paths_of(&live, self.timeline.last(), &self.files.unsure())? {
            let is_open = false;
            let op = self.next(What::Unlink { path, is_open });
            self.step(&mut live, op)?;
        }
        self.system
            .close(live)
            .map_err(|e| format!("close failed: {e}"))?;
        let image = self.medium.crash_image(rng);
        let files = self.files.freeze().cut(rng);
        let opened = self.system.open_beside(Arc::new(image), &files);
        let live = opened.map_err(|e| format!("open failed: {e}"))?;
        let state = self.read(&live)?;
        if !exactly(&state, self.timeline.last()) {
            let end = self.timeline.len();
            return Err(self.timeline.explain(self.system, &state, end, end));
        }
        self.in_order(&live, &state, &files)
    }

    /// Opens; perhaps with an error first.
    fn reopened(&self, rng: &mut Rng) -> Result<LiveFs, String> {
        let device = || Arc::clone(&self.device) as Arc<dyn Device>;
        if rng.one_in(2) {
            self.files.add_fault(PlainFault {
                op: [Some("list"), Some("remove"), None][usize::try_from(rng.below(3)).expect("3")],
                nth: 1 + rng.below(2),
                count: 1 + rng.below(3),
                kind: ErrorKind::Io,
                seed: rng.next_u64(),
                is_hidden: false,
            });
            let opened = self.system.open_beside(device(), &self.files);
            self.files.clear_faults();
            if let Err(error) = opened {
                self.expect_cause(&error, self.files.hits().len())?;
            }
        }
        let opened = self.system.open_beside(device(), &self.files);
        opened.map_err(|e| format!("open failed: {e}"))
    }
}
