//! Keeps idle processors awake while requests follow each other.
//!
//! While a request is served, its caller waits and its processor is idle. The reply wakes the
//! caller there, and the next request wakes the daemon. A virtual processor that sleeps takes 40 us
//! to wake, longer than most requests take. Linux lets idle processors poll instead of sleeping
//! while a process holds `/dev/cpu_dma_latency` at 0. A session does so from a few consecutive
//! requests on until a pause of 1 ms. See `docs/adr/0082-idle-polling.md`.
//!
//! Invariants:
//! - the kernel cancels polling when the descriptor is closed, so it never outlives the daemon;
//! - polling is cancelled within 2 ms after the last request.

mod pace;

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_base::thread::JoinHandle;

use pace::{Pace, nanos};

/// The device that takes the longest permitted wake-up time, in microseconds.
pub const LATENCY_PATH: &str = "/dev/cpu_dma_latency";
const DRIVER_PATH: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The idle driver of virtual processors that can poll.
const VIRTUAL_DRIVER: &str = "haltpoll";
/// Most processors for polling by default, since all idle ones poll.
const CPUS_MAX: usize = 8;
/// Interval of checks whether requests still come.
const LOOK: Duration = Duration::from_millis(1);
/// Idle processors poll.
const POLL: i32 = 0;
/// Idle processors may sleep (the kernel's default).
const SLEEP: i32 = 2_000_000_000;

/// Whether idle processors should poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePollChoice {
    /// On virtual machines with 2 to 8 processors, if this process may.
    #[default]
    Auto,
    /// Always; the mount fails if that is not possible.
    Always,
    /// Never.
    Never,
}

/// The polling of a session. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct IdlePolling(Option<Arc<Wish>>);

#[derive(Debug)]
struct Wish {
    device: File,
    clock: SystemClock,
    pace: Pace,
    is_polling: AtomicBool,
    polled_nanos: AtomicU64,
    watch: Mutex<Watch>,
    changed: Condvar,
}

/// The thread that cancels polling.
#[derive(Debug, Default)]
struct Watch {
    is_ended: bool,
    thread: Option<JoinHandle<()>>,
}

impl IdlePolling {
    /// Sets polling up by `choice`.
    ///
    /// # Errors
    /// The reason that polling is not possible, if it is required.
    pub(crate) fn new(choice: IdlePollChoice) -> io::Result<Self> {
        let is_wanted = match choice {
            IdlePollChoice::Always => true,
            IdlePollChoice::Auto => is_worth_it(),
            IdlePollChoice::Never => false,
        };
        if !is_wanted {
            return Ok(Self(None));
        }
        match File::options().write(true).open(LATENCY_PATH) {
            Ok(device) => Ok(Self::on(device)),
            Err(error) if choice == IdlePollChoice::Always => Err(error),
            Err(error) => {
                tracing::debug!(%error, "idle processors sleep: {LATENCY_PATH}");
                Ok(Self(None))
            }
        }
    }

    fn on(device: File) -> Self {
        Self(Some(Arc::new(Wish {
            device,
            clock: SystemClock::default(),
            pace: Pace::default(),
            is_polling: AtomicBool::new(false),
            polled_nanos: AtomicU64::new(0),
            watch: Mutex::default(),
            changed: Condvar::new(),
        })))
    }

    /// Notes a request that is about to be answered. Costs a read of the clock.
    pub(super) fn note(&self) {
        let Some(wish) = &self.0 else { return };
        let is_lively = wish.pace.note(wish.clock.monotonic());
        if is_lively && !wish.is_polling.load(Ordering::Relaxed) {
            wish.begin();
        }
    }

    /// Returns how long idle processors have polled for this session.
    #[must_use]
    pub fn polled(&self) -> Duration {
        let nanos = self.0.as_ref().map(|wish| &wish.polled_nanos);
        Duration::from_nanos(nanos.map_or(0, |nanos| nanos.load(Ordering::Relaxed)))
    }

    /// Ends polling for good.
    pub(crate) fn end(&self) {
        let Some(wish) = &self.0 else { return };
        let mut watch = wish.watch.lock();
        watch.is_ended = true;
        wish.changed.notify_all();
        let thread = watch.thread.take();
        drop(watch);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that lets processors sleep panicked");
        }
        debug_assert!(!wish.is_polling.load(Ordering::Relaxed));
    }
}

impl Wish {
    fn begin(self: &Arc<Self>) {
        let mut watch = self.watch.lock();
        if watch.is_ended || self.is_polling.swap(true, Ordering::Relaxed) {
            return;
        }
        if watch.thread.is_none() {
            let wish = Arc::clone(self);
            match stitch_base::thread::spawn("fuse-idle-poll", move || wish.run()) {
                Ok(thread) => watch.thread = Some(thread),
                Err(error) => {
                    tracing::debug!(%error, "idle processors sleep");
                    watch.is_ended = true;
                    self.is_polling.store(false, Ordering::Relaxed);
                    return;
                }
            }
        }
        self.say(POLL);
        self.changed.notify_all();
    }

    fn say(&self, latency_us: i32) {
        if let Err(error) = (&self.device).write_all(&bytes_of(latency_us)) {
            tracing::debug!(%error, latency_us, "{LATENCY_PATH} was not written");
        }
    }

    /// The body of the thread: waits for polling to begin, and cancels it when requests stop
    /// following each other.
    fn run(&self) {
        let mut watch = self.watch.lock();
        loop {
            while !watch.is_ended && !self.is_polling.load(Ordering::Relaxed) {
                self.changed.wait(&mut watch);
            }
            if !self.is_polling.load(Ordering::Relaxed) {
                return;
            }
            let began = self.clock.monotonic();
            while !watch.is_ended && !self.pace.is_over(self.clock.monotonic()) {
                self.changed.wait_for(&mut watch, LOOK);
            }
            self.say(SLEEP);
            let polled = self.clock.monotonic().saturating_sub(began);
            self.polled_nanos
                .fetch_add(nanos(polled), Ordering::Relaxed);
            // Under the lock: a thread that sees this and starts polling comes later.
            self.is_polling.store(false, Ordering::Relaxed);
        }
    }
}

#[expect(
    clippy::host_endian_bytes,
    reason = "the kernel reads a number of its own"
)]
const fn bytes_of(latency_us: i32) -> [u8; 4] {
    latency_us.to_ne_bytes()
}

/// Reports whether polling is worthwhile by default: the processors are virtual, and few.
fn is_worth_it() -> bool {
    let driver = std::fs::read_to_string(DRIVER_PATH).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    driver.trim() == VIRTUAL_DRIVER && (2..=CPUS_MAX).contains(&cpus)
}

#[cfg(test)]
mod tests;
