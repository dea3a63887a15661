//! Snapshots that are sent and received beside all other changes, and crashes meanwhile.
//!
//! 1. A directory is changed, and two snapshots of it are created.
//! 2. The first one is sent completely and received in another directory of the store, then the
//!    changes between the two. Streams end early at random, and are resumed. Between their steps
//!    other operations change the store: transactions, clones, rollbacks also of the source.
//! 3. At some of the device's calls the power is cut or the process killed. The next life finds in
//!    the directory nothing, a part, or a snapshot, and goes on from there.
//!
//! Rules:
//! - the snapshots stay what they were, and so do the streams that are made of them;
//! - a directory that says which snapshot it holds, and holds no part of a stream, equals that
//!   snapshot;
//! - what a receiver has acknowledged is there after a power cut;
//! - from each part the rest of the stream leads to the snapshot.

mod dir;
mod work;

use super::{Views, ViewsSystem};
use crate::System as _;
use crate::crash::Effort;
use crate::kv::Host;
use stitch_base::random::Rng;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{CrashDevice, CrashPlan, CrashPoint, Device, MemDevice};
use stitch_send::SendToken;
use work::{ReceiverEnd, ReceiverOutcome, SentSnapshot, TargetState, Work};

/// Most parts of which a stream is made.
const PARTS_MAX: u64 = 4;
/// Receives that one life takes at most: each ends early, or has a snapshot in place.
const ROUNDS_MAX: u64 = 4 * PARTS_MAX;
/// Calls of a receiver after which it may be killed.
const CALLS_MAX: u64 = 400;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendStats {
    /// Operations beside the streams.
    pub ops: u64,
    /// Streams that ended early, and receivers that were killed.
    pub cuts: u64,
    /// Streams that were received to their ends.
    pub received: u64,
    /// Receives that found no space.
    pub refused: u64,
    /// Crashes that left a part of a stream.
    pub parts: u64,
    /// Images opened, compared and checked.
    pub images: u64,
}

/// Runs the transfers of one seed through their crashes.
///
/// # Errors
/// What went wrong, and where.
pub fn explore<H: Host>(
    system: &ViewsSystem<H>,
    seed: u64,
    effort: Effort,
) -> Result<SendStats, String> {
    let mut explorer = SendExplorer {
        system,
        rng: Rng::new(seed),
        effort,
        stats: SendStats::default(),
        pasts: Vec::new(),
        at: 0,
    };
    let image = explorer.prepare()?;
    explorer.life(&image, 0, 0)?;
    Ok(explorer.stats)
}

/// A moment of a life.
struct SendMoment {
    point: CrashPoint,
    /// Snapshots that the receiver had acknowledged.
    received: usize,
}

/// A fair sample of the moments of one life.
struct SendSample {
    kept: Vec<SendMoment>,
    seen: u64,
    room: usize,
    rng: Rng,
}

impl SendSample {
    fn offer(&mut self, received: usize, freeze: impl FnOnce() -> CrashPoint) {
        self.seen += 1;
        let slot = match self.kept.len() < self.room {
            true => self.kept.len(),
            false => usize::try_from(self.rng.below(self.seen)).expect("a small number"),
        };
        if slot >= self.room {
            return;
        }
        let point = freeze();
        self.kept.truncate(self.room);
        let frozen = SendMoment { point, received };
        match self.kept.get_mut(slot) {
            Some(kept) => *kept = frozen,
            None => self.kept.push(frozen),
        }
    }
}

struct SendExplorer<'a, H> {
    system: &'a ViewsSystem<H>,
    rng: Rng,
    effort: Effort,
    stats: SendStats,
    /// The two snapshots.
    pasts: Vec<SentSnapshot>,
    /// Seconds on the clock.
    at: u64,
}

impl<H: Host> SendExplorer<'_, H> {
    /// Makes the store with its two snapshots, all durable.
    fn prepare(&mut self) -> Result<MemDevice, String> {
        let device = Arc::new(CrashDevice::from_image(
            &self.system.image(),
            CrashPlan::NEVER,
        ));
        let work = self.open(Arc::clone(&device) as Arc<dyn Device>)?;
        work.make_source()?;
        for name in ["old", "new"] {
            for _ in 0..1 + self.rng.below(self.effort.ops_max) {
                work.change_source()?;
            }
            let past = work.create_snapshot(name)?;
            self.pasts.push(past);
        }
        self.end(work)?;
        Ok(device.kill_image())
    }

    fn open(&mut self, device: Arc<dyn Device>) -> Result<Work, String> {
        let live = self.system.open(device);
        let live = live.map_err(|e| format!("open failed: {e}"))?;
        let rng = Rng::new(self.rng.next_u64());
        Ok(Work::new(live, rng, self.at))
    }

    /// Closes the store.
    fn end(&mut self, work: Work) -> Result<(), String> {
        let (ops, at) = (work.ops(), work.at());
        (self.stats.ops, self.at) = (self.stats.ops + ops, at);
        let live = work.into_live();
        self.system
            .close(live)
            .map_err(|e| format!("close failed: {e}"))
    }

    /// Runs one life: what was acknowledged must be there; then both snapshots are received. Then
    /// crashes at some of its moments.
    fn life(&mut self, image: &MemDevice, least: usize, depth: usize) -> Result<(), String> {
        let device = Arc::new(CrashDevice::from_image(image, CrashPlan::NEVER));
        let received = Arc::new(AtomicUsize::new(least));
        let sample = self.watch(&device, &received, depth);
        let seen_by_store = (self.effort.wrap)(Arc::clone(&device) as Arc<dyn Device>);
        let in_life = |message: String| format!("life {}: {message}", depth + 1);
        let work = self.open(seen_by_store).map_err(in_life)?;
        self.expect_pasts(&work).map_err(in_life)?;
        let found = work.held(&self.pasts).map_err(in_life)?;
        self.expect_held(&work, &found, least).map_err(in_life)?;
        self.check(&work).map_err(in_life)?;
        self.receive_both(&work, &received).map_err(in_life)?;
        self.expect_pasts(&work).map_err(in_life)?;
        self.check(&work).map_err(in_life)?;
        self.end(work).map_err(in_life)?;
        device.unwatch();
        let points = std::mem::take(&mut sample.lock().kept);
        for frozen in points {
            self.stats.images += 1;
            let is_kill = self.rng.one_in(4);
            let image = match is_kill {
                true => frozen.point.kill_image(),
                false => frozen.point.crash_image(&mut self.rng),
            };
            let how = if is_kill { "killed" } else { "power cut" };
            self.life(&image, frozen.received, depth + 1)
                .map_err(|message| format!("{how} in life {}: {message}", depth + 1))?;
        }
        Ok(())
    }

    /// Samples moments of a device's life; none of the last one.
    fn watch(
        &mut self,
        device: &CrashDevice,
        received: &Arc<AtomicUsize>,
        depth: usize,
    ) -> Arc<Mutex<SendSample>> {
        let room = match depth {
            0 => self.effort.points,
            depth => usize::from(depth < self.effort.depth_max),
        };
        let sample = Arc::new(Mutex::new(SendSample {
            kept: Vec::new(),
            seen: 0,
            room,
            rng: Rng::new(self.rng.next_u64()),
        }));
        let (sink, received) = (Arc::clone(&sample), Arc::clone(received));
        if room > 0 {
            device.watch(move |moment| {
                let received = received.load(Ordering::SeqCst);
                sink.lock().offer(received, || moment.freeze());
            });
        }
        sample
    }

    fn check(&self, work: &Work) -> Result<(), String> {
        let broken = self.system.check(work.live());
        let broken = broken.map_err(|e| format!("check failed: {e}"))?;
        match broken.first() {
            None => Ok(()),
            Some(first) => Err(format!(
                "check found {} faults; first: {first}",
                broken.len()
            )),
        }
    }

    fn expect_pasts(&self, work: &Work) -> Result<(), String> {
        for past in &self.pasts {
            work.expect_past(past)?;
        }
        Ok(())
    }

    /// Compares what a crash has left with what the receiver had acknowledged.
    fn expect_held(
        &mut self,
        work: &Work,
        found: &TargetState,
        least: usize,
    ) -> Result<(), String> {
        let count = match found {
            TargetState::Nothing => 0,
            TargetState::Part(token) => {
                self.stats.parts += 1;
                usize::from(token.base.is_some())
            }
            TargetState::Whole(index) => {
                work.expect_received(&self.pasts[*index], false)?;
                index + 1
            }
        };
        match count < least {
            true => Err(format!(
                "{least} snapshots were received, and {count} are there"
            )),
            false => Ok(()),
        }
    }

    /// Receives what is missing.
    fn receive_both(&mut self, work: &Work, received: &AtomicUsize) -> Result<(), String> {
        for round in 0..ROUNDS_MAX {
            let found = work.held(&self.pasts)?;
            if let TargetState::Whole(index) = found {
                work.expect_received(&self.pasts[index], false)?;
            }
            let (index, rest) = match &found {
                TargetState::Nothing => (0, None),
                TargetState::Part(token) => (usize::from(token.base.is_some()), Some(token)),
                TargetState::Whole(0) => (1, None),
                TargetState::Whole(_) => return Ok(()),
            };
            let end = match self.rng.below(4) {
                0 if round < PARTS_MAX => ReceiverEnd::Cut,
                1 if round < PARTS_MAX => ReceiverEnd::Killed(self.rng.below(CALLS_MAX)),
                _ => ReceiverEnd::Whole,
            };
            match self.receive(work, index, (rest, end))? {
                ReceiverOutcome::Whole => {
                    self.stats.received += 1;
                    received.store(index + 1, Ordering::SeqCst);
                    work.expect_received(&self.pasts[index], true)?;
                }
                ReceiverOutcome::Early => self.stats.cuts += 1,
                ReceiverOutcome::NoSpace => {
                    self.stats.refused += 1;
                    return Ok(());
                }
            }
        }
        Err("streams lead nowhere".to_owned())
    }

    /// Sends and receives one stream, or a part of it.
    fn receive(
        &mut self,
        work: &Work,
        index: usize,
        (rest, end): (Option<&SendToken>, ReceiverEnd),
    ) -> Result<ReceiverOutcome, String> {
        let base = index.checked_sub(1).map(|index| &self.pasts[index]);
        let mut stream = work.send(base, &self.pasts[index], rest)?;
        if rest.is_none() {
            self.pasts[index].expect_stream(&stream)?;
        }
        if end == ReceiverEnd::Cut {
            let len = self.rng.below(stream.len() as u64);
            stream.truncate(usize::try_from(len).expect("a small number"));
        }
        work.receive(&stream, end)
    }
}

impl Views {
    /// Leaves out a directory of mainline and of transactions.
    fn hide(&mut self, dir: &str) {
        let works = self.transactions.values_mut().map(|work| &mut work.tree);
        for tree in works.chain([&mut self.main]) {
            tree.retain(|path, _| super::paths::below(path, dir).is_none());
        }
    }
}

#[cfg(test)]
mod tests;
