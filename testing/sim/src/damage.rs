//! Damage: bits that flip on the medium, media that are cut short, media full of nonsense.
//!
//! Rules:
//! - a flipped bit gives an error or the right data, never wrong data and never less than was
//!   synced;
//! - a page that is lost or comes from elsewhere gives the same, except in the logs of a store that
//!   was not closed cleanly: its last page also holds the evidence that it existed. The state is
//!   then an older one, but not older than the last close;
//! - a store with an unreadable part accepts writes as before, over several lives, and the readable
//!   parts stay correct;
//! - a medium without a store, or with half of one, is refused with a message, without a panic.

use crate::timeline::Timeline;
use crate::{Ack, System};
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device, FaultDevice, MemDevice};

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct DamageStats {
    /// Images opened.
    pub images: u64,
    /// Of these, how many could not be opened.
    pub refused: u64,
    /// Of these, how many opened but could not all be read.
    pub unreadable: u64,
    /// Of these, how many held everything.
    pub whole: u64,
    /// Operations done on stores that could not all be read.
    pub later_ops: u64,
}

impl DamageStats {
    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.images += other.images;
        self.refused += other.refused;
        self.unreadable += other.unreadable;
        self.whole += other.whole;
        self.later_ops += other.later_ops;
    }
}

/// Damages the image of one seeded workload in `rounds` ways.
///
/// # Errors
/// What went wrong, and after which damage.
pub fn explore<S: System>(
    system: &S,
    seed: u64,
    ops_max: u64,
    rounds: u64,
) -> Result<DamageStats, String> {
    let mut rng = Rng::new(seed);
    let mut stats = DamageStats::default();
    let made = Made::new(system, &mut rng, ops_max)?;
    for _ in 0..rounds {
        stats.add(match rng.below(8) {
            0 => made.cut_short(&mut rng)?,
            1 => made.scribbled(&mut rng)?,
            _ => made.flipped(&mut rng)?,
        });
    }
    Ok(stats)
}

/// A store with contents.
struct Made<'a, S: System> {
    system: &'a S,
    image: MemDevice,
    pages: Vec<u64>,
    timeline: Timeline<S>,
    /// Shortest prefix that a damaged page may leave.
    closed: usize,
    /// Shortest prefix that a flipped bit may leave.
    synced: usize,
    ops_max: u64,
}

impl<'a, S: System> Made<'a, S> {
    fn new(system: &'a S, rng: &mut Rng, ops_max: u64) -> Result<Self, String> {
        let device = Arc::new(CrashDevice::from_image(&system.image(), CrashPlan::NEVER));
        let mut timeline = Timeline::new(system);
        let fail = |e| format!("a healthy device: {e}");
        let (mut closed, mut synced) = (0, 0);
        for _ in 0..2 {
            let seen = Arc::clone(&device) as Arc<dyn Device>;
            let mut live = system.open(seen).map_err(fail)?;
            for _ in 0..1 + rng.below(ops_max) {
                let op = system.generate(timeline.model(), rng);
                let ack = system.run(&mut live, &op, timeline.model()).map_err(fail)?;
                timeline.push(system, op, ack == Ack::Refused);
                if ack == Ack::Durable {
                    synced = timeline.len();
                }
            }
            if closed > 0 && rng.one_in(2) {
                drop(live);
                break;
            }
            system.close(live).map_err(fail)?;
            closed = timeline.len();
        }
        let image = device.kill_image();
        let pages = image.written_pages().into_iter().map(|(at, _)| at);
        Ok(Self {
            system,
            image,
            pages: pages.collect(),
            timeline,
            closed,
            synced: synced.max(closed),
            ops_max,
        })
    }

    fn flipped(&self, rng: &mut Rng) -> Result<DamageStats, String> {
        let device = FaultDevice::new(self.image.clone());
        let page = self.pages[usize::try_from(rng.below(self.pages.len() as u64)).expect("small")];
        let at = page
            + if rng.one_in(2) {
                rng.below(64)
            } else {
                rng.below(4096)
            };
        let bit = 1u8 << rng.below(8);
        device.corrupt(at, bit).map_err(|e| e.to_string())?;
        let what = format!("bit {bit:#04x} flipped at byte {at}");
        self.judge(Arc::new(device), self.synced, &what, rng)
    }

    /// A whole sector is lost or comes from elsewhere.
    fn scribbled(&self, rng: &mut Rng) -> Result<DamageStats, String> {
        let device = self.image.clone();
        let mut pick =
            || self.pages[usize::try_from(rng.below(self.pages.len() as u64)).expect("small")];
        let (target, source) = (pick(), pick());
        let mut bytes = vec![0u8; 4096];
        let what = if rng.one_in(2) {
            device
                .read_at(source, &mut bytes)
                .map_err(|e| e.to_string())?;
            "overwritten with another page"
        } else {
            "lost"
        };
        device
            .write_at(target, &[&bytes])
            .map_err(|e| e.to_string())?;
        let what = format!("page at {target} {what}");
        self.judge(Arc::new(device), self.closed, &what, rng)
    }

    fn cut_short(&self, rng: &mut Rng) -> Result<DamageStats, String> {
        let pages = self.image.geometry().len_bytes / 4096;
        let len_bytes = rng.below(pages) * 4096;
        let device = FaultDevice::shortened(self.image.clone(), len_bytes);
        match self.system.open(Arc::new(device)) {
            Ok(_) => Err(format!("a medium cut to {len_bytes} bytes was opened")),
            Err(error) if error.message.is_empty() => Err("an error says nothing".to_owned()),
            Err(error) if error.kind == ErrorKind::Bug => {
                Err(format!("a medium cut to {len_bytes} bytes: {error}"))
            }
            Err(_) => Ok(DamageStats {
                images: 1,
                refused: 1,
                ..DamageStats::default()
            }),
        }
    }

    fn judge(
        &self,
        device: Arc<dyn Device>,
        low: usize,
        what: &str,
        rng: &mut Rng,
    ) -> Result<DamageStats, String> {
        let mut stats = DamageStats {
            images: 1,
            ..DamageStats::default()
        };
        let fail = |e: String| format!("{what}: {e}");
        let live = match self.system.open(Arc::clone(&device)) {
            Ok(live) => live,
            Err(error) => {
                let is_honest = matches!(
                    error.kind,
                    ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid
                );
                if !is_honest {
                    return Err(fail(format!("open says: {error}")));
                }
                stats.refused = 1;
                return Ok(stats);
            }
        };
        let found = self
            .system
            .check(&live)
            .unwrap_or_else(|e| vec![e.to_string()]);
        let last = self.timeline.len();
        match self.system.state(&live) {
            Ok(state) if self.timeline.find(&state, low, last).is_some() => stats.whole = 1,
            Ok(state) => {
                let why = self.timeline.explain(self.system, &state, low, last);
                return Err(fail(why));
            }
            Err(error) => {
                if error.kind != ErrorKind::Corrupt {
                    return Err(fail(format!("reading says: {error}")));
                }
                if found.is_empty() {
                    return Err(fail(format!(
                        "the checks find nothing, but reading says: {error}"
                    )));
                }
                stats.unreadable = 1;
                let prefix = self.pieces_are_right(&live, low).map_err(fail)?;
                // If several states are possible, it is unknown which one the store continues from.
                if low == last {
                    let later_ops = self.lives_on(live, &device, prefix, rng);
                    stats.later_ops = later_ops.map_err(fail)?;
                }
            }
        }
        Ok(stats)
    }

    /// Runs more operations on a store with an unreadable part, and a life after them. An operation
    /// that needs the unreadable part is refused. Returns the number of operations done.
    fn lives_on(
        &self,
        mut live: S::Live,
        device: &Arc<dyn Device>,
        prefix: usize,
        rng: &mut Rng,
    ) -> Result<u64, String> {
        let system = self.system;
        let mut timeline = self.timeline.cut(system, prefix);
        let mut done = 0;
        for _ in 0..2 {
            for _ in 0..1 + rng.below(2 * self.ops_max) {
                let op = system.generate(timeline.model(), rng);
                let is_refused = match system.run(&mut live, &op, timeline.model()) {
                    Ok(ack) => ack == Ack::Refused,
                    Err(error) if error.kind == ErrorKind::Corrupt => true,
                    Err(error) => return Err(format!("later, {op:?} says: {error}")),
                };
                done += u64::from(!is_refused);
                timeline.push(system, op, is_refused);
            }
            let said = |e: String| format!("after {done} more operations: {e}");
            system
                .compare_readable(&live, timeline.last())
                .map_err(said)?;
            let said = |e| format!("after {done} more operations: {e}");
            system.close(live).map_err(said)?;
            live = system.open(Arc::clone(device)).map_err(said)?;
        }
        Ok(done)
    }

    /// Checks that each readable part is that of an allowed state. Returns which.
    fn pieces_are_right(&self, live: &S::Live, low: usize) -> Result<usize, String> {
        let mut wrong = String::new();
        for prefix in (low..=self.timeline.len()).rev() {
            match self
                .system
                .compare_readable(live, self.timeline.state(prefix))
            {
                Ok(_) => return Ok(prefix),
                Err(e) if wrong.is_empty() => wrong = e,
                Err(_) => {}
            }
        }
        Err(wrong)
    }
}

/// Opens media that hold no store at all, or a store's first bytes and then noise.
///
/// # Errors
/// If one of them is opened as a store.
pub fn nonsense<S: System>(system: &S, seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let len_bytes = 4096 * (1 + rng.below(512));
    let mut noise = vec![0u8; usize::try_from(len_bytes).expect("two megabytes at most")];
    if !rng.one_in(8) {
        rng.fill(&mut noise);
    }
    let kept = rng.below(3) * 4096;
    let kept = usize::try_from(kept.min(len_bytes)).expect("small");
    system
        .image()
        .read_at(0, &mut noise[..kept])
        .map_err(|e| e.to_string())?;
    let device = Arc::new(MemDevice::from_image(&noise));
    match system.open(device) {
        Ok(live) => match system.state(&live) {
            Ok(_) if kept == 0 => Err("noise was opened as a store".to_owned()),
            _ => Ok(()),
        },
        Err(error) if error.message.is_empty() => Err("an error says nothing".to_owned()),
        Err(error) if error.kind == ErrorKind::Bug => Err(format!("noise: {error}")),
        Err(_) => Ok(()),
    }
}
